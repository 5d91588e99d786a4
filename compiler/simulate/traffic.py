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


def elements_sent(
    mesh: Mesh,
    shape: Sequence[int],
    collective: Collective,
    before: Layout,
    after: Layout,
    kept: NDArray[Any] | None = None,
) -> Fraction:
    """The elements that the busiest chip sends in one execution.

    `shape` is the global shape of the value, `before` and `after` how it lies. An element that k
    other chips need is sent k times. Chips exchange data within groups, which differ only in the
    axes that take part; all groups are alike, so one is counted. `kept`: of a chosen value 1 where an
    element is kept, 0 elsewhere, which nobody sends; of its shape, or of 1 along dims that do not matter.
    Then every group is counted.
    """
    part = sorted(before.split_axes) if isinstance(collective, Permute) else collective.axes
    group = dict(zip(part, np.indices([mesh.size(axis) for axis in part]).reshape(len(part), -1), strict=True))
    if kept is None:
        return _sent_in_group(mesh, shape, collective, before, after, group, None)
    others = [axis for axis in mesh.names if axis not in part]
    places = np.ndindex(*(mesh.size(axis) for axis in others))
    chips = math.prod(mesh.size(axis) for axis in part)
    alike = [group | {a: np.full(chips, n) for a, n in zip(others, place, strict=True)} for place in places]
    return max(_sent_in_group(mesh, shape, collective, before, after, each, kept) for each in alike)


def _sent_in_group(
    mesh: Mesh,
    shape: Sequence[int],
    collective: Collective,
    before: Layout,
    after: Layout,
    group: Mapping[str, NDArray[Any]],
    kept: NDArray[Any] | None,
) -> Fraction:
    """The elements that the busiest chip of a group sends."""
    held, needed = _ranges(mesh, shape, before, group), _ranges(mesh, shape, after, group)
    match collective:
        case Slice() | Embed():
            return Fraction(0)
        case AllReduce(axes):
            # Each chip finishes an equal share: the others send it theirs, and it sends them the sum.
            size, others = int(_overlap(held, held, kept)[0, 0]), mesh.size(*axes) - 1
            return 2 * others * Fraction(size, mesh.size(*axes))
        case _:
            # sent[i, j]: what chip j needs of what i holds; for partial values i's contribution to it.
            sent = _overlap(held, needed, kept)
            np.fill_diagonal(sent, 0)
            return Fraction(int(sent.sum(axis=1).max()))


Ranges = list[tuple[NDArray[Any], NDArray[Any]]]  # for each dim: first element and end, by chip


def _ranges(mesh: Mesh, shape: Sequence[int], layout: Layout, group: Mapping[str, NDArray[Any]]) -> Ranges:
    """What the chips of a group hold; `group` gives their coordinates on the axes that take part, and maybe others."""
    chips = max((len(places) for places in group.values()), default=1)
    ranges: Ranges = []
    for size, axes in zip(shape, layout.dims, strict=True):
        block = np.zeros(chips, dtype=np.int64)
        for axis in axes:
            block = block * mesh.size(axis) + group.get(axis, 0)
        length = size // mesh.size(*axes)
        ranges.append((block * length, (block + 1) * length))
    return ranges


def _overlap(held: Ranges, needed: Ranges, kept: NDArray[Any] | None) -> NDArray[Any]:
    """How many elements chip j's `needed` has in common with chip i's `held`, at [i, j]."""
    chips = len(held[0][0]) if held else 1
    if kept is not None:
        return np.array([[_kept_in(held, i, needed, j, kept) for j in range(chips)] for i in range(chips)])
    common = np.ones((chips, chips), dtype=np.int64)
    for (first, end), (wanted, last) in zip(held, needed, strict=True):
        inside = np.minimum(end[:, None], last[None, :]) - np.maximum(first[:, None], wanted[None, :])
        common *= np.maximum(inside, 0)
    return common


def _kept_in(held: Ranges, i: int, needed: Ranges, j: int, kept: NDArray[Any]) -> int:
    """How many kept elements chip j's `needed` has in common with chip i's `held`."""
    inside, times = [], 1
    for (first, end), (wanted, last), size in zip(held, needed, kept.shape, strict=True):
        begin, stop = max(first[i], wanted[j]), min(end[i], last[j])
        inside.append(slice(None) if size == 1 else slice(begin, max(begin, stop)))
        times *= max(0, int(stop - begin)) if size == 1 else 1
    return times * int(kept[tuple(inside)].sum())
