"""Keeping to the capacity: branch and bound over the sizes in which tensors are stored.

A box holds, for each stored tensor, the least and the most bytes that it may take on a chip. A
tensor stored with less splitting serves at no higher price, so what matters is which tensors are
given the memory that there is; those ways are few, and each box is bounded by the dual ascent alone.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace

import numpy as np

from .bounds import DualAscent
from .prover import Found, Problem, Prover

BOX_SWEEPS = 5  # a box goes on from what its parent has settled


@dataclass(frozen=True)
class _Box:
    """`low[n]` to `high[n]`: the bytes that stored node n may take."""

    low: dict[int, float]
    high: dict[int, float]

    def tightened(self, problem: Problem, capacity: float) -> _Box | None:
        """Without sizes that cannot go with the least sizes of the others; None when it is empty."""
        least = sum(self.low.values())
        low, high = dict(self.low), dict(self.high)
        for n in self.low:
            sizes = problem.graph.nodes[n].stored_bytes
            assert sizes is not None
            room = min(self.high[n], (capacity - least) * (1 + 1e-12) + self.low[n])
            inside = sizes[(sizes >= self.low[n]) & (sizes <= room)]
            if not len(inside):
                return None
            low[n], high[n] = float(inside.min()), float(inside.max())
        return _Box(low, high)

    def fits(self, capacity: float) -> bool:
        """Whether every plan in the box keeps to the capacity."""
        return sum(self.high.values()) <= capacity


def search_boxes(problem: Problem, ascent: DualAscent, capacity: float, prover: Prover) -> Found:
    """The cheapest plan that keeps to `capacity` bytes; `ascent` has settled on the problem without.

    There must be one: every stored tensor at its least.
    """
    sizes = {n: node.stored_bytes for n, node in enumerate(problem.graph.nodes) if node.stored_bytes is not None}
    whole = _Box({n: float(s.min()) for n, s in sizes.items()}, {n: float(s.max()) for n, s in sizes.items()})
    root = whole.tightened(problem, capacity)
    assert root is not None, "the least sizes keep to the capacity"
    winner, best = _enter(problem, ascent, _Box(whole.low, whole.low))
    below = best.price  # the least bound of what is settled
    heap: list[tuple[float, int, _Box, DualAscent, Found]] = []
    serial = 0
    pending = [(root, ascent)]
    while True:
        for box, parent in pending:
            inside, plan = _enter(problem, parent, box)
            if problem.stored_bytes(plan.chosen) <= capacity and plan.price < best.price:
                best, winner = plan, inside
            serial += 1
            heapq.heappush(heap, (plan.bound, serial, box, inside, plan))
        if not heap or heap[0][0] >= best.price * (1 - problem.settings.gap):
            break
        bound, _, box, inside, plan = heapq.heappop(heap)
        if problem.stored_bytes(plan.chosen) <= capacity:
            # The cheapest plan of the box, were there no capacity; most often it keeps to it.
            found = prover.prove(inside, min(plan, best, key=lambda f: f.price))
            if problem.stored_bytes(found.chosen) <= capacity:
                below = min(below, max(bound, found.bound))
                if found.price <= best.price:
                    best, winner = found, inside
                pending = []
                continue
            plan = replace(found, bound=max(bound, found.bound))
        pending = [(child, inside) for child in _split(problem, box, plan, capacity)]
    remaining = heap[0][0] if heap else np.inf
    best = replace(best, bound=min(best.price, below, remaining))
    return prover.plainest(winner, best, capacity)


def _enter(problem: Problem, parent: DualAscent, box: _Box) -> tuple[DualAscent, Found]:
    """The ascent within a box, and a plan there; the plan's bound is the box's."""
    ascent = parent.copy()
    for n in box.low:
        sizes = problem.graph.nodes[n].stored_bytes
        assert sizes is not None
        ascent.allow(n, (sizes >= box.low[n]) & (sizes <= box.high[n]))
    for _ in range(BOX_SWEEPS):
        ascent.sweep()
    return ascent, replace(problem.found(ascent.round()), bound=ascent.bound())


def _split(problem: Problem, box: _Box, plan: Found, capacity: float) -> list[_Box]:
    """Two boxes: the tensor that takes the most above its least takes less, or at least that."""
    taken = {n: float(problem.graph.nodes[n].stored_bytes[plan.chosen[n]]) for n in box.low}  # type: ignore[index]
    n = max(taken, key=lambda k: (taken[k] - box.low[k], -k))
    sizes = problem.graph.nodes[n].stored_bytes
    assert sizes is not None and taken[n] > box.low[n], "a plan of least sizes keeps to the capacity"
    less = float(sizes[sizes < taken[n]].max())
    halves = [replace(box, high={**box.high, n: less}), replace(box, low={**box.low, n: taken[n]})]
    return [b for b in (half.tightened(problem, capacity) for half in halves) if b is not None]
