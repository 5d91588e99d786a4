"""What the check of an emitted JAX program showed, as text."""

from __future__ import annotations

from collections.abc import Iterator

from ...ir.collective import join_axes
from ..plan.compiled import CompiledPhase
from ..text.table import table
from .check import Differences, JaxReport, sent_bytes
from .hlo import ModuleTransfer


def jax_check_text(compiled: CompiledPhase, report: JaxReport) -> str:
    """The sentences and the table of one phase."""
    return "\n".join(_lines(compiled, report)) + "\n"


def _lines(compiled: CompiledPhase, report: JaxReport) -> Iterator[str]:
    plural = "" if report.devices == 1 else "s"
    yield f'JAX program of "{compiled.spmd.name}", phase {compiled.phase}, on {report.devices} CPU device{plural}'
    yield ""
    yield "Largest relative differences, at small sizes"
    rows: list[tuple[str, ...]] = [("", "dense reference", "NumPy backend", "integers that differ")]
    rows.append(("float32", *_differences(report.wide)))
    if report.narrow is not None:
        rows.append(("declared types", *_differences(report.narrow)))
    rows.append(("unsharded, float32", *_differences(report.dense)))
    yield from table(rows, left=1)
    yield ""
    yield "Collectives of the module compiled at full size, after partitioning, with the bytes that a device sends"
    yield from table(list(_collectives(report)), left=2)
    counted, wanted = (float(sent_bytes(which)) for which in (report.module, report.planned))
    verdict = "as planned" if report.equal else f"NOT the {wanted:,.15g} planned"
    yield f"  {counted:,.15g} bytes in all, {verdict}"
    yield f"  in the final module: {', '.join(f'{n} {kind}' for kind, n in sorted(report.final.items())) or 'none'}"


def _differences(found: Differences) -> tuple[str, ...]:
    whole = "-" if found.whole is None else f"{found.whole:.1%}"
    return f"{found.reference:.1e}", f"{found.numpy:.1e}", whole


def _collectives(report: JaxReport) -> Iterator[tuple[str, ...]]:
    yield ("", "axes", "bytes each", "times planned", "times found")
    for sent in sorted(report.planned | report.module, key=_order):
        axes = "no axes of the mesh" if sent.axes is None else join_axes(sent.axes)
        yield (sent.kind, axes, f"{float(sent.bytes):,.15g}", str(report.planned[sent]), str(report.module[sent]))


def _order(sent: ModuleTransfer) -> tuple[str, tuple[str, ...], object]:
    return sent.kind, sent.axes or (), sent.bytes
