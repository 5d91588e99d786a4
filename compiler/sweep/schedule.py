"""Requests scheduled: the thresholds of their batches, the batches, and what these take in the stages of a pipeline.

A threshold is a count of tokens from which a batch keeps the chips busy. Where none are given, that of a batch begins
at what is read off the plan, the least count at which it reaches nearly the flops a second that it ever reaches, and
is doubled, and with it that of the shared tokens of a part of the contexts, to where all takes the least time. No step
towards such batches is taken for granted: requests run by the step with which they take least.

Chips may split batches, whose rows are then so many that they divide, some of them empty. Weights stay where one plan
has them, so that it is chosen for all requests: of plans that split batches over none and over more and more chips the
one by which all takes least, with the thresholds, the step and the empty rows that are its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np

from ...cost.hardware import Hardware
from ...cost.unit_times import Floats
from ...ir.diagnostics import Diagnostic
from ...ir.mesh import Mesh
from ...ir.program import Program
from ...ir.record import record
from ...passes.batches.batches import (
    Batch,
    Requests,
    Runs,
    by_count,
    by_longest,
    by_shortest,
    in_file_order,
    rows_of,
    shared_contexts,
    whole_requests,
)
from ...passes.batches.pipeline import Timeline, run
from ...passes.plan import NoPlan
from ..plan.batch_times import BatchTimes, batch_times, splits
from ..text.processes import counted

SATURATED = 0.9  # of the best rate: what a batch at its threshold reaches
MOST_TOKENS = 1 << 16  # of a batch, in the table of rates
MOST_LENGTH = 128  # of the sequences by which a threshold is found: it is a multiple of their length
MULTIPLES = (1, 2, 4, 8, 16)  # of the count from which batches keep the chips busy, that are tried as thresholds
ALIKE = 0.005  # of the time: less does not tell thresholds apart, of which those with fewest batches are taken then
PLAIN_CONTEXTS, PLAIN_REQUESTS = 128, 32  # in batches that are divided by their count, to compare with


class Step(StrEnum):
    """A step towards batches that take little time, with all those before it: the plainest comes first."""

    PLAIN = f"{PLAIN_REQUESTS} requests each"
    BY_LENGTH = "batches by length"
    SHARED = "shared contexts"
    CONTEXTS_BY_LENGTH = "contexts by length"
    ENDINGS_BY_LENGTH = "endings by length"
    MINI = "contexts in mini-batches"


SHARING = (Step.SHARED, Step.CONTEXTS_BY_LENGTH, Step.ENDINGS_BY_LENGTH, Step.MINI)  # the tokens of contexts
BY_TOKENS = (Step.BY_LENGTH, Step.ENDINGS_BY_LENGTH, Step.MINI)  # that keep to a threshold of batches
BY_SHARED_TOKENS = (Step.CONTEXTS_BY_LENGTH, Step.ENDINGS_BY_LENGTH, Step.MINI)  # that keep to one of contexts


@record
class Job:
    """Requests, the model that runs them, and on what. `threshold`, `context_threshold`: tokens, None to be found."""

    requests: Requests
    program: Program
    hardware: Hardware
    mesh: Mesh
    stages: int = 1
    threshold: int | None = None
    context_threshold: int | None = None


@record
class Rates:
    """What batches of `batches` sequences of `lengths` tokens reach: flops a second of a chip,
    [lengths, batches]. `busy_tokens`: the least tokens of a batch that reaches nearly the best."""

    lengths: tuple[int, ...]
    batches: tuple[int, ...]
    flops_per_s: Floats
    busy_tokens: int


@record
class Scheduled:
    """Batches in the order in which they run, what each takes in each stage, [stages, batches] seconds, and when.
    `layers`: how many each stage has; `held_bytes`: about the most that a chip holds."""

    batches: tuple[Batch, ...]
    seconds: Floats
    timeline: Timeline
    layers: tuple[int, ...]
    held_bytes: float

    @property
    def total_s(self) -> float:
        """All of it."""
        return self.timeline.seconds

    @property
    def tokens(self) -> int:
        """The tokens that are run, padding included."""
        return sum(batch.tokens for batch in self.batches)

    @property
    def padding(self) -> int:
        """Those of them that stand for nothing."""
        return self.tokens - sum(batch.own for batch in self.batches)

    @property
    def empty(self) -> int:
        """Those of these in rows that are empty, since chips split a batch into shares that are as large."""
        return sum(batch.empty for batch in self.batches)


@record
class Rung:
    """What a schedule takes that does without some of the steps to the last one. `fits`: whether the chips have room
    for it. `others`: the same by plans that split batches otherwise, where these were looked at for it alone."""

    name: str
    scheduled: Scheduled
    fits: bool
    others: tuple[Scheduled, ...] = ()


@record
class Schedule:
    """The batches of a job by the `step` with which they take least, of those that keep to what is given, and under the
    thresholds that hold. `context_threshold`: None where no contexts are shared. `rates`: what the threshold of a batch
    was read off, None where it was given. `others`: what is best by the plans that split batches otherwise."""

    job: Job
    plan: BatchTimes
    threshold: int
    context_threshold: int | None
    rates: Rates | None
    step: Step
    trials: Trials
    others: tuple[Schedule, ...] = ()

    @property
    def best(self) -> Scheduled:
        """The batches that it has."""
        return self.by(self.step)

    @property
    def plain(self) -> Scheduled:
        """The same requests in the order of the file, a fixed number at a time."""
        return self.by(Step.PLAIN)

    def by(self, step: Step) -> Scheduled:
        """The same requests by one of the steps."""
        return self.trials.scheduled(step, (self.threshold, self.context_threshold))

    @property
    def padding_saved(self) -> int:
        """Tokens of padding that the requests in the order of the file have more; below 0 where they have less."""
        return self.plain.padding - self.best.padding

    @property
    def warnings(self) -> tuple[Diagnostic, ...]:
        """What a user should know."""
        found = []
        held, capacity = self.best.held_bytes, self.job.hardware.room_bytes
        if held > capacity:
            message = f"A batch with its caches takes about {held / capacity:.2g} times what a chip may hold."
            found.append(Diagnostic(message, hint="lower the thresholds", severity="warning"))
        if self.job.context_threshold is not None and self.context_threshold is None:
            message = "No contexts are shared, so that a threshold of contexts changes nothing."
            found.append(Diagnostic(message, hint="lines of one `id` share a context", severity="warning"))
        return tuple(found)


def schedule(job: Job) -> Schedule:
    """The best batches of some job. Raises InputError where the model does not fit, or does not run in such stages."""
    every = [_by_plan(job, plan) for plan in _plans(job, job.stages)]
    least = min(every, key=lambda found: _rank(found.best, job))  # of equals the one that splits least
    return replace(least, others=tuple(found for found in every if found is not least))


def _plans(job: Job, stages: int) -> tuple[BatchTimes, ...]:
    """The plans of some job that split batches over no chips, and over more and more: those that fit. Raises NoPlan
    where none does."""
    lengths = job.requests.lengths
    mean, found, refused = round(sum(lengths) / len(lengths)), dict[int, BatchTimes](), list[NoPlan]()
    for ways in splits(job.mesh, stages):
        try:
            plan = batch_times(job.program, job.mesh, stages, job.hardware, mean, ways)
        except NoPlan as error:
            refused.append(error)
        else:
            found.setdefault(plan.ways, plan)  # a plan that was asked for more is the same again
    if not found:
        raise refused[0]
    return tuple(found[ways] for ways in sorted(found))


def _rank(one: Scheduled, job: Job) -> tuple[bool, float]:
    """What is less of batches that are better: those that fit by their time, then others by what they hold."""
    room = one.held_bytes <= job.hardware.room_bytes
    return not room, one.total_s if room else one.held_bytes


def _by_plan(job: Job, plan: BatchTimes) -> Schedule:
    """The best batches by one plan."""
    lengths, rates = job.requests.lengths, None
    trials = Trials(job, plan)
    if job.threshold is not None:
        found = trials.with_contexts(job.threshold, job.threshold)
    else:
        rates = _rates(plan, lengths)
        found = trials.found(rates.busy_tokens)
    return Schedule(job, plan, *found, rates, trials.quickest(trials.steps, found), trials)


def ladder(found: Schedule) -> tuple[Rung, ...]:
    """What the same job takes by each step, the plainest first, before which all chips run each batch in place of
    stages. Of the steps in its stages that keep to what is given, and fit, none takes less than the schedule."""
    job, plan, rungs = found.job, found.plan, list[Rung]()

    def rung(name: str, scheduled: Scheduled, others: tuple[Scheduled, ...] = ()) -> Rung:
        return Rung(name, scheduled, scheduled.held_bytes <= job.hardware.room_bytes, others)

    if plan.stages > 1:
        whole = [_timed(one, _divided(job.requests, Step.PLAIN, (1, None), one.ways)) for one in _plans(job, 1)]
        least = min(whole, key=lambda one: _rank(one, job))
        rungs.append(rung(f"all chips at once, {Step.PLAIN}", least, tuple(one for one in whole if one is not least)))
    where = f"in {plan.stages} stages" if plan.stages > 1 else "all chips at once"
    for step in Step:
        if step not in SHARING or found.context_threshold is not None:
            rungs.append(rung(f"{where}, {step}" if step is Step.PLAIN else step, found.by(step)))
    return tuple(rungs)


Thresholds = tuple[int, int | None]  # tokens of a batch, and of the contexts of a part, None where none are shared


@dataclass
class Trials:
    """What some job takes by the steps and with the thresholds that have been tried, for those with which it takes
    least."""

    job: Job
    plan: BatchTimes
    tried: dict[tuple[Step, Thresholds], Scheduled] = field(default_factory=dict)

    @property
    def steps(self) -> tuple[Step, ...]:
        """Those that keep to the thresholds that are given: without any, all that there are."""
        job, found = self.job, tuple(Step)
        if not job.requests.shared:
            found = tuple(step for step in found if step not in SHARING)
        elif job.context_threshold is not None:
            found = BY_SHARED_TOKENS
        return found if job.threshold is None else tuple(step for step in found if step in BY_TOKENS)

    def found(self, busy: int) -> Thresholds:
        """The best of the multiples of `busy` tokens, which fill the chips; of less where none of them fits."""
        while busy > 1 and not self.fits(self.last_step(self.pair(busy, busy)), self.pair(busy, busy)):
            busy //= 2
        found, shared = [], busy
        for tokens in counted([n * busy for n in MULTIPLES], "scheduling"):
            found.append(self.with_contexts(tokens, max(tokens, shared)))
            shared = found[-1][1] or shared
        return self.fewest(found)

    def fewest(self, found: Sequence[Thresholds]) -> Thresholds:
        """The best of some that fit. Of those that take about as long that is the one with fewest batches: it is least
        sure what small ones take."""
        steps = {each: self.by_tokens(each) for each in found}
        fitting = [each for each in found if self.fits(steps[each], each)]
        fitting = fitting or [min(found, key=lambda each: self.scheduled(steps[each], each).held_bytes)]
        done = {each: self.scheduled(steps[each], each) for each in fitting}
        least_s = min(each.total_s for each in done.values())
        alike = [each for each in fitting if done[each].total_s <= least_s * (1 + ALIKE)]
        return min(alike, key=lambda each: (len(done[each].batches), done[each].total_s))

    def with_contexts(self, tokens: int, shared: int) -> Thresholds:
        """A threshold of batches, with the best one of contexts: `shared` tokens, doubled while that helps."""
        best, most = self.pair(tokens, shared), sum(self.job.requests.contexts)
        while shared < most:
            shared *= 2
            following = self.pair(tokens, shared)
            step, before = self.last_step(following), self.last_step(best)
            more_s = self.scheduled(step, following).total_s - self.scheduled(before, best).total_s
            if more_s >= 0 or not self.fits(step, following):
                break
            best = following
        return best

    def pair(self, tokens: int, shared: int) -> Thresholds:
        """Thresholds: of contexts the one that is given, if one is."""
        return tokens, (self.job.context_threshold or shared) if self.job.requests.shared else None

    def last_step(self, thresholds: Thresholds) -> Step:
        """The last of the steps that helps. Mini-batches are for stages that wait: one that is alone needs them only
        where they save room."""
        if thresholds[1] is None:
            return Step.BY_LENGTH
        whole = Step.ENDINGS_BY_LENGTH
        if self.job.stages == 1 and self.fits(whole, thresholds):
            return whole
        return self.quickest((whole, Step.MINI), thresholds)

    def by_tokens(self, thresholds: Thresholds) -> Step:
        """The best of the steps that keep to thresholds: contexts are not shared where that makes more of too small
        batches than it saves tokens."""
        steps = (Step.BY_LENGTH, self.last_step(thresholds))
        return self.quickest([step for step in steps if step in self.steps], thresholds)

    def quickest(self, steps: Sequence[Step], thresholds: Thresholds) -> Step:
        """The step with which all takes least, of those that fit; of some that take the same the last one. Where none
        fits, the one that holds least."""
        latest = steps[::-1]
        fitting = [step for step in latest if self.fits(step, thresholds)]
        if not fitting:
            return min(latest, key=lambda step: self.scheduled(step, thresholds).held_bytes)
        return min(fitting, key=lambda step: self.scheduled(step, thresholds).total_s)

    def scheduled(self, step: Step, thresholds: Thresholds) -> Scheduled:
        """The batches that there are by some step with some thresholds."""
        if step not in SHARING:
            thresholds = thresholds[0], None
        if (step, thresholds) not in self.tried:
            batches = _divided(self.job.requests, step, thresholds, self.plan.ways)
            self.tried[step, thresholds] = _timed(self.plan, batches)
        return self.tried[step, thresholds]

    def fits(self, step: Step, thresholds: Thresholds) -> bool:
        """Whether a chip has room for that."""
        return self.scheduled(step, thresholds).held_bytes <= self.job.hardware.room_bytes


def _divided(requests: Requests, step: Step, thresholds: Thresholds, ways: int) -> tuple[Batch, ...]:
    """Requests as batches by some step, each in so many shares."""
    tokens, shared_tokens = thresholds
    if step is Step.PLAIN:
        return in_file_order(requests, PLAIN_REQUESTS, ways)
    if shared_tokens is None:
        return whole_requests(requests, by_longest(tokens, ways), ways)
    contexts = by_shortest(shared_tokens) if step in BY_SHARED_TOKENS else by_count(PLAIN_CONTEXTS)
    endings = by_longest(tokens, ways) if step in BY_TOKENS else by_count(PLAIN_REQUESTS, ways)
    parts = shared_contexts(requests, contexts, endings, tokens if step is Step.MINI else None, ways)
    return tuple(batch for part in parts for batch in part)


def _sizes(batches: Sequence[Batch]) -> tuple[Floats, Floats, Floats]:
    """Sequences, empty ones included, new tokens and context of batches."""
    rows = [(batch.rows, batch.new, batch.cached + batch.new) for batch in batches]
    batch, new, context = np.array(rows, dtype=np.float64).T
    return batch, new, context


def _timed(plan: BatchTimes, batches: Sequence[Batch]) -> Scheduled:
    """Batches with what they take."""
    seconds, layers = plan.seconds_and_layers(*_sizes(batches))
    return Scheduled(tuple(batches), seconds, run(seconds), layers, _held_bytes(plan, batches, max(layers)))


def _held_bytes(plan: BatchTimes, batches: Sequence[Batch], layers: int) -> float:
    """About the most that a chip of a stage with so many layers holds: a batch beside what of its part is cached
    before it."""
    found = list[tuple[int, int, int, int]]()
    part, cached_rows, cached = None, 0, 0
    for batch in batches:
        if batch.part != part:
            part, cached_rows, cached = batch.part, 0, 0
        found.append((batch.rows, batch.new, cached_rows, cached))
        if batch.runs is Runs.CONTEXTS:
            cached_rows, cached = cached_rows + batch.rows, batch.new
    rows, new, beside, places = np.array(found, dtype=np.float64).T
    return float(plan.held_bytes(rows, new, beside, places, layers).max())


def _rate(plan: BatchTimes, batch: Floats, length: Floats) -> Floats:
    """Flops a second of each of the chips that work on a batch."""
    busy_s: Floats = plan.seconds(rows_of(batch, plan.ways), length, length).sum(axis=0)
    return plan.flops(batch, length, length) / (busy_s * (plan.chips // plan.stages))


def _rates(plan: BatchTimes, lengths: Sequence[int]) -> Rates:
    """The rates of batches by powers of two, at lengths below which a quarter, a half and three quarters are."""
    some = tuple(sorted({int(n) for n in np.quantile(np.array(lengths), (0.25, 0.5, 0.75), method="nearest")}))
    batches = tuple(1 << power for power in range((MOST_TOKENS // some[0]).bit_length() or 1))
    rows = [_rate(plan, np.array(batches, dtype=np.float64), np.full(len(batches), float(n))) for n in some]
    return Rates(some, batches, np.array(rows), _saturated(plan, lengths))


def _saturated(plan: BatchTimes, lengths: Sequence[int]) -> int:
    """The least tokens of a batch that reaches SATURATED of the best rate up to MOST_TOKENS: of sequences of middling
    length, or where those are long of MOST_LENGTH."""
    length = min(int(np.quantile(np.array(lengths), 0.5, method="nearest")), MOST_LENGTH)
    batch = np.arange(1, max(1, MOST_TOKENS // length) + 1, dtype=np.float64)
    rates = _rate(plan, batch, np.full(len(batch), float(length)))
    return int(batch[np.argmax(rates >= SATURATED * rates.max())]) * length
