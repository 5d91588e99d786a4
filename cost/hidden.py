"""Blocks of scores that a mask hides: which pairs of blocks an attention in blocks leaves out, and what share of its
scores it makes therefore.

A mask is written as limits: a score counts where `lower <= upper`, both of them numbers of the query's place or of the
key's alone, into which no tensor enters. What is causal is one, a window or a chunk another, and so are the places of
the entries of a cache that wraps. A block of queries runs a block of the context where, of each limit, the least
`lower` of its block is not above the greatest `upper` of its own; one block of the context always runs.

The limits of an attention stand in its scores. Those of a sum of scores, as an indexer makes, stand in what reads the
sum: where all of that is minus infinity beyond a limit, whatever the sum is, blocks beyond it are zeros.

Chips of a mesh cut queries and context as they hold them, so that some have more to do than others: the share is that
of the chip with most, for which the others wait. It counts the context as filled, as an estimate does.

What is left out is arithmetic, and of what is read for each query and key, as scores that are held whole, what lies in
blocks that do not run. The entries of caches count as read once, whoever reads them.

Ops are found as kernels are (cost.kernels), moved copies read as what they are copies of: so the search and the sharded
program see the same ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

from ..ir.dataflow import origins
from ..ir.expr import Call, Const, Context, Expr, Operand, Size, operands, sized_dims
from ..ir.layout import Layout
from ..ir.program import Einsum, Iota, Map, Op, Reduce, Region, Repeat, operand_names, walk, with_operands
from ..ir.record import record
from ..ir.spmd import Compute, SpmdProgram, SpmdValue, Step
from .attention import Attention
from .blocks import InBlocks, cut, perhaps
from .scores import WHOLE_BYTES, block_places
from .shown_blocks import PLACES, runs

Local = Callable[[str], Any]  # the size of an index: a number or an array


@record
class Limit:
    """A score counts where `lower <= upper`, which are written with values of the program. `lowest`, `highest`: the
    same with each value replaced by what makes it; an operand there is the place along the dim of that name."""

    lower: Expr
    upper: Expr
    lowest: Expr
    highest: Expr


@record
class Shown:
    """What an op does of the scores of an attention, or of a sum of scores, that may run in blocks, in its own indices.

    `scores`: the indices of the scores, `query` (None where there is but one) and `context` those along which it runs
    in blocks. `summed`: those over which the op makes a sum that scores are: where they are split, it makes scores
    whole. `bits`: of a score as blocks are cut, `most_bits` the most that one takes. `limits`: the lowest and the
    highest of each, of places along `dims`, those of queries and of the context.
    """

    scores: tuple[str, ...]
    query: str | None
    context: str
    summed: tuple[str, ...]
    bits: int
    most_bits: int
    dims: tuple[str | None, str]
    limits: tuple[tuple[Expr, Expr], ...]

    @property
    def cut(self) -> frozenset[str]:
        """The indices of what blocks are left out of, as they are of the scores, and of what is read to make these for
        each query and key alike. What has the context alone counts as read once (see above)."""
        return frozenset([self.query, self.context] if self.query else self.scores)


def limits(one: InBlocks, spmd: SpmdProgram) -> tuple[Limit, ...]:
    """The limits that hide scores of an attention of a program, as the op that masks them has them; or scores of which
    a sum is made, as the first op has them that reads the sum."""
    ops, copies, sizes, values = _ops(spmd), origins(spmd), dict(spmd.sizes), spmd.table()

    def of(mask: Op) -> Iterator[Limit]:
        for lower, upper in _compared(mask.expr) if isinstance(mask, Map) else ():
            lowest, highest = (_places_of(side, ops, copies) for side in (lower, upper))
            if lowest is not None and highest is not None and all(_along(s, one, sizes) for s in (lowest, highest)):
                yield Limit(lower, upper, lowest, highest)

    if isinstance(one, Attention):
        return tuple(of(ops[one.masked]))
    if len({frozenset(values[name].dims) for name in one.unmade}) > 1:
        return ()  # blocks would be of other places to one op than to another
    first, *others = _readers(one.sum.result, spmd, ops, copies) or [one.sum]
    also = [{(limit.lowest, limit.highest) for limit in of(reader)} for reader in others]
    return tuple(limit for limit in of(first) if all((limit.lowest, limit.highest) in each for each in also))


def _readers(name: str, spmd: SpmdProgram, ops: Mapping[str, Op], copies: Mapping[str, str]) -> list[Op]:
    """The ops that read a value or a copy of it; none where something else does as well."""
    repeats = [placed.item for placed in walk(spmd.body) if isinstance(placed.item, Repeat)]
    kept = {*spmd.results, *(n for repeat in repeats for c in repeat.carries for n in (c.initial, c.next))}

    def among(names: Iterable[str]) -> bool:
        return any(copies.get(each, each) == name for each in names)

    return [] if among(kept) else [op for op in ops.values() if among(operand_names(op))]


def _compared(expr: Expr) -> Iterator[tuple[Expr, Expr]]:
    """What has to be at most what for an expression not to be minus infinity."""
    match expr:
        case Call("where", (condition, inner, Const(other))) if other == -math.inf:
            if isinstance(condition, Call) and condition.function == "less_equal":
                lower, upper = condition.arguments
                yield lower, upper
            yield from _compared(inner)


def _ops(spmd: SpmdProgram) -> dict[str, Op]:
    """The ops of a program by what they make."""
    return {step.item.op.result: step.item.op for step in walk(spmd.body) if isinstance(step.item, Compute)}


def _places_of(expr: Expr, ops: Mapping[str, Op], copies: Mapping[str, str]) -> Expr | None:
    """An expression with each operand replaced by what makes it, those that count places by the name of their dim; None
    where a tensor enters into it, or something else is done than to count."""
    match expr:
        case Const() | Size() | Context():
            return expr
        case Operand(name):
            made = ops.get(copies.get(name, name))
            if isinstance(made, Iota):
                return Operand(made.dim)
            return _places_of(made.expr, ops, copies) if isinstance(made, Map) else None
        case Call(function, arguments) if function in PLACES:
            inner = [_places_of(argument, ops, copies) for argument in arguments]
            known = tuple(each for each in inner if each is not None)
            return Call(function, known) if len(known) == len(inner) else None
    return None


def _along(places: Expr, one: InBlocks, sizes: Mapping[str, int]) -> bool:
    """Whether a side of a limit depends on the query's place or on the key's alone, or on neither."""
    dims = {dim for dim in operands(places) if sizes[dim] > 1}
    return len(dims) <= 1 and dims <= {one.query, one.context}


def shown(spmd: SpmdProgram) -> dict[str, Shown]:
    """The ops of a program that may leave scores out, by what they make: those of each attention and of each sum of
    scores that may run in blocks and of which a limit hides some."""
    plain = _without_moves(spmd)
    values, found = plain.table(), dict[str, Shown]()
    every = perhaps(plain)
    ops = _ops(plain) if every else {}
    for one in every:
        hides = tuple((limit.lowest, limit.highest) for limit in limits(one, plain))
        if not hides:
            continue
        bits, most = values[cut(one)].dtype.bits, max(values[name].dtype.bits for name in one.unmade)
        for name in (*one.unmade, *one.ends):
            dims, indices, summed = _scores(ops[name], one, values)
            of = dict(zip(dims, indices, strict=True))
            query = of[one.query] if one.query else None
            found[name] = Shown(indices, query, of[one.context], summed, bits, most, (one.query, one.context), hides)
    return found


def _scores(
    op: Op, one: InBlocks, values: Mapping[str, SpmdValue]
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """The dims of the scores that an op makes or reads, the indices that it has for them, and those over which it makes
    a sum that scores are."""
    match op:
        case Einsum(_, names, indices, _) if op.result in one.ends:
            own = next(n for n, name in enumerate(names) if name in one.unmade)
            return values[names[own]].dims, indices[own], ()
        case Einsum(result, _, indices, output):
            summed = {index for each in indices for index in each} - set(output)
            return values[result].dims, output, tuple(sorted(summed))
        case Reduce():
            return values[op.operand].dims, values[op.operand].dims, ()
    return values[op.result].dims, values[op.result].dims, ()


def _without_moves(spmd: SpmdProgram) -> SpmdProgram:
    """A program with every value whole, and nothing moved."""
    copies = origins(spmd)
    values = tuple(
        replace(value, layout=Layout(((),) * len(value.dims))) for value in spmd.values if value.name not in copies
    )
    results = tuple(copies.get(name, name) for name in spmd.results)
    return replace(spmd, values=values, body=_region(spmd.body, copies), results=results)


def _region(region: Region[Step], copies: Mapping[str, str]) -> Region[Step]:
    items: list[Step | Repeat[Step]] = []
    for item in region.items:
        match item:
            case Compute(op):
                items.append(Compute(with_operands(op, copies)))
            case Repeat(name, count, carries, body):
                carried = tuple(
                    replace(c, initial=copies.get(c.initial, c.initial), next=copies.get(c.next, c.next))
                    for c in carries
                )
                items.append(Repeat(name, count, carried, _region(body, copies)))
    return Region(region.stored, tuple(items))


def run_share(one: Shown | None, local: Local, whole: Local) -> Any:
    """The share of its scores that a chip makes: a fraction, or an array where the sizes of `local` or `whole` are
    arrays."""
    if one is None:
        return 1
    dims = {d for pair in one.limits for side in pair for d in (*sized_dims(side), *operands(side))}
    named = sorted(dims | {dim for dim in one.dims if dim})
    queries, context = local(one.query) if one.query else 1, local(one.context)
    others = math.prod(map(local, one.scores), start=1) / (queries * context)
    split: Any = math.prod((whole(index) / local(index) for index in one.summed), start=1)
    columns = [queries, context, others, split, *map(whole, named)]

    def share(row: Sequence[Any]) -> Fraction:
        here, sizes = tuple(map(math.ceil, row[:4])), tuple(map(math.ceil, row[4:]))
        return _share(one, here, tuple(zip(named, sizes, strict=True)))

    if not any(isinstance(each, np.ndarray) for each in columns):
        return share(columns)
    rows = np.stack(np.broadcast_arrays(*(np.asarray(each, dtype=np.float64) for each in columns)), axis=-1)
    codes = np.zeros(len(rows), dtype=np.int64)
    for column in rows.T:
        of, code = np.unique(column, return_inverse=True)
        _, codes = np.unique(codes * len(of) + code.reshape(-1), return_inverse=True)
    _, first = np.unique(codes, return_index=True)
    return np.asarray([float(share(row)) for row in rows[first]])[codes.reshape(-1)]


@lru_cache(maxsize=2**16)
def _share(one: Shown, here: tuple[int, ...], sizes: tuple[tuple[str, int], ...]) -> Fraction:
    """As `run_share`, where a chip has so many queries, places of the context and of other dims, and of sums that
    scores are one part of so many; `sizes` of whole dims."""
    queries, context, others, split = here
    if split > 1 or queries * context * others * one.most_bits <= WHOLE_BYTES * 8:
        return Fraction(1)
    return runs(one.limits, one.dims, here[:2], block_places(queries, context, others, one.bits), sizes)
