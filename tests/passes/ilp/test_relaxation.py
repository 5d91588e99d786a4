"""A linear program solved again and again: each time as if it were solved alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from escc.passes.ilp.model import Model
from escc.passes.ilp.solver import Answer, Relaxation, Settings, solve

from .test_solver import random_program, worths


def uppers(model: Model, seed: int) -> list[np.ndarray]:
    """Some columns of the model left out each time, at last none."""
    rng = np.random.default_rng([seed, 2])
    some = [np.where(rng.random(len(model.cost)) < 0.25, 0.0, model.upper) for _ in range(6)]
    return [model.upper, *some, model.upper]


@pytest.mark.parametrize("seed", range(40))
def test_each_time_as_if_it_were_solved_alone(seed: int) -> None:
    model = random_program(seed)
    matrix = np.zeros((len(model.low), len(model.cost)))
    matrix[model.row, model.column] = model.coefficient
    again = Relaxation(replace(model, integer=np.ones(len(model.cost), dtype=bool)), Settings(), worths(model, seed))
    for upper in uppers(model, seed):
        alone, found = solve(replace(model, upper=upper), Settings(), worths=True), again.solve(upper)
        assert found.none == alone.none
        if alone.none:
            continue
        assert found.x is not None and found.row_worths is not None and found.reduced_costs is not None
        assert found.bound == pytest.approx(alone.bound, abs=1e-6) == pytest.approx(model.cost @ found.x, abs=1e-6)
        assert (found.x >= -1e-7).all() and (found.x <= upper + 1e-7).all()
        assert (matrix @ found.x >= model.low - 1e-6).all() and (matrix @ found.x <= model.high + 1e-6).all()
        live = upper > 0
        explained = (model.cost - matrix.T @ found.row_worths)[live]
        np.testing.assert_allclose(explained, found.reduced_costs[live], atol=1e-6)


@pytest.mark.parametrize("seed", range(20))
def test_what_costs_more_than_is_of_interest_is_none(seed: int) -> None:
    model = random_program(seed)
    again = Relaxation(model, Settings(), worths(model, seed))
    least = solve(model, Settings()).bound
    for upper in uppers(model, seed):
        alone = solve(replace(model, upper=upper), Settings())
        most = least + 0.5
        found = again.solve(upper, most)
        assert found.none == (alone.none or alone.bound >= most)
        assert found.none or found.bound == pytest.approx(alone.bound, abs=1e-6)


@pytest.mark.parametrize("claim", ["none", "too high", "nothing"])
@pytest.mark.parametrize("seed", range(5))
def test_what_its_worths_do_not_show_another_solver_says(
    seed: int, claim: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = random_program(seed)
    real = Relaxation._answer

    def claimed(self: Relaxation, result: object) -> Answer:
        answer = real(self, result)  # type: ignore[arg-type]
        if claim == "none":
            return Answer(None, -np.inf, None, 0.0, none=True)
        return replace(answer, bound=answer.bound + 1.0) if claim == "too high" else Answer(None, -np.inf, None, 0.0)

    monkeypatch.setattr(Relaxation, "_answer", claimed)
    found = Relaxation(model, Settings(), worths(model, seed)).solve(model.upper)
    assert not found.none
    assert found.bound == pytest.approx(solve(model, Settings()).bound, abs=1e-6)


def test_columns_that_the_model_leaves_out_stay_out() -> None:
    model = random_program(1)
    upper = model.upper.copy()
    upper[:3] = 0.0
    again = Relaxation(replace(model, upper=upper), Settings(), np.zeros(len(model.low)))
    found, alone = again.solve(upper), solve(replace(model, upper=upper), Settings())
    assert found.none == alone.none
    assert found.x is None or (found.x[:3] == 0).all()


def test_a_row_that_asks_for_columns_that_are_left_out_has_no_solution() -> None:
    """As when a node has no choice left."""
    row, column = np.zeros(2, dtype=np.int64), np.arange(2)
    none = np.zeros(3, dtype=bool)
    model = Model(np.ones(3), np.array([0.0, 0.0, 1.0]), none, row, column, np.ones(2), np.ones(1), np.ones(1))
    assert Relaxation(model, Settings(), np.zeros(1)).solve(model.upper).none
