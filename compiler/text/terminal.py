"""What the command line says: plain text into files and pipes, with colours on a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import TextIO

from rich.console import Console
from rich.highlighter import RegexHighlighter
from rich.theme import Theme

from ...ir.diagnostics import Diagnostic, EsccError
from ...ir.inert import visible

STYLES = Theme(
    {
        "escc.heading": "bold",
        "escc.comment": "dim",
        "escc.error": "bold red",
        "escc.warning": "bold yellow",
        "escc.hint": "cyan",
        "escc.caret": "bold red",
    }
)


LAYOUT = "\n\t"  # what a text has besides characters that show themselves


class OutputError(EsccError):
    """Standard output takes no more."""


class _Highlighter(RegexHighlighter):
    base_style = "escc."
    highlights = (
        r"(?m)^(?P<heading>[A-Z0-9][^\n]*)$",
        r"(?m)(?P<comment>#.*)$",
    )


class _Findings(RegexHighlighter):
    base_style = "escc."
    highlights = (
        r"(?m)^[^|\n]*?(?P<error>error:)",
        r"(?m)^[^|\n]*?(?P<warning>warning:)",
        r"(?m)^ +(?P<hint>hint:)",
        r"(?m)^ +\| +(?P<caret>\^+)$",
    )


def say(text: str) -> None:
    """Text on standard output. Raises OutputError when it cannot be written there."""
    if sys.stdout is None:
        raise OutputError("it is closed")
    try:
        _write(sys.stdout, text, _Highlighter())
        sys.stdout.flush()
    except OSError as error:
        # Python would try once more, and complain, when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise OutputError(error.strerror) from None


def complain(diagnostics: Iterable[Diagnostic]) -> None:
    """Findings on standard error."""
    for diagnostic in diagnostics:
        note(diagnostic.render())


def note(text: str) -> None:
    """A line or more on standard error; lost where that is closed."""
    if sys.stderr is None:
        return
    try:
        _write(sys.stderr, text + "\n", _Findings())
        sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def _write(stream: TextIO, text: str, highlighter: RegexHighlighter) -> None:
    """Text, made inert; on a terminal with colours, which change no character and break no line."""
    text = visible(text, LAYOUT)
    if not stream.isatty():
        stream.write(text)
        return
    console = Console(file=stream, theme=STYLES, soft_wrap=True, markup=False, emoji=False, highlighter=highlighter)
    console.print(text, end="")
