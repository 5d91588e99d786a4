"""Steps that run as one: several einsums as one matmul, several collectives as one collective.

In a region such steps stand one after the other, and all but the first are marked `joined`. None
reads what another of them makes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..collective import AllGather, AllReduce, AllToAll, ReduceScatter, axes_of, kind
from ..program import Einsum, Repeat, operand_names
from ..spmd import Compute, Move, SpmdValue, Step

COMBINED = (AllGather, ReduceScatter, AllReduce, AllToAll)  # the collectives that may be part of one


def together(items: Sequence[Step | Repeat[Step]]) -> list[list[Step | Repeat[Step]]]:
    """The items of a region in order, those that run as one in one list."""
    out: list[list[Step | Repeat[Step]]] = []
    for item in items:
        if isinstance(item, Compute | Move) and item.joined and out:
            out[-1].append(item)
        else:
            out.append([item])
    return out


def mark_objection(item: Step, run: Sequence[Step | Repeat[Step]], values: Mapping[str, SpmdValue]) -> str | None:
    """Why `item` cannot run as one with the steps of `run`, None if it can.

    All of them read and make values of `values`.
    """
    made = {step.result for step in run if not isinstance(step, Repeat)}
    match run[:1], item:
        case [Move(_, first, one)], Move(_, operand, other):
            before, after = values[first], values[operand]
            if not isinstance(one, COMBINED) or type(one) is not type(other):
                return "only gathers, scatters, reductions or exchanges, all of one kind, run as one collective"
            if set(axes_of(one, before.layout)) != set(axes_of(other, after.layout)):
                return "collectives that run as one go over the same axes"
            if before.dtype != after.dtype or before.layout.reduction != after.layout.reduction:
                return "collectives that run as one are of one dtype, and reduce alike"
            return f"`{operand}` is made by the collective itself" if operand in made else None
        case [Compute(Einsum() as one)], Compute(Einsum() as other):
            if projection(one) is None or projection(one) != projection(other):
                return "einsums that run as one read one value and sum over the same indices of it"
            return "it reads what is made with it" if made & set(operand_names(other)) else None
    return f"{_what(item)} does not run as one with what stands before it"


def projection(op: Einsum) -> tuple[str, tuple[str, ...], frozenset[str]] | None:
    """A matmul as (what is projected, its indices, those summed over); None for any other einsum.

    The projected value is the first operand. The second shares with it the summed indices alone.
    """
    if len(op.operands) != 2:
        return None
    (name, _), (read, weight) = op.operands, op.indices
    summed = frozenset(set(read) & set(weight))
    if not summed or summed & set(op.output) or set(op.output) != set(read) ^ set(weight):
        return None
    return name, read, summed


def _what(item: Step) -> str:
    return f"the {kind(item.collective)}" if isinstance(item, Move) else "the op"
