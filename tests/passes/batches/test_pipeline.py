"""Stages: the least slowest one by brute force, and batches in them beside a simulation event by event."""

from __future__ import annotations

import random
from itertools import combinations

import numpy as np
import pytest

from escc.cost.stages import Rounds
from escc.passes.batches.pipeline import balance, run


def by_events(seconds: list[list[float]]) -> float:
    """Each batch in each stage, as soon as both are free."""
    free = [0.0] * len(seconds)
    for batch in range(len(seconds[0])):
        arrives = 0.0
        for stage, times in enumerate(seconds):
            free[stage] = arrives = max(arrives, free[stage]) + times[batch]
    return free[-1]


@pytest.mark.parametrize("seed", range(50))
def test_the_slowest_stage_is_the_least_of_all_divisions(seed: int) -> None:
    draw = random.Random(seed)
    seconds = [draw.choice((0.5, draw.uniform(0.1, 3))) for _ in range(draw.randint(1, 9))]
    stages = draw.randint(1, len(seconds))

    def slowest(ends: tuple[int, ...]) -> float:
        return max(sum(seconds[a:b]) for a, b in zip((0, *ends), ends, strict=False))

    found = balance(seconds, stages)
    assert len(found) == stages == len(set(found)) and found[-1] == len(seconds)
    every = ((*cuts, len(seconds)) for cuts in combinations(range(1, len(seconds)), stages - 1))
    assert slowest(found) == pytest.approx(min(map(slowest, every)))


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(ValueError, match="3 items do not fill 4 stages"):
        balance([1, 1, 1], 4)


def test_a_thousand_schedules_are_as_simulated() -> None:
    draw = random.Random(7)
    for _ in range(1000):
        stages, batches = draw.randint(1, 6), draw.randint(1, 12)
        seconds = [[draw.uniform(0.1, 5) for _ in range(batches)] for _ in range(stages)]
        found = run(np.array(seconds))
        assert found.seconds == pytest.approx(by_events(seconds))
        assert (found.starts >= -1e-9).all() and (found.starts[:, 1:] >= found.ends[:, :-1] - 1e-9).all()
        assert (found.starts[1:] >= found.ends[:-1] - 1e-9).all()


@pytest.mark.parametrize(("stages", "batches"), [(1, 1), (1, 7), (4, 1), (4, 9)])
def test_batches_that_are_alike_take_what_the_formula_says(stages: int, batches: int) -> None:
    found = run(np.full((stages, batches), 0.25))
    assert (
        found.seconds
        == pytest.approx(Rounds(1, batches, wait=False).seconds(0.25 * stages, 0.25))
        == (batches + stages - 1) * 0.25
    )
    assert found.bubbles == pytest.approx((stages - 1) / (batches + stages - 1))
