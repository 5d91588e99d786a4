"""A validation as text for a terminal, as a table for the docs, and as data for JSON."""

from __future__ import annotations

from collections.abc import Iterator

from ..text.table import table
from .measurements import Measurements
from .validate import Row, Validation

HEADER = ("row", "predicted ms", "measured ms", "error", "compute", "HBM", "network", "latency")


def validation_text(validation: Validation) -> str:
    """Each row with its error and what its predicted time goes to, and the summary."""
    where = f"{validation.measurements.text.name} on {validation.hardware.name}"
    lines = [f"Predicted and measured: {where}", *table([HEADER, *map(_cells, validation.rows)], left=1), ""]
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


def _cells(row: Row) -> tuple[str, ...]:
    times = (f"{1e3 * row.predicted_s:,.1f}", f"{1e3 * row.measurement.seconds:,.1f}")
    return (row.measurement.id, *times, f"{row.error:+.1%}", *(f"{part:.0%}" for part in _parts(row).values()))


def _parts(row: Row) -> dict[str, float]:
    """What the predicted time goes to, as parts of one."""
    goes, whole = row.shares, row.predicted_s or 1.0
    parts = {"compute": goes.compute_s, "hbm": goes.hbm_s, "network": goes.network_s, "latency": goes.latency_s}
    return {name: seconds / whole for name, seconds in parts.items()}


def _row_data(row: Row) -> dict[str, object]:
    return {
        "id": row.measurement.id,
        "predicted_ms": 1e3 * row.predicted_s,
        "measured_ms": 1e3 * row.measurement.seconds,
        "error": row.error,
        "least_ms": 1e3 * row.least_s,
        "shares": _parts(row),
    }


def _summary(validation: Validation) -> Iterator[str]:
    worst = validation.worst
    count = len(validation.rows)
    yield f"  {count} row{'' if count == 1 else 's'}, mean absolute error {validation.mape:.2%}"
    yield f"  worst {worst.measurement.id}, {worst.error:+.1%}"
    bad = [row for row in validation.rows if row.impossible]
    if not bad:
        yield "  no time, predicted or measured, is below what arithmetic or HBM alone take at the datasheet's peaks"
    for row in bad:
        below = f"{' and '.join(row.impossible)} below {1e3 * row.least_s:,.1f} ms"
        yield f"  {row.measurement.id}: {below}, the least at the datasheet's peaks"
