"""The memory of a chip as a limit on plans: which keep to it, and what one holds where it does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import field, replace
from functools import cached_property
from typing import Protocol

import numpy as np

from ...cost.memory import MemoryUse, memory
from ...cost.scores import WHOLE_BYTES
from ...ir.dataflow import origins
from ...ir.diagnostics import Diagnostic, size_text
from ...ir.layout import Layout
from ...ir.mesh import Mesh
from ...ir.record import record
from ...ir.spmd import SpmdProgram
from ..layouts.reshard import Arcs
from ..layouts.space import Mask
from ..plan import NoPlan, Outcome
from .combinable import Combining, Knot
from .derive_moments import Moment
from .extract_plan import least_bytes
from .graph import Graph, Tensor
from .memory_bounds import Demand, Floats, Load, MemoryBounds
from .problem import Candidate

MOST_SCORES = 3  # that a refusal names

_Key = tuple[tuple[int, ...], frozenset[int], frozenset[Knot], tuple[tuple[int, tuple[int, ...]], ...], bool]


class Limited(Protocol):
    """What a plan may take: whether one keeps to that, and what all that is allowed takes at the least.
    `combining`: of interest are only plans that run some collectives as one, those of a knot of each of these sets."""

    @property
    def combining(self) -> Combining:
        """Sets of knots, of one of each of which plans of interest run some collectives as one."""
        ...

    def fits(self, plan: Candidate) -> bool:
        """Whether a plan keeps to what it may take."""
        ...

    def loads(self, allowed: Sequence[Mask]) -> list[Load]:
        """What all plans of the `allowed` choices of each node take at the least."""
        ...


@record
class Held:
    """A value of the program that is held in some layout, in a phase."""

    value: str
    layout: Layout
    phase: str


@record(eq=False)
class Limits:
    """At most `capacity` bytes on a chip at any program point, of which `stored` of parameters and
    caches. `spell` makes the sharded program of a plan, which `cost.memory` judges, with projections
    apart or as they run as one; `stored_terms` is what is stored, `needed` says what plans hold at the
    least, apart, and `moments` tells all copies apart, with what is held `beside` each of some arcs of a
    tensor as its collective runs. `combining`: as `Limited` has it. `lanes`, `fused`: as `cost.memory` has them."""

    capacity: float
    stored: float
    stored_terms: tuple[Demand, ...]
    needed: Callable[[], MemoryBounds]
    spell: Callable[[Candidate, bool], SpmdProgram]
    moments: Callable[[bool], tuple[Moment, ...]]
    beside: Callable[[Tensor, Arcs], Floats]
    phase: str
    combining: Combining = ()
    lanes: int = 1
    fused: bool = True
    _known: dict[_Key, tuple[MemoryUse, SpmdProgram]] = field(default_factory=dict)

    @cached_property
    def needs(self) -> MemoryBounds:
        """What plans hold at the least, apart: read off when it is asked for, which it is not where there is room for
        the cheapest plan."""
        return self.needed()

    def fits(self, plan: Candidate, apart: bool = True) -> bool:
        """Whether a plan keeps to the limits."""
        use, _ = self._spelled(plan, apart)
        return use.stored_bytes <= self.stored and use.total_bytes <= self.capacity

    def tightest(self, plan: Candidate) -> Limits:
        """These: there is one phase."""
        return self

    @property
    def standing(self) -> Limits:
        """These with less known of what plans need: nothing of what is held some time before a step."""
        return replace(self, needed=lambda: self.needs.standing)

    def held(self, plan: Candidate) -> list[Held]:
        """What a plan holds at its worst point, besides what is stored."""
        use, spmd = self._spelled(plan, True)
        origin, table = origins(spmd), spmd.table()
        names = [(live.name, origin.get(live.name, live.name)) for live in use.worst.live]
        return [Held(first, table[name].layout, self.phase) for name, first in names]

    def worst(self, plan: Candidate) -> list[tuple[str, str]]:
        """The phase and the name of all that a plan holds at its worst point, besides what is stored as it is."""
        return list(dict.fromkeys((held.phase, held.value) for held in self.held(plan)))

    def stores(self, chosen: Sequence[int]) -> bool:
        """Whether parameters and caches alone keep to the limits."""
        stored = sum(float(term.bytes[chosen[term.node]]) for term in self.stored_terms)
        return stored <= min(self.stored, self.capacity)

    def excess(self, plan: Candidate) -> float:
        """How much of the room a plan holds too much at its worst point, negative where there is room."""
        use, _ = self._spelled(plan, True)
        return float(max(use.total_bytes / max(1.0, self.capacity), use.stored_bytes / max(1.0, self.stored))) - 1.0

    def deciding(self, plan: Candidate) -> set[int]:
        """The nodes whose choices say what is needed at a plan's worst point."""
        step = self._spelled(plan, True)[0].worst.step
        return {term.node for need in self.needs.points if need.step == step for term in need.terms}

    def tightened(self, allowed: Sequence[Mask]) -> list[Mask] | None:
        """Without the choices that no plan within the limits has; None when nothing is left."""
        return self.needs.tightened(allowed, self.capacity, self.stored)

    def loads(self, allowed: Sequence[Mask]) -> list[Load]:
        """What plans take of the memory at the least, wherever it may be too much."""
        return self.needs.loads(allowed, self.capacity, self.stored)

    def spelled(self, plan: Candidate) -> tuple[MemoryUse, SpmdProgram]:
        """The sharded program of a plan, with projections apart, and what it holds."""
        return self._spelled(plan, True)

    def _spelled(self, plan: Candidate, apart: bool) -> tuple[MemoryUse, SpmdProgram]:
        key = plan.chosen, plan.shared, plan.combining, plan.detours, apart
        if key not in self._known:
            spmd = self.spell(plan, apart)
            self._known[key] = memory(spmd, self.lanes, self.fused), spmd
        return self._known[key]


