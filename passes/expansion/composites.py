"""Composites: softmax, norms, rope and the rest, spelled out in primitive ops.

Each takes a body to add ops to, the name of its result, and its arguments as expressions over
values; helpers are called after the result (`p.max`, `p.exp`). Statistics are f32. Because they
become einsums, maps and reductions, sharding and cost need no rule of their own for any of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...ir.diagnostics import listed
from ...ir.dtype import Dtype
from ...ir.expr import Call, Const, Expr, Operand, Rotate, Size, operands
from ...ir.program import Einsum, Iota, Map, Reduce
from .arguments import (
    MINUS_INFINITY,
    Arguments,
    Composite,
    Turned,
    add,
    divide,
    in_context,
    multiply,
    one,
    subtract,
    where,
    where_equal,
    without,
)
from .body import Body
from .dims import Even, size_expr
from .lookup import append, argmax, choose, last, masked, positions, take, top_k
from .report import Refused


def softmax(body: Body, target: str, given: Arguments) -> str:
    """exp(x - max) / sum over the dims `over`; with a causal mask only up to the own position.

    A fully masked row gives zeros: its maximum counts as 0, its sum as 1. A sink is one score more for the maximum and
    the sum, whose share goes to nothing; it is added to them once they are complete. `among`: a mask of the scores
    that count.
    """
    x = given.values[0]
    dims, dtype = body.cover(operands(x)), body.floating(operands(x))
    among = None if given.among is None else Operand(body.named(given.among, f"{target}.among"))
    if among is not None:
        body.cover([*operands(x), among.name])
        x = where(among, x, MINUS_INFINITY)
    if given.causal is not None:
        scores = masked(body, target, x, given.causal, spreads=among is not None)
    elif among is not None:
        scores = body.emit(Map(body.fresh(f"{target}.masked"), x), dims, dtype, spreads=True)
    else:
        scores = body.named(x, f"{target}.input")
    rest = without(body, dims, given.over)
    sink = None if given.sink is None else _sink(body, target, given.sink, rest)
    top = Operand(body.emit(Reduce(body.fresh(f"{target}.max"), scores, given.over), rest, Dtype.F32))
    if sink is not None:
        top = Operand(body.emit(Map(body.fresh(f"{target}.top"), Call("maximum", (top, sink))), rest, Dtype.F32))
    shift = where_equal(top, MINUS_INFINITY, Const(0.0))
    power: Expr = Call("exp", (subtract(Operand(scores), shift),))
    power = power if among is None else where(among, power, Const(0.0))  # 0 there already, and seen to be
    exp = body.emit(Map(body.fresh(f"{target}.exp"), power), dims, dtype)
    total = Operand(body.emit(Einsum(body.fresh(f"{target}.sum"), (exp,), (dims,), rest), rest, Dtype.F32))
    if sink is not None:
        more = add(total, Call("exp", (subtract(sink, shift),)))
        total = Operand(body.emit(Map(body.fresh(f"{target}.total"), more), rest, Dtype.F32))
    share = divide(Operand(exp), where_equal(total, Const(0.0), Const(1.0)))
    return body.emit(Map(target, share), dims, given.dtype or dtype)


def _sink(body: Body, target: str, sink: Expr, rest: tuple[str, ...]) -> Expr:
    """A sink as a value or a number, once it is known to have no dims beyond those of the sums."""
    if not operands(sink):
        return sink
    body.floating(operands(sink))
    value = body.named(sink, f"{target}.sink")
    for dim in body.value(value).dims:
        if dim not in rest:
            has = listed(rest) or "none"
            raise Refused(f"The sink has dim `{dim}`, which the sums do not have.", body.at, f"their dims are {has}")
    return Operand(value)


def _sum(body: Body, base: str, factors: tuple[str, ...], over: Sequence[str], dtype: Dtype) -> str:
    """The sum over dims of the product of values that all have the same dims."""
    dims = body.value(factors[0]).dims
    rest = without(body, dims, over)
    return body.emit(Einsum(body.fresh(base), factors, (dims,) * len(factors), rest), rest, dtype)


def rmsnorm(body: Body, target: str, given: Arguments) -> str:
    """x * rsqrt(mean(x * x) + epsilon) * scale, means over the dims `over`."""
    x = body.named(given.values[0], f"{target}.input")
    square_sum = _sum(body, f"{target}.square_sum", (x, x), given.over, Dtype.F32)
    mean = divide(Operand(square_sum), size_expr(given.over))
    root = Call("rsqrt", (add(mean, Const(given.epsilon)),))
    return _normed(body, target, x, multiply(multiply(Operand(x), root), given.values[1]), given.dtype)


def layernorm(body: Body, target: str, given: Arguments) -> str:
    """(x - mean) * rsqrt(variance + epsilon) * scale + bias, means over the dims `over`.

    The variance comes from the sums of x and of x * x, so that both can be completed at once. Rounded it may come out
    below 0 where x hardly varies, and counts as 0 then.
    """
    x = body.named(given.values[0], f"{target}.input")
    size = size_expr(given.over)
    mean = divide(Operand(_sum(body, f"{target}.sum", (x,), given.over, Dtype.F32)), size)
    square = divide(Operand(_sum(body, f"{target}.square_sum", (x, x), given.over, Dtype.F32)), size)
    variance = Call("relu", (subtract(square, multiply(mean, mean)),))
    root = Call("rsqrt", (add(variance, Const(given.epsilon)),))
    expr = multiply(multiply(subtract(Operand(x), mean), root), given.values[1])
    if len(given.values) == 3:
        expr = add(expr, given.values[2])
    return _normed(body, target, x, expr, given.dtype)


def _normed(body: Body, target: str, x: str, expr: Expr, dtype: Dtype | None) -> str:
    """The last map of a norm: x's dims and dtype, whatever scale and bias have."""
    body.floating(operands(expr))
    dims = body.cover([x, *operands(expr)])
    if dims != body.value(x).dims:
        raise Refused("Scale and bias have no dims beyond those of what is normed.", body.at)
    return body.emit(Map(target, expr), dims, dtype or body.floating([x]))


