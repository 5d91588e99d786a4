"""An integer program as arrays, and how one is put together, column by column and row by row."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..layouts.space import Array

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
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


@dataclass
class Assembly:
    """A model that grows. Columns and rows are added in blocks, of which the number of the first is returned."""

    cost: list[Floats] = field(default_factory=list)
    upper: list[Floats] = field(default_factory=list)
    integer: list[NDArray[np.bool_]] = field(default_factory=list)
    row: list[Array] = field(default_factory=list)
    column: list[Array] = field(default_factory=list)
    coefficient: list[Floats] = field(default_factory=list)
    low: list[Floats] = field(default_factory=list)
    high: list[Floats] = field(default_factory=list)
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
        self.low.append(np.full(count, low))
        self.high.append(np.full(count, high))
        self.rows += count
        return first

    def add_entries(self, row: Array, column: Array, coefficient: float | Floats) -> None:
        """Coefficients; those of one place add up."""
        self.row.append(row)
        self.column.append(column)
        self.coefficient.append(np.broadcast_to(np.asarray(coefficient, dtype=np.float64), row.shape))

    def model(self) -> Model:
        """What has been added."""
        return Model(
            np.concatenate(self.cost),
            np.concatenate(self.upper),
            np.concatenate(self.integer),
            np.concatenate(self.row),
            np.concatenate(self.column),
            np.concatenate(self.coefficient),
            np.concatenate(self.low),
            np.concatenate(self.high),
        )
