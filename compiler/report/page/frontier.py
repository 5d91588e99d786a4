"""Latency against cost: the points of a sweep as a drawing, and which of them none betters in both.

Colours tell series apart, and forms counts of chips. Both scales are logarithmic. Lengths are pixels, rounded
to a tenth.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil, floor, log10

from ....ir.record import record
from ...sweep.answers import Frontier, plotted
from .mesh_drawing import Text

WIDTH, HEIGHT = 720.0, 400.0
LEFT, RIGHT, TOP, BOTTOM = 62.0, 14.0, 12.0, 46.0
STEPS = (1, 2, 5)  # of a scale, in every power of ten
FEW_TICKS = 3
LABEL = (64.0, 12.0)  # what a label takes
FORMS = 6  # of marks, and as many colours; more counts of chips, or series, take them again


@record
class Mark:
    """A point as drawn: its number in the frontier, its series and its count of chips by number, and where. `best`:
    nothing in its series is both quicker and cheaper."""

    index: int
    series: int
    count: int
    x: float
    y: float
    best: bool


@record
class Plot:
    """`lines`: for each series the path through its best points, in SVG's notation; `limits`: a path along what is
    wanted at most. `labels` are of the best points: chips, and sequences in a batch."""

    series: tuple[str, ...]
    counts: tuple[int, ...]
    marks: tuple[Mark, ...]
    lines: tuple[str, ...]
    limits: str
    grid: str
    texts: tuple[Text, ...]
    labels: tuple[Text, ...]


@record
class _Scale:
    """A logarithmic scale from `low` to `high`, drawn from `start` over `length` pixels."""

    low: float
    high: float
    start: float
    length: float

    def at(self, number: float) -> float:
        """Where a number stands, in pixels."""
        return round(self.start + self.length * log10(number / self.low) / log10(self.high / self.low), 1)

    def ticks(self) -> tuple[float, ...]:
        """Round numbers on the scale: of every power of ten, or where these are too few, in even steps."""
        inside = tuple(tick for tick in _round_numbers(self.low, self.high) if self.low <= tick <= self.high)
        if len(inside) >= FEW_TICKS:
            return inside
        span = self.high - self.low
        step = max(tick for tick in _round_numbers(span / 100, span) if span / tick >= FEW_TICKS)
        return tuple(step * k for k in range(ceil(self.low / step), floor(self.high / step) + 1))


def _round_numbers(low: float, high: float) -> Iterator[float]:
    """1, 2 and 5 times the powers of ten from below `low` to above `high`."""
    for power in range(floor(log10(low)), ceil(log10(high)) + 1):
        yield from (float(f"{step}e{power}") for step in STEPS)


def draw_frontier(frontier: Frontier) -> Plot | None:
    """The drawing of a frontier; None where no point has a place in it."""
    points = frontier.points
    placed = [(p.latency_s, p.cost) for p in points if plotted(p)]
    if not placed:
        return None
    wanted_s, wanted_cost = frontier.max_latency_s, frontier.max_cost
    times = [latency or 0.0 for latency, _ in placed] + ([wanted_s] if wanted_s else [])
    costs = [cost or 0.0 for _, cost in placed] + ([wanted_cost] if wanted_cost else [])
    across = _scale([1e3 * seconds for seconds in times], LEFT, WIDTH - LEFT - RIGHT)
    up = _scale(costs, HEIGHT - BOTTOM, -(HEIGHT - TOP - BOTTOM))
    marks: list[Mark] = []
    lines: list[str] = []
    for number, (own, best) in enumerate(frontier.series.values()):
        drawn = [k for k in own if plotted(points[k])]
        where = {k: (across.at(1e3 * (points[k].latency_s or 0.0)), up.at(points[k].cost or 0.0)) for k in drawn}
        lines.append("M" + "L".join(f"{where[k][0]:g} {where[k][1]:g}" for k in best) if best else "")
        marks += [Mark(k, number, frontier.counts.index(points[k].chips), *where[k], k in best) for k in drawn]
    limits = (f"M{across.at(1e3 * wanted_s):g} {TOP:g}V{HEIGHT - BOTTOM:g}" if wanted_s else "") + (
        f"M{LEFT:g} {up.at(wanted_cost):g}H{WIDTH - RIGHT:g}" if wanted_cost else ""
    )
    texts = tuple(_texts(frontier, across, up))
    paths = tuple(lines), limits, _grid(across, up)
    return Plot(tuple(frontier.series), frontier.counts, tuple(marks), *paths, texts, tuple(_labels(frontier, marks)))


def _labels(frontier: Frontier, marks: Sequence[Mark]) -> Iterator[Text]:
    """Chips and batch of the best points, those left out that would stand on another's."""
    taken: list[tuple[float, float]] = []
    for mark in (mark for mark in marks if mark.best):
        point = frontier.points[mark.index]
        right = mark.x > WIDTH - LABEL[0]
        x, y = mark.x + (-8 if right else 8), max(mark.y - 6, TOP + LABEL[1])
        if all(abs(x - other) >= LABEL[0] or abs(y - above) >= LABEL[1] for other, above in taken):
            taken.append((x, y))
            yield Text(f"{point.chips}, {point.batch}", x, y, "end" if right else "start")


def _scale(numbers: Sequence[float], start: float, length: float) -> _Scale:
    """A scale with room on both sides; of one number alone, or of equal ones, a factor of two."""
    low, high = min(numbers), max(numbers)
    room = max((high / low) ** 0.06, 1.15)
    return _Scale(low / room, high * room, start, length)


def _grid(across: _Scale, up: _Scale) -> str:
    down = "".join(f"M{across.at(tick):g} {TOP:g}V{HEIGHT - BOTTOM:g}" for tick in across.ticks())
    return down + "".join(f"M{LEFT:g} {up.at(tick):g}H{WIDTH - RIGHT:g}" for tick in up.ticks())


def _texts(frontier: Frontier, across: _Scale, up: _Scale) -> Iterator[Text]:
    for tick in across.ticks():
        yield Text(f"{tick:,.10g}", across.at(tick), HEIGHT - BOTTOM + 15, "middle")
    for tick in up.ticks():
        yield Text(f"{tick:,.10g}", LEFT - 6, up.at(tick) + 4, "end")
    yield Text(f"milliseconds {frontier.latency_of}", LEFT + (WIDTH - LEFT - RIGHT) / 2, HEIGHT - 8, "middle")
    yield Text(frontier.cost_unit, 12, HEIGHT - BOTTOM, turned=True)
