"""What is to be minimised, and a plan with its price."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ...ir.record import record
from ..ilp.solver import Settings
from ..layouts.space import Mask
from .combinable import Groups, Knot
from .dual_ascent import DualAscent
from .graph import Graph
from .steiner import Distances
from .tree_costs import Trees

Floats = NDArray[np.float64]
SWEEPS = 6  # brings the bound within some hundredths; more would leave less to prove, but take longer than proving it


@record(eq=False)
class Problem:
    """What is to be minimised: `prices[n][c]` for choice c of node n, and the arcs of each tensor.

    `distances[t]` is None for a tensor that nothing reads. `groups`: the collectives that may run as
    one; None when combining saves nothing. `representatives`: at one node the choices of which all
    others are images under a renaming of axes, see `symmetry`. `settings` are those of the solver. `alike`: groups of
    axes, by their places, that plans may rename.
    """

    graph: Graph
    prices: Sequence[Floats]
    distances: Sequence[Distances | None]
    settings: Settings
    representatives: tuple[int, Mask] | None = None
    groups: Groups | None = None
    alike: Sequence[Sequence[int]] = ()

    def found(self, chosen: Sequence[int], shared: frozenset[int] = frozenset()) -> Candidate:
        """A plan with its price; `shared` are groups that may be worth combining. Nothing is proven."""
        total = sum(float(p[c]) for p, c in zip(self.prices, chosen, strict=True))
        paid = self.trees.bill(chosen, shared)
        return Candidate(tuple(chosen), total + paid.price, -np.inf, paid.shared, self.combining)

    def rounded(self, ascent: DualAscent) -> Candidate:
        """The plan that an ascent is nearest to; its price is infinite where that is none, since what pins leave of the
        layouts of a value cannot be reached from each other."""
        chosen = tuple(ascent.round())
        if not np.isfinite(ascent.price_of(chosen)):
            return Candidate(chosen, np.inf, -np.inf, combining=self.combining)
        return self.found(chosen)

    @property
    def combining(self) -> frozenset[Knot]:
        """The knots of which collectives may run as one."""
        return frozenset() if self.groups is None else self.groups.kept

    def ties_of(self, plan: Candidate) -> float:
        """How far from plain a plan is: its ranks, and what its collectives count for."""
        total = sum(float(n.rank[c]) for n, c in zip(self.graph.nodes, plan.chosen, strict=True))
        for arcs, near in zip(self.trees.bill(plan.chosen, plan.shared).arcs, self.distances, strict=True):
            if near is not None:
                total += float(tie_of(near.price[list(arcs)]).sum())
        return total

    @cached_property
    def settled(self) -> DualAscent:
        """An ascent that has settled on all plans. To be copied by whoever goes on from there."""
        start = DualAscent(self.graph, self.prices, self.distances, self.groups)
        for _ in range(SWEEPS):
            start.sweep()
        return start

    @cached_property
    def trees(self) -> Trees:
        """The trees of its plans."""
        return Trees(self.graph.tensors, self.distances.__getitem__, self.groups, self.settings)

    @property
    def columns(self) -> int:
        """How many choices and arcs, of each use, there are."""
        return sum(map(len, self.prices)) + self.arcs_read

    @property
    def arcs_read(self) -> int:
        """How many arcs there are over all readers of all values."""
        moves = zip(self.graph.tensors, self.distances, strict=True)
        return sum(len(t.uses) * len(d.price) for t, d in moves if d is not None)

    @cached_property
    def stored_nodes(self) -> tuple[int, ...]:
        """The nodes that choose where parameters and caches lie, and nothing else."""
        return tuple(n for n, node in enumerate(self.graph.nodes) if node.stored is not None and node.table is None)

    def stored_bytes(self, chosen: Sequence[int]) -> float:
        """What the stored tensors of a plan take on a chip."""
        nodes = zip(self.graph.nodes, chosen, strict=True)
        return sum(float(n.stored_bytes[c]) for n, c in nodes if n.stored_bytes is not None)


@record
class Candidate:
    """A plan as one choice for each node, its price, the proven bound of all plans, and the groups
    of collectives that it runs as one. `combining`: the knots of which it may do so. `detours`: the tensors that do
    not move over cheapest trees, with the arcs of `moves` over which they do."""

    chosen: tuple[int, ...]
    price: float
    bound: float
    shared: frozenset[int] = frozenset()
    combining: frozenset[Knot] = frozenset()
    detours: tuple[tuple[int, tuple[int, ...]], ...] = ()

    def at_most(self, price: float) -> Candidate:
        """As if it cost no more than `price`: what to ask for where no dearer plan is of interest."""
        return replace(self, price=min(self.price, price))


def tie_of(prices: Floats) -> Floats:
    """What arcs count among plans of one price: a collective 1, a slice less."""
    return np.where(prices > 0, 1.0, 0.1)
