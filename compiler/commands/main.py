"""The command line: `escc compile`, `layouts`, `hardware`; the others are a file each, as `lazy` lists them.

Exit codes: 0 done; 1 the input is wrong, or no plan fits; 2 wrong usage; 3 the compiler contradicts
itself.
"""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import partial, wraps
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, ParamSpec

import typer

from ...cost.hardware import Hardware
from ...ir.diagnostics import Diagnostic, InputError, fail
from ...ir.dtype import Dtype
from ...ir.mesh import Mesh
from ...ir.program import Program
from ...passes.choose import Options, choose
from ...passes.ilp.solver import Settings
from ...passes.plan import Objective
from ..plan.autopad import pad_auto, padding_text
from ..plan.compiled import Compilation
from ..plan.pipeline import InternalError, compile_phases, load, select_phases, unfilled
from ..plan.shapes import compile_shapes, meshes_of, ranking
from ..report.hardware import hardware_sheet, preset_table
from ..report.layouts import layouts_table
from ..report.phases import sharing_text
from ..report.targets import ALONE, Emit, file_names, in_files, in_one
from ..text.files import refuse_existing, write_files
from ..text.terminal import OutputError, complain, note, say
from .lazy import LazyGroup
from .options import Chip, Chips, ChipsOrCount, File, Least, Net, Overlap, Pins, Sets, bindings

WRONG_INPUT, BUG = 1, 3
GARBAGE = 50_000  # objects between two collections; at Python's 700 they take 7% of a compile, and find nothing

P = ParamSpec("P")

app = typer.Typer(
    name="escc",
    cls=LazyGroup,
    help="The layout compiler for sharded Transformers: a text layer in, the cheapest sharded program out.",
    epilog="Exit codes: 0 done; 1 the input is wrong, or no plan fits; 2 wrong usage; 3 a bug in escc.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


class Solver(StrEnum):
    """The solvers that MathOpt is asked to use."""

    HIGHS = "highs"
    GSCIP = "gscip"
    CP_SAT = "cp-sat"


def run() -> None:
    """The entry point. Ctrl-C and a closed pipe end the process at once, even inside the solver."""
    gc.set_threshold(GARBAGE)
    for name in ("SIGINT", "SIGPIPE"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    app()


def reported(command: Callable[P, None]) -> Callable[P, None]:
    """The command, with what goes wrong said on standard error and as an exit code."""

    @wraps(command)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except InputError as error:
            complain(error.diagnostics)
            raise typer.Exit(WRONG_INPUT) from None
        except OutputError as error:
            complain([Diagnostic(f"Standard output cannot be written to: {error}.")])
            raise typer.Exit(WRONG_INPUT) from None
        except InternalError as error:
            note(f"escc: internal error: {error}\nThis is a bug in escc; the plan is not shown.")
            raise typer.Exit(BUG) from None

    return guarded


def _print_version(wanted: bool) -> None:
    if wanted:
        say(f"escc {version('escc')}\n")
        raise typer.Exit


@app.callback()
def _main(
    _: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """What holds for every command."""


@app.command("compile")
@reported
def compile_command(
    file: File,
    chips: ChipsOrCount,
    phase: Annotated[str | None, typer.Option(help="Compile one phase only; without it, all of them.")] = None,
    hardware: Chip = "tpu-v4",
    network: Net = None,
    hbm_fraction: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="The share of the HBM that a plan may take at any point.")
    ] = 1.0,
    set_: Sets = None,
    pin: Pins = None,
    objective: Least = Objective.TIME,
    solver: Annotated[Solver, typer.Option(help="The solver that proves it.")] = Solver.HIGHS,
    overlap: Overlap = False,
    emit: Annotated[
        Emit,
        typer.Option(
            help="The plan as text, as a NumPy or a JAX program that runs on its own, as PartitionSpecs, as JSON, or "
            "as a page to look at."
        ),
    ] = Emit.TEXT,
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="DIR", help="Write a file for each phase into DIR.")
    ] = None,
    pad: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DIM=N|auto",
            help="Pad a dim, in all phases. May be repeated. With `auto` sizes that the axes divide are tried for all "
            "other dims; of a count of chips on the best shape.",
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Run the plan on virtual chips, and compare with the reference.")
    ] = False,
    separate: Annotated[
        bool, typer.Option("--separate", help="Plan each phase alone, and say what sharing parameters would cost.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Write over existing files.")] = False,
) -> None:
    """Find the cheapest sharded program of a model on a mesh of chips."""
    chip = Hardware.load(hardware).with_network(network)
    meshes = meshes_of(chips, chip)
    settings = Settings(solver.value)
    options = Options(chip, objective, hbm_fraction * chip.hbm_bytes, settings=settings, overlap=overlap)
    sizes, pins = bindings(set_ or [], "--set"), [Path(path) for path in pin or []]
    pads = bindings([text for text in pad or [] if text != "auto"], "--pad")
    program = load(Path(file), sizes, pins, pads, phase)
    phases = select_phases(program, phase)
    if output is not None:
        refuse_existing(Path(output), file_names(program.name, phases, emit), force)
    elif emit in ALONE and len(phases) > 1:
        raise fail(
            f"The model has {len(phases)} phases, each a program of its own.",
            hint="choose one with `--phase`, or write all to files with `-o DIR`",
        )
    shapes = compile_shapes(program, phases, meshes, options, separate) if len(meshes) > 1 else ()
    mesh = shapes[0].mesh if shapes else meshes[0]
    paddings = ""
    if "auto" in (pad or []):
        loaded = partial(load, Path(file), sizes, pins, phase=phase)
        auto = pad_auto(lambda more: loaded({**pads, **more}), phases, mesh, options, separate)
        program, paddings = auto.program, padding_text(auto)
    compiled = compile_phases(program, phases, mesh, options, check, separate)
    _remark(compiled)
    complain(unfilled(program, phases))
    for choice in [*([ranking(shapes)] if shapes else []), *([paddings] if paddings else [])]:
        if emit is Emit.TEXT or output is not None:
            say(choice + "\n")
        else:  # a program, or data, stands alone on standard output
            note(choice)
    if output is None:
        say(in_one(compiled, emit, shapes))
    else:
        paths = write_files(Path(output), in_files(compiled, emit, shapes), force)
        say("".join(f"wrote {path}\n" for path in paths))
    if separate and len(phases) > 1 and emit is Emit.TEXT:
        say("\n\n" + _sharing(compiled, program, phases, mesh, options) + "\n")
    _vouch(compiled)


