"""Comma-separated values as a person wrote them: each value with its place, each broken line with what is wrong.

The first line names the columns, in any order. Columns that nobody asks for are left alone; empty lines, and those that
begin with `#`, are no rows.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence

from ...ir.diagnostics import Diagnostic, InputError, Source, Span, did_you_mean, fail
from ...ir.record import record

MOST_FINDINGS = 50  # said at once


@record
class Cell:
    """One value, and where it stands."""

    text: str
    span: Span


@record
class Line:
    """`broken`: why it could not be cut into cells."""

    number: int
    cells: tuple[Cell, ...]
    broken: str | None = None

    @property
    def span(self) -> Span:
        """Where it begins."""
        return Span(self.number, 1)


@record
class Row:
    """A line by its columns; what is wrong is added to `found`."""

    cells: Mapping[str, Cell]
    span: Span
    source: Source
    found: list[Diagnostic]

    def __getitem__(self, name: str) -> str:
        return self.cells[name].text

    def complain(self, name: str | None, message: str, hint: str | None = None) -> None:
        """Add what is wrong with the value of a column, or with the whole."""
        span = self.span if name is None else self.cells[name].span
        self.found.append(Diagnostic(message, span, hint, self.source))


def csv_rows(source: Source, columns: Sequence[str], optional: Sequence[str], found: list[Diagnostic]) -> Iterator[Row]:
    """Each row with its values by the names of their columns: all of `columns`, and perhaps some of `optional`.

    Lines that are no rows are said in `found`; rows end where it has MOST_FINDINGS. Raises InputError with what is
    wrong with the names of the columns.
    """
    lines = csv_lines(source)
    header = next(lines, None)
    wanted = ", ".join(columns) + (f", and perhaps {', '.join(optional)}" if optional else "")
    if header is None:
        raise fail("The file is empty.", hint=f"its first line names the columns: {wanted}", source=source)
    names_text = source.line(header.number).rstrip()
    other = OTHER.search(names_text)
    if other and "," not in names_text:
        hint = f"between columns stand commas: {wanted}"
        said = "a tab" if other[0] == "\t" else f"`{other[0]}`"
        place = Span(header.number, other.start() + 1)
        raise fail(f"The columns are separated by {said}, not by commas.", place, hint, source)
    if header.broken:
        raise fail(f"The line is no row: {header.broken}.", header.span, None, source)
    names = [cell.text for cell in header.cells]
    wrong = [
        Diagnostic(f"The column `{cell.text}` stands twice.", cell.span, None, source)
        for n, cell in enumerate(header.cells)
        if cell.text in (*columns, *optional) and cell.text in names[:n]
    ]
    for name in columns:
        if name not in names:
            hint = did_you_mean(name, names) or f"the first line names the columns: {wanted}"
            wrong.append(Diagnostic(f"The column `{name}` is missing.", header.span, hint, source))
    if wrong:
        raise InputError(wrong[:MOST_FINDINGS])
    for line in lines:
        if line.broken or len(line.cells) != len(names):
            what = line.broken or f"it has {len(line.cells)} values, and there are {len(names)} columns"
            found.append(Diagnostic(f"The line is no row: {what}.", line.span, None, source))
        else:
            yield Row(dict(zip(names, line.cells, strict=True)), line.span, source, found)
        if len(found) >= MOST_FINDINGS:
            return


def csv_lines(source: Source) -> Iterator[Line]:
    """The lines of a text of comma-separated values; empty ones and comments, `# ...`, are left out."""
    for number, text in enumerate(source.text.split("\n"), start=1):
        text = text.rstrip("\r")
        if not text.strip() or text.startswith("#"):
            continue
        try:
            [texts] = csv.reader([text], strict=True)
        except csv.Error as error:
            yield Line(number, (), str(error))
            continue
        starts, at = [], 0
        for _ in texts:
            starts.append(at)
            cell = CELL.match(text, at)
            at = (cell.end() if cell else at) + 1
        yield Line(
            number,
            tuple(
                Cell(cell.strip(), Span(number, start + 1, max(1, len(cell))))
                for cell, start in zip(texts, starts, strict=True)
            ),
        )


OTHER = re.compile(r"(?<=\S)[;\t|]")  # what other programs write between columns
CELL = re.compile(r'"(?:[^"]|"")*"|[^,]*')
