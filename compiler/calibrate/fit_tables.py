"""Figures of a GPU from tables of its kernels and of an engine's steps.

A collective of one kind waits for its start and for each other chip, then sends by the quicker of two
protocols; a matmul takes its kernels' floor and the longer of its arithmetic and its HBM traffic, each at a
share of the peak; a decode step, planned in the layout that engines use, takes what its kernels and
collectives take, caches at a share of their own, and what the engine takes beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...cost.hardware import MEASURED, Convention, Engine, Hardware, Rule, Switch, presets
from ...cost.hardware_file import MEASURED_KINDS
from ...cost.ops import FP8_KERNELS
from ...ir.collective import CollectiveKind
from ...ir.diagnostics import Source, fail, plural
from ...ir.dtype import Dtype
from ...ir.mesh import Mesh
from ...ir.record import record
from ...ir.text.read import read_source
from ..plan.pipeline import model_names, model_source
from .fit import DIGITS, KERNEL, Fit, Fitted, Parameter, Work, fit, held_out, measured, slowest, work_of
from .fit_protocols import SMOOTH, fit_protocols, priced_s, protocols_of
from .named_layouts import AttentionLayout, FeedForwardLayout
from .refusals import refuse_impossible, refuse_misfit
from .rows import DECODE, Step, least_s, plan_named
from .tables import TimedCollective, TimedMatmul, TimedStep, read_collectives, read_matmuls, read_steps

Floats = NDArray[np.float64]

MATMUL = (
    Parameter("compute_efficiency", 0.05, 1.0, 0.8),
    Parameter("hbm_efficiency", 0.05, 1.0, 0.8),
    Parameter("fp8_efficiency", 0.05, 1.0, 0.5),
    KERNEL,
)
ATTENTION = Parameter("attention_efficiency", 0.05, 1.0, 0.6)
STEP = Parameter("step_s", 0.0, 1e-1, 1e-3)
FILLED = 0.9  # of the nominal lengths, on average


@record
class Section:
    """What came of one table. `errors`: (predicted - measured) / measured, a row each; `left_out`: the same of rows
    predicted by figures that were fitted to others; `notes`: what the data leave open, and rows that were not
    taken."""

    name: str
    errors: tuple[float, ...]
    left_out: tuple[float, ...]
    notes: tuple[str, ...]
    fitted: tuple[Fitted, ...] = ()

    @property
    def median(self) -> float:
        """The median of the absolute errors."""
        return float(np.median(np.abs(self.errors))) if self.errors else 0.0

    @property
    def mean(self) -> float:
        """Their mean."""
        return float(np.mean(np.abs(self.errors))) if self.errors else 0.0

    @property
    def held_out(self) -> float | None:
        """The mean of the absolute errors of rows that were left out, None where none were."""
        return float(np.mean(np.abs(self.left_out))) if self.left_out else None


@record
class TablesFit:
    """A chip's figures, an engine's where steps were given, and what came of each table; `not_given`: what figures are
    that no table was given for, in words."""

    hardware: Hardware
    engine: Engine | None
    sections: tuple[Section, ...]
    not_given: tuple[str, ...]


def fit_tables(
    hardware: Hardware,
    collectives: Path | None,
    matmuls: Path | None,
    steps: Path | None,
    all_reduce: Path | None = None,
    engine: Engine | None = None,
    like: Hardware | None = None,
) -> TablesFit:
    """The figures of `hardware` fitted to the tables that are given; those of `engine` to steps, and to its own
    all-reduces. Without steps the rate of attention is that of `like`. What no table is given of stays as it is, which
    is said: measured before, or of the datasheet.

    Raises InputError with what is wrong in a table, with times that no chip takes among that, or where the chips
    are not behind a switch.
    """
    node = hardware.fabric
    if not isinstance(node, Switch):
        raise fail(f"Tables are fitted for chips behind a switch, and {hardware.name} has a torus.")
    hardware = hardware.with_network(Convention.LINKS)
    found = measured(
        hardware, Rule.MAX if matmuls is not None or hardware.ops_at_peaks else hardware.calibrated.op_rule
    )
    sections: list[Section] = []
    kinds: frozenset[CollectiveKind] = frozenset()
    if collectives is not None:
        rows, alone = read_collectives(collectives, hardware.chip, node)
        found, section = _collectives(rows, found, read_source(collectives))
        sections.append(replace(section, notes=(*section.notes, *_alone(alone))))
        kinds = frozenset(row.kind for row in rows)
    if matmuls is not None:
        peak = max(hardware.peak_flops_per_s, hardware.peak_fp8_flops_per_s or 0.0)
        found, section = _matmuls(read_matmuls(matmuls, hardware.chip, peak), found, read_source(matmuls))
        sections.append(section)
    if all_reduce is not None:
        rows, alone = read_collectives(all_reduce, hardware.chip, node, CollectiveKind.ALL_REDUCE)
        own = protocols_of(rows, hardware, read_source(all_reduce))
        engine = replace(engine or Engine("engine"), all_reduce=own.protocols)
        notes = (*own.notes, *_alone(alone))
        sections.append(Section("all-reduce of the engine", tuple(own.errors.tolist()), (), notes))
    if steps is not None:
        timed, left_out = read_steps(steps, hardware.chip, shipped_model)
        found, engine, section = _steps(timed, left_out, found, engine or Engine("engine"), read_source(steps))
        sections.append(section)
        error = engine.error
    else:
        before = hardware.calibrated.error if _keeps(hardware, matmuls is not None, kinds) else 0.0
        error = max(before, _spread(np.array([off for one in sections for off in one.errors]) + 1, 1.0))
    if steps is None and like is not None:
        found = found.with_figures(attention_efficiency=like.calibrated.attention_efficiency)
        sections.append(Section("steps", (), (), (f"attention_efficiency is that of {like.name}",)))
    not_given = _not_given(hardware, matmuls is not None, kinds)
    return TablesFit(found.with_figures(error=error), engine, tuple(sections), not_given)


def _keeps(hardware: Hardware, matmuls: bool, kinds: frozenset[CollectiveKind]) -> bool:
    """Whether figures that were measured before stay beside what is fitted: to `matmuls`, and to such `kinds`."""
    return (not matmuls and not hardware.ops_at_peaks) or bool(_kept(hardware, kinds))


def _kept(hardware: Hardware, kinds: frozenset[CollectiveKind]) -> list[CollectiveKind]:
    """The kinds of collectives that were measured before, and not now."""
    own = [CollectiveKind(kind) for kind in MEASURED_KINDS if kind not in kinds]
    return [kind for kind in own if kind not in hardware.unmeasured_kinds]


def _not_given(hardware: Hardware, matmuls: bool, kinds: frozenset[CollectiveKind]) -> tuple[str, ...]:
    """What to say of the figures that no table is given for."""
    other = hardware.name + MEASURED
    instead = f"; `--hardware {other}` keeps those that were measured" if other in presets() else ""
    said = []
    if not matmuls and hardware.ops_at_peaks:
        said.append(f"matmuls: none are given, arithmetic and HBM are at the datasheet's peaks{instead}")
    elif not matmuls:
        said.append(f"matmuls: none are given, shares of the peaks and kernels are those of {hardware.name}")
    bare = [kind for kind in hardware.unmeasured_kinds if kind not in kinds]
    for missing, where in (
        (_kept(hardware, kinds), f"what they take is as of {hardware.name}"),
        (bare, f"links are at the datasheet's rate{instead}"),
    ):
        which = "none are" if len(missing) == len(MEASURED_KINDS) else f"no {', '.join(missing)} is"
        said += [f"collectives: {which} given, {where}"] if missing else []
    return tuple(said)


def _spread(predicted_s: Floats, measured_s: Floats | float) -> float:
    """The root mean square of log(predicted / measured), as it is written."""
    return float(f"{float(np.sqrt(np.mean(np.log(predicted_s / measured_s) ** 2))):.{DIGITS}g}")


def _alone(left_out: int) -> tuple[str, ...]:
    """What to say of rows of collectives that are left out."""
    said = f"{plural(left_out, 'row')} of one chip {'is' if left_out == 1 else 'are'} left out, which sends nothing"
    return (said,) if left_out else ()


def _collectives(rows: Sequence[TimedCollective], hardware: Hardware, source: Source) -> tuple[Hardware, Section]:
    protocols, errors, notes, left_out = dict(hardware.protocols), [], [], []
    for kind in CollectiveKind:
        own = [row for row in rows if row.kind is kind]
        if not own:
            continue
        found = protocols_of(own, hardware, source)
        protocols[kind] = found.protocols
        errors += found.errors.tolist()
        notes += [f"{kind}: {note}" for note in found.notes]
        counts = sorted({row.chips for row in own})
        if len(counts) == 1:
            why = f"all rows have {counts[0]} chips; it is 0"
            notes.append(f"{kind}: what each other chip adds is not identified, as {why}")
        for count in counts if len(counts) > 2 else ():
            others = [row for row in own if row.chips != count]
            own_off = fit_protocols(others, hardware, found.parameters).protocols
            held = [row for row in own if row.chips == count]
            left_out += (priced_s(own_off, held, hardware) / np.array([row.seconds for row in held]) - 1).tolist()
    figures = tuple((kind, protocols[kind]) for kind in CollectiveKind if kind in protocols)
    section = Section("collectives", tuple(errors), tuple(left_out), tuple(notes))
    return replace(hardware, protocols=figures), section


def _matmuls(rows: Sequence[TimedMatmul], hardware: Hardware, source: Source) -> tuple[Hardware, Section]:
    count = len(rows)
    narrow = np.array([row.dtype is Dtype.FP8 for row in rows])
    work = Work(
        row=np.arange(count),
        times=np.ones(count),
        flops=np.array([row.flops for row in rows]),
        narrow=narrow,
        hbm_bytes=np.array([row.hbm_bytes for row in rows]),
        cache_bytes=np.zeros(count),
        kernels=np.where(narrow, FP8_KERNELS, 1),
        layers=np.zeros(count),
        steps=np.zeros(count),
        transfer_s=np.zeros(count),
        starts=np.zeros(count),
        hops=np.zeros(count),
        fixed_s=np.zeros(count),
    )
    measured_s = np.array([row.seconds for row in rows])
    wanted = tuple(p for p in MATMUL if p.name != "fp8_efficiency" or narrow.any())
    refit = partial(fit, hardware=_begun(hardware, wanted), parameters=wanted, smooth=SMOOTH)
    done = refit(work, measured_s)
    predicted_s, slowest_s = work.seconds(done.hardware), work.seconds(slowest(done.hardware, wanted))
    spread = _spread(predicted_s, measured_s)
    refuse_misfit(rows, predicted_s, slowest_s, spread, source, "times are in microseconds")
    errors = predicted_s / measured_s - 1
    left_out = _held_out(work, measured_s, [row.m for row in rows], refit)
    found = replace(hardware, calibrated=replace(done.hardware.calibrated, error=hardware.calibrated.error))
    return found, Section("matmuls", tuple(errors.tolist()), left_out, done.left_open, done.fitted)


def _held_out(
    work: Work, measured_s: Floats, groups: Sequence[int], refit: Callable[[Work, Floats], Fit]
) -> tuple[float, ...]:
    """The errors of each group of rows by figures that were fitted to the others; none of less than three groups."""
    different = sorted(set(groups))
    each = (held_out(work, measured_s, [one == group for one in groups], refit) for group in different)
    return tuple(error for errors in each for error in errors) if len(different) > 2 else ()


def _begun(hardware: Hardware, parameters: Sequence[Parameter]) -> Hardware:
    return hardware.with_figures(**{p.name: p.start for p in parameters})


def _steps(
    rows: Sequence[TimedStep], left_out: int, hardware: Hardware, engine: Engine, source: Source
) -> tuple[Hardware, Engine, Section]:
    # An engine multiplies by weights in fp8 in that: what it takes is fitted to steps with such.
    types = tuple(sorted({*engine.quantises, *({Dtype.FP8} & {row.weights for row in rows})}))
    served = hardware.with_engine(replace(engine, step_s=0.0, layer_s=0.0, quantises=types))
    steps = [step_of(row) for row in rows]
    named = {step: f"on line {row.place.line}" for step, row in zip(steps, rows, strict=True)}
    programs, unit = plan_named(named, served), "`tpot_ms` is in milliseconds"
    refuse_impossible(rows, [least_s([(step, 1)], programs, served) for step in steps], source, unit)
    work = work_of([((step, 1),) for step in steps], programs, served)
    measured_s = np.array([row.seconds for row in rows])
    refit = partial(fit, hardware=_begun(served, (ATTENTION,)), parameters=(ATTENTION, STEP))
    done = refit(work, measured_s)
    predicted_s, slowest_s = work.seconds(done.hardware), work.seconds(slowest(done.hardware, (ATTENTION, STEP)))
    spread = _spread(predicted_s, measured_s)
    refuse_misfit(rows, predicted_s, slowest_s, spread, source, unit)
    errors = predicted_s / measured_s - 1
    others = _held_out(work, measured_s, [row.chips for row in rows], refit)
    found = hardware.with_figures(attention_efficiency=done.hardware.calibrated.attention_efficiency)
    assert done.hardware.engine is not None, "it was given"
    notes = [*done.left_open, "layer_s is not identified by steps of models of one depth; it is 0"]
    if left_out:
        why = "of other models or types, with data parallelism, or with no more output than input"
        notes.append(f"{left_out} rows are left out: {why}")
    section = Section("steps", tuple(errors.tolist()), others, tuple(notes), done.fitted)
    return found, replace(done.hardware.engine, error=spread), section


def step_of(row: TimedStep) -> Step:
    """A measured time between tokens as a decode step in the layout that engines use, at the mean context."""
    context = round(FILLED * (row.input_tokens + row.output_tokens / 2))
    return Step(
        model=row.model,
        weights=row.weights,
        phase=DECODE,
        mesh=Mesh((("x", row.chips),)),
        batch=row.batch,
        tokens=1,
        context=context,
        feed_forward=FeedForwardLayout.WS1D,
        attention=AttentionLayout.HEADS,
    )


def shipped_model(path: str) -> str | None:
    """The shipped model that has the shapes of a published one, None where there is none: `Llama-3.1-70B` has those
    of llama-3-70b. Those with experts are left out: how an engine splits them is no layout that has a name here."""
    name = path.rsplit("/", 1)[-1].lower().removesuffix("-instruct").replace("llama-3.1-", "llama-3-")
    return name if name in model_names() and "choose(" not in model_source(name).text else None
