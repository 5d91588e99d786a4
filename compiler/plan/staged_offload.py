"""A pipeline whose stages stream weights, caches or both from hosts of their own, or from shares of one.

How many layers are streamed is chosen around the choice of the pipeline, as it is around that of a plan without stages:
the fewest that have to be, about as many as come while others compute, or all, whichever is quickest; counts that
cannot be quicker than what is found are not planned. A stage streams its part of them, for every micro-batch again.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ...cost.streams import NO_HOST, host_of_stages
from ...ir.diagnostics import InputError, fail
from ...ir.mesh import Mesh
from ...ir.program import Program, stored_in
from ...passes.choose import Options
from ...passes.plan import PROVEN
from ...passes.stages.bounds import Bounds, KnownLayers, Split
from ...passes.stages.choose_stages import NoPipeline
from .compiled import CompiledPhase
from .offload import FAMILIES, Offload
from .serving import serving
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
    """Pipelines along an axis that stream tensors of some kinds; `below`: of those that stream nothing only such are of
    interest that take less."""

    phases: Sequence[str]
    mesh: Mesh
    axis: str
    options: Options
    micro_batches: Mapping[str, int] | None
    layers_known: KnownLayers
    below: float

    def planned(self, program: Program) -> Staged:
        """The pipeline of a program. Raises as `compile_staged` does."""
        streams = any(one.streamed for one in stored_in(program.body))
        options = self.options if streams else replace(self.options, below=self.below)
        given = self.phases, self.mesh, self.axis, options, self.micro_batches
        return compile_staged(program, *given, known=self.layers_known)

    @property
    def computing_s(self) -> float:
        """The bound of the pipeline that streams all, where it has been planned: others leave less room. Or else of
        layers by themselves."""
        if self.layers in self.some:
            self.known_s = self.at(self.layers).plan.computing_s
            return self.known_s
        return min(self.layers_s)

    def most_room(self) -> list[CompiledPhase]:
        """All phases of all its stages."""
        return [one for stage in self.at(self.layers).stages for one in stage]

    def price(self, streamed: int) -> float:
        """Seconds of all calls of all phases."""
        return self.at(streamed).plan.price

    def bound(self, streamed: int) -> float:
        """What those pipelines take at the least."""
        return self.at(streamed).plan.bound

    def best(self) -> Quickest[Staged]:
        """The fewest that have to be streamed; and, where they may be quicker, as many as are hidden, and all."""
        assert self.high is not None, "the fewest that fit are known"
        fewest = self.high
        prices = {fewest: self.price(fewest)}

        def worth(count: int) -> bool:
            return self.least_s(count) * (1 + PROVEN) < min(prices.values())

        if fewest < self.layers and worth(fewest + 1):
            for count in (max(fewest, self.hidden()), self.layers):
                if count not in prices and worth(count):
                    prices[count] = self.price(count)
        price, count = min((price, count) for count, price in prices.items())
        bound = min(self.least_s(count) for count in range(min(self.shown, self.layers), self.layers + 1))
        return Quickest(self.at(count), self.kinds, count, price, min(price, bound))

    def bounds(self, count: int) -> Bounds:
        """Bounds of pipelines with so many layers streamed."""
        program = streaming(self.program, self.kinds, count, self.ahead)
        batch = serving(program).batch
        given = tuple(self.phases), self.mesh, self.axis, batch, self.options, self.layers_known
        return Bounds(program, *given)

    @cached_property
    def splits(self) -> list[Split]:
        """The ways to divide batches."""
        return self.bounds(self.layers).splits(self.micro_batches or {})

    @cached_property
    def layers_s(self) -> list[float]:
        """What every pipeline takes at the least for its layers, with batches divided in each way."""
        return [*map(self.bounds(self.layers).computing_s, self.splits)]

    def least_s(self, count: int) -> float:
        """What every pipeline with so many layers streamed takes at the least, by all that has been found: of some way
        to divide batches, to compute what that takes with most room, and for the layers to come; more where it has been
        planned, no end where it was shown that none fits with as many."""
        tried = {}
        for k, one in {**self.unstreamed, **self.some}.items():
            if isinstance(one, Staged | NoPipeline):
                tried[k] = one.plan.splits if isinstance(one, Staged) else one.splits
        bounds, every = self.bounds(count), []
        for n, split in enumerate(self.splits):
            full = any(splits[n].computing_s == math.inf for k, splits in tried.items() if k >= count)
            freest_s = tried[self.layers][n].computing_s if self.layers in tried else self.layers_s[n]
            every.append(math.inf if full else max(freest_s, bounds.fetching_s(split)))
        planned = (self.some if count else self.unstreamed).get(count)
        return max(min(every), planned.plan.bound if isinstance(planned, Staged) else 0.0)

    @cached_property
    def fewest(self) -> int:
        """So few that what is stored may fit with batches divided in some way; all where even that is too few."""
        return min(self.layers, bisect_left(range(self.layers + 1), True, key=self._may_hold))

    def _may_hold(self, count: int) -> bool:
        bounds = self.bounds(count)
        return any(map(bounds.may_hold, self.splits))


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
    below: float = math.inf,
) -> Staged:
    """The quickest pipeline along an axis that is found with weights, caches or both streamed, `ahead` layers before
    they are needed.

    The bound is of all pipelines that stream any of their layers, or none: with each count of them none computes
    quicker than one that keeps the least, nor fetches less than so many layers. Raises as `compile_staged` does,
    InputError where stages cannot stream or the host cannot hold them, and Cutoff where bounds show before any is
    found that none takes less than `below`.
    """
    own = with_hosts(mesh, axis, options)
    unstreamed: dict[int, Staged | InputError] = {}
    given = phases, mesh, axis, own, micro_batches
    known: KnownLayers = {}
    every = [_Pipelines(program, kinds, ahead, unstreamed, *given, known, below) for kinds in FAMILIES[offload]]
    best = quickest(every, below)
    found = best.found
    if run:  # again, with what is run of it
        found = compile_staged(streaming(program, best.kinds, best.streamed, ahead), *given, run)
    return replace(found, plan=replace(found.plan, bound=best.bound))
