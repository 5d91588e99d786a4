"""The page of a pipeline: its micro-batches in the stages in time, phase by phase, and what each stage holds."""

from __future__ import annotations

from collections.abc import Sequence

from ....cost.simulate.stages import play
from ....ir.diagnostics import Diagnostic, size_text
from ....ir.record import record
from ...plan.staged import Staged
from ...plan.tries import Try, outcome_of
from ...text.terminal import share_text, time_text
from ..served_stream import ServedStream
from ..staged_text import among_text
from .pipeline import COLOURS, Bar
from .render import render

MOST_TURNS = 600  # of all stages together that are drawn
MOST_CALLS = 3  # of a phase: what comes after is alike


@record
class PhaseDrawing:
    """A phase: the bars of each stage for its first calls, until `until_s`; `facts`: what it takes in all."""

    name: str
    rows: tuple[tuple[Bar, ...], ...]
    until_s: float
    facts: str


def staged_page(
    staged: Staged,
    found: Sequence[Try],
    serves: ServedStream | None = None,
    said: Sequence[Diagnostic] = (),
) -> str:
    """The page of a pipeline; `found`: what was tried; `serves`: what a stream of requests gets; `said`: warnings of no
    stage by itself, before those of the stages."""
    plan = staged.plan
    outcome, gap = outcome_of(found)
    held = [max(stage, key=lambda one: one.memory.total_bytes) for stage in staged.stages]
    facts = [
        ("all calls", time_text(plan.price)),
        ("stages", f"{len(plan.stages)} along {plan.axis} of {plan.mesh}"),
        ("chips", f"{plan.mesh.chips} {held[0].hardware.chip}"),
        ("status", f"{outcome}{among_text(staged)}" + ("" if gap == 0 else f", within {share_text(gap)}")),
        *([] if serves is None else serves.facts()),
    ]
    rows = [
        (
            planned.stage.layers,
            [time_text(planned.seconds(phase)) for phase, _ in plan.rounds],
            [size_text(staged.passed_bytes(n, phase)) if planned.stage.passed else "-" for phase, _ in plan.rounds],
            f"{float(one.memory.total_bytes) / 1e9:.2f} GB",
            100 * float(one.memory.total_bytes) / one.hardware.hbm_bytes,
        )
        for n, (planned, one) in enumerate(zip(plan.stages, held, strict=True))
    ]
    phases = [_drawn(staged, phase) for phase, _ in plan.rounds]
    return render(
        "staged.html",
        title=f"Pipeline of {staged.program.name}",
        facts=facts,
        warnings=[one.message for one in [*said, *staged.warnings]],
        phases=phases,
        between=staged.between.partition(" ")[0],
        rows=rows,
        name_of=lambda number: f"micro-batch {number + 1}",
        pale=lambda number: False,
    )


def _drawn(staged: Staged, phase: str) -> PhaseDrawing:
    """The first calls of a phase."""
    rounds, seconds = staged.rounds[phase], staged.stages_s(phase)
    many = max(1, MOST_TURNS // len(seconds))
    calls = max(1, min(rounds.calls, MOST_CALLS, many // rounds.micro_batches))
    micro_batches = min(rounds.micro_batches, many)
    turns = play(seconds, calls, micro_batches, rounds.wait)
    until_s = max(turn.end_s for turn in turns)
    rows = tuple(
        tuple(
            Bar(
                t.micro_batch, t.micro_batch % COLOURS, 100 * t.start_s / until_s, 100 * (t.end_s - t.start_s) / until_s
            )
            for t in turns
            if t.stage == stage
        )
        for stage in range(len(seconds))
    )
    whole = f"{rounds.calls} calls of {rounds.micro_batches} micro-batches take {time_text(staged.phase_s(phase))}"
    idle = f"a stage waits for {staged.idle_share(phase):.1%} of that"
    drawn = f"drawn: {calls} of the calls, {micro_batches} micro-batches of each"
    return PhaseDrawing(phase, rows, until_s, f"{whole}; {idle}; {drawn}.")
