"""What a plan pays for its collectives: a tree for each tensor, those that may run as one combined.

Where nothing can be combined the cheapest trees are the answer. Otherwise a group that one tensor
pays for is open to the others at the price of the bytes alone; from a first set of open groups this
is settled in turns, and the cheapest bill on the way is kept. What then runs as one goes in the way that is
quickest for all of its bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from heapq import heappop, heappush
from itertools import count

import numpy as np
from numpy.typing import NDArray

from ...ir.record import record
from ..ilp.solver import Settings, solve
from ..layouts.reshard import NONE
from ..layouts.space import Array, Mask
from .combinable import ALONE, Groups
from .graph import Graph, Node, Port, Result, Tensor
from .integer_program import choice_program
from .steiner import Distances, cheapest_tree

FEW = 8  # distinct layouts that the dynamic program takes


def shared_tree(tensor: Tensor, near: Distances, ends: tuple[int, Sequence[int]], settings: Settings) -> list[int]:
    """The arcs of the cheapest tree from the first of `ends` to all of the others, in an order in
    which they can be applied. All prices must be positive."""
    root, targets = ends
    wanted = sorted(set(targets) - {root})
    if len(wanted) <= FEW:
        return cheapest_tree(near, root, wanted)
    node = Node(Result(tensor.value.name), np.zeros(1), np.zeros(1))
    fixed = [Port(n, np.array([row])) for n, row in enumerate([root, *wanted])]
    alone = Graph((node,) * len(fixed), (replace(tensor, source=fixed[0], uses=tuple(fixed[1:])),))
    scale = 1e3 / float(near.price[near.price > 0].max(initial=1e-300))
    program = choice_program(alone, [np.zeros(1)] * len(fixed), [(near.arcs, near.price * scale)])
    answer = solve(program.model, settings)
    assert answer.x is not None, "all layouts can be reached"
    first = len(fixed)  # the paid arcs come right after the nodes
    return _in_order(near, root, wanted, np.flatnonzero(answer.x[first : first + len(near.arcs)] > 0.5).tolist())


def _in_order(near: Distances, root: int, wanted: Sequence[int], used: Sequence[int]) -> list[int]:
    """Those of the `used` arcs that lead from the root to what is wanted, nearest first."""
    parent: dict[int, int] = {}
    reached = [root]
    for at in reached:
        for arc in used:
            target = int(near.arcs.target[arc])
            if near.arcs.source[arc] == at and target not in parent and target != root:
                parent[target] = arc
                reached.append(target)
    needed: set[int] = set()
    for target in wanted:
        while target != root and parent[target] not in needed:
            needed.add(parent[target])
            target = int(near.arcs.source[parent[target]])
    return [parent[t] for t in reached[1:] if parent[t] in needed]


Floats = NDArray[np.float64]
TURNS = 8
MOST_CLOSED = 16  # sets of arcs at whose full price a tree is looked for


@record
class TreeCosts:
    """`arcs[t]`: the arcs of tensor t, in an order in which they can be applied; `groups[t]`: the
    group in which each of them is combined, or ALONE. `price`: of all, each group's latency once."""

    arcs: tuple[tuple[int, ...], ...]
    groups: tuple[tuple[int, ...], ...]
    price: float

    @property
    def shared(self) -> frozenset[int]:
        """The groups that are used."""
        return frozenset(g for each in self.groups for g in each if g != ALONE)


