"""All-reduces as the reduce-scatter and all-gather that they are made of, so that loops can take either.

An all-reduce is no loop's; its halves are (Pope et al. 2022, A.1: the bytes are the same). Which dim they
scatter is free, and nothing else changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from ...ir.collective import AllGather, AllReduce, LayoutError, ReduceScatter, apply
from ...ir.layout import Reduction, unsplittable
from ...ir.program import Einsum, Region, Repeat, Sum, walk
from ...ir.spmd import Compute, Move, SpmdProgram, SpmdValue, Step
from ..lower.combine_collectives import defined

Item = Compute | Move | Repeat[Step]


def reduces(spmd: SpmdProgram) -> list[Move]:
    """The all-reduces of sums that an einsum or a sum of terms makes, in order, but for those in a joined one."""
    steps = [placed.item for placed in walk(spmd.body) if not isinstance(placed.item, Repeat)]
    makers = {step.result for step in steps if isinstance(step, Compute) and isinstance(step.op, Einsum | Sum)}
    values = spmd.table()
    joined = {
        step.result
        for before, after in pairwise(steps)
        if isinstance(after, Move) and after.joined
        for step in (before, after)
        if isinstance(step, Move)
    }
    return [
        step
        for step in steps
        if isinstance(step, Move)
        and isinstance(step.collective, AllReduce)
        and step.operand in makers
        and step.result not in joined
        and values[step.operand].layout.reduction is Reduction.SUM
    ]


def split(spmd: SpmdProgram, move: Move) -> Iterator[SpmdProgram]:
    """The program with one all-reduce in its two halves, for every dim that can be scattered."""
    assert isinstance(move.collective, AllReduce), "reduces() gives all-reduces"
    table, axes = spmd.table(), move.collective.axes
    before = table[move.operand]
    name = _free(move.result, set(table))
    for dim in range(len(before.dims)):
        scatter = ReduceScatter(axes, dim)
        try:
            layout = apply(scatter, before.layout)
        except LayoutError:
            continue
        if unsplittable(before.dims, layout, dict(spmd.sizes), spmd.mesh) is not None:
            continue
        value = replace(before, name=name, layout=layout)
        halves = (Move(name, move.operand, scatter), Move(move.result, name, AllGather(axes, dim)))
        yield _with(spmd, move.result, halves, value)


def _free(name: str, used: set[str]) -> str:
    """A name for what is scattered, like that of what is gathered of it."""
    while name in used:
        name += "'"
    return name


def _with(spmd: SpmdProgram, result: str, halves: tuple[Move, Move], value: SpmdValue) -> SpmdProgram:
    def region(old: Region[Step]) -> Region[Step]:
        items: list[Item] = []
        for item in old.items:
            if isinstance(item, Repeat):
                items.append(replace(item, body=region(item.body)))
            elif item.result == result:
                items += halves
            else:
                items.append(item)
        return replace(old, items=tuple(items))

    body, table = region(spmd.body), spmd.table() | {value.name: value}
    return replace(spmd, body=body, values=tuple(table[name] for name in defined(body)))
