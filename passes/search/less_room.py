"""All plans of a side at once, where boxes do not close: by a program with a row for each point in time.

Its optimum is a bound of all of them. Its rows know the least that a plan holds, not each copy, so that what it finds
may hold a little too much: then less room is asked for, as much less as that was, and what fits costs little more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ...ir.record import record
from ..layouts.space import Mask
from .combinable import Combining
from .dual_ascent import DualAscent
from .exact import Prover
from .limits import JointLimits, Limits
from .memory_bounds import Load
from .problem import Candidate

TIGHTER = 4  # times that less room is asked for
BEYOND = 1.1  # how much less, by what a plan takes too much
ABOVE = (0.02, 0.05)  # a relaxation, where plans are looked for before all that cost less than a known one
ROUNDED = 1e-6  # of a price: a bound that is as near says that nothing is cheaper
SWEEPS = 6  # of the ascent, which bring its bound within some hundredths
MOST_COLUMNS = 40_000  # of a program
FEW_COLUMNS = 10_000  # of one that a solver is asked: with more it takes a minute for its cuts and heuristics
MOST_LEFT = 10_000  # of those that its relaxation leaves to it
MOST_WORK = 2_000_000  # columns of all relaxations that are looked at of one, a tenth of a second for 20,000


@record(eq=False)
class LessRoom:
    """The `limits` of a side with a `share` of the room, as far as rows of a program say it. `by_levels`: whether plans
    of a large problem are looked for by what nodes take of it."""

    limits: Limits | JointLimits
    by_levels: bool = True
    share: float = 1.0

    @property
    def combining(self) -> Combining:
        """As the limits have it."""
        return self.limits.combining

    def fits(self, plan: Candidate) -> bool:
        """Whether a plan keeps to the limits, with all the room that there is."""
        return self.limits.fits(plan)

    def loads(self, allowed: Sequence[Mask]) -> list[Load]:
        """What plans take of the share at the least."""
        return [replace(load, room=load.room * self.share) for load in self.limits.loads(allowed)]


@record(eq=False)
class Whole:
    """A `bound` of all plans of a side that keep to limits, and the cheapest that was `found`."""

    bound: float
    found: Candidate | None


def whole(
    prover: Prover, limits: Limits | JointLimits, ascent: DualAscent, least: float, price: float, by_levels: bool = True
) -> Whole:
    """What a program says of all plans that keep to `limits` and cost less than `price`; `least` is a bound of them.
    `ascent` has settled on them without charges for memory. `by_levels`: as `LessRoom` has it."""
    allowed = limits.tightened([np.ones(len(each), dtype=bool) for each in ascent.prices])
    if allowed is None:
        return Whole(price, None)
    own = ascent.copy()
    for node, mask in enumerate(allowed):
        own.allow(node, mask)
    for _ in range(SWEEPS):
        own.sweep()
    asked = LessRoom(limits, by_levels)
    bound, found = max(least, own.bound()), None
    for _ in range(TIGHTER):
        least, found, wrong = _cheapest(prover, asked, own, bound, price)
        if asked.share == 1.0:
            bound = least
        if found is not None or wrong is None:
            break
        asked = replace(asked, share=asked.share * (1 - BEYOND * max(limits.excess(wrong), 0.0)))
    return Whole(min(bound, price), found)


def _cheapest(
    prover: Prover, limits: LessRoom, ascent: DualAscent, least: float, price: float
) -> tuple[float, Candidate | None, Candidate | None]:
    """A bound of the plans below a `price`, which is that price where there is none, and at least the `least` known;
    the cheapest, and one that the program took for one that keeps to the limits, if it does not."""
    some = Candidate(tuple(ascent.round()), price, ascent.bound())
    for share in (*ABOVE, np.inf):
        most = min(price, least + share * abs(least))
        answer = _below(prover, limits, ascent, some.at_most(most))
        if answer is None:
            break
        plan, wrong = answer
        least = max(least, plan.bound)
        if wrong is not None:
            return least, None, wrong
        if plan.price < most:
            return least, plan, None
        if most >= price or (_is_by_levels(prover, limits, price) and plan.bound < most * (1 - ROUNDED)):
            break  # with more columns no more is settled
    return least, None, None


def _is_by_levels(prover: Prover, limits: LessRoom, price: float) -> bool:
    """Whether plans that cost less than a price are looked for by levels."""
    return limits.by_levels and prover.problem.columns >= FEW_COLUMNS and price < np.inf


def _below(
    prover: Prover, limits: LessRoom, ascent: DualAscent, known: Candidate
) -> tuple[Candidate, Candidate | None] | None:
    """As `Prover.within`: the cheapest plan below the price of `known`, or that, with a bound of all; and one that was
    taken for one of them and does not keep to the limits."""
    if not _is_by_levels(prover, limits, known.price):
        return prover.within(ascent, known, limits, MOST_COLUMNS, MOST_LEFT)
    most, gap = max(1, MOST_WORK // prover.problem.columns), prover.problem.settings.gap
    answer = prover.by_levels(ascent, known, limits, MOST_COLUMNS, gap, less=True, most_relaxed=most)
    if answer is None:
        return None
    same = replace(known, bound=min(known.price, max(known.bound, answer.bound)))
    if answer.plan is None or answer.plan.price >= known.price:
        return same, None
    if not limits.fits(answer.plan):
        return same, answer.plan
    return replace(answer.plan, bound=min(answer.plan.price, same.bound)), None
