"""Pointwise expressions on NumPy arrays whose last dimensions have names."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...ir.expr import Call, Const, Context, Expr, Operand, Rotate, Size
from .numpy_runtime import gelu, rotate, sigmoid, silu

Array = NDArray[Any]


def _where(condition: Array, a: Array, b: Array) -> Array:
    return np.where(condition != 0, a, b)


APPLY: Mapping[str, Callable[..., Array]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "negate": operator.neg,
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "rsqrt": lambda a: 1.0 / np.sqrt(a),
    "tanh": np.tanh,
    "sigmoid": sigmoid,
    "silu": silu,
    "gelu": gelu,
    "relu": lambda a: np.maximum(a, 0.0),
    "abs": np.abs,
    "sin": np.sin,
    "cos": np.cos,
    "floor": np.floor,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "power": np.power,
    "less_equal": lambda a, b: np.less_equal(a, b).astype(float),
    "equal": lambda a, b: np.equal(a, b).astype(float),
    "where": _where,
}


@dataclass(frozen=True)
class Frame:
    """Where a pointwise expression is evaluated.

    `dims`: the result's dims. `shape`: the shape of its array, with any number of leading axes
    before the dims. `sizes`: global sizes, for `size(dim)`. `contexts`: how many places are filled
    along the dims of which not all are, for `context(dim)`.
    """

    dims: tuple[str, ...]
    shape: tuple[int, ...]
    sizes: Mapping[str, int]
    contexts: Mapping[str, int] = field(default_factory=dict)

    def context(self, dim: str) -> int:
        """How many places along `dim` are filled."""
        return self.contexts.get(dim, self.sizes[dim])

    def align(self, array: Array, dims: Sequence[str]) -> Array:
        """`array`, whose last dimensions are `dims`, with the frame's dims: 1 for those it lacks."""
        lead = array.ndim - len(dims)
        have = [d for d in self.dims if d in dims]
        ordered = array.transpose([*range(lead), *(lead + dims.index(d) for d in have)])
        missing = [lead + i for i, d in enumerate(self.dims) if d not in dims]
        return np.expand_dims(ordered, missing)

    def spread(self, array: Array) -> Array:
        """An aligned array in the frame's full shape, as floats of its own."""
        return np.array(np.broadcast_to(array, self.shape), dtype=float)


def evaluate(expr: Expr, operands: Mapping[str, Array], frame: Frame) -> Array:
    """The value of `expr` in the shape of `frame`; `operands` are aligned with it.

    Infinities and what a later `where` drops raise no warnings. Shapes that do not broadcast, and
    pairs that a shard tears apart, raise ValueError.
    """

    def value(part: Expr) -> Array:
        match part:
            case Const(number):
                return np.float64(number)  # type: ignore[return-value]
            case Size(dim):
                return np.float64(frame.sizes[dim])  # type: ignore[return-value]
            case Context(dim):
                return np.float64(frame.context(dim))  # type: ignore[return-value]
            case Operand(name):
                return operands[name].astype(float, copy=False)
            case Call(function, arguments):
                return APPLY[function](*(value(a) for a in arguments))
            case Rotate(inner, dim):
                return rotate(frame.spread(value(inner)), frame.dims.index(dim) - len(frame.dims))

    with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
        return frame.spread(value(expr))


def folded(expr: Expr) -> Expr:
    """The expression with what is made of constants alone worked out: infinite or no number where that is so."""
    match expr:
        case Call(function, arguments):
            parts = tuple(folded(a) for a in arguments)
            numbers = [np.float64(part.value) for part in parts if isinstance(part, Const)]
            if len(numbers) < len(parts):
                return Call(function, parts)
            with np.errstate(all="ignore"):
                return Const(float(APPLY[function](*numbers)))
        case Rotate(inner, dim):
            return Rotate(folded(inner), dim)
        case _:
            return expr
