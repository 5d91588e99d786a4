"""A price on memory: what makes plans keep to a limit, and gives a bound of all plans that do.

Where a plan takes more than there is at some point, every byte there is charged for, and each plan gets
back what all the room costs (Lagrangian relaxation). No plan within the limit pays more than it gets back,
so the charged bound holds for it; and the cheapest plan at the right price holds about what there is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from .dual_ascent import DualAscent
from .exact import Candidate
from .memory_bounds import Load

SWEEPS = 5
FIRST = 0.02  # of the bound, what all the room at a point is charged at first
GROWTH = 4.0
NEAR = 1.3  # between a price that is too low and one that is enough


@dataclass(frozen=True, eq=False)
class Pressed:
    """An ascent with charges, the best bound that they gave, and the plan that was read off before any were
    made."""

    ascent: DualAscent
    bound: float
    plan: Candidate


def press(
    ascent: DualAscent,
    loads: Sequence[Load],
    read: Callable[[Sequence[int]], Candidate],
    fits: Callable[[Candidate], bool],
    turns: int,
    combined: bool = False,
) -> Pressed | None:
    """Charge for the memory of `loads` until the plan that is read off keeps to the limits, and bring the charge
    near the least that does. `fits` is asked of every plan on the way. `combined`: the bound is one of plans that
    run some collectives as one. None where no plan was read off."""
    best: Pressed | None = None
    failed: dict[int, float] = {}  # of each load the highest charge with which too much was taken
    enough: dict[int, float] = {}  # and the lowest with which the plan kept to the limits
    charged: dict[int, float] = {}
    for turn in range(turns + 1):
        for _ in range(SWEEPS):
            ascent.sweep()
        bound, chosen = ascent.bound() + (ascent.combining() if combined else 0.0), tuple(ascent.round())
        if not np.isfinite(ascent.price_of(chosen)):
            return best
        plan = read(chosen)
        kept = fits(plan)
        if best is None or bound > best.bound:
            best = Pressed(ascent, bound, plan if best is None else best.plan)
        if turn == turns or not loads or (kept and not charged):
            return best
        taken = [load.of(chosen) / load.room for load in loads]
        if kept:
            enough |= {n: min(charged[n], enough.get(n, np.inf)) for n in charged}
            n = max(charged, key=lambda n: charged[n])
        else:
            n = int(np.argmax(taken))
            failed[n] = max(charged.get(n, 0.0), failed.get(n, 0.0))
            enough = {m: most for m, most in enough.items() if most > charged.get(m, 0.0)}
        low, high = failed.get(n, 0.0), enough.get(n, np.inf)
        if low * NEAR >= high:
            return best
        first = FIRST * (max(bound, plan.price) or 1.0)
        now = max(low * GROWTH, first) if high == np.inf else float(np.sqrt(max(low, first * 1e-2) * high))
        ascent = ascent.copy()
        more = now - charged.get(n, 0.0)
        ascent.charge({m: size * (more / loads[n].room) for m, size in loads[n].bytes.items()}, more)
        charged[n] = now
    return best
