"""What the command line says: tables, figures with units, plain into files and pipes, coloured on a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TextIO

from ...ir.diagnostics import Diagnostic, EsccError
from ...ir.inert import visible
from .late import late

LAYOUT = "\n\t"  # what a text has besides characters that show themselves


class OutputError(EsccError):
    """Standard output takes no more."""


def say(text: str) -> None:
    """Text on standard output. Raises OutputError when it cannot be written there."""
    if sys.stdout is None:
        raise OutputError("it is closed")
    try:
        _write(sys.stdout, text)
        sys.stdout.flush()
    except OSError as error:
        forget_output()
        raise OutputError(error.strerror) from None


def forget_output() -> None:
    """Let what could not be written to standard output go: Python would try once more, and complain, when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def complain(diagnostics: Iterable[Diagnostic]) -> None:
    """Findings on standard error."""
    for diagnostic in diagnostics:
        note(diagnostic.render())


def note(text: str) -> None:
    """A line or more on standard error; lost where that is closed."""
    if sys.stderr is None:
        return
    try:
        _write(sys.stderr, text + "\n", findings=True)
        sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def _write(stream: TextIO, text: str, findings: bool = False) -> None:
    """Text, made inert; on a terminal with colours."""
    text = visible(text, LAYOUT)
    if stream.isatty():
        late("compiler.text.coloured").write(stream, text, findings)
    else:
        stream.write(text)


def table(rows: Sequence[Sequence[str]], left: int) -> Iterator[str]:
    """The lines of a table, two spaces in front and between; the first `left` columns are flush left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        yield ("  " + "  ".join(cells)).rstrip()


def bound_text(seconds: float) -> str:
    """A bound; where layouts were left out, such as those out of mesh order, none is known of these."""
    return time_text(seconds, 6) if seconds else "none is known"


def gap_text(gap: float, among: str = "") -> str:
    """How far the optimum `among` some plans may lie below what was found, by the gap between that and its bound."""
    return f"the optimum{among} may be up to {share_text(gap)} lower" if gap < 1 else f"no bound{among} is known"


def share_text(gap: float) -> str:
    """A gap that is open, which never reads as none."""
    return f"{max(gap, 1e-4):.2%}"


def time_text(seconds: float, digits: int = 4) -> str:
    """Seconds with the unit that fits."""
    unit, scale = next(((u, s) for u, s in (("s", 1.0), ("ms", 1e-3)) if seconds >= s), ("us", 1e-6))
    return f"{_significant(seconds / scale, digits)} {unit}"


def count_text(number: float) -> str:
    """A count or a price, in three digits, with commas and whole from 100 on; `0.0123`, `1.23`, `1,234`."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def _significant(number: float, digits: int) -> str:
    """A number below 1000, to so many digits, without an exponent."""
    whole = len(str(int(number)))
    return f"{number:.{max(0, digits - whole)}f}"
