"""Where memory binds: branch and bound over linear relaxations, by how much of memory the choices of a node take.

A relaxation takes halves of a choice that stores much and of one that stores little. With that settled for a few nodes
hardly anything is left open: some dozens of relaxations prove what a solver's own search, with presolve, cuts and
heuristics, takes a minute for. Each goes on from where the last one ended, or where that has come to take many steps
from what rows were worth in the one that it is a part of. Only where there are many columns and no plan is known is
that search asked, of levels alone: what it finds first is the better plan.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ...ir.record import record
from ..ilp.model import continuous
from ..ilp.solver import Answer, Relaxation, Settings, solve
from ..ilp.thinned import Thinned, thinned
from ..layouts.space import Array, Mask
from .branch_on_axes import INTEGRAL, AxisProgram, AxisSearch, Box, cheap
from .dual_ascent import DualAscent
from .level_program import LITTLE, SAME, level_program
from .memory_bounds import Load
from .memory_rows import ROOM
from .problem import Candidate
from .reduced_program import Left, Reduced, fixed, left_in

Floats = NDArray[np.float64]
Among = Callable[[Answer, float], Candidate | None]
MOST_IN_VAIN = 3  # times that a plan is looked for among what a relaxation mixes, and none is found
CLOSE = 1e-4  # of a price: with a plan that is as near to a relaxation branching alone finds what is left
MOSTLY = 0.9  # of a node, that a relaxation takes of a choice: nearly all
MOST_OPENED = 24  # relaxations by which levels are told apart before what they leave is looked at
MOST_BOXES = 4  # that are looked at one by one
STEPS = 4  # relaxations in which all is settled so
MOST_RELAXED = 400  # linear programs, each a tenth of a second
NEAR = (0.002, 0.005, 0.016)  # above a relaxation, where plans are looked for first
NEARER = 0.005  # how far above it the solver's own search is asked for them, too
MANY_STEPS = 1_200  # of a simplex from where the last one ended: from what its own rows were worth it takes fewer
ANY = 0.05  # above these a plan is good enough where any is asked for
MANY_LIVE = 40_000  # columns with which the solver's own search finds a good plan sooner than this one
NODES = 2_000  # of that search
EVENLY = 0.1  # of a node, that a relaxation takes at the least of either side of a cut that tells axes apart
SHY = 1e-8  # of a price, far enough below it for columns that are just as dear to be left out


@dataclass(eq=False)
class LevelPlans:
    """Plans of what is `reduced` of a problem, within rows of memory, of which `relaxed` is the linear relaxation.
    `among`: a plan of the choices that an answer mixes, if there is one cheaper than a price in seconds.
    `most_relaxed`: how many relaxations a search may look at, if not `MOST_RELAXED`; `apart`: whether it tells axes
    apart before levels. `solve_s`: the time spent in the solver."""

    program: AxisProgram
    reduced: Reduced
    relaxed: Answer
    settings: Settings
    among: Among | None
    most_relaxed: int | None = None
    apart: bool = False
    solve_s: float = 0.0

    def price(self, columns: int) -> float:
        """Below which price, in the program's unit, plans may have so many columns at most."""
        live = self.reduced.model.upper > 0
        if self.relaxed.reduced_costs is None or np.count_nonzero(live) <= columns:
            return np.inf
        least = self.relaxed.bound + self.relaxed.reduced_costs[live]
        return float(np.partition(least, columns)[columns]) * (1 - SHY)

    def cheaper(self, price: float, gap: float) -> tuple[Candidate | None, float]:
        """The cheapest plan, within a gap, if one costs less than a price in the program's unit; and a bound."""
        return self._search(self._near(price), price, gap) if self._is_relaxed else (None, self.relaxed.bound)

    def any(self, price: float, gap: float) -> tuple[Candidate | None, float]:
        """The cheapest plan, within a gap, of choices of which plans below a price may be, which may cost more; and a
        bound of those that do not. It is looked for near the relaxation first: most often there is one, and few columns
        are left."""
        floor = self.relaxed.bound
        if not self._is_relaxed:
            return None, floor
        near = [(most, share <= NEARER) for share in NEAR if (most := self.relaxed.bound * (1 + share)) < price]
        for most, solved in (*near, (price, True)):
            upper, last = self._near(most), most == price
            if np.count_nonzero(upper) < MANY_LIVE:
                plan, bound = self._search(upper, np.inf if last else most, gap)
            elif solved:
                plan, bound = self._solve(upper, gap)
            else:
                continue
            floor = max(floor, min(most, bound))
            if plan is not None and (last or plan.price * self.program.unit <= most * (1 + ANY)):
                return plan, floor
        return None, floor

    def settled(self, price: float) -> Candidate | None:
        """A plan that costs less than a price, if settling what the relaxation takes nearly all of leads to one."""
        if not self._is_relaxed:
            return None
        search = self._searching(price)
        search.settle(self.relaxed, self._near(price))
        self.solve_s += search.seconds
        return search.best

    def left(self, price: float, least: float) -> list[Mask]:
        """The columns that plans cheaper than a price may have, as `ByLevels` has them; in the program's unit."""
        if not self._is_relaxed:
            return [self.reduced.model.upper > 0]
        search = OpenLevels(self.program, self.settings, price, levels=levels_of(self.reduced.loads), most=MOST_OPENED)
        boxes = search.left(self.relaxed, self._near(price), least)
        self.solve_s += search.seconds
        return boxes if len(boxes) <= MOST_BOXES else [np.any(boxes, axis=0)]

    @property
    def _is_relaxed(self) -> bool:
        """Whether the relaxation has been solved: it may have run out of time."""
        return self.relaxed.x is not None and self.relaxed.row_worths is not None

    def _near(self, price: float) -> Floats:
        """The upper bounds of columns: 0 of those that no plan below a price has."""
        return fixed(self.reduced.model, self.relaxed, price * (1 + 1e-9)).upper

    def _search(self, upper: Floats, price: float, gap: float) -> tuple[Candidate | None, float]:
        search = self._searching(price, gap)
        search.prove(self.relaxed, upper)
        self.solve_s += search.seconds
        return search.best, search.bound

    def _searching(self, price: float, gap: float = 0.0) -> LevelSearch:
        return LevelSearch(
            self.program,
            self.settings,
            price,
            levels=levels_of(self.reduced.loads),
            among=self.among,
            gap=gap,
            most=self.most_relaxed,
            apart=self.apart,
        )

    def _solve(self, upper: Floats, gap: float) -> tuple[Candidate | None, float]:
        """What a solver says of levels alone: as much as of all choices, if no other is mixed."""
        program = level_program(self.reduced.program, replace(self.reduced.model, upper=upper), self.reduced.loads)
        levels = np.zeros(len(program.model.cost), dtype=bool)
        levels[program.levels] = True
        near_enough = replace(self.settings, gap=gap)
        answer = solve(replace(program.model, integer=levels), near_enough, NODES, first=program.levels)
        self.solve_s += answer.seconds
        plan = None if answer.x is None else self.program.plan(answer)
        if plan is None and answer.x is not None and self.among is not None:
            plan = self.among(answer, np.inf)
        return plan, np.inf if answer.none else answer.bound


