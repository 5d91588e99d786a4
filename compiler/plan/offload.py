"""The choice of what chips keep of a model's layers, and what their host does.

Layers are alike, so it is how many of them are streamed that is chosen: none or all where no plan is quicker; or as few
as leave a plan that fits, about as many as come while others compute, which makes room for quicker layouts, or all.
For each the search lays out the program as ever, with room for what stays; what it minimises leaves waiting out. The
bound counts it: no plan computes quicker than one that keeps the least, nor fetches less than the fewest layers that
have to be streamed, of which each chip takes as small a part in any layout as the axes divide.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Generic, TypeVar

from ...cost.streams import NO_HOST, least_fetched_s, least_stored_bytes
from ...ir.diagnostics import InputError, fail
from ...ir.mesh import Mesh
from ...ir.program import Kind, Program
from ...passes.choose import Options
from ...passes.plan import Objective, relative_gap
from ...passes.stages.divide import layers_of
from .compiled import Compilation
from .pipeline import compile_phases
from .serving import serving
from .streamed_layers import Family, Quickest, quickest, streaming

Found = TypeVar("Found")  # what a batch is planned as: streams from the host, or ways to have stages
MOST_SEQUENCES = 1 << 20  # of a batch that is looked for


class Offload(StrEnum):
    """What may be streamed from the host. AUTO: weights, caches or both, whichever is quickest."""

    NONE = "none"
    WEIGHTS = "weights"
    CACHES = "caches"
    AUTO = "auto"


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
    before they are needed. `bound`: what every plan with such streams takes at the least, in the terms of its price.
    `placed`: tensors that a person placed there."""

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
    def what(self) -> str:
        """What is streamed, in words."""
        words = {Kind.PARAM: "weights", Kind.CACHE: "caches"}
        return " and ".join([*(word for kind, word in words.items() if kind in self.kinds), *self.placed])


@dataclass(frozen=True)
class Batched(Generic[Found]):
    """A batch that was tried: what came of it, None where it does not fit, and the seconds of all of its calls."""

    batch: int
    found: Found | None
    price: float = math.inf

    @property
    def sequences_per_s(self) -> float:
        """Sequences that go through all phases a second; none where the batch does not fit."""
        return self.batch / self.price


def compile_offloaded(
    program: Program, phases: Sequence[str], mesh: Mesh, options: Options, offload: Offload, ahead: int = 1
) -> Offloaded:
    """The quickest plan that is found with streams of some kinds; `ahead`: how many layers are fetched before they are
    needed, 0 for none. Where the program places a tensor with the host, it is streamed in all layers, and so is what
    else is streamed.

    Raises InputError where the hardware has no host, the model has no layers, or the host cannot hold what is
    streamed; NoPlan where the model does not fit even so.
    """
    hardware = options.hardware
    if hardware.host is None:
        raise fail(f"{hardware.name} has no host to store parameters or caches in.", hint=NO_HOST)
    if options.objective is not Objective.TIME:
        raise fail(f"What is streamed is chosen by time, and `{options.objective}` is asked for.")
    if options.overlap:
        raise fail("Loops are not made of programs that stream.", hint="leave out `--overlap`, or `--offload`")
    if not layers_of(program):
        raise fail("The model has no layers to stream: no block of it is repeated.", hint="leave out `--offload`")
    placed = program.on_host
    families = dict.fromkeys((*FAMILIES[offload], *(FAMILIES[Offload.NONE] if placed else ())))
    unstreamed: dict[int, Compilation | InputError] = {}
    every = [_Plans(program, kinds, ahead, unstreamed, phases, mesh, options) for kinds in families]
    best = quickest(every)
    return Offloaded(best.found, best.kinds, best.streamed, layers_of(program), ahead, best.bound, placed)


