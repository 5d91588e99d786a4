"""Branching on axes finds what the solver's own search finds, and bounds no plan too high."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from passes.search.test_images import LINKS, PAPER, SQUARE, ascent_of, problem_of

from escc.passes.ilp.solver import Answer, Settings
from escc.passes.search import branch_on_axes as branching
from escc.passes.search import exact
from escc.passes.search.branch_on_axes import AxisSearch
from escc.passes.search.exact import Prover
from escc.passes.search.problem import Candidate, Problem
from escc.passes.search.symmetry import representatives

MIXED = [20, 42]  # generated programs whose relaxation mixes images, and far below the optimum


def problem_by_seed(seed: int) -> Problem:
    return problem_of(seed, SQUARE, (PAPER, LINKS)[seed % 2])


def start_of(problem: Problem) -> Candidate:
    return problem.found(ascent_of(problem).round())


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Every program is large, and how many relaxations each search has looked at."""
    counts: list[int] = []
    run = AxisSearch.run

    def counted(search: AxisSearch, *given: object) -> None:
        run(search, *given)  # type: ignore[arg-type]
        counts.append(search.relaxed)

    monkeypatch.setattr(exact, "MANY_MIXED", -1)
    monkeypatch.setattr(AxisSearch, "run", counted)
    return counts


def by_solver(problem: Problem) -> Candidate:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(exact, "MANY_MIXED", 1_000_000)
        return Prover(problem).prove(ascent_of(problem), start_of(problem))


