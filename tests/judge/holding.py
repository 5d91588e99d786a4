"""The least time within the memory of a chip, by trying everything: only for very small programs on one axis.

All ways to run every op, all layouts of what is stored, carried and handed out, and all trees of
copies. What a chip holds is counted on the program with its repeats unrolled, event by event.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property

from escc.ir.expr import rotated_dims
from escc.ir.mesh import Mesh
from escc.ir.program import Append, Einsum, Kind, Map, Op, Region, Repeat, Stored, Sum

from .exhaustive import Exhaustive, steps
from .generator import Case, generate
from .layouts import Place, complete
from .layouts import ways as shares
from .rules import LINK, Strategy

Tree = Mapping[Place, Place]  # of each copy, from which it is made
Ways = list[tuple[str, list[tuple[float, Tree]]]]  # the trees of each value, cheapest first
Copy = tuple[str, Place, int]  # a value, a layout, a repetition
PLANS, PATIENCE, STEPS = 8000, 400, 4
LANES = 128  # of a TPU's memory


@dataclass
class Plan:
    """Everything that is chosen. `made`: the layout in which each value is made; `reads`: for each op
    the layouts of its uses; `ends`: those of results and of what goes round."""

    made: dict[str, Place]
    reads: dict[str, tuple[Place, ...]]
    ends: dict[str, Place]
    trees: dict[str, Tree] = field(default_factory=dict)


class Holding(Exhaustive):
    """All plans of one case, with what they hold, on chips whose memory has so many lanes."""

    def __init__(self, case: Case, lanes: int = 1) -> None:
        super().__init__(case)
        self.lanes = lanes
        self.stacked: dict[str, tuple[int, ...]] = {}  # parameter -> how often each repeat around it runs
        for placed in self.placed:
            if isinstance(placed.item, Stored) and placed.item.kind is Kind.PARAM:
                self.stacked[placed.item.value] = tuple(one.count for one in placed.repeats)
        self.sums = {name for op, _ in self.ops if isinstance(op, Sum) for name in op.operands}
        self.versions = {op.result: op.cache for op, _ in self.ops if isinstance(op, Append)}
        self.priced: dict[tuple[str, Place, frozenset[Place]], list[tuple[float, Tree]]] = {}
        self.pairs = [{op.source, op.target} for op, _ in self.ops if isinstance(op, Append)]

    def count(self) -> int:
        """How many plans there are, without their trees."""
        layouts = [complete(self.shape(v), self.mesh) for v in (*self.free, *self.case.program.results)]
        return super().count() * math.prod(len(c) for c in layouts)

    def plans(self) -> Iterator[tuple[float, Plan]]:
        """All plans without their trees, and what their ops take."""
        open_layouts = [*self.carried(), *self.free, *self.case.program.results]
        choices = [list(complete(self.shape(v), self.mesh)) for v in open_layouts]
        for ways in itertools.product(*self.options):
            seconds = sum(times * way.seconds for (_, times), way in zip(self.ops, ways, strict=True))
            for layouts in itertools.product(*choices):
                plan = self.plan(ways, layouts)
                if plan is not None:
                    yield seconds, plan

    def plan(self, ways: Sequence[Strategy], layouts: Sequence[Place]) -> Plan | None:
        """The plan of these choices; None where a cache would have two layouts."""
        carried, free = self.carried(), self.free
        rings = dict(zip(carried, layouts, strict=False))
        made = rings | dict(zip(free, layouts[len(carried) :], strict=False))
        ends = dict(zip(self.case.program.results, layouts[len(carried) + len(free) :], strict=True))
        for repeat, _ in self.repeats:
            for carry in repeat.carries:
                made[carry.result] = rings[carry.inside]
        reads = {}
        for (op, _), way in zip(self.ops, ways, strict=True):
            made[op.result], reads[op.result] = way.result, way.uses
            if isinstance(op, Append) and made[op.cache] != way.uses[0]:
                return None
        return Plan(made, reads, ends)

    def wanted(self, plan: Plan) -> dict[str, set[Place]]:
        """The layouts in which each value is read."""
        goals: dict[str, set[Place]] = {v: set() for v in plan.made}
        for op, _ in self.ops:
            for value, place in zip(self.reads[op.result], plan.reads[op.result], strict=True):
                goals[value].add(place)
        for repeat, _ in self.repeats:
            for carry in repeat.carries:
                goals[carry.initial].add(plan.made[carry.inside])
                goals[carry.next].add(plan.made[carry.inside])
        for value, place in plan.ends.items():
            goals[value].add(place)
        return goals

    def fused(self, value: str, plan: Plan) -> bool:
        """Whether a value is a score that is never stored."""
        repeats = [repeat for repeat, _ in self.repeats]
        outer = {name for r in repeats for c in r.carries for name in (c.initial, c.next)} | set(
            self.case.program.results
        )
        for repeat in repeats:
            outer |= self.captured(repeat)
        dims = set(self.values[value].dims)
        return any(len(p) == 2 and p <= dims for p in self.pairs) and not plan.trees.get(value) and value not in outer

    def alone(self, value: str, op: Op) -> bool:
        """Whether an op alone reads a value that another makes, place by place, and makes as much of it."""
        carries = [carry for repeat, _ in self.repeats for carry in repeat.carries]
        read = [name for names in self.reads.values() for name in set(names)]
        read += [*self.case.program.results, *(name for c in carries for name in (c.initial, c.next))]
        mine, made = self.values[value], self.values[op.result]
        alike = mine.dims == made.dims and mine.dtype == made.dtype and value in self.reads
        return alike and read.count(value) == 1 and not (isinstance(op, Map) and rotated_dims(op.expr))

    def joins(self, op: Op, before: Op) -> bool:
        """Whether a matmul is made with the pointwise op right behind it, if it is not moved between."""
        if not isinstance(op, Map | Sum) or not isinstance(before, Einsum) or len(before.operands) < 2:
            return False
        touched = [op.result, before.result, *before.operands]
        scores = any(len(p) == 2 and p <= {*self.values[name].dims} for p in self.pairs for name in touched)
        sums = bool({i for indices in before.indices for i in indices} - {*before.output})
        return sums and not scores and self.alone(before.result, op)

    def captured(self, repeat: Repeat[Op]) -> set[str]:
        """What a repeat reads from outside."""
        ops = [op for op in repeat.body.items if not isinstance(op, Repeat)]
        inner = {op.result for op in ops} | {c.inside for c in repeat.carries}
        return {value for op in ops for value in self.reads[op.result]} - inner

    def trees(self, value: str, root: Place, goals: frozenset[Place]) -> list[tuple[float, Tree]]:
        """All trees that move a value, cheapest first."""
        key = value, root, goals
        if key not in self.priced:
            unit = self.weights[value] / LINK * self.born[value]
            found = _trees(self.shape(value), self.mesh, root, goals, value in self.sums)
            self.priced[key] = [(sent * unit, tree) for sent, tree in found]
        return self.priced[key]

    @cached_property
    def floors(self) -> list[tuple[float, int, Plan, Ways]]:
        """All plans without their trees, by what they take at least, and the trees of each value."""
        found = []
        for number, (seconds, plan) in enumerate(self.plans()):
            goals = self.wanted(plan)
            ways = [(v, self.trees(v, plan.made[v], frozenset(g - {plan.made[v]}))) for v, g in goals.items() if g]
            if all(trees for _, trees in ways):
                found.append((seconds + sum(trees[0][0] for _, trees in ways), number, plan, ways))
        return sorted(found, key=lambda f: f[:2])

    def within(self, capacity: float, patience: int) -> tuple[float, float] | None:
        """The least seconds of a plan that holds at most `capacity` bytes at any time, and the fewest
        bytes that such a plan holds; infinite where there is none. None when after so many plans
        that hold more it is not known."""
        best = (math.inf, math.inf)
        for floor, _, plan, ways in self.floors:
            if floor > best[0] * (1 + 1e-12):
                break
            for spared, trees in _chosen(ways, floor, best[0]):
                plan.trees = trees
                held = self.held(plan)
                patience -= 1
                if held <= capacity:
                    equal = math.isclose(spared, best[0], rel_tol=1e-12, abs_tol=1e-18)
                    best = min(spared, best[0]), min(held, best[1]) if equal else held
                elif not patience:
                    return None
        return best

    def filled(self, value: str, place: Place) -> float:
        """How many times its bytes a stored value takes: one dim fills lanes, that for which the fewest are left over.
        Of a parameter in a repeat that may be its repetitions, and where that adds more than an eighth it is there once
        more, with its last dim in lanes. Of what is small what is left over is not counted."""
        sizes = [size // shares(order, self.mesh) for size, order in zip(self.shape(value), place.dims, strict=True)]
        if self.lanes == 1 or not sizes:
            return 1.0
        stacked = self.stacked.get(value, ())
        times = min(map(self.by_lanes, (*sizes, *stacked)))
        times += self.by_lanes(sizes[-1]) if stacked and times > 9 / 8 else 0
        places = math.prod((*sizes, *stacked))
        return times if round(places * times) >= self.lanes**2 else 1.0

    def by_lanes(self, size: int) -> float:
        """How many times a dim's places the lanes have that it begins."""
        return math.ceil(size / self.lanes) * self.lanes / size

    def held(self, plan: Plan) -> float:
        """The most bytes that a chip holds at once."""
        kept = [(v, plan.made[v]) for v in self.free if v in self.memory]
        stored = sum(self.bytes(v, place) * self.born[v] * self.filled(v, place) for v, place in kept)
        return stored + Timeline(self, plan).peak()


