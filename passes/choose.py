"""The choice: the cheapest layouts and collectives of a program on a mesh, proven so.

One phase is planned, or several together. A plan is read off as layouts and trees of collectives,
which are then recomputed exactly over every collective there is, fewest first among the cheapest.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ..cost.estimate import estimate
from ..cost.hardware import Hardware
from ..cost.network import Network
from ..cost.stages import NO_PASSING, Passing
from ..ir.diagnostics import InputError
from ..ir.mesh import Mesh
from ..ir.program import Phase, Pin, Program
from .expansion.combinations import Combinations
from .expansion.once import sent_once
from .expansion.orders import Orders
from .ilp.solver import Settings
from .layouts.mesh_order import mesh_order
from .layouts.space import Order
from .layouts.strategies import live_axes
from .lower.insert import insert
from .plan import Cutoff, NoPlan, Objective, Outcome, Plan, Timing, Work
from .reader import Reader
from .search.exact import Prover
from .search.extract_plan import least_bytes
from .search.gathered import with_gathers
from .search.graph import Graph, build_graph
from .search.join_phases import for_each, join_phases
from .search.limits import does_not_fit, live_do_not_fit
from .search.parts import in_parts, pins_in_parts, with_whole_axes
from .search.pinning import apply_pins, bar, pins_leave_nothing
from .search.prices import Moves, all_moves
from .search.problem import Problem
from .search.search import least_price, search
from .search.steiner import Distances
from .search.symmetry import representatives, with_plainest_axes

Floats = NDArray[np.float64]
LEAST_EXCHANGED = 0.01  # of the time of a plan that sends what is chosen, for which sending it otherwise is planned
LEAST_SAVED = 0.01  # of a price: by so much bounds must be lower for what they bound to be planned all the same
MOST_ORDERS, MOST_OF_LARGE = 16, 8  # combinations of orders of products, each of which is a whole plan
MOST_BOUNDED = 64  # combinations of which the others are bounded one by one
LARGE = 10_000  # columns of a problem of which few combinations are planned, and no others bounded


@dataclass(frozen=True)
class Options:
    """What to minimise, on which hardware, within which memory.

    `capacity_bytes` bounds what a chip holds at any program point: what is stored, live values and
    gathered copies; None takes the hardware's. `stored_bytes` bounds parameters and caches alone.
    `pins` hold beside those of the program, and values lie in none of the layouts `barred`. `overlap`: whether steps of
    the program that is made of the plan are put into loops; the choice does not count on what they hide. `below`: only
    plans that cost less are looked for. `passing`: what a stage of a pipeline pays for results that it hands to the
    next one. `parts`: whether axes may be split in parts. `work`: what searches that are made with these add to.
    `gathering`: how much of it counts, of one phase, that chips gather of what they fetched parts of from their host;
    what is planned with that is priced otherwise than it is run.
    """

    hardware: Hardware
    objective: Objective = Objective.TIME
    capacity_bytes: float | None = None
    stored_bytes: float = math.inf
    pins: tuple[Pin, ...] = ()
    barred: tuple[Pin, ...] = ()
    settings: Settings = field(default_factory=Settings)
    overlap: bool = False
    below: float = math.inf
    passing: Passing = NO_PASSING
    parts: bool = False
    work: Work = field(default_factory=Work, compare=False)
    gathering: float = 0.0

    @property
    def capacity(self) -> float:
        """The bytes that a chip may hold."""
        return self.hardware.room_bytes if self.capacity_bytes is None else self.capacity_bytes

    @property
    def most_stored(self) -> float:
        """The bytes of parameters and caches that a chip may hold."""
        return min(self.capacity, self.stored_bytes)


def choose(program: Program, phases: str | Sequence[str], mesh: Mesh, options: Options) -> Plan:
    """The proven cheapest plan of one phase, or of several together; with `options.parts` on the mesh, or on it with
    axes in parts, where that is cheaper. Raises as `choose_on` does."""
    if not options.parts:
        return choose_on(program, phases, mesh, options)
    names = [phases] if isinstance(phases, str) else list(phases)
    orders = Orders(program)
    programs = {name: orders.ordered(name) for name in names}
    finer = in_parts(programs, mesh)
    plain = replace(options, parts=False)
    if finer == mesh:
        return choose_on(program, phases, mesh, plain)
    whole: Plan | None = None
    refused: InputError | Cutoff | None = None
    try:
        whole = choose_on(program, phases, mesh, plain)
    except (InputError, Cutoff) as error:
        refused = error
    split = replace(program, pins=pins_in_parts(program.pins, finer))
    below = min(options.below, whole.price) if whole else options.below
    pinned = replace(_in_parts(plain, finer), below=below)
    try:
        plan = choose_on(split, phases, finer, pinned)
    except (InputError, Cutoff) as error:
        if whole is None:
            raise refused or error from None
        ordered = whole.in_mesh_order or mesh_order(programs, finer, (), ()) is not None
        if not isinstance(error, Cutoff):
            return whole
        known = whole.bounded(min(whole.bound, error.bound)) if _left_open(error, below, options) else whole
        return replace(known, parts=finer, in_mesh_order=ordered)
    found = with_whole_axes(plan, Network(options.hardware, finer))
    if found.in_mesh_order and found.mesh != finer:
        found = _in_any_order(program, phases, found, plain)
    return replace(found, parts=finer)


def _in_parts(options: Options, mesh: Mesh) -> Options:
    """Options with all layouts in the parts of a mesh."""
    return replace(options, pins=pins_in_parts(options.pins, mesh), barred=pins_in_parts(options.barred, mesh))


def _in_any_order(program: Program, phases: str | Sequence[str], plan: Plan, options: Options) -> Plan:
    """A plan, or a cheaper one on the parts that it takes: of these there are few, which may stand in any order."""
    again = replace(program, pins=pins_in_parts(program.pins, plan.mesh))
    pinned = replace(_in_parts(options, plan.mesh), below=plan.price)
    try:
        return replace(choose_on(again, phases, plan.mesh, pinned), in_mesh_order=True)
    except (InputError, Cutoff):
        return plan


def choose_on(program: Program, phases: str | Sequence[str], mesh: Mesh, options: Options) -> Plan:
    """The proven cheapest plan of one phase, or of several together, on the axes of the mesh as they are.

    Several phases store each parameter once, and caches go from each phase to the next; what is
    minimised is the sum over all calls. A product of three and more factors is contracted in the order of fewest
    operations in each phase, or, where that is cheaper, in one that takes up to twice as many; of combinations of these
    that are too many to plan what all cost at the least counts in the bound. Where experts are in groups tokens go to
    experts, or, where that is cheaper, once to each group of theirs.

    Raises InputError when a pin cannot hold, when no plan keeps
    to the memory of a chip, or when phases cannot share a parameter; Cutoff when none costs less than
    `options.below`.
    """
    names = [phases] if isinstance(phases, str) else list(phases)
    orders = Combinations(program, names)
    first = orders.programs(orders.first)
    pinned = {pin.value for pin in (*program.pins, *options.pins)}
    trials = _Trials(mesh, options, pinned)
    sent = {name: trials.once(first[name], name) or first[name] for name in names}
    if any(sent[name] is not first[name] for name in names) and trials.least(sent) < trials.least(first):
        trials.plan(sent)  # what promises more comes first: that the other costs more is seen sooner
        trials.refused = None
    trials.plan(first)
    _plan_orders(trials, orders)
    for name in names if trials.found else ():
        once = None if trials.sends_once(name) else trials.once(trials.programs[name], name)
        if once is not None:
            programs = {**trials.programs, name: once}
            if trials.exchanges(name) or trials.promises(programs):
                trials.plan(programs)
    return trials.best()


def _plan_orders(trials: _Trials, orders: Combinations) -> None:
    """Plan phases with their products in other orders: in all combinations where these are few, and otherwise in those
    that change some orders of the cheapest so far. What is not planned is bounded."""
    best, seen, first = orders.first, {orders.first}, orders.programs(orders.first)
    most = MOST_OF_LARGE if trials.columns > LARGE else MOST_ORDERS
    every = (dict(enumerate(picks)) for picks in (orders.every() if orders.count <= most else ()))
    for move in itertools.chain(orders.moves(), orders.moves(), every):
        if len(seen) >= min(most, orders.count):
            break
        picks = tuple(move.get(n, pick) for n, pick in enumerate(best))
        if picks not in seen:
            seen.add(picks)
            programs = trials.as_sent(orders.programs(picks))
            if trials.may_all_be(programs, first) and trials.plan(programs):
                best = picks
    trials.orders_left = orders.count - len(seen)
    if orders.count <= MOST_BOUNDED and trials.columns <= LARGE and not trials.sends:
        left = (orders.programs(picks) for picks in orders.every() if picks not in seen)
        trials.leave(min((trials.least(one) for one in left if trials.may_all_be(one, first)), default=math.inf))
    elif trials.orders_left:
        timed = trials.options.objective is Objective.TIME
        trials.leave(orders.least_s(trials.mesh, trials.options.hardware) if timed else 0.0)


@dataclass
class _Trials:
    """Plans of phases whose products are in different orders, and which send tokens to experts or to groups of them.
    `pinned`: the values that pins name. `programs`: what each phase runs in the cheapest so far; without one, in the
    first. `refused`: why there was no plan at first, `unsure`: where there may be one all the same. `beaten`: the
    least bound of what costs too much. `bound`: what every plan that may be cheaper than what was found costs at the
    least. `columns`: of the largest problem. `orders_left`: in how many combinations of orders nothing was planned."""

    mesh: Mesh
    options: Options
    pinned: Set[str]
    programs: Mapping[str, Program] = field(default_factory=dict)
    found: Plan | None = None
    refused: InputError | Cutoff | None = None
    unsure: NoPlan | None = None
    beaten: float = math.inf
    bound: float = math.inf
    columns: int = 0
    orders_left: int = 0
    build_s: float = 0.0
    solve_s: float = 0.0
    _tasks: dict[tuple[int, ...], _Task] = field(default_factory=dict)
    _tried: dict[tuple[int, ...], Mapping[str, Program]] = field(default_factory=dict)
    _once: dict[int, tuple[Program, Program | None]] = field(default_factory=dict)

    def may_be(self, other: Program, first: Program) -> bool:
        """Whether a phase may run `other` in place of `first`: where it makes whatever a pin names."""
        return not (self.pinned & first.table().keys()) - other.table().keys()

    def may_all_be(self, others: Mapping[str, Program], first: Mapping[str, Program]) -> bool:
        """Whether each phase may run what it has in `others`."""
        return all(self.may_be(other, first[name]) for name, other in others.items())

    def _task(self, programs: Mapping[str, Program]) -> _Task:
        """What there is to search, made once."""
        key = _key(programs)
        if key not in self._tasks:
            started = time.perf_counter()
            self._tasks[key] = _task(programs, self.mesh, self.options)
            self.build_s += time.perf_counter() - started
        return self._tasks[key]

    def once(self, program: Program, phase: str) -> Program | None:
        """What a phase runs in place of `program` where tokens go once to groups of experts; None where none do."""
        if id(program) not in self._once:
            sent = sent_once(program, phase)
            self._once[id(program)] = program, sent if sent is not None and self.may_be(sent, program) else None
        return self._once[id(program)][1]

    def sends_once(self, phase: str) -> bool:
        """Whether in the cheapest plan so far tokens of a phase go once to groups of experts."""
        return any(self.programs[phase] is sent for _, sent in self._once.values())

    @property
    def sends(self) -> bool:
        """Whether tokens of a phase may go once to groups of experts."""
        return any(sent is not None for _, sent in self._once.values())

    def as_sent(self, programs: Mapping[str, Program]) -> dict[str, Program]:
        """Phases as they run where tokens go to experts as in the cheapest plan so far."""
        return {n: (self.once(p, n) if self.sends_once(n) else None) or p for n, p in programs.items()}

    def leave(self, least: float) -> None:
        """Count what is not planned, of which it is known what all plans cost at the least."""
        if least < (self.options.below if self.found is None else self.found.price):
            self.bound = min(self.bound, least)

    def least(self, programs: Mapping[str, Program]) -> float:
        """What all plans of phases cost at the least, as is known at once; infinite where there is none."""
        try:
            problem = self._task(programs).problem
            started = time.perf_counter()
            least = least_price(problem)
        except InputError:
            return math.inf
        self.solve_s += time.perf_counter() - started
        return least

    def promises(self, programs: Mapping[str, Program]) -> bool:
        """Whether bounds leave room for a plan that is cheaper than the best so far."""
        assert self.found is not None, "it is asked beside a plan"
        return self.least(programs) < self.found.price * (1 - LEAST_SAVED)

    def plan(self, programs: Mapping[str, Program]) -> bool:
        """Plan phases, and say whether that is the cheapest plan so far; not a second time."""
        key = _key(programs)
        if key in self._tried:
            return False
        self._tried[key] = programs
        below = self.options.below if self.found is None else min(self.options.below, self.found.price)
        self.programs = self.programs or programs
        try:
            task = self._task(programs)
            self.columns = max(self.columns, task.problem.columns)
            found = _planned(task, below)
        except (InputError, Cutoff) as error:
            self.refused = self.refused or error
            if isinstance(error, NoPlan) and error.outcome is Outcome.UNPROVEN:  # there may be one all the same
                self.unsure, self.bound = self.unsure or error, -math.inf
            if isinstance(error, Cutoff):
                self.beaten = min(self.beaten, error.bound)
            if isinstance(error, Cutoff) and _left_open(error, below, self.options):  # there may be a cheaper one
                self.bound = min(self.bound, error.bound)
            return False
        finally:
            self._tasks.pop(key, None)
        self.bound = min(self.bound, found.bound)
        self.build_s, self.solve_s = self.build_s + found.timing.build_s, self.solve_s + found.timing.solve_s
        better = self.found is None or found.price < self.found.price
        if better:
            self.found, self.programs = found, programs
        return better

    def exchanges(self, phase: str) -> bool:
        """Whether sending what is chosen takes some of the time of a phase of the cheapest plan so far."""
        assert self.found is not None, "it is asked of a plan"
        [spmd] = (each for each in insert(self.found) if each.phase == phase)
        values, cost = spmd.table(), estimate(spmd, self.options.hardware)
        chosen_s = math.fsum(move.seconds * move.times for move in cost.moves if values[move.result].chosen)
        return chosen_s > LEAST_EXCHANGED * cost.totals().apart_s

    def best(self) -> Plan:
        """The cheapest plan. Raises what was wrong with the first where there is none."""
        if self.found is None:
            raise self._refusal()
        bound = max(0.0, min(self.bound, self.found.bound))
        timing = Timing(self.build_s, self.solve_s)
        return replace(self.found.bounded(bound), timing=timing, orders_left=self.orders_left)

    def _refusal(self) -> InputError | Cutoff:
        """Why there is no plan: what was wrong with the first, as far as that is so of all."""
        refused, least = self.refused, min(self.beaten, max(0.0, self.bound))
        assert refused is not None, "there is a plan, or a reason why not"
        if isinstance(refused, Cutoff):
            return Cutoff(least, refused.in_mesh_order)
        if not isinstance(refused, NoPlan) or least == math.inf:
            return refused
        if self.beaten < math.inf:
            return Cutoff(least)
        where = "in the orders of products that were looked at."
        told = [replace(d, message=f"{d.message.removesuffix('.')}, {where}") for d in refused.diagnostics]
        return self.unsure or NoPlan(told, Outcome.UNPROVEN)


def _key(programs: Mapping[str, Program]) -> tuple[int, ...]:
    return tuple(id(program) for program in programs.values())


def _left_open(cutoff: Cutoff, below: float, options: Options) -> bool:
    """Whether a search that found no plan `below` a price has not shown either that there is none."""
    return not cutoff.in_mesh_order and cutoff.bound < below * (1 - 2 * options.settings.gap)


@dataclass(frozen=True, eq=False)
class _Task:
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


def _task(programs: Mapping[str, Program], mesh: Mesh, options: Options) -> _Task:
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
    problem = _problem(graph, moves, network, [] if order else alike, options)
    return _Task(programs, bound, mesh, options, order, alike, moves, problem)


def _planned(task: _Task, below: float) -> Plan:
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
        raise live_do_not_fit(limits, task.problem.graph, task.mesh, options.capacity, proven) from None
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
        # Of plans that send the same the one that computes least is taken.
        nodes = tuple(replace(n, rank=0.5 * n.rank + 0.5 * _share(n.seconds)) for n in graph.nodes)
        graph = replace(graph, nodes=nodes)
        prices = [np.zeros(len(n.seconds)) for n in graph.nodes]
    else:
        prices = [n.seconds for n in graph.nodes]
    positions = _positions(network.mesh, alike)
    groups = None if moves.groups is None else moves.groups.take(kept)
    standing = representatives(graph, positions)
    return Problem(graph, prices, distances, options.settings, standing, groups, positions)


def _share(numbers: Floats) -> Floats:
    return np.asarray(numbers / (numbers.max(initial=0.0) or 1.0))


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
