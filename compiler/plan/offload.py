"""The choice of what chips keep of a model's layers, and what their host does.

Layers are alike, so it is how many of them are streamed that is chosen: none where no plan is quicker; or as few as
leave room for the quickest layouts, or for any that fit. For each count that is tried the search lays out the program
as ever, with room for what stays; what it minimises leaves waiting out. The bound counts it: no plan computes quicker
than one that keeps less, nor fetches less than so many layers, of which each chip takes as small a part in any layout
as the axes divide.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Generic, TypeVar

from ...cost.streams import host_of, least_fetched_s, least_stored_bytes
from ...ir.diagnostics import EsccError, InputError, fail
from ...ir.mesh import Mesh
from ...ir.program import Kind, Program, stored_in
from ...ir.streams import copies_held
from ...passes.choose import choose
from ...passes.options import Options
from ...passes.plan import Cutoff, Objective, Outcome, relative_gap
from ...passes.stages.divide import layers_of, without_layers
from ...passes.stages.plan_stages import MOST_LEFT, STREAMED_NEAR
from ...passes.stages.streaming import choose_streaming, least_mean_s
from .compiled import Compilation
from .pipeline import compile_phases, compile_plan
from .serving import serving
from .streamed_layers import Family, is_infeasible, quickest, streaming
from .way import Offload

Found = TypeVar("Found")  # what a batch is planned as: streams from the host, or ways to have stages
MOST_SEQUENCES = 1 << 20  # of a batch that is looked for
MOST_WORSE = 2  # in turn, twice as large each: with fewer sequences a second than another
MEANS = (0.85, 0.7)  # of what is computed and what comes, by which plans are bounded: shares of the former
PARTS = 6  # of the counts of layers that may be streamed, of which each is bounded by itself
OF_MANY = 0.1  # of the effort of one search, for each batch that is tried


# Those that leave most room first.
FAMILIES: dict[Offload, tuple[frozenset[Kind], ...]] = {
    Offload.WEIGHTS: (frozenset({Kind.PARAM}),),
    Offload.CACHES: (frozenset({Kind.CACHE}),),
    Offload.NONE: (frozenset(),),
    Offload.AUTO: (frozenset({Kind.PARAM, Kind.CACHE}), frozenset({Kind.PARAM}), frozenset({Kind.CACHE})),
}


@dataclass(frozen=True)
class Offloaded:
    """A compilation in which `streamed` of `layers` come from the host, of the `kinds` of tensors; `ahead`: how many
    before they are needed. `bound`: what every plan takes at the least that streams whole layers of what it might, in
    the terms of its price. `placed`: tensors that a person placed there."""

    compiled: Compilation
    kinds: frozenset[Kind]
    streamed: int
    layers: int
    ahead: int
    bound: float
    placed: tuple[str, ...] = ()

    @property
    def price(self) -> float:
        """Seconds with waiting: of all calls of all phases, of one phase of one call."""
        return self.compiled.price

    @property
    def gap(self) -> float:
        """How far the price may lie above the optimum, relative to the price."""
        return relative_gap(self.price, self.bound)

    @property
    def outcome(self) -> Outcome:
        """Whether it is proven the quickest of all that stream whole layers."""
        return Outcome.of(self.gap)

    @property
    def what(self) -> str:
        """What is streamed, in words."""
        words = {Kind.PARAM: "weights", Kind.CACHE: "caches"}
        return " and ".join([*(word for kind, word in words.items() if kind in self.kinds), *self.placed])


@dataclass(frozen=True)
class Batched(Generic[Found]):
    """A batch that was tried: what came of it, None where it does not fit, and the seconds of all of its calls; or the
    `least` that they are, where that shows that others have more sequences a second."""

    batch: int
    found: Found | None
    price: float = math.inf
    least: float = math.inf

    @property
    def beaten(self) -> bool:
        """Whether others are known to have more sequences a second, and no more is known of it."""
        return self.found is None and self.least < math.inf

    @property
    def sequences_per_s(self) -> float:
        """Sequences that go through all phases a second; none where the batch does not fit."""
        return self.batch / self.price


def compile_offloaded(
    program: Program,
    phases: Sequence[str],
    mesh: Mesh,
    options: Options,
    offload: Offload,
    ahead: int = 1,
    below: float = math.inf,
) -> Offloaded:
    """The quickest plan that is found with streams of some kinds; `ahead`: how many layers are fetched before they are
    needed, 0 for none. Where the program places a tensor with the host, it is streamed in all layers, and so is what
    else is streamed.

    Raises InputError where the hardware has no host, the model has no layers, or the host cannot hold what is
    streamed; NoPlan where the model does not fit even so; Cutoff where bounds show that all take `below` at the least.
    """
    hardware = options.hardware
    host_of(hardware)
    if options.objective is not Objective.TIME:
        raise fail(f"What is streamed is chosen by time, and `{options.objective}` is asked for.")
    if options.overlap:
        raise fail("Loops are not made of programs that stream.", hint="leave out `--overlap`, or `--offload`")
    if not layers_of(program):
        raise fail("The model has no layers to stream: no block of it is repeated.", hint="leave out `--offload`")
    placed = program.on_host
    families = dict.fromkeys((*FAMILIES[offload], *(FAMILIES[Offload.NONE] if placed else ())))
    most = streaming(program, next(iter(families)), layers_of(program), ahead)
    if max(least_stored_bytes(most, phase, mesh) for phase in phases) > options.most_stored:
        below = math.inf  # that it fits nowhere says more than what it would take
    free: Compilation | None = None
    if not placed:
        roomy = replace(options, capacity_bytes=math.inf, stored_bytes=math.inf, below=below)
        free = compile_phases(program, phases, mesh, roomy)
    tried: dict[tuple[frozenset[Kind], int], Compilation | EsccError] = {}
    means: dict[int, list[tuple[float, float]]] = {}
    given = phases, mesh, options, free, next(iter(families)), means
    every = [_Plans(program, kinds, ahead, tried, *given) for kinds in families]
    best = quickest(every, options, below)
    return Offloaded(best.found, best.kinds, best.streamed, layers_of(program), ahead, best.bound, placed)


@dataclass
class _Plans(Family[Compilation]):
    """Plans of phases that stream tensors of some kinds. `free`: the plans that there are with room for all on the
    chips, which compute as quickly as any; None where some tensors have their place with the host. `freest`: the kinds
    of the family that leaves most room; `means`: what it takes at the least by weighted means, which all share."""

    phases: Sequence[str]
    mesh: Mesh
    options: Options
    free: Compilation | None
    freest: frozenset[Kind]
    means: dict[int, list[tuple[float, float]]]
    _fetched: dict[int, float] = field(default_factory=dict, init=False)
    _stored: dict[int, float] = field(default_factory=dict, init=False)

    def planned(self, streamed: int, below: float) -> Compilation:
        """The plans of all phases. Raises as `choose_streaming` does."""
        if not streamed and self.free is not None and self._free_fits(0):
            return self.free
        settings = replace(self.options.settings, gap=self._gap(streamed))
        options = replace(self.options, settings=settings, below=below)
        program = self.streaming(streamed)
        plan, _ = choose_streaming(program, self.phases, self.mesh, options)
        return Compilation(compile_plan(program, plan, options))

    def _gap(self, streamed: int) -> float:
        """That of the search. Where more time goes by until all has come than is computed it is of that time."""
        own, computing_s = self.options.settings.gap, self._free_s
        fetched_s = self._fetched_s(streamed)
        if not computing_s or fetched_s <= computing_s or self._free_fits(streamed):
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
            host = self.options.hardware.host
            assert host is not None, "`compile_offloaded` refuses hardware without one"
            program = self.streaming(streamed)
            every = {phase: least_fetched_s(program, self.mesh, host, phase) for phase in self.phases}
            self._fetched[streamed] = math.fsum(self._calls(phase) * each_s for phase, each_s in every.items())
        return self._fetched[streamed]

    def price(self, found: Compilation) -> float:
        """Seconds of all calls of all phases, or of one call of one."""
        return found.price


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


def most_sequences(
    program: Program, step: int, planned: Callable[[Program, float], tuple[Found, float]]
) -> tuple[Batched[Found], ...]:
    """The batches that were tried for the most sequences a second, that with the most of them first: of `step`
    sequences, then doubled up to where one does not fit, or MOST_WORSE in turn have fewer a second; then halfway
    between one that does not fit and the last that does, and between the best and the nearest that were tried on both
    sides, to a sixteenth: above it some may fit without streams, and below it where it streams. `planned`: what comes
    of a program if that takes less than some seconds, and the seconds of all calls.

    Raises InputError as `planned` does where `step` sequences do not fit.
    """
    found: dict[int, Batched[Found]] = {}
    best = 0

    def tried(batch: int) -> bool:
        nonlocal best
        below = batch / found[best].sequences_per_s if best else math.inf
        try:
            found[batch] = Batched(batch, *planned(of_batch(program, batch), below))
        except Cutoff as cut:
            found[batch] = Batched(batch, None, least=cut.bound)
        except InputError:
            if len(found) == 0:
                raise
            found[batch] = Batched(batch, None)
        if found[batch].price < below:
            best = batch
        return found[batch].found is not None or found[batch].beaten

    batch = step
    while tried(batch) and batch < min(MOST_SEQUENCES, best << MOST_WORSE):
        batch *= 2
    low, high = batch // 2, batch
    while high - low > max(step, low // 16) and found[high].found is None and not found[high].beaten:
        middle = (low + high) // 2 // step * step
        low, high = (middle, high) if tried(middle) else (low, middle)
    while (beside := _widest_beside(best, found, step)) is not None:
        tried(sum(beside) // 2 // step * step)
    return tuple(sorted(found.values(), key=lambda one: (-one.sequences_per_s, one.batch)))


def _widest_beside(best: int, tried: Collection[int], step: int) -> tuple[int, int] | None:
    """The best batch and the nearest that was tried above or below it, whichever is farther; None where both are as
    near as `step`, or a sixteenth."""
    above = [(best, batch) for batch in sorted(tried) if batch > best][:1]
    below = [(batch, best) for batch in sorted(tried) if batch < best][-1:]
    low, high = max((*above, *below), key=lambda pair: pair[1] - pair[0], default=(best, best))
    return (low, high) if high - low > max(step, best // 16) else None


def on_meshes(
    program: Program,
    phases: Sequence[str],
    meshes: Sequence[Mesh],
    options: Options,
    offload: Offload,
    ahead: int,
    best_batch: bool,
) -> tuple[Batched[Offloaded], ...]:
    """What was tried on the mesh on which the first of it takes least a sequence: the batch as it is, or from one
    sequence a chip as `most_sequences` has it. Raises InputError where no mesh has a plan."""
    found: list[tuple[Batched[Offloaded], ...]] = []
    refused: list[InputError] = []
    for mesh in meshes:

        def planned(
            sized: Program, below: float, mesh: Mesh = mesh, effort: float = options.settings.effort * OF_MANY
        ) -> tuple[Offloaded, float]:
            own = replace(options, settings=replace(options.settings, effort=effort))
            calls = calls_of(sized, phases)
            with cut_off_by(calls):
                one = compile_offloaded(sized, phases, mesh, own, offload, ahead, below / calls)
            return one, one.price * calls

        try:
            if best_batch:
                best, *others = most_sequences(program, mesh.chips, planned)
                again = planned(of_batch(program, best.batch), math.inf, effort=options.settings.effort)
                found.append((Batched(best.batch, *again), *others))
            else:
                found.append(
                    (Batched(_batch(program, phases), *planned(program, math.inf, effort=options.settings.effort)),)
                )
        except InputError as error:
            refused.append(error)
    if not found:
        raise refused[0]
    return max(found, key=lambda tried: tried[0].sequences_per_s)


def calls_of(program: Program, phases: Sequence[str]) -> int:
    """How often what a compilation of some phases takes counts for one batch: that of one phase is of one call."""
    return 1 if len(phases) > 1 else program.phase(phases[0]).calls


@contextmanager
def cut_off_by(calls: int) -> Iterator[None]:
    """What is planned inside is of one of so many calls: a Cutoff that it raises is passed on as that of all."""
    try:
        yield
    except Cutoff as cut:
        raise Cutoff(cut.bound * calls, cut.in_mesh_order) from cut


def _batch(program: Program, phases: Sequence[str]) -> int:
    """The sequences of the last phase."""
    return dict(program.phase(phases[-1]).sizes)[serving(program).batch]


def of_batch(program: Program, batch: int) -> Program:
    """The program for so many sequences, in all phases."""
    dim = serving(program).batch
    sized = (
        replace(phase, sizes=tuple((name, batch if name == dim else size) for name, size in phase.sizes))
        for phase in program.phases
    )
    return replace(program, phases=tuple(sized))
