"""What an emitted JAX file carries besides its steps: each function stands alone, and is copied where it is used.

Never imported by the compiler, which reads it as text: JAX may be missing. All of them run inside
`jax.shard_map`; `axes` are mesh axes, major to minor, and `axis` a dimension of the local array.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint


def repeated(unrolled: bool, body: Callable[..., Any], carry: Any, count: int) -> tuple[Any, Any]:
    """`lax.scan` of `body` over the numbers of repetitions; or `unrolled`, one after another."""
    if not unrolled:
        carry, beside = lax.scan(body, carry, jnp.arange(count))
        return carry, beside
    beside = []
    for i in range(count):
        carry, more = body(carry, i)
        beside.append(more)
    return carry, jax.tree.map(lambda *each: jnp.stack(each), *beside)


def written(cache: Any, at: tuple[Any, ...], write: Callable[..., jax.Array], *given: Any) -> Any:
    """A cache of all repetitions, a stack or a tuple of its parts, of which `write` has written what is `given` into
    that of one."""
    if not isinstance(cache, tuple):
        return write(cache, *given, at)
    i, *rest = at
    return (*cache[:i], written(cache[i], tuple(rest), write, *given), *cache[i + 1 :])


def put(cache: jax.Array, new: jax.Array, corner: tuple[Any, ...], at: tuple[jax.Array, ...]) -> jax.Array:
    """`cache[at]` with `new` at a corner."""
    return lax.dynamic_update_slice(cache, jnp.expand_dims(new, range(len(at))), (*at, *corner))


def own_block(a: jax.Array, axes: Sequence[str], axis: int) -> jax.Array:
    """This chip's part of `a` along `axis`: nothing is sent."""
    size = a.shape[axis] // lax.axis_size(axes)
    return lax.dynamic_slice_in_dim(a, lax.axis_index(axes) * size, size, axis)


def on_first(a: jax.Array, axes: Sequence[str]) -> jax.Array:
    """A partial sum of `a`: it stands on the first chip along `axes`, zeros on the others."""
    return jnp.where(lax.axis_index(axes) == 0, a, jnp.zeros_like(a))


def among_zeros(a: jax.Array, axes: Sequence[str], axis: int) -> jax.Array:
    """A partial sum of the whole: this chip's block of `axis` stands at its place among zeros."""
    shape = [*a.shape[:axis], a.shape[axis] * lax.axis_size(axes), *a.shape[axis + 1 :]]
    return lax.dynamic_update_slice_in_dim(jnp.zeros(shape, a.dtype), a, lax.axis_index(axes) * a.shape[axis], axis)


def own_positions(size: int, axes: Sequence[str], dtype: jnp.dtype) -> jax.Array:
    """The global positions of what this chip holds of `size` elements split by `axes`."""
    local = size // lax.axis_size(axes)
    return (lax.axis_index(axes) * local + jnp.arange(local)).astype(dtype)


def permute(a: jax.Array, before: Sequence[str], after: Sequence[str]) -> jax.Array:
    """Blocks change chips: counted by the axes of `before` they stood in the order that those of `after` count now."""
    names = tuple(sorted(before))
    chips = np.arange(lax.axis_size(names)).reshape([lax.axis_size(name) for name in names])
    source, target = (chips.transpose([names.index(name) for name in order]).ravel() for order in (before, after))
    return lax.ppermute(a, names, list(zip(source.tolist(), target.tolist(), strict=True)))


def reordered(a: jax.Array, axis: int, before: Sequence[str], after: Sequence[str]) -> jax.Array:
    """Blocks of `axis` that lie in the order of `before`, in the order of `after`; all are on this chip."""
    sizes = [lax.axis_size(name) for name in before]
    blocks = a.reshape(*a.shape[:axis], *sizes, -1, *a.shape[axis + 1 :])
    moved = [axis + list(before).index(name) for name in after]
    rest = range(axis + len(sizes), blocks.ndim)
    return blocks.transpose(*range(axis), *moved, *rest).reshape(a.shape)


