"""Pages as text: a compiled plan, or the frontier of a sweep, in one HTML file that asks for nothing else.

The browser is told, by the hashes of the style sheet and of the script, to load and run these alone.
Names are escaped wherever they stand, and so is what does not show itself. The same input gives the same bytes.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from html import escape
from importlib import resources
from importlib.metadata import version
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from ....cost.formulas.symbolic import Form
from ....ir.diagnostics import Diagnostic
from ....ir.inert import visible
from ....passes.stages.layers import dividing
from ...plan.compiled import Compilation, CompiledPhase
from ...plan.shapes import Shape
from ...sweep.answers import Frontier, Spot, plotted
from ...sweep.schedule import Rung, Schedule
from ...text.terminal import LAYOUT, count_text, time_text
from ..explain_text import Explained, explained_phase
from ..schedule import split_remarks, step_remarks
from ..served_stream import ServedStream
from ..text import objective_text, ways_text
from .formulas import mathml
from .frontier import FORMS, HEIGHT, WIDTH, draw_frontier
from .pipeline import draw_pipeline
from .plan_view import proof, view

FRAME = '<iframe srcdoc="{page}" width="100%" height="640" style="border:1px solid #8888"></iframe>'


def framed(page: str) -> str:
    """A page in a frame of its own, for notebooks."""
    return FRAME.format(page=escape(page, quote=True))


def plan_page(
    compiled: Compilation,
    explained: Mapping[str, Explained] | None = None,
    shapes: Sequence[Shape] = (),
    serves: ServedStream | None = None,
    said: Sequence[Diagnostic] = (),
) -> str:
    """The page of compiled phases of one model on one mesh.

    `explained`: the formulas and rivals of each phase by name; without it, exact formulas and no rivals.
    `shapes`: the slice shapes that were tried, cheapest first. `serves`: what a stream of requests gets.
    `said`: warnings of no phase by itself.
    """
    first = compiled[0]
    if explained is None:
        explained = {one.phase: explained_phase(one, Form.EXACT) for one in compiled}
    spmd, plan = first.spmd, first.plan
    proofs = []
    if compiled.together:
        looped = any(one.estimate.loops for one in compiled)
        proofs = [
            ("objective", f"{objective_text(plan)}, all phases"),
            ("proof", proof(plan.gap, looped, ways_text(plan))),
        ]
    return render(
        "plan.html",
        title=f"{spmd.name} on {spmd.mesh}",
        model=spmd.name,
        mesh=str(spmd.mesh),
        chips=spmd.mesh.chips,
        hardware=_hardware(first),
        facts=proofs + ([] if serves is None else serves.facts()),
        warnings=[warning.message for warning in said],
        phases=[view(one, explained[one.phase]) for one in compiled],
        together=_together(compiled),
        whole_s=compiled.total_s,
        shapes=shapes,
    )


def frontier_page(title: str, frontier: Frontier) -> str:
    """The page of a sweep: its points by latency and cost, and all of them in a table."""
    points = frontier.points
    return render(
        "frontier.html",
        title=title,
        frontier=frontier,
        plot=draw_frontier(frontier),
        width=int(WIDTH),
        height=int(HEIGHT),
        forms=FORMS,
        best=frontier.best,
        linked=any(point.link for point in points),
        missing=sum(not plotted(point) for point in points),
        details=lambda point: _details(point, frontier),
    )


def schedule_page(found: Schedule, rungs: Sequence[Rung] = ()) -> str:
    """The page of a schedule of requests; `rungs`: what it takes without some of its steps."""
    job, best = found.job, found.best
    requests = len(job.requests.endings)
    facts = [
        ("all of it", time_text(best.total_s)),
        ("requests a second", count_text(requests / best.total_s)),
        ("chips", f"{job.mesh.chips} {job.hardware.chip}"),
        (f"{dividing(job.program, sum(best.layers))} of each stage", ", ".join(map(str, best.layers))),
        ("stages wait", f"{max(0.0, best.timeline.bubbles):.1%}"),
        ("padding", f"{best.padding / best.tokens:.1%}"),
        (
            "tokens of padding " + ("saved" if found.padding_saved >= 0 else "more than in the order of the file"),
            f"{abs(found.padding_saved):,}",
        ),
    ]

    def details(number: int) -> str:
        batch = best.batches[number]
        sizes = f"{len(batch.members)} x {batch.new} tokens" + (f" after {batch.cached}" if batch.cached else "")
        return f"batch {number}, {batch.runs}: {sizes}"

    return render(
        "schedule.html",
        title=f"Schedule of {requests:,} requests, {job.program.name}",
        facts=facts,
        warnings=[warning.message for warning in found.warnings],
        notes=tuple(split_remarks(found)),
        drawing=draw_pipeline(best),
        details=details,
        shared=lambda number: best.batches[number].runs == "contexts",
        rungs=rungs,
        remarks=tuple(step_remarks(found, rungs)),
        longest_s=max((rung.scheduled.total_s for rung in rungs), default=1.0),
    )


def render(template: str, **values: Any) -> str:
    """A template of this folder, filled, with the style sheet and the script."""
    environment = Environment(
        loader=FunctionLoader(_file),
        autoescape=True,
        finalize=_inert,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "seconds": lambda seconds: time_text(seconds) if seconds else "0",
        "mb": _megabytes,
        "mathml": mathml,
    }
    style, script = _file("style.css"), _file("page.js")
    frame = {"style": style, "script": script, "style_hash": _hash(style), "script_hash": _hash(script)}
    return environment.get_template(template).render(**frame, **values, version=version("escc"))


def _inert(value: Any) -> Any:
    """What an expression of a template gives: text without characters that do not show themselves."""
    return visible(value, LAYOUT) if isinstance(value, str) and not isinstance(value, Markup) else value


def _file(name: str) -> str:
    """A template, the style sheet or the script."""
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _megabytes(size: float) -> str:
    """Bytes as MB, to the hundredth, or to two digits where that would be nothing."""
    return f"{size / 1e6:,.2f}" if size >= 1e4 else f"{size / 1e6:.2g}"


def _hash(text: str) -> Markup:
    return Markup("sha256-" + b64encode(sha256(text.encode()).digest()).decode())


def _hardware(compiled: CompiledPhase) -> str:
    chip = compiled.hardware
    return (
        f"{chip.name}: {chip.peak_flops_per_s / 1e12:.6g} Tflop/s, HBM {chip.hbm_bytes / 1e9:.2f} GB "
        f"at {chip.hbm_bytes_per_s / 1e9:.6g} GB/s, network {chip.convention}"
    )


def _together(compiled: Compilation) -> list[tuple[str, int, float]]:
    """Each phase and handover with its calls and the seconds of one; none of phases that were not planned together."""
    if not compiled.together:
        return []
    [plan] = compiled.plans
    rows = [(one.phase, one.calls, one.estimate.totals().total_s) for one in compiled]
    calls = {name: count for name, count, _ in rows}
    return rows + [(f"{h.before} to {h.after}", calls[h.before], h.price) for h in plan.handovers]


def _details(point: Spot, frontier: Frontier) -> str:
    """A point in words."""
    start = f"{point.label} ({point.series}), {point.chips} chips, batch {point.batch}"
    if point.latency_s is None or point.cost is None:
        return f"{start}: {point.reason or 'no plan'}"
    return f"{start}: {time_text(point.latency_s)} {frontier.latency_of}, {point.cost:,.6g} {frontier.cost_unit}"
