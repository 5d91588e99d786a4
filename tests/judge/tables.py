"""Costs as arrays with named columns, and their algebra: add, and minimise a column away."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .layouts import Floats

LARGEST = 60_000_000  # entries; more is a case too large to judge


@dataclass(frozen=True)
class Table:
    """A cost for every combination of the columns' values; infinite where it cannot be."""

    columns: tuple[str, ...]
    cost: Floats

    def renamed(self, old: str, new: str) -> Table:
        """The same costs with a column of another name."""
        return Table(tuple(new if c == old else c for c in self.columns), self.cost)

    def without(self, column: str) -> Table:
        """The least cost over all values of `column`."""
        at = self.columns.index(column)
        return Table(self.columns[:at] + self.columns[at + 1 :], self.cost.min(axis=at))

    def spread(self, columns: Sequence[str]) -> Floats:
        """The array with one axis for each of `columns`, of length 1 where the table lacks it."""
        present = [c for c in columns if c in self.columns]
        array = self.cost.transpose([self.columns.index(c) for c in present])
        lengths = iter(array.shape)
        return array.reshape([next(lengths) if c in self.columns else 1 for c in columns])


def _check_size(lengths: Sequence[int]) -> None:
    """Raises ValueError where an array of these lengths is too large."""
    if math.prod(lengths) > LARGEST:
        raise ValueError(f"too large to judge: {list(lengths)}")


def add(tables: Sequence[Table]) -> Table:
    """The sum of tables, over all their columns."""
    columns = tuple(dict.fromkeys(c for t in tables for c in t.columns))
    lengths = {c: n for t in tables for c, n in zip(t.columns, t.cost.shape, strict=True)}
    _check_size([lengths[c] for c in columns])
    total = np.zeros([lengths[c] for c in columns])
    for table in tables:
        total += table.spread(columns)
    return Table(columns, total)


def through(distance: Floats, table: Table, column: str, new: str) -> Table:
    """For each row of `distance` the least of distance + cost over `column`, which becomes `new`."""
    rest = tuple(c for c in table.columns if c != column)
    array = table.spread((column, *rest))
    flat = array.reshape(len(array), -1)
    _check_size([len(distance), flat.shape[1]])
    result = np.full((len(distance), flat.shape[1]), np.inf)
    for k in range(len(flat)):
        np.minimum(result, distance[:, k : k + 1] + flat[k : k + 1], out=result)
    return Table((new, *rest), result.reshape((len(distance), *array.shape[1:])))
