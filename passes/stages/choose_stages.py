"""The choice of a pipeline along one axis of a mesh: layers for each stage, micro-batches for each phase, layouts.

Every stage has the chips at one place of the axis. What is minimised is the time of all calls of all phases by
`cost.stages`. Micro-batches are tried in the order of what they take at the least, up to where that is more than what
has been found; those that take much work wait until all others had as much. For each the stages are planned by the
search that plans whole programs, with phases weighted in each by what they count for there, more in the slowest; layers
are divided as promises most by what is known of their stages, and what is passed on lies in the layouts that are
cheapest among those that the stages would have by themselves. The bound holds for all micro-batches, divisions and
layouts, also for those that differ from boundary to boundary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from ...ir.diagnostics import Diagnostic, fail
from ...ir.mesh import Mesh
from ...ir.program import Program
from ..options import Options
from ..plan import Cutoff, NoPlan, Objective, Outcome
from .align import Alignment
from .boundaries import ANY
from .bounds import Known, Split
from .divide import divide, layers_of
from .divisions import Divisions, even
from .layers import dividing, layer_count
from .plan_stages import NEAR, Stages
from .staged_plan import NoPipeline, SlowPipelines, SlowStages, SplitBound, StagedPlan, TurnOver, refusal

ROUNDING = 1e-12  # relative: of sums of seconds
MORE_ROOM = "leave more room: give it more of the HBM, or more chips"
MOST_TRIED = 12  # divisions of many layers that are planned for some micro-batches
Fullness = tuple[bool, float]  # of the fullest stage, as `Bounds.fullness` has it
Tried = dict[tuple[int, ...], StagedPlan | NoPlan | SlowStages]  # what came of divisions of layers
MOST_DIVIDED = 60  # ways to divide batches and layers that are looked at closely once one has a pipeline


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
    division fits into the chips; SlowPipelines, with what all take at the least, where none is found that takes less
    than `options.below`.
    """
    refuse_division(program, mesh.size(axis), axis)
    if options.objective is not Objective.TIME:
        raise fail(f"Stages are chosen by time, and `{options.objective}` is asked for.")
    own = replace(options, below=math.inf)  # of layers and stages, which take less than all of them
    search = _Search(program, tuple(phases), mesh, axis, batch, own, Known() if known is None else known)
    best = search.best(search.splits(micro_batches or {}), options.below)
    # Equal stages were planned as one, the first of them; each is of other repetitions.
    parts = zip(best.stages, divide(program, best.layers, search.segments), strict=True)
    return replace(best, stages=tuple(replace(one, stage=replace(one.stage, of=part.of)) for one, part in parts))


def refuse_division(program: Program, ways: int, axis: str, whole: bool = False) -> None:
    """Raise InputError where a program has fewer layers than there are stages along an axis, or none; `whole`: where
    stages end between whole repetitions alone."""
    layers = layer_count(program)
    count = layers_of(program) if whole else layers
    if not layers:
        message = "The model has no layers to divide: it repeats no block, and calls none after the other"
        raise fail(f"{message} that hands on as much.", hint="leave out `--stages`")
    if not count:
        message = "The model repeats no block, and stages that stream end between repetitions."
        raise fail(message, hint="leave out `--offload`, and stages end between the blocks that it calls")
    if count < ways:
        said = f"{count} {dividing(program, count)}" if count > 1 else "one layer" if layers == 1 else "one repetition"
        more = ", between which stages end that stream" if count < layers else ""
        raise fail(f"{ways} stages along `{axis}` are more than the model's {said}{more}.", hint="take fewer stages")


