"""A pipeline run on virtual chips: micro-batches go through all stages, and what comes out is the whole model's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np

from ...ir.choices import with_choices
from ...ir.program import Op, Program, Region, Repeat, Stored, walk
from ...ir.spmd import SpmdProgram, Step
from ...passes.stages.divide import Stage
from .check import largest_difference, refuse_large
from .pointwise import Array
from .reference import random_stored, run_reference
from .shrink import shrink
from .spmd_interpreter import run_spmd

MOST_MICRO_BATCHES = 2  # enough to show that each has caches of its own


def check_pipeline(
    program: Program, stages: Sequence[Stage], spmds: Sequence[SpmdProgram], batch: str, seed: int = 0
) -> float:
    """The largest difference, as `check` has it, between a model and its pipeline in one phase, on shrunken dims.

    `spmds`: the sharded program of each stage, with what it receives and hands on as the program of `stages` names
    them. `batch`: the dim that micro-batches divide. Raises as `check` does; ExecutionError also where a stage does
    not get what it should.
    """
    phase, micro_batches = spmds[0].phase, min(spmds[0].micro_batches, MOST_MICRO_BATCHES)
    bound = replace(program.phase(phase), sizes=spmds[0].sizes)
    shrunken = shrink(replace(program, phases=(bound,)), spmds)
    for spmd in shrunken.spmds:
        refuse_large(spmd)
    counts = [_counts(spmd.body) for spmd in shrunken.spmds]
    sums = {name: sum(count.get(name, 0) for count in counts) for name in _counts(program.body)}
    whole = with_choices(replace(shrunken.program, body=_counted(shrunken.program.body, sums)))
    sizes = dict(shrunken.spmds[0].sizes)
    sizes[batch] *= micro_batches
    stored = random_stored(whole, sizes, seed)
    expected = run_reference(whole, sizes, stored)
    ends = {name: list(accumulate(count.get(name, 0) for count in counts)) for name in sums}
    runs = [
        _through(whole, stages, shrunken.spmds, {**stored}, ends, batch, (m, micro_batches))
        for m in range(micro_batches)
    ]
    errors = []
    for name, array in expected.items():
        dims = whole.table()[name].dims
        parts = [run[name] for run in runs]
        axis = dims.index(batch) - len(dims) if batch in dims else None
        made = parts[0] if axis is None else np.concatenate(parts, axis)
        errors.append(largest_difference(made, array))
    return max(errors, default=0.0)


def _through(
    program: Program,
    stages: Sequence[Stage],
    spmds: Sequence[SpmdProgram],
    stored: Mapping[str, Array],
    ends: Mapping[str, Sequence[int]],
    batch: str,
    part: tuple[int, int],
) -> dict[str, Array]:
    """What a micro-batch, `part` of so many, gives in all stages: results, and versions of caches of all layers."""
    table = program.table()
    around = {p.item.value: p.repeats for p in walk(program.body) if isinstance(p.item, Stored)}
    handed: tuple[Array, ...] = ()
    found: dict[str, list[Array]] = {}
    for n, (stage, spmd) in enumerate(zip(stages, spmds, strict=True)):
        given = dict(zip(stage.received, handed, strict=True))
        for name in (p.item.value for p in walk(spmd.body) if isinstance(p.item, Stored)):
            if name not in given:
                array = _part(stored[name], table[name].dims, batch, part)
                if around[name]:
                    end = ends[around[name][0].name]
                    array = array[(end[n - 1] if n else 0) : end[n]]
                given[name] = array
        results = run_spmd(spmd, given).results
        named = dict(zip(stage.program.results, spmd.results, strict=True))
        handed = tuple(results[named[name]] for name in stage.passed)
        for name, array in results.items():
            own = next((own for own, copy in named.items() if copy == name), name)
            if own not in stage.passed:
                found.setdefault(own, []).append(array)
    return {name: parts[0] if len(parts) == 1 else np.concatenate(parts) for name, parts in found.items()}


def _part(array: Array, dims: Sequence[str], batch: str, part: tuple[int, int]) -> Array:
    """A micro-batch's part of what has the batch among its dims, which are the last ones of the array."""
    if batch not in dims:
        return array
    which, of = part
    return np.split(array, of, axis=dims.index(batch) - len(dims))[which]


def _counts(region: Region[Op] | Region[Step]) -> dict[str, int]:
    """How often each repeat runs that stands in no other."""
    return {item.name: item.count for item in region.items if isinstance(item, Repeat)}


def _counted(region: Region[Op], counts: Mapping[str, int]) -> Region[Op]:
    """The shrunken region with repeats that run so often."""
    items = tuple(replace(i, count=counts[i.name]) if isinstance(i, Repeat) else i for i in region.items)
    return replace(region, items=items)
