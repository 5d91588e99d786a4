"""The least time of any sharded program for a case, found exactly and without a solver.

Every op has a column of strategies, every value a column for the layout in which it is made and one
for each use. Moving a value to its uses is a Steiner arborescence, solved by Dreyfus and Wagner with
whatever the uses still depend on as further columns. Columns leave one by one, cheapest table first.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from escc.cost.kernels import Launch, launches
from escc.ir.program import Append, Carry, Kind, Op, Region, Repeat, Stored, Value

from .chosen import Masks, followed, share
from .flows import Flow, arborescence
from .generator import Case
from .layouts import Floats, Place, complete, distances, parts, places
from .rules import LINK, strategies, uses
from .tables import Table, add

# Of a value, its sizes, whether it may be a partial maximum, the seconds that all of it takes on a link, and how often
# it is made: the seconds from each of its layouts to each other.
Moving = Callable[[str, tuple[int, ...], bool, float, int], Floats]


@dataclass
class _Net:
    """The whole case as columns, tables over them, and flows between them."""

    case: Case
    values: Mapping[str, Value]
    sizes: Mapping[str, int]
    mesh: tuple[int, ...]
    launches: dict[str, Launch]
    masks: dict[str, Masks]
    moving: Moving
    domains: dict[str, list[Place]] = field(default_factory=dict)
    tables: list[Table] = field(default_factory=list)
    flows: dict[str, Flow] = field(default_factory=dict)
    orders: dict[str, dict[Place, int]] = field(default_factory=dict)  # the layouts of each value, numbered
    memory: dict[str, str] = field(default_factory=dict)  # values that lie in HBM, and the kind of each
    held: dict[str, tuple[str, float]] = field(default_factory=dict)  # root column -> value, bytes unsplit
    groups: dict[str, dict[str, str]] = field(default_factory=dict)  # of codes: dims, and those that count their groups

    def column(self, name: str, domain: list[Place]) -> str:
        self.domains[name] = domain
        return name

    def shape(self, value: str) -> tuple[int, ...]:
        """Into how many parts each dim may be split at the most: into its groups, where it has some."""
        groups = self.groups.get(value, {})
        return tuple(self.sizes[groups.get(d, d)] for d in self.values[value].dims)

    def weight(self, value: str) -> float:
        kept = share(self.masks.get(value, ()), self.sizes)
        return math.prod(self.sizes[d] for d in self.values[value].dims) * self.values[value].dtype.bits / 8 * kept

    def begin(self, value: str, root: str, times: int, top: bool = False) -> None:
        """A value that is there, `times` over, in the layout of column `root`."""
        shape = self.shape(value)
        seconds = self.moving(value, shape, top, self.weight(value) / LINK, times)
        self.orders[value] = {p: i for i, p in enumerate(places(shape, self.mesh, top))}
        self.flows[value] = Flow(seconds, root, [self.orders[value][p] for p in self.domains[root]])

    def end(self, value: str, domain: list[Place]) -> str:
        """A column for one more use of `value`."""
        flow = self.flows[value]
        name = self.column(f"use {value} {len(flow.ends)}", domain)
        flow.ends[name] = [self.orders[value][p] for p in domain]
        return name

    def tie(self, first: str, second: str) -> None:
        """Two columns of layouts are to be the same."""
        same = [[0.0 if a == b else math.inf for b in self.domains[second]] for a in self.domains[first]]
        self.tables.append(Table((first, second), np.array(same)))


def optimum(case: Case, moving: Moving | None = None) -> float:
    """The least time in seconds; infinite where the capacity cannot be kept. `moving`: what it takes to move values,
    where that is not the bytes alone."""

    def by_bytes(_: str, shape: tuple[int, ...], top: bool, unit_s: float, times: int) -> Floats:
        return distances(shape, case.mesh.sizes, top, case.slow) * (unit_s * times)

    net = _network(case, moving or by_bytes)
    best = math.inf
    for limits in _memory_limits(net, case.capacity_bytes):
        best = min(best, _solve(net, limits))
    return best


def _network(case: Case, moving: Moving) -> _Net:
    phase = case.program.phase("main")
    masks = followed(case.program)
    sizes = dict(phase.sizes)
    net = _Net(case, case.program.table(), sizes, case.mesh.sizes, launches(case.program, sizes), masks, moving)
    _region(net, case.program.body, 1)
    for value in case.program.results:
        net.end(value, case.stored(value, complete(net.shape(value), net.mesh)))
    return net


def _region(net: _Net, region: Region[Op], times: int) -> None:
    for stored in region.stored:
        _stored(net, stored, times)
    for item in region.items:
        if isinstance(item, Repeat):
            _repeat(net, item, times)
        else:
            _op(net, item, times)


def _stored(net: _Net, stored: Stored, times: int) -> None:
    net.groups[stored.value] = dict(stored.groups)
    free = complete(net.shape(stored.value), net.mesh)
    root = net.column(f"stored {stored.value}", net.case.stored(stored.value, free))
    net.begin(stored.value, root, times)
    if stored.kind is not Kind.INPUT:
        net.memory[stored.value] = "param" if stored.kind is Kind.PARAM else "cache"
        net.held[root] = (stored.value, net.weight(stored.value) * times)


def _repeat(net: _Net, repeat: Repeat[Op], times: int) -> None:
    columns: list[tuple[Carry, str]] = []
    for carry in repeat.carries:
        domain = list(complete(net.shape(carry.inside), net.mesh))
        column = net.column(f"carry {carry.inside}", domain)
        net.tie(column, net.end(carry.initial, domain))
        net.begin(carry.inside, column, times * repeat.count)
        columns.append((carry, column))
    _region(net, repeat.body, times * repeat.count)
    for carry, column in columns:
        net.tie(column, net.end(carry.next, net.domains[column]))
        net.begin(carry.result, column, times)


def _op(net: _Net, op: Op, times: int) -> None:
    read = [net.orders[value] for value, _ in uses(op, net.values)]
    ways = [
        way
        for way in strategies(op, net.values, net.sizes, net.mesh, net.launches[op.result], net.masks)
        if all(place in known for place, known in zip(way.uses, read, strict=True))
    ]
    choice = f"strategy {op.result}"
    net.tables.append(Table((choice,), np.array([times * way.seconds for way in ways])))

    def project(column: str, wanted: list[Place]) -> None:
        domain = net.domains[column]
        table = np.full((len(ways), len(domain)), math.inf)
        for row, place in enumerate(wanted):
            table[row, domain.index(place)] = 0.0
        net.tables.append(Table((choice, column), table))

    for position, (value, _) in enumerate(uses(op, net.values)):
        wanted = [way.uses[position] for way in ways]
        if isinstance(op, Append) and position == 0:
            project(net.flows[value].root, wanted)  # in place, so never moved
        else:
            project(net.end(value, list(dict.fromkeys(wanted))), wanted)
    if isinstance(op, Append):
        net.memory[op.result] = "cache"
        net.begin(op.result, net.flows[op.cache].root, times)
        return
    results = [way.result for way in ways]
    root = net.column(f"result {op.result}", list(dict.fromkeys(results)))
    project(root, results)
    net.begin(op.result, root, times, top=any(place.top for place in results))


def _memory_limits(net: _Net, capacity: float | None) -> Iterator[dict[str, float]]:
    """For each way to share the capacity out, the most bytes that each stored tensor may take."""
    if capacity is None:
        yield {}
        return
    levels = {
        root: sorted({whole / parts(p, net.mesh) for p in net.domains[root]}) for root, (_, whole) in net.held.items()
    }
    kept = [c for c in itertools.product(*levels.values()) if sum(c) <= capacity]
    for combination in kept:
        larger = (o for o in kept if o != combination and all(a <= b for a, b in zip(combination, o, strict=True)))
        if next(larger, None) is None:
            yield dict(zip(levels, combination, strict=True))


def _solve(net: _Net, limits: Mapping[str, float]) -> float:
    tables = list(net.tables)
    for root, most in limits.items():
        taken = [net.held[root][1] / parts(p, net.mesh) for p in net.domains[root]]
        tables.append(Table((root,), np.array([0.0 if t <= most else math.inf for t in taken])))
    flows = list(net.flows.values())
    while True:
        steps: list[tuple[float, str | Flow]] = [*_column_steps(tables, flows), *_flow_steps(tables, flows)]
        if not steps:
            break
        _, step = min(steps, key=lambda s: s[0])
        if isinstance(step, str):
            bucket = [t for t in tables if step in t.columns]
            made = add(bucket).without(step)
        else:
            bucket = [t for t in tables if set(t.columns) & set(step.ends)]
            made = arborescence(step, bucket)
            flows = [f for f in flows if f is not step]
        tables = [t for t in tables if not any(t is b for b in bucket)] + [made]
    return sum(float(t.cost) for t in tables)


def _logarithms(tables: list[Table]) -> dict[str, float]:
    """How long each column is."""
    return {c: math.log(n) for t in tables for c, n in zip(t.columns, t.cost.shape, strict=True)}


def _column_steps(tables: list[Table], flows: list[Flow]) -> Iterator[tuple[float, str]]:
    """Columns that no flow touches any more, and the size of what it takes to be rid of them."""
    logs, busy = _logarithms(tables), {c for f in flows for c in (f.root, *f.ends)}
    for column in sorted(logs.keys() - busy):
        yield sum(logs[c] for c in {c for t in tables if column in t.columns for c in t.columns}), column


def _flow_steps(tables: list[Table], flows: list[Flow]) -> Iterator[tuple[float, Flow]]:
    """Flows, and the size of the table that replaces each."""
    logs = _logarithms(tables)
    for flow in flows:
        touching = [set(t.columns) for t in tables if set(t.columns) & set(flow.ends)]
        others = set().union(*touching) - set(flow.ends)
        twice = sum(len(columns & set(flow.ends)) - 1 for columns in touching)
        size = math.log(len(flow.distance)) * (1 + twice) + sum(logs[c] for c in others)
        yield size + math.log(2) * len(flow.ends), flow
