"""The plans of a pipeline's stages, each made once, and what is known of those that were not found.

A stage is planned with what is said of the values that it receives and hands on. A plan for which less was said, and in
which they lie so, is the cheapest with more said as well; nor does a stage with more said cost less, or fit where it
does not with less.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise

from ...ir.program import Program
from ..choose import choose
from ..ilp.solver import Settings
from ..options import Options
from ..plan import PROVEN, Cutoff, NoPlan, Outcome, Plan
from .boundaries import ANY, Boundary, pins
from .bounds import Bounds, Split
from .divide import Stage, divide
from .staged_plan import PlannedStage, SlowStages, StagedPlan, TurnOver
from .streaming import choose_streaming

NEAR = 1e-3  # of the time: less is not worth as many more plans
STREAMED_NEAR = 1e-2  # of what comes from the host: the search of a stage leaves out how long it waits for that
MOST_LEFT = 0.2  # of what it computes, however much comes
# Plans that are read off where memory binds, about ten a second: after so many a pipeline that is NEAR the best is not
# looked for any more, and none once one is known; or even while none is.
MUCH_WORK, MOST_WORK, MOST_IN_VAIN = 60, 200, 300
# After so many another way to divide batches has its turn: while no pipeline is known, and once one is.
TURN_IN_VAIN, TURN = 60, 20

Said = tuple[Boundary, Boundary]  # of what a stage receives, and of what it hands on
Counts = Mapping[str, Sequence[Fraction]]  # for each phase how often the seconds of each stage count


@dataclass
class Stages(Bounds):
    """The stages of pipelines along an axis. `plans`: of each program by what is said at its ends; `slow`: the bound of
    those that cost no less than was asked for, and that price; `full`: why there are none, however often phases are
    called. `counts`: as they were for the best bound of a division. `something`: whether there is a pipeline, or
    another way to have none. `turn_ends`: the work (`Work.read`) after which another way to divide batches has its
    turn."""

    plans: dict[Program, dict[Said, PlannedStage]] = field(default_factory=dict)
    slow: dict[Program, dict[Said, tuple[float, float]]] = field(default_factory=dict)
    full: dict[Program, dict[Said, NoPlan]] = field(default_factory=dict)
    counts: dict[tuple[Split, tuple[int, ...]], Counts] = field(default_factory=dict)
    something: bool = False
    turn_ends: float = math.inf

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.known.begun is None:
            self.known.begun = self.options.work.read
        self.begun = self.known.begun

    @property
    def tired(self) -> bool:
        """Whether no more stages are planned."""
        most = MOST_WORK * self.options.settings.effort if self.something else MOST_IN_VAIN
        return self.options.work.beyond(most, self.begun)

    @property
    def turn(self) -> float:
        """So much work is done for a way to divide batches before others have their turn."""
        return TURN * self.options.settings.effort if self.something else TURN_IN_VAIN

    @property
    def near(self) -> float:
        """A share of the time that is not worth another plan."""
        return NEAR if self.streams or self.options.work.beyond(MUCH_WORK, self.begun) else PROVEN / 2

    def at(
        self, split: Split, layers: tuple[int, ...], boundaries: Sequence[Boundary] = (), most: float = math.inf
    ) -> StagedPlan:
        """A division of layers with the plans of its stages, which hand values on as `boundaries` say, if these are
        given. Raises NoPlan where a stage has none, SlowStages where they take `most` at the least.

        Of several phases stages are planned by what each counts for in them, as far as is known before; and where that
        is not what it counts for there, they are planned again: the cheaper pipeline, with the higher bound.
        """
        parts = divide(self.timed(self.program, split.rounds), layers, self.segments)
        if len(split.rounds) == 1:
            return self.planned(split, parts, boundaries, most=most)
        least, key = self.stages_s(split, parts), (split, layers)
        if key in self.counts and boundaries:
            return self.counted(split, parts, boundaries, self.counts[key], most)
        counts = {phase: each.counts(least[phase]) for phase, each in split.rounds}
        found = self.counted(split, parts, boundaries, counts, most)
        self.counts[key] = counts
        own = {phase: each.counts([one.seconds(phase) for one in found.stages]) for phase, each in split.rounds}
        if own == counts or found.outcome is Outcome.OPTIMAL or found.bound >= most:
            return found
        try:
            again = self.counted(split, parts, boundaries, own, most)
        except SlowStages as cut:
            return replace(found, bound=min(max(found.bound, cut.bound), found.price))
        if again.bound > found.bound:
            self.counts[key] = own
        best = min(found, again, key=lambda one: one.price)
        return replace(best, bound=min(max(found.bound, again.bound), best.price))

    def counted(
        self, split: Split, parts: Sequence[Stage], boundaries: Sequence[Boundary], counts: Counts, most: float
    ) -> StagedPlan:
        """The stages of a pipeline, planned with phases that count as often as `counts` has it of each; its bound is
        their sum. Raises SlowStages where that shows that they take `most`."""
        times = math.lcm(*(one.denominator for each in counts.values() for one in each))
        least, weighted = self.stages_s(split, parts), []
        for n, part in enumerate(parts):
            calls = {phase: int(each[n] * times) for phase, each in counts.items()}
            weighted.append(replace(part, program=called(part.program, calls)))
        known = [
            math.fsum(float(each[n]) * least[phase][n] for phase, each in counts.items()) for n in range(self.ways)
        ]
        return self.planned(split, weighted, boundaries, known, most, times)

    def planned(
        self,
        split: Split,
        parts: Sequence[Stage],
        boundaries: Sequence[Boundary],
        known: Sequence[float] = (),
        most: float = math.inf,
        times: int = 1,
    ) -> StagedPlan:
        """The stages of a pipeline, each planned by itself, so many `times` as often as it counts. `known`: what each
        takes at the least. Raises SlowStages where that shows that all of them take `most`."""
        cuts = (ANY, *(boundaries or [ANY] * (self.ways - 1)), ANY)
        fullest_first = sorted(range(self.ways), key=lambda n: -parts[n].layers)  # where none fits it soonest says so
        given = known or [0.0] * self.ways
        said = [*pairwise(cuts)]
        least = [max(given[n], self.known_s(parts[n].program, said[n]) / times) for n in range(self.ways)]
        made: dict[int, PlannedStage] = {}
        for n in fullest_first:
            room = _room(split, least, n, most) * times
            try:
                made[n] = self.stage(split, parts[n], *said[n], room)
                least[n] = max(least[n], made[n].plan.least / times)
            except Cutoff as cut:
                least[n] = max(least[n], cut.bound / times)
                raise SlowStages(_whole(split, least)) from None
        stages = tuple(made[n] for n in range(self.ways))
        price = split.seconds({phase: [one.seconds(phase) for one in stages] for phase in self.phases})
        bound = _whole(split, [made[n].plan.least / times for n in range(self.ways)])
        return StagedPlan(self.mesh, self.axis, split.rounds, stages, price, min(bound, price))

    def stage(
        self, split: Split, stage: Stage, before: Boundary = ANY, after: Boundary = ANY, below: float = math.inf
    ) -> PlannedStage:
        """The plan of a stage; those of equal ones are made once. Raises Cutoff where it takes `below` at the least, or
        where no more stages are planned, TurnOver where it would be planned after the turn."""
        said, own = (before, after), self.plans.setdefault(stage.program, {})
        if said in own:
            return own[said]
        found = next((one for other, one in own.items() if _less(other, said) and _lies_so(one, said)), None)
        if found is None:
            self._refuse(stage.program, said, below)
            found = self._searched(split, stage, said, below)
        own[said] = found
        return found

    def is_full(self, stage: Stage) -> bool:
        """Whether a stage was shown to fit in no layouts."""
        found = self.full.get(called(stage.program, {}), {}).get((ANY, ANY))
        return found is not None and found.outcome is Outcome.INFEASIBLE

    def known_s(self, program: Program, said: Said) -> float:
        """What a stage takes at the least by what was found with less said at its ends."""
        return max(self._known_s(program, said), default=0.0)

    def _known_s(self, program: Program, said: Said) -> Iterator[float]:
        yield from (one.plan.least for other, one in self.plans.get(program, {}).items() if _less(other, said))
        yield from (bound for other, (bound, _) in self.slow.get(program, {}).items() if _less(other, said))

    def _refuse(self, program: Program, said: Said, below: float) -> None:
        """Raise NoPlan where a stage was shown not to fit, or Cutoff where none was found with less said, or where it
        is not looked for; TurnOver where others have their turn first."""
        for other, refused in self.full.get(called(program, {}), {}).items():
            if _less(other, said):
                raise refused
        least = self.known_s(program, said)
        vain = any(_less(other, said) and below <= asked for other, (_, asked) in self.slow.get(program, {}).items())
        if least >= below or vain or self.tired:
            raise Cutoff(least)
        if self.options.work.read >= self.turn_ends:
            raise TurnOver

    def _searched(self, split: Split, stage: Stage, said: Said, below: float) -> PlannedStage:
        """The plan of a stage that the search finds. Raises Cutoff where it takes `below` at the least."""
        program, (before, after) = stage.program, said
        ends = (before, program, stage.received), (after, program, stage.passed)
        held = (*stage.pins(self.options.pins), *(pin for end in ends for pin in pins(*end, held=True)))
        barred = tuple(pin for end in ends for pin in pins(*end, held=False))
        passing = replace(self.passing, values=frozenset(stage.passed))
        options = replace(self.options, pins=held, barred=barred, passing=passing, settings=self.settings(split))
        try:
            plan, waiting_s = self.chosen(program, replace(options, below=below))
        except Cutoff as cut:
            if cut.bound == math.inf:  # which says that none fits, but not why
                return self._searched(split, stage, said, math.inf)
            self.slow.setdefault(program, {})[said] = max(cut.bound, self.known_s(program, said)), below
            raise
        except NoPlan as error:
            self.full.setdefault(called(program, {}), {})[said] = error
            raise
        return PlannedStage(stage, plan, options, tuple(waiting_s))

    def settings(self, split: Split) -> Settings:
        """Those of the search for a stage. Where layers are streamed the gap is of all that they take: what comes from
        the host may take longer than what is computed, of which alone the search knows."""
        settings = self.options.settings
        if not self.streams:
            return settings
        layers_s = math.fsum(
            count * seconds for count, seconds in self.each_layer(split.rounds, self.layers_of_stages[-1])
        )
        several = len(split.rounds) > 1
        fetched_s = math.fsum(
            (each.weight(self.ways) if several else 1) * self.fetched_s(self.program, (phase, each.micro_batches))
            for phase, each in split.rounds
        )
        times = fetched_s / layers_s if layers_s else 0.0
        return replace(settings, gap=max(settings.gap, NEAR, min(MOST_LEFT, STREAMED_NEAR * times)))

    def chosen(self, program: Program, options: Options) -> tuple[Plan, Sequence[float]]:
        """The plan of a stage, and how long each phase waits for what comes from the host. Raises HostFull where that
        cannot hold it."""
        if self.streams:
            return choose_streaming(program, self.phases, self.inner, options)
        return choose(program, self.phases, self.inner, options), [0.0] * len(self.phases)


def called(program: Program, calls: Mapping[str, int]) -> Program:
    """The program with phases that are called so often, once where nothing is said."""
    return replace(program, phases=tuple(replace(one, calls=calls.get(one.name, 1)) for one in program.phases))


def _whole(split: Split, each_s: Sequence[float]) -> float:
    """Seconds of all calls, of stages that take so long: of one phase a micro-batch of it, of several all that counts
    in the stage."""
    if len(split.rounds) > 1:
        return math.fsum(each_s)
    return float(split.rounds[0][1].seconds(math.fsum(each_s), max(each_s)))


def _room(split: Split, each_s: Sequence[float], stage: int, most: float) -> float:
    """How long a stage may take if others take as long as they do at the least and all together `most`."""
    if most == math.inf:
        return math.inf
    others = [one for n, one in enumerate(each_s) if n != stage]
    if len(split.rounds) > 1:
        return most - math.fsum(others)
    low, high = 0.0, most
    while low < (middle := (low + high) / 2) < high:
        low, high = (low, middle) if _whole(split, [*others, middle]) >= most else (middle, high)
    return high


def _less(said: Said, than: Said) -> bool:
    """Whether no more is said of a stage's ends."""
    return said[0] <= than[0] and said[1] <= than[1]


def _lies_so(one: PlannedStage, said: Said) -> bool:
    """Whether a plan keeps to what is said of its stage's ends."""
    return all(each.true_of(one.taken) for each in said[0]) and all(each.true_of(one.handed) for each in said[1])
