"""What an emitted JAX file carries for values of which a mask keeps few entries: they are held as rows, sent in boxes.

Never imported by the compiler, which copies from it as from `jax_runtime.py`. A row stands for one entry that a mask
keeps, a token at one of its experts; rows are sorted by expert, then token. The dims of a mask are those of its tokens
and then those of its experts; the first `per` are of tokens. Each is cut into blocks, and a box holds the rows of one
block along every dim, so many at most. Places that stand for nothing lie beyond the end of all that they point into.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax


class Routing(NamedTuple):
    """Which rows a chip holds. `kept`: the entries of each block that the mask keeps, [*blocks, entries]; `within`: how
    long a block is along each dim; `rows`: how many a box has room for; `keep`: how many each token keeps at most.

    `places`: of each row its place along each dim; `slot`: its place among those of all boxes; `box`: which row stands
    at each of these, [*blocks, rows]; `sizes`: how many rows each expert has.
    """

    kept: jax.Array
    within: tuple[int, ...]
    per: int
    rows: int
    keep: int
    places: tuple[jax.Array, ...]
    slot: jax.Array
    box: jax.Array
    sizes: jax.Array


def room(within: Sequence[int], per: int, keep: int, share: float) -> int:
    """The rows of a box: a `share` of its entries, or as many as there can be where each token keeps `keep`."""
    tokens, experts = math.prod(within[:per]), math.prod(within[per:])
    most, asked = tokens * min(keep, experts), tokens * experts * share
    return most if asked >= most else math.ceil(asked - 1e-6)


def in_blocks(mask: jax.Array, blocks: Sequence[int], per: int) -> jax.Array:
    """Entries of a mask as [*blocks, entries of a block], of a block those of its first expert first."""
    split = mask.reshape([n for size, ways in zip(mask.shape, blocks, strict=True) for n in (ways, size // ways)])
    order = [*range(per, len(blocks)), *range(per)]
    return split.transpose(*range(0, split.ndim, 2), *(2 * i + 1 for i in order)).reshape(*blocks, -1)


def by_expert(a: jax.Array, within: Sequence[int], per: int) -> jax.Array:
    """What `in_blocks` cut, whole: dims of experts, then those of tokens."""
    blocks, order = a.shape[:-1], [*range(per, len(within)), *range(per)]
    split = a.reshape(*blocks, *(within[i] for i in order))
    split = split.transpose([n for at, i in enumerate(order) for n in (i, len(blocks) + at)])
    return split.reshape([blocks[i] * within[i] for i in order])


def routing(mask: jax.Array, per: int, blocks: Sequence[int], keep: int, share: float) -> Routing:
    """The rows of a mask that is on this chip, cut into `blocks`; it keeps `keep` for each token, and boxes
    have room for a `share` of their entries."""
    within = tuple(size // ways for size, ways in zip(mask.shape, blocks, strict=True))
    return rows_of(in_blocks(mask != 0, blocks, per), within, per, room(within, per, keep, share), keep)


def rows_of(kept: jax.Array, within: tuple[int, ...], per: int, rows: int, keep: int) -> Routing:
    """The rows of a mask that is given by blocks."""
    blocks = kept.shape[:-1]
    number = jnp.arange(math.prod(blocks)).reshape(*blocks, 1)
    slots = by_expert(number * rows + jnp.cumsum(kept, axis=-1) - 1, within, per)
    mask = by_expert(kept, within, per)
    tokens, experts = math.prod(mask.shape[mask.ndim - per :]), mask.shape[: mask.ndim - per]
    places, held = number.size * rows, min(number.size * rows, tokens * min(keep, math.prod(experts)))
    (entry,) = jnp.nonzero(mask.ravel(), size=held, fill_value=mask.size)
    real = entry < mask.size
    found = [jnp.where(real, i, n) for i, n in zip(jnp.unravel_index(entry, mask.shape), mask.shape, strict=True)]
    slot = jnp.where(real, slots.ravel()[entry % mask.size], places)
    box = jnp.full(places, held).at[slot].set(jnp.arange(held), mode="drop").reshape(*blocks, rows)
    sizes = mask.reshape(*experts, -1).sum(-1, dtype=jnp.int32)
    return Routing(kept, within, per, rows, keep, (*found[len(experts) :], *found[: len(experts)]), slot, box, sizes)


def bits(at: Routing) -> jax.Array:
    """What other chips must know of a routing, [*blocks, bytes]."""
    return jnp.packbits(at.kept, axis=-1)


def mask_of(at: Routing, dtype: Any) -> jax.Array:
    """The mask of which the rows are."""
    mask = by_expert(at.kept, at.within, at.per).astype(dtype)
    return mask.transpose(*range(mask.ndim - at.per, mask.ndim), *range(mask.ndim - at.per))


def arrived(sent: jax.Array, before: Routing) -> Routing:
    """The routing of rows that came with the `bits` of `before`."""
    kept = jnp.unpackbits(sent, axis=-1, count=before.kept.shape[-1]) != 0
    return rows_of(kept, before.within, before.per, before.rows, before.keep)


def limited(
    mask: jax.Array, per: int, blocks: Sequence[int], keep: int, share: float, copies: Sequence[str]
) -> tuple[jax.Array, jax.Array]:
    """A mask without the entries for which its boxes have no room; how many these were, and of how many tokens.

    They are counted on the first of the chips that have the same, along `copies`.
    """
    within = tuple(size // ways for size, ways in zip(mask.shape, blocks, strict=True))
    kept = in_blocks(mask != 0, blocks, per)
    fits = kept & (jnp.cumsum(kept, axis=-1) <= room(within, per, keep, share))
    stays = by_expert(fits, within, per).transpose(*range(mask.ndim - per, mask.ndim), *range(mask.ndim - per))
    gone = ((mask != 0) & ~stays).reshape(*mask.shape[:per], -1)
    lost = jnp.stack([gone.sum(dtype=jnp.int32), gone.any(-1).sum(dtype=jnp.int32)])
    return jnp.where(stays, mask, 0), jnp.where(lax.axis_index(copies) == 0, lost, 0) if copies else lost


def picked(a: jax.Array, at: Routing, dims: Sequence[int]) -> jax.Array:
    """The rows of `a`, whose first dims are these of the mask."""
    return a.at[tuple(at.places[d] for d in dims)].get(mode="fill", fill_value=0)


def zeros_after(a: jax.Array, shape: Sequence[int]) -> jax.Array:
    """Zeros that wait for `a`, of which no number is above infinity: those that wait for nothing the compiler of GPUs
    makes for all layers at once, and holds until they are added to."""
    return jnp.broadcast_to((a.ravel()[0].astype(jnp.float32) > jnp.inf).astype(a.dtype), shape)


def summed(a: jax.Array, at: Routing, dims: Sequence[int]) -> jax.Array:
    """The sums of rows that stand at one place along these dims of the mask, which come first."""
    shape = [at.kept.shape[d] * at.within[d] for d in dims]
    wide = a.astype(jnp.float32 if jnp.issubdtype(a.dtype, jnp.floating) else a.dtype)
    if not dims:
        real = (at.slot < at.box.size).reshape(-1, *(1 for _ in a.shape[1:]))
        return jnp.where(real, wide, 0).sum(0, dtype=wide.dtype).astype(a.dtype)
    total = zeros_after(wide, (*shape, *a.shape[1:]))
    return total.at[tuple(at.places[d] for d in dims)].add(wide, mode="drop").astype(a.dtype)


def numbers(at: Routing) -> jax.Array:
    """Which row stands at each entry, beyond the end where none does: of the shape of the mask."""
    sizes = [ways * within for ways, within in zip(at.kept.shape, at.within, strict=False)]
    return jnp.full(sizes, at.slot.size).at[at.places].set(jnp.arange(at.slot.size), mode="drop")


def of_blocks(a: jax.Array, blocks: Routing, at: Routing, dims: Sequence[int]) -> jax.Array:
    """For each row the one of its block: `a` has a row for each block of entries, along these dims of the mask."""
    row = numbers(blocks).at[tuple(at.places[d] for d in dims)].get(mode="fill", fill_value=a.shape[0])
    return a.at[row].get(mode="fill", fill_value=0)


def block_sums(a: jax.Array, at: Routing, blocks: Routing, dims: Sequence[int]) -> jax.Array:
    """The sums of the rows of each block of entries, which stands along these dims of the mask, as rows of blocks."""
    wide = a.astype(jnp.float32 if jnp.issubdtype(a.dtype, jnp.floating) else a.dtype)
    total = zeros_after(wide, (blocks.slot.size, *a.shape[1:]))
    row = numbers(blocks).at[tuple(at.places[d] for d in dims)].get(mode="fill", fill_value=total.shape[0])
    return total.at[row].add(wide, mode="drop").astype(a.dtype)


def expert_dot(a: jax.Array, weights: jax.Array, at: Routing, dtype: Any, stack: Any = ()) -> jax.Array:
    """Rows times the matrix of their expert: [rows, *terms] and [*experts, *terms, *columns] give [rows, *columns].

    `stack`: the weights of all layers, and which of these they are. A ragged product reads them there, where it would
    read a copy of one layer's; it passes by the experts of others, which have no rows.
    """
    columns, terms = weights.shape[at.sizes.ndim + a.ndim - 1 :], math.prod(a.shape[1:])
    wide = jnp.promote_types(a.dtype, weights.dtype)
    left, right = a.reshape(-1, terms).astype(wide), weights.reshape(at.sizes.size, terms, -1).astype(wide)
    ends = jnp.cumsum(at.sizes.ravel())
    starts = ends - at.sizes.ravel()
    if len(right) == 1:  # of one expert all rows are, and a plain product reads its matrix where it lies
        product = jnp.dot(left, right[0], preferred_element_type=dtype)
    elif len(left) <= (256 if stack else 512):  # times all matrices they take about as long as reading these, or a copy
        row = jnp.arange(len(left))[:, None]
        own = jnp.where(((starts <= row) & (row < ends))[..., None], left[:, None], 0)
        product = jnp.einsum("rxt,xtc->rc", own, right, preferred_element_type=dtype)
    else:
        size = min(len(left), 4096)  # rows at a time: a TPU makes their product in f32
        every, layer = (stack[0].reshape(-1, *right.shape[1:]), stack[1]) if stack else (right, 0)

        def some(first: jax.Array, rows: jax.Array) -> jax.Array:
            own = jnp.diff(jnp.clip(jnp.stack([starts, ends]), first, first + len(rows)), axis=0)[0]
            sizes = lax.dynamic_update_slice(jnp.zeros(len(every), own.dtype), own, (layer * len(own),))
            return lax.ragged_dot(rows, every, sizes, preferred_element_type=dtype)

        firsts = jnp.arange(0, len(left) - size + 1, size)
        whole = left[: len(firsts) * size].reshape(-1, size, terms)
        product = lax.map(lambda each: some(*each), (firsts, whole)).reshape(-1, right.shape[2])
        if len(product) < len(left):
            product = jnp.concatenate([product, some(firsts.size * size, left[len(product) :])])
    return product.reshape(-1, *columns)


def boxed(a: jax.Array, at: Routing) -> jax.Array:
    """Rows in their boxes, as collectives take them: [*blocks, rows of a box, ...], zeros where none stands."""
    return a.at[at.box].get(mode="fill", fill_value=0)


def unboxed(boxes: jax.Array, at: Routing) -> jax.Array:
    """Rows out of their boxes."""
    return boxes.reshape(-1, *boxes.shape[at.box.ndim :]).at[at.slot].get(mode="fill", fill_value=0)


def exchanged(
    boxes: jax.Array, before: Routing, after: Routing, axes: Sequence[str], into: int, out_of: int
) -> jax.Array:
    """An all-to-all of boxes: those of the blocks of dim `into` go to the chips along `axes`, and what comes is put
    along `out_of`. Only rows that are there are sent where the platform can do that, which CPUs cannot."""
    ways, room = lax.axis_size(axes), before.rows

    def by_chip(a: jax.Array, dim: int) -> jax.Array:
        return jnp.moveaxis(a.reshape(*a.shape[:dim], ways, -1, *a.shape[dim + 1 :]), dim, 0)

    def padded(boxes: jax.Array, *_: jax.Array) -> jax.Array:
        return lax.all_to_all(boxes, axes, split_axis=into, concat_axis=out_of, tiled=True)

    def ragged(boxes: jax.Array, going: jax.Array, coming: jax.Array) -> jax.Array:
        split = by_chip(boxes, into)
        rows = split.reshape(-1, *boxes.shape[before.box.ndim :])
        number = jnp.arange(going.size, dtype=jnp.int32)
        each = going.size // ways  # boxes that go to one chip: they stand there in the order of the chips they are from
        there = lax.axis_index(axes).astype(jnp.int32) * each + number % each
        offsets = number * room, going.ravel(), there * room, coming.ravel()
        came = lax.ragged_all_to_all(rows, zeros_after(rows, rows.shape), *offsets, axis_name=axes).reshape(split.shape)
        shape = [*split.shape[1 : out_of + 1], -1, *split.shape[out_of + 2 :]]
        return jnp.moveaxis(came, 0, out_of).reshape(shape)

    counts = (at.kept.sum(-1, dtype=jnp.int32) for at in (before, after))
    going, coming = (by_chip(count, dim) for count, dim in zip(counts, (into, out_of), strict=True))
    return lax.platform_dependent(boxes, going, coming, cpu=padded, default=ragged)