class Trees:
    """The trees of all plans of a problem, each looked for once.

    `near(t)`: the arcs of tensor t, with their prices when they run alone; None for a tensor that
    nothing reads.
    """

    def __init__(
        self,
        tensors: Sequence[Tensor],
        near: Callable[[int], Distances | None],
        groups: Groups | None,
        settings: Settings,
    ):
        self.tensors, self.groups, self.settings = tensors, groups, settings
        self.near = cache(near)
        self._tree = cache(self._find)
        of = [None] * len(tensors) if groups is None else groups.of
        self._led = cache(lambda t: None if groups is None or of[t] is None else groups.led(np.asarray(of[t])))
        self.joinable = [frozenset() if o is None else frozenset(o[o >= 0].tolist()) for o in of]

    def bill(
        self,
        chosen: Sequence[int],
        shared: frozenset[int] = frozenset(),
        detours: Mapping[int, tuple[int, ...]] | None = None,
    ) -> TreeCosts:
        """The bill of a plan, with the groups `shared` open at first. `detours`: the trees of tensors that do
        not move over the cheapest."""
        given = detours or {}
        best: TreeCosts | None = None
        tried: set[frozenset[int]] = set()
        while best is None or (shared not in tried and len(tried) < TURNS):
            trees = []
            for t, tensor in enumerate(self.tensors):
                root, targets = tensor.ends(chosen)
                if t in given:
                    trees.append(given[t])
                    continue
                trees.append(self._tree(t, root, frozenset(targets) - {root}, shared & self.joinable[t]))
            tried.add(shared)
            found = self._add_up(trees, chosen)
            if best is None or found.price < best.price:
                best = found
            shared = found.shared
        return best

    def _find(self, t: int, root: int, targets: frozenset[int], open_: frozenset[int]) -> tuple[int, ...]:
        """The cheapest tree of tensor t where the groups `open_` cost their bytes alone.

        A tree found so may use a group twice, or groups out of their order, which saves no latency. Then trees
        are looked for at the full price of some of those arcs as well, and what can be combined decides.
        """
        near = self.near(t) if targets else None
        if near is None:
            return ()
        ends, of, led = (root, sorted(targets)), None if self.groups is None else self.groups.of[t], self._led(t)
        if self.groups is None or of is None or led is None or not open_:
            return tuple(shared_tree(self.tensors[t], near, ends, self.settings))
        latency_s = np.where(of >= 0, self.groups.latency_s[of], 0.0)
        best: tuple[int, ...] = ()
        least, number = np.inf, count()
        first = np.isin(of, sorted(open_))
        left, seen = [(-np.inf, next(number), first)], {first.tobytes()}
        while left and left[0][0] < least:
            _, _, saves = heappop(left)
            opened = near.repriced(near.price - np.where(saves, latency_s, 0.0))
            tree = tuple(shared_tree(self.tensors[t], opened, ends, self.settings))
            own = _combined(root, near, led, tree)
            spares = (arc for arc, group in zip(tree, own, strict=True) if group != ALONE and first[arc])
            spared = sum(float(latency_s[arc]) for arc in spares)
            price = float(near.price[list(tree)].sum()) - spared
            if price < least:
                best, least = tree, price
            if len(ends[1]) == 1 and any(saves[arc] and group == ALONE for arc, group in zip(tree, own, strict=True)):
                return _combining_path(near, led, np.where(first, latency_s, 0.0), root, ends[1][0])
            for some in _closed(saves, led, tree, own):
                if some.tobytes() not in seen and len(seen) < MOST_CLOSED:
                    seen.add(some.tobytes())
                    heappush(left, (float(opened.price[list(tree)].sum()), next(number), some))
        return best

    def _add_up(self, trees: Sequence[tuple[int, ...]], chosen: Sequence[int]) -> TreeCosts:
        led = [self._combined(t, tree, chosen) for t, tree in enumerate(trees)]
        if self.groups is not None:
            trees = self._quickest(trees, led)
        total = 0.0
        combined: list[tuple[int, ...]] = []
        paid: set[int] = set()
        for t, (tree, leads) in enumerate(zip(trees, led, strict=True)):
            near = self.near(t) if tree else None
            price, own = 0.0, leads
            if near is not None:
                price = float(near.price[list(tree)].sum())
                of = None if self.groups is None else self.groups.of[t]
                if self.groups is not None and of is not None:
                    own = tuple(ALONE if lead == ALONE else int(of[arc]) for arc, lead in zip(tree, leads, strict=True))
                    price -= sum(float(self.groups.latency_s[g]) for g in own if g in paid)
                    paid |= {g for g in own if g != ALONE}
            total += price
            combined.append(own)
        return TreeCosts(tuple(trees), tuple(combined), total)

    def _combined(self, t: int, tree: tuple[int, ...], chosen: Sequence[int]) -> tuple[int, ...]:
        """Of the arcs of a tensor's tree those that are combined, each by the first group of its collectives."""
        near, led = self.near(t) if tree else None, self._led(t) if tree else None
        if near is None or led is None:
            return (ALONE,) * len(tree)
        return _combined(self.tensors[t].ends(chosen)[0], near, led, tree)

    def _quickest(self, trees: Sequence[tuple[int, ...]], led: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """The same trees, in which the bytes of all that runs as one go in the way that is quickest for all of it."""
        found = [list(tree) for tree in trees]
        runs: dict[object, list[tuple[int, int, Array]]] = {}  # of each the tensor, the place in its tree, the twins
        for t, (tree, leads) in enumerate(zip(trees, led, strict=True)):
            near = self.near(t) if tree else None
            twins = None if near is None else near.arcs.twins
            for at, (arc, lead) in enumerate(zip(tree, leads, strict=True)) if twins is not None else ():
                assert twins is not None
                if twins[arc].max() != NONE:
                    runs.setdefault((t, at) if lead == ALONE else lead, []).append((t, at, twins[arc]))
        for run in runs.values():
            ways = range(min(len(twins) for _, _, twins in run))
            price, way = min((self._run_s([(t, int(twins[way])) for t, _, twins in run]), way) for way in ways)
            if price < np.inf:
                for t, at, twins in run:
                    found[t][at] = int(twins[way])
        return [tuple(tree) for tree in found]

    def _run_s(self, run: Sequence[tuple[int, int]]) -> float:
        """What arcs cost that run as one, each of a tensor; infinite where there is not one of each."""
        total, paid = 0.0, set[int]()
        for t, arc in run:
            near, of = self.near(t), None if self.groups is None else self.groups.of[t]
            assert self.groups is not None and near is not None and of is not None, "it has twins"
            if arc == NONE:
                return np.inf
            total += float(near.price[arc]) - (float(self.groups.latency_s[of[arc]]) if of[arc] in paid else 0.0)
            paid |= {int(of[arc])} - {ALONE}
        return total


def _combining_path(near: Distances, of: Array, saved_s: Floats, root: int, target: int) -> tuple[int, ...]:
    """The cheapest path between two layouts whose arcs cost `saved_s` less where they follow their groups' order: by
    Dijkstra's algorithm over layouts, each with the last group so far."""
    source, targets, price, group = (a.tolist() for a in (near.arcs.source, near.arcs.target, near.price, of))
    leaving: dict[int, list[int]] = {}
    for arc, here in enumerate(source):
        leaving.setdefault(here, []).append(arc)
    saves, number = saved_s.tolist(), count()
    heap: list[tuple[float, int, int, int, int]] = [(0.0, next(number), root, ALONE, -1)]
    came: dict[tuple[int, int], tuple[int, tuple[int, int]]] = {}
    before = [(root, ALONE)]  # of each entry that was made the layout and the last group that it goes on from
    while heap:
        at_s, n, here, last, arc = heappop(heap)
        if (here, last) in came:
            continue
        came[here, last] = arc, before[n]
        if here == target:
            break
        for arc in leaving.get(here, ()):
            follows = group[arc] > last
            there_s = at_s + price[arc] - (saves[arc] if follows else 0.0)
            heappush(heap, (there_s, next(number), targets[arc], group[arc] if follows else last, arc))
            before.append((here, last))
    path, state = list[int](), (here, last)
    while state != (root, ALONE):
        arc, state = came[state]
        path.append(arc)
    return tuple(reversed(path))


def _closed(saves: Mask, of: Array, tree: Sequence[int], own: Sequence[int]) -> Iterator[Mask]:
    """Where a tree has an arc that `saves` a latency but cannot: which arcs save one in trees that may be cheaper. Of a
    group that it uses twice each of these arcs alone, or others; of two out of their order all but one."""
    wrong = [arc for arc, group in zip(tree, own, strict=True) if group == ALONE and saves[arc]]
    for group in sorted({int(of[arc]) for arc in wrong}):
        twice = [arc for arc in tree if of[arc] == group and saves[arc]]
        for arc in twice if group in own else ():
            yield saves & ((of != group) | (np.arange(len(of)) == arc))
        later = [arc for arc, other in zip(tree, own, strict=True) if other > group]
        for arcs in (twice, *([arc] for arc in later)) if group in own else ([arc] for arc in (*twice, *later)):
            yield saves & ~np.isin(np.arange(len(of)), arcs)
        yield saves & (of != group)


def _combined(root: int, near: Distances, of: Array, tree: Sequence[int]) -> tuple[int, ...]:
    """The groups of a tree's arcs. A group takes one collective of each value, and along a path they
    follow in their order: two values whose paths crossed it could not wait for each other. `of`: the first group of
    the same collectives of each arc, as of all of these a value may have one."""
    last = {root: ALONE}
    out: list[int] = []
    for arc in tree:
        before = last[int(near.arcs.source[arc])]
        group = int(of[arc])
        if group <= before or group in out:
            group = ALONE
        out.append(group)
        last[int(near.arcs.target[arc])] = max(before, group)
    return tuple(out)
