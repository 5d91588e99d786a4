"""How all plans are told apart: by which collectives run as one, and what is known of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations, product

import numpy as np
import pytest
from problems import drawn
from written_out import BLOCKS

import escc.passes.task
from escc.compiler.plan.pipeline import parse
from escc.cost.hardware import Hardware
from escc.ir.dataflow import origins
from escc.ir.mesh import Mesh
from escc.ir.program import walk
from escc.ir.spmd import Move
from escc.passes import reader
from escc.passes.choose import choose
from escc.passes.options import Options
from escc.passes.search.combinable import Groups, Knot
from escc.passes.search.graph import Tensor
from escc.passes.search.limits import JointLimits, Limits
from escc.passes.search.memory_bounds import MemoryBounds
from escc.passes.search.problem import Candidate, Problem
from escc.passes.search.side import Side

PHASES = ("decode", "prefill")
LAYER = f"""
dim B, L
dim E = 64, F = 128
block layer{BLOCKS["gated"]}
main(x: bf16[B,L,E]) {{ return repeat 3 layer(x) }}
phase prefill {{ B = 4, L = 64 }}
phase decode {{ B = 64, L = 1 }}
"""

KNOTS = LAYER.replace("  param Wd: bf16[F,E]", "  param Wd, We: bf16[F,E]").replace(
    "  return x + d", "  e[B,L,E] = h[B,L,F] * We[F,E]\n  m = silu(d) * e\n  return x + m"
)
BY_KNOTS = {"MANY_COLUMNS": 10**9, "MANY_ARCS": 0, "MOST_COLUMNS": 10**9}


class Seen(Exception):
    """What the search is given has been seen."""


def given(text: str = LAYER, phases: Sequence[str] = PHASES, /, **figures: int) -> tuple[Problem, list[Side]]:
    """The problem of phases in each of which some collectives may run as one, and its sides with other figures of
    the reader: if nothing else is said by phases."""
    made: list[tuple[Problem, list[Side]]] = []

    def seen(
        problem: Problem, limits: object, prover: object, below: float, sides: Callable[[], Iterable[Side]]
    ) -> None:
        made.append((problem, list(sides())))
        raise Seen

    with pytest.MonkeyPatch.context() as patched, pytest.raises(Seen):
        patched.setattr(escc.passes.task, "search", seen)
        for name, figure in ({"MANY_COLUMNS": 0, "MOST_PHASES": 2} | figures).items():
            patched.setattr(reader, name, figure)
        options = Options(Hardware.load("h100"), capacity_bytes=1e9)
        choose(parse(text), sorted(phases, reverse=True), Mesh.parse("2x2"), options)
    return made[0]


def of(problem: Problem) -> Groups:
    """The groups of a problem that has some."""
    assert problem.groups is not None
    return problem.groups


def known(side: Side) -> Iterator[tuple[str, MemoryBounds]]:
    """What is known of plans, by phase."""
    assert isinstance(side.limits, JointLimits)
    return ((part.phase, part.needs) for part in side.limits.parts)


def of_phase(problem: Problem, phase: str) -> frozenset[Knot]:
    """The knots of a phase."""
    return frozenset(knot for knot in problem.combining if knot[0] == phase)


def test_a_large_problem_is_told_apart_by_the_phases_that_combine() -> None:
    problem, sides = given()
    assert of(problem).phases == {"prefill", "decode"}
    own = [of_phase(problem, phase) for phase in PHASES]
    every = [some for count in range(3) for some in combinations(own, count)]
    assert [side.limits.combining for side in sides] == every
    assert_each_is_of_its_knots(problem, sides)


def test_a_smaller_one_is_told_apart_by_knots() -> None:
    """Of which here each phase has two."""
    problem, sides = given(KNOTS, **BY_KNOTS)
    own = [frozenset({knot}) for knot in sorted(problem.combining)]
    assert len(own) == 4 and {phase for [(phase, _)] in own} == set(PHASES)
    assert [side.limits.combining for side in sides] == [some for n in range(5) for some in combinations(own, n)]
    assert_each_is_of_its_knots(problem, sides)


def assert_each_is_of_its_knots(problem: Problem, sides: list[Side]) -> None:
    """Sides have groups of the knots that they combine, all of these, and no others."""
    assert sides[0].problem.groups is None and sides[-1].problem is problem
    every = of(problem).members()
    for side in sides[1:]:
        assert side.problem.combining == frozenset[Knot]().union(*side.limits.combining)
        mine = [knot in side.problem.combining for knot in of(problem).knot]
        assert any(mine)
        np.testing.assert_array_equal(of(side.problem).members(), every * mine)


@pytest.mark.parametrize(("many", "count"), [(None, 2), (0, 4)])
def test_of_one_phase_more_is_settled_at_once(many: int | None, count: int) -> None:
    """It has two knots."""
    figures = BY_KNOTS | ({} if many is None else {"MANY_OF_ONE": many})
    assert len(given(KNOTS, ["decode"], **figures)[1]) == count


@pytest.mark.parametrize(
    "figures",
    [
        BY_KNOTS | {"MANY_ARCS": 10**9},
        BY_KNOTS | {"MOST_KNOTS": 3},
        BY_KNOTS | {"MOST_COLUMNS": 100},
        {"MOST_PHASES": 1, "MOST_COLUMNS": 0},
    ],
    ids=["few arcs", "many knots", "many columns", "many phases"],
)
def test_others_are_told_apart_by_whether_any_does(figures: dict[str, int]) -> None:
    problem, sides = given(KNOTS, **figures)
    assert [side.problem.combining for side in sides] == [set(), problem.combining]
    assert [side.limits.combining for side in sides] == [(), (problem.combining,)]
    assert sides[-1].problem is problem


def test_values_of_a_knot_hang_together() -> None:
    """Two groups are of one knot if one gets from one to the other over values that may be in both."""
    problem, _ = given()
    groups = of(problem)
    near = groups.members().T @ groups.members() > 0
    for _ in range(len(near)):
        near = near @ near
    same = np.array([[a == b for b in groups.knot] for a in groups.knot])
    np.testing.assert_array_equal(near, same)
    for tensor, own in zip(problem.graph.tensors, groups.members(), strict=True):
        assert {groups.knot[g][0] for g in np.flatnonzero(own).tolist()} <= {tensor.phase}


@pytest.mark.parametrize("by_knots", [False, True])
def test_of_a_phase_that_combines_nothing_as_much_is_known_as_where_none_does(by_knots: bool) -> None:
    """And less of one that does, the less the more does: its steps may run in another order."""
    _, sides = given(KNOTS, **BY_KNOTS) if by_knots else given()
    every = {side.problem.combining: dict(known(side)) for side in sides}
    rng, less = np.random.default_rng(0), 0
    for _ in range(20 if not by_knots else 6):
        some = [rng.integers(len(price)) == np.arange(len(price)) for price in sides[0].problem.prices]
        held = {knots: {phase: needs.worst(some)[1] for phase, needs in own.items()} for knots, own in every.items()}
        for (few, least), (many, most) in product(held.items(), repeat=2):
            for phase in PHASES:
                fewer, more = ({knot for knot in knots if knot[0] == phase} for knots in (few, many))
                if fewer <= more:
                    assert most[phase] <= least[phase] * (1 + 1e-12)
                    less += most[phase] < least[phase]
                if fewer == more:
                    assert most[phase] == least[phase]
    assert less, "the order of steps matters here"


@pytest.mark.parametrize("by_knots", [False, True])
def test_a_plan_of_a_side_combines_what_it_may_alone(by_knots: bool) -> None:
    """Spelled out as it was priced: what may run as one elsewhere runs alone there."""
    _, sides = given(KNOTS, **BY_KNOTS) if by_knots else given()
    combined = dict.fromkeys(PHASES, 0)
    for side in sides:
        for seed in range(12 if not by_knots else 4):
            plan = side.problem.found(drawn(side.problem, seed))
            assert plan.combining == side.problem.combining
            assert isinstance(side.limits, JointLimits)
            for part in side.limits.parts:
                shared = shares(part, plan)
                values = {t.value.name for t in members(side.problem, part.phase)}
                assert shared <= values
                combined[part.phase] += len(shared)
    assert all(combined.values()), "some do run as one"


def test_no_plan_of_a_side_holds_less_than_is_known_of_it() -> None:
    """Where knots are told apart, of plans that combine none but those."""
    _, sides = given(KNOTS, **BY_KNOTS)
    joined = 0
    for side in sides:
        for seed in range(3):
            plan = side.problem.found(drawn(side.problem, seed))
            own = [np.arange(len(p)) == c for p, c in zip(side.problem.prices, plan.chosen, strict=True)]
            assert isinstance(side.limits, JointLimits)
            for part in side.limits.parts:
                use, _ = part.spelled(plan)
                held = part.needs.stored_bytes(own) + part.needs.worst(own)[1]
                assert held <= float(use.total_bytes) * (1 + 1e-12)
                joined += bool(shares(part, plan))
    assert joined, "some run collectives as one"


def members(problem: Problem, phase: str) -> list[Tensor]:
    """The tensors of a phase that may be in collectives of several."""
    if problem.groups is None:
        return []
    own = problem.groups.members() > 0
    return [t for n, t in enumerate(problem.graph.tensors) if own[n].any() and t.phase == phase]


def shares(part: Limits, plan: Candidate) -> set[str]:
    """The values of a phase that a plan moves in collectives of several."""
    spmd = part.spell(plan, True)
    first = origins(spmd)
    moved = [move for placed in walk(spmd.body) if isinstance(move := placed.item, Move) and move.joined]
    return {first.get(move.operand, move.operand) for move in moved}


def test_what_is_left_of_groups_is_of_the_knots_asked_for() -> None:
    problem, _ = given()
    groups = of(problem)
    assert groups.only(problem.combining) is groups
    assert groups.only(frozenset()) is None
    assert groups.only(frozenset({("other", 0)})) is None
    decode, prefill = (of_phase(problem, phase) for phase in PHASES)
    left = groups.only(decode)
    assert left is not None and left.phases == {"decode"} and left.of_knots((decode, prefill))[1] == []
    own, rest = groups.of_knots((decode, prefill))
    assert own and rest and not set(own) & set(rest) and left.of_knots((decode,)) == [own]
    assert groups.of_knots((problem.combining,)) == [sorted({*own, *rest})]


@pytest.mark.parametrize("phases", [("prefill",), ("prefill", "decode")])
def test_what_plans_hold_at_the_least_is_not_asked_where_there_is_room_for_the_cheapest(
    phases: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    program, mesh = parse(LAYER), Mesh.parse("2x2")

    def planned(capacity_bytes: float) -> float:
        return choose(program, phases, mesh, Options(Hardware.load("h100"), capacity_bytes=capacity_bytes)).price

    def asked(*_: object) -> MemoryBounds:
        raise Seen

    roomy = planned(1e9)
    monkeypatch.setattr(reader, "needs", asked)
    assert planned(1e9) == roomy
    with pytest.raises(Seen):
        planned(70e3)
