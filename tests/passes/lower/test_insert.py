"""Insertion: collectives stand where their value is made, right before the first who needs them, once."""

from __future__ import annotations

from pathlib import Path

import pytest

from escc.cost.hardware import Hardware
from escc.ir.collective import AllGather, AllReduce, Slice
from escc.ir.diagnostics import Source
from escc.ir.layout import Layout, parse_layout
from escc.ir.mesh import Mesh
from escc.ir.program import Program, Region, Repeat, operand_names, walk
from escc.ir.spmd import Compute, Move, SpmdProgram, Step
from escc.ir.text.read import parse, read_source
from escc.ir.verify.verify import verify
from escc.passes.choose import choose
from escc.passes.expansion.expand import expand
from escc.passes.lower.insert import insert
from escc.passes.options import Options
from escc.passes.plan import Leg, Objective, OpPlan, PhasePlan, Plan, Timing, Tree

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.esti"))
MESH = Mesh.parse("4")


def program(text: str) -> Program:
    source = Source("test.esti", text)
    return expand(parse(source), source, {})


def layout(text: str) -> Layout:
    return parse_layout(text)[1]


def plan(layer: Program, **parts: tuple[object, ...]) -> Plan:
    phase = PhasePlan("main", layer, parts["ops"], parts["trees"], parts.get("carries", ()), parts["results"], 0.0, 0.0)  # type: ignore[arg-type]
    return Plan(MESH, Objective.TIME, (), (phase,), Timing(0.0, 0.0))


def gather(before: str, after: str, dim: int) -> Leg:
    return Leg(layout(before), layout(after), AllGather(("x",), dim))


TWICE = program("dim B = 8, E = 4\nmain(x: bf16[B,E]) {\n  y = exp(x)\n  z = tanh(x)\n  w = y + z\n  return w, y\n}")


def test_a_copy_stands_before_its_first_use_and_serves_all() -> None:
    split, whole = layout("B_xE"), layout("BE")
    spmd = insert(
        plan(
            TWICE,
            ops=(
                OpPlan("y", (split,), split),
                OpPlan("z", (whole,), whole),
                OpPlan("w", (whole, whole), whole),
            ),
            trees=(
                Tree("x", split, (gather("B_xE", "BE", 0),)),
                Tree("y", split, (gather("B_xE", "BE", 0),)),
                Tree("z", whole, ()),
                Tree("w", whole, ()),
            ),
            results=(("w", whole), ("y", whole)),
        ),
    )[0]
    verify(spmd, TWICE)
    assert [item.result for item in spmd.body.items if not isinstance(item, Repeat)] == ["y", "x'", "z", "y'", "w"]
    assert spmd.results == ("w", "y'")


CAPTURED = program(
    "dim B = 8, E = 4\nparam W: bf16[B,E]\nblock f(x: bf16[B,E]) -> bf16[B,E] {\n  y = x * W\n  return y\n}\n"
    "main(x: bf16[B,E]) { return repeat 3 f(x) }"
)


def test_a_value_from_outside_is_moved_once_and_outside() -> None:
    split, whole = layout("B_xE"), layout("BE")
    names = {v.name.rpartition(".")[2]: v.name for v in CAPTURED.values}
    (result,) = CAPTURED.results
    spmd = insert(
        plan(
            CAPTURED,
            ops=(OpPlan(names["y"], (split, whole), whole),),
            trees=(
                Tree("x", split, ()),
                Tree("W", split, (gather("B_xE", "BE", 0),)),
                Tree("f.x", split, ()),
                Tree(names["y"], whole, (Leg(whole, split, Slice(("x",), 0)),)),
                Tree(result, split, (gather("B_xE", "BE", 0),)),
            ),
            carries=(("f.x", split),),
            results=((result, whole),),
        ),
    )[0]
    kinds = [type(item).__name__ for item in spmd.body.items]
    assert kinds == ["Move", "Repeat", "Move"]
    (repeat,) = (item for item in spmd.body.items if isinstance(item, Repeat))
    assert [item.result for item in repeat.body.items if not isinstance(item, Repeat)] == ["f.y", "f.y'"]
    assert spmd.results == (f"{result}'",)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
@pytest.mark.parametrize("mesh", ["2x2", "4x4x4"])
def test_moves_are_used_and_stand_where_they_are_needed(path: Path, mesh: str) -> None:
    source = read_source(path)
    layer = expand(parse(source), source, {})
    phase = layer.phases[-1].name
    options = Options(Hardware.of_paper("tpu-v4"), capacity_bytes=float("inf"))
    found = choose(layer, phase, Mesh.parse(mesh), options)
    (spmd,) = insert(found)
    verify(spmd, layer)
    legs = sum(len(tree.legs) for tree in found.phases[0].trees)
    moves = [placed.item for placed in walk(spmd.body) if isinstance(placed.item, Move)]
    assert len(moves) == legs
    number = {placed.item.result: n for n, placed in enumerate(walk(layer.body)) if hasattr(placed.item, "result")}

    def moved_up(maker: object, following: object) -> bool:
        """Whether an op stands before one that it stood after: what reads it then follows as early as it can."""
        ops = [step.op.result for step in (maker, following) if isinstance(step, Compute)]
        return len(ops) == 2 and number[ops[0]] > number[ops[1]]

    for region in regions(spmd):
        for before, here, following in zip(
            (None, *region.items), region.items, (*region.items[1:], None), strict=False
        ):
            if isinstance(here, Move) and following is not None:
                needed = reads(following, here.result) or isinstance(following, Move)
                made = isinstance(before, Compute) and before.op.result == here.operand
                assert needed or (made and moved_up(before, following)), here.result
    assert len({v.name for v in spmd.values}) == len(spmd.values)


def regions(spmd: SpmdProgram) -> list[Region[Step]]:
    out, stack = [], [spmd.body]
    while stack:
        region = stack.pop()
        out.append(region)
        stack += [item.body for item in region.items if isinstance(item, Repeat)]
    return out


def reads(item: object, name: str) -> bool:
    match item:
        case Compute(op):
            return name in operand_names(op)
        case Move(_, operand, _):
            return operand == name
        case Repeat():
            within = any(reads(inner, name) for inner in item.body.items)
            return within or any(c.initial == name for c in item.carries)
    return False


def test_each_phase_of_a_plan_is_spelled_out() -> None:
    split = layout("B_xE")
    ops = tuple(OpPlan(r, (split,) if r != "w" else (split, split), split) for r in ("y", "z", "w"))
    trees = tuple(Tree(v, split, ()) for v in ("x", "y", "z", "w"))
    one = plan(TWICE, ops=ops, trees=trees, results=(("w", split), ("y", split)))
    two = Plan(one.mesh, one.objective, one.stored, one.phases * 2, one.timing)
    assert len(insert(two)) == 2
    assert insert(two)[0] == insert(one)[0]


def test_a_partial_result_is_completed_by_the_tree() -> None:
    layer = program("dim B = 8, E = 4\nmain(x: bf16[B,E]) {\n  y[E] = x[B,E]\n  return y\n}")
    partial, whole = layout("E partialsum-x"), layout("E")
    spmd = insert(
        plan(
            layer,
            ops=(OpPlan("y", (layout("B_xE"),), partial),),
            trees=(Tree("x", layout("B_xE"), ()), Tree("y", partial, (Leg(partial, whole, AllReduce(("x",))),))),
            results=(("y", whole),),
        ),
    )[0]
    verify(spmd, layer)
    assert spmd.body.items[-1] == Move("y'", "y", AllReduce(("x",)))
