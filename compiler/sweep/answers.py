"""What a sweep answers: which points none betters in both latency and cost, and the best that meets a target."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from ...ir.diagnostics import fail
from ...ir.record import record
from .points import Record, Sweep


@record
class Spot:
    """A configuration of a sweep, and what it takes.

    `label`: what it is called where a person reads it; `series`: the line that it belongs to, such as a
    weight format. `latency_s`: of a step or of a token; `cost`: in the frontier's unit. Where there is
    no plan both are None and `reason` says why. `link`: where the page of its plan is, beside that of the sweep.
    """

    label: str
    series: str
    chips: int
    batch: int
    latency_s: float | None
    cost: float | None
    reason: str | None = None
    link: str | None = None


@record
class Frontier:
    """The points of a sweep. `latency_of`: what the latency is of (`a token`); `cost_unit`: in what the
    cost is (`chip-seconds per million tokens`). `max_latency_s`, `max_cost`: what is wanted, where something is."""

    points: tuple[Spot, ...]
    latency_of: str
    cost_unit: str
    max_latency_s: float | None = None
    max_cost: float | None = None

    @property
    def counts(self) -> tuple[int, ...]:
        """The counts of chips of its points, the least first."""
        return tuple(sorted({point.chips for point in self.points}))

    @cached_property
    def series(self) -> dict[str, tuple[list[int], list[int]]]:
        """By the series that points belong to the numbers of all of them, and of those that no other of the series
        betters in both, quickest first."""
        numbers: dict[str, list[int]] = {}
        for k, point in enumerate(self.points):
            numbers.setdefault(point.series, []).append(k)
        best = {name: best_of([self.points[k] for k in own]) for name, own in numbers.items()}
        return {name: (own, [own[k] for k in best[name]]) for name, own in numbers.items()}

    @property
    def best(self) -> tuple[int, ...]:
        """The best of each series, series by series."""
        return tuple(k for _, best in self.series.values() for k in best)


def best_of(points: Sequence[Spot]) -> tuple[int, ...]:
    """The numbers of the points that no other is at least as good as in both and better in one; quickest first."""
    order = sorted(
        (k for k, point in enumerate(points) if plotted(point)),
        key=lambda k: (points[k].latency_s or 0.0, points[k].cost or 0.0),
    )
    found: list[int] = []
    for k in order:
        if not found or (points[k].cost or 0.0) < (points[found[-1]].cost or 0.0):
            found.append(k)
    return tuple(found)


def plotted(point: Spot) -> bool:
    """Whether a point has a place on logarithmic scales."""
    return bool(point.latency_s and point.cost and point.latency_s > 0 and point.cost > 0)


UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


@record
class Target:
    """What is wanted: a step of `latency_s` at most, a million tokens for `cost` at most; None where all is well."""

    latency_s: float | None = None
    cost: float | None = None

    def met_by(self, record: Record) -> bool:
        """Whether a point is within both."""
        latency_s, cost = record.latency_s, cost_of(record)
        if latency_s is None or cost is None:
            return False
        return latency_s <= (self.latency_s or latency_s) and cost <= (self.cost or cost)


@record
class Answer:
    """The point for a target: the cheapest that meets it, the quickest where only the cost is bounded; where none
    meets it (`met` is False) the one that comes nearest, None where no point has a plan."""

    record: Record | None
    met: bool


def read_target(latency: str | None, cost: float | None, option: str = "--max-latency") -> Target:
    """The target of `30ms` and a cost; `option`: what the time was given by.

    Raises InputError where a text is no time, or a cost is not positive.
    """
    if cost is not None and not 0 < cost < float("inf"):
        raise fail(f"`--max-cost {cost:g}` is no cost.", hint="it is what a million tokens may cost, more than 0")
    if latency is None:
        return Target(None, cost)
    match = re.fullmatch(r"\s*(\d{1,9}(?:\.\d{1,9})?)\s*(us|ms|s)\s*", latency)
    if match is None or not float(match[1]):
        raise fail(f"`{option} {latency[:60]}` is no time.", hint=f"write `{option} 30ms`")
    return Target(float(match[1]) * UNITS[match[2]], cost)


def cost_of(record: Record) -> float | None:
    """What a million tokens cost at a point: dollars where the chip has a price, else chip-seconds."""
    return record.chip_s_per_million if record.dollars_per_million is None else record.dollars_per_million


def cost_unit(sweep: Sweep) -> str:
    """The unit of costs."""
    priced = sweep.hardware[0].dollars_per_chip_hour is not None
    return "dollars per million tokens" if priced else "chip-seconds per million tokens"


def frontier_of(
    sweep: Sweep, records: Sequence[Record], target: Target | None = None, links: Mapping[int, str] | None = None
) -> Frontier:
    """The points of a sweep as they are drawn, a series for each chip, phase, format and context; `links`: where the
    pages of plans are, by the numbers of their points."""
    spots = [replace(_spot(sweep, record), link=(links or {}).get(k)) for k, record in enumerate(records)]
    wanted = target or Target()
    return Frontier(tuple(spots), "a step", cost_unit(sweep), wanted.latency_s, wanted.cost)


def best_points(sweep: Sweep, records: Sequence[Record]) -> tuple[int, ...]:
    """The numbers of the records that no other of their series betters in both, series by series, quickest first."""
    return frontier_of(sweep, records).best


def answer(records: Sequence[Record], target: Target) -> Answer:
    """The point for a target; of equals the first."""
    found = [record for record in records if record.latency_s is not None]
    meeting = [record for record in found if target.met_by(record)]
    if meeting:
        quickest = target.latency_s is None
        return Answer(min(meeting, key=lambda r: r.latency_s if quickest else cost_of(r)), True)  # type: ignore[arg-type, return-value]
    return Answer(min(found, key=lambda record: _beyond(record, target), default=None), False)


def _beyond(record: Record, target: Target) -> float:
    """How many times what is wanted a point takes, by the worse of latency and cost."""
    latency_s, cost = record.latency_s or 0.0, cost_of(record) or 0.0
    return max(latency_s / (target.latency_s or latency_s or 1.0), cost / (target.cost or cost or 1.0))


def _spot(sweep: Sweep, record: Record) -> Spot:
    point = record.point
    series = [str(point.weights)]
    if len(sweep.phases) > 1:
        series.insert(0, point.phase)
    if len(sweep.hardware) > 1:
        series.insert(0, sweep.chip(point).chip)
    if len(sweep.caches) > 1:
        series.append(f"caches {point.caches or 'as they are'}")
    if len(sweep.contexts) > 1:
        series.append(f"context {point.context}")
    label = f"{record.slice or point.chips}, batch {point.batch}"
    cost = cost_of(record)
    return Spot(label, ", ".join(series), point.chips, point.batch, record.latency_s, cost, record.reason)
