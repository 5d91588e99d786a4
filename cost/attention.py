"""Attention in blocks: which attentions make and use their scores a block at a time.

Where a chip would hold many scores (cost.scores), an emitted module never has all of them: it goes over blocks of
queries, and for each over blocks of the context, with a running maximum and a running sum
(Milakov and Gimelshein 2018, "Online normalizer calculation for softmax", algorithm 3; Dao et al. 2022,
"FlashAttention", section 3.1). What a chip then has is the share of its part of the context: its maximum, its sum, and
its weighted values, which the collectives that are there complete as ever.

Runs in blocks what is written as a softmax between two products, if what stands between the first and the maximum is
pointwise, nothing else reads the scores, none of them is sent, or chosen but along the context, as sparse attention
chooses, and the largest of them takes more than WHOLE_BYTES on a chip. The second product may have scales beside its
values, as caches of bytes have, and weigh what comes of these, as a gate does. Everything else stays as it is written,
scores whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..ir.dtype import Dtype
from ..ir.expr import Call, Const, Expr, Operand
from ..ir.program import Einsum, Map, Op, Reduce, operand_names, walk
from ..ir.record import record
from ..ir.spmd import Compute, SpmdProgram
from .scores import Part, Scores, behind, chosen_along, large_scores, looked


@record
class Attention:
    """An attention that runs in blocks.

    `scores`: the ops that make a block of scores, in order, and the name of the last, `masked`. `exps`: exp(score -
    maximum); `shares`: that by the sum. `largest`: the maximum of a chip's scores; `top` what is taken from scores;
    `sum`: of exps, and `total` what they are divided by. `product`: shares times `values`. `scales`: what else it
    multiplies values by, as they are stored, a block at a time; `factors`: what it multiplies the sums by, such as a
    gate of each query. `query`, `context`: the dims along which it runs in blocks, no `query` where a chip has one;
    `parts`: what the scores are made of.
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
    scales: tuple[str, ...]
    factors: tuple[str, ...]
    query: str | None
    context: str
    parts: tuple[Part, ...]

    @property
    def unmade(self) -> frozenset[str]:
        """The values that never exist whole."""
        return frozenset([*(op.result for op in self.scores), self.exps, self.shares])

    @property
    def ends(self) -> tuple[str, ...]:
        """What is left of the scores: what the ops make that read them last."""
        return self.largest.result, self.sum.result, self.product.result

    @property
    def reads(self) -> frozenset[str]:
        """What it reads where it runs, which is where its maximum stands."""
        made = {op.result for op in self.scores}
        return frozenset(name for op in self.scores for name in operand_names(op)) - made | {self.values, *self.scales}

    def indices(self, name: str) -> tuple[str, ...]:
        """Those that the product has for something that it reads."""
        return self.product.indices[self.product.operands.index(name)]

    @property
    def rescaled(self) -> bool:
        """Whether a chip's own sum and product are brought to another maximum or sum than its own."""
        return self.top != self.largest.result or self.total != self.sum.result


def perhaps_unmade(spmd: SpmdProgram) -> frozenset[str]:
    """Of an unsharded program the scores of softmaxes that may run in blocks once it is sharded, with their maxima and
    sums, which then come together."""
    among = large_scores(spmd)
    ops = {step.item.op.result: step.item.op for step in walk(spmd.body) if isinstance(step.item, Compute)}
    maps = [(op.result, name, op.expr) for op in ops.values() if isinstance(op, Map) for name in operand_names(op)]
    found: set[str] = set()
    rows: set[str] = set()
    for exps, masked, expr in maps:
        if among >= {exps, masked} and top_of(expr, masked):
            found |= {exps, *(shares for shares, name, other in maps if name == exps and total_of(other, exps))}
            rows |= {op.result for op in ops.values() if isinstance(op, Reduce) and op.operand == masked}
            rows |= {op.result for op in ops.values() if isinstance(op, Einsum) and op.operands == (exps,)}
            found |= behind([masked], among, ops)
    return frozenset(found & among | rows)


def attentions(spmd: SpmdProgram) -> tuple[Attention, ...]:
    """The attentions of a program that run in blocks, in order."""
    return tuple(one for finder in _finders(spmd) for one in finder.large() if not finder.late(one))


def waiting(spmd: SpmdProgram) -> dict[str, frozenset[str]]:
    """The attentions that would run in blocks if what they read were there where their maximum is made: what is not, by
    that maximum."""
    every = ((one, finder.late(one)) for finder in _finders(spmd) for one in finder.large())
    return {one.largest.result: late for one, late in every if late}


def perhaps(spmd: SpmdProgram) -> tuple[Attention, ...]:
    """The attentions of an unsharded program that may run in blocks once it is sharded, if what they read is there."""
    return tuple(one for finder in _finders(spmd) for one in finder.large())


def _finders(spmd: SpmdProgram) -> Iterator[_Finder]:
    return map(_Finder, looked(spmd))


