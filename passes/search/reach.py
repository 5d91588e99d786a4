"""What a plan may choose and over which arcs it may move values, if it keeps to the limits and costs less than another.

An ascent bounds what a plan costs with each choice and with each arc. What does not go with the memory is left out as
well, and the bounds of what is left are closer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from ...ir.record import record
from ..layouts.space import Mask
from .dual_ascent import DualAscent
from .side import Side

ROUNDS, SWEEPS = 6, 2  # times that choices are left out, and of the ascent for each
LESS = 0.98  # of the choices that are left, with which it is worth to go on
SLACK = 1e-9  # relative: bounds are sums, which are rounded


@record(eq=False)
class Reach:
    """The choices of each node, and the arcs of each tensor that is moved, as `side.detours.moves` has them."""

    choices: list[Mask]
    arcs: Mapping[int, Mask]

    def open_arcs(self, side: Side) -> int:
        """How many arcs are left, over all readers of all values."""
        return sum(int(mask.sum()) * len(side.problem.graph.tensors[t].uses) for t, mask in self.arcs.items())


def reach(side: Side, price: float) -> Reach | None:
    """What plans of a side are made of that keep to its limits and cost no more than `price`, which may be infinite;
    None where there is no such plan."""
    problem = side.problem
    choices = [np.ones(len(each), dtype=bool) for each in problem.prices]
    if problem.representatives is not None:
        node, mask = problem.representatives
        choices[node] = mask.copy()
    moved = {t: len(arcs) for t, arcs in enumerate(side.detours.moves.arcs) if arcs is not None}
    found = Reach(choices, {t: np.ones(count, dtype=bool) for t, count in moved.items()})
    ascent = problem.settled.copy()
    for _ in range(ROUNDS):
        before = sum(int(mask.sum()) for mask in found.choices)
        tight = side.limits.tightened(found.choices)
        if tight is None:
            return None
        if price == math.inf:
            return Reach(tight, found.arcs)
        for node, mask in enumerate(tight):
            ascent.allow(node, mask)
        for _ in range(SWEEPS):
            ascent.sweep()
        left = _less(side, ascent, price, Reach(tight, found.arcs))
        if left is None:
            return None
        found = left
        if sum(int(mask.sum()) for mask in found.choices) > LESS * before:
            break
    return found


def _less(side: Side, ascent: DualAscent, price: float, known: Reach) -> Reach | None:
    """Without what an ascent shows to cost more than `price`; None where nothing is left."""
    slack = price - ascent.bound() + SLACK * abs(price)
    if not slack >= 0:
        return None
    choices = [mask & own for mask, own in zip(known.choices, ascent.alive(slack)[0], strict=True)]
    if not all(mask.any() for mask in choices):
        return None
    arcs = _arcs(side, ascent, slack)
    return Reach(choices, {t: mask & arcs[t] for t, mask in known.arcs.items()})


def _arcs(side: Side, ascent: DualAscent, slack: float) -> dict[int, Mask]:
    """Of each tensor the arcs over which a plan within the slack of the bound may go. Ascents have those alone that
    cheapest plans need, which are as cheap between any two layouts as all."""
    moves = side.detours.moves
    groups = moves.groups if side.problem.groups is not None else None
    found = {t: np.zeros(len(arcs), dtype=bool) for t, arcs in enumerate(moves.arcs) if arcs is not None}
    bundles = [0] * len(moves.arcs)
    for factor in ascent.factors:
        bundles[factor.tensor] += 1
    for factor in ascent.factors:
        t = factor.tensor
        arcs, least_s, of = moves.arcs[t], moves.seconds[t], None if groups is None else groups.of[t]
        assert arcs is not None, "it is read"
        if groups is not None and of is not None:  # what runs as one with others may pay nothing of what they share
            least_s = least_s - np.where(of >= 0, groups.latency_s[of], 0.0)
        found[t] |= factor.over(arcs, least_s / bundles[t]) <= factor.minimum() + slack
    return found
