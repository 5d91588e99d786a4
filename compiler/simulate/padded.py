"""Arrays of padded dims: zeros put beyond the true sizes, and taken away again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...ir.program import Program
from .pointwise import Array


def zero_padded(program: Program, sizes: Mapping[str, int], stored: Mapping[str, Array]) -> dict[str, Array]:
    """Stored tensors of true sizes, by name, with zeros beyond them; `sizes` are the padded ones."""
    values, out = program.table(), dict(stored)
    for name, array in stored.items():
        dims = values[name].dims
        stacked = array.ndim - len(dims)
        grown = [sizes[d] - n for d, n in zip(dims, array.shape[stacked:], strict=True)]
        if any(grown):
            out[name] = np.pad(array, [(0, 0)] * stacked + [(0, n) for n in grown])
    return out


def true_part(program: Program, sizes: Mapping[str, int], name: str, array: Array) -> Array:
    """A value at its true places; its dims are the last of the array's."""
    true = program.true_sizes(sizes)
    places: tuple[Any, ...] = (..., *(slice(true[d]) for d in program.table()[name].dims))
    return np.asarray(array[places])
