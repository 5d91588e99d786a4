"""`escc compile`: the plan of a model, printed or written in any of its forms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperCommand

from ...cost.hardware import Hardware
from ...ir.choices import with_capacity, with_skew
from ...ir.diagnostics import InputError, fail, size_text
from ...ir.mesh import Mesh
from ...ir.program import Program
from ...ir.record import record
from ...passes.choose import choose
from ...passes.expansion.dims import MAX_SIZE
from ...passes.ilp.solver import Settings
from ...passes.options import Options
from ...passes.plan import Objective
from ..plan.compiled import Compilation
from ..plan.pipeline import compile_phases, load, select_phases
from ..plan.serving import (
    Stream,
    beside_bytes,
    of_stream,
    refuse_twice,
    served,
    sized_by_stream,
)
from ..plan.shapes import Shape, mesh_name, meshes_to_compile, ranking
from ..plan.way import Offload, Way, ahead_of
from ..report.compiled_model import CompiledModel, compile_model
from ..report.served_stream import ServedStream
from ..report.stages import Stage, stage_text
from ..report.targets import ALONE, Emit, file_names, in_files, in_one
from ..report.text import Detail, checked_text, sharing_text
from ..text.arguments import capacity_of, skew_of
from ..text.files import path_of, refuse_existing, write_files
from ..text.late import late
from ..text.terminal import complain, note, say
from . import options as opt
from .main import BUG, PLAIN, reported

if TYPE_CHECKING:
    from ..hf_import.weight_map import WeightMap
    from ..report.compiled_pipeline import CompiledPipeline

compile_app = typer.Typer(**PLAIN)


class Solver(StrEnum):
    """The solvers that MathOpt is asked to use."""

    HIGHS = "highs"
    GSCIP = "gscip"
    CP_SAT = "cp-sat"


class _Command(TyperCommand):
    """The command, whose `--check` may say where."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """`--check tpu` and `--check=tpu` as the option that they mean."""
        words: list[str] = []
        for word in args:
            if word == "tpu" and words[-1:] == ["--check"]:
                words[-1] = "--check-tpu"
            else:
                words.append("--check-tpu" if word == "--check=tpu" else word)
        return super().parse_args(ctx, words)


@record
class _Writing:
    """What is written, into which folder (None: onto standard output), whether over existing files, how much of
    a plan as text, and what parameters are made of, for modules that load them."""

    emit: Emit
    folder: Path | None
    force: bool
    detail: Detail
    weights: WeightMap | None

    def refuse(self, model: str, phases: tuple[str, ...]) -> None:
        """Raise InputError, before anything is planned, where it could not be written."""
        if self.folder is not None:
            refuse_existing(self.folder, file_names(model, phases, self.emit), self.force)
        elif self.emit in ALONE and len(phases) > 1:
            raise fail(
                f"The model has {len(phases)} phases, each a program of its own.",
                hint="choose one with `--phase`, or write all to files with `-o DIR`",
            )

    def check_on_tpu(self, compiled: CompiledModel) -> None:
        """Compile what is written with the TPU's compiler, and say what that showed. Raises InputError, and nothing is
        written, where it does not fit or does not send what was planned."""
        for one in compiled.phases:
            module = in_one(Compilation((one,)), self.emit, (), self.detail, self.weights)
            found = late("compiler.jax.tpu").check_tpu(one, module)
            checked = late("compiler.jax.module_text").module_check_text(one, found)
            (note if self.folder is None else say)(checked)
            if not found.equal:
                raise fail(f"The TPU's compiler makes another program of phase {one.phase} than was planned.")

    def show(self, compiled: CompiledModel, paddings: str | None, serves: ServedStream | None) -> None:
        """Print or write a model, after what slice shapes and padded sizes were tried; and say what it `serves`."""
        phases, shapes = compiled.phases, compiled.shapes
        for choice in [*([ranking(shapes)] if shapes else []), *([paddings] if paddings else [])]:
            if self.emit is Emit.TEXT or self.folder is not None:
                say(choice + "\n")
            else:  # a program, or data, stands alone on standard output
                note(choice)
        if compiled.phases[0].checked is not None and (self.folder is not None or self.emit is not Emit.TEXT):
            note(checked_text(compiled.phases))
        more = compiled.chosen(), serves, compiled.of_no_phase
        if self.folder is None:
            say(in_one(phases, self.emit, shapes, self.detail, self.weights, *more))
        else:
            texts = in_files(phases, self.emit, shapes, self.detail, self.weights, *more)
            written = write_files(self.folder, texts, self.force)
            say("".join(f"wrote {path}\n" for path in written))
        self._tell(serves)

    def _tell(self, serves: ServedStream | None) -> None:
        """Print what a stream gets, where no program or data stands alone."""
        if serves is not None and self.emit is Emit.TEXT:
            say("\n" + serves.text())

    def show_staged(self, pipeline: CompiledPipeline, serves: ServedStream | None) -> None:
        """Print or write a pipeline, after what was tried; and say what it `serves`."""
        targets = late("compiler.report.staged_targets")
        staged, found, said = pipeline.staged, pipeline.tried, pipeline.of_no_stage
        if self.folder is not None:
            texts = targets.staged_files(staged, found, self.emit, self.detail, serves, said)
            written = write_files(self.folder, texts, self.force)
            say("".join(f"wrote {path}\n" for path in written))
        else:
            say(targets.staged_in_one(staged, found, self.emit, self.detail, serves, said))
        self._tell(serves)
        for n, stage in enumerate(staged.stages):
            if not stage.sound:
                note(f"escc: internal error: stage {n + 1} does not do what the model says.")
        if not staged.sound:
            raise typer.Exit(BUG)


BESIDE_STOP = (  # what a stage that is printed has no part in, by the command's parameters
    *("stages", "micro_batches", "offload", "ahead", "best_batch", "overlap", "separate", "emit", "folder", "force"),
    *("check", "on_tpu", "program", "verbose"),
)


def _refuse_beside_stop(context: typer.Context, pads: Sequence[str], meshes: Sequence[Mesh], model: Program) -> None:
    """Raise InputError, before anything is planned, for the first option of which `--stop-after` would show nothing,
    and where it is not one plan, of layers that the chips hold, that is stopped."""
    given = [option for name in BESIDE_STOP if (option := opt.option_given(context, name)) is not None]
    for option in [*given, *(["--pad auto"] if "auto" in pads else [])]:
        shown = option.replace("--check-tpu", "--check tpu")
        raise fail(f"`{shown}` does not go with `--stop-after`.", hint="leave one of them out")
    if len(meshes) > 1:
        hint = f"name one, as `--chips {mesh_name(meshes[0])}`"
        raise fail(f"`--stop-after` shows a plan of one mesh, and {len(meshes)} shapes have so many chips.", hint=hint)
    if model.on_host:
        hint = "leave out the pins that place it there"
        raise fail(f"`{model.on_host[0]}` is placed with the host, and `--stop-after` shows no streams.", hint=hint)


def _refuse_detail(context: typer.Context, emit: Emit) -> None:
    """Raise InputError for an option that says how much a plan as text tells, where none is written."""
    for name in ("program", "verbose"):
        if emit is not Emit.TEXT and (option := opt.option_given(context, name)) is not None:
            hint = f"leave out `{option}`, or `--emit {emit}`"
            raise fail(f"`{option}` is of the plan as text, and `--emit {emit}` writes none.", hint=hint)


def _refuse_on_tpu(emit: Emit, stages: str | None, meshes: Sequence[Mesh], chip: Hardware) -> None:
    """Raise InputError, before anything is planned, where the TPU's compiler could not check what is written."""
    if emit is not Emit.JAX:
        raise fail("`--check tpu` is of a JAX module.", hint="add `--emit jax`")
    if stages is not None:
        raise fail("`--check tpu` does not go with `--stages`.", hint="its compiler takes one slice")
    tpu = late("compiler.jax.tpu")
    tpu.require_tpu_compiler()
    if len(meshes) == 1:  # of several shapes the cheapest is looked at
        tpu.slice_of(meshes[0], chip)


