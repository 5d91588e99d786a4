"""Branching on axes finds what the solver's own search finds, and bounds no plan too high."""

from __future__ import annotations

from dataclasses import replace

import pytest
from passes.search.test_images import LINKS, PAPER, SQUARE, ascent_of, problem_of

from escc.passes.search import branch_on_axes as branching
from escc.passes.search import exact
from escc.passes.search.branch_on_axes import AxisSearch
from escc.passes.search.exact import Prover
from escc.passes.search.problem import Candidate, Problem

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
def test_of_plans_below_a_price_just_above_it_the_optimum_is_found(
    seed: int, looked_at: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left out below a price leaves the plans that cost a little less."""
    monkeypatch.setattr(branching, "MOST_RELAXED", 5_000)
    problem = problem_by_seed(seed)
    best = by_solver(problem).price
    asked = replace(start_of(problem), price=best * (1 + 1e-6))
    found = Prover(problem).prove(ascent_of(problem), asked)
    assert sum(looked_at) > 5
    assert found.price == pytest.approx(best, rel=1e-9)


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
def test_below_the_optimum_there_is_none(seed: int, looked_at: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(branching, "MOST_RELAXED", 5_000)
    problem = problem_by_seed(seed)
    asked = by_solver(problem).price * (1 - 1e-4)
    found = Prover(problem).prove(ascent_of(problem), start_of(problem).at_most(asked))
    assert sum(looked_at) > 5
    assert found.price == found.bound == pytest.approx(asked, rel=1e-12)
