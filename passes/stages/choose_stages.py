"""The choice of a pipeline along one axis of a mesh: layers for each stage, micro-batches for each phase, layouts.

Every stage has the chips at one place of the axis. What is minimised is the time of all calls of all phases by
`cost.stages`. Micro-batches are tried in the order of what they take at the least, up to where that is more than
what has been found. For each the stages are planned by the search that plans whole programs, with phases weighted in
each by what they count for there, more in the slowest; layers are moved between stages as long as that helps, and what
is passed on lies in the layouts that are cheapest among those that the stages would have by themselves. The bound holds
for all micro-batches and layouts, also for those that differ from boundary to boundary, and for layers divided as
evenly as they can be, or as the plan has them; of few layers for all divisions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from heapq import heappop, heappush
from itertools import pairwise, product

from ...cost.stages import Rounds
from ...ir.diagnostics import fail
from ...ir.layout import Layout, format_layout
from ...ir.mesh import Mesh
from ...ir.program import Pin, PinKind, Program
from ..choose import Options, choose
from ..ilp.solver import Settings
from ..lower.insert import insert
from ..plan import PROVEN, Cutoff, NoPlan, Objective, Outcome, Plan, relative_gap
from .bounds import Bounds, Known, Split
from .divide import Stage, divide, layers_of
from .streaming import choose_streaming

MOST_BOUNDARIES = 16  # ways for values to lie between stages, of which all are tried
MOST_SPLITS = 24  # ways to divide batches that are looked at closely once one has a pipeline
NEAR = 1e-3  # of the time: less is not worth as many more plans
STREAMED_NEAR = 1e-2  # of what comes from the host: the search of a stage leaves out how long it waits for that
MOST_LEFT = 0.2  # of what it computes, however much comes


@dataclass(frozen=True)
class PlannedStage:
    """A stage and its plan. `options`: those under which it was planned, with pins at its boundaries. `waiting_s`: how
    long a micro-batch of each phase waits for what comes from the host."""

    stage: Stage
    plan: Plan
    options: Options
    waiting_s: tuple[float, ...]

    def seconds(self, phase: str) -> float:
        """What a micro-batch takes in it, with waiting for the host, with handing on its results and, where another
        phase follows, its caches."""
        n, own = next((n, one) for n, one in enumerate(self.plan.phases) if one.phase == phase)
        return own.price + self.waiting_s[n] + sum(one.price for one in self.plan.handovers if one.before == phase)


@dataclass(frozen=True)
class SplitBound:
    """What every pipeline with batches divided in one way takes at the least: `computing_s` if nothing waits for the
    host, infinite where it was shown that none fits; `fetching_s` if nothing but that takes time."""

    computing_s: float
    fetching_s: float


@dataclass(frozen=True)
class StagedPlan:
    """A pipeline along `axis` of `mesh`. `rounds`: how often each phase runs, in how many micro-batches. `price`:
    seconds of all calls of all phases; `bound`: what every pipeline along this axis takes at the least, `splits` those
    of each way to divide batches."""

    mesh: Mesh
    axis: str
    rounds: tuple[tuple[str, Rounds], ...]
    stages: tuple[PlannedStage, ...]
    price: float
    bound: float
    splits: tuple[SplitBound, ...] = ()

    @property
    def computing_s(self) -> float:
        """What every pipeline along this axis takes at the least if nothing waits for the host."""
        return min([self.price, *(one.computing_s for one in self.splits)])

    @property
    def gap(self) -> float:
        """How far the price may lie above the optimum, relative to the price."""
        return relative_gap(self.price, self.bound)

    @property
    def outcome(self) -> Outcome:
        """Whether it is proven cheapest."""
        return Outcome.of(self.gap)


class NoPipeline(NoPlan):
    """There is none that fits, or none was found. `splits`: what is known of each way to divide batches."""

    def __init__(self, refused: NoPlan, splits: tuple[SplitBound, ...]):
        super().__init__(refused.diagnostics, refused.outcome)
        self.splits = splits


class _Slow(Cutoff):
    """Stages take no less than was asked for: in all ways that were to be looked at `bound` if nothing waits for the
    host, and `waiting_s` with what comes from there."""

    def __init__(self, bound: float, waiting_s: float = 0.0):
        super().__init__(bound)
        self.waiting_s = waiting_s


class SlowPipelines(Cutoff):
    """None takes less than was asked for. `splits`: as NoPipeline has them."""

    def __init__(self, bound: float, splits: tuple[SplitBound, ...]):
        super().__init__(bound)
        self.splits = splits


def choose_stages(
    program: Program,
    phases: Sequence[str],
    mesh: Mesh,
    axis: str,
    batch: str,
    options: Options,
    micro_batches: Mapping[str, int] | None = None,
    known: Known | None = None,
) -> StagedPlan:
    """The cheapest pipeline along `axis` that is found, with a bound. `batch`: the dim that counts sequences, which
    micro-batches divide; `micro_batches`: how many are asked for, by phase; others are chosen. `known`: what layers
    take, found before of a program that streams others of them.

    Raises InputError where there are fewer layers than stages, or a batch does not divide as asked; NoPipeline where no
    division fits into the chips; SlowPipelines where bounds show before a pipeline is found that none takes less than
    `options.below`.
    """
    refuse_division(program, mesh.size(axis), axis)
    if options.objective is not Objective.TIME:
        raise fail(f"Stages are chosen by time, and `{options.objective}` is asked for.")
    own = replace(options, below=math.inf)  # of layers and stages, which take less than all of them
    search = _Search(program, tuple(phases), mesh, axis, batch, own, Known() if known is None else known)
    return search.best(search.splits(micro_batches or {}), options.below)


def refuse_division(program: Program, ways: int, axis: str) -> None:
    """Raise InputError where a program has fewer layers than there are stages along an axis, or none."""
    count = layers_of(program)
    if not count:
        raise fail("The model has no layers to divide: no block of it is repeated.", hint="leave out `--stages`")
    if count < ways:
        layers = "one layer" if count == 1 else f"{count} layers"
        raise fail(f"{ways} stages along `{axis}` are more than the model's {layers}.", hint="take fewer stages")


Boundary = tuple[tuple[str, tuple[Layout, ...]], ...]  # for each phase the layouts of what is passed on


@dataclass
class _Search(Bounds):
    plans: dict[tuple[Program, Boundary | None, Boundary | None], PlannedStage] = field(default_factory=dict)
    slow: dict[tuple[Program, Boundary | None, Boundary | None], float] = field(default_factory=dict)  # their bounds

    def best(self, splits: Sequence[Split], below: float = math.inf) -> StagedPlan:
        """The best pipeline of some ways to divide batches. Raises NoPipeline where none fits, SlowPipelines where it
        was shown before any was found that none takes less than `below`.

        Each way has a bound: of the layers of each phase, then of those of all phases, then of the stages as they
        would be by themselves, and of what has to come from the host. The one with the least is looked at more closely,
        until that is a pipeline; the first whose stages are known is made one at once, for others to be measured by.
        Ways that store too much, whatever the layouts, are not looked at, but for one that says so if all of them do.
        """
        some = [n for n, split in enumerate(splits) if self.may_hold(split)] or [0]
        fetching = [self.fetching_s(split) for split in splits]
        computing = [self.computing_s(split) if n in some else math.inf for n, split in enumerate(splits)]
        queue: list[tuple[float, int, int, StagedPlan | None]] = []
        for n in some:
            heappush(queue, (max(computing[n], fetching[n]), n, 0, None))
        best: StagedPlan | None = None
        refused: list[NoPlan] = []
        bound = math.inf
        looked = 0
        slow = False
        most, first = below, None
        while first or (queue and (queue[0][0] < most or most == math.inf) and looked < MOST_SPLITS):
            (least, n, looks, plan), first = first or heappop(queue), None
            looked += looks == 1 and best is not None
            try:
                match looks:
                    case 0:
                        computing[n] = max(computing[n], self.layers_s(splits[n].rounds))
                        heappush(queue, (max(least, computing[n]), n, 1, None))
                    case 1:
                        plan, waiting = self.divided(splits[n], most)
                        computing[n] = max(computing[n], plan.bound)
                        divided = max(least, plan.bound, waiting), n, 2, plan
                        if best is None:
                            first = divided
                        else:
                            heappush(queue, divided)
                    case _:
                        assert plan is not None
                        bound = min(bound, least)
                        if best is None or plan.price < most:  # stages that hand on in one layout take no less
                            found = self.aligned(splits[n], plan, most)
                            best = found if best is None or found.price < best.price else best
                            most = min(below, best.price)
            except _Slow as cut:
                slow = True
                if looks == 1:
                    computing[n] = max(computing[n], cut.bound)
                    bound = min(bound, max(least, cut.bound, cut.waiting_s))
            except NoPlan as error:
                if looks == 2:  # there may be one that hands values on in other layouts
                    error = NoPlan(error.diagnostics, Outcome.UNPROVEN)
                refused.append(error)
                if error.outcome is Outcome.UNPROVEN:
                    bound = min(bound, least)
                else:
                    computing[n] = math.inf
        known = tuple(map(SplitBound, computing, fetching))
        bound = min([bound, *(least for least, *_ in queue)])
        if best is None and (queue or slow):
            raise SlowPipelines(bound, known)
        if best is None:
            raise NoPipeline(_refusal(refused), known)
        bound = min(bound, best.price)
        return replace(best, bound=bound, splits=known)

    def divided(self, split: Split, most: float) -> tuple[StagedPlan, float]:
        """The best division of layers that is found for some micro-batches, values passed on in any layouts, with a
        bound of that division; and a bound that counts what comes from the host, 0 where there is none of all divisions
        that may be looked at. Raises NoPlan where none fits, _Slow where none takes less than `most`."""
        each, more = divmod(self.layers, self.ways)
        inner_first = sorted(range(self.ways), key=lambda n: (n in (0, self.ways - 1), n))
        layers = [each + (inner_first.index(n) < more) for n in range(self.ways)]
        if self.few:
            return self.of_all(split, most)
        best = self.at(split, tuple(layers), most=most)
        while True:
            moved = self.moved(split, best, most)
            if moved is None or moved.price >= best.price:
                return best, 0.0
            best = moved

    def of_all(self, split: Split, most: float) -> tuple[StagedPlan, float]:
        """The best of all divisions, with the least bound of any, and the least that counts what comes from the host.
        Those that take at the least what another takes, or `most`, are not planned, nor those that store too much in
        any layouts, but for one that says so."""
        best: StagedPlan | None = None
        refused: list[NoPlan] = []
        bound, waiting = math.inf, math.inf
        held = [layers for layers in self.divisions if self.division_may_hold(split, layers)]
        bounds = {layers: self.division_s(split, layers) for layers in held or [*self.divisions][:1]}
        for layers in sorted(bounds, key=lambda layers: bounds[layers][1]):
            computing_s, least_s = bounds[layers]
            worth = most if best is None else min(most, best.price)
            if worth <= least_s and worth < math.inf:
                bound, waiting = min(bound, computing_s), min(waiting, least_s)
                continue
            try:
                found = self.at(split, layers, most=worth)
            except _Slow as cut:
                bound, waiting = min(bound, cut.bound), min(waiting, max(cut.bound, least_s))
                continue
            except NoPlan as error:
                refused.append(error)
                if error.outcome is Outcome.UNPROVEN:
                    bound = waiting = 0.0
                continue
            bound, waiting = min(bound, found.bound), min(waiting, max(found.bound, least_s))
            best = found if best is None or found.price < best.price else best
        if best is None and bound < math.inf and all(one.outcome is Outcome.INFEASIBLE for one in refused):
            raise _Slow(bound, waiting)
        if best is None:
            raise _refusal(refused)
        return replace(best, bound=bound), min(waiting, best.price)

    def moved(self, split: Split, plan: StagedPlan, most: float) -> StagedPlan | None:
        """The plan with one layer of the slowest stage in the quickest one; None where that is no gain, or where it is
        expected to take `most` even so."""
        seconds = {phase: [one.seconds(phase) for one in plan.stages] for phase, _ in split.rounds}
        busy = [
            math.fsum(r.weight(self.ways) * seconds[phase][n] for phase, r in split.rounds) for n in range(self.ways)
        ]
        slow, quick = busy.index(max(busy)), busy.index(min(busy))
        layers = [one.stage.layers for one in plan.stages]
        if layers[slow] == 1:
            return None
        for each in seconds.values():
            layer_s = each[slow] / layers[slow]
            each[slow], each[quick] = each[slow] - layer_s, each[quick] + layer_s
        if split.seconds(seconds) >= min(plan.price, most):
            return None
        layers[slow], layers[quick] = layers[slow] - 1, layers[quick] + 1
        try:
            return self.at(split, tuple(layers), most=plan.price)
        except (NoPlan, _Slow):
            return None

    def at(
        self, split: Split, layers: tuple[int, ...], boundaries: Sequence[Boundary] = (), most: float = math.inf
    ) -> StagedPlan:
        """A division of layers with the plans of its stages, whose `boundaries` are free where they are not given.
        Raises NoPlan where a stage has none, _Slow where they take `most` at the least.

        Of several phases stages are planned by what each counts for in them, as far as is known before; and where that
        is not what it counts for there, they are planned again: the cheaper pipeline, with the higher bound.
        """
        parts = divide(self.timed(self.program, split.rounds), layers)
        if len(split.rounds) == 1:
            found = self.planned(split, parts, boundaries)
            bound = split.seconds({self.phases[0]: [one.plan.least for one in found.stages]})
            return replace(found, bound=min(bound, found.price))
        least = self.stages_s(split, parts)
        counts = {phase: each.counts(least[phase]) for phase, each in split.rounds}
        found = self.counted(split, parts, boundaries, counts, most)
        own = {phase: each.counts([one.seconds(phase) for one in found.stages]) for phase, each in split.rounds}
        if own == counts or found.outcome is Outcome.OPTIMAL or found.bound >= most:
            return found
        try:
            again = self.counted(split, parts, boundaries, own, most)
        except _Slow as cut:
            return replace(found, bound=min(max(found.bound, cut.bound), found.price))
        best = min(found, again, key=lambda one: one.price)
        return replace(best, bound=min(max(found.bound, again.bound), best.price))

    def counted(
        self,
        split: Split,
        parts: Sequence[Stage],
        boundaries: Sequence[Boundary],
        counts: Mapping[str, Sequence[Fraction]],
        most: float,
    ) -> StagedPlan:
        """The stages of a pipeline, planned with phases that count as often as `counts` has it of each; its bound is
        their sum. Raises _Slow where that shows that they take `most`."""
        times = math.lcm(*(one.denominator for each in counts.values() for one in each))
        least, weighted = self.stages_s(split, parts), []
        for n, part in enumerate(parts):
            calls = {phase: int(each[n] * times) for phase, each in counts.items()}
            weighted.append(replace(part, program=_called(part.program, calls)))
        known = [
            math.fsum(float(each[n]) * least[phase][n] for phase, each in counts.items()) for n in range(self.ways)
        ]
        found = self.planned(split, weighted, boundaries, known, most, times)
        return replace(found, bound=min(math.fsum(one.plan.least for one in found.stages) / times, found.price))

    def planned(
        self,
        split: Split,
        parts: Sequence[Stage],
        boundaries: Sequence[Boundary],
        known: Sequence[float] = (),
        most: float = math.inf,
        times: int = 1,
    ) -> StagedPlan:
        """The stages of a pipeline, each planned by itself, so many `times` as often as it counts; its bound is not
        known. `known`: what each takes at the least. Raises _Slow where that shows that all of them take `most`."""
        between: Sequence[Boundary | None] = boundaries or [None] * (self.ways - 1)
        cuts = (None, *between, None)
        fullest_first = sorted(range(self.ways), key=lambda n: -parts[n].layers)  # where none fits it soonest says so
        free = [self.plans.get((part.program, None, None)) for part in parts]  # which hand on values in any layouts
        both = zip(known or [0.0] * self.ways, free, strict=True)
        made, least = {}, [max(bound, one.plan.least / times if one else 0.0) for bound, one in both]
        for n in fullest_first:
            try:
                below = (most - math.fsum(least) + least[n]) * times
                made[n] = self.stage(split, parts[n], cuts[n], cuts[n + 1], below)
                least[n] = max(least[n], made[n].plan.least / times)
            except Cutoff as cut:
                least[n] = max(least[n], cut.bound / times)
                raise _Slow(math.fsum(least)) from None
        stages = tuple(made[n] for n in range(self.ways))
        price = split.seconds({phase: [one.seconds(phase) for one in stages] for phase in self.phases})
        return StagedPlan(self.mesh, self.axis, split.rounds, stages, price, 0.0)

    def stage(
        self, split: Split, stage: Stage, before: Boundary | None, after: Boundary | None, below: float = math.inf
    ) -> PlannedStage:
        """The plan of a stage; those of equal ones are made once. Raises Cutoff where it takes `below` at the least."""
        key = stage.program, before, after
        if self.slow.get(key, -math.inf) >= below:
            raise Cutoff(self.slow[key])
        if key not in self.plans:
            pins = tuple(pin for pin in self.options.pins if _about(pin, stage.program))
            for names, boundary in ((stage.received, before), (stage.passed, after)):
                for phase, layouts in boundary or ():
                    pins += tuple(_pin(stage.program, n, one, phase) for n, one in zip(names, layouts, strict=True))
            passing = replace(self.passing, values=frozenset(stage.passed))
            options = replace(self.options, pins=pins, passing=passing, settings=self.settings(split))
            try:
                plan, waiting_s = self.chosen(stage.program, replace(options, below=below))
            except Cutoff as cut:
                if cut.bound == math.inf:  # which says that none fits, but not why
                    return self.stage(split, stage, before, after)
                self.slow[key] = max(cut.bound, self.slow.get(key, 0.0))
                raise
            self.plans[key] = PlannedStage(stage, plan, options, tuple(waiting_s))
        return self.plans[key]

    def settings(self, split: Split) -> Settings:
        """Those of the search for a stage. Where layers are streamed the gap is of all that they take: what comes from
        the host may take longer than what is computed, of which alone the search knows."""
        settings = self.options.settings
        if not self.streams:
            return settings
        layers_s = math.fsum(count * seconds for count, seconds in self.each_layer(split.rounds))
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

    def aligned(self, split: Split, plan: StagedPlan, most: float) -> StagedPlan:
        """The plan with stages that hand on values as the next ones take them: as it is where they do; else alike at
        all boundaries, then at each by itself as long as that helps, and may help by more than NEAR. Raises NoPlan
        where none is found, _Slow where those that are tried take `most`."""
        layers = tuple(one.stage.layers for one in plan.stages)
        ends = self._ends(plan)
        if all(before[1] == after[0] for before, after in pairwise(ends)):
            return plan
        tried = self._boundaries(ends)
        best: tuple[StagedPlan, list[Boundary]] | None = None
        refused: NoPlan | _Slow | None = None

        def attempt(boundaries: list[Boundary]) -> None:
            nonlocal best, refused
            try:
                found = self.at(split, layers, boundaries, most if best is None else min(most, best[0].price))
            except (NoPlan, _Slow) as error:
                refused = error if refused is None or isinstance(error, _Slow) else refused
                return
            if best is None or found.price < best[0].price:
                best = found, boundaries

        for one in tried:
            if best is None or best[0].price > plan.price * (1 + (NEAR if self.streams else PROVEN)):
                attempt([one] * (self.ways - 1))
        before = None
        while best is not None and best is not before and best[0].price > plan.price * (1 + NEAR):
            before = best
            for cut, one in product(range(self.ways - 1), tried):
                if best[1][cut] != one:
                    attempt([*best[1][:cut], one, *best[1][cut + 1 :]])
        if best is None:
            assert refused is not None
            raise refused
        return best[0]

    def _ends(self, plan: StagedPlan) -> list[tuple[Boundary, Boundary]]:
        """How each stage takes what it receives, and has what it hands on."""
        found = []
        for one in plan.stages:
            taken, handed = [], []
            for phase, spmd in zip(self.phases, insert(one.plan), strict=True):
                values = spmd.table()
                results = dict(zip(one.stage.program.results, spmd.results, strict=True))
                taken.append((phase, tuple(values[name].layout for name in one.stage.received)))
                handed.append((phase, tuple(values[results[name]].layout for name in one.stage.passed)))
            found.append((tuple(taken), tuple(handed)))
        return found

    def _boundaries(self, ends: Sequence[tuple[Boundary, Boundary]]) -> list[Boundary]:
        """The ways for values to lie between stages that are tried: as the stages by themselves have them."""
        seen = dict.fromkeys(one for both in ends for end in both for one in end if one[1])
        every = [[one for one in seen if one[0] == phase] for phase in self.phases]
        return [tuple(one) for one in product(*every)][:MOST_BOUNDARIES]


def _refusal(refused: Sequence[NoPlan]) -> NoPlan:
    """Why there is no pipeline: of several ways to have one, each refused, one that is not shown to fit nowhere."""
    return next((one for one in refused if one.outcome is Outcome.UNPROVEN), refused[0])


def _called(program: Program, calls: Mapping[str, int]) -> Program:
    """The program with phases that are called so often."""
    return replace(program, phases=tuple(replace(one, calls=calls[one.name]) for one in program.phases))


def _about(pin: Pin, program: Program) -> bool:
    table = program.table()
    return pin.value in table and (pin.op is None or pin.op in table)


def _pin(program: Program, name: str, layout: Layout, phase: str) -> Pin:
    """A value between stages lies so in a phase."""
    text = f"{name}: {format_layout(program.table()[name].dims, layout)}"
    return Pin(PinKind.STORED, name, None, layout, text, phase)
