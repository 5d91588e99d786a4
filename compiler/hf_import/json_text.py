"""JSON with the place of every key and value, so that what is wrong in a config can be pointed at.

Stricter than most readers: no NaN, no duplicate keys, no number that is out of range.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field

from ...ir.diagnostics import Diagnostic, InputError, Source, Span, fail

MAX_DEPTH = 16
MAX_DIGITS = 64  # of one number
MOST_FINDINGS = 20

TOKEN = re.compile(
    r'(?P<mark>[{}\[\],:])|(?P<text>"(?:[^"\\\x00-\x1f]|\\.)*")'
    r"|(?P<number>-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)(?![\w.+-])|(?P<word>true|false|null)(?!\w)"
)
SPACE = re.compile(r"[ \t\r\n]*")
RUN = re.compile(r"[\w.+-]+|.", re.DOTALL)  # what to show of a text that is no token
WORDS = {"true": True, "false": False, "null": None}

Value = None | bool | int | float | str | tuple["Node", ...] | Mapping[str, "Entry"]


@dataclass(frozen=True)
class Node:
    """A value and where it stands."""

    value: Value
    span: Span


@dataclass(frozen=True)
class Entry:
    """A value in an object, and where its key stands."""

    key: Span
    node: Node


@dataclass(frozen=True)
class Document:
    """The object that a text holds, entries in the order of the text."""

    source: Source
    entries: Mapping[str, Entry]


def read_json(source: Source) -> Document:
    """The object that a JSON text holds.

    Raises InputError at the first place that is no JSON, or with the keys that stand twice.
    """
    scanner = _Scanner(source)
    node = scanner.value(scanner.next(), 0)
    end = scanner.next()
    if end.kind != "end":
        raise scanner.expected("the end of the file", end)
    if scanner.findings:
        raise InputError(scanner.findings)
    if not isinstance(node.value, Mapping):
        raise fail("The file holds no JSON object.", node.span, "a config is written `{ ... }`", source)
    return Document(source, node.value)


@dataclass(frozen=True)
class _Token:
    kind: str  # mark, text, number, word, end, other
    text: str
    start: int


@dataclass
class _Scanner:
    source: Source
    at: int = 0
    findings: list[Diagnostic] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lines = [0, *(match.end() for match in re.finditer("\n", self.source.text))]

    def span(self, token: _Token) -> Span:
        """Where a token stands."""
        line = bisect_right(self.lines, token.start)
        return Span(line, token.start - self.lines[line - 1] + 1, max(1, len(token.text)))

    def next(self) -> _Token:
        """The next token."""
        text = self.source.text
        match = SPACE.match(text, self.at)
        start = match.end() if match else self.at
        if start == len(text):
            return _Token("end", "", start)
        found = TOKEN.match(text, start)
        if found is None or found.lastgroup is None:
            run = RUN.match(text, start)
            return _Token("other", run[0] if run else "", start)
        self.at = found.end()
        return _Token(found.lastgroup, found[0], start)

    def expected(self, what: str, token: _Token) -> InputError:
        """What was expected in place of a token."""
        found = "the end of the file" if token.kind == "end" else f"`{token.text[:30]}`"
        return fail(f"Expected {what}, found {found}.", self.span(token), "the file is no JSON", self.source)

    def value(self, token: _Token, depth: int) -> Node:
        """The value that starts at a token."""
        match token.kind, token.text:
            case "mark", "{" | "[" if depth >= MAX_DEPTH:
                raise fail(f"Values are nested more than {MAX_DEPTH} deep.", self.span(token), source=self.source)
            case "mark", "{":
                return Node(self.entries(depth), self.span(token))
            case "mark", "[":
                return Node(self.items(depth), self.span(token))
            case "text", _:
                return Node(self.text(token), self.span(token))
            case "number", _:
                return Node(self.number(token), self.span(token))
            case "word", word:
                return Node(WORDS[word], self.span(token))
        raise self.expected("a value", token)

    def entries(self, depth: int) -> Mapping[str, Entry]:
        """The entries of an object, up to its closing brace."""
        found: dict[str, Entry] = {}
        token = self.next()
        if token.text == "}":
            return found
        while True:
            if token.kind != "text":
                raise self.expected("a key in quotes", token)
            key, span = self.text(token), self.span(token)
            if key in found and len(self.findings) < MOST_FINDINGS:
                first = f"the first stands in line {found[key].key.line}"
                self.findings.append(Diagnostic(f"The key `{key[:60]}` stands twice.", span, first, self.source))
            if (colon := self.next()).text != ":":
                raise self.expected("`:`", colon)
            found[key] = Entry(span, self.value(self.next(), depth + 1))
            token = self.next()
            if token.text == "}":
                return found
            if token.text != ",":
                raise self.expected("`,` or `}`", token)
            token = self.next()

    def items(self, depth: int) -> tuple[Node, ...]:
        """The items of an array, up to its closing bracket."""
        found: list[Node] = []
        token = self.next()
        if token.text == "]":
            return ()
        while True:
            found.append(self.value(token, depth + 1))
            token = self.next()
            if token.text == "]":
                return tuple(found)
            if token.text != ",":
                raise self.expected("`,` or `]`", token)
            token = self.next()

    def text(self, token: _Token) -> str:
        """The text that a token in quotes stands for."""
        try:
            return str(json.loads(token.text))
        except ValueError:
            message = "The text holds an escape that JSON does not have."
            raise fail(message, self.span(token), source=self.source) from None

    def number(self, token: _Token) -> int | float:
        """The number that a token stands for."""
        if len(token.text) > MAX_DIGITS:
            message = f"The number has more than {MAX_DIGITS} digits."
            raise fail(message, self.span(token), source=self.source)
        if token.text.lstrip("-").isdigit():
            return int(token.text)
        number = float(token.text)
        if not math.isfinite(number):
            raise fail(f"The number {token.text} is out of range.", self.span(token), source=self.source)
        return number
