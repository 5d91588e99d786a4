"""Large programs: branch and bound over linear relaxations, by which axes split which dims of a node.

Where axes are alike a relaxation takes halves of two images of a choice. That a node takes one choice of hundreds, or
does not, says little of the others. So what the layers of a repeat hand on is settled first, of choices that are images
of one another one alone: all else in a layer hangs together with it, and its axes are told apart. Then whether an axis
splits a dim parts the choices of a node evenly. A few dozen relaxations settle so what the solver's own search has no
end with, each begun from what the rows were worth in the one before. Work is counted in relaxations, not in time.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ...ir.record import record
from ..ilp.model import Model, continuous
from ..ilp.solver import Answer, Settings, solve
from ..ilp.thinned import thinned
from ..layouts.space import Array, Mask
from .graph import Graph, Port, Tensor
from .problem import Candidate

Floats = NDArray[np.float64]
INTEGRAL = 1e-6  # a share below this is none, one that lacks less of 1 is all
MOST_RELAXED = 80  # linear programs, each a second or more
PATIENCE = 1_000_000  # columns of them, after which a small gap is good enough for a plan
NEARLY = 2e-3  # that gap
CUT = 0.99  # of it, so much below a plan nothing is looked at any more then
NEAR = (0.006, 0.02, 0.05)  # above the bound, where plans are looked for in turn
DEEP = 0.5  # of the way from the least bound to the price, how far a box may be that is looked at for being the last


@record(eq=False)
class AxisProgram:
    """The integer program of a graph, of which node n has the choices `kept[n]`, their columns from `choice[n]` on.
    `plan`: the plan that an answer is, None where it mixes some; `unit`: what a second counts in the program; `first`:
    a node to settle before all others, of choices none of which is an image of another."""

    graph: Graph
    model: Model
    choice: Sequence[int]
    kept: Sequence[Array]
    plan: Callable[[Answer], Candidate | None]
    unit: float
    first: int | None = None

    @cached_property
    def ports(self) -> list[list[tuple[Tensor, Port]]]:
        """Where each node touches tensors."""
        out: list[list[tuple[Tensor, Port]]] = [[] for _ in self.graph.nodes]
        for tensor in self.graph.tensors:
            for port in (tensor.source, *tensor.uses):
                out[port.node].append((tensor, port))
        return out

    def times(self, node: int) -> int:
        """How often a node runs: what it touches most often does."""
        return max((tensor.times for tensor, _ in self.ports[node]), default=0)

    def places(self, node: int) -> Array | None:
        """Where each axis is in the choices of a node: a mode, or the index or dim that it splits. Shape [choices,
        axes]; None for one that touches nothing."""
        table = self.graph.nodes[node].table
        if table is not None:
            return table.rows.place
        for tensor, port in self.ports[node]:
            return np.asarray(tensor.space.space.rows.place[port.rows])
        return None


@record(eq=False)
class Box:
    """The columns that are left (`upper`), those of them that plans below the price may have (`cheap`), and the answer
    to a relaxation of these or, until it is looked at, of more."""

    upper: Floats
    cheap: Floats
    answer: Answer
    bound: float
    relaxed: bool


@dataclass(eq=False)
class AxisSearch:
    """Branch and bound. `price`: what plans must cost less than, in the program's unit; `best`: the cheapest that was
    found, if any; `known`: what a plan costs that was there before. `seconds`: spent in the solver, on so many
    `relaxed` of so many `columns` in all. `given_up`: a bound of what is not looked at any more; `closed`: the boxes
    without a plan below the price."""

    program: AxisProgram
    settings: Settings
    price: float
    best: Candidate | None = None
    known: float = np.inf
    seconds: float = 0.0
    relaxed: int = 0
    columns: int = 0
    entered: int = 0
    given_up: float = np.inf
    heap: list[tuple[float, int, Box]] = field(default_factory=list)
    closed: list[Box] = field(default_factory=list)

    @property
    def bound(self) -> float:
        """That of all plans that cost less than was asked for, or the price of the best."""
        return min(self.price, self.given_up, self.heap[0][0] if self.heap else np.inf)

    @property
    def most_relaxed(self) -> int:
        """How many relaxations are looked at in all."""
        return MOST_RELAXED

    def run(self, root: Answer) -> None:
        """From the relaxation of all until nothing is left, or a small gap."""
        asked, floor, every = self.price, root.bound, self.program.model.upper
        whole = Box(every, every, root, floor, True)
        closed = [whole]
        for share in (*NEAR, np.inf):
            # As if a plan of that price were known, which leaves far fewer columns; most often there is a cheaper one.
            self.price = min(floor * (1 + share), asked)
            left = cheap(whole, self.price)
            for box in closed:
                self._push(replace(box, cheap=np.minimum(box.upper, left), answer=root))
            self.closed = []
            self._below()
            floor = self.bound
            if self.best is not None or self.price == asked or floor < self.price:
                break
            closed = self.closed

    def _below(self) -> None:
        """Until nothing is left below the price, or a small gap: down to a first plan, then by bounds."""
        while self.heap and self.relaxed < self.most_relaxed and self.bound < self.price * (1 - self._gap):
            box = self._take()
            if box.relaxed:
                self._split(box)
            else:
                self._relax(box)

    @property
    def _gap(self) -> float:
        is_plan = self.best is not None or self.price >= self.known
        return NEARLY if is_plan and self.columns >= PATIENCE else self.settings.gap

    @property
    def _most(self) -> float:
        """What a box must cost less than to be looked at: where a small gap is good enough, less than the price."""
        near = self._gap > self.settings.gap
        return self.price * (1 - CUT * self._gap) if near else self.price

    def _take(self) -> Box:
        """The box of the least bound; until a plan is found the last one, unless its bound says little for it."""
        least = self.heap[0][0]
        last = max(self.heap, key=lambda entry: entry[1])
        if self.best is not None or last[0] > least + DEEP * (self.price - least):
            return heapq.heappop(self.heap)[2]
        self.heap.remove(last)
        heapq.heapify(self.heap)
        return last[2]

    def _push(self, box: Box) -> None:
        self.entered += 1
        heapq.heappush(self.heap, (box.bound, self.entered, box))

    def _relax(self, box: Box) -> None:
        """Look at a box by the relaxation of its columns, of those that plans below the price may have."""
        most = self._most
        if most < self.price:
            self.given_up = min(self.given_up, most)
        left = cheap(box, most)
        answer = self._answer(box, left)
        self.relaxed += 1
        self.columns += int(np.count_nonzero(left))
        self.seconds += answer.seconds
        if answer.none or answer.bound >= most:
            self.closed.append(replace(box, bound=self.price))
        elif answer.x is None or answer.reduced_costs is None:  # out of time
            self.given_up = min(self.given_up, box.bound)
        else:
            self._relaxed(Box(box.upper, left, answer, max(box.bound, answer.bound), True))

    def _answer(self, box: Box, upper: Floats) -> Answer:
        """The relaxation of a box, with so much of its columns."""
        rows, thin = box.answer.row_worths, thinned(replace(continuous(self.program.model), upper=upper))
        assert rows is not None, "it was asked for"
        return thin.whole(solve(thin.model, self.settings, rows=rows[thin.rows], worths=True, most=self._most))

    def _relaxed(self, box: Box) -> None:
        """Take the plan that the relaxation of a box is, or split it later."""
        plan = self.program.plan(box.answer)
        if plan is None:
            self._push(box)
        else:
            self._offered(plan, box.bound)

    def _offered(self, plan: Candidate, bound: float) -> None:
        """Take a plan that a relaxation is."""
        if plan.price * self.program.unit < self.price:
            self.best, self.price = plan, plan.price * self.program.unit
        if bound < self.price * (1 - self.settings.gap):  # what its collectives cost is bounded as that of mixtures
            self.given_up = min(self.given_up, bound)

    def _split(self, box: Box) -> None:
        """By each choice of the node to settle first, or which axes split what in another."""
        first = self.program.first
        if first is not None:
            own = self.program.choice[first] + np.arange(len(self.program.kept[first]))
            if np.count_nonzero(box.upper[own]) > 1:
                return self._settle(box, own)
        return self._halve(box)

    def _settle(self, box: Box, columns: Array) -> None:
        """A box for each of the `columns` of a node that plans below the price may have, that of which the relaxation
        takes most looked at first; and one of those that are too dear."""
        assert box.answer.x is not None and box.answer.reduced_costs is not None, "linear programs have both"
        least = box.answer.bound + box.answer.reduced_costs[columns]
        dear = box.cheap[columns] == 0
        rest = box.upper.copy()
        rest[columns[~dear]] = 0.0
        if rest[columns].any():
            self.closed.append(replace(box, upper=rest, bound=self.price, relaxed=False))
        order = np.lexsort((-least, box.answer.x[columns]))
        for one in order[~dear[order]]:
            upper, left = box.upper.copy(), box.cheap.copy()
            others = np.delete(columns, one)
            upper[others] = left[others] = 0.0
            self._push(replace(box, upper=upper, cheap=left, bound=max(box.bound, float(least[one])), relaxed=False))

    def _halve(self, box: Box) -> None:
        """Two boxes, that which has more of what the relaxation takes looked at first."""
        columns, side = self._cut(box)
        for some in (side, ~side):
            upper, left = box.upper.copy(), box.cheap.copy()
            upper[columns[some]] = left[columns[some]] = 0.0
            self._push(replace(box, upper=upper, cheap=left, relaxed=False))

    def _cut(self, box: Box) -> tuple[Array, Mask]:
        """Columns of the choices of a node, and on which side of a cut each is: that of which the relaxation takes
        more. By the axis and place of which it takes most nearly a half, at the node that runs most often and has most
        choices; where only the order of axes is left open, by a choice."""
        assert box.answer.x is not None, "relaxations that are entered have a solution"
        cut = self._cut_of(box.answer.x, range(len(self.program.choice)))
        assert cut is not None, "what is no plan is mixed somewhere"
        return cut

    def _cut_of(self, x: Floats, nodes: Iterable[int], least: float = 0.0) -> tuple[Array, Mask] | None:
        """As `_cut`, at one of some `nodes`; None where a relaxation takes less than a `least` part of either side of
        each."""
        best = (least, 0, 0, 0)
        cut: tuple[Array, Mask] | None = None
        for n in nodes:
            first, kept = self.program.choice[n], self.program.kept[n]
            share = x[first : first + len(kept)]
            if share.max() >= 1 - INTEGRAL:
                continue
            for side in self._sides(n, kept, share):
                part = float(share[side].sum())
                key = round(min(part, 1 - part), 1), self.program.times(n), len(kept), -n
                if key > best:
                    best, cut = key, (first + np.arange(len(kept)), side if part >= 0.5 else ~side)
        return cut

    def _sides(self, node: int, kept: Array, share: Floats) -> list[Mask]:
        """Ways to part the choices of a node, each side with a share in what the relaxation takes."""
        places = self.program.places(node)
        out = []
        for place in () if places is None else places[kept].T:
            for slot in np.unique(place[share > INTEGRAL]):
                side = place == slot
                if INTEGRAL < share[side].sum() < 1 - INTEGRAL:
                    out.append(side)
        return out or [np.arange(len(kept)) == np.argmax(share)]


def cheap(box: Box, price: float) -> Floats:
    """The columns of a box that plans of at most a price may have, by their reduced costs."""
    assert box.answer.reduced_costs is not None, "linear programs have them"
    dear = box.answer.bound + box.answer.reduced_costs > price * (1 + 1e-9)
    return np.where(dear, 0.0, box.cheap)
