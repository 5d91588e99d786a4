"""How a value gets from where it is made to all its uses: exact Steiner arborescences.

After Dreyfus and Wagner, for all layouts at once, and for all that the uses still depend on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from .layouts import Floats
from .tables import Table, add, through


@dataclass
class Flow:
    """A value on its way from the column `root` to the columns `ends`.

    `distance`: seconds from each of its layouts to each other. `rows`: for each value of the root
    column the number of the layout; `ends` has the same for each end.
    """

    distance: Floats
    root: str
    rows: list[int]
    ends: dict[str, list[int]] = field(default_factory=dict)


def arborescence(flow: Flow, tables: Sequence[Table]) -> Table:
    """The least cost of serving all ends from each root.

    `tables`, all that depend on the ends, are added, and the ends minimised away; what else the
    tables depend on stays.
    """
    if not flow.ends:
        return Table((flow.root,), np.zeros(len(flow.rows)))
    grouped = _by_end(flow, tables)
    best: dict[int, Table] = {}
    everything = (1 << len(flow.ends)) - 1
    for chosen in range(1, everything + 1):
        start, goal = (flow.distance[flow.rows], "made") if chosen == everything else (flow.distance, "here")
        if chosen & (chosen - 1) == 0:
            column = list(flow.ends)[chosen.bit_length() - 1]
            best[chosen] = through(start[:, flow.ends[column]], grouped[column], column, goal)
        else:
            best[chosen] = through(start, _joined(best, chosen), "here", goal)
    made = best[everything]
    if flow.root not in made.columns:
        return made.renamed("made", flow.root)
    return add([made, _same("made", flow.root, len(flow.rows))]).without("made")


def _same(first: str, second: str, length: int) -> Table:
    return Table((first, second), np.where(np.eye(length), 0.0, math.inf))


def _by_end(flow: Flow, tables: Sequence[Table]) -> dict[str, Table]:
    """What each end costs. A table over several ends serves the first; the others are told its choice."""
    grouped = {column: [Table((column,), np.zeros(len(rows)))] for column, rows in flow.ends.items()}
    for table in tables:
        first, *more = [c for c in flow.ends if c in table.columns]
        for column in more:
            chosen = f"{column} chosen"
            grouped[column].append(_same(column, chosen, len(flow.ends[column])))
            table = table.renamed(column, chosen)
        grouped[first].append(table)
    return {column: add(group) for column, group in grouped.items()}


def _joined(best: Mapping[int, Table], chosen: int) -> Table:
    """Both parts of each split of the ends `chosen`, served from one layout; the best split."""
    lowest, total = chosen & -chosen, None
    part = (chosen - 1) & chosen
    while part:
        if part & lowest:
            both = add([best[part], best[chosen & ~part]])
            order = total.columns if total else both.columns
            cost = both.spread(order)
            total = Table(order, np.minimum(total.cost, cost) if total else cost)
        part = (part - 1) & chosen
    assert total is not None
    return total
