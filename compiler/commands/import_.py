"""`escc import`: a Hugging Face config as a model, or a checkpoint as a model and the map of its weights."""

from __future__ import annotations

import re
from collections.abc import Set
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ...ir.diagnostics import InputError, InternalError, Source, fail, plural
from ...ir.dtype import Dtype
from ...ir.text.read import parse, read_source
from ...ir.text.tokens import MAX_NAME
from ...passes.expansion.expand import expand
from ...passes.expansion.report import TooLarge
from ..hf_import.architectures import CONFIG, config_file, read_config
from ..hf_import.checkpoint import (
    Checkpoint,
    dequantised,
    gguf_config,
    guessing_tensors,
    has_tensors,
    map_of,
    open_checkpoint,
    plain_type,
)
from ..hf_import.checkpoint_names import style_of
from ..hf_import.coded import coded, kept_by_config
from ..hf_import.json_text import MOST_BYTES, read_json
from ..hf_import.weight_map import ENDING, map_text
from ..hf_import.weights import weight_map
from ..hf_import.write import model_text
from ..report.hardware import parameter_count
from ..text.files import path_of, refuse_existing, write_files
from ..text.terminal import note, say
from . import options as opt


class Weights(StrEnum):
    """The types that imported weights may have: those in which the model computes."""

    F32 = Dtype.F32.value
    BF16 = Dtype.BF16.value
    F16 = Dtype.F16.value


def import_command(
    config: Annotated[
        str, typer.Argument(metavar="CONFIG", help="A model's folder, config.json or GGUF file.", show_default=False)
    ],
    output: Annotated[
        str | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Write the model into FILE (.esti), and what a checkpoint's weights are beside it (.weights).",
        ),
    ] = None,
    dtype: Annotated[
        Weights | None, typer.Option(help="The type of the weights; without it, by the config or the checkpoint.")
    ] = None,
    force: opt.Force = False,
) -> None:
    """Turn the config of a Hugging Face model into a model of escc, and a checkpoint into a map of its weights too."""
    names: list[str] = []
    path = path_of(config)
    checkpoint = open_checkpoint(path) if has_tensors(path) else None
    opt.refuse_idle_force(force, output is not None, "name a file by `-o FILE`")
    if output is not None:
        if not Path(output).name or Path(output).suffix == ENDING:
            raise fail(f"`{output}` names no file.", hint="name one that ends in `.esti`")
        names = [Path(output).name, *([] if checkpoint is None else [Path(output).with_suffix(ENDING).name])]
        refuse_existing(Path(output).parent, names, force)
    if checkpoint is not None and checkpoint.gguf:
        document = read_json(gguf_config(path, checkpoint))
    else:
        path = config_file(path, checkpoint is not None)
        document = read_json(read_source(path, MOST_BYTES))
    kept = None if checkpoint is None else plain_type(checkpoint)
    model = read_config(document, None if dtype is None else Dtype(dtype), kept)
    if checkpoint is not None:  # what is loaded is plain numbers, whatever they are kept as
        model = replace(model, quantised=None)
    title = _title(path)
    text = model_text(model, title)
    source = Source(output or "the imported model", text)
    try:
        program = expand(parse(source), source)
    except TooLarge as error:
        raise fail(f"The model of `{path}` is too large. {error.diagnostics[0].message}") from None
    except InputError as error:
        raise InternalError(f"the model that was made of `{path}` is wrong: {error}") from error
    texts, codes, guessing = [text], frozenset[str](), frozenset[str]()
    if checkpoint is None and model.quantised is not None:
        made = weight_map(model, style_of(model))
        texts = [text := coded(source, program, made, kept_by_config(program, made, model.quantised))[0]]
    if checkpoint is not None:
        weights = map_of(model, program, checkpoint)
        guessing = guessing_tensors(weights, program, checkpoint)
        text, weights, codes = coded(source, program, weights, checkpoint.kept)
        texts = [text, map_text(weights, title, model.limit)]
    if output is None:
        say(text)
    else:
        for wrote in write_files(Path(output).parent, dict(zip(names, texts, strict=True)), force):
            say(f"wrote {wrote}\n")
    note(f"{parameter_count(program):,} parameters")
    if checkpoint is not None:
        _tell(checkpoint, codes, guessing)


def _tell(checkpoint: Checkpoint, codes: Set[str], guessing: Set[str]) -> None:
    """Say what becomes of tensors that are not of the part for text, and of those that are kept in few bits; `codes`
    are codes with scales in the model, too, and `guessing` are none of it."""
    if checkpoint.towers:
        left_out = plural(checkpoint.towers, "tensor")
        note(f"the part for text alone is imported, without {left_out} of what sees, hears or speaks")
    if guessing:
        note(f"{len(guessing)} tensors guess more tokens than the next one, and are left out: no score depends on them")
    if codes:
        note(f"{len(codes)} tensors are codes with scales, in the model as in the checkpoint")
    for kind, count in dequantised(checkpoint, codes | guessing).items():
        note(f"{count} tensors are kept as {kind}, and are read as plain numbers")


def _title(path: Path) -> str:
    """A name for the model: the file's, or its folder's where the file is called `config.json`; cut where it is longer
    than a title may be, as those of hubs are."""
    name = path.absolute().parent.name if path.name == CONFIG else path.stem
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-")[:MAX_NAME] or "imported"
