"""Values as shards on small meshes, from what layouts and ops mean: the judge of rules and strategies.

A layout is dealt out to chips as real arrays (partial values as uneven parts of a truth that is
nowhere zero), an op is run on every chip alone, and the outcome is held against the truth. The
enumeration of layouts is this file's own. Only the types are shared with what is judged.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from escc.ir.expr import Call, Const, Context, Expr, Operand, Rotate, Size
from escc.ir.layout import Layout, Reduction
from escc.ir.mesh import Mesh
from escc.ir.program import Append, Choose, Einsum, Iota, Map, Op, Reduce, Sum, Take, TopK, Value, operand_names

Array = NDArray[np.float64]
Chip = dict[str, int]
Use = tuple[str, tuple[str, ...]]  # a value and the indices under which it is read
Combination = tuple[Layout, ...]  # the layouts of the uses, then the result's


@lru_cache
def chips(mesh: Mesh) -> list[Chip]:
    """The coordinates of every chip. Not to be written to."""
    return [dict(zip(mesh.names, at, strict=True)) for at in itertools.product(*(range(k) for k in mesh.sizes))]


def all_layouts(shape: Sequence[int], mesh: Mesh, reductions: Sequence[Reduction] = ()) -> Iterator[Layout]:
    """Every layout of a value of `shape`: complete, and partial by each of `reductions`."""
    live = [a for a in mesh.names if mesh.size(a) > 1]
    for reduction, places in itertools.product(
        [None, *reductions], itertools.product(["off", "part", *range(len(shape))], repeat=len(live))
    ):
        partial = tuple(sorted(a for a, p in zip(live, places, strict=True) if p == "part"))
        if bool(partial) != (reduction is not None):
            continue
        split = [[a for a, p in zip(live, places, strict=True) if p == d] for d in range(len(shape))]
        if any(axes and (n == 1 or n % mesh.size(*axes)) for n, axes in zip(shape, split, strict=True)):
            continue
        for dims in itertools.product(*(itertools.permutations(axes) for axes in split)):
            yield Layout(dims, partial, reduction or Reduction.SUM)


def block(layout: Layout, shape: Sequence[int], mesh: Mesh, chip: Chip) -> tuple[slice, ...]:
    """Which part of the whole a chip holds: the axes of a dim count like digits, major first."""
    slices = []
    for size, axes in zip(shape, layout.dims, strict=True):
        ways, number = 1, 0
        for axis in axes:
            number = number * mesh.size(axis) + chip[axis]
            ways *= mesh.size(axis)
        slices.append(slice(size // ways * number, size // ways * (number + 1)))
    return tuple(slices)


@lru_cache(maxsize=1 << 14)
def blocks_of(layout: Layout, shape: tuple[int, ...], mesh: Mesh) -> list[tuple[slice, ...]]:
    """Which part of the whole each chip holds. Not to be written to."""
    return [block(layout, shape, mesh, chip) for chip in chips(mesh)]


def deal(truth: Array, layout: Layout, mesh: Mesh, rng: np.random.Generator) -> list[Array]:
    """What each chip holds of `truth`. Partial values are random and uneven."""
    group = tuple(mesh.size(a) for a in layout.partial)
    count = math.prod(group)
    parts = rng.uniform(-3, 3, (count, *truth.shape))
    if layout.reduction is Reduction.SUM:
        parts[-1] = truth - parts[:-1].sum(0)
    else:
        parts = truth - np.abs(parts) - 0.1
        np.put_along_axis(parts, rng.integers(0, count, (1, *truth.shape)), truth[None], 0)
    held = []
    for chip, at in zip(chips(mesh), blocks_of(layout, truth.shape, mesh), strict=True):
        part = int(np.ravel_multi_index([chip[a] for a in layout.partial], group)) if group else 0
        held.append(parts[part][at])
    return held


def amounts_to(held: Sequence[Array | None], truth: Array, layout: Layout, mesh: Mesh) -> bool:
    """Whether the shards, read in `layout`, are `truth`."""
    groups: dict[tuple[int, ...], list[Array]] = {}
    where: dict[tuple[int, ...], tuple[slice, ...]] = {}
    for chip, shard, at in zip(chips(mesh), held, blocks_of(layout, truth.shape, mesh), strict=True):
        if shard is None or shard.shape != truth[at].shape:
            return False
        key = tuple(chip[a] for a in mesh.names if a not in layout.partial)
        groups.setdefault(key, []).append(shard)
        where[key] = at
    combine = np.sum if layout.reduction is Reduction.SUM else np.max
    return all(np.allclose(combine(np.stack(parts), axis=0), truth[where[key]]) for key, parts in groups.items())


def uses_of(op: Op, values: Mapping[str, Value]) -> list[Use]:
    """What `op` reads: each value with the indices under which it is read, once."""
    if isinstance(op, Einsum):
        return list(dict.fromkeys(zip(op.operands, op.indices, strict=True)))
    return [(name, values[name].dims) for name in operand_names(op)]


class NotLocal(Exception):
    """A chip cannot run the op on what it holds: shapes differ, or pairs are torn."""


def run(
    op: Op,
    values: Mapping[str, Value],
    sizes: Mapping[str, int],
    reads: Mapping[Use, Array],
    blocks: Mapping[Use, tuple[slice, ...]],
    result_block: tuple[slice, ...],
) -> Array:
    """What one chip makes of its shards. A chip knows at which places of the whole they stand."""
    dims = values[op.result].dims
    match op:
        case Einsum(_, names, indices, output):
            factors = [(reads[(n, i)], i) for n, i in zip(names, indices, strict=True)]
            _same_sizes(factors)
            letters = {i: chr(97 + k) for k, i in enumerate(dict.fromkeys(x for _, ix in factors for x in ix))}
            spec = ",".join("".join(letters[i] for i in ix) for _, ix in factors)
            return np.asarray(np.einsum(f"{spec}->{''.join(letters[i] for i in output)}", *[a for a, _ in factors]))
        case Map(_, expr):
            _fits_result(reads, dims, result_block)
            named = {name: _spread(array, ix, dims) for (name, ix), array in reads.items()}
            return _whole(evaluate(expr, named, sizes, dims), result_block)
        case Sum(_, names, coefficients):
            _fits_result(reads, dims, result_block)
            terms = [
                c * _spread(reads[(n, values[n].dims)], values[n].dims, dims)
                for n, c in zip(names, coefficients, strict=True)
            ]
            return _whole(sum(terms[1:], terms[0]), result_block)
        case Reduce(_, name, over):
            ((_, array),) = reads.items()
            return np.asarray(array.max(tuple(values[name].dims.index(d) for d in over)))
        case Take(_, table, ids, over):
            use = (table, values[table].dims)
            dims = [d for d in use[1] if d not in over]
            wanted = np.rint(reads[(ids, values[ids].dims)]).astype(int)
            whole = np.zeros((*(sizes[d] for d in over), *(reads[use].shape[use[1].index(d)] for d in dims)))
            mine = tuple(blocks[use][use[1].index(d)] for d in over)
            whole[mine] = reads[use].transpose([use[1].index(d) for d in (*over, *dims)])
            rows = whole.reshape(-1, *whole.shape[len(over) :])
            known = (wanted >= 0) & (wanted < len(rows))
            found = rows[np.where(known, wanted, 0)]
            return np.asarray(np.where(known.reshape(known.shape + (1,) * (rows.ndim - 1)), found, 0.0))
        case TopK(_, keys, picked, over, keep):
            dims = [d for d in values[keys].dims if d not in over] + list(over)
            key = _spread(reads[(keys, values[keys].dims)], values[keys].dims, dims)
            entry = _spread(reads[(picked, values[picked].dims)], values[picked].dims, dims)
            for d, k, e in zip(dims, key.shape, entry.shape, strict=True):
                if e != (k if d in values[picked].dims else 1):
                    raise NotLocal
            left = key.shape[: len(dims) - len(over)]
            key, entry = (a.reshape(*left, -1) for a in (key, np.broadcast_to(entry, key.shape)))
            found = np.full((*left, sizes[keep]), np.nan)
            for row in np.ndindex(left):
                pairs = sorted(zip(-key[row], range(len(key[row])), entry[row], strict=True))[: sizes[keep]]
                found[(*row, slice(0, len(pairs)))] = [e for _, _, e in pairs]
            return found
        case Choose(_, keys, over, keep):
            ((_, key),) = reads.items()
            axes = [values[keys].dims.index(d) for d in over]
            rows = np.moveaxis(key, axes, range(-len(axes), 0))
            if math.prod(rows.shape[rows.ndim - len(axes) :]) < keep:
                raise NotLocal
            kept = np.zeros(rows.shape)
            for row in np.ndindex(rows.shape[: rows.ndim - len(axes)]):
                seen = (at for at in np.ndindex(rows[row].shape) if rows[row][at] != -np.inf)
                places = sorted(seen, key=lambda at: (-rows[row][at], at))
                for at in places[:keep]:
                    kept[row][at] = 1.0
            return np.moveaxis(kept, range(-len(axes), 0), axes)
        case Iota():
            return np.arange(result_block[0].start, result_block[0].stop, dtype=float)
        case Append(_, cache, new, source, target):
            old, added = (cache, values[cache].dims), (new, values[new].dims)
            to, fro = old[1].index(target), added[1].index(source)
            order = [fro if d == target else added[1].index(d) for d in old[1]]
            entries = reads[added].transpose(order)
            out = reads[old].copy()
            if [n for a, n in enumerate(entries.shape) if a != to] != [n for a, n in enumerate(out.shape) if a != to]:
                raise NotLocal
            place = np.arange(blocks[added][fro].start, blocks[added][fro].stop) + sizes[target] - sizes[source]
            place -= blocks[old][to].start
            mine = (place >= 0) & (place < out.shape[to])
            np.moveaxis(out, to, 0)[place[mine]] = np.moveaxis(entries, to, 0)[mine]
            return out


def evaluate(expr: Expr, named: Mapping[str, Array], sizes: Mapping[str, int], dims: Sequence[str]) -> Array:
    """A pointwise expression of arrays spread over `dims`."""
    match expr:
        case Const(number):
            return np.full((1,) * len(dims), number)
        case Size(dim) | Context(dim):
            return np.full((1,) * len(dims), float(sizes[dim]))
        case Operand(name):
            return named[name]
        case Rotate(inner, dim):
            array = np.moveaxis(evaluate(inner, named, sizes, dims), dims.index(dim), -1)
            if array.shape[-1] % 2:
                raise NotLocal
            turned = np.stack([-array[..., 1::2], array[..., ::2]], -1).reshape(array.shape)
            return np.moveaxis(turned, -1, dims.index(dim))
        case Call(function, arguments):
            a = [evaluate(x, named, sizes, dims) for x in arguments]
            table = {
                "add": lambda: a[0] + a[1],
                "subtract": lambda: a[0] - a[1],
                "multiply": lambda: a[0] * a[1],
                "divide": lambda: a[0] / a[1],
                "negate": lambda: -a[0],
                "exp": lambda: np.exp(a[0]),
                "tanh": lambda: np.tanh(a[0]),
                "relu": lambda: np.maximum(a[0], 0),
                "less_equal": lambda: (a[0] <= a[1]).astype(float),
                "where": lambda: np.where(a[0] != 0, a[1], a[2]),
            }
            return np.asarray(table[function]())


def _same_sizes(factors: Sequence[tuple[Array, tuple[str, ...]]]) -> None:
    known: dict[str, int] = {}
    for array, indices in factors:
        for index, size in zip(indices, array.shape, strict=True):
            if known.setdefault(index, size) != size:
                raise NotLocal


def _fits_result(reads: Mapping[Use, Array], dims: Sequence[str], result_block: tuple[slice, ...]) -> None:
    """NumPy would broadcast a dim of local size 1; the op does not."""
    have = {d: s.stop - s.start for d, s in zip(dims, result_block, strict=True)}
    for (_, indices), array in reads.items():
        if tuple(have[i] for i in indices) != array.shape:
            raise NotLocal


def _spread(array: Array, indices: Sequence[str], dims: Sequence[str]) -> Array:
    order = [indices.index(d) for d in dims if d in indices]
    shape = [array.shape[indices.index(d)] if d in indices else 1 for d in dims]
    return array.transpose(order).reshape(shape)


def _whole(array: Array, result_block: tuple[slice, ...]) -> Array:
    return np.broadcast_to(array, tuple(s.stop - s.start for s in result_block))


def combinations(
    op: Op,
    values: Mapping[str, Value],
    sizes: Mapping[str, int],
    mesh: Mesh,
    reductions: Sequence[Reduction],
    truths: Mapping[str, Array],
) -> Iterator[tuple[Combination, bool]]:
    """Every combination of layouts of the uses and the result, and whether the op, run on shards, obeys it."""
    rng = np.random.default_rng(7)
    uses = uses_of(op, values)
    shapes = [truths[name].shape for name, _ in uses]
    whole = [tuple(slice(0, n) for n in shape) for shape in shapes]
    dims = values[op.result].dims
    indices = op.output if isinstance(op, Einsum) else dims
    result_shape = tuple(sizes[i] for i in indices)
    truth = run(
        op,
        values,
        sizes,
        {u: truths[u[0]] for u in uses},
        dict(zip(uses, whole, strict=True)),
        tuple(slice(0, n) for n in result_shape),
    )
    ready = [
        [(x, deal(truths[n], x, mesh, rng)) for x in all_layouts(truths[n].shape, mesh, reductions)] for n, _ in uses
    ]
    results = list(all_layouts(result_shape, mesh, reductions))
    # What a chip makes does not hang on the result's layout.
    blind = isinstance(op, Einsum | Reduce | Take | TopK | Choose | Append)
    for picked in itertools.product(*ready):
        made: list[Array | None] | None = None
        for result in results:
            if made is None or not blind:
                made = [
                    _attempt(op, values, sizes, mesh, uses, picked, n, result, result_shape) for n in range(mesh.chips)
                ]
            yield (*(layout for layout, _ in picked), result), amounts_to(made, truth, result, mesh)


def _attempt(
    op: Op,
    values: Mapping[str, Value],
    sizes: Mapping[str, int],
    mesh: Mesh,
    uses: Sequence[Use],
    picked: Sequence[tuple[Layout, list[Array]]],
    number: int,
    result: Layout,
    result_shape: tuple[int, ...],
) -> Array | None:
    reads = {use: held[number] for use, (_, held) in zip(uses, picked, strict=True)}
    blocks = {
        use: blocks_of(layout, tuple(sizes[d] for d in values[use[0]].dims), mesh)[number]
        for use, (layout, _) in zip(uses, picked, strict=True)
    }
    try:
        return run(op, values, sizes, reads, blocks, blocks_of(result, result_shape, mesh)[number])
    except NotLocal:
        return None
