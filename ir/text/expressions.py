"""Pointwise expressions as text: `silu(g) * u`, `rotate(x, Q)`, `size(Q)`, `context(M)`; printed and read back.

Arithmetic is infix and binds as usual; `-x` negates, and `-2` is a number (`-(2)` negates one).
Everything else is a call. Infinity is `inf`, so no value of that name can stand in an expression.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from ..diagnostics import did_you_mean
from ..expr import FUNCTIONS, Call, Const, Context, Expr, Operand, Rotate, Size
from ..record import record

NAME = r"[A-Za-z_][\w.']*(?::[\w.']+)*"  # a value's name: `layer.n'`, `s:max`
INFIX = {"add": ("+", 1), "subtract": ("-", 1), "multiply": ("*", 2), "divide": ("/", 2)}  # (sign, how tightly)
MAX_DEPTH = 100  # nested brackets and calls
MAX_TERMS = 200  # signs and calls in one expression

_CALLED = {sign: function for function, (sign, _) in INFIX.items()}
_TOKEN = re.compile(rf"\s*(?:(\d+\.?\d*(?:e[+-]?\d+)?|\.\d+(?:e[+-]?\d+)?)|({NAME})|(->|\S))", re.ASCII)


class ExprError(ValueError):
    """An expression's text is wrong. `at` and `length` say where in the text, `hint` what would mend it."""

    def __init__(self, message: str, at: int, length: int = 1, hint: str | None = None):
        super().__init__(message)
        self.at, self.length, self.hint = at, length, hint


def format_number(number: float) -> str:
    """A number that reads back as the same: `0.5`, `2`, `1e-06`, `-inf`."""
    return repr(float(number)).removesuffix(".0")


def format_expr(expr: Expr, binding: int = 0) -> str:
    """The expression as text, in brackets where what stands around it binds more tightly."""
    match expr:
        case Const(number):
            return format_number(number)
        case Operand(name):
            return name
        case Size(dim):
            return f"size({dim})"
        case Context(dim):
            return f"context({dim})"
        case Rotate(inner, dim):
            return f"rotate({format_expr(inner)}, {dim})"
        case Call("negate", (inner,)):
            # A number keeps its brackets: `-2` would read as a number.
            bare = not isinstance(inner, Const) and not (isinstance(inner, Call) and inner.function in INFIX)
            return f"-{format_expr(inner)}" if bare else f"-({format_expr(inner)})"
        case Call(function, (left, right)) if function in INFIX:
            sign, own = INFIX[function]
            text = f"{format_expr(left, own)} {sign} {format_expr(right, own + 1)}"
            return f"({text})" if own < binding else text
        case Call(function, arguments):
            return f"{function}({', '.join(format_expr(a) for a in arguments)})"


@record
class Token:
    """A number, a name or a sign, and where it stands in the text."""

    kind: str
    text: str
    at: int


def tokens(text: str) -> Iterator[Token]:
    """The tokens of `text`, then an `end`."""
    end = len(text.rstrip())
    at = 0
    while at < end:
        match = _TOKEN.match(text, at)
        assert match is not None, "there is text left, and any character is a token"
        kind = ("number", "name", "sign")[match.lastindex - 1 if match.lastindex else 2]
        yield Token(kind, match[match.lastindex or 0], match.start(match.lastindex or 0))
        at = match.end()
    yield Token("end", "the end of the line", end)


