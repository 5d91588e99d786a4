"""The search: bounds first, then the integer program on what the bounds leave, then proof.

Without a limit on memory, or where the cheapest plan keeps to it, one program decides. Where it
does not, the sizes in which tensors are stored are branched on (see `boxes`): with the sizes held
in a box the problem is an easy one again, while a capacity row alone leaves a weak relaxation.
"""

from __future__ import annotations

from .bounds import DualAscent
from .boxes import search_boxes
from .prover import Found, Problem, Prover

SWEEPS = 12  # brings the bound within a thousandth or so; more would only leave less to prove


def search(problem: Problem, capacity: float | None, prover: Prover) -> Found:
    """The cheapest plan that stores at most `capacity` bytes on a chip (None: any amount).

    There must be one: every stored tensor at its least.
    """
    ascent = DualAscent(problem.graph, problem.prices, problem.distances, problem.groups)
    for _ in range(SWEEPS):
        ascent.sweep()
    plan = ascent.round()
    if capacity is None or problem.stored_bytes(plan) <= capacity:
        found = prover.prove(ascent, problem.found(plan))
        found = prover.plainest(ascent, found, capacity)
        if capacity is None or problem.stored_bytes(found.chosen) <= capacity:
            return found
    return search_boxes(problem, ascent, capacity, prover)
