"""Options that several commands share, and what their texts say."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Annotated

import typer

from ...cost.engine_file import load_engine
from ...cost.hardware import Convention, Hardware
from ...ir.diagnostics import Diagnostic, InputError, did_you_mean, fail
from ...ir.dtype import Dtype
from ...passes.expansion.dims import MAX_SIZE
from ...passes.expansion.narrowed import NARROW
from ...passes.plan import Objective
from ..plan.way import AHEAD, MOST_AHEAD, Offload, Way

MOST_PRICE = 1e9  # dollars for a chip and hour: costs of any sweep stay numbers


def finite(number: float | None) -> float | None:
    """A number as it is; the callback of every option that takes one with a fraction. What is no number is beyond no
    bound, so that none refuses it. Raises BadParameter for that, and for infinity."""
    if number is not None and not math.isfinite(number):
        raise typer.BadParameter(f"{number} is no finite number.")
    return number


def positive(number: float | None) -> float | None:
    """A finite number above 0 as it is; the callback of options that no 0 may be given. Raises BadParameter for any
    other."""
    if finite(number) == 0:
        raise typer.BadParameter("It has to be more than 0.")
    return number


def narrow(name: str) -> Dtype:
    """A type that weights and caches may be stored in, by its name. Raises BadParameter for any other."""
    if name not in NARROW:
        raise typer.BadParameter(f"'{name[:60]}' is not one of {', '.join(NARROW)}.")
    return Dtype(name)


File = Annotated[str, typer.Argument(metavar="FILE", help="A model (.esti).", show_default=False)]
Chips = Annotated[
    str, typer.Option(metavar="MESH", help="Sizes of the axes x, y, z, ... as `4x4x4`; or named: `node=2,gpu=8`.")
]
ChipsOrCount = Annotated[
    str,
    typer.Option(
        metavar="MESH",
        help="Sizes of the axes x, y, z, ... as `4x4x4`; or named: `node=2,gpu=8`; or a count, `64`, of which all "
        "slice shapes are compiled and ranked.",
    ),
]
Memory = Annotated[
    float,
    typer.Option(min=0.0, max=1.0, callback=finite, help="The share of the HBM that a plan may take at any point."),
]
Force = Annotated[bool, typer.Option("--force", help="Write over an existing file.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Measured = Annotated[
    str | None,
    typer.Argument(
        metavar="FILE",
        help="Measurements, a CSV file; without it, the published ones that are shipped.",
        show_default=False,
    ),
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="DIM=N", help="Give a dim another size, in all phases. May be repeated."),
]
Pads = Annotated[
    list[str] | None, typer.Option("--pad", metavar="DIM=N", help="Pad a dim, in all phases. May be repeated.")
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
    typer.Option(
        "--price",
        metavar="DOLLARS",
        min=0.0,
        max=MOST_PRICE,
        callback=positive,
        help="What a chip costs for an hour, in place of its file's.",
    ),
]
Weights = Annotated[
    Dtype | None,
    typer.Option(metavar="TYPE", parser=narrow, help="Store its bf16 matrices as int8, fp8, fp4 or int4, with scales."),
]
Caches = Annotated[
    Dtype | None,
    typer.Option(metavar="TYPE", parser=narrow, help="Store its bf16 caches as int8, fp8, fp4 or int4, with scales."),
]
Input = Annotated[
    int | None,
    typer.Option("--input", metavar="N", min=1, max=MAX_SIZE, help="Of a stream of requests: the tokens of a prompt."),
]
Output = Annotated[
    int | None,
    typer.Option(
        "--output", metavar="N", min=1, max=MAX_SIZE, help="Of a stream of requests: the tokens that each gets."
    ),
]
Chunk = Annotated[
    int | None,
    typer.Option(
        "--chunk",
        metavar="N",
        min=1,
        max=MAX_SIZE,
        help="Of a stream of requests: take prompts in N tokens at a time, with decode steps between.",
    ),
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
Parts = Annotated[
    bool,
    typer.Option(
        "--parts",
        help="Look for plans that split axes of the mesh in parts, too: a node of 8 as 2x4. Takes longer; a plan says "
        "which parts it takes.",
    ),
]
Stages = Annotated[
    str | None,
    typer.Option(
        metavar="auto|N",
        help="Divide the layers over N stages, along an axis of N chips; with `auto` along any, or none, whichever "
        "is quickest. Layers are repetitions, and blocks called one after the other, in repetitions or not.",
    ),
]
MicroBatches = Annotated[
    list[str] | None,
    typer.Option(metavar="PHASE=N", help="In stages, divide a phase's batch by so much. May be repeated."),
]
Capacity = Annotated[
    str | None,
    typer.Option(
        metavar="TIMES|full",
        help="How many chosen entries, such as tokens at their experts, an emitted JAX module and its plan have room "
        "for: so many times what is expected, what is beyond is dropped and counted; or all that may be chosen, of "
        "which the plan counts what is expected.",
    ),
]
Skew = Annotated[
    str | None,
    typer.Option(
        metavar="TIMES",
        help="How many times the mean load of chosen entries, such as tokens at their experts, the busiest chip has.",
    ),
]
Offloading = Annotated[
    Offload,
    typer.Option(
        help="Store what the chips do not hold in their host's memory, layer by layer: weights, caches, or whichever "
        "is quickest. The hardware's file needs a table `[host]`."
    ),
]
Ahead = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=0,
        max=MOST_AHEAD,
        help=f"How many layers before they are needed tensors come from the host; {AHEAD} without it.",
    ),
]
MostSequences = Annotated[
    bool,
    typer.Option(
        "--best-batch",
        help="With `--offload` or `--stages`: the batch of most sequences a second, of those that fit, to a sixteenth.",
    ),
]
Least = Annotated[Objective, typer.Option(help="What the plan has least of; memory: what a chip stores.")]


def chip_of(
    hardware: str, datasheet: bool, network: Convention | None, engine: str | None = None, price: float | None = None
) -> Hardware:
    """The chip that the options of a command name. Raises InputError as `Hardware.load` and `load_engine` do."""
    chip = Hardware.load(hardware, datasheet).with_network(network).with_price(price)
    return chip if engine is None else chip.with_engine(load_engine(engine))


def option_given(context: typer.Context, name: str) -> str | None:
    """The option whose value is the parameter `name` of a command, as `--all-reduce`, where it stands on the command
    line; None where it does not."""
    source = context.get_parameter_source(name)
    if source is None or source.name != "COMMANDLINE":
        return None
    return next(str(one.opts[-1]) for one in context.command.params if one.name == name)


def refuse_idle_force(force: bool, written: bool, hint: str) -> None:
    """Raise InputError for `--force` where no file is written, which `hint` says how to ask for."""
    if force and not written:
        raise fail("`--force` writes over files, and none is written here.", hint=hint)


def refuse_way(way: Way, parts: bool, pad_auto: bool = False, placed: bool = False) -> None:
    """Raise InputError, before anything is planned, for the first option that does not go with a way to plan. `placed`:
    pins place something with the host, which streams it."""
    if way.best_batch and way.offload is Offload.NONE and way.stages is None and not placed:
        raise fail("The best batch is looked for with `--offload`, or in stages.", hint="add `--offload auto`")
    if way.offload is not Offload.NONE or (placed and way.stages is None):
        beside = "pins that place something with the host" if way.offload is Offload.NONE else "`--offload`"
        for option, there in {"--separate": way.separate, "--parts": parts, "--pad auto": pad_auto}.items():
            if there:
                raise fail(f"`{option}` does not go with {beside}.", hint="leave one of them out")
    elif way.stages is not None and way.separate:
        raise fail("`--separate` does not go with `--stages`.", hint="leave one of them out")
    elif way.stages is not None and parts:
        hint = "leave out `--parts`, or write the parts in `--chips`"
        raise fail("Axes are not split in parts in stages.", hint=hint)
    elif way.stages is not None and pad_auto:
        raise fail(
            "Padded sizes are not tried in stages.", hint="leave out `--pad auto`, or pad a dim by `--pad DIM=N`"
        )


MOST_STAGES = 1 << 20


def stages_of(text: str | None, micro_batches: Sequence[str] | None) -> int | None:
    """How many stages an option asks for: 0 where it is `auto`, None without it. Raises InputError for what is no
    count, and where micro-batches are asked for without it."""
    if text is None and micro_batches:
        raise fail("Micro-batches are those of stages.", hint="add `--stages auto`, or how many")
    if text in (None, "auto"):
        return None if text is None else 0
    assert text is not None
    if not re.fullmatch(r"[1-9][0-9]{0,6}", text) or int(text) > MOST_STAGES:
        raise fail(f"`--stages {text[:60]}` is no count.", hint="write `--stages auto`, or a count, as `--stages 4`")
    return int(text)


def counts_by_phase(texts: Sequence[str] | None, phases: Sequence[str]) -> dict[str, int]:
    """The micro-batches that `prefill=8` and the like give. Raises InputError for what gives none, and for what is no
    phase."""
    found: dict[str, int] = {}
    for text in texts or ():
        name, _, digits = text.partition("=")
        if name not in phases:
            hint = did_you_mean(name, phases) or f"the phases are {', '.join(phases)}"
            raise fail(f"`--micro-batches {text[:60]}` names no phase that is compiled.", hint=hint)
        if not re.fullmatch(r"[1-9][0-9]{0,8}", digits):
            raise fail(f"`--micro-batches {text[:60]}` gives no count.", hint=f"write `--micro-batches {name}=8`")
        found[name] = int(digits)
    return found


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
