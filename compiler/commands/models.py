"""`escc models`: the models that are shipped."""

from __future__ import annotations

from typing import Annotated

import typer

from ..plan.pipeline import model_source
from ..report.hardware import models_table
from ..text.terminal import say
from .main import PLAIN, reported

app = typer.Typer(**PLAIN)


@app.callback(invoke_without_command=True)
@reported
def models_command(context: typer.Context) -> None:
    """List the models that are shipped; each can stand wherever a FILE is expected."""
    if context.invoked_subcommand is None:
        say(models_table())


@app.command("show")
@reported
def show_command(name: Annotated[str, typer.Argument(help="The model.", show_default=False)]) -> None:
    """Print the text of a model, to read or to change."""
    say(model_source(name).text)
