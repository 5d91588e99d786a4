"""Validation: what rows are predicted to take beside what was measured, and where that time goes, also as text."""

from __future__ import annotations

from collections.abc import Iterator
from math import fsum

from ...cost.estimate import estimate
from ...cost.hardware import Hardware
from ...cost.predict import Shares, shares
from ...ir.diagnostics import plural
from ...ir.record import record
from ..text.terminal import table
from .measurements import Measurement, Measurements
from .refusals import below_least
from .rows import Programs, Run, least_s, plan_steps, runs


@record
class Row:
    """A measurement and its prediction, in seconds. `least_s`: as of `rows.least_s`."""

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


@record
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
    goes = Shares()
    for step, count in run.steps:
        spmd = programs[step]
        goes += shares(spmd, estimate(spmd, hardware), hardware).times(count)
    return Row(run.measurement, goes, least_s(run.steps, programs, hardware))


# What a predicted time goes to, by headings: all of `Shares` but what hosts send, of which rows have nothing.
PARTS = {"compute": "compute_s", "HBM": "hbm_s", "network": "network_s", "latency": "latency_s", "launch": "launch_s"}
HEADER = ("row", "predicted ms", "measured ms", "error", *PARTS)


def validation_text(validation: Validation) -> str:
    """Each row with its error and what its predicted time goes to, and the summary."""
    where = f"{validation.measurements.text.name} on {validation.hardware.name}"
    lines = [f"Predicted and measured: {where}", *table([HEADER, *map(row_cells, validation.rows)], left=1), ""]
    return "\n".join([*lines, *_summary(validation)]) + "\n"


def left_out_text(measurements: Measurements) -> str | None:
    """How many rows are of other chips, None where there are none."""
    count = measurements.left_out
    if not count:
        return None
    return f"{count} row{' is' if count == 1 else 's are'} of other hardware than {measurements.chip}, and left out"


def validation_data(validation: Validation) -> dict[str, object]:
    """The validation for JSON: times in ms, errors and shares as parts of one."""
    return {
        "hardware": validation.hardware.name,
        "file": validation.measurements.text.name,
        "rows": [_row_data(row) for row in validation.rows],
        "left_out": validation.measurements.left_out,
        "mape": validation.mape,
        "worst": _row_data(validation.worst),
        "impossible": [row.measurement.id for row in validation.rows if row.impossible],
    }


def row_cells(row: Row) -> tuple[str, ...]:
    """A row as text, a cell for each heading of HEADER."""
    times = (f"{1e3 * row.predicted_s:,.1f}", f"{1e3 * row.measurement.seconds:,.1f}")
    return (row.measurement.id, *times, f"{row.error:+.1%}", *(f"{part:.0%}" for part in _parts(row).values()))


def _parts(row: Row) -> dict[str, float]:
    """What the predicted time goes to, as parts of one, by the headings of PARTS."""
    whole = row.predicted_s or 1.0
    return {name: getattr(row.shares, field) / whole for name, field in PARTS.items()}


def _row_data(row: Row) -> dict[str, object]:
    return {
        "id": row.measurement.id,
        "predicted_ms": 1e3 * row.predicted_s,
        "measured_ms": 1e3 * row.measurement.seconds,
        "error": row.error,
        "least_ms": 1e3 * row.least_s,
        "shares": {name.lower(): part for name, part in _parts(row).items()},
    }


def _summary(validation: Validation) -> Iterator[str]:
    worst = validation.worst
    yield f"  {plural(len(validation.rows), 'row')}, mean absolute error {validation.mape:.2%}"
    yield f"  worst {worst.measurement.id}, {worst.error:+.1%}"
    bad = [row for row in validation.rows if row.impossible]
    if not bad:
        yield "  no time, predicted or measured, is below what arithmetic or HBM alone take at the datasheet's peaks"
    for row in bad:
        yield f"  {row.measurement.id}: {' and '.join(row.impossible)} {below_least(row.least_s)}"