@compile_app.command("compile", cls=_Command)
@reported
def compile_command(
    context: typer.Context,
    file: opt.File,
    chips: opt.ChipsOrCount,
    phase: Annotated[str | None, typer.Option(help="Compile one phase only; without it, all of them.")] = None,
    hardware: opt.Chip = "tpu-v4",
    datasheet: opt.Datasheet = False,
    network: opt.Net = None,
    engine: opt.EngineName = None,
    price: opt.Price = None,
    any_shape: opt.AnyShape = False,
    hbm_fraction: opt.Memory = 1.0,
    set_: opt.Sets = None,
    pin: opt.Pins = None,
    weights: opt.Weights = None,
    caches: opt.Caches = None,
    input_: opt.Input = None,
    output: opt.Output = None,
    batch: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, max=MAX_SIZE, help="Of a stream of requests: how many are decoded at once."),
    ] = None,
    chunk: opt.Chunk = None,
    stages: opt.Stages = None,
    micro_batches: opt.MicroBatches = None,
    offload: opt.Offloading = Offload.NONE,
    ahead: opt.Ahead = None,
    best_batch: opt.MostSequences = False,
    objective: opt.Least = Objective.TIME,
    solver: Annotated[Solver, typer.Option(help="The solver that proves it.")] = Solver.HIGHS,
    overlap: opt.Overlap = False,
    parts: opt.Parts = False,
    capacity: opt.Capacity = None,
    skew: opt.Skew = None,
    emit: Annotated[
        Emit,
        typer.Option(
            help="The plan as text, as a NumPy or a JAX program that runs on its own, as PartitionSpecs, as JSON, or "
            "as a page to look at."
        ),
    ] = Emit.TEXT,
    folder: Annotated[
        str | None, typer.Option("-o", "--out", metavar="DIR", help="Write a file for each phase into DIR.")
    ] = None,
    pad: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DIM=N|auto",
            help="Pad a dim, in all phases. May be repeated. With `auto` sizes that the axes divide are tried for all "
            "other dims; of a count of chips on each of its shapes, before the best is taken.",
        ),
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Run the plan on virtual chips, and compare with the reference. `--check tpu`, with `--emit jax`: "
            "compile the module at full size with the TPU's compiler, which needs no TPU, and compare bytes and memory "
            "before it is written.",
        ),
    ] = False,
    on_tpu: Annotated[bool, typer.Option("--check-tpu", hidden=True)] = False,
    separate: Annotated[
        bool, typer.Option("--separate", help="Plan each phase alone, and say what sharing parameters would cost.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Write over existing files.")] = False,
    program: Annotated[bool, typer.Option("--program", help="Print the sharded program, too.")] = False,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", help="The program with every step of norms, softmaxes and the like on its own line."),
    ] = False,
    stop_after: Annotated[
        Stage | None,
        typer.Option("--stop-after", help="Print the expanded program, the choice, or its steps, and stop."),
    ] = None,
) -> None:
    """Find the cheapest sharded program of a model on a mesh of chips."""
    chip = opt.chip_of(hardware, datasheet, network, engine, price)
    meshes, remarks = meshes_to_compile(chips, chip, any_shape)
    complain(remarks)  # before it is planned, which may take long
    settings = Settings(solver.value)
    options = Options(chip, objective, hbm_fraction * chip.room_bytes, settings=settings, overlap=overlap, parts=parts)
    sizes, pins = opt.bindings(set_ or [], "--set"), [path_of(path) for path in pin or []]
    pads = opt.bindings([text for text in pad or [] if text != "auto"], "--pad")
    stream = _stream(input_, output, batch, chunk, best_batch)
    room, uneven = capacity_of(capacity), skew_of(skew)

    def loaded(pads: Mapping[str, int]) -> Program:
        alone = phase if stream is None else None  # a stream is made of all phases
        found = with_capacity(load(path_of(file), sizes, pins, pads, alone, weights, caches), room)
        found = with_skew(found, uneven)
        if stream is None:
            return found
        refuse_twice(sizes, sized_by_stream(found))
        return of_stream(found, stream)

    model = loaded(pads)
    phases = select_phases(model, phase)
    if stop_after is not None:
        _refuse_beside_stop(context, pad or [], meshes, model)
        say(stage_text(stop_after, model, phases, meshes[0], options))
        return
    if on_tpu:
        _refuse_on_tpu(emit, stages, meshes, chip)
    _refuse_detail(context, emit)
    opt.refuse_idle_force(force, folder is not None, "name a folder by `-o DIR`")
    detail = Detail.VERBOSE if verbose else Detail.PROGRAM if program or folder is not None else Detail.SUMMARY
    made = _made_of(path_of(file), model) if emit is Emit.JAX else None
    writing = _Writing(emit, None if folder is None else path_of(folder), force, detail, made)
    writing.refuse(model.name, phases)
    wanted, counts = opt.stages_of(stages, micro_batches), opt.counts_by_phase(micro_batches, phases)
    layers_ahead = ahead_of(ahead, offload is not Offload.NONE or bool(model.on_host), "--")
    way = Way(wanted, counts, offload, layers_ahead, separate, check, best_batch)
    opt.refuse_way(way, parts, "auto" in (pad or []), bool(model.on_host))
    paddings, auto = None, None
    shapes: tuple[Shape, ...] = ()
    if "auto" in (pad or []):
        padding = late("compiler.plan.autopad")
        shapes, auto = padding.pad_shapes(lambda more: loaded({**pads, **more}), phases, meshes, options, separate)
        paddings = padding.padding_text(auto)

    def planned(given: Options) -> CompiledModel | CompiledPipeline:
        if auto is None:
            return compile_model(model, meshes, given, phases, way)
        if given is options and not check:
            return CompiledModel(auto.compiled, shapes)
        mesh = shapes[0].mesh if shapes else meshes[0]
        return CompiledModel(compile_phases(auto.program, phases, mesh, given, check, separate), shapes)

    compiled = planned(options) if stream is None else _beside_prompts(stream, options, planned)
    compiled = replace(compiled, remarks=remarks)
    if compiled.choice:
        (say if emit is Emit.TEXT else note)(compiled.choice + "\n")
    serves = None if stream is None else _serves(compiled, stream)
    complain(each for each in compiled.warnings if each not in remarks)
    if not isinstance(compiled, CompiledModel):
        writing.show_staged(compiled, serves)
        return
    _remark(compiled)
    if emit is Emit.JAX:
        complain(compiled.module_warnings)
    if on_tpu:
        writing.check_on_tpu(compiled)
    writing.show(compiled, paddings, serves)
    if separate and len(phases) > 1 and emit is Emit.TEXT:
        say(f"\n{_sharing(compiled, options)}\n")
    _vouch(compiled)


