"""A pipeline played out event by event: when each stage works on each micro-batch of each call.

Shares nothing with the formulas of `cost.stages`, which it checks.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...ir.record import record


@record
class Turn:
    """A stage at work on a micro-batch of a call, all counted from 0."""

    stage: int
    micro_batch: int
    call: int
    start_s: float
    end_s: float


def play(stages_s: Sequence[float], calls: int, micro_batches: int, wait: bool) -> tuple[Turn, ...]:
    """The turns of a pipeline in the order in which they start on the first stage, then along the stages.

    `stages_s`: what a micro-batch takes in each stage. A stage takes micro-batches in order, one at a time, each when
    it has left the stage before; with `wait` each first leaves the last stage in the call before.
    """
    free_s = [0.0] * len(stages_s)
    left_s = [0.0] * micro_batches
    turns = []
    for call in range(calls):
        for micro_batch in range(micro_batches):
            ready_s = left_s[micro_batch] if wait else 0.0
            for stage, seconds in enumerate(stages_s):
                start_s = max(ready_s, free_s[stage])
                ready_s = free_s[stage] = start_s + seconds
                turns.append(Turn(stage, micro_batch, call, start_s, ready_s))
            left_s[micro_batch] = ready_s
    return tuple(turns)
