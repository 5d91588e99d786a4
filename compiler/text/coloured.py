"""Text on a terminal in colours, which change no character and break no line."""

from __future__ import annotations

from typing import TextIO

from rich.console import Console
from rich.highlighter import RegexHighlighter
from rich.theme import Theme

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


class _Report(RegexHighlighter):
    base_style = "escc."
    highlights = (r"(?m)^(?P<heading>[A-Z0-9][^\n]*)$", r"(?m)(?P<comment>#.*)$")


class _Findings(RegexHighlighter):
    base_style = "escc."
    highlights = (
        r"(?m)^[^|\n]*?(?P<error>error:)",
        r"(?m)^[^|\n]*?(?P<warning>warning:)",
        r"(?m)^ +(?P<hint>hint:)",
        r"(?m)^ +\| +(?P<caret>\^+)$",
    )


def write(stream: TextIO, text: str, findings: bool) -> None:
    """A report, or findings, on the terminal that `stream` is."""
    highlighter = _Findings() if findings else _Report()
    console = Console(file=stream, theme=STYLES, soft_wrap=True, markup=False, emoji=False, highlighter=highlighter)
    console.print(text, end="")
