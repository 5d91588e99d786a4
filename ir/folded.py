"""What an expression is where some of its operands are known numbers, by the rules of IEEE arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from .expr import Call, Const, Context, Expr, Operand, Rotate, Size

NAN, INF = math.nan, math.inf
OF_NAN = ("equal", "less_equal", "power")  # functions that may be a number where an argument is NaN


def folded(expr: Expr, numbers: Mapping[str, float]) -> float | None:
    """The number that an expression is where the operands of `numbers` are these, whatever the others are, if they are
    finite and not 0; None where it depends on them. NaN, too, where it is infinite or NaN depending on them."""
    match expr:
        case Const(value):
            return float(value)
        case Operand(name):
            return numbers.get(name)
        case Size() | Context():
            return None
        case Rotate(inner, _):
            found = folded(inner, numbers)
            return found if found is None or found == 0 else NAN  # of a number it may be either sign, and a root none
        case Call("where", (condition, *branches)):
            kept, found_each = folded(condition, numbers), [folded(each, numbers) for each in branches]
            if kept is not None and math.isnan(kept) and not _is_exact(condition, numbers):
                return found_each[0] if found_each[0] == found_each[1] else NAN
            if kept is None:
                return found_each[0] if found_each[0] == found_each[1] else None
            return found_each[0] if kept != 0 else found_each[1]
        case Call(function, arguments):
            every = [folded(one, numbers) for one in arguments]
            known = [number for number in every if number is not None]
            if function in OF_NAN and any(map(math.isnan, known)) and _is_exact(expr, numbers):
                return _applied(function, known)
            result = _call(function, every)
            # Of a 0 whose sign is not known it is infinite of either sign.
            unsure = result is not None and math.isinf(result) and not _is_exact(expr, numbers)
            return NAN if unsure else result


def _is_exact(expr: Expr, numbers: Mapping[str, float]) -> bool:
    """Whether all that an expression is made of is known: then NaN is NaN, and nothing infinite."""
    match expr:
        case Const():
            return True
        case Operand(name):
            return name in numbers
        case Call(_, arguments):
            return all(_is_exact(each, numbers) for each in arguments)
    return False  # what is turned may have either sign


def _applied(function: str, arguments: list[float]) -> float:
    try:
        return _APPLY[function](*arguments)
    except OverflowError:
        return INF
    except (ValueError, ZeroDivisionError):
        return NAN


def _call(function: str, found: list[float | None]) -> float | None:
    known = [number for number in found if number is not None]
    if any(math.isnan(number) for number in known):
        return NAN
    if len(known) == len(found):
        return _applied(function, known)
    match function, found:
        case ("multiply", _) if 0 in known:
            return 0.0
        case ("divide", [0, None]):
            return 0.0
        case ("divide", [None, below]) if below is not None and math.isinf(below):
            return 0.0
        case ("divide", [None, 0]):
            return NAN
        case ("multiply" | "divide" | "add" | "subtract", _) if any(map(math.isinf, known)):
            return NAN
    return None


def _divide(a: float, b: float) -> float:
    if b == 0:
        return NAN if a == 0 else math.copysign(INF, a) * math.copysign(1, b)
    return a / b


def _log(a: float) -> float:
    return -INF if a == 0 else math.log(a)


def _power(a: float, b: float) -> float:
    return INF if a == 0 and b < 0 else math.pow(a, b)


def _sigmoid(a: float) -> float:
    return 1 / (1 + math.exp(-a)) if a > 0 else math.exp(a) / (1 + math.exp(a))


def _gelu(a: float) -> float:
    return a / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (a + 0.044715 * a**3)))


_APPLY: Mapping[str, Callable[..., float]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": _divide,
    "negate": lambda a: -a,
    "exp": math.exp,
    "log": _log,
    "sqrt": math.sqrt,
    "rsqrt": lambda a: _divide(1.0, math.sqrt(a)),
    "tanh": math.tanh,
    "erf": math.erf,
    "sigmoid": _sigmoid,
    "silu": lambda a: a * _sigmoid(a),
    "gelu": _gelu,
    "gelu_exact": lambda a: a / 2 * (1 + math.erf(a / math.sqrt(2))),
    "relu": lambda a: max(a, 0.0),
    "abs": abs,
    "sin": math.sin,
    "cos": math.cos,
    "floor": lambda a: a if math.isinf(a) else float(math.floor(a)),
    "maximum": max,
    "minimum": min,
    "power": _power,
    "less_equal": lambda a, b: float(a <= b),
    "equal": lambda a, b: float(a == b),
}
