"""What a plan pays for its collectives: a tree for each tensor, those that may run as one combined.

Where nothing can be combined the cheapest trees are the answer. Otherwise a group that one tensor
pays for is open to the others at the price of the bytes alone; from a first set of open groups this
is settled in turns, and the cheapest bill on the way is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .graph import Tensor
from .groups import ALONE, Groups
from .shared_tree import shared_tree
from .solver import Settings
from .space import Array
from .trees import Distances

Floats = NDArray[np.float64]
TURNS = 8


@dataclass(frozen=True)
class Bill:
    """`arcs[t]`: the arcs of tensor t, in an order in which they can be applied; `groups[t]`: the
    group in which each of them is combined, or ALONE. `price`: of all, each group's latency once."""

    arcs: tuple[tuple[int, ...], ...]
    groups: tuple[tuple[int, ...], ...]
    price: float

    @property
    def shared(self) -> frozenset[int]:
        """The groups that are used."""
        return frozenset(g for each in self.groups for g in each if g != ALONE)


def bill(
    tensors: Sequence[Tensor],
    distances: Sequence[Distances | None],
    chosen: Sequence[int],
    groups: Groups | None,
    settings: Settings,
    shared: frozenset[int] = frozenset(),
) -> Bill:
    """The bill of a plan, by the prices of collectives that run alone, with the groups `shared` open at first."""
    trees: list[tuple[int, ...]] = [() for _ in tensors]
    best: Bill | None = None
    tried: set[frozenset[int]] = set()
    while best is None or (groups is not None and shared not in tried and len(tried) < TURNS):
        for t, (tensor, near) in enumerate(zip(tensors, distances, strict=True)):
            of = None if groups is None else groups.of[t]
            if near is None or (tried and (of is None or not (of >= 0).any())):
                continue
            if groups is not None and of is not None and shared:
                open_ = np.isin(of, sorted(shared))
                near = near.repriced(near.price - np.where(open_, groups.latency_s[of], 0.0))
            trees[t] = tuple(shared_tree(tensor, near, tensor.ends(chosen), settings))
        tried.add(shared)
        found = _add_up(tensors, distances, trees, chosen, groups)
        if best is None or found.price < best.price:
            best = found
        shared = found.shared
    return best


def _add_up(
    tensors: Sequence[Tensor],
    distances: Sequence[Distances | None],
    trees: Sequence[tuple[int, ...]],
    chosen: Sequence[int],
    groups: Groups | None,
) -> Bill:
    price = 0.0
    combined: list[tuple[int, ...]] = []
    for t, (tensor, near) in enumerate(zip(tensors, distances, strict=True)):
        of = None if groups is None else groups.of[t]
        if near is None or not trees[t]:
            combined.append(())
            continue
        price += float(near.price[list(trees[t])].sum())
        combined.append((ALONE,) * len(trees[t]) if of is None else _combined(tensor, near, of, trees[t], chosen))
    if groups is not None:
        each = [g for own in combined for g in own if g != ALONE]
        price -= sum(float(groups.latency_s[g]) for g in each) - sum(float(groups.latency_s[g]) for g in set(each))
    return Bill(tuple(trees), tuple(combined), price)


def _combined(
    tensor: Tensor, near: Distances, of: Array, tree: Sequence[int], chosen: Sequence[int]
) -> tuple[int, ...]:
    """The groups of a tree's arcs. A group takes one collective of each value, and along a path they
    follow in their order: two values whose paths crossed it could not wait for each other."""
    last = {tensor.ends(chosen)[0]: ALONE}
    out: list[int] = []
    for arc in tree:
        before = last[int(near.arcs.source[arc])]
        group = int(of[arc])
        if group <= before or group in out:
            group = ALONE
        out.append(group)
        last[int(near.arcs.target[arc])] = max(before, group)
    return tuple(out)
