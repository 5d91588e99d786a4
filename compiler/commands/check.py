"""`escc check`: what is in a model, and, with a backend, whether its plan holds where it is run."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from fractions import Fraction
from typing import Annotated

import typer

from ...cost.estimate import estimate
from ...cost.hardware import Hardware
from ...cost.memory import memory
from ...ir.choices import chooses, with_capacity, with_skew
from ...ir.dataflow import moves, ops
from ...ir.diagnostics import Source, fail, plural
from ...ir.inert import visible
from ...ir.program import Program, Repeat, Stored, walk
from ...ir.text.read_spmd import parse_spmd
from ...ir.verify.verify import verify
from ...passes.options import Options
from ..jax.check import check_jax, jax_check_text, require_jax
from ..jax.gpu import check_gpu
from ..jax.module_text import module_check_data, module_check_text
from ..jax.tpu import check_tpu, require_tpu_compiler, slice_of
from ..plan.pipeline import load, read_model, select_phases
from ..plan.shapes import meshes_to_compile, ranking
from ..plan.way import Offload, Way, ahead_of
from ..report.compiled_model import compile_model
from ..report.compiled_pipeline import CompiledPipeline
from ..report.staged_text import pipeline_check_text, tries_text
from ..report.text import HEADING
from ..text.arguments import capacity_of, skew_of
from ..text.files import path_of
from ..text.terminal import complain, say, time_text
from . import options as opt


class Backend(StrEnum):
    """What can be checked beyond the model."""

    JAX = "jax"
    TPU = "tpu"
    GPU = "gpu"


OF_PLAN = (  # what only plans have, by the command's parameters
    *("hardware", "datasheet", "network", "engine", "any_shape", "hbm_fraction", "overlap", "parts", "offload"),
    *("ahead", "stages", "capacity", "skew"),
)
OF_MODEL = (  # what a sharded program has settled
    *("phase", "set_", "pin", "pad", "weights", "caches", "any_shape", "hbm_fraction", "overlap", "parts", "offload"),
    *("ahead", "stages", "capacity", "skew"),
)


def check_command(
    context: typer.Context,
    file: Annotated[
        str,
        typer.Argument(metavar="FILE", help="A model (.esti), or the text of a sharded program.", show_default=False),
    ],
    backend: Annotated[
        Backend | None,
        typer.Option(
            help="`jax`: run the plan with JAX on CPU devices, and compare its compiled module with the plan. `tpu`: "
            "compile it at full size with the TPU's compiler, which needs no TPU, and compare that module. "
            "`gpu`: the same with that of GPUs, of those that are here or of the hardware that is named."
        ),
    ] = None,
    chips: Annotated[
        str | None,
        typer.Option(
            metavar="MESH",
            help="The mesh of a plan that is checked: `4x4x4`, `node=2,gpu=8`; or a count, of the best slice shape.",
        ),
    ] = None,
    phase: Annotated[str | None, typer.Option(help="Check one phase only; without it, all of them.")] = None,
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
    overlap: opt.Overlap = False,
    parts: opt.Parts = False,
    offload: opt.Offloading = Offload.NONE,
    ahead: opt.Ahead = None,
    stages: opt.Stages = None,
    micro_batches: opt.MicroBatches = None,
    capacity: opt.Capacity = None,
    skew: opt.Skew = None,
    json_: Annotated[bool, typer.Option("--json", help="With `--backend tpu` or `gpu`: as JSON.")] = False,
) -> None:
    """Look for errors in a model, and say what is in it; with a backend, check its plan there. Of a sharded program as
    `compile --verbose` and `--stop-after insert` print it, say whether it holds together, and what it takes."""
    room = None if capacity is None else capacity_of(capacity)
    if (chips is None) != (backend is None):
        raise typer.BadParameter("A plan is checked with both `--chips` and `--backend`.")
    if json_ and backend not in (Backend.TPU, Backend.GPU):
        raise typer.BadParameter("`--json` goes with `--backend tpu` or `gpu`.")
    if stages is not None and backend is Backend.TPU:
        raise fail("`--backend tpu` does not go with `--stages`.", hint="its compiler takes one slice")
    if backend is not None:
        (require_tpu_compiler if backend is Backend.TPU else require_jax)()
    wanted = opt.stages_of(stages, micro_batches)
    source = read_model(path_of(file))
    if any(True for _ in _programs(source)):
        if chips is not None:
            raise fail("The text is a sharded program, which has its mesh.", hint="leave out `--chips` and `--backend`")
        _refuse_given(context, OF_MODEL, "is of a model, and the text is a sharded program", "leave it out")
        chip = opt.chip_of(hardware, datasheet, network, engine)
        for program_text in _programs(source):
            say(f"ok: {_sharded(program_text, chip)}\n")
        return
    if chips is None:
        _refuse_given(context, OF_PLAN, "is of a plan", "which `--chips` and `--backend` ask for")
    sizes, pads = opt.bindings(set_ or [], "--set"), opt.bindings(pad or [], "--pad")
    program = load(file, sizes, [path_of(path) for path in pin or []], pads, phase, weights, caches)
    if capacity is not None or chooses(program):
        program = with_capacity(program, Fraction(1) if capacity is None else room)
    program = with_skew(program, skew_of(skew))
    phases = select_phases(program, phase)
    if chips is None:
        say(f"ok: {_contents(program)}\n")
        return
    chip = opt.chip_of(hardware, datasheet, network, engine)
    options = Options(chip, capacity_bytes=hbm_fraction * chip.room_bytes, overlap=overlap, parts=parts)
    meshes, remarks = meshes_to_compile(chips, chip, any_shape)
    complain(remarks)
    if backend is Backend.TPU:
        for mesh in meshes:
            slice_of(mesh, chip)  # before anything is planned
    layers_ahead = ahead_of(ahead, offload is not Offload.NONE or bool(program.on_host), "--")
    way = Way(wanted, opt.counts_by_phase(micro_batches, phases), offload, layers_ahead, check=wanted is not None)
    opt.refuse_way(way, parts, placed=bool(program.on_host))
    planned = compile_model(program, meshes, options, phases, way)
    if isinstance(planned, CompiledPipeline):
        _refuse_wrong(planned, (lambda _: None) if json_ else say)
        phased = [one for stage in planned.stages for one in stage]
    else:
        phased = list(planned.phases)
        if planned.shapes and not json_:
            say(ranking(planned.shapes) + "\n")
        if wanted is not None and not json_:
            say(planned.choice + "\n")
    wrong, data = [], []
    for one in phased:
        complain(one.warnings)
        if backend in (Backend.TPU, Backend.GPU):
            compiled = (check_tpu if backend is Backend.TPU else check_gpu)(one)
            data.append(module_check_data(one, compiled))
            sound, text = compiled.equal, module_check_text(one, compiled)
        else:
            found = check_jax(one)
            sound, text = found.sound, jax_check_text(one, found)
        if not json_:
            say(text)
        if not sound:
            wrong.append(one.phase)
    if json_:
        say(json.dumps(data, indent=1) + "\n")
    if wrong:
        raise fail(f"The JAX program of phase {', '.join(wrong)} does not do what the plan says.")


def _refuse_given(context: typer.Context, names: Sequence[str], why: str, hint: str) -> None:
    """Raise InputError for the first of some options, by their parameters, that stands on the command line."""
    for name in names:
        option = opt.option_given(context, name)
        if option is not None:
            raise fail(f"`{option}` {why}.", hint=hint)


def _refuse_wrong(found: CompiledPipeline, say: Callable[[str], None]) -> None:
    """Say what was tried, and what virtual chips showed of the whole pipeline. Raises InputError where that is not the
    model."""
    say(tries_text(found.tried) + "\n")
    say(pipeline_check_text(found.staged) + "\n")
    if not found.staged.sound:
        raise fail("The pipeline does not do what the model says.")


SHARDED = re.compile(r'(\s|#.*\n)*sharded +"')  # how the text of a sharded program begins, and no model


def _programs(source: Source) -> Iterator[Source]:
    """The sharded programs of a text: itself, or those in what `compile --verbose` prints, on the lines where they
    stand; none of a model."""
    if SHARDED.match(source.text):
        yield source
        return
    lines = source.text.split("\n")
    headed, begun, ends = False, None, False
    for n, line in enumerate(lines):
        headed = headed or line.startswith(f"{HEADING},")
        if headed and begun is None and SHARDED.match(line):
            begun = n
        ends = begun is not None and (ends or line.startswith("return"))
        if ends and not line.endswith(","):  # what is returned may take several lines
            yield Source(source.name, "\n" * (begun or 0) + "\n".join(lines[begun : n + 1]))
            headed, begun, ends = False, None, False
    if begun is not None:
        yield Source(source.name, "\n" * begun + "\n".join(lines[begun:]))


def _sharded(source: Source, chip: Hardware) -> str:
    """What is in the text of a sharded program, and what it takes. Raises InputError with all that is wrong in it."""
    spmd = parse_spmd(source)
    verify(spmd)
    totals, held = estimate(spmd, chip).totals(), float(memory(spmd, chip.lanes, chip.fuses_products).total_bytes)
    done, sent = len(list(ops(spmd))), len(moves(spmd))
    takes = f"{time_text(totals.total_s)}, {totals.bytes_sent / 1e6:,.2f} MB sent, {held / 1e9:.3f} GB held by a chip"
    steps = f"{plural(done, 'op')}, {plural(sent, 'collective')}"
    named = f"sharded program {visible(spmd.name)}, phase {visible(spmd.phase)}"
    return f"{named}, on {spmd.mesh}: {steps}; {takes} of {chip.name}"


def _contents(program: Program) -> str:
    items = [placed.item for placed in walk(program.body)]
    kinds = Counter(
        item.kind.value if isinstance(item, Stored) else "repeat" if isinstance(item, Repeat) else "op"
        for item in items
    )
    kinds["pin"] = len(program.pins)
    order = ("input", "param", "cache", "repeat", "op", "pin")
    parts = [plural(kinds[kind], kind) for kind in order if kinds[kind]]
    phases = ", ".join(phase.name for phase in program.phases)
    word = "phase" if len(program.phases) == 1 else "phases"
    return f"model {visible(program.name)}, {word} {phases}: {', '.join(parts)}"
