"""The codes that a run in floats of 32 bits rounded: what lies halfway between two of them becomes either."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...ir.dataflow import ops
from ...ir.dtype import Dtype
from ...ir.program import Append, Map, Program
from ..simulate.finite import INTEGERS
from ..simulate.pointwise import Array

HALFWAY = 5e-5  # of the largest code: how far floats of 32 bits are from what they were exactly, of what is rounded


def rounded_caches(program: Program) -> dict[str, Append]:
    """The appends of codes to caches, by the values that these are: those that a map of the program makes."""
    values, maps = program.table(), {op.result for op in ops(program) if isinstance(op, Map)}
    found = [op for op in ops(program) if isinstance(op, Append) and values[op.new].dtype in INTEGERS]
    return {op.new: op for op in found if op.new in maps}


def slack_of(dtype: Dtype) -> float:
    """How far from halfway a number may be that becomes either code."""
    return INTEGERS[dtype] * HALFWAY


def appended(
    program: Program, op: Append, version: Array, sizes: Mapping[str, int], contexts: Mapping[str, int]
) -> list[Array] | None:
    """The entries that an append left in a cache, in each repetition, along the dims of what was appended; None where
    later ones lie over some.

    `version`: whole, with one leading dim for each repeat around the append; `contexts`: how many places are filled.
    """
    values = program.table()
    dims, own = values[op.result].dims, values[op.new].dims
    stacked = version.ndim - len(dims)
    count, slots = sizes[op.source], sizes[op.target]
    end = contexts.get(op.context or op.target, sizes[op.context or op.target])
    entries = [op.source if d == op.target else d for d in dims]
    if count > slots or sorted(entries) != sorted(own):
        return None
    found = np.take(version, [place % slots for place in range(end - count, end)], axis=stacked + dims.index(op.target))
    flat = found.reshape(-1, *found.shape[stacked:])
    return [each.transpose([entries.index(d) for d in own]) for each in flat]
