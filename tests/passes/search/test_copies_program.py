"""The program with all copies told apart: its rows know just what plans hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from judge.generator import generate
from numpy.typing import NDArray
from problems import GATED, drawn
from programs import TINY_DECODER
from programs import generate as generate_any

from escc.compiler.plan.pipeline import parse
from escc.cost.hardware import Hardware
from escc.ir.mesh import Mesh
from escc.ir.program import Program
from escc.passes import task as tasks
from escc.passes.choose import choose
from escc.passes.ilp.solver import Settings, solve
from escc.passes.options import Options
from escc.passes.search.column_images import KeptOut, column_images
from escc.passes.search.copies_program import CopiesProgram
from escc.passes.search.exact import Prover
from escc.passes.search.limits import JointLimits, Limits
from escc.passes.search.problem import Candidate, Problem
from escc.passes.search.settle import SOLVER, _Settling
from escc.passes.search.side import Side

CODES = (
    TINY_DECODER.replace("repeat 5", "repeat 2")
    .replace("Wi: bf16", "Wi: int8")
    .replace("Wq, Wk, Wv: bf16", "Wq, Wk, Wv: int8")
)
ENDS = 0.995  # of what a plan holds: the rows keep it out of so much


@pytest.fixture
def sides_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[Program, str | Sequence[str], str, str], list[Side]]:
    """The sides of a problem, first that of plans that run nothing as one, in memory without end."""

    def found(program: Program, phases: str | Sequence[str], chips: str, hardware: str) -> list[Side]:
        seen: list[Iterable[Side]] = []
        inner = tasks.search

        def watched(problem: Problem, _: object, prover: Prover, below: float, sides: Callable[[], Any]) -> Candidate:
            seen.append(tuple(sides()))
            return inner(problem, None, prover)

        monkeypatch.setattr(tasks, "search", watched)
        choose(program, phases, Mesh.parse(chips), Options(Hardware.load(hardware), capacity_bytes=1e18))
        monkeypatch.setattr(tasks, "search", inner)
        [sides] = seen
        return list(sides)

    return found


def parts(side: Side) -> tuple[Limits, ...]:
    """The limits of each phase."""
    return side.limits.parts if isinstance(side.limits, JointLimits) else (side.limits,)


def fits(side: Side, part: Limits, plan: Candidate, capacity: float) -> bool:
    """Whether the rows of a phase leave a plan, over its own arcs, within a capacity."""
    allowed = [np.arange(len(p)) == c for p, c in zip(side.problem.prices, plan.chosen, strict=True)]
    program = CopiesProgram(side.problem, side.detours.moves, allowed, 1.0, ())
    program.limit(replace(part, capacity=capacity, stored=math.inf))
    model = program.model()
    upper = model.upper.copy()
    own = side.detours.trees.bill(plan.chosen, plan.shared).arcs
    for t, paid in program.paid.items():
        arcs = np.arange(len(side.detours.moves.arcs[t]))
        upper[paid + arcs[~np.isin(arcs, own[t])]] = 0.0
    return not solve(replace(model, upper=upper), Settings(solver=SOLVER), 200).none


def assert_rows_know(side: Side, plan: Candidate) -> None:
    """That the rows leave a plan room in just what it holds, if all of it runs alone."""
    [part] = parts(side)
    use, _ = part.spelled(plan)
    assert fits(side, part, plan, float(use.total_bytes)), use.worst
    assert not fits(side, part, plan, float(use.total_bytes) * ENDS), use.worst


@pytest.mark.parametrize("hardware", ["h100", "tpu-v5e"])
@pytest.mark.parametrize(
    ("text", "phase", "chips", "seeds"),
    [
        (TINY_DECODER.replace("repeat 5", "repeat 3"), "prefill", "2", range(4)),
        (TINY_DECODER.replace("repeat 5", "repeat 3"), "decode", "2x2", range(2)),
        (CODES, "decode", "2", range(4)),
        (GATED, "main", "2", range(8)),
    ],
)
def test_rows_say_just_what_a_plan_of_layers_holds(
    text: str, phase: str, chips: str, seeds: range, hardware: str, sides_of: Callable[..., list[Side]]
) -> None:
    """Padding of lanes, tables by rows, decoded matrices, scores that are moved and what they are made of."""
    side = sides_of(parse(text), phase, chips, hardware)[0]
    for seed in seeds:
        assert_rows_know(side, side.problem.found(drawn(side.problem, seed)))


@pytest.mark.parametrize(
    ("seed", "chips", "plans"),
    [
        (44, "2", range(4)),  # results that are moved at the end
        (112, "2", range(4)),
        (97, "2", range(2)),  # sums that are laid out as rows to be scattered
        (223, "4", range(3, 4)),  # what is copied on the way is held in no whole number of grains
        (133, "4", range(2)),
    ],
)
def test_rows_say_just_what_a_plan_holds(
    seed: int, chips: str, plans: range, sides_of: Callable[..., list[Side]]
) -> None:
    side = sides_of(generate(seed).program, "main", chips, "tpu-v5e")[0]
    for number in plans:
        assert_rows_know(side, side.problem.found(drawn(side.problem, number)))


def test_all_columns_are_whole_numbers(sides_of: Callable[..., list[Side]]) -> None:
    """CP-SAT says of some programs with others that they have no solution where there is one."""
    for side in sides_of(generate(5070).program, "main", "2x2", "tpu-v4"):
        every = [np.ones(len(price), dtype=bool) for price in side.problem.prices]
        program = CopiesProgram(side.problem, side.detours.moves, every, 1.0, ())
        for part in parts(side):
            program.limit(replace(part, capacity=1e6))
        model = program.model()
        assert model.integer.all() and (model.upper == np.round(model.upper)).all()
        rows = (model.high == np.round(model.high)) | np.isinf(model.high)
        assert rows.all() and (model.coefficient == np.round(model.coefficient)).all()


@pytest.mark.parametrize("seed", [9, 46, 52])  # an input that nothing reads; keys that are sorted to choose by them
def test_rows_know_inputs_and_what_keys_are_sorted_in(seed: int, sides_of: Callable[..., list[Side]]) -> None:
    program = parse(generate_any(seed).text)
    side = sides_of(program, program.phases[0].name, "2", "tpu-v5e")[0]
    assert_rows_know(side, side.problem.found(drawn(side.problem, 0)))


@pytest.mark.parametrize("hardware", ["h100", "tpu-v5e"])
@pytest.mark.parametrize(
    ("seed", "chips"),
    [
        (5, "2"),
        (21, "2"),
        (33, "2"),
        (14, "2x2"),  # gathers in two stages, of which memory counts the first of those that run as one
        (5070, "2x2"),  # a cache that is moved from where it is stored
    ],
)
def test_rows_cut_off_no_plan_that_runs_collectives_as_one(
    seed: int, chips: str, hardware: str, sides_of: Callable[..., list[Side]]
) -> None:
    """Those that do may take little less than they hold by what is known of them."""
    side = sides_of(generate(seed).program, "main", chips, hardware)[-1]
    assert side.problem.groups is not None
    [part] = parts(side)
    kept_out = 0
    for number in range(4):
        plan = side.problem.found(drawn(side.problem, number))
        use, _ = part.spelled(plan)
        assert fits(side, part, plan, float(use.total_bytes)), (number, use.worst)
        kept_out += not fits(side, part, plan, float(use.total_bytes) * 0.5)
    assert kept_out >= 3


def test_what_a_phase_holds_too_much_is_kept_out_whatever_others_do(sides_of: Callable[..., list[Side]]) -> None:
    text = TINY_DECODER.replace("repeat 5", "repeat 2")
    side = sides_of(parse(text), ["prefill", "decode"], "2", "h100")[0]
    plan = side.problem.found(drawn(side.problem, 1))
    held = {part.phase: float(part.spelled(plan)[0].total_bytes) for part in parts(side)}
    assert isinstance(side.limits, JointLimits)
    for phase, size in held.items():
        tight = tuple(
            replace(part, capacity=size - 1 if part.phase == phase else 1e18, _known={}) for part in parts(side)
        )
        program, kept = kept_out(replace(side, limits=JointLimits(tight)), plan)
        graph = side.problem.graph
        numbers = {first + c: n for n, first in enumerate(program.choice) for c in range(len(side.problem.prices[n]))}
        nodes = {graph.nodes[numbers[column]].phase for column in kept.columns if column in numbers}
        assert nodes == {None, phase}
        arcs = side.detours.moves.arcs
        moved = [t for t, paid in program.paid.items() for c in kept.columns if 0 <= c - paid < len(arcs[t])]
        assert {graph.tensors[t].phase for t in moved} <= {phase}


@pytest.mark.parametrize(("seed", "chips"), [(5072, "2x2"), (5074, "2x2"), (5096, "2x2"), (5006, "2"), (5050, "2")])
def test_plans_that_are_kept_out_hold_as_much(seed: int, chips: str, sides_of: Callable[..., list[Side]]) -> None:
    """Other plans that have all columns and none of the others, and images of the plan."""
    side = sides_of(generate(seed).program, "main", chips, "tpu-v4")[-1]
    assert side.problem.groups is not None
    [part] = parts(side)
    rng, alike, images = np.random.default_rng(seed), 0, 0
    for number in range(6):
        plan = side.problem.found(drawn(side.problem, number))
        size = float(part.spelled(plan)[0].total_bytes)
        tight = replace(side, limits=replace(part, capacity=size - 1, _known={}))
        program, kept = kept_out(tight, plan)
        every = list(kept.with_images(column_images(program)))
        firsts = list(zip(program.choice, side.problem.prices, strict=True))
        free = [n for n, (first, p) in enumerate(firsts) if not any(0 <= c - first < len(p) for c in kept.columns)]
        for _ in range(30 if free else 0):
            chosen = list(plan.chosen)
            for n in rng.choice(free, min(2, len(free)), replace=False):
                chosen[n] = int(rng.integers(len(side.problem.prices[n])))
            other = side.problem.found(chosen)
            if not np.isfinite(other.price):
                continue
            x = answer_of(tight, program, other)
            some = [n for n, one in enumerate(every) if x[one.columns].all() and not x[one.others].any()]
            alike += bool(some) and other.chosen != plan.chosen
            assert not some or part.spelled(other)[0].total_bytes >= size, (number, chosen)
        for one in every[1:]:
            images += 1
            pinned = [[c - first for c in one.columns if 0 <= c - first < len(price)] for first, price in firsts]
            if all(pinned):
                other = side.problem.found([own[0] for own in pinned])
                assert part.spelled(other)[0].total_bytes == pytest.approx(size, rel=1e-12)
    assert alike >= 1 and (images >= 1 or chips != "2x2")


def kept_out(side: Side, plan: Candidate) -> tuple[CopiesProgram, KeptOut]:
    """What is kept out because of a plan that holds too much, and the program."""
    every = [np.ones(len(price), dtype=bool) for price in side.problem.prices]
    program = CopiesProgram(side.problem, side.detours.moves, every, 1.0, ())
    settling = _Settling(side, Prover(side.problem), math.inf)
    over, _ = settling.read(program, answer_of(side, program, plan))
    return program, settling.alike(program, over, answer_of(side, program, over), fits=False)


def answer_of(side: Side, program: CopiesProgram, plan: Candidate) -> NDArray[np.float64]:
    """What the solver would say of a plan: its choices, the arcs that it pays for, and what runs as one."""
    several = program.several if program.groups is not None else {}
    x = np.zeros(program.a.columns)
    for first, c in zip(program.choice, plan.chosen, strict=True):
        x[first + c] = 1.0
    own = side.detours.trees.bill(plan.chosen, plan.shared).arcs
    for t, paid in program.paid.items():
        x[[paid + arc for arc in own[t]]] = 1.0
    for group in plan.shared:
        x[program.shared[group]] = 1.0
    for group, column in several.items():
        arcs = [program.paid[t] + arcs[group] for t, arcs in program.members.items() if group in arcs]
        x[column] = sum(float(x[each].sum()) for each in arcs) >= 2
    return x
