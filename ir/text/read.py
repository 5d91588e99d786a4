"""Text in, surface tree out; syntax errors as diagnostics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

from lark import Token, Tree, UnexpectedToken

from ..diagnostics import Diagnostic, InputError, Source, Span, did_you_mean, fail, listed
from ..inert import HIDING, character
from .build import build_model
from .grammar import parser
from .surface import Model
from .tokens import BRACES, CLOSE, MAX_FINDINGS, MAX_TOKENS, NEWLINE, OPEN, OPERATORS, scan, span_of

MAX_BYTES = 1_000_000  # of a file


def read_source(path: Path, most_bytes: int = MAX_BYTES) -> Source:
    """The text of a file, named as `path` is written.

    Raises InputError when it is missing, no regular file, over `most_bytes`, or not plain UTF-8 text,
    and with a finding for every character that hides what the text says.
    """
    try:
        if path.exists() and not path.is_file():
            raise fail(f"`{path}` is not a file.")
        if path.stat().st_size > most_bytes:
            raise fail(f"`{path}` is larger than {most_bytes / 1e6:g} MB.")
        data = path.read_bytes()
    except FileNotFoundError:
        raise fail(f"`{path}` does not exist.") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise fail(f"`{str(path)[:200]}` cannot be read: {reason}.") from None
    if b"\0" in data:
        raise fail(f"`{path}` is not a text file: it holds NUL bytes.")
    try:
        source = Source(str(path), data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise _undecodable(path, error) from None
    _refuse_hiding(source)
    return source


def _undecodable(path: Path, error: UnicodeDecodeError) -> InputError:
    """What is said of the first byte of a file that no text in UTF-8 has."""
    before, after = error.object[: error.start].decode(), error.object[error.start :].decode(errors="replace")
    span = Span(before.count("\n") + 1, len(before) - before.rfind("\n"))
    message = f"The file is not UTF-8 text: byte 0x{error.object[error.start]:02x} cannot be decoded."
    return fail(message, span, "save it as UTF-8", Source(str(path), before + after))


def _refuse_hiding(source: Source) -> None:
    """Raise InputError where a text holds characters that hide what it says, be it in comments."""
    found = []
    for number, line in enumerate(source.text.split("\n"), 1):
        for match in islice(HIDING.finditer(f"{line}\n"), MAX_FINDINGS):
            message = f"The file holds {character(match[0])}, which hides what stands beside it."
            found.append(Diagnostic(message, Span(number, match.start() + 1), "remove it", source))
        if len(found) >= MAX_FINDINGS:
            break
    if found:
        raise InputError(found[:MAX_FINDINGS])


def parse(source: Source) -> Model:
    """The model that a text holds.

    Raises InputError with the first syntax error of every statement that has one.
    """
    tokens = scan(parser().lex(source.text), source)
    if not tokens:
        raise fail("The file holds no program.", Span(1, 1), "declare dims, a `main`, and what it computes", source)
    return build_model(_tree(tokens, source))


def _tree(tokens: list[Token], source: Source) -> Tree[Token]:
    """The parse tree. A statement with a syntax error is reported, dropped, and the rest tried again."""
    findings: list[Diagnostic] = []
    budget = 2 * MAX_TOKENS  # tokens parsed in all tries together
    while True:
        budget -= len(tokens)
        result = _attempt(tokens, source)
        if isinstance(result, Tree):
            if findings:
                break
            return result
        position, finding = result
        findings.append(finding)
        if position == len(tokens):  # all that stands before has been read
            break
        mend = _closed if _unclosed(tokens, position) else _without_statement
        tokens = mend(tokens, position)
        if not tokens or budget < 0 or len(findings) >= MAX_FINDINGS:
            break
    raise InputError(findings)


def _attempt(tokens: list[Token], source: Source) -> Tree[Token] | tuple[int, Diagnostic]:
    """The parse tree, or the position of the first token that does not fit and what to say of it."""
    parsing = parser().parse_interactive("")
    tree: object = None
    for position, token in enumerate([*tokens, Token.new_borrow_pos("$END", "", tokens[-1])]):
        try:
            tree = parsing.feed_token(token)
        except UnexpectedToken:
            accepts: Callable[[], set[str]] = parsing.accepts
            return position, _explain(tokens, position, accepts(), source)
    assert isinstance(tree, Tree)
    return tree


def _without_statement(tokens: list[Token], position: int) -> list[Token]:
    """The tokens less the statement or item around `position`, with one newline beside it, and less the line in which
    it was to go on."""
    edges = {NEWLINE, *BRACES}
    start = end = position
    while start > 0 and tokens[start - 1].type not in edges:
        start -= 1
    while end < len(tokens) and tokens[end].type not in edges:
        end += 1
    while start < end < len(tokens) and tokens[end - 1].type in OPERATORS and tokens[end].type == NEWLINE:
        line = _line(tokens, end + 1)
        if not _goes_on(line):
            break
        end += 1 + len(line)
    if end < len(tokens) and tokens[end].type == "LBRACE":
        end = _after_braces(tokens, end)
    if end < len(tokens) and (tokens[end].type == NEWLINE or end == start):
        end += 1
    elif start > 0 and tokens[start - 1].type == NEWLINE:
        start -= 1
    return tokens[:start] + tokens[end:]


def _line(tokens: Sequence[Token], start: int) -> Sequence[Token]:
    """The tokens from `start` up to the end of their line."""
    end = start
    while end < len(tokens) and tokens[end].type not in {NEWLINE, *BRACES}:
        end += 1
    return tokens[start:end]


def _goes_on(line: Sequence[Token]) -> bool:
    """Whether a line can be the rest of an expression alone: it begins like one, and gives nothing a name."""
    depth = 0
    for token in line:
        depth += (token.type == "LPAR") - (token.type == "RPAR")
        if depth == 0 and token.type == "EQUAL":
            return False
    return bool(line) and line[0].type in {"NAME", "INT", "FLOAT", "LPAR", *OPERATORS}


def _closed(tokens: list[Token], position: int) -> list[Token]:
    """The tokens with the `}` that is missing before `position`."""
    before = tokens[: position - 1] if tokens[position - 1].type == NEWLINE else tokens[:position]
    ends = [Token.new_borrow_pos(kind, text, tokens[position]) for kind, text in (("RBRACE", "}"), (NEWLINE, "\n"))]
    return [*before, *ends, *tokens[position:]]


def _unclosed(tokens: Sequence[Token], position: int) -> Token | None:
    """The `{` that should have been closed before `position`, where the file ends or another item begins, if there are
    more `{` than `}`."""
    if position < len(tokens):
        begins = tokens[position - 1].type in {NEWLINE, "LBRACE"} if position else False
        if not begins or tokens[position].type not in OUTSIDE:
            return None
    kinds = [token.type for token in tokens]
    if kinds.count("LBRACE") <= kinds.count("RBRACE"):
        return None
    open_braces = list[Token]()
    for token in tokens[:position]:
        if token.type == "LBRACE":
            open_braces.append(token)
        elif token.type == "RBRACE":
            del open_braces[-1:]
    return open_braces[-1] if open_braces else None


def _after_braces(tokens: list[Token], start: int) -> int:
    depth = 0
    for position in range(start, len(tokens)):
        depth += (tokens[position].type == "LBRACE") - (tokens[position].type == "RBRACE")
        if depth == 0:
            return position + 1
    return len(tokens)


ITEMS = ("MODEL", "DIM", "PARAM", "CACHE", "BLOCK", "MAIN", "PHASE")  # what begins an item of a file
OUTSIDE = ("MODEL", "BLOCK", "MAIN", "PHASE")  # of these what stands in no block
LINES = ("PARAM", "CACHE", "RETURN")  # what begins a line of a block, beside a name
GROUPS = (
    ({"NAME", "INT", "FLOAT", "LPAR"}, {"NAME", "INT", "FLOAT", "LPAR", "PLUS", "MINUS"}, "an expression"),
    ({"PLUS", "SLASH"}, {"PLUS", "MINUS", "STAR", "SLASH"}, "an operator"),
    ({"DIM", "BLOCK"}, set(ITEMS), "a declaration"),
    ({"NAME", "RETURN"}, {"NAME", *LINES}, "a statement"),
)
WORDS = {
    "NAME": "a name",
    "INT": "a whole number",
    "FLOAT": "a number",
    "STRING": "a name in quotes",
    "PIN": "a pin such as `@ BLE_x`",
    NEWLINE: "the end of the line",
    "$END": "the end of the file",
}


def _explain(tokens: list[Token], position: int, accepts: set[str], source: Source) -> Diagnostic:
    """What was expected at `position`, what stands there, and which bracket is still open."""
    token = tokens[position] if position < len(tokens) else None
    span = span_of(token) if token is not None else _end(tokens[-1])
    found = f"`{token}`" if token is not None else "the end of the file"
    if token is not None and token.type == NEWLINE:
        found = "the end of the line"
    if len(found) > 40:
        found = f"{found[:30]}...`"
    brace = _unclosed(tokens, position)
    if brace is not None and token is None and "RBRACE" in accepts:
        accepts = {"RBRACE"}
    hint = _open_bracket(tokens[:position], span.line)
    hint = hint or (_still_open(brace) if brace is not None else _meant(tokens, position, accepts))
    return Diagnostic(f"Expected {_either(accepts)}, found {found}.", span, hint, source)


def _end(last: Token) -> Span:
    return Span(last.end_line or 1, last.end_column or 1)


def _either(accepts: set[str]) -> str:
    rest, words = set(accepts), []
    if NEWLINE in rest:
        rest.discard("$END")
    for needed, covered, word in GROUPS:
        if needed <= rest:
            rest -= covered
            words.append(word)
    words += sorted(WORDS.get(name) or f"`{_literal(name)}`" for name in rest)
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " or " + words[-1]


def _literal(terminal: str) -> str:
    """How a terminal of one spelling is written."""
    return str(parser().get_terminal(terminal).pattern.value)


def _meant(tokens: Sequence[Token], position: int, accepts: set[str]) -> str | None:
    """A hint for what newcomers write: a word that begins nothing, and signs of other languages."""
    token = tokens[position] if position < len(tokens) else None
    if token is None:
        return None
    if token.type == "PIN" and "STAR" in accepts:
        return "`@` pins a layout; a product of matrices is an einsum, as in `y[B,F] = x[B,E] * W[E,F]`"
    if token.type == "STAR" and position and tokens[position - 1].type == "STAR":
        return "a power is `power(a, b)`"
    if position and _breaks_off(tokens[position - 1], token):
        return "a line does not go on after an operator, or before one; inside `( )` it does"
    if token.type in OPERATORS and NEWLINE in accepts and "REPEAT" in {one.type for one in _begun(tokens, position)}:
        return "`repeat` stands alone on a right side: name what it gives, and go on from there on a line of its own"
    if token.type == "DIM" and position and tokens[position - 1].type in {"COMMA", "LPAR"}:
        return "the dim that a function goes over is named, as in `softmax(s, over=M)`"
    if token.type in {"COLON", "INT"} and "NAME" in accepts <= {"NAME", "RSQB"}:
        return "what stands in brackets are dims, by name; the last place along one is `last(x, over=L)`"
    if token.type == "LSQB" and position and tokens[position - 1].type == "RPAR":
        return "only names take indices: name it on a line of its own, as in `h = gelu(u)`, and read `h[...]`"
    if token.type != "NAME":
        return None
    if accepts >= set(ITEMS):
        return _begins(token, ITEMS, "an item of a file begins with")
    starts = position == 1 or (position > 1 and tokens[position - 2].type in {NEWLINE, "LBRACE"})
    if starts and tokens[position - 1].type == "NAME" and "LSQB" in accepts:
        return _begins(tokens[position - 1], LINES, "a line of a block is `name = ...`, or begins with")
    return None


def _breaks_off(before: Token, token: Token) -> bool:
    """Whether a line ends between two tokens of which one is an operator, so that an expression should go on."""
    return {before.type, token.type} > {NEWLINE} and bool({before.type, token.type} & OPERATORS)


def _begun(tokens: Sequence[Token], position: int) -> Sequence[Token]:
    """The tokens of a line before `position`."""
    start = position
    while start and tokens[start - 1].type not in {NEWLINE, *BRACES}:
        start -= 1
    return tokens[start:position]


def _begins(token: Token, terminals: Sequence[str], what: str) -> str:
    """The word that was meant, or all that there are."""
    words = [_literal(name) for name in terminals]
    others = listed(words[:-1])
    return did_you_mean(token, words) or f"{what} {others} or `{words[-1]}`"


def _open_bracket(before: Sequence[Token], line: int) -> str | None:
    """A hint at the bracket of a line before `line` that is open where the tokens end."""
    stack: list[Token] = []
    for token in before:
        if token.type in BRACES or (token.type == NEWLINE and not stack):
            stack.clear()
        elif token.type in OPEN:
            stack.append(token)
        elif token.type in CLOSE:
            del stack[-1:]
    if stack and stack[-1].line != line:
        return _still_open(stack[-1])
    return None


def _still_open(bracket: Token) -> str:
    return f"the `{bracket}` at {bracket.line}:{bracket.column} is still open"
