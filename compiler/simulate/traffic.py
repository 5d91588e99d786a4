"""Bytes that a collective sends, counted from who holds which elements and who needs them.

Knows no formula: blocks are ranges of element numbers, and what a chip needs and has not must come
from the chips of its group that have it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...ir.collective import AllReduce, Collective, Embed, Permute, Slice
from ...ir.layout import Layout
from ...ir.mesh import Mesh


def elements_sent(mesh: Mesh, shape: Sequence[int], collective: Collective, before: Layout, after: Layout) -> Fraction:
    """The elements that the busiest chip sends in one execution.

    `shape` is the global shape of the value, `before` and `after` how it lies. An element that k
    other chips need is sent k times. Chips exchange data within groups, which differ only in the
    axes that take part; all groups are alike, so one is counted.
    """
    part = sorted(before.split_axes) if isinstance(collective, Permute) else collective.axes
    group = dict(zip(part, np.indices([mesh.size(axis) for axis in part]).reshape(len(part), -1), strict=True))
    held, needed = _ranges(mesh, shape, before, group), _ranges(mesh, shape, after, group)
    match collective:
        case Slice() | Embed():
            return Fraction(0)
        case AllReduce(axes):
            # Each chip finishes an equal share: the others send it theirs, and it sends them the sum.
            share, others = Fraction(int(_overlap(held, held)[0, 0]), mesh.size(*axes)), mesh.size(*axes) - 1
            return others * share + others * share
        case _:
            # sent[i, j]: what chip j needs of what i holds; for partial values i's contribution to it.
            sent = _overlap(held, needed)
            np.fill_diagonal(sent, 0)
            return Fraction(int(sent.sum(axis=1).max()))


Ranges = list[tuple[NDArray[Any], NDArray[Any]]]  # for each dim: first element and end, by chip


def _ranges(mesh: Mesh, shape: Sequence[int], layout: Layout, group: Mapping[str, NDArray[Any]]) -> Ranges:
    """What the chips of a group hold; `group` gives their coordinates on the axes that take part."""
    chips = math.prod(mesh.size(axis) for axis in group)
    ranges: Ranges = []
    for size, axes in zip(shape, layout.dims, strict=True):
        block = np.zeros(chips, dtype=np.int64)
        for axis in axes:
            block = block * mesh.size(axis) + group.get(axis, 0)
        length = size // mesh.size(*axes)
        ranges.append((block * length, (block + 1) * length))
    return ranges


def _overlap(held: Ranges, needed: Ranges) -> NDArray[Any]:
    """How many elements chip j's `needed` has in common with chip i's `held`, at [i, j]."""
    chips = len(held[0][0]) if held else 1
    common = np.ones((chips, chips), dtype=np.int64)
    for (first, end), (wanted, last) in zip(held, needed, strict=True):
        inside = np.minimum(end[:, None], last[None, :]) - np.maximum(first[:, None], wanted[None, :])
        common *= np.maximum(inside, 0)
    return common
