"""A linear program from where its rows are said to be worth something: the same optimum, solution and reduced costs.
Rows of what is cheaper: no solution is cut off that is, and none that costs more by a billionth is left."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from escc.passes.ilp import solver
from escc.passes.ilp.model import Model, cheaper, shifted
from escc.passes.ilp.solver import Settings, solve


def random_program(seed: int) -> Model:
    """A feasible program with rows of one value, of a range, and of one bound."""
    rng = np.random.default_rng(seed)
    columns, rows = 12, 7
    matrix = np.where(rng.random((rows, columns)) < 0.5, rng.integers(-3, 4, (rows, columns)), 0).astype(float)
    inside = rng.random(columns)
    middle = matrix @ inside
    kind = rng.integers(0, 4, rows)
    low = np.where(kind == 3, -np.inf, middle - np.where(kind == 0, 0.0, rng.random(rows)))
    high = np.where(kind == 2, np.inf, np.where(kind == 0, low, middle + rng.random(rows)))
    row, column = np.nonzero(matrix)
    return Model(
        rng.normal(size=columns),
        np.full(columns, 1.0),
        np.zeros(columns, dtype=bool),
        row,
        column,
        matrix[row, column],
        low,
        high,
    )


def worths(model: Model, seed: int) -> np.ndarray:
    """Of a row without a lower bound at most nothing, of one without an upper bound at least nothing."""
    worth = np.random.default_rng([seed, 1]).normal(size=len(model.low))
    worth = np.where(np.isinf(model.low), -np.abs(worth), worth)
    return np.where(np.isinf(model.high), np.abs(worth), worth)


@pytest.mark.parametrize("seed", range(40))
def test_where_it_begins_changes_nothing(seed: int) -> None:
    model = random_program(seed)
    plain, near = solve(model, Settings()), solve(model, Settings(), rows=worths(model, seed))
    assert plain.x is not None and near.x is not None
    assert near.bound == pytest.approx(plain.bound, abs=1e-7) == pytest.approx(model.cost @ near.x, abs=1e-6)
    assert len(near.x) == len(model.cost)
    assert near.reduced_costs is not None and plain.reduced_costs is not None
    np.testing.assert_allclose(near.reduced_costs, plain.reduced_costs, atol=1e-6)


def test_where_the_solver_gives_up_from_there_it_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    inner, asked = solver._ask, list[object]()

    def giving_up(*given: Any) -> Any:
        asked.append(given)
        return None if len(asked) <= 2 else inner(*given)

    monkeypatch.setattr(solver, "_ask", giving_up)
    model = random_program(0)
    near = solve(model, Settings(), rows=worths(model, 0))
    assert near.x is not None and near.bound == pytest.approx(solve(model, Settings()).bound, abs=1e-7)


@pytest.mark.parametrize("seed", range(10))
def test_costs_are_less_by_what_is_taken_of_rows(seed: int) -> None:
    model = random_program(seed)
    worth = worths(model, seed)
    near, taken = shifted(model, worth)
    solution = solve(model, Settings()).x
    assert solution is not None
    matrix = np.zeros((len(model.low), len(model.cost)))
    matrix[model.row, model.column] = model.coefficient
    left = np.zeros(len(near.cost) - len(model.cost))
    loose = np.flatnonzero((worth != 0) & (model.low != model.high))
    ends = np.where(worth > 0, model.low, model.high)[loose]
    left[:] = np.abs((matrix @ solution)[loose] - ends)
    assert near.cost @ np.concatenate([solution, left]) + taken == pytest.approx(model.cost @ solution)


def test_a_program_whose_rows_have_no_entries_that_may_be_above_0_is_solved() -> None:
    none = np.zeros(0, dtype=int)
    upper = np.array([1.0, 0.0])
    model = Model(np.array([-1.0, -1.0]), upper, np.zeros(2, bool), none, none, np.zeros(0), np.zeros(1), np.ones(1))
    found = solve(model, Settings())
    assert found.x is not None and found.x.tolist() == [1.0, 0.0]


@pytest.mark.parametrize("near", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_what_rows_are_worth_explains_what_columns_cost(seed: int, near: bool) -> None:
    model = random_program(seed)
    found = solve(model, Settings(), rows=worths(model, seed) if near else None, worths=True)
    assert found.row_worths is not None and found.reduced_costs is not None
    matrix = np.zeros((len(model.low), len(model.cost)))
    matrix[model.row, model.column] = model.coefficient
    np.testing.assert_allclose(model.cost - matrix.T @ found.row_worths, found.reduced_costs, atol=1e-6)
    assert solve(model, Settings()).row_worths is None


@pytest.mark.parametrize("seed", range(30))
def test_what_is_shown_to_cost_more_than_is_of_interest_need_not_be_solved(seed: int) -> None:
    """What is said of it then is a bound, that much at the least."""
    model = random_program(seed)
    alone = solve(model, Settings())
    for share in (-0.3, -1e-3, 1e-3):
        most = alone.bound + share
        found = solve(model, Settings(), rows=worths(model, seed), worths=True, most=most)
        if found.x is None:
            assert most <= found.bound <= alone.bound + 1e-6
        else:
            assert found.bound == pytest.approx(alone.bound, abs=1e-6)
    assert found.x is not None, "what costs less is solved"


@pytest.mark.parametrize("seed", range(12))
def test_rows_leave_what_is_cheaper_and_nothing_else(seed: int) -> None:
    """Of all solutions of a small program, with costs of all sizes, some that bring in something, some far too dear."""
    rng = np.random.default_rng([seed, 2])
    cost = np.abs(rng.normal(size=8)) * 10.0 ** rng.integers(-3, 6, 8)
    cost[:2] *= -1.0 if seed % 2 else 1.0
    model = replace(random_program(seed), cost=np.append(cost, np.zeros(4)), integer=np.ones(12, dtype=bool))
    every = np.array([*product((0.0, 1.0), repeat=8)])
    costs, gains = every @ cost, -cost.clip(max=0.0).sum()
    for price in np.sort(costs[costs > 1e-3])[::9]:
        more = cheaper(model, float(price))
        rows = np.zeros((2, 13))
        own = more.row >= len(model.low)
        np.add.at(rows, (more.row[own] - len(model.low), more.column[own]), more.coefficient[own])
        assert (rows % 1 == 0).all() and np.abs(rows).max() <= 1e6 + 1
        (large, small), carried = rows[:, :8] @ every.T, np.arange(more.upper[-1] + 1)[:, None]
        (ahead, back), (most, rest) = rows[:, 12], more.high[-2:]
        taken = ((large + ahead * carried <= most) & (small + back * carried <= rest)).any(axis=0)
        near = 1e-11 * (price + gains)
        assert taken[costs <= price - near].all()
        assert not taken[costs > price + near].any()


@pytest.mark.parametrize("seed", range(8))
def test_what_is_paid_however_is_chosen_is_left_out_and_nothing_else(seed: int) -> None:
    """Of two choices and some columns beside them: a row with what is left tells by one column that another is 0."""
    rng = np.random.default_rng([seed, 4])
    cost = np.concatenate([1e3 + rng.random(6), rng.random(2)])
    upper = np.append(np.ones(8), np.zeros(4))
    upper[rng.integers(0, 6)] = 0.0
    model = replace(
        random_program(seed), cost=np.append(cost, np.zeros(4)), upper=upper, integer=np.ones(12, dtype=bool)
    )
    sets = [np.arange(3), np.arange(3, 6)]
    every = np.array(
        [x for x in product((0.0, 1.0), repeat=8) if sum(x[:3]) == sum(x[3:6]) == 1 and (x <= upper[:8]).all()]
    )
    costs = every @ cost
    for price in np.sort(costs)[::3]:
        more = cheaper(model, float(price), sets)
        large = (more.row == len(model.low)) & (more.column < 8)
        sizes, most = np.bincount(more.column[large], more.coefficient[large], 8), more.high[-2]
        assert most < 1e6 * 3 / 2e3 + 1, "what the cheapest of each cost is not in it"
        assert (every[costs <= price] @ sizes <= most).all()
        assert not (every[costs > price * (1 + 1e-6)] @ sizes <= most - 1).any()
    left = cheaper(model, float(costs.min()) * (1 - 1e-9), sets)
    assert left.high[-2] < 0, "nothing is cheaper than the cheapest of each"


def test_there_is_nothing_cheaper_than_nothing() -> None:
    model = random_program(0)
    with pytest.raises(ValueError, match="cannot be counted"):
        cheaper(replace(model, cost=np.abs(model.cost)), 0.0)


@pytest.mark.parametrize("solver", ["cp-sat", "highs"])
def test_a_solver_finds_nothing_below_the_optimum_and_the_optimum_above_it(solver: str) -> None:
    for seed in range(60):
        rng = np.random.default_rng([seed, 3])
        matrix = rng.integers(0, 4, (6, 10)).astype(float)
        row, column = np.nonzero(matrix)
        low, high = matrix.sum(axis=1) / 3, np.full(6, np.inf)
        cost, ones = rng.random(10) + 0.1, np.ones(10)
        model = Model(cost, ones, ones > 0, row, column, matrix[row, column], low, high)
        every = np.array([*product((0.0, 1.0), repeat=10)])
        least = float((every @ cost)[(every @ matrix.T >= low).all(axis=1)].min())
        assert solve(cheaper(model, least * (1 - 1e-7)), Settings(solver=solver)).none
        above = solve(cheaper(model, least * (1 + 1e-7)), Settings(solver=solver))
        assert above.x is not None and cost @ above.x[:10] == pytest.approx(least)


@pytest.mark.parametrize("widths", [1, 5])
def test_rows_of_bytes_leave_the_optimum_beside_what_is_cheaper(widths: int) -> None:
    """Of sizes as far apart as those of values."""
    every, some = np.array([*product((0.0, 1.0), repeat=10)]), 0
    for seed in range(60):
        rng = np.random.default_rng([seed, 7])
        cover = (rng.random((4, 10)) < 0.4).astype(float)
        sizes = 1e3 * rng.random((4, 10)) * 10.0 ** -rng.integers(0, widths, (4, 10)) * (rng.random((4, 10)) < 0.7)
        matrix, cost = np.vstack([cover, sizes]), rng.random(10) + 0.1
        low = np.append(cover.any(axis=1).astype(float), np.full(4, -np.inf))
        high = np.append(np.full(4, np.inf), sizes.sum(axis=1) * rng.uniform(0.2, 0.6, 4))
        taken = every @ matrix.T
        fit = ((taken >= low) & (taken <= high * (1 - 1e-6))).all(axis=1)
        if fit.any():
            row, column = np.nonzero(matrix)
            ones, least = np.ones(10), float((every @ cost)[fit].min())
            model = Model(cost, ones, ones > 0, row, column, matrix[row, column], low, high)
            assert not solve(cheaper(model, least * (1 + 1e-7)), Settings(solver="cp-sat")).none
            some += 1
    assert some >= 30


FALSELY_REFUSED = (
    (1, 1, {1: 1}),
    (0, 0, {2: -1, 0: 1}),
    (0, 0, {3: -1, 0: 1}),
    (0, 0, {3: 1, 1: -1}),
    (0, np.inf, {5: 1, 2: -1}),
    (0, 0, {9: -1, 0: 1}),
    (0, np.inf, {7: 1, 9: -1, 6: 1}),
    (0, 0, {10: -1, 11: 1}),
    (-1, np.inf, {11: 1, 3: -1, 2: -1}),
    (-1, np.inf, {8: 1, 10: -1, 5: -1}),
    (-3888, np.inf, {6: -3888, 8: -324}),
    (-np.inf, 1000100, {4: 1, 5: 2916}),
    (-np.inf, 1000100, {4: 1, 7: 1296}),
)


@pytest.mark.parametrize("solver", ["cp-sat", "highs"])
@pytest.mark.parametrize("whole", [0, 2, 12])
def test_a_solution_is_found_whichever_columns_are_whole_numbers(whole: int, solver: str) -> None:
    """CP-SAT presolves columns that are not to nothing: rows as memory has them, of which it says that none fits."""
    entries = [(row, column, by) for row, (_, _, of) in enumerate(FALSELY_REFUSED) for column, by in of.items()]
    row, column, coefficient = (np.array(each) for each in zip(*entries, strict=True))
    low, high = (np.array([each[end] for each in FALSELY_REFUSED], dtype=float) for end in (0, 1))
    upper = np.where(np.arange(12) == 4, 2840146.0, 1.0)
    model = Model(np.zeros(12), upper, np.arange(12) < whole, row, column, coefficient.astype(float), low, high)
    assert solve(model, Settings(solver=solver)).x is not None
