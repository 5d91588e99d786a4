"""Which dims of a model count sequences, new tokens and context, read off its structure and not its names."""

from __future__ import annotations

from dataclasses import dataclass

from ...cost.predict import token_dims
from ...ir.diagnostics import fail
from ...ir.program import Append, Program, walk


@dataclass(frozen=True)
class Serving:
    """`batch`: the dim that counts sequences. `new`: the dims that count the tokens of a step, of each of
    them. `context`: the dim that counts the context after the step, None for a model without caches."""

    batch: str
    new: tuple[str, ...]
    context: str | None


def serving(program: Program) -> Serving:
    """The dims that a sweep sets.

    Of the dims that count tokens, those that caches are appended along are `new`, and one is left; without
    caches the first counts sequences. Raises InputError where it is not one, or where caches grow along
    several dims.
    """
    appends = [placed.item for placed in walk(program.body) if isinstance(placed.item, Append)]
    counted = token_dims(program)
    if not counted:
        raise fail("The model has no dim that counts sequences: every dim of its inputs is one of a parameter.")
    if not appends:
        return Serving(counted[0], counted[1:], None)
    targets = tuple(dict.fromkeys(op.target for op in appends))
    if len(targets) > 1:
        raise fail(f"The caches of the model grow along several dims, {_listed(targets)}: which is the context?")
    new = tuple(dict.fromkeys(op.source for op in appends))
    batch = tuple(dim for dim in counted if dim not in new)
    if len(batch) != 1:
        which = f"several, {_listed(batch)}" if batch else f"none beside {_listed(new)}"
        raise fail(f"One dim of the model's inputs should count sequences, and there are {which}.")
    return Serving(batch[0], new, targets[0])


def sizes_at(program: Program, phase: str, dims: Serving, batch: int, context: int | None) -> dict[str, int]:
    """The sizes of dims at a point of a sweep. A phase whose new tokens are all of its context, such as
    prefill, takes as many as the context; any other keeps its own, such as one.

    Raises InputError where the new tokens are more than the context.
    """
    sizes = dict(program.phase(phase).sizes)
    found = {dims.batch: batch}
    if dims.context is None or context is None:
        return found
    found[dims.context] = context
    for dim in dims.new:
        if sizes[dim] == sizes[dims.context] > 1:
            found[dim] = context
        elif sizes[dim] > context:
            raise fail(
                f"Phase `{phase}` takes {sizes[dim]} new tokens of each sequence, {dim} = {sizes[dim]}, "
                f"and a context of {context} does not hold them.",
                hint="the context counts the new tokens",
            )
    return found


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)
