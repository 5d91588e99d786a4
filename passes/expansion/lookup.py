"""Lookups, spelled out in primitive ops: rows that ids name, and the ids of what is largest.

A model's two ends: embeddings and positions at the start, the choice of a token at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...ir.dtype import Dtype
from ...ir.expr import Call, Const, Context, Expr, Operand, Size, operands
from ...ir.program import Append, Choose, Einsum, Iota, Map, Reduce, Take, TopK
from ...ir.wraps import Wrap
from .arguments import (
    MINUS_INFINITY,
    Arguments,
    Causal,
    add,
    at_end,
    divide,
    fits,
    in_context,
    multiply,
    subtract,
    where,
    where_equal,
    without,
)
from .body import Body
from .dims import AtMost, Constraint, Holds, Kept, Numbered, Slots, Unpadded, size_expr
from .report import Refused


def take(body: Body, target: str, given: Arguments) -> str:
    """The rows of a table, along its dims `over`, that integer ids name.

    Where table and ids have dims in common, each of those has a table of its own: there the row is
    the sum of all, those that are not meant being zero.
    """
    quantised = body.quantised(given.values[0])
    if quantised is not None:
        return _take_scaled(body, target, quantised, given)
    table = body.named(given.values[0], f"{target}.table")
    if not isinstance(given.values[1], Operand) or body.value(given.values[1].name).dtype is not Dtype.I32:
        raise Refused("The ids of `take` are a value of dtype i32.", body.at)
    ids = given.values[1].name
    have, rest = body.value(ids).dims, without(body, body.value(table).dims, given.over)
    dtype = given.dtype or (Dtype.I32 if body.value(table).dtype is Dtype.I32 else body.floating([table]))
    for dim in given.over:
        if dim in have:
            raise Refused(f"The ids of `take` have the dim `{dim}`, along which they look up.", body.at)
    if not set(rest) & set(have):
        why = "rows of several dims are counted in their order"
        body.context.constraints += [Unpadded(dim, body.at, why) for dim in given.over[1:]]
        return body.emit(Take(target, table, ids, given.over), have + rest, dtype)
    row = _place(body, f"{target}.row", given.over)
    here = Call("where", (Call("equal", (row, Operand(ids))), Operand(table), Const(0.0)))
    every = (*body.value(table).dims, *(d for d in have if d not in rest))
    picked = body.emit(Map(body.fresh(f"{target}.picked"), here), every, dtype)
    dims = have + tuple(d for d in rest if d not in have)
    return body.emit(Einsum(target, (picked,), (every,), dims), dims, dtype)


def _take_scaled(body: Body, target: str, table: str, given: Arguments) -> str:
    """The rows of a quantised table: rows as they are stored, times the scales of these rows."""
    scale = body.scale(table)
    assert scale is not None
    ids = given.values[1]
    rows = take(body, body.fresh(f"{target}.rows"), replace(given, values=(Operand(table), ids), dtype=None))
    zero = body.zero(table)
    if set(given.over) <= set(body.value(scale).dims):
        scales = replace(given, values=(Operand(scale), ids), dtype=body.value(scale).dtype)
        scale = take(body, body.fresh(f"{target}.scale"), scales)
        if zero is not None:
            zeros = replace(given, values=(Operand(zero), ids), dtype=body.floating([]))
            zero = take(body, body.fresh(f"{target}.zero"), zeros)
    elif set(given.over) & set(body.value(scale).dims):
        raise Refused("A scale has all the dims along which `take` looks up, or none.", body.at)
    if body.grouped(table):
        dims, groups = body.value(rows).dims, body.context.dims.groups
        indices = tuple(d if d in dims else groups[d][0] for d in body.value(scale).dims)
        read = (rows, scale) if zero is None else (rows, zero, scale)
        pairs = () if zero is None else ((0, 1),)
        op = Einsum(target, read, (dims, *(indices for _ in read[1:])), dims, pairs)
        return body.emit(op, dims, given.dtype or body.floating([table]))
    product = multiply(Operand(rows), Operand(scale))
    return body.emit(Map(target, product), body.value(rows).dims, given.dtype or body.floating([table]))


def positions(body: Body, target: str, given: Arguments) -> str:
    """Where the entries along L of `L into M` stand in the context, as ids."""
    assert given.into is not None
    new, context = given.into
    return body.emit(Map(target, in_context(body, f"{target}.index", new, context)), (new,), given.dtype or Dtype.I32)


def last(body: Body, target: str, given: Arguments) -> str:
    """The last element along the dims `over`, found along one after the other: where one of them is padded, a row
    counted over several is another than with their true sizes."""
    x, dtype = body.named(given.values[0], f"{target}.input"), given.dtype
    without(body, body.value(x).dims, given.over)
    for n, dim in enumerate(given.over, 1):
        end = Map(body.fresh(f"{target}.place"), subtract(Size(dim), Const(1.0)))
        at, final = body.emit(end, (), Dtype.I32), n == len(given.over)
        made = target if final else body.fresh(f"{target}.part")
        kept = without(body, body.value(x).dims, (dim,))
        x = body.emit(Take(made, x, at, (dim,)), kept, dtype if dtype and final else body.value(x).dtype)
    return x


def argmax(body: Body, target: str, given: Arguments) -> str:
    """Where the largest element over the dims `over` stands; the lowest place of several, the last where it is NaN.

    Two maxima: of the values, and of the negated places at which that is attained. A chip that holds
    a part of `over` sends its own of both, and no values.
    """
    x = body.named(given.values[0], f"{target}.input")
    dims, dtype = body.value(x).dims, body.floating([x])
    rest = without(body, dims, given.over)
    top = body.emit(Reduce(body.fresh(f"{target}.max"), x, given.over), rest, dtype)
    attained = Call("equal", (Operand(x), Operand(top)))
    place = _place(body, f"{target}.index", given.over)
    end = subtract(size_expr(given.over), Const(1.0))
    negated = Call("where", (attained, Call("negate", (place,)), Call("negate", (end,))))
    places = body.emit(Map(body.fresh(f"{target}.places"), negated), dims, Dtype.I32)
    lowest = body.emit(Reduce(body.fresh(f"{target}.lowest"), places, given.over), rest, Dtype.I32)
    return body.emit(Map(target, Call("negate", (Operand(lowest),))), rest, given.dtype or Dtype.I32)


def _place(body: Body, base: str, over: Sequence[str]) -> Expr:
    """The place along several dims at once, the last running fastest."""
    body.context.constraints += [Numbered(tuple(over), body.at)]
    found: Expr | None = None
    for dim in over:
        index = Operand(body.emit(Iota(body.fresh(base), dim), (dim,), Dtype.I32))
        found = index if found is None else add(multiply(found, Size(dim)), index)
    assert found is not None, "a composite that goes over dims goes over at least one"
    return found


def top_k(body: Body, targets: Sequence[str], given: Arguments) -> tuple[str, ...]:
    """The largest elements over the dims `over`, the largest first, and their places; as many as the dim
    `keep` has. Of equal ones the lowest place comes first.

    Of several dims the last goes first: its largest, then the largest of those along the dim before.
    So only the last has to be whole from the start.
    """
    values_name, ids_name = targets
    keep, first = given.keep, given.over[-1]
    assert keep is not None
    keys = body.named(given.values[0], f"{values_name}.input")
    rest, dtype = without(body, body.value(keys).dims, given.over), body.floating([keys])
    if keep in rest:
        hint = "declare a dim that counts what is found"
        raise Refused(f"Dim `{keep}` is one of those that are kept.", body.at, hint)
    hint = f"choose `{first}` larger: of each part along it `{keep}` elements are kept"
    counts = Unpadded(keep, body.at, "it says how many to keep")
    body.context.constraints += [AtMost(keep, first, body.at, hint), counts]
    place = _place(body, f"{ids_name}.index", given.over)
    if isinstance(place, Operand):
        ids = place.name
    else:
        ids = body.emit(Map(body.fresh(f"{ids_name}.places"), place), given.over, Dtype.I32)
    left = list(given.over)
    over: tuple[str, ...] = (left.pop(),)
    while left:
        dims = (*without(body, body.value(keys).dims, over), keep)
        best = TopK(body.fresh(f"{values_name}.part"), keys, keys, over, keep)
        where = TopK(body.fresh(f"{ids_name}.part"), keys, ids, over, keep)
        keys, ids = body.emit(best, dims, dtype), body.emit(where, dims, Dtype.I32)
        over = (left.pop(), keep)
    dims = (*rest, keep)
    return (
        body.emit(TopK(values_name, keys, keys, over, keep), dims, dtype),
        body.emit(TopK(ids_name, keys, ids, over, keep), dims, Dtype.I32),
    )


def masked(body: Body, target: str, x: Expr, causal: Causal, spreads: bool = False) -> str:
    """x, and minus infinity where the key stands after the query, or before all that the query sees.

    The first place that a query sees is worked out once for the query, and not for each of its scores. `spreads`: as
    of an emitted op.
    """
    dims, dtype = body.cover(operands(x)), body.floating(operands(x))
    for dim in (causal.query, causal.key):
        if dim not in dims:
            raise Refused(f"The mask is over dim `{dim}`, which the scores do not have.", body.at)
    own = in_context(body, f"{target}.pos_q", causal.query, causal.of or causal.key)
    other = Operand(body.emit(Iota(body.fresh(f"{target}.pos_k"), causal.key), (causal.key,), Dtype.F32))
    first = causal.first(own)
    if causal.of is not None:
        other = _place_of_slot(body, f"{target}.place_k", other, causal)
        first = Const(0.0) if first is None else Call("maximum", (first, Const(0.0)))
    if first is not None:
        start = Operand(body.emit(Map(body.fresh(f"{target}.first"), first), (causal.query,), Dtype.F32))
        x = Call("where", (Call("less_equal", (start, other)), x, MINUS_INFINITY))
    seen = Call("where", (Call("less_equal", (other, own)), x, MINUS_INFINITY))
    return body.emit(Map(body.fresh(f"{target}.masked"), seen), dims, dtype, spreads)


def _place_of_slot(body: Body, base: str, slot: Operand, causal: Causal) -> Operand:
    """The places of the entries that a cache that wraps has in its slots: of all places of a slot the last before the
    end; below 0 where nothing was written yet."""
    assert causal.of is not None
    wrap = Wrap(causal.query, causal.key, causal.of, causal.reach)
    body.context.constraints += [Kept(wrap, body.at), *_slots(body, causal.key, causal.of)]
    size = Size(causal.key)
    back = subtract(subtract(Context(causal.of), Const(1.0)), slot)  # from the last place, without rounds
    rounds = Call("floor", (divide(add(back, Const(0.5)), size),))
    place = add(slot, multiply(size, rounds))
    return Operand(body.emit(Map(body.fresh(base), place), (causal.key,), Dtype.F32))


def _slots(body: Body, dim: str, context: str) -> tuple[Constraint, ...]:
    """The constraints that a cache has slots along `dim` for the last places of `context`."""
    return Unpadded(dim, body.at, "it counts the slots of a cache that wraps"), Slots(dim, context, body.at)


def choose(body: Body, target: str, given: Arguments) -> str:
    """1 at the largest elements over the dims `over`, as many as are to be kept, and 0 elsewhere. Of equal ones the
    lowest place is kept. `among`: a mask of those that may be; `causal`: a mask as of softmax. What these leave out is
    minus infinity, which no `Choose` keeps."""
    assert given.count is not None
    keys = body.named(given.values[0], f"{target}.input")
    if given.among is not None:
        among = body.named(given.among, f"{target}.among")
        held = where(Operand(among), Operand(keys), MINUS_INFINITY)
        dims = body.cover([keys, among])
        keys = body.emit(Map(body.fresh(f"{target}.held"), held), dims, body.floating([keys]), spreads=True)
    if given.causal is not None:
        keys = masked(body, target, Operand(keys), given.causal, spreads=True)
    without(body, body.value(keys).dims, given.over)
    body.context.constraints += [Holds(given.over, given.count, body.at)]
    dtype = given.dtype or body.floating([keys])
    return body.emit(Choose(target, keys, given.over, given.count), body.value(keys).dims, dtype)


# The largest magnitude of a quantised value.
LARGEST = {Dtype.INT8: 127.0, Dtype.INT4: 7.0, Dtype.FP8: 448.0, Dtype.FP4: 6.0}


def append(body: Body, target: str, given: Arguments) -> str:
    """A new version of a cache, with new entries at the end of the context.

    A quantised cache takes them quantised: what has one scale is divided by its largest magnitude.
    """
    assert given.into is not None
    cache, (source, place) = given.values[0], given.into
    name = cache.name if isinstance(cache, Operand) else body.quantised(cache)
    if name is None or not body.is_cache(name):
        hint = "declare it with `cache`; a cache is appended to where it is declared, and once"
        raise Refused("The first argument of `append` is a cache.", body.at, hint)
    if name in body.appended:
        raise Refused(f"Cache `{name}` is appended to twice.", body.at, "append once, and read the result")
    body.appended.add(name)
    new = body.named(given.values[1], f"{target}.new")
    body.floating([new, name])
    dims, dtype = body.value(name).dims, body.value(name).dtype
    if place not in dims or source == place or source in dims:
        hint = "write `L into M`, L being a dim of what is new and M a dim of the cache"
        raise Refused(f"Cache `{name}` cannot take `{source}` into `{place}`.", body.at, hint)
    expected = tuple(source if d == place else d for d in dims)
    if body.value(new).dims != expected:
        have = _list(body.value(new).dims)
        message = f"What is appended to `{name}` has dims {_list(expected)}, and `{new}` has {have}."
        raise Refused(message, body.at)
    if given.dtype not in (None, dtype):
        raise Refused(f"The result of `append` has the cache's dtype, {dtype.value}.", body.at)
    if given.of is None:
        body.context.constraints += at_end(body, source, place)
    else:
        if given.of in (*dims, source):
            raise Refused(
                f"`of={given.of}` is a dim of what is appended.", body.at, "it counts the places of all tokens"
            )
        body.context.constraints += [fits(body, source, place), *_slots(body, place, given.of)]
        body.context.constraints += at_end(body, source, given.of)
    scale = body.scale(name)
    if scale is not None:
        new, step = _quantise(body, target, new, scale, dtype, (source, place))
        grown = Append(body.fresh(f"{target}.scale"), scale, step, source, place, given.of)
        body.scales[target] = body.emit(grown, body.value(scale).dims, body.value(scale).dtype)
    return body.emit(Append(target, name, new, source, place, given.of), dims, dtype)


def _quantise(body: Body, target: str, new: str, scale: str, dtype: Dtype, into: tuple[str, str]) -> tuple[str, str]:
    """New entries of a cache in its dtype, and by what they are to be multiplied. Zeros have the scale 1."""
    source, place = into
    dims, kept = body.value(new).dims, body.value(scale).dims
    if place not in kept:
        message = f"The scale of `{scale.removesuffix('.scale')}` lacks the dim `{place}`, along which it grows."
        raise Refused(message, body.at, "entries that are written keep their scale")
    own = tuple(source if d == place else d for d in kept)
    over = without(body, dims, own)
    size = body.emit(Map(body.fresh(f"{target}.size"), Call("abs", (Operand(new),))), dims, body.floating([new]))
    if over:
        size = body.emit(Reduce(body.fresh(f"{target}.max"), size, over), without(body, dims, over), Dtype.F32)
    largest = Const(LARGEST[dtype])
    ratio = divide(where_equal(Operand(size), Const(0.0), largest), largest)
    step = body.emit(Map(body.fresh(f"{target}.step"), ratio), own, body.value(scale).dtype)
    entry = divide(Operand(new), Operand(step))
    if dtype in (Dtype.INT8, Dtype.INT4):
        entry = Call("floor", (add(entry, Const(0.5)),))
    return body.emit(Map(body.fresh(f"{target}.quantised"), entry), dims, dtype), step


def _list(dims: Sequence[str]) -> str:
    return f"`[{','.join(dims)}]`"
