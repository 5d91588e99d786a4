"""Validation: what rows are predicted to take beside what was measured, and where that time goes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import fsum

from ...cost.estimate import estimate
from ...cost.hardware import Calibrated, Hardware
from ...cost.shares import Shares, shares
from .measurements import Measurement, Measurements
from .rows import Programs, Run, plan_steps, runs


@dataclass(frozen=True)
class Row:
    """A measurement and its prediction, in seconds. `least_s`: what arithmetic alone, or HBM traffic alone,
    takes at the datasheet's peaks, whichever is longer; no time can be below it."""

    measurement: Measurement
    shares: Shares
    least_s: float

    @property
    def predicted_s(self) -> float:
        """All that is predicted."""
        return self.shares.total_s

    @property
    def error(self) -> float:
        """(predicted - measured) / measured."""
        return self.predicted_s / self.measurement.seconds - 1

    @property
    def impossible(self) -> tuple[str, ...]:
        """Which of the two times, if any, are below what the datasheet allows."""
        times = {"predicted": self.predicted_s, "measured": self.measurement.seconds}
        return tuple(name for name, seconds in times.items() if seconds < self.least_s)


@dataclass(frozen=True)
class Validation:
    """The rows of a file of measurements, predicted on `hardware`."""

    measurements: Measurements
    hardware: Hardware
    rows: tuple[Row, ...]

    @property
    def mape(self) -> float:
        """The mean of the absolute errors."""
        return fsum(abs(row.error) for row in self.rows) / len(self.rows)

    @property
    def worst(self) -> Row:
        """The row with the largest absolute error."""
        return max(self.rows, key=lambda row: abs(row.error))


def validate(measurements: Measurements, hardware: Hardware) -> Validation:
    """Predict every row. Raises InputError when one cannot be planned."""
    all_runs = runs(measurements, hardware)
    programs = plan_steps(all_runs, hardware)
    return Validation(measurements, hardware, tuple(_row(run, programs, hardware) for run in all_runs))


def _row(run: Run, programs: Programs, hardware: Hardware) -> Row:
    peaks = replace(hardware, calibrated=Calibrated())
    goes, compute_s, memory_s = Shares(0.0, 0.0, 0.0, 0.0), 0.0, 0.0
    for step, count in run.steps:
        spmd = programs[step]
        goes += shares(spmd, estimate(spmd, hardware), hardware).times(count)
        least = estimate(spmd, peaks).totals()
        compute_s, memory_s = compute_s + count * least.compute_s, memory_s + count * least.memory_s
    return Row(run.measurement, goes, max(compute_s, memory_s))
