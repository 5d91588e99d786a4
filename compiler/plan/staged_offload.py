"""A pipeline whose stages stream weights, caches or both from hosts of their own, or from shares of one.

How many layers are streamed, and which of their tensors, is chosen around the choice of the pipeline, as it is around
that of a plan without stages: what cannot be quicker than what was found is not planned. A stage streams its part of
them, for every micro-batch again.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, pairwise

import numpy as np

from ...cost.stages import Rounds
from ...cost.streamed_sets import Bools, Floats, StoredIn, StreamedSets, stored_by_count
from ...cost.streams import CopyBytes, host_of_stages, least_copies
from ...ir.diagnostics import EsccError
from ...ir.mesh import Mesh
from ...ir.program import Kind, Program
from ...ir.record import record
from ...passes.options import Options
from ...passes.plan import Cutoff
from ...passes.stages.bounds import Bounds, Known, Split, Turns, in_stages
from ...passes.stages.choose_stages import refuse_division
from ...passes.stages.divide import Stage, divide, turns
from ...passes.stages.layers import whole_repetitions
from ...passes.stages.opened import has_mean_streamed, with_least_streams, with_mean_streams
from ...passes.stages.plan_stages import NEAR
from ...passes.stages.staged_plan import NoPipeline, SlowPipelines, StagedPlan
from .compiled import Compilation
from .offload import FAMILIES
from .serving import serving
from .staged import Staged, compile_staged
from .streamed_layers import streaming
from .tensor_sets import ROUNDING, SetFamily, quickest
from .way import Offload

SEEDS = 3  # pipelines whose layouts may serve sets of tensors


def with_hosts(mesh: Mesh, axis: str, options: Options) -> Options:
    """The options for stages along an axis, each with its hosts or its share of one. Raises InputError where stages
    cannot stream."""
    hardware = options.hardware
    return replace(options, hardware=replace(hardware, host=host_of_stages(hardware, mesh, axis)))


@record(eq=False)
class _Part:
    """A stage, or all of them as one: by count what it stores, and the `places` before and after its layers. Of all as
    one what comes at the least of all together, and of the one to which most comes, where that is the mean."""

    stage: Stage | None
    stored: Sequence[StoredIn]
    places: tuple[int, int]
    together: Sequence[StoredIn] = ()
    mean: Sequence[StoredIn] = ()


@dataclass
class _Pipelines(SetFamily[Staged]):
    """Pipelines along an axis that stream tensors of some kinds. `below`: others that take so much are known."""

    axis: str
    micro_batches: Mapping[str, int] | None
    layers_known: Known
    below: float
    _bounds: dict[int, Bounds] = field(default_factory=dict, init=False)
    _fetching: dict[int, list[float]] = field(default_factory=dict, init=False)

    def planned(self, streamed: int, below: float) -> Staged:
        """The pipeline of a program. Raises as `compile_staged` does. While none is known each may take as much work as
        the first: what that did in vain says little of those with more room."""
        return self.laid_out(self.streaming(streamed), below)

    def laid_out(self, program: Program, below: float) -> Staged:
        """The pipeline of a program. Raises as `planned` does."""
        known = self.layers_known if below < math.inf else replace(self.layers_known, begun=None)
        given = self.phases, self.mesh, self.axis, replace(self.options, below=below), self.micro_batches
        return compile_staged(program, *given, known=known)

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
            given = tuple(self.phases), self.mesh, self.axis, serving(program).batch, self.options, self.layers_known
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

    def least_copies(self) -> Sequence[Mapping[str, CopyBytes]]:
        """What a chip of a stage has at the least of each stored tensor, in each phase."""
        return [least_copies(self.program, phase, self.mesh.without(self.axis)) for phase in self.phases]

    def sets_least_s(self) -> Floats:
        """As `least_s`, for sets of tensors, of which stages hold their part evenly."""
        shape = len(self.sets.members), len(self.counts)
        least_s, held = np.full(shape, math.inf), dict[tuple[int, tuple[str, Rounds]], tuple[Bools, Sequence[Floats]]]()
        known = [(no_more, plan.splits) for no_more, one in self.known() if (plan := _splits_of(one)) is not None]
        full = self.full_sets()
        for n, (split, layers_s) in enumerate(zip(self.splits, self.layers_s, strict=True)):
            computing_s = np.full(shape, layers_s)
            for no_more, splits in known:
                computing_s[no_more] = np.maximum(computing_s, splits[n].computing_s)[no_more]
            for division in range(len(self._divisions)):
                fits, fetching_s = ~full, np.zeros(shape)
                for phase, rounds in split.rounds:
                    of = division, (phase, rounds)
                    if of not in held:
                        held[of] = self._held(division, phase, rounds)
                    fits &= held[of][0]
                    each_s = held[of][1]
                    fetching_s += rounds.seconds(np.add.reduce(each_s), np.maximum.reduce(each_s), np.maximum)
                least_s = np.minimum(least_s, np.where(fits, np.maximum(computing_s, fetching_s), math.inf))
        return least_s

    @cached_property
    def _divisions(self) -> list[list[_Part]]:
        """The stages of each division of few layers, or all of them as one."""
        bounds, found = self.bounds(self.layers), list[list[_Part]]()
        if not bounds.few:
            together, mean = (
                stored_by_count([some(one, bounds.ways) for one in self.programs])
                for some in (with_least_streams, with_mean_streams)
            )
            return [[_Part(None, stored_by_count(self.programs), (0, bounds.layers), together, mean)]]
        for layers, stages in bounds.divisions.items():
            divided = [[part.program for part in divide(one, layers)] for one in self.programs]
            stored = [*map(stored_by_count, zip(*divided, strict=True))]
            ends = pairwise((0, *accumulate(layers)))
            found.append([*map(_Part, stages, stored, ends)])
        return found

    def _held(self, division: int, phase: str, rounds: Rounds) -> tuple[Bools, Sequence[Floats]]:
        """Which sets in which counts may fit with so many micro-batches in a phase, and what one of these takes at the
        least in each stage for what comes, or its layers compute, with what is no part of layers [sets, counts]. Of
        many layers some stage stores the mean of all, and takes it to come."""
        bounds, options, of = self.bounds(self.layers), self.options, (phase, rounds.micro_batches)
        ways, most = (1, max) if bounds.few else (bounds.ways, min)
        copies, lives, each_s = self._copies(of), bounds.lives(of), list[Floats]()
        fits = np.ones((len(self.sets.members), len(self.counts)), dtype=bool)
        for part in self._divisions[division]:
            stage, (start, end) = part.stage, part.places
            held, together, mean = (
                StreamedSets.of(self.sets.names, some, copies, of[1])
                for some in (part.stored, part.together or part.stored, part.mean or part.stored)
            )
            room = min(options.stored_bytes, options.capacity - most(lives[start:end]))
            fits &= held.stored_bytes(self.sets.at_most) <= ways * room * (1 + ROUNDING)
            fetched_s = together.fetched_s(self.sets.at_least, bounds.inner, options.hardware, ways)
            fits &= np.isfinite(fetched_s)
            fetched_s[~np.isfinite(fetched_s)] = 0.0  # it does not fit, whatever it takes
            if stage is None:
                mean_s = mean.fetched_s(self.sets.at_least, bounds.inner, options.hardware)
                some = [has_mean_streamed(one, ways) for one in self.programs] & np.isfinite(mean_s)
                beside_s = np.where(fetched_s > 0, bounds.beside_s(of), 0.0)
                most_s = np.where(some, mean_s, 0.0) + beside_s / ways
                each_s += in_stages(fetched_s + beside_s, most_s, ways)
            else:
                layers_s = bounds.layers_between_s(phase, rounds, start, end)
                around_s = bounds.around_s(stage.program, stage.inside, of) + bounds.handed_s(stage, of)
                each_s.append(np.maximum(fetched_s, layers_s) + around_s)
        return fits, each_s

    def _copies(self, of: Turns) -> Mapping[str, CopyBytes]:
        """What a chip has at the least of each stored tensor, with so many micro-batches in a phase."""
        bounds, (phase, parts) = self.bounds(0), of
        return least_copies(turns(self.program, bounds.batch, {phase: (parts, 1)}), phase, bounds.inner)

    def seeds(self) -> Iterator[Staged]:
        """The quickest pipelines of those that were found."""
        every = (one for one in (*self.tried.values(), *self.tried_sets.values()) if isinstance(one, Staged))
        return iter(sorted(every, key=self.price)[:SEEDS])

    def stages(self, found: Staged) -> Sequence[Compilation]:
        """Those of a pipeline."""
        return found.stages

    def divided(self, found: Staged, program: Program) -> Sequence[Program]:
        """As the layers of a pipeline are."""
        return [stage.program for stage in divide(program, found.plan.layers)]

    def computing_s(self, found: Staged, stage: int) -> Sequence[float]:
        """What a micro-batch of each phase takes, with handing on."""
        planned = found.plan.stages[stage]
        return [planned.seconds(phase) - planned.waiting_s[n] for n, phase in enumerate(self.phases)]

    def together_s(self, found: Staged, phase: int, each_s: Sequence[Floats]) -> Floats:
        """Of all calls of a phase, in micro-batches."""
        rounds = found.rounds[self.phases[phase]]
        return np.asarray(rounds.seconds(sum(each_s), np.maximum.reduce(list(each_s)), np.maximum))


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

    The bound is of all pipelines that stream none, or any tensors of the same layers, which stages share evenly, and of
    which a stage has none that would all be there as they come: with each count of them none computes quicker than one
    that keeps the least, nor fetches less than so many layers. Stages end between repetitions, whatever these hold.

    Raises as `compile_staged` does, InputError where stages cannot stream or the host cannot hold them, and Cutoff,
    with what all take at the least, where none is found that takes less than `below`.
    """
    refuse_division(program, mesh.size(axis), axis, whole=True)
    layered, program = program, whole_repetitions(program)
    own = with_hosts(mesh, axis, options)
    own = replace(own, settings=replace(own.settings, gap=max(own.settings.gap, NEAR)))
    tried: dict[tuple[frozenset[Kind], int], Staged | EsccError] = {}
    known = Known()
    family = phases, mesh, own, axis, micro_batches, known, below
    every = [_Pipelines(program, kinds, ahead, tried, *family) for kinds in FAMILIES[offload]]
    best = quickest(every, options, below)
    found = best.found
    if run:  # again, with what is run of it
        given = phases, mesh, axis, own, micro_batches
        found = compile_staged(streaming(program, best.what, best.streamed, ahead), *given, run)
    return replace(found, program=layered, plan=replace(found.plan, bound=best.bound))
