"""Tight memory: a plan is refused only where there is none, and what is said of plans agrees among capacities.

What holds at one capacity holds at a larger one, so plans found with less memory judge those found with more.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from judge.generator import generate

from escc.compiler.plan.pipeline import compile_plan, load, parse
from escc.cost.hardware import Convention, Hardware
from escc.cost.memory import memory
from escc.ir.diagnostics import InputError
from escc.ir.mesh import Mesh
from escc.ir.program import Kind, Phase, Program, Stored, walk
from escc.passes.choose import choose
from escc.passes.lower.insert import insert
from escc.passes.options import Options
from escc.passes.plan import Plan
from escc.passes.search import branch_and_bound as boxes
from escc.passes.search import search as searching

HARDWARE = Hardware.of_paper("tpu-v4")
EXAMPLES = Path(__file__).parents[2] / "examples"
SHARES = (0.97, 0.85, 0.6, 0.35)


def with_phases(program: Program, count: int) -> Program:
    """The program with several phases, along a dim that no parameter has; with one, if there is none such."""
    table, sizes = program.table(), program.phases[0].sizes
    stored = [p.item for p in walk(program.body) if isinstance(p.item, Stored) and p.item.kind is not Kind.INPUT]
    kept = {dim for item in stored for dim in table[item.value].dims}
    free = [dim for dim, _ in sizes if dim not in kept]
    if not free or count == 1:
        return program

    def phase(n: int) -> Phase:
        grown = tuple((dim, size * (1, 4, 2)[n] if dim == free[0] else size) for dim, size in sizes)
        return Phase(("main", "second", "third")[n], grown, (1, 3, 16)[n])

    return replace(program, phases=tuple(phase(n) for n in range(count)))


def planned(program: Program, mesh: str, options: Options) -> tuple[Plan, float] | bool:
    """The plan of all phases and what it holds; without one, whether it is proven that there is none."""
    try:
        plan = choose(program, [phase.name for phase in program.phases], Mesh.parse(mesh), options)
    except InputError as error:
        return "was found" not in error.diagnostics[0].message
    held = max(float(memory(spmd).total_bytes) for spmd in insert(plan))
    assert held <= options.capacity
    compile_plan(program, plan, options)  # verified, and priced as planned
    return plan, held


def contradictions(found: Sequence[tuple[float, tuple[Plan, float] | bool]]) -> list[str]:
    """Where capacities say different things."""
    plans = [result for _, result in found if not isinstance(result, bool)]
    out = []
    for capacity, result in found:
        within = [plan for plan, held in plans if held <= capacity]
        if isinstance(result, bool):
            out += [f"refused within {capacity}, proven: {result}"] * bool(within)
        else:
            out += [f"bound of {capacity}" for plan in within if plan.price < result[0].bound * (1 - 1e-9)]
    return out


@pytest.mark.parametrize(("mesh", "phases"), [("2x4", 1), ("4", 3)])
@pytest.mark.parametrize("convention", Convention)
@pytest.mark.parametrize("seed", [0, 3, 8, 15, 17, 31])
def test_capacities_agree(seed: int, convention: Convention, mesh: str, phases: int) -> None:
    program = with_phases(generate(seed).program, phases)
    options = Options(HARDWARE.with_network(convention), capacity_bytes=math.inf)
    free = planned(program, mesh, options)
    assert not isinstance(free, bool)
    found: list[tuple[float, tuple[Plan, float] | bool]] = [(math.inf, free)]
    for share in SHARES:
        capacity = math.floor(share * free[1])
        found.append((capacity, planned(program, mesh, replace(options, capacity_bytes=capacity))))
    assert not contradictions(found)


@pytest.mark.parametrize(
    ("seed", "convention", "mesh", "phases", "share"),
    [
        (20, Convention.FLAT, "4", 3, 0.97),  # one op reads a value in two layouts, each made from the other
        (20, Convention.LINKS, "2x4", 1, 0.9),
        (20, Convention.LINKS, "2x4", 1, 0.85),  # where collectives may run as one, after what holds most
        (23, Convention.FLAT, "2x4", 1, 0.85),
        (23, Convention.FLAT, "4", 3, 0.97),
    ],
)
def test_small_problems_are_settled(seed: int, convention: Convention, mesh: str, phases: int, share: float) -> None:
    program = with_phases(generate(seed).program, phases)
    options = Options(HARDWARE.with_network(convention), capacity_bytes=math.inf)
    free = planned(program, mesh, options)
    assert not isinstance(free, bool)
    found = planned(program, mesh, replace(options, capacity_bytes=math.floor(share * free[1])))
    assert found is True or (found and found[0].gap <= 1e-9)


def test_a_large_problem_has_a_plan_after_a_look_or_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boxes, "MOST_READ", 1)  # as in a problem so large that there is no time for more
    monkeypatch.setattr(boxes, "MOST_COLUMNS", 0)
    monkeypatch.setattr(searching, "MANY_COLUMNS", 10**9)  # nor for images, which would prove it
    program = load(EXAMPLES / "palm-540b.esti")
    plan = choose(program, "prefill", Mesh.parse("4x4x4"), Options(HARDWARE))
    (spmd,) = insert(plan)
    assert memory(spmd).total_bytes <= HARDWARE.hbm_bytes
    assert 1e-9 < plan.gap < 0.01


PADDED = """
dim B = 6, E = 30, F = 44
block layer(x: bf16[B,E]) -> bf16[B,E] {
  param Wi: bf16[E,F]
  param Wd: bf16[F,E]
  u[B,F] = x[B,E] * Wi[E,F]
  d[B,E] = u[B,F] * Wd[F,E]
  return x + d
}
main(x: bf16[B,E]) { return repeat 9 layer(x) }
"""


def test_what_is_said_to_be_live_is_listed_with_its_padding() -> None:
    """On TPUs the lanes of small matrices take more than these do."""
    options = Options(Hardware.load("tpu-v4"), capacity_bytes=40e3)
    with pytest.raises(InputError) as refused:
        choose(parse(PADDED), "main", Mesh.parse("2x3"), options)
    [found] = refused.value.diagnostics
    live = re.search(r"([\d.]+) kB of live values", found.message)
    assert live is not None and found.hint is not None
    sizes = re.findall(r"`([\w.]+)`( \(padding\))? ([\d.]+) (kB|bytes)", found.hint)
    assert ("layer.Wd", " (padding)") in {(name, form) for name, form, _, _ in sizes}
    total = sum(float(size) / (1 if unit == "kB" else 1e3) for *_, size, unit in sizes)
    assert total == pytest.approx(float(live[1]), rel=1e-3)
