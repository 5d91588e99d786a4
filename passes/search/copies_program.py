"""The choice with all copies told apart, as an integer program: what is held at each point, whatever its way.

Rows over choices alone know a copy only where it is read. Here every arc of every tensor has a column, and what is
held of a value follows from where on its ways it is at a point: a later reader's way has been gone as far as earlier
readers have gone it (`derive_moments`). Where steps keep their order that is all that a plan holds, but for what is
moved right before a repeat or at the end of its runs; where they do not, it is the least. No row cuts off a plan that
keeps to the limits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..ilp.model import Assembly, Model
from ..layouts.reshard import Arcs
from ..layouts.space import Array, Mask
from .combinable import Combining, Groups
from .derive_moments import Moment
from .graph import Port, Tensor
from .integer_program import InGroup, add_groups, combine, in_group, join
from .limits import Limits
from .memory_bounds import Copies, Demand, Load, Pair
from .memory_rows import add_moved_on
from .prices import Moves
from .problem import Problem

Floats = NDArray[np.float64]
# Bytes are counted in whole grains, of which there is so much ROOM: CP-SAT scales what is no integer to some, and then
# finds no plan where one takes nearly all there is.
ROOM = 1e6
FULL = ROOM * (1 + 1e-4)  # a little more than there is, as what the solver takes for 0 or 1 may be a little off
_Entries = list[tuple[Array, Floats]]  # columns with their coefficients


@dataclass(eq=False)
class CopiesProgram:
    """The integer program of a problem. `allowed`: the choices of each node, `unit`: what a second counts.

    `flow[port]` is the first column of the way to a port, by the arcs of `prices`; `paid[t]` that of tensor t's arcs.
    """

    problem: Problem
    moves: Moves
    allowed: Sequence[Mask]
    unit: float
    combining: Combining
    a: Assembly = field(default_factory=Assembly)
    choice: list[int] = field(default_factory=list)
    paid: dict[int, int] = field(default_factory=dict)
    flow: dict[Port, int] = field(default_factory=dict)
    shared: dict[int, int] = field(default_factory=dict)
    held: dict[tuple[object, ...], int] = field(default_factory=dict)
    between: dict[Pair, int] = field(default_factory=dict)
    positions: dict[tuple[object, ...], int] = field(default_factory=dict)
    mixtures: dict[frozenset[Port], int] = field(default_factory=dict)
    joint: dict[tuple[Port, int], int] = field(default_factory=dict)
    apart: dict[int, dict[int, int]] = field(default_factory=dict)
    limits: Limits | None = None  # of the phase whose rows are added

    def __post_init__(self) -> None:
        for price, mask in zip(self.problem.prices, self.allowed, strict=True):
            first = self.a.add_columns(price * self.unit, 1.0, True)
            self.a.upper[-1] = mask.astype(np.float64)
            self.choice.append(first)
            self.row(1.0, 1.0, [(np.arange(first, first + len(price)), np.ones(len(price)))])
        groups = self.groups
        if groups is not None:
            self.shared = add_groups(self.a, groups)
        for t, tensor in enumerate(self.problem.graph.tensors):
            arcs = self.moves.arcs[t]
            if arcs is not None:
                self.add_ways(t, tensor, arcs)
        if groups is not None:
            self.combine(groups)

    def combine(self, groups: Groups) -> None:
        """Rows for collectives that run as one: a group has an arc, and where plans are `combining` one has arcs of two
        values."""
        every: dict[int, list[InGroup]] = {group: [] for group in self.shared}
        for t, apart in self.apart.items():
            for group, column in apart.items():
                every[group].append(in_group(self.paid[t] + self.members[t][group], column))
        for group, column in self.shared.items():
            self.row(0.0, np.inf, [*every[group], (np.array([column]), np.array([-1.0]))])
        for some in groups.of_phases(self.problem.graph, self.combining):
            combine(self.a, every, some)

    @cached_property
    def groups(self) -> Groups | None:
        """The collectives that may run as one, in the solver's unit."""
        own = self.moves.groups if self.problem.groups is not None else None
        return None if own is None else replace(own, latency_s=own.latency_s * self.unit)

    @cached_property
    def number(self) -> dict[Tensor, int]:
        """The tensors' numbers."""
        return {tensor: t for t, tensor in enumerate(self.problem.graph.tensors)}

    def model(self) -> Model:
        """The program with all rows so far. All its columns are whole numbers in plans: of one that is not said to be
        so CP-SAT may leave values that are none, and find no plan."""
        model = self.a.model()
        return replace(model, integer=np.ones(len(model.cost), dtype=bool))

    def row(self, low: float, high: float, entries: _Entries) -> None:
        """One row."""
        row = self.a.add_rows(1, low, high)
        for columns, coefficients in entries:
            self.a.add_entries(np.full(len(columns), row), columns, coefficients)

    def layouts_at(self, port: Port, first: int, sign: float) -> None:
        """In rows from `first` on, one for each layout: `sign` where the port has that layout."""
        columns = self.choice[port.node] + np.arange(len(port.rows))
        self.a.add_entries(first + port.rows, columns, sign)

    def add_ways(self, t: int, tensor: Tensor, arcs: Arcs) -> None:
        """A way to each reader over arcs that are paid once; no copy is made twice."""
        price, of = self.moves.seconds[t] * self.unit, None if self.groups is None else self.groups.of[t]
        joined = self.groups is not None and of is not None and (of >= 0).any()
        if self.groups is not None and of is not None and joined:
            price = price - np.where(of >= 0, self.groups.latency_s[of], 0.0)
        count, layouts = len(arcs), len(tensor.space)
        paid = self.paid[t] = self.a.add_columns(price, 1.0, True)
        once = self.a.add_rows(layouts, -np.inf, 1.0)
        self.a.add_entries(once + arcs.target, paid + np.arange(count), 1.0)
        self.layouts_at(tensor.source, once, 1.0)
        for port in tensor.uses:
            flow = paid if len(tensor.uses) == 1 else self.a.add_columns(np.zeros(count), 1.0, False)
            self.flow[port] = flow
            self.along(tensor, arcs, flow, self.a.add_rows(layouts, 0.0, 0.0))
            self.layouts_at(port, self.a.rows - layouts, -1.0)
            if flow != paid:
                self.compare(count, -np.inf, 0.0, [(flow, 1.0), (paid, -1.0)])
        if len(tensor.uses) > 1:  # no copy is made that is on no way
            self.compare(count, 0.0, np.inf, [(paid, -1.0), *((self.flow[port], 1.0) for port in tensor.uses)])
        if self.groups is not None and of is not None and joined:
            _, self.apart[t] = join(self.a, paid, of, self.groups, self.shared, alone=True)

    def along(self, tensor: Tensor, arcs: Arcs, flow: int, row: int) -> None:
        """In rows from `row` on, one for each layout: how much of a flow from the source ends there."""
        columns = flow + np.arange(len(arcs))
        self.a.add_entries(row + arcs.target, columns, 1.0)
        self.a.add_entries(row + arcs.source, columns, -1.0)
        self.layouts_at(tensor.source, row, 1.0)

    def compare(self, count: int, low: float, high: float, terms: Iterable[tuple[int, float]]) -> int:
        """As many rows as there are columns in each of some blocks, given by their first columns and a sign."""
        row = self.a.add_rows(count, low, high)
        for first, sign in terms:
            self.a.add_entries(row + np.arange(count), first + np.arange(count), sign)
        return row

    def position(self, tensor: Tensor, gone: frozenset[Port], port: Port, ordered: bool) -> int:
        """Columns that say in which layout the value waits for a later reader, by its ways to those `gone`."""
        key = tensor, gone, port, ordered
        if key not in self.positions:
            arcs, layouts = self.moves.arcs[self.number[tensor]], len(tensor.space)
            assert arcs is not None
            count, flow = len(arcs), self.flow[port]
            at = self.positions[key] = self.a.add_columns(np.zeros(layouts), 1.0, False)
            begun = self.a.add_columns(np.zeros(count), 1.0 if gone or not ordered else 0.0, False)
            row = self.compare(layouts, 0.0, 0.0, [(at, -1.0)])
            self.along(tensor, arcs, begun, row)
            self.compare(count, -np.inf, 0.0, [(begun, 1.0), (flow, -1.0)])
            before = sorted(self.flow[other] for other in gone)
            if ordered:
                self.compare(count, -np.inf, 0.0, [(begun, 1.0), *((other, -1.0) for other in before)])
            for other in before:
                self.compare(count, -1.0, np.inf, [(begun, 1.0), (flow, -1.0), (other, -1.0)])
        return self.positions[key]

    def copies(self, copies: Copies, ordered: bool) -> int:
        """Columns that say in which layouts a value is held, besides the one in which it is stored."""
        tensor = copies.tensor
        ways = copies.before, copies.now, copies.after, copies.stored, copies.handed, copies.through, copies.freed
        key = tensor, *ways, ordered
        if key not in self.held:
            layouts = len(tensor.space)
            held = self.held[key] = self.a.add_columns(np.zeros(layouts), 1.0, False)
            gone = frozenset(port for port in (*copies.before, *copies.now) if port in self.flow)
            for moved in self.held_where(copies):
                for port in copies.now:
                    row = self.unless_moved(moved, layouts, [(held, 1.0)])
                    self.layouts_at(port, row, -1.0)
                    if copies.stored:
                        self.layouts_at(tensor.source, row, 1.0)
                for port in copies.after:
                    at = self.position(tensor, gone, port, ordered)
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

    def moved_on(self, between: Pair) -> int:
        """A column that is 1 where a value is read in another layout than it is made in, and 0 where it is not."""
        if between not in self.between:
            made, read = between
            column = self.between[between] = add_moved_on(self.a, self.choice, (read, made))
            layouts = 1 + int(max(port.rows.max() for port in between))
            row = self.a.add_rows(layouts, -np.inf, 2.0)
            self.a.add_entries(row + np.arange(layouts), np.full(layouts, column), 1.0)
            for port in between:
                self.layouts_at(port, row, 1.0)
        return self.between[between]

    def limit(self, limits: Limits) -> None:
        """Rows for all that a phase may hold."""
        stored = Load({term.node: term.bytes for term in limits.needs.stored}, limits.stored)
        if stored.bytes and limits.stored < np.inf:
            self.row(-np.inf, FULL, self.loaded(stored))
        self.limits = limits
        lying = self.loaded(Load(self.taken((*limits.needs.stored, *limits.needs.beside)), limits.capacity))
        for ordered in (True, False) if self.groups is not None else (True,):
            for stage in limits.moments(ordered):
                self.add_stage(stage, lying, ordered)
        for group in self.shared:
            self.row(-np.inf, FULL, [*lying, *self.as_one(group, limits)])
        if self.groups is not None:
            self.add_arcs(lying)

    @staticmethod
    def taken(terms: Iterable[Demand]) -> dict[int, Floats]:
        """What terms take by the choices of each node, whatever others are made."""
        loads: dict[int, Floats] = {}
        for term in terms:
            loads[term.node] = loads.get(term.node, 0.0) + term.bytes
        return loads

    def as_one(self, group: int, limits: Limits) -> _Entries:
        """What a group's collective holds: all that it takes and all that it gives."""
        entries: _Entries = []
        for t, apart in self.apart.items():
            tensor, arcs = self.problem.graph.tensors[t], self.moves.arcs[t]
            if tensor.phase == limits.phase and group in apart and arcs is not None:
                own, size = self.members[t][group], self.bytes(tensor)
                taken = size[arcs.source[own]] + size[arcs.target[own]]
                columns = np.array([*(self.paid[t] + own), apart[group]])
                entries.append((columns, np.array([*taken, -taken.max()])))
        return entries

    def add_arcs(self, lying: _Entries) -> None:
        """Rows for what each arc of the phase takes and gives, whenever it runs."""
        most = sum(float(size.max()) for _, size in lying)
        for t, tensor in enumerate(self.problem.graph.tensors):
            arcs = self.moves.arcs[t]
            if arcs is None or self.limits is None or tensor.phase != self.limits.phase:
                continue
            size = self.bytes(tensor)
            taken = size[arcs.target] + self.beside(tensor)
            if self.problem.graph.nodes[tensor.source.node].stored is None:  # else it may be copied from what is stored
                taken = taken + size[arcs.source]
            for arc in np.flatnonzero(taken + most > ROOM):
                self.row(-np.inf, FULL, [*lying, (np.array([self.paid[t] + arc]), taken[[arc]])])

    def loaded(self, load: Load) -> _Entries:
        """What choices take of a room."""
        return [
            (self.choice[n] + np.arange(len(size)), grains(size, load.room)) for n, size in sorted(load.bytes.items())
        ]

    def add_stage(self, stage: Moment, lying: _Entries, ordered: bool) -> None:
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
        mixed: _Entries = []
        if ordered and self.groups is not None:
            # Once something has run as one with something else, steps may stand in another order.
            mixed = [(np.array([self.mixed(frozenset(stage.done))]), np.array([ROOM - most]))]
        if stage.moving is None:
            self.row(-np.inf, FULL, [*entries, *mixed])
            return
        beside = self.a.add_columns(np.zeros(1), most, False)  # what is so for each of the moves
        self.row(-np.inf, 0.0, [*entries, (np.array([beside]), np.array([-1.0]))])
        self.add_moves(stage.moving, [*mixed, (np.array([beside]), np.ones(1))])

    def mixed(self, done: frozenset[Port]) -> int:
        """A column that may be 1 only where on the ways to these ports something runs as one with something else."""
        if done not in self.mixtures:
            column = self.mixtures[done] = self.a.add_columns(np.zeros(1), 1.0, False)
            some = [
                self.joined(t, port, group)
                for t, tensor in enumerate(self.problem.graph.tensors)
                for port in tensor.uses
                for group in (self.members.get(t, ()) if port in done else ())
            ]
            columns = np.array([column, *some])
            self.row(-np.inf, 0.0, [(columns, np.where(columns == column, 1.0, -1.0))])
        return self.mixtures[done]

    def joined(self, t: int, port: Port, group: int) -> int:
        """A column that may be 1 only where a collective on the way to a port is one with others of its group."""
        key = port, group
        if key not in self.joint:
            self.joint[key] = self.a.add_columns(np.zeros(1), 1.0, False)
            own = {other: arcs[group] for other, arcs in self.members.items() if group in arcs and other in self.paid}
            others = [self.paid[other] + arcs for other, arcs in own.items() if other != t]
            for some in ([self.flow[port] + own[t]], others):
                entries = [(columns, np.full(len(columns), -1.0)) for columns in some]
                self.row(-np.inf, 0.0, [(np.array([self.joint[key]]), np.ones(1)), *entries])
        return self.joint[key]

    @cached_property
    def members(self) -> dict[int, dict[int, Array]]:
        """Each tensor's arcs in each group."""
        of = [] if self.groups is None else self.groups.of
        return {
            t: {int(group): np.flatnonzero(own == group) for group in np.unique(own[own >= 0])}
            for t, own in enumerate(of)
            if own is not None
        }

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

    def add_moves(self, copies: Copies, others: _Entries) -> None:
        """Rows for what each arc holds that takes a value to where it is read now, with all that is left of it."""
        tensor, port = copies.tensor, copies.now[0]
        arcs = self.moves.arcs[self.number[tensor]]
        assert arcs is not None
        count, layouts, size = len(arcs), len(tensor.space), self.bytes(tensor)
        gone = [self.flow[other] for other in (*copies.before, *copies.now[1:]) if other in self.flow]
        runs = self.flow[port]
        if gone:
            runs = self.a.add_columns(np.zeros(count), 1.0, False)
            self.compare(count, 0.0, np.inf, [(runs, 1.0), (self.flow[port], -1.0), *((flow, 1.0) for flow in gone)])
            self.compare(count, -np.inf, 0.0, [(runs, 1.0), (self.flow[port], -1.0)])
            for flow in gone:
                self.compare(count, -np.inf, 1.0, [(runs, 1.0), (flow, 1.0)])
        leaves = runs
        if copies.stored:  # what it is copied from takes nothing more
            leaves = self.a.add_columns(np.zeros(count), 1.0, False)
            row = self.compare(count, 0.0, np.inf, [(leaves, 1.0), (runs, -1.0)])
            for c, at in enumerate(tensor.source.rows):
                from_there = np.flatnonzero(arcs.source == at)
                column = np.full(len(from_there), self.choice[tensor.source.node] + c)
                self.a.add_entries(row + from_there, column, 1.0)
        kept, above = (
            self.copies_beside(copies, arcs, runs, size) if copies.after or len(copies.now) > 1 else (None, None)
        )
        more = self.beside(tensor)
        for arc in range(count):
            here, there = int(arcs.source[arc]), int(arcs.target[arc])
            entries = [*others, (np.array([runs + arc, leaves + arc]), size[[there, here]] + [more[arc], 0.0])]
            if kept is not None:
                apart = np.setdiff1d(np.arange(layouts), [here, there])
                entries.append((kept + apart, size[apart]))
            if above is not None:
                entries.append((np.array([above + here]), np.ones(1)))
            self.row(-np.inf, FULL, entries)

    def copies_beside(self, copies: Copies, arcs: Arcs, runs: int, size: Floats) -> tuple[int, int | None]:
        """Columns for copies of a value that are held while it is moved on: those that there were before, by layout;
        and the bytes of those made on the way to each layout."""
        tensor, layouts, count = copies.tensor, len(copies.tensor.space), len(arcs)
        gone = frozenset(port for port in (*copies.before, *copies.now) if port in self.flow)
        kept = self.a.add_columns(np.zeros(layouts), 1.0, False)
        for port in copies.now[1:]:
            row = self.compare(layouts, 0.0, np.inf, [(kept, 1.0)])
            self.layouts_at(port, row, -1.0)
            if copies.stored:
                self.layouts_at(tensor.source, row, 1.0)
        if not copies.after:
            return kept, None
        made = self.a.add_columns(np.zeros(layouts), 1.0, False)
        most = float(size.max()) * len(copies.after)
        above = self.a.add_columns(np.zeros(layouts), most + layouts, False)
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

    def forbid(self, columns: Sequence[int]) -> None:
        """A row that keeps columns from being 1 all together."""
        self.row(-np.inf, len(columns) - 1.0, [(np.array(columns), np.ones(len(columns)))])

    def bytes(self, tensor: Tensor, times: float = 1.0) -> Floats:
        """What a chip holds of a value in each layout, so many `times`, in grains."""
        assert self.limits is not None, "its rows are added"
        return grains(times * tensor.total_bytes / tensor.space.space.shards, self.limits.capacity)

    def beside(self, tensor: Tensor) -> Floats:
        """What each of a value's arcs holds beside what it reads and makes, in grains."""
        limits, arcs = self.limits, self.moves.arcs[self.number[tensor]]
        assert limits is not None and arcs is not None, "its rows are added, and it is moved"
        return grains(limits.beside(tensor, arcs), limits.capacity)


def grains(size: Floats, room: float) -> Floats:
    """Bytes of some room in whole grains, no more than they are; twice the room stands for all that is more."""
    return np.floor(np.minimum(size / room, 2.0) * ROOM)
