"""A pipeline as text and as data: what each phase takes, what each stage has, and what was tried beside it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from ...ir.diagnostics import size_text
from ...passes.plan import Outcome
from ..plan.compiled import Compilation
from ..plan.shapes import mesh_name
from ..plan.staged import Staged
from ..plan.tries import Try, least_bound, outcome_of
from ..text.terminal import bound_text, count_text, gap_text, table, time_text
from .offload_text import SAME_LAYERS
from .text import PROOF, mean_text

ROUNDING = 1e-12  # errors below are those of sums in another order, which depends on the machine


def tries_text(found: Sequence[Try]) -> str:
    """What was tried, the quickest first, as a table; of a pipeline it is said there whether it is proven quickest of
    all, and of a plan without stages here."""
    rows = [("mesh", "stages", "micro-batches", "all calls", "beside the best")]
    for one in found:
        along = "-" if one.axis is None else f"{one.mesh.size(one.axis)} along {one.axis}"
        if one.beaten:
            least = f"{time_text(one.bound)} or more", f"{one.bound / found[0].price:.3f} or more"
            rows.append((mesh_name(one.mesh), along, "-", *least))
            continue
        if one.found is None:
            rows.append((mesh_name(one.mesh), along, "-", "-", one.reason or ""))
            continue
        rounds = one.found.plan.rounds if isinstance(one.found, Staged) else ()
        micro = ", ".join(str(each.micro_batches) for _, each in rounds) or "-"
        beside = f"{one.price / found[0].price:.3f}"
        rows.append((mesh_name(one.mesh), along, micro, time_text(one.price), beside))
    first = found[0].found
    proof = [] if first is None or isinstance(first, Staged) else _proof(found, SAME_LAYERS if _streams(first) else "")
    return "\n".join(["Pipelines, quickest first", *table(rows, 3), *proof]) + "\n"


def _streams(found: Compilation) -> bool:
    return any(fetch.streamed for one in found for fetch in one.estimate.fetches)


def _proof(found: Sequence[Try], among: str) -> Iterator[str]:
    """Whether the first of some tries is proven the quickest of all."""
    outcome, gap = outcome_of(found)
    yield f"  objective  {time_text(found[0].price, 6)}: all calls of all phases"
    yield f"  bound      {bound_text(least_bound(found))}"
    if outcome is Outcome.OPTIMAL:
        yield f"  status     optimal{among}: {PROOF}"
    else:
        yield f"  status     feasible: {gap_text(gap, among)}"


def staged_text(staged: Staged, found: Sequence[Try]) -> str:
    """The pipeline: its phases and its stages, and whether it is proven quickest of what was tried."""
    return "\n".join(_staged(staged, found)) + "\n"


def _staged(staged: Staged, found: Sequence[Try]) -> Iterator[str]:
    plan = staged.plan
    inner = staged.stages[0][0].spmd.mesh
    chips = ", ".join(f"{name}={size}" for name, size in inner.axes)
    yield f"Pipeline of {json.dumps(staged.program.name)}: {len(plan.stages)} stages along {plan.axis} of {plan.mesh}"
    yield f"  each stage on {chips}; a stage's time is that of a micro-batch, handed on to the next"
    for one in staged.stages[0]:
        if one.spmd.mean:
            yield f"  {one.phase} is timed at {mean_text(one.spmd)}"
    if any(staged.streamed_layers):
        what = staged.streamed_what
        yield f"  stages stream {what} of some of their layers from their hosts, for every micro-batch"
    yield ""
    rows: list[tuple[str, ...]] = [("", "calls", "micro-batches", "slowest stage", "all stages", "all calls", "idle")]
    for phase, rounds in plan.rounds:
        seconds = staged.stages_s(phase)
        times = [time_text(each) for each in (max(seconds), sum(seconds), staged.phase_s(phase))]
        rows.append((phase, str(rounds.calls), str(rounds.micro_batches), *times, f"{staged.idle_share(phase):.1%}"))
    yield from table(rows, 1)
    yield ""
    streams = staged.streamed_layers
    told = ("takes", "waiting", "hands on") if any(streams) else ("takes", "hands on")
    named = [f"{phase} {what}" for phase, _ in plan.rounds for what in told]
    parts = [staged.between.partition(" ")[0], *(["streamed"] if any(streams) else [])]
    rows = [("stage", *parts, *named, "stored", "in all", "of the HBM")]
    for n, (stage, planned) in enumerate(zip(staged.stages, plan.stages, strict=True)):
        cells = []
        if any(streams):
            cells.append(str(streams[n]))
        for (phase, _), waiting_s in zip(plan.rounds, planned.waiting_s, strict=True):
            passed = staged.passed_bytes(n, phase)
            cells.append(time_text(planned.seconds(phase)))
            cells += [time_text(waiting_s) if waiting_s else "none"] if any(streams) else []
            cells.append(size_text(passed) if passed else "-")
        most = max((one.memory for one in stage), key=lambda held: held.total_bytes)
        held, whole = float(most.stored_bytes), float(most.total_bytes)
        share = whole / stage[0].hardware.hbm_bytes
        held_texts = f"{held / 1e9:.2f} GB", f"{whole / 1e9:.2f} GB", f"{share:.1%}"
        rows.append((str(n + 1), str(planned.stage.layers), *cells, *held_texts))
    yield from table(rows, 0)
    yield ""
    yield from _proof(found, among_text(staged))
    yield from _rates(staged)
    yield from _checked(staged)


def among_text(staged: Staged) -> str:
    """Among which pipelines one was looked for, if not among all."""
    divisions = "" if staged.between == "layers" else f" among divisions between {staged.between}"
    return divisions + (f"{SAME_LAYERS} that stages share evenly" if any(staged.streamed_layers) else "")


def pipeline_check_text(staged: Staged) -> str:
    """What a pipeline is, and what its run on virtual chips showed."""
    plan = staged.plan
    title = f"Pipeline of {json.dumps(staged.program.name)}: {len(plan.stages)} stages along {plan.axis} of {plan.mesh}"
    return "\n".join([title, *_checked(staged)]) + "\n"


def _checked(staged: Staged) -> Iterator[str]:
    for phase, error in staged.errors:
        most = f"error at most {max(error, ROUNDING):.0e} beside the model"
        yield f"  checked {phase}: micro-batches through virtual chips, {most}"


def _rates(staged: Staged) -> Iterator[str]:
    """Tokens a second of each phase."""
    for phase, rounds in staged.plan.rounds:
        tokens = sum(one.prediction.tokens for one in staged.stages[0] if one.phase == phase)
        made = tokens * rounds.micro_batches * rounds.calls
        yield f"  {phase}: {made:,} tokens, {count_text(made / staged.phase_s(phase))} a second"


def staged_data(staged: Staged, found: Sequence[Try]) -> dict[str, Any]:
    """The pipeline for JSON, without its stages' plans."""
    plan = staged.plan
    outcome, gap = outcome_of(found)
    return {
        "model": staged.program.name,
        "mesh": dict(plan.mesh.axes),
        "axis": plan.axis,
        "objective_s": plan.price,
        "bound_s": least_bound(found),
        "status": str(outcome),
        "gap": gap,
        "phases": [
            {
                "phase": phase,
                "calls": rounds.calls,
                "micro_batches": rounds.micro_batches,
                "waits": rounds.wait,
                "seconds": staged.phase_s(phase),
                "idle_share": staged.idle_share(phase),
                "stages_s": list(staged.stages_s(phase)),
                "passed_bytes": [staged.passed_bytes(n, phase) for n in range(len(staged.stages))],
                "waiting_s": [one.waiting_s[at] for one in plan.stages],
            }
            for at, (phase, rounds) in enumerate(plan.rounds)
        ],
        "streamed_layers": list(staged.streamed_layers),
        "between": staged.between.partition(" ")[0],
        "layers": [one.stage.layers for one in plan.stages],
        "received": [list(one.stage.received) for one in plan.stages],
        "passed": [list(one.stage.passed) for one in plan.stages],
        "tried": tried_data(found),
    }


def tried_data(found: Sequence[Try]) -> list[dict[str, Any]]:
    """What was tried, for JSON: seconds, and bounds, of all calls of all phases."""
    return [
        {
            "mesh": dict(one.mesh.axes),
            "axis": one.axis,
            "seconds": one.price if one.found is not None else None,
            "bound_s": one.bound if one.found is not None or one.beaten else None,
            "reason": one.reason,
        }
        for one in found
    ]
