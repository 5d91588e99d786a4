"""The search: bounds first, then the integer program on what the bounds leave, then proof.

Without a limit on memory, or where the cheapest plan keeps to it, one program decides. It is not asked where a
rounded plan stores too much, and the plans that keep to the limit are known to cost more than that one. Where memory
binds, the bytes that values take are branched on (see `branch_and_bound`): with what they may take held in a box the
problem is an easy one again, while capacity rows alone leave a weak relaxation. Plans in which
every collective runs alone are looked at first, by themselves: of them it is known when each step runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from ...ir.record import record
from ..layouts.space import too_large
from ..plan import PROVEN, Cutoff
from .alike_copies import search_alike
from .branch_and_bound import (
    CLOSE,
    FEW_IN_PLACE,
    FEW_SIDES,
    MANY_COLUMNS,
    MOST_IN_PLACE,
    Boxes,
    branch_and_bound,
    enter,
    share,
    unsettled,
)
from .depth import is_proven, search_copies
from .dual_ascent import DualAscent
from .exact import Prover
from .graph import MAX_LAYOUTS
from .image_program import Among, ImageSearch
from .images import images
from .limits import JointLimits, Limits
from .problem import SWEEPS, Candidate, Problem
from .settle import is_looked_at, settle
from .side import Side

FAR = 0.01  # a plan that may be so much too dear says little about what the cheapest one holds
MOST_COLUMNS = 500_000  # of a problem of which all plans are looked at where copies that choose alike prove nothing
MOST_FREE = 200_000  # columns of a program without limits, where plans within them have been looked at already


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
    is infinite if there is none; and InputError where there are too many layouts to look at.
    """
    copies = search_copies(prover)
    if copies is None:
        return _among_all(prover, limits, below, sides)
    if below < math.inf and copies.bound >= below:
        raise Cutoff(copies.bound)
    settled = is_proven(problem, copies) or problem.columns > MOST_COLUMNS
    if settled and (limits is None or limits.fits(copies)):
        if copies.price >= below:
            raise Cutoff(copies.bound)
        return copies
    if limits is None:
        return _among_all(prover, limits, below, sides)
    return _written_out(prover, copies.bound, limits, below, sides)


def _written_out(
    prover: Prover, least: float, limits: Limits | JointLimits, below: float, sides: Callable[[], Iterable[Side]]
) -> Candidate:
    """As `search`, of blocks written out one after the other, where memory binds: the cheapest plan in which copies
    choose alike first, and then, where they are not too many, one of all that costs less. `least`: a bound of all."""
    problem = prover.problem
    best = search_alike(prover, limits, next(iter(sides())).limits, below)
    if best is None:
        if below < math.inf and problem.columns > MOST_COLUMNS:
            raise Cutoff(least)
        return _among_all(prover, limits, below, sides)
    best = replace(best, bound=min(best.price, max(best.bound, least)))
    if is_proven(problem, best) or problem.columns > MOST_COLUMNS or _is_too_large(problem):
        return best
    try:
        return _among_all(prover, limits, best.price, sides)
    except Cutoff as cutoff:
        return replace(best, bound=min(best.price, max(best.bound, cutoff.bound)))


def _among_all(
    prover: Prover, limits: Limits | JointLimits | None, below: float, sides: Callable[[], Iterable[Side]]
) -> Candidate:
    """As `search`, of all plans one by one."""
    problem = prover.problem
    if _is_too_large(problem):
        raise too_large()
    ascent = problem.settled.copy()
    if below < math.inf:
        if ascent.bound() >= below:
            raise Cutoff(ascent.bound())
        _refute(ascent.copy(), below)
    if ascent.bound() == math.inf:
        raise Cutoff(math.inf)
    rounded = problem.rounded(ascent)
    if limits is None or limits.stores(rounded.chosen):
        proven = _proven(prover, ascent, rounded, limits, below)
        if proven.fits:
            return proven.plan
        assert limits is not None, "without limits a plan fits"
        least = max(ascent.bound(), proven.plan.bound)
        return _sides(_begun(sides(), prover, limits, ascent, least, below), prover, least, below)
    least = ascent.bound()
    every = _begun(sides(), prover, limits, ascent, least, below)
    far = ascent.bound() < rounded.price * (1 - FAR) and min(side.bound for side in every) < rounded.price
    if far and not all(side.settled for side in every):
        # The cheapest plan of all may be so much cheaper that it keeps to the limits after all.
        proven = _proven(prover, ascent, rounded, limits, below, MOST_FREE)
        if proven.fits and proven.plan.bound >= proven.plan.price * (1 - problem.settings.gap):
            return proven.plan
        least = max(least, proven.plan.bound)
    return _sides(every, prover, least, below)


def least_price(problem: Problem) -> float:
    """What every plan costs at the least, as an ascent of some sweeps shows. Raises InputError where there are too many
    layouts to look at."""
    if _is_too_large(problem):
        raise too_large()
    return problem.settled.bound()


def _is_too_large(problem: Problem) -> bool:
    phases = {node.phase for node in problem.graph.nodes if node.phase is not None}
    return problem.graph.layouts > MAX_LAYOUTS * max(1, len(phases))


@record
class _Proven:
    """The cheapest plan of all, whether or not it keeps to the limits, and if it `fits` them."""

    plan: Candidate
    fits: bool


