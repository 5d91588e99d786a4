"""What the page shows of one compiled phase, gathered for the template. Times are seconds, sizes bytes."""

from __future__ import annotations

from collections.abc import Iterator
from math import fsum

from sympy import Symbol

from ....cost.estimate import MoveCost, OpCost
from ....ir.program import Kind, stored_in
from ....ir.record import record
from ....ir.text.write_spmd import print_spmd
from ....passes.plan import Outcome
from ...plan.compiled import CompiledPhase
from ...text.terminal import gap_text, time_text
from ..compare import Comparison
from ..explain import Explanation, Line, rates_of
from ..explain_text import FORMS, Explained, sentence
from ..text import OBJECTIVES, ways_text
from .mesh_drawing import MeshDrawing, draw_mesh
from .tensors import Tensor, interest, tensors_of
from .timeline import Resource, Track, resource_of, tracks


@record
class Share:
    """A part of a whole: `percent` of it, from `start_percent` on. `look`: the class that it is drawn in."""

    name: str
    text: str
    look: str
    start_percent: float
    percent: float


@record
class PhaseView:
    """One phase. `figures`: names and values of the headline; `time`, `memory`: what makes them up. `sentences`: what
    is said of its rivals, where it has some."""

    phase: str
    axes: tuple[tuple[str, int], ...]
    figures: tuple[tuple[str, str], ...]
    time: tuple[Share, ...]
    memory: tuple[Share, ...]
    mesh: MeshDrawing
    tensors: tuple[Tensor, ...]
    first: int
    tracks: tuple[Track, ...]
    form: str
    symbols: tuple[tuple[Symbol, str], ...]
    totals: tuple[Line, ...]
    collectives: tuple[Line, ...]
    rivals: Comparison | None
    sentences: tuple[str, ...]
    text: str
    warnings: tuple[str, ...]

    @property
    def numbers(self) -> dict[str, int]:
        """The number of each tensor."""
        return {tensor.name: k for k, tensor in enumerate(self.tensors)}

    @property
    def marked(self) -> bool:
        """Whether some steps run as one, or in a loop."""
        return any(row.marks for track in self.tracks for row in track.rows)


def view(compiled: CompiledPhase, explained: Explained) -> PhaseView:
    """All that the page shows of a phase."""
    spmd, explanation, rivals = compiled.spmd, explained.explanation, explained.comparison
    tensors = tuple(tensors_of(compiled))
    most_cut = max(range(len(tensors)), key=lambda k: interest(tensors[k]), default=0)
    return PhaseView(
        spmd.phase,
        spmd.mesh.axes,
        tuple(_figures(compiled)),
        tuple(_time(compiled)),
        tuple(_memory(compiled)),
        draw_mesh(spmd.mesh),
        tensors,
        most_cut,
        tracks(spmd, compiled.estimate),
        FORMS[explanation.estimate.form],
        tuple(_symbols(explanation)),
        explanation.totals,
        explanation.collectives,
        rivals,
        tuple(sentence(finding, rivals.over or "") for finding in rivals.findings) if rivals is not None else (),
        print_spmd(spmd),
        tuple(warning.message for warning in compiled.warnings),
    )


def _figures(compiled: CompiledPhase) -> Iterator[tuple[str, str]]:
    totals = compiled.estimate.totals()
    yield "time of a call", time_text(totals.total_s)
    if (used := compiled.prediction.mfu) is not None:
        yield "MFU", f"{used:.1%}"
    whole = float(compiled.memory.total_bytes)
    yield "HBM in use", f"{whole / 1e9:.2f} GB, {whole / compiled.hardware.hbm_bytes:.1%}"
    yield "sent by a chip", f"{totals.bytes_sent / 1e6:,.2f} MB"
    yield "collectives", f"{totals.collectives:,}"
    yield "objective", OBJECTIVES[compiled.plan.objective]
    if compiled.together:
        yield "proof", "of all phases together"
    else:
        limited = (" among layouts in mesh order" if compiled.plan.in_mesh_order else "") + ways_text(compiled.plan)
        yield "proof", proof(compiled.plan.gap, bool(compiled.estimate.loops), limited)


def proof(gap: float, looped: bool, among: str = "") -> str:
    """What is proven, given the relative gap between a plan and its bound; `looped`: loops hide some of its time;
    `among`: of which plans."""
    proven = f"optimal{among}, within a gap of 1e-9" if Outcome.of(gap) is Outcome.OPTIMAL else gap_text(gap, among)
    return f"{proven}, before loops" if looped else proven


def _time(compiled: CompiledPhase) -> Iterator[Share]:
    """The time of a call, by what it is spent on; what loops hide is taken off at the end."""
    cost, totals = compiled.estimate, compiled.estimate.totals()
    named = {
        Resource.COMPUTE: "ops bound by compute",
        Resource.MEMORY: "ops bound by HBM",
        Resource.NETWORK: "communication",
    }
    steps: list[OpCost | MoveCost] = [*cost.ops, *cost.moves]
    whole, start = totals.apart_s, 0.0
    for resource, name in named.items():
        spent = fsum(step.times * step.seconds for step in steps if resource_of(step) is resource)
        share = 100 * spent / whole if whole else 0.0
        yield Share(name, time_text(spent), resource.name.lower(), start, share)
        start += share
    if totals.hidden_s:
        yield Share("hidden in loops", f"less {time_text(totals.hidden_s)}", "", 0.0, 0.0)
    if totals.waiting_s:
        yield Share("waiting for the host", f"{time_text(totals.waiting_s)} more", "", 0.0, 0.0)


def _memory(compiled: CompiledPhase) -> Iterator[Share]:
    """What fills the HBM at the worst point, as shares of all that a chip has."""
    used, room = compiled.memory, compiled.hardware.hbm_bytes
    kinds = {one.value: one.kind for one in stored_in(compiled.spmd.body)}
    stored = (*used.stored, *used.shared)
    parts = [
        ("parameters", fsum(float(size) for name, size in stored if kinds[name] is Kind.PARAM), "plain"),
        ("caches", fsum(float(size) for name, size in stored if kinds[name] is Kind.CACHE), "striped"),
        ("live at the worst point", float(used.worst.bytes), "dotted"),
    ]
    start = 0.0
    for name, size, look in parts:
        share = 100 * size / room
        yield Share(name, f"{size / 1e9:.3f} GB", look, start, share)
        start += share


def _symbols(explanation: Explanation) -> Iterator[tuple[Symbol, str]]:
    """What the symbols of the formulas are worth."""
    rates = rates_of(explanation.estimate)
    for symbol, value in explanation.estimate.sizes.items():
        match rates.get(symbol):
            case "bytes/s":
                yield symbol, f"{float(value) / 1e9:.6g} GB/s"
            case "flop/s":
                yield symbol, f"{float(value) / 1e12:.6g} Tflop/s"
            case "s":
                yield symbol, time_text(float(value))
            case _:
                yield symbol, str(value)
