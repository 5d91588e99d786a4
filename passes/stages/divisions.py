"""Divisions of many layers over stages: what all of them take at the least, and which of them promises most.

What a stage takes is known by where it begins and ends: layer by layer, with what stands outside of repeats there and
with what it hands on. The quickest of all divisions by the slowest stage, and that by all stages together, are found by
dynamic programming over the places where one stage ends and the next begins.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise, product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..layouts.space import Mask
from .bounds import Bounds, Counted, Floats, Split
from .divide import Stage, divide
from .staged_plan import StagedPlan

Layers = tuple[int, ...]  # how many each stage has
Expected = dict[str, list[list[float]]]  # for each phase seconds of a stage, by its first place and its last
ROUNDING, BYTES_ROUNDING = 1e-12, 1e-9  # relative: of sums
MOST_ENDS = 30  # ways for stages to begin and end that are planned for a better bound
MUCH = 0.02  # more than was expected
WORTH = 2e-4  # of the time: for less layers are not divided less evenly


class Planned(NamedTuple):
    """What a stage from a place to a later one takes at the least in a phase, as a plan of it says."""

    phase: str
    start: int
    end: int
    seconds: float


@dataclass
class Divisions:
    """The divisions of a program's layers with batches divided as `split` says.

    `known`: of stages that were planned. `more`: for each phase how much more stages took than was expected of those
    that begin and end alike; `ends`: as its rounds have them. `full`: stages that were shown to have no room, by their
    places, `avoided` others that had none; `tight`: whether there were any.
    """

    bounds: Bounds
    split: Split
    known: list[Planned] = field(default_factory=list)
    more: dict[tuple[str, int, int], float] = field(default_factory=dict)
    ends: list[tuple[int, int]] | None = None
    full: list[tuple[int, int]] = field(default_factory=list)
    avoided: list[tuple[int, int]] = field(default_factory=list)
    tight: bool = False

    @cached_property
    def kinds(self) -> list[int]:
        """Where each place lies, as `place_kinds` has it."""
        return self.bounds.kinds

    @cached_property
    def pairs(self) -> list[tuple[int, int]]:
        """The kinds of places at which a stage begins and ends."""
        return sorted({(first, last) for n, first in enumerate(self.kinds) for last in self.kinds[n + 1 :]})

    @cached_property
    def least_s(self) -> dict[str, Floats]:
        """For each phase what a micro-batch takes at the least in a stage, by its first place and its last. Infinite
        where there is no layer between them. Shape [layers + 1, layers + 1]."""
        return {phase: self.beside_s[phase] + self._layers_s(self._counted(phase)) for phase, _ in self.split.rounds}

    @cached_property
    def even_s(self) -> dict[str, Floats]:
        """As `least_s`, with each layer as in a stage of an even part."""
        found = {}
        for phase, _ in self.split.rounds:
            upto = self._upto_s(self._counted(phase), self.bounds.layers_of_stages[-1])
            found[phase] = self.beside_s[phase] + (upto - upto[:, None]) + self._whole_s(self._counted(phase))
        return found

    @cached_property
    def beside_s(self) -> dict[str, Floats]:
        """As `least_s`, of what is no part of a layer."""
        found, kinds, places = {}, np.array(self.kinds), np.arange(len(self.kinds))
        stages = {pair: self._one_between(*pair) for pair in self.pairs}
        for phase, each in self.split.rounds:
            of, beside = (phase, each.micro_batches), np.zeros((kinds[-1] + 1, kinds[-1] + 1))
            for pair, stage in stages.items():
                beside[pair] = self.bounds.around_s(stage.program, stage.inside, of) + self.bounds.handed_s(stage, of)
            found[phase] = np.where(places > places[:, None], beside[kinds[:, None], kinds], np.inf)
        return found

    def _counted(self, phase: str) -> Counted:
        """A phase by itself."""
        rounds = dict(self.split.rounds)[phase]
        return ((phase, rounds.micro_batches, rounds.weight(self.bounds.ways)),)

    def _layers_s(self, counted: Counted, without: tuple[int, int] = (0, 0)) -> Floats:
        """As `least_s`, of the layers of phases together, `without` those between two places."""
        places = np.arange(len(self.kinds))
        layers_s = np.zeros((len(places), len(places)))
        for fewest in self.bounds.layers_of_stages:
            upto = self._upto_s(counted, fewest)
            more = places - places[:, None] >= fewest
            own = upto - upto[:, None] - (upto[without[1]] - upto[without[0]])
            own += self._whole_s(counted) if without == (0, 0) else 0.0
            layers_s = np.maximum(layers_s, np.where(more, own, 0.0))
        return layers_s

    def _whole_s(self, counted: Counted) -> Floats:
        """How much more repetitions between two places take at the least than their layers by themselves."""
        places = np.arange(len(self.kinds))
        return self.bounds.whole_s(counted, places[:, None], places)

    def _upto_s(self, counted: Counted, fewest: int) -> Floats:
        """What all layers before a place take at the least, in stages of at the `fewest` so many."""
        layers = self.bounds.layers_at(counted, fewest)
        return np.array([0.0, *accumulate(seconds for count, seconds in layers for _ in range(count))])

    @cached_property
    def _needed(self) -> tuple[Floats, Floats]:
        """What a chip of a stage stores at the least in any phase, by its places, and what it holds in all."""
        bounds, kinds, places = self.bounds, np.array(self.kinds), np.arange(len(self.kinds))
        stored, held = (np.zeros((len(places), len(places))) for _ in range(2))
        for phase, each in self.split.rounds:
            of = phase, each.micro_batches
            sizes = zip((count for count, _ in bounds.parts), bounds.layer_bytes(of), strict=True)
            upto = np.array([0.0, *accumulate(size for count, size in sizes for _ in range(count))])
            layers = upto - upto[:, None]
            for pair in self.pairs:
                alike = (kinds[:, None] == pair[0]) & (kinds == pair[1])
                least, live = bounds.stage_bytes(self._one_between(*pair), of)
                own = least + layers - layers[self._between(*pair)]
                stored = np.where(alike, np.maximum(stored, own), stored)
                held = np.where(alike, np.maximum(held, own + live), held)
        return stored, held

    @property
    def _fits(self) -> Mask:
        """Whether a stage may have room, by its places; it is not looked at before one has none."""
        kinds = np.array(self.kinds)
        fits = np.ones((len(kinds), len(kinds)), dtype=bool)
        if self.tight and not self.bounds.streams:
            stored, held = self._needed
            options = self.bounds.options
            fits &= (stored <= options.stored_bytes) & (held <= options.capacity * (1 + BYTES_ROUNDING))
        for start, end in self.full:
            fits &= ~self._as_many(start, end)
        return fits

    def least_full(self) -> tuple[Layers, int] | None:
        """The division whose fullest stage has least, and which that is, where chips of all divisions would store or
        hold too much in any layouts; None where that is not known."""
        stored, held = self._needed
        places, options = np.arange(len(self.kinds)), self.bounds.options
        stored = np.where(places > places[:, None], stored, np.inf)
        fitting = np.where(stored <= options.stored_bytes, held, np.inf)
        for needed, room in ((stored, options.stored_bytes), (fitting, options.capacity * (1 + BYTES_ROUNDING))):
            most, layers = _best(needed, self.bounds.ways, np.maximum)
            if most > room:
                stages = list(zip(*_ends(layers), strict=True))
                return layers, max(range(len(stages)), key=lambda n: float(needed[stages[n]]))
        return None

    def held_bytes(self, layers: Layers) -> float:
        """What a chip of the fullest stage of a division holds at the least."""
        return max(float(self._needed[1][stage]) for stage in zip(*_ends(layers), strict=True))

    def _as_many(self, start: int, end: int) -> Mask:
        """Stages that begin and end as that between two places, with no fewer layers."""
        kinds, places = np.array(self.kinds), np.arange(len(self.kinds))
        alike: Mask = (kinds[:, None] == kinds[start]) & (kinds == kinds[end])
        # In one repeat, wherever it is that they have what that has, of some repetitions; or around that, nowhere else.
        for first, last, each in self._repeats:
            if first < start and end < last:
                before, after = -((start - places[:, None]) // each), (places - end) // each
                return alike & (before <= after)
        return alike & (places[:, None] <= start) & (places >= end)

    @cached_property
    def _repeats(self) -> list[tuple[int, int, int]]:
        """The places before and after each repeat that stands in no other, and the layers of a repetition."""
        ends = pairwise((0, *accumulate(one.layers for one in self.bounds.segments)))
        return [(*places, one.each) for one, places in zip(self.bounds.segments, ends, strict=True)]

    def refuse(self, layers: Layers, full: Sequence[bool]) -> None:
        """Stages of a division have no room; of which that was shown."""
        self.tight, stages = True, list(zip(*_ends(layers), strict=True))
        # Of streamed layers stages have their parts by where they lie, which others of as many do not.
        shown = [stage for stage, known in zip(stages, full, strict=True) if known and not self.bounds.streams]
        self.full += shown
        if not shown:
            self.avoided.append(max(stages, key=lambda stage: float(self._needed[1][stage])))

    def _between(self, first: int, last: int) -> tuple[int, int]:
        """The places of a stage of as few layers as can be that begins at one kind of place and ends at another."""
        start = max(n for n, kind in enumerate(self.kinds) if kind == first and last in self.kinds[n + 1 :])
        return start, self.kinds.index(last, start + 1)

    def _one_between(self, first: int, last: int) -> Stage:
        """Such a stage; for all ways to divide batches it is the same."""
        known = self.bounds.stages
        if (first, last) not in known:
            start, end = self._between(first, last)
            counts = [count for count in (start, end - start, len(self.kinds) - 1 - end) if count]
            known[first, last] = divide(self.bounds.program, counts, self.bounds.segments)[1 if start else 0]
        return known[first, last]

    def plan_ends(self) -> None:
        """Know what stages of as few layers as can be take, with what stands around these; of few kinds of stages."""
        end = self.kinds[-1]
        every = [pair for pair in self.pairs if self.bounds.ways > 2 or (pair[0] == 0) != (pair[1] == end)]
        for (phase, each), pair in product(self.split.rounds, every if len(every) <= MOST_ENDS else ()):
            seconds = self.bounds.alone_s(self._one_between(*pair), (phase, each.micro_batches))
            self.known.append(Planned(phase, *self._between(*pair), seconds))

    @property
    def bound(self) -> float:
        """What all divisions take at the least: each phase by itself, or all as those count that were planned. Infinite
        where none has room."""
        ways, apart = self.bounds.ways, 0.0
        for phase, rounds in self.split.rounds:
            least = self.known_s(phase)
            slowest = _best(least, ways, np.maximum)[0]
            if slowest == math.inf:
                return math.inf
            apart += float(rounds.seconds(_best(least, ways, np.add)[0], slowest))
        return max(apart, self._together_s()) * (1 - ROUNDING)

    def least(self, tried: Collection[Layers]) -> Layers | None:
        """The first division that has not been tried of those that have the least for a phase, of all stages or of the
        slowest; None where there is none."""
        for phase, _ in self.split.rounds:
            for joined in (np.add, np.maximum):
                seconds, layers = _best(self.known_s(phase), self.bounds.ways, joined)
                if seconds < math.inf and layers not in tried:
                    return layers
        return None

    def _together_s(self) -> float:
        """What all divisions take at the least with phases counted as stages that were planned have it: in all stages,
        and how much more in the one that is the slowest in all phases; which is no more than they take."""
        if self.ends is None or len(self.split.rounds) == 1:
            return 0.0
        every, slowest = (self._counted_s([pair[n] for pair in self.ends]) for n in (0, 1))
        more = np.where(np.isfinite(every), slowest, 0.0) - np.where(np.isfinite(every), every, 0.0)
        more = np.where(np.isfinite(every), more, np.inf)
        return _best(every, self.bounds.ways, np.add)[0] + _best(more, self.bounds.ways, np.maximum)[0]

    def _counted_s(self, times: Sequence[int]) -> Floats:
        """As `least_s`, of phases together that count so many `times`."""
        counted = zip(self.split.rounds, times, strict=True)
        layers_s = self._layers_s(tuple((phase, each.micro_batches, n) for (phase, each), n in counted))
        return layers_s + sum(n * self.beside_s[phase] for (phase, _), n in zip(self.split.rounds, times, strict=True))

    def known_s(self, phase: str) -> Floats:
        """`least_s`, and what plans of stages say of those of more layers: without these they cost no less than that,
        and each of these takes what it does at the least by itself."""
        least = self.least_s[phase]
        for _, start, end, seconds in (one for one in self.known if one.phase == phase):
            own = seconds + self._layers_s(self._counted(phase), (start, end))
            least = np.where(self._as_many(start, end), np.maximum(least, own), least)
        return np.where(self._fits, least, np.inf)

    def learn(self, plan: StagedPlan) -> None:
        """Take what the stages of a division took."""
        ends = []
        for phase, rounds in self.split.rounds:
            each_s = [one.seconds(phase) for one in plan.stages]
            ends.append(rounds.ends(math.fsum(each_s), max(each_s)))
        self.ends = ends
        for start, end, one in zip(*_ends(plan.layers), plan.stages, strict=True):
            for phase, _ in self.split.rounds:
                expected_s = float(self.even_s[phase][start, end])
                if expected_s > 0:
                    self.more[phase, self.kinds[start], self.kinds[end]] = one.seconds(phase) / expected_s
        self.know(plan.layers, [one.plan.least for one in plan.stages])

    def know(self, layers: Layers, least_s: Sequence[float]) -> None:
        """Take what a micro-batch takes at the least in each stage of a division, as plans of them say: of one phase,
        of which that is known apart."""
        if len(self.split.rounds) == 1 and not self.bounds.streams:
            [(phase, _)] = self.split.rounds
            for start, end, seconds in zip(*_ends(layers), least_s, strict=True):
                self.known.append(Planned(phase, start, end, seconds))

    def promising(self, tried: Collection[Layers], below: float) -> Layers | None:
        """The division that is expected to take the least, and the most even of those that take as much but for
        `WORTH`; None where the others are expected to take as much as `below`, or to have no room."""
        expected_s = {phase: self._expected_s(phase) for phase in self.least_s}
        ways = self.bounds.ways
        best = even(self.bounds.layers, ways)
        starts = [best, *(_best(np.array(each), ways, np.maximum)[1] for each in expected_s.values())]
        seconds = self._seconds(best, expected_s)
        for layers in dict.fromkeys(self._improved(start, expected_s) for start in starts):
            found_s = self._seconds(layers, expected_s)
            if found_s < seconds * (1 - WORTH):
                best, seconds = layers, found_s
        return None if best in tried or seconds >= below else best

    def near(self, layers: Layers, tried: Collection[Layers]) -> Layers | None:
        """Of divisions with one layer of a stage in another that which is expected to take the least and has not been
        tried, where stages took much more than was expected: they store so much that layers take more the more of them
        there are. None where they did not."""
        if max(self.more.values(), default=1.0) < 1 + MUCH:
            return None
        expected_s = {phase: self._expected_s(phase) for phase in self.least_s}
        some = [(self._seconds(each, expected_s), each) for each in _moved(layers) if each not in tried]
        seconds, found = min(some, default=(math.inf, layers))
        return found if seconds < math.inf else None

    def _expected_s(self, phase: str) -> list[list[float]]:
        """What a micro-batch is expected to take in stages, each layer as one in an even part does: of those that begin
        and end as one that was planned as much more than that as it took."""
        known = [more for (name, *_), more in self.more.items() if name == phase]
        kinds = np.array(self.kinds)
        times = np.full((kinds[-1] + 1, kinds[-1] + 1), float(np.mean(known)) if known else 1.0)
        for (name, first, last), more in self.more.items():
            if name == phase:
                times[first, last] = more
        fits = self._fits
        for stage in self.avoided:
            fits[stage] = False
        seconds = np.where(fits, self.even_s[phase] * times[kinds[:, None], kinds], np.inf)
        expected: list[list[float]] = seconds.tolist()
        return expected

    def _improved(self, layers: Layers, expected_s: Expected) -> Layers:
        """A division with layers moved between two stages at a time, as long as that is expected to gain something."""
        seconds = self._seconds(layers, expected_s)
        while True:
            near = [(self._seconds(each, expected_s), _uneven(each), each) for each in _moved(layers)]
            least_s, _, found = min(near, default=(math.inf, 0, layers))
            if least_s >= seconds * (1 - WORTH):
                return layers
            layers, seconds = found, least_s

    def _seconds(self, layers: Layers, expected_s: Expected) -> float:
        ends = list(zip(*_ends(layers), strict=True))
        stages_s = {phase: [of[start][end] for start, end in ends] for phase, of in expected_s.items()}
        return math.inf if math.inf in map(max, stages_s.values()) else self.split.seconds(stages_s)


def even(layers: int, ways: int) -> Layers:
    """As many layers for each stage; where they do not divide, one more for those inside first."""
    each, more = divmod(layers, ways)
    inner_first = sorted(range(ways), key=lambda n: (n in (0, ways - 1), n))
    return tuple(each + (inner_first.index(n) < more) for n in range(ways))


def _moved(layers: Layers) -> Iterator[Layers]:
    """With one layer of a stage in another."""
    for slow, count in enumerate(layers):
        for quick in range(len(layers)):
            if count > 1 and slow != quick:
                yield tuple(each - (n == slow) + (n == quick) for n, each in enumerate(layers))


def _uneven(layers: Layers) -> int:
    return sum(count**2 for count in layers)


def _ends(layers: Layers) -> tuple[list[int], list[int]]:
    """The places at which stages begin, and those at which they end."""
    places = [0, *accumulate(layers)]
    return places[:-1], places[1:]


def _best(seconds: Floats, ways: int, joined: np.ufunc) -> tuple[float, Layers]:
    """The least of `joined` seconds of all stages, and a division that has it. `seconds`: of a stage by its places."""
    least, before = seconds[0], list[NDArray[np.int64]]()
    for _ in range(ways - 1):
        every = joined(least[:, None], seconds)
        before.append(every.argmin(axis=0))
        least = every.min(axis=0)
    places = [len(seconds) - 1]
    for at in reversed(before):
        places.append(int(at[places[-1]]))
    ends: Sequence[int] = [0, *reversed(places)]
    return float(least[-1]), tuple(end - start for start, end in pairwise(ends))
