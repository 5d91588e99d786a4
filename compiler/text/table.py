"""Rows of text in columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def table(rows: Sequence[Sequence[str]], left: int) -> Iterator[str]:
    """The lines of a table, two spaces in front and between; the first `left` columns are flush left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        yield ("  " + "  ".join(cells)).rstrip()
