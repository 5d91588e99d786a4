"""The ways of all values, as an integer program: an arc of a tensor is a column, paid once, and each reader has a way.

Which collectives run as one follows from the arcs that are paid: what has a group is in it where it can be.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..ilp.model import Assembly, Model, telling
from ..layouts.reshard import NONE, Arcs
from ..layouts.space import Array, Mask
from .combinable import Combining, Groups, groups_in
from .graph import Port, Tensor
from .integer_program import InGroup, add_groups, combine, in_group, join
from .memory_bounds import Pair
from .memory_rows import add_moved_on
from .prices import Moves
from .problem import Problem

Floats = NDArray[np.float64]
Entries = list[tuple[Array, Floats]]  # columns with their coefficients


@dataclass(eq=False)
class WaysProgram:
    """The integer program of a problem. `allowed`: the choices of each node, `over`: the arcs of each tensor (None:
    all), `unit`: what a second counts.

    `flow[port]` is the first column of the way to a port, by the arcs of `prices`; `paid[t]` that of tensor t's arcs.
    """

    problem: Problem
    moves: Moves
    allowed: Sequence[Mask]
    unit: float
    combining: Combining
    over: Mapping[int, Mask] | None = None
    a: Assembly = field(default_factory=Assembly)
    choice: list[int] = field(default_factory=list)
    paid: dict[int, int] = field(default_factory=dict)
    flow: dict[Port, int] = field(default_factory=dict)
    shared: dict[int, int] = field(default_factory=dict)
    between: dict[Pair, int] = field(default_factory=dict)
    positions: dict[tuple[object, ...], int] = field(default_factory=dict)
    mixtures: dict[frozenset[Port], int] = field(default_factory=dict)
    joint: dict[tuple[Port, int], int] = field(default_factory=dict)
    apart: dict[int, dict[int, int]] = field(default_factory=dict)

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
        for some in groups.of_knots(self.combining):
            combine(self.a, every, some)

    @cached_property
    def groups(self) -> Groups | None:
        """The collectives that may run as one, in the solver's unit."""
        own = self.moves.groups if self.problem.groups is not None else None
        return None if own is None else replace(own, latency_s=own.latency_s * self.unit)

    @property
    def choices(self) -> list[Array]:
        """The columns of each node's choices, of which plans make one."""
        return [first + np.arange(len(mask)) for first, mask in zip(self.choice, self.allowed, strict=True)]

    @cached_property
    def number(self) -> dict[Tensor, int]:
        """The tensors' numbers."""
        return {tensor: t for t, tensor in enumerate(self.problem.graph.tensors)}

    def model(self) -> Model:
        """The program with all rows so far that say something. All its columns are whole numbers in plans: of one that
        is not said to be so CP-SAT may leave values that are none, and find no plan."""
        model = telling(self.a.model())
        return replace(model, integer=np.ones(len(model.cost), dtype=bool))

    def row(self, low: float, high: float, entries: Entries) -> None:
        """One row."""
        row = self.a.add_rows(1, low, high)
        for columns, coefficients in entries:
            self.a.add_entries(row, columns, coefficients)

    def layouts_at(self, port: Port, first: int, sign: float) -> None:
        """In rows from `first` on, one for each layout: `sign` where the port has that layout."""
        columns = self.choice[port.node] + np.arange(len(port.rows))
        self.a.add_entries(first + port.rows, columns, sign)

    def is_open(self, t: int) -> Mask:
        """Over which of a tensor's arcs plans may go."""
        arcs = self.moves.arcs[t]
        assert arcs is not None, "it is moved"
        return np.ones(len(arcs), dtype=bool) if self.over is None else self.over[t]

    def add_arcs_of(self, t: int, cost: Floats, integer: bool = False) -> int:
        """A column for each arc of a tensor, which is 0 where no plan goes over it."""
        first = self.a.add_columns(cost, 1.0, integer)
        self.a.upper[-1] = self.is_open(t).astype(np.float64)
        return first

    def add_layouts_of(self, tensor: Tensor, most: float = 1.0) -> int:
        """A column for each layout of a tensor, which is 0 where it is never in it."""
        first = self.a.add_columns(np.zeros(len(tensor.space)), most, False)
        reached = self.reached[self.number[tensor]]
        self.a.upper[-1] = np.where(reached, most, 0.0)
        return first

    @cached_property
    def reached(self) -> list[Mask]:
        """The layouts in which each tensor may be."""
        found = []
        for t, tensor in enumerate(self.problem.graph.tensors):
            mask, arcs = np.zeros(len(tensor.space), dtype=bool), self.moves.arcs[t]
            mask[tensor.source.rows[self.allowed[tensor.source.node]]] = True
            if arcs is not None:
                mask[arcs.target[self.is_open(t)]] = True
            found.append(mask)
        return found

    def add_ways(self, t: int, tensor: Tensor, arcs: Arcs) -> None:
        """A way to each reader over arcs that are paid once; no copy is made twice."""
        price, of = self.moves.seconds[t] * self.unit, None if self.groups is None else self.groups.of[t]
        joined = self.groups is not None and of is not None and (of >= 0).any()
        if self.groups is not None and of is not None and joined:
            price = price - np.where(of >= 0, self.groups.latency_s[of], 0.0)
        count, layouts = len(arcs), len(tensor.space)
        paid = self.paid[t] = self.add_arcs_of(t, price, True)
        once = self.a.add_rows(layouts, -np.inf, 1.0)
        self.a.add_entries(once + arcs.target, paid + np.arange(count), 1.0)
        self.layouts_at(tensor.source, once, 1.0)
        for port in tensor.uses:
            flow = paid if len(tensor.uses) == 1 else self.add_arcs_of(t, np.zeros(count))
            self.flow[port] = flow
            self.along(tensor, arcs, flow, self.a.add_rows(layouts, 0.0, 0.0))
            self.layouts_at(port, self.a.rows - layouts, -1.0)
            if flow != paid:
                self.compare(count, -np.inf, 0.0, [(flow, 1.0), (paid, -1.0)])
        if len(tensor.uses) > 1:  # no copy is made that is on no way
            self.compare(count, 0.0, np.inf, [(paid, -1.0), *((self.flow[port], 1.0) for port in tensor.uses)])
        if self.groups is not None and of is not None and joined:
            _, self.apart[t] = join(self.a, paid, of, self.groups, self.shared, alone=True)
            self.keep_together(t, arcs, of)
            self.keep_from_returning(paid, arcs)

    def keep_together(self, t: int, arcs: Arcs, of: Array) -> None:
        """Rows for what pays by itself though it has a group: only if another arc has it, or on the way to it one that
        follows, which is none from where the value is made."""
        paid, source = self.paid[t], self.problem.graph.tensors[t].source
        for group, column in self.apart[t].items():
            own, later = np.flatnonzero(of == group), np.flatnonzero(of > group)
            for arc in own:
                others = paid + own[own != arc]
                each = [(np.array([column]), np.ones(1)), (others, np.full(len(others), -1.0))]
                self.row(-np.inf, 0.0, [*each, (paid + later, np.full(len(later), -1.0))])
                made = self.choice[source.node] + np.flatnonzero(source.rows == arcs.source[arc])
                self.row(-np.inf, 2.0, [*each, (np.append(made, paid + arc), np.ones(len(made) + 1))])

    def keep_from_returning(self, paid: int, arcs: Arcs) -> None:
        """Rows for arcs that lead back and forth between two layouts, which none does that is on a way."""
        between: dict[tuple[int, int], list[int]] = {}
        for arc, ends in enumerate(zip(arcs.source.tolist(), arcs.target.tolist(), strict=True)):
            between.setdefault(ends, []).append(arc)
        for (here, there), some in between.items():
            if here < there and (there, here) in between:
                columns = paid + np.array([*some, *between[there, here]])
                self.row(-np.inf, 1.0, [(columns, np.ones(len(columns)))])

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
            at = self.positions[key] = self.add_layouts_of(tensor)
            begun = self.add_arcs_of(self.number[tensor], np.zeros(count))
            if ordered and not gone:
                self.a.upper[-1] = np.zeros(count)
            row = self.compare(layouts, 0.0, 0.0, [(at, -1.0)])
            self.along(tensor, arcs, begun, row)
            self.compare(count, -np.inf, 0.0, [(begun, 1.0), (flow, -1.0)])
            before = sorted(self.flow[other] for other in gone)
            if ordered:
                self.compare(count, -np.inf, 0.0, [(begun, 1.0), *((other, -1.0) for other in before)])
            for other in before:
                self.compare(count, -1.0, np.inf, [(begun, 1.0), (flow, -1.0), (other, -1.0)])
        return self.positions[key]

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
    def several(self) -> dict[int, int]:
        """Of each group a column that may be 1 only where at least two of its collectives run."""
        found = {group: self.a.add_columns(np.zeros(1), 1.0, True) for group in self.shared}
        for group, column in found.items():
            every = [self.paid[t] + own[group] for t, own in self.members.items() if group in own and t in self.paid]
            columns = np.concatenate([[column], *every])
            self.row(-np.inf, 0.0, [(columns, np.where(columns == column, 2.0, -1.0))])
        return found

    @cached_property
    def members(self) -> dict[int, dict[int, Array]]:
        """Each tensor's arcs in each group."""
        of = [] if self.groups is None else self.groups.of
        return {
            t: {group: np.flatnonzero(own == group) for group in groups_in(own)}
            for t, own in enumerate(of)
            if own is not None
        }

    def forbid(self, columns: Sequence[int], others: Sequence[int] = ()) -> None:
        """A row that keeps columns from being 1 all together with all of the others 0; or twins of columns that pay for
        arcs, of which one at most is 1, in their place: plans that differ in these alone are one."""
        some = sorted({twin for column in columns for twin in self.twins.get(column, (column,))})
        signs = np.repeat([1.0, -1.0], [len(some), len(others)])
        self.row(-np.inf, len(columns) - 1.0, [(np.array([*some, *others], dtype=np.int64), signs)])

    @cached_property
    def twins(self) -> dict[int, list[int]]:
        """Of each column that pays for an arc with twins theirs, itself among them."""
        found: dict[int, list[int]] = {}
        for t, paid in self.paid.items():
            arcs = self.moves.arcs[t]
            if arcs is not None and arcs.twins is not None:
                for arc, own in enumerate(arcs.twins.tolist()):
                    found[paid + arc] = [paid + twin for twin in own if twin != NONE] or [paid + arc]
        return found
