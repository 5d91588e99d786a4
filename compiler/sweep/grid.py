"""The grid of a sweep, from lists: `8..256` is the powers of two from 8 to 256, `1,3,5` a list; both mix."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ...cost.hardware import Hardware
from ...cost.streams import host_of
from ...ir.diagnostics import Diagnostic, InputError, did_you_mean, fail
from ...ir.dtype import Dtype
from ...ir.mesh import MAX_CHIPS
from ...ir.program import Program
from ...passes.expansion.dims import MAX_SIZE
from ...passes.expansion.narrowed import NARROW
from ..plan.pipeline import select_phases
from ..plan.serving import Serving, refuse_twice, serving
from ..plan.way import Offload
from .points import Asked, Sweep

MOST_POINTS = 100_000
SHOWN = 60  # characters of what a person wrote


def grid(
    asked: Asked,
    hardware: Sequence[Hardware],
    lists: tuple[str, str, str | None, str, str | None],
    phase: str | None = None,
    offload: Offload = Offload.NONE,
    ahead: int = 1,
    stages: int | None = None,
) -> Sweep:
    """The sweep of a model on each hardware over lists of chips, batches, contexts (None: as the phase has it) and
    types of weights, and of caches (None: as the model has them); each point with streams from the host (`offload`,
    `ahead`), in `stages`, 0 for as many as are quickest, or both. Costs are in dollars where each chip has a price.

    Raises InputError with all that is wrong in the lists, and where the model cannot be swept.
    """
    chip_kinds = comparable(hardware)
    for chip in chip_kinds:
        if offload is not Offload.NONE:
            host_of(chip)
    program = asked.program(phase)
    phases, dims = select_phases(program, phase), serving(program)
    chips, batch, context, weights, caches = lists
    counts, found = read_numbers(chips, "--chips", MAX_CHIPS)
    batches, wrong = read_numbers(batch, "--batch", MAX_SIZE)
    found += wrong
    contexts: tuple[int, ...] | tuple[None] = (None,)
    if context is not None:
        contexts, wrong = read_numbers(context, "--context", MAX_SIZE)
        found += wrong
        if dims.context is None:
            found += (Diagnostic("`--context` is given, and the model has no caches."),)
    listed = {dims.batch: "--batch"} | dict.fromkeys(
        _by_context(program, phases, dims) if context is not None else (), "--context"
    )
    refuse_twice(dict(asked.settings), listed)
    types, wrong = read_types(weights, "--weights")
    found += wrong
    of_caches, wrong = read_types(caches, "--caches") if caches is not None else ((Dtype.BF16,), ())
    found += wrong
    if found:
        raise InputError(found)
    stored = tuple(None if kind is Dtype.BF16 else kind for kind in of_caches)
    for kind in filter(None, stored):
        asked.program(phase, caches=kind)  # what is wrong with it is said before anything is planned
    axes = chip_kinds, phases, types, counts, batches, contexts, stored
    sweep = Sweep(dims, *axes, offload, ahead, stages, **vars(asked))
    if len(sweep.points) > MOST_POINTS:
        raise fail(f"The sweep has {len(sweep.points):,} points; at most {MOST_POINTS:,} are supported.")
    return sweep


def _by_context(program: Program, phases: Sequence[str], dims: Serving) -> Iterator[str]:
    """The dims that a list of contexts gives sizes, in some phase."""
    if dims.context is not None:
        yield dims.context
        for sizes in (dict(program.phase(phase).sizes) for phase in phases):
            yield from (dim for dim in dims.new if sizes[dim] == sizes[dims.context] > 1)


def comparable(hardware: Sequence[Hardware]) -> tuple[Hardware, ...]:
    """The chips of a sweep, whose costs are in one unit: without prices where one of them has none.

    Raises InputError where one is named twice."""
    names = [one.name for one in hardware]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise fail(f"`--hardware` names {twice} twice.")
    if all(one.dollars_per_chip_hour is not None for one in hardware):
        return tuple(hardware)
    return tuple(replace(one, dollars_per_chip_hour=None) for one in hardware)


def read_types(text: str, option: str) -> tuple[tuple[Dtype, ...], tuple[Diagnostic, ...]]:
    """The types of weights, or of caches, in a list, and what is wrong with it."""
    types: list[Dtype] = []
    found: list[Diagnostic] = []
    for name in (part.strip() for part in text.split(",")):
        if name not in NARROW:
            hint = did_you_mean(name, NARROW) or f"they are {', '.join(NARROW)}"
            found.append(Diagnostic(f"`{option}` names `{name[:60]}`, which is no type that they can have.", hint=hint))
        elif Dtype(name) in types:
            found.append(Diagnostic(f"`{option}` names `{name}` twice."))
        else:
            types.append(Dtype(name))
    return tuple(types), tuple(found)


def read_numbers(text: str, option: str, most: int) -> tuple[tuple[int, ...], tuple[Diagnostic, ...]]:
    """The numbers of a text, in its order, and what is wrong with it; each is from 1 to `most`."""
    numbers: dict[int, None] = {}
    found: list[Diagnostic] = []
    for part in (part.strip() for part in text.split(",")):
        one = list(_part(part, option))
        found += [problem for problem in one if isinstance(problem, Diagnostic)]
        for number in (number for number in one if isinstance(number, int)):
            if not 1 <= number <= most:
                found.append(Diagnostic(f"`{option}` names {_shown(part)}, and may be from 1 to {most:,}."))
                break
            if number in numbers:
                found.append(Diagnostic(f"`{option}` names {number} twice."))
            else:
                numbers[number] = None
    return tuple(numbers), tuple(found)


def _part(part: str, option: str) -> Iterator[int | Diagnostic]:
    """The numbers of one part between commas, or what is wrong with it."""
    match = re.fullmatch(r"(\d{1,19})(?:\s*\.\.\s*(\d{1,19}))?", part)
    if match is None:
        hint = f"write `{option} 8..64` for 8, 16, 32 and 64, or a list, `{option} 8,24`"
        yield Diagnostic(f"`{option}` has {_shown(part)}, which is no number and no range.", hint=hint)
        return
    first = int(match[1])
    if match[2] is None:
        yield first
        return
    last = int(match[2])
    odd = [end for end in (first, last) if end.bit_count() != 1]
    if odd:
        hint = "a range goes over powers of two; write other numbers as a list"
        yield Diagnostic(f"`{option}` has the range {_shown(part)}, and {odd[0]} is no power of two.", hint=hint)
    elif first > last:
        yield Diagnostic(f"`{option}` has the range {_shown(part)}, which ends below its start.")
    else:
        yield from (1 << power for power in range(first.bit_length() - 1, last.bit_length()))


def _shown(part: str) -> str:
    return f"`{part[:SHOWN]}`" if part else "an empty place"
