"""The choice of a problem whose copies are told by classes, as a program: what the average copy of each class does.

A node's columns are the shares of its copies that take each choice, an arc's the share of the copies of a tensor that
move over it. Where copies of a tensor touch nodes of several classes its flows begin and end at the mixture of these.
Every plan of the whole problem is a solution at its price, so that the linear program bounds all of them; and so do
its dual values, whatever they are, with the columns that it was solved without.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

import numpy as np
from numpy.typing import NDArray

from ...ir.record import record
from ..ilp.model import Assembly, Model
from ..layouts.space import Mask
from .dual_ascent import BUNDLE, Factor, support
from .fold import ClassTensor, Fold
from .memory_bounds import Load
from .memory_rows import ROOM
from .row_worths import choice_worths
from .steiner import KnownTrees

Floats = NDArray[np.float64]


@record
class Weights:
    """What columns count: seconds by `unit`, and how far from plain they are by `tie`."""

    unit: float
    tie: float = 0.0


@record(eq=False)
class Columns:
    """Columns of a program: choices of each class of nodes, and arcs of each class of tensors."""

    choices: Sequence[Mask]
    arcs: Sequence[Mask]

    def joined(self, other: Columns) -> Columns:
        """Those of both."""
        choices = [a | b for a, b in zip(self.choices, other.choices, strict=True)]
        return Columns(choices, [a | b for a, b in zip(self.arcs, other.arcs, strict=True)])

    @property
    def count(self) -> int:
        """How many there are."""
        return sum(int(mask.sum()) for masks in (self.choices, self.arcs) for mask in masks)


@record(eq=False)
class Worths:
    """What the rows are worth: each layout in the flow to each use of a tensor, [uses, layouts]; at most 0 to run in
    each group of its arcs, and the room of each load."""

    flows: Sequence[Floats]
    groups: Sequence[Floats]
    rooms: Floats = field(default_factory=lambda: np.zeros(0))


@record(eq=False)
class ClassProgram:
    """The program, and the first of the columns and rows of each class: `choice[c]`; `shared[g]`; of each tensor the
    rows that balance the flow to each use, those by which a flow runs over what is paid (none where there is one
    use), and those of its groups; those of `loads`."""

    model: Model
    choice: tuple[int, ...]
    shared: tuple[int, ...]
    balances: tuple[tuple[int, ...], ...]
    links: tuple[tuple[int, ...], ...]
    joins: tuple[tuple[int, ...], ...]
    loads: range


def latency_of(fold: Fold, tensor: ClassTensor) -> Floats:
    """What each arc of a tensor pays of latency that it may share."""
    groups = fold.window.groups
    of = None if groups is None else groups.of[tensor.like]
    near = fold.window.distances[tensor.like]
    if groups is None or of is None:
        return np.zeros(0 if near is None else len(near.price))
    return np.asarray(np.where(of >= 0, groups.latency_s[of], 0.0))


def class_program(
    fold: Fold, tensors: Sequence[ClassTensor], columns: Columns, weights: Weights, loads: Sequence[Load] = ()
) -> ClassProgram:
    """The program of classes with some of the columns. `tensors`: the classes of tensors that it tells apart; `loads`:
    what classes take at the most, all of their copies together."""
    window, a = fold.window, Assembly()
    choice = []
    for node, price, kept, copies in zip(window.graph.nodes, window.prices, columns.choices, fold.copies, strict=True):
        cost = copies * (price[kept] * weights.unit + weights.tie * node.rank[kept])
        choice.append(a.add_columns(cost, 1.0, True))
        row = a.add_rows(1, 1.0, 1.0)
        a.add_entries(row, choice[-1] + np.arange(len(cost)), 1.0)
    first = a.add_rows(len(loads), -np.inf, ROOM)
    for row, load in enumerate(loads, start=first):
        for c, size in load.bytes.items():
            taken = size[columns.choices[c]] * (ROOM / load.room)
            a.add_entries(row, choice[c] + np.arange(len(taken)), taken)
    shared: list[int] = []
    for g, copies in enumerate(fold.group_copies):
        assert window.groups is not None, "groups have classes"
        shared.append(a.add_columns(window.groups.latency_s[[g]] * (copies * weights.unit), 1.0, True))
    to = columns.choices, choice, shared
    rows = [_add(a, fold, tensor, to, kept, weights) for tensor, kept in zip(tensors, columns.arcs, strict=True)]
    balances, links, joins = zip(*rows, strict=True)
    memory = range(first, first + len(loads))
    return ClassProgram(a.model(), tuple(choice), tuple(shared), balances, links, joins, memory)


_Rows = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


def _add(
    a: Assembly,
    fold: Fold,
    tensor: ClassTensor,
    to: tuple[Sequence[Mask], Sequence[int], Sequence[int]],
    arcs: Mask,
    weights: Weights,
) -> _Rows:
    """The flows of a class of tensors; the rows that balance them, that link them, and of its groups."""
    near, own = fold.window.distances[tensor.like], fold.window.graph.tensors[tensor.like]
    if near is None:
        return (), (), ()
    kept, choice, shared = to
    latency = latency_of(fold, tensor)[arcs]
    price = near.price[arcs]
    tie = weights.tie * np.where(price > 0, 1.0, 0.1)
    cost = tensor.copies * ((price - latency) * weights.unit + tie)
    source, target, count = near.arcs.source[arcs], near.arcs.target[arcs], len(price)
    several = len(own.uses) > 1
    paid = a.add_columns(cost, 1.0, True) if several else None
    balances, links = [], []
    for u, port in enumerate(own.uses):
        flow = a.add_columns(np.zeros(count) if several else cost, 1.0, False)
        run = flow + np.arange(count)
        row = a.add_rows(len(own.space), 0.0, 0.0)
        balances.append(row)
        a.add_entries(row + target, run, 1.0)
        a.add_entries(row + source, run, -1.0)
        for end, ends, sign in ((own.source, tensor.ends[0], 1.0), (port, tensor.ends[1 + u], -1.0)):
            for node, share in ends.parts:
                layouts = end.rows[kept[node]]
                a.add_entries(row + layouts, choice[node] + np.arange(len(layouts)), sign * share)
        if paid is None:
            first = flow
        else:
            links.append(a.add_rows(count, -np.inf, 0.0))
            a.add_entries(links[-1] + np.arange(count), run, 1.0)
            a.add_entries(links[-1] + np.arange(count), paid + np.arange(count), -1.0)
            first = paid
    return tuple(balances), tuple(links), _join(a, fold, tensor, (first, arcs), shared, several, weights)


def _join(
    a: Assembly,
    fold: Fold,
    tensor: ClassTensor,
    paid: tuple[int, Mask],
    shared: Sequence[int],
    several: bool,
    weights: Weights,
) -> tuple[int, ...]:
    """A tensor's arcs of a group run in its collective, one of them; with several uses others pay by themselves."""
    groups, rows = fold.window.groups, []
    for name, mixture in tensor.groups:
        assert groups is not None, "what is in a group has one"
        of = groups.of[tensor.like]
        assert of is not None, "what is in a group has arcs"
        own = np.flatnonzero(of[paid[1]] == name)
        row = a.add_rows(1, -np.inf, 0.0)
        rows.append(row)
        a.add_entries(row, paid[0] + own, 1.0)
        for g, share in mixture.parts:
            a.add_entries(np.array([row]), np.array([shared[g]]), -share)
        if several:
            alone = a.add_columns(groups.latency_s[[name]] * (tensor.copies * weights.unit), float(len(own)), True)
            a.add_entries(np.array([row]), np.array([alone]), -1.0)
    return tuple(rows)


