"""Composites: softmax, norms, rope and the rest, spelled out in primitive ops.

Each takes a body to add ops to, the name of its result, and its arguments as expressions over
values; helpers are called after the result (`p.max`, `p.exp`). Statistics are f32. Because they
become einsums, maps and reductions, sharding and cost need no rule of their own for any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...ir.dtype import Dtype
from ...ir.expr import Call, Const, Expr, Operand, Rotate, Size, operands
from ...ir.program import Append, Einsum, Iota, Map, Reduce, Take
from .body import Body
from .dims import AtMost, Even, size_expr
from .report import Refused

EPSILON = 1e-6  # added to a variance before its root is taken
MINUS_INFINITY = Const(float("-inf"))


@dataclass(frozen=True)
class Arguments:
    """The arguments of a call, looked up. `over`: plain dims. `into`: the dims of `L into M`.
    `causal`: those of the mask. `dtype`: the result's, where the statement names one."""

    values: tuple[Expr, ...]
    over: tuple[str, ...] = ()
    into: tuple[str, str] | None = None
    causal: tuple[str, str] | None = None
    base: float = 10000.0
    dtype: Dtype | None = None


@dataclass(frozen=True)
class Composite:
    """How a composite is called, and what expands it.

    `values`: names of its positional arguments, of which the last `optional` may be missing.
    `required` and `allowed`: its keywords. `into`: whether the last argument is `L into M`.
    """

    values: tuple[str, ...]
    build: Callable[[Body, str, Arguments], str]
    required: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()
    optional: int = 0
    into: bool = False


def add(a: Expr, b: Expr) -> Expr:
    """a + b."""
    return Call("add", (a, b))


def subtract(a: Expr, b: Expr) -> Expr:
    """a - b."""
    return Call("subtract", (a, b))


def multiply(a: Expr, b: Expr) -> Expr:
    """a * b."""
    return Call("multiply", (a, b))


def divide(a: Expr, b: Expr) -> Expr:
    """a / b."""
    return Call("divide", (a, b))


def _where_equal(a: Expr, b: Expr, then: Expr) -> Expr:
    """`then` where a equals b, a elsewhere."""
    return Call("where", (Call("equal", (a, b)), then, a))


def softmax(body: Body, target: str, given: Arguments) -> str:
    """exp(x - max) / sum over the dims `over`; with a causal mask only up to the own position.

    A fully masked row gives zeros: its maximum counts as 0, its sum as 1.
    """
    x = given.values[0]
    dims, dtype = body.cover(operands(x)), body.floating(operands(x))
    scores = body.named(x, f"{target}.input") if given.causal is None else _masked(body, target, x, given.causal)
    rest = _without(body, dims, given.over)
    top = Operand(body.emit(Reduce(body.fresh(f"{target}.max"), scores, given.over), rest, Dtype.F32))
    shifted = subtract(Operand(scores), _where_equal(top, MINUS_INFINITY, Const(0.0)))
    exp = body.emit(Map(body.fresh(f"{target}.exp"), Call("exp", (shifted,))), dims, dtype)
    total = body.emit(Einsum(body.fresh(f"{target}.sum"), (exp,), (dims,), rest), rest, Dtype.F32)
    share = divide(Operand(exp), _where_equal(Operand(total), Const(0.0), Const(1.0)))
    return body.emit(Map(target, share), dims, given.dtype or dtype)


def _masked(body: Body, target: str, x: Expr, causal: tuple[str, str]) -> str:
    """x, and minus infinity where the key stands after the query."""
    dims, dtype = body.cover(operands(x)), body.floating(operands(x))
    query, key = causal
    for dim in causal:
        if dim not in dims:
            raise Refused(f"The mask is over dim `{dim}`, which the scores do not have.", body.at)
    own = _position(body, f"{target}.pos_q", query, key)
    other = Operand(body.emit(Iota(body.fresh(f"{target}.pos_k"), key), (key,), Dtype.F32))
    seen = Call("where", (Call("less_equal", (other, own)), x, MINUS_INFINITY))
    return body.emit(Map(body.fresh(f"{target}.masked"), seen), dims, dtype)