def ladder(judge: Holding, patience: int = PATIENCE) -> Iterator[tuple[float, float]]:
    """Capacities, each a byte less than the cheapest plan within the one before holds, and the least
    time within each."""
    capacity = math.inf
    for _ in range(STEPS):
        found = judge.within(capacity, patience)
        if found is None:
            return
        least, held = found
        yield capacity, least
        if least == math.inf:
            return
        capacity = math.ceil(held) - 1


@cache
def known(seed: int, mesh: Mesh) -> tuple[tuple[float, float], ...]:
    """The ladder of a generated program on TPUs; of one with too many plans to try nothing."""
    judge = Holding(Case(generate(seed).program, mesh, None, "small"), LANES)
    return tuple(ladder(judge)) if judge.count() <= PLANS else ()


class Timeline:
    """A plan as a list of events, two repetitions of every repeat, and what is held at each."""

    def __init__(self, judge: Holding, plan: Plan) -> None:
        self.judge, self.plan = judge, plan
        self.made: dict[Copy, int] = {}  # the event that makes it
        self.read: dict[Copy, int] = {}  # the last event that reads it
        self.same: dict[Copy, Copy] = {}  # what is held as something else
        self.within: dict[str, list[Copy]] = {}  # of what a score is made that is never stored
        self.early: set[Copy] = set()  # what is made one event before its own
        self.now = 0
        program = judge.case.program
        homes = {stored.value: 0 for stored in program.body.stored}
        self.made = {(value, plan.made[value], 0): 0 for value in homes}
        self.region(program.body, 0, homes)
        for value in program.results:
            self.copy(value, plan.ends[value], 0)
        for value in program.results:
            self.look((value, plan.ends[value], 0))

    def peak(self) -> float:
        """The most bytes of what is held besides what is stored."""
        totals = [0.0] * (self.now + 1)
        for (value, place, turn), first in self.made.items():
            origin = value
            while origin in self.judge.versions:
                origin = self.judge.versions[origin]
            if origin in self.judge.memory and origin in self.judge.free and place == self.plan.made[origin]:
                continue
            for event in range(first, max(first, self.read.get((value, place, turn), 0)) + 1):
                totals[event] += self.judge.bytes(value, place)
        return max(totals)

    def look(self, copy: Copy) -> None:
        """Something is read now."""
        for source in self.within.get(copy[0], [copy]):
            self.read[self.same.get(source, source)] = self.now

    def copy(self, value: str, place: Place, turn: int) -> Copy:
        """A copy of a value, made now if it is not there."""
        wanted = (value, place, turn)
        if wanted not in self.made and wanted not in self.same and value not in self.within:
            source = self.copy(value, self.plan.trees[value][place], turn)
            self.now += 1
            self.made[wanted] = self.now
            self.look(source)
        return wanted

    def sources(self, op: Op, homes: Mapping[str, int]) -> list[tuple[str, Place, int]]:
        """What an op reads that is there."""
        places = zip(self.judge.reads[op.result], self.plan.reads[op.result], strict=True)
        return [(value, place, homes[value]) for value, place in places if value in homes]

    def region(self, region: Region[Op], turn: int, homes: dict[str, int]) -> None:
        """The events of a region; `homes`: the repetition in which each value was made."""
        before, done = None, -1
        for item in region.items:
            if isinstance(item, Repeat):
                self.repeat(item, turn, homes)
                continue
            read = [self.copy(*source) for source in self.sources(item, homes)]
            if self.judge.fused(item.result, self.plan):
                self.within[item.result] = [s for copy in read for s in self.within.get(copy[0], [copy])]
            else:
                self.made[item.result, self.plan.made[item.result], turn] = self.now + 1
            homes[item.result] = turn
            self.now += 1
            for copy in read:
                self.look(copy)
            if before is not None and done == self.now - 1 and self.judge.joins(item, before):
                self.join(item, (before.result, self.plan.made[before.result], turn), turn, read)
            before, done = item, self.now

    def join(self, op: Op, last: Copy, turn: int, read: Sequence[Copy]) -> None:
        """An op is made with the matmul before it, unless this is moved, and over what it alone reads."""
        if last not in read:
            return
        made = op.result, self.plan.made[op.result], turn
        del self.made[last]
        self.early.add(made)
        self.made[made] = self.now - 1
        for copy in read:
            self.read[self.same.get(copy, copy)] = self.now - 1
        over = [copy for copy in read if copy != last and copy[2] == turn and self.judge.alone(copy[0], op)]
        for copy in over[:1]:
            self.read[copy] = self.now - 2
            if self.made[copy] > self.now - 2:
                del self.made[copy]

    def repeat(self, repeat: Repeat[Op], turn: int, homes: dict[str, int]) -> None:
        """Two repetitions. What comes from outside is moved before; what goes round stays until what
        takes its place is there."""
        current = [self.copy(c.initial, self.plan.made[c.inside], homes[c.initial]) for c in repeat.carries]
        captured = [c for op in repeat.body.items if not isinstance(op, Repeat) for c in self.sources(op, homes)]
        for copy in captured:
            self.copy(*copy)
        for again in (turn + 1, turn + 2):
            mine = homes | dict.fromkeys([s.value for s in repeat.body.stored], again)
            for stored in repeat.body.stored:
                self.made[stored.value, self.plan.made[stored.value], again] = self.now
            for carry, copy in zip(repeat.carries, current, strict=True):
                self.same[carry.inside, self.plan.made[carry.inside], again] = self.same.get(copy, copy)
                mine[carry.inside] = again
            self.region(repeat.body, again, mine)
            held = [(c.inside, self.plan.made[c.inside], again) for c in repeat.carries]
            current = [self.copy(c.next, self.plan.made[c.inside], mine[c.next]) for c in repeat.carries]
            for old, new in zip(held, current, strict=True):
                old = self.same[old]
                new = self.same.get(new, new)
                self.read[old] = max(self.read.get(old, 0), self.made[new] - (new not in self.early))
            for copy in [*captured, *current]:
                self.look(copy)
        for carry, copy in zip(repeat.carries, current, strict=True):
            self.same[carry.result, self.plan.made[carry.inside], turn] = self.same.get(copy, copy)
            homes[carry.result] = turn


