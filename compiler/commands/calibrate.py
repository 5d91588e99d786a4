"""`escc calibrate`: hardware figures from measured times, or from the JAX devices at hand."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ...cost.hardware import Hardware, Rule
from ...ir.diagnostics import fail
from ..calibrate.calibrate import calibrate
from ..calibrate.calibration_text import calibrated_hardware, calibration_data, calibration_text
from ..calibrate.fit import HOP, START
from ..calibrate.measurements import read_measurements
from ..calibrate.probe import probe, probe_data, probe_text, probed_hardware
from ..calibrate.validate import left_out_text
from ..text.extras import optional
from ..text.files import refuse_existing, write_files
from ..text.terminal import note, say
from .main import reported

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


class Latency(StrEnum):
    """Which latencies are fitted; the other is 0."""

    HOP = "hop"
    COLLECTIVE = "collective"
    BOTH = "both"


FITTED = {Latency.HOP: (HOP,), Latency.COLLECTIVE: (START,), Latency.BOTH: (START, HOP)}


@app.command("calibrate")
@reported
def calibrate_command(
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE",
            help="Measurements, a CSV file; without it, the published ones that are shipped.",
            show_default=False,
        ),
    ] = None,
    hardware: Annotated[
        str, typer.Option(help="The chip that was measured: a preset, which `escc hardware` lists, or NAME.toml.")
    ] = "tpu-v4",
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="NAME.toml", help="Write a hardware file.")
    ] = None,
    rule: Annotated[
        Rule, typer.Option(help="How the times of an op's arithmetic and HBM traffic combine.")
    ] = Rule.ROOT_OF_SQUARES,
    latency: Annotated[Latency, typer.Option(help="Which latencies are fitted; the other is 0.")] = Latency.HOP,
    axes_at_once: Annotated[
        int | None,
        typer.Option(
            min=1, help="How many axes of a torus a collective uses at once; without it, the number that fits best."
        ),
    ] = None,
    probe_: Annotated[
        bool, typer.Option("--probe", help="Measure the JAX devices of this machine, and fit nothing.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Write over an existing file.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Fit the figures of a chip to measured times, or measure those of the devices at hand."""
    path = None if output is None else Path(output)
    if path is not None:
        if path.suffix != ".toml":
            raise fail(f"`{str(path)[:200]}` is no name of a hardware file.", hint="write `-o NAME.toml`")
        refuse_existing(path.parent, [path.name], force)
    if probe_:
        if file is not None:
            raise fail("`--probe` measures this machine, and reads no file.", hint="leave out one of the two")
        timed = probe()
        say(json.dumps(probe_data(timed), indent=2) + "\n" if json_ else probe_text(timed))
        text = probed_hardware(timed) if path is not None else ""
    else:
        optional("scipy", "Fitting")  # before anything is planned
        chip = Hardware.load(hardware)
        measurements = read_measurements(None if file is None else Path(file), chip.chip)
        left_out = left_out_text(measurements)
        if left_out:
            note(left_out)
        found = calibrate(measurements, chip, FITTED[latency], rule, axes_at_once)
        options = {"hardware": hardware, "rule": rule.value, "latency": latency.value, "axes-at-once": axes_at_once}
        text = calibrated_hardware(found, file, options)
        say(json.dumps(calibration_data(found), indent=2) + "\n" if json_ else calibration_text(found))
    if path is not None:
        for written in write_files(path.parent, {path.name: text}, force):
            note(f"wrote {written}")
