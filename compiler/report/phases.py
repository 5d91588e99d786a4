"""Phases planned together, as text and as data: what each takes, the handovers, and what sharing costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ...ir.program import walk
from ...ir.spmd import Move, SpmdProgram
from ...passes.lower.handover import spell_handovers
from ...passes.plan import Objective, Outcome, Plan
from ..plan.compiled import Compilation, CompiledPhase
from ..text.table import table
from .text import time_text

Data = dict[str, Any]


def together_text(compiled: Compilation) -> str:
    """What phases that were planned together take in all: a block that follows their own."""
    return "\n".join(_together(compiled))


def _together(compiled: Compilation) -> Iterator[str]:
    [plan] = compiled.plans
    rows: list[tuple[str, ...]] = [("", "calls", "each", "all")]
    handed = {h.before: h for h in plan.handovers}
    for one in compiled:
        price, calls = seconds_of(one), one.calls
        rows.append((one.phase, str(calls), time_text(price), time_text(calls * price)))
        if one.phase in handed:
            handover = handed[one.phase]
            name = f"{handover.before} to {handover.after}"
            rows.append((name, str(calls), time_text(handover.price), time_text(calls * handover.price)))
    rows.append(("together", "", "", time_text(compiled.price)))
    yield "Phases together: each parameter stored once, caches handed on"
    yield from table(rows, left=1)
    for spmd in spell_handovers(compiled[0].program, plan):
        yield f"  caches from {spmd.phase}: {_moved(spmd)}"
    if any(one.estimate.loops for one in compiled):
        yield "  of times, what loops hide is taken off; the plan is chosen and proven by those before that"
    yield ""
    yield f"  objective  {time_text(plan.price, 6)}"
    yield f"  bound      {time_text(plan.bound, 6)}"
    if plan.outcome is Outcome.OPTIMAL:
        yield "  status     optimal: proven within a gap of 1e-9"
    else:
        yield f"  status     feasible: the optimum may be up to {plan.gap:.2%} lower"


def seconds_of(one: CompiledPhase, hiding: bool = True) -> float:
    """What counts of one call of a phase; without `hiding`, before any of it is hidden."""
    totals = one.estimate.totals()
    if one.plan.objective is Objective.COMMUNICATION:
        return totals.comm_s
    return totals.total_s if hiding else totals.apart_s


def _moved(spmd: SpmdProgram) -> str:
    moves = [p.item for p in walk(spmd.body) if isinstance(p.item, Move)]
    if not moves:
        return "they lie as the next phase has them"
    return f"moved by {len(moves)} collectives" if len(moves) > 1 else "moved by one collective"


def sharing_text(alone: Sequence[CompiledPhase], together: Plan | None, reason: str | None) -> str:
    """What it costs to store parameters once: phases planned alone beside the plan of all, or why there is none."""
    total = sum(one.calls * seconds_of(one, hiding=False) for one in alone)
    lines = ["What sharing the stored parameters costs"]
    if together is None:
        return "\n".join([*lines, f"  together there is no plan: {reason}"])
    rows: list[tuple[str, ...]] = [("", "calls", "alone", "together")]
    prices = {phase.phase: phase.price for phase in together.phases}
    for one in alone:
        # Where least memory was asked for, a phase's price is in bytes: only the whole has a time to compare.
        shared = "-" if together.objective is Objective.MEMORY else time_text(prices[one.phase])
        rows.append((one.phase, str(one.calls), time_text(seconds_of(one, hiding=False)), shared))
    handed = sum(next(o.calls for o in alone if o.phase == h.before) * h.price for h in together.handovers)
    rows.append(("handovers", "", "-", time_text(handed)))
    rows.append(("in all", "", time_text(total), time_text(together.price)))
    lines += table(rows, left=1)
    more = together.price / total - 1 if total else 0.0
    lines.append(f"  {more:.2%} more than each phase as if it had the chips to itself, nothing handed over")
    return "\n".join(lines)


def together_data(compiled: Compilation) -> Data:
    """The same as an object: the calls of each phase, the handovers, the whole and its bound."""
    [plan], program = compiled.plans, compiled[0].program
    return {
        "price_s": plan.price,
        "bound_s": plan.bound,
        "gap": plan.gap,
        "status": plan.outcome.value,
        "calls": {phase.phase: program.phase(phase.phase).calls for phase in plan.phases},
        "handovers": [{"before": h.before, "after": h.after, "seconds": h.price} for h in plan.handovers],
    }
