"""What an emitted JAX file carries where GPUs run attention as one kernel, as `jax_runtime` has it.

Never imported by the compiler, which copies from it as from `jax_runtime.py`. XLA writes what each step of attention in
blocks makes to memory, and starts kernels for each. In a kernel of its own scores stay on the multiprocessor that makes
them (Dao 2023, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning", section 3.1).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl

from .jax_scores_runtime import attention_in_blocks

try:
    from jax.experimental.pallas import triton
except ImportError:
    triton = None


@dataclass(frozen=True)
class Tiles:
    """How kernels go over scores: for one of each of `rows` at a time, `height` places of the letter `query`, and for
    these in turn `width` of the letter `context`; of other letters all, as many as a power of two."""

    sizes: Mapping[str, int]
    rows: str
    query: str
    height: int
    context: str
    width: int

    @property
    def count(self) -> int:
        """Into how many tiles queries are cut."""
        return -(-self.sizes[self.query] // self.height)

    def inner(self, letters: str) -> str:
        """The letters that an array has in a kernel."""
        return "".join(letter for letter in letters if letter not in self.rows)

    def lengths(self, letters: str) -> tuple[int, ...]:
        """How many places a tile has of each of those."""
        own = {self.query: self.height, self.context: self.width}
        return tuple(own.get(letter, power_of_two(self.sizes[letter])) for letter in self.inner(letters))

    def spec(self, letters: str) -> pl.BlockSpec:
        """What a kernel is shown of an array: of rows its own, all queries, and all of the context."""
        whole = {self.query: self.sizes[self.query], self.context: self.sizes[self.context]}
        shape = [None if a in self.rows else whole.get(a, power_of_two(self.sizes[a])) for a in letters]

        def row(i: Any) -> tuple[Any, ...]:
            at, left = dict[str, Any](), i // self.count
            for letter in reversed(self.rows):
                at[letter], left = left % self.sizes[letter], left // self.sizes[letter]
            return tuple(at.get(letter, 0) for letter in letters) or (0,)

        return pl.BlockSpec(shape or (None,), row)

    def view(self, letters: str, ref: Any, starts: Mapping[str, Any]) -> tuple[Any, jax.Array | None]:
        """A tile of an array, from these places on; and where of it there is something, None where everywhere."""
        inner, lengths, inside = self.inner(letters), self.lengths(letters), None
        for at, (letter, n) in enumerate(zip(inner, lengths, strict=True)):
            if letter not in (self.query, self.context) and n > self.sizes[letter]:
                own = jnp.expand_dims(jnp.arange(n) < self.sizes[letter], [i for i in range(len(inner)) if i != at])
                inside = own if inside is None else inside & own
        cut = (pl.ds(starts[a], n) if a in starts else slice(None) for a, n in zip(inner, lengths, strict=True))
        return ref.at[tuple(cut)], inside

    def load(self, letters: str, ref: Any, starts: Mapping[str, Any]) -> jax.Array:
        """A tile of an array, zeros where there is nothing."""
        if not self.inner(letters):
            return ref[...]
        view, inside = self.view(letters, ref, starts)
        return triton.load(view, mask=inside, other=None if inside is None else 0)


def power_of_two(n: int) -> int:
    """The least that is no less, as GPUs have tiles."""
    return 1 << (n - 1).bit_length()


def features_of(sizes: Mapping[str, int], parts: Sequence[str], weights: str, query: str, context: str) -> int:
    """The features of a query, and those that parts with a number for each query and place of the context are worth."""
    read = [[a for a in letters if a not in weights] for letters in parts if query in letters]
    pairs = [letters for letters in parts if query in letters and context in letters]
    return 64 * len(pairs) + sum(math.prod(power_of_two(sizes[a]) for a in own) for own in read if own)


def suited(features: int) -> tuple[int, int, int, int]:
    """For so many features of a query: the most queries and places of the context that a tile has, how many warps make
    it, and how many tiles of the context are on their way at once."""
    if features <= 128:
        return (128 if features <= 64 else 64, 64, 4, 3)
    return (64, 32, 4, 2) if features <= 256 else (32 if features <= 512 else 16, 32, 4, 2)


def shown_tiles(tiles: Tiles, limits: Sequence[tuple[str, jax.Array, str, jax.Array]]) -> tuple[jax.Array, jax.Array]:
    """For each tile of queries the first tile of the context of which some query may see something, and that after the
    last, as `attention_in_blocks` has limits; where it hides all, one tile."""
    lengths = {tiles.query: tiles.height, tiles.context: tiles.width}
    starts = {letter: np.arange(0, tiles.sizes[letter], n) for letter, n in lengths.items()}
    shown: Any = jnp.ones([len(each) for each in starts.values()], bool)

    def edges(letters: str, a: jax.Array, pick: Any) -> jax.Array:  # of each tile, beside those of the other letter
        for at, (letter, n) in enumerate(lengths.items()):
            if letter in letters:
                places = np.minimum(starts[letter], tiles.sizes[letter] - n)[:, None] + np.arange(n)
                each = jnp.moveaxis(a, letters.index(letter), 0)[places]
                return jnp.expand_dims(pick(each.reshape(len(places), -1), axis=1), 1 - at)
        return pick(a)

    for left, lower, right, upper in limits:
        shown &= edges(left, lower, jnp.min) <= edges(right, upper, jnp.max)
    first, after = shown.argmax(1), shown.shape[1] - shown[:, ::-1].argmax(1)
    return first.astype(jnp.int32), jnp.where(shown.any(1), after, first + 1).astype(jnp.int32)


def for_all(scores: Callable[..., jax.Array], given: Sequence[str], made: str, rows: str) -> Callable[..., jax.Array]:
    """What makes scores with the letters `made` of arrays with the letters `given`, of `scores`, which makes those for
    one of each of `rows`."""

    def place(letters: str, row: int) -> int | None:
        left = [letter for letter in letters if letter not in rows[row + 1 :]]
        return left.index(rows[row]) if rows[row] in left else None

    for row in range(len(rows)):
        scores = jax.vmap(scores, [place(letters, row) for letters in given], place(made, row))
    return scores


def attention_of_tile(
    tiles: Tiles,
    scores: Callable[..., jax.Array],
    product: str,
    read: Callable[[Mapping[str, Any]], Sequence[jax.Array]],
    place: Any,
    shown: tuple[Any, Any],
    weighing: Any,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """What `attention_in_kernel` gives for the queries from a place on. `read` gives tiles of all that scores are made
    of and of the values; `shown`: the first tile of the context, and that after the last."""
    weights, held, out = map(tiles.inner, product.replace("->", ",").split(","))
    size, axis = tiles.sizes[tiles.context], weights.index(tiles.context)

    def beside(a: jax.Array) -> jax.Array:  # queries, as they stand beside the result
        return jnp.expand_dims(a, [i for i, letter in enumerate(out) if letter != tiles.query])

    def step(tile: Any, before: Any) -> Any:
        most, total, sums = before
        first = tile * tiles.width
        start = jnp.minimum(first, size - tiles.width)
        *parts, values = read({tiles.query: place, tiles.context: start})
        found = scores(*parts).astype(jnp.float32)
        if size % tiles.width:  # the last tile starts earlier, among those that were counted
            fresh = jnp.expand_dims(start + jnp.arange(tiles.width) >= first, 1 - axis)
            found = jnp.where(fresh, found, -jnp.inf)
        top = jnp.maximum(most, found.max(axis))
        shift = jnp.where(top == -jnp.inf, 0.0, top)  # of a row without any score that counts
        shrunk, weight = jnp.exp(most - shift), jnp.exp(found - jnp.expand_dims(shift, axis)).astype(weighing)
        more = jnp.einsum(
            f"{weights},{held}->{out}", weight, values.astype(weighing), preferred_element_type=jnp.float32
        )
        return top, total * shrunk + weight.astype(jnp.float32).sum(axis), sums * beside(shrunk) + more

    rows = jnp.zeros((tiles.height,), jnp.float32)
    none = (rows - jnp.inf, rows, jnp.zeros(tiles.lengths(out), jnp.float32))
    most, total, sums = lax.fori_loop(*shown, step, none)
    return sums / beside(jnp.where(total == 0, 1.0, total)), most, total


def attention_in_kernel(
    scores: Callable[..., jax.Array],
    parts: Sequence[tuple[str, jax.Array]],
    product: str,
    values: jax.Array,
    blocks: Mapping[str, int],
    weighing: Any,
    dtype: Any,
    limits: Sequence[tuple[str, jax.Array, str, jax.Array]] = (),
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """What `attention_in_blocks` gives, by one kernel of a GPU. On CPUs where there is little the steps of that, one
    after another, so that these are compared, too; else blocks.

    Arguments are as there, but `scores` makes a tile for one of each letter that weights have beside those of `blocks`,
    queries and the context, of arrays without these letters. Tiles are as large as `blocks`, or as suits the kernel.
    JAX 0.11 says that a later one will not have what compiles it; then attention runs in blocks.
    """
    weights, held, out = product.replace("->", ",").split(",")
    rows = "".join(letter for letter in weights if letter not in blocks)

    def in_blocks(*_: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        every = for_all(scores, [letters for letters, _ in parts], weights, rows)
        return attention_in_blocks(every, parts, product, values, blocks, weighing, dtype, limits)

    if triton is None:
        return in_blocks()
    given = [*parts, (held, values)]
    sizes = {letter: n for letters, a in given for letter, n in zip(letters, a.shape, strict=True)}
    *most, warps, stages = suited(features_of(sizes, [letters for letters, _ in parts], weights, *blocks))
    height, width = (
        power_of_two(min(n, sizes[letter], limit) // 2 + 1)
        for (letter, n), limit in zip(blocks.items(), most, strict=True)
    )
    query, context = blocks
    tiles = Tiles(sizes, rows, query, height, context, width)
    results = [(out, dtype), *[(weights.replace(context, ""), jnp.float32)] * 2]
    arrays = [*(jnp.reshape(a, a.shape or (1,)) for _, a in given), *shown_tiles(tiles, limits)]

    def kernel(widened: bool, *refs: Any) -> None:
        *read, first, after = refs[: len(arrays)]
        i = pl.program_id(0) % tiles.count
        place = jnp.minimum(i * height, sizes[query] - height)

        def tiles_from(starts: Mapping[str, Any]) -> list[jax.Array]:
            every = [tiles.load(letters, ref, starts) for (letters, _), ref in zip(given, read, strict=True)]
            return [a.astype(jnp.float32) if widened and a.dtype.itemsize < 4 else a for a in every]

        made = attention_of_tile(tiles, scores, product, tiles_from, place, (first[i], after[i]), weighing)
        for a, (letters, kind), ref in zip(made, results, refs[len(arrays) :], strict=True):
            view, inside = tiles.view(letters, ref, {query: place})
            triton.store(view, a.astype(kind), mask=inside)

    def run(cpu: bool) -> Callable[..., Any]:
        every = pl.BlockSpec((tiles.count,), lambda _: (0,))
        made: Callable[..., Any] = pl.pallas_call(
            lambda *refs: kernel(cpu, *refs),
            [jax.ShapeDtypeStruct([sizes[a] for a in letters], kind) for letters, kind in results],
            grid=(tiles.count * math.prod(sizes[a] for a in tiles.rows),),
            in_specs=[*(tiles.spec(letters) for letters, _ in given), every, every],
            out_specs=[tiles.spec(letters) for letters, _ in results],
            compiler_params=triton.CompilerParams(num_warps=warps, num_stages=stages),
            interpret=cpu,
            name="attention",
        )
        return lambda *given: tuple(made(*given))

    few = math.prod(sizes.values()) <= 2**20
    found: tuple[jax.Array, jax.Array, jax.Array] = lax.platform_dependent(
        *arrays, cpu=run(True) if few else in_blocks, default=run(False)
    )
    return found
