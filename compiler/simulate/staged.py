"""Phases run on virtual chips at small sizes, stage by stage; and a pipeline's micro-batches beside the whole model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cached_property

import numpy as np

from ...ir.choices import with_choices
from ...ir.dataflow import defined, ops_in, repeat_counts
from ...ir.program import Append, Op, Program, Region, Repeat, stored_in
from ...ir.record import record
from ...ir.spmd import SpmdProgram, Step
from ...passes.stages.divide import Stage
from ...passes.stages.opened import Origin
from .check import largest_difference, refuse_large
from .pointwise import Array
from .reference import random_stored, run_reference
from .repetitions import Index, joined, part_of
from .shrink import MOST_REPEATS, shrink
from .spmd_interpreter import run_spmd

MOST_MICRO_BATCHES = 2  # enough to show that each has caches of its own


@record
class Ran:
    """What a run gave: results and versions of caches, by the names of the whole program, the latter of all layers; and
    how many bytes the chips of each stage sent, each of them."""

    results: Mapping[str, Array]
    sent_bytes: tuple[Fraction, ...]


@record
class SmallPhase:
    """A phase on shrunken dims. `program`: the whole model; `spmds`: what the chips of each of its `stages` run, one
    where it is not divided."""

    program: Program
    stages: tuple[Stage, ...]
    spmds: tuple[SpmdProgram, ...]

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each dim, padded ones as they are held; that of the batch is a micro-batch's."""
        return dict(self.spmds[0].sizes)

    @property
    def whole(self) -> bool:
        """Whether repeats run as often as at full size, and not twice at most."""
        return _written_out(self.stages)

    @property
    def turns(self) -> int:
        """How many micro-batches there are, of those that a run at full size has."""
        return min(self.spmds[0].micro_batches, MOST_MICRO_BATCHES)

    def run(
        self, stored: Mapping[str, Array], contexts: Mapping[str, int] | None = None, watch: Sequence[str] = ()
    ) -> Ran:
        """Run a micro-batch through all stages, as `run_spmd` does; `stored`: whole, of all layers. Raises as that
        does."""
        handed: tuple[Array, ...] = ()
        found: dict[str, list[tuple[Index, Array]]] = {}
        sent = []
        for stage, spmd, of in zip(self.stages, self.spmds, self.of, strict=True):
            given = dict(zip(stage.received, handed, strict=True))
            for name in (one.value for one in stored_in(spmd.body)):
                if name not in given:
                    whole, index = of.get(name, (name, ()))
                    given[name] = part_of(stored[whole], index)
            table = spmd.table()
            ran = run_spmd(spmd, given, contexts, [name for name in watch if name in table])
            sent.append(sum((move.times * move.bytes_sent for move in ran.moves), Fraction(0)))
            named = zip(stage.program.results, spmd.results, strict=True)
            made = {**ran.results, **{name: ran.results[copy] for name, copy in named}}
            handed = tuple(made[name] for name in stage.passed)
            kept = {op.result for op in ops_in(spmd.body) if isinstance(op, Append)}  # and perhaps handed on as well
            for name, array in made.items():
                if name not in stage.passed or name in kept:
                    own, index = of.get(name, (name, ()))
                    found.setdefault(own, []).append((index, array))
        return Ran(joined(found), tuple(sent))

    @cached_property
    def of(self) -> list[Mapping[str, Origin]]:
        """For each stage of which repetitions of the whole program its values are that repeats hold."""
        if self.whole:
            return [stage.of for stage in self.stages]
        found, before = list[Mapping[str, Origin]](), dict[str, int]()
        for spmd in self.spmds:
            repeats = [item for item in spmd.body.items if isinstance(item, Repeat)]
            own = {item.name: (before.get(item.name, 0), before.get(item.name, 0) + item.count) for item in repeats}
            found.append({name: (name, (own[item.name],)) for item in repeats for name in defined(item.body)})
            before |= {name: end for name, (_, end) in own.items()}
        return found


def small_phases(
    program: Program,
    stages: Sequence[Stage],
    phases: Sequence[Sequence[SpmdProgram]],
    margins: Mapping[str, int] | None = None,
) -> tuple[SmallPhase, ...]:
    """Phases on shrunken dims, as `shrink` cuts them; of each, what the chips of each stage run, with what these
    receive and hand on as the programs of `stages` name them. Repeats run as often as ever where a stage has a part of
    a repetition. Raises InputError where even they are too large to run."""
    bound = tuple(replace(program.phase(spmds[0].phase), sizes=spmds[0].sizes) for spmds in phases)
    most = max(repeat_counts(program).values()) if _written_out(stages) else MOST_REPEATS
    shrunken = shrink(replace(program, phases=bound), [spmd for spmds in phases for spmd in spmds], margins, most)
    for spmd in shrunken.spmds:
        refuse_large(spmd)
    cut = [shrunken.spmds[n : n + len(stages)] for n in range(0, len(shrunken.spmds), len(stages))]
    sized = tuple(replace(phase, sizes=spmds[0].sizes) for phase, spmds in zip(bound, cut, strict=True))
    body = shrunken.program.body
    if not _written_out(stages):
        counts = [_counts(spmd.body) for spmd in cut[0]]
        body = _counted(body, {name: sum(count.get(name, 0) for count in counts) for name in _counts(program.body)})
    whole = with_choices(replace(shrunken.program, body=body, phases=sized))
    return tuple(SmallPhase(whole, tuple(stages), spmds) for spmds in cut)


def check_pipeline(program: Program, stages: Sequence[Stage], spmds: Sequence[SpmdProgram], batch: str) -> float:
    """The largest difference, as `check` has it, between a model and its pipeline in one phase, on shrunken dims.

    `spmds`: the sharded program of each stage. `batch`: the dim that micro-batches divide. Raises as `check` does;
    ExecutionError also where a stage does not get what it should.
    """
    [small] = small_phases(program, stages, [spmds])
    table, sizes = small.program.table(), small.sizes
    sizes[batch] *= small.turns
    stored = random_stored(small.program, sizes, seed=0)
    expected = run_reference(small.program, sizes, stored)
    runs = []
    for m in range(small.turns):
        part = {name: _part(array, table[name].dims, batch, (m, small.turns)) for name, array in stored.items()}
        runs.append(small.run(part).results)
    errors = []
    for name, array in expected.items():
        dims = table[name].dims
        parts = [run[name] for run in runs]
        axis = dims.index(batch) - len(dims) if batch in dims else None
        made = parts[0] if axis is None else np.concatenate(parts, axis)
        errors.append(largest_difference(made, array))
    return max(errors, default=0.0)


def _written_out(stages: Sequence[Stage]) -> bool:
    """Whether a stage has a part of a repetition."""
    return any(stage.copies for stage in stages)


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
