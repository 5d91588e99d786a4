"""Comma-separated values as a person wrote them: each value with its place, each broken line with what is wrong."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass

from ...ir.diagnostics import Source, Span


@dataclass(frozen=True)
class Cell:
    """One value, and where it stands."""

    text: str
    span: Span


@dataclass(frozen=True)
class Line:
    """`broken`: why it could not be cut into cells."""

    number: int
    cells: tuple[Cell, ...]
    broken: str | None = None

    @property
    def span(self) -> Span:
        """Where it begins."""
        return Span(self.number, 1)


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


CELL = re.compile(r'"(?:[^"]|"")*"|[^,]*')
