"""What an expression can be where its operands are known only by sign: an abstract evaluation.

A set of signs says all that a number may be. Magnitudes do not count: what is small does not vanish,
and what is large stays finite, but for what `exp` and the gates make of a number far below zero.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Flag, auto
from itertools import product

from ...ir.expr import Call, Const, Context, Expr, Operand, Rotate, Size


class Sign(Flag):
    """What a number may be. LOW: minus infinity. BAD: plus infinity, or no number at all."""

    ZERO = auto()
    POSITIVE = auto()
    NEGATIVE = auto()
    LOW = auto()
    BAD = auto()


NONE = Sign(0)
ZERO, POSITIVE, NEGATIVE, LOW, BAD = Sign
NUMBER = ZERO | POSITIVE | NEGATIVE
FALLS = ZERO | NEGATIVE  # what a gate makes of a number below zero

_ONE: dict[str, dict[Sign, Sign]] = {
    "negate": {ZERO: ZERO, POSITIVE: NEGATIVE, NEGATIVE: POSITIVE, LOW: BAD},
    "exp": {ZERO: POSITIVE, POSITIVE: POSITIVE, NEGATIVE: ZERO | POSITIVE, LOW: ZERO},
    "log": {ZERO: LOW, POSITIVE: NUMBER, NEGATIVE: BAD, LOW: BAD},
    "sqrt": {ZERO: ZERO, POSITIVE: POSITIVE, NEGATIVE: BAD, LOW: BAD},
    "rsqrt": {ZERO: BAD, POSITIVE: POSITIVE, NEGATIVE: BAD, LOW: BAD},
    "tanh": {ZERO: ZERO, POSITIVE: POSITIVE, NEGATIVE: NEGATIVE, LOW: NEGATIVE},
    "erf": {ZERO: ZERO, POSITIVE: POSITIVE, NEGATIVE: NEGATIVE, LOW: NEGATIVE},
    "sigmoid": {ZERO: POSITIVE, POSITIVE: POSITIVE, NEGATIVE: ZERO | POSITIVE, LOW: ZERO},
    "silu": {ZERO: ZERO, POSITIVE: POSITIVE, NEGATIVE: FALLS, LOW: BAD},
    "gelu": {ZERO: ZERO, POSITIVE: POSITIVE, NEGATIVE: FALLS, LOW: BAD},
    "gelu_exact": {ZERO: ZERO, POSITIVE: POSITIVE, NEGATIVE: FALLS, LOW: BAD},
    "relu": {ZERO: ZERO, POSITIVE: POSITIVE, NEGATIVE: ZERO, LOW: ZERO},
    "abs": {ZERO: ZERO, POSITIVE: POSITIVE, NEGATIVE: POSITIVE, LOW: BAD},
    "sin": {ZERO: ZERO, POSITIVE: NUMBER, NEGATIVE: NUMBER, LOW: BAD},
    "cos": {ZERO: POSITIVE, POSITIVE: NUMBER, NEGATIVE: NUMBER, LOW: BAD},
    "floor": {ZERO: ZERO, POSITIVE: ZERO | POSITIVE, NEGATIVE: NEGATIVE, LOW: LOW},
}


def of_constant(value: float) -> Sign:
    """The sign of a known number."""
    if value == float("-inf"):
        return LOW
    if value != value or value == float("inf"):
        return BAD
    return ZERO if value == 0 else POSITIVE if value > 0 else NEGATIVE


def added(a: Sign, b: Sign) -> Sign:
    """The signs of a + b."""
    return _pairs(a, b, _add)


def multiplied(a: Sign, b: Sign) -> Sign:
    """The signs of a * b."""
    return _pairs(a, b, _multiply)


def negated(a: Sign) -> Sign:
    """The signs of -a."""
    return _each(a, _ONE["negate"])


def evaluate(expr: Expr, part: Callable[[Expr], Sign]) -> Sign:
    """The signs of an expression, `part` giving those of its parts, and of an operand itself."""
    match expr:
        case Const(value):
            return of_constant(value)
        case Size() | Context():
            return POSITIVE
        case Operand():
            return part(expr)
        case Rotate(inner, _):
            return part(inner) | negated(part(inner))
        case Call("where", (condition, then, other)):
            return part(then) | (part(other) & ~_taken_out(condition, other))
        case Call(function, arguments):
            return _called(function, [part(a) for a in arguments])


def _taken_out(condition: Expr, other: Expr) -> Sign:
    """What `where(other == value, ..., other)` leaves no more of in its second branch."""
    match condition:
        case Call("equal", (tested, Const(value))) if tested == other and of_constant(value) in (ZERO, LOW):
            return of_constant(value)
    return NONE


def _called(function: str, arguments: list[Sign]) -> Sign:
    match function, arguments:
        case "add", [a, b]:
            return added(a, b)
        case "subtract", [a, b]:
            return added(a, negated(b))
        case "multiply", [a, b]:
            return multiplied(a, b)
        case "divide", [a, b]:
            return _pairs(a, b, _divide)
        case "maximum", [a, b]:
            return _pairs(a, b, _larger)
        case "minimum", [a, b]:
            return _pairs(a, b, _smaller)
        case "power", [a, b]:
            return _pairs(a, b, _power)
        case "less_equal" | "equal", _:
            return ZERO | POSITIVE
        case _, [a]:
            return _each(a, _ONE[function])
    raise KeyError(function)


def _each(a: Sign, table: dict[Sign, Sign]) -> Sign:
    found = NONE
    for sign in a:
        found |= table.get(sign, BAD)
    return found


def _pairs(a: Sign, b: Sign, rule: Callable[[Sign, Sign], Sign]) -> Sign:
    found = NONE
    for x, y in product(a, b):
        found |= BAD if BAD in (x, y) else rule(x, y)
    return found


def _add(a: Sign, b: Sign) -> Sign:
    if LOW in (a, b):
        return LOW
    if ZERO in (a, b) or a == b:
        return a if b == ZERO else b
    return NUMBER


def _multiply(a: Sign, b: Sign) -> Sign:
    if LOW in (a, b):
        return LOW if POSITIVE in (a, b) else BAD
    if ZERO in (a, b):
        return ZERO
    return POSITIVE if a == b else NEGATIVE


def _divide(a: Sign, b: Sign) -> Sign:
    return BAD if b in (ZERO, LOW) else _multiply(a, b)


_ORDER = (LOW, NEGATIVE, ZERO, POSITIVE)


def _larger(a: Sign, b: Sign) -> Sign:
    return max(a, b, key=_ORDER.index)


def _smaller(a: Sign, b: Sign) -> Sign:
    return min(a, b, key=_ORDER.index)


def _power(a: Sign, b: Sign) -> Sign:
    if a == POSITIVE and b != LOW:
        return POSITIVE
    if a == ZERO and b in (ZERO, POSITIVE):
        return POSITIVE if b == ZERO else ZERO
    return BAD
