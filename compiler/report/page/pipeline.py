"""Batches in the stages of a pipeline, drawn in time: a row for each stage, a colour for each batch, grey where it
waits. Lengths are percent of the time that is drawn."""

from __future__ import annotations

from collections.abc import Iterator

from ....ir.record import record
from ....passes.batches.batches import Batch
from ...sweep.schedule import Scheduled

MOST_BATCHES = 120  # that are drawn
COLOURS = 4


@record
class Bar:
    """A batch in a stage: its number, its colour by number, and where."""

    batch: int
    colour: int
    start: float
    length: float


@record
class Drawing:
    """`rows`: the bars of each stage. `batches`: those that are drawn, `left_out` how many follow. `until_s`: the time
    that is drawn."""

    rows: tuple[tuple[Bar, ...], ...]
    batches: tuple[Batch, ...]
    until_s: float
    left_out: int


def draw_pipeline(scheduled: Scheduled) -> Drawing:
    """The drawing of a schedule's first MOST_BATCHES batches, until the first stage has ended them; of all, to the
    end."""
    timeline, left_out = scheduled.timeline, max(0, len(scheduled.batches) - MOST_BATCHES)
    some = len(scheduled.batches) - left_out
    until_s = float(timeline.ends[0 if left_out else -1, some - 1])

    def bars(stage: int) -> Iterator[Bar]:
        for batch in range(some):
            start, end = (float(times[stage, batch]) / until_s for times in (timeline.starts, timeline.ends))
            if start < 1:
                yield Bar(batch, batch % COLOURS, 100 * start, 100 * (min(end, 1.0) - start))

    rows = tuple(tuple(bars(stage)) for stage in range(len(timeline.starts)))
    return Drawing(rows, scheduled.batches[:some], until_s, left_out)
