"""Cheapest trees in the graph of a tensor's layouts: one copy serves several uses.

A tensor's collectives form an arborescence from the layout in which it is made to those in which it
is read. Cheapest ones follow from a dynamic program over sets of uses (Dreyfus and Wagner), with
shortest paths between layouts as the inner step.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import lru_cache, reduce
from itertools import groupby
from operator import is_

import numpy as np
from numpy.typing import NDArray

from ..layouts.reshard import Arcs
from ..layouts.space import Array

Floats = NDArray[np.float64]
FEW_LAYOUTS = 256  # of which all pairs are settled at once
OFTEN = 100  # vectors, after which that pays; of few layouts half as many as there are
FEW_SUMS = 2**14  # that are made of all vectors at once: calls take longer than they do


class Distances:
    """Cheapest-path closures over a tensor's arcs, many value vectors at once ([vectors, layouts])."""

    def __init__(self, arcs: Arcs, price: Floats):
        self.arcs, self.price = arcs, price
        self._forward = _Relaxation(arcs.source, arcs.target, price)
        self._backward = _Relaxation(arcs.target, arcs.source, price)

    def repriced(self, price: Floats) -> Distances:
        """The same arcs at other prices."""
        other = copy(self)
        other.price = price
        other._forward, other._backward = self._forward.repriced(price), self._backward.repriced(price)
        return other

    def forward(self, values: Floats) -> Floats:
        """out[w] = min over v of values[v] + price of the cheapest path from v to w."""
        return self._forward(values)

    def backward(self, values: Floats) -> Floats:
        """out[v] = min over w of price of the cheapest path from v to w + values[w]."""
        return self._backward(values)


