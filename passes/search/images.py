"""Plans told apart but for the names of axes that are alike: a smaller problem whose bounds hold for all plans.

Where axes are alike every layout, choice and collective has images under their renamings. Taken as one, they make a
problem of a sixth of the columns on three such axes: each plan is a plan of it that costs no more, so that a bound of
these is one of all plans. Its linear relaxation is that of the whole problem, which can be split evenly over images.
What it leaves open is how the axes of one value stand to those of another: a plan of it is spelled out among the images
of what it takes (see `image_program`). Bytes are those of all images, and so what memory asks for is decided here.

Where some values are told `apart`, as those that are moved most often, it is not left open of these: the problem is a
larger one, whose plans and bounds lie between those of images and those of all.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from ...ir.record import record
from ..layouts.reshard import Arcs
from ..layouts.space import Array, Mask, Space, distinct
from .combinable import ALONE, Combining, Groups, Merged
from .dual_ascent import DualAscent
from .graph import Graph, Port, Tensor
from .limits import JointLimits, Limits
from .memory_bounds import Load
from .problem import Candidate, Problem
from .steiner import Distances
from .symmetry import image_codes, of_layers

SAME = 1e-9  # relative: plans of one price


@record(eq=False)
class Images:
    """A problem whose images are one, of a `graph`. `of[n]`: for each choice of node n the choice that stands for it;
    `first[n]`: for each of these one that it stands for. `rows[t]`: the layout that stands for each of tensor t;
    `groups`: the group that stands for each."""

    graph: Graph
    problem: Problem
    of: Sequence[Array]
    first: Sequence[Array]
    rows: Sequence[Array]
    groups: Array

    def whole(self, settled: DualAscent, ascent: DualAscent) -> DualAscent:
        """An ascent of the whole problem, of which `settled` is one, that splits prices between all images as `ascent`
        does here, with a bound that is no less."""
        own = settled.copy()
        own.prices = [price[of] for price, of in zip(ascent.prices, self.of, strict=True)]
        own.given = [given[of] for given, of in zip(ascent.given, self.of, strict=True)]
        own.refund = ascent.refund
        for factor, small in zip(own.factors, ascent.factors, strict=True):
            factor.potentials = [potential[self.rows[factor.tensor]] for potential in small.potentials]
        if ascent.groups is not None:
            own.shares = ascent.shares[:, self.groups]
            own.reprice()
        return own

    def here(self, whole: DualAscent) -> DualAscent:
        """The ascent here that splits prices as one of the `whole` problem does, which does so alike for all images."""
        own = DualAscent(self.problem.graph, self.problem.prices, self.problem.distances, self.problem.groups)
        own.prices = [price[first] for price, first in zip(whole.prices, self.first, strict=True)]
        own.given = [given[first] for given, first in zip(whole.given, self.first, strict=True)]
        own.refund = whole.refund
        for factor, large in zip(own.factors, whole.factors, strict=True):
            standing = np.unique(self.rows[factor.tensor], return_index=True)[1]
            factor.potentials = [potential[standing] for potential in large.potentials]
        if whole.groups is not None:
            own.shares = whole.shares[:, np.unique(self.groups, return_index=True)[1]]
            own.reprice()
        return own

    def arcs(self, problem: Problem, plan: Candidate) -> dict[int, Mask]:
        """For each tensor of the whole problem the arcs between images of the layouts that a plan has it in."""
        bill = self.problem.trees.bill(plan.chosen, plan.shared)
        out = {}
        for t, (near, small) in enumerate(zip(problem.distances, self.problem.distances, strict=True)):
            if near is None or small is None:
                continue
            tensor = self.problem.graph.tensors[t]
            used = np.zeros(len(tensor.space), dtype=bool)
            for port in (tensor.source, *tensor.uses):
                used[port.rows[plan.chosen[port.node]]] = True
            taken = list(bill.arcs[t])
            used[small.arcs.source[taken]] = used[small.arcs.target[taken]] = True
            rows = self.rows[t]
            out[t] = used[rows[near.arcs.source]] & used[rows[near.arcs.target]]
        return out

    def between(self, problem: Problem, arcs: Mapping[int, Mask]) -> dict[int, Mask]:
        """For each tensor the arcs of the whole problem that `arcs` here stand for, and those between images."""
        out = {}
        for t, mask in arcs.items():
            near, small, rows = problem.distances[t], self.problem.distances[t], self.rows[t]
            assert near is not None and small is not None, "what has arcs has prices for them"
            layouts = len(self.problem.graph.tensors[t].space)
            kept = small.arcs.source[mask] * layouts + small.arcs.target[mask]
            source, target = rows[near.arcs.source], rows[near.arcs.target]
            out[t] = (source == target) | np.isin(source * layouts + target, kept)
        return out

    def all(self, masks: Sequence[Mask]) -> list[Mask]:
        """The choices of the whole problem that choices here stand for."""
        return [mask[of] for mask, of in zip(masks, self.of, strict=True)]

    def standing(self, masks: Sequence[Mask]) -> list[Mask]:
        """The choices here that stand for some of the whole problem."""
        out = []
        for mask, of, first in zip(masks, self.of, self.first, strict=True):
            here = np.zeros(len(first), dtype=bool)
            here[of[mask]] = True
            out.append(here)
        return out


@record(eq=False)
class ImageLimits:
    """The limits of a problem for plans among images: what these take at the least is no more than there is, or than a
    `share` of it."""

    images: Images
    limits: Limits | JointLimits
    share: float = 1.0

    @cached_property
    def _every(self) -> list[Load]:
        """What choices take at the least, whatever the others are."""
        return self.loads([np.ones(len(first), dtype=bool) for first in self.images.first])

    @property
    def combining(self) -> Combining:
        """As the limits have it."""
        return self.limits.combining

    def taken(self, plan: Candidate) -> float:
        """The share of the room that a plan takes at the least, where that is most."""
        return max((load.of(plan.chosen) / load.room for load in self._every), default=0.0) * self.share

    def fits(self, plan: Candidate) -> bool:
        """Whether a plan does."""
        return all(load.of(plan.chosen) <= load.room * (1 + SAME) for load in self._every)

    def tightened(self, allowed: Sequence[Mask]) -> list[Mask] | None:
        """Without the choices that no plan within the limits has; None when nothing is left."""
        tight = self.limits.tightened(self.images.all(allowed))
        return None if tight is None else self.images.standing(tight)

    def loads(self, allowed: Sequence[Mask]) -> list[Load]:
        """What plans take of the memory at the least, wherever it may be too much."""
        first = self.images.first
        every = self.limits.loads(self.images.all(allowed))
        out = []
        for load in every:
            moved = tuple(one.at(self._ports.__getitem__, first[one.node]) for one in load.moved)
            own = {n: size[first[n]] for n, size in load.bytes.items()}
            out.append(replace(load, bytes=own, room=load.room * self.share, moved=moved))
        return out

    @cached_property
    def _ports(self) -> dict[Port, Port]:
        """For each port of a tensor that of its images."""
        found: dict[Port, Port] = {}
        tensors = zip(self.images.graph.tensors, self.images.problem.graph.tensors, strict=True)
        for whole, small in tensors:
            found |= zip((whole.source, *whole.uses), (small.source, *small.uses), strict=True)
        return found


def images(problem: Problem, apart: Collection[int] = ()) -> Images | None:
    """The problem with images taken as one, but for those of some tensors that are told `apart`, and what is chosen at
    their ends; None where no axes are alike, or something does not have all of its images.

    Where some are told apart, all axes may still be renamed together: that of what layers hand on most often is left
    out (see `symmetry`)."""
    if all(len(group) < 2 for group in problem.alike):
        return None
    spaces: dict[int, tuple[Space, Array]] = {}
    for t, tensor in enumerate(problem.graph.tensors):
        space = tensor.space.space
        if t not in apart and id(space) not in spaces:
            code = np.min(image_codes(space.rows, problem.alike), axis=0)
            standing, of = np.unique(code, return_inverse=True)
            if not np.isin(standing, space.codes).all():
                return None
            rows = space.rows.take(np.searchsorted(space.codes, standing))
            spaces[id(space)] = Space(space.axis_names, space.axis_sizes, rows), of.reshape(-1)
    own_of = [
        (tensor.space.space, np.arange(len(tensor.space))) if t in apart else spaces[id(tensor.space.space)]
        for t, tensor in enumerate(problem.graph.tensors)
    ]
    rows_of = [rows for _, rows in own_of]
    of_choice, first = _choices(problem, apart)
    nodes = []
    for n, (node, price) in enumerate(zip(problem.graph.nodes, problem.prices, strict=True)):
        if not np.allclose(price, price[first[n]][of_choice[n]], rtol=1e-9, atol=0.0):
            return None
        nodes.append(node.take(first[n]))
    tensors = []
    for t, tensor in enumerate(problem.graph.tensors):
        own = replace(tensor.space, space=own_of[t][0])
        ports = [Port(p.node, rows_of[t][p.rows[first[p.node]]]) for p in (tensor.source, *tensor.uses)]
        tensors.append(replace(tensor, space=own, source=ports[0], uses=tuple(ports[1:])))
    moves = _moves(problem, rows_of)
    if moves is None:
        return None
    distances, groups, numbers = moves
    prices = [price[f] for price, f in zip(problem.prices, first, strict=True)]
    graph = Graph(tuple(nodes), tuple(tensors))
    told = of_layers(graph, problem.alike) if apart else None
    small = Problem(graph, prices, distances, problem.settings, told, groups)
    return Images(problem.graph, small, of_choice, first, rows_of, numbers)


def most_often(graph: Graph) -> frozenset[int]:
    """The tensors of what runs most often."""
    most = max(tensor.times for tensor in graph.tensors)
    return frozenset(t for t, tensor in enumerate(graph.tensors) if tensor.times == most)


def over_arcs(problem: Problem, arcs: Mapping[int, Mask]) -> Problem:
    """A problem with some of the arcs of each tensor alone."""
    distances = [
        near if near is None else Distances(near.arcs.take(arcs[t]), near.price[arcs[t]])
        for t, near in enumerate(problem.distances)
    ]
    groups = problem.groups
    left = None if groups is None else groups.take([arcs.get(t) for t in range(len(distances))])
    return replace(problem, distances=distances, groups=left)


def _choices(problem: Problem, apart: Collection[int]) -> tuple[list[Array], list[Array]]:
    """For each node and choice the number of those that are its images, and for each of these numbers the plainest. At
    the ends of tensors that are told `apart` each choice is by itself."""
    tensors = problem.graph.tensors
    told = {port.node for t in apart for port in (tensors[t].source, *tensors[t].uses)}
    ports: list[list[tuple[Tensor, Port]]] = [[] for _ in problem.graph.nodes]
    for tensor in problem.graph.tensors:
        for port in (tensor.source, *tensor.uses):
            ports[port.node].append((tensor, port))
    of, first = [], []
    known: dict[int, list[Array]] = {}
    for n, (node, own) in enumerate(zip(problem.graph.nodes, ports, strict=True)):
        if n in told:
            keys = [np.arange(len(node.seconds))[None]]
        elif node.table is not None:
            keys = [np.stack([code]) for code in image_codes(node.table.rows, problem.alike)]
        elif own:
            for tensor, _ in own:
                space = tensor.space.space
                if id(space) not in known:
                    known[id(space)] = image_codes(space.rows, problem.alike)
            each = [[code[port.rows] for code in known[id(tensor.space.space)]] for tensor, port in own]
            keys = [np.stack(codes) for codes in zip(*each, strict=True)]
        else:
            keys = [np.arange(len(node.seconds))[None]]
        _, number = distinct(_least_of(keys))
        order = np.lexsort((node.rank, number))
        _, at = np.unique(number[order], return_index=True)
        of.append(number)
        first.append(order[at])
    return of, first


def _least_of(keys: Sequence[Array]) -> Array:
    """Of several columns of numbers at each place the first in lexical order. Each [numbers, places]."""
    best = keys[0]
    for other in keys[1:]:
        less, same = np.zeros(best.shape[1], dtype=bool), np.ones(best.shape[1], dtype=bool)
        for a, b in zip(best, other, strict=True):
            less |= same & (b < a)
            same &= a == b
        best = np.where(less, other, best)
    return best


_Moves = tuple[list[Distances | None], Groups | None, Array]


def _moves(problem: Problem, rows: Sequence[Array]) -> _Moves | None:
    """The arcs between layouts that stand for others, and their groups: those that have an image in common are one.
    None where these are of different latencies."""
    groups = problem.groups
    one = Merged(0 if groups is None else len(groups.latency_s))
    found: list[tuple[Array, Array] | None] = []
    for t, near in enumerate(problem.distances):
        if near is None:
            found.append(None)
            continue
        source, target = rows[t][near.arcs.source], rows[t][near.arcs.target]
        of = np.full(len(source), ALONE) if groups is None or groups.of[t] is None else np.asarray(groups.of[t])
        keep = np.flatnonzero(source != target)
        # Images have the same ends here, and are of one kind at one price, which go in one way.
        key = np.stack([source[keep], target[keep], near.arcs.kind[keep], near.arcs.sending[keep], of[keep] >= 0])
        _, number = distinct(key)
        order = np.lexsort((near.price[keep], number))
        _, at = np.unique(number[order], return_index=True)
        found.append((keep[order[at]], of))
        lead = np.empty(len(at), dtype=np.int64)
        lead[number[order[at]]] = of[keep[order[at]]]
        pairs, _ = distinct(np.stack([of[keep], lead[number]])[:, of[keep] >= 0])
        for a, b in pairs.T.tolist():
            one.join(a, b)
    numbers = one.numbers()
    distances: list[Distances | None] = []
    members: list[Array | None] = []
    known: dict[tuple[int, int, bytes], Distances] = {}
    for t, (near, kept) in enumerate(zip(problem.distances, found, strict=True)):
        if near is None or kept is None:
            distances.append(None)
            members.append(None)
            continue
        some, of = kept
        same = id(near), id(rows[t]), some.tobytes()
        if same not in known:
            arcs = near.arcs.take(some)
            ends = rows[t][arcs.source], rows[t][arcs.target]
            known[same] = Distances(Arcs(*ends, arcs.kind, arcs.axes, arcs.sending), near.price[some])
        distances.append(known[same])
        members.append(np.where(of[some] >= 0, numbers[of[some]], ALONE) if len(numbers) else np.full(len(some), ALONE))
    if groups is None:
        return distances, None, numbers
    latency = np.full(int(numbers.max(initial=-1)) + 1, np.inf)
    np.minimum.at(latency, numbers, groups.latency_s)
    if not np.allclose(latency[numbers], groups.latency_s, rtol=1e-9, atol=0.0):
        return None
    knot = dict(zip(numbers.tolist(), groups.knot, strict=True))  # images of a group have the values that it has
    lead = np.arange(len(latency))
    np.minimum.at(lead, numbers, numbers[groups.lead])
    merged = replace(groups, latency_s=latency, of=members, knot=[knot[g] for g in range(len(latency))], lead=lead)
    return distances, merged, numbers