def _position(body: Body, base: str, new: str, context: str) -> Expr:
    """Where the entries along `new` stand in `context`: at its end."""
    iota = body.emit(Iota(body.fresh(base), new), (new,), Dtype.F32)
    return add(Operand(iota), subtract(Size(context), Size(new)))


def _without(body: Body, dims: Sequence[str], over: Sequence[str]) -> tuple[str, ...]:
    for dim in over:
        if dim not in dims:
            has = ", ".join(f"`{d}`" for d in dims) or "none"
            raise Refused(f"There is no dim `{dim}` to go over.", body.at, f"the dims are {has}")
    return tuple(d for d in dims if d not in over)


def _sum(body: Body, base: str, factors: tuple[str, ...], over: Sequence[str], dtype: Dtype) -> str:
    """The sum over dims of the product of values that all have the same dims."""
    dims = body.value(factors[0]).dims
    rest = _without(body, dims, over)
    return body.emit(Einsum(body.fresh(base), factors, (dims,) * len(factors), rest), rest, dtype)


def rmsnorm(body: Body, target: str, given: Arguments) -> str:
    """x * rsqrt(mean(x * x) + epsilon) * scale, means over the dims `over`."""
    x = body.named(given.values[0], f"{target}.input")
    square_sum = _sum(body, f"{target}.square_sum", (x, x), given.over, Dtype.F32)
    mean = divide(Operand(square_sum), size_expr(given.over))
    root = Call("rsqrt", (add(mean, Const(EPSILON)),))
    return _normed(body, target, x, multiply(multiply(Operand(x), root), given.values[1]), given.dtype)


def layernorm(body: Body, target: str, given: Arguments) -> str:
    """(x - mean) * rsqrt(variance + epsilon) * scale + bias, means over the dims `over`.

    The variance comes from the sums of x and of x * x, so that both can be completed at once.
    """
    x = body.named(given.values[0], f"{target}.input")
    size = size_expr(given.over)
    mean = divide(Operand(_sum(body, f"{target}.sum", (x,), given.over, Dtype.F32)), size)
    square = divide(Operand(_sum(body, f"{target}.square_sum", (x, x), given.over, Dtype.F32)), size)
    variance = subtract(square, multiply(mean, mean))
    root = Call("rsqrt", (add(variance, Const(EPSILON)),))
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
    """Pairs (2i, 2i+1) along `over` turned by position * base^(-2i/size), positions from `at`."""
    assert given.into is not None
    (dim,) = given.over if len(given.over) == 1 else ("",)
    if not dim:
        raise Refused("`rope` turns pairs along one dim, which is no product of dims.", body.at)
    x = body.named(given.values[0], f"{target}.input")
    _without(body, body.value(x).dims, given.over)
    new, context = given.into
    _without(body, body.value(x).dims, (new,))
    body.context.constraints += [Even(dim, body.at)]
    position = _position(body, f"{target}.pos", new, context)
    index = Operand(body.emit(Iota(body.fresh(f"{target}.index"), dim), (dim,), Dtype.F32))
    pair = Call("floor", (divide(index, Const(2.0)),))
    exponent = divide(multiply(Const(-2.0), pair), Size(dim))
    angle = multiply(position, Call("power", (Const(given.base), exponent)))
    turned = add(
        multiply(Operand(x), Call("cos", (angle,))),
        multiply(Rotate(Operand(x), dim), Call("sin", (angle,))),
    )
    return body.emit(Map(target, turned), body.value(x).dims, given.dtype or body.floating([x]))


