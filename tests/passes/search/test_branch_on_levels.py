"""A search by how much of memory choices take: the optimum of rows over all choices, and no bound above it."""

from __future__ import annotations

import numpy as np
import pytest

from escc.passes.ilp.model import Model
from escc.passes.ilp.solver import Answer, Relaxation, Settings
from escc.passes.search import branch_on_levels
from escc.passes.search.branch_on_axes import AxisProgram, AxisSearch, Box
from escc.passes.search.branch_on_levels import LevelSearch, levels_of
from escc.passes.search.exact import Prover
from escc.passes.search.memory_bounds import Load
from escc.passes.search.problem import Candidate, Problem
from escc.passes.search.reduced_program import Left

from .test_images import LINKS, SQUARE, problem_of
from .test_level_program import asked, optimum, rooms


@pytest.mark.parametrize(
    ("live", "moved_bytes"),
    [(0, 0.0), (10**6, 0.0), (10**6, 2.0)],
    ids=["levels alone", "levels first", "what is moved takes more"],
)
@pytest.mark.parametrize("seed", [0, 3, 7, 11, 16, 23, 31, 42])
def test_by_levels_the_optimum_is_that_of_rows_over_all_choices(
    seed: int, live: int, moved_bytes: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(branch_on_levels, "MANY_LIVE", live)
    problem = problem_of(seed, SQUARE, LINKS)
    problem = Problem(problem.graph, problem.prices, problem.distances, problem.settings)
    limits = rooms(problem, seed, moved_bytes)
    least = optimum(problem, limits)
    assert least < np.inf, "there is room for something"
    plan, bound = asked(problem, limits, 1.5 * least)
    assert plan is not None and limits.fits(plan)
    # Of levels alone an answer may mix collectives, and a plan cost more.
    far = 1e-6 if live else 1.01 * branch_on_levels.ANY
    assert least * (1 - 1e-6) <= plan.price <= least * (1 + far)
    assert least / (1 + far) <= bound <= least * (1 + 1e-6)
    plan, bound = asked(problem, limits, 1.05 * least, gap=1e-2, less=True)
    assert plan is not None and plan.price <= least * (1 + 2e-2) and bound <= least * (1 + 1e-6)
    plan, bound = asked(problem, limits, least * (1 + 1e-4), gap=1e-2)
    assert plan is not None or live == 0, "it need not be cheaper by as much"
    assert least * (1 - 2e-2) <= bound <= least * (1 + 1e-4)
    none, bound = asked(problem, limits, least * (1 + 1e-4), gap=1e-2, less=True)
    assert none is None or live == 0, "none is cheaper by the gap"
    assert least * (1 - 2e-2) <= bound <= least * (1 + 1e-4)
    assert asked(problem, limits, least * 0.5) == (None, least * 0.5)


@pytest.mark.parametrize("most", [10**6, 0])
def test_far_from_where_the_last_one_ended_a_relaxation_begins_from_its_own_rows(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The optimum is the same."""
    monkeypatch.setattr(branch_on_levels, "MANY_STEPS", most)
    gone_on, anew = [], []
    again, whole = Relaxation.solve, AxisSearch._answer

    def solved(self: Relaxation, upper: np.ndarray, price: float) -> Answer:
        answer = again(self, upper, price)
        gone_on.append(self.steps)
        return answer

    monkeypatch.setattr(Relaxation, "solve", solved)
    monkeypatch.setattr(AxisSearch, "_answer", lambda *given: anew.append(1) or whole(*given))
    for seed in (0, 3, 7, 11):
        problem = problem_of(seed, SQUARE, LINKS)
        problem = Problem(problem.graph, problem.prices, problem.distances, problem.settings)
        limits = rooms(problem, seed)
        least = optimum(problem, limits)
        plan, bound = asked(problem, limits, 1.5 * least, less=True)
        assert plan is not None and least * (1 - 1e-6) <= plan.price <= least * (1 + 1e-6)
        assert bound == pytest.approx(least, rel=1e-6)
    assert max(gone_on) > 0
    assert (len(anew) > len(gone_on)) if most == 0 else not anew


def test_rows_that_say_nothing_of_what_is_left_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, every, begin, settle = [], [], Relaxation.__init__, LevelSearch.settle

    def begun(self: Relaxation, model: Model, settings: Settings, worths: np.ndarray) -> None:
        shown.append(len(model.low))
        begin(self, model, settings, worths)

    def settled(self: LevelSearch, root: Answer, upper: np.ndarray) -> Box:
        every.append(len(self.program.model.low))
        return settle(self, root, upper)

    monkeypatch.setattr(Relaxation, "__init__", begun)
    monkeypatch.setattr(LevelSearch, "settle", settled)
    problem = problem_of(3, SQUARE, LINKS)
    problem = Problem(problem.graph, problem.prices, problem.distances, problem.settings)
    limits = rooms(problem, 3)
    least = optimum(problem, limits)
    asked(problem, limits, 1.01 * least, less=True)
    assert len(shown) == len(every) > 0
    assert all(few < many / 2 for few, many in zip(shown, every, strict=True)), (shown, every)


@pytest.mark.parametrize("seed", [0, 3, 7, 11])
def test_cut_short_it_bounds_no_plan_too_high(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_of(seed, SQUARE, LINKS)
    problem = Problem(problem.graph, problem.prices, problem.distances, problem.settings)
    limits = rooms(problem, seed)
    least = optimum(problem, limits)
    _, proven = asked(problem, limits, 1.5 * least, less=True)
    monkeypatch.setattr(branch_on_levels, "MOST_RELAXED", 1)
    plan, bound = asked(problem, limits, 1.5 * least, less=True)
    assert plan is None or plan.price >= least * (1 - 1e-9)
    assert bound < least * (1 - 1e-5) < proven, "of a program that one relaxation more does not settle"


def test_a_relaxation_that_ran_out_of_time_says_no_more_than_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_of(3, SQUARE, LINKS)
    problem = Problem(problem.graph, problem.prices, problem.distances, problem.settings)
    limits = rooms(problem, 3)
    least = optimum(problem, limits)
    cut_short = Answer(None, -np.inf, None, 0.0)
    monkeypatch.setattr(Prover, "_relax", lambda self, reduced, ascent, unit: cut_short)
    assert asked(problem, limits, 1.5 * least) == (None, -np.inf)
    assert asked(problem, limits, 1.5 * least, less=True) == (None, -np.inf)


def test_what_nodes_take_in_rows_that_differ_adds_up_and_little_is_nothing() -> None:
    some, other, few = np.array([5.0, 1.0, 3.0]), np.array([0.0, 2.0, 2.0]), np.array([7.0, 7.0 + 1e-5])
    loads = [Load({0: some, 1: few}, 10.0), Load({0: some}, 10.0), Load({0: other, 1: few}, 20.0)]
    levels = levels_of(loads)
    assert list(levels) == [0], "what differs by a ten-thousandth of the room has no levels"
    assert levels[0].tolist() == [400.0, 100.0, 300.0], "in thousandths of the room, each way to take it once"
    loads = [Load({0: some}, 10.0), Load({0: some}, 8.0, memory=10.0), Load({0: other}, 19.0, memory=20.0)]
    assert levels_of(loads)[0].tolist() == [400.0, 100.0, 300.0], "whatever is left of a memory"


@pytest.mark.parametrize("cut_short", [None, 0, "out of time"])
@pytest.mark.parametrize("seed", [0, 7, 11, 42])
def test_the_boxes_that_levels_leave_open_have_all_that_cheap_plans_have(
    seed: int, cut_short: int | str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many relaxations are looked at, and if one of them ran out of time."""
    problem = problem_of(seed, SQUARE, LINKS)
    problem = Problem(problem.graph, problem.prices, problem.distances, problem.settings)
    limits = rooms(problem, seed)
    least = optimum(problem, limits)
    plan, _ = asked(problem, limits, 1.5 * least)
    ascent = problem.settled.copy()
    begun = Prover(problem).begun(ascent, Candidate((), 1.001 * least, ascent.bound()), limits, 10**9)
    assert plan is not None and begun is not None and begun.relaxed < least * (1 - 1e-5)
    (every,) = begun.left(ascent, 1.001 * least, 0.0)
    if cut_short == 0:
        monkeypatch.setattr(branch_on_levels, "MOST_OPENED", 0)
    if cut_short == "out of time":
        monkeypatch.setattr(LevelSearch, "_answer", lambda *_: Answer(None, -np.inf, None, 0.0))
    left = begun.left(ascent, 1.001 * least, least)
    assert any(all(mask[c] for mask, c in zip(one.masks, plan.chosen, strict=True)) for one in left)
    if cut_short is None:
        assert all(choices(one) < choices(every) for one in left), "levels tell some of them apart"
    monkeypatch.setattr(branch_on_levels, "MOST_BOXES", 0)
    assert len(begun.left(ascent, 1.001 * least, least)) == 1


def test_each_plan_that_is_cheap_enough_is_in_some_box(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several that are left open, and not all in the first."""
    monkeypatch.setattr(branch_on_levels, "MOST_BOXES", 1_000)
    elsewhere = 0
    for seed in (0, 7, 11, 42):
        problem = problem_of(seed, SQUARE, LINKS)
        problem = Problem(problem.graph, problem.prices, problem.distances, problem.settings)
        limits, rng = rooms(problem, seed), np.random.default_rng(seed)
        most, ascent = 1.5 * optimum(problem, limits), problem.settled.copy()
        begun = Prover(problem).begun(ascent, Candidate((), most, ascent.bound()), limits, 10**9)
        assert begun is not None
        left = begun.left(ascent, most, most)
        for _ in range(40):
            plan = problem.found(ascent.polish([int(rng.integers(len(price))) for price in problem.prices]))
            if plan.price < most and limits.fits(plan):
                inside = [all(mask[c] for mask, c in zip(one.masks, plan.chosen, strict=True)) for one in left]
                assert any(inside)
                elsewhere += not inside[0]
    assert elsewhere, "a box that is lost would be missed"


def choices(left: Left) -> int:
    return sum(int(mask.sum()) for mask in left.masks)


def search_of(levels: dict[int, np.ndarray], choice: list[int]) -> LevelSearch:
    kept = [np.arange(3) for _ in choice]
    program = AxisProgram(None, None, choice, kept, lambda answer: None, 1.0)  # type: ignore[arg-type]
    return LevelSearch(program, Settings(), 100.0, levels=levels)


def test_that_is_settled_first_on_which_most_memory_depends() -> None:
    search = search_of({0: np.array([0.0, 9.0, 9.0]), 1: np.array([0.0, 0.0, 50.0])}, [0, 3])
    x = np.array([0.5, 0.5, 0.0, 0.2, 0.5, 0.3])
    columns, side = search._cut(Box(np.ones(6), np.ones(6), Answer(x, 0.0, None, 0.0), 0.0, True))
    assert columns.tolist() == [3, 4, 5]
    assert side.tolist() == [True, True, False], "the side that has more of what is taken comes first"
    assert search._level(np.array([0.0, 0.5, 0.5, 0.4, 0.6, 0.0])) is None, "no level is mixed"


def test_axes_are_told_apart_before_levels_where_nodes_run_most_often(monkeypatch: pytest.MonkeyPatch) -> None:
    search = search_of({0: np.array([0.0, 9.0, 9.0]), 1: np.array([0.0, 0.0, 50.0])}, [0, 3, 6])
    monkeypatch.setattr(AxisProgram, "times", lambda self, node: 1 if node == 1 else 60)
    monkeypatch.setattr(AxisProgram, "places", lambda self, node: np.array([[0, 1, 1], [1, 0, 1]]).T)
    mixed = np.array([1.0, 0.0, 0.0, 0.0, 0.5, 0.5, 0.5, 0.25, 0.25])
    box = Box(np.ones(9), np.ones(9), Answer(mixed, 0.0, None, 0.0), 0.0, True)
    assert search._cut(box)[0].tolist() == [3, 4, 5], "by levels"
    search.apart = True
    columns, side = search._cut(box)
    assert columns.tolist() == [6, 7, 8]
    assert side.tolist() == [True, False, False], "by what splits an index in half of what is taken"
    near = np.array([1.0, 0.0, 0.0, 0.0, 0.5, 0.5, 0.97, 0.03, 0.0])
    box = Box(np.ones(9), np.ones(9), Answer(near, 0.0, None, 0.0), 0.0, True)
    assert search._cut(box)[0].tolist() == [3, 4, 5], "what is taken nearly all tells little apart"


def test_a_plan_is_looked_for_among_what_is_mixed_only_so_often(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []
    search = search_of({}, [0])
    search.among = lambda answer, price: tried.append(price)  # type: ignore[func-returns-value, return-value]
    for _ in range(5):
        search._relaxed(Box(np.ones(3), np.ones(3), Answer(np.full(3, 1 / 3), 0.0, None, 0.0), 0.0, True))
    assert tried == [100.0] * branch_on_levels.MOST_IN_VAIN
    assert len(search.heap) == 5, "what is mixed is split later"


@pytest.mark.parametrize(("bound", "known", "looks"), [(99.995, True, 0), (99.9, True, 1), (99.995, False, 1)])
def test_close_to_a_known_plan_none_is_looked_for(bound: float, known: bool, looks: int) -> None:
    """Branching alone finds what is left there."""
    tried = []
    search = search_of({}, [0])
    search.among = lambda answer, price: tried.append(price)  # type: ignore[func-returns-value, return-value]
    search.best = Candidate((), 1.0, 1.0) if known else None
    search._relaxed(Box(np.ones(3), np.ones(3), Answer(np.full(3, 1 / 3), bound, None, 0.0), bound, True))
    assert len(tried) == looks and len(search.heap) == 1


def test_what_a_relaxation_takes_nearly_all_of_is_settled_or_else_one_choice() -> None:
    search, upper = search_of({}, [0, 3, 6]), np.ones(9)
    search._settle_most(np.array([1.0, 0.0, 0.0, 0.05, 0.95, 0.0, 0.6, 0.4, 0.0]), upper)
    assert upper.tolist() == [1, 0, 0, 0, 1, 0, 1, 1, 1], "one that is mixed was settled"
    search._settle_most(np.array([1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.4, 0.5, 0.1]), upper)
    assert upper.tolist() == [1, 0, 0, 0, 1, 0, 0, 1, 0]


def test_a_plan_near_a_relaxation_is_found_with_few_more(monkeypatch: pytest.MonkeyPatch) -> None:
    found = 0
    for seed in range(24):
        problem = problem_of(seed, SQUARE, LINKS)
        problem = Problem(problem.graph, problem.prices, problem.distances, problem.settings)
        limits = rooms(problem, seed)
        least = optimum(problem, limits)
        with monkeypatch.context() as patch:
            patch.setattr(branch_on_levels, "MOST_RELAXED", 0)
            patch.setattr(branch_on_levels, "MOST_IN_VAIN", 0)
            plan, bound = asked(problem, limits, 1.5 * least, less=True)
            patch.setattr(LevelSearch, "_look_near", lambda self, box: None)
            without, same = asked(problem, limits, 1.5 * least, less=True)
        assert bound == pytest.approx(same) and bound <= least * (1 + 1e-6)
        assert plan is None or (limits.fits(plan) and plan.price >= least * (1 - 1e-6))
        found += plan is not None and without is None
    assert found >= 6