@dataclass
class _Plans(Family[Compilation]):
    """Plans of phases that stream tensors of some kinds."""

    phases: Sequence[str]
    mesh: Mesh
    options: Options

    def planned(self, program: Program) -> Compilation:
        """The plans of all phases. Raises as `compile_phases` does."""
        return compile_phases(program, self.phases, self.mesh, self.options)

    @cached_property
    def fewest(self) -> int:
        """So few that what is stored fits, each tensor split as far as it can be; all where some have their place with
        the host, or where even that is too few."""
        if self.program.on_host:
            return self.layers
        return min(self.layers, bisect_left(range(self.layers + 1), True, key=self._may_hold))

    def _may_hold(self, count: int) -> bool:
        program = streaming(self.program, self.kinds, count, self.ahead)
        stored = (least_stored_bytes(program, phase, self.mesh) for phase in self.phases)
        return max(stored) <= min(self.options.capacity, self.options.stored_bytes)

    def least_s(self, streamed: int) -> float:
        """What so many layers take to come."""
        host = self.options.hardware.host
        assert host is not None, "`compile_offloaded` refuses hardware without one"
        program = streaming(self.program, self.kinds, streamed, self.ahead)
        calls = (self.program.phase(phase).calls if len(self.phases) > 1 else 1 for phase in self.phases)
        fetched_s = (least_fetched_s(program, self.mesh, host, phase) for phase in self.phases)
        return math.fsum(count * each_s for count, each_s in zip(calls, fetched_s, strict=True))

    def price(self, streamed: int) -> float:
        """Seconds of all calls of all phases, or of one call of one."""
        return self.at(streamed).price

    def bound(self, streamed: int) -> float:
        """What those plans take at the least if nothing waits."""
        found = self.at(streamed)
        apart = len(found) > 1 and not found.together
        return math.fsum(plan.least * (found[n].calls if apart else 1) for n, plan in enumerate(found.plans))

    @property
    def computing_s(self) -> float:
        """What every plan of the family, or of one with fewer kinds, takes at the least if nothing waits."""
        self.known_s = self.bound(self.freest)
        return self.known_s

    @cached_property
    def freest(self) -> int:
        """The count that leaves most room on the chips: all layers, or the fewest where the host cannot hold them."""
        try:
            self.at(self.layers)
        except InputError:
            return self.high or self.layers
        return self.layers

    def most_room(self) -> Compilation:
        """The phases of the freest plan."""
        return self.at(self.freest)

    def best(self) -> Quickest[Compilation]:
        """The fewest that have to be streamed; or, where they may be quicker, as many as are hidden, or all."""
        assert self.high is not None, "the fewest that fit are known"
        least, fetching_s = self.high, self.least_s(min(self.layers, self.shown))
        prices, own_s = {least: self.price(least)}, _computing_s(self.at(least))
        if least < self.layers and self.least_s(least + 1) < prices[least] and self.computing_s < own_s:
            for count in (self.layers, max(least, self.hidden())):
                if self.least_s(count) < min(prices.values()):
                    prices[count] = self.price(count)
        price, count = min((price, count) for count, price in prices.items())
        if not self.ahead:
            bound = fetching_s + self.computing_s
        else:  # what comes is known, and where that takes longer nothing else has to be
            bound = fetching_s if fetching_s >= own_s else max(fetching_s, self.computing_s)
        return Quickest(self.at(count), self.kinds, count, price, min(price, bound))


def _computing_s(compiled: Compilation) -> float:
    """The price of a compilation without waiting."""
    several = len(compiled) > 1
    return compiled.price - math.fsum((one.calls if several else 1) * one.beside_s for one in compiled)


def most_sequences(
    program: Program, step: int, planned: Callable[[Program], tuple[Found, float]]
) -> tuple[Batched[Found], ...]:
    """The batches that were tried for the most sequences a second, that with the most of them first: of `step`
    sequences, then doubled up to where one does not fit, and halfway between it and the last that does, to a
    sixteenth. `planned`: what comes of a program, and the seconds of all calls.

    Raises InputError as `planned` does where `step` sequences do not fit.
    """
    found: dict[int, Batched[Found]] = {}

    def tried(batch: int) -> bool:
        try:
            found[batch] = Batched(batch, *planned(of_batch(program, batch)))
        except InputError:
            if len(found) == 0:
                raise
            found[batch] = Batched(batch, None)
        return found[batch].found is not None

    batch = step
    while tried(batch) and batch < MOST_SEQUENCES:
        batch *= 2
    low, high = batch // 2, batch
    while high - low > max(step, low // 16) and found[high].found is None:
        middle = (low + high) // 2 // step * step
        low, high = (middle, high) if tried(middle) else (low, middle)
    return tuple(sorted(found.values(), key=lambda one: (-one.sequences_per_s, one.batch)))


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

        def planned(sized: Program, mesh: Mesh = mesh) -> tuple[Offloaded, float]:
            one = compile_offloaded(sized, phases, mesh, options, offload, ahead)
            return one, one.price

        try:
            if best_batch:
                found.append(most_sequences(program, mesh.chips, planned))
            else:
                found.append((Batched(_batch(program, phases), *planned(program)),))
        except InputError as error:
            refused.append(error)
    if not found:
        raise refused[0]
    return max(found, key=lambda tried: tried[0].sequences_per_s)


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
