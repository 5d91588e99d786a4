"""The choice: the cheapest layouts and collectives of a program on a mesh, proven so.

One phase is planned, or several together, in each of the ways that a program may be written.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from ..cost.estimate import estimate
from ..cost.network import Network
from ..ir.diagnostics import InputError, fail
from ..ir.mesh import Mesh, part_of
from ..ir.program import Program
from .expansion.combinations import Combinations
from .expansion.orders import Orders
from .expansion.sendings import Sendings
from .layouts.mesh_order import mesh_order
from .layouts.space import TooLarge
from .lower.insert import insert
from .options import Options
from .plan import Cutoff, NoPlan, Objective, Outcome, Plan, Timing
from .search.parts import in_parts, pins_in_parts, with_whole_axes
from .search.search import least_price
from .task import Task, planned, task_of, without_sums

MOST_SENDING, MOST_SENDING_OF_LARGE = 16, 8  # combinations of masks that send tokens to experts or to groups of them
MOST_ORDERS, MOST_OF_LARGE = 16, 8  # combinations of orders of products, each of which is a whole plan
MOST_BOUNDED = 64  # combinations of which the others are bounded one by one
LARGE = 10_000  # columns of a problem of which few combinations are planned, and no others bounded


def choose(program: Program, phases: str | Sequence[str], mesh: Mesh, options: Options) -> Plan:
    """The proven cheapest plan of one phase, or of several together; with `options.parts` on the mesh, or on it with
    axes in parts, where that is cheaper. Raises as `choose_on` does, and InputError where all axes that could be split
    have the parts that they keep."""
    if not options.parts:
        return choose_on(program, phases, mesh, options)
    names = [phases] if isinstance(phases, str) else list(phases)
    orders = Orders(program)
    programs = {name: orders.ordered(name) for name in names}
    if mesh.divisible and all(part_of(name) != name for name in mesh.divisible):
        hint = "leave them out, and parts are looked for, or do not ask for parts"
        raise fail(f"The axes of {mesh} keep the parts that they have.", hint=hint)
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
    operations in each phase, or, where that is cheaper, in one that takes up to twice as many. Of plans that send
    nothing, where communication is minimised, the quickest is looked for by a search of its own. Where experts are in
    groups tokens of a phase go to experts, or, where that is cheaper, once to each group of theirs, and come back from
    each expert, or once from each group: those of each mask in a way of its own. Of combinations of these that are not
    planned what all plans cost at the least counts in the bound; of a large problem the plan says how many do not
    (`ways_left`).

    Raises InputError when a pin cannot hold, when no plan keeps
    to the memory of a chip, or when phases cannot share a parameter; Cutoff when none costs less than
    `options.below`.
    """
    names = [phases] if isinstance(phases, str) else list(phases)
    found = _cheapest(program, names, mesh, options)
    if options.objective is Objective.COMMUNICATION and found.price == 0:
        return _computing_least(found, program, names, mesh, options)
    return found


def _computing_least(found: Plan, program: Program, names: Sequence[str], mesh: Mesh, options: Options) -> Plan:
    """Of the plans that send nothing, of which `found` is one, the one that computes least, all calls counted. It is
    the quickest of them, and so looked for by time."""
    calls = {phase.name: phase.calls if len(names) > 1 else 1 for phase in program.phases}
    computed_s = sum(calls[spmd.phase] * estimate(spmd, options.hardware).totals().apart_s for spmd in insert(found))
    quickest = replace(options, objective=Objective.TIME, silent=True, below=computed_s)
    try:
        least = _cheapest(program, names, mesh, quickest)
    except (InputError, Cutoff):  # none is known that computes less
        return found
    phases = tuple(replace(one, price=0.0, bound=None if one.bound is None else 0.0) for one in least.phases)
    spent, more = found.timing, least.timing
    timing = Timing(spent.build_s + more.build_s, spent.solve_s + more.solve_s)
    return replace(found, stored=least.stored, phases=phases, timing=timing, handovers=least.handovers)


