"""Figures fitted to tables, as text for a terminal, as data, and as the files of a chip and of an engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from ...cost.hardware import Protocols, engine_toml, hardware_toml
from ..text.terminal import table
from .calibration_text import figures_of, interval_of
from .fit_tables import Section, TablesFit


def tables_text(found: TablesFit) -> str:
    """What was fitted, how well it does, and what the tables leave open."""
    fitted = [one for section in found.sections for one in section.fitted]
    rows = [("figure", "value", "95% interval")]
    rows += [(one.parameter.name, figures_of(one)[0], interval_of(one)) for one in fitted]
    lines = [f"Fitted: {found.hardware.name}"]
    lines += table(rows, left=1) if fitted else []
    protocols = [(str(kind), one) for kind, one in found.hardware.protocols]
    if found.engine is not None and found.engine.all_reduce is not None:
        protocols.append((f"all-reduce of {found.engine.name}", found.engine.all_reduce))
    if protocols:
        head = ("collective", "start", "each other chip", "share of the link", "bulk start", "bulk share")
        lines += ["", *table([head, *(_protocol_row(*pair) for pair in protocols)], left=1)]
    return "\n".join([*lines, "", *(f"  {line}" for line in _said(found.sections))]) + "\n"


def _protocol_row(name: str, one: Protocols) -> tuple[str, ...]:
    bulk = ("-", "-")
    if one.bulk_share is not None:
        bulk = f"{1e6 * (one.bulk_start_s or 0.0):.2f} us", f"{one.bulk_share:.3f}"
    return name, f"{1e6 * one.start_s:.2f} us", f"{1e6 * one.member_s:.2f} us", f"{one.share:.3f}", *bulk


def _said(sections: Sequence[Section]) -> Iterator[str]:
    for section in sections:
        if section.errors:
            worst = max(section.errors, key=abs)
            held = "" if section.held_out is None else f", {section.held_out:.1%} on what was left out"
            yield (
                f"{section.name}: {len(section.errors)} rows, median error {section.median:.1%}, "
                f"mean {section.mean:.1%}{held}, worst {worst:+.0%}"
            )
        yield from (f"{section.name}: {note}" for note in section.notes)


def tables_data(found: TablesFit) -> dict[str, object]:
    """The same for JSON. Latencies are in seconds, errors parts of one."""
    engine = found.engine
    return {
        "hardware": found.hardware.name,
        "calibrated": asdict(found.hardware.calibrated),
        "protocols": {str(kind): asdict(one) for kind, one in found.hardware.protocols},
        "engine": None if engine is None else asdict(engine),
        "tables": {
            section.name: {
                "rows": len(section.errors),
                "median": section.median,
                "mape": section.mean,
                "held_out_mape": section.held_out,
                "notes": list(section.notes),
            }
            for section in found.sections
        },
    }


def tables_files(found: TablesFit, chip: str, files: Mapping[str, str], source: str | None) -> tuple[str, ...]:
    """The text of the chip's file, and where there is an engine that of its file; `files`: the tables, by
    their options; `source`: where they come from, in words."""
    given = " ".join(f"--{option} {file}" for option, file in files.items())
    written = [f"Written by `escc calibrate --hardware {chip} {given}`."]
    origin = [f"Measured: {source}."] if source else []
    said = list(_said(found.sections))
    fitted = [f"  {one.parameter.name}: {interval_of(one)}" for section in found.sections for one in section.fitted]
    calibrated = ["Fitted, with 95% intervals:", *fitted, *said]
    head = f"{chip}, calibrated. Sources: `{chip}` for datasheet and network; tables for what is calibrated."
    texts = [hardware_toml(found.hardware, [head, *origin, *written], calibrated)]
    if found.engine is not None:
        first = f"What {found.engine.name} takes beside the chips, as measured on {chip}."
        own = [line for line in said if line.startswith(("steps", "all-reduce of"))]
        texts.append(engine_toml(found.engine, [first, *origin, *written, *own]))
    return tuple(texts)
