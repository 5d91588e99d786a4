"""What an emitted JAX file carries where scores are made in blocks, as `jax_runtime` has it.

Never imported by the compiler, which copies from it as from `jax_runtime.py`. Scores are numbers for each pair of a
query and a place of the context; blocks of them are made by a function of the file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def block_along(letters: str, a: jax.Array, letter: str, start: Any, count: int) -> jax.Array:
    """The `count` places from `start` on of the dimension that a letter names; all of an array that has none such."""
    found = letters.find(letter)
    return a if found < 0 else lax.dynamic_slice_in_dim(a, start, count, found)


def side_by_side(blocks: jax.Array, at: int, size: int) -> jax.Array:
    """Blocks of a dimension of `size`, put along it as dimension `at`. The last ends where all do: of it what no other
    has is taken."""
    count, places = len(blocks), blocks.shape[at + 1]
    whole = jnp.moveaxis(blocks, 0, at).reshape(*blocks.shape[1 : at + 1], -1, *blocks.shape[at + 2 :])
    left = size - places * (count - 1)
    if left == places:
        return whole
    before, last = jnp.split(whole, [places * (count - 1)], at)
    return jnp.concatenate([before, lax.slice_in_dim(last, places - left, None, axis=at)], at)


def shown_blocks(
    limits: Sequence[tuple[str, jax.Array, str, jax.Array]], block: tuple[str, int], size: int
) -> tuple[jax.Array, Any]:
    """Which blocks of a context of `size` places some query may see, as `attention_in_blocks` has limits: the numbers
    of all blocks, those first, and how many those are."""
    context, width = block
    starts = np.minimum(np.arange(0, size, width), size - width)
    runs = jnp.ones(len(starts), bool)

    def edges(letters: str, a: jax.Array, pick: Any) -> jax.Array:
        return pick(a[starts[:, None] + np.arange(width)], axis=1) if context in letters else pick(a)

    for left, lower, right, upper in limits:
        runs &= edges(left, lower, jnp.min) <= edges(right, upper, jnp.max)
    return (jnp.argsort(~runs, stable=True), runs.sum()) if limits else (jnp.arange(len(starts)), len(starts))


def attention_along_context(
    scores: Callable[..., jax.Array],
    parts: Sequence[tuple[str, jax.Array]],
    product: str,
    values: jax.Array,
    block: tuple[str, int],
    weighing: Any,
    dtype: Any,
    limits: Sequence[tuple[str, jax.Array, str, jax.Array]],
    scaled: Callable[..., jax.Array] | None,
    scales: Sequence[tuple[str, jax.Array]],
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """What `attention_in_blocks` gives for one block of queries; `block`: the context, how many places at a time."""
    weights, held, out = product.replace("->", ",").split(",")
    context, width = block
    size = values.shape[held.index(context)]
    rows, axis = weights.replace(context, ""), weights.index(context)

    def beside(a: jax.Array) -> jax.Array:  # rows, as they stand beside the result
        order = [rows.index(letter) for letter in out if letter in rows]
        return jnp.expand_dims(a.transpose(order), [i for i, letter in enumerate(out) if letter not in rows])

    def multiplied(weight: jax.Array, some: jax.Array) -> jax.Array:
        return jnp.einsum(product, weight, some, preferred_element_type=jnp.float32)

    def widened(weight: jax.Array, some: jax.Array) -> jax.Array:  # XLA's CPU has no such product of bfloat16
        return jnp.einsum(product, weight.astype(jnp.float32), some.astype(jnp.float32))

    order, count = shown_blocks(limits, block, size)

    def step(place: Any, before: Any) -> Any:
        most, total, sums = before
        first = order[place] * width
        start = jnp.minimum(first, size - width)
        found = scores(*(block_along(letters, a, context, start, width) for letters, a in parts)).astype(jnp.float32)
        if size % width:  # the last block starts earlier, among those that were counted
            fresh = jnp.expand_dims(start + jnp.arange(width) >= first, range(1, found.ndim - axis))
            found = jnp.where(fresh, found, -jnp.inf)
        top = jnp.maximum(most, found.max(axis))
        shift = jnp.where(top == -jnp.inf, 0, top)  # of a row without any score that counts
        shrunk, weight = jnp.exp(most - shift), jnp.exp(found - jnp.expand_dims(shift, axis)).astype(weighing)
        some = block_along(held, values, context, start, width)
        if scaled is not None:
            some = scaled(some, *(block_along(letters, a, context, start, width) for letters, a in scales))
        some = some.astype(weighing) if some.dtype.itemsize == 1 else some
        more = lax.platform_dependent(weight, some, cpu=widened, default=multiplied)
        total = total * shrunk + weight.sum(axis, dtype=jnp.float32)
        return top, total, sums * beside(shrunk) + more

    most, total, sums = lax.fori_loop(1, count, step, step(0, (-jnp.inf, 0.0, 0.0)))
    return (sums / beside(jnp.where(total == 0, 1, total))).astype(dtype), most, total


def attention_in_blocks(
    scores: Callable[..., jax.Array],
    parts: Sequence[tuple[str, jax.Array]],
    product: str,
    values: jax.Array,
    blocks: Mapping[str, int],
    weighing: Any,
    dtype: Any,
    limits: Sequence[tuple[str, jax.Array, str, jax.Array]] = (),
    scaled: Callable[..., jax.Array] | None = None,
    scales: Sequence[tuple[str, jax.Array]] = (),
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Softmax of scores times values, a block of scores at a time: all of them never exist at once.

    `scores` makes a block of the blocks of `parts`, of which each has a letter for each dimension; `product` is the
    einsum with `values`, its weights in the type `weighing`. `blocks`: how many places of each letter a block has, of
    queries, where there are several, and then of the context. The result is of type `dtype`; beside it come the
    largest score of each row, and the sum of exp(score - largest), both of this chip's part of the context.

    Where `values` are stored with `scales`, `scaled` makes a block of them, in the type `weighing`, of blocks of these.

    Each of `limits` is a lower and an upper array, of queries or of the context as their letters say: scores count
    where the lower is not above the upper. Blocks in which it is nowhere so do not run, all but one for each block of
    queries, which then is all hidden.
    """
    weights, held, out = product.replace("->", ",").split(",")
    sizes = {letter: n for letters, a in [*parts, (held, values)] for letter, n in zip(letters, a.shape, strict=True)}
    *queries, (context, width) = ((letter, min(n, sizes[letter])) for letter, n in blocks.items())

    def attend(cut: Callable[[str, jax.Array], jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        own = [(each, cut(each, a)) for each, a in parts]
        hides = [(left, cut(left, a), right, cut(right, b)) for left, a, right, b in limits]
        along = (context, width)
        return attention_along_context(scores, own, product, values, along, weighing, dtype, hides, scaled, scales)

    if not queries or sizes[queries[0][0]] == queries[0][1]:
        return attend(lambda _, a: a)
    [(query, count)] = queries
    starts = np.minimum(np.arange(0, sizes[query], count), sizes[query] - count)
    made, most, total = lax.map(lambda start: attend(lambda each, a: block_along(each, a, query, start, count)), starts)
    rows, size = weights.replace(context, ""), sizes[query]
    beside = (side_by_side(a, rows.index(query), size) for a in (most, total))
    return side_by_side(made, out.index(query), size), *beside


def made_in_blocks(
    make: Callable[..., jax.Array],
    parts: Sequence[tuple[str, jax.Array]],
    out: str,
    blocks: Mapping[str, int],
    limits: Sequence[tuple[str, jax.Array, str, jax.Array]] = (),
) -> jax.Array:
    """What `make` makes of `parts`, a block at a time: what it needs on the way never exists for all at once.

    `parts`, `blocks` and `limits` are as for `attention_in_blocks`; `out` has a letter for each dimension of the
    result. Blocks that do not run are zeros.
    """
    sizes = {letter: n for letters, a in parts for letter, n in zip(letters, a.shape, strict=True)}
    *queries, (context, width) = ((letter, min(n, sizes[letter])) for letter, n in blocks.items())
    size, axis = sizes[context], out.index(context)

    def along_context(cut: Callable[[str, jax.Array], jax.Array]) -> jax.Array:
        own = [(each, cut(each, a)) for each, a in parts]
        hides = [(left, cut(left, a), right, cut(right, b)) for left, a, right, b in limits]
        order, count = shown_blocks(hides, (context, width), size)

        def at(place: Any) -> tuple[jax.Array, jax.Array]:
            start = jnp.minimum(order[place] * width, size - width)
            return start, make(*(block_along(letters, a, context, start, width) for letters, a in own))

        def put(whole: jax.Array, start: jax.Array, block: jax.Array) -> jax.Array:
            return lax.dynamic_update_slice_in_dim(whole, block, start, axis)

        start, first = at(0)
        none = jnp.zeros((*first.shape[:axis], size, *first.shape[axis + 1 :]), first.dtype)
        return lax.fori_loop(1, count, lambda place, whole: put(whole, *at(place)), put(none, start, first))

    if not queries or sizes[queries[0][0]] == queries[0][1]:
        return along_context(lambda _, a: a)
    [(query, height)] = queries
    starts = np.minimum(np.arange(0, sizes[query], height), sizes[query] - height)
    made = lax.map(lambda start: along_context(lambda each, a: block_along(each, a, query, start, height)), starts)
    return side_by_side(made, out.index(query), sizes[query])
