"""How all plans are told apart: by the phases in which collectives run as one, and what is known of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import combinations

import numpy as np
import pytest
from problems import drawn

import escc.passes.choose
from escc.compiler.plan.pipeline import parse
from escc.cost.hardware import Hardware
from escc.ir.mesh import Mesh
from escc.ir.program import walk
from escc.ir.spmd import Move
from escc.passes import reader
from escc.passes.choose import Options, choose
from escc.passes.search.branch_and_bound import Side
from escc.passes.search.combinable import Groups
from escc.passes.search.limits import JointLimits, Limits
from escc.passes.search.memory_bounds import MemoryBounds
from escc.passes.search.problem import Candidate, Problem

PHASES = ("decode", "prefill")
LAYER = """
dim B, L
dim E = 64, F = 128
block layer(x: bf16[B,L,E]) -> bf16[B,L,E] {
  param Wi, Wg: bf16[E,F]
  param Wd: bf16[F,E]
  u[B,L,F] = x[B,L,E] * Wi[E,F]
  g[B,L,F] = x[B,L,E] * Wg[E,F]
  h = silu(g) * u
  d[B,L,E] = h[B,L,F] * Wd[F,E]
  return x + d
}
main(x: bf16[B,L,E]) { return repeat 3 layer(x) }
phase prefill { B = 4, L = 64 }
phase decode { B = 64, L = 1 }
"""


class Seen(Exception):
    """What the search is given has been seen."""


def given(many_columns: int = 0, most_phases: int = 2) -> tuple[Problem, list[Side]]:
    """The problem of two phases of which all collectives of one may run as one, and its sides."""
    made: list[tuple[Problem, list[Side]]] = []

    def seen(
        problem: Problem, limits: object, prover: object, below: float, sides: Callable[[], Iterable[Side]]
    ) -> None:
        made.append((problem, list(sides())))
        raise Seen

    with pytest.MonkeyPatch.context() as patched, pytest.raises(Seen):
        patched.setattr(escc.passes.choose, "search", seen)
        patched.setattr(reader, "MANY_COLUMNS", many_columns)
        patched.setattr(reader, "MOST_PHASES", most_phases)
        options = Options(Hardware.load("h100"), capacity_bytes=1e9)
        choose(parse(LAYER), ["prefill", "decode"], Mesh.parse("2x2"), options)
    return made[0]


def of(problem: Problem) -> Groups:
    """The groups of a problem that has some."""
    assert problem.groups is not None
    return problem.groups


def known(side: Side) -> Iterator[tuple[str, MemoryBounds]]:
    """What is known of plans, by phase."""
    assert isinstance(side.limits, JointLimits)
    return ((part.phase, part.needs) for part in side.limits.parts)


def test_a_large_problem_is_told_apart_by_the_phases_that_combine() -> None:
    problem, sides = given()
    assert problem.combining == {"prefill", "decode"}
    every = [set(some) for count in range(3) for some in combinations(PHASES, count)]
    assert [side.problem.combining for side in sides] == every
    assert [side.limits.combining for side in sides] == [tuple({p} for p in sorted(some)) for some in every]
    assert sides[0].problem.groups is None and sides[-1].problem is problem
    for side in sides[1:]:
        members = of(side.problem).members().any(axis=1)
        assert members.any()
        for tensor, mine, theirs in zip(problem.graph.tensors, members, of(problem).members().any(axis=1), strict=True):
            assert mine == (theirs and tensor.phase in side.problem.combining)


@pytest.mark.parametrize(("columns", "phases"), [(10**9, 2), (0, 1)], ids=["small", "of many phases"])
def test_others_are_told_apart_by_whether_any_does(columns: int, phases: int) -> None:
    problem, sides = given(columns, phases)
    assert [side.problem.combining for side in sides] == [set(), {"prefill", "decode"}]
    assert [side.limits.combining for side in sides] == [(), ({"prefill", "decode"},)]
    assert sides[-1].problem is problem


def test_of_a_phase_that_combines_nothing_as_much_is_known_as_where_none_does() -> None:
    """And less of one that does: its steps may run in another order."""
    _, sides = given()
    alone = dict(known(sides[0]))
    rng, less = np.random.default_rng(0), 0
    for _ in range(20):
        some = [rng.integers(len(price)) == np.arange(len(price)) for price in sides[0].problem.prices]
        for side in sides[1:]:
            for phase, needs in known(side):
                held, most = needs.worst(some)[1], alone[phase].worst(some)[1]
                assert held <= most * (1 + 1e-12)
                less += held < most
                if phase not in side.problem.combining:
                    assert held == most
    assert less, "the order of steps matters here"


def test_a_plan_of_a_side_combines_in_its_phases_alone() -> None:
    """Spelled out as it was priced: what may run as one elsewhere runs alone there."""
    _, sides = given()
    combined = dict.fromkeys(PHASES, 0)
    for side in sides:
        for seed in range(12):
            plan = side.problem.found(drawn(side.problem, seed))
            assert plan.combining == side.problem.combining
            assert isinstance(side.limits, JointLimits)
            for part in side.limits.parts:
                shared = shares(part, plan)
                assert not shared or part.phase in plan.combining
                combined[part.phase] += shared
    assert all(combined.values()), "some do run as one"


def shares(part: Limits, plan: Candidate) -> bool:
    """Whether a plan runs some collectives of a phase as one."""
    items = (placed.item for placed in walk(part.spell(plan, True).body))
    return any(isinstance(item, Move) and item.joined for item in items)


def test_what_is_left_of_groups_is_of_the_phases_asked_for() -> None:
    problem, _ = given()
    groups = of(problem)
    assert groups.only(problem.graph, frozenset(PHASES)) is groups
    assert groups.only(problem.graph, frozenset()) is None
    assert groups.only(problem.graph, frozenset({"other"})) is None
    [own] = groups.of_phases(problem.graph, (frozenset({"decode"}),))
    [rest] = groups.of_phases(problem.graph, (frozenset({"prefill"}),))
    assert own and rest and not set(own) & set(rest)
    assert groups.of_phases(problem.graph, (frozenset(PHASES),)) == [sorted({*own, *rest})]
