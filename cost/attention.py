"""Scores of attention: which values they are, which of them are made and used a block at a time, and how large blocks
are.

A value that has both dims of some append, the one of the new tokens and the one of the whole context, is a score: it
exists for every pair of a query and a key. Where a chip would hold many, an emitted module never has all of them: it
goes over blocks of queries, and for each over blocks of the context, with a running maximum and a running sum
(Milakov and Gimelshein 2018, "Online normalizer calculation for softmax", algorithm 3; Dao et al. 2022,
"FlashAttention", section 3.1). What a chip then has is the share of its part of the context: its maximum, its sum, and
its weighted values, which the collectives that are there complete as ever.

Runs in blocks what is written as a softmax between two products, if what stands between the first and the maximum is
pointwise, nothing else reads the scores, none of them is sent or chosen, and the largest of them takes more than
WHOLE_BYTES on a chip. Everything else stays as it is written, scores whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from ..ir.dataflow import appends, makes, regions
from ..ir.dtype import Dtype
from ..ir.expr import Call, Const, Expr, Operand, rotated_dims
from ..ir.program import Einsum, Map, Op, Reduce, Region, Repeat, Stored, Sum, operand_names, walk
from ..ir.spmd import Compute, Move, SpmdProgram, SpmdValue, Step

WHOLE_BYTES = 2**26  # scores that take no more are made whole: those of most decode steps
BLOCK_BYTES = 2**24  # of the scores of a block: they stay near the arithmetic, and fill a matmul
CONTEXT_BLOCK = 512  # places of the context; fewer where even those of one query were more than that
LEAST_BLOCK = 128


@dataclass(frozen=True)
class Part:
    """A value that blocks of scores are made of, and what its dimensions run over: `labels` has the names of dims,
    those of queries and of the context only where a block takes a part of the value."""

    value: str
    labels: tuple[str, ...]


@dataclass(frozen=True)
class Attention:
    """An attention that runs in blocks.

    `scores`: the ops that make a block of scores, in order, and the name of the last, `masked`. `exps`: exp(score -
    maximum); `shares`: that by the sum. `largest`: the maximum of a chip's scores; `top` what is taken from scores;
    `sum`: of exps, and `total` what they are divided by. `product`: shares times `values`. `query`, `context`: the dims
    along which it runs in blocks, no `query` where a chip has one; `parts`: what the scores are made of.
    """

    scores: tuple[Op, ...]
    masked: str
    largest: Reduce
    top: str
    exps: str
    sum: Einsum
    total: str
    shares: str
    product: Einsum
    values: str
    query: str | None
    context: str
    parts: tuple[Part, ...]

    @property
    def unmade(self) -> frozenset[str]:
        """The values that never exist whole."""
        return frozenset([*(op.result for op in self.scores), self.exps, self.shares])

    @property
    def reads(self) -> frozenset[str]:
        """What it reads where it runs, which is where its maximum stands."""
        made = {op.result for op in self.scores}
        return frozenset(name for op in self.scores for name in operand_names(op)) - made | {self.values}

    @property
    def blocked(self) -> tuple[str, ...]:
        """The dims along which it runs in blocks, that of the context last."""
        return (self.query, self.context) if self.query else (self.context,)

    @property
    def rescaled(self) -> bool:
        """Whether a chip's own sum and product are brought to another maximum or sum than its own."""
        return self.top != self.largest.result or self.total != self.sum.result


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
    values, pairs = spmd.table(), _pairs(spmd)
    return frozenset(n for n in made - kept if any(pair <= set(values[n].dims) for pair in pairs))


def perhaps_in_blocks(spmd: SpmdProgram) -> frozenset[str]:
    """Of an unsharded program the scores that may run in blocks once it is sharded, of a softmax that chooses nothing,
    with its maxima and sums, which then come together. A chip holds no more of a value than there is: where this is
    little, scores are whole in all layouts."""
    values, sizes, found = spmd.table(), dict(spmd.sizes), scores(spmd)
    large = [set(values[name].dims) for name in found if _bytes(values[name], sizes) > WHOLE_BYTES]
    pairs = [pair for pair in _pairs(spmd) if any(pair <= dims for dims in large)]
    among = {n for n in found if not values[n].chosen and any(pair <= set(values[n].dims) for pair in pairs)}
    return _of_softmax(spmd, frozenset(among))


