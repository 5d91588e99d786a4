"""The judge's own layouts of a value, and the cheapest way from any of them to any other.

Written from the rules alone; nothing here comes from the compiler.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Order = tuple[int, ...]


class Place(NamedTuple):
    """Where a value lies: mesh axes (by number) on each dim, major to minor, and the partial ones.

    `top` is set when what is partial is completed by a maximum, and never when nothing is partial.
    """

    dims: tuple[Order, ...]
    partial: frozenset[int] = frozenset()
    top: bool = False


class Slowness(NamedTuple):
    """How many times as long as over the links of the paper's chips a byte takes in collectives of each kind."""

    gather: float = 1.0
    exchange: float = 1.0
    reduce: float = 1.0
    scatter: float = 1.0


EVEN = Slowness()
FREE, PERMUTE = "free", "permute"
SAME = {PERMUTE: "exchange"}
Price = Callable[[str, Order, float], float]  # of a kind of collective, its axes and the bytes that each chip sends


def ways(order: Sequence[int], mesh: Sequence[int]) -> int:
    """Into how many parts the axes `order` split a dim; `mesh` holds the size of each axis."""
    found = 1
    for axis in order:
        found *= mesh[axis]
    return found


def arrangements(mesh: Sequence[int], lists: int, bins: int) -> Iterator[tuple[tuple[Order, ...], Order]]:
    """All ways to put each axis larger than 1 somewhere: in one of `lists`, in any order, or in a bin.

    Yields the lists and, for every axis, its bin (-1 when it is in a list). Axes of size 1 are in
    bin 0 always.
    """

    def place(axis: int, held: tuple[Order, ...], where: Order) -> Iterator[tuple[tuple[Order, ...], Order]]:
        if axis == len(mesh):
            yield held, where
            return
        if mesh[axis] == 1:
            yield from place(axis + 1, held, (*where, 0))
            return
        for b in range(bins):
            yield from place(axis + 1, held, (*where, b))
        for i, old in enumerate(held):
            for cut in range(len(old) + 1):
                new = (*old[:cut], axis, *old[cut:])
                yield from place(axis + 1, (*held[:i], new, *held[i + 1 :]), (*where, -1))

    yield from place(0, ((),) * lists, ())


def fits(dims: Sequence[Order], sizes: Sequence[int], mesh: Sequence[int]) -> bool:
    """Whether every dim divides by its axes. A dim of size 1 never does."""
    return all(size % ways(order, mesh) == 0 for size, order in zip(sizes, dims, strict=True))


def parts(place: Place, mesh: Sequence[int]) -> int:
    """Into how many blocks the value is cut."""
    return ways([a for order in place.dims for a in order], mesh)


@cache
def places(sizes: tuple[int, ...], mesh: tuple[int, ...], top: bool) -> tuple[Place, ...]:
    """Every layout of a value of these sizes; with `top` also the partial maxima."""
    found = []
    for dims, bins in arrangements(mesh, len(sizes), 2):
        if fits(dims, sizes, mesh):
            partial = frozenset(a for a, b in enumerate(bins) if b == 1)
            found.append(Place(dims, partial))
            if top and partial:
                found.append(Place(dims, partial, True))
    return tuple(found)


def complete(sizes: tuple[int, ...], mesh: tuple[int, ...]) -> tuple[Place, ...]:
    """Every layout without partial axes."""
    return tuple(p for p in places(sizes, mesh, False) if not p.partial)


def _subsets(axes: Sequence[int]) -> Iterator[Order]:
    for n in range(1, len(axes) + 1):
        yield from itertools.combinations(axes, n)


def moves(here: Place, mesh: Sequence[int]) -> Iterator[tuple[Place, float]]:
    """What one collective makes of `here`, and the bytes each chip sends for a value of one byte."""
    for there, _, _, sent in collectives(here, mesh):
        yield there, sent


