"""A pipeline whose stages stream weights, caches or both from hosts of their own, or from shares of one.

How many layers are streamed is chosen around the choice of the pipeline, as it is around that of a plan without stages:
none or all where nothing can be quicker, or else the fewest that have to be, about as many as come while others
compute, or all, whichever is quickest. A stage streams its part of them, for every micro-batch again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ...cost.streams import NO_HOST, host_of_stages
from ...ir.diagnostics import InputError, fail
from ...ir.mesh import Mesh
from ...ir.program import Kind, Program, Stored, walk
from ...passes.choose import Options
from ...passes.plan import PROVEN, NoPlan, Outcome
from ...passes.stages.divide import layers_of
from .offload import FAMILIES, Offload, streaming
from .staged import Staged, compile_staged


def with_hosts(mesh: Mesh, axis: str, options: Options) -> Options:
    """The options for stages along an axis, each with its hosts or its share of one. Raises InputError where stages
    cannot stream."""
    hardware = options.hardware
    if hardware.host is None:
        raise fail(f"{hardware.name} has no host to store parameters or caches in.", hint=NO_HOST)
    return replace(options, hardware=replace(hardware, host=host_of_stages(hardware.host, mesh, axis)))


@dataclass
class _Pipelines:
    """The pipelines of a program along an axis, by how many layers they stream, of tensors of some `kinds`.
    `unstreamed`: that with none, which is the same for all kinds."""

    program: Program
    phases: Sequence[str]
    mesh: Mesh
    axis: str
    options: Options
    ahead: int
    micro_batches: Mapping[str, int] | None
    kinds: frozenset[Kind]
    unstreamed: dict[int, Staged | InputError]
    some: dict[int, Staged | InputError] = field(default_factory=dict)

    def at(self, streamed: int, run: bool = False) -> Staged:
        """The pipeline with so many layers streamed. Raises InputError where there is none."""
        known = self.some if streamed else self.unstreamed
        if streamed not in known or run:
            program = streaming(self.program, self.kinds, streamed, self.ahead)
            given = self.phases, self.mesh, self.axis, self.options, self.micro_batches, run
            try:
                known[streamed] = compile_staged(program, *given)
            except InputError as error:
                known[streamed] = error
        found = known[streamed]
        if isinstance(found, InputError):
            raise found
        return found

    def fits(self, streamed: int) -> bool:
        """Whether there is a pipeline with so many layers streamed."""
        try:
            self.at(streamed)
        except NoPlan:
            return False
        return True

    @property
    def computing_s(self) -> float:
        """What every pipeline that streams any of these kinds takes at the least, if nothing waits."""
        return self.at(layers_of(self.program)).plan.computing_s

    def best(self, run: bool) -> Staged:
        """The quickest of a few counts of streamed layers. Raises InputError where even all are too few."""
        layers, bound_s = layers_of(self.program), self.computing_s
        if self.fits(0) and self.at(0).plan.price <= bound_s * (1 + PROVEN):
            counts = [0]
        else:
            least = self.least(layers)
            counts = sorted({least, max(least, self.hidden(layers)), layers})
            if self.too_few(least - 1):
                bound_s = max(bound_s, self.at(least).plan.fetching_s)
        count = min(counts, key=lambda n: (self.at(n).plan.price, n))
        found = self.at(count, run)
        return replace(found, plan=replace(found.plan, bound=min(found.plan.price, bound_s)))

    def too_few(self, streamed: int) -> bool:
        """Whether it was shown that no pipeline fits with so many layers streamed."""
        refused = (self.some if streamed else self.unstreamed).get(streamed)
        return isinstance(refused, NoPlan) and refused.outcome is Outcome.INFEASIBLE

    def least(self, layers: int) -> int:
        """The fewest layers to stream so that every stage fits, looked for from where the pipeline that streams all
        says that they do."""
        low, high = -1, layers
        for count in (0, *self.guesses(layers)):
            if low < count < high:
                low, high = (low, count) if self.fits(count) else (count, high)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.fits(middle) else (middle, high)
        return high

    def guesses(self, layers: int) -> tuple[int, ...]:
        """The fewest that fit in the layouts of the pipeline that streams all, and one fewer."""
        share = 0.0
        for stage in self.at(layers).stages:
            own = next(one for one in stage if one.memory.total_bytes == max(o.memory.total_bytes for o in stage))
            room = self.options.capacity - float(own.memory.total_bytes)
            count = layers_of(own.program)
            held, sets = dict(own.memory.stored), {Kind.CACHE: own.spmd.micro_batches}  # a set for each batch
            streamed = ((float(held[one.value]), sets.get(one.kind, 1)) for one in _streamed(own.program))
            layer = math.fsum(size * many for size, many in streamed) / min(count, 1 + self.ahead)
            kept = int(room // layer) if layer else count
            share = max(share, (count - kept) / count)
        fewest = min(layers, max(0, math.ceil(share * layers)))
        return fewest, max(0, fewest - 1)

    def hidden(self, layers: int) -> int:
        """About the most layers that come while the others compute, in every stage."""
        every = (f for stage in self.at(layers).stages for one in stage for f in one.estimate.fetches)
        spare = [each.step_s / each.fetch.seconds for each in every if each.fetch.seconds]
        return min(layers, int(layers * min(spare, default=1.0))) if self.ahead else 0


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
    found: list[Staged] = []
    refused: list[InputError] = []
    unstreamed: dict[int, Staged | InputError] = {}
    for kinds in FAMILIES[offload]:
        every = _Pipelines(program, phases, mesh, axis, own, ahead, micro_batches, kinds, unstreamed)
        try:
            found.append(every.best(run))
        except InputError as error:
            refused.append(error)
            continue
        if found[-1].plan.price <= every.computing_s * (1 + PROVEN):
            return found[-1]  # others leave less room
    if not found:
        raise refused[0]
    best = min(found, key=lambda one: one.plan.price)
    return replace(best, plan=replace(best.plan, bound=min(one.plan.bound for one in found)))
