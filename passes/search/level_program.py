"""The integer program where memory binds: what values take of it is branched on before anything else.

A node's choices differ in the bytes that they take on a few levels. Columns of their own say which levels are reached,
and the rows of memory are written in these alone: rows of a knapsack, of which a solver knows much, where sums over
thousands of choices say little. With the levels settled hardly any choice is left open.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...ir.record import record
from ..ilp.model import Assembly, Model
from ..layouts.space import Array, Mask
from .integer_program import ChoiceProgram
from .memory_bounds import Load
from .memory_rows import ROOM

Floats = NDArray[np.float64]
SAME = 1e-6 * ROOM  # bytes that are one level
LITTLE = 1e-4 * ROOM  # a node whose choices differ by less has no levels


@record(eq=False)
class LevelProgram:
    """A model whose first columns are those of the program that it is made of; those of its `levels` come after.
    `ranks`: of each the place among them by what it adds at most to any row of memory, the largest last."""

    model: Model
    levels: Array
    ranks: Array


def level_program(program: ChoiceProgram, left: Model, loads: Sequence[Load]) -> LevelProgram:
    """What is `left` of a choice program with rows of memory for `loads`, which are said by levels. Choices whose
    columns are fixed to 0 reach none."""
    columns, rows = len(left.cost), program.memory.rows
    others = (left.row < rows.start) | (left.row >= rows.stop)
    a = Assembly()
    a.rows, a.columns = len(left.low), columns
    a.add_columns(np.zeros(0), 1.0, True)
    a.add_rows(0, 0.0, 0.0)
    a.add_entries(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), 0.0)
    high = left.high.copy()
    levels = _Levels(a, program.choice, left.upper > 0)
    for row, load in enumerate(loads, start=rows.start):
        high[row] = load.room * (ROOM / load.unit)
        for n, size in load.bytes.items():
            taken = levels.taken(n, size, load.unit)
            high[row] -= taken.least
            a.add_entries(row, taken.at, taken.more)
    for at, taken_at, size in program.memory.moves(loads):
        a.add_entries(at, taken_at, size)
    more = a.model()
    upper = left.upper.copy()
    upper[program.memory.sums.start : program.memory.sums.stop] = 0.0
    whole = Model(
        np.append(left.cost, more.cost),
        np.append(upper, more.upper),
        np.append(left.integer, more.integer),
        np.append(left.row[others], more.row),
        np.append(left.column[others], more.column),
        np.append(left.coefficient[others], more.coefficient),
        np.append(left.low, more.low),
        np.append(high, more.high),
    )
    sizes = np.round(levels.added() / SAME)
    ranks = np.unique(sizes, return_inverse=True)[1].reshape(-1)
    return LevelProgram(whole, np.arange(columns, a.columns), ranks)


@record(eq=False)
class _Taken:
    """What a node takes: the `least` of its choices, and so much `more` with each of the columns `at`."""

    least: float
    at: Array
    more: Floats


class _Levels:
    """The levels of nodes, whose choices begin at the columns `choice` and are as far as they are `live`. Rows in which
    a node reaches them with the same choices have them in common."""

    def __init__(self, a: Assembly, choice: Sequence[int], live: Mask):
        self.a, self.choice, self.live = a, choice, live
        self.lives: dict[int, Array] = {}
        self.begun = a.columns
        self.seen: dict[tuple[int, float, bytes], _Taken] = {}
        self.columns: dict[tuple[int, bytes], Array] = {}

    def taken(self, n: int, size: Floats, unit: float) -> _Taken:
        """What node n takes in the solver's unit, if its choices take so much and a row counts in so many bytes."""
        key = n, unit, size.tobytes()
        if key not in self.seen:
            self.seen[key] = self._taken(n, size * (ROOM / unit))
        return self.seen[key]

    def _taken(self, n: int, size: Floats) -> _Taken:
        first = self.choice[n]
        if n not in self.lives:
            self.lives[n] = np.flatnonzero(self.live[first : first + len(size)])
        live = self.lives[n]
        if not len(live):
            return _Taken(0.0, live, np.zeros(0))
        least = float(size[live].min())
        above = size[live] - least
        if above.max() < LITTLE:
            some = np.flatnonzero(above)
            return _Taken(least, first + live[some], above[some])
        steps, of = _steps(above)
        which = n, of.tobytes()
        if which not in self.columns:
            count = len(steps) - 1
            self.columns[which] = _add_levels(self.a, first + live, of, count) + np.arange(count)
        return _Taken(least, self.columns[which], np.diff(steps))

    def added(self) -> Floats:
        """What each level adds at most to any row."""
        most = np.zeros(self.a.columns - self.begun)
        for taken in self.seen.values():
            if len(taken.at) and taken.at[0] >= self.begun:
                np.maximum.at(most, taken.at - self.begun, taken.more)
        return most


def _steps(taken: Floats) -> tuple[Floats, Array]:
    """The levels of bytes, lowest first, and at which each choice is."""
    order = np.argsort(taken, kind="stable")
    new = np.diff(taken[order], prepend=taken[order[0]]) > SAME
    of = np.empty(len(taken), dtype=np.int64)
    of[order] = np.cumsum(new)
    return taken[order][np.flatnonzero(np.append(True, new[1:]))], of


def _add_levels(a: Assembly, columns: Array, of: Array, count: int) -> int:
    """Columns that say which of `count` levels above the lowest the choices at `columns` reach; the first of them."""
    first = a.add_columns(np.zeros(count), 1.0, True)
    rows = a.add_rows(count, 0.0, 0.0)
    for level in range(count):
        some = columns[of > level]
        a.add_entries(rows + level, some, 1.0)
    a.add_entries(rows + np.arange(count), first + np.arange(count), -1.0)
    return first
