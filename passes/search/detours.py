"""Other ways to make the same copies: trees of collectives that cost more and hold less at some point.

A plan's values move over cheapest trees. Where memory binds, a copy that is made from another one keeps
that alive, and a cheap path may lead through a layout that takes more than there is.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..layouts.reshard import NONE, Arcs
from .graph import Graph
from .prices import Moves
from .problem import Candidate, Problem
from .tree_costs import Trees

Floats = NDArray[np.float64]
BETWEEN = 2  # copies on the way that nothing reads
MOST_TRIES = 4_000  # of partial trees, for each tensor
Tree = tuple[int, ...]  # arcs, as `Moves` has them


class Holding(Protocol):
    """What plans hold: whether one keeps to the limits, and the tensors held where it takes most."""

    def fits(self, plan: Candidate) -> bool:
        """Whether a plan keeps to the limits."""
        ...

    def worst(self, plan: Candidate) -> Sequence[tuple[str, str]]:
        """The phase and the name of all that it holds at its worst point."""
        ...


@dataclass(eq=False)
class Detours:
    """The ways of all plans of a problem. `trees`: those of the plans."""

    problem: Problem
    moves: Moves
    trees: Trees
    known: dict[tuple[int, int, frozenset[int]], _Ways] = field(default_factory=dict)

    @cached_property
    def numbers(self) -> Mapping[tuple[str, str], int]:
        """The tensors by phase and name."""
        graph: Graph = self.problem.graph
        return {(str(tensor.phase), tensor.value.name): t for t, tensor in enumerate(graph.tensors)}

    def around(self, plan: Candidate, limits: Holding, below: float, most: int) -> tuple[Candidate | None, float, int]:
        """The cheapest plan of the same choices that keeps to the limits, if one costs less than `below`; a bound
        of those that were not tried, after `most` of them; and how many were.

        Whatever a plan holds at a point is that of the tensors that it holds there: one of them has to go another
        way. Ways with more copies than are looked at count as not tried.
        """
        touched: set[int] = set()
        found, left, tried = self._around(plan, limits, below, most, touched)
        return found, min([left, *(self._unseen(t, plan) for t in touched)]), tried

    def _unseen(self, t: int, plan: Candidate) -> float:
        """A bound of the plans of the same choices in which a tensor goes a way that was passed over."""
        ways = self._ways(t, plan)
        first, _ = ways.at(0)
        if first is None or ways.passed_over == np.inf:
            return np.inf
        if self.problem.groups is not None:
            return plan.price  # what a way adds depends on what runs as one
        return plan.price + ways.passed_over - ways.price(first)

    def _around(
        self, plan: Candidate, limits: Holding, below: float, most: int, touched: set[int]
    ) -> tuple[Candidate | None, float, int]:
        """As `around`, of the ways that are looked at; `touched` gets the tensors that went another way."""
        number = count()
        heap = [(plan.price, next(number), dict[int, int]())]
        seen: set[frozenset[tuple[int, int]]] = set()
        tried = 0
        while heap and heap[0][0] < below:
            if tried == most:
                return None, heap[0][0], tried
            tried += 1
            price, _, ways = heapq.heappop(heap)
            trying = self._with(plan, ways)
            if limits.fits(trying):
                return trying, np.inf, tried
            for t in sorted({self.numbers[name] for name in limits.worst(trying)}):
                touched.add(t)
                other = ways | {t: ways.get(t, -1) + 1}
                key = frozenset(other.items())
                tree, complete = self._ways(t, plan).at(other[t])
                if tree is None and not complete:
                    return None, price, tried
                if tree is not None and key not in seen:
                    seen.add(key)
                    heapq.heappush(heap, (self._with(plan, other).price, next(number), other))
        return None, np.inf, tried

    def _ways(self, t: int, plan: Candidate) -> _Ways:
        root, targets = self.problem.graph.tensors[t].ends(plan.chosen)
        key = t, root, frozenset(targets) - {root}
        if key not in self.known:
            self.known[key] = _Ways(self.moves, *key)
        return self.known[key]

    def _with(self, plan: Candidate, ways: Mapping[int, int]) -> Candidate:
        """A plan whose tensors go other ways, with its price."""
        if not ways:
            return plan
        detours: dict[int, Tree] = {}
        for t, n in sorted(ways.items()):
            tree, _ = self._ways(t, plan).at(n)
            assert tree is not None, "it has been looked up"
            detours[t] = tree
        return self.over(plan, detours)

    def over(self, plan: Candidate, trees: Mapping[int, Tree]) -> Candidate:
        """A plan some of whose tensors move over these `trees`, with its price."""
        prices = zip(self.problem.prices, plan.chosen, strict=True)
        paid = self.trees.bill(plan.chosen, plan.shared, trees)
        price = sum(float(p[c]) for p, c in prices) + sum(self.moves.prices(paid))
        return replace(plan, price=price, shared=paid.shared, detours=tuple((t, paid.arcs[t]) for t in sorted(trees)))


class _Ways:
    """The trees of a tensor from a layout to others, cheapest first, looked for as they are asked for.

    `passed_over`: the least that a tree with more than BETWEEN copies on the way costs, of those met so far.
    """

    def __init__(self, moves: Moves, t: int, root: int, targets: frozenset[int]):
        self._arcs, self._seconds = moves.arcs[t], moves.seconds[t]
        self._found: list[Tree] = []
        self._tries = MOST_TRIES
        self._more = self._trees(root, targets)
        self.passed_over = np.inf

    def at(self, n: int) -> tuple[Tree | None, bool]:
        """The tree of a place in the order, None where there is none or none was found; whether all that there
        are were found, but for those passed over."""
        while n >= len(self._found):
            more = next(self._more, None)
            if more is None:
                return None, self._tries > 0
            self._found.append(more)
        return self._found[n], True

    def price(self, tree: Tree) -> float:
        """What the collectives of a tree cost when each runs alone, in seconds."""
        return float(self._seconds[list(tree)].sum())

    def _trees(self, root: int, targets: frozenset[int]) -> Iterator[Tree]:
        """All trees without useless copies, cheapest first, the arcs of each in an order in which they can be
        applied."""
        if self._arcs is None or not targets:
            return
        source, target = self._arcs.source.tolist(), self._arcs.target.tolist()
        leaving: dict[int, list[int]] = {}
        for arc in _told_apart(self._arcs, self._seconds):
            leaving.setdefault(source[arc], []).append(arc)
        number = count()
        heap: list[tuple[float, int, int, Tree]] = [(0.0, 0, next(number), ())]
        seen: set[frozenset[int]] = {frozenset()}
        while heap:
            if not self._tries:
                return
            self._tries -= 1
            price, _, _, tree = heapq.heappop(heap)
            reached = {root, *(target[arc] for arc in tree)}
            used = {source[arc] for arc in tree}
            if targets <= reached:
                if all(end in targets or end in used for end in reached - {root}):
                    yield tree
                continue  # more copies would be useless ones
            full = len(reached - targets - {root}) == BETWEEN
            for arc in (arc for here in sorted(reached) for arc in leaving.get(here, ())):
                there, more = target[arc], price + float(self._seconds[arc])
                if there in reached:
                    continue
                if full and there not in targets:
                    self.passed_over = min(self.passed_over, more)
                    continue
                key = frozenset((*tree, arc))
                if key not in seen:
                    seen.add(key)
                    heapq.heappush(heap, (more, len(tree) + 1, next(number), (*tree, arc)))


def _told_apart(arcs: Arcs, seconds: Floats) -> list[int]:
    """The arcs, of twins that which is cheapest alone: a bill has of what runs as one those that it takes."""
    if arcs.twins is None:
        return list(range(len(arcs)))
    alone = np.where(arcs.twins == NONE, np.inf, seconds[arcs.twins])
    least = arcs.twins[np.arange(len(arcs)), alone.argmin(axis=1)]
    return np.flatnonzero((least == NONE) | (least == np.arange(len(arcs)))).tolist()
