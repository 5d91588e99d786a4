"""`escc schedule`: requests of many lengths as batches, and what these take in the stages of a pipeline."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ...ir.diagnostics import fail
from ...ir.mesh import Mesh
from ...passes.batches.batches import Requests
from ..plan.pipeline import load
from ..report.page.render import schedule_page
from ..report.schedule import schedule_csv, schedule_data, schedule_text
from ..sweep.schedule import Job, Rung, Schedule, ladder, schedule
from ..text.files import path_of, refuse_existing, write_files
from ..text.lengths import Lengths, read_lengths
from ..text.terminal import complain, note, say
from . import options as opt


class Emit(StrEnum):
    """What is shown of a schedule: its figures, its batches as CSV, both as JSON, or a page with its timeline."""

    TEXT = "text"
    CSV = "csv"
    JSON = "json"
    HTML = "html"


def schedule_command(
    lengths: Annotated[
        str,
        typer.Argument(
            metavar="LENGTHS",
            help="A file of comma-separated values with the columns `context` and `ending`, in tokens; lines of one "
            "`id` share a context.",
            show_default=False,
        ),
    ],
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A model (.esti), or a shipped one by its name.", show_default=False)
    ],
    chips: opt.Chips,
    stages: Annotated[
        int, typer.Option(min=1, metavar="N", help="Stages of a pipeline, which divide the first axis of the mesh.")
    ] = 1,
    theta: Annotated[
        int | None,
        typer.Option(
            "--theta",
            min=1,
            metavar="TOKENS",
            help="The least tokens of a batch; without it a multiple of as many as the plan needs for 90% of its best "
            "rate, with which all takes the least time.",
        ),
    ] = None,
    theta_context: Annotated[
        int | None,
        typer.Option(
            "--theta-context",
            min=1,
            metavar="TOKENS",
            help="The least shared tokens of the contexts that are cached at a time; without it those with which all "
            "takes the least time.",
        ),
    ] = None,
    steps: Annotated[
        bool, typer.Option("--steps", help="Say what each step from plain batches to the schedule brings.")
    ] = False,
    hardware: opt.Chip = "tpu-v4",
    datasheet: opt.Datasheet = False,
    network: opt.Net = None,
    engine: opt.EngineName = None,
    set_: opt.Sets = None,
    emit: Annotated[Emit, typer.Option(help="Figures as text, batches as CSV, both as JSON, or a page.")] = Emit.TEXT,
    output: Annotated[
        str | None, typer.Option("-o", "--out", metavar="FILE", help="Write it into FILE, and the figures as text.")
    ] = None,
    force: opt.Force = False,
) -> None:
    """Divide requests into batches with little padding, and predict what they take."""
    path = None if output is None else _file(output, force)
    opt.refuse_idle_force(force, path is not None, "name one by `-o FILE`")
    if emit is Emit.HTML and path is None:
        raise fail("A page is written into a file.", hint="name it by `-o NAME.html`")
    chip = opt.chip_of(hardware, datasheet, network, engine)
    mesh = Mesh.parse(chips)
    program = load(model, opt.bindings(set_ or [], "--set"))
    read = read_lengths(path_of(lengths))
    requests = Requests(read.contexts, tuple((context, ending) for context, ending, _ in read.endings))
    found = schedule(Job(requests, program, chip, mesh, stages, theta, theta_context))
    rungs = ladder(found) if steps else ()
    complain(found.warnings)
    content = _content(emit, found, rungs, read)
    if path is None:
        say(content)
        return
    write_files(path.parent, {path.name: content}, force)
    note(f"wrote {path}")
    if emit is not Emit.TEXT:
        say(schedule_text(found, rungs))


def _file(text: str, force: bool) -> Path:
    """Where the schedule goes. Raises InputError where that is no file, or there is one already."""
    path = Path(text)
    if not path.name:
        raise fail(f"`{text[:200]}` names no file.", hint="write `-o NAME.csv`")
    refuse_existing(path.parent, [path.name], force)
    return path


def _content(emit: Emit, found: Schedule, rungs: tuple[Rung, ...], lengths: Lengths) -> str:
    match emit:
        case Emit.TEXT:
            return schedule_text(found, rungs)
        case Emit.CSV:
            return schedule_csv(found, lengths)
        case Emit.JSON:
            return schedule_data(found, rungs, lengths)
        case Emit.HTML:
            return schedule_page(found, rungs)
