"""The order of dims in which caches and projections are handed to a module.

Caches: their context next to the last dim, or for TPUs last. The TPU's compiler lays out the loop over layers so that
what a step reads of a cache, the places of its context by what each place holds, fills tiles; that of GPUs so that what
is one of many in a product, sequences and heads, comes first. Handed over in another order, caches are copied as a
whole on entry and once more on the way out, in every step (LLaMA-3-70B, decode, v4 4x4x4 by libtpu 0.0.52: 2.7 GB of a
chip; LLaMA-3-8B, 16 sequences of 2,048 tokens, on an H200 with JAX 0.11.2: 4.7 of 20.1 ms).

The rest is of TPUs alone. A tile has 128 lanes, and the last dim of what goes through a loop lies along them: heads of
160 would take the room of 256, and so be copied into that room and back. Where the context fills lanes and what a place
holds does not, the context stands last (libtpu 0.0.42, v4 4x4x4, decode: Megatron's heads of 160 do not fit otherwise,
64.7 GB for 25.3; GPT-NeoX's of 96, kept as 24 and 72, take 7.9 GB for 3.5).

Projections to several dims, such as heads and what each has: the dim that is summed last. As declared, [E,H,Q], each
layer's are first taken out of the stack into another order; so they are read where they lie (cycles of a step of decode
as libtpu 0.0.42 estimates them, v4 4x4x4: LLaMA-3-70B 19.3 to 14.6 million, PaLM 62B 22.7 to 16.7, Qwen3-32B 9.7 to
7.8; of prefill of the last two 0.2% and 4% fewer, of the first 3% more). The order is read off the program as it is
written, so that all phases take parameters in one.

Tables whose rows are looked up: by rows, where padding these takes little (cost.memory says which). JAX would hand them
over by columns, and each step copy all of them.

Programs are rewritten, so that specs, steps and results all have the one order; what they mean, and what they send, is
the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from ...cost.hardware import LANES
from ...cost.memory import handed_by_rows
from ...cost.platform import Platform
from ...ir.collective import AllGather, AllToAll, Collective, Embed, Permute, ReduceScatter, Slice
from ...ir.dataflow import appends, ops, rewritten
from ...ir.inert import docstring, literal
from ...ir.layout import Layout
from ...ir.program import Append, Einsum, Kind, Op, Program, Value, operand_names, stored_in, walk
from ...ir.spmd import Compute, Move, SpmdProgram, SpmdValue, Step
from .jax_tree import TREES, Names

Item = TypeVar("Item", Value, SpmdValue)
Orders = dict[str, tuple[int, ...]]  # of a value whose dims change places, for each place the one before


def in_memory_order(program: Program, spmd: SpmdProgram, platform: Platform) -> tuple[Program, SpmdProgram]:
    """A program, and its sharded form, with the dims of caches, and for TPUs of projections, in the order in which a
    module takes them."""
    orders = orders_of(program, spmd, platform)
    if not orders:
        return program, spmd
    whole = replace(
        program,
        values=tuple(_dims(v, orders) for v in program.values),
        body=rewritten(program.body, lambda op: [_op(op, orders)]),
        pins=(),  # they hold, and name dims by their places
    )
    return whole, reordered(spmd, orders)


def reordered(spmd: SpmdProgram, orders: Orders) -> SpmdProgram:
    """A sharded program whose values stand in these orders, which may be those of the same program at other sizes."""
    values = tuple(
        replace(_dims(v, orders), layout=_layout(v.layout, orders[v.name])) if v.name in orders else v
        for v in spmd.values
    )
    return replace(spmd, values=values, body=rewritten(spmd.body, lambda step: [_step(step, orders)]))


def orders_of(program: Program, spmd: SpmdProgram, platform: Platform) -> Orders:
    """The caches and projections that stand in another order, what is appended to caches, and the copies of all."""
    if platform is Platform.ANY:
        return {}
    items, tpu = [placed.item for placed in walk(spmd.body)], platform is Platform.TPU
    orders = (_projections(program) if tpu else {}) | _caches(spmd, LANES if tpu else 1)
    for item in items:  # in order: each comes after what it is made of
        match item:
            case Compute(Append(result, cache)) if cache in orders:
                orders[result] = orders[cache]
            case Move(result, operand) if operand in orders:
                orders[result] = orders[operand]
    return {} if set(orders) & set(spmd.results) else orders


def _projections(program: Program) -> Orders:
    """The parameters of which products sum one dim and keep several that they alone have."""
    values, sizes = program.table(), dict(program.phases[0].sizes)
    orders: Orders = {}
    for name in (one.value for one in stored_in(program.body, Kind.PARAM)):
        readers = [op for op in ops(program) if name in operand_names(op)]
        found = {_summed_last(op, name, [sizes[dim] for dim in values[name].dims]) for op in readers}
        [order] = found if len(found) == 1 else [None]
        if order is not None and order != tuple(range(len(order))):
            orders[name] = order
    return orders


def _summed_last(op: Op, name: str, sizes: Sequence[int]) -> tuple[int, ...] | None:
    """The order of a parameter's dims with the one last that a product sums; None where this is no projection."""
    if not isinstance(op, Einsum) or len(op.operands) != 2 or op.operands.count(name) != 1:
        return None
    own, other = (op.indices[i] for i in (op.operands.index(name), 1 - op.operands.index(name)))
    summed = [i for i, index in enumerate(own) if index not in op.output and sizes[i] > 1]
    alone = [i for i, index in enumerate(own) if index in op.output and index not in other and sizes[i] > 1]
    if len(summed) != 1 or len(alone) < 2:
        return None
    return (*(i for i in range(len(own)) if i not in summed), *summed)


