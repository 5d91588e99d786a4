"""Blocks of scores: what of a program never exists whole, and how much of it does at a time."""

from __future__ import annotations

import math
from fractions import Fraction

from ..ir.record import record
from ..ir.spmd import SpmdProgram
from . import attention, summed_scores
from .attention import Attention, attentions
from .scores import block_places, local_sizes, scores
from .summed_scores import SummedScores

InBlocks = Attention | SummedScores


def in_blocks(spmd: SpmdProgram) -> tuple[InBlocks, ...]:
    """What of a program runs in blocks: its attentions in order, then the sums of scores that stand in none of them."""
    return _with_sums(attentions(spmd), spmd)


def perhaps(spmd: SpmdProgram) -> tuple[InBlocks, ...]:
    """What of an unsharded program may run in blocks once it is sharded, as `in_blocks` has it."""
    return _with_sums(attention.perhaps(spmd), spmd)


def _with_sums(found: tuple[Attention, ...], spmd: SpmdProgram) -> tuple[InBlocks, ...]:
    inner = {name for one in found for name in one.unmade}
    return (*found, *(one for one in summed_scores.summed_scores(spmd) if one.sum.result not in inner))


def whole_scores(spmd: SpmdProgram) -> frozenset[str]:
    """Of an unsharded program the scores of softmaxes and of sums of scores that are none which may run in blocks, as
    those that something else reads as well."""
    unmade = {name for one in perhaps(spmd) for name in one.unmade}
    return (perhaps_in_blocks(spmd) & scores(spmd)) - unmade


def perhaps_in_blocks(spmd: SpmdProgram) -> frozenset[str]:
    """Of an unsharded program the scores that may be made in blocks once it is sharded, with the maxima and sums of
    softmaxes, which then come together."""
    return attention.perhaps_unmade(spmd) | summed_scores.perhaps_unmade(spmd)


@record
class Block:
    """What there is of scores at a time. `places`: how many of each dim along which they are in blocks; `bytes`: of a
    block on a chip, as it is made and as it is multiplied; `whole_bytes`: of all scores, likewise."""

    of: InBlocks
    places: tuple[tuple[str, int], ...]
    bytes: Fraction
    whole_bytes: Fraction

    @property
    def name(self) -> str:
        """What the scores are called: shares of attention, and sums by what they give."""
        return self.of.shares if isinstance(self.of, Attention) else self.of.sum.result

    @property
    def step(self) -> str:
        """Where it runs: the value that its first step makes."""
        return self.of.largest.result if isinstance(self.of, Attention) else self.of.sum.result


def cut(one: InBlocks) -> str:
    """The score by which the blocks are cut."""
    return one.masked if isinstance(one, Attention) else one.widest


def places_at_a_time(one: InBlocks, spmd: SpmdProgram) -> dict[str, int]:
    """How many places blocks have, of each dim along which they are."""
    value = spmd.table()[cut(one)]
    local = local_sizes(value, spmd)
    context, queries = local[one.context], local[one.query] if one.query else 1
    others = math.prod(local.values()) // (context * queries)
    height, width = block_places(queries, context, others, value.dtype.bits)
    return ({one.query: height} if one.query else {}) | {one.context: width}


def blocks_of(spmd: SpmdProgram) -> tuple[Block, ...]:
    """What of a program runs in blocks, with these."""
    values, out = spmd.table(), []
    for one in in_blocks(spmd):
        made = values[cut(one)]
        used = values[one.shares] if isinstance(one, Attention) else made
        local = local_sizes(made, spmd)
        places = tuple(places_at_a_time(one, spmd).items())
        whole = math.prod(local.values()) * (made.dtype.bits + used.dtype.bits)
        share = math.prod((Fraction(size, local[dim]) for dim, size in places), start=Fraction(1))
        out.append(Block(one, places, Fraction(whole, 8) * share, Fraction(whole, 8)))
    return tuple(out)