def worths_of(fold: Fold, tensors: Sequence[ClassTensor], program: ClassProgram, rows: Floats) -> Worths:
    """What the rows of a program are worth, for all columns."""
    flows, groups = [], []
    for t, tensor in enumerate(tensors):
        size = len(fold.window.graph.tensors[tensor.like].space)
        flows.append(np.array([rows[first : first + size] for first in program.balances[t]]).reshape(-1, size))
        groups.append(np.minimum(0.0, rows[list(program.joins[t])]))
    return Worths(flows, groups, np.minimum(0.0, rows[program.loads]))


def rows_of(
    fold: Fold, tensors: Sequence[ClassTensor], columns: Columns, program: ClassProgram, worths: Worths
) -> Floats:
    """The other way round: what each row of a program is worth, of nodes the least of their choices."""
    rows = np.zeros(len(program.model.low))
    for t, (tensor, arcs) in enumerate(zip(tensors, columns.arcs, strict=True)):
        near, flows = fold.window.distances[tensor.like], worths.flows[t]
        if near is None:
            continue
        source, target = near.arcs.source[arcs], near.arcs.target[arcs]
        for u, first in enumerate(program.balances[t]):
            rows[first : first + flows.shape[1]] = flows[u]
        for u, first in enumerate(program.links[t]):
            rows[first : first + len(source)] = -np.maximum(0.0, flows[u][target] - flows[u][source])
        rows[list(program.joins[t])] = worths.groups[t]
    rows[program.loads] = worths.rooms
    rows[: len(program.choice)] = choice_worths(program.model, len(program.choice), rows)
    return rows