def _caches(spmd: SpmdProgram, lanes: int) -> Orders:
    """The caches whose context stands elsewhere."""
    dims, sizes = {name: value.dims for name, value in spmd.table().items()}, dict(spmd.sizes)
    contexts = {cache: op.target for cache, op in appends(spmd).items()}
    orders: Orders = {}
    for name in (one.value for one in stored_in(spmd.body, Kind.CACHE)):
        own, context = dims[name], contexts.get(name)
        if context is None or own[-1] == context:
            continue
        places = [i for i, dim in enumerate(own) if dim != context]
        if sizes[own[places[-1]]] % lanes and sizes[context] % lanes == 0:
            order = (*places, own.index(context))
        else:
            order = (*places[:-1], own.index(context), places[-1])
        if order != tuple(range(len(own))):
            orders[name] = order
    return orders


def _dims(value: Item, orders: Orders) -> Item:
    if value.name not in orders:
        return value
    return replace(value, dims=tuple(value.dims[i] for i in orders[value.name]))


def _layout(layout: Layout, order: Sequence[int]) -> Layout:
    return replace(layout, dims=tuple(layout.dims[i] for i in order))


def _step(step: Step, orders: Orders) -> Step:
    """A step whose operands have their dims in other orders."""
    match step:
        case Compute(op):
            return replace(step, op=_op(op, orders))
        case Move(_, operand, collective) if operand in orders:
            return replace(step, collective=_collective(collective, orders[operand]))
    return step


def _op(op: Op, orders: Orders) -> Op:
    """An op likewise: only an einsum names dims by their places."""
    if not isinstance(op, Einsum):
        return op
    indices = (
        tuple(own[i] for i in orders.get(name, range(len(own))))
        for name, own in zip(op.operands, op.indices, strict=True)
    )
    return replace(op, indices=tuple(indices))


def _collective(collective: Collective, order: tuple[int, ...]) -> Collective:
    """A collective of a value whose dims have this order."""
    match collective:
        case AllGather(_, dim) | ReduceScatter(_, dim) | Slice(_, dim) | Embed(_, int(dim)):
            return replace(collective, dim=order.index(dim))
        case AllToAll(_, source, target):
            return replace(collective, source=order.index(source), target=order.index(target))
        case Permute(layout):
            return Permute(_layout(layout, order))
    return collective


def by_rows_text(spmd: SpmdProgram, names: Names) -> list[str]:
    """The function that says how tables are handed over, where that is not as JAX does it by itself."""
    tables = handed_by_rows(spmd, LANES)
    lines = []
    for leaf in names.of(Kind.PARAM):
        if leaf.value in tables:
            order = tuple(range(len(leaf.repeats) + len(leaf.dims)))
            at = names.access(leaf).removeprefix(TREES[Kind.PARAM])
            lines.append(f"    places = {_within('places', leaf.path, f'Format(Layout({order}), places{at})')}")
    if not lines:
        return []
    says = "Where parameters lie, of a tree of shardings; tables by rows, which are looked up, and copied otherwise."
    return ["\n".join(["def by_rows(places):", f'    """{docstring(says)}"""', *lines, "    return places"])]


def _within(tree: str, path: Sequence[str], text: str) -> str:
    """The text of a tree with another leaf at a path."""
    key, *rest = map(literal, path)
    return f"{{**{tree}, {key}: {_within(f'{tree}[{key}]', path[1:], text) if rest else text}}}"
