"""The choice of layouts for a program that streams.

The search leaves out how long chips wait for what comes from their host. Chips that hold the same of a tensor each
fetch a part of it and gather the rest, and where they wait for that, layouts that hold less may be quicker, even if
they compute longer. So where gathers take time the plan that stores the least is looked at as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ...cost.estimate import Estimate, estimate
from ...cost.streams import least_stored_bytes
from ...ir.mesh import Mesh
from ...ir.program import Program
from ..choose import Options, choose
from ..lower.insert import insert
from ..plan import Cutoff, NoPlan, Plan

GATHERED = 1e-3  # of the time: less is not worth another plan
ROUNDING = 1e-9  # relative: of sums of bytes


def choose_streaming(
    program: Program, phases: Sequence[str], mesh: Mesh, options: Options
) -> tuple[Plan, Sequence[float]]:
    """The quicker plan of the one that computes quickest and the one that stores the least, and how long each of its
    phases waits for what comes. Its bound is of all plans, of what they compute. Raises as `choose` does, and HostFull
    where the hosts cannot hold what is streamed."""
    plan = choose(program, phases, mesh, options)
    costs = _costs(plan, options)
    together_s = _with_waiting_s(program, plan, costs)
    gathered_s = _weighted(program, plan, [_gathered_s(one) for one in costs])
    waiting_s = [one.totals().waiting_s for one in costs]
    if min(gathered_s, _weighted(program, plan, waiting_s)) <= GATHERED * together_s:
        return plan, waiting_s
    least = max(least_stored_bytes(program, phase, mesh) for phase in phases) * (1 + ROUNDING)
    try:
        other = choose(program, phases, mesh, replace(options, stored_bytes=min(least, options.stored_bytes)))
    except (NoPlan, Cutoff):
        return plan, waiting_s
    of_other = _costs(other, options)
    if _with_waiting_s(program, other, of_other) >= together_s:
        return plan, waiting_s
    return other.bounded(min(plan.bound, other.bound)), [one.totals().waiting_s for one in of_other]


def _costs(plan: Plan, options: Options) -> list[Estimate]:
    return [estimate(spmd, options.hardware) for spmd in insert(plan)]


def _gathered_s(cost: Estimate) -> float:
    """What gathers of what was fetched take in a call."""
    return math.fsum(each.streamed * each.fetch.gather_s for each in cost.fetches)


def _weighted(program: Program, plan: Plan, each_s: Sequence[float]) -> float:
    """Seconds of the phases of a plan, of all calls of several, of one call of one."""
    several = len(plan.phases) > 1
    calls = (program.phase(one.phase).calls if several else 1 for one in plan.phases)
    return math.fsum(count * seconds for count, seconds in zip(calls, each_s, strict=True))


def _with_waiting_s(program: Program, plan: Plan, costs: Sequence[Estimate]) -> float:
    return plan.price + _weighted(program, plan, [one.totals().waiting_s for one in costs])
