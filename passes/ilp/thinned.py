"""Linear programs without the columns and rows that no optimum needs, which are many once columns are bounded by 0.

Where an arc has no price flows run over it for nothing, and where what pays for it is left out none does: the rows that
tie the two together say nothing in either case. A solver's own presolve finds such things, but forgets what rows are
worth, from which a program is solved in a fraction of the time.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ...ir.record import record
from ..layouts.space import Array, Mask
from .model import Model
from .solver import Answer

Floats = NDArray[np.float64]
FEW = 0.02  # of the columns: another look at all of them pays for no fewer


@record(eq=False)
class Thinned:
    """A linear program of which `model` has all columns, some of them bounded by 0, and the `rows` that say something.
    For each solution of the whole there is one that costs no more, with nothing in the columns that are `unused`, and
    in those that are `full` with all that there may be, `upper`. `count`: how many rows the whole one has."""

    model: Model
    rows: Array
    unused: Mask
    full: Mask
    upper: Floats
    count: int

    def whole(self, answer: Answer) -> Answer:
        """What an answer says of the whole program. An unused column costs no end more than it saves, a row that says
        nothing is worth nothing."""
        x, reduced_costs, row_worths = answer.x, answer.reduced_costs, answer.row_worths
        if x is not None:
            x = np.where(self.full, self.upper, x)
        if reduced_costs is not None:
            reduced_costs = np.where(self.unused, np.inf, np.where(self.full, 0.0, reduced_costs))
        if row_worths is not None:
            own, row_worths = row_worths, np.zeros(self.count)
            row_worths[self.rows] = own
        return replace(answer, x=x, reduced_costs=reduced_costs, row_worths=row_worths)


def thinned(model: Model) -> Thinned:
    """A linear program without what no optimum needs, as far as the signs of its entries say."""
    upper, unused = model.upper, np.zeros(len(model.cost), dtype=bool)
    row, column, coefficient = model.row, model.column, model.coefficient
    while True:
        some = (upper[column] > 0) & (coefficient != 0)
        row, column, coefficient = row[some], column[some], coefficient[some]
        end = coefficient * upper[column]
        some = _asks(model, row, np.minimum(end, 0.0), np.maximum(end, 0.0))[row]
        row, column, coefficient = row[some], column[some], coefficient[some]
        more = _unused(model, row, column, coefficient) & (upper > 0)
        unused |= more
        upper = np.where(more, 0.0, upper)
        if more.sum() <= FEW * np.count_nonzero(upper):
            break
    # What costs nothing and breaks no row is taken in full, and rows that hold with it say nothing.
    breaks = np.where(coefficient > 0, model.high[row], -model.low[row]) < np.inf
    spare = (upper > 0) & (model.cost == 0) & ~_any(column[breaks], len(upper))
    end, taken = coefficient * upper[column], spare[column]
    asks = _asks(model, row, np.where(taken, end, np.minimum(end, 0.0)), np.where(taken, end, np.maximum(end, 0.0)))
    full = spare & ~_any(column[asks[row]], len(upper))
    upper, kept = np.where(full, 0.0, upper), np.flatnonzero(asks)
    some = asks[row]
    place = np.cumsum(asks) - 1
    less = replace(
        model,
        upper=upper,
        row=place[row[some]],
        column=column[some],
        coefficient=coefficient[some],
        low=model.low[kept],
        high=model.high[kept],
    )
    return Thinned(less, kept, unused, full, model.upper, len(model.low))


def _asks(model: Model, row: Array, least: Floats, most: Floats) -> Mask:
    """Which rows columns can break, that take so much of them at the least and at the most, entry by entry."""
    low = np.bincount(row, weights=least, minlength=len(model.low))
    high = np.bincount(row, weights=most, minlength=len(model.low))
    return np.asarray((low < model.low) | (high > model.high))


def _unused(model: Model, row: Array, column: Array, coefficient: Floats) -> Mask:
    """The columns that rows leave at nothing, since all that is in them has one sign, and those that cost something or
    nothing and help no row."""
    gives, takes = _any(row[coefficient > 0], len(model.low)), _any(row[coefficient < 0], len(model.low))
    nothing = ((model.high == 0) & ~takes) | ((model.low == 0) & ~gives)
    helps = np.where(coefficient > 0, model.low[row], -model.high[row]) > -np.inf
    count = len(model.cost)
    return _any(column[nothing[row]], count) | ((model.cost >= 0) & ~_any(column[helps], count))


def _any(places: Array, count: int) -> Mask:
    """Which of `count` are among some places."""
    out = np.zeros(count, dtype=bool)
    out[places] = True
    return out