def collectives(here: Place, mesh: Sequence[int]) -> Iterator[tuple[Place, str, Order, float]]:
    """What one collective makes of `here`, its kind (one of Slowness, or FREE), the axes it goes over, and the bytes
    each chip sends for a value of one byte.

    Some of the places do not divide: the caller knows which are legal.
    """
    local = 1.0 / parts(here, mesh)
    rank = range(len(here.dims))

    def with_dims(changes: dict[int, Order], partial: frozenset[int] = here.partial) -> Place:
        dims = tuple(changes.get(d, order) for d, order in enumerate(here.dims))
        return Place(dims, partial, here.top and bool(partial))

    for d in rank:
        order = here.dims[d]
        for cut in range(len(order)):
            keep, gone = order[:cut], order[cut:]
            k = ways(gone, mesh)
            over = tuple(sorted(gone))
            yield with_dims({d: keep}), "gather", over, local * k * (k - 1) / k
            for e in rank:
                if e != d:
                    for moved in itertools.permutations(gone):
                        yield with_dims({d: keep, e: here.dims[e] + moved}), "exchange", over, local * (k - 1) / k
            if not here.top:
                yield with_dims({d: keep}, here.partial | set(gone)), FREE, over, 0.0  # embed a block among zeros
    for axes in _subsets(sorted(here.partial)):
        k, rest = ways(axes, mesh), here.partial - set(axes)
        yield with_dims({}, rest), "reduce", axes, 2 * local * (k - 1) / k
        scattered = (
            "exchange" if here.top else "scatter"
        )  # as an exchange of blocks, of which each chip takes the largest
        for d in rank:
            for moved in itertools.permutations(axes):
                yield with_dims({d: here.dims[d] + moved}, rest), scattered, axes, local * (k - 1) / k
    used = {a for order in here.dims for a in order} | here.partial
    for axis in range(len(mesh)):
        if mesh[axis] > 1 and axis not in used:
            for d in rank:
                yield with_dims({d: (*here.dims[d], axis)}), FREE, (axis,), 0.0  # slice
            if not here.top:
                yield with_dims({}, here.partial | {axis}), FREE, (axis,), 0.0  # embed a copy beside zeros


@cache
def _permuted(mesh: tuple[int, ...], split: Order, counts: tuple[int, ...]) -> tuple[tuple[Order, ...], ...]:
    """All ways to order the axes `split` over dims so that dim i has counts[i] parts."""
    inner = tuple(size if a in split else 1 for a, size in enumerate(mesh))
    return (
        tuple(
            dims
            for dims, bins in arrangements(inner, len(counts), 0)
            if tuple(ways(order, mesh) for order in dims) == counts
        )
        if split
        else ()
    )


@cache
def distances(sizes: tuple[int, ...], mesh: tuple[int, ...], top: bool, slow: Slowness = EVEN) -> Floats:
    """The fewest bytes sent from each of `places` to each other, for a value of one byte in all; a permute goes as an
    all-to-all does."""

    def price(kind: str, _: Order, sent: float) -> float:
        return 0.0 if kind == FREE else float(getattr(slow, SAME.get(kind, kind))) * sent

    return closed(steps(sizes, mesh, top, price))


def steps(sizes: tuple[int, ...], mesh: tuple[int, ...], top: bool, price: Price) -> Floats:
    """The least `price` of one collective from each of `places` to each other, for a value of one byte in all."""
    every = places(sizes, mesh, top)
    number = {place: i for i, place in enumerate(every)}
    best = np.full((len(every), len(every)), np.inf)
    for i, here in enumerate(every):
        for there, kind, axes, sent in collectives(here, mesh):
            j = number.get(there)
            if j is not None:
                best[i, j] = min(best[i, j], price(kind, axes, sent))
        counts = tuple(ways(order, mesh) for order in here.dims)
        split = tuple(sorted(a for order in here.dims for a in order))
        for dims in _permuted(mesh, split, counts):
            j = number[Place(dims, here.partial, here.top)]
            best[i, j] = min(best[i, j], price(PERMUTE, split, 1.0 / parts(here, mesh)))
    return best


def closed(steps: Floats) -> Floats:
    """The least that any number of steps take, none among them."""
    best = steps.copy()
    np.fill_diagonal(best, 0.0)
    for k in range(len(best)):
        np.minimum(best, best[:, k : k + 1] + best[k : k + 1, :], out=best)
    return best
