"""Linear programs without what no optimum needs: the same optimum, at reduced costs that hold for the whole."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from escc.passes.ilp.model import Model
from escc.passes.ilp.solver import Settings, solve
from escc.passes.ilp.thinned import Thinned, thinned

FLOW, PAID, OTHER = range(3)


def random_program(seed: int) -> Model:
    """A feasible program of small whole numbers: one of four columns is taken, as a node takes a choice, beside rows of
    all kinds; four pay for what others take of some; some columns are left out."""
    rng = np.random.default_rng(seed)
    columns, rows = 14, 10
    matrix = np.where(rng.random((rows, columns)) < 0.2, rng.choice([-1.0, 1.0], (rows, columns)), 0.0)
    matrix[:, 10:] = 0.0
    matrix[6:, 10:] = -1.0 * (rng.random((4, 4)) < 0.5)
    matrix[0] = np.arange(columns) < 4
    upper = np.where(rng.random(columns) < 0.3, 0.0, 1.0)
    upper[:2] = 1.0
    taken = upper * rng.integers(0, 2, columns)
    taken[:4] = [1.0, 0.0, 0.0, 0.0]
    inside = matrix @ taken
    kind = rng.integers(0, 4, rows)
    kind[0], kind[6:] = 1, 0
    low = np.where(kind == 0, -np.inf, np.where(kind == 1, inside, np.minimum(inside, 0.0)))
    high = np.where(kind == 2, np.inf, np.where(kind == 1, inside, np.maximum(inside, 0.0)))
    row, column = np.nonzero(matrix)
    cost = rng.choice([-1.0, 0.0, 0.0, 1.0, 2.0], columns)
    cost[10:] = np.abs(cost[10:])
    return Model(cost, upper, np.zeros(columns, dtype=bool), row, column, matrix[row, column], low, high)


def test_some_programs_lose_rows_and_columns_of_either_kind() -> None:
    every = [thinned(random_program(seed)) for seed in range(60)]
    assert sum(len(thin.rows) < thin.count for thin in every) > 20
    assert sum(thin.unused.any() for thin in every) > 20
    assert sum(thin.full.any() for thin in every) > 10


@pytest.mark.parametrize("seed", range(60))
def test_what_is_left_out_changes_no_optimum(seed: int) -> None:
    model = random_program(seed)
    matrix = np.zeros((len(model.low), len(model.cost)))
    matrix[model.row, model.column] = model.coefficient
    thin, plain = thinned(model), solve(model, Settings())
    found = thin.whole(solve(thin.model, Settings(), worths=True))
    assert found.none == plain.none
    assert found.x is not None and found.reduced_costs is not None and found.row_worths is not None
    assert found.bound == pytest.approx(plain.bound, abs=1e-7) == pytest.approx(model.cost @ found.x, abs=1e-7)
    assert (matrix @ found.x >= model.low - 1e-7).all() and (matrix @ found.x <= model.high + 1e-7).all()
    assert len(found.row_worths) == len(model.low)


@pytest.mark.parametrize("seed", range(60))
def test_reduced_costs_leave_what_may_be_as_cheap_as_asked(seed: int) -> None:
    """Some solution of each price is left without the columns that are too dear for it."""
    model = random_program(seed)
    thin = thinned(model)
    found = thin.whole(solve(thin.model, Settings(), worths=True))
    assert found.reduced_costs is not None
    whole = replace(model, integer=np.ones(len(model.cost), dtype=bool))
    least = solve(whole, Settings())
    for more in (0.0, 1.0, 2.0):
        dear = found.bound + found.reduced_costs > least.bound + more + 1e-9
        left = solve(replace(whole, upper=np.where(dear, 0.0, model.upper)), Settings())
        assert left.bound == pytest.approx(least.bound, abs=1e-7)


def test_a_flow_needs_what_pays_for_it_and_nothing_where_that_costs_nothing() -> None:
    def of(cost: float, upper: float) -> Thinned:
        """A flow that saves something, over an arc of a price that is left out or not."""
        pay = np.array([FLOW, PAID]), np.array([1.0, -1.0])
        model = Model(
            np.array([-1.0, cost, 0.0]),
            np.array([1.0, upper, 1.0]),
            np.zeros(3, dtype=bool),
            np.array([0, 0, 1, 1]),
            np.append(pay[0], [FLOW, OTHER]),
            np.append(pay[1], [1.0, 1.0]),
            np.array([-np.inf, 1.0]),
            np.array([0.0, 1.0]),
        )
        return thinned(model)

    assert of(1.0, 1.0).rows.tolist() == [0, 1]
    free, shut = of(0.0, 1.0), of(1.0, 0.0)
    assert free.rows.tolist() == [1] and free.full.tolist() == [False, True, False]
    assert shut.rows.tolist() == [1] and shut.unused.tolist() == [True, False, False]
