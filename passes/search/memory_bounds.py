"""What every plan of a set of plans holds at the least, at every program point, and what follows.

Where the choices of two values do not go together within the memory of a chip, the dearer in bytes
is left out. `derive_memory_bounds` says what is held where.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ...ir.record import record
from ..layouts.space import Array, Mask
from .graph import Port, Tensor

Floats = NDArray[np.float64]
ROUNDING = 1e-12  # relative: sums of bytes are exact but for this
LITTLE = 1e-3  # of the room: what is not worth rows of its own
Pair = tuple[Port, Port]  # where a value is made or read, and where it is read or made


@record
class Freed:
    """Products that are never there if one of them is not moved, and nothing `beside`: what else is read with them, and
    would come between as it is moved."""

    products: tuple[Pair, ...]
    beside: tuple[Pair, ...] = ()

    @property
    def turned(self) -> Freed:
        """The same, each product as it is read and made."""
        return Freed(tuple((there, here) for here, there in self.products), self.beside)


def surely_moved(pair: Pair, allowed: Sequence[Mask]) -> bool:
    """Whether a value is in other layouts at one port than at the other, whatever is chosen."""
    first, second = (port.rows[allowed[port.node]] for port in pair)
    return not among(first, second).any()


def among(rows: Array, some: Array) -> Mask:
    """Whether each of some layouts is one of others: by a table of all, as they are few, where numpy would sort."""
    table = np.zeros(max(rows.max(initial=0), some.max(initial=0)) + 1, dtype=bool)
    table[some] = True
    return table[rows]


@record
class Through:
    """A value was read at a port for scores that are used later: it is held until then, if between each two ports of
    `scores`, where one of these is made and where it is read, none is moved, and one of what is `moved` is, if that is
    anything: of a score itself, which is there as others are where it is moved alone."""

    port: Port
    scores: tuple[Pair, ...]
    moved: tuple[Pair, ...] = ()


@record(eq=False)
class Copies:
    """A value that may be held in several layouts at once. It has been made at the ports `before`, is
    read at `now`, and at `after` later on; what is read later in a layout in which it has been made
    is held until then. `stored`: whether it is stored at the first port, which takes nothing more. `handed`: where what
    takes its place is made and how it is handed on: if these are two layouts, it is held as it came as well.
    `through`: where it was read for scores that are read later, if these are not moved: it is held until then.
    `freed`: as a demand has it. `times`: how often each takes what the value does. `waits`: whether it is sure not to
    have been moved further than to where it has been read, though steps may run in another order."""

    tensor: Tensor
    before: tuple[Port, ...]
    now: tuple[Port, ...]
    after: tuple[Port, ...]
    stored: bool
    handed: Pair | None = None
    through: Through | None = None
    freed: Freed | None = None
    times: float = 1.0
    waits: bool = False

    @property
    def most(self) -> int:
        """In how many layouts it may be held at the most."""
        return len(self.now) + len(self.after) + (self.handed is not None) + (self.through is not None)

    def certain(self, allowed: Sequence[Mask]) -> float:
        """The bytes of those that are settled."""
        now = {_settled(port, allowed) for port in self.now}
        if self.handed is not None and surely_moved(self.handed, allowed):
            now.add(_settled(self.tensor.source, allowed))
        made = now | {_settled(port, allowed) for port in self.before}
        held = now | (made & {_settled(port, allowed) for port in self.after})
        if self.stored:
            held -= set(self.before[0].rows[allowed[self.before[0].node]].tolist())
        shards = self.tensor.space.space.shards
        return self.times * sum(self.tensor.total_bytes / float(shards[row]) for row in held if row is not None)


def _settled(port: Port, allowed: Sequence[Mask]) -> int | None:
    """The layout at a port, if only one is left."""
    rows = port.rows[allowed[port.node]]
    return int(rows[0]) if (rows == rows[0]).all() else None


@record(eq=False)
class MovedBytes:
    """A value that lies at port `there` as at port `here`, or else takes `moved[c]` bytes."""

    there: Port
    here: Port
    moved: Floats


@record(eq=False)
class Demand:
    """A value that is held: `bytes[c]` on a chip under choice c of `node`, or what a `trip` of it takes,
    and no less than all of its `copies`. `freed`: products whose second ports are at `node`, with which it is not
    there. `in_any_case`: as much whatever is chosen, so that it is room that there is not."""

    value: str
    node: int
    bytes: Floats
    trip: MovedBytes | None = None
    copies: Copies | None = None
    freed: Freed | None = None
    in_any_case: bool = False

    def within(self, allowed: Sequence[Mask]) -> Floats:
        """The least bytes under each choice of the node, if other nodes keep to what is `allowed`."""
        size = self.bytes
        if self.trip is not None:
            rows = self.trip.here.rows[allowed[self.trip.here.node]]
            size = np.where(among(self.trip.there.rows, rows), size, self.trip.moved)
        if self.freed is not None and not any(surely_moved(pair, allowed) for pair in self.freed.beside):
            for other, own in self.freed.products:
                size = np.where(among(own.rows, other.rows[allowed[other.node]]), 0.0, size)
        return size if self.copies is None else np.maximum(size, self.copies.certain(allowed))

    def least(self, allowed: Sequence[Mask]) -> float:
        """The least bytes of all that is allowed."""
        return float(self.within(allowed)[allowed[self.node]].min())

    def moved(self, allowed: Sequence[Mask]) -> Moved | None:
        """What it takes more than `within` says where its value is moved; None where that is nothing, or it is not
        known of one move alone."""
        pairs: tuple[Pair, ...] = () if self.trip is None else ((self.trip.here, self.trip.there),)
        size, beside = self.bytes if self.trip is None else self.trip.moved, tuple[Pair, ...]()
        if self.freed is not None and self.freed.products != pairs:
            pairs, beside, size = self.freed.products, self.freed.beside, np.minimum(self.bytes, size)
        size = size if self.copies is None else np.maximum(size, self.copies.certain(allowed))
        least = self.within(allowed)
        more = np.subtract(size, least, out=np.zeros(len(size)), where=size > least)  # both may be infinite
        if not (more[allowed[self.node]] > 0).any():
            return None
        return Moved(self.node, more, pairs, beside)


@record
class PointBound:
    """A program point: the step that runs, None for the start, and what is held besides what is stored. `moving`: not
    as it runs, but some time before, as a value is moved for it, where steps may run in any order."""

    step: str | None
    terms: tuple[Demand, ...]
    moving: bool = False

    def least(self, allowed: Sequence[Mask]) -> float:
        """The least bytes of all that is allowed."""
        return sum(term.least(allowed) for term in self.terms)


@record(eq=False)
class Moved:
    """What takes `more[c]` bytes under choice c of `node` if `all_of` some values are moved, or `any_of` others."""

    node: int
    more: Floats
    all_of: tuple[Pair, ...]
    any_of: tuple[Pair, ...] = ()

    def of(self, chosen: Sequence[int]) -> float:
        """What it takes in a plan."""
        every = all(_is_moved(pair, chosen) for pair in self.all_of)
        some = every or any(_is_moved(pair, chosen) for pair in self.any_of)
        return float(self.more[chosen[self.node]]) if some else 0.0

    def at(self, port: Callable[[Port], Port], choices: NDArray[np.generic]) -> Moved:
        """With other ports, and some of the choices of its node."""
        all_of, any_of = (tuple((port(a), port(b)) for a, b in pairs) for pairs in (self.all_of, self.any_of))
        return Moved(self.node, self.more[choices], all_of, any_of)


def _is_moved(pair: Pair, chosen: Sequence[int]) -> bool:
    first, second = (int(port.rows[chosen[port.node]]) for port in pair)
    return first != second


@record(eq=False)
class Load:
    """What plans take of `room` bytes at the least: `bytes[n][c]` with choice c of node n, all nodes together, and what
    values take more that are `moved`. `memory`: the bytes of all that the room is a part of, if that is less: rows that
    count in these have in common what is taken in all of them."""

    bytes: Mapping[int, Floats]
    room: float
    moved: tuple[Moved, ...] = ()
    memory: float | None = None

    @property
    def unit(self) -> float:
        """The bytes that rows count in."""
        return self.room if self.memory is None else self.memory

    def of(self, chosen: Sequence[int]) -> float:
        """What a plan takes at the least."""
        return sum(float(size[chosen[n]]) for n, size in self.bytes.items()) + sum(m.of(chosen) for m in self.moved)


def taken_by(loads: Sequence[Load], masks: Sequence[Mask]) -> list[Load]:
    """What the choices of `masks` alone take, numbered anew."""
    ports: dict[Port, Port] = {}

    def left(port: Port) -> Port:
        return ports.setdefault(port, Port(port.node, port.rows[masks[port.node]]))

    out = []
    for load in loads:
        moved = tuple(one.at(left, masks[one.node]) for one in load.moved)
        out.append(replace(load, bytes={n: size[masks[n]] for n, size in load.bytes.items()}, moved=moved))
    return out


@record
class MemoryBounds:
    """What is stored, and what else is held at each point: what is of its own, and what lies `beside` at all, of which
    each choice takes what it takes whatever others are made."""

    stored: tuple[Demand, ...]
    points: tuple[PointBound, ...]
    beside: tuple[Demand, ...] = ()

    @property
    def standing(self) -> MemoryBounds:
        """These without what is held some time before a step."""
        return replace(self, points=tuple(point for point in self.points if not point.moving))

    def stored_bytes(self, allowed: Sequence[Mask]) -> float:
        """The least that is stored."""
        return sum(term.least(allowed) for term in self.stored)

    def worst(self, allowed: Sequence[Mask]) -> tuple[PointBound, float]:
        """The first point at which the least that is held besides is largest, and how much that is."""
        held = [point.least(allowed) for point in self.points]
        at = int(np.argmax(held))
        return self.points[at], held[at] + sum(term.least(allowed) for term in self.beside)

    def loads(self, allowed: Sequence[Mask], capacity: float, stored: float) -> list[Load]:
        """What plans of all that is allowed take at each point of `capacity` bytes, and of those that at most
        may be `stored`; without what no plan can exceed."""
        room = min(stored, capacity)
        kept = summed(self.stored, allowed)
        load = Load(_capped(kept, room), room)
        out = [load] if sum(_most(load.bytes, allowed).values()) > room else []
        lying = _capped(summed(self.beside, allowed, kept), capacity)
        most = _most(lying, allowed)
        for point in self.points:
            terms = [term for term in point.terms if not term.in_any_case]
            left = max(1.0, capacity - sum(float(term.bytes.min()) for term in point.terms if term.in_any_case))
            here = {term.node: lying[term.node] for term in terms if term.node in lying}
            own = _capped(summed(terms, allowed, here), capacity)
            moved = _worth_rows(_moved(terms, allowed), capacity)
            size = sum((most | _most(own, allowed)).values()) + sum(float(one.more.max()) for one in moved)
            if size > left:
                out.append(Load(lying | own, left, moved, capacity))
        return out

    def tightened(self, allowed: Sequence[Mask], capacity: float, stored: float) -> list[Mask] | None:
        """Without the choices that cannot go with the least of all others within `capacity` bytes, of
        which at most `stored` are stored; None when nothing is left."""
        kept, lying = list(allowed), summed(self.beside, allowed)
        while True:
            before = [int(mask.sum()) for mask in kept]
            room = min(stored, capacity - self.worst(kept)[1])
            if not _fit(self.stored, kept, room):
                return None
            room = capacity - self.stored_bytes(kept)
            if not all(_fit(point.terms, kept, room, lying) for point in self.points):
                return None
            if before == [int(mask.sum()) for mask in kept]:
                return kept


def _fit(terms: Sequence[Demand], kept: list[Mask], room: float, beside: Mapping[int, Floats] | None = None) -> bool:
    """Leave out the choices for which the terms take more than `room`, with what lies `beside` them; whether any are
    left."""
    loads = summed(terms, kept, beside)
    least = {n: float(load[kept[n]].min()) for n, load in loads.items()}
    total = sum(least.values())
    slack = ROUNDING * max(abs(room), total)
    if total > room + slack:
        return False
    for n, load in loads.items():
        kept[n] = kept[n] & (load <= room - total + least[n] + slack)
    return True


def summed(
    terms: Sequence[Demand], allowed: Sequence[Mask], beside: Mapping[int, Floats] | None = None
) -> dict[int, Floats]:
    """The bytes of terms by the choices of each node, with those `beside` them."""
    loads: dict[int, Floats] = dict(beside or {})
    for term in terms:
        loads[term.node] = loads.get(term.node, 0.0) + term.within(allowed)
    return loads


def _moved(terms: Sequence[Demand], allowed: Sequence[Mask]) -> list[Moved]:
    """What terms take more where values are moved, those of one node and the same moves together."""
    every: dict[tuple[int, tuple[Pair, ...], tuple[Pair, ...]], Floats] = {}
    for term in terms:
        one = term.moved(allowed)
        if one is not None:
            key = one.node, one.all_of, one.any_of
            every[key] = every.get(key, 0.0) + one.more
    return [Moved(node, more, all_of, any_of) for (node, all_of, any_of), more in every.items()]


def _capped(size: Mapping[int, Floats], room: float) -> dict[int, Floats]:
    """What choices take of `room` bytes; twice as much stands for all that is more, and for what cannot be."""
    return {n: np.minimum(each, 2 * room) for n, each in size.items()}


def _most(size: Mapping[int, Floats], allowed: Sequence[Mask]) -> dict[int, float]:
    """The most that each node may take."""
    return {n: float(each[allowed[n]].max()) for n, each in size.items()}


def _worth_rows(moved: Sequence[Moved], room: float) -> tuple[Moved, ...]:
    """What is taken more of `room` bytes where values are moved, without what is `LITTLE`."""
    more = [replace(one, more=np.minimum(one.more, 2 * room)) for one in moved]
    return tuple(one for one in more if one.more.max() > LITTLE * room)


def local_bytes(tensor: Tensor, port: Port) -> Floats:
    """What a chip holds of a value, by the choices of the node at a port."""
    return np.asarray(tensor.total_bytes / tensor.space.space.shards[port.rows])