def max_scatter(a: jax.Array, axes: Sequence[str], axis: int) -> jax.Array:
    """This chip's block of the maximum over `axes`: an all-to-all, then a local maximum."""
    ways = lax.axis_size(axes)
    blocks = a.reshape(*a.shape[:axis], ways, -1, *a.shape[axis + 1 :])
    return jnp.max(lax.all_to_all(blocks, axes, split_axis=axis, concat_axis=axis, tiled=True), axis=axis)


def append(
    cache: jax.Array, new: jax.Array, end: jax.Array, axes: Sequence[str], axis: int, at: tuple[jax.Array, ...] = ()
) -> jax.Array:
    """`new` takes the places before `end` of `cache[at]` along `axis`, split by `axes`: the owners write."""
    local, entries = cache.shape[len(at) + axis], new.shape[axis]
    width = min(local, entries)
    block = lax.axis_index(axes) if axes else 0
    first = end - entries - block * local  # where the first entry would stand on this chip
    start = jnp.clip(first, 0, local - width)
    entry = start - first + jnp.arange(width)
    corner = (*at, *(start if i == axis else 0 for i in range(new.ndim)))
    shape = [*(1 for _ in at), *new.shape[:axis], width, *new.shape[axis + 1 :]]
    held = lax.dynamic_slice(cache, corner, shape)
    taken = jnp.take(new, jnp.clip(entry, 0, entries - 1), axis=axis).reshape(shape)
    mine = jnp.expand_dims((entry >= 0) & (entry < entries), [i for i in range(new.ndim) if i != axis])
    return lax.dynamic_update_slice(cache, jnp.where(mine, taken, held), corner)


def append_wrapping(
    cache: jax.Array, new: jax.Array, end: jax.Array, axes: Sequence[str], axis: int, at: tuple[jax.Array, ...] = ()
) -> jax.Array:
    """`new` takes the places before `end` of a context: place p the slot p modulo those of `cache[at]` along `axis`,
    split by `axes`. The owners write: of few entries those up to the last one's slot, and those that wrap before it, of
    many all slots."""
    local, entries = cache.shape[len(at) + axis], new.shape[axis]
    ways, block = (lax.axis_size(axes), lax.axis_index(axes)) if axes else (1, 0)
    if 2 * entries <= local:
        slots, last = local * ways, (end - 1) % (local * ways) + 1
        cache = append(cache, new, last, axes, axis, at)
        return cache if entries == 1 else append(cache, new, last + slots, axes, axis, at)
    entry = (block * local + jnp.arange(local) - (end - entries)) % (local * ways)
    corner = (*at, *(0 for _ in range(new.ndim)))
    shape = [*(1 for _ in at), *new.shape[:axis], local, *new.shape[axis + 1 :]]
    taken = jnp.take(new, jnp.clip(entry, 0, entries - 1), axis=axis).reshape(shape)
    mine = jnp.expand_dims(entry < entries, [i for i in range(new.ndim) if i != axis])
    return lax.dynamic_update_slice(cache, jnp.where(mine, taken, lax.dynamic_slice(cache, corner, shape)), corner)


def laid_out(a: jax.Array) -> jax.Array:
    """A cache or a parameter as it was handed over, row by row: laid out as suits a step, all of it would be copied."""
    return with_layout_constraint(a, Layout(tuple(range(a.ndim))))