def _remark(compiled: Compilation) -> None:
    """Warnings, and how long the plans took."""
    complain(compiled.warnings)
    for plan in compiled.plans:
        named = ", ".join(phase.phase for phase in plan.phases)
        note(f"phase {named}: built in {plan.timing.build_s:.2f} s, solved in {plan.timing.solve_s:.2f} s")


def _vouch(compiled: Compilation) -> None:
    """End with an error where a run, if there was one, did not agree with the reference."""
    for one in compiled:
        if not one.sound:
            note(f"escc: internal error: the plan of phase `{one.phase}` does not do what the model says.")
    if not compiled.sound:
        raise typer.Exit(BUG)


def _sharing(alone: Compilation, program: Program, phases: Sequence[str], mesh: Mesh, options: Options) -> str:
    """What storing parameters once would cost phases that were planned alone."""
    try:
        return sharing_text(alone, choose(program, phases, mesh, options), None)
    except InputError as error:
        return sharing_text(alone, None, error.diagnostics[0].message)


@app.command("layouts")
@reported
def layouts_command(
    tensor: Annotated[str, typer.Argument(help="Its dims: `BLE`, or `[batch, d_model]`.")],
    dims: Annotated[list[str], typer.Option(metavar="DIM=N,...", help="The sizes of its dims. May be repeated.")],
    chips: Chips,
    dtype: Annotated[Dtype, typer.Option(help="The type of its elements.")] = Dtype.BF16,
) -> None:
    """List the legal partitions of a tensor."""
    say(layouts_table(tensor, bindings(dims, "--dims"), Mesh.parse(chips), dtype))


@app.command("hardware")
@reported
def hardware_command(
    name: Annotated[
        str | None, typer.Argument(help="A preset or a file, NAME.toml, to show.", show_default=False)
    ] = None,
) -> None:
    """List the hardware presets, or show one with all its figures."""
    say(preset_table() if name is None else hardware_sheet(Hardware.load(name)))


if __name__ == "__main__":
    run()
