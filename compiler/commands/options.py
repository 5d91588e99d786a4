"""Options that several commands share, and what their texts say."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated

import typer

from ...cost.hardware import Convention
from ...ir.diagnostics import Diagnostic, InputError
from ...passes.plan import Objective

File = Annotated[str, typer.Argument(metavar="FILE", help="A model (.esti).", show_default=False)]
Chips = Annotated[
    str,
    typer.Option(metavar="MESH", help="Sizes of the axes x, y, z, ... as `4x4x4`; or named: `node=2,gpu=8`."),
]
ChipsOrCount = Annotated[
    str,
    typer.Option(
        metavar="MESH",
        help="Sizes of the axes x, y, z, ... as `4x4x4`; or named: `node=2,gpu=8`; or a count, `64`, of which all "
        "slice shapes are compiled and ranked.",
    ),
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="DIM=N", help="Give a dim another size, in all phases. May be repeated."),
]
Chip = Annotated[str, typer.Option(help="A preset, which `escc hardware` lists, or a file of your own, NAME.toml.")]
Net = Annotated[
    Convention | None,
    typer.Option(
        help="One bandwidth for a chip and no latency, or links for each axis; without it as the hardware's file says, "
        "which is flat where it says nothing."
    ),
]
Pins = Annotated[
    list[str] | None, typer.Option(metavar="FILE", help="Layouts to keep from the search. May be repeated.")
]
Overlap = Annotated[
    bool,
    typer.Option(
        "--overlap",
        help="Run gathers and reduce-scatters in loops with the einsums beside them, so that one hides the other. The "
        "layouts stay those of the plan without.",
    ),
]
Least = Annotated[Objective, typer.Option(help="What the plan has least of.")]


def bindings(texts: Sequence[str], option: str) -> dict[str, int]:
    """The sizes that `B=512,L=1` and the like give. Raises InputError for what is no binding."""
    sizes: dict[str, int] = {}
    found = []
    for part in (part.strip() for text in texts for part in text.split(",")):
        match = re.fullmatch(r"([A-Za-z][A-Za-z0-9_]*)\s*=\s*([0-9]{1,19})", part)
        if match is None:
            found.append(Diagnostic(f"`{option} {part[:60]}` gives no dim a size.", hint=f"write `{option} B=512`"))
        elif match[1] in sizes:
            found.append(Diagnostic(f"`{option}` gives dim `{match[1]}` a size twice."))
        else:
            sizes[match[1]] = int(match[2])
    if found:
        raise InputError(found)
    return sizes
