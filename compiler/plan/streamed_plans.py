"""Plans that stream whole layers, or sets of their tensors, and what such plans take at the least."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from ...cost.streamed_sets import Bools, Floats, StreamedSets, stored_by_count
from ...cost.streams import CopyBytes, least_copies, least_fetched_s, least_stored_bytes
from ...ir.diagnostics import EsccError
from ...ir.program import Kind, Program, stored_in
from ...ir.streams import copies_held
from ...passes.choose import choose
from ...passes.least_held import least_live_bytes
from ...passes.plan import Cutoff
from ...passes.stages.divide import layer_programs, without_layers
from ...passes.stages.plan_stages import MOST_LEFT, STREAMED_NEAR
from ...passes.stages.streaming import choose_streaming, least_mean_s
from .compiled import Compilation
from .pipeline import compile_plan
from .streamed_layers import is_infeasible, streaming
from .tensor_sets import ROUNDING, SetFamily

MEANS = (0.85, 0.7)  # of what is computed and what comes, by which plans are bounded: shares of the former
PARTS = 6  # of the counts of layers that may be streamed, of which each is bounded by itself


@dataclass
class Plans(SetFamily[Compilation]):
    """Plans of phases that stream tensors of some kinds. `free`: the plans that there are with room for all on the
    chips, which compute as quickly as any; None where some tensors have their place with the host. `freest`: the kinds
    of the family that leaves most room; `means`: what it takes at the least by weighted means, which all share."""

    free: Compilation | None
    freest: frozenset[Kind]
    means: dict[int, list[tuple[float, float]]]
    _fetched: dict[int, float] = field(default_factory=dict, init=False)
    _stored: dict[int, float] = field(default_factory=dict, init=False)

    def planned(self, streamed: int, below: float) -> Compilation:
        """The plans of all phases. Raises as `choose_streaming` does."""
        if not streamed and self.free is not None and self._free_fits(0):
            return self.free
        gap = None if self._free_fits(streamed) else self._gap(self._fetched_s(streamed))
        return self.laid_out(self.streaming(streamed), below, gap)

    def laid_out(self, program: Program, below: float, gap: float | None = None) -> Compilation:
        """The plans of all phases of a program, near the quickest by a `gap`, or as is asked for."""
        own = self.options.settings.gap if gap is None else gap
        options = replace(self.options, settings=replace(self.options.settings, gap=own), below=below)
        plan, _ = choose_streaming(program, self.phases, self.mesh, options)
        return Compilation(compile_plan(program, plan, options))

    def _gap(self, fetched_s: float) -> float:
        """That of the search. Where more time goes by until all has come than is computed it is of that time."""
        own, computing_s = self.options.settings.gap, self._free_s
        if not computing_s or fetched_s <= computing_s:
            return own
        return max(own, min(MOST_LEFT, STREAMED_NEAR * fetched_s / computing_s))

    @cached_property
    def fewest(self) -> int:
        """So few that what is stored fits, each tensor split as far as it can be; all where some have their place with
        the host, or where even that is too few."""
        if self.program.on_host:
            return self.layers
        return min(self.layers, bisect_left(range(self.layers + 1), True, key=self._may_hold))

    def _may_hold(self, count: int) -> bool:
        return self._stored_bytes(count) <= self.options.most_stored

    def _stored_bytes(self, count: int) -> float:
        """What a chip stores at the least with so many layers streamed."""
        if count not in self._stored:
            program = self.streaming(count)
            self._stored[count] = max(least_stored_bytes(program, phase, self.mesh) for phase in self.phases)
        return self._stored[count]

    def left(self) -> list[int]:
        """So many layers that others are left more room than with none."""
        return [k for k in super().left() if k == self._as_full_as(k)]

    def _as_full_as(self, streamed: int) -> int:
        """A count of layers that leaves as much room: none, for as few as are on their way at once."""
        if self.program.on_host or self._stored_bytes(streamed) < self._stored_bytes(0):
            return streamed
        return 0

    def rank(self, streamed: int) -> float:
        """Where there is room for the quickest plan of all the fewest layers come first; where there is none the most,
        which leave most room, and once something is known none, for which nothing waits."""
        if self._free_fits(streamed) or (not streamed and self.tried):
            return streamed
        return 2 * self.layers - streamed

    def _free_fits(self, streamed: int) -> bool:
        """Whether the plans for any room have it with so many layers streamed."""
        if self.free is None:
            return False
        every = stored_in(self.streaming(streamed).body)
        for one in self.free:
            turns = self.program.phase(one.phase).micro_batches
            held = {each.value: copies_held(each, placed.repeats, turns) for each, placed in every.items()}
            alone = {e.value: copies_held(replace(e, streamed=None), p.repeats, turns) for e, p in every.items()}
            use = one.memory
            stored = sum(size * held[name] / alone[name] for name, size in (*use.stored, *use.shared))
            if stored > self.options.stored_bytes or stored + use.worst.bytes > self.options.capacity:
                return False
        return True

    @cached_property
    def _free_s(self) -> float:
        """What all plans take at the least to compute."""
        return 0.0 if self.free is None else _least_s(self.free)

    @cached_property
    def _around_s(self) -> float:
        """What runs outside of layers takes at the least."""
        outside = without_layers(self.program)
        if outside is None:
            return 0.0
        free = replace(self.options, capacity_bytes=math.inf, stored_bytes=math.inf, pins=())
        every = (choose(outside, [phase], self.mesh, free).least for phase in self.phases)
        return math.fsum(self._calls(phase) * least_s for phase, least_s in zip(self.phases, every, strict=True))

    def _calls(self, phase: str) -> int:
        """How often a phase counts."""
        return self.program.phase(phase).calls if len(self.phases) > 1 else 1

    def least_s(self, streamed: int) -> float:
        """What comes takes, and what runs outside of layers, or what is computed, whichever is longer; or both, where
        nothing is fetched ahead."""
        return self._takes_s(streamed, _computing_s)

    def expected_s(self, streamed: int) -> float:
        """The same, if none with as much room computes quicker than what was found."""
        return self._takes_s(streamed, _computed_s)

    def _takes_s(self, streamed: int, computing: Callable[[Compilation | EsccError], float]) -> float:
        if self.full(streamed) or not self._may_hold(streamed):
            return math.inf
        computing_s = max([self._free_s, *map(computing, self.freer(self._as_full_as(streamed)))])
        fetched_s = self._fetched_s(streamed)
        if not self.ahead or not fetched_s:
            return fetched_s + computing_s
        least_s = max(fetched_s + self._around_s, computing_s)
        found = [one.price for one in self.tried.values() if isinstance(one, Compilation)]
        if len(self.phases) > 1 or not found or min(found) * (1 - STREAMED_NEAR) < least_s:
            return least_s
        return max([least_s, *(mean_s + (1 - share) * fetched_s for share, mean_s in self._means_s(streamed))])

    def _means_s(self, streamed: int) -> list[tuple[float, float]]:
        """What plans with about so many layers streamed take at the least by means of what they compute, with some
        share of it, and of what chips gather: with as much room as most of them have, of as few layers."""
        if Kind.PARAM not in self.kinds:
            return []
        most = -(-self.layers // PARTS)
        low, high = (streamed - 1) // most * most + 1, min(self.layers, -(-streamed // most) * most)
        if high not in self.means:
            program = streaming(self.program, self.freest, high, self.ahead)
            given = program, self.phases[0], self.mesh, self.options
            self.means[high] = [(share, least_mean_s(*given, share, low / high)) for share in MEANS]
        return self.means[high]

    def _fetched_s(self, streamed: int) -> float:
        """What so many layers take to come at the least."""
        if streamed not in self._fetched:
            program, hardware = self.streaming(streamed), self.options.hardware
            every = {phase: least_fetched_s(program, self.mesh, hardware, phase) for phase in self.phases}
            self._fetched[streamed] = math.fsum(self._calls(phase) * each_s for phase, each_s in every.items())
        return self._fetched[streamed]

    def price(self, found: Compilation) -> float:
        """Seconds of all calls of all phases, or of one call of one."""
        return found.price

    def least_copies(self) -> Sequence[Mapping[str, CopyBytes]]:
        """What a chip has at the least of each stored tensor, in each phase."""
        return [least_copies(self.program, phase, self.mesh) for phase in self.phases]

    def sets_least_s(self) -> Floats:
        """As `least_s`, for sets of tensors, in so far as what is gathered of all weights is left out."""
        fits, as_full, fetched_s = self._sets_hold
        computing_s = np.full(fits.shape, self._free_s)
        for no_more, one in self.known():
            computing_s[no_more | as_full] = np.maximum(computing_s, _computing_s(one))[no_more | as_full]
        both_s = fetched_s + computing_s
        if self.ahead:
            both_s = np.maximum(np.where(fetched_s > 0, fetched_s + self._around_s, 0.0), computing_s)
        return np.where(fits & ~self.full_sets(), both_s, math.inf)

    @cached_property
    def _sets_hold(self) -> tuple[Bools, Bools, Floats]:
        """Which sets in which counts may fit, which leave no more room than none, and what they take to come at the
        least in all phases [sets, counts]."""
        sets, hardware, stored = self.sets, self.options.hardware, stored_by_count(self.programs)
        shape = len(sets.members), len(self.counts)
        fits, as_full, fetched_s = np.ones(shape, dtype=bool), np.ones(shape, dtype=bool), np.zeros(shape)
        for phase, copies in zip(self.phases, self.least_copies(), strict=True):
            held = StreamedSets.of(sets.names, stored, copies, self.program.phase(phase).micro_batches)
            bytes_, room = held.stored_bytes(sets.at_most), self.options.capacity - self._live_bytes(phase)
            fits &= bytes_ <= min(room, self.options.stored_bytes) * (1 + ROUNDING)
            as_full &= bytes_ >= held.stored
            fetched_s += self._calls(phase) * held.fetched_s(sets.at_least, self.mesh, hardware)
        return fits, as_full, fetched_s

    def _live_bytes(self, phase: str) -> float:
        """What some layer holds at the least beside what is stored."""
        every = (layer for _, layer in layer_programs(self.program))
        return max(least_live_bytes(layer, phase, self.mesh, self.options) for layer in every)

    def seeds(self) -> Iterator[Compilation]:
        """The plans for any room, and those that were found."""
        every = (self.free, *self.tried.values(), *self.tried_sets.values())
        return (one for one in every if isinstance(one, Compilation))

    def stages(self, found: Compilation) -> Sequence[Compilation]:
        """One."""
        return found.stages

    def divided(self, found: Compilation, program: Program) -> Sequence[Program]:
        """All of it."""
        return (program,)

    def computing_s(self, found: Compilation, stage: int) -> Sequence[float]:
        """What one call of each phase takes, and in the first what it takes to hand caches on."""
        several = len(found) > 1
        totals = [one.estimate.totals() for one in found]
        beside_s = found.price - math.fsum(
            (one.calls if several else 1) * total.total_s for one, total in zip(found, totals, strict=True)
        )
        each_s = [total.total_s - total.waiting_s for total in totals]
        return [each_s[0] + beside_s / (found[0].calls if several else 1), *each_s[1:]]

    def together_s(self, found: Compilation, phase: int, each_s: Sequence[Floats]) -> Floats:
        """Of all calls of several phases, of one call of one."""
        return (found[phase].calls if len(found) > 1 else 1) * each_s[0]


def _computing_s(tried: Compilation | EsccError) -> float:
    """What all plans with as little room as those that were tried, or with less, take at the least to compute."""
    if isinstance(tried, EsccError):
        return tried.bound if isinstance(tried, Cutoff) else math.inf if is_infeasible(tried) else 0.0
    return _least_s(tried)


def _computed_s(tried: Compilation | EsccError) -> float:
    """The same, if nothing computes quicker than the plan that was found."""
    if isinstance(tried, EsccError):
        return _computing_s(tried)
    several = len(tried) > 1
    return tried.price - math.fsum((one.calls if several else 1) * one.beside_s for one in tried)


def _least_s(compiled: Compilation) -> float:
    """The bound of a compilation, of all calls of its phases or of one of one."""
    apart = len(compiled) > 1 and not compiled.together
    return math.fsum(plan.least * (compiled[n].calls if apart else 1) for n, plan in enumerate(compiled.plans))
