"""From text to the tokens that the grammar takes: limits, and newlines that separate nothing.

The limits keep every later stage fast and its recursion shallow, whatever the file holds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from lark import Token, UnexpectedCharacters

from ..diagnostics import Diagnostic, InputError, Source, Span
from ..inert import character

MAX_TOKENS = 50_000  # of a file
MAX_NAME = 64  # characters of a name, a string or a number
MAX_NESTING = 64  # brackets open at once
MAX_OPERATORS = 100  # of one statement
MAX_FINDINGS = 20  # reported at once

OPEN, CLOSE = {"LPAR", "LSQB"}, {"RPAR", "RSQB"}
BRACES = {"LBRACE", "RBRACE"}
OPERATORS = {"PLUS", "MINUS", "STAR", "SLASH"}
NEWLINE = "_NL"
MEANT = {  # by characters that stand where they have no meaning
    '"': "close the quotes on the same line",
    ".": "a number has digits before and after its point, as in `0.5` and `30.0`",
    ">": "a comparison is a mask of 0 and 1: an input, or one that `choose` makes",
    "<": "a comparison is a mask of 0 and 1: an input, or one that `choose` makes",
    ";": "a statement has a line of its own",
}


ATTRIBUTE = re.compile(r"[A-Za-z_]\w*$|[\])]$")  # behind what a point asks for an attribute


def span_of(token: Token) -> Span:
    """Where a token stands."""
    length = 1 if token.type == NEWLINE else len(token)
    return Span(token.line or 1, token.column or 1, max(1, length))


@dataclass
class _Scan:
    """The state of one pass over the tokens of `source`."""

    source: Source
    findings: list[Diagnostic]
    open_brackets: list[Token]
    operators: int = 0

    def report(self, message: str, token: Token, hint: str | None = None) -> None:
        """Note what is wrong at a token, and read on."""
        self.findings.append(Diagnostic(message, span_of(token), hint, self.source))

    def stop(self, message: str, token: Token, hint: str | None = None) -> InputError:
        """What to raise, with all that was found, where nothing can be read behind a token."""
        self.report(message, token, hint)
        return InputError(self.findings)


def scan(stream: Iterable[Token], source: Source) -> list[Token]:
    """The tokens of `stream` less the newlines that separate nothing.

    Raises InputError for characters that no token holds and for whatever is over a limit.
    """
    state = _Scan(source, [], [])
    kept: list[Token] = []
    for count, token in enumerate(_total(stream, state)):
        if count >= MAX_TOKENS:
            raise state.stop(f"The file has more than {MAX_TOKENS:,} words and signs.", token)
        _check(state, token)
        if len(state.findings) >= MAX_FINDINGS:
            raise InputError(state.findings)
        if token.type == NEWLINE:
            if state.open_brackets or not kept or kept[-1].type in {NEWLINE, "LBRACE", "COMMA"}:
                continue
        elif token.type == "RBRACE" and kept and kept[-1].type == NEWLINE:
            kept.pop()
        kept.append(token)
    if state.findings:
        raise InputError(state.findings)
    if kept and kept[-1].type == NEWLINE:
        kept.pop()
    return kept


def _total(stream: Iterable[Token], state: _Scan) -> Iterator[Token]:
    """The tokens of `stream`; where no token fits, a finding ends the scan."""
    try:
        yield from stream
    except UnexpectedCharacters as error:
        shown = f"`{error.char}`" if error.char.isprintable() else f"U+{ord(error.char):04X}"
        hint = MEANT.get(error.char)
        if error.char == "." and ATTRIBUTE.search(state.source.text[: error.pos_in_stream]):
            hint = "values have no parts to name; a transpose is an einsum, `t[F,E] = W[E,F]`"
        span = Span(error.line, error.column)
        state.findings.append(Diagnostic(f"The character {shown} has no meaning here.", span, hint, state.source))


def _check(state: _Scan, token: Token) -> None:
    if token.type in OPEN:
        state.open_brackets.append(token)
        if len(state.open_brackets) > MAX_NESTING:
            raise state.stop(f"Brackets are nested more than {MAX_NESTING} deep.", token, "name a part of it")
    elif token.type in CLOSE:
        del state.open_brackets[-1:]
    elif token.type in BRACES:
        state.open_brackets.clear()
        state.operators = 0
    elif token.type == NEWLINE:
        if not state.open_brackets:
            state.operators = 0
    elif token.type in OPERATORS:
        state.operators += 1
        if state.operators > MAX_OPERATORS:
            raise state.stop(f"A statement has more than {MAX_OPERATORS} operators.", token, "name a part of it")
    elif token.type in {"INT", "FLOAT"}:
        _check_number(state, token)
    elif token.type in {"NAME", "STRING"} and len(token.strip('"')) > MAX_NAME:
        state.report(f"The name `{token[:20]}...` is longer than {MAX_NAME} characters.", token)
    elif token.type == "STRING" and not token.isprintable():
        _refuse_hidden(state, token)


def _refuse_hidden(state: _Scan, token: Token) -> None:
    """Note the first character of a name in quotes that does not show itself."""
    at = next(i for i, c in enumerate(token) if not c.isprintable())
    message = f"The name in quotes holds {character(token[at])}, which does not show itself."
    place = Span(token.line or 1, (token.column or 1) + at)
    state.findings.append(Diagnostic(message, place, "write it with characters that do", state.source))


def _check_number(state: _Scan, token: Token) -> None:
    if len(token) > MAX_NAME:
        state.report(f"The number `{token[:20]}...` is longer than {MAX_NAME} characters.", token)
    elif not math.isfinite(float(token)):
        state.report(f"The number `{token}` is too large.", token)
