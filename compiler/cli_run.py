"""`escc run`: a model generates on virtual chips, and its tokens must be those of the dense reference."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from ..cost.hardware import Convention, load_hardware
from ..ir.diagnostics import fail
from ..ir.mesh import parse_mesh
from ..passes.choose import Options
from .cli import Chips, File, Sets, bindings, reported
from .driver import load
from .generate import generate
from .generation_text import disagreement, generation_text
from .terminal import complain, say

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command("run")
@reported
def run_command(
    file: File,
    chips: Chips,
    tokens: Annotated[int, typer.Option(metavar="N", help="How many each sequence gets, the first from prefill.")] = 16,
    hardware: Annotated[
        str, typer.Option(help="A preset, which `escc hardware` lists, or a file of your own, NAME.toml.")
    ] = "tpu-v4",
    network: Annotated[
        Convention, typer.Option(help="One bandwidth for a chip and no latency, or links for each axis.")
    ] = Convention.FLAT,
    set_: Sets = None,
    pin: Annotated[
        list[str] | None, typer.Option(metavar="FILE", help="Layouts to keep from the search. May be repeated.")
    ] = None,
    memory: Annotated[
        bool, typer.Option("--memory", help="Keep the plans to the memory of a chip, though what runs is small.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of the random weights and prompts.")] = 0,
) -> None:
    """Generate with shrunken dims and random weights on virtual chips, and compare with the reference."""
    mesh = parse_mesh(chips)
    chip = load_hardware(hardware).with_network(network)
    options = Options(chip, capacity_bytes=chip.hbm_bytes if memory else math.inf)
    program = load(Path(file), bindings(set_ or [], "--set"), [Path(path) for path in pin or []])
    done, compiled = generate(program, mesh, options, tokens, seed)
    for one in compiled:
        complain(one.warnings)
    say(generation_text(done))
    wrong = disagreement(done)
    if wrong is not None:
        raise fail(wrong)
