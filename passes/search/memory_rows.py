"""Rows of memory in an integer program: what several points in time have in common is added up once.

A plan holds much of what it holds at many points: what is stored at all of them. Written out, each of hundreds of rows
would have an entry for each choice of nearly each node, four of five entries of a program that has no more columns for
it. So what nodes take in the same rows is a column of its own, and those rows have one entry for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from ...ir.record import record
from ..ilp.model import Assembly, Model
from ..layouts.space import Array
from .memory_bounds import Load, Moved, Pair

Floats = NDArray[np.float64]

ROOM = 1e3  # what there is of any memory in the solver's unit, far above its tolerances
GRAINS = 1e3  # in each of that unit
APART = 1.0  # of that unit: what a node takes at the least in a column of what several take


@record(eq=False)
class Part:
    """What nodes take in the same loads: `more[n][c]` above the `least` of node n, in the solver's unit, in each of
    some `loads`."""

    loads: tuple[int, ...]
    least: float
    more: tuple[tuple[int, Floats], ...]


def rooms(loads: Sequence[Load]) -> Floats:
    """What there is for each load, in the solver's unit."""
    return np.array([load.room * (ROOM / load.unit) for load in loads])


def parts(loads: Sequence[Load]) -> list[Part]:
    """All that loads take, told apart by in which of them it is taken, as it first comes."""
    seen: dict[tuple[int, float, bytes], list[int]] = {}
    sizes: dict[tuple[int, float, bytes], Floats] = {}
    for row, load in enumerate(loads):
        for n, size in load.bytes.items():
            key = n, load.unit, size.tobytes()
            seen.setdefault(key, []).append(row)
            if key not in sizes:
                sizes[key] = size * (ROOM / load.unit)
    alike: dict[tuple[int, ...], list[tuple[int, Floats]]] = {}
    for key, taken in seen.items():
        alike.setdefault(tuple(taken), []).append((key[0], sizes[key]))
    out = []
    for rows, every in alike.items():
        least = [float(size.min(initial=np.inf)) for _, size in every]
        more = tuple((n, size - low) for (n, size), low in zip(every, least, strict=True) if len(size))
        out.append(Part(rows, sum(low for low in least if np.isfinite(low)), more))
    return out


@record
class _Key:
    """When a node takes more bytes, and which of its choices take as much of them: as `Moved`, without how much."""

    node: int
    all_of: tuple[Pair, ...]
    any_of: tuple[Pair, ...]
    sizes: bytes

    @property
    def own(self) -> Pair | None:
        """The one value that is moved, if the node itself makes or reads it: its layout says how much is taken."""
        return self.all_of[0] if len(self.all_of) == 1 and self.all_of[0][1].node == self.node else None

    @property
    def alike(self) -> Floats | Array:
        """A number for each choice, the same where as much is taken."""
        return np.frombuffer(self.sizes) if self.own is None else self.own[1].rows


def _key(moved: Moved) -> _Key:
    own = _Key(moved.node, moved.all_of, moved.any_of, b"")
    return own if own.own is not None else replace(own, sizes=moved.more.tobytes())


@record
class MemoryRows:
    """The rows of a program that say what loads take, those of the loads first, and the columns of what several have in
    common. `moved`: of what is taken if values are moved the first column that says as much, and the choice whose bytes
    each stands for; rows of their own say when."""

    rows: range
    sums: range
    moved: Mapping[_Key, tuple[int, Array]]

    def moves(self, loads: Sequence[Load]) -> Iterator[tuple[int, Array, Floats]]:
        """What loads take with values that are moved, in the solver's unit: the row of a load, columns, and entries."""
        for row, load in enumerate(loads, start=self.rows.start):
            for one in load.moved:
                first, some = self.moved[_key(one)]
                yield row, first + np.arange(len(some)), one.more[some] * (ROOM / load.unit)


def add_memory(a: Assembly, choice: Sequence[int], loads: Sequence[Load]) -> MemoryRows:
    """Add a row for each load, and what adds up what several have in common. `choice[n]` is the first column of node
    n."""
    moved = _add_moved(a, choice, loads)
    first, column, every = a.rows, a.columns, parts(loads)
    room = rooms(loads)
    for part in every:
        shared = len(part.loads) > 1 and bool(part.more)
        room[list(part.loads)] -= part.least - APART * len(part.more) * shared
    for most in room:
        a.add_rows(1, -np.inf, float(most))
    for part in every:
        if len(part.loads) > 1 and part.more:
            _add_sum(a, choice, part, first)
            continue
        for load in part.loads:
            for n, more in part.more:
                some = np.flatnonzero(more)
                a.add_entries(first + load, choice[n] + some, more[some])
    memory = MemoryRows(range(first, a.rows), range(column, a.columns), moved)
    for row, columns, more in memory.moves(loads):
        a.add_entries(row, columns, more)
    return memory


