"""The least time by trying everything: only for programs of two or three ops on two to four chips.

Shares the layouts, moves and prices of single ops with `optimum`, and nothing of how it searches.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterable, Set
from functools import cache, cached_property

from escc.cost.kernels import launches
from escc.ir.program import Append, Kind, Op, Repeat, Stored, walk

from .chosen import followed, share
from .generator import Case
from .layouts import Place, complete, moves, parts, places
from .rules import LINK, Strategy, strategies, uses

Goals = frozenset[frozenset[Place]]


class Exhaustive:
    """All plans of one case, tried one after the other."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.values = case.program.table()
        self.sizes = dict(case.program.phase("main").sizes)
        self.mesh = case.mesh.sizes
        self.placed = list(walk(case.program.body))
        self.ops: list[tuple[Op, int]] = []
        self.repeats: list[tuple[Repeat[Op], int]] = []
        self.born: dict[str, int] = {}  # value -> how often it is made
        self.launches = launches(case.program, self.sizes)
        self.masks = followed(case.program)
        self.memory: dict[str, str] = {}
        self.free: list[str] = []  # stored tensors
        for placed in self.placed:
            item, times = placed.item, placed.times
            if isinstance(item, Stored):
                self.free.append(item.value)
                self.born[item.value] = times
                if item.kind is not Kind.INPUT:
                    self.memory[item.value] = str(item.kind)
            elif isinstance(item, Repeat):
                self.repeats.append((item, times))
                for carry in item.carries:
                    self.born[carry.inside], self.born[carry.result] = times * item.count, times
            else:
                self.ops.append((item, times))
                self.born[item.result] = times
                if isinstance(item, Append):
                    self.memory[item.result] = "cache"
        self.reads = {op.result: [value for value, _ in uses(op, self.values)] for op, _ in self.ops}
        self.weights = {value: self.weight(value) for value in self.values}
        self.known: dict[tuple[str, Place, Goals], float] = {}

    def shape(self, value: str) -> tuple[int, ...]:
        return tuple(self.sizes[d] for d in self.values[value].dims)

    def ends(self, value: str) -> list[Place]:
        """The layouts in which a stored tensor may lie, or a result be handed out."""
        return self.case.stored(value, complete(self.shape(value), self.mesh))

    @cached_property
    def options(self) -> list[list[Strategy]]:
        """The strategies of each op."""
        return [
            strategies(op, self.values, self.sizes, self.mesh, self.launches[op.result], self.masks)
            for op, _ in self.ops
        ]

    def carried(self) -> list[str]:
        """The carries, by their names inside."""
        return [carry.inside for repeat, _ in self.repeats for carry in repeat.carries]

    def count(self) -> int:
        """How many combinations there are to try."""
        loops = [complete(self.shape(c), self.mesh) for c in self.carried()]
        return math.prod(len(o) for o in [*self.options, *loops])

    def best(self) -> float:
        """The least time of all plans."""
        loops = [complete(self.shape(c), self.mesh) for c in self.carried()]
        return min(
            (
                self.price(chosen, dict(zip(self.carried(), rings, strict=True)))
                for chosen in itertools.product(*self.options)
                for rings in itertools.product(*loops)
            ),
            default=math.inf,
        )

    def price(self, chosen: tuple[Strategy, ...], rings: dict[str, Place]) -> float:
        """The least time with these strategies and these layouts of the carries."""
        made: dict[str, Place] = dict(rings)
        goals: dict[str, set[frozenset[Place]]] = {value: set() for value in self.values}
        total = 0.0
        for repeat, _ in self.repeats:
            for carry in repeat.carries:
                made[carry.result] = rings[carry.inside]
                goals[carry.initial].add(frozenset({rings[carry.inside]}))
                goals[carry.next].add(frozenset({rings[carry.inside]}))
        for (op, times), way in zip(self.ops, chosen, strict=True):
            total += times * way.seconds
            made[op.result] = way.result
            for position, value in enumerate(self.reads[op.result]):
                if isinstance(op, Append) and position == 0:
                    if made.setdefault(value, way.uses[0]) != way.uses[0]:
                        return math.inf
                else:
                    goals[value].add(frozenset({way.uses[position]}))
        for value in self.case.program.results:
            goals[value].add(frozenset(self.ends(value)))
        return total + self.moving(made, goals)

    def moving(self, made: dict[str, Place], goals: dict[str, set[frozenset[Place]]]) -> float:
        """The least time of all moves, and of all stored layouts that are left open."""
        limited = [v for v in self.free if v in self.memory] if self.case.capacity_bytes is not None else []
        choices = [[made[v]] if v in made else self.ends(v) for v in limited]
        rest = [v for v in self.values if v not in limited]
        fixed = sum(
            min(self.reach(v, root, frozenset(goals[v])) for root in ([made[v]] if v in made else self.ends(v)))
            for v in rest
        )
        best = math.inf
        for roots in itertools.product(*choices):
            held = sum(self.bytes(v, r) * self.born[v] for v, r in zip(limited, roots, strict=True))
            if self.case.capacity_bytes is None or held <= self.case.capacity_bytes:
                moved = sum(self.reach(v, r, frozenset(goals[v])) for v, r in zip(limited, roots, strict=True))
                best = min(best, moved)
        return fixed + best

    def bytes(self, value: str, place: Place) -> float:
        return self.weights[value] / parts(place, self.mesh)

    def weight(self, value: str) -> float:
        kept = share(self.masks.get(value, ()), self.sizes)
        return math.prod(self.shape(value)) * self.values[value].dtype.bits / 8 * kept

    def reach(self, value: str, root: Place, goals: Goals) -> float:
        """The least time to hold something of every goal, paying each copy once."""
        key = (value, root, goals)
        if key not in self.known:
            unit = self.weights[value] / LINK * self.born[value]
            self.known[key] = fewest_bytes(self.shape(value), self.mesh, root, goals) * unit
        return self.known[key]


