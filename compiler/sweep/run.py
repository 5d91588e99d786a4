"""Running a sweep: its points over all cores, each kept as soon as it is solved."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from ..text.processes import completed
from .points import Point, Record, Sweep
from .results import ResultsFile
from .solve import solve


def run_sweep(sweep: Sweep, path: Path | None, jobs: int | None = None) -> tuple[Record, ...]:
    """The records of all points, in the sweep's order; those that the results file `path` has are not solved
    again, and it has all of them in the end.

    At most `jobs` processes run, as many as there are cores without it. Raises InputError where the file
    cannot be used or written to, or where another process has it.
    """
    if path is None:
        records = {record.point: record for record in _solved(sweep, (), jobs)}
    else:
        with ResultsFile(path, sweep) as file:
            for record in _solved(sweep, tuple(file.records), jobs):
                file.add(record)
            file.finish()
            records = file.records
    return tuple(records[point] for point in sweep.points)


def _solved(sweep: Sweep, known: Sequence[Point], jobs: int | None) -> Iterator[Record]:
    """The points of a sweep that are not known yet, as they are solved."""
    done = set(known)
    left = [point for point in sweep.points if point not in done]
    return completed(partial(solve, sweep), _long_first(left), "planning", jobs, len(known))


def _long_first(points: Sequence[Point]) -> list[Point]:
    """Points that take long to solve before others, so that no process is left with one at the end: many
    chips have many slice shapes, and long contexts and large batches leave little memory to plan with."""
    return sorted(points, key=lambda point: (-point.chips, -point.batch * (point.context or 1)))
