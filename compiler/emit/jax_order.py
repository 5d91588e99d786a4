"""The order of dims in which caches are handed to a module for TPUs: their context next to the last dim, or last.

The TPU's compiler lays out the loop over layers so that what a step reads of a cache, the places of its context by what
each place holds, fills tiles. Handed over in another order, caches are copied as a whole on entry and once more on the
way out, in every step (LLaMA-3-70B, decode, v4 4x4x4 by libtpu 0.0.52: 2.7 GB of a chip).

A tile has 128 lanes, and the last dim of what goes through a loop lies along them: heads of 160 would take the room of
256, and so be copied into that room and back. Where the context fills lanes and what a place holds does not, the
context stands last (libtpu 0.0.42, v4 4x4x4, decode: Megatron's heads of 160 do not fit otherwise, 64.7 GB for 25.3;
GPT-NeoX's of 96, kept as 24 and 72, take 7.9 GB for 3.5).

Programs are rewritten, so that specs, steps and results all have the one order; what they mean, and what they send, is
the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from ...ir.collective import AllGather, AllToAll, Collective, Embed, Permute, ReduceScatter, Slice
from ...ir.layout import Layout
from ...ir.program import Append, Einsum, Kind, Op, Program, Region, Repeat, Stored, Value, walk
from ...ir.spmd import Compute, Move, SpmdProgram, SpmdValue, Step

Item = TypeVar("Item", Value, SpmdValue)
Orders = dict[str, tuple[int, ...]]  # of a value whose dims change places, for each place the one before
LANES = 128  # of a tile, whatever the type


def in_memory_order(program: Program, spmd: SpmdProgram) -> tuple[Program, SpmdProgram]:
    """A program, and its sharded form, with the dims of caches in the order in which a module for TPUs takes them."""
    orders = orders_of(spmd)
    if not orders:
        return program, spmd
    whole = replace(
        program,
        values=tuple(_dims(v, orders) for v in program.values),
        body=_Ops(orders).ops(program.body),
        pins=(),  # they hold, and name dims by their places
    )
    return whole, reordered(spmd, orders)


def reordered(spmd: SpmdProgram, orders: Orders) -> SpmdProgram:
    """A sharded program whose values stand in these orders, which may be those of the same program at other sizes."""
    values = tuple(
        replace(_dims(v, orders), layout=_layout(v.layout, orders[v.name])) if v.name in orders else v
        for v in spmd.values
    )
    return replace(spmd, values=values, body=_Ops(orders).steps(spmd.body))


def orders_of(spmd: SpmdProgram) -> Orders:
    """The caches whose context stands elsewhere, with what is appended to them, and the copies of both."""
    dims, sizes = {name: value.dims for name, value in spmd.table().items()}, dict(spmd.sizes)
    items = [placed.item for placed in walk(spmd.body)]
    appends = [item.op for item in items if isinstance(item, Compute) and isinstance(item.op, Append)]
    contexts = {op.cache: op.target for op in appends}
    caches = [item.value for item in items if isinstance(item, Stored) and item.kind is Kind.CACHE]
    orders: Orders = {}
    for name in caches:
        own, context = dims[name], contexts.get(name)
        if context is None or own[-1] == context:
            continue
        places = [i for i, dim in enumerate(own) if dim != context]
        if sizes[own[places[-1]]] % LANES and sizes[context] % LANES == 0:
            order = (*places, own.index(context))
        else:
            order = (*places[:-1], own.index(context), places[-1])
        if order != tuple(range(len(own))):
            orders[name] = order
    for item in items:  # in order: each comes after what it is made of
        match item:
            case Compute(Append(result, cache)) if cache in orders:
                orders[result] = orders[cache]
            case Move(result, operand) if operand in orders:
                orders[result] = orders[operand]
    return {} if set(orders) & set(spmd.results) else orders


def _dims(value: Item, orders: Orders) -> Item:
    if value.name not in orders:
        return value
    return replace(value, dims=tuple(value.dims[i] for i in orders[value.name]))


def _layout(layout: Layout, order: Sequence[int]) -> Layout:
    return replace(layout, dims=tuple(layout.dims[i] for i in order))


@dataclass(frozen=True)
class _Ops:
    """Writes ops and collectives anew, whose operands have their dims in other orders."""

    orders: Orders

    def ops(self, region: Region[Op]) -> Region[Op]:
        """A region of a program."""
        items = (
            replace(item, body=self.ops(item.body)) if isinstance(item, Repeat) else self.op(item)
            for item in region.items
        )
        return replace(region, items=tuple(items))

    def steps(self, region: Region[Step]) -> Region[Step]:
        """A region of a sharded program."""
        items: list[Step | Repeat[Step]] = []
        for item in region.items:
            match item:
                case Repeat():
                    items.append(replace(item, body=self.steps(item.body)))
                case Compute(op):
                    items.append(replace(item, op=self.op(op)))
                case Move(_, operand, collective) if operand in self.orders:
                    items.append(replace(item, collective=self.collective(collective, self.orders[operand])))
                case _:
                    items.append(item)
        return replace(region, items=tuple(items))

    def op(self, op: Op) -> Op:
        """Only an einsum names dims by their places."""
        if not isinstance(op, Einsum):
            return op
        indices = (
            tuple(own[i] for i in self.orders.get(name, range(len(own))))
            for name, own in zip(op.operands, op.indices, strict=True)
        )
        return replace(op, indices=tuple(indices))

    def collective(self, collective: Collective, order: tuple[int, ...]) -> Collective:
        """A collective of a value whose dims have this order."""
        match collective:
            case AllGather(_, dim) | ReduceScatter(_, dim) | Slice(_, dim) | Embed(_, int(dim)):
                return replace(collective, dim=order.index(dim))
            case AllToAll(_, source, target):
                return replace(collective, source=order.index(source), target=order.index(target))
            case Permute(layout):
                return Permute(_layout(layout, order))
        return collective
