"""Whole numbers: which results of ops are integers, whatever their dtype."""

from __future__ import annotations

from collections.abc import Callable

from .dtype import Dtype
from .expr import Call, Const, Context, Expr, Operand, Rotate, Size
from .program import Append, Choose, Einsum, Iota, Map, Op, Reduce, Sum, Take, TopK

INTEGERS = (Dtype.I32, Dtype.INT8, Dtype.INT4)
KEEPS = {"add", "subtract", "multiply", "negate", "abs", "relu", "maximum", "minimum"}  # of whole numbers a whole one
ALWAYS = {"floor", "less_equal", "equal"}


def is_whole(op: Op, known: Callable[[str], bool]) -> bool:
    """Whether the result of `op` is whole; `known` says of a value that it reads whether that is."""

    def integers(*names: str) -> bool:
        return all(map(known, names))

    match op:
        case Einsum(_, names, _, _):
            return integers(*names)
        case Sum(_, names, coefficients):
            return integers(*names) and all(c.is_integer() for c in coefficients)
        case Map(_, expr):
            return _whole(expr, known)
        case Reduce(_, name, _) | Take(_, name, _, _) | TopK(_, _, name, _, _) | Append(_, name, _, _, _):
            return integers(name)
        case Iota() | Choose():
            return True


def _whole(expr: Expr, known: Callable[[str], bool]) -> bool:
    match expr:
        case Const(value):
            return float(value).is_integer()
        case Size() | Context():
            return True
        case Operand(name):
            return known(name)
        case Rotate(inner, _):
            return _whole(inner, known)
        case Call("where", (_, then, otherwise)):
            return _whole(then, known) and _whole(otherwise, known)
        case Call(function, arguments):
            return function in ALWAYS or (function in KEEPS and all(_whole(a, known) for a in arguments))
