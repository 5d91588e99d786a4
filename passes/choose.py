"""The choice: the cheapest layouts and collectives of a program on a mesh, proven so.

Phases are planned one at a time here. A plan is read off as layouts and trees of collectives, which
are then recomputed exactly over every collective there is, fewest first among the cheapest.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ..cost.hardware import Hardware
from ..cost.network import Network
from ..ir.diagnostics import InputError, fail
from ..ir.layout import Layout
from ..ir.mesh import Mesh
from ..ir.program import Carry, Pin, Program, Stored
from .bill import bill
from .graph import Graph, Result, build_graph
from .groups import ALONE, Groups, find_groups
from .naming import plainest
from .pinning import apply_pins
from .plan import Leg, Objective, OpPlan, PhasePlan, Plan, Timing, Tree
from .prover import Found, Problem, Prover
from .reshard import KINDS, Arcs, collective, leaving, needed, price_arcs
from .search import search
from .solver import Settings
from .space import Array
from .strategies import live_axes
from .symmetry import representatives
from .trees import Distances

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Options:
    """What to minimise, on which hardware, within which memory.

    `capacity_bytes` bounds what a chip stores of parameters and caches; None takes the hardware's.
    `pins` hold beside those of the program.
    """

    hardware: Hardware
    objective: Objective = Objective.TIME
    capacity_bytes: float | None = None
    pins: tuple[Pin, ...] = ()
    settings: Settings = field(default_factory=Settings)

    @property
    def capacity(self) -> float:
        """The bytes that a chip may store."""
        return self.hardware.hbm_bytes if self.capacity_bytes is None else self.capacity_bytes


def choose(program: Program, phase: str, mesh: Mesh, options: Options) -> Plan:
    """The proven cheapest plan of one phase.

    Raises InputError when a pin cannot hold, or when no plan keeps to the memory of a chip.
    """
    started = time.perf_counter()
    sizes = dict(program.phase(phase).sizes)
    pins = (*program.pins, *options.pins)
    graph = apply_pins(build_graph(program, phase, mesh, options.hardware), pins, sizes, mesh)
    network = Network(options.hardware, mesh)
    moves = _moves(program, graph, network)
    problem = _problem(graph, moves, network, pins, options)
    prover = Prover(problem)
    capacity = options.capacity
    if options.objective is Objective.MEMORY:
        capacity = min(capacity, _least_bytes(graph) * (1 + 1e-12))
    if _least_bytes(graph) > options.capacity:
        raise _does_not_fit(graph, mesh, options)
    found = search(problem, capacity, prover)
    plan = _read(phase, moves, problem, found, options)
    stored = _stored_layouts(graph, found.chosen)
    total = time.perf_counter() - started
    chosen = Plan(mesh, options.objective, stored, (plan,), Timing(total - prover.solve_s, prover.solve_s))
    return plainest(chosen, _alike(network, pins))


@dataclass(frozen=True, eq=False)
class _Moves:
    """Every collective of each tensor as arcs, with its seconds over all repetitions when it runs
    alone; None for a tensor that nothing reads. `groups`: those that may run as one, None where that
    saves nothing."""

    arcs: Sequence[Arcs | None]
    seconds: Sequence[Floats]
    groups: Groups | None

    def needed(self, graph: Graph) -> list[Array | None]:
        """For each tensor the arcs that a cheapest plan may need."""
        out: list[Array | None] = []
        for t, (tensor, arcs, seconds) in enumerate(zip(graph.tensors, self.arcs, self.seconds, strict=True)):
            of = None if self.groups is None else self.groups.of[t]
            if arcs is None:
                out.append(None)
            elif self.groups is None or of is None:
                out.append(np.flatnonzero(needed(tensor.space.space, arcs, _tied(seconds))))
            else:
                saved = np.where(of >= 0, self.groups.latency_s[of], 0.0)
                out.append(np.flatnonzero(needed(tensor.space.space, arcs, _tied(seconds), of, saved)))
        return out


def _moves(program: Program, graph: Graph, network: Network) -> _Moves:
    arcs: list[Arcs | None] = []
    seconds: list[Floats] = []
    for tensor in graph.tensors:
        space = tensor.space.space
        own = leaving(space) if tensor.uses else None
        if own is not None and not tensor.embeds:
            own = own.take(own.kind != KINDS.index("embed"))
        arcs.append(own)
        price = np.zeros(0) if own is None else price_arcs(space, own, tensor.total_bytes, network.collective_s)
        seconds.append(tensor.times * price)
    groups = find_groups(program, graph, arcs, network)
    return _Moves(arcs, seconds, groups if len(groups.latency_s) else None)


def _problem(graph: Graph, moves: _Moves, network: Network, pins: Sequence[Pin], options: Options) -> Problem:
    """The graph with its prices under the objective."""
    kept = moves.needed(graph)
    distances = [
        None if arcs is None or some is None else Distances(arcs.take(some), seconds[some])
        for arcs, some, seconds in zip(moves.arcs, kept, moves.seconds, strict=True)
    ]
    if options.objective is Objective.COMMUNICATION:
        # Of plans that send the same the one that computes least is taken.
        nodes = tuple(replace(n, rank=0.5 * n.rank + 0.5 * _share(n.seconds)) for n in graph.nodes)
        graph = replace(graph, nodes=nodes)
        prices = [np.zeros(len(n.seconds)) for n in graph.nodes]
    else:
        prices = [n.seconds for n in graph.nodes]
    standing = representatives(graph, _positions(network.mesh, _alike(network, pins)))
    groups = None if moves.groups is None else moves.groups.take(kept)
    return Problem(graph, prices, distances, options.settings, standing, groups)


def _share(numbers: Floats) -> Floats:
    return np.asarray(numbers / (numbers.max(initial=0.0) or 1.0))


def _alike(network: Network, pins: Sequence[Pin]) -> list[list[str]]:
    """Groups of axes that a plan may rename: of one class, and named by no pin."""
    named = {a for pin in pins for axes in (*pin.layout.dims, pin.layout.partial) for a in axes}
    groups: dict[object, list[str]] = {}
    for name, _ in live_axes(network.mesh):
        if name not in named:
            groups.setdefault(network.axis_class(name), []).append(name)
    return list(groups.values())


def _positions(mesh: Mesh, groups: Sequence[Sequence[str]]) -> list[list[int]]:
    names = [name for name, _ in live_axes(mesh)]
    return [[names.index(name) for name in group] for group in groups]


def _tied(seconds: Floats) -> Floats:
    """Prices by which fewer collectives win among equal ones: a step counts far less than the
    difference of any two prices."""
    least = float(seconds[seconds > 0].min(initial=np.inf))
    return seconds + (least if np.isfinite(least) else 1.0) * np.where(seconds > 0, 1e-7, 1e-9)


def _least_bytes(graph: Graph) -> float:
    return sum(float(n.stored_bytes.min()) for n in graph.nodes if n.stored_bytes is not None)


def _read(phase: str, moves: _Moves, problem: Problem, found: Found, options: Options) -> PhasePlan:
    chosen, graph = found.chosen, problem.graph
    spaces = {t.value.name: t.space for t in graph.tensors}
    ops, carries, results = [], [], []
    for n, node in enumerate(graph.nodes):
        match node.item:
            case Result(value):
                port = next(u for t in graph.tensors if t.value.name == value for u in t.uses if u.node == n)
                results.append((value, spaces[value].layout(int(port.rows[chosen[n]]))))
            case Carry(_, inside, _, _):
                source = next(t.source for t in graph.tensors if t.value.name == inside)
                carries.append((inside, spaces[inside].layout(int(source.rows[chosen[n]]))))
            case Stored():
                pass
            case op:
                table, row = node.table, chosen[n]
                assert table is not None
                uses = tuple(table.use_layout(row, k) for k in range(len(table.signature.uses)))
                ops.append(OpPlan(op.result, uses, table.result_layout(row)))
    trees = tuple(_trees(graph, moves, found, options.settings))
    price, bound = found.price, found.bound
    if options.objective is Objective.MEMORY:
        price, bound = problem.stored_bytes(chosen), _least_bytes(graph)
    return PhasePlan(phase, tuple(ops), trees, tuple(carries), tuple(results), price, bound)


def _trees(graph: Graph, moves: _Moves, found: Found, settings: Settings) -> Iterator[Tree]:
    """The cheapest trees over every collective there is; of those of one price, the fewest steps."""
    near: list[Distances | None] = []
    for tensor, arcs, seconds in zip(graph.tensors, moves.arcs, moves.seconds, strict=True):
        root, targets = tensor.ends(found.chosen)
        near.append(None if arcs is None or set(targets) <= {root} else Distances(arcs, _tied(seconds)))
    paid = bill(graph.tensors, near, found.chosen, moves.groups, settings, found.shared)
    for t, tensor in enumerate(graph.tensors):
        legs = []
        for arc, group in zip(paid.arcs[t], paid.groups[t], strict=True):
            arcs = moves.arcs[t]
            assert arcs is not None
            before, after = (tensor.space.layout(int(end[arc])) for end in (arcs.source, arcs.target))
            done = collective(KINDS[int(arcs.kind[arc])], before, after)
            legs.append(Leg(before, after, done, None if group == ALONE else group))
        yield Tree(tensor.value.name, tensor.space.layout(tensor.ends(found.chosen)[0]), tuple(legs))


def _stored_layouts(graph: Graph, chosen: Sequence[int]) -> tuple[tuple[str, Layout], ...]:
    out = []
    for tensor in graph.tensors:
        node = graph.nodes[tensor.source.node]
        if isinstance(node.item, Stored) or node.stored == tensor.value.name:
            out.append((tensor.value.name, tensor.space.layout(int(tensor.source.rows[chosen[tensor.source.node]]))))
    return tuple(out)


def _does_not_fit(graph: Graph, mesh: Mesh, options: Options) -> InputError:
    needed_bytes = _least_bytes(graph)
    least = {n.stored: float(n.stored_bytes.min()) for n in graph.nodes if n.stored_bytes is not None}
    largest = sorted(least.items(), key=lambda item: -item[1])[:5]
    listed = ", ".join(f"`{name}` {size / 1e9:.2f} GB" for name, size in largest)
    return fail(
        f"The parameters and caches take at least {needed_bytes / 1e9:.2f} GB on each of {mesh.chips} chips, "
        f"{(needed_bytes - options.capacity) / 1e9:.2f} GB more than the {options.capacity / 1e9:.2f} GB "
        f"that a chip of {options.hardware.name} has.",
        hint=f"the largest, split as far as they divide and the pins allow: {listed}",
    )
