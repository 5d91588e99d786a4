"""A pipeline of stages: layers divided among them evenly by their times, and batches run through in order."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from ...ir.record import record

Floats = NDArray[np.float64]


def balance(seconds: Sequence[float], stages: int) -> tuple[int, ...]:
    """Where each stage ends, so that the slowest takes least: items in a row, each with its time, at least one to a
    stage. Of equally good divisions the one whose last stages are shortest. Raises ValueError where there are fewer
    items than stages.

    The least slowest[k][i] of the first i items in k stages is the least over j of
    max(slowest[k - 1][j], seconds of j + 1 to i).
    """
    count = len(seconds)
    if not 1 <= stages <= count:
        raise ValueError(f"{count} items do not fill {stages} stages")
    sums = np.array([0.0, *accumulate(seconds)])
    slowest = np.where(np.arange(count + 1) == 0, 0.0, np.inf)
    begins = []
    for _ in range(stages):
        following, begin = np.full(count + 1, np.inf), np.zeros(count + 1, dtype=int)
        for end in range(1, count + 1):
            own = np.maximum(slowest[:end], sums[end] - sums[:end])
            begin[end] = end - 1 - int(np.argmin(own[::-1]))
            following[end] = own[begin[end]]
        slowest = following
        begins.append(begin)
    ends = [count]
    for begin in reversed(begins[1:]):
        ends.append(int(begin[ends[-1]]))
    return tuple(reversed(ends))


@record
class Timeline:
    """Batches in a pipeline: `starts` and `ends` in seconds, [stages, batches], from when the first begins."""

    starts: Floats
    ends: Floats

    @property
    def seconds(self) -> float:
        """Until the last batch leaves the last stage."""
        return float(self.ends[-1, -1])

    @property
    def bubbles(self) -> float:
        """The share of the time of all stages in which they wait."""
        return 1.0 - float((self.ends - self.starts).sum()) / (len(self.ends) * self.seconds)


def run(seconds: Floats) -> Timeline:
    """Batches run in order through stages: [stages, batches] seconds each, all above 0. A stage begins a batch when it
    has ended the one before it, and the stage before it this one. With equal times
    it takes what `cost.stages` says."""
    stages, batches = seconds.shape
    starts, arrives = np.empty_like(seconds), np.zeros(batches)
    for stage in range(stages):
        until = np.cumsum(seconds[stage])
        # Whatever a stage waits for last, it works from there on without a break.
        ends = until + np.maximum.accumulate(arrives - (until - seconds[stage]))
        starts[stage] = ends - seconds[stage]
        arrives = ends
    return Timeline(starts, starts + seconds)
