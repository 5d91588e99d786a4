"""`escc sweep`: a model over slices, batches, contexts and weight formats, each point planned to proof."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ...cost.hardware import Hardware
from ...ir.diagnostics import fail
from ..report.page.render import frontier_page
from ..sweep.answers import Answer, Target, answer, best_points, frontier_of, read_target
from ..sweep.grid import grid
from ..sweep.points import Data, Record, Sweep
from ..sweep.run import run_sweep
from ..sweep.sweep_text import draw, sweep_text
from ..text.extras import optional
from ..text.files import refuse_existing, write_files
from ..text.terminal import note, say
from .main import reported
from .options import Sets, bindings

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


class Emit(StrEnum):
    """What is shown of a sweep."""

    TEXT = "text"
    JSON = "json"
    HTML = "html"
    PNG = "png"
    SVG = "svg"


@app.command("sweep")
@reported
def sweep_command(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model (.esti), or a shipped one by its name.")],
    chips: Annotated[str, typer.Option(metavar="LIST", help="Counts of chips: `8..256` by powers of two, or `8,24`.")],
    batch: Annotated[str, typer.Option(metavar="LIST", help="Sequences in a batch, written like chips.")],
    context: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Tokens of context after a step; without it as the phase has it."),
    ] = None,
    weights: Annotated[str, typer.Option(metavar="LIST", help="Types of the weights: bf16, int8, fp8, int4.")] = "bf16",
    phase: Annotated[str | None, typer.Option(help="Sweep one phase only; without it, all of them.")] = None,
    hardware: Annotated[
        str, typer.Option(help="A preset, which `escc hardware` lists, or a file of your own, NAME.toml.")
    ] = "tpu-v4",
    datasheet: Annotated[
        bool, typer.Option("--datasheet", help="Take the figures of NAME itself where NAME-measured is there as well.")
    ] = False,
    hbm_fraction: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="The share of the HBM that a plan may take at any point.")
    ] = 1.0,
    set_: Sets = None,
    pad: Annotated[
        list[str] | None, typer.Option(metavar="DIM=N", help="Pad a dim, in all phases. May be repeated.")
    ] = None,
    max_latency: Annotated[
        str | None, typer.Option(metavar="TIME", help="Say which point is cheapest with steps of `30ms` at most.")
    ] = None,
    max_cost: Annotated[
        float | None,
        typer.Option(
            metavar="COST",
            help="The most that a million tokens may cost: dollars where the hardware has a price, else chip-seconds.",
        ),
    ] = None,
    emit: Annotated[
        Emit, typer.Option(help="A table and a plot as text, JSON, or a page or picture beside the results file.")
    ] = Emit.TEXT,
    output: Annotated[
        str | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="The results file, NAME.jsonl, written as points are solved. The same command goes on where it ended.",
        ),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Processes at once; without it, as many as there are cores.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over an existing page or picture.")] = False,
) -> None:
    """Plan a model at every point of a grid, and say what is quickest and cheapest."""
    if emit in (Emit.PNG, Emit.SVG):
        optional("matplotlib", "A picture")  # before anything is planned
    target = read_target(max_latency, max_cost) if max_latency is not None or max_cost is not None else None
    chip = Hardware.load(hardware) if datasheet else Hardware.load(hardware, measured=True)
    sizes, pads = bindings(set_ or [], "--set"), bindings(pad or [], "--pad")
    sweep = grid(Path(model), chip, (chips, batch, context, weights), phase, sizes, pads, hbm_fraction)
    results = None if output is None else _results_file(output)
    beside = _beside(results, emit)
    if beside is not None:
        refuse_existing(beside.parent, [beside.name], force)
    records = run_sweep(sweep, results, jobs)
    match emit:
        case Emit.TEXT:
            say(sweep_text(sweep, records, target))
        case Emit.JSON:
            say(json.dumps(_data(sweep, records, target), indent=2) + "\n")
        case _:
            assert beside is not None, "a page or picture stands beside the results"
            page = frontier_page(f"Sweep of {sweep.source.name}", frontier_of(sweep, records))
            content = page if emit is Emit.HTML else draw(sweep, records, emit.value)
            write_files(beside.parent, {beside.name: content}, force)
            note(f"wrote {beside}")


def _results_file(text: str) -> Path:
    path = Path(text)
    if path.suffix != ".jsonl":
        raise fail(f"`{text[:200]}` is no name of a results file.", hint="write `-o NAME.jsonl`")
    if not path.parent.is_dir():
        raise fail(f"`{str(path.parent)[:200]}` is no folder.")
    return path


def _beside(results: Path | None, emit: Emit) -> Path | None:
    """Where a page or picture goes, None for what is printed."""
    if emit in (Emit.TEXT, Emit.JSON):
        return None
    if results is None:
        raise fail(f"`--emit {emit}` writes a file beside the results file.", hint="name that by `-o NAME.jsonl`")
    return Path(os.path.splitext(results)[0] + f".{emit}")


def _data(sweep: Sweep, records: Sequence[Record], target: Target | None) -> Data:
    """A sweep as one object."""
    found: Data = {"sweep": sweep.header(), "points": [record.data() for record in records]}
    found["frontier"] = [str(records[k].point) for k in best_points(sweep, records)]
    if target is not None:
        answered: Answer = answer(records, target)
        record = answered.record
        found["target"] = {
            "max_latency_s": target.latency_s,
            "max_cost": target.cost,
            "met": answered.met,
            "point": None if record is None else record.data(),
        }
    return found
