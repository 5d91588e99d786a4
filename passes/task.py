"""What there is to search for phases, each of which runs one program, and the search of it.

A plan is read off as layouts and trees of collectives, which are then recomputed exactly over every collective there
is, fewest first among the cheapest.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ..cost.blocks import whole_scores
from ..cost.network import Network
from ..ir.mesh import Mesh
from ..ir.program import Phase, Pin, Program
from ..ir.record import record
from ..ir.spmd import unsharded
from .layouts.mesh_order import mesh_order
from .layouts.space import Order
from .layouts.strategies import live_axes
from .options import Options
from .plan import Cutoff, Objective, Plan, Timing
from .reader import Reader
from .search.exact import Prover
from .search.extract_plan import least_bytes
from .search.free_sums import free_sums_bytes, with_free_sums
from .search.gathered import with_gathers
from .search.graph import Graph, build_graph
from .search.join_phases import for_each, join_phases
from .search.limits import does_not_fit, live_do_not_fit
from .search.pinning import apply_pins, bar, pins_leave_nothing
from .search.prices import Moves, all_moves
from .search.problem import Problem
from .search.search import search
from .search.steiner import Distances
from .search.symmetry import representatives, with_plainest_axes

COMPUTED = 1e4  # what the least that there is to compute counts where plans send the same; one collective counts 1


@record(eq=False)
class Task:
    """What there is to search for phases, each of which runs its own program. `order`: that in which axes stand, where
    no other is looked at. `alike`: axes that plans may rename."""

    programs: Mapping[str, Program]
    phases: Sequence[Phase]
    mesh: Mesh
    options: Options
    order: Order | None
    alike: Sequence[Sequence[str]]
    moves: Moves
    problem: Problem


def task_of(programs: Mapping[str, Program], mesh: Mesh, options: Options) -> Task:
    """What there is to search. Raises InputError where a pin cannot hold, and where what is stored does not fit."""
    bound = [program.phase(name) for name, program in programs.items()]
    network = Network(options.hardware, mesh)
    pins = [pin for program in programs.values() for pin in (*program.pins, *options.pins)]
    alike = alike_axes(network, [*pins, *options.barred])
    order = mesh_order(programs, mesh, alike, (pin.layout for pin in pins))

    def graph_of(phase: str) -> Graph:
        program = programs[phase]
        found = build_graph(program, phase, mesh, options.hardware, options.passing, order)
        known = program.table()
        pins = (pin for pin in (*program.pins, *options.pins) if pin.phase in (None, phase))
        held = [pin for pin in pins if pin.value in known]
        found = apply_pins(found, held, dict(program.phase(phase).sizes), mesh)
        found = bar(found, [pin for pin in options.barred if pin.phase in (None, phase) and pin.value in known])
        if options.gathering:
            found = with_gathers(found, program, phase, mesh, options.hardware, options.gathering)
        most = options.most_stored
        if least_bytes(found) > most:
            raise does_not_fit(found, mesh, options.hardware.name, most, most == options.hardware.hbm_bytes)
        return found

    graphs = for_each([p.name for p in bound], graph_of)
    graph = join_phases(graphs, bound)
    moves = all_moves(programs, graph, network)
    moves = moves.silent if options.silent else moves
    problem = _problem(graph, moves, network, [] if order else alike, options)
    return Task(programs, bound, mesh, options, order, alike, moves, problem)


def without_sums(task: Task, there: Mapping[str, Program]) -> Task:
    """What bounds all plans of a task whose phases sum by groups of experts, and all of those in which for some masks
    they do not: in the programs of `there` for none (see `with_free_sums`). Chips have room for the sums besides."""
    graph, options, beside = task.problem.graph, task.options, 0.0
    for phase in task.phases:
        pair, calls = (task.programs[phase.name], there[phase.name]), phase.calls if len(task.phases) > 1 else 1
        graph = with_free_sums(graph, *pair, phase, calls, task.mesh, options.hardware)
        beside += free_sums_bytes(graph, *pair, phase)
    timed = options.objective is not Objective.COMMUNICATION
    prices = [node.seconds for node in graph.nodes] if timed else task.problem.prices
    room = replace(options, capacity_bytes=options.capacity + beside, stored_bytes=options.most_stored)
    return replace(task, options=room, problem=replace(task.problem, graph=graph, prices=prices))


def planned(task: Task, below: float) -> Plan:
    """The proven cheapest plan of those that cost less than `below`. Raises as `choose_on` does."""
    started = time.perf_counter()
    options = task.options
    prover = Prover(task.problem)
    reader = Reader(
        task.programs,
        task.phases,
        task.mesh,
        task.moves,
        task.problem,
        options.hardware,
        options.objective,
        capacity_bytes=options.capacity,
        stored_bytes=options.stored_bytes,
    )
    limits = reader.limits()
    try:
        found = search(task.problem, limits, prover, below, reader.sides)
    except Cutoff as beaten:
        if below < math.inf:
            if task.order is None:
                raise
            raise Cutoff(0.0, in_mesh_order=True) from None
        if limits is None or task.problem.settled.bound() == math.inf:
            pins = [pin for program in task.programs.values() for pin in (*program.pins, *options.pins)]
            raise pins_leave_nothing(task.problem.graph, task.moves.arcs, pins) from None
        assert limits is not None, "without limits there is a plan"
        proven = beaten.bound == math.inf and task.order is None
        least = options.objective is Objective.MEMORY
        graph = task.problem.graph
        whole = {n for phase, one in task.programs.items() for n in whole_scores(unsharded(one, phase, task.mesh))}
        raise live_do_not_fit(limits, graph, task.mesh, options.capacity, proven, least, whole) from None
    finally:
        options.work.add(prover.read, task.problem.columns)
    apart = limits is not None and not limits.fits(found, apart=False)
    plan = reader.plan(found, apart)
    total = time.perf_counter() - started
    timed = replace(plan, timing=Timing(total - prover.solve_s, prover.solve_s))
    return replace(timed, in_mesh_order=True) if task.order else with_plainest_axes(timed, task.alike)


def _problem(graph: Graph, moves: Moves, network: Network, alike: Sequence[Sequence[str]], options: Options) -> Problem:
    """The graph with its prices under the objective. `alike`: axes that plans may rename."""
    kept = moves.needed(graph)
    known: dict[tuple[int, int, bytes], Distances] = {}
    distances: list[Distances | None] = []
    for arcs, some, seconds in zip(moves.arcs, kept, moves.seconds, strict=True):
        if arcs is None or some is None:
            distances.append(None)
            continue
        key = id(arcs), id(some), seconds.tobytes()
        if key not in known:
            known[key] = Distances(arcs.take(some), seconds[some])
        distances.append(known[key])
    if options.objective is Objective.COMMUNICATION:
        # Of plans that send the same the one that computes least is taken, where few enough are left to tell apart.
        least_s = sum(float(n.seconds.min()) for n in graph.nodes) or 1.0
        nodes = tuple(replace(n, rank=n.rank + COMPUTED * n.seconds / least_s) for n in graph.nodes)
        graph = replace(graph, nodes=nodes)
        prices = [np.zeros(len(n.seconds)) for n in graph.nodes]
    else:
        prices = [n.seconds for n in graph.nodes]
    positions = _positions(network.mesh, alike)
    groups = None if moves.groups is None else moves.groups.take(kept)
    standing = representatives(graph, positions)
    return Problem(graph, prices, distances, options.settings, standing, groups, positions)


def alike_axes(network: Network, pins: Sequence[Pin]) -> list[list[str]]:
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