def _beside_prompts(
    stream: Stream, options: Options, planned: Callable[[Options], CompiledModel | CompiledPipeline]
) -> CompiledModel | CompiledPipeline:
    """A plan that has room for the prompts of a stream beside its batch: planned again, with less for each phase by
    itself, where the first has not. Raises InputError where there is none."""
    room_bytes, given = options.hardware.room_bytes, options
    for _ in range(2):
        compiled = planned(given)
        serves = _serves(compiled, stream)
        if serves is None or serves.found.hbm_bytes <= room_bytes:
            return compiled
        held_bytes = serves.found.hbm_bytes
        parts = (compiled.phases,) if isinstance(compiled, CompiledModel) else compiled.stages
        less = room_bytes - beside_bytes(*parts)
        given = replace(options, capacity_bytes=min(options.capacity, less))
    raise fail(
        f"The batch and the prompts that come in beside it take {size_text(held_bytes)} of a chip, "
        f"which has {size_text(room_bytes)}.",
        hint="serve fewer at once, or take prompts in by `--chunk`",
    )


def _serves(compiled: CompiledModel | CompiledPipeline, stream: Stream) -> ServedStream | None:
    """What a stream gets of a plan; None where that is of one phase."""
    if isinstance(compiled, CompiledModel):
        return ServedStream(stream, served(compiled.phases, stream)) if len(compiled.phases) > 1 else None
    return ServedStream(stream, compiled.staged.served(stream)) if len(compiled.stages[0]) > 1 else None