@record(eq=False)
class Reduced:
    """What plans cost at the least with each column, above the least of all with its node or tensor: of those that
    are split from each other by what rows are worth. `bound`: what all plans cost at the least."""

    choices: Sequence[Floats]
    arcs: Sequence[Floats]
    bound: float

    def within(self, slack: float) -> Columns:
        """The columns that cost at most so much."""
        return Columns([cost <= slack for cost in self.choices], [cost <= slack for cost in self.arcs])

    def beside(self, columns: Columns, slack: float) -> Columns:
        """The columns that cost at most so much more than the cheapest of some `columns` of their node or tensor."""
        choices, arcs = (
            [cost <= cost[mask].min(initial=np.inf) + slack for cost, mask in zip(costs, kept, strict=True)]
            for costs, kept in ((self.choices, columns.choices), (self.arcs, columns.arcs))
        )
        return Columns(choices, arcs)


def reduced_costs(
    fold: Fold, tensors: Sequence[ClassTensor], worths: Worths, unit: float, loads: Sequence[Load] = ()
) -> Reduced:
    """What all columns cost, kept or not, and the bound: nodes, tensors and groups each at their least. Of plans that
    take what `loads` say at most."""
    window = fold.window
    costs = [copies * unit * price for copies, price in zip(fold.copies, window.prices, strict=True)]
    for load, worth in zip(loads, worths.rooms, strict=True):
        for node, size in load.bytes.items():
            costs[node] = costs[node] - worth * size * (ROOM / load.room)
    latency = np.zeros(0) if window.groups is None else window.groups.latency_s
    groups = np.array(fold.group_copies, dtype=np.float64) * unit * latency
    arcs, least = [], 0.0
    for tensor, flows, joins in zip(tensors, worths.flows, worths.groups, strict=True):
        own = window.graph.tensors[tensor.like]
        for u, flow in enumerate(flows):
            for end, ends, sign in ((own.source, tensor.ends[0], 1.0), (own.uses[u], tensor.ends[1 + u], -1.0)):
                for node, share in ends.parts:
                    costs[node] = costs[node] - sign * share * flow[end.rows]
        factors = _factors(fold, tensor, flows, joins, unit)
        minima = [factor.minimum() for factor in factors]
        above = [factor.arc_marginals() - low for factor, low in zip(factors, minima, strict=True)]
        arcs.append(np.min(above, axis=0) if above else np.zeros(0))
        least += sum(minima)
        for (name, mixture), worth in zip(tensor.groups, joins, strict=True):
            for g, share in mixture.parts:
                groups[g] += share * worth
            if len(own.uses) > 1:
                least += len(arcs[-1]) * min(0.0, float(tensor.copies * unit * latency[name] + worth))
    lows = [float(cost.min()) for cost in costs]
    least += ROOM * float(worths.rooms.sum())
    least += sum(lows) + float(np.minimum(0.0, groups).sum())
    return Reduced([cost - low for cost, low in zip(costs, lows, strict=True)], arcs, float(least / unit))


def _factors(fold: Fold, tensor: ClassTensor, flows: Floats, joins: Floats, unit: float) -> list[Factor]:
    """A tensor with what its flows are worth at each layout, and its arcs at what they cost beside that of their
    groups; of many uses some at a time, each at what they would pay of the price."""
    near, own = fold.window.distances[tensor.like], fold.window.graph.tensors[tensor.like]
    if near is None:
        return []
    price = tensor.copies * unit * (near.price - latency_of(fold, tensor))
    groups = fold.window.groups
    of = None if groups is None else groups.of[tensor.like]
    for (name, _), worth in zip(tensor.groups, joins, strict=True):
        price = price - np.where(of == name, worth, 0.0)
    price = np.maximum(price, 0.0)
    needed = np.maximum(0.0, flows[:, near.arcs.target] - flows[:, near.arcs.source])
    paid = needed.sum(axis=0)
    share = np.minimum(1.0, price / np.where(paid > 0, paid, 1.0))
    bundles = range(0, len(flows), BUNDLE)
    out = []
    for first in bundles:
        some = slice(first, first + BUNDLE)
        ports = (own.source, *own.uses[some])
        bundled = share * needed[some].sum(axis=0) + (price - share * paid) / len(bundles)
        split = (flows[some].sum(axis=0), *(-flows[some]))
        potentials = [support(port, len(own.space)) + each for port, each in zip(ports, split, strict=True)]
        distances = near.repriced(price if len(bundles) == 1 else np.maximum(0.0, bundled))
        out.append(Factor(tensor.like, distances, ports, potentials, KnownTrees(len(ports) - 1)))
    return out
