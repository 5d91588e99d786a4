"""Ops on the shards of all chips at once: what each chip computes from what it holds.

Arrays have the mesh's axes in front. Layouts are read only where a chip must know which global
positions are its own: in Iota, Take and Append.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence

import numpy as np

from ...ir.expr import operands
from ...ir.program import Append, Einsum, Iota, Map, Op, Reduce, Sum, Take, TopK, signature
from ...ir.spmd import SpmdValue
from .numpy_runtime import Mesh, top_k
from .pointwise import Array, Frame, evaluate


def run_op(
    op: Op,
    env: Mapping[str, Array],
    values: Mapping[str, SpmdValue],
    sizes: Mapping[str, int],
    mesh: Mesh,
    contexts: Mapping[str, int],
) -> Array:
    """The shards of the op's result. Raises ValueError where local shapes do not fit together.

    `contexts`: how many places are filled along the dims of which not all are.
    """
    lead = len(mesh.shape)
    result = values[op.result]
    local = _extents(op, env, values, lead)
    shape = tuple(local.get(d, sizes[d] // mesh.ways(axes)) for d, axes in _split(result))
    frame = Frame(result.dims, mesh.shape + shape, sizes, contexts)

    def aligned(name: str) -> Array:
        return frame.align(env[name], values[name].dims)

    match op:
        case Einsum(_, names, indices, output):
            letters = dict(zip(local, string.ascii_letters, strict=False))
            terms = ["..." + "".join(letters[i] for i in each) for each in (*indices, output)]
            text = ",".join(terms[:-1]) + "->" + terms[-1]
            return np.asarray(np.einsum(text, *(env[n] for n in names), optimize=len(names) > 2))
        case Map(_, expr):
            return evaluate(expr, {name: aligned(name) for name in operands(expr)}, frame)
        case Sum(_, names, coefficients):
            total = np.zeros(frame.shape)
            for name, coefficient in zip(names, coefficients, strict=True):
                total += coefficient * aligned(name)
            return total
        case Reduce(_, name, over):
            have = values[name].dims
            highest = env[name].max(axis=tuple(lead + have.index(d) for d in over))
            return frame.align(highest, [d for d in have if d not in over])
        case Take(_, table, ids, over):
            rows = values[table]
            found = [rows.dims.index(d) for d in over]
            taken = mesh.take(env[table], env[ids], found, [rows.layout.dims[i] for i in found])
            return frame.align(taken, [*values[ids].dims, *(d for d in rows.dims if d not in over)])
        case TopK(_, keys, picked, over, keep):
            order = [*(d for d in values[keys].dims if d not in over), *over]
            # Broadcasting leaves the sizes to the keys; here only the order of dims counts.
            whole = Frame(tuple(order), (), sizes)
            return top_k(
                whole.align(env[keys], values[keys].dims),
                whole.align(env[picked], values[picked].dims),
                len(over),
                sizes[keep],
            )
        case Iota(_, dim):
            return mesh.iota(sizes[dim], result.layout.dims[0])
        case Append(_, cache, new, source, target):
            at = result.dims.index(target)
            if env[new].shape[lead + values[new].dims.index(source)] != sizes[source]:
                raise ValueError(f"a chip lacks new entries along `{source}`")
            entries = frame.align(env[new], [target if d == source else d for d in values[new].dims])
            return mesh.append(env[cache], entries, at, values[cache].layout.dims[at], frame.context(target))


def _split(value: SpmdValue) -> Sequence[tuple[str, tuple[str, ...]]]:
    return list(zip(value.dims, value.layout.dims, strict=True))


def _extents(op: Op, env: Mapping[str, Array], values: Mapping[str, SpmdValue], lead: int) -> dict[str, int]:
    """The local size of every index of the op; operands must agree, for NumPy would broadcast a 1."""
    extents: dict[str, int] = {}
    for use in signature(op, {name: value.value for name, value in values.items()}).uses:
        for index, size in zip(use.indices, env[use.value].shape[lead:], strict=True):
            if extents.setdefault(index, size) != size:
                raise ValueError(f"index `{index}` has {extents[index]} local elements here and {size} there")
    return extents
