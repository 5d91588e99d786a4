"""The choice of layouts for a program that streams.

The search leaves out how long chips wait for what comes from their host. Chips that hold the same of a tensor each
fetch a part of it and gather the rest, and where they wait for that, layouts that hold less may be quicker, even if
they compute longer. So where gathers take time other plans are looked at as well: that which stores the least, and of
one phase those that are cheapest if gathering costs something, more where chips still wait, less where they do not.

A layer takes what it computes or what comes for it, whichever is longer, and so no less than a mean of both, weighted
in any way. A plan that is cheapest by such a mean bounds them all (`least_mean_s`): it is one sum, which the search
minimises as ever.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from ...cost.estimate import Estimate, estimate
from ...cost.streams import least_stored_bytes
from ...ir.layout import Layout, format_layout
from ...ir.mesh import Mesh
from ...ir.program import Kind, Pin, PinKind, Program, Stored, stored_in
from ..choose import choose
from ..lower.insert import insert
from ..options import Options
from ..plan import Cutoff, NoPlan, Outcome, Plan

GATHERED = 1e-3  # of the time: less is not worth another plan
MEANS, START = 4, 0.8  # weighted means by which plans are looked for, and what is computed of the first
ROUNDING = 1e-9  # relative: of sums of bytes


def choose_streaming(
    program: Program, phases: Sequence[str], mesh: Mesh, options: Options
) -> tuple[Plan, Sequence[float]]:
    """The quickest plan of the one that computes quickest and those that gather less, and how long each of its phases
    waits for what comes. Its bound is of all plans, of what they compute. Raises as `choose` does, and HostFull
    where the hosts cannot hold what is streamed."""
    plan = choose(program, phases, mesh, options)
    costs = _costs(plan, options)
    together_s = _with_waiting_s(program, plan, costs)
    gathered_s = _weighted(program, plan, [_gathered_s(one) for one in costs])
    waiting_s = [one.totals().waiting_s for one in costs]
    if min(gathered_s, _weighted(program, plan, waiting_s)) <= GATHERED * together_s:
        return plan, waiting_s
    best, best_s, best_costs = plan, together_s, costs

    def quicker(seconds: float) -> bool:
        return seconds < best_s

    for other in _others(program, phases, mesh, options, quicker):
        of_other = _costs(other, options)
        other_s = _with_waiting_s(program, other, of_other)
        if other_s < best_s:
            best, best_s, best_costs = other, other_s, of_other
    return best.bounded(min(plan.bound, best.price)), [one.totals().waiting_s for one in best_costs]


def _others(
    program: Program, phases: Sequence[str], mesh: Mesh, options: Options, quicker: Callable[[float], bool]
) -> Iterator[Plan]:
    """Plans that gather less: that which stores the least, and of one phase those that are cheapest by weighted means,
    in which parameters count, if so many seconds are `quicker` than what is known."""
    least = max(least_stored_bytes(program, phase, mesh) for phase in phases) * (1 + ROUNDING)
    given = replace(options, stored_bytes=min(least, options.stored_bytes))
    with suppress(NoPlan, Cutoff):
        yield choose(program, phases, mesh, given)
    low, high = 0.0, 1.0  # of the mean what is computed: chips wait by the plan of the one, and do not by the other's
    weighed = len(phases) == 1 and any(_streamed_parameters(program))
    for _ in range(MEANS if weighed else 0):
        share = START if (low, high) == (0.0, 1.0) else (low + high) / 2
        try:
            mean = replace(options, gathering=(1 - share) / share, below=math.inf)
            plan = choose(program, phases, mesh, mean)  # whose price is not what it takes
            [totals] = (one.totals() for one in _costs(plan, options))
            if quicker(totals.total_s):
                pins = (*options.pins, *_streamed_pins(program, dict(plan.stored)))
                yield choose(program, phases, mesh, replace(options, pins=pins))
        except (NoPlan, Cutoff):
            return
        low, high = (low, share) if totals.waiting_s > 0 else (share, high)


def _streamed_pins(program: Program, stored: Mapping[str, Layout]) -> Iterator[Pin]:
    """The layouts in which parameters that are streamed are stored."""
    table = program.table()
    for one in _streamed_parameters(program):
        layout = stored[one.value]
        text = f"{one.value}: {format_layout(table[one.value].dims, layout)}"
        yield Pin(PinKind.STORED, one.value, None, layout, text)


def _streamed_parameters(program: Program) -> Iterator[Stored]:
    """The parameters that are streamed."""
    return (one for one in stored_in(program.body, Kind.PARAM) if one.streamed is not None)


def least_mean_s(
    program: Program, phase: str, mesh: Mesh, options: Options, computing: float, gathered: float
) -> float:
    """What all plans of a phase take at the least by a mean of what they compute, with a share `computing` of it, and
    of what they gather, of which `gathered` counts; 0 where that is not known."""
    weight = gathered * (1 - computing) / computing
    try:
        return computing * choose(program, phase, mesh, replace(options, gathering=weight, below=math.inf)).least
    except NoPlan as error:
        return math.inf if error.outcome is Outcome.INFEASIBLE else 0.0


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
