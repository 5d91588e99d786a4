"""Expressions, and ops on the shards of chips, on NumPy arrays whose last dimensions have names."""

from __future__ import annotations

import operator
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...ir.expr import Call, Const, Context, Expr, Operand, Rotate, Size, operands
from ...ir.program import Append, Choose, Einsum, Iota, Map, Op, Reduce, Sum, Take, TopK, signature
from ...ir.record import record
from ...ir.spmd import SpmdValue
from .numpy_runtime import Mesh, choose, erf, gelu, gelu_exact, rotate, sigmoid, silu, top_k

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
    "erf": erf,
    "sigmoid": sigmoid,
    "silu": silu,
    "gelu": gelu,
    "gelu_exact": gelu_exact,
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


@record
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


def run_op(
    op: Op,
    env: Mapping[str, Array],
    values: Mapping[str, SpmdValue],
    sizes: Mapping[str, int],
    mesh: Mesh,
    contexts: Mapping[str, int],
) -> Array:
    """The shards of the op's result. Raises ValueError where local shapes do not fit together.

    `contexts`: how many places are filled along the dims of which not all are.
    """
    lead = len(mesh.shape)
    result = values[op.result]
    local = _extents(op, env, values, sizes, lead)
    shape = tuple(local.get(d, sizes[d] // mesh.ways(axes)) for d, axes in _split(result))
    frame = Frame(result.dims, mesh.shape + shape, sizes, contexts)

    def aligned(name: str) -> Array:
        return frame.align(env[name], values[name].dims)

    match op:
        case Einsum():
            return _einsum(op, env, local, lead)
        case Map(_, expr):
            return evaluate(expr, {name: aligned(name) for name in operands(expr)}, frame)
        case Sum(_, names, coefficients):
            total = np.zeros(frame.shape)
            for name, coefficient in zip(names, coefficients, strict=True):
                total += coefficient * aligned(name)
            return total
        case Reduce(_, name, over):
            have = values[name].dims
            highest = env[name].max(axis=tuple(lead + have.index(d) for d in over))
            return frame.align(highest, [d for d in have if d not in over])
        case Take(_, table, ids, over):
            rows = values[table]
            found = [rows.dims.index(d) for d in over]
            taken = mesh.take(env[table], env[ids], found, [rows.layout.dims[i] for i in found])
            return frame.align(taken, [*values[ids].dims, *(d for d in rows.dims if d not in over)])
        case TopK(_, keys, picked, over, keep):
            order = [*(d for d in values[keys].dims if d not in over), *over]
            # Broadcasting leaves the sizes to the keys; here only the order of dims counts.
            whole = Frame(tuple(order), (), sizes)
            return top_k(
                whole.align(env[keys], values[keys].dims),
                whole.align(env[picked], values[picked].dims),
                len(over),
                sizes[keep],
            )
        case Choose(_, keys, over, keep):
            have = values[keys].dims
            order = [*(d for d in have if d not in over), *over]
            kept = choose(Frame(tuple(order), (), sizes).align(env[keys], have), len(over), keep)
            return frame.align(kept, order)
        case Iota(_, dim):
            return mesh.iota(sizes[dim], result.layout.dims[0])
        case Append():
            return _append(op, env, values, sizes, mesh, frame)


def _einsum(op: Einsum, env: Mapping[str, Array], local: Mapping[str, int], lead: int) -> Array:
    """The product of factors, once the zero points of codes are subtracted."""
    letters = dict(zip(local, string.ascii_letters, strict=False))
    terms = ["..." + "".join(letters[i] for i in each) for each in (*op.indices, op.output)]
    read = [_ungrouped(env[n], each, local, lead) for n, each in zip(op.operands, op.indices, strict=True)]
    for codes, zero in op.zeros:
        shared = "".join(letters[i] for i in op.indices[codes] if i in op.indices[zero])
        aside = np.einsum(f"{terms[zero]}->...{shared}", read[zero])
        places = [lead + at for at, i in enumerate(op.indices[codes]) if i not in op.indices[zero]]
        read[codes] = read[codes] - np.expand_dims(aside, places)
    factors = [n for n in range(len(read)) if n not in {zero for _, zero in op.zeros}]
    text = ",".join(terms[n] for n in factors) + "->" + terms[-1]
    return np.asarray(np.einsum(text, *(read[n] for n in factors), optimize=len(factors) > 2))


def _append(
    op: Append,
    env: Mapping[str, Array],
    values: Mapping[str, SpmdValue],
    sizes: Mapping[str, int],
    mesh: Mesh,
    frame: Frame,
) -> Array:
    """The cache with new entries, in the frame of the result."""
    at = frame.dims.index(op.target)
    have = values[op.new].dims
    if env[op.new].shape[len(mesh.shape) + have.index(op.source)] != sizes[op.source]:
        raise ValueError(f"a chip lacks new entries along `{op.source}`")
    entries = frame.align(env[op.new], [op.target if d == op.source else d for d in have])
    axes, filled = values[op.cache].layout.dims[at], frame.context(op.context or op.target)
    return mesh.append(env[op.cache], entries, at, axes, filled, bool(op.context))


def _split(value: SpmdValue) -> Sequence[tuple[str, tuple[str, ...]]]:
    return list(zip(value.dims, value.layout.dims, strict=True))


def _extents(
    op: Op, env: Mapping[str, Array], values: Mapping[str, SpmdValue], sizes: Mapping[str, int], lead: int
) -> dict[str, int]:
    """The local size of every index of the op; operands must agree, for NumPy would broadcast a 1."""
    extents: dict[str, int] = {}
    for use in signature(op, {name: value.value for name, value in values.items()}).uses:
        for index, dim, size in zip(use.indices, values[use.value].dims, env[use.value].shape[lead:], strict=True):
            size *= sizes.get(index, sizes[dim]) // sizes[dim]  # places in the groups that the dim counts
            if extents.setdefault(index, size) != size:
                raise ValueError(f"index `{index}` has {extents[index]} local elements here and {size} there")
    return extents


def _ungrouped(shards: Array, indices: Sequence[str], local: Mapping[str, int], lead: int) -> Array:
    """An operand with an element for each place of its indices: those of groups as often as these have places."""
    for axis, index in enumerate(indices, lead):
        if shards.shape[axis] != local[index]:
            shards = np.repeat(shards, local[index] // shards.shape[axis], axis)
    return shards
