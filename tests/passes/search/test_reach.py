"""What cheaper plans may be made of: all that any of them takes, and little else."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from problems import GATED, drawn

from escc.compiler.plan.pipeline import parse
from escc.cost.hardware import Hardware
from escc.ir.mesh import Mesh
from escc.passes import task as tasks
from escc.passes.choose import choose
from escc.passes.ilp.model import Assembly, telling
from escc.passes.layouts.space import Mask
from escc.passes.options import Options
from escc.passes.plan import Cutoff
from escc.passes.search import search as searching
from escc.passes.search.branch_and_bound import Boxes
from escc.passes.search.copies_program import CopiesProgram
from escc.passes.search.exact import Prover
from escc.passes.search.limits import Limits
from escc.passes.search.problem import Candidate, Problem
from escc.passes.search.reach import Reach, reach
from escc.passes.search.side import Side


@pytest.fixture
def sides_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str, str], list[Side]]:
    """The sides of a problem on unlike axes, in memory without end."""

    def found(text: str, phase: str, chips: str) -> list[Side]:
        seen: list[Iterable[Side]] = []
        inner = tasks.search

        def watched(problem: Problem, _: object, prover: Prover, below: float, sides: Callable[[], Any]) -> Candidate:
            seen.append(tuple(sides()))
            return inner(problem, None, prover)

        monkeypatch.setattr(tasks, "search", watched)
        choose(parse(text), phase, Mesh.parse(chips), Options(Hardware.load("h100"), capacity_bytes=1e18))
        monkeypatch.setattr(tasks, "search", inner)
        [sides] = seen
        return list(sides)

    return found


def detour(side: Side, plan: Candidate, rng: np.random.Generator) -> Candidate:
    """A plan with a value that one op reads on another way there, over one more layout."""
    tensors, moves = side.problem.graph.tensors, side.detours.moves.arcs
    for t in rng.permutation(len(tensors)).tolist():
        arcs, (root, targets) = moves[t], tensors[t].ends(plan.chosen)
        if arcs is None or len(targets) != 1 or targets[0] == root:
            continue
        first = np.flatnonzero((arcs.source == root) & (arcs.target != targets[0]))
        for arc in rng.permutation(first).tolist():
            second = np.flatnonzero((arcs.source == arcs.target[arc]) & (arcs.target == targets[0]))
            if len(second):
                return side.detours.over(plan, {t: (arc, int(second[0]))})
    return plan


def whole_of(found: Reach) -> dict[int, Mask]:
    """All arcs."""
    return {t: np.ones_like(mask) for t, mask in found.arcs.items()}


def rows(side: Side, found: Reach) -> int:
    """How many rows say something of what is left, in little memory."""
    program = CopiesProgram(side.problem, side.detours.moves, found.choices, 1e9, side.limits.combining, found.arcs)
    assert isinstance(side.limits, Limits)
    program.limit(replace(side.limits, capacity=3e4))
    return len(program.model().low)


def near(problem: Problem, rng: np.random.Generator) -> Candidate:
    """A plan that is nearly the cheapest: that where choices cost a little more, some more than others."""
    ascent = problem.settled.copy()
    some = rng.integers(len(problem.prices), size=2).tolist()
    ascent.charge({n: 0.2 * ascent.bound() * rng.random(len(problem.prices[n])) for n in some}, 0.0)
    ascent.sweep()
    return problem.found(ascent.round())


def test_all_that_a_plan_takes_is_within_its_own_price(sides_of: Callable[[str, str, str], list[Side]]) -> None:
    left, told, programs = 0, 0, list[tuple[int, int]]()
    for side in sides_of(GATED, "main", "2x4"):
        assert side.problem.representatives is None
        for seed in range(6):
            rng = np.random.default_rng(seed)
            plan = detour(side, near(side.problem, rng), rng)
            found = reach(side, plan.price)
            assert found is not None
            assert all(mask[c] for mask, c in zip(found.choices, plan.chosen, strict=True))
            ways = dict(enumerate(side.detours.trees.bill(plan.chosen, plan.shared).arcs)) | dict(plan.detours)
            assert all(found.arcs[t][list(tree)].all() for t, tree in ways.items() if len(tree))
            left += sum(int((~mask).sum()) for mask in found.arcs.values())
            told += len(plan.detours)
            if seed == 0:
                programs.append((rows(side, found), rows(side, Reach(found.choices, whole_of(found)))))
        assert reach(side, side.problem.settled.bound() * 0.9) is None
        everything = reach(side, math.inf)
        assert everything is not None and all(mask.all() for mask in everything.arcs.values())
    assert left > 300 and told >= 2
    assert all(2 * few < many for few, many in programs)


def test_rows_that_nothing_breaks_say_nothing_nor_any_of_what_is_left_out() -> None:
    a = Assembly()
    first = a.add_columns(np.zeros(3), 1.0, True)
    a.upper[-1] = np.array([1.0, 1.0, 0.0])
    for high, columns, signs in ((2.0, [0, 1], 1.0), (1.0, [0, 1, 2], 1.0), (0.0, [2], 1.0), (-1.0, [0, 1], -1.0)):
        row = a.add_rows(1, -np.inf, high)
        a.add_entries(row, first + np.array(columns), signs)
    model = telling(a.model())
    assert model.high.tolist() == [1.0, -1.0] and model.row.tolist() == [0, 0, 1, 1]
    assert len(model.cost) == 3


def test_boxes_that_get_nowhere_wait_for_what_settles_them(sides_of: Callable[[str, str, str], list[Side]]) -> None:
    side = sides_of(GATED, "main", "2")[0]
    boxes = Boxes(side, Prover(side.problem), math.inf)
    boxes.best = plan = side.problem.found(drawn(side.problem, 0))
    left: Any = None  # nothing looks into it
    boxes.heap = [(0.5 * plan.price, 1, left)]
    for given_up, in_place, stuck in ((math.inf, 5, False), (boxes.least, 0, True), (math.inf, 6, True)):
        boxes.asked, boxes.given_up, boxes.in_place = True, given_up, in_place
        boxes.settles = False
        assert boxes.open
        boxes.settles = True
        assert boxes.open == (not stuck)
    boxes.given_up, boxes.in_place, boxes.most_in_place = math.inf, 3, 3
    assert not boxes.open, "as many steps as are said"


@pytest.mark.parametrize("small", [True, False])
def test_boxes_are_left_sooner_to_what_settles_them(
    small: bool, sides_of: Callable[[str, str, str], list[Side]], monkeypatch: pytest.MonkeyPatch
) -> None:
    side, seen = sides_of(GATED, "main", "2")[0], list[int]()
    monkeypatch.setattr(searching, "branch_and_bound", lambda every: seen.extend(one.most_in_place for one in every))
    monkeypatch.setattr(searching, "is_looked_at", lambda _: small)
    prover = Prover(side.problem)
    with pytest.raises(Cutoff):
        searching._sides([Boxes(side, prover, math.inf)], prover, 0.0, math.inf)
    assert seen == [searching.FEW_IN_PLACE if small else searching.MOST_IN_PLACE]
