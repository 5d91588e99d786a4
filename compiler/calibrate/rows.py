"""The rows of a file of measurements as sharded programs: each step of each row, planned under its pins.

A step is one run of a phase, at one context. Rows share steps, and a step is planned once. The memory of the
chips is no limit, as what was measured did run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from ...cost.estimate import estimate
from ...cost.hardware import Calibrated, Hardware, Torus
from ...ir.diagnostics import Diagnostic, InputError
from ...ir.dtype import Dtype
from ...ir.mesh import Mesh
from ...ir.program import Program
from ...ir.record import record
from ...ir.spmd import SpmdProgram
from ...passes.options import Options
from ..plan.pipeline import compile_phase, load
from ..plan.shapes import slice_shapes
from ..text.processes import in_processes
from .measurements import Measurement, Measurements, Timed
from .named_layouts import AttentionLayout, FeedForwardLayout, named_pins

PREFILL, DECODE = "prefill", "decode"  # the phases that a model needs
DIMS = ("B", "L", "M")  # and the dims: the batch, the tokens of a step, the context after it


@record
class Step:
    """One run of a phase: `tokens` of each sequence of a batch, the context being `context` after them."""

    model: str
    weights: Dtype
    phase: str
    mesh: Mesh
    batch: int
    tokens: int
    context: int
    feed_forward: FeedForwardLayout
    attention: AttentionLayout


@record
class Run:
    """A measurement as steps, each with how often it runs."""

    measurement: Measurement
    steps: tuple[tuple[Step, int], ...]


Programs = Mapping[Step, SpmdProgram]


def runs(measurements: Measurements, hardware: Hardware) -> tuple[Run, ...]:
    """The measurements as steps. Generation counts as its mean step: half of the output is there."""
    out = []
    for row in measurements.rows:
        mesh = row.mesh or slice_of(row.chips, hardware)

        def step(phase: str, tokens: int, context: int, row: Measurement = row, mesh: Mesh = mesh) -> Step:
            return Step(
                row.model, row.weights, phase, mesh, row.batch, tokens, context, row.feed_forward, row.attention
            )

        prefill = (step(PREFILL, row.input_tokens, row.input_tokens), 1)
        decode = (step(DECODE, 1, row.input_tokens + (row.output_tokens + 1) // 2), row.output_tokens)
        steps: tuple[tuple[Step, int], ...]
        match row.phase:
            case Timed.PREFILL:
                steps = (prefill,)
            case Timed.DECODE:
                steps = (decode,)
            case Timed.DECODE_STEP:
                steps = ((step(DECODE, 1, row.input_tokens), 1),)
            case Timed.TOTAL:
                steps = (prefill, decode)
        out.append(Run(row, steps))
    return tuple(out)


def slice_of(chips: int, hardware: Hardware) -> Mesh:
    """The slice of a count of chips that comes nearest to a cube, the longest axis last: 2x4x4 of 32."""
    axes = hardware.fabric.dimensions if isinstance(hardware.fabric, Torus) else 1
    return min(slice_shapes(chips, axes), key=lambda mesh: sum(mesh.sizes) + axes - len(mesh.sizes))


def plan_steps(all_runs: Sequence[Run], hardware: Hardware) -> Programs:
    """The cheapest sharded program on `hardware` of every step of some runs.

    Raises InputError with what is wrong with any of them, each naming its first row.
    """
    named: dict[Step, str] = {}
    for run in all_runs:
        for step, _ in run.steps:
            named.setdefault(step, run.measurement.id)
    return plan_named(named, hardware)


def plan_named(named: Mapping[Step, str], hardware: Hardware) -> Programs:
    """As `plan_steps`, of steps that each have a name to be called by where they cannot be planned."""
    # Long ones first, so that no process is left with one at the end.
    order = sorted(named, key=lambda step: -step.batch * step.tokens)
    planned = dict(zip(order, in_processes(partial(plan_step, hardware=hardware), order, "planning"), strict=True))
    found: dict[tuple[str, str | None], Diagnostic] = {}
    programs: dict[Step, SpmdProgram] = {}
    for step, row in named.items():
        result = planned[step]
        if isinstance(result, SpmdProgram):
            programs[step] = result
            continue
        for one in result:
            found.setdefault(
                (one.message, one.hint), Diagnostic(f"Row `{row}`: {one.message}", one.span, one.hint, one.source)
            )
    if found:
        raise InputError(found.values())
    return programs


def least_s(steps: Sequence[tuple[Step, int]], programs: Programs, hardware: Hardware) -> float:
    """What the arithmetic alone of steps, each so many times, or their HBM traffic alone takes at the datasheet's
    peaks, whichever is longer; no time can be below it."""
    peaks = replace(hardware, calibrated=Calibrated())
    totals = [(count, estimate(programs[step], peaks).totals()) for step, count in steps]
    return max(
        math.fsum(count * total.compute_s for count, total in totals),
        math.fsum(count * total.memory_s for count, total in totals),
    )


def plan_step(step: Step, hardware: Hardware) -> SpmdProgram | tuple[Diagnostic, ...]:
    """The cheapest sharded program of a step, or what is wrong with it."""
    try:
        program = _program(step)
        pins = named_pins(program, dict(program.phase(step.phase).sizes), step.mesh, step.feed_forward, step.attention)
        options = Options(hardware, capacity_bytes=math.inf, pins=pins)
        return compile_phase(program, step.phase, step.mesh, options).spmd
    except InputError as error:
        return error.diagnostics


def _program(step: Step) -> Program:
    sizes = dict(zip(DIMS, (step.batch, step.tokens, step.context), strict=True))
    return load(Path(step.model), sizes, phase=step.phase, weights=step.weights)
