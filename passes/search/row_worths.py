"""Where a linear relaxation begins: what the ascent's split of prices says that its rows are worth."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ..ilp.model import Model
from ..layouts.space import Mask
from .dual_ascent import DualAscent, Factor
from .integer_program import ChoiceProgram, Flows
from .steiner import Distances

Floats = NDArray[np.float64]


def row_worths(program: ChoiceProgram, ascent: DualAscent, arcs: Mapping[int, Mask], unit: float) -> Floats:
    """What each row of a choice program is worth, so that no column costs less than what it takes of them, in the
    program's unit. `arcs`: those of each tensor that the program has.

    A flow from a layout is worth what the tensor is handed there and the cheapest way, shared by its uses as
    `use_worths` does, the price of an arc as they need it. A node is worth the least of its choices.
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
    each = use_worths(factor)
    rises = [_rise(factor.distances, own)[arcs] for own in each]
    left = factor.distances.price[arcs] - sum(rises)
    for use, own, rise in zip(uses, each, rises, strict=True):
        begin = flows.balances[use]
        worth[begin : begin + len(own)] = own * unit
        if flows.links:
            begin = flows.links[use]
            # With what no use asks for handed out as well fewer columns cost nothing, and a simplex has half the steps.
            worth[begin : begin + len(rise)] = -(rise + left / len(each)) * unit


def use_worths(factor: Factor) -> list[Floats]:
    """What a flow of each use of a tensor is worth at each layout, [layouts], in the unit of its prices, so that all of
    them together come to the least value of `factor`, or to little less. At the source they are in all at most what the
    tensor is handed there; a use makes up where it ends for what it is handed; along an arc they rise in all by no more
    than it costs.

    One use after the other is given as much at the source as it can take over arcs at what those before have left of
    their prices, and as little elsewhere (after Wong 1984, dual ascent for Steiner trees in a directed graph).
    """
    given, near = factor.potentials[0], factor.distances
    ends = factor.potentials[1:]
    found = []
    for use, end in enumerate(ends):
        left = [near.backward(other[None])[0] for other in ends[use:]]
        low = -_finite(left[0])
        spare = given + sum(left)
        most = low + (spare - spare.min())
        own = np.clip(near.forward(most[None])[0], low, -end.min())
        found.append(own)
        if use + 1 < len(ends):
            given = given - own
            near = near.repriced(np.maximum(0.0, near.price - _rise(near, own)))
    return found


def _rise(near: Distances, worth: Floats) -> Floats:
    """By how much a worth rises along each arc, 0 where it falls."""
    return np.maximum(0.0, worth[near.arcs.target] - worth[near.arcs.source])


def _finite(value: Floats) -> Floats:
    """A value as it is, and the largest where it is infinite."""
    finite = np.isfinite(value)
    return np.where(finite, value, value[finite].max(initial=0.0))
