"""Lower bounds by dual ascent, and the choices that no cheapest plan can contain.

Every tensor's price is split between the nodes that it connects; whatever the split, the sum of the
minima of all parts is a lower bound of every plan, and for a choice the bound of every plan with
that choice. The latency of a group of collectives that may run as one is split between the tensors
that may be in it. Sweeping back and forth over the program raises the bound (dual block-coordinate
ascent on the factor graph, exact on trees). With a plan at hand, choices and arcs whose own bound lies
above its price are left out before the integer program is built: it proves the rest.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import is_

import numpy as np
from numpy.typing import NDArray

from ...ir.record import record
from ..layouts.reshard import Arcs
from ..layouts.space import Array, Mask
from .combinable import Combining, Groups
from .graph import Graph, Port
from .steiner import Distances, KnownTrees, point

Floats = NDArray[np.float64]
BUNDLE = 5  # uses of a tensor that are bounded as one tree; more are split into bundles of this size
NOTHING = 1e-6  # of a group's latency
STEP = 0.5  # of what a tensor need not pay of a group's latency, how much it hands on at once
ROUNDED = 1e-12  # of the largest price, and of what is handed back: a bound that is nearer to 0 is that


@record(eq=False)
class _Least:
    """The least `value` of what was made `of` some objects: half of all bounds are asked for where few have changed.
    Arrays are never written to, so that what is made of the same ones is the same."""

    of: tuple[object, ...]
    value: float

    def is_of(self, now: tuple[object, ...]) -> bool:
        """Whether it is that of these objects, which are as many."""
        return all(map(is_, self.of, now))


@dataclass(eq=False)
class Factor:
    """A tensor, or some of its uses at a share of the price, as a function of the layouts at its
    ports: `potentials[0]` at the source, the others at the uses, all [layouts]. What a potential
    loses, the node at that port has gained. `least`: the minimum, when that was last asked for."""

    tensor: int
    distances: Distances
    ports: tuple[Port, ...]
    potentials: list[Floats]
    known: KnownTrees
    least: _Least | None = None

    def copy(self) -> Factor:
        """The same potentials, to go on from by itself."""
        return replace(self, potentials=list(self.potentials), known=self.known.copy())

    def trees(self) -> Sequence[Floats]:
        """Cheapest trees into every set of uses, from each layout."""
        return self.known.inward(self.distances, self.potentials[1:])

    def rests(self) -> Sequence[Floats]:
        """For every set of uses the cheapest of all else, ending at each layout."""
        return self.known.outward(self.distances, self.potentials[0], self.potentials[1:])

    def minimum(self) -> float:
        """The least value over all layouts at the ports."""
        if self.least is None or not self.least.is_of((self.distances, *self.potentials)):
            value = float((self.potentials[0] + self.trees()[-1]).min())
            self.least = _Least((self.distances, *self.potentials), value)
        return self.least.value

    def marginals(self, at_source: bool) -> list[Floats]:
        """For each layout at the source, or at each use, the least value with that layout."""
        if at_source:
            return [self.potentials[0] + self.trees()[-1]]
        outward = self.rests()
        return [self.potentials[1 + u] + outward[1 << u] for u in range(len(self.ports) - 1)]

    def message(self, port: int) -> Floats:
        """For each layout at a port the least of all else."""
        if port == 0:
            return self.trees()[-1]
        use = 1 << port - 1
        return self.known.outward(self.distances, self.potentials[0], self.potentials[1:], use)[use]

    def joint(self, ports: Sequence[int]) -> Floats:
        """For each choice of a node that has several `ports` here, the least of all else."""
        kept = list(self.potentials)
        ways, at = np.unique(np.stack([self.ports[i].rows for i in ports]), axis=1, return_inverse=True)
        least = np.empty(ways.shape[1])
        for way, rows in enumerate(ways.T):
            for i, row in zip(ports, rows, strict=True):
                self.potentials[i] = point(int(row), len(kept[i]))
            least[way] = self.minimum()
        self.potentials = kept
        return least[at.reshape(-1)]

    def arc_marginals(self, some: Array | slice = slice(None)) -> Floats:
        """For each arc, or for some by their places, the least value of a tree that runs over it."""
        arcs = self.distances.arcs
        return self._over(arcs.source[some], arcs.target[some], self.distances.price[some])

    def over(self, arcs: Arcs, price: Floats) -> Floats:
        """The least value of a tree that runs over each of some arcs, at prices that may be of none of its own."""
        return self._over(arcs.source, arcs.target, price)

    def _over(self, source: Array, target: Array, price: Floats) -> Floats:
        inward, outward = self.trees(), self.rests()
        return reduce(np.minimum, (outward[m][source] + price + inward[m][target] for m in range(1, len(inward))))


class DualAscent:
    """The bound of a graph whose node n pays `price[n][c]`, and whose tensor t pays for its arcs.

    `distances[t]` has the arcs of tensor t and what each costs when it runs alone, None for a tensor
    that nothing reads. `groups`: those that may run as one.
    """

    def __init__(
        self,
        graph: Graph,
        prices: Sequence[Floats],
        distances: Sequence[Distances | None],
        groups: Groups | None = None,
    ):
        self.graph = graph
        self.groups = groups
        self.alone = distances
        self.prices = [np.array(p) for p in prices]
        self.refund = 0.0
        self.usual, self.largest = _sizes(self.prices, distances)
        self.factors: list[Factor] = []
        self.ends: list[list[tuple[Factor, int]]] = [[] for _ in graph.nodes]
        for t, tensor in enumerate(graph.tensors):
            near = distances[t]
            if near is None:
                continue
            bundles = [tensor.uses[i : i + BUNDLE] for i in range(0, len(tensor.uses), BUNDLE)]
            shared = near if len(bundles) == 1 else Distances(near.arcs, near.price / len(bundles))
            for bundle in bundles:
                ports = (tensor.source, *bundle)
                supports = [support(p, len(tensor.space)) for p in ports]
                factor = Factor(t, shared, ports, supports, KnownTrees(len(bundle)))
                self.factors.append(factor)
                for i, port in enumerate(ports):
                    self.ends[port.node].append((factor, i))
        # What each node has been handed, by its choices.
        self.given = [np.zeros(len(p)) for p in self.prices]
        self.least: list[_Least | None] = [None] * len(self.prices)
        if groups is not None:
            # Which share of each group's latency the trees of each tensor pay, [tensors, groups].
            member = groups.members()
            self.shares = member / np.maximum(1.0, member.sum(axis=0))
            self.reprice()

    def copy(self) -> DualAscent:
        """The same split of prices, to go on from by itself."""
        other = copy.copy(self)
        other.prices, other.given, other.least = list(self.prices), list(self.given), list(self.least)
        other.factors = [factor.copy() for factor in self.factors]
        at = {id(f): i for i, f in enumerate(self.factors)}
        other.ends = [[(other.factors[at[id(f)]], i) for f, i in ends] for ends in self.ends]
        return other

    def allow(self, node: int, choices: Mask) -> None:
        """Forbid a node all other choices."""
        self.prices[node] = np.where(choices, self.prices[node], np.inf)
        for factor, i in self.ends[node]:
            supported = np.zeros(len(factor.potentials[i]), dtype=bool)
            supported[factor.ports[i].rows[choices]] = True
            factor.potentials[i] = np.where(supported, factor.potentials[i], np.inf)

    def charge(self, loads: Mapping[int, Floats], refund: float) -> None:
        """Let choices pay more, `loads[n][c]` for choice c of node n, and every plan get a `refund`. The bound
        is then one of the plans that are not charged more than that in all."""
        for node, load in loads.items():
            self.prices[node] = self.prices[node] + load
        self.refund += refund

    def node_costs(self, node: int) -> Floats:
        """What the choices of a node cost with what it has been handed."""
        return self.prices[node] + self.given[node]

    def bound(self) -> float:
        """The proven lower bound. What sums are rounded by is none: no plan costs less than nothing."""
        nodes = sum(self._least_cost(n) for n in range(len(self.prices)))
        least = nodes + sum(f.minimum() for f in self.factors) - self.refund
        return 0.0 if abs(least) <= ROUNDED * (self.largest + self.refund) else least

    def about(self, price: float) -> float:
        """A price by which others can be measured: this one, or where that is nothing what choices and collectives
        that cost something do in the middle."""
        return abs(price) or self.usual

    def _least_cost(self, node: int) -> float:
        """Of the `node_costs`."""
        known, now = self.least[node], (self.prices[node], self.given[node])
        if known is None or not known.is_of(now):
            known = self.least[node] = _Least(now, float(self.node_costs(node).min()))
        return known.value

    def sweep(self) -> None:
        """Once forward and once backward over the program."""
        order = sorted(range(len(self.factors)), key=lambda i: self.factors[i].ports[0].node)
        made: dict[int, list[Factor]] = {}
        for i in order:
            made.setdefault(self.factors[i].ports[0].node, []).append(self.factors[i])
        for node in range(len(self.prices)):
            self._push(node, [(f, i) for f, i in self.ends[node] if i == 0])
            for factor in made.get(node, ()):
                self._pull(factor, at_source=False)
        for node in reversed(range(len(self.prices))):
            for factor in made.get(node, ()):
                self._pull(factor, at_source=True)
            self._push(node, [(f, i) for f, i in self.ends[node] if i != 0])
        if self.groups is not None:
            before, shares = self.bound(), self.shares
            self._share(self.groups)
            if self.bound() < before:  # several groups on one path: each alone could have been spared
                self.shares = shares
                self.reprice()

    def combining(self, some: Combining) -> float:
        """What plans cost at the least above the bound if of each of some sets of knots collectives of one of two
        tensors run as one: a group pays its latency, and both have an arc in it."""
        if not some:
            return 0.0
        if self.groups is None or not len(self.groups.latency_s):
            return np.inf
        paid = self.shares * self.groups.latency_s
        more = np.sort(self._spare(self.groups) - paid, axis=0)
        least = self.groups.latency_s + more[:2].sum(axis=0) + np.minimum(0.0, more[2:]).sum(axis=0)
        return max(0.0, *(float(least[own].min(initial=np.inf)) for own in self.groups.of_knots(some)))

    def _spare(self, groups: Groups) -> Floats:
        """What a plan costs at the least above the bound if a tensor has an arc in a group. Shape [tensors,
        groups]; infinite where it has none."""
        spare = np.full(self.shares.shape, np.inf)
        for factor in self.factors:
            of = groups.of[factor.tensor]
            some = np.zeros(0, dtype=np.int64) if of is None else np.flatnonzero(of >= 0)
            if of is not None and len(some):
                more = factor.arc_marginals(some) - factor.minimum()
                np.minimum.at(spare[factor.tensor], of[some], more)
        return np.maximum(0.0, spare)

    def _share(self, groups: Groups) -> None:
        """Take from the tensors what they need not pay of a group's latency for the group to stay too
        dear, and hand it to those for which it is not."""
        spare = self._spare(groups) / groups.latency_s
        given = np.where(np.isfinite(spare), STEP * np.minimum(self.shares, spare), 0.0)
        needy = np.isfinite(spare) & (spare <= NOTHING)
        count = needy.sum(axis=0)
        taken = given.sum(axis=0)
        self.shares = np.where(count > 0, self.shares - given + needy * (taken / np.maximum(1, count)), self.shares)
        self.reprice()

    def reprice(self) -> None:
        """Let each tensor pay its `shares`."""
        assert self.groups is not None
        for factor in self.factors:
            of, alone = self.groups.of[factor.tensor], self.alone[factor.tensor]
            if of is not None and alone is not None and (of >= 0).any():
                saved = (1 - self.shares[factor.tensor]) * self.groups.latency_s
                price = alone.price - np.where(of >= 0, saved[of], 0.0)
                if not np.array_equal(price, factor.distances.price):
                    factor.distances = alone.repriced(price)

    def _push(self, node: int, ends: list[tuple[Factor, int]]) -> None:
        """Hand what the node's choices cost, in equal shares, to the tensors at `ends`."""
        costs = self.node_costs(node)
        for factor, i in ends:
            rows = factor.ports[i].rows
            least = np.full(len(factor.potentials[i]), np.inf)
            np.minimum.at(least, rows, costs)
            share = np.where(np.isfinite(least), least / len(ends), 0.0)
            factor.potentials[i] = factor.potentials[i] + share
            self.given[node] = self.given[node] - share[rows]

    def _pull(self, factor: Factor, at_source: bool) -> None:
        """Hand what the tensor costs, in equal shares, to the nodes at its source or at its uses."""
        marginals = factor.marginals(at_source)
        for i, marginal in enumerate(marginals, start=0 if at_source else 1):
            share = np.where(np.isfinite(marginal), marginal / len(marginals), 0.0)
            factor.potentials[i] = factor.potentials[i] - share
            port = factor.ports[i]
            self.given[port.node] = self.given[port.node] + share[port.rows]

    def round(self) -> list[int]:
        """A plan read off the split: a choice for each node, taken in program order, each the best
        with those taken before and the bound of what comes after; then polished."""
        kept = [list(f.potentials) for f in self.factors]
        chosen = [0] * len(self.prices)
        for node in range(len(chosen)):
            self._settle(node, chosen, by_rank=False)
        return self._improve(chosen, kept, range(len(chosen)))

    def polish(self, plan: Sequence[int], nodes: Sequence[int] | None = None) -> list[int]:
        """A plan no dearer than `plan`, improved node by node while that helps; only at `nodes`, if given."""
        kept = [list(f.potentials) for f in self.factors]
        chosen = list(plan)
        for factor in self.factors:
            factor.potentials = [point(p.rows[chosen[p.node]], len(factor.potentials[0])) for p in factor.ports]
        return self._improve(chosen, kept, range(len(chosen)) if nodes is None else nodes)

    def _improve(self, chosen: list[int], kept: list[list[Floats]], nodes: Sequence[int]) -> list[int]:
        """Choose anew for each of `nodes`, all others as they are, until nothing gains; then give the
        potentials back as they were `kept`. Of plans of one price the last is the best by rank."""
        price, best = np.inf, list(chosen)
        while (now := self.price_of(chosen)) <= price * (1 + 1e-12):
            gained = now < price * (1 - 1e-9)
            price, best = now, list(chosen)
            if not gained:
                break
            for node in nodes:
                self._settle(node, chosen)
        for factor, potentials in zip(self.factors, kept, strict=True):
            factor.potentials = potentials
        return best

    def _settle(self, node: int, chosen: list[int], by_rank: bool = True) -> None:
        """Choose the best for a node with the potentials as they are, and fix its ports to that.

        Of choices that cost the same the first `by_rank` is taken.
        """
        costs = self.prices[node].copy()
        for factor, ports in self._touching(node):
            alone = len(ports) == 1
            costs = costs + (factor.message(ports[0])[factor.ports[ports[0]].rows] if alone else factor.joint(ports))
        least = float(costs.min())
        equal = np.flatnonzero(costs <= least + 1e-12 * abs(least))
        chosen[node] = int(equal[np.argmin(self.graph.nodes[node].rank[equal])] if by_rank else np.argmin(costs))
        for factor, i in self.ends[node]:
            factor.potentials[i] = point(factor.ports[i].rows[chosen[node]], len(factor.potentials[i]))

    def _touching(self, node: int) -> list[tuple[Factor, list[int]]]:
        """The tensors that a node touches, each with all its ports there."""
        found: dict[int, tuple[Factor, list[int]]] = {}
        for factor, i in self.ends[node]:
            found.setdefault(id(factor), (factor, []))[1].append(i)
        return list(found.values())

    def price_of(self, chosen: Sequence[int]) -> float:
        """What a plan costs at most: exact where every tensor is one
        bundle and no latency is shared."""
        total = sum(float(p[c]) for p, c in zip(self.prices, chosen, strict=True))
        for factor in self.factors:
            kept = factor.potentials
            factor.potentials = [point(p.rows[chosen[p.node]], len(kept[0])) for p in factor.ports]
            bundles = -(-len(self.graph.tensors[factor.tensor].uses) // BUNDLE)
            total += bundles * factor.minimum()
            factor.potentials = kept
        return total

    def alive(self, slack: float) -> tuple[list[Mask], dict[int, Mask]]:
        """The choices of each node and the arcs of each tensor that a plan can contain whose price
        is at most the bound plus `slack`."""
        nodes = []
        for n in range(len(self.prices)):
            costs = self.node_costs(n)
            with np.errstate(invalid="ignore"):  # where there is no plan the slack is infinitely far below
                nodes.append(costs <= costs.min() + slack)
        arcs: dict[int, Mask] = {}
        for factor in self.factors:
            marginal = factor.arc_marginals()
            keep = marginal <= factor.minimum() + slack
            arcs[factor.tensor] = arcs.get(factor.tensor, np.zeros(len(keep), dtype=bool)) | keep
        return nodes, arcs


def _sizes(prices: Sequence[Floats], distances: Sequence[Distances | None]) -> tuple[float, float]:
    """The middle and the largest of what is not free, 1 where all is."""
    arcs = {id(near): near.price for near in distances if near is not None}
    every = np.concatenate([*prices, *arcs.values(), np.zeros(0)])
    some = np.sort(every[(every > 0) & (every < np.inf)])  # numpy's median takes a hundredth of a second to import
    return (float(some[len(some) // 2]), float(some[-1])) if len(some) else (1.0, 1.0)


def support(port: Port, layouts: int) -> Floats:
    """Nothing for a layout in which some choice has the tensor at a port, infinite for any other."""
    out = np.full(layouts, np.inf)
    out[port.rows] = 0.0
    return out