def _cheapest(program: Program, names: Sequence[str], mesh: Mesh, options: Options) -> Plan:
    """As `choose_on` does, of what is priced alone."""
    orders = Combinations(program, names)
    first = orders.programs(orders.first)
    pinned = {pin.value for pin in (*program.pins, *options.pins)}
    trials = _Trials(mesh, options, pinned)
    sent = {name: trials.sendings(first[name], name).most for name in names}
    if any(sent[name] is not first[name] for name in names) and trials.least(sent) < trials.least(first):
        trials.plan(sent)  # what promises more comes first: that the other costs more is seen sooner
        trials.refused = None
    trials.plan(first)
    _plan_orders(trials, orders)
    _plan_sending(trials, orders)
    if trials.too_large and trials.found:
        trials.leave(_least_of_all(trials, orders))
    return trials.best()


def _least_of_all(trials: _Trials, orders: Combinations) -> float:
    """What phases cost at the least with products in any orders, as far as that is known without a search."""
    timed = trials.options.objective is Objective.TIME
    return orders.least_s(trials.mesh, trials.options.hardware) if timed else 0.0


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
        trials.leave(_least_of_all(trials, orders))


def _plan_sending(trials: _Trials, orders: Combinations) -> None:
    """Plan phases with tokens sent otherwise than in the cheapest plan so far, those of each mask of a phase to experts
    or once to groups of them: in all combinations, and with products in all orders, where these are few; otherwise one
    mask at a time, in the orders of that plan. What is not planned is bounded."""
    if not trials.sends:
        return
    best = {name: trials.plain(program) for name, program in trials.programs.items()}
    count, large = trials.count(best), trials.columns > LARGE
    few = orders.count == 1 or (not large and orders.count * count <= MOST_BOUNDED)
    if few and count <= (MOST_SENDING_OF_LARGE if large else MOST_SENDING):
        first = orders.programs(orders.first)
        for programs in (one for picks in orders.every() for one in trials.ways(orders.programs(picks))):
            if trials.may_all_be(programs, first):
                trials.plan_ways(programs)
        return
    plain, looked_at, best = best, 0, dict[str, Program]()
    while looked_at < MOST_SENDING and trials.programs != best:
        best = dict(trials.programs)
        for programs in itertools.islice(trials.moves(best), MOST_SENDING - looked_at):
            looked_at += 1
            if not trials.has_tried(programs) and trials.may_pay(programs):
                trials.plan(programs)
    if orders.count == 1 and count <= MOST_BOUNDED:
        trials.leave(min(trials.least_of_ways(programs) for programs in trials.ways(plain)))
    else:
        trials.leave(_least_of_all(trials, orders))


