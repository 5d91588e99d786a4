"""`escc validate`: predicted beside measured times."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ...cost.hardware import Hardware
from ..calibrate.measurements import read_measurements
from ..calibrate.validate import left_out_text, validate, validation_data, validation_text
from ..text.terminal import note, say


def validate_command(
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE",
            help="Measurements, a CSV file; without it, the published ones that are shipped.",
            show_default=False,
        ),
    ] = None,
    hardware: Annotated[
        str, typer.Option(help="A preset, which `escc hardware` lists, or a file of your own, NAME.toml.")
    ] = "tpu-v4",
    datasheet: Annotated[
        bool, typer.Option("--datasheet", help="Take the figures of NAME itself where NAME-measured is there as well.")
    ] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Predict measured rows, each under the layouts that it ran with, and compare."""
    chip = Hardware.load(hardware, datasheet)
    measurements = read_measurements(None if file is None else Path(file), chip.chip)
    found = validate(measurements, chip)
    left_out = left_out_text(measurements)
    if left_out:
        note(left_out)
    say(json.dumps(validation_data(found), indent=2) + "\n" if json_ else validation_text(found))