def take(table: jax.Array, ids: jax.Array, dims: Sequence[int], axes: Sequence[Sequence[str]]) -> jax.Array:
    """Rows of `table`, each of whose `dims` is split by its `axes`: zeros for rows that lie on other chips, or nowhere.

    Of several dims a row is counted in row-major order.
    """
    rows = jnp.moveaxis(table, dims, range(len(dims)))
    row, here, places = ids, jnp.ones(ids.shape, bool), []
    for local, split in reversed(list(zip(rows.shape, axes, strict=False))):
        ways, block = (lax.axis_size(split), lax.axis_index(split)) if split else (1, 0)
        place = row % (local * ways) - block * local
        row = row // (local * ways)
        here = here & (place >= 0) & (place < local)
        places.append(place)
    here = here & (row == 0)
    taken = rows[tuple(jnp.where(here, place, 0) for place in reversed(places))]
    return jnp.where(here.reshape(*here.shape, *(1 for _ in range(taken.ndim - here.ndim))), taken, 0)


def largest(keys: jax.Array, picked: jax.Array, rank: int, count: int) -> jax.Array:
    """Entries of `picked` at the `count` largest of `keys` over the last `rank` axes, the largest first.

    `picked` broadcasts to `keys`. Of equal keys the first comes first.
    """
    rest = keys.shape[: keys.ndim - rank]
    _, order = lax.top_k(keys.reshape(*rest, -1), count)
    return jnp.take_along_axis(jnp.broadcast_to(picked, keys.shape).reshape(*rest, -1), order, axis=-1)