@record
class ByLevels:
    """What a program by levels says: a plan if it has one, a bound of all plans that cost less than was asked for, and
    what its linear program alone says of the choices that it has: seldom more than of all. `plans`: those that cost at
    `most` so much, in which others may be looked for; None where there are none."""

    plan: Candidate | None
    bound: float
    relaxed: float
    plans: LevelPlans | None = None
    most: float = 0.0

    def left(self, ascent: DualAscent, price: float, least: float) -> list[Left]:
        """The choices and arcs that plans cheaper than a price, which is no more than `most`, may have, with levels
        told apart as far as none costs less than `least`, or as far as levels say it: of each box that is left, or of
        many boxes together. `ascent`: what the program was made with."""
        if self.plans is None:
            return []
        unit = self.plans.program.unit
        boxes = self.plans.left(price * unit, least * unit)
        return [left_in(ascent, price, self.plans.reduced, cheap) for cheap in boxes]


@dataclass(eq=False)
class LevelSearch(AxisSearch):
    """Branch and bound by levels. `levels[n]`: what the choices of node n take of memory, in the solver's unit.
    `among`: a plan of the choices that a relaxation mixes, if there is one that is cheaper, which was looked for
    `in_vain` so often. `gap`: what is near enough. `most`: how many relaxations are looked at in all, if not
    `MOST_RELAXED`: of these each takes less. `apart`: whether axes are told apart before levels, where nodes run most
    often: all that hangs together with these follows."""

    levels: Mapping[int, Floats] = field(default_factory=dict)
    among: Among | None = None
    gap: float = 0.0
    most: int | None = None
    apart: bool = False
    in_vain: int = 0
    _thin: Thinned | None = None
    _relaxation: Relaxation | None = None

    def prove(self, root: Answer, upper: Floats) -> None:
        """From the relaxation of all with such upper bounds until nothing is left, or a small gap."""
        self._relaxed(self.settle(root, upper))
        self._below()

    def settle(self, root: Answer, upper: Floats) -> Box:
        """Look near the relaxation of all with such upper bounds, which is returned."""
        whole = self._begun(root, upper)
        self._look_near(whole)
        return whole

    def _begun(self, root: Answer, upper: Floats) -> Box:
        """The relaxation of all with such upper bounds."""
        assert root.row_worths is not None, "it was asked for"
        thin = self._thin = thinned(continuous(replace(self.program.model, upper=upper)))
        # What is full there is no choice, and no cut bounds it by 0.
        self._relaxation = Relaxation(thin.model, self.settings, root.row_worths[thin.rows])
        return Box(upper, upper, root, root.bound, True)

    @property
    def most_relaxed(self) -> int:
        """How many relaxations are looked at in all."""
        return MOST_RELAXED if self.most is None else self.most

    @property
    def _gap(self) -> float:
        return self.gap

    @property
    def _most(self) -> float:
        return self.price

    def _answer(self, box: Box, upper: Floats) -> Answer:
        """As of all searches; from where the last one ended, as long as that is near."""
        assert self._relaxation is not None and self._thin is not None, "the search has begun"
        if self._relaxation.steps > MANY_STEPS:
            return super()._answer(box, upper)
        return self._thin.whole(self._relaxation.solve(np.minimum(upper, self._thin.model.upper), self.price))

    def _relaxed(self, box: Box) -> None:
        assert box.answer.x is not None, "relaxations that are entered have a solution"
        if self._level(box.answer.x) is None and self.program.plan(box.answer) is None:
            self._look_among(box.answer)
        super()._relaxed(box)

    def _look_near(self, box: Box) -> None:
        """Take a plan near the relaxation of a box, if one is cheaper: what it takes nearly all of is settled, and what
        that leaves is relaxed in turn."""
        answer, upper = box.answer, cheap(box, self.price)
        for _ in range(STEPS):
            plan = self.program.plan(answer)
            if plan is not None:
                self._cheaper(plan)
                return
            assert answer.x is not None, "what is mixed is a solution"
            self._settle_most(answer.x, upper)
            answer = self._answer(box, upper)
            self.relaxed += 1
            self.seconds += answer.seconds
            if answer.x is None or answer.bound >= self.price:
                return

    def _settle_most(self, x: Floats, upper: Floats) -> None:
        """Leave nodes the one choice of which a relaxation takes nearly all; where it takes all of these, one more the
        choice of which it takes most."""
        most, others, mixed = 0.0, np.zeros(0, dtype=np.int64), False
        for first, kept in zip(self.program.choice, self.program.kept, strict=True):
            columns = first + np.arange(len(kept))
            one = int(np.argmax(x[columns]))
            if x[columns[one]] >= MOSTLY:
                mixed |= bool(x[columns[one]] < 1 - INTEGRAL)
                upper[np.delete(columns, one)] = 0.0
            elif x[columns[one]] > most:
                most, others = float(x[columns[one]]), np.delete(columns, one)
        if not mixed:
            upper[others] = 0.0

    def _look_among(self, answer: Answer) -> None:
        """Take a plan of the choices that a relaxation mixes, unless one is known that is close to it, or that was
        tried in vain too often."""
        known = self.best is not None and answer.bound >= self.price * (1 - CLOSE)
        if self.among is None or known or self.in_vain >= MOST_IN_VAIN:
            return
        plan = self.among(answer, self.price / self.program.unit)
        if plan is None or not self._cheaper(plan):
            self.in_vain += 1

    def _cheaper(self, plan: Candidate) -> bool:
        """Take a plan, if it is cheaper than all that are known; whether it is."""
        price = plan.price * self.program.unit
        if price < self.price:
            self.best, self.price = plan, price
            return True
        return False

    def _cut(self, box: Box) -> tuple[Array, Mask]:
        assert box.answer.x is not None, "relaxations that are entered have a solution"
        cut = self._cut_of(box.answer.x, self._often, EVENLY) if self.apart else None
        return cut or self._level(box.answer.x) or super()._cut(box)

    @cached_property
    def _often(self) -> list[int]:
        """The nodes that run most often."""
        times = [self.program.times(n) for n in range(len(self.program.choice))]
        return [n for n, often in enumerate(times) if often == max(times)]

    def _level(self, x: Floats) -> tuple[Array, Mask] | None:
        """As `_cut`, by how much choices take, where a relaxation mixes some that take more and less: that first of
        which most memory depends."""
        most, cut = 0.0, None
        for n, taken in self.levels.items():
            columns = self.program.choice[n] + np.arange(len(taken))
            share = x[columns]
            if share.max() >= 1 - INTEGRAL:
                continue
            steps = np.unique(taken[share > INTEGRAL])
            for low, high in pairwise(steps):
                more = taken > (low + high) / 2
                part = float(share[more].sum())
                depends = min(part, 1 - part) * (steps[-1] - steps[0])
                if high - low > SAME and depends > most:
                    most, cut = depends, (columns, more if part >= 0.5 else ~more)
        return cut


