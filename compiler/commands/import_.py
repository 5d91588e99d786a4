"""`escc import`: a Hugging Face config as a model."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ...ir.diagnostics import InputError, Source, fail
from ...ir.dtype import Dtype
from ...ir.text.read import parse, read_source
from ...passes.expansion.expand import expand
from ...passes.expansion.report import TooLarge
from ..hf_import.architectures import CONFIG, config_file, read_config
from ..hf_import.json_text import MOST_BYTES, read_json
from ..hf_import.write import model_text
from ..plan.pipeline import InternalError
from ..report.hardware import parameter_count
from ..text.files import MOST_CHARACTERS, refuse_existing, write_files
from ..text.terminal import note, say
from .main import reported


class Weights(StrEnum):
    """The types that imported weights may have: those in which the model computes."""

    F32 = Dtype.F32.value
    BF16 = Dtype.BF16.value
    F16 = Dtype.F16.value


app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command("import")
@reported
def import_command(
    config: Annotated[
        str, typer.Argument(metavar="CONFIG", help="A model's folder or config.json.", show_default=False)
    ],
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="FILE", help="Write the model into FILE (.esti).")
    ] = None,
    dtype: Annotated[
        Weights | None, typer.Option(help="The type of the weights; without it, the one that the config names.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over an existing file.")] = False,
) -> None:
    """Turn the config of a Hugging Face model into a model of escc."""
    if output is not None:
        if not Path(output).name:
            raise fail(f"`{output}` names no file.")
        refuse_existing(Path(output).parent, [Path(output).name], force)
    path = config_file(Path(config))
    document = read_json(read_source(path, MOST_BYTES))
    text = model_text(read_config(document, None if dtype is None else Dtype(dtype)), _title(path))
    source = Source(output or "the imported model", text)
    try:
        program = expand(parse(source), source)
    except TooLarge as error:
        raise fail(f"The model of `{path}` is too large. {error.diagnostics[0].message}") from None
    except InputError as error:
        raise InternalError(f"the model that was made of `{path}` is wrong: {error}") from error
    if output is None:
        say(text)
    else:
        write_files(Path(output).parent, {Path(output).name: text}, force)
        say(f"wrote {output}\n")
    note(f"{parameter_count(program) / 1e9:.2f}e9 parameters")


def _title(path: Path) -> str:
    """A name for the model: the file's, or its folder's where the file is called `config.json`."""
    name = path.absolute().parent.name if path.name == CONFIG else path.stem
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-")[:MOST_CHARACTERS] or "imported"
