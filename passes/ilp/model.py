"""An integer program as arrays, and how one is put together, column by column and row by row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...ir.record import record
from ..layouts.space import Array

Floats = NDArray[np.float64]
PIECES = 1e6  # in which prices are counted, and each in as many: a plan is told from one that costs 1e-9 less


@record(eq=False)
class Model:
    """minimise cost @ x, subject to low <= A x <= high and 0 <= x <= upper, some x integer. A is given by `row`,
    `column`, `coefficient`."""

    cost: Floats
    upper: Floats
    integer: NDArray[np.bool_]
    row: Array
    column: Array
    coefficient: Floats
    low: Floats
    high: Floats


def continuous(model: Model) -> Model:
    """The linear program of an integer program."""
    return replace(model, integer=np.zeros_like(model.integer))


def telling(model: Model) -> Model:
    """The program without the rows that columns between 0 and their upper bounds cannot break, and without what rows
    say of columns that are bounded by 0."""
    live = model.upper[model.column] > 0
    row, column, coefficient = model.row[live], model.column[live], model.coefficient[live]
    end = coefficient * model.upper[column]
    least = np.bincount(row, weights=end.clip(max=0.0), minlength=len(model.low))
    most = np.bincount(row, weights=end.clip(min=0.0), minlength=len(model.low))
    kept = (least < model.low) | (most > model.high)
    place = np.cumsum(kept) - 1
    some = kept[row]
    return replace(
        model,
        row=place[row[some]],
        column=column[some],
        coefficient=coefficient[some],
        low=model.low[kept],
        high=model.high[kept],
    )


def cheaper(model: Model, price: float, one_of: Sequence[Array] = ()) -> Model:
    """The program of the solutions that cost no more than a price, by two rows and a column more: that tells a solver
    more than its objective does. All that costs something is integer, and less than 0 only where that is little.
    `one_of`: sets of columns, of each of which one is 1 and all others 0. What the cheapest of a set costs is paid
    however it is chosen, and so it is left out: in what room there is then, a solver sees by each column that is too
    dear by itself, and by one that is taken which others are too dear beside it.

    Costs are counted in whole grains, rounded down, so that no solution is cut off; and those in pieces of so many, as
    solvers that count in whole numbers err with large ones. What small pieces come to is carried over to the others.
    Raises ValueError where there is nothing to count in."""
    gains = -float((model.cost * model.upper).clip(max=0.0).sum())
    grain = (price + gains) / PIECES**2
    if not 0 < grain < np.inf:
        raise ValueError(f"a price of {price} cannot be counted in grains")
    cost, most = model.cost.copy(), price
    for columns in one_of:
        live = columns[model.upper[columns] > 0]
        least = cost[live].min(initial=np.inf)
        if np.isfinite(least):
            cost[live] -= least
            most -= float(least)
    paid = np.flatnonzero((cost != 0) & (model.upper > 0))
    assert model.integer[paid].all(), "pieces are carried over where they are whole"
    too_dear = PIECES**2 + 1.0 + len(paid)  # such a column is so by itself
    large, small = np.divmod(np.minimum(np.floor(cost[paid] / grain), too_dear), PIECES)
    rounded = 1.0 if one_of else 0.0  # differences are off by less than a grain
    most_large, most_small = np.divmod(np.floor(most / grain) + rounded, PIECES)
    rows, carried = len(model.low), len(model.cost)
    return Model(
        np.append(model.cost, 0.0),
        np.append(model.upper, np.ceil(small.sum() / PIECES)),
        np.append(model.integer, True),
        np.concatenate([model.row, np.full(len(paid) + 1, rows), np.full(len(paid) + 1, rows + 1)]),
        np.concatenate([model.column, paid, [carried], paid, [carried]]),
        np.concatenate([model.coefficient, large, [1.0], small, [-PIECES]]),
        np.append(model.low, [-np.inf, -np.inf]),
        np.append(model.high, [most_large, most_small]),
    )


def shifted(model: Model, worth: Floats) -> tuple[Model, float]:
    """The linear program with what its rows are `worth` taken off the costs of the columns, which changes neither its
    solutions nor their reduced costs; and by how much its optimum is lower. A dual simplex that begins at nothing
    then begins there. A row of a range is worth something only with a column for what is left of it."""
    end = np.where(worth > 0, model.low, model.high)
    worth = np.where(np.isfinite(end), worth, 0.0)  # a solver's own worths are so only within its tolerances
    loose = np.flatnonzero((worth != 0) & (model.low != model.high))
    count = len(model.cost)
    columns = count + np.arange(len(loose))
    size = (model.high - model.low)[loose]
    row, column = np.concatenate([model.row, loose]), np.concatenate([model.column, columns])
    sign = np.where(worth[loose] > 0, -1.0, 1.0)
    coefficient = np.concatenate([model.coefficient, sign])
    cost = np.concatenate([model.cost, np.zeros(len(loose))])
    cost -= np.bincount(column, weights=coefficient * worth[row], minlength=len(cost))
    tight = worth != 0
    more = Model(
        cost,
        np.concatenate([model.upper, size]),
        np.concatenate([model.integer, np.zeros(len(loose), dtype=bool)]),
        row,
        column,
        coefficient,
        np.where(tight, end, model.low),
        np.where(tight, end, model.high),
    )
    return more, inner(worth[tight], end[tight])


@dataclass
class Assembly:
    """A model that grows. Columns and rows are added in blocks, of which the number of the first is returned."""

    cost: list[Floats] = field(default_factory=list)
    upper: list[Floats] = field(default_factory=list)
    integer: list[NDArray[np.bool_]] = field(default_factory=list)
    row: list[int | Array] = field(default_factory=list)
    column: list[Array] = field(default_factory=list)
    coefficient: list[float | Floats] = field(default_factory=list)
    ranges: list[tuple[int, float, float]] = field(default_factory=list)  # how many rows, from what, to what
    columns: int = 0
    rows: int = 0

    def add_columns(self, cost: Floats, upper: float, integer: bool) -> int:
        """Columns with their costs, all of one upper bound."""
        first, n = self.columns, len(cost)
        self.cost.append(np.asarray(cost, dtype=np.float64))
        self.upper.append(np.full(n, upper))
        self.integer.append(np.full(n, integer))
        self.columns += n
        return first

    def add_rows(self, count: int, low: float, high: float) -> int:
        """Rows without entries, all of one range."""
        first = self.rows
        self.ranges.append((count, low, high))
        self.rows += count
        return first

    def add_entries(self, row: int | Array, column: Array, coefficient: float | Floats) -> None:
        """Coefficients, all of one row or each of its own; those of one place add up."""
        self.row.append(row)
        self.column.append(column)
        self.coefficient.append(coefficient)

    def model(self) -> Model:
        """What has been added."""
        counts = [len(column) for column in self.column]
        rows, low, high = (np.array(each) for each in zip(*self.ranges, strict=True))
        return Model(
            np.concatenate(self.cost),
            np.concatenate(self.upper),
            np.concatenate(self.integer),
            _spread(self.row, counts, np.int64),
            np.concatenate(self.column),
            _spread(self.coefficient, counts, np.float64),
            np.repeat(low, rows),
            np.repeat(high, rows),
        )


def _spread(blocks: Sequence[float | Array | Floats], counts: Sequence[int], kind: type[np.generic]) -> NDArray[Any]:
    """What all entries of blocks have: most blocks have one for all of theirs."""
    several = [isinstance(own, np.ndarray) for own in blocks]
    out = np.repeat(np.array([0 if each else own for own, each in zip(blocks, several, strict=True)], kind), counts)
    for end, count, own, each in zip(accumulate(counts), counts, blocks, several, strict=True):
        if each:
            out[end - count : end] = own
    return out


def inner(a: Floats, b: Floats) -> float:
    """The inner product of two arrays, not by BLAS: its threads wait in a loop for some hundredths of a second after
    each, and how many there are shows in the last digits."""
    return float(np.sum(a * b))
