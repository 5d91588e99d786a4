"""Branching on what large values take: bounds no plan too high, and settles what hangs on much of the room."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from escc.passes.ilp.model import continuous
from escc.passes.ilp.solver import Answer, Settings, solve
from escc.passes.search import branch_on_levels as branching
from escc.passes.search import relaxed_boxes
from escc.passes.search.branch_on_levels import LevelSearch
from escc.passes.search.integer_program import ChoiceProgram, choice_program
from escc.passes.search.level_program import level_program
from escc.passes.search.problem import Problem

from .test_images import LINKS, SQUARE, problem_of
from .test_level_program import Rooms, optimum, rooms

SEEDS = [0, 3, 7, 11, 16, 23, 42]  # generated programs whose relaxation mixes levels
UNIT = 1e9


def case(seed: int) -> tuple[ChoiceProgram, Rooms, float]:
    """A choice program with rows of memory, these, and its optimum in the program's unit."""
    problem = problem_of(seed, SQUARE, LINKS)
    problem = Problem(problem.graph, problem.prices, problem.distances, problem.settings)
    limits = rooms(problem, seed)
    flows = [None if d is None else (d.arcs, d.price * UNIT) for d in problem.distances]
    prices = [price * UNIT for price in problem.prices]
    program = choice_program(problem.graph, prices, flows, None, limits.every)
    return program, limits, optimum(problem, limits) * UNIT


def searched(seed: int, price: float, gap: float = 1e-9) -> tuple[LevelSearch, float, float]:
    """A search for what costs less than so many times the optimum, the optimum, and the bound of the relaxation."""
    program, limits, least = case(seed)
    root = solve(continuous(program.model), Settings(), worths=True)
    search = LevelSearch(
        program.model, Settings(gap=gap), price * least, choice=program.choice, loads=list(limits.every)
    )
    search.run(root)
    return search, least, root.bound


def taken(search: LevelSearch, answer: Answer) -> list[float]:
    """How much of the choices of each node is of those that take most bytes of a room, as far as these are mixed."""
    assert answer.x is not None
    mixed = []
    for load in search.loads:
        for n, size in load.bytes.items():
            share = answer.x[search.choice[n] : search.choice[n] + len(size)]
            for level in np.unique(size)[1:]:
                part = float(share[size >= level].sum())
                mixed.append(min(part, 1 - part))
    return mixed


@pytest.mark.parametrize("seed", SEEDS)
def test_with_all_levels_told_apart_none_is_mixed_and_no_plan_is_cheaper(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(branching, "LITTLE", 0.0)
    monkeypatch.setattr(relaxed_boxes, "MOST_RELAXED", 5_000)
    search, least, relaxed = searched(seed, 1.5)
    assert search.best is not None and search.relaxed > 0
    assert max(taken(search, search.best)) < 1e-5
    assert relaxed * (1 - 1e-9) <= search.bound <= least * (1 + 1e-6)
    assert search.bound == pytest.approx(search.best.bound, rel=1e-9)


def test_they_are_the_bounds_of_a_solver_told_that_levels_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which has no other integers: columns of their own for the bytes that are reached."""
    monkeypatch.setattr(branching, "LITTLE", 0.0)
    monkeypatch.setattr(relaxed_boxes, "MOST_RELAXED", 5_000)
    for seed in SEEDS[:4]:
        program, limits, _ = case(seed)
        made = level_program(program.model, program.choice, limits.every)
        levels = np.zeros(len(made.model.cost), dtype=bool)
        levels[made.levels] = True
        whole = solve(replace(made.model, integer=levels), Settings(gap=1e-9))
        search, _, _ = searched(seed, 1.5)
        assert search.bound == pytest.approx(whole.bound, rel=1e-6)


@pytest.mark.parametrize("most", [0, 1, 3, 10])
@pytest.mark.parametrize("seed", SEEDS[:4])
def test_a_search_that_ends_early_bounds_all_plans(seed: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(branching, "LITTLE", 0.0)
    monkeypatch.setattr(relaxed_boxes, "MOST_RELAXED", most)
    search, least, relaxed = searched(seed, 1.5)
    assert search.relaxed <= most
    assert relaxed * (1 - 1e-9) <= search.bound <= least * (1 + 1e-6)


@pytest.mark.parametrize("seed", SEEDS[:4])
def test_below_the_bound_there_is_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(branching, "LITTLE", 0.0)
    monkeypatch.setattr(relaxed_boxes, "MOST_RELAXED", 5_000)
    found, least, _ = searched(seed, 1.5)
    search, _, _ = searched(seed, found.bound / least * (1 - 1e-6))
    assert search.best is None and search.bound == pytest.approx(search.price)


@pytest.mark.parametrize("more", [0.0, np.inf], ids=["all in turn", "what was asked for"])
@pytest.mark.parametrize("seed", SEEDS[:4])
def test_prices_that_are_left_out_change_no_bound(seed: int, more: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relaxed_boxes, "MOST_RELAXED", 5_000)
    usual, _, _ = searched(seed, 1.5)
    monkeypatch.setattr(relaxed_boxes, "MORE", more)
    search, _, _ = searched(seed, 1.5)
    assert search.bound == pytest.approx(usual.bound, rel=1e-9)


def test_a_gap_is_that_of_what_was_found_alone() -> None:
    """Of what was asked for there is none yet: a bound near it is no reason to end."""
    for seed in SEEDS:
        search, least, _ = searched(seed, 1.005, gap=1e-2)
        assert search.best is not None or search.bound >= search.price * (1 - 1e-9)
        assert search.bound <= least * (1 + 1e-6)


def test_a_cut_is_where_most_of_the_room_hangs_on_it() -> None:
    size = np.array([0.3, 0.0, 0.1, 0.11, 0.9])
    share = np.array([0.4, 0.4, 0.1, 0.1, 0.0])
    mixed, above = branching._parted(size, share)
    assert above.tolist() == [True, False, False, True, True]
    upper, lower = (0.3 * 0.4 + 0.11 * 0.1) / 0.5, 0.1 * 0.1 / 0.5
    assert mixed == pytest.approx(0.5 * (upper - lower))


def test_what_hangs_on_little_of_the_room_is_left_mixed() -> None:
    size = np.array([0.02, 0.0, 0.5])
    assert branching._parted(size, np.array([0.5, 0.5, 0.0]))[0] == 0.0
    assert branching._parted(np.array([0.2, 0.2]), np.array([0.5, 0.5]))[0] == 0.0


@pytest.mark.parametrize("seed", SEEDS[:3])
def test_a_linear_program_ends_where_it_is_dearer_than_what_is_of_interest(seed: int) -> None:
    program, _, _ = case(seed)
    model = continuous(program.model)
    whole = solve(model, Settings(), worths=True)
    near = solve(model, Settings(), rows=whole.row_worths, most=whole.bound * 1.01)
    assert near.x is not None and near.bound == pytest.approx(whole.bound, rel=1e-9)
    low = solve(model, Settings(), rows=np.zeros(len(model.low)), most=whole.bound * 0.9)
    assert low.none or (low.x is None and whole.bound * 0.9 <= low.bound <= whole.bound * (1 + 1e-9))
