"""Reads plans off what has been chosen, and says what they hold and how they are told apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property, lru_cache, partial
from itertools import combinations, groupby

from ..cost.hardware import Hardware
from ..ir.mesh import Mesh
from ..ir.program import Phase, Program
from ..ir.record import record
from ..ir.spmd import SpmdProgram
from .lower.insert import insert
from .plan import Objective, Plan, Timing
from .search.beside_moves import beside_moves
from .search.branch_and_bound import MANY_COLUMNS
from .search.combinable import Combining, Knot
from .search.derive_memory_bounds import ORDERED, needs, stored_terms
from .search.derive_moments import Moment, moments
from .search.detours import Detours
from .search.extract_plan import least_bytes, paid_by, read_handovers, read_phase, stored_layouts
from .search.graph import Graph
from .search.join_phases import view
from .search.limits import JointLimits, Limits
from .search.memory_bounds import MemoryBounds
from .search.prices import Moves
from .search.problem import Candidate, Problem
from .search.side import MANY_ARCS, Side
from .search.step_order import Joined, joined
from .search.tree_costs import Trees

MOST_PHASES, MOST_KNOTS = 3, 4  # that are told apart: of each more there are twice as many sides
MANY_OF_ONE = 5_600  # arcs of a problem of one phase with more of which not all copies are settled at once
MOST_COLUMNS = 12_000  # of a problem that is told apart by knots: each of so many sides takes its time


@record(eq=False)
class Reader:
    """Reads plans of some phases, each of which runs its own program, and may take `capacity_bytes` on a chip, of which
    `stored_bytes` of parameters and caches."""

    programs: Mapping[str, Program]
    phases: Sequence[Phase]
    mesh: Mesh
    moves: Moves
    problem: Problem
    hardware: Hardware
    objective: Objective
    capacity_bytes: float
    stored_bytes: float

    @cached_property
    def _trees(self) -> Callable[[bool, frozenset[Knot]], Trees]:
        """The trees of plans, with projections apart or not, that run collectives of some knots alone as one."""

        def trees(apart: bool, some: frozenset[Knot]) -> Trees:
            return self._moves(some).trees(self.problem.graph, self.problem.settings, lean=apart)

        return cache(trees)

    def _moves(self, combining: frozenset[Knot]) -> Moves:
        groups = self.moves.groups
        return replace(self.moves, groups=None if groups is None else groups.only(combining))

    @cached_property
    def plan(self) -> Callable[[Candidate, bool], Plan]:
        """The plan that a candidate is, with projections apart or as they run as one. The last is kept: whoever has
        asked whether it keeps to limits asks for it next."""
        return lru_cache(maxsize=1)(self._plan)

    def _plan(self, found: Candidate, apart: bool) -> Plan:
        objective, trees = self.objective, self._trees(apart, found.combining)
        paid = paid_by(found, self._problem(found.combining), self.moves, trees)
        read = [
            read_phase(p.name, self.programs[p.name], self._calls(p), self.moves, paid, self.problem, found, objective)
            for p in self.phases
        ]
        own = tuple(replace(phase, apart=apart) for phase in read)
        stored = stored_layouts(self.problem.graph, found.chosen)
        handed = read_handovers(self.phases, self.moves, paid, self.problem, found)
        alone = own[0].bound if len(own) == 1 else None
        price, bound = (found.price, found.bound) if alone is None else (own[0].price, alone)
        return Plan(self.mesh, objective, stored, own, Timing(0.0, 0.0), handed, price, bound)

    def sides(self) -> Iterator[Side]:
        """All plans, told apart by which collectives run as one: first those in which none do. The fewer may do so the
        more is known of the order of steps, and so of what is held. A large problem is told apart by the phases in
        which some do, a smaller one by knots; by whether any do where there are many of either, and where all copies
        of a problem are settled at once (see `settle`), which takes its time for each side."""
        told = self._told
        for some in (some for count in range(len(told) + 1) for some in combinations(told, count)):
            yield self._side(frozenset().union(*some), some)

    @property
    def _told(self) -> list[frozenset[Knot]]:
        """What sides tell apart: knots, or some of them together."""
        every, columns = sorted(self.combining), self.problem.columns
        many = MANY_OF_ONE if len(self.phases) == 1 else MANY_ARCS
        phases = [frozenset(some) for _, some in groupby(every, key=lambda knot: knot[0])]
        if columns >= MANY_COLUMNS and len(phases) <= MOST_PHASES:
            return phases
        if columns <= MOST_COLUMNS and self.problem.arcs_read > many and len(every) <= MOST_KNOTS:
            return [frozenset({knot}) for knot in every]
        return [self.combining] if every else []

    def _side(self, some: frozenset[Knot], combining: Combining) -> Side:
        """The plans in which collectives of `some` knots alone run as one, and that are `combining`."""
        limits, problem = self.limits(some, combining), self._problem(some)
        assert limits is not None, "there is a limit on all plans"
        return Side(problem, limits, Detours(problem, self._moves(some), self._trees(True, some)))

    @cached_property
    def _problem(self) -> Callable[[frozenset[Knot]], Problem]:
        """The problem of plans in which collectives of some knots alone run as one."""

        def problem(some: frozenset[Knot]) -> Problem:
            groups = self.problem.groups
            own = None if groups is None else groups.only(some)
            return self.problem if some == self.combining else replace(self.problem, groups=own)

        return cache(problem)

    @property
    def combining(self) -> frozenset[Knot]:
        """The knots of which collectives may run as one."""
        return frozenset() if self.moves.groups is None else self.moves.groups.kept

    def limits(self, some: frozenset[Knot] | None = None, combining: Combining = ()) -> Limits | JointLimits | None:
        """The memory that a plan may take; None where that is any amount. Of plans in which collectives of `some` knots
        alone (None: of any) run as one, and that are `combining`, as `Limited` has it."""
        lanes, fused = self.hardware.lanes, self.hardware.fuses_products
        some = self.combining if some is None else some
        parts = []
        spelled = cache(lambda found, apart: insert(self.plan(found, apart)))
        for n, phase in enumerate(self.phases):
            graph = view(self.problem.graph, phase.name)
            stored = self.stored_bytes
            if self.objective is Objective.MEMORY:
                stored = min(stored, least_bytes(graph) * (1 + 1e-12))
            if min(stored, self.capacity_bytes) == math.inf:
                return None
            own_knots = frozenset(knot for knot in some if knot[0] == phase.name)
            needed = partial(self._needs, phase.name, own_knots)
            told = partial(self._moments, phase.name, graph, own_knots)
            beside = partial(beside_moves, mesh=self.mesh, sizes=dict(phase.sizes), lanes=lanes)
            own, room = _nth(spelled, n), self.capacity_bytes
            lying = stored_terms(graph)
            parts.append(Limits(room, stored, lying, needed, own, told, beside, phase.name, combining, lanes, fused))
        # Of phases together, programs with rows for moves as well take a solver minutes where without it takes seconds.
        return parts[0] if len(parts) == 1 else JointLimits(tuple(parts), combining).standing

    @cached_property
    def _needs(self) -> Callable[[str, frozenset[Knot]], MemoryBounds]:
        """What plans hold in a phase at the least in which collectives of some knots alone run as one there."""

        def needed(phase: str, some: frozenset[Knot]) -> MemoryBounds:
            graph, lanes, fused = view(self.problem.graph, phase), self.hardware.lanes, self.hardware.fuses_products
            return needs(self.programs[phase], phase, self.mesh, graph, self._joined(phase, some), lanes, fused)

        return cache(needed)

    def _moments(self, phase: str, graph: Graph, some: frozenset[Knot], ordered: bool) -> tuple[Moment, ...]:
        """What plans hold in a phase, with every copy told apart, if steps keep their order or where collectives of
        some knots run as one."""
        as_one = ORDERED if ordered else self._joined(phase, some)
        program, lanes, fused = self.programs[phase], self.hardware.lanes, self.hardware.fuses_products
        return moments(program, phase, self.mesh, graph, as_one, lanes, fused)

    def _joined(self, phase: str, some: frozenset[Knot]) -> Joined:
        """Whose collectives may run as one in a phase, of some knots."""
        groups = None if self.moves.groups is None else self.moves.groups.only(some)
        return ORDERED if groups is None else joined(groups, self.problem.graph, phase)

    def _calls(self, phase: Phase) -> int:
        """How often a phase counts."""
        return phase.calls if len(self.phases) > 1 else 1


def _nth(
    spelled: Callable[[Candidate, bool], tuple[SpmdProgram, ...]], n: int
) -> Callable[[Candidate, bool], SpmdProgram]:
    return lambda found, apart: spelled(found, apart)[n]
