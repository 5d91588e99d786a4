"""Where a linear relaxation begins: what the ascent's split of prices says that its rows are worth."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ..ilp.model import Model
from ..layouts.space import Mask
from .dual_ascent import DualAscent, Factor
from .integer_program import ChoiceProgram, Flows

Floats = NDArray[np.float64]


def row_worths(program: ChoiceProgram, ascent: DualAscent, arcs: Mapping[int, Mask], unit: float) -> Floats:
    """What each row of a choice program is worth, so that no column costs less than what it takes of them, in the
    program's unit. `arcs`: those of each tensor that the program has.

    A flow from a layout is worth what the tensor is handed there and the cheapest way; each of several uses bears an
    equal share of both. A node is worth the least of its choices.
    """
    worth = np.zeros(len(program.model.low))
    begun: dict[int, int] = {}
    for factor in ascent.factors:
        flows, first = program.flows[factor.tensor], begun.get(factor.tensor, 0)
        if flows is None:
            continue
        uses = range(first, first + len(factor.ports) - 1)
        begun[factor.tensor] = uses.stop
        _flow_worths(worth, flows, uses, factor, arcs[factor.tensor], unit)
        if ascent.groups is not None:
            for group, row in flows.joins.items():
                worth[row] = -float(ascent.shares[factor.tensor, group] * ascent.groups.latency_s[group]) * unit
    worth[: len(program.choice)] = choice_worths(program.model, len(program.choice), worth)
    return worth


def choice_worths(model: Model, nodes: int, rows: Floats) -> Floats:
    """What the first rows of a model, by which each node chooses, are worth: as much as the cheapest of their columns
    has left once all other `rows` are paid for."""
    left = model.cost - np.bincount(model.column, model.coefficient * rows[model.row], len(model.cost))
    choices = model.row < nodes
    least = np.full(nodes, np.inf)
    np.minimum.at(least, model.row[choices], left[model.column[choices]])
    return np.where(np.isfinite(least), least, 0.0)


def _flow_worths(worth: Floats, flows: Flows, uses: range, factor: Factor, arcs: Mask, unit: float) -> None:
    """Write down what the rows of some `uses` of a tensor are worth, those that the ascent bounds as one `factor`."""
    reached = factor.distances.forward(factor.potentials[0][None])[0]
    finite = np.isfinite(reached)
    reached = np.where(finite, reached, reached[finite].max(initial=0.0))
    share = unit / len(uses)
    for use in uses:
        begin = flows.balances[use]
        worth[begin : begin + len(reached)] = reached * share
        if flows.links:
            begin = flows.links[use]
            price = factor.distances.price[arcs]
            worth[begin : begin + len(price)] = -price * share
