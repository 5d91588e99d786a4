"""What an emitted JAX file carries where GPUs multiply rows by the matrices of their experts in one kernel, as
`jax_runtime` has it.

Never imported by the compiler, which copies from it as from `jax_runtime.py`. XLA multiplies rows by the matrices of
all experts, and writes the numbers that codes stand for to memory first. A kernel reads the matrices of those experts
that have rows, as they are stored, and makes numbers of them where it multiplies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from .jax_rows_runtime import Routing, expert_dot
from .jax_runtime import decoded

try:
    from jax.experimental.pallas import triton
except ImportError:
    triton = None


def row_tiles(sizes: jax.Array, rows: int, height: int) -> tuple[jax.Array, ...]:
    """The tiles of at most `height` rows that the rows of experts, of which each has so many, are cut into, as many as
    there can be: of each its expert, its first row and the row after its last. What is left of all `rows` comes last,
    of the expert after the last."""
    sizes = jnp.append(sizes, rows - sizes.sum())
    counts, ends = -(-sizes // height), jnp.cumsum(sizes)
    after = jnp.cumsum(counts)
    tile = jnp.arange(rows // height + len(sizes))
    expert = jnp.minimum(jnp.searchsorted(after, tile, side="right"), len(sizes) - 1)
    first = (ends - sizes)[expert] + (tile - (after - counts)[expert]) * height
    return tuple(a.astype(jnp.int32) for a in (expert, first, jnp.minimum(first + height, ends[expert])))


def is_packed(kind: Any) -> bool:
    """Whether a GPU has two numbers of a kind in a byte."""
    return kind in (jnp.float4_e2m1fn, jnp.int4)


def as_integers(codes: jax.Array) -> jax.Array:
    """Numbers of few bits as integers that kernels read, of four bits two in a byte."""
    if codes.dtype in (jnp.float32, jnp.bfloat16, jnp.int8):
        return codes
    pairs = codes.reshape(*codes.shape[:-1], -1, 2) if is_packed(codes.dtype) else codes
    return lax.bitcast_convert_type(pairs, jnp.uint8)


def as_numbers(codes: jax.Array, kind: Any) -> jax.Array:
    """What `as_integers` made of numbers of a kind, in f32. GPUs take eight times as long to convert integers as to add
    such, but for bytes, several of which Triton converts at once: of four bits they are put where the last bits of f32
    of a size stand, and exponents where those of f32 do."""
    if kind in (jnp.float32, jnp.bfloat16, jnp.int8):
        return codes.astype(jnp.float32)
    if is_packed(kind):
        codes = jnp.stack([codes & 15, codes >> 4], -1).reshape(*codes.shape[:-1], -1)
    whole = codes.astype(jnp.int32)
    if kind == jnp.int4:
        return lax.bitcast_convert_type((whole ^ 8) + 0x4B000000, jnp.float32) - (2.0**23 + 8)
    bits, mantissa = jnp.finfo(kind).bits, jnp.finfo(kind).nmant
    if not mantissa:  # powers of two, of which none has a sign
        return lax.bitcast_convert_type(whole << 23, jnp.float32)
    bias = 2 ** (jnp.finfo(kind).nexp - 1) - 1
    size = whole & (2 ** (bits - 1) - 1)
    least = size >> mantissa == 0  # as if their exponent were 1, less what that adds
    found = (size << (23 - mantissa)) + jnp.where(least, (128 - bias) << 23, (127 - bias) << 23)
    number = lax.bitcast_convert_type(found, jnp.float32) - jnp.where(least, 2.0 ** (1 - bias), 0.0)
    sign = (whole >> (bits - 1)) << 31
    return lax.bitcast_convert_type(lax.bitcast_convert_type(number, jnp.int32) ^ sign, jnp.float32)


def suited_tile(
    rows: int, terms: int, columns: int, tall: int, groups: Sequence[tuple[int, int]]
) -> tuple[int, int, int, int, int]:
    """For so many rows of an expert: how many rows, at most `tall`, terms and columns a tile has, how many warps make
    it, and how many tiles of terms are on their way at once. A tile divides all terms and columns; groups of terms it
    or they divide, groups of columns, where there are some, it does."""
    height = min(max(16, 1 << (rows - 1).bit_length()), tall)
    depth, width = math.gcd(terms, 64), math.gcd(columns, 64 if height == 256 else 128)
    for of_terms, of_columns in groups:
        depth = depth if depth % of_terms == 0 else math.gcd(depth, of_terms)
        width = width if of_columns == 1 else math.gcd(width, of_columns)
    return height, depth, width, 8 if height == 256 else 4, 4 if height == 16 else 3


def scales_of_tile(ref: Any, expert: Any, step: Any, depth: int, group: int) -> jax.Array:
    """The scales of a tile of codes, the terms of `step`, as far as they differ: of groups of so many terms."""
    count = max(depth // group, 1)
    found = ref[expert, pl.ds(step * depth // group if group >= depth else step * count, count), :]
    if count in (1, depth):
        return found
    spread = jnp.broadcast_to(found[:, None, :], (count, group, found.shape[1]))
    return spread.reshape(depth, found.shape[1])


def matrix_of_tile(
    refs: Sequence[Any], expert: Any, step: Any, depth: int, groups: Sequence[tuple[int, int]], kinds: Sequence[Any]
) -> jax.Array:
    """The matrix of a tile, the terms of `step`: numbers of the first kind, times scales of the others. Without such,
    floats as they are, which tensor cores read where they come in."""
    codes, *scales = refs
    matrix = codes[expert, pl.ds(step * depth, depth), :]
    if not scales and kinds[0] in (jnp.float32, jnp.bfloat16):
        return matrix
    matrix = as_numbers(matrix, kinds[0])
    for each, (group, _), kind in zip(scales, groups[1:], kinds[1:], strict=True):
        matrix = matrix * as_numbers(scales_of_tile(each, expert, step, depth, group), kind)
    return matrix


def expert_dot_in_kernel(a: jax.Array, codes: jax.Array, at: Routing, dtype: Any, *scales: jax.Array) -> jax.Array:
    """What `expert_dot` gives of rows and of the matrices that codes with scales stand for, of which each has one for a
    group of places along terms or columns: [rows, terms] and [*experts, terms, columns] give [rows, columns]. By one
    kernel of a GPU; where JAX has nothing that compiles kernels, XLA makes the matrices first. On CPUs where these are
    small the steps of the kernel, one after another, so that they are compared, too; else as by XLA.
    """

    def by_xla(*_: jax.Array) -> jax.Array:
        return expert_dot(a, decoded(codes, a.dtype, *scales) if scales else codes.astype(a.dtype), at, dtype)

    plain = at.sizes.size == 1 and codes.dtype == a.dtype  # one product, which reads the matrix where it lies
    if triton is None or plain or (is_packed(codes.dtype) and codes.shape[-1] % 2):
        return by_xla()
    (terms, columns), experts, rows = codes.shape[-2:], at.sizes.size, max(len(a), 16)  # of a tile, at the least
    whole = [codes, *(each.reshape((1,) * (codes.ndim - each.ndim) + each.shape) for each in scales)]
    whole = [jnp.broadcast_to(each, (*codes.shape[:-2], *each.shape[-2:])) for each in whole]
    given = [each.reshape(experts, *each.shape[-2:]) for each in whole]
    kinds = [each.dtype for each in given]
    groups = [(terms // each.shape[1], columns // each.shape[2]) for each in given]
    tall = 256 if is_packed(codes.dtype) else 128  # numbers are made for each tile of rows anew, which takes time
    height, depth, width, warps, stages = suited_tile(rows // experts, terms, columns, tall, groups[1:])
    height, blocks = min(height, 1 << (rows.bit_length() - 1)), columns // width
    arrays = [jnp.pad(a, ((0, rows - len(a)), (0, 0))), *(as_integers(each) for each in given)]
    arrays += row_tiles(at.sizes.ravel(), rows, height)

    def kernel(widened: bool, *refs: Any) -> None:
        left, *right, expert, first, after, out = refs
        tile = pl.program_id(0) // blocks
        own, place = expert[tile], jnp.minimum(first[tile], rows - height)
        works = jnp.float32 if widened else a.dtype

        def step(n: Any, total: jax.Array) -> jax.Array:
            matrix = matrix_of_tile(right, own, n, depth, groups, kinds).astype(a.dtype).astype(works)
            row = left[pl.ds(place, height), pl.ds(n * depth, depth)].astype(works)
            return total + jnp.dot(row, matrix, preferred_element_type=jnp.float32)

        steps = jnp.where((own < experts) & (first[tile] < after[tile]), jnp.int32(terms // depth), jnp.int32(0))
        made = lax.fori_loop(jnp.int32(0), steps, step, jnp.zeros((height, width), jnp.float32))
        row = place + jnp.arange(height)
        inside = ((row >= first[tile]) & (row < after[tile]))[:, None]
        triton.store(out.at[pl.ds(place, height), :], made.astype(dtype), mask=inside)

    def shown(array: jax.Array, group: int) -> pl.BlockSpec:  # of matrices, the columns of a tile
        wide = width if group == 1 else 1
        held = wide // 2 if is_packed(array.dtype) else wide
        return pl.BlockSpec((*array.shape[:2], held), lambda i: (0, 0, i % blocks * width // (group * wide)))

    def run(cpu: bool) -> Callable[..., Any]:
        every = [pl.BlockSpec(each.shape, lambda _, n=each.ndim: (0,) * n) for each in arrays]
        seen = [shown(each, group) for each, (_, group) in zip(given, groups, strict=True)]
        made: Callable[..., Any] = pl.pallas_call(
            lambda *refs: kernel(cpu, *refs),
            jax.ShapeDtypeStruct((rows, columns), dtype),
            grid=(arrays[-1].size * blocks,),
            in_specs=[every[0], *seen, *every[-3:]],
            out_specs=pl.BlockSpec((rows, width), lambda i: (0, i % blocks)),
            compiler_params=triton.CompilerParams(num_warps=warps, num_stages=stages),
            interpret=cpu,
            name="experts",
        )
        return lambda *given: made(*given)[: len(a)]

    few = codes.size * (len(a) + experts) <= 2**24
    found: jax.Array = lax.platform_dependent(*arrays, cpu=run(True) if few else by_xla, default=run(False))
    return found
