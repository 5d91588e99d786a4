"""Branch and bound over linear relaxations, by what values take of the memory, of those that take much first.

Where memory binds a relaxation stores a share of a weight whole, and splits the rest. Whether a weight takes more than
so many bytes parts its choices in two, and once that is settled of the few that are large, rows of memory say little
more: a handful of relaxations, in which most columns are too dear soon, lift the bound as far as a solver does that
looks at what each of a thousand levels is worth. What is left of small values stays mixed, and so a bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..ilp.solver import Answer
from ..layouts.space import Array, Mask
from ..plan import PROVEN
from .memory_bounds import Load
from .relaxed_boxes import INTEGRAL, Box, RelaxedBoxes

Floats = NDArray[np.float64]
LITTLE = 0.05  # of the room: what two parts of a node's choices differ by at least where they are told apart

_Cut = tuple[Array, Mask]


@dataclass(eq=False)
class LevelSearch(RelaxedBoxes):
    """Branch and bound of a choice program, of which node n has the columns from `choice[n]` on, with rows of `loads`
    that say what these take. `best`: the cheapest relaxation in which no large value is mixed, if any."""

    choice: Sequence[int] = field(kw_only=True)
    loads: Sequence[Load] = field(kw_only=True)
    best: Answer | None = None

    @property
    def found(self) -> bool:
        """Whether there is such a relaxation."""
        return self.best is not None

    @property
    def gap(self) -> float:
        """That of the settings, for what is found."""
        return PROVEN if self.best is None else self.settings.gap

    @property
    def answer(self) -> Answer:
        """It, or that nothing costs less than was asked for, or what is known if the search was cut short."""
        none = self.bound >= self.price
        return self.best or Answer(None, self.bound, None, self.seconds, none=none)

    def enter(self, box: Box) -> None:
        """Take a relaxation in which no large value is mixed, or put the box on the heap to be split."""
        if self._cut(box.answer) is not None:
            self.push(box)
        elif box.bound < self.price:
            self.best, self.price = box.answer, box.bound

    def split(self, box: Box) -> None:
        """By what the value takes of which most is mixed."""
        cut = self._cut(box.answer)
        if cut is None:  # of the root alone: others are taken as they are entered
            self.enter(box)
        else:
            self.halve(box, *cut)

    def _cut(self, answer: Answer) -> _Cut | None:
        """Columns of the choices of a node, and on which side of a cut each is: that of which the relaxation takes
        more. By the bytes that most of the room hangs on, None where all hang on little."""
        assert answer.x is not None, "relaxations that are entered have a solution"
        most, best = 0.0, None
        for load in self.loads:
            for n, size in load.bytes.items():
                share = answer.x[self.choice[n] : self.choice[n] + len(size)]
                if share.max(initial=0.0) >= 1 - INTEGRAL:
                    continue
                mixed, above = _parted(size / load.room, share)
                if mixed > most:
                    most, best = mixed, (n, above)
        if best is None:
            return None
        n, above = best
        columns = self.choice[n] + np.arange(len(above))
        return columns, above if answer.x[columns[above]].sum() >= 0.5 else ~above


def _parted(size: Floats, share: Floats) -> tuple[float, Mask]:
    """Of choices that take a `size` of the room, of which a relaxation has a `share` each, those that take more than
    others, cut where most hangs on it: what the parts differ by, as far as it is mixed. 0 where they differ by little.
    """
    some = np.flatnonzero(share > INTEGRAL)
    order = some[np.argsort(size[some], kind="stable")]
    sizes, shares = size[order], share[order]
    lower = np.cumsum(shares)[:-1]
    upper = shares.sum() - lower
    bytes_below = np.cumsum(sizes * shares)[:-1]
    apart = ((sizes @ shares) - bytes_below) / upper - bytes_below / lower
    worth = np.where((np.diff(sizes) > 0) & (apart > LITTLE), apart * np.minimum(lower, upper), 0.0)
    if not worth.max(initial=0.0) > 0:
        return 0.0, np.zeros(len(size), dtype=bool)
    at = int(np.argmax(worth))
    return float(worth[at]), size > (sizes[at] + sizes[at + 1]) / 2
