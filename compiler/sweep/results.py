"""The results file of a sweep: JSON lines, a header that tells the sweep, then one line for each point.

A point is appended, and handed to the system, as soon as it is solved. So an interrupted sweep has lost
what was being solved, and no more: started again by the same command, it goes on from the points that are
there. A last line that was cut off is dropped. Points are solved in any order; when all are there, the file is
written anew in the sweep's order, so that it is the same however often it was interrupted. It holds no
times of day and no durations. One process at a time has it.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Mapping, Set
from pathlib import Path
from types import TracebackType

from ...ir.diagnostics import Diagnostic, InputError, Source, Span, fail, listed
from .lock import FileLock
from .points import Data, Point, Record, Sweep, record_of

MOST_BYTES = 1 << 30  # of a file that is read
ELSEWHERE = "name another file with `-o`; this one is left as it is"


class ResultsFile:
    """A results file on disk, locked until `close`, or the end of a `with`. `records`: what is in it.

    Raises InputError, and leaves the file as it is, where it is the file of another sweep, or no such file, or
    where another process has it.
    """

    def __init__(self, path: Path, sweep: Sweep):
        self.path, self.sweep = path, sweep
        self.records: dict[Point, Record] = {}
        self._ordered: list[Point] = []  # as they stand in the file
        try:
            self._file = path.resolve()  # what a link stands for, so that it stays one
        except (OSError, RuntimeError, ValueError) as error:  # of links that go round, and names that none can have
            raise fail(f"`{path}` cannot be read: {error}.") from None
        self._lock = FileLock(self._file)
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let others have the file."""
        self._lock.release()

    def __enter__(self) -> ResultsFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def add(self, record: Record) -> None:
        """Append a record. Raises InputError where the file cannot be written to; then it holds those before."""
        self._append(_line(record.data()))
        self.records[record.point] = record
        self._ordered.append(record.point)

    def finish(self) -> None:
        """Put the records in the sweep's order, once all of them are there."""
        points = [point for point in self.sweep.points if point in self.records]
        if self._ordered == points:
            return
        lines = [_line(self.sweep.header()), *(_line(self.records[point].data()) for point in points)]
        beside: Path | None = None
        try:
            mode = self._unchanged().st_mode
            name = f".{self._file.name}."
            with tempfile.NamedTemporaryFile(dir=self._file.parent, prefix=name, delete=False) as file:
                beside = Path(file.name)
                file.writelines(lines)
                os.fchmod(file.fileno(), mode)
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, self._file)
        except OSError as error:
            if beside is not None:
                beside.unlink(missing_ok=True)
            raise self._unwritable(error) from None
        self._ordered = points

    def _open(self) -> None:
        """Take in what the file holds, and drop what was cut off at its end."""
        header = _line(self.sweep.header())
        self._end = self._read(header)
        try:
            if self._file.exists():
                os.truncate(self._file, self._end)
        except OSError as error:
            raise self._unwritable(error) from None
        if self._end == 0:
            self._append(header)

    def _read(self, header: bytes) -> int:
        """Take in what the file holds; how many of its bytes are whole lines."""
        try:
            if not os.path.lexists(self.path):
                return 0
            if not self._file.is_file():
                raise fail(f"`{self.path}` is in the way, and no regular file.")
            if self._file.stat().st_size > MOST_BYTES:
                raise self._foreign()
            content = self._file.read_bytes()
        except OSError as error:
            raise fail(f"`{self.path}` cannot be read: {error.strerror}.") from None
        whole = content[: content.rfind(b"\n") + 1]
        if not whole:
            if not header.startswith(content):
                raise self._foreign()
            return 0
        first, *lines = whole.removesuffix(b"\n").split(b"\n")
        if first + b"\n" != header:
            raise self._other(first)
        wanted = set(self.sweep.points)
        for number, line in enumerate(lines, start=2):
            self._take(number, line, wanted)
        return len(whole)

    def _take(self, number: int, line: bytes, wanted: Set[Point]) -> None:
        """Take in a line. It must be, to the byte, what would be written of the record that it holds."""
        try:
            record = record_of(_parsed(line))
        except (ValueError, KeyError, TypeError, RecursionError):
            raise self._damaged(number, line, "is no point of a sweep") from None
        if _line(record.data()) != line + b"\n":
            raise self._damaged(number, line, "is no point of a sweep")
        if record.point not in wanted:
            raise self._damaged(number, line, "is of no point of this sweep")
        if record.point in self.records:
            raise self._damaged(number, line, "is of a point that an earlier line has")
        self.records[record.point] = record
        self._ordered.append(record.point)

    def _append(self, line: bytes) -> None:
        """Write a line at the end of the file, which nobody else may have written to."""
        try:
            with open(self._file, "ab", buffering=0) as file:
                if file.tell() != self._end:
                    raise self._changed()
                written = 0
                while written < len(line):
                    written += file.write(line[written:])
        except OSError as error:
            raise self._unwritable(error) from None
        self._end += len(line)

    def _unchanged(self) -> os.stat_result:
        """The state of the file, which nobody else may have written to."""
        found = self._file.stat()
        if found.st_size != self._end:
            raise self._changed()
        return found

    def _changed(self) -> InputError:
        hint = "the same command goes on from what it holds now"
        return fail(f"`{self.path}` was changed by something else while the sweep ran.", hint=hint)

    def _foreign(self) -> InputError:
        return fail(f"`{self.path}` exists already, and is no results file of a sweep.", hint=ELSEWHERE)

    def _other(self, first: bytes) -> InputError:
        """What is wrong with a header that is not this sweep's."""
        try:
            theirs = _parsed(first)
        except (ValueError, RecursionError):
            theirs = None
        if not isinstance(theirs, Mapping) or "escc_sweep" not in theirs:
            return self._foreign()
        ours = _parsed(_line(self.sweep.header()))
        differ = [name for name in ours if name not in theirs or _line(ours[name]) != _line(theirs[name])]
        what = listed(differ) or "how it is written"
        return fail(f"`{self.path}` holds another sweep: it differs in {what}.", hint=ELSEWHERE)

    def _damaged(self, number: int, line: bytes, what: str) -> InputError:
        source = Source(str(self.path), "\n" * (number - 1) + line.decode(errors="replace"))
        hint = "name another file with `-o`, or remove the line; the file is left as it is"
        return InputError([Diagnostic(f"Line {number} {what}.", Span(number, 1), hint, source)])

    def _unwritable(self, error: OSError) -> InputError:
        count = len(self.records)
        kept = f"{count} point{'' if count == 1 else 's'} of the sweep {'is' if count == 1 else 'are'} in it"
        hint = f"{kept}; the same command goes on from there" if count else None
        return fail(f"`{self.path}` cannot be written to: {error.strerror}.", hint=hint)


def _line(data: object) -> bytes:
    return (json.dumps(data, ensure_ascii=True, allow_nan=False) + "\n").encode()


def _parsed(line: bytes) -> Data:
    """What a line holds. Raises ValueError or RecursionError where that is no JSON; NaN and infinities are none."""
    return json.loads(line.decode("ascii"), parse_constant=_finite, parse_float=_finite)  # type: ignore[no-any-return]


def _finite(text: str) -> float:
    """A number of JSON; `1e400` is none that can be written again."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is no number")
    return number
