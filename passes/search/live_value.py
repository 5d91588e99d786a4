"""A value at a program point, as who has read it, reads it and will read it: what it takes there at the least."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ...ir.record import record
from ..layouts.reshard import worthwhile
from .graph import Port, Tensor
from .memory_bounds import Copies, Demand, Freed, MovedBytes, Through, local_bytes

Floats = NDArray[np.float64]


@record
class Use:
    """A port that reads a value: when, as the index of a node, and inside which repeats."""

    port: Port
    when: int
    repeats: tuple[str, ...]


@record
class Live:
    """A value at a point: who has read it, reads it, will read it. `inner`: those that do so in a
    repeat around the point but not around the value, for which it was moved before. `still`: whether
    the value is sure to be there in the layout in which it was made. `handed`: of a value whose place is taken by the
    one that is made, where that is made and how it goes round. `freed`: of a value that a pointwise op reads, the
    products in whose place that may be made, where they are made and where they are read. `waits`: whether it is sure
    not to have been moved further than to where it has been read."""

    tensor: Tensor
    before: tuple[Port, ...]
    now: tuple[Port, ...]
    after: tuple[Port, ...]
    inner: tuple[Port, ...]
    still: bool
    handed: tuple[Port, Port] | None = None
    through: Through | None = None
    freed: Freed | None = None
    waits: bool = False

    @property
    def name(self) -> str:
        """That of the value."""
        return self.tensor.value.name

    def made(self, times: float = 1.0) -> Demand:
        """It as it was made, or so many times that, as of a sum in f32 that is made into it."""
        return Demand(self.name, self.tensor.source.node, times * local_bytes(self.tensor, self.tensor.source))

    def read(self, port: Port) -> Demand:
        """It as it is read."""
        return Demand(self.name, port.node, local_bytes(self.tensor, port))

    def term(self) -> Demand | None:
        """What it takes at least; None where that may be nothing."""
        if self.freed:
            return replace(self.read(self.now[0]), freed=self.freed)
        if self.now or self.inner:
            return self.with_copies(self.read((*self.now, *self.inner)[0]))
        if self.still:
            return self.with_copies(self.made())
        if not self.after and self.handed is not None:
            made, taken = self.handed
            there = local_bytes(self.tensor, self.tensor.source)
            return Demand(self.name, taken.node, np.zeros(len(there)), MovedBytes(taken, made, there))
        if not self.after:
            return None  # live for the scores alone that are made of it, and gone where they are moved
        source = self.tensor.source
        least = self.tensor.total_bytes / float(self.tensor.space.space.shards.max())
        return self.with_copies(Demand(self.name, source.node, np.full(len(source.rows), least)))

    def with_copies(self, term: Demand, stored: bool = False) -> Demand:
        """A term, and all copies that may be there beside what it stands for."""
        copies = self.copies(stored)
        alone = len(copies.now) < 2 and not self.after and self.handed is None
        return term if alone else replace(term, copies=copies)

    def copies(self, stored: bool = False) -> Copies:
        """All copies of it, what it was made as among them."""
        source = self.tensor.source
        now = (*self.now, *self.inner, *((source,) if self.still else ()))
        before, handed = (source, *self.before), self.handed
        return Copies(self.tensor, before, now, self.after, stored, handed, self.through, self.freed, waits=self.waits)

    @property
    def unhanded(self) -> Live:
        """It before the step is run that makes what takes its place."""
        return self if self.handed is None else replace(self, still=True, handed=None)

    @property
    def later(self) -> Live:
        """It as far as it is read later, wherever it has been moved to."""
        return replace(self, before=(), still=False, handed=None, through=None, waits=False)

    def once(self, done: Container[Port]) -> Live:
        """It when of where it is read now it has been moved to those that are `done`, and will be to the others."""
        left = tuple(port for port in self.now if port not in done)
        return replace(self, now=tuple(port for port in self.now if port in done), after=(*left, *self.after))

    def gathered(self, by_rows: Floats | None = None) -> Demand:
        """A copy of what is stored, unless it is read as it is stored; a copy that is looked up by rows (see
        `LiveValues.by_rows`) is there even then."""
        port, source = self.now[0], self.tensor.source
        there = local_bytes(self.tensor, port)
        as_stored = np.zeros(len(there)) if by_rows is None else np.minimum(by_rows, there)
        term = Demand(self.name, port.node, as_stored, MovedBytes(port, source, there), freed=self.freed)
        return term if self.freed else self.with_copies(term, stored=True)

    def moving(self) -> Iterator[Demand]:
        """It as it arrives where it is read now, from where it was made, and as it sets out."""
        least_in, least_out = _neighbours(self.tensor)
        port, source = self.now[0], self.tensor.source
        there, here = local_bytes(self.tensor, port), local_bytes(self.tensor, source)
        moved = MovedBytes(port, source, there + least_in[port.rows])
        yield Demand(self.name, port.node, there, moved, freed=self.freed)
        if not self.freed:
            yield Demand(self.name, source.node, here, MovedBytes(source, port, here + least_out[source.rows]))

    def unmoved(self) -> Demand | None:
        """It as it was made, before it is moved to where it is read now; None where that may be nothing."""
        if self.before:
            return None
        if not self.freed:
            return self.made()
        port = self.now[0]
        least = self.tensor.total_bytes / float(self.tensor.space.space.shards.max())
        return Demand(self.name, port.node, np.full(len(port.rows), least), freed=self.freed)


def _neighbours(tensor: Tensor) -> tuple[Floats, Floats]:
    """For each layout the least bytes of one from which it can be made, and of one made from it."""
    space = tensor.space.space
    arcs = worthwhile(space, tensor.joins)
    size = tensor.total_bytes / space.shards
    least_in, least_out = np.full(len(space), np.inf), np.full(len(space), np.inf)
    np.minimum.at(least_in, arcs.target, size[arcs.source])
    np.minimum.at(least_out, arcs.source, size[arcs.target])
    return least_in, least_out