@pytest.mark.parametrize("seed", MIXED)
def test_the_optimum_is_found_and_proven(seed: int, looked_at: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(branching, "MOST_RELAXED", 5_000)
    monkeypatch.setattr(branching, "NEARLY", 1e-9)
    problem = problem_by_seed(seed)
    best = by_solver(problem).price
    found = Prover(problem).prove(ascent_of(problem), start_of(problem))
    assert sum(looked_at) > 5
    assert found.price == pytest.approx(best, rel=1e-9)
    assert problem.found(found.chosen).price == pytest.approx(found.price, rel=1e-12)
    assert found.bound == pytest.approx(best, rel=1e-8)


@pytest.mark.parametrize("seed", MIXED)
def test_a_node_settled_first_by_each_choice_loses_no_plan(
    seed: int, looked_at: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As what layers hand on is; here the op with the most strategies, which has far more of them."""
    monkeypatch.setattr(exact, "MANY_ALIKE", -1)
    monkeypatch.setattr(exact, "of_layers", lambda graph, classes: representatives(graph, classes))
    monkeypatch.setattr(branching, "MOST_RELAXED", 5_000)
    monkeypatch.setattr(branching, "NEARLY", 1e-9)
    settled = []
    settle = AxisSearch._settle
    monkeypatch.setattr(AxisSearch, "_settle", lambda *given: (settled.append(1), settle(*given)))
    problem = problem_by_seed(seed)
    best = by_solver(problem).price
    found = Prover(problem).prove(ascent_of(problem), start_of(problem))
    assert settled
    assert found.price == pytest.approx(best, rel=1e-9)
    assert found.bound == pytest.approx(best, rel=1e-8)


def test_boxes_of_a_node_settled_first_hold_each_choice_once() -> None:
    """Those that are too dear for the price together, for when a higher one is asked; none is bounded too high."""
    one = np.array([0, 1, 2])
    program = branching.AxisProgram(None, None, [0], [one], lambda answer: None, 1.0, 0)  # type: ignore[arg-type]
    answer = Answer(np.array([0.4, 0.6, 0.0, 1.0]), 10.0, np.array([0.0, 1.0, 3.0, 0.0]), 0.0)
    search = AxisSearch(program, Settings(), 12.0)
    search._split(branching.Box(np.ones(4), np.array([1.0, 1.0, 0.0, 1.0]), answer, 10.0, True))
    last_first = sorted(search.heap, key=lambda entry: -entry[1])
    assert [(bound, box.upper.tolist(), box.cheap.tolist()) for bound, _, box in last_first] == [
        (11.0, [0, 1, 0, 1], [0, 1, 0, 1]),
        (10.0, [1, 0, 0, 1], [1, 0, 0, 1]),
    ]
    assert [(box.upper.tolist(), box.bound, box.relaxed) for box in search.closed] == [([0, 0, 1, 1], 12.0, False)]


def test_columns_are_left_out_that_no_plan_below_the_price_has() -> None:
    """A plan costs at least the relaxation and the reduced cost of any column that it has."""
    every = np.array([1.0, 1.0, 1.0, 0.0])
    answer = Answer(every, 10.0, np.array([0.0, 2.0, 2.001, 0.0]), 0.0)
    box = branching.Box(every, every, answer, 10.0, True)
    assert branching.cheap(box, 12.0).tolist() == [1.0, 1.0, 0.0, 0.0]


def test_relaxations_that_run_out_of_time_leave_a_bound(looked_at: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """What they say then has no reduced costs, by which columns could be left out."""
    real = branching.solve

    def cut_short(*given: object, **named: object) -> Answer:
        return replace(real(*given, **named), reduced_costs=None)  # type: ignore[arg-type]

    monkeypatch.setattr(branching, "solve", cut_short)
    problem = problem_by_seed(MIXED[0])
    best = by_solver(problem).price
    found = Prover(problem).prove(ascent_of(problem), start_of(problem))
    assert looked_at
    assert found.bound < best * (1 - 1e-3)
    assert found.price >= best * (1 - 1e-9)


@pytest.mark.parametrize("most", [1, 3, 10])
@pytest.mark.parametrize("seed", MIXED)
def test_a_search_that_ends_early_bounds_all_plans(
    seed: int, most: int, looked_at: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(branching, "MOST_RELAXED", most)
    problem = problem_by_seed(seed)
    best = by_solver(problem).price
    found = Prover(problem).prove(ascent_of(problem), start_of(problem))
    assert max(looked_at) <= most
    assert found.bound <= best * (1 + 1e-9) <= found.price * (1 + 2e-9)


@pytest.mark.parametrize("seed", MIXED)
def test_what_is_not_far_below_a_known_plan_is_not_looked_at_and_is_in_the_bound(
    seed: int, looked_at: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(branching, "MOST_RELAXED", 5_000)
    monkeypatch.setattr(branching, "NEARLY", 0.1)
    monkeypatch.setattr(branching, "NEAR", ())
    problem = problem_by_seed(seed)
    best = by_solver(problem)
    Prover(problem).prove(ascent_of(problem), best)
    all_of_them = sum(looked_at)
    looked_at.clear()
    monkeypatch.setattr(branching, "PATIENCE", 0)
    found = Prover(problem).prove(ascent_of(problem), best)
    assert 0 < sum(looked_at) < all_of_them
    assert best.price * (1 - 0.1) <= found.bound <= best.price * (1 + 1e-9)
    assert found.price == pytest.approx(best.price, rel=1e-9)
    dearer = Prover(problem).prove(ascent_of(problem), replace(best, price=best.price * 1.05))
    assert best.price * 1.05 * (1 - 0.1) <= dearer.bound <= best.price * (1 + 1e-9)


def test_a_price_that_no_plan_is_known_to_have_is_looked_below(
    looked_at: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However small a gap to it were: there is a plan only if one is found."""
    monkeypatch.setattr(branching, "MOST_RELAXED", 5_000)
    monkeypatch.setattr(branching, "PATIENCE", 0)
    problem = problem_by_seed(MIXED[1])
    best = by_solver(problem).price
    found = Prover(problem).prove(ascent_of(problem), start_of(problem).at_most(best * (1 + 1e-3)))
    assert looked_at
    assert found.price <= best * (1 + 1e-3) * (1 - 1e-9)
    assert problem.found(found.chosen).price == pytest.approx(found.price, rel=1e-12)


@pytest.mark.parametrize("seed", MIXED)
def test_below_the_optimum_there_is_none(seed: int, looked_at: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(branching, "MOST_RELAXED", 5_000)
    problem = problem_by_seed(seed)
    asked = by_solver(problem).price * (1 - 1e-4)
    found = Prover(problem).prove(ascent_of(problem), start_of(problem).at_most(asked))
    assert sum(looked_at) > 5
    assert found.price == found.bound == pytest.approx(asked, rel=1e-12)
