"""How long a context can be: the caches of a model in given layouts against a share of the HBM."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction

from ..ir.diagnostics import fail
from ..ir.layout import Layout
from ..ir.mesh import Mesh
from ..ir.program import Append, Kind, Program, Stored, walk


def max_context(
    program: Program, phase: str, mesh: Mesh, layouts: Mapping[str, Layout], hbm_bytes: float, fraction: float
) -> int:
    """The longest context whose caches fit in a fraction of a chip's HBM.

    `layouts` gives the stored layout of every cache; dims other than the context have the sizes of
    `phase`. The context of a cache is the dim that an append writes along. A cache that nothing is
    appended to, or that wraps, takes its bytes first. The answer is rounded down to whole tokens on every chip.
    Raises KeyError for an unknown phase or a cache without a layout, InputError when no cache grows.
    """
    values, sizes = program.table(), dict(program.phase(phase).sizes)
    placed = list(walk(program.body))
    context = {p.item.cache: p.item.target for p in placed if isinstance(p.item, Append) and not p.item.context}
    room = Fraction(fraction) * Fraction(hbm_bytes)
    per_token, ways = Fraction(0), 1
    for p in placed:
        if not isinstance(p.item, Stored) or p.item.kind is not Kind.CACHE:
            continue
        value, layout = values[p.item.value], layouts[p.item.value]
        dim = context.get(value.name)
        whole = math.prod(1 if d == dim else sizes[d] for d in value.dims)
        size = Fraction(p.times * whole * value.dtype.bits, 8 * mesh.size(*layout.split_axes))
        if dim is None:
            room -= size
        else:
            per_token += size
            ways = math.lcm(ways, mesh.size(*layout.dims[value.dims.index(dim)]))
    if not per_token:
        raise fail(f"No cache of phase `{phase}` grows with its context.", hint="a cache that is appended to does")
    return max(0, math.floor(room / per_token / ways) * ways)
