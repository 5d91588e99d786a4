"""What a compiler made of a module, as text and as data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from ...ir.collective import CollectiveKind, join_axes
from ..plan.compiled import CompiledPhase
from ..text.terminal import table
from .hlo import ModuleTransfer
from .module_report import ROOM, SMALL_BYTES, ModuleReport
from .planned import sent_bytes


def module_check_text(compiled: CompiledPhase, report: ModuleReport) -> str:
    """The sentences and the tables of one phase."""
    return "\n".join(_lines(compiled, report)) + "\n"


def module_check_data(compiled: CompiledPhase, report: ModuleReport) -> dict[str, Any]:
    """The same as data: bytes are those of one chip and one execution of the whole program."""
    every = sorted(report.planned | report.module | report.small, key=_order)
    return {
        "model": compiled.spmd.name,
        "phase": compiled.phase,
        "slice": report.compiled_for,
        "equal": report.equal,
        "kinds": {
            kind.value: {"planned_bytes": float(planned), "module_bytes": float(found)}
            for kind, (planned, found) in report.bytes_by_kind.items()
        },
        "collectives": [
            {
                "kind": sent.kind.value,
                "axes": None if sent.axes is None else list(sent.axes),
                "bytes": float(sent.bytes),
                "times_planned": report.planned[sent],
                "times_found": (report.module + report.small)[sent],
            }
            for sent in every
        ],
        "memory_bytes": report.memory,
        "peak_bytes": report.peak_bytes,
        "planned_bytes": report.planned_bytes,
        "short_bytes": report.short_bytes,
        "far_bytes": report.far_bytes,
        "copies": [
            {"of": copy.name, "type": copy.type, "bytes": copy.bytes, "times": copy.times} for copy in report.copies
        ],
        "not_waiting": [
            {"opcode": one.opcode, "times": one.every, "beside_products": one.beside_products} for one in report.hidden
        ],
    }


def _lines(compiled: CompiledPhase, report: ModuleReport) -> Iterator[str]:
    yield (
        f'JAX program of "{compiled.spmd.name}", phase {compiled.phase}, compiled at full size for '
        f"{report.compiled_for}"
    )
    yield ""
    yield "Collectives of the optimised module, with the bytes that a device sends"
    yield from table(list(collective_rows(report.planned, report.module)), left=2)
    yield ""
    yield from table(list(_kinds(report)), left=1)
    counted, wanted = (float(sent_bytes(which)) for which in (report.module, report.planned))
    verdict = "as planned" if report.equal else f"NOT the {wanted:,.15g} planned, kind by kind"
    yield f"  {counted:,.15g} bytes in all, {verdict}"
    if report.small:
        runs, sent = report.small.total(), float(sent_bytes(report.small))
        yield f"  Beside them {runs} collectives of less than {SMALL_BYTES} bytes send {sent:,.15g} bytes."
    yield ""
    yield "Memory of a chip"
    yield from table(list(_memory(report)), left=1)
    yield ""
    if report.copies:
        yield "Copies of parameters and caches"
        rows = [("", "type", "MB each", "times")]
        rows += [(copy.name, copy.type, f"{copy.bytes / 1e6:,.1f}", str(copy.times)) for copy in report.copies]
        yield from table(rows, left=2)
    else:
        yield "No parameter and no cache is copied."
    for one in report.hidden:
        yield f"{one.beside_products} of {one.every} executions of {one.opcode} have a matmul between start and done."


def _kinds(report: ModuleReport) -> Iterator[tuple[str, ...]]:
    yield ("", "bytes planned", "bytes found", "ratio")
    for kind, (planned, found) in report.bytes_by_kind.items():
        yield kind.value, f"{float(planned):,.15g}", f"{float(found):,.15g}", ratio_text(planned, found)


def ratio_text(planned: Fraction, found: Fraction) -> str:
    """What is found by what was planned."""
    return f"{float(found / planned):.3f}" if planned else "-"


def _memory(report: ModuleReport) -> Iterator[tuple[str, ...]]:
    yield ("", "GB")
    held = report.memory
    yield "arguments", f"{held['argument'] / 1e9:.3f}"
    yield "results that are not written in place", f"{(held['output'] - held['alias']) / 1e9:.3f}"
    yield "temporaries", f"{held['temp'] / 1e9:.3f}"
    yield "together", f"{report.peak_bytes / 1e9:.3f}"
    yield "planned", f"{report.planned_bytes / 1e9:.3f}"
    yield "ratio", f"{report.peak_bytes / report.planned_bytes:.3f}"
    if "live" in held:
        live = held["live"]
        yield "live at once, at most", f"{live / 1e9:.3f}"
        yield "ratio to the planned", f"{live / report.planned_bytes:.3f}"
    if report.short_bytes is not None:
        yield f"together, asked to do with {ROOM:g} times the planned", f"{report.short_bytes / 1e9:.3f}"
    if report.far_bytes is not None:
        yield "together, with nothing near the arithmetic", f"{report.far_bytes / 1e9:.3f}"
        yield "ratio to the planned", f"{report.far_bytes / report.planned_bytes:.3f}"


def collective_rows(planned: Counter[ModuleTransfer], module: Counter[ModuleTransfer]) -> Iterator[tuple[str, ...]]:
    """A table of what was planned and what a module sends, its head first: kind, axes, bytes of each, how often."""
    yield ("", "axes", "bytes each", "times planned", "times found")
    for sent in sorted(planned | module, key=_order):
        axes = "no axes of the mesh" if sent.axes is None else join_axes(sent.axes)
        yield (sent.kind, axes, f"{float(sent.bytes):,.15g}", str(planned[sent]), str(module[sent]))


def _order(sent: ModuleTransfer) -> tuple[CollectiveKind, tuple[str, ...], Fraction]:
    return sent.kind, sent.axes or (), sent.bytes
