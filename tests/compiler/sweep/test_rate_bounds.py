"""The most tokens a second of batches, beside all batches of made-up layouts."""

from __future__ import annotations

import math
import random

import pytest

from escc.compiler.sweep.rate_bounds import RateBounds

OUTPUT, MOST = 10, 60
Layouts = list[tuple[int, float, float, float, float]]


def drawn_layouts(seed: int) -> Layouts:
    """In how many parts each splits a batch, and seconds of a prompt, of a step, of a sequence of it; and the sequences
    that fit. Those that take more room are quicker."""
    drawn = random.Random(seed)
    each = [(ways, 1 + drawn.random(), 5 * drawn.random(), drawn.random()) for ways in (1, 1, 2, 3, 6, 6)]
    return [(*one, MOST * (0.2 + 0.5 * one[2] / 5)) for one in each]


def least_s(layouts: Layouts, batch: int) -> float:
    """What a batch takes in the quickest layouts that serve it; infinite where none do."""
    fit = [one for one in layouts if batch % one[0] == 0 and batch <= one[4]]
    return min((batch * p + OUTPUT * (step + batch / w * each) for w, p, step, each, _ in fit), default=math.inf)


@pytest.mark.parametrize("seed", range(8))
def test_no_batch_gives_more_and_the_best_is_found(seed: int) -> None:
    layouts = drawn_layouts(seed)
    rates = [OUTPUT * batch / least_s(layouts, batch) for batch in range(1, MOST + 1)]
    bounds = RateBounds([2, 3, 6], OUTPUT, MOST, math.inf)
    bounds.set_prompt(min(one[1] for one in layouts))
    planned: list[int] = []
    while bounds.promised > max((rates[batch - 1] for batch in planned), default=0.0):
        planned.append(bounds.next())
        assert len(set(planned)) == len(planned)
        bounds.add(planned[-1], least_s(layouts, planned[-1]), True)
        assert all(bound >= rate * (1 - 1e-12) for bound, rate in zip(bounds.rates, rates, strict=True))
    assert max(rates[batch - 1] for batch in planned) == max(rates) == pytest.approx(bounds.most)


def test_what_is_too_slow_or_does_not_fit_rules_out_what_is_above() -> None:
    bounds = RateBounds([2], OUTPUT, MOST, token_s=2.0)
    bounds.add(8, 19.0, True)
    bounds.add(12, 21.0, True)
    bounds.add(40, math.inf, True)
    assert (bounds.rates[11:] == 0).all() and (bounds.rates[:11] > 0).all()
    assert bounds.most == math.inf, "of batches below eight nothing is known"


def test_odd_batches_may_be_slower_than_even_ones_above() -> None:
    bounds = RateBounds([2], OUTPUT, MOST, math.inf)
    bounds.add(5, 100.0, True)
    assert bounds.rates[6] == 7 * OUTPUT / 100.0 and math.isinf(bounds.rates[5])


def test_what_is_not_proven_bounds_nothing() -> None:
    bounds = RateBounds([2], OUTPUT, MOST, math.inf)
    bounds.add(1, 1.0, True)
    bounds.add(2, 1.0, False)
    assert bounds.most == math.inf and bounds.promised < math.inf
