"""The collectives that leave each layout: the graph in which resharding is a path.

`leaving` is the one place that says which collectives there are. The solver prices its arcs, the
inserter turns the chosen ones into `Collective`s, so what is priced is what runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from functools import cached_property, lru_cache
from itertools import combinations, permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...ir.collective import (
    AllGather,
    AllReduce,
    AllToAll,
    Collective,
    CollectiveKind,
    Embed,
    Permute,
    ReduceScatter,
    Slice,
    sent_as,
)
from ...ir.layout import Layout, Reduction
from ...ir.record import record
from .space import PARTIAL_MAX, PARTIAL_SUM, REPLICATED, TENSOR_MODES, Arrangements, Array, Mask, Space, distinct

KINDS = tuple(CollectiveKind)
QUICKEST = -1  # the way of an arc for which it is left open
NONE = -1  # in the place of a twin that there is not
MOST_PUT = 1 << 14  # rows whose axes are put elsewhere at a time: one by one a layer's take a fiftieth of its plan
MOST_WAYS = 1 << 18  # over one stop that are looked at together: their arrays stay in a cache
Price = Callable[[CollectiveKind, Sequence[str], Any, Any], Any]  # (kind, axes, local bytes before, after) -> seconds
Floats = NDArray[np.float64]


@record(eq=False)
class Arcs:
    """Collectives as arcs between rows of a space: `source`, `target`, `kind` (index into KINDS),
    `axes` (over which axes, as a bit mask), `sending` (in which of the ways of `Network.sendings` its bytes go, or
    QUICKEST). All of shape [arcs]. Those that differ in their sending alone are twins."""

    source: Array
    target: Array
    kind: Array
    axes: Array
    sending: Array

    def __len__(self) -> int:
        return len(self.source)

    def take(self, arcs: Array | Mask) -> Arcs:
        """Some of the arcs."""
        return Arcs(self.source[arcs], self.target[arcs], self.kind[arcs], self.axes[arcs], self.sending[arcs])

    def sent(self, sending: Array) -> Arcs:
        """The same arcs, whose bytes go in these ways."""
        return Arcs(self.source, self.target, self.kind, self.axes, sending)

    @cached_property
    def twins(self) -> Array | None:
        """Of each arc its twin in each way, itself among them, or NONE. Shape [arcs, ways]; None where all take the
        quickest."""
        if not len(self) or (self.sending == QUICKEST).all():
            return None
        ends = np.stack([self.source, self.target, self.kind, self.axes])
        _, number = distinct(ends)
        found = np.full((int(number.max()) + 1, int(self.sending.max()) + 1), NONE)
        some = np.flatnonzero(self.sending != QUICKEST)
        found[number[some], self.sending[some]] = some
        return np.asarray(found[number])


@lru_cache(maxsize=256)
def leaving(space: Space) -> Arcs:
    """Every collective that can be applied to a layout of `space` and ends in the space.

    Gathers, scatters, all-to-alls and slices over several axes at once are arcs of their own: slices in turn cost
    as little, and hold what is between. Embeds are free, so those of one axis make up the rest. Sorted by source,
    then target.
    """
    parts = [*(_arcs(space, puts) for puts in _together(_puts(space))), _permutes(space)]
    every = Arcs(*(np.concatenate([getattr(part, one.name) for part in parts]) for one in fields(Arcs)))
    order = np.lexsort((every.kind, every.target, every.source))
    return every.take(order)


@lru_cache(maxsize=256)
def worthwhile(space: Space, joins: bool) -> Arcs:
    """The collectives of `leaving` that a cheapest plan may have.

    A whole copy is embedded only where it joins a partial sum in a Sum (`joins`): anywhere else the
    copies can stay as they are, for whatever reads a partial sum reads a whole copy too, and where
    the sum would be completed each chip has the result, or slices it off. A block is embedded among
    zeros anywhere.
    """
    arcs = leaving(space)
    if joins:
        return arcs
    whole = (arcs.kind == KINDS.index(CollectiveKind.EMBED)) & (space.shards[arcs.source] == space.shards[arcs.target])
    return arcs.take(~whole)


@record(eq=False)
class _Put:
    """The `moved` axes of some `rows` put at a `place` and a `position`, by a collective of a `kind`. Shape [rows,
    axes]."""

    kind: CollectiveKind
    rows: Array
    moved: Mask
    place: int
    position: Array | int


def _puts(space: Space) -> Iterator[_Put]:
    """Where each collective but for rearrangements would put axes, whether or not that is a layout."""
    axes, slots = len(space.axis_names), space.rows.slots
    place, position = space.rows.place, space.rows.position
    count = np.stack([(place == TENSOR_MODES + s).sum(axis=1) for s in range(slots)], axis=1) if slots else None
    for size in range(1, axes + 1):
        for s in range(slots):
            assert count is not None
            rows = np.flatnonzero(count[:, s] >= size)
            depth = position[rows] - (count[rows, s] - size)[:, None]  # place within the suffix moved
            moved = (place[rows] == TENSOR_MODES + s) & (depth >= 0)
            yield _Put(CollectiveKind.ALL_GATHER, rows, moved, REPLICATED, 0)
            if size == 1:
                yield _Put(CollectiveKind.EMBED, rows, moved, PARTIAL_SUM, 0)
            for t in range(slots):
                for order in permutations(range(size)) if t != s else ():
                    new = count[rows, t][:, None] + np.array(order)[np.clip(depth, 0, size - 1)]
                    yield _Put(CollectiveKind.ALL_TO_ALL, rows, moved, TENSOR_MODES + t, new)
    for mode in (PARTIAL_SUM, PARTIAL_MAX):
        for group in (g for size in range(1, axes + 1) for g in combinations(range(axes), size)):
            rows = np.flatnonzero((place[:, group] == mode).all(axis=1))
            moved = np.zeros((len(rows), axes), dtype=bool)
            moved[:, group] = True
            yield _Put(CollectiveKind.ALL_REDUCE, rows, moved, REPLICATED, 0)
            for t in range(slots):
                assert count is not None
                for order in permutations(range(len(group))):
                    new = np.zeros((len(rows), axes), dtype=np.int64)
                    new[:, group] = count[rows, t][:, None] + np.array(order)
                    yield _Put(CollectiveKind.REDUCE_SCATTER, rows, moved, TENSOR_MODES + t, new)
    for a in range(axes):
        rows = np.flatnonzero(place[:, a] == REPLICATED)
        moved = np.zeros((len(rows), axes), dtype=bool)
        moved[:, a] = True
        yield _Put(CollectiveKind.EMBED, rows, moved, PARTIAL_SUM, 0)
    if count is not None:
        yield from _slices(space, count)


def _slices(space: Space, count: Array) -> Iterator[_Put]:
    """Slices along one slot, over axes in any order; `count`: how many axes each slot of each layout has."""
    axes = len(space.axis_names)
    orders = [order for size in range(1, axes + 1) for order in permutations(range(axes), size)]
    for order in orders:
        rows = np.flatnonzero((space.rows.place[:, order] == REPLICATED).all(axis=1))
        moved = np.zeros((len(rows), axes), dtype=bool)
        moved[:, order] = True
        for t in range(space.rows.slots):
            new = np.zeros((len(rows), axes), dtype=np.int64)
            new[:, order] = count[rows, t][:, None] + np.arange(len(order))
            yield _Put(CollectiveKind.SLICE, rows, moved, TENSOR_MODES + t, new)


def _together(puts: Iterable[_Put]) -> Iterator[list[_Put]]:
    """Those with about MOST_PUT rows together, without empty ones."""
    some: list[_Put] = []
    count = 0
    for put in puts:
        if len(put.rows):
            some.append(put)
            count += len(put.rows)
        if count >= MOST_PUT:
            yield some
            some, count = [], 0
    if some:
        yield some


def _arcs(space: Space, puts: Sequence[_Put]) -> Arcs:
    """The arcs that put axes where that is a layout."""
    counts = [len(put.rows) for put in puts]
    rows, moved = np.concatenate([put.rows for put in puts]), np.concatenate([put.moved for put in puts])
    place = np.repeat([put.place for put in puts], counts)[:, None]
    position = np.concatenate([np.broadcast_to(put.position, put.moved.shape) for put in puts])
    after = Arrangements(
        np.where(moved, place, space.rows.place[rows]),
        np.where(moved, position, space.rows.position[rows]),
        TENSOR_MODES,
        space.rows.slots,
    )
    target = space.find(after)
    both = ((after.place == PARTIAL_SUM).any(axis=1)) & ((after.place == PARTIAL_MAX).any(axis=1))
    keep = (target >= 0) & ~both
    kind = np.repeat([KINDS.index(put.kind) for put in puts], counts)
    return _quickest(rows[keep], target[keep], kind[keep], _mask(moved)[keep])


def _quickest(source: Array, target: Array, kind: Array, axes: Array) -> Arcs:
    """Arcs, each of which takes the quickest way."""
    return Arcs(source, target, kind, axes, np.full(len(source), QUICKEST))


def _mask(axes: Mask) -> Array:
    """Rows of flags as bit masks."""
    return np.asarray((axes * (1 << np.arange(axes.shape[1]))).sum(axis=1), dtype=np.int64)


def _permutes(space: Space) -> Arcs:
    """Rearrangements of the same split axes that leave every slot with as many parts as before."""
    split = space.rows.place >= TENSOR_MODES
    mode = np.where(split, TENSOR_MODES, space.rows.place)
    _, group = distinct(np.concatenate([mode, space.ways], axis=1).T)
    members: dict[int, list[int]] = {}
    for row, g in enumerate(group.tolist()):
        members.setdefault(g, []).append(row)
    pairs = [(a, b) for rows in members.values() for a in rows for b in rows if a != b]
    table = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    place, position = space.rows.place[table], space.rows.position[table]
    moved = (place[:, 0] != place[:, 1]) | (position[:, 0] != position[:, 1])
    kind = np.full(len(table), KINDS.index(CollectiveKind.PERMUTE))
    return _quickest(table[:, 0], table[:, 1], kind, _mask(moved))


def held_bytes(space: Space, arcs: Arcs, total_bytes: float, loads: Floats | None) -> tuple[Floats, Floats]:
    """What the chip that has most holds before and after each arc of a tensor, as `price_arcs` has it."""
    load = 1.0 if loads is None else np.maximum(loads[arcs.source], loads[arcs.target])
    return total_bytes * load / space.shards[arcs.source], total_bytes * load / space.shards[arcs.target]


def price_arcs(space: Space, arcs: Arcs, total_bytes: float, price: Price, loads: Floats | None = None) -> Floats:
    """Seconds of each arc for a tensor of `total_bytes` over all. `loads`: in each layout how many times the mean the
    chip has that has most; of both layouts of an arc the one that shares out most says what its busiest chip has."""
    before, after = held_bytes(space, arcs, total_bytes, loads)
    seconds = np.zeros(len(arcs))
    maxima = np.array([KINDS.index(sent_as(each, Reduction.MAX)) for each in KINDS])
    highest = (space.rows.place == PARTIAL_MAX).any(axis=1)[arcs.source]
    kinds, number = distinct(np.stack([np.where(highest, maxima[arcs.kind], arcs.kind), arcs.axes]))
    for n, (k, mask) in enumerate(kinds.T.tolist()):
        alike = np.flatnonzero(number == n)
        axes = [name for a, name in enumerate(space.axis_names) if mask >> a & 1]
        seconds[alike] = price(KINDS[k], axes, before[alike], after[alike])
    return seconds


def needed(space: Space, arcs: Arcs, seconds: Floats, group: Array | None = None, saved: Floats | None = None) -> Mask:
    """The arcs that no two others in turn replace at the same or a lower price.

    Cheapest paths and trees over these arcs cost the same as over all: each leg that replaces an
    arc is cheaper, or as dear and beside a free one, and free arcs form no cycle, so replacing ends.

    `group` and `saved`: arcs of one group (not -1) may all cost `saved` less, whatever the others
    do. One is left out only if it is replaced at the price without the saving, where a first leg of
    its own group has the saving too and no other leg has.
    """
    n = len(space)
    direct = np.full((n, n), np.inf)  # without loops, so that no arc is a leg of its own way
    np.minimum.at(direct, (arcs.source, arcs.target), seconds)
    degree = np.bincount(arcs.source, minlength=n)
    keep = np.ones(len(arcs), dtype=bool)
    for own in _in_parts(degree):
        count = degree[arcs.source[own]]  # of the ways over one stop: any arc from the same layout may be the first leg
        starts = np.cumsum(count) - count
        arc = np.repeat(np.arange(own.start, own.stop), count)
        leg = np.arange(len(arc)) - np.repeat(starts - (np.cumsum(degree) - degree)[arcs.source[own]], count)
        ways = seconds[leg] + direct[arcs.target[leg], arcs.target[arc]]
        via, alone = np.minimum.reduceat(ways, starts), direct[arcs.source[own], arcs.target[own]]
        keep[own] = seconds[own] <= np.minimum(via * (1 - 1e-12), alone)
        if group is not None and saved is not None:
            same = np.flatnonzero((group[leg] == group[arc]) & (group[arc] >= 0))
            ways[same] -= saved[leg[same]]
            least = np.minimum.reduceat(ways, starts)
            keep[own] |= (group[own] >= 0) & (seconds[own] - saved[own] <= least * (1 - 1e-12))
    # Of parallel arcs of one price the first is enough.
    again = np.zeros(len(arcs), dtype=bool)
    again[1:] = (arcs.source[1:] == arcs.source[:-1]) & (arcs.target[1:] == arcs.target[:-1])
    again[1:] &= keep[:-1] & (seconds[1:] >= seconds[:-1])
    if group is not None:
        again &= group < 0
    return keep & ~again


def _in_parts(degree: Array) -> Iterator[slice]:
    """All arcs, those of whole layouts at a time, with about MOST_WAYS ways from arc to arc of one layout. `degree`:
    how many arcs leave each layout, in whose order they are."""
    ways, first = np.cumsum(degree**2), np.concatenate([[0], np.cumsum(degree)])
    row = 0
    while row < len(degree):
        before = ways[row - 1] if row else 0
        end = max(row + 1, int(np.searchsorted(ways, before + MOST_WAYS, side="right")))
        if first[end] > first[row]:
            yield slice(int(first[row]), int(first[end]))
        row = end


def collective(kind: CollectiveKind, before: Layout, after: Layout) -> Collective:
    """The collective of `kind` that leads from one layout to the other; it is determined by them."""
    freed = [d for d, (a, b) in enumerate(zip(before.dims, after.dims, strict=True)) if len(a) > len(b)]
    grown = [d for d, (a, b) in enumerate(zip(before.dims, after.dims, strict=True)) if len(b) > len(a)]
    lost = tuple(before.dims[freed[0]][len(after.dims[freed[0]]) :]) if freed else ()
    gained = tuple(after.dims[grown[0]][len(before.dims[grown[0]]) :]) if grown else ()
    match kind:
        case CollectiveKind.ALL_GATHER:
            return AllGather(lost, freed[0])
        case CollectiveKind.REDUCE_SCATTER:
            return ReduceScatter(gained, grown[0])
        case CollectiveKind.ALL_REDUCE:
            return AllReduce(tuple(a for a in before.partial if a not in after.partial))
        case CollectiveKind.ALL_TO_ALL:
            return AllToAll(gained, freed[0], grown[0])
        case CollectiveKind.SLICE:
            return Slice(gained, grown[0])
        case CollectiveKind.EMBED:
            new = tuple(a for a in after.partial if a not in before.partial)
            return Embed(new, freed[0] if freed else None)
        case CollectiveKind.PERMUTE:
            return Permute(after)
    raise KeyError(kind)