@dataclass
class _Search(Stages):
    def best(self, splits: Sequence[Split], below: float = math.inf) -> StagedPlan:
        """The best pipeline of some ways to divide batches. Raises NoPipeline where none fits, SlowPipelines where
        none was found that takes less than `below`."""
        return _Looks(self, splits, below).run()

    def divided(self, split: Split, most: float) -> tuple[StagedPlan, float]:
        """The best division of many layers that is found for some micro-batches, values passed on in any layouts, with
        a bound of that division, and one of all. Raises NoPlan where none of those that were tried fits, SlowStages
        where none was found that takes less than `most`.

        The most promising is planned; what that takes says which promises most of the others.
        """
        divisions, tried = Divisions(self, split), Tried()
        best: StagedPlan | None = None
        below = most
        while len(tried) < MOST_TRIED and (layers := self.promising(divisions, tried, best, below)) is not None:
            try:
                plan = self.at(split, layers, most=below)
            except (NoPlan, SlowStages) as error:
                tried[layers] = error
                if isinstance(error, NoPlan):
                    divisions.refuse(layers, self.which_are_full(split, layers))
                else:
                    divisions.know(layers, self.known_of(split, layers))
                continue
            tried[layers] = plan
            divisions.learn(plan)
            if best is None or plan.price < best.price:
                best, below = plan, min(below, plan.price * (1 - ROUNDING))
        if best is not None:
            if not self.streams and divisions.bound < best.price * (1 - self.options.settings.gap):
                divisions.plan_ends()
            return best, divisions.bound
        slow = [error.bound for error in tried.values() if isinstance(error, SlowStages)]
        bound = divisions.bound
        if tried and not slow and bound == math.inf:
            raise NoPlan(self.why_full(split, divisions, tried).diagnostics, Outcome.INFEASIBLE)
        if slow or not tried or bound >= most:
            raise SlowStages(min([bound, *slow]))
        message = "No layers for each stage were found with which all have room, and not all were looked at."
        raise NoPlan([Diagnostic(message, hint=MORE_ROOM)], Outcome.UNPROVEN)

    def why_full(self, split: Split, divisions: Divisions, tried: Tried) -> NoPlan:
        """Why no division of many layers fits: what the fullest stage of the least full one says, of which others hold
        more. Where that has to be searched for it is the least full of those that were tried."""
        full = {layers: error for layers, error in tried.items() if isinstance(error, NoPlan)}
        if self.streams:  # stages have what they have by where they lie
            return next(iter(full.values()))
        found = divisions.least_full()
        if found is not None:
            parts = divide(self.timed(self.program, split.rounds), found[0], self.segments)
            with suppress(Cutoff, TurnOver):
                try:
                    self.stage(split, parts[found[1]])
                except NoPlan as error:
                    return error
        return full[min(full, key=divisions.held_bytes)]

    def promising(
        self, divisions: Divisions, tried: Tried, best: StagedPlan | None, below: float
    ) -> tuple[int, ...] | None:
        """The division that is to be planned next: as even a one as can be after one of which less was expected, and
        at last some near the best, or, while none was found below what is asked for, those that bounds leave below."""
        first = even(self.layers, self.ways)
        if tried and first not in tried and not divisions.tight:
            return first
        layers = divisions.promising(tried, below)
        if layers is None and best is not None and divisions.bound < best.price * (1 - NEAR):
            layers = divisions.near(best.layers, tried)
        if layers is None and best is None and divisions.bound < below < math.inf:
            layers = divisions.least(tried)
        return layers

    def known_of(self, split: Split, layers: tuple[int, ...]) -> list[float]:
        """What a micro-batch takes at the least in each stage of a division, as far as stages were planned."""
        parts = divide(self.timed(self.program, split.rounds), layers, self.segments)
        return [self.known_s(stage.program, (ANY, ANY)) for stage in parts]

    def which_are_full(self, split: Split, layers: tuple[int, ...]) -> list[bool]:
        """Which stages of a division were shown to have no room."""
        return [self.is_full(stage) for stage in divide(self.timed(self.program, split.rounds), layers, self.segments)]


@dataclass(order=True)
class _Look:
    """A way to divide batches, by its number, and `layers`, none while that is open, which take `least` seconds as far
    as is known after so many `looks`. `uneven`: more the less evenly they are divided, so that of those which take the
    same the most even is looked at first. `aligned`: the pipelines whose stages have been planned by themselves."""

    least: float
    split: int
    looks: int
    uneven: int = 0
    layers: tuple[int, ...] = ()
    aligned: Alignment | None = field(default=None, compare=False)