def take(body: Body, target: str, given: Arguments) -> str:
    """The rows of a table, along its dim `over`, that integer ids name."""
    table = body.named(given.values[0], f"{target}.table")
    if not isinstance(given.values[1], Operand) or body.value(given.values[1].name).dtype is not Dtype.I32:
        raise Refused("The ids of `take` are a value of dtype i32.", body.at)
    ids = given.values[1].name
    if len(given.over) != 1:
        raise Refused("`take` looks up along one dim, which is no product of dims.", body.at)
    rest = _without(body, body.value(table).dims, given.over)
    dims = body.value(ids).dims + rest
    for dim in rest:
        if dim in body.value(ids).dims:
            raise Refused(f"Dim `{dim}` is in the table and in the ids.", body.at)
    op = Take(target, table, ids, given.over[0])
    return body.emit(op, dims, given.dtype or body.floating([table]))


def append(body: Body, target: str, given: Arguments) -> str:
    """A new version of a cache, with new entries at the end of the context."""
    assert given.into is not None
    cache, (source, place) = given.values[0], given.into
    if not isinstance(cache, Operand) or not body.is_cache(cache.name):
        hint = "declare it with `cache`; a cache is appended to where it is declared, and once"
        raise Refused("The first argument of `append` is a cache.", body.at, hint)
    name = cache.name
    if name in body.appended:
        raise Refused(f"Cache `{name}` is appended to twice.", body.at, "append once, and read the result")
    body.appended.add(name)
    new = body.named(given.values[1], f"{target}.new")
    body.floating([new, name])
    dims = body.value(name).dims
    if place not in dims or source == place or source in dims:
        hint = "write `L into M`, L being a dim of what is new and M a dim of the cache"
        raise Refused(f"Cache `{name}` cannot take `{source}` into `{place}`.", body.at, hint)
    expected = tuple(source if d == place else d for d in dims)
    if body.value(new).dims != expected:
        message = (
            f"What is appended to `{name}` has dims {_list(expected)}, and `{new}` has {_list(body.value(new).dims)}."
        )
        raise Refused(message, body.at)
    dtype = body.value(name).dtype
    if given.dtype not in (None, dtype):
        raise Refused(f"The result of `append` has the cache's dtype, {dtype.value}.", body.at)
    body.context.constraints += [AtMost(source, place, body.at)]
    return body.emit(Append(target, name, new, source, place), dims, dtype)


def _list(dims: Sequence[str]) -> str:
    return f"`[{','.join(dims)}]`"


def total(body: Body, target: str, given: Arguments) -> str:
    """The sum over the dims `over`."""
    x = body.named(given.values[0], f"{target}.input")
    return _sum(body, target, (x,), given.over, given.dtype or body.floating([x]))


def mean(body: Body, target: str, given: Arguments) -> str:
    """The mean over the dims `over`: a sum, then a map that divides."""
    x = body.named(given.values[0], f"{target}.input")
    dtype = given.dtype or body.floating([x])
    added = _sum(body, f"{target}.sum", (x,), given.over, dtype)
    return body.emit(Map(target, divide(Operand(added), size_expr(given.over))), body.value(added).dims, dtype)


def largest(body: Body, target: str, given: Arguments) -> str:
    """The maximum over the dims `over`."""
    x = body.named(given.values[0], f"{target}.input")
    rest = _without(body, body.value(x).dims, given.over)
    return body.emit(Reduce(target, x, given.over), rest, given.dtype or body.floating([x]))


COMPOSITES = {
    "softmax": Composite(("x",), softmax, required=("over",), allowed=("mask",)),
    "rmsnorm": Composite(("x", "scale"), rmsnorm, required=("over",)),
    "layernorm": Composite(("x", "scale", "bias"), layernorm, required=("over",), optional=1),
    "rope": Composite(("x",), rope, required=("over", "at"), allowed=("base",)),
    "take": Composite(("table", "ids"), take, required=("over",)),
    "append": Composite(("cache", "new"), append, into=True),
    "sum": Composite(("x",), total, required=("over",)),
    "mean": Composite(("x",), mean, required=("over",)),
    "max": Composite(("x",), largest, required=("over",)),
}
