"""Blocks that are written out one after the other: which nodes and tensors of a graph are copies of one.

Where ops follow each other in the same pattern many times, the first copies of the pattern and the last stand for
themselves, and one stands for all between them. A class of nodes has copies that cost the same and touch tensors of the
same shape; a class of tensors has copies of one shape that touch nodes of the same classes. What plans cost in which
all copies choose alike is then a problem of the size of a few blocks, and so is a bound of all others
(`class_program`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from ...ir.program import Carry, Stored
from ...ir.record import record
from ..layouts.space import Array
from .combinable import ALONE, Groups, find_knots
from .graph import Graph, Port, Result, Tensor
from .problem import Problem

LEAST = 3  # copies of a pattern, from which they are taken together
BLOCK = 8  # ops of a pattern of which two copies are enough
WORTH = 1.3  # times as many nodes as classes of them, from which that is worth it


@record
class Mixture:
    """What stands at one end of the copies of a tensor: nodes, or groups, of the classes, and the share of each."""

    parts: tuple[tuple[int, float], ...]


@record(eq=False)
class ClassTensor:
    """Tensors of one shape. `like`: a tensor of `Fold.window`, whose layouts, arcs and ports they have, one of the
    `members`, which are all that stand for some of them; `copies`: how many there are; `ends`: the nodes at the source
    and at each use; `groups`: what each group of their arcs is."""

    like: int
    members: tuple[int, ...]
    copies: int
    ends: tuple[Mixture, ...]
    groups: tuple[tuple[int, Mixture], ...]


@record(eq=False)
class Fold:
    """A problem whose copies are told by classes.

    `window`: one of each class, at the prices of one. `node_of[n]`: the class of node n; `copies[c]`: how many nodes
    class c has; `group_of[g]`, `group_copies`: the same of groups, `tensor_of[t]` of tensors. `tensors`: the classes of
    tensors; `shapes`: the same with those as one that are alike but for the classes of the nodes they touch.
    """

    window: Problem
    node_of: tuple[int, ...]
    copies: tuple[int, ...]
    group_of: tuple[int, ...]
    group_copies: tuple[int, ...]
    tensor_of: tuple[int, ...]
    tensors: tuple[ClassTensor, ...]
    shapes: tuple[ClassTensor, ...]

    @cached_property
    def alike(self) -> Problem:
        """The problem of the plans in which all copies choose alike: one of each class, at the prices of all."""
        window, groups = self.window, self.window.groups
        prices = [n * price for n, price in zip(self.copies, window.prices, strict=True)]
        distances = [
            None if near is None else near.repriced(tensor.copies * near.price)
            for tensor, near in zip(self.tensors, window.distances, strict=True)
        ]
        if groups is not None:
            groups = replace(groups, latency_s=groups.latency_s * np.array(self.group_copies, dtype=np.float64))
        return replace(window, prices=prices, distances=distances, groups=groups)

    def spread(self, chosen: Sequence[int], shared: frozenset[int]) -> tuple[list[int], frozenset[int]]:
        """Choices of the classes, and the groups that they share, as those of all copies."""
        return [chosen[c] for c in self.node_of], frozenset(g for g, c in enumerate(self.group_of) if c in shared)


@record
class Run:
    """Ops from the `first` on, as their positions among all ops: `copies` times a pattern of `period` ops."""

    first: int
    period: int
    copies: int


def runs(kinds: Sequence[int]) -> list[Run]:
    """Patterns that follow each other at least LEAST times, of a BLOCK of ops twice, those that cover most first;
    they do not overlap. `kinds`: what each op is, alike for copies."""
    out: list[Run] = []
    left = [(0, len(kinds))]
    own = np.asarray(kinds)
    while left:
        begin, end = left.pop()
        best = _longest(own[begin:end])
        if best is not None:
            run = replace(best, first=begin + best.first)
            out.append(run)
            left += [(begin, run.first), (run.first + run.period * run.copies, end)]
    return sorted(out, key=lambda run: run.first)


def _longest(kinds: Array) -> Run | None:
    """The pattern whose copies cover most, the shortest of these."""
    best: Run | None = None
    for period in range(1, len(kinds) // 2 + 1):
        same = np.concatenate([[False], kinds[period:] == kinds[:-period], [False]])
        first, end = np.flatnonzero(same[1:] != same[:-1]).reshape(-1, 2).T
        if not len(first):
            continue
        most = int(np.argmax((end - first) // period))
        run = Run(int(first[most]), period, int(end[most] - first[most]) // period + 1)
        if run.copies >= (LEAST if period < BLOCK else 2) and (
            best is None or run.copies * period > best.copies * best.period
        ):
            best = run
    return best


def fold(problem: Problem, apart: int) -> Fold | None:
    """The classes of a problem, the first and the last copies of each pattern told `apart`; None where nothing is
    written out often enough."""
    shapes = _Shapes(problem)
    graph = problem.graph
    ops = [n for n, node in enumerate(graph.nodes) if not isinstance(node.item, Stored | Carry | Result)]
    number: dict[Hashable, int] = {}
    kinds = [number.setdefault(shapes.node(n), len(number)) for n in ops]
    place: dict[int, Hashable] = {}
    for r, run in enumerate(runs(kinds)):
        if run.copies < 2 * apart + 2:
            continue
        for copy in range(run.copies):
            zone = min(copy, apart) if copy < run.copies - apart else copy - run.copies
            for p in range(run.period):
                place[ops[run.first + copy * run.period + p]] = (r, p, zone)
    if not place:
        return None
    classes = _Classes(problem, shapes, place)
    return classes.fold() if len(graph.nodes) >= WORTH * len(set(classes.node_of)) else None


class _Shapes:
    """What nodes and tensors are, whichever others they touch."""

    def __init__(self, problem: Problem):
        self.problem = problem
        self._numbers: dict[bytes, int] = {}
        self._rows: dict[int, int] = {}
        touched: list[list[Hashable]] = [[] for _ in problem.graph.nodes]
        for t, tensor in enumerate(problem.graph.tensors):
            shape = self.tensor(t), tuple(map(self.rows, (tensor.source, *tensor.uses)))
            for at, port in enumerate((tensor.source, *tensor.uses)):
                touched[port.node].append((shape, self.rows(port), at == 0))
        self.touched = touched

    def rows(self, port: Port) -> int:
        """A number for the layouts at a port."""
        if id(port.rows) not in self._rows:
            self._rows[id(port.rows)] = self._number(port.rows.tobytes())
        return self._rows[id(port.rows)]

    def tensor(self, t: int) -> Hashable:
        """The shape of a tensor: its layouts and arcs, their prices, and which of them may run as one."""
        tensor, near = self.problem.graph.tensors[t], self.problem.distances[t]
        of = None if self.problem.groups is None else self.problem.groups.of[t]
        slots: Hashable = None if of is None else self._slots(of)
        return id(tensor.space.space), id(near), slots

    def node(self, n: int) -> Hashable:
        """What a node is: what its choices cost, and the tensors that it touches."""
        node = self.problem.graph.nodes[n]
        prices = (self.problem.prices[n], node.rank, node.stored_bytes)
        own = tuple(None if p is None else self._number(p.tobytes()) for p in prices)
        return type(node.item).__name__, own, tuple(self.touched[n])

    def _slots(self, of: Array) -> Hashable:
        """Which arcs are of one group, whatever the groups are called, and what these pay."""
        assert self.problem.groups is not None
        slots = slots_of(of)
        named = np.full(len(self.problem.groups.latency_s) + 1, ALONE)
        named[list(slots)] = np.arange(len(slots))
        return self._number(named[of].tobytes()), self._number(self.problem.groups.latency_s[list(slots)].tobytes())

    def _number(self, content: bytes) -> int:
        return self._numbers.setdefault(content, len(self._numbers))


def slots_of(of: Array) -> tuple[int, ...]:
    """The groups of a tensor's arcs, in the order in which the arcs have them first."""
    groups, first = np.unique(of[of >= 0], return_index=True)
    return tuple(groups[np.argsort(first)].tolist())


