"""What is wrong with an input, said so that the reader can mend it.

Every error that a user can cause is a `Diagnostic`. The checks of one stage collect theirs in a
list, and the public entry raises them together as one `InputError`.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterable

from .inert import one_each, visible
from .record import record


@record
class Source:
    """A text and the name under which messages show it."""

    name: str
    text: str

    def line(self, number: int) -> str:
        """Line `number` (from 1), without its end; empty when there is no such line."""
        return self._lines[number - 1] if 0 < number <= len(self._lines) else ""

    @functools.cached_property
    def _lines(self) -> list[str]:  # once, because a long text may have many findings
        return self.text.split("\n")  # as the parser counts them


@record
class Span:
    """Where in a text: line and column from 1, and how many characters."""

    line: int
    column: int
    length: int = 1


@record
class Diagnostic:
    """One finding. `message` is one sentence that stands alone; `hint` says what would mend it."""

    message: str
    span: Span | None = None
    hint: str | None = None
    source: Source | None = None
    severity: str = "error"

    def render(self) -> str:
        """The finding as text: place, message, source line, caret, hint. Nothing in it moves a cursor or turns text."""
        place = ""
        if self.source is not None:
            place = f"{visible(self.source.name)}:"
            if self.span is not None:
                place += f"{self.span.line}:{self.span.column}:"
            place += " "
        lines = [f"{place}{self.severity}: {visible(self.message, LINE_ENDS)}"]
        if self.source is not None and self.span is not None:
            lines += _excerpt(self.source.line(self.span.line), self.span)
        if self.hint:
            lines.append(f"  hint: {visible(self.hint, LINE_ENDS)}")
        return "\n".join(lines)


class EsccError(Exception):
    """Whatever escc raises for a reason that it knows."""


class InternalError(EsccError):
    """The compiler contradicts itself: a bug, whatever the input was."""


class InputError(EsccError):
    """The input is wrong. Carries every finding of the stage that failed, in source order."""

    def __init__(self, diagnostics: Iterable[Diagnostic]):
        self.diagnostics = tuple(diagnostics)
        super().__init__("\n".join(d.render() for d in self.diagnostics))


def fail(message: str, span: Span | None = None, hint: str | None = None, source: Source | None = None) -> InputError:
    """An `InputError` of one finding, to be raised by the caller."""
    return InputError([Diagnostic(message, span, hint, source)])


def listed(names: Iterable[str]) -> str:
    """Names as a sentence has them."""
    return ", ".join(f"`{name}`" for name in names)


def plural(number: int, noun: str) -> str:
    """A number and what it counts: `1 value`, `2 values`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def size_text(size: float) -> str:
    """Bytes with the unit that fits."""
    unit, scale = next(((u, s) for u, s in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)) if size >= s), ("bytes", 1.0))
    return f"{size / scale:.4g} {unit}"


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """A hint that names the closest known name, or None when nothing is close."""
    close = difflib.get_close_matches(name[:64], list(known)[:2000], n=1)
    return f"did you mean `{close[0]}`?" if close else None


LINE_ENDS = "\n"  # of messages of several lines
WIDTH = 100  # columns of a source line shown; longer lines are cut around the caret


def _excerpt(line: str, span: Span) -> list[str]:
    column, text = span.column - 1, line
    if len(text) > WIDTH:
        start = max(0, min(column - WIDTH // 2, len(text) - WIDTH))
        text, column = text[start : start + WIDTH], column - start
    text = one_each(text)
    length = max(1, min(span.length, len(text) - column))
    number = f"{span.line:>5} | "
    return [number + text, " " * (len(number) - 2) + "| " + " " * column + "^" * length]
