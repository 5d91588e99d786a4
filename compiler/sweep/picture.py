"""A sweep's points as a picture, PNG or SVG: latency against cost, the frontier of each kind as a line."""

from __future__ import annotations

import io
from collections.abc import Sequence

from ...ir.inert import visible
from ..text.extras import optional
from .answers import frontier_of
from .frontier import best_of, plotted
from .points import Record, Sweep

INCHES = (8.0, 5.0)
STYLE = {"svg.hashsalt": "escc", "svg.fonttype": "none", "font.size": 10.0}  # the same bytes every time
FORMS = "os^DvP"


def draw(sweep: Sweep, records: Sequence[Record], form: str) -> bytes:
    """The picture's bytes, `form` being `png` or `svg`; the same for the same records. Raises InputError where
    matplotlib is missing."""
    matplotlib = optional("matplotlib", "A picture")
    backend = optional(f"matplotlib.backends.backend_{'agg' if form == 'png' else 'svg'}", "A picture")
    frontier = frontier_of(sweep, records)
    with matplotlib.rc_context(STYLE):
        figure = optional("matplotlib.figure", "A picture").Figure(figsize=INCHES, layout="constrained")
        axes = figure.add_subplot()
        for number, series in enumerate(dict.fromkeys(point.series for point in frontier.points)):
            own = [point for point in frontier.points if point.series == series and plotted(point)]
            best = [own[k] for k in best_of(own)]
            form_of, colour = FORMS[number % len(FORMS)], f"C{number % 10}"
            across, up = [1e3 * (p.latency_s or 0.0) for p in own], [p.cost or 0.0 for p in own]
            axes.plot(across, up, form_of, color=colour, alpha=0.45, markersize=5)
            line = [1e3 * (p.latency_s or 0.0) for p in best], [p.cost or 0.0 for p in best]
            axes.plot(*line, f"-{form_of}", color=colour, label=series, markersize=6)
        if any(plotted(point) for point in frontier.points):
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.legend(frameon=False)
        axes.set_xlabel("latency of a step, ms")
        axes.set_ylabel(frontier.cost_unit)
        axes.set_title(visible(f"{sweep.source.name} on {sweep.hardware.name}"), parse_math=False)
        axes.grid(True, which="both", alpha=0.25)
        out = io.BytesIO()
        if form == "png":
            backend.FigureCanvasAgg(figure).print_png(out, metadata={"Software": None})
        else:
            backend.FigureCanvasSVG(figure).print_svg(out, metadata={"Date": None, "Creator": None})
    return out.getvalue()
