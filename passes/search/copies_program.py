"""The choice with all copies told apart, as an integer program: what is held at each point, whatever its way.

Rows over choices alone know a copy only where it is read. Here every arc of every tensor has a column, and what is
held of a value follows from where on its ways it is at a point: a later reader's way has been gone as far as earlier
readers have gone it (`derive_moments`). Where steps keep their order that is all that a plan holds, but for what is
moved right before a repeat or at the end of its runs; where they do not, it is the least. No row cuts off a plan that
keeps to the limits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from ..layouts.reshard import Arcs
from ..layouts.space import Array
from .derive_moments import Moment
from .graph import Tensor
from .limits import Limits
from .memory_bounds import Copies, Demand, Load, Pair
from .ways_program import Entries, Floats, WaysProgram

ROOM = 1e6  # whole grains, in which bytes are counted: so all columns are whole numbers
FULL = ROOM * (1 + 1e-4)  # a little more than there is, as what the solver takes for 0 or 1 may be a little off


@dataclass(eq=False)
class CopiesProgram(WaysProgram):
    """The ways of all values, with rows for what each phase may hold."""

    held: dict[tuple[object, ...], int] = field(default_factory=dict)
    limits: Limits | None = None  # of the phase whose rows are added

    def copies(self, copies: Copies, ordered: bool) -> int:
        """Columns that say in which layouts a value is held, besides the one in which it is stored."""
        tensor = copies.tensor
        ways = copies.before, copies.now, copies.after, copies.stored, copies.handed, copies.through, copies.freed
        known = ordered or copies.waits
        key = tensor, *ways, known
        if key not in self.held:
            layouts = len(tensor.space)
            held = self.held[key] = self.add_layouts_of(tensor)
            gone = frozenset(port for port in (*copies.before, *copies.now) if port in self.flow)
            for moved in self.held_where(copies):
                for port in copies.now:
                    row = self.unless_moved(moved, layouts, [(held, 1.0)])
                    self.layouts_at(port, row, -1.0)
                    if copies.stored:
                        self.layouts_at(tensor.source, row, 1.0)
                for port in copies.after:
                    at = self.position(tensor, gone, port, known)
                    row = self.unless_moved(moved, layouts, [(held, 1.0), (at, -1.0)])
                    if copies.stored:
                        self.layouts_at(tensor.source, row, 1.0)
            if copies.handed is not None:
                row = self.compare(layouts, -1.0, np.inf, [(held, 1.0)])
                self.layouts_at(tensor.source, row, -1.0)
                self.a.add_entries(row + np.arange(layouts), np.full(layouts, self.moved_on(copies.handed)), -1.0)
            if copies.through is not None:
                conditions: list[tuple[Pair, ...]] = [(pair,) for pair in copies.through.moved]
                for moved in conditions or [()]:
                    row = self.unless_moved(moved, layouts, [(held, 1.0)])
                    self.layouts_at(copies.through.port, row, -1.0)
                    for between in copies.through.scores:
                        self.a.add_entries(row + np.arange(layouts), np.full(layouts, self.moved_on(between)), 1.0)
        return self.held[key]

    @staticmethod
    def held_where(copies: Copies) -> Iterator[tuple[Pair, ...]]:
        """Under which conditions copies are held: that all of some values are moved, which may be none at all."""
        if copies.freed is None:
            yield ()
        else:
            yield copies.freed.products
            yield from ((pair,) for pair in copies.freed.beside)

    def unless_moved(self, moved: tuple[Pair, ...], count: int, terms: Iterable[tuple[int, float]]) -> int:
        """As `compare`, rows of what is held, which say something where all of some values are moved."""
        row = self.compare(count, -float(len(moved)), np.inf, terms)
        for pair in moved:
            self.a.add_entries(row + np.arange(count), np.full(count, self.moved_on(pair)), -1.0)
        return row

    def limit(self, limits: Limits) -> None:
        """Rows for all that a phase may hold."""
        stored = Load({term.node: term.bytes for term in limits.stored_terms}, limits.stored)
        if stored.bytes and limits.stored < np.inf:
            self.row(-np.inf, FULL, self.loaded(stored))
        self.limits = limits
        lying = self.loaded(Load(self.taken((*limits.stored_terms, *limits.needs.beside)), limits.capacity))
        combined = self.groups is not None and limits.phase in self.groups.phases
        for ordered in (True, False) if combined else (True,):
            for stage in limits.moments(ordered):
                for each in self.told_apart(stage) if combined else (stage,):
                    self.add_stage(each, lying, ordered)
        if combined:
            for group in self.shared:
                if own := self.as_one(group):
                    self.row(-np.inf, FULL, [*lying, *own])
        self.add_arcs(lying)

    def told_apart(self, stage: Moment) -> tuple[Moment, ...]:
        """A moment, and what is of its repeat, as far as one does not say what the other does: something that runs as
        one outside changes the order of what is outside alone."""
        if stage.inner is None:
            return (stage,)
        grouped = {port for t in self.members for port in self.problem.graph.tensors[t].uses}
        alike = grouped.isdisjoint({*stage.done} - {*stage.inner.done})
        return (stage,) if alike else (stage.inner,) if stage.inner.held == stage.held else (stage, stage.inner)

    @staticmethod
    def taken(terms: Iterable[Demand]) -> dict[int, Floats]:
        """What terms take by the choices of each node, whatever others are made."""
        loads: dict[int, Floats] = {}
        for term in terms:
            loads[term.node] = loads.get(term.node, 0.0) + term.bytes
        return loads

    def as_one(self, group: int) -> Entries:
        """What a group's collective holds: all that it takes and all that it gives."""
        assert self.limits is not None, "its rows are added"
        entries: Entries = []
        for t, apart in self.apart.items():
            tensor, arcs = self.problem.graph.tensors[t], self.moves.arcs[t]
            if tensor.phase == self.limits.phase and group in apart and arcs is not None:
                own = self.members[t][group]
                taken = self.taken_by(tensor, arcs)[own]
                columns = np.array([*(self.paid[t] + own), apart[group]])
                entries.append((columns, np.array([*taken, -taken.max()])))
        return entries

    def taken_by(self, tensor: Tensor, arcs: Arcs) -> Floats:
        """What each arc of a value takes and gives; it may be copied from what is stored, and takes nothing more."""
        size = self.bytes(tensor)
        stored = self.problem.graph.nodes[tensor.source.node].stored_bytes is not None
        return size[arcs.target] if stored else size[arcs.target] + size[arcs.source]

    def add_arcs(self, lying: Entries) -> None:
        """Rows for what each arc of the phase takes and gives, whenever it runs."""
        most = sum(float(size.max()) for _, size in lying)
        for t, tensor in enumerate(self.problem.graph.tensors):
            arcs = self.moves.arcs[t]
            if arcs is None or self.limits is None or tensor.phase != self.limits.phase:
                continue
            taken = self.taken_by(tensor, arcs) + self.beside(tensor, alone=True)
            for arc in np.flatnonzero(self.is_open(t) & (taken + most > ROOM)):
                self.row(-np.inf, FULL, [*lying, (np.array([self.paid[t] + arc]), taken[[arc]])])

    def loaded(self, load: Load) -> Entries:
        """What choices take of a room."""
        return [
            (self.choice[n] + np.arange(len(size)), grains(size, load.room)) for n, size in sorted(load.bytes.items())
        ]

    def add_stage(self, stage: Moment, lying: Entries, ordered: bool) -> None:
        """Rows for what is held at a point, or as a value moves right before it, beside what is lying there."""
        assert self.limits is not None, "its rows are added"
        entries = [*lying, *self.loaded(Load(self.taken(stage.beside), self.limits.capacity))]
        entries += [self.unmoved(term) for term in stage.looked_up]
        most = sum(float(size.max()) for _, size in entries)
        for copies in stage.held:
            if copies.most:
                size = self.bytes(copies.tensor, copies.times)
                entries.append((self.copies(copies, ordered) + np.arange(len(size)), size))
                most += float(size.max()) * copies.most
        if stage.moving is not None:
            most += float(self.bytes(stage.moving.tensor).max()) * (1 + len(stage.moving.now) + len(stage.moving.after))
            most += float(self.beside(stage.moving.tensor).max(initial=0.0))
        if most <= ROOM:
            return
        mixed: Entries = []
        if ordered and self.groups is not None:
            # Once something has run as one with something else, steps may stand in another order.
            mixed = [(np.array([self.mixed(frozenset(stage.done))]), np.array([ROOM - most]))]
        if stage.moving is None:
            self.row(-np.inf, FULL, [*entries, *mixed])
            return
        beside = self.a.add_columns(np.zeros(1), most, False)  # what is so for each of the moves
        self.row(-np.inf, 0.0, [*entries, (np.array([beside]), np.array([-1.0]))])
        self.add_moves(stage.moving, [*mixed, (np.array([beside]), np.ones(1))], ordered)
        if not ordered:
            self.add_joint(stage.moving, beside, most)

    def add_joint(self, moving: Copies, beside: int, most: float) -> None:
        """Rows for what is held beside a group's collective that takes a value to where it is read, which is at `most`
        so much."""
        t, flow = self.number[moving.tensor], self.flow[moving.now[0]]
        for group, apart in self.apart.get(t, {}).items():
            runs = flow + self.members[t][group]
            columns = np.array([*runs, apart, beside])
            sizes = np.array([*np.full(len(runs), most), -most, 1.0])
            self.row(-np.inf, FULL + most, [*self.as_one(group), (columns, sizes)])

    def unmoved(self, term: Demand) -> tuple[Array, Floats]:
        """Columns for what a term takes, by layout, where its value lies at one port as at the other; elsewhere that is
        nothing."""
        assert term.trip is not None and self.limits is not None, "it may be moved, and rows are added"
        port, other = term.trip.there, term.trip.here
        size = np.zeros(1 + int(max(port.rows.max(), other.rows.max())))
        np.maximum.at(size, port.rows, grains(term.bytes, self.limits.capacity))
        columns = self.a.add_columns(np.zeros(len(size)), 1.0, False)
        row = self.compare(len(size), -1.0, np.inf, [(columns, 1.0)])
        for each in (port, other):
            self.layouts_at(each, row, -1.0)
        return columns + np.arange(len(size)), size

    def add_moves(self, copies: Copies, others: Entries, ordered: bool) -> None:
        """Rows for what each arc holds that takes a value to where it is read now, with all that is left of it."""
        tensor, port = copies.tensor, copies.now[0]
        arcs = self.moves.arcs[self.number[tensor]]
        assert arcs is not None
        count, size = len(arcs), self.bytes(tensor)
        reached = self.reached[self.number[tensor]]
        gone = [self.flow[other] for other in (*copies.before, *copies.now[1:]) if other in self.flow]
        runs = self.flow[port]
        if gone:
            runs = self.add_arcs_of(self.number[tensor], np.zeros(count))
            self.compare(count, 0.0, np.inf, [(runs, 1.0), (self.flow[port], -1.0), *((flow, 1.0) for flow in gone)])
            self.compare(count, -np.inf, 0.0, [(runs, 1.0), (self.flow[port], -1.0)])
            for flow in gone:
                self.compare(count, -np.inf, 1.0, [(runs, 1.0), (flow, 1.0)])
        leaves = runs
        if copies.stored:  # what it is copied from takes nothing more
            leaves = self.add_arcs_of(self.number[tensor], np.zeros(count))
            row = self.compare(count, 0.0, np.inf, [(leaves, 1.0), (runs, -1.0)])
            for c, at in enumerate(tensor.source.rows):
                from_there = np.flatnonzero(arcs.source == at)
                column = np.full(len(from_there), self.choice[tensor.source.node] + c)
                self.a.add_entries(row + from_there, column, 1.0)
        kept, above = (
            self.copies_beside(copies, arcs, runs, size) if copies.after or len(copies.now) > 1 else (None, None)
        )
        more = self.beside(tensor, alone=not ordered)
        for arc in np.flatnonzero(self.is_open(self.number[tensor])):
            here, there = int(arcs.source[arc]), int(arcs.target[arc])
            entries = [*others, (np.array([runs + arc, leaves + arc]), size[[there, here]] + [more[arc], 0.0])]
            if kept is not None:
                apart = np.setdiff1d(np.flatnonzero(reached), [here, there])
                entries.append((kept + apart, size[apart]))
            if above is not None:
                entries.append((np.array([above + here]), np.ones(1)))
            self.row(-np.inf, FULL, entries)

    def copies_beside(self, copies: Copies, arcs: Arcs, runs: int, size: Floats) -> tuple[int, int | None]:
        """Columns for copies of a value that are held while it is moved on: those that there were before, by layout;
        and the bytes of those made on the way to each layout."""
        tensor, layouts, count = copies.tensor, len(copies.tensor.space), len(arcs)
        gone = frozenset(port for port in (*copies.before, *copies.now) if port in self.flow)
        kept = self.add_layouts_of(tensor)
        for port in copies.now[1:]:
            row = self.compare(layouts, 0.0, np.inf, [(kept, 1.0)])
            self.layouts_at(port, row, -1.0)
            if copies.stored:
                self.layouts_at(tensor.source, row, 1.0)
        if not copies.after:
            return kept, None
        made = self.add_layouts_of(tensor)
        most = float(size.max()) * len(copies.after)
        above = self.add_layouts_of(tensor, most + layouts)
        for port in copies.after:
            at = self.position(tensor, gone, port, True)
            row = self.compare(layouts, 0.0, np.inf, [(kept, 1.0), (at, -1.0)])
            self.a.add_entries(row + arcs.target, runs + np.arange(count), 1.0)
            if copies.stored:
                self.layouts_at(tensor.source, row, 1.0)
            row = self.compare(layouts, -1.0, np.inf, [(made, 1.0), (at, -1.0)])
            self.a.add_entries(row + arcs.target, runs + np.arange(count), -1.0)
        # Along an arc that is gone: above[there] >= above[here] + what of it is held here.
        row = self.compare(count, -most, np.inf, [(runs, -most)])
        self.a.add_entries(row + np.arange(count), above + arcs.target, 1.0)
        self.a.add_entries(row + np.arange(count), above + arcs.source, -1.0)
        self.a.add_entries(row + np.arange(count), made + arcs.source, -size[arcs.source])
        return kept, above

    def bytes(self, tensor: Tensor, times: float = 1.0) -> Floats:
        """What a chip holds of a value in each layout, so many `times`, in grains."""
        assert self.limits is not None, "its rows are added"
        return grains(times * tensor.total_bytes / tensor.space.space.shards, self.limits.capacity)

    def beside(self, tensor: Tensor, alone: bool = False) -> Floats:
        """What each of a value's arcs holds beside what it reads and makes, in grains; `alone`: only of those that are
        sure to run alone. Of what runs as one memory counts that of the first."""
        t, limits = self.number[tensor], self.limits
        arcs, of = self.moves.arcs[t], None if self.groups is None else self.groups.of[t]
        assert limits is not None and arcs is not None, "its rows are added, and it is moved"
        more = grains(limits.beside(tensor, arcs), limits.capacity)
        return np.where(of >= 0, 0.0, more) if alone and of is not None else more


def grains(size: Floats, room: float) -> Floats:
    """Bytes of some room in whole grains, no more than they are; twice the room stands for all that is more."""
    return np.floor(np.minimum(size / room, 2.0) * ROOM)