def _of_softmax(spmd: SpmdProgram, among: frozenset[str]) -> frozenset[str]:
    """Of the scores `among` those that a softmax makes, and those that its own are made of; its maxima and sums."""
    ops = {step.item.op.result: step.item.op for step in walk(spmd.body) if isinstance(step.item, Compute)}
    maps = [(op.result, name, op.expr) for op in ops.values() if isinstance(op, Map) for name in operand_names(op)]
    found: set[str] = set()
    rows: set[str] = set()
    for exps, masked, expr in maps:
        if among >= {exps, masked} and top_of(expr, masked):
            found |= {exps, *(shares for shares, name, other in maps if name == exps and total_of(other, exps))}
            rows |= {op.result for op in ops.values() if isinstance(op, Reduce) and op.operand == masked}
            rows |= {op.result for op in ops.values() if isinstance(op, Einsum) and op.operands == (exps,)}
            waiting = [masked]
            while waiting:
                name = waiting.pop()
                if name in among and name not in found:
                    found.add(name)
                    waiting += operand_names(ops[name])
    return frozenset(found & among | rows)


def _pairs(spmd: SpmdProgram) -> frozenset[frozenset[str]]:
    """The dims of new tokens and of the whole context, of each append."""
    every = appends(spmd).values()
    return frozenset(frozenset([op.source, op.target]) for op in every if op.source != op.target)


def _bytes(value: SpmdValue, sizes: Mapping[str, int]) -> float:
    return math.prod(sizes[dim] for dim in value.dims) * value.dtype.bits / 8


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


def attentions(spmd: SpmdProgram) -> tuple[Attention, ...]:
    """The attentions of a program that run in blocks, in order."""
    return tuple(one for region in _looked(spmd) for one in region.large() if not region.late(one))


def waiting(spmd: SpmdProgram) -> dict[str, frozenset[str]]:
    """The attentions that would run in blocks if what they read were there where their maximum is made: what is not, by
    that maximum."""
    every = ((one, region.late(one)) for region in _looked(spmd) for one in region.large())
    return {one.largest.result: late for one, late in every if late}


def perhaps(spmd: SpmdProgram) -> tuple[Attention, ...]:
    """The attentions of an unsharded program that may run in blocks once it is sharded, if what they read is there."""
    return tuple(one for region in _looked(spmd) for one in region.large())


def _looked(spmd: SpmdProgram) -> Iterator[_Region]:
    unstored = scores(spmd)
    if not unstored:
        return
    values, sizes = spmd.table(), dict(spmd.sizes)
    queries = {op.target: op.source for op in appends(spmd).values() if op.source != op.target}
    for region, _ in regions(spmd.body):
        yield _Region(region, spmd, values, sizes, unstored, queries)


