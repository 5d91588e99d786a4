"""Branch and bound over linear relaxations: boxes of the columns of an integer program.

Each relaxation begins from what the rows were worth in the one before, and has the columns alone that plans below the
price may have. Where to cut a box is said by those who search (see `branch_on_axes` and `branch_on_levels`). Work is
counted in relaxations, not in time.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ..ilp.model import Model, continuous
from ..ilp.solver import Answer, Settings, solve
from ..layouts.space import Array, Mask

Floats = NDArray[np.float64]
INTEGRAL = 1e-6  # a share below this is none, one that lacks less of 1 is all
MOST_RELAXED = 80  # linear programs, each a second or more
NEAR = (0.006, 0.02, 0.05)  # above the bound, where plans are looked for in turn
MORE = 1.5  # columns that the next of these leaves, if it is worth while to look at one
DEEP = 0.5  # of the way from the least bound to the price, how far a box may be that is looked at for being the last


@dataclass(frozen=True, eq=False)
class Box:
    """The columns that are left (`upper`), those of them that plans below the price may have (`cheap`), and the answer
    to a relaxation of these or, until it is looked at, of more."""

    upper: Floats
    cheap: Floats
    answer: Answer
    bound: float
    relaxed: bool


@dataclass(eq=False)
class RelaxedBoxes:
    """The boxes that are left of a `model`. `price`: what plans must cost less than, in the model's unit; `gap`: how
    near to the bound is near enough. `seconds`: spent in the solver, on so many `relaxed`. `given_up`: a bound of what
    is not looked at any more; `closed`: the boxes without a plan below the price."""

    model: Model
    settings: Settings
    price: float
    seconds: float = 0.0
    relaxed: int = 0
    entered: int = 0
    given_up: float = np.inf
    heap: list[tuple[float, int, Box]] = field(default_factory=list)
    closed: list[Box] = field(default_factory=list)

    @property
    def bound(self) -> float:
        """That of all plans that cost less than was asked for, or the price of the best."""
        return min(self.price, self.given_up, self.heap[0][0] if self.heap else np.inf)

    @property
    def found(self) -> bool:
        """Whether the price is that of something found, and not only what was asked for."""
        raise NotImplementedError

    @property
    def gap(self) -> float:
        """How near to its bound a price is near enough."""
        return self.settings.gap

    def enter(self, box: Box) -> None:
        """Take what a relaxation is, or put the box on the heap to be split."""
        raise NotImplementedError

    def split(self, box: Box) -> None:
        """Push boxes that are the box without what its relaxation is."""
        raise NotImplementedError

    def run(self, root: Answer) -> None:
        """From the relaxation of all until nothing is left, or a small gap."""
        asked, floor, every = self.price, root.bound, self.model.upper
        whole = Box(every, every, root, floor, True)
        closed = [whole]
        for share, wider in zip((*NEAR, np.inf), (*NEAR[1:], np.inf, np.inf), strict=True):
            # As if a plan of that price were known, which leaves far fewer columns; most often there is a cheaper one.
            self.price = min(floor * (1 + share), asked)
            left = cheap(whole, self.price)
            more = cheap(whole, min(floor * (1 + wider), asked))
            if share < wider and np.count_nonzero(more) < MORE * np.count_nonzero(left):
                continue
            for box in closed:
                self.push(replace(box, cheap=np.minimum(box.upper, left), answer=root))
            self.closed = []
            self._below()
            floor = self.bound
            if self.found or self.price == asked or floor < self.price:
                break
            closed = self.closed

    def _below(self) -> None:
        """Until nothing is left below the price, or a small gap: down to something found, then by bounds."""
        while self.heap and self.relaxed < MOST_RELAXED and self.bound < self.price * (1 - self.gap):
            box = self._take()
            if box.relaxed:
                self.split(box)
            else:
                self._relax(box)

    def _take(self) -> Box:
        """The box of the least bound; until something is found the last one, unless its bound says little for it."""
        least = self.heap[0][0]
        last = max(self.heap, key=lambda entry: entry[1])
        if self.found or last[0] > least + DEEP * (self.price - least):
            return heapq.heappop(self.heap)[2]
        self.heap.remove(last)
        heapq.heapify(self.heap)
        return last[2]

    def push(self, box: Box) -> None:
        """Put a box on the heap."""
        self.entered += 1
        heapq.heappush(self.heap, (box.bound, self.entered, box))

    def halve(self, box: Box, columns: Array, side: Mask) -> None:
        """Two boxes without some of the `columns`: those on a side, or the others, that with those on the side looked
        at first."""
        for some in (side, ~side):
            upper, left = box.upper.copy(), box.cheap.copy()
            upper[columns[some]] = left[columns[some]] = 0.0
            self.push(replace(box, upper=upper, cheap=left, relaxed=False))

    def _relax(self, box: Box) -> None:
        """Look at a box by the relaxation of its columns, of those that plans below the price may have."""
        left = cheap(box, self.price)
        answer = solve(
            replace(continuous(self.model), upper=left), self.settings, rows=box.answer.row_worths, worths=True
        )
        self.relaxed += 1
        self.seconds += answer.seconds
        if answer.none or answer.bound >= self.price:
            self.closed.append(replace(box, bound=self.price))
        elif answer.x is None or answer.reduced_costs is None:  # out of time
            self.given_up = min(self.given_up, box.bound)
        else:
            self.enter(Box(box.upper, left, answer, max(box.bound, answer.bound), True))


def cheap(box: Box, price: float) -> Floats:
    """The columns of a box that plans of at most a price may have, by their reduced costs."""
    assert box.answer.reduced_costs is not None, "linear programs have them"
    dear = box.answer.bound + box.answer.reduced_costs > price * (1 + 1e-9)
    return np.where(dear, 0.0, box.cheap)
