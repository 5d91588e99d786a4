"""The points of a sweep by latency and cost, and which of them none betters in both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Spot:
    """A configuration of a sweep, and what it takes.

    `label`: what it is called where a person reads it; `series`: the line that it belongs to, such as a
    weight format. `latency_s`: of a step or of a token; `cost`: in the frontier's unit. Where there is
    no plan both are None and `reason` says why.
    """

    label: str
    series: str
    chips: int
    batch: int
    latency_s: float | None
    cost: float | None
    reason: str | None = None


@dataclass(frozen=True)
class Frontier:
    """The points of a sweep. `latency_of`: what the latency is of (`a token`); `cost_unit`: in what the
    cost is (`chip-seconds per million tokens`)."""

    points: tuple[Spot, ...]
    latency_of: str
    cost_unit: str


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
