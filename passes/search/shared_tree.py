"""The cheapest tree of a tensor, whatever the number of its uses.

Few distinct layouts are reached by the dynamic program of `steiner`, whose work is exponential in
their number; for more the tree is an integer program of its own, small and nearly integral.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..ilp.solver import Settings, solve
from .graph import Graph, Node, Port, Result, Tensor
from .integer_program import choice_program
from .steiner import Distances, cheapest_tree

FEW = 8  # distinct layouts that the dynamic program takes


def shared_tree(tensor: Tensor, near: Distances, ends: tuple[int, Sequence[int]], settings: Settings) -> list[int]:
    """The arcs of the cheapest tree from the first of `ends` to all of the others, in an order in
    which they can be applied. All prices must be positive."""
    root, targets = ends
    wanted = sorted(set(targets) - {root})
    if len(wanted) <= FEW:
        return cheapest_tree(near, root, wanted)
    node = Node(Result(tensor.value.name), np.zeros(1), np.zeros(1))
    fixed = [Port(n, np.array([row])) for n, row in enumerate([root, *wanted])]
    alone = Graph((node,) * len(fixed), (replace(tensor, source=fixed[0], uses=tuple(fixed[1:])),))
    scale = 1e3 / float(near.price[near.price > 0].max(initial=1e-300))
    program = choice_program(alone, [np.zeros(1)] * len(fixed), [(near.arcs, near.price * scale)])
    answer = solve(program.model, settings)
    assert answer.x is not None, "all layouts can be reached"
    first = len(fixed)  # the paid arcs come right after the nodes
    return _in_order(near, root, wanted, np.flatnonzero(answer.x[first : first + len(near.arcs)] > 0.5).tolist())


def _in_order(near: Distances, root: int, wanted: Sequence[int], used: Sequence[int]) -> list[int]:
    """Those of the `used` arcs that lead from the root to what is wanted, nearest first."""
    parent: dict[int, int] = {}
    reached = [root]
    for at in reached:
        for arc in used:
            target = int(near.arcs.target[arc])
            if near.arcs.source[arc] == at and target not in parent and target != root:
                parent[target] = arc
                reached.append(target)
    needed: set[int] = set()
    for target in wanted:
        while target != root and parent[target] not in needed:
            needed.add(parent[target])
            target = int(near.arcs.source[parent[target]])
    return [parent[t] for t in reached[1:] if parent[t] in needed]
