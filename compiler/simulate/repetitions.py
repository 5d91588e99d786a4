"""Arrays of what repeats hold: the part of them that a stage has, and the whole of such parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

from .pointwise import Array

# Of the repeats around something, outermost first, a repetition, or from one up to another; of others all.
Index: TypeAlias = Sequence[int | Sequence[int]]


def part_of(array: Array, index: Index) -> Array:
    """Some repetitions of an array that has all of them, in front."""
    return np.asarray(array[_at(index)])


def joined(parts: Mapping[str, Sequence[tuple[Index, Array]]]) -> dict[str, Array]:
    """The arrays of all repetitions, by name, of parts that have each of them once."""
    return {name: _joined(each) for name, each in parts.items()}


def _joined(parts: Sequence[tuple[Index, Array]]) -> Array:
    index, array = max(parts, key=lambda part: len(part[0]))
    ends = [[at + 1 if isinstance(at, int) else at[1] for at in one] for one, _ in parts]
    counts = [max(end[n] for end in ends if n < len(end)) for n in range(len(index))]
    several = sum(not isinstance(at, int) for at in index)
    whole = np.empty((*counts, *array.shape[several:]), array.dtype)
    for one, some in parts:
        whole[_at(one)] = some
    return whole


def _at(index: Index) -> tuple[int | slice, ...]:
    return tuple(at if isinstance(at, int) else slice(*at) for at in index)
