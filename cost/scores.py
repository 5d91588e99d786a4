"""Scores: the values that exist for every pair of a query and a key, what blocks of them are made of, and how large
blocks are.

A value that has both dims of some append, the one of the new tokens and the one of the whole context, is a score. Where
a chip would hold many, an emitted module makes and uses them a block at a time: those of attention (cost.attention),
and those that are summed over heads (cost.summed_scores). Of a value that is chosen along the context blocks are made
as wholes are, zeros included; the mask that chose is cut into blocks as all that scores are made of.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Mapping
from functools import cached_property

from ..ir.dataflow import appends, makes, regions
from ..ir.expr import rotated_dims
from ..ir.program import Einsum, Map, Op, Region, Repeat, Stored, Sum, operand_names, walk
from ..ir.record import record
from ..ir.spmd import Compute, Move, SpmdProgram, SpmdValue, Step

WHOLE_BYTES = 2**26  # scores that take no more are made whole: those of most decode steps
BLOCK_BYTES = 2**24  # of the scores of a block: they stay near the arithmetic, and fill a matmul
CONTEXT_BLOCK = 512  # places of the context; fewer where even those of one query were more than that
LEAST_BLOCK = 128
BLOCKWISE = (Einsum, Map, Sum)  # the ops of whose results blocks may be made alone


@record
class Part:
    """A value that blocks of scores are made of, and what its dimensions run over: `labels` has the names of dims,
    those of queries and of the context only where a block takes a part of the value."""

    value: str
    labels: tuple[str, ...]


def scores(spmd: SpmdProgram) -> frozenset[str]:
    """The scores that ops make and ops of the same region read alone: what attention as one kernel never stores."""
    made: set[str] = set()
    kept = set(spmd.results)
    for placed in walk(spmd.body):
        match placed.item:
            case Compute(op):
                made.add(op.result)
            case Move(_, operand):
                kept.add(operand)
            case Repeat(_, _, carries, _) as repeat:
                kept |= {name for carry in carries for name in (carry.initial, carry.next)}
                kept |= _read_from_outside(repeat)
    values, pairs = spmd.table(), queries_of(spmd)
    return frozenset(n for n in made - kept if any({*pair} <= {*values[n].dims} for pair in pairs.items()))


def queries_of(spmd: SpmdProgram) -> dict[str, str]:
    """By the dim of each context that of its new tokens, as appends have them."""
    return {op.target: op.source for op in appends(spmd).values() if op.source != op.target}


def chosen_along(value: SpmdValue, contexts: Iterable[str]) -> bool:
    """Whether nothing of a value is chosen but along one of these dims alone."""
    return all(len(one.over) == 1 and one.over[0] in contexts for one in value.chosen)


def large_scores(spmd: SpmdProgram) -> frozenset[str]:
    """Of an unsharded program the scores of which blocks may be made once it is sharded, where some like them are
    large. A chip holds no more of a value than there is: where this is little, scores are whole in all layouts."""
    values, sizes, found, queries = spmd.table(), dict(spmd.sizes), scores(spmd), queries_of(spmd)
    elements = {name: math.prod(sizes[dim] for dim in values[name].dims) for name in found}
    large = [{*values[name].dims} for name in found if elements[name] * values[name].dtype.bits > WHOLE_BYTES * 8]
    pairs = {context: {context, query} for context, query in queries.items()}
    pairs = {context: pair for context, pair in pairs.items() if any(pair <= dims for dims in large)}

    def may_be(value: SpmdValue) -> bool:
        own = [context for context, pair in pairs.items() if pair <= {*value.dims}]
        return bool(own) and chosen_along(value, own)

    return frozenset(name for name in found if may_be(values[name]))


def behind(names: Iterable[str], among: Container[str], ops: Mapping[str, Op]) -> frozenset[str]:
    """Of the scores `among` those of `names` of which blocks may be made, and all that these are made of likewise."""
    found, waiting = set[str](), list(names)
    while waiting:
        name = waiting.pop()
        if name in among and name not in found and isinstance(ops[name], BLOCKWISE):
            found.add(name)
            waiting += operand_names(ops[name])
    return frozenset(found)


def _read_from_outside(repeat: Repeat[Step]) -> set[str]:
    """What is read in a repeat and not defined in it."""
    read: set[str] = set()
    made: set[str] = {carry.inside for carry in repeat.carries}
    for placed in walk(repeat.body):
        match placed.item:
            case Stored(name):
                made.add(name)
            case Compute(op):
                read |= set(operand_names(op))
                made.add(op.result)
            case Move(result, operand):
                read.add(operand)
                made.add(result)
            case Repeat(_, _, carries, _):
                read |= {name for carry in carries for name in (carry.initial, carry.next)}
                made |= {name for carry in carries for name in (carry.inside, carry.result)}
    return read - made


def block_places(queries: int, context: int, others: int, bits: int) -> tuple[int, int]:
    """How many queries and places of the context a block has, of as many as a chip has: as many as suit `others`, the
    sizes of all its other dims multiplied, and scores of so many bits."""
    room = BLOCK_BYTES * 8 // (bits * others)
    width = CONTEXT_BLOCK
    while width > LEAST_BLOCK and width > room:
        width //= 2
    return min(1 << max((room // width).bit_length() - 1, 0), queries), min(width, context)


def local_sizes(value: SpmdValue, spmd: SpmdProgram) -> dict[str, int]:
    """How much of each dim of a value a chip has."""
    sizes = dict(spmd.sizes)
    return dict(zip(value.dims, value.layout.local_shape([sizes[d] for d in value.dims], spmd.mesh), strict=True))


def looked(spmd: SpmdProgram) -> Iterator[Scores]:
    """The regions of a program in which blocks of scores may be found, where there are scores."""
    unstored = scores(spmd)
    if not unstored:
        return
    values, sizes, queries = spmd.table(), dict(spmd.sizes), queries_of(spmd)
    for region, _ in regions(spmd.body):
        yield Scores(region, spmd, values, sizes, unstored, queries)


@record
class Made:
    """What a block of a score is made of: the ops that make it, in order, and the values that these read; `query` is
    the dim of queries along which there are blocks, None where there are none."""

    ops: tuple[Op, ...]
    parts: tuple[Part, ...]
    query: str | None


@record
class Scores:
    """The scores of a region. `unstored`: those that ops of it alone make and read; `queries`: by the dim of each
    context that of its new tokens."""

    region: Region[Step]
    spmd: SpmdProgram
    values: Mapping[str, SpmdValue]
    sizes: Mapping[str, int]
    unstored: frozenset[str]
    queries: Mapping[str, str]

    @cached_property
    def place(self) -> dict[str, int]:
        """Where each value of the region is made."""
        return {name: n for n, item in enumerate(self.region.items) for name in makes(item)}

    @cached_property
    def ops(self) -> dict[str, Op]:
        """The ops of the region that run alone, by what they make."""
        items = self.region.items
        runs = {n for n, item in enumerate(items) if not isinstance(item, Repeat) and (item.joined or item.looped)}
        runs |= {n - 1 for n in runs}
        return {s.result: s.op for n, s in enumerate(items) if isinstance(s, Compute) and n not in runs}

    @cached_property
    def readers(self) -> dict[str, list[Op]]:
        """The ops that read each score."""
        found: dict[str, list[Op]] = {}
        for item in self.region.items:
            if isinstance(item, Compute):
                for name in operand_names(item.op):
                    if name in self.unstored:
                        found.setdefault(name, []).append(item.op)
        return found

    def are_large(self, names: Iterable[str]) -> bool:
        """Whether some of these scores would take much on a chip."""
        return max(self.bits(name) for name in names) > WHOLE_BYTES * 8

    def bits(self, name: str) -> int:
        """What all of a score would take on a chip."""
        return math.prod(local_sizes(self.values[name], self.spmd).values()) * self.values[name].dtype.bits

    def made(self, last: str, context: str, after: frozenset[str] | None) -> Made | None:
        """What a block of the score `last` is made of; None where it is none. `after`: what alone may read it, or
        scores that it is made of, beside those; None where anything may, since it is made as a whole."""
        query = self.queries.get(context)
        if query is not None and (self.sizes[query] == 1 or query not in self.values[last].dims):
            query = None
        blocked = [dim for dim in (context, query) if dim]
        left: set[str] = set()  # scores that stay whole, since others read them
        while True:
            made = self.closure(last, blocked, left)
            if last not in made:
                return None
            allowed = {*made, *(after or ())}
            own = made - {last} if after is None else made
            outside = {n for n in own if any(op.result not in allowed for op in self.readers[n])}
            if last in outside:
                return None
            if not outside:
                break
            left |= outside
        ops = tuple(op for name, op in self.ops.items() if name in made)
        parts = self.parts(ops, made, blocked)
        return None if parts is None else Made(ops, parts, query)

    def closure(self, last: str, blocked: list[str], left: set[str]) -> set[str]:
        """A score and all scores that it is made of, as far as blocks of them can be made alone."""
        found, waiting = set[str](), [last]
        while waiting:
            name = waiting.pop()
            op = self.ops.get(name)
            if name in found or name in left or op is None or (name not in self.unstored and name != last):
                continue
            if self.in_blocks(op, blocked):
                found.add(name)
                waiting += operand_names(op)
        return found

    def in_blocks(self, op: Op, blocked: list[str]) -> bool:
        """Whether a block of what an op makes comes of blocks of what it reads."""
        value = self.values[op.result]
        if not isinstance(op, BLOCKWISE) or not set(blocked) <= set(value.dims):
            return False
        if isinstance(op, Map) and rotated_dims(op.expr) & set(blocked):
            return False
        covered = {d for name in operand_names(op) for d in self.values[name].dims}
        return isinstance(op, Einsum) or covered >= {d for d in value.dims if self.sizes[d] > 1}

    def parts(self, ops: Iterable[Op], made: set[str], blocked: list[str]) -> tuple[Part, ...] | None:
        """What blocks are cut of; None where two ops would cut one value in two ways."""
        found: dict[str, tuple[str, ...]] = {}
        for op in ops:
            dims = self.values[op.result].dims
            for name, own in _indices(op, self.values):
                runs = dict(zip(op.output if isinstance(op, Einsum) else dims, dims, strict=True))
                labels = tuple(
                    runs[i] if runs.get(i) in blocked else f"{dim} of {name}" if dim in blocked else dim
                    for i, dim in zip(own, self.values[name].dims, strict=True)
                )
                if found.setdefault(name, labels) != labels or len(set(labels)) != len(labels):
                    return None
                if name in made and labels != self.values[name].dims:
                    return None
        cut = (Part(name, labels) for name, labels in found.items() if name not in made)
        return tuple(part for part in cut if set(part.labels) & set(blocked))


def _indices(op: Op, values: Mapping[str, SpmdValue]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """What an op reads, with its dims as indices of the op."""
    if isinstance(op, Einsum):
        yield from zip(op.operands, op.indices, strict=True)
    else:
        yield from ((name, values[name].dims) for name in operand_names(op))