def block_places(queries: int, context: int, others: int, bits: int) -> tuple[int, int]:
    """How many queries and places of the context a block has, of as many as a chip has: as many as suit `others`, the
    sizes of all its other dims multiplied, and scores of so many bits."""
    room = BLOCK_BYTES * 8 // (bits * others)
    width = CONTEXT_BLOCK
    while width > LEAST_BLOCK and width > room:
        width //= 2
    return min(1 << max((room // width).bit_length() - 1, 0), queries), min(width, context)


def places_at_a_time(one: Attention, spmd: SpmdProgram) -> dict[str, int]:
    """How many places an attention takes at a time, of each dim along which it runs in blocks."""
    masked = spmd.table()[one.masked]
    local = local_sizes(masked, spmd)
    context, queries = local[one.context], local[one.query] if one.query else 1
    others = math.prod(local.values()) // (context * queries)
    height, width = block_places(queries, context, others, masked.dtype.bits)
    return ({one.query: height} if one.query else {}) | {one.context: width}


@dataclass(frozen=True)
class Block:
    """What an attention has of its scores at a time. `places`: how many of each dim along which it runs in blocks;
    `bytes`: of a block on a chip, as it is made and as it is multiplied; `whole_bytes`: of all scores, likewise."""

    attention: Attention
    places: tuple[tuple[str, int], ...]
    bytes: Fraction
    whole_bytes: Fraction

    @property
    def name(self) -> str:
        """What the scores are called."""
        return self.attention.shares


def blocks_of(spmd: SpmdProgram) -> tuple[Block, ...]:
    """The attentions of a program that run in blocks, in order, with their blocks."""
    values, out = spmd.table(), []
    for one in attentions(spmd):
        local = local_sizes(values[one.masked], spmd)
        places = tuple(places_at_a_time(one, spmd).items())
        whole = math.prod(local.values()) * (values[one.masked].dtype.bits + values[one.shares].dtype.bits)
        share = math.prod((Fraction(size, local[dim]) for dim, size in places), start=Fraction(1))
        out.append(Block(one, places, Fraction(whole, 8) * share, Fraction(whole, 8)))
    return tuple(out)


def local_sizes(value: SpmdValue, spmd: SpmdProgram) -> dict[str, int]:
    """How much of each dim of a value a chip has."""
    sizes = dict(spmd.sizes)
    return dict(zip(value.dims, value.layout.local_shape([sizes[d] for d in value.dims], spmd.mesh), strict=True))


@dataclass(frozen=True)
class _Region:
    """A region in which attentions are looked for. `queries`: by the dim of each context that of its new tokens."""

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

    def large(self) -> Iterator[Attention]:
        """Those that run in blocks, if what they read is there in time."""
        for op in self.ops.values():
            if isinstance(op, Reduce) and op.operand in self.unstored and len(op.over) == 1:
                found = self.attention(op)
                if found is not None and self.is_large(found):
                    yield found

    def is_large(self, one: Attention) -> bool:
        """Whether some of its scores would take much."""
        every = [self.values[name] for name in one.unmade]
        most = max(math.prod(local_sizes(value, self.spmd).values()) * value.dtype.bits for value in every)
        return most > WHOLE_BYTES * 8

    def late(self, one: Attention) -> frozenset[str]:
        """What of all that it reads is not there yet where its maximum is made."""
        now = self.place[one.largest.result]
        return frozenset(name for name in one.reads if self.place.get(name, -1) > now)

    def attention(self, largest: Reduce) -> Attention | None:
        """The attention that has this maximum, however large it is; None where there is none."""
        masked, (context,) = largest.operand, largest.over
        exps = [op for op in self.readers[masked] if isinstance(op, Map) and (top_of(op.expr, masked))]
        if len(exps) != 1 or self.sizes[context] == 1:
            return None
        exp = exps[0]
        top, among = top_of(exp.expr, masked) or ("", None)
        after = frozenset([largest.result, exp.result])
        made = self.made(masked, context, after)
        sums = [
            op for op in self.readers.get(exp.result, ()) if isinstance(op, Einsum) and op.operands == (exp.result,)
        ]
        shares = [op for op in self.readers.get(exp.result, ()) if isinstance(op, Map)]
        if made is None or len(sums) != 1 or len(shares) != 1 or len(self.readers[exp.result]) != 2:
            return None
        scores_, parts, query = made
        total = total_of(shares[0].expr, exp.result)
        if total is None or (among and not any(_is_masked(op, among) for op in scores_)):
            return None
        products = self.readers.get(shares[0].result, ())
        if len(products) != 1 or not isinstance(products[0], Einsum):
            return None
        product = products[0]
        found = Attention(
            scores_,
            masked,
            largest,
            top,
            exp.result,
            sums[0],
            total,
            shares[0].result,
            product,
            next((name for name in product.operands if name != shares[0].result), ""),
            query,
            context,
            parts,
        )
        return found if self.is_sound(found) else None

    def is_sound(self, one: Attention) -> bool:
        """Whether rows, sums and the product are as a running softmax has them."""
        v = self.values
        dims, product = v[one.masked].dims, one.product
        rows = tuple(d for d in dims if d != one.context)
        if any(v[name].chosen for name in (*one.unmade, product.result)):
            return False
        if any(name not in self.ops for name in (*one.unmade, one.largest.result, one.sum.result, product.result)):
            return False
        if {v[name].dims for name in (one.masked, one.exps, one.shares)} != {dims}:
            return False
        if {v[name].dims for name in (one.largest.result, one.sum.result, one.top, one.total)} != {rows}:
            return False
        if any(v[name].dtype is not Dtype.F32 for name in (one.largest.result, one.sum.result)):
            return False
        if len(product.operands) != 2 or product.operands.count(one.shares) != 1:
            return False
        own = product.operands.index(one.shares)
        weights, held = product.indices[own], product.indices[1 - own]
        alike = weights == dims and set(rows) <= set(product.output) and one.context in held
        return alike and one.sum.indices == (dims,) and one.query not in held and len(set(held)) == len(held)

    def made(
        self, masked: str, context: str, after: frozenset[str]
    ) -> tuple[tuple[Op, ...], tuple[Part, ...], str | None] | None:
        """The ops that make scores out of what is no score, in order; what they are made of; the dim of queries."""
        query = self.queries.get(context)
        if query is not None and (self.sizes[query] == 1 or query not in self.values[masked].dims):
            query = None
        blocked = [dim for dim in (context, query) if dim]
        left: set[str] = set()  # scores that stay whole, since others read them
        while True:
            made = self.closure(masked, blocked, left)
            if masked not in made:
                return None
            allowed = {*made, *after}
            outside = {n for n in made if any(op.result not in allowed for op in self.readers[n])}
            if any(op.result in after for n in made - {masked} for op in self.readers[n]) or masked in outside:
                return None
            if not outside:
                break
            left |= outside
        ops = tuple(op for name, op in self.ops.items() if name in made)
        parts = self.parts(ops, made, blocked)
        return None if parts is None else (ops, parts, query)

    def closure(self, masked: str, blocked: list[str], left: set[str]) -> set[str]:
        """A score and all scores that it is made of, as far as blocks of them can be made alone."""
        found, waiting = set[str](), [masked]
        while waiting:
            name = waiting.pop()
            op = self.ops.get(name)
            if name in found or name in left or op is None or name not in self.unstored:
                continue
            if self.in_blocks(op, blocked):
                found.add(name)
                waiting += operand_names(op)
        return found

    def in_blocks(self, op: Op, blocked: list[str]) -> bool:
        """Whether a block of what an op makes comes of blocks of what it reads."""
        value = self.values[op.result]
        if not isinstance(op, Einsum | Map | Sum) or not set(blocked) <= set(value.dims):
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


def _unless(name: str, special: float, instead: float) -> Expr:
    """A value, and where it is `special` another number."""
    own = Operand(name)
    return Call("where", (Call("equal", (own, Const(special))), Const(instead), own))


def top_of(expr: Expr, masked: str) -> tuple[str, str | None] | None:
    """What is taken from scores in exp(score - it), and the mask that this is multiplied by; None for other maps."""
    match expr:
        case Call("multiply", (Operand(among), Call("exp") as power)):
            found = top_of(power, masked)
            return found and (found[0], among)
        case Call("exp", (Call("subtract", (Operand(name), Call("where", (_, _, Operand(top))) as shift)),)):
            return (top, None) if name == masked and shift == _unless(top, -float("inf"), 0.0) else None
    return None


def total_of(expr: Expr, exps: str) -> str | None:
    """What exps are divided by, None for other maps."""
    match expr:
        case Call("divide", (Operand(name), Call("where", (_, _, Operand(total))) as below)):
            return total if name == exps and below == _unless(total, 0.0, 1.0) else None
    return None


def _is_masked(op: Op, among: str) -> bool:
    """Whether a score is minus infinity wherever a mask has 0."""

    def within(expr: Expr) -> bool:
        match expr:
            case Call("where", (condition, then, Const(other))) if other == -float("inf"):
                return condition == Operand(among) or within(then)
        return False

    return isinstance(op, Map) and within(op.expr)
