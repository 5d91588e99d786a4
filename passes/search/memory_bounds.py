"""What every plan of a set of plans holds at the least, at every program point, and what follows.

Where the choices of two values do not go together within the memory of a chip, the dearer in bytes
is left out. `derive_memory_bounds` says what is held where.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..layouts.space import Mask
from .graph import Port, Tensor

Floats = NDArray[np.float64]
ROUNDING = 1e-12  # relative: sums of bytes are exact but for this
LITTLE = 1e-3  # of the room: what is not worth rows of its own


@dataclass(frozen=True)
class Through:
    """A value was read at a port for scores that are used later: it is held until then, if between each two ports of
    `scores`, where one of these is made and where it is read, none is moved."""

    port: Port
    scores: tuple[tuple[Port, Port], ...]


@dataclass(frozen=True, eq=False)
class Copies:
    """A value that may be held in several layouts at once. It has been made at the ports `before`, is
    read at `now`, and at `after` later on; what is read later in a layout in which it has been made
    is held until then. `stored`: whether it is stored at the first port, which takes nothing more. `handed`: where what
    takes its place is made and how it is handed on: if these are two layouts, it is held as it came as well.
    `through`: where it was read for scores that are read later, if these are not moved: it is held until then.
    `freed`: as a demand has it."""

    tensor: Tensor
    before: tuple[Port, ...]
    now: tuple[Port, ...]
    after: tuple[Port, ...]
    stored: bool
    handed: tuple[Port, Port] | None = None
    through: Through | None = None
    freed: tuple[tuple[Port, Port], ...] = ()

    @property
    def most(self) -> int:
        """In how many layouts it may be held at the most."""
        return len(self.now) + len(self.after) + (self.handed is not None) + (self.through is not None)

    def certain(self, allowed: Sequence[Mask]) -> float:
        """The bytes of those that are settled."""
        now = {_settled(port, allowed) for port in self.now}
        if self.handed is not None and self.moved_on(self.handed, allowed):
            now.add(_settled(self.tensor.source, allowed))
        made = now | {_settled(port, allowed) for port in self.before}
        held = now | (made & {_settled(port, allowed) for port in self.after})
        if self.stored:
            held -= set(self.before[0].rows[allowed[self.before[0].node]].tolist())
        shards = self.tensor.space.space.shards
        return sum(self.tensor.total_bytes / float(shards[row]) for row in held if row is not None)

    @staticmethod
    def moved_on(handed: tuple[Port, Port], allowed: Sequence[Mask]) -> bool:
        """Whether what takes the place is sure to be moved for that."""
        made, taken = (port.rows[allowed[port.node]] for port in handed)
        return not np.isin(made, taken).any()


def _settled(port: Port, allowed: Sequence[Mask]) -> int | None:
    """The layout at a port, if only one is left."""
    rows = port.rows[allowed[port.node]]
    return int(rows[0]) if (rows == rows[0]).all() else None


@dataclass(frozen=True, eq=False)
class MovedBytes:
    """A value that lies at port `there` as at port `here`, or else takes `moved[c]` bytes."""

    there: Port
    here: Port
    moved: Floats


@dataclass(frozen=True, eq=False)
class Demand:
    """A value that is held: `bytes[c]` on a chip under choice c of `node`, or what a `trip` of it takes,
    and no less than all of its `copies`. `freed`: where products are made and where they are read, the latter at
    `node`, or the other way round: where one of them is not moved between, it is there no more."""

    value: str
    node: int
    bytes: Floats
    trip: MovedBytes | None = None
    copies: Copies | None = None
    freed: tuple[tuple[Port, Port], ...] = ()

    def within(self, allowed: Sequence[Mask]) -> Floats:
        """The least bytes under each choice of the node, if other nodes keep to what is `allowed`."""
        size = self.bytes
        if self.trip is not None:
            rows = self.trip.here.rows[allowed[self.trip.here.node]]
            size = np.where(np.isin(self.trip.there.rows, rows), size, self.trip.moved)
        for other, own in self.freed:
            size = np.where(np.isin(own.rows, other.rows[allowed[other.node]]), 0.0, size)
        return size if self.copies is None else np.maximum(size, self.copies.certain(allowed))

    def least(self, allowed: Sequence[Mask]) -> float:
        """The least bytes of all that is allowed."""
        return float(self.within(allowed)[allowed[self.node]].min())

    def moved(self, allowed: Sequence[Mask]) -> Moved | None:
        """What it takes more than `within` says where its value is moved; None where that is nothing, or it is not
        known of one move alone."""
        pair = None if self.trip is None else (self.trip.here, self.trip.there)
        if pair is None and len(self.freed) == 1:
            pair = self.freed[0]
        if pair is None or any(freed != pair for freed in self.freed):
            return None
        here, there = pair
        size = self.bytes if self.trip is None else self.trip.moved
        size = size if self.copies is None else np.maximum(size, self.copies.certain(allowed))
        more, mask = size - self.within(allowed), allowed[self.node]
        if not (more[mask] > 0).any():
            return None
        rows = there.rows[mask]
        by_layout = np.full(1 + int(max(rows.max(), here.rows.max())), np.inf)
        np.minimum.at(by_layout, rows, more[mask])
        return Moved(here, there, np.where(np.isfinite(by_layout), by_layout, 0.0))


@dataclass(frozen=True)
class PointBound:
    """A program point: the step that runs, None for the start, and what is held besides what is stored. `moving`: not
    as it runs, but some time before, as a value is moved for it, where steps may run in any order."""

    step: str | None
    terms: tuple[Demand, ...]
    moving: bool = False

    def least(self, allowed: Sequence[Mask]) -> float:
        """The least bytes of all that is allowed."""
        return sum(term.least(allowed) for term in self.terms)


@dataclass(frozen=True, eq=False)
class Moved:
    """A value that takes `more[r]` bytes if it lies as layout r at port `there`, and in another one at port `here`."""

    here: Port
    there: Port
    more: Floats

    def of(self, chosen: Sequence[int]) -> float:
        """What it takes in a plan."""
        here, there = (int(port.rows[chosen[port.node]]) for port in (self.here, self.there))
        return 0.0 if here == there else float(self.more[there])


@dataclass(frozen=True, eq=False)
class Load:
    """What plans take of `room` bytes at the least: `bytes[n][c]` with choice c of node n, all nodes together, and what
    values take more that are `moved`."""

    bytes: Mapping[int, Floats]
    room: float
    moved: tuple[Moved, ...] = ()

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
        moved = tuple(Moved(left(one.here), left(one.there), one.more) for one in load.moved)
        out.append(Load({n: size[masks[n]] for n, size in load.bytes.items()}, load.room, moved))
    return out


@dataclass(frozen=True)
class MemoryBounds:
    """What is stored, and what else is held at each point."""

    stored: tuple[Demand, ...]
    points: tuple[PointBound, ...]

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
        return self.points[at], held[at]

    def loads(self, allowed: Sequence[Mask], capacity: float, stored: float) -> list[Load]:
        """What plans of all that is allowed take at each point of `capacity` bytes, and of those that at most
        may be `stored`; without what no plan can exceed."""
        kept = _sum(self.stored, allowed)
        every = [_load(kept, (), min(stored, capacity))]
        for point in self.points:
            every.append(_load(_sum(point.terms, allowed, kept), _moved(point.terms, allowed), capacity))
        most = (
            sum(float(size[allowed[n]].max()) for n, size in load.bytes.items())
            + sum(float(one.more.max()) for one in load.moved)
            for load in every
        )
        return [load for load, size in zip(every, most, strict=True) if size > load.room]

    def tightened(self, allowed: Sequence[Mask], capacity: float, stored: float) -> list[Mask] | None:
        """Without the choices that cannot go with the least of all others within `capacity` bytes, of
        which at most `stored` are stored; None when nothing is left."""
        kept = list(allowed)
        while True:
            before = [int(mask.sum()) for mask in kept]
            room = min(stored, capacity - self.worst(kept)[1])
            if not _fit(self.stored, kept, room):
                return None
            room = capacity - self.stored_bytes(kept)
            if not all(_fit(point.terms, kept, room) for point in self.points):
                return None
            if before == [int(mask.sum()) for mask in kept]:
                return kept


def _fit(terms: Sequence[Demand], kept: list[Mask], room: float) -> bool:
    """Leave out the choices for which the terms take more than `room`; whether any are left."""
    loads = _sum(terms, kept)
    least = {n: float(load[kept[n]].min()) for n, load in loads.items()}
    total = sum(least.values())
    slack = ROUNDING * max(abs(room), total)
    if total > room + slack:
        return False
    for n, load in loads.items():
        kept[n] = kept[n] & (load <= room - total + least[n] + slack)
    return True


def _sum(
    terms: Sequence[Demand], allowed: Sequence[Mask], beside: Mapping[int, Floats] | None = None
) -> dict[int, Floats]:
    """The bytes of terms by the choices of each node, with those `beside` them."""
    loads: dict[int, Floats] = dict(beside or {})
    for term in terms:
        loads[term.node] = loads.get(term.node, 0.0) + term.within(allowed)
    return loads


def _moved(terms: Sequence[Demand], allowed: Sequence[Mask]) -> list[Moved]:
    """What terms take more where their values are moved, those of one move together."""
    every: dict[tuple[Port, Port], Floats] = {}
    for term in terms:
        one = term.moved(allowed)
        if one is not None:
            every[one.here, one.there] = every.get((one.here, one.there), 0.0) + one.more
    return [Moved(here, there, more) for (here, there), more in every.items()]


def _load(size: Mapping[int, Floats], moved: Sequence[Moved], room: float) -> Load:
    """What choices take of `room` bytes; twice as much stands for all that is more, and for what cannot be. Of what is
    moved nothing is said that is `LITTLE`."""
    more = [Moved(one.here, one.there, np.minimum(one.more, 2 * room)) for one in moved]
    kept = tuple(one for one in more if one.more.max() > LITTLE * room)
    return Load({n: np.minimum(each, 2 * room) for n, each in size.items()}, room, kept)


def local_bytes(tensor: Tensor, port: Port) -> Floats:
    """What a chip holds of a value, by the choices of the node at a port."""
    return np.asarray(tensor.total_bytes / tensor.space.space.shards[port.rows])
