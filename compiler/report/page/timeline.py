"""The sharded program against time: a row for each step, from where it starts to where it ends.

Each region has a time axis of its own, as long as one execution of it: what happens once in a layer
could not be seen beside all of its repetitions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from math import fsum

from ....cost.estimate import Estimate, MoveCost, OpCost
from ....ir.collective import describe
from ....ir.program import Region, Repeat
from ....ir.record import record
from ....ir.spmd import Compute, Move, SpmdProgram, Step
from ....ir.text.ops import format_op
from ....ir.verify.fused import runs


class Resource(StrEnum):
    """What a step spends its time on; the letter stands beside its bar. SEVERAL: a repeat's steps differ."""

    COMPUTE = "C"
    MEMORY = "M"
    NETWORK = "N"
    SEVERAL = "S"
    NONE = ""


@record
class Row:
    """A step, or a repeat with all that it does.

    `start_s`, `seconds`: in one execution of its region; `result`: the value that it makes, None for a
    repeat. `marks`: `+` where it runs as one with the step before it, `~` where it runs in one loop with
    it. `loop_s`: of the first step of a loop, what all of the loop takes.
    """

    what: str
    result: str | None
    resource: Resource
    start_s: float
    seconds: float
    bytes_sent: float = 0.0
    marks: str = ""
    loop_s: float | None = None


@record
class Track:
    """A region: how often it runs where it stands, what one execution takes, and its steps in order.

    `depth`: how many repeats are around its steps. The program itself is the first track, named None.
    """

    name: str | None
    count: int
    depth: int
    seconds: float
    rows: tuple[Row, ...]

    def percent(self, seconds: float) -> float:
        """A time as a share of the track, in percent."""
        return 100 * seconds / self.seconds if self.seconds else 0.0


def resource_of(cost: OpCost | MoveCost) -> Resource:
    """What a step is bound by."""
    if not cost.seconds:
        return Resource.NONE
    if isinstance(cost, MoveCost):
        return Resource.NETWORK
    return Resource.COMPUTE if cost.compute_s >= cost.memory_s else Resource.MEMORY


def tracks(spmd: SpmdProgram, estimate: Estimate) -> tuple[Track, ...]:
    """The regions of a program, each before those in it."""
    return _Timeline(spmd, estimate).region(spmd.body, None, 1, 0)


class _Timeline:
    """The walk over a program, with its costs by the value that a step makes."""

    def __init__(self, spmd: SpmdProgram, estimate: Estimate) -> None:
        self.values = spmd.table()
        self.costs: dict[str, OpCost | MoveCost] = {cost.result: cost for cost in estimate.ops}
        self.costs |= {cost.result: cost for cost in estimate.moves}
        self.loops = {loop.first: loop for loop in estimate.loops}

    def region(self, region: Region[Step], name: str | None, count: int, depth: int) -> tuple[Track, ...]:
        """The track of a region, and those of the repeats in it."""
        rows: list[Row] = []
        inner: list[Track] = []
        taken: list[float] = []
        for run in runs(region.items):
            start_s = fsum(taken)
            match run:
                case [Repeat() as repeat]:
                    found = self.region(repeat.body, repeat.name, repeat.count, depth + 1)
                    seconds = repeat.count * found[0].seconds
                    what = f"repeat {repeat.count} {repeat.name}"
                    rows.append(Row(what, None, Resource.SEVERAL, start_s, seconds, _sent(repeat.count, found)))
                    inner += found
                    taken.append(seconds)
                case _:
                    steps = [item for item in run if not isinstance(item, Repeat)]
                    rows += self.run(steps, start_s)
                    taken.append(self.run_s(steps))
        return (Track(name, count, depth, fsum(taken), tuple(rows)), *inner)

    def run_s(self, steps: Sequence[Step]) -> float:
        """What steps take that run in one loop, or a step alone."""
        loop = self.loops.get(steps[0].result)
        return fsum(self.costs[step.result].seconds for step in steps) if loop is None else loop.seconds

    def run(self, steps: Sequence[Step], start_s: float) -> Iterator[Row]:
        """The rows of such steps. In a loop what is sent and what is computed start together."""
        loop = self.loops.get(steps[0].result)
        if loop is None:
            for step in steps:
                seconds = self.costs[step.result].seconds
                yield self.row(step, start_s, seconds)
                start_s += seconds
            return
        apart_s = fsum(self.costs[step.result].seconds for step in steps if isinstance(step, Move))
        stretch = (loop.start_s + loop.transfer_s) / apart_s if apart_s else 1.0
        ends = {Compute: start_s + loop.start_s, Move: start_s}
        for step in steps:
            seconds = self.costs[step.result].seconds * (stretch if isinstance(step, Move) else 1.0)
            yield self.row(step, ends[type(step)], seconds, loop.seconds if step is steps[0] else None)
            ends[type(step)] += seconds

    def row(self, step: Step, start_s: float, seconds: float, loop_s: float | None = None) -> Row:
        """The row of a step."""
        cost, marks = self.costs[step.result], "~" * step.looped + "+" * step.joined
        match step:
            case Move(_, operand, collective):
                what = f"{describe(collective, self.values[operand].dims)} of {operand}"
            case Compute(op):
                what = format_op(op, self.values[step.result].dims)
        sent = cost.bytes_sent if isinstance(cost, MoveCost) else 0.0
        return Row(what, step.result, resource_of(cost), start_s, seconds, sent, marks, loop_s)


def _sent(count: int, found: Sequence[Track]) -> float:
    """The bytes that a repeat sends: the rows of its own track count what is in it."""
    return count * fsum(row.bytes_sent for row in found[0].rows)
