"""`escc explain`: the formulas of a plan's cost, and named layouts against each other.

A module of its own, loaded when the command is used: SymPy takes longer to import than all else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ...cost.formulas.symbolic import Form
from ...ir.choices import with_capacity, with_skew
from ...ir.diagnostics import Diagnostic, InputError, fail
from ...ir.program import Pin, Program
from ...ir.text.pins import merge_pins
from ...passes.options import Options
from ...passes.plan import Objective
from ..plan.compiled import CompiledPhase
from ..plan.pipeline import compile_phase, compile_phases, load, select_phases
from ..plan.shapes import meshes_to_compile, ranking
from ..plan.way import Offload, Way, ahead_of
from ..report.compare import Search, check_grows, compare
from ..report.compiled_model import CompiledModel, compile_model
from ..report.compiled_pipeline import CompiledPipeline
from ..report.explain_stages import explain_pipeline, pipeline_json, pipeline_text
from ..report.explain_text import as_json, as_latex, as_text, explained_phase
from ..report.page.render import plan_page
from ..text.arguments import capacity_of, skew_of
from ..text.files import path_of
from ..text.terminal import complain, note, say
from . import options as opt


class Format(StrEnum):
    """How formulas are written."""

    TEXT = "text"
    LATEX = "latex"
    JSON = "json"
    HTML = "html"


def explain_command(
    file: opt.File,
    chips: opt.ChipsOrCount,
    phase: Annotated[str | None, typer.Option(help="Explain one phase only; without it, all of them.")] = None,
    hardware: opt.Chip = "tpu-v4",
    datasheet: opt.Datasheet = False,
    network: opt.Net = None,
    engine: opt.EngineName = None,
    any_shape: opt.AnyShape = False,
    hbm_fraction: opt.Memory = 1.0,
    set_: opt.Sets = None,
    pin: opt.Pins = None,
    pad: opt.Pads = None,
    weights: opt.Weights = None,
    caches: opt.Caches = None,
    objective: opt.Least = Objective.TIME,
    parts: opt.Parts = False,
    form: Annotated[
        Form, typer.Option(help="With the factor (K-1)/K of a collective over K chips, or for many chips without.")
    ] = Form.EXACT,
    drop_ones: Annotated[bool, typer.Option("--drop-ones", help="Leave dims of size 1 out of the formulas.")] = False,
    format_: Annotated[Format, typer.Option("--format", help="How the formulas are written.")] = Format.TEXT,
    against: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=FILE", help="A layout to compare, by a file of pins. May be repeated."),
    ] = None,
    over: Annotated[
        str | None,
        typer.Option(
            metavar="DIM",
            help="Show which of the layouts of `--against`, as planned at the size of DIM, sends least as DIM grows.",
        ),
    ] = None,
    search: Annotated[
        bool, typer.Option(help="With `--over`, also search for the least communication wherever the best changes.")
    ] = True,
    trace: Annotated[
        bool, typer.Option("--trace", help="Run the collectives on a simulation of the links, beside their formulas.")
    ] = False,
    stages: opt.Stages = None,
    micro_batches: opt.MicroBatches = None,
    offload: opt.Offloading = Offload.NONE,
    ahead: opt.Ahead = None,
    capacity: opt.Capacity = None,
    skew: opt.Skew = None,
) -> None:
    """Show what a plan costs as formulas, and what rival layouts would. What `compile` plans by the same options is
    what is explained."""
    chip = opt.chip_of(hardware, datasheet, network, engine)
    meshes, remarks = meshes_to_compile(chips, chip, any_shape)
    complain(remarks)
    options = Options(chip, objective, hbm_fraction * chip.room_bytes, parts=parts)
    named = _named(against or [])
    if over is not None and not named:
        raise fail("`--over` compares layouts, and there are none.", hint="add `--against NAME=FILE`, once for each")
    if trace and format_ in (Format.LATEX, Format.HTML):
        place = "LaTeX is for formulas" if format_ is Format.LATEX else "the page has no place for them"
        raise fail(f"`--trace` shows figures, and {place}.", hint="write it as text or JSON")
    sizes, pins = opt.bindings(set_ or [], "--set"), [path_of(path) for path in pin or []]
    pads = opt.bindings(pad or [], "--pad")
    room, uneven = None if capacity is None else capacity_of(capacity), skew_of(skew)

    def loaded(sizes: Mapping[str, int], pins: Sequence[Path], phase: str | None) -> Program:
        found = with_capacity(load(path_of(file), sizes, pins, pads, phase, weights, caches), room)
        return with_skew(found, uneven)

    program = loaded(sizes, pins, phase)
    phases = select_phases(program, phase)
    if over is not None:
        check_grows(program, over)
    wanted = opt.stages_of(stages, micro_batches)
    if wanted is not None:
        _refuse_beside_stages({"--against": named, "--trace": trace}, format_ in (Format.LATEX, Format.HTML))
    rivals = {name: loaded(sizes, [*pins, path], phase) for name, path in named}
    layers_ahead = ahead_of(ahead, offload is not Offload.NONE or bool(program.on_host), "--")
    way = Way(wanted, opt.counts_by_phase(micro_batches, phases), offload, layers_ahead)
    opt.refuse_way(way, parts, placed=bool(program.on_host))
    best = compile_model(program, meshes, options, phases, way)
    shapes = best.shapes if isinstance(best, CompiledModel) else ()
    if len(meshes) > 1:
        (say if format_ is Format.TEXT else note)((ranking(shapes) if shapes else best.choice) + "\n")
    if isinstance(best, CompiledPipeline):
        written = pipeline_json if format_ is Format.JSON else pipeline_text
        say(written(explain_pipeline(best.staged, form, drop_ones)))
        return
    # Layouts are compared by what they take, whether they fit or not.
    unlimited = replace(options, capacity_bytes=math.inf)
    mesh = shapes[0].mesh if shapes else meshes[0]
    planned = {name: compile_phases(rival, phases, mesh, unlimited) for name, rival in rivals.items()}
    seek = search and over is not None and format_ is not Format.LATEX
    found = []
    for k, one in enumerate(best.phases):
        complain(one.warnings)
        others: dict[str, CompiledPhase] = {name: plans[k] for name, plans in planned.items()}
        seeker = _search(lambda at, of: loaded({**sizes, str(over): at}, pins, of), one) if seek else None
        rivalry = compare(others, form, over, drop_ones, seeker) if others else None
        found.append(explained_phase(one, form, drop_ones, trace, rivalry))
    match format_:
        case Format.TEXT:
            say("\n".join(as_text(one) for one in found))
        case Format.LATEX:
            say("\n".join(as_latex(one) for one in found))
        case Format.JSON:
            say(as_json(found))
        case Format.HTML:
            say(plan_page(best.phases, {one.explanation.phase: one for one in found}))


def _refuse_beside_stages(given: Mapping[str, object], drawn: bool) -> None:
    """Raise InputError for the first option that does not go with stages, and where formulas are to be drawn."""
    for option, value in given.items():
        if value:
            raise fail(f"`{option}` does not go with `--stages`.", hint="leave one of them out")
    if drawn:
        raise fail(
            "The formulas of a pipeline are text or JSON.", hint="leave out `--format`, or write `--format json`"
        )


def _search(at_size: Callable[[int, str], Program], compiled: CompiledPhase) -> Search:
    """The search of a compiled phase for the least communication, of the program that `at_size` gives of it with a dim
    of another size."""

    def search(at: int, stored: Sequence[Pin]) -> CompiledPhase:
        program = at_size(at, compiled.phase)
        program = replace(program, pins=merge_pins(program.pins, stored))
        options = Options(compiled.hardware, Objective.COMMUNICATION, capacity_bytes=math.inf)
        return compile_phase(program, compiled.phase, compiled.spmd.mesh, options)

    return search


def _named(texts: Sequence[str]) -> list[tuple[str, Path]]:
    """The names and files of `NAME=FILE`. Raises InputError for what is neither, and for a name given twice."""
    named: dict[str, Path] = {}
    findings = []
    for text in texts:
        name, equals, path = (part.strip() for part in text.partition("="))
        if not (name and equals and path):
            findings.append(
                Diagnostic(f"`--against {text[:60]}` names no layout.", hint="write `--against ws2d=ws2d.pins`")
            )
        elif name in named:
            findings.append(Diagnostic(f"`--against` names `{name[:60]}` twice."))
        else:
            named[name] = Path(path)
    if findings:
        raise InputError(findings)
    return list(named.items())