def _chosen(ways: Ways, floor: float, most: float) -> Iterator[tuple[float, dict[str, Tree]]]:
    """A tree for each value, in all ways that cost at most `most`; `floor` is the cost of the cheapest."""

    def rest(at: int, cost: float, trees: dict[str, Tree]) -> Iterator[tuple[float, dict[str, Tree]]]:
        if at == len(ways):
            yield cost, trees
            return
        value, found = ways[at]
        for more, tree in found:
            dearer = cost + more - found[0][0]
            if dearer > most * (1 + 1e-12):
                break
            yield from rest(at + 1, dearer, trees | {value: tree})

    yield from rest(0, floor, {})


@cache
def _trees(
    shape: tuple[int, ...], mesh: tuple[int, ...], root: Place, goals: frozenset[Place], embeds: bool
) -> list[tuple[float, Tree]]:
    """All trees from a layout to others that have no useless copies, cheapest first, with the bytes
    sent for a value of one byte. Unless it `embeds`, nothing is put among zeros, which would be far more
    trees; a plan that gains by that is cheaper than what this judge finds, and so is seen."""
    every = steps(shape, mesh)
    found = []
    others = [place for place in every if place != root and place not in goals]
    for count in range(min(len(others), 2) + 1):
        for between in itertools.combinations(others, count):
            copies = [*goals, *between]
            parents = [
                [
                    (sent, here)
                    for here in (root, *copies)
                    for there, sent in every[here]
                    if there == copy and here != copy and (embeds or there.partial <= here.partial)
                ]
                for copy in copies
            ]
            for ways in itertools.product(*parents):
                tree = {copy: here for copy, (_, here) in zip(copies, ways, strict=True)}
                if set(between) <= set(tree.values()) and all(_rooted(copy, tree, root) for copy in copies):
                    found.append((sum(sent for sent, _ in ways), tree))
    return sorted(found, key=lambda f: f[0])


def _rooted(copy: Place, tree: Tree, root: Place) -> bool:
    """Whether a copy comes from the root in the end."""
    for _ in range(len(tree) + 1):
        if copy == root:
            return True
        copy = tree[copy]
    return False