@record(eq=False)
class JointLimits:
    """The limits of several phases, all of which a plan keeps to. `combining`: as `Limited` has it."""

    parts: tuple[Limits, ...]
    combining: Combining = ()

    def fits(self, plan: Candidate, apart: bool = True) -> bool:
        """Whether a plan keeps to the limits."""
        return all(part.fits(plan, apart) for part in self.parts)

    @property
    def standing(self) -> JointLimits:
        """These with less known of what plans need, in each phase."""
        return replace(self, parts=tuple(part.standing for part in self.parts))

    def held(self, plan: Candidate) -> list[Held]:
        """What a plan holds at its worst point, besides what is stored."""
        return self.tightest(plan).held(plan)

    def worst(self, plan: Candidate) -> list[tuple[str, str]]:
        """The phase and the name of all that a plan holds at its worst point, besides what is stored as it is."""
        return list(dict.fromkeys((held.phase, held.value) for held in self.held(plan)))

    @property
    def stored_terms(self) -> tuple[Demand, ...]:
        """What is stored in any of the phases."""
        return tuple({term.node: term for part in self.parts for term in part.stored_terms}.values())

    def stores(self, chosen: Sequence[int]) -> bool:
        """Whether parameters and caches alone keep to the limits."""
        return all(part.stores(chosen) for part in self.parts)

    def deciding(self, plan: Candidate) -> set[int]:
        """The nodes whose choices say what is needed at a plan's worst point."""
        return self.tightest(plan).deciding(plan)

    def tightened(self, allowed: Sequence[Mask]) -> list[Mask] | None:
        """Without the choices that no plan within the limits has; None when nothing is left."""
        kept = list(allowed)
        while True:
            before = [int(mask.sum()) for mask in kept]
            for part in self.parts:
                tight = part.tightened(kept)
                if tight is None:
                    return None
                kept = tight
            if before == [int(mask.sum()) for mask in kept]:
                return kept

    def loads(self, allowed: Sequence[Mask]) -> list[Load]:
        """What plans take of the memory at the least, wherever it may be too much."""
        return [load for part in self.parts for load in part.loads(allowed)]

    def excess(self, plan: Candidate) -> float:
        """How much of the room of a phase a plan holds too much at its worst point, negative where there is room."""
        return self.tightest(plan).excess(plan)

    def tightest(self, plan: Candidate) -> Limits:
        """Those of the phase in which a plan holds the most of what there is."""
        return max(self.parts, key=lambda part: part.excess(plan))


