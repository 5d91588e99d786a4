"""Shrunken dims: sizes at which a sharded program runs on virtual chips in little time, yet shows every mistake.

No two dims are of one size, no chip holds a single element of a dim that is larger than 1, and
everything divides; so a transposed or swapped dim, or a wrong block, changes the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...ir.choices import with_choices, with_sharded_choices
from ...ir.dataflow import ops
from ...ir.dtype import Dtype
from ...ir.expr import counted_dims, divisors, operands, sized_dims
from ...ir.program import (
    Append,
    Choose,
    Einsum,
    Map,
    Op,
    Program,
    Region,
    Repeat,
    Streamed,
    Take,
    TopK,
    signature,
    stored_in,
)
from ...ir.record import record
from ...ir.spmd import Compute, SpmdProgram, Step
from ...ir.streams import host_tensors
from .pointwise import Array

MOST_KEPT = 2  # of what is chosen
# Elements of the largest value, where the model has fewer: as many are made in no time, and its own sizes show less.
MOST_GROWN = 1 << 20
MOST_REPEATS = 2  # enough to show what a repetition hands to the next
# Terms of a sum that is divided by, at the least. Of one token of thousands the root mean square of two numbers is a
# hundredth of what is usual, which makes what rounding left of them a hundred times as large; that of eight is of none.
FEWEST_TERMS = 8


@record
class Shrunken:
    """A program with the sizes of its phases and its repeats cut, and its sharded phases cut alike."""

    program: Program
    spmds: tuple[SpmdProgram, ...]


def shrink(
    program: Program,
    spmds: Sequence[SpmdProgram],
    margins: Mapping[str, int] | None = None,
    most_repeats: int = MOST_REPEATS,
) -> Shrunken:
    """Cut `program` and the sharded programs of some of its phases down to small sizes.

    A dim of size 1 stays 1. Every other becomes the least common multiple of all the numbers of blocks into which some
    layout splits it, times a factor of at least 2, with sizes that differ from dim to dim. Groups have two places.
    Factors are even where pairs must stay together; an append's target is longer than its source, a context than the
    entries whose places are counted, a table than the positions that pick its rows, what is picked from than the pick.
    A sum that is divided by, as a norm's, has FEWEST_TERMS terms and more, and products that it adds up twice as many.
    A padded dim stays padded. A dim has one size in all the phases in which it is not 1. Repeats run `most_repeats`
    times at most. Of what is chosen two are kept at most, of a multiple of these and of twice as many, and of what
    chooses one dim has enough places on each chip for all to be chosen as often. Phases that are not among `spmds` are
    dropped. `margins`: by how much dims exceed what they must exceed, or 0.

    Where that makes the largest value larger than it is in the model, and than MOST_GROWN, entries need not be chosen
    as often; and where that is not enough, sizes stay as they are, if phases have the same.
    """
    sizes = _small_sizes(program, spmds, margins or {})
    cut = tuple(
        replace(s, sizes=n, body=_cut_spmd_repeats(s.body, most_repeats)) for s, n in zip(spmds, sizes, strict=True)
    )
    phases = tuple(replace(program.phase(s.phase), sizes=s.sizes) for s in cut)
    small_program = replace(program, body=_cut_repeats(program.body, most_repeats), phases=phases)
    return Shrunken(with_choices(small_program), tuple(map(with_sharded_choices, cut)))


def _small_sizes(
    program: Program, spmds: Sequence[SpmdProgram], margins: Mapping[str, int]
) -> list[tuple[tuple[str, int], ...]]:
    """The sizes of each phase: of those that show most the first that are few enough."""
    classes = _classes(program, [d for d, _ in spmds[0].sizes])
    own = [spmd.sizes for spmd in spmds]
    most = max(MOST_GROWN, _largest(spmds, own))
    for as_often in (True, False):
        small = _assign(program, spmds, classes, margins, as_often)
        sizes = [tuple(_shrunk(dict(each), classes, small, program.padding).items()) for each in own]
        if _largest(spmds, sizes) <= most:
            return sizes
    one_size = all(len({n for each in own if (n := dict(each)[d]) > 1}) <= 1 for d, _ in own[0])
    return own if one_size and not margins else sizes


def _largest(spmds: Sequence[SpmdProgram], sizes: Sequence[Sequence[tuple[str, int]]]) -> int:
    """The elements of the largest value."""
    of = [(value.dims, dict(each)) for spmd, each in zip(spmds, sizes, strict=True) for value in spmd.values]
    return max((math.prod(each[d] for d in dims) for dims, each in of), default=1)


def _shrunk(
    sizes: Mapping[str, int], classes: Mapping[str, str], small: Mapping[str, int], padding: Iterable[tuple[str, str]]
) -> dict[str, int]:
    """The small sizes of a phase; a dim that is not padded there is as large as its padded size."""
    full = {true: dim for dim, true in padding if sizes[true] == sizes[dim]}
    return {d: 1 if n == 1 else small[classes[full.get(d, d)]] for d, n in sizes.items()}


def _cut_repeats(region: Region[Op], most: int) -> Region[Op]:
    items: list[Op | Repeat[Op]] = []
    for item in region.items:
        if isinstance(item, Repeat):
            item = replace(item, count=min(item.count, most), body=_cut_repeats(item.body, most))
        items.append(_keeping_few(item) if isinstance(item, Choose) else item)
    return replace(region, items=tuple(items))


def _cut_spmd_repeats(region: Region[Step], most: int, around: tuple[int, ...] = ()) -> Region[Step]:
    """`around`: how often each repeat around the region runs, uncut."""
    items = []
    for item in region.items:
        if isinstance(item, Repeat):
            inside = _cut_spmd_repeats(item.body, most, (*around, item.count))
            item = replace(item, count=min(item.count, most), body=inside)
        if isinstance(item, Compute) and isinstance(item.op, Choose):
            item = replace(item, op=_keeping_few(item.op))
        items.append(item)
    stored = tuple(replace(one, streamed=_cut_stream(one.streamed, most, around)) for one in region.stored)
    return Region(stored, tuple(items))


def _cut_stream(streamed: Streamed | None, most: int, around: tuple[int, ...]) -> Streamed | None:
    """What is streamed of so many repetitions, of those that are left: all, or one of the outermost repeat at least."""
    if streamed is None:
        return None
    outer, inner = around[0], math.prod(around[1:])
    cut = [min(count, most) for count in around]
    layers = max(1, streamed.count // inner * cut[0] // outer)
    return replace(streamed, count=layers * math.prod(cut[1:]))


def _keeping_few(op: Choose) -> Choose:
    return replace(op, keep=min(op.keep, MOST_KEPT))


def _classes(program: Program, dims: Iterable[str]) -> dict[str, str]:
    """For each dim the name of its class: dims share a size where an einsum names one as another, and
    where they have one true size."""
    parent = {d: d for d in dims}

    def find(dim: str) -> str:
        parent.setdefault(dim, dim)
        while parent[dim] != dim:
            dim = parent[dim]
        return dim

    first: dict[str, str] = {}
    groups = _groups(program)
    for dim, true in program.padding:
        parent[find(dim)] = find(first.setdefault(true, dim))
    values = program.table()
    for op in ops(program):
        if isinstance(op, Einsum):
            for name, indices in zip((*op.operands, op.result), (*op.indices, op.output), strict=True):
                for dim, index in zip(values[name].dims, indices, strict=True):
                    if dim not in groups:
                        parent[find(index)] = find(dim)
    return {d: find(d) for d in parent}


def _groups(program: Program) -> dict[str, str]:
    """The dims that count groups, each with the dim whose places these are."""
    found = {count: dim for one in stored_in(program.body) for dim, count in one.groups}
    true = dict(program.padding)
    return found | {true[count]: true[dim] for count, dim in found.items() if count in true}


def _assign(
    program: Program,
    spmds: Sequence[SpmdProgram],
    classes: Mapping[str, str],
    margins: Mapping[str, int],
    as_often: bool,
) -> dict[str, int]:
    """A size for each class that is not 1 everywhere, smallest for those in the largest ops. `as_often`: what chooses
    has enough places for all to be chosen so."""
    ways = _ways(spmds, classes)
    true = {classes[dim]: classes[own] for dim, own in program.padding}
    values = program.table()
    pairs = {classes[d] for op in ops(program) for d in signature(op, values).even}
    sources, least = _sources(program, classes), _least(program, classes, ways)
    long = {c: n for c, n in ways.items() if c in _long(spmds, classes)}
    rounds, waits = _rounds(program, classes, long, sources, as_often)
    margin = {name: max(margins.get(d, 0) for d in classes if classes[d] == name) for name in ways}
    work = _work(program, ways, classes)
    groups = {classes[count]: classes[dim] for count, dim in _groups(program).items() if classes[count] in ways}
    named = [name for name in ways if name not in true.values() and name not in groups]
    order = sorted(named, key=lambda name: (-work[name], -ways[name], named.index(name)))
    sizes: dict[str, int] = {}
    while order:
        name = _next(order, sources, waits)
        order.remove(name)
        unit = ways[name] * (2 if name in pairs else 1) * rounds(name, sizes)
        counts = [count for count, dim in groups.items() if dim == name]
        if counts:  # each group has two places
            unit = 2 * math.lcm(unit, *(ways[count] for count in counts))
        longer_than = max((sizes.get(source, 0) for source in sources[name]), default=0) + margin[name]
        longer_than = max(longer_than, least.get(name, 0) - 1)
        size = -(-2 * ways[name] // unit) * unit
        taken = _with_true(size, ways[name], unit, name in true)
        while taken[-1] <= longer_than or {*taken, *(n // 2 for n in taken if counts)} & {1, *sizes.values()}:
            size += unit
            taken = _with_true(size, ways[name], unit, name in true)
        sizes[name] = size
        if name in true:
            sizes[true[name]] = taken[-1]
        for count in counts:
            sizes[count] = size // 2
            if count in true:
                sizes[true[count]] = taken[-1] // 2
    return sizes


def _next(order: Sequence[str], sources: Mapping[str, set[str]], waits: Mapping[str, set[str]]) -> str:
    """The first class in order that waits for no other. Where all do, one that need not exceed another, since what it
    divides by is only for runs in which all is chosen as often; a cycle of appends is cut at the first."""
    left = set(order)
    free = [name for name in order if not sources[name] & left] or [*order]
    return next((name for name in free if not waits.get(name, set()) & left), free[0])


def _with_true(size: int, ways: int, unit: int, padded: bool) -> tuple[int, ...]:
    """A size and, of a padded dim, a true one: of several shards the last is empty, and the one before not full."""
    if not padded:
        return (size,)
    return size, size - (size // ways if ways > 1 else 0) - unit // ways


def _ways(spmds: Sequence[SpmdProgram], classes: Mapping[str, str]) -> dict[str, int]:
    """For each class that is not 1 everywhere, into how many blocks it must divide."""
    ways = {classes[d]: 1 for spmd in spmds for d, n in spmd.sizes if n > 1}
    for spmd in spmds:
        held = [(value.dims, value.layout.dims) for value in spmd.values]
        fetched = [(one.value.dims, one.parts.dims) for one in host_tensors(spmd).values()]
        for dims, layout in held + fetched:
            for dim, axes in zip(dims, layout, strict=True):
                if axes and classes[dim] in ways:
                    ways[classes[dim]] = math.lcm(ways[classes[dim]], spmd.mesh.size(*axes))
    return ways


def _sources(program: Program, classes: Mapping[str, str]) -> dict[str, set[str]]:
    """For each class those that it must exceed: an append's target its source, a context the entries whose places in it
    are counted, a table as many rows as computed ids may name, a dim of which the largest are picked their number."""
    sources: dict[str, set[str]] = {name: set() for name in classes.values()}
    made = {op.result: op for op in ops(program)}
    for op in ops(program):
        match op:
            case Append(_, _, _, source, target, context):
                sources[classes[target]].add(classes[source])
                if context is not None:
                    sources[classes[context]] |= {classes[source], classes[target]}
            case Map(_, expr):
                for dim, counted in counted_dims(expr).items():
                    sources[classes[dim]] |= {classes[d] for d in counted}
            case Take(_, _, ids, over):
                match made.get(ids):
                    case Map(_, expr):
                        sources[classes[over[0]]] |= {classes[d] for d in sized_dims(expr)}
            case TopK(_, _, _, over, keep):
                sources[classes[over[-1]]].add(classes[keep])
    return {name: longer_than - {name} for name, longer_than in sources.items()}


def _least(program: Program, classes: Mapping[str, str], ways: Mapping[str, int]) -> dict[str, int]:
    """For each class over which a sum goes that is divided by, how large it is at the least, for FEWEST_TERMS in all.
    Where it adds up products, these are near 0 together if they have few terms, half of which an activation takes: they
    have twice as many. What is chosen from, or is left of it in the groups that are kept first, has twice as many as
    are kept: two dims of `ways` have so together."""
    values = program.table()
    sums = {op.result: op for op in ops(program) if isinstance(op, Einsum)}
    maps = {op.result: operands(op.expr) for op in ops(program) if isinstance(op, Map)}
    below = {name for op in ops(program) if isinstance(op, Map) for name in divisors(op.expr)}

    def summed(names: Iterable[str]) -> list[Einsum]:
        return [sums[name] for each in names for name in (each, *maps.get(each, ())) if name in sums]

    divided = summed(below)
    least: dict[str, int] = {}
    added = summed(name for op in divided for name in op.operands)
    for op, terms in (*((op, FEWEST_TERMS) for op in divided), *((op, 2 * FEWEST_TERMS) for op in added)):
        over = signature(op, values).contracted
        for dim in over:
            each = next(n for n in range(2, terms + 1) if n ** len(over) >= terms)
            least[classes[dim]] = max(each, least.get(classes[dim], 0))
    for one in (each for op in ops(program) if isinstance(op, Choose) for each in values[op.result].chosen):
        match [classes[d] for d in one.over if classes[d] in ways and d not in one.groups]:
            case [alone]:
                entries = -(-2 * min(one.keep, MOST_KEPT) // min(one.kept_groups or 1, MOST_KEPT))
                least[alone] = max(entries, least.get(alone, 0))
    return least


def _long(spmds: Sequence[SpmdProgram], classes: Mapping[str, str]) -> set[str]:
    """The classes that are 1 in no phase."""
    return {classes[d] for d, _ in spmds[0].sizes} - {classes[d] for spmd in spmds for d, n in spmd.sizes if n == 1}


def _rounds(
    program: Program,
    classes: Mapping[str, str],
    long: Mapping[str, int],
    sources: Mapping[str, set[str]],
    as_often: bool,
) -> tuple[Callable[[str, Mapping[str, int]], int], dict[str, set[str]]]:
    """By what the size of a class is to divide on every chip, once those that it waits for, given too, have theirs:
    what is chosen from by what is kept, what chooses, `as_often`, by how many of its entries choose all. Of several
    dims that choose one is enough, if it is `long`, that is 1 in no phase: the one that is split into fewest blocks,
    which are given; better one that what is chosen from need not exceed, as a context that is chosen from does the
    entries it counts."""
    kept, choosing = dict[str, int](), dict[str, tuple[list[str], int]]()
    waits = dict[str, set[str]]()
    values = program.table()
    for op in ops(program):
        if isinstance(op, Choose):
            over, keep = [classes[d] for d in op.over], min(op.keep, MOST_KEPT)
            kept[over[-1]] = keep
            per = [classes[d] for d in values[op.keys].dims if classes[d] not in over]
            below = _exceeded(over, sources)
            enough = sorted((c for c in per if c in long), key=lambda c: (c in below, long[c]))[:1]
            for name in (enough or per) if as_often else ():
                choosing[name] = over, keep
                waits.setdefault(name, set()).update(over)

    def rounds(name: str, sizes: Mapping[str, int]) -> int:
        over, keep = choosing.get(name, ([], 1))
        return math.lcm(kept.get(name, 1), max(1, math.prod(sizes.get(o, 1) for o in over) // keep))

    return rounds, waits


def _exceeded(names: Iterable[str], sources: Mapping[str, set[str]]) -> set[str]:
    """The classes that some must exceed, directly or by others."""
    found: set[str] = set()
    todo = list(names)
    while todo:
        more = sources[todo.pop()] - found
        found |= more
        todo += more
    return found


def _work(program: Program, ways: Mapping[str, int], classes: Mapping[str, str]) -> dict[str, int]:
    """For each class the size of the largest op that it takes part in, at the least sizes."""
    work = dict.fromkeys(ways, 0)
    values = program.table()
    for op in ops(program):
        names = [classes[i] for i in signature(op, values).indices if classes[i] in ways]
        for name in names:
            work[name] = max(work[name], math.prod(2 * ways[n] for n in names))
    return work


def zero_padded(program: Program, sizes: Mapping[str, int], stored: Mapping[str, Array]) -> dict[str, Array]:
    """Stored tensors of true sizes, by name, with zeros beyond them; in e8m0, which has none, ones. `sizes` are the
    padded ones."""
    values, out = program.table(), dict(stored)
    for name, array in stored.items():
        dims = values[name].dims
        stacked = array.ndim - len(dims)
        grown = [sizes[d] - n for d, n in zip(dims, array.shape[stacked:], strict=True)]
        if any(grown):
            fill = 1 if values[name].dtype is Dtype.E8M0 else 0
            out[name] = np.pad(array, [(0, 0)] * stacked + [(0, n) for n in grown], constant_values=fill)
    return out


def true_part(program: Program, sizes: Mapping[str, int], name: str, array: Array) -> Array:
    """A value at its true places; its dims are the last of the array's."""
    true = program.true_sizes(sizes)
    places: tuple[Any, ...] = (..., *(slice(true[d]) for d in program.table()[name].dims))
    return np.asarray(array[places])
