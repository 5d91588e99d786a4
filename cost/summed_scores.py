"""Scores that are summed over heads a block at a time, as those by which an indexer chooses what attention sees.

A product that sums scores over some of their other dims leaves one number, or few, for each pair of a query and a key.
It runs in blocks if what it sums is pointwise made of products, nothing else reads that or sends it, and the largest of
it takes more than WHOLE_BYTES on a chip: of a block of queries and of the context all heads are made and summed before
the next. What it makes of them is made whole.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

from ..ir.program import Einsum, Op, operand_names, walk
from ..ir.record import record
from ..ir.spmd import Compute, SpmdProgram
from .scores import Part, Scores, behind, chosen_along, large_scores, looked


@record
class SummedScores:
    """Scores that are summed in blocks. `scores`: the ops that make a block of what is summed, in order; `sum`: that
    sums it; `widest`: the one of the scores of which most would lie on a chip. `query`, `context`: the dims along which
    it runs in blocks, no `query` where a chip has one; `parts`: what blocks are made of."""

    scores: tuple[Op, ...]
    sum: Einsum
    widest: str
    query: str | None
    context: str
    parts: tuple[Part, ...]

    @property
    def unmade(self) -> frozenset[str]:
        """The values that never exist whole."""
        return frozenset(op.result for op in self.scores)

    @property
    def ends(self) -> tuple[str, ...]:
        """What is left of the scores: what the op makes that reads them last."""
        return (self.sum.result,)

    @property
    def reads(self) -> frozenset[str]:
        """What it reads where it runs, which is where the sum stands."""
        return frozenset(name for op in (*self.scores, self.sum) for name in operand_names(op)) - self.unmade


def summed_scores(spmd: SpmdProgram) -> tuple[SummedScores, ...]:
    """The sums of scores of a program that run in blocks, in order. Some may stand in an attention that does."""
    return tuple(one for scores in looked(spmd) for one in _outermost([*_sums(scores)]) if scores.are_large(one.unmade))


def perhaps_unmade(spmd: SpmdProgram) -> frozenset[str]:
    """Of an unsharded program the scores that may be summed in blocks once it is sharded."""
    among = large_scores(spmd)
    ops = {step.item.op.result: step.item.op for step in walk(spmd.body) if isinstance(step.item, Compute)}
    sums = (op for op in ops.values() if isinstance(op, Einsum) and sums_some(op, among))
    return behind([name for op in sums for name in op.operands], among, ops)


def sums_some(op: Einsum, among: Container[str]) -> bool:
    """Whether a product sums some of the values `among` over a dim."""
    return any(name in among and {*own} - {*op.output} for name, own in zip(op.operands, op.indices, strict=True))


def _outermost(found: Sequence[SummedScores]) -> Iterator[SummedScores]:
    """Those that are no part of another."""
    inner = {name for one in found for name in one.unmade}
    return (one for one in found if one.sum.result not in inner)


def _sums(scores: Scores) -> Iterator[SummedScores]:
    """All sums of scores, however large these are."""
    for op in scores.ops.values():
        if isinstance(op, Einsum) and sums_some(op, scores.unstored):
            dims = {*scores.values[op.result].dims}
            for context in (c for c, query in scores.queries.items() if {c, query} <= dims and scores.sizes[c] > 1):
                made = scores.made(op.result, context, None)
                unmade = [one.result for one in made.ops if one is not op] if made else []
                if made and unmade and all(chosen_along(scores.values[n], [context]) for n in (*unmade, op.result)):
                    widest = max(unmade, key=scores.bits)
                    before = tuple(one for one in made.ops if one is not op)
                    yield SummedScores(before, op, widest, made.query, context, made.parts)
                    break
