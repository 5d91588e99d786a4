"""`escc layouts` and `escc hardware`: tables of what there is."""

from __future__ import annotations

from typing import Annotated

import typer

from ...cost.hardware import Hardware
from ...ir.dtype import Dtype
from ...ir.mesh import Mesh
from ..report.hardware import hardware_sheet, layouts_table, preset_table
from ..text.terminal import say
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
