"""A file of requests: comma-separated values, the length of a context and of its ending on each line.

The columns are COLUMNS, and perhaps `id`. Lines of one id are endings of one context;
without ids each line has a context of its own.
"""

from __future__ import annotations

import re
from pathlib import Path

from ...ir.diagnostics import Diagnostic, InputError, Source, Span, fail
from ...ir.record import record
from ...ir.text.read import read_source
from .csv_lines import MOST_FINDINGS, Row, csv_rows

COLUMNS = ("context", "ending")
ID = "id"
MOST_BYTES = 32 << 20
MOST_LINES = 500_000  # schedules of more take minutes
LONGEST = 2_000  # characters of a line
MOST_TOKENS = 1 << 20  # of a context or an ending


@record
class Lengths:
    """`contexts`: the lengths of the contexts in tokens, in the order in which they come, and `names`, their ids (empty
    without any). `endings`: of each request its context by number, the length of its ending, and its line."""

    contexts: tuple[int, ...]
    names: tuple[str, ...]
    endings: tuple[tuple[int, int, int], ...]


def read_lengths(file: Path) -> Lengths:
    """The requests of a file. Raises InputError with what is wrong in it, up to MOST_FINDINGS."""
    return parse_lengths(read_source(file, MOST_BYTES))


def parse_lengths(source: Source) -> Lengths:
    """The requests of a text. Raises InputError as `read_lengths` does."""
    if source.text.count("\n") > MOST_LINES:
        hint = "divide it; requests of similar length belong together"
        raise fail(f"The file has more than {MOST_LINES:,} lines.", hint=hint, source=source)
    for number, text in enumerate(source.text.split("\n"), start=1):
        if len(text) > LONGEST:
            raise fail(f"The line has more than {LONGEST:,} characters.", Span(number, 1), source=source)
    reader = _Reader()
    for row in csv_rows(source, COLUMNS, (ID,), reader.found):
        reader.read(row)
    if reader.found:
        raise InputError(reader.found[:MOST_FINDINGS])
    if not reader.endings:
        raise fail("The file has no rows.", hint="below the names of the columns each line is a request", source=source)
    return Lengths(tuple(reader.contexts), tuple(reader.numbers), tuple(reader.endings))


NUMBER = re.compile("[0-9]{1,19}", re.ASCII)


class _Reader:
    """Reads rows; what is wrong goes to `found`. `numbers`: of each id that of its context."""

    def __init__(self) -> None:
        self.found: list[Diagnostic] = []
        self.contexts: list[int] = []
        self.numbers: dict[str, int] = {}
        self.first_lines: list[int] = []
        self.endings: list[tuple[int, int, int]] = []

    def read(self, row: Row) -> None:
        """One more row."""
        context, ending = (_tokens(row, name) for name in COLUMNS)
        if context is None or ending is None:
            return
        number = self._context(context, row)
        if number is not None:
            self.endings.append((number, ending, row.span.line))

    def _context(self, length: int, row: Row) -> int | None:
        """The number of a row's context."""
        name = row[ID] if ID in row.cells else None
        if name is not None and not 0 < len(name) <= 80:
            row.complain(ID, "A row needs an id, of at most 80 characters.")
            return None
        number = len(self.contexts) if name is None else self.numbers.setdefault(name, len(self.contexts))
        if number == len(self.contexts):
            self.contexts.append(length)
            self.first_lines.append(row.span.line)
        elif self.contexts[number] != length:
            message = f"The context `{name}` has {length} tokens, and {self.contexts[number]} on line "
            row.complain("context", f"{message}{self.first_lines[number]}.", "an id stands for one context")
            return None
        return number


def _tokens(row: Row, name: str) -> int | None:
    if NUMBER.fullmatch(row[name]) and 1 <= int(row[name]) <= MOST_TOKENS:
        return int(row[name])
    row.complain(name, f"`{name}` must be a whole number of tokens from 1 to {MOST_TOKENS:,}, not `{row[name][:40]}`.")
    return None
