"""Running a sweep: its points over all cores, each kept as soon as it is solved."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ..measured.processes import completed
from .points import Point, Record, Sweep
from .results import ResultsFile
from .solve import solve


def run_sweep(sweep: Sweep, path: Path | None, jobs: int | None = None) -> tuple[Record, ...]:
    """The records of all points, in the sweep's order; those that the results file `path` has are not solved
    again, and it has all of them in the end.

    At most `jobs` processes run, as many as there are cores without it. Raises InputError where the file
    cannot be used or written to.
    """
    file = None if path is None else ResultsFile(path, sweep)
    records = {} if file is None else file.records
    left = [point for point in sweep.points if point not in records]
    for record in completed(partial(solve, sweep), _long_first(left), "planning", jobs, len(records)):
        if file is not None:
            file.add(record)
        records[record.point] = record
    if file is not None:
        file.finish()
    return tuple(records[point] for point in sweep.points)


def _long_first(points: Sequence[Point]) -> list[Point]:
    """Points that take long to solve before others, so that no process is left with one at the end: many
    chips have many slice shapes, and long contexts and large batches leave little memory to plan with."""
    return sorted(points, key=lambda point: (-point.chips, -point.batch * (point.context or 1)))