def kept(keys: jax.Array, rank: int, count: int, dtype: Any, most: int = 2**22) -> jax.Array:
    """1 at the `count` largest of `keys` over the last `rank` axes, 0 elsewhere. Of equal keys the first is kept, and
    none of minus infinity, of which there may be so many that fewer are kept. As in `lax.top_k`, NaN is the largest,
    and below all where its sign is set.

    Rows of keys are looked at so many at a time that they have no more than `most` keys: to sort these takes three
    times their room.

    They stand where `lax.top_k` says. Keys that are compared with those that it gives may not be the same: XLA makes
    them again in the kernel that compares, with other roundings, and what is chosen last is then lost. A TPU, on which
    placing elements one by one takes long, compares places where few are kept, and bits where many are, of keys that a
    barrier has made once.
    """
    flat = keys.reshape(*keys.shape[: keys.ndim - rank], -1)
    together = max(most // flat.shape[-1], 1)
    if flat.size > together * flat.shape[-1]:
        rows = flat.reshape(-1, flat.shape[-1])
        return lax.map(lambda row: kept(row, 1, count, dtype), rows, batch_size=together).reshape(keys.shape)
    flat = flat.astype(jnp.bfloat16) if flat.dtype.itemsize == 1 else flat  # not all floats of a byte have a sign
    flat = lax.optimization_barrier(flat) if count > 64 else flat
    whole = jnp.dtype(f"int{8 * flat.dtype.itemsize}")
    bits = lax.bitcast_convert_type(flat, whole)
    if floats := jnp.issubdtype(flat.dtype, jnp.floating):
        bits = jnp.where(bits == jnp.iinfo(whole).min, 0, bits)  # -0, which top_k has below the 0 that it equals
        flat = lax.bitcast_convert_type(bits, flat.dtype)
    chosen, order = lax.top_k(flat, count)

    def placed(_: jax.Array, chosen: jax.Array, order: jax.Array) -> jax.Array:
        rows, shown = order.reshape(-1, count), (chosen != -jnp.inf).astype(dtype).reshape(-1, count)
        none = jnp.zeros((len(rows), flat.shape[-1]), dtype)
        return none.at[jnp.arange(len(rows))[:, None], rows].set(shown, unique_indices=True).reshape(keys.shape)

    def compared(bits: jax.Array, chosen: jax.Array, order: jax.Array) -> jax.Array:
        places = jnp.arange(flat.shape[-1])
        if count <= 64:
            order = jnp.where(chosen != -jnp.inf, order, -1)
            return (order[..., None] == places).any(-2).astype(dtype).reshape(keys.shape)
        found, shown = (bits, lax.bitcast_convert_type(chosen, whole)), True
        if floats:
            shown = bits != lax.bitcast_convert_type(jnp.array(-jnp.inf, flat.dtype), whole)
            # As integers in the order of top_k: to compare floats is no order where there is NaN.
            found = tuple(jnp.where(a < 0, a ^ jnp.iinfo(whole).max, a) for a in found)
        own, best = found
        least = best.min(-1, keepdims=True)  # were the last of both cut off instead, XLA would sort all
        last = jnp.where(best == least, order, 0).max(-1, keepdims=True)
        return (shown & ((own > least) | (own == least) & (places <= last))).astype(dtype).reshape(keys.shape)

    return lax.platform_dependent(bits, chosen, order, tpu=compared, default=placed)


def rotate(a: jax.Array, axis: int) -> jax.Array:
    """Pairs along `axis` turned by a right angle: (a, b) becomes (-b, a). Pairs are no dim, which would fill lanes.

    Neighbours come by padding, which is made with what reads it. Slices that are joined anew, as a roll has them, the
    TPU's compiler writes out, each padded to whole lanes.
    """
    axis %= a.ndim
    first = jnp.expand_dims(np.arange(a.shape[axis]) % 2 == 0, [i for i in range(a.ndim) if i != axis])

    def shifted(by: int) -> jax.Array:
        return lax.pad(a, jnp.zeros((), a.dtype), [(by, -by, 0) if i == axis else (0, 0, 0) for i in range(a.ndim)])

    return jnp.where(first, -shifted(-1), shifted(1))


def decoded(codes: jax.Array, dtype: Any, *scales: jax.Array, zeros: Any = 0) -> jax.Array:
    """The numbers that codes stand for: less `zeros`, times `scales`, of which each has one for a group of places along
    some dimensions, or one for all, or has no such dimension in front.

    Along the last dimension each is repeated, while there is little. Along others codes are taken apart in groups, and
    on TPUs come so from behind a barrier: the compiler would put them together first, and lay out a scale for each
    place in f32, four times what the codes of eight bits take, to hold and to read.
    """
    beside = [jnp.asarray(a).reshape((1,) * (codes.ndim - jnp.ndim(a)) + jnp.shape(a)) for a in (zeros, *scales)]
    rest, last = codes.shape[:-1], codes.shape[-1:]
    counts = [math.lcm(*(a.shape[i] for a in beside if a.shape[i] < n)) for i, n in enumerate(rest)]

    def grouped(a: jax.Array) -> jax.Array:
        if (1,) < a.shape[-1:] < last:
            a = jnp.repeat(a, last[0] // a.shape[-1], -1)
        shape: list[int] = []
        for i, (n, count) in enumerate(zip(rest, counts, strict=True)):
            if 1 < a.shape[i] < count:
                a = jnp.repeat(a, count // a.shape[i], i)
            places = max(a.shape[i] // count, 1)
            shape += [a.shape[i]] if count in (1, n) else [a.shape[i] // places, places]
        return a.reshape(*shape, *a.shape[-1:])

    held = grouped(codes)
    if held.ndim > codes.ndim:
        held = lax.platform_dependent(held, tpu=lax.optimization_barrier, default=lambda a: a)
    less, *times = map(grouped, beside)
    made = held.astype(jnp.float32) - less.astype(jnp.float32)
    for each in times:
        made = made * each.astype(jnp.float32)
    return made.astype(dtype).reshape(codes.shape)


def gather_in_stages(a: jax.Array, stages: Sequence[Any], axis: int) -> jax.Array:
    """An all-gather along the axes of all `stages`, those of the last stage first: the TPU's compiler keeps them, and
    makes an all-reduce of one along all axes of the mesh, or of a single row that is not made of whole lanes."""
    for axes in reversed(stages):
        a = lax.all_gather(a, axes, axis=axis, tiled=True, to="invarying")
    return a


def scatter_in_stages(a: jax.Array, stages: Sequence[Any], axis: int) -> jax.Array:
    """A reduce-scatter along the axes of all `stages`, those of the first stage first, kept as gather_in_stages is."""
    for axes in stages:
        a = lax.psum_scatter(a, axes, scatter_dimension=axis, tiled=True)
    return a


def scatter_rows(a: jax.Array, stages: Sequence[Any], axis: int) -> jax.Array:
    """As scatter_in_stages, by whole rows: of other narrow shapes the TPU's compiler makes an all-reduce."""
    ways = math.prod(lax.axis_size(axes) for axes in stages)
    blocks = jnp.moveaxis(a.reshape(*a.shape[:axis], ways, -1, *a.shape[axis + 1 :]), axis, 0)
    return scatter_blocks(blocks.reshape(ways, -1), stages).reshape(blocks.shape[1:])


def scatter_blocks(a: jax.Array, stages: Sequence[Any]) -> jax.Array:
    """This chip's row of the sum of [chips, elements], as 16 rows, as 192 if large, as 480 if these are filled up."""
    n, rows = a.shape[1], 16 if a[0].nbytes <= 2**20 else 480 if a.shape[1] % 192 else 192
    return scatter_in_stages(jnp.pad(a, ((0, 0), (0, -n % rows))).reshape(len(a) * rows, -1), stages, 0).ravel()[:n]


def gather_together(
    parts: Sequence[tuple[jax.Array, Sequence[str], int]], axes: Sequence[str], stages: Sequence[Any] = ()
) -> list[jax.Array]:
    """All-gathers over the same axes as one, in `stages` where there are any. A part: what is gathered, its axes in
    its own order, along what. A row that is not of whole lanes goes as several: see gather_in_stages."""
    buffer = jnp.concatenate([a.ravel() for a, _, _ in parts])
    rows = math.gcd(buffer.size, 16) if buffer.size % 128 else 1
    received = gather_in_stages(buffer.reshape(rows, -1), stages or [axes], 0).reshape(-1, buffer.size)
    ends = np.cumsum([a.size for a, _, _ in parts])[:-1]
    results = []
    for piece, (a, own, axis) in zip(jnp.split(received, ends, axis=1), parts, strict=True):
        blocks = piece.reshape(*map(lax.axis_size, axes), *a.shape)
        blocks = jnp.moveaxis(blocks, [list(axes).index(name) for name in own], range(axis, axis + len(axes)))
        results.append(blocks.reshape(*a.shape[:axis], -1, *a.shape[axis + 1 :]))
    return results


def reduce_together(parts: Sequence[jax.Array], axes: Sequence[str]) -> list[jax.Array]:
    """Sums over the same axes as one."""
    total = lax.psum(jnp.concatenate([a.ravel() for a in parts]), axes)
    pieces = jnp.split(total, np.cumsum([a.size for a in parts])[:-1])
    return [piece.reshape(a.shape) for piece, a in zip(pieces, parts, strict=True)]


def max_together(parts: Sequence[jax.Array], axes: Sequence[str]) -> list[jax.Array]:
    """Maxima over the same axes as one."""
    highest = lax.pmax(jnp.concatenate([a.ravel() for a in parts]), axes)
    pieces = jnp.split(highest, np.cumsum([a.size for a in parts])[:-1])
    return [piece.reshape(a.shape) for piece, a in zip(pieces, parts, strict=True)]


def blocks_together(parts: Sequence[tuple[jax.Array, Sequence[str], int]], axes: Sequence[str]) -> jax.Array:
    """What goes to each chip along `axes`, as [chips, elements]. A part: an array, its axes, what they split."""
    sends = []
    for a, own, axis in parts:
        sizes = [lax.axis_size(name) for name in own]
        blocks = a.reshape(*a.shape[:axis], *sizes, -1, *a.shape[axis + 1 :])
        blocks = jnp.moveaxis(blocks, [axis + list(own).index(name) for name in axes], range(len(sizes)))
        sends.append(blocks.reshape(math.prod(sizes), -1))
    return jnp.concatenate(sends, axis=1)


def scatter_together(
    parts: Sequence[tuple[jax.Array, Sequence[str], int]], axes: Sequence[str], stages: Sequence[Any] = ()
) -> list[jax.Array]:
    """Reduce-scatters over the same axes as one, in `stages` where there are any. A part: what is summed, its axes in
    its own order, along what."""
    blocks = blocks_together(parts, axes)
    return parts_of(scatter_blocks(blocks, stages) if stages else scatter_in_stages(blocks, [axes], 0).ravel(), parts)


def max_scatter_together(parts: Sequence[tuple[jax.Array, Sequence[str], int]], axes: Sequence[str]) -> list[jax.Array]:
    """As scatter_together, of maxima: an all-to-all, then a local maximum."""
    blocks = blocks_together(parts, axes)
    received = lax.all_to_all(blocks, axes, split_axis=0, concat_axis=0, tiled=True).max(0)
    return parts_of(received, parts)


def parts_of(received: jax.Array, parts: Sequence[tuple[jax.Array, Sequence[str], int]]) -> list[jax.Array]:
    """The blocks that a chip received of each part, out of one buffer."""
    ends = np.cumsum([a.size // lax.axis_size(own) for a, own, _ in parts])[:-1]
    return [
        piece.reshape(*a.shape[:axis], -1, *a.shape[axis + 1 :])
        for piece, (a, _, axis) in zip(jnp.split(received, ends), parts, strict=True)
    ]


def exchange_together(
    parts: Sequence[tuple[jax.Array, Sequence[str], int, int, Sequence[str]]], axes: Sequence[str]
) -> list[jax.Array]:
    """All-to-alls over the same axes as one.

    A part: what is exchanged, the axes that will split `target`, `source`, `target`, and the axes in
    the order in which they split `source` now.
    """
    blocks = blocks_together([(a, own, target) for a, own, _, target, _ in parts], axes)
    received = lax.all_to_all(blocks, axes, split_axis=0, concat_axis=0, tiled=True)
    ends = np.cumsum([a.size // lax.axis_size(axes) for a, *_ in parts])[:-1]
    results = []
    for piece, (a, own, source, target, order) in zip(jnp.split(received, ends, axis=1), parts, strict=True):
        shape = [*a.shape[:target], a.shape[target] // lax.axis_size(own), *a.shape[target + 1 :]]
        blocks = piece.reshape(*(lax.axis_size(name) for name in axes), *shape)
        blocks = jnp.moveaxis(blocks, [list(axes).index(name) for name in order], range(source, source + len(axes)))
        results.append(blocks.reshape(*shape[:source], -1, *shape[source + 1 :]))
    return results


def hop(a: jax.Array, axis: str, step: int) -> jax.Array:
    """`a` of the chip that stands `step` places before this one on the ring along `axis`."""
    ways = lax.axis_size(axis)
    return lax.ppermute(a, axis, [(i, (i + step) % ways) for i in range(ways)])


def blocks_round(stages: Sequence[tuple[str, int]], shape: Sequence[int], both_ways: bool) -> Iterator[Any]:
    """The blocks, of `shape`, of a group of chips in the order in which they come round, this chip's own first.

    A stage is a mesh axis, along which blocks are passed on, and the dimension that they are blocks of; for each
    block that comes round in one stage the next goes round once. With `both_ways` half of each goes up, half down.
    Yields the direction and the hops made, the same one hop before, the axis of that hop, and the spans: of each
    dimension that is in blocks where this one starts, how long it is, and how long all are.
    """
    first, half = stages[0][1], shape[stages[0][1]] // 2
    parts = [(1, 0, half), (-1, half, shape[first] - half)] if both_ways else [(1, 0, shape[first])]
    for hops in np.ndindex(*(lax.axis_size(axis) for axis, _ in stages)):
        last = max((i for i, n in enumerate(hops) if n), default=0)
        before = [n - (i == last) for i, n in enumerate(hops)]
        for step, start, length in parts:
            spans = {dim: (0, shape[dim], shape[dim]) for _, dim in stages} | {first: (start, length, shape[first])}
            for (axis, dim), n in zip(stages, hops, strict=True):
                (start, length, whole), ways = spans[dim], lax.axis_size(axis)
                spans[dim] = start + (lax.axis_index(axis) - step * n) % ways * whole, length, whole * ways
            yield (step, *hops), (step, *before), stages[last][0], spans


def einsum_within(subscripts: str, operands: Sequence[jax.Array], spans: Any, dtype: Any) -> jax.Array:
    """An einsum, in wide floats, of what operands have in the spans of some indices; bytes are widened to `dtype`."""
    parts = []
    for a, term in zip(operands, subscripts.split("->")[0].split(","), strict=True):
        for index, (start, length, _) in spans.items():
            if index in term and a.shape[term.index(index)] > length:  # otherwise it is that part already
                a = lax.dynamic_slice_in_dim(a, start, length, term.index(index))
        parts.append(a.astype(dtype) if a.dtype.itemsize == 1 else a)
    wide = jnp.float32 if jnp.issubdtype(dtype, jnp.floating) else dtype
    return jnp.einsum(subscripts, *parts, preferred_element_type=wide)


def gathered_einsums(
    block: jax.Array, stages: Sequence[tuple[str, int]], *products: Any, both_ways: bool = False
) -> list[jax.Array]:
    """Einsums of what chips gather, made of each block as it comes round (see `blocks_round`).

    A product: subscripts whose first term is that of `block`, a type, the other operands.
    """
    own = iter(jnp.split(block, [block.shape[stages[0][1]] // 2] if both_ways else [], stages[0][1]))
    pieces, results = dict[Any, jax.Array](), dict[int, jax.Array]()
    for number, before, axis, spans in blocks_round(stages, block.shape, both_ways):
        pieces[number] = hop(pieces[before], axis, number[0]) if before in pieces else next(own)
        for i, (subscripts, dtype, *others) in enumerate(products):
            output = subscripts.split("->")[1]
            within = {subscripts[dim]: span for dim, span in spans.items()}
            part = einsum_within(subscripts, [pieces[number], *others], within, dtype)
            places = [within.get(index, (0, n, n)) for index, n in zip(output, part.shape, strict=True)]
            starts, whole = [start for start, _, _ in places], [n for _, _, n in places]
            summed = not set(within) <= set(output)  # else each block has a place of its own
            part = part if summed else part.astype(dtype)
            total = results.get(i, jnp.zeros(whole, part.dtype))
            part = part + lax.dynamic_slice(total, starts, part.shape) if summed else part
            results[i] = lax.dynamic_update_slice(total, part, starts)
    return [results[i].astype(dtype) for i, (_, dtype, *_) in enumerate(products)]


def scattered_einsums(
    dtype: Any, shape: Sequence[int], stages: Sequence[tuple[str, int]], *terms: Any, both_ways: bool = False
) -> jax.Array:
    """This chip's block, of `shape`, of a sum over chips of einsums, made as the sums are passed on to their chips.

    They go the way back of `blocks_round`. A term: subscripts and operands.
    """
    sums = dict[Any, jax.Array]()
    for number, before, axis, spans in reversed(list(blocks_round(stages, shape, both_ways))):
        for subscripts, *operands in terms:
            within = {subscripts.split("->")[1][dim]: span for dim, span in spans.items()}
            sums[number] = sums.get(number, 0) + einsum_within(subscripts, operands, within, dtype)
        sums[number] = sums[number].astype(dtype)  # as it is sent
        if any(number[1:]):
            sums[before] = sums.get(before, 0) + hop(sums[number], axis, -number[0])
    return jnp.concatenate([sums[n] for n in reversed(sums) if not any(n[1:])], stages[0][1])