def fewest_bytes(shape: tuple[int, ...], mesh: tuple[int, ...], root: Place, goals: Iterable[Set[Place]]) -> float:
    """The bytes sent, for a value of one byte, to hold something of every goal.

    A uniform-cost search over the sets of copies held.
    """
    number, free, arcs = numbered(shape, mesh)
    ends = [sum(1 << number[place] for place in goal) for goal in goals]
    queue = [(0.0, free[number[root]])]
    seen: set[int] = set()
    while queue:
        spent, held = heapq.heappop(queue)
        if held in seen:
            continue
        seen.add(held)
        if all(end & held for end in ends):
            return spent
        for here, leaving in enumerate(arcs):
            if held >> here & 1:
                for there, sent in leaving:
                    if not held >> there & 1:
                        heapq.heappush(queue, (spent + sent, held | free[there]))
    return math.inf


@cache
def numbered(
    shape: tuple[int, ...], mesh: tuple[int, ...]
) -> tuple[dict[Place, int], list[int], list[list[tuple[int, float]]]]:
    """The number of each layout; of each, as bits, those that it becomes for nothing, itself among them; and those
    that it becomes for some bytes."""
    every = steps(shape, mesh)
    number = {place: n for n, place in enumerate(every)}
    arcs = [[(number[there], sent) for there, sent in leaving] for leaving in every.values()]
    free = []
    for n in range(len(arcs)):
        held, ahead = 1 << n, [n]
        while ahead:
            for there, sent in arcs[ahead.pop()]:
                if sent == 0 and not held >> there & 1:
                    held |= 1 << there
                    ahead.append(there)
        free.append(held)
    return number, free, [sorted({arc for arc in leaving if arc[1]}) for leaving in arcs]


@cache
def steps(shape: tuple[int, ...], mesh: tuple[int, ...]) -> dict[Place, list[tuple[Place, float]]]:
    """What one collective makes of every layout, and the bytes sent for a value of one byte."""
    legal = places(shape, mesh, True)
    arcs = {here: [arc for arc in moves(here, mesh) if arc[0] in legal] for here in legal}
    for here, there in itertools.permutations(legal, 2):
        if (there.partial, there.top) == (here.partial, here.top):
            before, after = (sorted(a for order in p.dims for a in order) for p in (here, there))
            cut = [[math.prod(mesh[a] for a in order) for order in p.dims] for p in (here, there)]
            if before == after and cut[0] == cut[1]:
                arcs[here].append((there, 1.0 / parts(here, mesh)))
    return arcs
