"""`escc calibrate`: hardware figures from measured times, or from the JAX devices at hand. `escc validate`: predicted
beside measured times.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ...cost.hardware import Engine, Hardware, Rule
from ...ir.diagnostics import fail
from ..calibrate.calibrate import calibrate
from ..calibrate.calibration_text import (
    calibrated_hardware,
    calibration_data,
    calibration_text,
    tables_data,
    tables_files,
    tables_text,
)
from ..calibrate.fit import HOP, KERNEL, START
from ..calibrate.fit_tables import fit_tables
from ..calibrate.measurements import read_measurements
from ..calibrate.probe import probe, probe_data, probe_text, probed_hardware
from ..calibrate.validate import left_out_text, validate, validation_data, validation_text
from ..text.extras import optional
from ..text.files import path_of, refuse_existing, write_files
from ..text.terminal import note, say
from . import options as opt


class Latency(StrEnum):
    """Which latencies are fitted; the other is 0."""

    HOP = "hop"
    COLLECTIVE = "collective"
    BOTH = "both"


FITTED = {Latency.HOP: (HOP,), Latency.COLLECTIVE: (START,), Latency.BOTH: (START, HOP)}


def calibrate_command(
    context: typer.Context,
    file: opt.Measured = None,
    hardware: Annotated[
        str, typer.Option(help="The chip that was measured: a preset, which `escc hardware` lists, or NAME.toml.")
    ] = "tpu-v4",
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="NAME.toml", help="Write a hardware file.")
    ] = None,
    rule: Annotated[Rule, typer.Option(help="How the times of an op's arithmetic and HBM traffic combine.")] = Rule.MAX,
    latency: Annotated[Latency, typer.Option(help="Which latencies are fitted; the other is 0.")] = Latency.HOP,
    axes_at_once: Annotated[
        int | None,
        typer.Option(
            min=1, help="How many axes of a torus a collective uses at once; without it, the number that fits best."
        ),
    ] = None,
    collectives: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Times of collectives behind a switch: gpu,op_name,num_gpus,bytes,us."),
    ] = None,
    matmuls: Annotated[
        str | None, typer.Option(metavar="FILE", help="Times of matmuls: gpu,gemm_dtype,m,n,k,us.")
    ] = None,
    all_reduce: Annotated[
        str | None, typer.Option("--all-reduce", metavar="FILE", help="Those of an engine: gpu,num_gpus,bytes,us.")
    ] = None,
    steps: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Times between the tokens of served models: model_path,system,gemm_quant_mode,isl,osl,batch_size,"
            "tp_size,attention_dp_size,tpot_ms.",
        ),
    ] = None,
    engine: Annotated[
        str, typer.Option(metavar="NAME", help="What to call the engine that took the steps.")
    ] = "engine",
    like: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The chip whose rate of attention counts where no steps are given."),
    ] = None,
    source: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Where the tables come from, for the file that is written.")
    ] = None,
    probe_: Annotated[
        bool, typer.Option("--probe", help="Measure the JAX devices of this machine, and fit nothing.")
    ] = False,
    force: opt.Force = False,
    json_: opt.Json = False,
) -> None:
    """Fit the figures of a chip to measured times, or measure those of the devices at hand."""
    path = None if output is None else path_of(output)
    opt.refuse_idle_force(force, path is not None, "name a file by `-o NAME.toml`")
    tables = {"collectives": collectives, "matmuls": matmuls, "all-reduce": all_reduce, "steps": steps}
    given = {name: table for name, table in tables.items() if table is not None}
    _refuse_idle(context, given, probe_)
    if given:
        if file is not None or probe_:
            raise fail("Tables are fitted alone.", hint="leave out FILE and `--probe`")
        optional("scipy", "Fitting")
        _fit_tables(hardware, given, engine, like, source, path, force, json_)
        return
    if path is not None:
        _refuse(path, [path.name], force)
    if probe_:
        if file is not None:
            raise fail("`--probe` measures this machine, and reads no file.", hint="leave out one of the two")
        timed = probe()
        say(json.dumps(probe_data(timed), indent=2) + "\n" if json_ else probe_text(timed))
        text = probed_hardware(timed) if path is not None else ""
    else:
        optional("scipy", "Fitting")  # before anything is planned
        chip = Hardware.load(hardware, datasheet=True)
        measurements = read_measurements(None if file is None else path_of(file), chip.chip)
        left_out = left_out_text(measurements)
        if left_out:
            note(left_out)
        found = calibrate(measurements, chip, (KERNEL, *FITTED[latency]), rule, axes_at_once)
        options = {"hardware": hardware, "rule": rule.value, "latency": latency.value, "axes-at-once": axes_at_once}
        text = calibrated_hardware(found, file, options)
        say(json.dumps(calibration_data(found), indent=2) + "\n" if json_ else calibration_text(found))
    if path is not None:
        for written in write_files(path.parent, {path.name: text}, force):
            note(f"wrote {written}")


def _refuse_idle(context: typer.Context, tables: Mapping[str, str], probe_: bool) -> None:
    """Refuse, as wrong usage, the first option on the command line that would change nothing."""
    rows, measured = "measured rows alone", not tables and not probe_
    counts = {
        "rule": (measured, rows),
        "latency": (measured, rows),
        "axes_at_once": (measured, rows),
        "engine": (bool({"steps", "all-reduce"} & set(tables)), "`--steps` or `--all-reduce`"),
        "like": (bool(tables) and "steps" not in tables, "tables without `--steps`"),
        "source": (bool(tables), "tables"),
        "hardware": (not probe_, "measured times, not with `--probe`"),
    }
    for name, (taken, beside) in counts.items():
        option = opt.option_given(context, name)
        if not taken and option is not None:
            raise typer.BadParameter(f"`{option}` goes with {beside}.")


def _refuse(path: Path, names: Sequence[str], force: bool) -> None:
    """Raise InputError where `path` is no name of a hardware file, or files are there already."""
    if path.suffix != ".toml":
        raise fail(f"`{str(path)[:200]}` is no name of a hardware file.", hint="write `-o NAME.toml`")
    refuse_existing(path.parent, names, force)


def _fit_tables(
    hardware: str,
    given: Mapping[str, str],
    engine: str,
    like: str | None,
    source: str | None,
    path: Path | None,
    force: bool,
    json_: bool,
) -> None:
    """Figures from tables, by their options; an engine's file goes beside that of the chip."""
    chip = Hardware.load(hardware, datasheet=True)
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,60}", engine):  # it names a file beside that of the chip
        raise fail(f"`{engine[:60]}` is no name of an engine.", hint="letters, digits, `-` and `_`, as in `vllm`")
    serves = Engine(engine) if {"steps", "all-reduce"} & set(given) else None
    names = [] if path is None else [path.name, *([f"{engine}.toml"] if serves else [])]
    if len(set(names)) < len(names):
        raise fail(
            f"The chip and the engine would both be written to `{names[0]}`.", hint="name the engine by `--engine`"
        )
    if path is not None:
        _refuse(path, names, force)
    files = {name: path_of(table) for name, table in given.items()}
    other = None if like is None else Hardware.load(like)
    kernels, taken = (files.get("collectives"), files.get("matmuls")), (files.get("steps"), files.get("all-reduce"))
    found = fit_tables(chip, *kernels, *taken, serves, other)
    say(json.dumps(tables_data(found), indent=2) + "\n" if json_ else tables_text(found))
    if path is not None:
        named = {option: table.name for option, table in files.items()}
        texts = tables_files(found, chip.name, named, source)
        for written in write_files(path.parent, dict(zip(names, texts, strict=True)), force):
            note(f"wrote {written}")


def validate_command(
    file: opt.Measured = None,
    hardware: Annotated[
        str, typer.Option(help="A preset, which `escc hardware` lists, or a file of your own, NAME.toml.")
    ] = "tpu-v4",
    datasheet: Annotated[
        bool, typer.Option("--datasheet", help="Take the figures of NAME itself where NAME-measured is there as well.")
    ] = False,
    json_: opt.Json = False,
) -> None:
    """Predict measured rows, each under the layouts that it ran with, and compare."""
    chip = Hardware.load(hardware, datasheet)
    measurements = read_measurements(None if file is None else path_of(file), chip.chip)
    found = validate(measurements, chip)
    left_out = left_out_text(measurements)
    if left_out:
        note(left_out)
    say(json.dumps(validation_data(found), indent=2) + "\n" if json_ else validation_text(found))