@record(eq=False)
class _Classes:
    """The classes of nodes, tensors and groups. `place`: of each op that is in a pattern which one it is there."""

    problem: Problem
    shapes: _Shapes
    place: dict[int, Hashable]

    @cached_property
    def node_of(self) -> list[int]:
        """The class of each node. What is stored, or handed out, is told by who reads it, too."""
        graph, shapes = self.problem.graph, self.shapes
        key: list[Hashable] = [
            (shapes.node(n), self.place.get(n, ("alone", n) if self._is_op(n) else None))
            for n in range(len(graph.nodes))
        ]
        whom: list[list[Hashable]] = [[] for _ in graph.nodes]
        for tensor in graph.tensors:
            ports = (tensor.source, *tensor.uses)
            for port in ports:
                if not self._is_op(port.node):
                    others = Counter(
                        (self.place.get(p.node, p.node), shapes.rows(p)) for p in ports if self._is_op(p.node)
                    )
                    whom[port.node].append(tuple(others.items()))
        for n in range(len(graph.nodes)):
            if not self._is_op(n):
                key[n] = (key[n], tuple(whom[n]))
        return _numbered(key)

    def _is_op(self, n: int) -> bool:
        return not isinstance(self.problem.graph.nodes[n].item, Stored | Carry | Result)

    @cached_property
    def uses(self) -> list[list[list[Port]]]:
        """The uses of each tensor, those together that are of one class and in the same layouts."""
        out = []
        for tensor in self.problem.graph.tensors:
            same: dict[Hashable, list[Port]] = {}
            for port in tensor.uses:
                same.setdefault((self.node_of[port.node], self.shapes.rows(port)), []).append(port)
            out.append(list(same.values()))
        return out

    def shape(self, t: int) -> Hashable:
        """The shape of a tensor with its uses taken together."""
        rows = tuple((self.shapes.rows(ports[0]), len(ports)) for ports in self.uses[t])
        return self.shapes.tensor(t), self.shapes.rows(self.problem.graph.tensors[t].source), rows

    @cached_property
    def tensor_of(self) -> list[int]:
        """The class of each tensor."""
        tensors = enumerate(self.problem.graph.tensors)
        nodes = self.node_of
        return _numbered(
            [(self.shape(t), nodes[x.source.node], tuple(nodes[p[0].node] for p in self.uses[t])) for t, x in tensors]
        )

    @cached_property
    def slots(self) -> list[tuple[int, ...]]:
        """The groups of each tensor's arcs."""
        groups = self.problem.groups
        of = [None] * len(self.problem.graph.tensors) if groups is None else groups.of
        return [() if own is None else slots_of(own) for own in of]

    @cached_property
    def group_of(self) -> list[int]:
        """The class of each group: of those that may run as one of the same tensors, for the same latency."""
        groups = self.problem.groups
        if groups is None:
            return []
        members: list[list[tuple[int, int]]] = [[] for _ in groups.latency_s]
        for t, slots in enumerate(self.slots):
            for s, g in enumerate(slots):
                members[g].append((self.tensor_of[t], s))
        return _numbered([(float(groups.latency_s[g]), tuple(sorted(some))) for g, some in enumerate(members)])

    def fold(self) -> Fold | None:
        """All of it; None where copies differ in what they touch."""
        copies = tuple(np.bincount(self.node_of).tolist())
        if any(len(set(slots)) < len(slots) for slots in ([self.group_of[g] for g in some] for some in self.slots)):
            return None
        met = self._met()
        if met is None:
            return None
        if not self._even(met):
            return None
        tensors, shapes = self._grouped(self.tensor_of), self._grouped(met)
        group_copies = tuple(np.bincount(self.group_of).tolist()) if self.group_of else ()
        numbers = tuple(self.node_of), copies, tuple(self.group_of), group_copies, tuple(self.tensor_of)
        return Fold(self._window(), *numbers, tensors, shapes)

    def _met(self) -> list[int] | None:
        """The tensors by what copies of one node touch at one place: those are to be told by one class. None where
        they are not of one shape."""
        first = list(range(max(self.tensor_of) + 1))

        def root(c: int) -> int:
            while first[c] != c:
                c = first[c]
            return c

        touched: list[list[int]] = [[] for _ in self.node_of]
        for t, tensor in enumerate(self.problem.graph.tensors):
            for port in (tensor.source, *tensor.uses):
                touched[port.node].append(self.tensor_of[t])
        of_class: dict[int, list[int]] = {}
        for n, c in enumerate(self.node_of):
            for one, other in zip(of_class.setdefault(c, touched[n]), touched[n], strict=True):
                low, high = sorted((root(one), root(other)))
                first[high] = low
        met = [root(c) for c in self.tensor_of]
        shapes = {(m, self.shape(t)) for t, m in enumerate(met)}
        return _numbered(met) if len(shapes) == len(set(met)) else None

    def _even(self, met: Sequence[int]) -> bool:
        """Whether copies of a node touch as many tensors of each class at each end: only then do the copies of a
        tensor meet the average of those of the node."""
        touched: list[Counter[tuple[int, int]]] = [Counter() for _ in self.node_of]
        for t, tensor in enumerate(self.problem.graph.tensors):
            for end, ports in enumerate(([tensor.source], *self.uses[t])):
                for port in ports:
                    touched[port.node][met[t], end] += 1
        first: dict[int, Counter[tuple[int, int]]] = {}
        return all(first.setdefault(c, own) == own for c, own in zip(self.node_of, touched, strict=True))

    def _grouped(self, class_of: list[int]) -> tuple[ClassTensor, ...]:
        """The tensors of each class as one."""
        members: list[list[int]] = [[] for _ in range(max(class_of) + 1)]
        for t, c in enumerate(class_of):
            members[c].append(t)
        out = []
        for some in members:
            ends: list[Counter[int]] = [Counter() for _ in range(1 + len(self.uses[some[0]]))]
            slots: list[Counter[int]] = [Counter() for _ in self.slots[some[0]]]
            for t in some:
                ports = (self.problem.graph.tensors[t].source, *(same[0] for same in self.uses[t]))
                for end, port in zip(ends, ports, strict=True):
                    end[self.node_of[port.node]] += 1
                for slot, g in zip(slots, self.slots[t], strict=True):
                    slot[self.group_of[g]] += 1
            stand = Counter(self.tensor_of[t] for t in some)
            like = stand.most_common(1)[0][0]
            own = self.slots[self.tensor_of.index(like)]
            named = tuple((self.group_of[g], _mixture(slot)) for g, slot in zip(own, slots, strict=True))
            out.append(ClassTensor(like, tuple(stand), len(some), tuple(map(_mixture, ends)), named))
        return tuple(out)

    def _window(self) -> Problem:
        """One of each class, at the prices of one."""
        problem = self.problem
        nodes = [self.node_of.index(c) for c in range(max(self.node_of) + 1)]
        firsts = [self.tensor_of.index(c) for c in range(max(self.tensor_of) + 1)]

        def port(own: Port) -> Port:
            return Port(self.node_of[own.node], own.rows)

        def tensor(t: int) -> Tensor:
            own = problem.graph.tensors[t]
            return replace(own, source=port(own.source), uses=tuple(port(same[0]) for same in self.uses[t]))

        graph = Graph(tuple(problem.graph.nodes[n] for n in nodes), tuple(map(tensor, firsts)))
        prices = [problem.prices[n] for n in nodes]
        distances = [problem.distances[t] for t in firsts]
        groups = None if problem.groups is None else self._groups(problem.groups, firsts)
        return Problem(graph, prices, distances, problem.settings, None, groups, problem.alike)

    def _groups(self, groups: Groups, firsts: Sequence[int]) -> Groups:
        """One of each class of groups, for the arcs of some tensors. Copies of a class are of several knots, one in
        each block, and so knots are found anew: two classes are of one where a block has both on one value."""
        class_of = np.array([*self.group_of, ALONE])
        latency = np.zeros(max(self.group_of, default=-1) + 1)
        latency[self.group_of] = groups.latency_s
        of = [None if own is None else class_of[own] for own in (groups.of[t] for t in firsts)]
        phase = {c: phase for c, (phase, _) in zip(self.group_of, groups.knot, strict=True)}
        knot = find_knots([phase[c] for c in range(len(latency))], of)
        kept = frozenset(knot[c] for c, own in zip(self.group_of, groups.knot, strict=True) if own in groups.kept)
        lead = np.arange(len(latency))
        np.minimum.at(lead, np.array(self.group_of, dtype=np.int64), class_of[groups.lead])
        return Groups(latency, of, knot, kept, lead)


def _mixture(count: Counter[int]) -> Mixture:
    total = sum(count.values())
    return Mixture(tuple((part, n / total) for part, n in sorted(count.items())))


def _numbered(keys: Sequence[Hashable]) -> list[int]:
    """Numbers for what differs, in order of first appearance."""
    number: dict[Hashable, int] = {}
    return [number.setdefault(key, len(number)) for key in keys]
