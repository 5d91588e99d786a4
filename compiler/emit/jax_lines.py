"""Lines of an emitted Python function, with comments in one column, and what is in scope at one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ...ir.inert import comment
from ...ir.spmd import Move
from .jax_text import identifier

WIDTH = 120  # columns
NOTES = 80  # the column at which comments start, where the code is shorter


@dataclass
class Lines:
    """Lines in the making, as code and the comment beside it; `depth` counts indents. Without `noted`, no comments."""

    noted: bool
    depth: int = 1
    written: list[tuple[str, str]] = field(default_factory=list)

    def comment(self, text: str) -> None:
        """A line that is a comment."""
        if self.noted:
            self.written.append(("    " * self.depth + comment(text), ""))

    def blank(self) -> None:
        """An empty line."""
        self.written.append(("", ""))

    def line(self, code: str, note: str = "") -> None:
        """A line of code: `target = expression`, `return expression`, or short. Cut where it is too long."""
        indent, note = "    " * self.depth, note if self.noted else ""
        if len(indent) + len(code) <= WIDTH:
            self.written.append((indent + code, note))
            return
        if note:
            self.comment(note)
        head, _, text = code.partition("return " if code.startswith("return ") else " = ")
        head = f"{head} = (" if head else "return ("
        inner = _wrapped(text, WIDTH - len(indent) - 4)
        self.written += [(f"{indent}{part}", "") for part in (head, *(f"    {part}" for part in inner), ")")]

    def definition(self, name: str, arguments: Sequence[str]) -> None:
        """The head of a function, its arguments on lines of their own where it is too long."""
        indent, listed = "    " * self.depth, ", ".join(arguments)
        lines = [f"def {name}({listed}):"]
        if len(indent) + len(lines[0]) > WIDTH:
            lines = [f"def {name}(", *(f"    {part}" for part in _wrapped(listed, WIDTH - len(indent) - 4)), "):"]
        self.written += [(indent + line, "") for line in lines]

    def call(self, head: str, arguments: Sequence[tuple[str, str]]) -> None:
        """The call `head(arguments)`, each argument on a line of its own, with the comment beside it."""
        indent = "    " * self.depth
        self.written.append((f"{indent}{head}(", ""))
        for argument, note in arguments:
            first, *more = _wrapped(f"{argument},", WIDTH - len(indent) - 4)
            self.written.append((f"{indent}    {first}", note if self.noted else ""))
            self.written += [(f"{indent}    {part}", "") for part in more]
        self.written.append((f"{indent})", ""))

    def text(self) -> Iterator[str]:
        """The lines, with their comments in one column, or above where there is no room beside."""
        for code, note in self.written:
            if not note:
                yield code
            elif len(line := f"{code.ljust(NOTES)}  {comment(note)}") <= WIDTH:
                yield line
            else:
                yield code[: len(code) - len(code.lstrip())] + comment(note)
                yield code


def _wrapped(text: str, width: int) -> list[str]:
    """Lines of an expression in parentheses, cut at spaces, operators first."""
    lines = [""]
    for word in re.findall(r"(?:(?:[-+*/]|<=|==|!=) )?\S+", text):
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append("")
        lines[-1] += (" " if lines[-1] else "") + word
    return lines


@dataclass
class Scope:
    """One Python function: the text of each value that it can read, and the identifiers in use.

    `stacked`: the text of each cache, whole. `index`: the variables of the repeats around it; `place`: that of the one
    which streams, in what a chip holds of its caches.
    `weights`: what holds the parameters of the repeats in it. `routings`: what says which rows stand for what, by mask
    and by how it lies; `comes`: the collectives that brought entries where nothing says that yet, by the same; `lost`:
    what counts the entries for which there was no room.
    """

    texts: dict[str, str]
    stacked: dict[str, str]
    used: set[str]
    index: tuple[str, ...] = ()
    place: str = ""
    weights: str = "params"
    routings: dict[tuple[str, tuple[tuple[str, ...], ...]], str] = field(default_factory=dict)
    comes: dict[tuple[str, tuple[tuple[str, ...], ...]], Move] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)

    def new(self, name: str) -> str:
        """An identifier for something called `name`."""
        found = identifier(name, self.used)
        self.used.add(found)
        return found
