"""The integer program where memory binds: what values take of it is branched on before anything else.

A node's choices differ in the bytes that they take on a few levels. Columns of their own say which levels are reached,
and the rows of memory are written in these alone: rows of a knapsack, of which a solver knows much, where sums over
thousands of choices say little. With the levels settled hardly any choice is left open.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..ilp.model import Assembly, Model
from ..layouts.space import Array
from .integer_program import ROOM
from .memory_bounds import Load

Floats = NDArray[np.float64]
SAME = 1e-6 * ROOM  # bytes that are one level
LITTLE = 1e-4 * ROOM  # a node whose choices differ by less has no levels


@dataclass(frozen=True, eq=False)
class LevelProgram:
    """A model whose first columns are those of the program that it is made of; those of its `levels` come after.
    `ranks`: of each the place among them by what it adds at most to any row of memory, the largest last."""

    model: Model
    levels: Array
    ranks: Array


def level_program(model: Model, choice: Sequence[int], loads: Sequence[Load]) -> LevelProgram:
    """The choice program `model` with its rows of `loads`, which follow those of the nodes, said by levels. `choice[n]`
    is the first column of node n; choices whose columns are fixed to 0 reach none."""
    nodes, rows, columns = len(choice), len(model.low), len(model.cost)
    others = (model.row < nodes) | (model.row >= nodes + len(loads))
    a = Assembly()
    a.rows, a.columns = rows, columns
    a.add_columns(np.zeros(0), 1.0, True)
    a.add_rows(0, 0.0, 0.0)
    a.add_entries(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), 0.0)
    high = model.high.copy()
    known: dict[tuple[int, bytes], int] = {}
    added: dict[int, float] = {}
    for row, load in enumerate(loads, start=nodes):
        for n, size in load.bytes.items():
            live = np.flatnonzero(model.upper[choice[n] : choice[n] + len(size)] > 0)
            if not len(live):
                continue
            taken = size[live] * (ROOM / load.room)
            high[row] -= taken.min()
            taken -= taken.min()
            if taken.max() < LITTLE:
                a.add_entries(np.full(len(live), row), choice[n] + live, taken)
                continue
            steps, of = _steps(taken)
            key = n, of.tobytes()
            if key not in known:
                known[key] = _add_levels(a, choice[n] + live, of, len(steps) - 1)
            at = np.arange(known[key], known[key] + len(steps) - 1)
            a.add_entries(np.full(len(at), row), at, np.diff(steps))
            for column, more in zip(at.tolist(), np.diff(steps).tolist(), strict=True):
                added[column] = max(added.get(column, 0.0), more)
    more = a.model()
    levels = np.arange(columns, a.columns)
    sizes = np.round(np.array([added[column] for column in levels.tolist()]) / SAME)
    whole = Model(
        np.append(model.cost, more.cost),
        np.append(model.upper, more.upper),
        np.append(model.integer, more.integer),
        np.append(model.row[others], more.row),
        np.append(model.column[others], more.column),
        np.append(model.coefficient[others], more.coefficient),
        np.append(model.low, more.low),
        np.append(high, more.high),
    )
    return LevelProgram(whole, levels, np.unique(sizes, return_inverse=True)[1].reshape(-1))


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
        a.add_entries(np.full(len(some), rows + level), some, 1.0)
    a.add_entries(rows + np.arange(count), first + np.arange(count), -1.0)
    return first
