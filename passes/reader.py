"""Reads plans off what has been chosen, and says what they hold and how they are told apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from itertools import combinations

from ..cost.hardware import Hardware
from ..ir.mesh import Mesh
from ..ir.program import Phase, Program
from ..ir.spmd import SpmdProgram
from .lower.insert import insert
from .plan import Objective, Plan, Timing
from .search.beside_moves import beside_moves
from .search.branch_and_bound import MANY_COLUMNS, Side
from .search.combinable import Combining
from .search.derive_memory_bounds import ORDERED, needs
from .search.derive_moments import Moment, moments
from .search.detours import Detours
from .search.extract_plan import least_bytes, read_handovers, read_phase, stored_layouts
from .search.graph import Graph
from .search.join_phases import view
from .search.limits import JointLimits, Limits
from .search.memory_bounds import MemoryBounds
from .search.prices import Moves
from .search.problem import Candidate, Problem
from .search.step_order import Joined, joined
from .search.tree_costs import Trees

MOST_PHASES = 3  # that are told apart: of each more there are twice as many sides


@dataclass(frozen=True, eq=False)
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
    def _trees(self) -> Callable[[bool, frozenset[str]], Trees]:
        """The trees of plans, with projections apart or not, that run collectives as one in some phases alone."""

        def trees(apart: bool, some: frozenset[str]) -> Trees:
            return self._moves(some).trees(self.problem.graph, self.problem.settings, lean=apart)

        return cache(trees)

    def _moves(self, combining: frozenset[str]) -> Moves:
        groups = self.moves.groups
        return replace(self.moves, groups=None if groups is None else groups.only(self.problem.graph, combining))

    def plan(self, found: Candidate, apart: bool) -> Plan:
        """The plan that `found` is, with projections `apart` or as they run as one."""
        objective, trees = self.objective, self._trees(apart, found.combining)
        read = [
            read_phase(p.name, self.programs[p.name], self._calls(p), self.moves, trees, self.problem, found, objective)
            for p in self.phases
        ]
        own = tuple(replace(phase, apart=apart) for phase in read)
        stored = stored_layouts(self.problem.graph, found.chosen)
        handed = read_handovers(self.phases, self.moves, trees, self.problem, found)
        alone = own[0].bound if len(own) == 1 else None
        price, bound = (found.price, found.bound) if alone is None else (own[0].price, alone)
        return Plan(self.mesh, objective, stored, own, Timing(0.0, 0.0), handed, price, bound)

    def sides(self) -> Iterator[Side]:
        """All plans, told apart by whether some collectives run as one: first those in which none do. Of a large
        problem of few phases by those in which some do: of the others it is known when each step runs. A small one is
        looked at copy by copy, which takes its time for each side."""
        every = sorted(self.combining)
        if self.problem.columns < MANY_COLUMNS or len(every) > MOST_PHASES:
            yield self._side(frozenset(), ())
            if every:
                yield self._side(self.combining, (self.combining,))
            return
        for some in (some for count in range(len(every) + 1) for some in combinations(every, count)):
            yield self._side(frozenset(some), tuple(frozenset({phase}) for phase in some))

    def _side(self, some: frozenset[str], combining: Combining) -> Side:
        """The plans in which collectives run as one in `some` phases alone, and that are `combining`."""
        limits, groups = self.limits(some, combining), self.problem.groups
        assert limits is not None, "there is a limit on all plans"
        own = None if groups is None else groups.only(self.problem.graph, some)
        problem = self.problem if some == self.combining else replace(self.problem, groups=own)
        return Side(problem, limits, Detours(problem, self._moves(some), self._trees(True, some)))

    @property
    def combining(self) -> frozenset[str]:
        """The phases in which collectives may run as one."""
        return frozenset() if self.moves.groups is None else self.moves.groups.phases

    def limits(self, some: frozenset[str] | None = None, combining: Combining = ()) -> Limits | JointLimits | None:
        """The memory that a plan may take; None where that is any amount. Of plans in which collectives run as one in
        `some` phases alone (None: in any), and that are `combining`, as `Limited` has it."""
        lanes, fused, combined = self.hardware.lanes, self.hardware.fuses_products, self.combining
        parts = []
        spelled = cache(lambda found, apart: insert(self.plan(found, apart)))
        for n, phase in enumerate(self.phases):
            graph = view(self.problem.graph, phase.name)
            stored = self.stored_bytes
            if self.objective is Objective.MEMORY:
                stored = min(stored, least_bytes(graph) * (1 + 1e-12))
            if min(stored, self.capacity_bytes) == math.inf:
                return None
            least = self._needs(phase.name, phase.name in (combined if some is None else combined & some))
            told = partial(self._moments, phase.name, graph)
            beside = partial(beside_moves, mesh=self.mesh, sizes=dict(phase.sizes), lanes=lanes)
            own, room = _nth(spelled, n), self.capacity_bytes
            parts.append(Limits(room, stored, least, own, told, beside, phase.name, combining, lanes, fused))
        # Of phases together, programs with rows for moves as well take a solver minutes where without it takes seconds.
        return parts[0] if len(parts) == 1 else JointLimits(tuple(parts), combining).standing

    @cached_property
    def _needs(self) -> Callable[[str, bool], MemoryBounds]:
        """What plans hold in a phase at the least, whether some collectives run as one there or none."""

        def needed(phase: str, combined: bool) -> MemoryBounds:
            graph, as_one = view(self.problem.graph, phase), self._joined(phase) if combined else ORDERED
            lanes, fused = self.hardware.lanes, self.hardware.fuses_products
            return needs(self.programs[phase], phase, self.mesh, graph, as_one, lanes, fused)

        return cache(needed)

    def _moments(self, phase: str, graph: Graph, ordered: bool) -> tuple[Moment, ...]:
        """What plans hold in a phase, with every copy told apart, if steps keep their order or where they may not."""
        as_one, hardware = ORDERED if ordered else self._joined(phase), self.hardware
        program, lanes, fused = self.programs[phase], hardware.lanes, hardware.fuses_products
        return moments(program, phase, self.mesh, graph, as_one, lanes, fused)

    def _joined(self, phase: str) -> Joined:
        """Whose collectives may run as one in a phase."""
        groups = self.moves.groups
        return ORDERED if groups is None else joined(groups, self.problem.graph, phase)

    def _calls(self, phase: Phase) -> int:
        """How often a phase counts."""
        return phase.calls if len(self.phases) > 1 else 1


def _nth(
    spelled: Callable[[Candidate, bool], tuple[SpmdProgram, ...]], n: int
) -> Callable[[Candidate, bool], SpmdProgram]:
    return lambda found, apart: spelled(found, apart)[n]
