"""The search: bounds first, then the integer program on what the bounds leave, then proof.

Without a limit on memory, or where the cheapest plan keeps to it, one program decides. Where it
does not, the bytes that values take are branched on (see `branch_and_bound`): with what they may take held in
a box the problem is an easy one again, while capacity rows alone leave a weak relaxation. Plans in which
every collective runs alone are looked at first, by themselves: of them it is known when each step runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

from ..plan import Cutoff
from .branch_and_bound import Side, branch_and_bound
from .dual_ascent import DualAscent
from .exact import Candidate, Problem, Prover
from .limits import JointLimits, Limits
from .settle import settle

FAR = 0.01  # a plan that may be so much too dear says little about what the cheapest one holds
SWEEPS = 12  # brings the bound within a thousandth or so; more would only leave less to prove


def search(
    problem: Problem,
    limits: Limits | JointLimits | None,
    prover: Prover,
    below: float = math.inf,
    sides: Callable[[], Iterable[Side]] = tuple,
) -> Candidate:
    """The cheapest plan that keeps to `limits` (None: any plan). `sides`: all plans, told apart.

    The bound holds for all plans within the limits. It is below the price by more than the gap of
    the settings where plans could not be told apart well enough, or where there were too many.
    Raises Cutoff as soon as it shows that no plan costs less than `below`, or where none was found: its bound
    is infinite if there is none.
    """
    ascent = _ascent(problem)
    for _ in range(SWEEPS):
        ascent.sweep()
        if below < math.inf and ascent.bound() >= below:
            raise Cutoff(ascent.bound())
    if below < math.inf:
        _refute(ascent.copy(), below)
    found = problem.found(ascent.round())
    if limits is None or limits.stores(found.chosen) or ascent.bound() < found.price * (1 - FAR):
        found = prover.prove(ascent, found.at_most(below))
        if found.price >= below and (limits is None or found.bound >= below):
            raise Cutoff(found.bound)
        if found.price < below and (limits is None or _fits(found, limits)):
            plain = prover.plainest(ascent, found)
            return plain if limits is None or _fits(plain, limits) else found
    assert limits is not None, "without limits a plan is found, or none is cheap enough"
    return _sides(sides(), prover, ascent, max(ascent.bound(), found.bound), below)


def _sides(sides: Iterable[Side], prover: Prover, ascent: DualAscent, least: float, below: float) -> Candidate:
    """The cheapest plan of all sides. `ascent` has settled on the problem, and `least` is a bound of it. Raises
    Cutoff where none was found that costs less than `below`."""
    best: Candidate | None = None
    bounds: list[float] = []
    for side in sides:
        own, start = prover, ascent
        if side.problem is not prover.problem:
            own, start = Prover(side.problem), _ascent(side.problem)
            for _ in range(SWEEPS):
                start.sweep()
        most = below if best is None else min(below, best.price)
        found, bound = _among(side, own, start, least, most)
        bounds.append(bound)
        best = found or best
        if own is not prover:
            prover.solve_s += own.solve_s
    if best is None:
        raise Cutoff(min(bounds))
    return replace(best, bound=min(best.price, *bounds))


def _among(
    side: Side, prover: Prover, ascent: DualAscent, least: float, below: float
) -> tuple[Candidate | None, float]:
    """The cheapest plan of a side, None where none was found that costs less than `below`, and a bound of all."""
    found: Candidate | None = None
    try:
        found = branch_and_bound(side, prover, ascent, least, below)
        bound = found.bound
    except Cutoff as beaten:
        bound = beaten.bound
    price = below if found is None else found.price
    if bound < price * (1 - side.problem.settings.gap):
        other, more = settle(side, prover, ascent, price)
        found, bound = other or found, max(bound, more)
    return found, bound


def _ascent(problem: Problem) -> DualAscent:
    return DualAscent(problem.graph, problem.prices, problem.distances, problem.groups)


def _refute(ascent: DualAscent, below: float) -> None:
    """Raise Cutoff where the bounds of choices show in a few sweeps that no plan costs less than `below`:
    what no such plan can contain is left out, and so the bound of what is left rises."""
    for _ in range(SWEEPS):
        slack = below - ascent.bound()
        alive, _ = ascent.alive(slack)
        if slack <= 0 or not all(mask.any() for mask in alive):
            raise Cutoff(below)
        for node, mask in enumerate(alive):
            ascent.allow(node, mask)
        ascent.sweep()


def _fits(plan: Candidate, limits: Limits | JointLimits) -> bool:
    """Whether a plan keeps to the limits, if need be with its projections apart."""
    return limits.fits(plan, apart=False) or limits.fits(plan)