class OpenLevels(LevelSearch):
    """Not for plans but for what plans below the price may have: levels are told apart until the bounds of what that
    leaves open are near each other."""

    def left(self, root: Answer, upper: Floats, least: float) -> list[Mask]:
        """The columns of each box that is left where none costs less than `least`, or nothing is left to be told."""
        self._push(self._begun(root, upper))
        left = []
        while self.heap:
            box = self._take()
            assert box.answer.x is not None, "relaxations that are entered have a solution"
            is_told = box.bound >= least or self.relaxed >= self.most_relaxed
            if is_told or (box.relaxed and self._level(box.answer.x) is None):
                left.append(cheap(box, self.price) > 0)
            elif box.relaxed:
                self._split(box)
            else:
                self._relax(box)
        return left if self.given_up == np.inf else [upper > 0]  # one that ran out of time may hold any

    def _take(self) -> Box:
        return heapq.heappop(self.heap)[2]

    def _relaxed(self, box: Box) -> None:
        self._push(box)


def levels_of(loads: Sequence[Load]) -> dict[int, Floats]:
    """What the choices of each node take of memory above the least, in the solver's unit, all rows that differ in it
    together; without nodes whose choices differ by little."""
    seen: set[tuple[int, float, bytes]] = set()
    out: dict[int, Floats] = {}
    for load in loads:
        for n, size in load.bytes.items():
            key = n, load.unit, size.tobytes()
            if key not in seen:
                seen.add(key)
                out[n] = out.get(n, 0.0) + (size - size.min()) * (ROOM / load.unit)
    return {n: size for n, size in out.items() if size.max() >= LITTLE}