def _made_of(file: Path, model: Program) -> WeightMap | None:
    """What the parameters of a model are made of, by the map beside its file."""
    made: WeightMap | None = late("compiler.hf_import.weight_map").map_beside(file, model)
    return made


def _stream(
    input_tokens: int | None, output_tokens: int | None, batch: int | None, chunk: int | None, best_batch: bool
) -> Stream | None:
    """The stream of requests that three options describe together. Raises InputError where one is missing."""
    given = {"--input": input_tokens, "--output": output_tokens, "--batch": batch}
    missing = [name for name, number in given.items() if number is None]
    if len(missing) == len(given):
        if chunk is not None:
            raise fail("`--chunk` is of a stream of requests.", hint="which `--input` and `--output` ask for")
        return None
    if best_batch:
        hint = "give its batch by `--batch`; `escc sweep` looks for the best one"
        raise fail("`--best-batch` is not of a stream of requests.", hint=hint)
    if input_tokens is None or output_tokens is None or batch is None:
        raise fail(f"A stream of requests needs `{'` and `'.join(missing)}` as well.")
    return Stream(input_tokens, output_tokens, batch, chunk)


def _remark(compiled: CompiledModel) -> None:
    """How long the plans took."""
    for plan in compiled.phases.plans:
        named = ", ".join(phase.phase for phase in plan.phases)
        note(f"phase {named}: built in {plan.timing.build_s:.2f} s, solved in {plan.timing.solve_s:.2f} s")


def _vouch(compiled: CompiledModel) -> None:
    """End with an error where a run, if there was one, did not agree with the reference."""
    for one in compiled.phases:
        if not one.sound:
            note(f"escc: internal error: the plan of phase `{one.phase}` does not do what the model says.")
    if not compiled.phases.sound:
        raise typer.Exit(BUG)


def _sharing(alone: CompiledModel, options: Options) -> str:
    """What storing parameters once would cost phases that were planned alone."""
    try:
        together = choose(alone.program, [one.phase for one in alone.phases], alone.mesh, options)
    except InputError as error:
        return sharing_text(alone.phases, None, error.diagnostics[0].message)
    return sharing_text(alone.phases, together, None)
