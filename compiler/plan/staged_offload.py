"""A pipeline whose stages stream weights, caches or both from hosts of their own, or from shares of one.

How many layers are streamed is chosen around the choice of the pipeline, as it is around that of a plan without stages:
counts that cannot be quicker than what was found are not planned. A stage streams its part of them, for every
micro-batch again.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from ...cost.streams import host_of, host_of_stages
from ...ir.diagnostics import EsccError
from ...ir.mesh import Mesh
from ...ir.program import Kind, Program
from ...passes.options import Options
from ...passes.plan import Cutoff
from ...passes.stages.bounds import Bounds, Known, Split
from ...passes.stages.choose_stages import refuse_division
from ...passes.stages.plan_stages import NEAR
from ...passes.stages.staged_plan import NoPipeline, SlowPipelines, StagedPlan
from .offload import FAMILIES
from .serving import serving
from .staged import Staged, compile_staged
from .streamed_layers import Family, quickest, streaming
from .way import Offload


def with_hosts(mesh: Mesh, axis: str, options: Options) -> Options:
    """The options for stages along an axis, each with its hosts or its share of one. Raises InputError where stages
    cannot stream."""
    hardware = options.hardware
    return replace(options, hardware=replace(hardware, host=host_of_stages(host_of(hardware), mesh, axis)))


@dataclass
class _Pipelines(Family[Staged]):
    """Pipelines along an axis that stream tensors of some kinds. `below`: others that take so much are known."""

    phases: Sequence[str]
    mesh: Mesh
    axis: str
    options: Options
    micro_batches: Mapping[str, int] | None
    known: Known
    below: float
    _bounds: dict[int, Bounds] = field(default_factory=dict, init=False)
    _fetching: dict[int, list[float]] = field(default_factory=dict, init=False)

    def planned(self, streamed: int, below: float) -> Staged:
        """The pipeline of a program. Raises as `compile_staged` does. While none is known each may take as much work as
        the first: what that did in vain says little of those with more room."""
        known = self.known if below < math.inf else replace(self.known, begun=None)
        given = self.phases, self.mesh, self.axis, replace(self.options, below=below), self.micro_batches
        return compile_staged(self.streaming(streamed), *given, known=known)

    def price(self, found: Staged) -> float:
        """Seconds of all calls of all phases."""
        return found.plan.price

    def rank(self, streamed: int) -> float:
        """None first, and then the most, which leave most room; where something else is known to take no more, none
        last: that what has most room takes more says it of others, too."""
        return self.layers - streamed if streamed or self.below < math.inf else -1

    def bounds(self, count: int) -> Bounds:
        """Bounds of pipelines with so many layers streamed."""
        if count not in self._bounds:
            program = self.streaming(count)
            given = tuple(self.phases), self.mesh, self.axis, serving(program).batch, self.options, self.known
            self._bounds[count] = Bounds(program, *given)
        return self._bounds[count]

    @cached_property
    def splits(self) -> list[Split]:
        """The ways to divide batches."""
        return self.bounds(self.layers).splits(self.micro_batches or {})

    @cached_property
    def layers_s(self) -> list[float]:
        """What every pipeline takes at the least for its layers, with batches divided in each way."""
        return [*map(self.bounds(self.layers).computing_s, self.splits)]

    def least_s(self, streamed: int) -> float:
        """Of some way to divide batches what it takes to compute, with as much room or more, or for layers to come,
        whichever is longer; more where it has been planned."""
        if self.full(streamed):
            return math.inf
        freer = [one.splits for one in map(_splits_of, self.freer(streamed)) if one is not None]
        bounds = self.bounds(streamed)
        if streamed not in self._fetching:
            holds = (bounds.may_hold(split) for split in self.splits)
            every = zip(self.splits, holds, strict=True)
            self._fetching[streamed] = [bounds.fetching_s(split) if held else math.inf for split, held in every]
        known = ([one.computing_s for one in splits] for splits in freer)
        computing_s: list[float] = [*map(max, zip(self.layers_s, *known, strict=True))]
        least_s = min(map(max, computing_s, self._fetching[streamed]))
        match self.tried.get(self.key(streamed)):
            case Staged() as planned:
                return max(least_s, planned.plan.bound)
            case Cutoff() as cut:
                return max(least_s, cut.bound)
            case _:
                return least_s

    @cached_property
    def fewest(self) -> int:
        """So few that what is stored may fit with batches divided in some way; all where even that is too few."""
        return min(self.layers, bisect_left(range(self.layers + 1), True, key=self._may_hold))

    def _may_hold(self, count: int) -> bool:
        bounds = self.bounds(count)
        return any(map(bounds.may_hold, self.splits))


def _splits_of(tried: Staged | EsccError) -> StagedPlan | NoPipeline | SlowPipelines | None:
    """What says what is known of each way to divide batches; None where nothing is."""
    if isinstance(tried, Staged):
        return tried.plan
    return tried if isinstance(tried, NoPipeline | SlowPipelines) else None


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
    refuse_division(program, mesh.size(axis), axis)
    own = with_hosts(mesh, axis, options)
    own = replace(own, settings=replace(own.settings, gap=max(own.settings.gap, NEAR)))
    tried: dict[tuple[frozenset[Kind], int], Staged | EsccError] = {}
    given = phases, mesh, axis, own, micro_batches
    known = Known()
    every = [_Pipelines(program, kinds, ahead, tried, *given, known, below) for kinds in FAMILIES[offload]]
    best = quickest(every, options, below)
    found = best.found
    if run:  # again, with what is run of it
        found = compile_staged(streaming(program, best.kinds, best.streamed, ahead), *given, run)
    return replace(found, plan=replace(found.plan, bound=best.bound))
