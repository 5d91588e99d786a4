"""Padded dims: the sizes that a file, or a caller, gives them beside the true ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ...ir.diagnostics import Span
from ...ir.program import Phase
from .dims import MAX_SIZE, Constraint, DimTable, Even, Unpadded, out_of_range
from .report import Report

Padding = tuple[tuple[str, str], ...]  # padded dims, each with the dim whose size is its true one


def pad_phases(
    table: DimTable, phases: Sequence[Phase], pads: Mapping[str, int], constraints: Iterable[Constraint], report: Report
) -> tuple[tuple[Phase, ...], Padding]:
    """The phases with padded sizes and, behind these, the true sizes as dims of their own.

    `pads` are what a caller gives, in the place of those of the file. A dim that no phase has larger
    than it truly is is not padded. Notes pads that a dim cannot have.
    """
    declared = {name: pad for name, pad in table.pads.items() if name in table.plain}
    chosen = declared | _given(table, pads, report)
    sizes = [dict(phase.sizes) for phase in phases]
    for name, (pad, span) in chosen.items():
        _check_larger(name, pad, span, table.plain[name], phases, report)
    padded = {name: pad for name, (pad, _) in chosen.items() if any(pad > bound[name] for bound in sizes)}
    _check_constraints(table, constraints, padded, report)
    groups = [name for name, (base, _, _) in table.groups.items() if table.root(base) in padded]
    true = {name: _true_name(table, name) for name in (*padded, *groups)}
    bound = tuple(
        replace(phase, sizes=_padded(table, phase, padded) + tuple((true[n], own[n]) for n in true))
        for phase, own in zip(phases, sizes, strict=True)
    )
    return bound, tuple((name, true[table.root(name)]) for name in table.plain if table.root(name) in true)


def _padded(table: DimTable, phase: Phase, padded: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    sizes = {name: padded.get(table.root(name), size) for name, size in phase.sizes}
    return tuple((name, table.sized(name, sizes) or 0) for name in sizes)


def _true_name(table: DimTable, name: str) -> str:
    """A name that is free for the true size of a dim."""
    true = f"{name}_true"
    while true in table:
        true += "_"
    return true


def _given(table: DimTable, pads: Mapping[str, int], report: Report) -> dict[str, tuple[int, Span | None]]:
    """The pads that a caller gives, without those that a dim cannot have."""
    found: dict[str, tuple[int, Span | None]] = {}
    for name, pad in pads.items():
        if name not in table:
            report.unknown("Dim", name[:64], None, table)
        elif name in table.alias or name in table.factors or name in table.groups:
            hint = f"pad `{table.root(name)}`" if name in table.alias else "pad one of its factors"
            hint = f"pad `{table.root(table.groups[name][0])}`" if name in table.groups else hint
            report.add(f"Dim `{name}` cannot be padded: its size follows from other dims.", None, hint)
        elif not 1 <= pad <= MAX_SIZE:
            report.add(out_of_range(f"The padded size of dim `{name}`", pad), None)
        else:
            found[name] = pad, None
    return found


def _check_larger(
    name: str, pad: int, span: Span | None, size: int | None, phases: Sequence[Phase], report: Report
) -> None:
    """Note a pad that is smaller than a size of the dim; one phase stands for all. `size`: what it is declared with,
    which counts where a phase has it, no other being set."""
    sizes = [dict(p.sizes)[name] for p in phases]
    given = [(f"Dim `{name}`", size)] if size is not None and size in sizes else []
    given += [(f"In phase `{p.name}` dim `{name}`", dict(p.sizes)[name]) for p in phases]
    for what, true in given:
        if true > pad:
            hint = "a dim is padded to a size that is larger than its own"
            report.add(f"{what} = {true} is padded to {pad}, which is smaller.", span, hint)
            return


def _check_constraints(
    table: DimTable, constraints: Iterable[Constraint], padded: Mapping[str, int], report: Report
) -> None:
    """Note where dims cannot be padded so, one place for each."""
    seen: set[str] = set()
    for constraint in constraints:
        match constraint:
            case Unpadded(dim) | Even(dim) if dim in seen:
                continue
            case Unpadded(dim, span, why) if table.root(dim) in padded:
                seen.add(dim)
                report.add(f"Dim `{dim}` is padded, and {why}.", span, f"leave `{table.root(dim)}` as large as it is")
            case Even(dim, span) if padded.get(table.root(dim), 0) % 2:
                seen.add(dim)
                message = f"Dim `{dim}` is padded to {padded[table.root(dim)]}, which is odd, and pairs are turned."
                report.add(message, span)
            case _:
                pass