@record
class _Finder:
    """The scores of a region in which attentions are looked for."""

    scores: Scores

    def large(self) -> Iterator[Attention]:
        """Those that run in blocks, if what they read is there in time."""
        for op in self.scores.ops.values():
            if isinstance(op, Reduce) and op.operand in self.scores.unstored and len(op.over) == 1:
                found = self.attention(op)
                if found is not None and self.scores.are_large(found.unmade):
                    yield found

    def late(self, one: Attention) -> frozenset[str]:
        """What of all that it reads is not there yet where its maximum is made."""
        place = self.scores.place
        return frozenset(name for name in one.reads if place.get(name, -1) > place[one.largest.result])

    def attention(self, largest: Reduce) -> Attention | None:
        """The attention that has this maximum, however large it is; None where there is none."""
        masked, (context,) = largest.operand, largest.over
        readers = self.scores.readers
        exps = [op for op in readers[masked] if isinstance(op, Map) and (top_of(op.expr, masked))]
        if len(exps) != 1 or self.scores.sizes[context] == 1:
            return None
        exp = exps[0]
        top, among = top_of(exp.expr, masked) or ("", None)
        after = frozenset([largest.result, exp.result])
        made = self.scores.made(masked, context, after)
        sums = [op for op in readers.get(exp.result, ()) if isinstance(op, Einsum) and op.operands == (exp.result,)]
        shares = [op for op in readers.get(exp.result, ()) if isinstance(op, Map)]
        if made is None or len(sums) != 1 or len(shares) != 1 or len(readers[exp.result]) != 2:
            return None
        total = total_of(shares[0].expr, exp.result)
        if total is None or (among and not any(_is_masked(op, among) for op in made.ops)):
            return None
        products = readers.get(shares[0].result, ())
        if len(products) != 1 or not isinstance(products[0], Einsum):
            return None
        product = products[0]
        weighed = self.weighed(product, shares[0].result, context)
        if weighed is None:
            return None
        found = Attention(
            made.ops,
            masked,
            largest,
            top,
            exp.result,
            sums[0],
            total,
            shares[0].result,
            product,
            *weighed,
            made.query,
            context,
            made.parts,
        )
        return found if self.is_sound(found) else None

    def weighed(
        self, product: Einsum, shares: str, context: str
    ) -> tuple[str, tuple[str, ...], tuple[str, ...]] | None:
        """The values that shares weigh in a product, their scales, and its factors; None where it reads something else,
        as what it sums beside the values."""
        dims, sizes = {name: self.scores.values[name].dims for name in product.operands}, self.scores.sizes
        indices = dict(zip(product.operands, product.indices, strict=True))
        others = [name for name in product.operands if name != shares]
        along = [name for name in others if context in indices[name]]
        if len(indices) < len(product.operands) or not along:
            return None
        if any(len({*indices[name]}) < len(indices[name]) for name in others):
            return None
        values = max(along, key=lambda name: math.prod(sizes[dim] for dim in dims[name]))
        scales = tuple(n for n in others if n != values and {*indices[n]} <= {*indices[values]})
        factors = tuple(n for n in others if n != values and n not in scales)
        if any(context not in dims[n] for n in (values, *scales) if context in indices[n]):
            return None  # which have groups of places of it
        made = {*product.output} & {*indices[shares], *indices[values]}
        pairs = [pair for n in factors for pair in zip(indices[n], dims[n], strict=True)]
        whole = all(index in made and sizes[index] == sizes[dim] for index, dim in pairs)
        plain = all(product.operands[at] not in factors for pair in product.zeros for at in pair)
        return (values, scales, factors) if whole and plain else None

    def is_sound(self, one: Attention) -> bool:
        """Whether rows, sums and the product are as a running softmax has them."""
        v, ops = self.scores.values, self.scores.ops
        dims, product = v[one.masked].dims, one.product
        rows = tuple(d for d in dims if d != one.context)
        if v[product.result].chosen or not all(chosen_along(v[name], [one.context]) for name in one.unmade):
            return False
        if any(name not in ops for name in (*one.unmade, one.largest.result, one.sum.result, product.result)):
            return False
        if {v[name].dims for name in (one.masked, one.exps, one.shares)} != {dims}:
            return False
        if {v[name].dims for name in (one.largest.result, one.sum.result, one.top, one.total)} != {rows}:
            return False
        if any(v[name].dtype is not Dtype.F32 for name in (one.largest.result, one.sum.result)):
            return False
        weights, held = one.indices(one.shares), one.indices(one.values)
        alike = weights == dims and {*rows} <= {*product.output} and one.context not in product.output
        return alike and one.sum.indices == (dims,) and one.query not in held


def _unless(name: str, special: float, instead: float) -> Expr:
    """A value, and where it is `special` another number."""
    own = Operand(name)
    return Call("where", (Call("equal", (own, Const(special))), Const(instead), own))


def top_of(expr: Expr, masked: str) -> tuple[str, str | None] | None:
    """What is taken from scores in exp(score - it), and the mask of what is kept of it; None for other maps."""
    match expr:
        case Call("where", (Operand(among), Call("exp") as power, Const(0))):
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
