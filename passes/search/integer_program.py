"""The choice as an integer program, as arrays: binary choices, flows of layouts, shared arcs.

For each node one binary per choice, exactly one of them 1. For each use of a tensor a flow runs
through the graph of its layouts, from the one in which it is made to the one in which it is read.
Where several uses share a tensor, an arc is paid once however many flows run over it (a Steiner
arborescence as a multi-commodity flow). Collectives that may run as one have a binary for each group,
which pays the latency; their arcs pay for the bytes alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ...ir.record import record
from ..ilp.model import Assembly, Model
from ..layouts.reshard import Arcs
from ..layouts.space import Array
from .combinable import ALONE, Combining, Groups, groups_in
from .graph import Graph, Tensor
from .memory_bounds import Load
from .memory_rows import MemoryRows, add_memory

Floats = NDArray[np.float64]
InGroup = tuple[Array, Floats]  # columns that count whether a tensor is in a group, with their coefficients
MANY_COLUMNS = 6_000  # of a program: with fewer a solver has an end sooner without rows for two tensors in one group


@record
class Flows:
    """The flows of a tensor in the program: the first of the columns in which its arcs are paid; for each use the
    first of those of its flow (the same where there is one use), and of the rows that balance it at the layouts;
    with several uses the first of the rows by which a flow runs over what is paid; the row of each group."""

    paid: int
    uses: tuple[int, ...]
    balances: tuple[int, ...]
    links: tuple[int, ...]
    joins: Mapping[int, int]

    @property
    def columns(self) -> tuple[int, ...]:
        """The first columns of the arcs: where they are paid, and if that is apart those of each use."""
        return (self.paid, *self.uses) if self.links else self.uses


@record(eq=False)
class ChoiceProgram:
    """The integer program of a graph: `choice[n]` is the first column of node n's choices, and row n takes one of them;
    `memory` says where it knows loads; `shared` has each group of collectives that may run as one, with its column;
    `flows[t]` the flows of tensor t, None for one that nothing reads; `sends` are the columns that count the
    collectives of a plan that cost something, those that run as one as one."""

    model: Model
    choice: tuple[int, ...]
    memory: MemoryRows
    shared: tuple[tuple[int, int], ...]
    flows: tuple[Flows | None, ...]
    sends: Array


def choice_program(
    graph: Graph,
    prices: Sequence[Floats],
    flows: Sequence[tuple[Arcs, Floats] | None],
    groups: Groups | None = None,
    loads: Sequence[Load] = (),
    combining: Combining = (),
) -> ChoiceProgram:
    """The integer program of a graph.

    `prices[n]` are the prices of node n's choices, `flows[t]` the arcs of tensor t and theirs (None
    for a tensor that nothing reads), each run alone. `groups`: the collectives that may run as one,
    with the latency that is then paid once, in the unit of the prices. `loads`: what choices may take
    at most in all. `combining`: sets of knots, of one of each of which collectives of two tensors run as one; in a
    program without many columns some group is used.
    """
    a = Assembly()
    choice = []
    for node, price in zip(graph.nodes, prices, strict=True):
        first = a.add_columns(price, 1.0, True)
        row = a.add_rows(1, 1.0, 1.0)
        a.add_entries(row, np.arange(first, first + len(price)), 1.0)
        choice.append(first)
        assert len(price) == len(node.seconds)
    memory = add_memory(a, choice, loads)
    shared = {} if groups is None else add_groups(a, groups)
    sends = [np.array(sorted(shared.values()), dtype=np.int64)]
    flows_of: list[Flows | None] = []
    every: dict[int, list[InGroup]] = {g: [] for g in shared}
    for t, (tensor, flow) in enumerate(zip(graph.tensors, flows, strict=True)):
        if flow is None:
            flows_of.append(None)
            continue
        of = None if groups is None else groups.of[t]
        arcs, price = flow
        if groups is None or of is None or not (of >= 0).any():
            own = _add_flows(a, tensor, choice, arcs, price)
            flows_of.append(own)
            sends.append(own.paid + np.flatnonzero(price > 0))
        else:
            apart = price - np.where(of >= 0, groups.latency_s[of], 0.0)
            own = _add_flows(a, tensor, choice, arcs, apart)
            joins, more = join(a, own.paid, of, groups, shared, alone=len(tensor.uses) > 1)
            flows_of.append(replace(own, joins=joins))
            sends += [own.paid + np.flatnonzero((price > 0) & (of < 0)), np.array(list(more.values()), dtype=np.int64)]
            for g in joins:
                every[g].append(in_group(own.paid + np.flatnonzero(of == g), more.get(g)))
    if groups is not None:
        for some in groups.of_knots(combining):
            if a.columns >= MANY_COLUMNS:
                combine(a, every, some)
            else:
                row = a.add_rows(1, 1.0, np.inf)
                a.add_entries(row, np.array([shared[g] for g in some], dtype=np.int64), 1.0)
    every_send = np.concatenate(sends)
    return ChoiceProgram(a.model(), tuple(choice), memory, tuple(shared.items()), tuple(flows_of), every_send)


def add_groups(a: Assembly, groups: Groups) -> dict[int, int]:
    """One binary for each group that has an arc left: its collective runs, and pays the latency."""
    used = sorted({int(g) for of in groups.of if of is not None for g in of if g != ALONE})
    first = a.add_columns(groups.latency_s[used], 1.0, True)
    return {g: first + n for n, g in enumerate(used)}


def join(
    a: Assembly, paid: int, of: Array, groups: Groups, shared: Mapping[int, int], alone: bool
) -> tuple[dict[int, int], dict[int, int]]:
    """A tensor's arcs of a group run in its collective, one of them; if it may have more (`alone`),
    the others pay the latency by themselves. `paid`: the first column of the arcs. Returned are the row of each group,
    and the column that counts what pays by itself."""
    rows, apart = {}, {}
    for g in groups_in(of):
        own = np.flatnonzero(of == g)
        row = rows[g] = a.add_rows(1, -np.inf, 0.0)
        a.add_entries(row, paid + own, 1.0)
        a.add_entries(np.array([row]), np.array([shared[g]]), -1.0)
        if alone:
            extra = apart[g] = a.add_columns(groups.latency_s[[g]], float(len(own)), True)
            a.add_entries(np.array([row]), np.array([extra]), -1.0)
    return rows, apart


def in_group(arcs: Array, apart: int | None) -> InGroup:
    """How many of a tensor's `arcs` of a group run in its collective, without those that pay by themselves, as the
    columns that say so and their coefficients. `apart`: the column that counts these."""
    if apart is None:
        return arcs, np.ones(len(arcs))
    return np.append(arcs, apart), np.append(np.ones(len(arcs)), -1.0)


def combine(a: Assembly, every: Mapping[int, Sequence[InGroup]], some: Sequence[int]) -> None:
    """Of `some` groups one has arcs of two tensors: without, all of them run alone. `every`: of each group which arcs
    of each tensor run in its collective."""
    several = a.add_columns(np.zeros(len(some)), 1.0, True)
    row = a.add_rows(1, 1.0, np.inf)
    a.add_entries(row, several + np.arange(len(some)), 1.0)
    for n, g in enumerate(some):
        for one in range(len(every[g])):
            row = a.add_rows(1, 0.0, np.inf)
            a.add_entries(np.array([row]), np.array([several + n]), -1.0)
            for columns, coefficients in (*every[g][:one], *every[g][one + 1 :]):
                a.add_entries(row, columns, coefficients)


def _add_flows(a: Assembly, tensor: Tensor, choice: Sequence[int], arcs: Arcs, price: Floats) -> Flows:
    """One flow for each use; with several uses, the arcs' prices are paid by shared columns."""
    shared = len(tensor.uses) > 1
    layouts, count = len(tensor.space), len(arcs)
    paid = a.add_columns(price, 1.0, True) if shared else None
    uses, balances, links = [], [], []
    for port in tensor.uses:
        flow = a.add_columns(np.zeros(count) if shared else price, 1.0, False)
        uses.append(flow)
        columns = np.arange(flow, flow + count)
        row = a.add_rows(layouts, 0.0, 0.0)
        balances.append(row)
        a.add_entries(row + arcs.target, columns, 1.0)
        a.add_entries(row + arcs.source, columns, -1.0)
        for end, sign in ((tensor.source, 1.0), (port, -1.0)):
            first = choice[end.node]
            a.add_entries(row + end.rows, np.arange(first, first + len(end.rows)), sign)
        if paid is not None:
            bound = a.add_rows(count, -np.inf, 0.0)
            links.append(bound)
            a.add_entries(bound + np.arange(count), columns, 1.0)
            a.add_entries(bound + np.arange(count), np.arange(paid, paid + count), -1.0)
    return Flows(uses[0] if paid is None else paid, tuple(uses), tuple(balances), tuple(links), {})
