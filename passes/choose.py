"""The choice: the cheapest layouts and collectives of a program on a mesh, proven so.

Phases are planned one at a time here. A plan is read off as layouts and trees of collectives, which
are then recomputed exactly over every collective there is, fewest first among the cheapest.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ..cost.hardware import Hardware
from ..cost.network import Network
from ..ir.diagnostics import InputError, fail
from ..ir.layout import Layout
from ..ir.mesh import Mesh
from ..ir.program import Carry, Pin, Program, Stored
from .graph import Graph, Result, Tensor, build_graph
from .naming import plainest
from .pinning import apply_pins
from .plan import Leg, Objective, OpPlan, PhasePlan, Plan, Timing, Tree
from .prover import Found, Problem, Prover
from .reshard import KINDS, Arcs, collective, leaving, needed, price_arcs
from .search import search
from .shared_tree import shared_tree
from .solver import Settings
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
    problem = _problem(graph, network, pins, options)
    prover = Prover(problem)
    capacity = options.capacity
    if options.objective is Objective.MEMORY:
        capacity = min(capacity, _least_bytes(graph) * (1 + 1e-12))
    if _least_bytes(graph) > options.capacity:
        raise _does_not_fit(graph, mesh, options)
    found = search(problem, capacity, prover)
    plan = _read(phase, graph, problem, found, network, options)
    stored = _stored_layouts(graph, found.chosen)
    total = time.perf_counter() - started
    chosen = Plan(mesh, options.objective, stored, (plan,), Timing(total - prover.solve_s, prover.solve_s))
    return plainest(chosen, _alike(network, pins))


def _problem(graph: Graph, network: Network, pins: Sequence[Pin], options: Options) -> Problem:
    """The graph with its prices under the objective."""
    distances = [_distances(t, network) if t.uses else None for t in graph.tensors]
    if options.objective is Objective.COMMUNICATION:
        # Of plans that send the same the one that computes least is taken.
        nodes = tuple(replace(n, rank=0.5 * n.rank + 0.5 * _share(n.seconds)) for n in graph.nodes)
        graph = replace(graph, nodes=nodes)
        prices = [np.zeros(len(n.seconds)) for n in graph.nodes]
    else:
        prices = [n.seconds for n in graph.nodes]
    standing = representatives(graph, _positions(network.mesh, _alike(network, pins)))
    return Problem(graph, prices, distances, options.settings, standing)


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


def _arcs(tensor: Tensor, network: Network) -> tuple[Arcs, Floats]:
    """Every collective of a tensor, and its seconds over all repetitions."""
    space = tensor.space.space
    arcs = leaving(space)
    if not tensor.embeds:
        arcs = arcs.take(arcs.kind != KINDS.index("embed"))
    return arcs, tensor.times * price_arcs(space, arcs, tensor.total_bytes, network.collective_s)


def _distances(tensor: Tensor, network: Network) -> Distances:
    arcs, seconds = _arcs(tensor, network)
    kept = needed(tensor.space.space, arcs, _tied(seconds))
    return Distances(arcs.take(kept), seconds[kept])


def _tied(seconds: Floats) -> Floats:
    """Prices by which fewer collectives win among equal ones: a step counts far less than the
    difference of any two prices."""
    least = float(seconds[seconds > 0].min(initial=np.inf))
    return seconds + (least if np.isfinite(least) else 1.0) * np.where(seconds > 0, 1e-7, 1e-9)


def _least_bytes(graph: Graph) -> float:
    return sum(float(n.stored_bytes.min()) for n in graph.nodes if n.stored_bytes is not None)


def _read(phase: str, graph: Graph, problem: Problem, found: Found, network: Network, options: Options) -> PhasePlan:
    chosen = found.chosen
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
    trees = tuple(_tree(t, t.ends(chosen), network, options) for t in graph.tensors)
    price, bound = found.price, found.bound
    if options.objective is Objective.MEMORY:
        price, bound = problem.stored_bytes(chosen), _least_bytes(graph)
    return PhasePlan(phase, tuple(ops), trees, tuple(carries), tuple(results), price, bound)


def _tree(tensor: Tensor, ends: tuple[int, Sequence[int]], network: Network, options: Options) -> Tree:
    """The cheapest tree over every collective there is; of those of one price, the fewest steps."""
    root, targets = ends
    if set(targets) <= {root}:
        return Tree(tensor.value.name, tensor.space.layout(root), ())
    arcs, seconds = _arcs(tensor, network)
    legs = []
    for arc in shared_tree(tensor, Distances(arcs, _tied(seconds)), ends, options.settings):
        before = tensor.space.layout(int(arcs.source[arc]))
        after = tensor.space.layout(int(arcs.target[arc]))
        legs.append(Leg(before, after, collective(KINDS[int(arcs.kind[arc])], before, after)))
    return Tree(tensor.value.name, tensor.space.layout(root), tuple(legs))


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
