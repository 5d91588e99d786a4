"""A calibration, by measured rows or by tables, as text for a terminal, as data for JSON, and as the files of a chip
and of an engine, which say where they come from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict

from ...cost.engine_file import engine_toml
from ...cost.hardware import Protocols, hardware_toml
from ...ir.diagnostics import plural
from ..text.terminal import table
from .calibrate import Calibration, mean_absolute
from .fit import Fitted
from .fit_tables import TablesFit

Errors = tuple[tuple[str, float], ...]


def calibration_text(calibration: Calibration) -> str:
    """The figures with their intervals, how well they do, and what the data leave open."""
    found = calibration.fit.hardware
    rows = [("figure", "value", "95% interval"), *(_cells(one) for one in calibration.fit.fitted)]
    lines = [f"Fitted: {found.name}, to {_counted(calibration)}", *table(rows, left=1), ""]
    lines += [f"  {line}" for line in (*_form(calibration), *_open(calibration), *_doing(calibration))]
    return "\n".join(lines) + "\n"


def calibration_data(calibration: Calibration) -> dict[str, object]:
    """The calibration for JSON. Latencies are in seconds, errors parts of one."""
    calibrated = calibration.fit.hardware.calibrated
    pooled = _pooled(calibration)
    return {
        "hardware": calibration.fit.hardware.name,
        "rows": len(calibration.measurements.rows),
        "left_out": calibration.measurements.left_out,
        "parameters": [_fitted_data(one) for one in calibration.fit.fitted],
        "op_rule": calibrated.op_rule.value,
        "axes_at_once": calibrated.axes_at_once,
        "losses": [{"axes_at_once": number, "loss": loss} for number, loss in calibration.losses],
        "error": calibrated.error,
        "mape": mean_absolute(calibration.errors),
        "worst": dict(zip(("id", "error"), _worst(calibration.errors), strict=True)),
        "errors": dict(calibration.errors),
        "cross_validation": {
            "mape": mean_absolute(pooled) if pooled else None,
            "left_out": {one.source: dict(one.errors) for one in calibration.left_out},
        },
        "rounds": calibration.rounds,
        "settled": calibration.settled,
    }


def calibrated_hardware(calibration: Calibration, file: str | None, options: Mapping[str, object]) -> str:
    """The text of the hardware file; `file` and `options` are those of the command that it comes from."""
    hardware = calibration.fit.hardware
    chip = str(options["hardware"])
    chosen = [f"--{name} {value}" for name, value in options.items() if value is not None]
    command = " ".join(["escc calibrate", *([file] if file else []), *chosen])
    named = calibration.measurements.text.name
    comments = [
        f"{hardware.chip}, calibrated. Sources: `{chip}` for datasheet and network; {named} for what is calibrated.",
        f"Written by `{command}`",
        f"from {_counted(calibration)}.",
    ]
    fitted = [f"{one.parameter.name}: {interval_of(one)}" for one in calibration.fit.fitted]
    said = ["Fitted, with 95% intervals:", *(f"  {line}" for line in fitted)]
    return hardware_toml(hardware, comments, [*said, *_open(calibration), *_doing(calibration)])


def _counted(calibration: Calibration) -> str:
    rows, sources = calibration.measurements.rows, calibration.measurements.sources
    counts = [f"{sum(row.source == source for row in rows)} of {source or 'no table'}" for source in sources]
    return f"{plural(len(rows), 'row')} of {calibration.measurements.text.name}: {', '.join(counts)}"


def _cells(fitted: Fitted) -> tuple[str, ...]:
    value, low, high = figures_of(fitted)
    return fitted.parameter.name, value, f"{low} to {high}" if fitted.interval else "-"


def interval_of(fitted: Fitted) -> str:
    """The 95% interval of a figure, in words."""
    _, low, high = figures_of(fitted)
    return f"{low} to {high}" if fitted.interval else "none"


def figures_of(fitted: Fitted) -> tuple[str, str, str]:
    """A value and the ends of its interval, latencies in microseconds."""
    latency = fitted.parameter.name.endswith("_s")
    figures = (fitted.value, *(fitted.interval or (0.0, 0.0)))
    value, low, high = (f"{1e6 * figure:.2f} us" if latency else f"{figure:.3f}" for figure in figures)
    return value, low, high


def _form(calibration: Calibration) -> Iterator[str]:
    found = calibration.fit.hardware.calibrated
    at_once = "all axes" if found.axes_at_once is None else f"at most {found.axes_at_once} axes"
    yield f"an op takes the {found.op_rule.replace('-', ' ')} of its two times; a collective uses {at_once} at once"
    if len(calibration.losses) > 1:
        tried = ", ".join(f"{'all' if number is None else number}: {loss:.4f}" for number, loss in calibration.losses)
        yield f"loss by axes at once: {tried}"


def _open(calibration: Calibration) -> Iterator[str]:
    """What the data leave open."""
    yield from calibration.fit.left_open
    losses = [loss for _, loss in calibration.losses]
    if len(losses) > 1 and max(losses) < 1.05 * min(losses):
        yield "how many axes run at once is not identified by the data: the losses are alike"


def _doing(calibration: Calibration) -> Iterator[str]:
    worst, error = _worst(calibration.errors)
    yield f"mean absolute error {mean_absolute(calibration.errors):.2%}, worst {worst} {error:+.1%}"
    pooled = _pooled(calibration)
    if pooled:
        parts = [f"{one.source} {mean_absolute(one.errors):.1%}" for one in calibration.left_out if one.errors]
        yield f"leaving out one source at a time: {mean_absolute(pooled):.2%} ({', '.join(parts)})"
    if not calibration.settled:
        yield f"the figures still move after {calibration.rounds} rounds of planning and fitting"


def _pooled(calibration: Calibration) -> Errors:
    return tuple(error for one in calibration.left_out for error in one.errors)


def _worst(errors: Errors) -> tuple[str, float]:
    return max(errors, key=lambda error: abs(error[1]))


def _fitted_data(fitted: Fitted) -> dict[str, object]:
    return {
        "name": fitted.parameter.name,
        "value": fitted.value,
        "interval": list(fitted.interval) if fitted.interval else None,
        "identified": fitted.open is None,
        "reason": fitted.open,
    }


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
    return "\n".join([*lines, "", *(f"  {line}" for line in _said(found))]) + "\n"


def _protocol_row(name: str, one: Protocols) -> tuple[str, ...]:
    bulk = ("-", "-")
    if one.bulk_share is not None:
        bulk = f"{1e6 * (one.bulk_start_s or 0.0):.2f} us", f"{one.bulk_share:.3f}"
    return name, f"{1e6 * one.start_s:.2f} us", f"{1e6 * one.member_s:.2f} us", f"{one.share:.3f}", *bulk


def _said(found: TablesFit) -> Iterator[str]:
    for section in found.sections:
        if section.errors:
            worst = max(section.errors, key=abs)
            held = "" if section.held_out is None else f", {section.held_out:.1%} on what was left out"
            yield (
                f"{section.name}: {len(section.errors)} rows, median error {section.median:.1%}, "
                f"mean {section.mean:.1%}{held}, worst {worst:+.0%}"
            )
        yield from (f"{section.name}: {note}" for note in section.notes)
    yield from found.not_given


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
        "not_given": list(found.not_given),
    }


def tables_files(found: TablesFit, chip: str, files: Mapping[str, str], source: str | None) -> tuple[str, ...]:
    """The text of the chip's file, and where there is an engine that of its file; `files`: the tables, by
    their options; `source`: where they come from, in words."""
    given = " ".join(f"--{option} {file}" for option, file in files.items())
    written = [f"Written by `escc calibrate --hardware {chip} {given}`."]
    origin = [f"Measured: {source}."] if source else []
    said = list(_said(found))
    fitted = [f"  {one.parameter.name}: {interval_of(one)}" for section in found.sections for one in section.fitted]
    calibrated = ["Fitted, with 95% intervals:", *fitted, *said]
    head = f"{chip}, calibrated. Sources: `{chip}` for datasheet and network; tables for what is calibrated."
    texts = [hardware_toml(found.hardware, [head, *origin, *written], calibrated)]
    if found.engine is not None:
        first = f"What {found.engine.name} takes beside the chips, as measured on {chip}."
        own = [line for line in said if line.startswith(("steps", "all-reduce of"))]
        texts.append(engine_toml(found.engine, [first, *origin, *written, *own]))
    return tuple(texts)