def _proven(
    prover: Prover,
    ascent: DualAscent,
    known: Candidate,
    limits: Limits | JointLimits | None,
    below: float,
    most_columns: int | None = None,
) -> _Proven:
    """The cheapest plan of those that keep to limits and of those that do not, or with a bound alone where there are
    more than `most_columns`. Raises Cutoff where none costs less than `below`."""
    found = prover.prove(ascent, known.at_most(below), most_columns)
    if found.price >= below and (limits is None or found.bound >= below):
        raise Cutoff(found.bound)
    if found.price < below and (limits is None or limits.stores(found.chosen)):
        for plan in (prover.plainest(ascent, found), found):
            if limits is None or limits.fits(plan):
                return _Proven(plan, True)
    assert limits is not None, "without limits a plan is found, or none is cheap enough"
    return _Proven(found, False)


def _begun(
    sides: Iterable[Side],
    prover: Prover,
    limits: Limits | JointLimits,
    ascent: DualAscent,
    least: float,
    below: float,
) -> list[Boxes]:
    """All sides, each with a box. `ascent` has settled on the problem, and `least` is a bound of it."""
    told = list(sides)
    among = _among_images(prover, limits, told[0].limits, ascent, least, below)
    every = [_boxes(side, prover, below) for side in told]
    if among is not None:
        for side in every:
            own = side.prover is prover
            side.begin(among.bound, among.found if own else None, among.ascent)
        share(every)
    enter(every, least)
    return every


def _among_images(
    prover: Prover,
    limits: Limits | JointLimits,
    closer: Limits | JointLimits,
    ascent: DualAscent,
    least: float,
    below: float,
) -> Among | None:
    """What plans of all sides of a large problem come to with their images under renamings of axes taken as one, where
    some are alike."""
    found = images(prover.problem) if prover.problem.columns >= MANY_COLUMNS else None
    return None if found is None else ImageSearch(prover, limits, found, ascent, closer).run(least, below)


def _sides(every: Sequence[Boxes], prover: Prover, least: float, below: float) -> Candidate:
    """The cheapest plan of all sides, of which `least` is a bound. Raises Cutoff where none was found that costs less
    than `below`."""
    for side in every:  # of many only the one of which most is known, until few are left
        side.may_settle = is_looked_at(side.side)
        side.most_in_place = FEW_IN_PLACE if side.may_settle else MOST_IN_PLACE
        side.settles = side.may_settle and (len(every) <= FEW_SIDES or side.problem.groups is None)
    branch_and_bound(every)
    settled, bounds = _settled(every)
    gap = prover.problem.settings.gap
    left = [n for n, side in enumerate(every) if side.settles and bounds[n] < side.price * (1 - gap)]
    for n in left:  # boxes were left to what has not settled them
        every[n].settles, every[n].may_settle, every[n].most_in_place = False, False, MOST_IN_PLACE
    branch_and_bound([every[n] for n in left])
    share(every)
    bounds = [
        max(bound, side.bound) if n in left else bound
        for n, (bound, side) in enumerate(zip(bounds, every, strict=True))
    ]
    prover.solve_s += sum(side.prover.solve_s for side in every if side.prover is not prover)
    prover.read += sum(side.read for side in every)
    known = [(side.best.price, n) for n, side in enumerate(every) if side.best is not None]
    if settled is not None and (not known or settled.price <= min(known)[0]):
        best = settled  # rows do not tell it from cheaper ones
    elif known:
        best = every[min(known)[1]].plainest()
    else:
        raise Cutoff(max(least, min(bounds)))
    bound = min(best.price, *bounds)
    if gap > PROVEN:  # plans that are nearer to each other were not told apart
        bound = min(bound, best.price * (1 - gap))
    return replace(best, bound=min(best.price, max(least, bound)))


def _settled(every: Sequence[Boxes]) -> tuple[Candidate | None, list[float]]:
    """Of what boxes have left open the cheapest plan that is found copy by copy, if one is cheaper than what is known,
    and a bound of each side. Where many are left, with a plan known, of one at the most, which is not left to boxes,
    and for no small gap: these close it as soon."""
    best, bounds = None, [side.bound for side in every]
    known, few = any(side.best is not None for side in every), len(unsettled(every)) <= FEW_SIDES
    for n in sorted(range(len(every)), key=lambda n: _settled_next(every[n], known)):
        side = every[n]
        bounds[n], enough = side.bound, side.price * (1 - side.problem.settings.gap)
        if not few and (known or best is not None):
            enough = side.price * (1 - CLOSE) if side.settles else -math.inf
        if bounds[n] < enough:
            found, more = settle(side.side, side.prover, side.price)
            bounds[n] = max(bounds[n], more)
            if found is not None:
                best = found
                for other in every:
                    other.below, other.elsewhere = min(other.below, found.price), True
    return best, bounds


def _settled_next(side: Boxes, known: bool) -> tuple[bool, float]:
    """Where to look first for the cheapest plan of all: where the bound is least, or while none is known where most is
    known of what plans hold."""
    return not known and side.problem.groups is not None, side.bound


def _boxes(side: Side, prover: Prover, below: float) -> Boxes:
    """A side with its prover: that of the whole problem if it is of that."""
    return Boxes(side, prover if side.problem is prover.problem else Prover(side.problem), below)


def _refute(ascent: DualAscent, below: float) -> None:
    """Raise Cutoff where the bounds of choices show in a few sweeps that no plan costs less than `below`:
    what no such plan can contain is left out, and so the bound of what is left rises."""
    bound = ascent.bound()
    for left in range(SWEEPS, 0, -1):
        alive, _ = ascent.alive(below - bound)
        if bound >= below or not all(mask.any() for mask in alive):
            raise Cutoff(below)
        for node, mask in enumerate(alive):
            ascent.allow(node, mask)
        ascent.sweep()
        before, bound = bound, ascent.bound()
        if bound + (bound - before) * left < below:  # it rises less with each
            return
