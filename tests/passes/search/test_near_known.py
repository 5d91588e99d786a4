"""A plan near a known one is cheaper, is a plan, and is one that the bounds of all plans hold for."""

from __future__ import annotations

import pytest
from passes.search.test_images import LINKS, PAPER, SQUARE, ascent_of, problem_of

from escc.passes.search import exact, near_known
from escc.passes.search.dual_ascent import DualAscent
from escc.passes.search.exact import Prover
from escc.passes.search.near_known import improved
from escc.passes.search.problem import Candidate, Problem


def dear(problem: Problem) -> Candidate:
    """A plan that is far from the cheapest: at each node the first choice."""
    return problem.found([0] * len(problem.graph.nodes))


@pytest.mark.parametrize("seed", [3, 20, 42])
def test_a_cheaper_plan_is_found_by_parts(seed: int) -> None:
    problem = problem_of(seed, SQUARE, (PAPER, LINKS)[seed % 2])
    prover, start = Prover(problem), dear(problem)
    found = improved(start, ascent_of(problem), prover._cheaper)
    assert found.price < start.price * 0.99
    assert problem.found(found.chosen, found.shared).price == pytest.approx(found.price, rel=1e-12)
    best = prover.prove(ascent_of(problem), start)
    assert found.price >= best.bound * (1 - 1e-9)


def test_all_but_two_parts_are_as_they_were() -> None:
    problem = problem_of(3, SQUARE, LINKS)
    start, asked = dear(problem), list[list[int]]()

    def none(ascent: DualAscent, plan: Candidate) -> None:
        asked.append([n for n, price in enumerate(ascent.prices) if (price < float("inf")).sum() > 1])
        assert all(ascent.prices[n][choice] < float("inf") for n, choice in enumerate(plan.chosen))

    assert improved(start, ascent_of(problem), none) is start
    assert asked
    assert all(nodes[-1] - nodes[0] < 2 * -(-len(start.chosen) // near_known.PARTS) for nodes in asked)


def test_a_large_relaxation_begins_near_a_plan_that_was_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_of(20, SQUARE, PAPER)
    start, ways = dear(problem), list[tuple[float, float]]()

    def watched(plan: Candidate, *rest: object) -> Candidate:
        found = improved(plan, *rest)  # type: ignore[arg-type]
        ways.append((plan.price, found.price))
        return found

    monkeypatch.setattr(exact, "NEAR", ())
    monkeypatch.setattr(exact, "MANY_MIXED", -1)
    monkeypatch.setattr(exact, "MANY_NEAR", -1)
    monkeypatch.setattr(exact, "improved", watched)
    found = Prover(problem).prove(ascent_of(problem), start)
    assert ways and ways[0][1] < ways[0][0]
    assert found.bound <= found.price <= ways[0][1] * (1 + 1e-12)
