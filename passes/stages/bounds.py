"""What a pipeline takes at the least, before its stages are planned: by its layers, and by what comes from the host.

A layer is planned by itself, which is quick; a pipeline is no quicker than its layers one by one, evenly divided, and
than what comes to its chips. Nor does a stage fit that has no room for what it stores and for what one of its layers
holds beside that, each as small as axes divide it: which a phase with so many micro-batches says by itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, combinations, groupby, pairwise, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...cost.network import Network
from ...cost.stages import Passing, Rounds
from ...cost.streams import least_fetched_s, least_stored_bytes
from ...ir.dataflow import appends, defined
from ...ir.diagnostics import Diagnostic, InputError, fail
from ...ir.mesh import Mesh
from ...ir.program import Pin, Program, Repeat, stored_in
from ...ir.record import record
from ..choose import choose
from ..expansion.orders import Orders
from ..least_held import least_live_bytes, may_fit
from ..options import Options
from ..plan import NoPlan, Work
from ..search.pinning import undivided
from .divide import Stage, divide, inside_layers, layer_parts, layer_programs, numbered, turns, without_layers
from .layers import place_kinds, segments_of, stored_by_one
from .opened import has_mean_streamed, with_least_streams, with_mean_streams

ROUNDING = 1e-9  # relative: of sums of bytes
FEW_DIVISIONS, FEW_STREAMED = 8, 16  # of layers over stages, of which all are tried
EachLayer = tuple[tuple[int, float], ...]  # how many layers of a kind there are, and what one takes at the least
Turns = tuple[str, int]  # a phase, and its micro-batches
Counted = tuple[tuple[str, int, int], ...]  # phases, their micro-batches, and how often each counts
Floats = NDArray[np.float64]
Places = int | NDArray[np.int64]


@dataclass
class Known:
    """What was found of layers, and of what stands around them, which programs that stream other layers share.
    `layers`: what they take, by phases and what one may store; `more`: what repetitions of several take beside that;
    `live`: the bytes that each layer holds beside what is stored; `around`: seconds of what runs outside of repeats, by
    its program; `begun`: the work (`Work.read`) before any stages were planned."""

    layers: dict[tuple[Counted, float], EachLayer] = field(default_factory=dict)
    more: dict[Counted, tuple[float, ...]] = field(default_factory=dict)
    live: dict[Turns, list[float]] = field(default_factory=dict)
    around: dict[tuple[Turns, Program], float] = field(default_factory=dict)
    begun: float | None = None


def rounds_of(program: Program, phase: str, micro_batches: int) -> Rounds:
    """How often a phase runs. A call waits for the one before it where it goes on with what that left in a cache: its
    new entries do not fill the cache."""
    bound = program.phase(phase)
    sizes = dict(bound.sizes)
    wait = any(sizes[op.source] < sizes[op.target] for op in appends(program).values())
    return Rounds(bound.calls, micro_batches, wait)


@record
class Split:
    """How each phase's batch is divided."""

    rounds: tuple[tuple[str, Rounds], ...]

    def seconds(self, of: Mapping[str, Sequence[float]]) -> float:
        """Seconds of all calls; `of`: what a micro-batch of each phase takes in each stage."""
        return math.fsum(rounds.seconds(math.fsum(of[phase]), max(of[phase])) for phase, rounds in self.rounds)