def does_not_fit(graph: Graph, mesh: Mesh, chip: str, capacity: float, whole: bool) -> NoPlan:
    """Parameters and caches alone take more than there is; `whole`: of all the memory of a chip."""
    needed_bytes = least_bytes(graph)
    least = {n.stored: float(n.stored_bytes.min()) for n in graph.nodes if n.stored_bytes is not None}
    largest = sorted(least.items(), key=lambda item: -item[1])[:5]
    listed = ", ".join(f"`{name}` {size_text(size)}" for name, size in largest)
    diagnostic = Diagnostic(
        f"The parameters and caches take at least {size_text(needed_bytes)} on {_each(mesh)}, "
        f"{size_text(needed_bytes - capacity)} more than the {size_text(capacity)} "
        f"that a chip of {chip} {'has' if whole else 'may hold'}.",
        hint=f"the largest, split as far as they divide and the pins allow: {listed}",
    )
    return NoPlan([diagnostic], Outcome.INFEASIBLE)


def live_do_not_fit(
    limits: Limits | JointLimits,
    graph: Graph,
    mesh: Mesh,
    capacity: float,
    proven: bool,
    storing_least: bool,
    whole: Set[str],
) -> NoPlan:
    """No plan keeps to the memory at every program point: where most is needed, and by what. `proven`: there
    is none; otherwise none was found. `storing_least`: of those that store no more than any has to. `whole`: scores of
    which no blocks are made, which bounds of what is needed do not count."""
    every = [np.ones(len(node.seconds), dtype=bool) for node in graph.nodes]
    parts = limits.parts if isinstance(limits, JointLimits) else (limits,)
    least = max((p.needs for p in parts), key=lambda needs: needs.stored_bytes(every) + needs.worst(every)[1])
    point, live = least.worst(every)
    stored = least.stored_bytes(every)
    own = [(-term.least(every), f"`{term.value}`") for term in point.terms]
    padding = [(-term.least(every), f"`{term.value}` (padding)") for term in least.beside]
    listed = ", ".join(f"{name} {size_text(-size)}" for size, name in sorted(own + padding)[:5] if size)
    where = "at the start" if point.step is None else f"as `{point.step}` is made"
    some, every_one, known = "plan", "every plan", "are the least"
    if storing_least := storing_least and live + stored <= capacity:
        some, every_one = "plan that stores as little as any", "every such plan"
    start = f"No {some} keeps to" if proven else f"No {some} was found that keeps to"
    if proven and live + stored <= capacity:
        known = f"are known to be needed, and somewhere {every_one} needs more than there is"
    hints = [f"live there, each split as far as it can be: {listed}"] if listed else []
    if live + stored <= capacity and (scores := _largest(whole, graph)):
        hints.append(f"scores that do not run in blocks, split alike: {scores}")
    hints += ["one that stores more may fit, and gather less: `--objective time`"] if storing_least else []
    diagnostic = Diagnostic(
        f"{start} {size_text(capacity)} on {_each(mesh)}: {where}, "
        f"{size_text(live)} of live values and {size_text(stored)} of parameters and caches {known}.",
        hint="; ".join(hints) or None,
    )
    return NoPlan([diagnostic], Outcome.INFEASIBLE if proven else Outcome.UNPROVEN)


def _largest(names: Set[str], graph: Graph) -> str:
    """The largest of some scores on a chip, each split as far as it can be; those of which blocks would be made."""
    least = {
        t.value.name: t.total_bytes / float(t.space.space.shards[t.source.rows].max())
        for t in graph.tensors
        if t.value.name in names
    }
    some = sorted((-size, name) for name, size in least.items() if size > WHOLE_BYTES)
    return ", ".join(f"`{name}` {size_text(-size)}" for size, name in some[:MOST_SCORES])


def _each(mesh: Mesh) -> str:
    """The chips of a mesh, as what each of them holds is said."""
    return "the one chip" if mesh.chips == 1 else f"each of {mesh.chips} chips"
