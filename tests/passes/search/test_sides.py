"""Of the plans that several sides have found the cheapest is taken, whichever side that is."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from escc.passes.search import search
from escc.passes.search.problem import Candidate


def side(price: float, prover: Any) -> Any:
    """A side that is done, with a plan of that price."""
    best = Candidate((0,), price, price)
    problem = SimpleNamespace(settings=SimpleNamespace(gap=1e-9))
    return SimpleNamespace(
        read=1, best=best, bound=1.0, plainest=lambda: best, prover=prover, side=None, ascent=None, problem=problem
    )


@pytest.mark.parametrize("prices", [(1.0, 2.0), (2.0, 1.0), (3.0, 1.0, 2.0)])
def test_the_cheapest_of_all_sides_is_taken(prices: tuple[float, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    prover: Any = SimpleNamespace(solve_s=0.0, read=0, problem=SimpleNamespace(settings=SimpleNamespace(gap=1e-9)))
    monkeypatch.setattr(search, "branch_and_bound", lambda sides: None)
    found = search._sides([side(price, prover) for price in prices], prover, 0.0, math.inf)
    assert found.price == min(prices) and found.bound == 1.0
    assert prover.read == len(prices), "all that was read off counts"
