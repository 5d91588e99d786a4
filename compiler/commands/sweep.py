"""`escc sweep`: a model over slices, batches, contexts and weight formats, each point planned to proof."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from ...cost.hardware import Convention
from ...ir.diagnostics import Diagnostic, InputError, fail
from ...ir.dtype import Dtype
from ...ir.mesh import MAX_CHIPS
from ...passes.expansion.dims import MAX_SIZE
from ..plan.compiled import Compilation
from ..plan.pipeline import read_model
from ..plan.serving import refuse_twice, sized_by_stream
from ..plan.way import Offload, ahead_of
from ..report.page.render import frontier_page, plan_page
from ..sweep.answers import Answer, Target, answer, best_points, frontier_of, read_target
from ..sweep.grid import grid, read_numbers, read_types
from ..sweep.points import Asked, Data, Record, Sweep
from ..sweep.run import run_sweep
from ..sweep.solve import compiled_again
from ..sweep.stream import Found, Limits, Request, Wanted, places, serve
from ..sweep.stream_text import stream_data, stream_text
from ..sweep.sweep_text import draw, sweep_text
from ..text.arguments import skew_of
from ..text.extras import optional
from ..text.files import path_of, refuse_existing, write_files
from ..text.terminal import note, say
from . import options as opt


class Emit(StrEnum):
    """What is shown of a sweep."""

    TEXT = "text"
    JSON = "json"
    HTML = "html"
    PNG = "png"
    SVG = "svg"


def sweep_command(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model (.esti), or a shipped one by its name.")],
    chips: Annotated[str, typer.Option(metavar="LIST", help="Counts of chips: `8..256` by powers of two, or `8,24`.")],
    batch: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Sequences in a batch, written like chips; of a stream one, or `max`."),
    ] = None,
    context: Annotated[
        str | None, typer.Option(metavar="LIST", help="Tokens of context after a step; without it as the phase has it.")
    ] = None,
    weights: Annotated[
        str, typer.Option(metavar="LIST", help="Types of the weights: bf16, int8, fp8, fp4, int4.")
    ] = "bf16",
    caches: Annotated[
        str | None, typer.Option(metavar="LIST", help="Types of the caches: bf16, int8, fp8, fp4, int4.")
    ] = None,
    input_: opt.Input = None,
    output_tokens: opt.Output = None,
    chunk: opt.Chunk = None,
    target: Annotated[
        Wanted | None,
        typer.Option(help="Of a stream: what to have most, or least, of; of throughput without it."),
    ] = None,
    max_first_token: Annotated[
        str | None, typer.Option(metavar="TIME", help="Of a stream: the longest that a first token may take, `2s`.")
    ] = None,
    phase: Annotated[str | None, typer.Option(help="Sweep one phase only; without it, all of them.")] = None,
    hardware: opt.Chip = "tpu-v4",
    datasheet: opt.Datasheet = False,
    network: opt.Net = None,
    engine: opt.EngineName = None,
    price: opt.Price = None,
    any_shape: opt.AnyShape = False,
    hbm_fraction: opt.Memory = 1.0,
    set_: opt.Sets = None,
    pad: opt.Pads = None,
    stages: opt.Stages = None,
    offload: opt.Offloading = Offload.NONE,
    ahead: opt.Ahead = None,
    skew: opt.Skew = None,
    max_latency: Annotated[
        str | None, typer.Option(metavar="TIME", help="Say which point is cheapest with steps of `30ms` at most.")
    ] = None,
    max_cost: Annotated[
        float | None,
        typer.Option(
            metavar="COST",
            callback=opt.finite,
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
            "--out",
            metavar="FILE",
            help="The results file, NAME.jsonl, written as points are solved. The same command goes on where it ended.",
        ),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Processes at once; without it, as many as there are cores.")
    ] = None,
    scheduler: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Plan on the workers of a Dask scheduler, `tcp://host:8786`.")
    ] = None,
    plans: Annotated[
        bool,
        typer.Option(
            "--plans", help="With `--emit html`: write the page of each plan of the frontier beside, and link."
        ),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Write over an existing page or picture.")] = False,
) -> None:
    """Plan a model at every point of a grid, and say what is quickest and cheapest."""
    if emit in (Emit.PNG, Emit.SVG):
        optional("matplotlib", "A picture")  # before anything is planned
    sizes, pads = opt.bindings(set_ or [], "--set"), opt.bindings(pad or [], "--pad")
    given: dict[str, Any]
    chosen = {
        name: opt.chip_of(name, datasheet, network, engine, price) for name in map(str.strip, hardware.split(","))
    }
    same = _same_options(datasheet, network, engine, price, skew)
    given = {"settings": tuple(sizes.items()), "pads": tuple(pads.items()), "hbm_fraction": hbm_fraction}
    given |= {"any_shape": any_shape, "skew": skew_of(skew)}
    if input_ is not None or output_tokens is not None:
        of_grid = {"-o": output, "--context": context, "--max-cost": max_cost, "--phase": phase, "--stages": stages}
        of_grid |= {"--offload": None if offload is Offload.NONE else offload, "--plans": plans or None}
        of_grid |= {"--ahead": ahead, "--force": force or None}
        before, after = _stream_tokens(input_, output_tokens, of_grid, emit)
        limits = Limits(_time(max_latency, "--max-latency"), _time(max_first_token, "--max-first-token"))
        source = read_model(path_of(model))
        most = target or Wanted.THROUGHPUT
        request = Request(before, after, limits, most, _batch(batch), chunk, source=source, **given)
        # What is wrong with it is said before anything is planned.
        refuse_twice(sizes, sized_by_stream(request.program()))
        kinds = _kinds(weights, "--weights"), _kinds(caches, "--caches")
        found = serve(request, places(_numbers(chips), list(chosen.values()), *kinds), jobs, scheduler)
        name = next(name for name, chip in chosen.items() if chip.name == found[0].place.hardware.name)
        say(_of_stream(request, found, [shlex.quote(model), f"--hardware {shlex.quote(name)}", *same], emit))
        if found[0].served is None:  # the best, of places that are said to have none
            raise fail("No place serves the stream.")
        return
    for option, value in {"--chunk": chunk, "--target": target, "--max-first-token": max_first_token}.items():
        if value is not None:
            raise fail(f"`{option}` is of a stream of requests.", hint="which `--input` and `--output` ask for")
    if batch is None:
        raise fail("A grid needs `--batch`.", hint="or ask for a stream of requests by `--input` and `--output`")
    wanted = read_target(max_latency, max_cost) if max_latency is not None or max_cost is not None else None
    lists, count = (chips, batch, context, weights, caches), opt.stages_of(stages, None)
    asked = Asked(source=read_model(path_of(model)), **given)
    layers_ahead = ahead_of(ahead, offload is not Offload.NONE, "--")
    sweep = grid(asked, list(chosen.values()), lists, phase, offload, layers_ahead, count)
    if plans and emit is not Emit.HTML:
        raise fail("`--plans` are pages, which `--emit html` links to.")
    results = None if output is None else _results_file(output)
    beside = _beside(results, emit)
    opt.refuse_idle_force(force, beside is not None, "a results file is gone on with; ask for a page by `--emit html`")
    if beside is not None:
        refuse_existing(beside.parent, [beside.name], force)
    records = run_sweep(sweep, results, jobs, scheduler)
    if beside is None:
        named = {chip.name: [shlex.quote(model), f"--hardware {shlex.quote(n)}", *same] for n, chip in chosen.items()}
        options = {name: " ".join(words) for name, words in named.items()}
        as_text = emit is Emit.TEXT
        say(sweep_text(sweep, records, wanted, options) if as_text else _data(sweep, records, wanted))
    else:
        files = _files(sweep, records, wanted, beside, emit, plans)
        write_files(beside.parent, files, force)
        note(f"wrote {beside}" + (f" and {len(files) - 1} plans beside it" if plans else ""))
    if all(record.latency_s is None for record in records):  # which is said of each, and why
        raise fail("No point of the grid has a plan.")


def _stream_tokens(
    input_tokens: int | None, output_tokens: int | None, of_grid: Mapping[str, object], emit: Emit
) -> tuple[int, int]:
    """The tokens of a stream's requests. Raises InputError where some are missing, where an option is given that is
    `of_grid`, or where a stream is to be drawn."""
    if input_tokens is None or output_tokens is None:
        raise fail("A stream has both `--input` and `--output` tokens.")
    for option, given in of_grid.items():
        if given is not None:
            raise fail(f"`{option}` is of a grid, and `--input` asks for a stream of requests.")
    if emit not in (Emit.TEXT, Emit.JSON):
        raise fail(f"A stream is shown as text or JSON, not as {emit}.")
    return input_tokens, output_tokens


def _of_stream(request: Request, found: Sequence[Found], options: Sequence[str], emit: Emit) -> str:
    """What places serve of a stream. `options`: those of this command that the one which compiles the best has too."""
    if emit is Emit.JSON:
        return json.dumps(stream_data(request, found), indent=2) + "\n"
    sizes = [f"--set {d}={n}" for d, n in request.settings] + [f"--pad {d}={n}" for d, n in request.pads]
    return stream_text(request, found, " ".join([*options, *sizes]))


def _files(
    sweep: Sweep, records: Sequence[Record], wanted: Target | None, beside: Path, emit: Emit, plans: bool
) -> dict[str, str | bytes]:
    """The picture or the page of a sweep by its file's name; with `plans` the pages of the frontier's plans, compiled
    again."""
    if emit is not Emit.HTML:
        return {beside.name: draw(sweep, records, emit.value, wanted)}
    pages: dict[str, str | bytes] = {}
    links: dict[int, str] = {}
    for number in best_points(sweep, records) if plans else ():
        compiled = compiled_again(sweep, records[number])
        if compiled is not None:
            links[number] = f"{beside.stem}-{number + 1}.html"
            pages[links[number]] = plan_page(Compilation((compiled,)))
    found = frontier_of(sweep, records, wanted, {k: quote(link) for k, link in links.items()})
    return {beside.name: frontier_page(f"Sweep of {sweep.source.name}", found)} | pages


def _time(text: str | None, option: str) -> float | None:
    """The seconds of an option such as `30ms`."""
    return None if text is None else read_target(text, None, option).latency_s


def _batch(text: str | None) -> int | None:
    if text is None or text == "max":
        return None
    numbers = _listed(read_numbers(text, "--batch", MAX_SIZE))
    if len(numbers) != 1:
        raise fail("A stream has one `--batch`, or `max`, the best.")
    return numbers[0]


def _numbers(text: str) -> tuple[int, ...]:
    return _listed(read_numbers(text, "--chips", MAX_CHIPS))


def _listed(read: tuple[tuple[int, ...], tuple[Diagnostic, ...]]) -> tuple[int, ...]:
    numbers, found = read
    if found:
        raise InputError(found)
    return numbers


def _kinds(text: str | None, option: str) -> tuple[Dtype | None, ...]:
    """The types of a list; those that the model has, where there is none."""
    if text is None:
        return (None,)
    types, found = read_types(text, option)
    if found:
        raise InputError(found)
    return tuple(None if kind is Dtype.BF16 else kind for kind in types)


def _same_options(
    datasheet: bool, network: Convention | None, engine: str | None, price: float | None, skew: str | None
) -> list[str]:
    """The options of this command that one which compiles a plan of it has to have as well."""
    parts = ["--datasheet"] if datasheet else []
    parts += [f"--network {network}"] if network is not None else []
    parts += [f"--engine {shlex.quote(engine)}"] if engine is not None else []
    parts += [f"--price {price!r}"] if price is not None else []
    return parts + ([f"--skew {shlex.quote(skew)}"] if skew is not None else [])


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


def _data(sweep: Sweep, records: Sequence[Record], target: Target | None) -> str:
    """A sweep as one object of JSON."""
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
    return json.dumps(found, indent=2) + "\n"