@dataclass
class _Trials:
    """Plans of phases whose products are in different orders, and which send tokens to experts or to groups of them.
    `pinned`: the values that pins name. `programs`: what each phase runs in the cheapest so far; without one, in the
    first. `refused`: why there was no plan at first, `unsure`: where there may be one all the same. `beaten`: the
    least bound of what costs too much. `bound`: what every plan that may be cheaper than what was found costs at the
    least, `in_mesh_order`: of layouts whose axes stand in mesh order, of some that were planned. `columns`: of the
    largest problem. `orders_left`: in how many combinations of orders nothing was planned; `too_large`: whether some
    were too large for it. `ways_left`: in how many ways of sending tokens nothing was planned that the bound leaves
    out."""

    mesh: Mesh
    options: Options
    pinned: Set[str]
    programs: Mapping[str, Program] = field(default_factory=dict)
    found: Plan | None = None
    refused: InputError | Cutoff | None = None
    unsure: NoPlan | None = None
    beaten: float = math.inf
    bound: float = math.inf
    in_mesh_order: bool = False
    columns: int = 0
    orders_left: int = 0
    too_large: bool = False
    ways_left: int = 0
    build_s: float = 0.0
    solve_s: float = 0.0
    _tasks: dict[tuple[int, ...], Task] = field(default_factory=dict)
    _tried: dict[tuple[int, ...], Mapping[str, Program]] = field(default_factory=dict)
    _sendings: dict[int, Sendings] = field(default_factory=dict)

    def may_be(self, other: Program, first: Program) -> bool:
        """Whether a phase may run `other` in place of `first`: where it makes whatever a pin names."""
        return not (self.pinned & first.table().keys()) - other.table().keys()

    def may_all_be(self, others: Mapping[str, Program], first: Mapping[str, Program]) -> bool:
        """Whether each phase may run what it has in `others`."""
        return all(self.may_be(other, first[name]) for name, other in others.items())

    def _task(self, programs: Mapping[str, Program]) -> Task:
        """What there is to search, made once."""
        key = _key(programs)
        if key not in self._tasks:
            started = time.perf_counter()
            self._tasks[key] = task_of(programs, self.mesh, self.options)
            self.build_s += time.perf_counter() - started
        return self._tasks[key]

    def sendings(self, program: Program, phase: str) -> Sendings:
        """The ways in which a phase may send tokens, in which `program` sends them to experts."""
        if id(program) not in self._sendings:
            self._sendings[id(program)] = Sendings(program, phase)
        return self._sendings[id(program)]

    def _of(self, program: Program) -> Sendings | None:
        """The ways that a program is one of."""
        return next((some for some in self._sendings.values() if some.ways(program) is not None), None)

    def plain(self, program: Program) -> Program:
        """The program in which tokens go to experts."""
        some = self._of(program)
        return program if some is None else some.plain

    @property
    def sends(self) -> bool:
        """Whether tokens of a phase may go once to groups of experts."""
        return any(some.masks for some in self._sendings.values())

    def as_sent(self, programs: Mapping[str, Program]) -> dict[str, Program]:
        """Phases as they run where tokens go to experts as in the cheapest plan so far."""
        found = dict(programs)
        for name, program in programs.items():
            some = self._of(self.programs[name])
            found[name] = self.sendings(program, name).program((some and some.ways(self.programs[name])) or {})
        return found

    def leave(self, least: float) -> None:
        """Count what is not planned, of which it is known what all plans cost at the least. Where the bytes that one
        phase stores are minimised, these are as few in all programs of it, whatever they take."""
        if self.options.objective is Objective.MEMORY and len(self.programs) == 1:
            return
        if least < (self.options.below if self.found is None else self.found.price):
            self.bound = min(self.bound, least)

    def least(self, programs: Mapping[str, Program]) -> float:
        """What all plans of phases cost at the least, as is known at once; infinite where there is none."""
        try:
            problem = self._task(programs).problem
            started = time.perf_counter()
            least = least_price(problem)
        except InputError as error:
            self.too_large |= isinstance(error, TooLarge)
            return math.inf
        self.solve_s += time.perf_counter() - started
        return least

    def count(self, programs: Mapping[str, Program]) -> int:
        """How many `ways` there are."""
        return math.prod(self.sendings(program, name).count for name, program in programs.items())

    def ways(self, programs: Mapping[str, Program]) -> Iterator[dict[str, Program]]:
        """The ways in which phases may send tokens, in which `programs` send them to experts: that comes first. Each
        mask sends once all that it may, or nothing."""
        each = [self.sendings(one, name).sets() for name, one in programs.items()]
        return (dict(zip(programs, picks, strict=True)) for picks in itertools.product(*each))

    def moves(self, programs: Mapping[str, Program]) -> Iterator[dict[str, Program]]:
        """Ways in which one mask of one phase sends otherwise than in `programs`, of a large problem all or nothing."""
        for name, program in programs.items():
            moves = some.moves(program, self.columns <= LARGE) if (some := self._of(program)) else ()
            yield from ({**programs, name: one} for one in moves)

    def plan_ways(self, programs: Mapping[str, Program]) -> None:
        """Plan phases that send once all that some masks may, and with results of some of these that come back from
        each expert. They are bounded together first, unless the cheapest plan so far is one of them. Of a large problem
        only what goes on from the cheapest plan is looked at, and said of the rest that it is left out."""
        finer = self._finer(programs)
        if self.columns > LARGE:
            if not self.has_tried(programs) and self.may_pay(programs):
                self.plan(programs)
            if _key(self.programs) != _key(programs):
                self.ways_left += len(finer) - 1
                return
        elif len(finer) > 1 and self.found and _key(self.programs) != _key(programs) and not self._may_any(finer):
            self._tasks.pop(_key(programs), None)
            return
        for one in finer:
            if not self.has_tried(one) and self.may_pay(one):
                self.plan(one)

    def least_of_ways(self, programs: Mapping[str, Program]) -> float:
        """What all plans of phases cost at the least that send once all that some masks may, and of those with results
        of some of these that come back from each expert; infinite where all that there are were planned."""
        finer = self._finer(programs)
        if len(finer) == 1:
            return math.inf if self.has_tried(programs) else self.least(programs)
        try:
            return least_price(without_sums(self._task(programs), finer[-1]).problem)
        except InputError as error:
            self.too_large |= isinstance(error, TooLarge)
            return math.inf
        finally:
            self._tasks.pop(_key(programs), None)

    def _finer(self, programs: Mapping[str, Program]) -> list[dict[str, Program]]:
        """Phases as they are, and with results of some masks that come back from each expert; of all comes last."""
        each = [some.finer(one) if (some := self._of(one)) else [one] for one in programs.values()]
        return [dict(zip(programs, picks, strict=True)) for picks in itertools.product(*each)]

    def _may_any(self, finer: Sequence[Mapping[str, Program]]) -> bool:
        """Whether of phases with sums by groups, which come first, and without some or, last, all of them, any may be
        cheaper than the best plan so far: where one step less bounds them all it is looked at alone. What is bounded
        is counted."""
        assert self.found is not None, "what is not beaten is planned"
        below, started = min(self.options.below, self.found.price), time.perf_counter()
        try:
            task = without_sums(self._task(finer[0]), finer[-1])
            least = least_price(task.problem)
            if least >= below * (1 - self.options.settings.gap):
                self.leave(least)
                return False
            if task.problem.rounded(task.problem.settled.copy()).price < below:
                return True
            planned(task, below)
        except Cutoff as error:
            if _left_open(error, below, self.options):
                return True
            self.in_mesh_order |= error.in_mesh_order
            return False
        except InputError:
            return True
        finally:
            self.solve_s += time.perf_counter() - started
        return True

    def has_tried(self, programs: Mapping[str, Program]) -> bool:
        """Whether these were planned, or it was tried."""
        return _key(programs) in self._tried

    def may_pay(self, programs: Mapping[str, Program]) -> bool:
        """Whether phases should be planned so: bounds leave room for a plan that is cheaper than the best so far. What
        is not planned is counted."""
        least = self.least(programs)
        if self.found is None:
            return least < math.inf
        if least < self.found.price * (1 - self.options.settings.gap):
            return True
        self.leave(least)
        return False

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
            found = planned(task, below)
        except (InputError, Cutoff) as error:
            self.refused = self.refused or error
            self.too_large |= isinstance(error, TooLarge)
            if isinstance(error, NoPlan) and error.outcome is Outcome.UNPROVEN:  # there may be one all the same
                self.unsure, self.bound = self.unsure or error, -math.inf
            if isinstance(error, Cutoff):
                self.beaten = min(self.beaten, error.bound)
                self.in_mesh_order |= error.in_mesh_order
            if isinstance(error, Cutoff) and _left_open(error, below, self.options):  # there may be a cheaper one
                self.bound = min(self.bound, error.bound)
            return False
        finally:
            self._tasks.pop(key, None)
        self.bound = min(self.bound, found.bound)
        self.in_mesh_order |= found.in_mesh_order
        self.build_s, self.solve_s = self.build_s + found.timing.build_s, self.solve_s + found.timing.solve_s
        better = self.found is None or found.price < self.found.price
        if better:
            self.found, self.programs = found, programs
        return better

    def best(self) -> Plan:
        """The cheapest plan. Raises what was wrong with the first where there is none."""
        if self.found is None:
            raise self._refusal()
        bound = max(0.0, min(self.bound, self.found.bound))
        left = replace(self.found.bounded(bound), orders_left=self.orders_left, ways_left=self.ways_left)
        return replace(left, timing=Timing(self.build_s, self.solve_s), in_mesh_order=self.in_mesh_order)

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