def _add_moved(a: Assembly, choice: Sequence[int], loads: Sequence[Load]) -> dict[_Key, tuple[int, Array]]:
    """Add columns that are 1 where a node takes more as values are moved: one for each layout of the value itself, or
    for all choices of which each takes as much, the first of which stands for them."""
    keys = dict.fromkeys(_key(one) for load in loads for one in load.moved)
    on = cache(partial(add_moved_on, a, choice))
    out = {}
    for one in keys:
        _, first, of = np.unique(one.alike, return_index=True, return_inverse=True)
        columns, row = a.add_columns(np.zeros(len(first)), 1.0, False), 0
        own = np.arange(len(of))
        conditions = [*([one.all_of] if one.own is None else []), *((pair,) for pair in one.any_of)]
        if one.own is not None:
            here, there = one.own
            row = a.add_rows(len(first), 0.0, np.inf)
            some = np.flatnonzero(np.isin(here.rows, there.rows[first]))
            order = np.argsort(there.rows[first])
            at = order[np.searchsorted(there.rows[first], here.rows[some], sorter=order)]
            a.add_entries(row + at, choice[here.node] + some, 1.0)
            _add_unless(a, columns, row, choice[one.node] + own, of.reshape(-1))
        for pairs in conditions:
            row = a.add_rows(len(first), -float(len(pairs)), np.inf)
            for pair in pairs:
                a.add_entries(row + np.arange(len(first)), np.full(len(first), on(pair)), -1.0)
            _add_unless(a, columns, row, choice[one.node] + own, of.reshape(-1))
        out[one] = columns, first
    return out


def _add_unless(a: Assembly, columns: int, rows: int, choices: Array, of: Array) -> None:
    """Let each column be no less than the choices that it is `of`, beside what its row has else."""
    count = int(of.max()) + 1
    a.add_entries(rows + np.arange(count), columns + np.arange(count), 1.0)
    a.add_entries(rows + of, choices, -1.0)


def add_moved_on(a: Assembly, choice: Sequence[int], pair: Pair) -> int:
    """A column that is 1 where a value is in another layout at one port than at the other, and may be less else."""
    column = a.add_columns(np.zeros(1), 1.0, False)
    layouts = np.unique(np.concatenate([port.rows for port in pair]))
    row = a.add_rows(len(layouts), 0.0, np.inf)
    a.add_entries(row + np.arange(len(layouts)), np.full(len(layouts), column), 1.0)
    for port, sign in zip(pair, (1.0, -1.0), strict=True):
        at = np.searchsorted(layouts, port.rows)
        a.add_entries(row + at, choice[port.node] + np.arange(len(port.rows)), sign)
    return column


def _add_sum(a: Assembly, choice: Sequence[int], part: Part, first: int) -> None:
    """A column that is what the nodes of a part take, in the rows of its loads; row `first` is that of the first load.

    Each node takes something in it, whatever it chooses, and no plan takes all that there is: never at the end of its
    range, the column has no reduced cost, by which columns are left out that no cheap plan has.
    """
    column = a.add_columns(np.zeros(1), sum(float(more.max()) + 2 * APART for _, more in part.more), False)
    row = a.add_rows(1, 0.0, 0.0)
    for n, more in part.more:
        a.add_entries(row, choice[n] + np.arange(len(more)), more + APART)
    a.add_entries(np.array([row]), np.array([column]), -1.0)
    rows = first + np.array(part.loads)
    a.add_entries(rows, np.full(len(rows), column), 1.0)


def written_out(model: Model, choice: Sequence[int], memory: MemoryRows, loads: Sequence[Load]) -> Model:
    """A program without columns of what several loads have in common. It is larger, but its rows are knapsacks of
    choices, from which a solver draws cuts."""
    others = (model.row < memory.rows.start) | (model.row >= memory.rows.stop)
    row, column, size = [model.row[others]], [model.column[others]], [model.coefficient[others]]
    high, upper = model.high.copy(), model.upper.copy()
    high[memory.rows.start : memory.rows.start + len(loads)] = rooms(loads)
    upper[memory.sums.start : memory.sums.stop] = 0.0
    for part in parts(loads):
        rows = memory.rows.start + np.array(part.loads)
        high[rows] -= part.least
        for n, more in part.more:
            some = np.flatnonzero(more)
            row.append(np.repeat(rows, len(some)))
            column.append(np.tile(choice[n] + some, len(rows)))
            size.append(np.tile(more[some], len(rows)))
    for at, columns, entries in memory.moves(loads):
        row.append(np.full(len(columns), at))
        column.append(columns)
        size.append(entries)
    return replace(
        model,
        upper=upper,
        row=np.concatenate(row),
        column=np.concatenate(column),
        coefficient=np.concatenate(size),
        high=high,
    )


def in_grains(model: Model, rows: slice) -> Model:
    """A program with all columns whole numbers, and what some rows add up in whole grains, each entry rounded down, so
    that these cut nothing off: what a solver knows best that counts in whole numbers."""
    first, last, _ = rows.indices(len(model.low))
    some = (model.row >= first) & (model.row < last)
    high = model.high.copy()
    high[rows] = np.floor(high[rows] * GRAINS * (1 + 1e-9))
    return replace(
        model,
        integer=np.ones_like(model.integer),
        coefficient=np.where(some, np.floor(model.coefficient * GRAINS), model.coefficient),
        high=high,
    )
