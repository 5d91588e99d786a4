"""JSON with the place of every key and value, so that what is wrong in a config can be pointed at.

Stricter than most readers: no duplicate keys, no number that is out of range. As Python writes them, `NaN`,
`Infinity` and `-Infinity` are numbers. What a config holds beyond MOST_READ characters of lists and objects,
such as the names of very many labels, is checked to be JSON and left unread.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ...ir.diagnostics import Diagnostic, InputError, Source, Span, fail
from ...ir.record import record

MAX_DEPTH = 16
MAX_DIGITS = 64  # of one number
MOST_FINDINGS = 20
MOST_BYTES = 16_000_000  # of a config: some name every label of a large vocabulary
MOST_KEYS = 10_000  # of one object that is read
MOST_READ = 250_000  # characters of lists and objects that are read with the place of all that they hold

TOKEN = re.compile(
    r'(?P<mark>[{}\[\],:])|(?P<text>"(?:[^"\\\x00-\x1f]++|\\.)*+")'
    r"|(?P<number>-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)(?![\w.+-])"
    r"|(?P<word>true|false|null|NaN|-?Infinity)(?!\w)"
)
SPACE = re.compile(r"[ \t\r\n]*")
RUN = re.compile(r"[\w.+-]+|.", re.DOTALL)  # what to show of a text that is no token
WORDS = {"true": True, "false": False, "null": None, **{w: float(w) for w in ("NaN", "Infinity", "-Infinity")}}
PLAIN = json.JSONDecoder(parse_int=float)  # of which only the end of a value counts, and what is no JSON


@record
class Unread:
    """A list or an object that is JSON, and too large to read."""


Value = None | bool | int | float | str | tuple["Node", ...] | Mapping[str, "Entry"] | Unread


@record
class Node:
    """A value and where it stands."""

    value: Value
    span: Span


@record
class Entry:
    """A value in an object, and where its key stands."""

    key: Span
    node: Node


@record
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


@record
class _Token:
    kind: str  # mark, text, number, word, end, other
    text: str
    start: int


@dataclass
class _Scanner:
    """`at`: the end of what has been scanned. `left`: how many characters may still be read in full."""

    source: Source
    at: int = 0
    left: int = MOST_READ
    findings: list[Diagnostic] = field(default_factory=list)
    line: int = 1
    line_start: int = 0
    counted: int = 0  # up to here lines have been counted

    def span(self, token: _Token) -> Span:
        """Where a token stands; cheap where tokens are asked for in their order."""
        text = self.source.text
        if token.start < self.counted:
            self.line, self.line_start, self.counted = 1, 0, 0
        more = text.count("\n", self.counted, token.start)
        if more:
            self.line += more
            self.line_start = text.rindex("\n", self.counted, token.start) + 1
        self.counted = token.start
        return Span(self.line, token.start - self.line_start + 1, max(1, len(token.text)))

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
        span = self.span(token)
        match token.kind, token.text:
            case "mark", "{" | "[" if depth >= MAX_DEPTH:
                raise fail(f"Values are nested more than {MAX_DEPTH} deep.", span, source=self.source)
            case "mark", "{" | "[":
                return Node(self.field(token) if depth == 1 else self.compound(token, depth), span)
            case "text", _:
                return Node(self.text(token), span)
            case "number", _:
                return Node(self.number(token), span)
            case "word", word:
                return Node(WORDS[word], span)
        raise self.expected("a value", token)

    def compound(self, token: _Token, depth: int) -> Value:
        """The list or object that starts at a token."""
        return self.entries(depth) if token.text == "{" else self.items(depth)

    def field(self, token: _Token) -> Value:
        """The same in a field of the outermost object: read in full as long as there is little of it."""
        end, wrong = self.extent(token)
        if end - token.start > self.left:
            if wrong is not None:
                raise fail(wrong, self.span(_Token("other", "", end)), "the file is no JSON", self.source)
            self.at = end
            return Unread()
        self.left -= end - token.start
        return self.compound(token, 1)

    def extent(self, token: _Token) -> tuple[int, str | None]:
        """Where the value that starts at a token ends, or ceases to be JSON, and then why."""
        try:
            return PLAIN.raw_decode(self.source.text, token.start)[1], None
        except json.JSONDecodeError as error:
            return error.pos, f"Here the text ceases to be JSON: {error.msg[0].lower()}{error.msg[1:]}."
        except RecursionError:  # far below, so that where it began is as good a place as any
            message = f"Values are nested more than {MAX_DEPTH} deep."
            raise fail(message, self.span(token), source=self.source) from None

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
            if len(found) == MOST_KEYS:
                raise fail(f"The object has more than {MOST_KEYS:,} keys.", span, source=self.source)
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
