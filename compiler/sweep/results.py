"""The results file of a sweep: JSON lines, a header that tells the sweep, then one line for each point.

A point is appended, and handed to the system, as soon as it is solved. So an interrupted sweep has lost
what was being solved, and no more: started again by the same command, it goes on from the points that are
there. A last line that was cut off is dropped. Points are solved in any order; when all are there, the file is
written anew in the sweep's order, so that it is the same however often it was interrupted. It holds no
times of day and no durations.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from ...ir.diagnostics import Diagnostic, InputError, Source, Span, fail
from .points import Data, Point, Record, Sweep, record_of

MOST_BYTES = 1 << 30  # of a file that is read


class ResultsFile:
    """A results file on disk. `records`: what is in it.

    Raises InputError, and leaves the file as it is, where it is the file of another sweep, or no such file.
    """

    def __init__(self, path: Path, sweep: Sweep):
        self.path, self.sweep = path, sweep
        self.records: dict[Point, Record] = {}
        self._ordered: list[Point] = []  # as they stand in the file
        header = _line(sweep.header())
        kept = self._read(header)
        if kept == 0:
            self._write_at(0, header)
        self._end = max(kept, len(header))

    def add(self, record: Record) -> None:
        """Append a record. Raises InputError where the file cannot be written to; then it holds those before."""
        line = _line(record.data())
        self._write_at(self._end, line)
        self._end += len(line)
        self.records[record.point] = record
        self._ordered.append(record.point)

    def finish(self) -> None:
        """Put the records in the sweep's order, once all of them are there."""
        points = [point for point in self.sweep.points if point in self.records]
        if self._ordered == points:
            return
        lines = [_line(self.sweep.header()), *(_line(self.records[point].data()) for point in points)]
        beside = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            beside.write_bytes(b"".join(lines))
            os.replace(beside, self.path)
        except OSError as error:
            beside.unlink(missing_ok=True)
            raise self._unwritable(error) from None
        self._ordered = points

    def _read(self, header: bytes) -> int:
        """Take in what the file holds; how many of its bytes are whole lines."""
        try:
            if not os.path.lexists(self.path):
                return 0
            if not self.path.is_file():
                raise fail(f"`{self.path}` is in the way, and no regular file.")
            if self.path.stat().st_size > MOST_BYTES:
                raise self._foreign()
            content = self.path.read_bytes()
        except OSError as error:
            raise fail(f"`{self.path}` cannot be read: {error.strerror}.") from None
        whole = content[: content.rfind(b"\n") + 1]
        if not whole:
            if not header.startswith(content):
                raise self._foreign()
            return 0
        lines = whole.splitlines(keepends=True)
        if lines[0] != header:
            raise self._other(lines[0])
        wanted = set(self.sweep.points)
        for number, line in enumerate(lines[1:], start=2):
            record = self._record(number, line)
            if record.point not in wanted:
                raise self._damaged(number, line, "is of no point of this sweep")
            self.records[record.point] = record
            self._ordered.append(record.point)
        return len(whole)

    def _record(self, number: int, line: bytes) -> Record:
        try:
            return record_of(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise self._damaged(number, line, "is no point of a sweep") from None

    def _write_at(self, offset: int, line: bytes) -> None:
        """Write a line at the end of the whole lines, over what was cut off there."""
        try:
            with open(self.path, "r+b" if offset else "wb", buffering=0) as file:
                file.truncate(offset)
                file.seek(offset)
                written = 0
                while written < len(line):
                    written += file.write(line[written:])
        except OSError as error:
            raise self._unwritable(error) from None

    def _foreign(self) -> InputError:
        hint = "name another file with `-o`; this one is left as it is"
        return fail(f"`{self.path}` exists already, and is no results file of a sweep.", hint=hint)

    def _other(self, first: bytes) -> InputError:
        """What is wrong with a header that is not this sweep's."""
        try:
            theirs = json.loads(first)
        except ValueError:
            theirs = None
        if not isinstance(theirs, Mapping) or "escc_sweep" not in theirs:
            return self._foreign()
        ours = json.loads(_line(self.sweep.header()))
        differ = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
        what = ", ".join(f"`{name}`" for name in differ)
        hint = "name another file with `-o`; this one is left as it is"
        return fail(f"`{self.path}` holds another sweep: it differs in {what}.", hint=hint)

    def _damaged(self, number: int, line: bytes, what: str) -> InputError:
        source = Source(str(self.path), "\n" * (number - 1) + line.decode(errors="replace").rstrip("\n"))
        hint = "name another file with `-o`, or remove the line; the file is left as it is"
        return InputError([Diagnostic(f"Line {number} {what}.", Span(number, 1), hint, source)])

    def _unwritable(self, error: OSError) -> InputError:
        count = len(self.records)
        kept = f"{count} point{'' if count == 1 else 's'} of the sweep {'is' if count == 1 else 'are'} in it"
        hint = f"{kept}; the same command goes on from there" if count else None
        return fail(f"`{self.path}` cannot be written to: {error.strerror}.", hint=hint)


def _line(data: Data) -> bytes:
    return (json.dumps(data, ensure_ascii=True, allow_nan=False) + "\n").encode()
