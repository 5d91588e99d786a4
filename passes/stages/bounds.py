"""What a pipeline takes at the least, before its stages are planned: by its layers, and by what comes from the host.

A layer is planned by itself, which is quick; a pipeline is no quicker than its layers one by one, evenly divided, and
than the weights that come to its chips.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product

from ...cost.stages import Rounds
from ...cost.streams import least_fetched_s, least_stored_bytes
from ...ir.dataflow import appends
from ...ir.diagnostics import fail
from ...ir.mesh import Mesh
from ...ir.program import Program, stored_in
from ..choose import Options, choose
from ..plan import NoPlan
from .divide import divide, layer_programs, layers_of, turns

FEW_DIVISIONS = 8  # of layers over stages, of which all are tried
EachLayer = tuple[tuple[int, float], ...]  # how many layers of a kind there are, and what one takes at the least
KnownLayers = dict[tuple[tuple[tuple[str, Rounds], ...], float], EachLayer]  # by rounds, and what one may store


def rounds_of(program: Program, phase: str, micro_batches: int) -> Rounds:
    """How often a phase runs. A call waits for the one before it where it goes on with what that left in a cache: its
    new entries do not fill the cache."""
    bound = program.phase(phase)
    sizes = dict(bound.sizes)
    wait = any(sizes[op.source] < sizes[op.target] for op in appends(program).values())
    return Rounds(bound.calls, micro_batches, wait)


@dataclass(frozen=True)
class Split:
    """How each phase's batch is divided."""

    rounds: tuple[tuple[str, Rounds], ...]

    def seconds(self, of: Mapping[str, Sequence[float]]) -> float:
        """Seconds of all calls; `of`: what a micro-batch of each phase takes in each stage."""
        return math.fsum(rounds.seconds(math.fsum(of[phase]), max(of[phase])) for phase, rounds in self.rounds)


@dataclass
class Bounds:
    """Bounds of the pipelines of a program along an axis. `batch`: the dim that micro-batches divide. `known`: what
    layers take, which programs that stream other layers share."""

    program: Program
    phases: tuple[str, ...]
    mesh: Mesh
    axis: str
    batch: str
    options: Options
    known: KnownLayers = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ways = self.mesh.size(self.axis)
        self.inner = self.mesh.without(self.axis)
        self.layers = layers_of(self.program)
        self.streams = any(one.streamed for one in stored_in(self.program.body))
        self.few = math.comb(self.layers - 1, self.ways - 1) <= FEW_DIVISIONS

    @cached_property
    def parts(self) -> tuple[tuple[int, Program], ...]:
        """A layer of each kind, and how many there are."""
        return layer_programs(self.program)

    @cached_property
    def all_fetched_s(self) -> float:
        """What all layers together wait at the least, of a micro-batch."""
        return self.fetched_s(self.program)

    def splits(self, asked: Mapping[str, int]) -> list[Split]:
        """The ways to divide the batches. Raises InputError where one does not divide as asked."""
        every = []
        for phase in self.phases:
            size = dict(self.program.phase(phase).sizes)[self.batch]
            counts = [n for n in range(1, size + 1) if size % n == 0]
            if asked.get(phase, 1) not in counts:
                raise fail(
                    f"{asked[phase]} micro-batches do not divide the batch of phase `{phase}`, {self.batch} = {size}.",
                    hint=f"it divides by {', '.join(map(str, counts[:12]))}",
                )
            every.append([(phase, rounds_of(self.program, phase, asked.get(phase, m))) for m in counts])
        return [Split(rounds) for rounds in dict.fromkeys(product(*every))]

    def may_hold(self, split: Split) -> bool:
        """Whether what is stored may fit into the chips, each tensor split as far as axes divide it: some stage has
        the mean of it."""
        return self.stores(self.timed(self.program, split.rounds), self.ways)

    def stores(self, program: Program, stages: int = 1) -> bool:
        """Whether chips have room for what a program stores at the least, evenly in so many stages."""
        room = min(self.options.capacity, self.options.stored_bytes)
        return all(least_stored_bytes(program, phase, self.inner) <= stages * room for phase in self.phases)

    def timed(self, program: Program, rounds: Sequence[tuple[str, Rounds]]) -> Program:
        """A program in micro-batches, its phases weighted as a pipeline of even stages weights them."""
        found = {phase: (each.micro_batches, each.weight(self.ways)) for phase, each in rounds}
        return turns(program, self.batch, found)

    def layers_s(self, rounds: tuple[tuple[str, Rounds], ...]) -> float:
        """What a pipeline takes at the least for its layers alone. Some stage has the mean of them; of one phase it is
        known, too, that some stage has as many whole ones.

        A layer is planned by itself. Where all layers are alike it has its part of what the smallest stage may store.
        """
        layers = self.each_layer(rounds)
        together = math.fsum(count * seconds for count, seconds in layers)
        if len(rounds) > 1:  # of all calls, weighted as of even stages
            return together / self.ways
        largest = -(-self.layers // self.ways) * min(seconds for _, seconds in layers)
        return float(rounds[0][1].seconds(together, max(together / self.ways, largest)))

    def each_layer(self, rounds: tuple[tuple[str, Rounds], ...]) -> tuple[tuple[int, float], ...]:
        """How many layers of each kind there are, and what one takes at the least."""
        parts = self.parts
        fewest = 1 if self.few else self.layers // self.ways
        part = self.options.capacity / fewest if len(parts) == 1 and not self.streams else math.inf
        if (rounds, part) not in self.known:
            found = []
            for count, layer in parts:
                free = replace(self.options, capacity_bytes=math.inf, pins=())
                timed, names = self.timed(layer, rounds), [phase for phase, _ in rounds]
                try:
                    plan = choose(timed, names, self.inner, replace(free, stored_bytes=part))
                except NoPlan:  # so many layers fit nowhere; which stage is too large is said of the stage
                    plan = choose(timed, names, self.inner, free)
                found.append((count, plan.least))
            self.known[rounds, part] = tuple(found)
        return self.known[rounds, part]

    def fetched_s(self, program: Program) -> float:
        """What a micro-batch waits at the least for weights that come to the chips of one stage at a time."""
        host = self.options.hardware.host
        return least_fetched_s(program, self.inner, host) if host is not None else 0.0

    def fetching_s(self, split: Split) -> float:
        """What a pipeline takes at the least for its weights to come: some stage has the mean of them."""
        return split.seconds({phase: [self.all_fetched_s / self.ways] * self.ways for phase in self.phases})

    def division_s(self, split: Split, layers: tuple[int, ...]) -> tuple[float, float]:
        """What a division of layers takes at the least to compute, and with what comes from the host: in each stage
        whichever is longer."""
        fetched_s = [self.fetched_s(part.program) if self.streams else 0.0 for part in divide(self.program, layers)]
        computed, waiting = {}, {}
        for one in split.rounds:
            least_s = min(seconds for _, seconds in self.each_layer((one,)))
            computed[one[0]] = [count * least_s for count in layers]
            waiting[one[0]] = [*map(max, computed[one[0]], fetched_s)]
        return split.seconds(computed), split.seconds(waiting)

    def computing_s(self, split: Split) -> float:
        """What a pipeline takes at the least for the layers of each phase."""
        return math.fsum(self.layers_s((one,)) for one in split.rounds)