def rope(body: Body, target: str, given: Arguments) -> str:
    """Pairs (2i, 2i+1) along `over` turned by position * base^(-2i/size), positions from `at`.

    With a `scaling`, the frequencies base^(-2i/size) are slowed down as it says. By its attention factor cos and sin
    are multiplied together, once for each result.
    """
    assert given.into is not None
    (dim,) = given.over if len(given.over) == 1 else ("",)
    if not dim:
        raise Refused("`rope` turns pairs along one dim, which is no product of dims.", body.at)
    x = body.named(given.values[0], f"{target}.input")
    without(body, body.value(x).dims, given.over)
    new, context = given.into
    without(body, body.value(x).dims, (new,))
    body.context.constraints += [Even(dim, body.at)]
    position = in_context(body, f"{target}.pos", new, context)
    index = Operand(body.emit(Iota(body.fresh(f"{target}.index"), dim), (dim,), Dtype.F32))
    pair = Call("floor", (divide(index, Const(2.0)),))
    exponent = divide(multiply(Const(-2.0), pair), Size(dim))
    frequency: Expr = Call("power", (Const(given.base), exponent))
    if given.scaling is not None:
        plain = body.emit(Map(body.fresh(f"{target}.plain"), frequency), (dim,), Dtype.F32)
        slowed = given.scaling.slowed(body, Operand(plain), Turned(target, dim, context, given.base, pair))
        frequency = Operand(body.emit(Map(body.fresh(f"{target}.frequency"), slowed), (dim,), Dtype.F32))
    angle = multiply(position, frequency)
    turned = add(multiply(Operand(x), Call("cos", (angle,))), multiply(Rotate(Operand(x), dim), Call("sin", (angle,))))
    magnitude = Const(1.0) if given.scaling is None else given.scaling.magnitude(context)
    if magnitude != Const(1.0):
        turned = multiply(magnitude, turned)
    return body.emit(Map(target, turned), body.value(x).dims, given.dtype or body.floating([x]))


def total(body: Body, target: str, given: Arguments) -> str:
    """The sum over the dims `over`."""
    x = body.named(given.values[0], f"{target}.input")
    return _sum(body, target, (x,), given.over, given.dtype or body.floating([x]))


def mean(body: Body, target: str, given: Arguments) -> str:
    """The mean over the dims `over`: a sum, in f32 since 16 bits may not hold it, then a map that divides."""
    x = body.named(given.values[0], f"{target}.input")
    dtype = given.dtype or body.floating([x])
    added = _sum(body, f"{target}.sum", (x,), given.over, Dtype.F32)
    return body.emit(Map(target, divide(Operand(added), size_expr(given.over))), body.value(added).dims, dtype)


def largest(body: Body, target: str, given: Arguments) -> str:
    """The maximum over the dims `over`."""
    x = body.named(given.values[0], f"{target}.input")
    rest = without(body, body.value(x).dims, given.over)
    return body.emit(Reduce(target, x, given.over), rest, given.dtype or body.floating([x]))


COMPOSITES = {
    "softmax": Composite(
        ("x",),
        one(softmax),
        "exp(x) over its sum along the dims `over`",
        required=("over",),
        allowed=("mask", "sink", "among"),
    ),
    "rmsnorm": Composite(
        ("x", "scale"), one(rmsnorm), "x * rsqrt(mean(x * x) + eps) * scale", required=("over",), allowed=("eps",)
    ),
    "layernorm": Composite(
        ("x", "scale", "bias"),
        one(layernorm),
        "(x - mean) * rsqrt(variance + eps) * scale + bias; the variance is mean(x * x) - mean * mean, or 0",
        required=("over",),
        allowed=("eps",),
        optional=1,
    ),
    "rope": Composite(
        ("x",),
        one(rope),
        "rotary embedding: pairs (2i, 2i+1) along `over`, which is even, turned by position * base^(-2i/size)",
        required=("over", "at"),
        allowed=("base", "scaling"),
    ),
    "take": Composite(
        ("table", "ids"), one(take), "the rows of a table, along its dims `over`, that i32 ids name", required=("over",)
    ),
    "positions": Composite(
        (), one(positions), "where the entries along L stand in the context M, as i32 ids", into=True
    ),
    "last": Composite(("x",), one(last), "the last element along the dims `over`", required=("over",)),
    "argmax": Composite(
        ("x",), one(argmax), "where the largest stands, as i32; the lowest place of several", required=("over",)
    ),
    "top_k": Composite(
        ("x",),
        top_k,
        "the largest, in order, and where they stand, as i32; as many as the dim `keep` has",
        required=("over", "keep"),
        results=("values", "ids"),
    ),
    "choose": Composite(
        ("x",),
        one(choose),
        "1 at the largest, as many as `keep` says if masks show so many, and 0 elsewhere: what is multiplied by it is "
        "chosen",
        required=("over", "keep"),
        allowed=("mask", "among"),
        counts=True,
    ),
    "append": Composite(
        ("cache", "new"),
        one(append),
        "the cache with new entries at the end of its context",
        allowed=("of",),
        into=True,
    ),
    "sum": Composite(("x",), one(total), "the sum", required=("over",)),
    "mean": Composite(("x",), one(mean), "the mean", required=("over",)),
    "max": Composite(("x",), one(largest), "the maximum", required=("over",)),
}
