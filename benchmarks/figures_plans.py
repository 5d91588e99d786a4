"""Steps planned under named layouts, in processes over the cores, and what they take."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from math import inf
from pathlib import Path

from escc.compiler.calibrate.measurements import Measurement, read_measurements
from escc.compiler.calibrate.named_layouts import AttentionLayout, FeedForwardLayout, named_pins
from escc.compiler.calibrate.rows import DIMS, PREFILL, Step
from escc.compiler.plan.pipeline import compile_phase, load
from escc.compiler.text.processes import in_processes
from escc.cost.estimate import Totals, estimate
from escc.cost.hardware import Hardware
from escc.cost.memory import memory
from escc.cost.ops import model_flops
from escc.ir.diagnostics import Diagnostic, InputError
from escc.ir.dtype import Dtype
from escc.ir.layout import Layout, format_layout
from escc.ir.mesh import Mesh
from escc.ir.program import Append, Einsum, Kind, Pin, PinKind, Program, walk
from escc.ir.spmd import SpmdProgram
from escc.passes.expansion.orders import in_order
from escc.passes.options import Options

Programs = Mapping[Step, SpmdProgram]

FEED_FORWARDS = {
    FeedForwardLayout.WS1D: "1D weight-stationary",
    FeedForwardLayout.WS2D: "2D weight-stationary",
    FeedForwardLayout.WG_X: "X weight-gathered",
    FeedForwardLayout.WG_XY: "XY weight-gathered",
    FeedForwardLayout.WG_XYZ: "XYZ weight-gathered",
}


def step_of(
    phase: str,
    mesh: Mesh,
    batch: int,
    context: int,
    feed_forward: FeedForwardLayout = FeedForwardLayout.WS2D,
    attention: AttentionLayout = AttentionLayout.BATCH,
    model: str = "palm-540b",
) -> Step:
    """A step in bf16: one token of each sequence, or in prefill all of the context."""
    tokens = context if phase == PREFILL else 1
    return Step(model, Dtype.BF16, phase, mesh, batch, tokens, context, feed_forward, attention)


def plan_all(steps: Iterable[Step], hardware: Hardware) -> Programs:
    """The sharded program of every step. Raises InputError with what is wrong with any of them."""
    order = sorted(dict.fromkeys(steps), key=lambda step: -step.batch * step.tokens)  # long ones first
    found = dict(zip(order, in_processes(partial(plan_named, hardware=hardware), order, "planning"), strict=True))
    wrong = [diagnostic for result in found.values() if isinstance(result, tuple) for diagnostic in result]
    if wrong:
        raise InputError(wrong)
    return {step: result for step, result in found.items() if isinstance(result, SpmdProgram)}


def plan_named(step: Step, hardware: Hardware) -> SpmdProgram | tuple[Diagnostic, ...]:
    """The cheapest sharded program of a step under its named layouts, in bf16, or what is wrong with it.

    Memory is not bounded, so what lies outside of layers is pinned as well: it is split over all chips. And
    caches are read as they are stored: of one that every chip holds a part could be read, which would turn
    attention over heads into attention over the batch.
    """
    sizes = dict(zip(DIMS, (step.batch, step.tokens, step.context), strict=True))
    program = load(Path(step.model), sizes)
    sizes = dict(program.phase(step.phase).sizes)
    pins = named_pins(program, sizes, step.mesh, step.feed_forward, step.attention)
    pins = (*pins, *_cache_uses(program, pins), *_tables(program, step.mesh))
    try:
        options = Options(hardware, capacity_bytes=inf, pins=pins)
        return compile_phase(program, step.phase, step.mesh, options).spmd
    except InputError as error:
        return error.diagnostics


def _cache_uses(program: Program, pins: Sequence[Pin]) -> Iterator[Pin]:
    """Every einsum that reads a cache reads it in the layout in which it is stored."""
    stored = {pin.value: pin.layout for pin in pins if pin.kind is PinKind.STORED}
    ops = [placed.item for placed in walk(program.body)]
    caches = {op.result: stored[op.cache] for op in ops if isinstance(op, Append) and op.cache in stored}
    for op in ops:
        if isinstance(op, Einsum):
            for name in sorted(set(op.operands) & set(caches)):
                yield _pin(program, PinKind.USE, name, op.result, caches[name])


def _tables(program: Program, mesh: Mesh) -> Iterator[Pin]:
    """The first dim of every matrix outside of layers is split over all chips."""
    values = program.table()
    for item in program.body.stored:
        rank = len(values[item.value].dims)
        if item.kind is Kind.PARAM and rank > 1:
            yield _pin(program, PinKind.STORED, item.value, None, Layout((mesh.names, *[()] * (rank - 1))))


def _pin(program: Program, kind: PinKind, value: str, op: str | None, layout: Layout) -> Pin:
    text = f"{kind} {f'{op}.' if op else ''}{value} {format_layout(program.table()[value].dims, layout)}"
    return Pin(kind, value, op, layout, text)


def totals(spmd: SpmdProgram, hardware: Hardware) -> Totals:
    """What a program takes."""
    return estimate(spmd, hardware).totals()


def fits(spmd: SpmdProgram, hardware: Hardware) -> bool:
    """Whether a chip can hold all that it has to at once."""
    return memory(spmd).total_bytes <= hardware.hbm_bytes


@lru_cache(maxsize=64)
def flops(model: str, phase: str, batch: int, tokens: int, context: int) -> int:
    """The arithmetic of a model in one step, without padding."""
    return model_flops(in_order(load(Path(model), {"B": batch, "L": tokens, "M": context}), phase), phase)


def mfu(step: Step, seconds: float, hardware: Hardware) -> float:
    """The share of the chips' peak that the model's own arithmetic is, in a step of so many seconds."""
    done = flops(step.model, step.phase, step.batch, step.tokens, step.context)
    return done / (seconds * step.mesh.chips * hardware.peak_flops_per_s)


def measured(chip: str) -> dict[str, Measurement]:
    """The project's copy of the published measurements of a chip, by their ids."""
    return {row.id: row for row in read_measurements(None, chip).rows}