@dataclass
class Bounds:
    """Bounds of the pipelines of a program along an axis. `batch`: the dim that micro-batches divide; `stages`: one
    from each kind of place to each other."""

    program: Program
    phases: tuple[str, ...]
    mesh: Mesh
    axis: str
    batch: str
    options: Options
    known: Known = field(default_factory=Known)
    _needed: dict[tuple[tuple[int, ...], Turns], tuple[float, float]] = field(default_factory=dict, init=False)
    _fit: dict[tuple[Program, Turns], bool] = field(default_factory=dict, init=False)
    _fetched: dict[tuple[Program, Turns], float] = field(default_factory=dict, init=False)
    _handing: dict[Turns, float] = field(default_factory=dict, init=False)
    stages: dict[tuple[int, int], Stage] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.ways = self.mesh.size(self.axis)
        self.inner = self.mesh.without(self.axis)
        self.segments = segments_of(self.program)
        self.layers = sum(one.layers for one in self.segments)
        self.streams = any(one.streamed for one in stored_in(self.program.body))
        self.few = math.comb(self.layers - 1, self.ways - 1) <= (FEW_STREAMED if self.streams else FEW_DIVISIONS)

    @cached_property
    def parts(self) -> tuple[tuple[int, Program], ...]:
        """The layers in order, alike ones together with the count of them."""
        return layer_parts(self.program)

    @cached_property
    def unlike(self) -> tuple[tuple[int, Program], ...]:
        """The same with one for all that differ in names alone, of which no pin is."""
        first: dict[Program, Program] = {}
        pinned = self.options.pins or self.program.pins
        every = [(count, layer, layer if pinned else numbered(layer)) for count, layer in self.parts]
        return tuple((count, first.setdefault(key, layer)) for count, layer, key in every)

    @cached_property
    def kinds(self) -> list[int]:
        """Where each place between layers lies, as `place_kinds` has it."""
        return place_kinds(self.segments)

    @cached_property
    def inside(self) -> frozenset[str]:
        """What ops of layers make that stand in no repeat."""
        return inside_layers(self.program)

    @cached_property
    def passing(self) -> Passing:
        """What handing on costs, of no values yet."""
        return Passing(frozenset(), Network(self.options.hardware, self.mesh).handing_on(self.axis))

    @cached_property
    def cuts(self) -> tuple[Stage, ...]:
        """The first of two stages that the layers are divided in: at a place of each kind."""
        places = (self.kinds.index(kind) for kind in dict.fromkeys(self.kinds[1:-1]))
        return tuple(divide(self.program, (at, self.layers - at), self.segments)[0] for at in places)

    @cached_property
    def divisions(self) -> dict[tuple[int, ...], tuple[Stage, ...]]:
        """The ways to divide few layers over stages; none of many."""
        if not self.few:
            return {}
        cuts = combinations(range(1, self.layers), self.ways - 1)
        every = [tuple(end - start for start, end in pairwise((0, *each, self.layers))) for each in cuts]
        return {layers: divide(self.program, layers, self.segments) for layers in every}

    def splits(self, asked: Mapping[str, int]) -> list[Split]:
        """The ways to divide the batches, but for those that leave a micro-batch which pins would split further than it
        divides. Raises InputError where one does not divide as asked, and where none is left."""
        every, findings = [], list[Diagnostic]()
        for phase in self.phases:
            size = dict(self.program.phase(phase).sizes)[self.batch]
            counts = [n for n in range(1, size + 1) if size % n == 0]
            if asked.get(phase, 1) not in counts:
                raise fail(
                    f"{asked[phase]} micro-batches do not divide the batch of phase `{phase}`, {self.batch} = {size}.",
                    hint=f"it divides by {', '.join(map(str, counts[:12]))}",
                )
            counts = [asked[phase]] if phase in asked else counts
            held = [n for n in counts if not self._refused_pins(phase, n)]
            findings += [] if held else self._refused_pins(phase, counts[0])
            every.append([(phase, rounds_of(self.program, phase, n)) for n in held])
        if findings:
            raise InputError(findings)
        return [Split(rounds) for rounds in product(*every)]

    def _refused_pins(self, phase: str, micro_batches: int) -> list[Diagnostic]:
        """Which pins so many micro-batches of a phase cannot hold."""
        pins = (*self.program.pins, *self.options.pins)
        if not pins:
            return []
        program = replace(self._in_turns(self.program, (phase, micro_batches)), pins=())
        found = undivided(Orders(program).ordered(phase), phase, pins, self.inner)
        where = f"In {micro_batches} micro-batches of phase `{phase}`: " if micro_batches > 1 else ""
        return [replace(one, message=where + one.message) for one in found]

    def may_hold(self, split: Split) -> bool:
        """Whether some division may fit into the chips."""
        if self.few:
            return any(self.division_may_hold(split, layers) for layers in self.divisions)
        return all(self._even_may_hold((phase, each.micro_batches)) for phase, each in split.rounds)

    def division_may_hold(self, split: Split, layers: tuple[int, ...]) -> bool:
        """Whether stages of so many layers may fit into the chips; of few layers."""
        return self._have_room(*self.division_bytes(split, layers))

    def division_bytes(self, split: Split, layers: tuple[int, ...]) -> tuple[float, float]:
        """What a chip of the fullest stage stores at the least, and what it holds in all; of few layers."""
        every = [self._division_bytes((phase, each.micro_batches), layers) for phase, each in split.rounds]
        return max(stored for stored, _ in every), max(held for _, held in every)

    def _division_bytes(self, turns: Turns, layers: tuple[int, ...]) -> tuple[float, float]:
        if (layers, turns) not in self._needed:
            live, ends = self.lives(turns), pairwise((0, *accumulate(layers)))
            stored = [self._stored_bytes(one.program, turns, 1) for one in self.divisions[layers]]
            held = [own + max(live[start:end]) for own, (start, end) in zip(stored, ends, strict=True)]
            self._needed[layers, turns] = max(stored), max(held)
        return self._needed[layers, turns]

    def fullness(self, stored: float, held: float) -> tuple[bool, float]:
        """By which that is the least full of some divisions which has most room, of bytes that are stored and held in
        all: whether what is stored is too much, and how much that is, or what is held."""
        over = stored > self.options.stored_bytes
        return over, stored if over else held

    def division_may_fit(self, split: Split, layers: tuple[int, ...]) -> bool:
        """The same by all that is known of what choices take together in any of the stages, which takes longer."""
        turns = [(phase, each.micro_batches) for phase, each in split.rounds]
        parts = dict.fromkeys(stage.program for stage in divide(self.program, layers, self.segments))
        return all(self._may_fit(part, of) for of in turns for part in parts)

    def _may_fit(self, program: Program, turns: Turns) -> bool:
        if (program, turns) not in self._fit:
            self._fit[program, turns] = may_fit(self._in_turns(program, turns), turns[0], self.inner, self.options)
        return self._fit[program, turns]

    def _even_may_hold(self, turns: Turns) -> bool:
        """Some stage stores the mean of all of them, and has one of the layers."""
        stored = self._stored_bytes(self.program, turns, self.ways)  # mostly enough, and known at once
        return self._have_room(stored, stored) and self._have_room(*self._even_bytes(turns))

    def _even_bytes(self, turns: Turns) -> tuple[float, float]:
        if ((), turns) not in self._needed:
            stored = self._stored_bytes(self.program, turns, self.ways)
            self._needed[(), turns] = stored, stored + min(self.lives(turns))
        return self._needed[(), turns]

    def _have_room(self, stored: float, held: float) -> bool:
        """Whether chips have room for what is stored, and for what is held in all."""
        return stored <= self.options.stored_bytes and held <= self.options.capacity * (1 + ROUNDING)

    def needed_bytes(self, split: Split) -> float:
        """What a chip of even stages holds at the least."""
        turns = ((phase, each.micro_batches) for phase, each in split.rounds)
        return max(self._stored_bytes(self.program, of, self.ways) + max(self.lives(of)) for of in turns)

    def stage_bytes(self, stage: Stage, turns: Turns) -> tuple[float, float]:
        """What a chip of a stage stores at the least, and what it holds beside that where most is held."""
        program = self._in_turns(stage.program, turns)
        live = least_live_bytes(program, turns[0], self.inner, self.options)
        return least_stored_bytes(program, turns[0], self.inner), live

    def layer_bytes(self, turns: Turns) -> list[float]:
        """What a chip stores at the least of one of each of `parts`, beside what others read as well."""
        alone = stored_by_one(self.program)

        def own(layer: Program) -> float:
            program = self._in_turns(layer, turns)
            shared = tuple(one for one in program.body.stored if one.value not in alone)
            around = replace(program, body=replace(program.body, stored=shared, items=()))
            of_all, of_others = (least_stored_bytes(one, turns[0], self.inner) for one in (program, around))
            return of_all - of_others

        known = {layer: own(layer) for layer in dict.fromkeys(layer for _, layer in self.parts)}
        return [known[layer] for _, layer in self.parts]

    def _stored_bytes(self, program: Program, turns: Turns, stages: int) -> float:
        """What a chip stores of a program at the least, evenly in so many stages."""
        return least_stored_bytes(self._in_turns(program, turns), turns[0], self.inner) / stages

    def lives(self, turns: Turns) -> list[float]:
        """What each layer holds at the least beside what is stored, where most is held."""
        if turns not in self.known.live:
            known = {
                layer: least_live_bytes(self._in_turns(layer, turns), turns[0], self.inner, self.options)
                for layer in dict.fromkeys(layer for _, layer in self.unlike)
            }
            self.known.live[turns] = [known[layer] for count, layer in self.unlike for _ in range(count)]
        return self.known.live[turns]

    def around_s(self, program: Program, inside: frozenset[str], turns: Turns) -> float:
        """What a micro-batch takes at the least for what a program runs outside of its repeats, but for what makes
        values `inside` of layers."""
        several = program is self.program and any(one.repeat is None or one.inside for one in self.segments)
        outside = without_layers(program, inside, fused=several or bool(inside))
        if outside is None:
            return 0.0
        own = self._in_turns(outside, turns)
        if (turns, own) not in self.known.around:
            free = replace(self.options, capacity_bytes=math.inf, stored_bytes=math.inf, pins=())
            self.known.around[turns, own] = choose(own, [turns[0]], self.inner, free).least
        return self.known.around[turns, own]

    def handed_s(self, stage: Stage, turns: Turns) -> float:
        """What a micro-batch takes at the least for what a stage hands on, split over all of its chips."""
        sizes, table = dict(self._in_turns(self.program, turns).phase(turns[0]).sizes), stage.program.table()
        seconds = 0.0
        for value in (table[name] for name in stage.passed):
            whole = 0.0 if value.chosen else math.prod(sizes[d] for d in value.dims) * value.dtype.bits / 8
            seconds += self.passing.seconds(whole / self.inner.chips)
        return seconds

    def alone_s(self, stage: Stage, turns: Turns) -> float:
        """What a micro-batch takes at the least in a stage, however much that holds."""
        passing = replace(self.passing, values=frozenset(stage.passed))
        free = replace(self.options, capacity_bytes=math.inf, stored_bytes=math.inf, pins=(), passing=passing)
        return choose(self._in_turns(stage.program, turns), [turns[0]], self.inner, free).least

    def handing_s(self, turns: Turns) -> float:
        """What a micro-batch takes at the least for what all stages hand on, wherever layers are divided."""
        if turns not in self._handing:
            self._handing[turns] = (self.ways - 1) * min(self.handed_s(stage, turns) for stage in self.cuts)
        return self._handing[turns]

    def beside_s(self, turns: Turns) -> float:
        """What a micro-batch takes at the least in all stages for what is no part of a layer."""
        return self.around_s(self.program, self.inside, turns) + self.handing_s(turns)

    def _in_turns(self, program: Program, of: Turns) -> Program:
        """A program with one phase, in micro-batches, called once."""
        phase, parts = of
        return turns(program, self.batch, {phase: (parts, 1)})

    def timed(self, program: Program, rounds: Sequence[tuple[str, Rounds]]) -> Program:
        """A program in micro-batches, its phases weighted as a pipeline of even stages weights them."""
        found = {phase: (each.micro_batches, each.weight(self.ways)) for phase, each in rounds}
        return turns(program, self.batch, found)

    def layers_s(self, rounds: tuple[tuple[str, Rounds], ...]) -> float:
        """What a pipeline takes at the least for its layers and for what is no part of them. Some stage has the mean of
        it; of one phase it is known, too, that some stage has as many whole layers.

        A layer is planned by itself.
        """
        layers, several = self.each_layer(rounds, 1), len(rounds) > 1
        together = math.fsum(count * seconds for count, seconds in layers) + self._repetitions_s(rounds)
        together += math.fsum(
            (each.weight(self.ways) if several else 1) * self.beside_s((phase, each.micro_batches))
            for phase, each in rounds
        )
        if several:  # of all calls, weighted as of even stages
            return together / self.ways
        even = self.each_layer(rounds, self.layers_of_stages[-1])
        largest = -(-self.layers // self.ways) * min(seconds for _, seconds in even)
        return float(rounds[0][1].seconds(together, max(together / self.ways, largest)))

    def _repetitions_s(self, rounds: tuple[tuple[str, Rounds], ...]) -> float:
        """How much more repetitions take at the least than their layers by themselves, but for those in which stages
        end."""
        more = self.more_at(self._weighted(rounds))
        counts = (0 if one.repeat is None else one.repeat.count for one in self.segments)
        every = math.fsum(count * seconds for count, seconds in zip(counts, more, strict=True))
        return max(0.0, every - (self.ways - 1) * max(more))

    @property
    def layers_of_stages(self) -> tuple[int, ...]:
        """Of how many layers in a stage, or more, it is asked what one takes: of any, and of an even part of many."""
        return (1,) if self.few else (1, self.layers // self.ways)

    def each_layer(self, rounds: tuple[tuple[str, Rounds], ...], fewest: int) -> EachLayer:
        """As `layers_at`, with phases that count as in a pipeline of even stages."""
        return self.layers_at(self._weighted(rounds), fewest)

    def _weighted(self, rounds: Sequence[tuple[str, Rounds]]) -> Counted:
        """Phases that count as in a pipeline of even stages."""
        return tuple((phase, each.micro_batches, each.weight(self.ways)) for phase, each in rounds)

    def layers_at(self, counted: Counted, fewest: int) -> EachLayer:
        """How many layers of each kind there are, and what one takes at the least in a stage that has at the `fewest`
        so many. Where all layers are alike it has its part of what that may store. What this looks at is not counted:
        stages are planned after as much work whatever is asked of layers."""
        parts = self.unlike
        part = self.options.capacity / fewest if len(parts) == 1 and not self.streams else math.inf
        if (counted, part) not in self.known.layers:
            known = {layer: self._layer_s(layer, counted, part) for layer in dict.fromkeys(one for _, one in parts)}
            self.known.layers[counted, part] = tuple((count, known[layer]) for count, layer in parts)
        return self.known.layers[counted, part]

    def _layer_s(self, layer: Program, counted: Counted, part: float) -> float:
        """What a layer takes at the least by itself, or a repetition of several, if it may store so much."""
        times = {phase: (micro_batches, times) for phase, micro_batches, times in counted}
        free = replace(self.options, capacity_bytes=math.inf, pins=(), work=Work())
        timed = turns(replace(layer, pins=self.pins_inside(layer)), self.batch, times)
        with suppress(NoPlan):  # so many layers fit nowhere; which stage is too large is said of the stage
            return choose(timed, [*times], self.inner, replace(free, stored_bytes=part)).least
        return choose(timed, [*times], self.inner, free).least

    def more_at(self, counted: Counted) -> tuple[float, ...]:
        """For each segment how much more a repetition of several layers takes at the least than these by themselves:
        what goes round is in one layout before and after it."""
        if counted not in self.known.more:
            each_s, found, before = _one_by_one(self.layers_at(counted, 1)), list[float](), 0
            repetitions = iter(layer_programs(self.program))
            for one in self.segments:
                whole = next(repetitions)[1] if one.repeat is not None else None
                more_s = 0.0
                if whole is not None and one.inside:
                    more_s = self._layer_s(whole, counted, math.inf) - math.fsum(each_s[before : before + one.each])
                found.append(max(0.0, more_s * (1 - ROUNDING)))
                before += one.layers
            self.known.more[counted] = tuple(found)
        return self.known.more[counted]

    def whole_s(self, counted: Counted, start: Places, end: Places) -> Floats:
        """How much more the repetitions that lie between two places take at the least than their layers by
        themselves."""
        found, first = np.zeros(np.broadcast(start, end).shape), 0
        for one, more_s in zip(self.segments, self.more_at(counted), strict=True):
            if more_s > 0:
                ended = (np.minimum(end, first + one.layers) - first) // one.each
                begun = -((first - np.maximum(start, first)) // one.each)
                found = found + more_s * np.maximum(0, ended - begun)
            first += one.layers
        return found

    def pins_inside(self, layer: Program) -> tuple[Pin, ...]:
        """The pins of the program and of the options that hold in every repetition of a layer: those of what is handed
        to it would be paid for each."""
        inside = {name for item in layer.body.items if isinstance(item, Repeat) for name in defined(item.body)}
        inside |= {item.result for item in layer.body.items if not isinstance(item, Repeat)}
        every = (*layer.pins, *self.options.pins)
        return tuple(one for one in every if one.value in inside and (one.op is None or one.op in inside))

    def fetched_s(self, program: Program, of: Turns) -> float:
        """What a micro-batch waits at the least for what comes to the chips of one stage at a time, and goes back. Of
        all layers as much comes as stages stream of them."""
        hardware = self.options.hardware
        if hardware.host is None or not self.streams:
            return 0.0
        if (program, of) not in self._fetched:
            stages = self.ways if program is self.program else 1
            timed = self._in_turns(with_least_streams(program, stages) if stages > 1 else program, of)
            self._fetched[program, of] = least_fetched_s(timed, self.inner, hardware, of[0], stages)
        return self._fetched[program, of]

    def fetching_s(self, split: Split) -> float:
        """What a pipeline takes at the least for what has to come, and for what is no part of layers: in the best of
        few divisions, with what these compute, or where some stage has the mean of it."""
        if not self.streams or self.options.hardware.host is None:
            return 0.0
        if self.few:
            return min(split.seconds(self.stages_s(split, one, streams=True)) for one in self.divisions.values())
        turns = [(phase, each.micro_batches) for phase, each in split.rounds]
        return split.seconds({of[0]: self._mean_coming_s(of) for of in turns})

    def _mean_coming_s(self, of: Turns) -> list[float]:
        """What a micro-batch takes at the least in each of the stages of many layers for what has to come."""
        least_s, mean_s = self.fetched_s(self.program, of), 0.0
        if not 0 < least_s < math.inf:
            return [least_s] * self.ways
        if has_mean_streamed(self.program, self.ways):
            program = self._in_turns(with_mean_streams(self.program, self.ways), of)
            mean_s = least_fetched_s(program, self.inner, self.options.hardware, of[0])
        beside_s = self.beside_s(of)
        return [*map(float, in_stages(least_s + beside_s, mean_s + beside_s / self.ways, self.ways))]

    def layers_between_s(self, phase: str, rounds: Rounds, start: int, end: int) -> float:
        """What a micro-batch of a phase takes at the least for the layers from one place up to another."""
        each_s, counted = _one_by_one(self.each_layer(((phase, rounds),), 1)), self._weighted(((phase, rounds),))
        return _together(each_s[start:end]) + float(self.whole_s(counted, start, end))

    def stages_s(self, split: Split, stages: Sequence[Stage], streams: bool = False) -> dict[str, list[float]]:
        """What a micro-batch of each phase takes at the least in each of some stages, planned by itself; with `streams`
        layers take what they compute or what comes from the host for them, whichever is longer."""
        found = {}
        for phase, each in split.rounds:
            of = phase, each.micro_batches
            ends = pairwise((0, *accumulate(one.layers for one in stages)))
            found[phase] = [
                self.around_s(one.program, one.inside, of)
                + self.handed_s(one, of)
                + max(
                    self.layers_between_s(phase, each, start, end),
                    self.fetched_s(one.program, of) if streams else 0.0,
                )
                for one, (start, end) in zip(stages, ends, strict=True)
            ]
        return found

    def division_s(self, split: Split, layers: tuple[int, ...]) -> tuple[float, float]:
        """What a division of layers takes at the least to compute, and with what comes from the host."""
        stages = self.divisions.get(layers) or divide(self.program, layers, self.segments)
        return split.seconds(self.stages_s(split, stages)), split.seconds(self.stages_s(split, stages, streams=True))

    def computing_s(self, split: Split) -> float:
        """What a pipeline takes at the least for each phase by itself."""
        return math.fsum(self.layers_s((one,)) for one in split.rounds)


def in_stages(together_s: Any, most_s: Any, stages: int) -> list[Any]:
    """What so many stages take at the least, in some order, that take so much together, and of which one takes as much
    as the mean and no less than `most_s`. Numbers or arrays of them."""
    longest = np.maximum(together_s / stages, most_s)
    return [longest, *[np.maximum(0.0, together_s - longest) / max(1, stages - 1)] * (stages - 1)]


def _one_by_one(layers: EachLayer) -> list[float]:
    """What each layer takes, in order."""
    return [seconds for count, seconds in layers for _ in range(count)]


def _together(each_s: Sequence[float]) -> float:
    """The sum of what layers take, alike ones that follow each other multiplied."""
    return math.fsum(len(list(alike)) * seconds for seconds, alike in groupby(each_s))
