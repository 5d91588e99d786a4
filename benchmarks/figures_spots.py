"""Configurations and what a step takes in them: of sweeps, of named layouts, and of the paper's tables 2 and 3."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from figures_plans import Programs, fits, measured, mfu, step_of, totals

import escc.compiler
import escc.cost
import escc.ir
import escc.passes
from escc.compiler.calibrate.measurements import Measurement, Timed
from escc.compiler.calibrate.named_layouts import FeedForwardLayout
from escc.compiler.calibrate.rows import DECODE, PREFILL, Step, slice_of
from escc.compiler.plan.pipeline import load, model_source
from escc.compiler.plan.serving import serving
from escc.compiler.sweep.points import Record, Sweep
from escc.compiler.sweep.run import run_sweep
from escc.cost.hardware import Hardware
from escc.ir.dtype import Dtype
from escc.ir.program import Kind, Stored, walk
from escc.ir.spmd import Move, SpmdProgram

KEPT = Path(__file__).resolve().parent.parent / "out" / "figures"  # where results of sweeps are kept
PACKAGES = (escc.ir, escc.cost, escc.passes, escc.compiler)
CONTEXT = 2048
CHIPS = {"palm-8b": (8, 16, 32), "palm-62b": (8, 16, 32), "palm-540b": (64, 128, 256)}
FORMATS = (Dtype.BF16, Dtype.INT8)
DECODE_BATCHES = (1, 8, 32, 64, 256, 512)
PREFILL_BATCHES = (1, 8, 64, 512)
GATHERED_FROM = 8  # sequences; of one, to gather all weights is far from the best
LENGTHS = (32, 128, 512, 1024)
TABLES = ("table 2", "table 3")


@dataclass(frozen=True)
class Spot:
    """A configuration, and what a step of it takes: seconds, and MFU. `tokens`: of all sequences.
    `how`: the slice, or the layout, that it takes so long in. `fits`: whether the HBM holds it."""

    model: str
    phase: str
    weights: Dtype
    chips: int
    batch: int
    context: int
    tokens: int
    seconds: float
    mfu: float
    how: str
    fits: bool = True

    @property
    def cost(self) -> float:
        """Chip-milliseconds of a token."""
        return 1e3 * self.chips * self.seconds / self.tokens

    @property
    def place(self) -> tuple[object, ...]:
        """The configuration alone."""
        return self.model, self.phase, self.weights, self.chips, self.batch, self.context


def sweep_of(model: str, hardware: Hardware) -> Sweep:
    """The sweep of a model's decode steps."""
    dims = serving(load(Path(model)))
    axes = (hardware,), (DECODE,), FORMATS, CHIPS[model], DECODE_BATCHES, (CONTEXT,)
    return Sweep(dims, *axes, source=model_source(model))


def swept(model: str, hardware: Hardware) -> tuple[Record, ...]:
    """The records of a model's sweep. An interrupted one goes on where it was, if nothing has changed since:
    neither the sweep nor the code."""
    sweep = sweep_of(model, hardware)
    digest = hashlib.sha256(json.dumps(sweep.header(), sort_keys=True).encode())
    for package in PACKAGES:
        for file in sorted(Path(package.__path__[0]).rglob("*.py")):
            digest.update(file.read_bytes())
    KEPT.mkdir(parents=True, exist_ok=True)
    return run_sweep(sweep, KEPT / f"{model}-{digest.hexdigest()[:12]}.jsonl")


def decode_spots(model: str, records: Iterable[Record]) -> Iterator[Spot]:
    """The points of a model's sweep at which there is a plan."""
    for record in records:
        point = record.point
        if record.latency_s is None or record.mfu is None or record.tokens is None or record.slice is None:
            continue
        place = point.phase, point.weights, point.chips, point.batch, CONTEXT
        yield Spot(model, *place, record.tokens, record.latency_s, record.mfu, record.slice)


def prefill_steps(hardware: Hardware) -> list[Step]:
    """Prefill in bf16: of whole contexts, weights stationary and, of more than one, gathered; and of short ones."""
    out = []
    for model, counts in CHIPS.items():
        for chips in counts:
            step = step_of(PREFILL, slice_of(chips, hardware), 1, CONTEXT, model=model)
            for batch in PREFILL_BATCHES:
                out.append(replace(step, batch=batch))
                if batch >= GATHERED_FROM:
                    out.append(replace(step, batch=batch, feed_forward=FeedForwardLayout.WG_XYZ))
            out += [replace(step, tokens=length, context=length) for length in LENGTHS]
    return out


def prefill_spots(programs: Programs, steps: Sequence[Step], hardware: Hardware) -> tuple[Spot, ...]:
    """The best of the planned layouts in each configuration, in each weight format."""
    best: dict[tuple[object, ...], Spot] = {}
    for step, weights in product(steps, FORMATS):
        spmd = narrowed(programs[step], weights)
        seconds = totals(spmd, hardware).total_s
        place = step.model, step.phase, weights, step.mesh.chips, step.batch, step.context
        done = step.batch * step.tokens, seconds, mfu(step, seconds, hardware)
        spot = Spot(*place, *done, step.feed_forward, fits(spmd, hardware))
        if place not in best or seconds < best[place].seconds:
            best[place] = spot
    return tuple(best.values())


def narrowed(spmd: SpmdProgram, weights: Dtype) -> SpmdProgram:
    """The program with its bf16 matrices, and all copies of them, stored as `weights`."""
    found: set[str] = set()
    for placed in walk(spmd.body):
        match placed.item:
            case Stored(name, Kind.PARAM):
                found.add(name)
            case Move(result, operand) if operand in found:
                found.add(result)
    values = tuple(
        replace(value, dtype=weights)
        if value.name in found and len(value.dims) > 1 and value.dtype is Dtype.BF16
        else value
        for value in spmd.values
    )
    return replace(spmd, values=values)


def frontier(found: Iterable[Spot], loss: Callable[[Spot], float]) -> tuple[Spot, ...]:
    """The spots that none betters in both latency and loss, quickest first."""
    best: list[Spot] = []
    for spot in sorted(found, key=lambda spot: (spot.seconds, loss(spot))):
        if not best or loss(spot) < loss(best[-1]):
            best.append(spot)
    return tuple(best)


def published(hardware: Hardware) -> tuple[tuple[Measurement, Spot], ...]:
    """The rows of tables 2 and 3, as spots: a decode row as its mean step, at the context after it."""
    rows = (row for row in measured(hardware.chip).values() if row.source in TABLES)
    return tuple((row, _as_spot(row, hardware)) for row in rows)


def _as_spot(row: Measurement, hardware: Hardware) -> Spot:
    phase = PREFILL if row.phase is Timed.PREFILL else DECODE
    step = step_of(phase, slice_of(row.chips, hardware), row.batch, CONTEXT, model=row.model)
    seconds = row.seconds / (1 if phase == PREFILL else row.output_tokens)
    place = phase, row.weights, row.chips, row.batch, CONTEXT
    count = row.batch * step.tokens
    return Spot(row.model, *place, count, seconds, mfu(step, seconds, hardware), row.feed_forward)


def at(found: Iterable[Spot], wanted: Spot) -> Spot | None:
    """What is found at the configuration of another spot."""
    return next((spot for spot in found if spot.place == wanted.place), None)
