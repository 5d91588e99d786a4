"""Blocks that are written out one after the other, where memory binds: plans in which all copies choose alike.

These are the plans of a few blocks at the prices of all (see `fold`), and what they hold is what one copy of each block
holds, beside what all of them store. So they take no longer to search than a repeat does. What no plan can do without
is said of the average copy: that takes at each point of a block what copies take there on average.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...ir.record import record
from ...ir.spmd import SpmdProgram
from .depth import APART, bound_within
from .exact import Prover
from .fold import Fold, fold
from .graph import Port, Tensor
from .image_program import ImageSearch
from .images import images
from .less_room import whole
from .limits import JointLimits, Limits
from .memory_bounds import Copies, Demand, Freed, Load, MemoryBounds, MovedBytes, PointBound, Through, summed
from .problem import Candidate, Problem

Floats = NDArray[np.float64]
ROUGH = 2e-3  # a gap that is near enough: plans in which copies do not choose alike are as far


def search_alike(
    prover: Prover, limits: Limits | JointLimits, closer: Limits | JointLimits, below: float
) -> Candidate | None:
    """The cheapest plan that is found of those that keep to `limits` and in which all copies of a block choose alike,
    if it costs less than `below`; and a bound of all plans. None where nothing is written out again and again, or no
    plan was found. `closer`: limits of which more is known, for some of these plans."""
    folded = fold(prover.problem, 0)
    plan = None if folded is None else _cheapest(prover, folded, limits, closer, below)
    if plan is None:
        return None
    bound = -math.inf
    for apart in APART:
        told = fold(prover.problem, apart)
        if told is None or bound >= plan.price * (1 - ROUGH):
            break
        bound = max(bound, bound_within(prover, told, ClassLimits(told, prover.problem).loads(limits), plan))
    return replace(plan, bound=min(plan.price, bound))


def _cheapest(
    prover: Prover, folded: Fold, limits: Limits | JointLimits, closer: Limits | JointLimits, below: float
) -> Candidate | None:
    """That plan, with no bound."""
    settings, classes = folded.alike.settings, ClassLimits(folded, prover.problem)
    problem = replace(folded.alike, settings=replace(settings, gap=max(ROUGH, settings.gap)))
    alike, own = Prover(problem), classes.limits(limits)
    ascent, some = problem.settled.copy(), images(problem)
    if some is None:
        found = whole(alike, own, ascent, ascent.bound(), below).found
    else:
        found = ImageSearch(alike, own, some, ascent, classes.limits(closer)).run(ascent.bound(), below).found
    prover.solve_s += alike.solve_s
    plan = None if found is None else classes.spread(found)
    return plan if plan is not None and plan.price < below else None


@record
class ClassLimits:
    """What is known of a `problem`, said of its classes."""

    fold: Fold
    problem: Problem

    def spread(self, plan: Candidate) -> Candidate:
        """What all copies choose in a plan in which they choose alike."""
        return self.problem.found(*self.fold.spread(plan.chosen, plan.shared))

    def limits(self, limits: Limits | JointLimits) -> Limits | JointLimits:
        """Those of the plans in which all copies choose alike."""
        if isinstance(limits, JointLimits):
            return replace(limits, parts=tuple(map(self._of_phase, limits.parts)))
        return self._of_phase(limits)

    def loads(self, limits: Limits | JointLimits) -> list[Load]:
        """What plans take of the memory at the least, by what the average copy chooses."""
        parts = limits.parts if isinstance(limits, JointLimits) else (limits,)
        return [load for part in parts for load in self._loads(part)]

    def _of_phase(self, limits: Limits) -> Limits:
        assert not limits.combining, "knots of classes are numbered anew"
        stored, spell = self._of_all(limits.stored_terms), self._spelled(limits.spell)
        return replace(limits, stored_terms=stored, needed=lambda: self._needs(limits), spell=spell, _known={})

    def _spelled(self, spell: Callable[[Candidate, bool], SpmdProgram]) -> Callable[[Candidate, bool], SpmdProgram]:
        return lambda plan, apart: spell(self.spread(plan), apart)

    def _needs(self, limits: Limits) -> MemoryBounds:
        """What is stored of all copies, and what is held as a copy in the middle runs."""
        times = self._times(limits)
        held = [p for p in limits.needs.points if p.step is None or times[p.step] in self._middle]
        points = tuple(PointBound(p.step, tuple(map(self._demand, p.terms)), p.moving) for p in held)
        return MemoryBounds(self._of_all(limits.stored_terms), points, self._of_all(limits.needs.beside))

    def _times(self, limits: Limits) -> dict[str, int]:
        """The nodes of a phase by their names."""
        nodes = enumerate(self.problem.graph.nodes)
        return {node.name: n for n, node in nodes if node.phase in (None, limits.phase)}

    @cached_property
    def _middle(self) -> frozenset[int]:
        """Of each class of nodes the one in the middle."""
        members: dict[int, list[int]] = {}
        for n, c in enumerate(self.fold.node_of):
            members.setdefault(c, []).append(n)
        return frozenset(some[len(some) // 2] for some in members.values())

    def _of_all(self, terms: Sequence[Demand]) -> tuple[Demand, ...]:
        """What copies take together."""
        found: dict[int, Demand] = {}
        for term in map(self._demand, terms):
            known = found.get(term.node)
            found[term.node] = term if known is None else replace(known, bytes=known.bytes + term.bytes)
        return tuple(found.values())

    def _demand(self, term: Demand) -> Demand:
        trip, copies, freed = map(self._said, (term.trip, term.copies, term.freed))
        return replace(term, node=self.fold.node_of[term.node], trip=trip, copies=copies, freed=freed)

    def _said(self, part: Any) -> Any:
        """A part of what is demanded, with the ports and tensors of classes."""
        match part:
            case Port():
                return self._ports[part]
            case Tensor():
                return self._tensors[part]
            case tuple():
                return tuple(map(self._said, part))
            case MovedBytes() | Freed() | Copies() | Through():
                said: dict[str, Any] = {f.name: self._said(getattr(part, f.name)) for f in fields(part)}
                return type(part)(**said)
        return part

    @cached_property
    def _tensors(self) -> Mapping[Tensor, Tensor]:
        """Of each tensor its class."""
        graph = self.fold.window.graph
        return {t: graph.tensors[c] for t, c in zip(self.problem.graph.tensors, self.fold.tensor_of, strict=True)}

    @cached_property
    def _ports(self) -> Mapping[Port, Port]:
        """Of each port that of its class: uses of one class in the same layouts are one."""
        found: dict[Port, Port] = {}
        for tensor, like in self._tensors.items():
            found[tensor.source] = like.source
            for port in tensor.uses:
                node = self.fold.node_of[port.node]
                found[port] = next(p for p in like.uses if p.node == node and np.array_equal(p.rows, port.rows))
        return found

    def _loads(self, limits: Limits) -> list[Load]:
        needs = limits.needs
        out = [Load(self._average(summed(needs.stored, self._every)), min(limits.stored, limits.capacity))]
        beside = summed((*needs.stored, *needs.beside), self._every)
        for points in self._alike(limits):
            taken = dict(beside)
            for point in points:
                for n, size in summed(point.terms, self._every).items():
                    taken[n] = taken.get(n, 0.0) + size / len(points)
            out.append(Load(self._average(taken), limits.capacity))
        return [load for load in out if sum(float(size.max()) for size in load.bytes.values()) > load.room]

    @cached_property
    def _every(self) -> list[NDArray[np.bool_]]:
        return [np.ones(len(node.seconds), dtype=bool) for node in self.problem.graph.nodes]

    def _average(self, taken: Mapping[int, Floats]) -> dict[int, Floats]:
        """The same by class: of what its nodes take each the least, which is no more than they take together."""
        nodes: dict[int, list[Floats]] = {}
        for n, size in taken.items():
            nodes.setdefault(self.fold.node_of[n], []).append(size)
        copies = self.fold.copies
        return {c: copies[c] * np.min(sizes, axis=0) for c, sizes in nodes.items() if len(sizes) == copies[c]}

    def _alike(self, limits: Limits) -> list[list[PointBound]]:
        """The points of the copies of each step, those together that are one in each copy."""
        times, copies = self._times(limits), self.fold.copies
        seen: Counter[str | None] = Counter()
        found: dict[tuple[int | None, int, bool], list[PointBound]] = {}
        for point in limits.needs.points:
            of = None if point.step is None else self.fold.node_of[times[point.step]]
            found.setdefault((of, seen[point.step], point.moving), []).append(point)
            seen[point.step] += 1
        return [points for (of, *_), points in found.items() if of is None or len(points) == copies[of]]