class _Relaxation:
    """Bellman and Ford with all arcs at once: paths are short, so few rounds settle it. Where there are not many
    layouts and much is asked, all pairs of them are settled once: [from, to], a sum and a minimum per question."""

    def __init__(self, source: Array, target: Array, price: Floats):
        self.order = np.argsort(target, kind="stable")
        self.source, self.price = source[self.order], price[self.order]
        self.ends, self.starts = np.unique(target[self.order], return_index=True)
        self.asked, self.pairs = 0, None

    asked: int
    pairs: Floats | None

    def repriced(self, price: Floats) -> _Relaxation:
        """The same arcs at other prices."""
        other = copy(self)
        other.price = price[self.order]
        other.asked, other.pairs = 0, None
        return other

    def __call__(self, values: Floats) -> Floats:
        if not len(self.ends):
            return values
        count = values.shape[1]
        if self.pairs is None and count <= FEW_LAYOUTS:
            self.asked += len(values)
            if self.asked > min(OFTEN, count // 2):
                self.pairs = self._settled(np.where(np.eye(count, dtype=bool), 0.0, np.inf))
        if self.pairs is None:
            return self._settled(values)
        if values.size * count <= FEW_SUMS:
            least: Floats = np.minimum.reduce(values[:, :, None] + self.pairs, axis=1)
            return least
        out = np.empty(values.shape)
        for value, row in zip(values, out, strict=True):
            np.minimum.reduce(value[:, None] + self.pairs, axis=0, out=row)
        return out

    def _settled(self, values: Floats) -> Floats:
        if len(self.ends) == values.shape[1] and len(values) == 1:  # as nearly all have: calls take longer than sums
            return self._settled_one(values[0])[None]
        while True:
            best = np.minimum.reduceat(values.take(self.source, axis=1) + self.price, self.starts, axis=1)
            old = values.take(self.ends, axis=1)
            if not np.count_nonzero(best < old):
                return values
            values = values.copy()
            values[:, self.ends] = np.minimum(best, old)

    def _settled_one(self, values: Floats) -> Floats:
        """As `_settled`, of one vector, where an arc leads to each layout."""
        while True:
            paths = values.take(self.source)
            paths += self.price
            least: Floats = np.minimum(values, np.minimum.reduceat(paths, self.starts))
            if not np.count_nonzero(least != values):
                return values
            values = least


def inward_trees(distances: Distances, ends: Sequence[Floats]) -> list[Floats]:
    """For every set of uses (a bit mask) and every layout, the cheapest tree from there to them.

    `ends[u]` [layouts] is what it costs to end use u at each layout.
    """
    inward: list[Floats] = [np.zeros(0)] * (1 << len(ends))
    _inward_of(distances, ends, inward, frozenset(range(1, len(inward))))
    return inward


def outward_trees(distances: Distances, start: Floats, inward: Sequence[Floats]) -> list[Floats]:
    """For every set of uses and every layout, the cheapest way there while all other uses are served.

    `start` [layouts] is what it costs to begin at each layout.
    """
    outward: list[Floats] = [np.zeros(0)] * len(inward)
    _outward_of(distances, start, inward, outward, frozenset(range(1, len(inward))))
    return outward


def _inward_of(
    distances: Distances, ends: Sequence[Floats], inward: list[Floats], wanted: frozenset[int] | set[int]
) -> None:
    """Write down the `inward` trees of the sets that are `wanted`; those of all parts of them are there, or wanted."""
    if len(ends) == 1:  # as most have
        [inward[1]] = distances.backward(ends[0][None])
        return
    for size, masks in _by_size(len(ends)):
        now = [mask for mask in masks if mask in wanted]
        if not now:
            continue
        rows = [
            ends[mask.bit_length() - 1]
            if size == 1
            else reduce(np.minimum, (inward[a] + inward[mask ^ a] for a in _halves(mask)))
            for mask in now
        ]
        for mask, row in zip(now, distances.backward(_stacked(rows)), strict=True):
            inward[mask] = row


def _outward_of(
    distances: Distances,
    start: Floats,
    inward: Sequence[Floats],
    outward: list[Floats],
    wanted: frozenset[int] | set[int],
) -> None:
    """Write down the `outward` trees of the sets that are `wanted`; those of all that hold them are there, or
    wanted."""
    full = len(inward) - 1
    if full == 1:
        [outward[1]] = distances.forward(start[None])
        return
    uses = full.bit_length()
    for size, masks in reversed(_by_size(uses)):
        now = [mask for mask in masks if mask in wanted]
        if not now:
            continue
        rows = [
            start
            if size == uses
            else reduce(np.minimum, [outward[mask | b] + inward[b] for b in _subsets(full ^ mask)])
            for mask in now
        ]
        for mask, row in zip(now, distances.forward(_stacked(rows)), strict=True):
            outward[mask] = row


def _stacked(rows: Sequence[Floats]) -> Floats:
    """Vectors as rows of an array; a single one, as most are, without a copy."""
    return rows[0][None] if len(rows) == 1 else np.stack(rows)


class KnownTrees:
    """The trees of a tensor, each made again only when what it is made of has changed. Arrays that are handed in are
    never written to, so that one is what it was as long as it is the same array."""

    def __init__(self, uses: int):
        self._ends: list[Floats | None] = [None] * uses
        self._start: Floats | None = None
        self._distances: Distances | None = None
        self._inward: list[Floats] = [np.zeros(0)] * (1 << uses)
        self._outward: list[Floats] = [np.zeros(0)] * (1 << uses)
        self._old_inward = self._old_outward = set(range(1, 1 << uses))

    def copy(self) -> KnownTrees:
        """What is known now, to go on from by itself."""
        other = copy(self)
        other._ends, other._inward, other._outward = list(self._ends), list(self._inward), list(self._outward)
        other._old_inward, other._old_outward = set(self._old_inward), set(self._old_outward)
        return other

    def inward(self, distances: Distances, ends: Sequence[Floats], within: int | None = None) -> Sequence[Floats]:
        """As `inward_trees`, of the sets of uses that lie `within` one, where it is given."""
        self._look(distances, ends)
        some = self._old_inward if within is None else {mask for mask in self._old_inward if not mask & ~within}
        if some:
            _inward_of(distances, ends, self._inward, some)
            self._old_inward = self._old_inward - some
        return self._inward

    def outward(
        self, distances: Distances, start: Floats, ends: Sequence[Floats], holding: int | None = None
    ) -> Sequence[Floats]:
        """As `outward_trees`, of the sets that hold all of one, where it is given; where all of these hold one use,
        its end is no matter."""
        full = len(self._inward) - 1
        self.inward(distances, ends, full if holding is None else full ^ holding)
        if start is not self._start:
            self._start, self._old_outward = start, set(range(1, full + 1))
        some = self._old_outward
        if holding is not None:
            some = {mask for mask in some if mask & holding == holding}
        if some:
            _outward_of(distances, start, self._inward, self._outward, some)
            self._old_outward = self._old_outward - some
        return self._outward

    def _look(self, distances: Distances, ends: Sequence[Floats]) -> None:
        """See what has changed."""
        if distances is self._distances and all(map(is_, ends, self._ends)):
            return
        full = len(self._inward) - 1
        if distances is not self._distances:
            self._distances = distances
            self._old_inward, self._old_outward = set(range(1, full + 1)), set(range(1, full + 1))
        changed = 0
        for u, (end, old) in enumerate(zip(ends, self._ends, strict=True)):
            if end is not old:
                changed |= 1 << u
                self._ends[u] = end
        if changed:
            self._old_inward = self._old_inward | {mask for mask in range(1, full + 1) if mask & changed}
            self._old_outward = self._old_outward | {mask for mask in range(1, full + 1) if changed & ~mask}


def cheapest_tree(distances: Distances, root: int, targets: Sequence[int]) -> list[int]:
    """The arcs of the cheapest tree from layout `root` to all `targets`, in the order in which they
    can be applied. All prices must be positive."""
    wanted = sorted(set(targets) - {root})
    if not wanted:
        return []
    layouts = distances.arcs.source.max(initial=0), distances.arcs.target.max(initial=0)
    count = int(max(root, *wanted, *layouts)) + 1
    inward = inward_trees(distances, [point(t, count) for t in wanted])
    arcs, price = distances.arcs, distances.price
    out: list[int] = []
    stack = [(len(inward) - 1, root)]
    while stack:
        mask, at = stack.pop()
        best = inward[mask][at]
        if mask.bit_count() == 1 and wanted[mask.bit_length() - 1] == at:
            continue
        leaving = np.flatnonzero(arcs.source == at)
        ahead = price[leaving] + inward[mask][arcs.target[leaving]]
        halves = _halves(mask)
        split = [float(inward[a][at] + inward[mask ^ a][at]) for a in halves]
        if halves and min(split) <= min(best * (1 + 1e-12), ahead.min(initial=np.inf)):
            a = halves[int(np.argmin(split))]
            stack += [(mask ^ a, at), (a, at)]
        else:
            step = int(leaving[int(np.argmin(ahead))])
            out.append(step)
            stack.append((mask, int(arcs.target[step])))
    return out


@lru_cache(maxsize=1 << 14)
def point(layout: int, count: int) -> Floats:
    """Nothing at one of `count` layouts, infinity at all others. Not to be written to."""
    out = np.full(count, np.inf)
    out[layout] = 0.0
    out.flags.writeable = False
    return out


@lru_cache
def _by_size(uses: int) -> list[tuple[int, list[int]]]:
    masks = sorted(range(1, 1 << uses), key=lambda m: (m.bit_count(), m))
    return [(size, list(group)) for size, group in groupby(masks, key=int.bit_count)]


def _subsets(mask: int) -> list[int]:
    out, sub = [], mask
    while sub:
        out.append(sub)
        sub = (sub - 1) & mask
    return out


def _halves(mask: int) -> list[int]:
    """Proper subsets of a mask that hold its lowest bit: each split of the mask in two, once."""
    low = mask & -mask
    return [sub for sub in _subsets(mask) if sub & low and sub != mask]
