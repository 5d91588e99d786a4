"""Caches that grow: new entries at the end of the context, quantised where the cache is."""

from __future__ import annotations

from collections.abc import Sequence

from ...ir.dtype import Dtype
from ...ir.expr import Call, Const, Operand
from ...ir.program import Append, Map, Reduce
from .arguments import Arguments, add, at_end, divide, fits, where_equal, without
from .body import Body
from .report import Refused

LARGEST = {Dtype.INT8: 127.0, Dtype.INT4: 7.0, Dtype.FP8: 448.0}  # the largest magnitude of a quantised value


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
    body.context.constraints += [fits(body, source, place), *at_end(body, source, place)]
    scale = body.scale(name)
    if scale is not None:
        new, step = _quantise(body, target, new, scale, dtype, (source, place))
        grown = Append(body.fresh(f"{target}.scale"), scale, step, source, place)
        body.scales[target] = body.emit(grown, body.value(scale).dims, body.value(scale).dtype)
    return body.emit(Append(target, name, new, source, place), dims, dtype)


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
    if dtype is not Dtype.FP8:
        entry = Call("floor", (add(entry, Const(0.5)),))
    return body.emit(Map(body.fresh(f"{target}.quantised"), entry), dims, dtype), step


def _list(dims: Sequence[str]) -> str:
    return f"`[{','.join(dims)}]`"