class ExprParser:
    """Reads expressions, and the pieces of other operations, off a text from left to right."""

    def __init__(self, text: str):
        self._tokens = list(tokens(text))
        self._next = self._depth = self._terms = 0

    @property
    def token(self) -> Token:
        """What comes next."""
        return self._tokens[self._next]

    def advance(self) -> Token:
        """Take what comes next."""
        token = self.token
        self._next += token.kind != "end"
        return token

    def accept(self, text: str) -> bool:
        """Take `text` if it comes next."""
        found = self.token.kind != "end" and self.token.text == text
        self._next += found
        return found

    def expect(self, text: str) -> None:
        """Take `text`, or raise ExprError."""
        if not self.accept(text):
            raise self.wrong(f"`{text}`")

    def name(self, what: str = "a name") -> str:
        """Take a name, or raise ExprError."""
        if self.token.kind != "name":
            raise self.wrong(what)
        return self.advance().text

    def names(self, what: str) -> tuple[str, ...]:
        """Take names with commas between them."""
        found = [self.name(what)]
        while self.accept(","):
            found.append(self.name(what))
        return tuple(found)

    def wrong(self, expected: str) -> ExprError:
        """The error that `expected` should have come next."""
        token = self.token
        shown = token.text if token.kind == "end" else f"`{token.text[:40]}`"
        return ExprError(
            f"Expected {expected}, found {shown}.", token.at, len(token.text) if token.kind != "end" else 1
        )

    def end(self) -> None:
        """Raise ExprError unless everything was read."""
        if self.token.kind != "end":
            raise self.wrong("an operator or the end of the line")

    def expression(self) -> Expr:
        """Take a sum of products."""
        left = self._product()
        while self.token.text in ("+", "-"):
            function = _CALLED[self._count().text]
            left = Call(function, (left, self._product()))
        return left

    def number(self) -> float:
        """Take a number, with its sign."""
        sign = -1.0 if self.accept("-") else 1.0
        token = self.token
        if token.kind != "number" and token.text != "inf":
            raise self.wrong("a number")
        return sign * float(self.advance().text)

    def whole(self) -> int:
        """Take a whole number from 1 on."""
        if not re.fullmatch(r"[1-9]\d{0,17}", self.token.text, re.ASCII):
            raise self.wrong("a whole number")
        return int(self.advance().text)

    def _product(self) -> Expr:
        left = self._unary()
        while self.token.text in ("*", "/"):
            function = _CALLED[self._count().text]
            left = Call(function, (left, self._unary()))
        return left

    def _unary(self) -> Expr:
        if self.token.text != "-":
            return self._atom()
        after = self._tokens[self._next + 1]
        if after.kind == "number" or after.text == "inf":
            return Const(self.number())
        self._count()
        return Call("negate", (self._nested(self._unary),))

    def _atom(self) -> Expr:
        token = self.token
        if token.kind == "number" or token.text == "inf":
            return Const(self.number())
        if self.accept("("):
            inner = self._nested(self.expression)
            self.expect(")")
            return inner
        if token.kind != "name":
            raise self.wrong("a value, a number or `(`")
        self.advance()
        return self._call(token) if self.token.text == "(" else Operand(token.text)

    def _call(self, token: Token) -> Expr:
        self._count()
        match token.text:
            case "size":
                expr: Expr = Size(self.name("a dim"))
            case "context":
                expr = Context(self.name("a dim"))
            case "rotate":
                inner = self._nested(self.expression)
                self.expect(",")
                expr = Rotate(inner, self.name("a dim"))
            case function:
                expr = Call(function, self._arguments(token))
        self.expect(")")
        return expr

    def _arguments(self, token: Token) -> tuple[Expr, ...]:
        function = token.text
        if function not in FUNCTIONS:
            hint = did_you_mean(function, FUNCTIONS)
            raise ExprError(f"There is no function `{function[:40]}`.", token.at, len(function), hint)
        arguments = [self._nested(self.expression)]
        while self.accept(","):
            arguments.append(self._nested(self.expression))
        if len(arguments) != FUNCTIONS[function]:
            message = f"`{function}` takes {FUNCTIONS[function]} arguments, not {len(arguments)}."
            raise ExprError(message, token.at, len(function))
        return tuple(arguments)

    def _count(self) -> Token:
        """Take a sign or a bracket, within the bound that keeps trees walkable."""
        self._terms += 1
        if self._terms > MAX_TERMS:
            raise ExprError(f"The expression has more than {MAX_TERMS} operations.", self.token.at)
        return self.advance()

    def _nested(self, read: Callable[[], Expr]) -> Expr:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ExprError(f"The expression is nested more than {MAX_DEPTH} deep.", self.token.at)
        expr = read()
        self._depth -= 1
        return expr
