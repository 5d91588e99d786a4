"""A file of requests: comma-separated values, the length of a context and of its ending on each line.

The first line names the columns, in any order: COLUMNS, and perhaps `id`. Lines of one id are endings of one context;
without ids each line has a context of its own. Other columns are left alone; empty lines, and those that begin with
`#`, are no rows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...ir.diagnostics import Diagnostic, InputError, Source, Span, did_you_mean, fail
from ...ir.text.read import read_source
from .csv_lines import Cell, Line, csv_lines

COLUMNS = ("context", "ending")
ID = "id"
MOST_BYTES = 32 << 20
MOST_LINES = 500_000  # schedules of more take minutes
LONGEST = 2_000  # characters of a line
MOST_TOKENS = 1 << 20  # of a context or an ending
MOST_FINDINGS = 50  # said at once


@dataclass(frozen=True)
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
    lines = csv_lines(source)
    header = next(lines, None)
    columns = ", ".join(COLUMNS)
    if header is None:
        raise fail(
            "The file is empty.", hint=f"its first line names the columns: {columns}, and perhaps {ID}", source=source
        )
    names = _columns(header, source)
    reader = _Reader(source, [names.index(name) for name in COLUMNS], names.index(ID) if ID in names else None)
    for line in lines:
        reader.read(line, len(names))
        if len(reader.found) >= MOST_FINDINGS:
            break
    if reader.found:
        raise InputError(reader.found[:MOST_FINDINGS])
    if not reader.endings:
        raise fail("The file has no rows.", hint="below the names of the columns each line is a request", source=source)
    return Lengths(tuple(reader.contexts), tuple(reader.numbers), tuple(reader.endings))


def _columns(header: Line, source: Source) -> list[str]:
    """The names of the columns. Raises InputError where some are missing, or stand twice."""
    if header.broken:
        raise fail(f"The line is not comma-separated values: {header.broken}.", header.span, None, source)
    names = [cell.text for cell in header.cells]
    found = []
    for n, cell in enumerate(header.cells):
        if cell.text in (*COLUMNS, ID) and cell.text in names[:n]:
            found.append(Diagnostic(f"The column `{cell.text}` stands twice.", cell.span, None, source))
    for name in COLUMNS:
        if name not in names:
            hint = did_you_mean(name, names) or f"the first line names the columns: {', '.join(COLUMNS)}"
            found.append(Diagnostic(f"The column `{name}` is missing.", header.span, hint, source))
    if found:
        raise InputError(found)
    return names


NUMBER = re.compile("[0-9]{1,19}", re.ASCII)


class _Reader:
    """Reads rows; what is wrong goes to `found`. `numbers`: of each id that of its context."""

    def __init__(self, source: Source, columns: Sequence[int], named: int | None) -> None:
        self.source, self.columns, self.named = source, columns, named
        self.found: list[Diagnostic] = []
        self.contexts: list[int] = []
        self.numbers: dict[str, int] = {}
        self.first_lines: list[int] = []
        self.endings: list[tuple[int, int, int]] = []

    def read(self, line: Line, count: int) -> None:
        """One more line, of so many values."""
        if line.broken or len(line.cells) != count:
            what = line.broken or f"it has {len(line.cells)} values, and there are {count} columns"
            self._complain(f"The line is no row: {what}.", line.cells[0] if line.cells else None, line)
            return
        cells = [line.cells[n] for n in self.columns]
        context, ending = (self._tokens(name, cell, line) for name, cell in zip(COLUMNS, cells, strict=True))
        if context is None or ending is None:
            return
        number = self._context(context, cells[0], None if self.named is None else line.cells[self.named], line)
        if number is not None:
            self.endings.append((number, ending, line.number))

    def _tokens(self, name: str, cell: Cell, line: Line) -> int | None:
        if NUMBER.fullmatch(cell.text) and 1 <= int(cell.text) <= MOST_TOKENS:
            return int(cell.text)
        wanted = f"a whole number of tokens from 1 to {MOST_TOKENS:,}"
        self._complain(f"`{name}` must be {wanted}, not `{cell.text[:40]}`.", cell, line)
        return None

    def _context(self, length: int, cell: Cell, name: Cell | None, line: Line) -> int | None:
        """The number of a row's context."""
        if name is not None and not 0 < len(name.text) <= 80:
            self._complain("A row needs an id, of at most 80 characters.", name, line)
            return None
        number = len(self.contexts) if name is None else self.numbers.setdefault(name.text, len(self.contexts))
        if number == len(self.contexts):
            self.contexts.append(length)
            self.first_lines.append(line.number)
        elif self.contexts[number] != length and name is not None:
            message = f"The context `{name.text}` has {length} tokens, and {self.contexts[number]} on line "
            self._complain(f"{message}{self.first_lines[number]}.", cell, line, "an id stands for one context")
            return None
        return number

    def _complain(self, message: str, cell: Cell | None, line: Line, hint: str | None = None) -> None:
        self.found.append(Diagnostic(message, line.span if cell is None else cell.span, hint, self.source))
