"""Which entries of chosen values are kept in a run: as its numbers say, or evenly."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np

from ...ir.chosen import Chosen
from ...ir.record import record
from .pointwise import Array


def even_mask(dims: Sequence[str], sizes: Mapping[str, int], over: Sequence[str], keep: int) -> Array:
    """A mask of dims `dims` that keeps every entry over `over` as often as any other, where the numbers allow that.

    What one element keeps are neighbours, and the next one keeps those behind; so the elements of each block of
    `entries / keep` along a dim keep all once, and of blocks of `keep` entries as few as can be.
    """
    per = [d for d in dims if d not in over]
    entries = math.prod(sizes[d] for d in over)
    first = np.zeros([sizes[d] for d in per], dtype=np.int64)
    for place in np.indices(first.shape):
        first = first + place
    mask = np.zeros((*first.shape, entries))
    np.put_along_axis(mask, (first[..., None] * keep + np.arange(keep)) % entries, 1.0, axis=-1)
    named = [*per, *over]
    return mask.reshape([sizes[d] for d in named]).transpose([named.index(d) for d in dims])


@record
class Mask:
    """A mask of a run: how it is chosen, its dims, and its numbers."""

    chosen: Chosen
    dims: tuple[str, ...]
    kept: Array


def kept_entries(dims: Sequence[str], chosen: Sequence[Chosen], masks: Mapping[str, Mask]) -> Array:
    """1 where a value of dims `dims` keeps its entries, 0 elsewhere; of length 1 along dims that no mask has."""
    found = np.ones([1] * len(dims))
    for one in chosen:
        mask = masks[one.mask]
        # A value may call the dims of the mask otherwise; those chosen and the others come in the same order.
        own, called = ([*c.per, *c.over] for c in (mask.chosen, one))
        kept = mask.kept.transpose([mask.dims.index(d) for d in own])
        kept = kept.max(axis=tuple(len(one.per) + place for place, _ in one.merged))
        kept = kept.transpose([called.index(d) for d in dims if d in called])
        found = found * kept.reshape(_lengths(dims, called, kept))
    return found


def even_share(one: Chosen, whole: Chosen, sizes: Mapping[str, int]) -> Fraction:
    """The share of the entries that is kept of a value that is chosen as `one` by the mask `whole`, where that is
    even: what few elements keep of blocks of entries is not what is expected of many."""
    elements = max(1, math.prod(sizes[d] for d in whole.over) // whole.keep)
    mask = even_mask(("", *whole.over), {**sizes, "": elements}, whole.over, whole.keep)
    kept = mask.max(axis=tuple(1 + place for place, _ in one.merged))
    return Fraction(int(kept.sum()), kept.size)


def _lengths(dims: Sequence[str], called: Sequence[str], kept: Array) -> list[int]:
    """The length of each dim of a value in `kept`, which has those that are `called`; 1 of the others."""
    lengths = iter(kept.shape)
    return [next(lengths) if dim in called else 1 for dim in dims]
