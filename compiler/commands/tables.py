"""`escc layouts`, `escc hardware` and `escc models`: tables of what there is."""

from __future__ import annotations

from typing import Annotated

import typer

from ...cost.hardware import Hardware
from ...ir.dtype import Dtype
from ...ir.mesh import Mesh
from ..plan.pipeline import model_source
from ..report.hardware import hardware_sheet, layouts_table, models_table, preset_table
from ..text.terminal import say
from .main import PLAIN, reported
from .options import Chips, bindings


def layouts_command(
    tensor: Annotated[str, typer.Argument(help="Its dims: `BLE`, or `[batch, d_model]`.")],
    dims: Annotated[list[str], typer.Option(metavar="DIM=N,...", help="The sizes of its dims. May be repeated.")],
    chips: Chips,
    dtype: Annotated[Dtype, typer.Option(help="The type of its elements.")] = Dtype.BF16,
) -> None:
    """List the legal partitions of a tensor."""
    say(layouts_table(tensor, bindings(dims, "--dims"), Mesh.parse(chips), dtype))


def hardware_command(
    name: Annotated[
        str | None, typer.Argument(help="A preset or a file, NAME.toml, to show.", show_default=False)
    ] = None,
) -> None:
    """List the hardware presets, or show one with all its figures."""
    say(preset_table() if name is None else hardware_sheet(Hardware.load(name, datasheet=True)))


models_app = typer.Typer(**PLAIN)


@models_app.callback(invoke_without_command=True)
@reported
def models_command(context: typer.Context) -> None:
    """List the models that are shipped; each can stand wherever a FILE is expected."""
    if context.invoked_subcommand is None:
        say(models_table())


@models_app.command("show")
@reported
def show_command(name: Annotated[str, typer.Argument(help="The model.", show_default=False)]) -> None:
    """Print the text of a model, to read or to change."""
    say(model_source(name).text)
