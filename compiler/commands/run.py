"""`escc run`: a model generates on virtual chips, and in JAX; its tokens must be those of the dense reference."""

from __future__ import annotations

import math
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ...ir.diagnostics import fail
from ...ir.mesh import Mesh
from ...passes.choose import Options
from ..jax.check import require_jax
from ..plan.pipeline import load
from ..run.generate import prepare, run_prepared
from ..run.generate_jax import (
    check_processes,
    disagreement,
    generate_jax,
    generation_text,
    held_exactly,
    jax_disagreement,
    jax_text,
)
from ..text.terminal import complain, say
from .main import reported
from .options import Chip, Chips, Datasheet, EngineName, File, Net, Pins, Sets, bindings, chip_of

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


class Backend(StrEnum):
    """What a model generates with."""

    NUMPY = "numpy"
    JAX = "jax"


@app.command("run")
@reported
def run_command(
    file: File,
    chips: Chips,
    tokens: Annotated[int, typer.Option(metavar="N", help="How many each sequence gets, the first from prefill.")] = 16,
    hardware: Chip = "tpu-v4",
    datasheet: Datasheet = False,
    network: Net = None,
    engine: EngineName = None,
    set_: Sets = None,
    pin: Pins = None,
    memory: Annotated[
        bool, typer.Option("--memory", help="Keep the plans to the memory of a chip, though what runs is small.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of the random weights and prompts.")] = 0,
    backend: Annotated[
        Backend, typer.Option(help="Virtual chips; or also JAX, which runs the emitted modules on CPU devices.")
    ] = Backend.NUMPY,
    processes: Annotated[
        int, typer.Option(metavar="N", help="Of JAX, on this machine, which share the chips equally.")
    ] = 1,
) -> None:
    """Generate with shrunken dims and random weights on virtual chips, and in JAX, and compare with the reference."""
    mesh = Mesh.parse(chips)
    chip = chip_of(hardware, datasheet, network, engine)
    options = Options(chip, capacity_bytes=chip.hbm_bytes if memory else math.inf)
    program = load(Path(file), bindings(set_ or [], "--set"), [Path(path) for path in pin or []])
    if backend is Backend.JAX:
        require_jax()
        check_processes(mesh, processes)
    elif processes != 1:
        raise fail("Virtual chips run in one process.", hint="several are started with `--backend jax`")
    prepared = prepare(program, mesh, options, tokens, seed)
    if backend is Backend.JAX:
        prepared = held_exactly(prepared)
    done = run_prepared(prepared)
    for one in prepared.compiled:
        complain(one.warnings)
    say(generation_text(done))
    wrong = disagreement(done)
    if backend is Backend.JAX and wrong is None:
        found = generate_jax(prepared, processes)
        say(jax_text(done, found, processes))
        wrong = jax_disagreement(done, found)
    if wrong is not None:
        raise fail(wrong)
