"""A pipeline whose stages stream weights, caches or both from hosts of their own, or from shares of one.

How many layers are streamed is chosen around the choice of the pipeline, as it is around that of a plan without stages:
none or all where nothing can be quicker, or else the fewest that have to be, about as many as come while others
compute, or all, whichever is quickest. A stage streams its part of them, for every micro-batch again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ...cost.streams import NO_HOST, host_of_stages
from ...ir.diagnostics import InputError, fail
from ...ir.mesh import Mesh
from ...ir.program import Kind, Program, Stored, walk
from ...passes.choose import Options
from ...passes.plan import PROVEN
from ...passes.stages.choose_stages import NoPipeline
from ...passes.stages.divide import layers_of
from .compiled import CompiledPhase
from .offload import FAMILIES, Offload
from .staged import Staged, compile_staged
from .streamed_layers import Family, Quickest, quickest, streaming


def with_hosts(mesh: Mesh, axis: str, options: Options) -> Options:
    """The options for stages along an axis, each with its hosts or its share of one. Raises InputError where stages
    cannot stream."""
    hardware = options.hardware
    if hardware.host is None:
        raise fail(f"{hardware.name} has no host to store parameters or caches in.", hint=NO_HOST)
    return replace(options, hardware=replace(hardware, host=host_of_stages(hardware.host, mesh, axis)))


@dataclass
class _Pipelines(Family[Staged]):
    """Pipelines along an axis that stream tensors of some kinds."""

    phases: Sequence[str]
    mesh: Mesh
    axis: str
    options: Options
    micro_batches: Mapping[str, int] | None

    def planned(self, program: Program) -> Staged:
        """The pipeline of a program. Raises as `compile_staged` does."""
        return compile_staged(program, self.phases, self.mesh, self.axis, self.options, self.micro_batches)

    @property
    def computing_s(self) -> float:
        """The bound of the pipeline that streams all: others leave less room."""
        return self.at(self.layers).plan.computing_s

    def most_room(self) -> list[CompiledPhase]:
        """All phases of all its stages."""
        return [one for stage in self.at(self.layers).stages for one in stage]

    def best(self) -> Quickest[Staged]:
        """None where nothing can be quicker; or else the fewest that have to be streamed, as many as are hidden, or
        all."""
        if self.fits(0) and self.at(0).plan.price <= self.computing_s * (1 + PROVEN):
            counts = {0}
        else:
            least = self.least()
            counts = {least, max(least, self.hidden()), self.layers}
        price, count = min((self.at(count).plan.price, count) for count in counts)
        return Quickest(self.at(count), self.kinds, count, price, min(price, self.bound_s()))

    def bound_s(self) -> float:
        """What every pipeline takes at the least: of some way to divide batches, to compute what that takes with most
        room, and for more layers to come than it was shown not to fit with."""
        tried = {}
        for count, one in {**self.unstreamed, **self.some}.items():
            if isinstance(one, Staged | NoPipeline):
                tried[count] = one.plan.splits if isinstance(one, Staged) else one.splits
        every = []
        for n, freest in enumerate(tried[self.layers]):
            few = max((count for count, splits in tried.items() if splits[n].computing_s == math.inf), default=-1)
            more = tried.get(few + 1, tried.get(few, ()))
            every.append(max([freest.computing_s, *(each.fetching_s for each in more[n : n + 1])]))
        return min(every)

    def guesses(self) -> Iterator[int]:
        """None; and the fewest that fit in the layouts of the pipeline that streams all, and one fewer."""
        yield 0
        share = 0.0
        for stage in self.at(self.layers).stages:
            own = next(one for one in stage if one.memory.total_bytes == max(o.memory.total_bytes for o in stage))
            room = self.options.capacity - float(own.memory.total_bytes)
            count = layers_of(own.program)
            held, sets = dict(own.memory.stored), {Kind.CACHE: own.spmd.micro_batches}  # a set for each batch
            streamed = ((float(held[one.value]), sets.get(one.kind, 1)) for one in _streamed(own.program))
            layer = math.fsum(size * many for size, many in streamed) / min(count, 1 + self.ahead)
            kept = int(room // layer) if layer else count
            share = max(share, (count - kept) / count)
        fewest = min(self.layers, max(0, math.ceil(share * self.layers)))
        yield fewest
        yield max(0, fewest - 1)


def _streamed(program: Program) -> list[Stored]:
    return [p.item for p in walk(program.body) if isinstance(p.item, Stored) and p.item.streamed]


def compile_streamed_stages(
    program: Program,
    phases: Sequence[str],
    mesh: Mesh,
    axis: str,
    options: Options,
    offload: Offload,
    ahead: int = 1,
    micro_batches: Mapping[str, int] | None = None,
    run: bool = False,
) -> Staged:
    """The quickest pipeline along an axis that is found with weights, caches or both streamed, `ahead` layers before
    they are needed.

    The bound is of all pipelines that stream any of their layers: none computes quicker than one that keeps the least,
    nor fetches less than the fewest layers that have to be streamed. Raises as `compile_staged` does, and InputError
    where stages cannot stream or the host cannot hold them.
    """
    own = with_hosts(mesh, axis, options)
    unstreamed: dict[int, Staged | InputError] = {}
    given = phases, mesh, axis, own, micro_batches
    best = quickest(_Pipelines(program, kinds, ahead, unstreamed, *given) for kinds in FAMILIES[offload])
    found = best.found
    if run:  # again, with what is run of it
        found = compile_staged(streaming(program, best.kinds, best.streamed, ahead), *given, run)
    return replace(found, plan=replace(found.plan, bound=best.bound))
