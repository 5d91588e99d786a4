"""A sweep shown: its points, the frontier of latency and cost and the answer as text, and as a picture."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from math import log10
from typing import Any

from ...ir.diagnostics import plural
from ...ir.dtype import Dtype
from ...ir.inert import visible
from ..plan.way import Offload
from ..text.extras import optional
from ..text.terminal import count_text, table, time_text
from .answers import Answer, Frontier, Target, answer, best_points, cost_of, cost_unit, frontier_of, plotted
from .points import IN_MESH_ORDER, Record, Status, Sweep
from .solve import program_at

WIDTH, HEIGHT = 72, 18  # of the plot, in characters
MARKS = "ox+*#@%&"  # of the series; more take them again
FIGURES = ("latency", "tokens/s", "MFU", "HBM", "cost", "binds")


def sweep_text(
    sweep: Sweep, records: Sequence[Record], target: Target | None, options: Mapping[str, str] | None = None
) -> str:
    """The points of a sweep, those of the frontier marked, with a plot; and the answer to `target`, with the command
    that compiles it where for each chip the `options` are given that it shares with that of the sweep."""
    best = set(best_points(sweep, records))
    lines = [_title(sweep)]
    rows = [_row(sweep, record, k in best) for k, record in enumerate(records) if record.latency_s]
    if rows:
        head = ("", *_which(sweep, records[0]))
        lines += table([(*head, *FIGURES), *rows], head.index("chips"))
        lines.append(f"  Cost is in {cost_unit(sweep)}. * None of its kind is both quicker and cheaper.")
    lines += _proofs(sweep, records)
    without = [record for record in records if record.latency_s is None]
    if without:
        lines += ["", f"Without a plan: {len(without)} of {len(records)} points"]
        lines += (f"  {record.point}: {record.reason}" for record in without)
    plot = list(_plot(sweep, records))
    if plot:
        lines += ["", f"Latency of a step (across) and {cost_unit(sweep)} (up)", *plot]
    if target is not None:
        lines += ["", *_answered(sweep, answer(records, target), target, options)]
    return "\n".join(lines) + "\n"


def _title(sweep: Sweep) -> str:
    load = "" if sweep.skew == 1 else f", {float(sweep.skew):g} times the mean of what is chosen on the busiest chip"
    return f"Sweep of {sweep.source.name} on {', '.join(one.name for one in sweep.hardware)}{load}"


def _which(sweep: Sweep, record: Record) -> dict[str, str]:
    """Which point a record is of, by columns; chips and caches have one where the sweep goes over several."""
    point = record.point
    columns = {
        "hardware": sweep.chip(point).chip,
        "phase": point.phase,
        "weights": str(point.weights),
        "caches": str(point.caches or "-"),
        "chips": str(point.chips),
        "batch": str(point.batch),
        "context": "" if point.context is None else str(point.context),
        "slice": _place(record),
    }
    if len(sweep.hardware) == 1:
        del columns["hardware"]
    if sweep.caches == (None,):
        del columns["caches"]
    return columns


def _row(sweep: Sweep, record: Record, best: bool) -> tuple[str, ...]:
    latency = time_text(record.latency_s or 0.0)
    if record.low_s is not None and record.high_s is not None:
        latency += f" ({time_text(record.low_s, 3)} to {time_text(record.high_s, 3)})"
    return (
        "*" if best else "",
        *_which(sweep, record).values(),
        latency,
        count_text(record.tokens_per_s or 0.0),
        f"{record.mfu or 0.0:.1%}",
        f"{record.hbm_share or 0.0:.0%}",
        count_text(cost_of(record) or 0.0),
        record.binds or "",
    )


def _place(record: Record) -> str:
    """The slice of a point, with what is streamed or into which stages layers are divided."""
    return ", ".join(text for text in (record.slice, record.way) if text)


def _proofs(sweep: Sweep, records: Sequence[Record]) -> Iterator[str]:
    """What is proven of the points that have a plan."""
    planned = [record for record in records if record.latency_s is not None]
    open_ = [record for record in planned if record.status is not Status.OPTIMAL]
    if planned and not open_:
        shapes = f"any slice shape of so many chips{_ways(sweep)}"
        yield f"  All {len(planned)} are proven: no layouts on {shapes} are quicker."
    for record in open_:
        least = f"no plan takes less than {time_text(record.bound_s)}" if record.bound_s else "no bound is known"
        yield f"  Not proven: {record.point}; {least}."
    ordered = dict.fromkeys(one.slice for r in planned for one in r.tried if one.status == IN_MESH_ORDER)
    if ordered:
        yield f"  Of {', '.join(ordered)} only layouts with axes in mesh order were looked at."


def _ways(sweep: Sweep) -> str:
    """The ways to plan that points were looked for in, where that is not as a whole with all on the chips."""
    stages = f" in {plural(sweep.stages, 'stage')}" if sweep.stages else " in stages or without"
    what = "weights and caches" if sweep.offload is Offload.AUTO else sweep.offload.value
    streams = (
        f"with {what} streamed {plural(sweep.ahead, 'layer')} ahead or not" if sweep.offload is not Offload.NONE else ""
    )
    return (stages if sweep.stages is not None else "") + (f", {streams}," if streams else "")


def _plot(sweep: Sweep, records: Sequence[Record]) -> Iterator[str]:
    """The points in characters, on logarithmic scales; nothing where there are less than two."""
    spots = [spot for spot in frontier_of(sweep, records).points if spot.latency_s and spot.cost]
    if len(spots) < 2:
        return
    marks = dict(zip(dict.fromkeys(spot.series for spot in spots), cycle(MARKS), strict=False))
    across, up = [log10(spot.latency_s or 1.0) for spot in spots], [log10(spot.cost or 1.0) for spot in spots]
    grid = [[" "] * WIDTH for _ in range(HEIGHT)]
    for spot, x, y in zip(spots, across, up, strict=True):
        grid[HEIGHT - 1 - _cell(y, up, HEIGHT)][_cell(x, across, WIDTH)] = marks[spot.series]
    ends = [count_text(10**end) for end in (max(up), min(up))]
    margin = max(map(len, ends))
    for number, line in enumerate(grid):
        end = {0: ends[0], HEIGHT - 1: ends[1]}.get(number, "")
        yield f"  {end:>{margin}} |{''.join(line)}".rstrip()
    low, high = (time_text(10**end, 3) for end in (min(across), max(across)))
    yield f"  {'':>{margin}} +{'-' * WIDTH}"
    yield f"  {'':>{margin}}  {low}{high:>{WIDTH - len(low)}}"
    yield f"  {'':>{margin}}  " + ", ".join(f"{mark} {series}" for series, mark in marks.items())


def _cell(number: float, among: Sequence[float], count: int) -> int:
    """Which of `count` cells from the least to the greatest of some numbers one of them is in."""
    span = max(among) - min(among)
    return min(count - 1, int((number - min(among)) / span * count)) if span else count // 2


def _answered(sweep: Sweep, found: Answer, target: Target, options: Mapping[str, str] | None) -> Iterator[str]:
    wanted = []
    if target.latency_s is not None:
        wanted.append(f"{time_text(target.latency_s)} a step")
    if target.cost is not None:
        wanted.append(f"{count_text(target.cost)} {cost_unit(sweep)}")
    yield f"Within {' and '.join(wanted)}"
    if found.record is None:
        yield "  No point has a plan."
        return
    what = "The quickest" if target.latency_s is None else "The cheapest"
    yield f"  {what if found.met else 'None is; nearest comes'}: {found.record.point}, as {_place(found.record)}:"
    cost = f"{count_text(cost_of(found.record) or 0.0)} {cost_unit(sweep)}"
    yield f"  {time_text(found.record.latency_s or 0.0)} a step, {cost}."
    if options is not None:
        chip = sweep.chip(found.record.point).name
        yield f"  {command(sweep, found.record, options[chip])}"


def command(sweep: Sweep, record: Record, options: str) -> str:
    """The command that compiles the plan of a point, and prints its layouts; `options`: the model and its chip."""
    point = record.point
    program = program_at(sweep, point)
    sizes = dict(program.phase(point.phase).sizes)
    dims = [dim for dim in (sweep.dims.batch, *sweep.dims.new, sweep.dims.context) if dim is not None]
    given = [f"{dim}={sizes[dim]}" for dim in dims] + [f"{dim}={size}" for dim, size in sweep.settings]
    mesh = record.slice or str(point.chips)
    parts = [
        f"escc compile {options} --chips {f'x={mesh}' if mesh.isdigit() else mesh} --phase {point.phase}",
        f"--set {','.join(given)}",
        *(f"--pad {dim}={size}" for dim, size in sweep.pads),
        *([f"--weights {point.weights}"] if point.weights is not Dtype.BF16 else []),
        *([f"--caches {point.caches}"] if point.caches is not None else []),
        *([f"--hbm-fraction {sweep.hbm_fraction!r}"] if sweep.hbm_fraction != 1.0 else []),
        *([f"--offload {sweep.offload} --ahead {sweep.ahead}"] if sweep.offload is not Offload.NONE else []),
        *([f"--stages {sweep.stages or 'auto'}"] if sweep.stages is not None else []),
    ]
    return " ".join(parts)


INCHES = (8.0, 5.0)
STYLE = {"svg.hashsalt": "escc", "svg.fonttype": "none", "font.size": 10.0}  # the same bytes every time
FORMS = "os^DvP"
WANTED = {"color": "0.2", "linestyle": "--", "linewidth": 1.0}


def draw(sweep: Sweep, records: Sequence[Record], form: str, target: Target | None = None) -> bytes:
    """The picture's bytes, `form` being `png` or `svg`; the same for the same records. Colours tell series apart, forms
    counts of chips; points of the frontier have their chips and batch beside them, and `target` is drawn as lines.
    Raises InputError where matplotlib is missing."""
    matplotlib = optional("matplotlib", "A picture")
    backend = optional(f"matplotlib.backends.backend_{'agg' if form == 'png' else 'svg'}", "A picture")
    frontier = frontier_of(sweep, records, target)
    with matplotlib.rc_context(STYLE):
        figure = optional("matplotlib.figure", "A picture").Figure(figsize=INCHES, layout="constrained")
        axes = figure.add_subplot()
        for number, series in enumerate(frontier.series):
            _draw_series(axes, frontier, series, f"C{number % 10}")
        if any(plotted(point) for point in frontier.points):
            if frontier.max_latency_s is not None:
                axes.axvline(1e3 * frontier.max_latency_s, **WANTED)
            if frontier.max_cost is not None:
                axes.axhline(frontier.max_cost, **WANTED)
            for number, count in enumerate(frontier.counts):
                axes.plot([], [], FORMS[number % len(FORMS)], color="0.4", label=plural(count, "chip"))
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.legend(frameon=False)
        axes.set_xlabel("latency of a step, ms")
        axes.set_ylabel(frontier.cost_unit)
        axes.set_title(visible(_title(sweep).removeprefix("Sweep of ")), parse_math=False)
        axes.grid(True, which="both", alpha=0.25)
        out = io.BytesIO()
        if form == "png":
            backend.FigureCanvasAgg(figure).print_png(out, metadata={"Software": None})
        else:
            backend.FigureCanvasSVG(figure).print_svg(out, metadata={"Date": None, "Creator": None})
    return out.getvalue()


def _draw_series(axes: Any, frontier: Frontier, series: str, colour: str) -> None:
    """The points of a series, a line through those that none betters, which have labels."""
    own, best = ([frontier.points[k] for k in numbers] for numbers in frontier.series[series])
    line = [1e3 * (p.latency_s or 0.0) for p in best], [p.cost or 0.0 for p in best]
    axes.plot(*line, "-", color=colour, label=series)
    for point in filter(plotted, own):
        form, at = FORMS[frontier.counts.index(point.chips) % len(FORMS)], (1e3 * (point.latency_s or 0.0), point.cost)
        shown = point in best
        axes.plot(*at, form, color=colour, alpha=1.0 if shown else 0.45, markersize=6 if shown else 5)
        if shown:
            beside = {"textcoords": "offset points", "xytext": (5, 5), "fontsize": 8}
            axes.annotate(f"{point.chips}, {point.batch}", at, **beside)