@dataclass
class _Looks:
    """The search for the best pipeline.

    Each way has a bound: of the layers of each phase, then of those of all phases, then of how these are divided over
    stages, then of the stages as they would be by themselves; and of what has to come from the host. The one with the
    least is looked at more closely, until that is a pipeline; the first whose stages are known is made one at once, for
    others to be measured by. One that takes the work of a turn waits until all others that promise as much had theirs:
    where stages barely fit, or barely do not, that takes long to find, and others are quick. While no pipeline is known
    then, the next is that of those which need the least memory. Ways that store too much, whatever the layouts, are not
    looked at, but for one that says so if all of them do, whatever it takes. `computing`: what each way to divide
    batches takes at the least if nothing waits for the host; `divided`: what each division of its layers takes.
    `turns`: those that each has had. `closed`: the least bound of what is not looked at any more.
    """

    search: _Search
    splits: Sequence[Split]
    below: float
    queue: list[_Look] = field(default_factory=list)
    divided: list[dict[tuple[int, ...], float]] = field(default_factory=list)
    best: StagedPlan | None = None
    refused: list[tuple[Fullness, NoPlan]] = field(default_factory=list)
    closed: float = math.inf
    slow: bool = False

    def __post_init__(self) -> None:
        search, splits = self.search, self.splits
        some = [n for n, split in enumerate(splits) if search.may_hold(split)]
        if not some:
            some, self.below = [min(range(len(splits)), key=self.fullness)], math.inf
        search.something = self.below < math.inf
        self.fetching = [search.fetching_s(split) for split in splits]
        self.computing = [search.computing_s(split) if n in some else math.inf for n, split in enumerate(splits)]
        self.divided = [{} for _ in splits]
        for n in some:
            self.queue.append(_Look(max(self.computing[n], self.fetching[n]), n, 0))
        self.turns = [0] * len(splits)

    @property
    def most(self) -> float:
        """What a pipeline that is looked for takes at the most."""
        return self.below if self.best is None else min(self.below, self.best.price * (1 - self.search.near))

    def run(self) -> StagedPlan:
        """The best of all. Raises as `_Search.best` does."""
        looked = 0
        while looked < MOST_DIVIDED and (one := self.next()) is not None:
            looked += one.looks == 2 and self.best is not None
            self.look(one)
        known = tuple(map(SplitBound, map(self.computes, range(len(self.splits))), self.fetching))
        bound = min([self.closed, *(one.least for one in self.queue)])
        if self.best is None and self.below < math.inf and (self.queue or self.slow):
            raise SlowPipelines(bound, known)
        if self.best is None:
            raise NoPipeline(self.refusal(), known)
        return replace(self.best, bound=min(bound, self.best.price), splits=known)

    def next(self) -> _Look | None:
        """What is looked at next; None where nothing is worth it."""
        worth = [one for one in self.queue if one.least < self.most or self.most == math.inf]
        if not worth:
            return None
        one = min(worth, key=lambda one: (self.turns[one.split], self.needed(one), one))
        self.queue.remove(one)
        return one

    @property
    def in_vain(self) -> bool:
        """Whether there was much work, and no pipeline is known."""
        return self.best is None and any(self.turns)

    def needed(self, one: _Look) -> float:
        """The bytes that a chip holds at the least; of no interest but in vain."""
        return self.search.needed_bytes(self.splits[one.split]) if self.in_vain else 0.0

    def fullness(self, n: int, layers: tuple[int, ...] = ()) -> Fullness:
        """How full chips are at the least with batches divided in a way, and layers in one, or in any."""
        search, split = self.search, self.splits[n]
        if not search.few:
            return False, search.needed_bytes(split)
        return min(
            search.fullness(*search.division_bytes(split, own)) for own in ([layers] if layers else search.divisions)
        )

    def refusal(self) -> NoPlan:
        """Why there is no pipeline: with what was refused where chips are least full, of which others hold more, unless
        some were not looked for any more."""
        refused = [error for _, error in sorted(self.refused, key=lambda pair: pair[0])]
        if not self.slow or any(error.outcome is Outcome.UNPROVEN for error in refused):
            return refusal(refused)
        message = "No pipeline was found that keeps to the memory of the chips, and not all were looked at."
        return NoPlan([Diagnostic(message, hint=MORE_ROOM)], Outcome.UNPROVEN)

    def computes(self, n: int) -> float:
        """What a way to divide batches takes at the least if nothing waits for the host."""
        return max(self.computing[n], min(self.divided[n].values(), default=0.0))

    def look(self, one: _Look) -> None:
        """Look at a way more closely."""
        begun, turn = self.search.options.work.read, self.search.turn
        try:
            match one.looks:
                case 0:
                    self.computing[one.split] = max(
                        self.computing[one.split], self.search.layers_s(self.splits[one.split].rounds)
                    )
                    self.queue.append(replace(one, least=max(one.least, self.computing[one.split]), looks=1))
                case 1:
                    self.divide(one)
                case 2:
                    self.plan(one)
                case _:
                    self.align(one)
        except TurnOver:
            self.queue.append(one)
        except SlowStages as cut:
            self.slow = True
            self.know(one, cut.bound)
            self.closed = min(self.closed, max(one.least, cut.bound))
        except NoPlan as error:
            self.refused.append((self.fullness(one.split, one.layers), error))
            if error.outcome is Outcome.UNPROVEN:
                self.closed = min(self.closed, one.least)
            else:
                self.know(one, math.inf)
        self.turns[one.split] += self.search.options.work.read - begun >= turn

    def know(self, one: _Look, computing_s: float) -> None:
        """More is known of what a way takes at the least if nothing waits for the host."""
        if one.layers:
            own = self.divided[one.split]
            own[one.layers] = max(own[one.layers], computing_s)
        else:
            self.computing[one.split] = max(self.computing[one.split], computing_s)

    def divide(self, one: _Look) -> None:
        """Few layers are divided in all ways, but in those that store too much; the least full of all says so."""
        search, split = self.search, self.splits[one.split]
        if not search.few:
            self.queue.append(replace(one, looks=2))
            return
        held = [layers for layers in search.divisions if search.division_may_hold(split, layers)]
        fit = [layers for layers in held if search.division_may_fit(split, layers)]
        full = fit or [min(held or search.divisions, key=lambda layers: self.fullness(one.split, layers))]
        every_s = {layers: search.division_s(split, layers) for layers in full}
        tied_s = 0.0  # the least of some that are the same but for rounding
        for layers, (computing_s, least_s) in sorted(every_s.items(), key=lambda item: item[1][1]):
            self.divided[one.split][layers] = computing_s
            tied_s = tied_s if least_s <= tied_s * (1 + ROUNDING) else least_s
            uneven = sum(count**2 for count in layers)
            self.queue.append(replace(one, least=max(one.least, tied_s), looks=2, uneven=uneven, layers=layers))

    def plan(self, one: _Look) -> None:
        """Plan the stages by themselves."""
        search, split = self.search, self.splits[one.split]
        search.turn_ends = search.options.work.read + search.turn
        try:
            if one.layers:
                plan = search.at(split, one.layers, most=self.most)
                known_s = plan.bound
            else:
                plan, every_s = search.divided(split, self.most)
                known_s = min(plan.bound, every_s)
                self.closed = min(self.closed, max(one.least, every_s))
        finally:
            search.turn_ends = math.inf
        self.know(one, known_s)
        aligned = Alignment(search, split, plan)
        least = one.least if plan.bound <= one.least * (1 + ROUNDING) else plan.bound
        planned = replace(one, least=least, looks=3, aligned=aligned)
        if self.most == math.inf:
            self.align(planned)
        else:
            self.queue.append(planned)

    def align(self, one: _Look) -> None:
        """Let stages hand values on as the next ones take them, as long as that promises most."""
        aligned = one.aligned
        assert aligned is not None, "its stages were planned"
        others = (other.least for other in self.queue if self.turns[other.split] <= self.turns[one.split])
        aligned.go(self.most, math.inf if self.in_vain else min(others, default=math.inf))
        if aligned.best is not None and (self.best is None or aligned.best.price < self.best.price):
            self.best = aligned.best
        if one.layers:
            self.know(one, aligned.bound)
        if aligned.open:
            self.closed = min(self.closed, max(one.least, aligned.closed))
            self.queue.append(replace(one, least=max(one.least, aligned.left[0][0])))
        elif aligned.best is None:
            aligned.refuse()
        else:
            self.closed = min(self.closed, max(one.least, aligned.bound))
