"""Options that several commands share, and what their texts say."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated

import typer

from ...cost.hardware import Convention, Hardware, load_engine
from ...ir.diagnostics import Diagnostic, InputError
from ...ir.dtype import Dtype
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
Chip = Annotated[
    str,
    typer.Option(
        help="A preset, which `escc hardware` lists, or a file of your own, NAME.toml. Of a preset the figures that "
        "were measured of the chip, or of the nearest to it."
    ),
]
Datasheet = Annotated[bool, typer.Option("--datasheet", help="Price at the chip's peaks, as if they were reached.")]
AnyShape = Annotated[
    bool, typer.Option("--any-shape", help="Of a count of chips also try shapes of slice that are not offered.")
]
EngineName = Annotated[
    str | None,
    typer.Option("--engine", metavar="NAME", help="Count what a serving engine takes as well: vllm, or NAME.toml."),
]
Price = Annotated[
    float | None,
    typer.Option("--price", metavar="DOLLARS", min=0.0, help="What a chip costs for an hour, in place of its file's."),
]
Weights = Annotated[
    Dtype | None, typer.Option(metavar="TYPE", help="Store the model's bf16 weights as int8, fp8, fp4 or int4.")
]
Caches = Annotated[Dtype | None, typer.Option(metavar="TYPE", help="Store its bf16 caches as int8 or fp8.")]
Input = Annotated[
    int | None, typer.Option("--input", metavar="N", min=1, help="Of a stream of requests: the tokens of a prompt.")
]
Output = Annotated[
    int | None, typer.Option("--output", metavar="N", min=1, help="Of a stream of requests: the tokens that each gets.")
]
Net = Annotated[
    Convention | None,
    typer.Option(
        help="Links for each axis and latencies; or one bandwidth for a chip and no latency, as the papers' formulas "
        "have it. Without it as the hardware's file says, which is links where it says nothing."
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


def chip_of(
    hardware: str,
    datasheet: bool,
    network: Convention | None,
    engine: str | None = None,
    price: float | None = None,
) -> Hardware:
    """The chip that the options of a command name. Raises InputError as `Hardware.load` and `load_engine` do."""
    chip = Hardware.load(hardware, datasheet).with_network(network).with_price(price or None)
    return chip if engine is None else chip.with_engine(load_engine(engine))


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
