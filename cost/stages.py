"""A pipeline: stages that hold layers of their own, and batches that follow each other through them.

A batch is divided into micro-batches. Each goes through all stages in order, and a stage takes them one after the
other. Where a call waits for the one before it, as a token of a sequence does for the token before, a micro-batch
comes back to the first stage when it has left the last. With P stages of t seconds and m micro-batches a call that
waits for none takes (m + P - 1) t, and each of many that wait max(P, m) t (Aminabadi et al. 2022, "DeepSpeed
Inference", section 4.2, where a prompt has more micro-batches than the tokens after it have).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from ..ir.record import record
from ..ir.spmd import SpmdProgram
from .elementwise import Larger, larger
from .estimate import local_bytes
from .sendings import Sending, quickest_s


@record
class Rounds:
    """How often a phase runs: `calls` times for each of `micro_batches`. `wait`: a call waits for the one before it."""

    calls: int
    micro_batches: int
    wait: bool

    def seconds(self, together: Any, slowest: Any, larger: Larger = larger) -> Any:
        """Seconds of all calls. `together`: what a micro-batch takes in all stages; `slowest`: in the slowest one.

        Numbers or symbols, for which `larger` says which is larger. Exact for stages that take the same time for
        every micro-batch: a chain of work that makes a stage wait passes through all stages once for each call, or
        stays in the slowest one, and what lies between these two is no longer than the longer of them.
        """
        m = self.micro_batches
        once = together + (m - 1) * slowest
        if self.calls == 1:
            return once
        again = larger(together, m * slowest) if self.wait else m * slowest
        return once + (self.calls - 1) * again

    def counts(self, stages_s: Sequence[float]) -> tuple[Fraction, ...]:
        """How often the seconds of each stage count in those of all calls, where stages take `stages_s`; of several
        that are the slowest each has its part of what the slowest counts for.

        Stages that take other seconds take no less than their sum by these counts: the seconds are the largest of
        such sums.
        """
        most = max(stages_s)
        tied = sum(one == most for one in stages_s)
        each = np.array([Fraction(1)] * len(stages_s))
        slowest = np.array([Fraction(one == most, tied) for one in stages_s])
        seconds = np.array(stages_s)
        return tuple(self.seconds(each, slowest, lambda *two: max(two, key=lambda one: one.astype(float) @ seconds)))

    def ends(self, together: float, slowest: float) -> tuple[int, int]:
        """How often the seconds of any stage count in those of all calls, and how often those of the slowest, where
        stages take so long together; where they take others, that is no more than theirs."""
        m, again = self.micro_batches, self.calls - 1
        if self.wait and together > m * slowest:
            return 1 + again, m + again
        return 1, m * self.calls

    def weight(self, stages: int) -> int:
        """The seconds of all calls, in seconds of one stage, where all take the same."""
        return int(self.seconds(stages, 1))


@record
class Passing:
    """What handing a value to the next stage costs: each chip sends what it holds of it to the chip at its place.
    `values`: those that are handed on; each goes the quickest of the ways `sendings`."""

    values: frozenset[str] = frozenset()
    sendings: tuple[Sending, ...] = (Sending(0.0, 0.0),)

    def seconds(self, size_bytes: Any) -> Any:
        """Seconds for one value; bytes on a chip may be an array."""
        return quickest_s(self.sendings, size_bytes)


NO_PASSING = Passing()


def passed_bytes(spmd: SpmdProgram, names: Sequence[str], passing: Passing) -> tuple[float, ...]:
    """The bytes that a chip hands on, of each result that a stage hands on; `names`: as the program calls them."""
    values = spmd.table()
    pairs = dict(zip(names, spmd.results, strict=True))
    return tuple(float(local_bytes(values[pairs[name]], spmd)) for name in pairs if name in passing.values)


def passed_s(spmd: SpmdProgram, names: Collection[str], passing: Passing) -> float:
    """Seconds of handing on all that a stage does, for one micro-batch."""
    return sum(float(passing.seconds(size)) for size in passed_bytes(spmd, tuple(names), passing))
