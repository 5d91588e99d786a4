"""The search: bounds first, then the integer program on what the bounds leave, then proof.

Without a limit on memory, or where the cheapest plan keeps to it, one program decides. Where it
does not, the bytes that values take are branched on (see `boxes`): with what they may take held in
a box the problem is an easy one again, while capacity rows alone leave a weak relaxation.
"""

from __future__ import annotations

from .bounds import DualAscent
from .boxes import search_boxes
from .limits import JointLimits, Limits
from .prover import Found, Problem, Prover

SWEEPS = 12  # brings the bound within a thousandth or so; more would only leave less to prove


def search(problem: Problem, limits: Limits | JointLimits | None, prover: Prover) -> Found | None:
    """The cheapest plan that keeps to `limits` (None: any plan); None where none was found.

    The bound holds for all plans within the limits. It is below the price by more than the gap of
    the settings where plans could not be told apart well enough, or where there were too many.
    """
    ascent = DualAscent(problem.graph, problem.prices, problem.distances, problem.groups)
    for _ in range(SWEEPS):
        ascent.sweep()
    found = problem.found(ascent.round())
    if limits is None or limits.stores(found.chosen):
        found = prover.prove(ascent, found)
        if limits is None or _fits(found, limits):
            plain = prover.plainest(ascent, found)
            return plain if limits is None or _fits(plain, limits) else found
    return search_boxes(problem, ascent, limits, prover, max(ascent.bound(), found.bound))


def _fits(plan: Found, limits: Limits | JointLimits) -> bool:
    """Whether a plan keeps to the limits, if need be with its projections apart."""
    return limits.fits(plan, apart=False) or limits.fits(plan)
