"""Requests scheduled: the thresholds of their batches, the batches, and what these take in the stages of a pipeline.

A threshold is a count of tokens from which a batch keeps the chips busy. Where none are given, that of a batch begins
at what is read off the plan, the least count at which it reaches nearly the flops a second that it ever reaches, and
is doubled, and with it that of the shared tokens of a part of the contexts, to where all takes the least time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from ...cost.hardware import Hardware
from ...cost.unit_times import Floats
from ...ir.diagnostics import Diagnostic
from ...ir.mesh import Mesh
from ...ir.program import Program
from ...passes.batches.batches import (
    Batch,
    Divide,
    Requests,
    Runs,
    by_count,
    by_longest,
    by_shortest,
    in_file_order,
    shared_contexts,
    whole_requests,
)
from ...passes.batches.pipeline import Timeline, run
from ..plan.batch_times import BatchTimes, batch_times
from ..text.processes import counted

SATURATED = 0.9  # of the best rate: what a batch at its threshold reaches
MOST_TOKENS = 1 << 16  # of a batch, in the table of rates
MOST_LENGTH = 128  # of the sequences by which a threshold is found: it is a multiple of their length
MULTIPLES = (1, 2, 4, 8, 16)  # of the count from which batches keep the chips busy, that are tried as thresholds
ALIKE = 0.005  # of the time: less does not tell thresholds apart, of which those with fewest batches are taken then
PLAIN_CONTEXTS, PLAIN_REQUESTS = 128, 32  # in batches that are divided by their count, to compare with


@dataclass(frozen=True)
class Job:
    """Requests, the model that runs them, and on what. `threshold`, `context_threshold`: tokens, None to be found."""

    requests: Requests
    program: Program
    hardware: Hardware
    mesh: Mesh
    stages: int = 1
    threshold: int | None = None
    context_threshold: int | None = None


@dataclass(frozen=True)
class Rates:
    """What batches of `batches` sequences of `lengths` tokens reach: flops a second of a chip,
    [lengths, batches]. `busy_tokens`: the least tokens of a batch that reaches nearly the best."""

    lengths: tuple[int, ...]
    batches: tuple[int, ...]
    flops_per_s: Floats
    busy_tokens: int


@dataclass(frozen=True)
class Scheduled:
    """Batches in the order in which they run, what each takes in each stage, [stages, batches] seconds, and when."""

    batches: tuple[Batch, ...]
    seconds: Floats
    timeline: Timeline

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


@dataclass(frozen=True)
class Rung:
    """What a schedule takes that does without some of the steps to the best one."""

    name: str
    scheduled: Scheduled


@dataclass(frozen=True)
class Schedule:
    """The batches of a job under the thresholds that hold. `context_threshold`: None where no contexts are shared.
    `rates`: what the threshold of a batch was read off, None where it was given. `plain`: the same requests in the
    order of the file, a fixed number at a time."""

    job: Job
    plan: BatchTimes
    threshold: int
    context_threshold: int | None
    rates: Rates | None
    best: Scheduled
    plain: Scheduled

    @property
    def padding_saved(self) -> int:
        """Tokens of padding that the requests in the order of the file have more."""
        return self.plain.padding - self.best.padding

    @cached_property
    def layers(self) -> tuple[int, ...]:
        """How many layers each stage has."""
        return self.plan.layers(*_sizes(self.best.batches))

    @cached_property
    def held_bytes(self) -> float:
        """About the most that a chip holds."""
        return _held_bytes(self.plan, self.best.batches)

    @property
    def warnings(self) -> tuple[Diagnostic, ...]:
        """What a user should know."""
        found = []
        capacity = self.job.hardware.room_bytes
        if self.held_bytes > capacity:
            message = (
                f"A batch with its caches takes about {self.held_bytes / capacity:.2g} times what a chip may hold."
            )
            found.append(Diagnostic(message, hint="lower the thresholds", severity="warning"))
        return tuple(found)


def schedule(job: Job) -> Schedule:
    """The best batches of some job. Raises InputError where the model does not fit, or does not run in such stages."""
    lengths = job.requests.lengths
    plan = batch_times(job.program, job.mesh, job.stages, job.hardware, round(sum(lengths) / len(lengths)))
    rates = None
    trials = _Trials(job, plan)
    if job.threshold is not None:
        found = trials.with_contexts(job.threshold, job.threshold)
    else:
        rates = _rates(plan, lengths)
        found = trials.found(rates.busy_tokens)
    plain = _timed(plan, in_file_order(job.requests, PLAIN_REQUESTS))
    return Schedule(job, plan, *found, rates, trials.at(found), plain)


def ladder(found: Schedule) -> tuple[Rung, ...]:
    """What the same job takes without some of the steps to its schedule, the plainest first: all chips on every batch
    in place of stages, requests in the order of the file, batches by count."""
    job, plan, rungs = found.job, found.plan, list[Rung]()
    requests, plain = job.requests, in_file_order(job.requests, PLAIN_REQUESTS)
    if plan.stages > 1:
        lengths = requests.lengths
        whole = batch_times(job.program, job.mesh, 1, job.hardware, round(sum(lengths) / len(lengths)))
        rungs.append(Rung(f"all chips at once, {PLAIN_REQUESTS} requests each", _timed(whole, plain)))
    where = f"in {plan.stages} stages" if plan.stages > 1 else "all chips at once"
    rungs.append(Rung(f"{where}, {PLAIN_REQUESTS} requests each", found.plain))
    by_tokens = by_longest(found.threshold)
    rungs.append(Rung("batches by length", _timed(plan, whole_requests(requests, by_tokens))))
    if found.context_threshold is None:
        return tuple(rungs)
    by_shared, plainly = by_shortest(found.context_threshold), by_count(PLAIN_CONTEXTS)
    steps: list[tuple[str, Divide, Divide, int | None]] = [
        ("shared contexts", plainly, by_count(PLAIN_REQUESTS), None),
        ("contexts by length", by_shared, by_count(PLAIN_REQUESTS), None),
        ("endings by length", by_shared, by_tokens, None),
        ("contexts in mini-batches", by_shared, by_tokens, found.threshold),
    ]
    for name, contexts, endings, mini in steps:
        rungs.append(Rung(name, _timed(plan, _joined(requests, contexts, endings, mini))))
    return tuple(rungs)


Thresholds = tuple[int, int | None]  # tokens of a batch, and of the contexts of a part, None where none are shared


@dataclass
class _Trials:
    """What some job takes with the thresholds that have been tried, for those with which it takes least."""

    job: Job
    plan: BatchTimes
    tried: dict[Thresholds, Scheduled] = field(default_factory=dict)

    def found(self, busy: int) -> Thresholds:
        """The best of the multiples of `busy` tokens, which fill the chips; of less where none of them fits."""
        while busy > 1 and not self.fits(self.pair(busy, busy)):
            busy //= 2
        found, shared = [], busy
        for tokens in counted([n * busy for n in MULTIPLES], "scheduling"):
            found.append(self.with_contexts(tokens, max(tokens, shared)))
            shared = found[-1][1] or shared
        return self.fewest(found)

    def fewest(self, found: Sequence[Thresholds]) -> Thresholds:
        """The best of some that fit. Of those that take about as long that is the one with fewest batches: it is least
        sure what small ones take."""
        fitting = [each for each in found if self.fits(each)] or [min(found, key=self.held_bytes)]
        least_s = min(self.at(each).total_s for each in fitting)
        alike = [each for each in fitting if self.at(each).total_s <= least_s * (1 + ALIKE)]
        return min(alike, key=lambda each: (len(self.at(each).batches), self.at(each).total_s))

    def with_contexts(self, tokens: int, shared: int) -> Thresholds:
        """A threshold of batches, with the best one of contexts: `shared` tokens, doubled while that helps."""
        best, most = self.pair(tokens, shared), sum(self.job.requests.contexts)
        while shared < most:
            shared *= 2
            following = self.pair(tokens, shared)
            if not self.fits(following) or self.at(following).total_s >= self.at(best).total_s:
                break
            best = following
        return best

    def pair(self, tokens: int, shared: int) -> Thresholds:
        """Thresholds: of contexts the one that is given, if one is."""
        return tokens, (self.job.context_threshold or shared) if self.job.requests.shared else None

    def at(self, thresholds: Thresholds) -> Scheduled:
        """The batches that there are with some thresholds."""
        if thresholds not in self.tried:
            requests, (tokens, shared) = self.job.requests, thresholds
            divide = by_longest(tokens)
            if shared is None:
                batches = whole_requests(requests, divide)
            else:
                batches = _joined(requests, by_shortest(shared), divide, tokens)
            self.tried[thresholds] = _timed(self.plan, batches)
        return self.tried[thresholds]

    def held_bytes(self, thresholds: Thresholds) -> float:
        """About the most that a chip holds."""
        return _held_bytes(self.plan, self.at(thresholds).batches)

    def fits(self, thresholds: Thresholds) -> bool:
        """Whether a chip has room for that."""
        return self.held_bytes(thresholds) <= self.job.hardware.room_bytes


def _joined(requests: Requests, contexts: Divide, endings: Divide, mini_tokens: int | None) -> tuple[Batch, ...]:
    return tuple(batch for part in shared_contexts(requests, contexts, endings, mini_tokens) for batch in part)


def _sizes(batches: Sequence[Batch]) -> tuple[Floats, Floats, Floats]:
    """Sequences, new tokens and context of batches."""
    rows = [(len(batch.members), batch.new, batch.cached + batch.new) for batch in batches]
    batch, new, context = np.array(rows, dtype=np.float64).T
    return batch, new, context


def _timed(plan: BatchTimes, batches: Sequence[Batch]) -> Scheduled:
    """Batches with what they take."""
    seconds = plan.seconds(*_sizes(batches))
    return Scheduled(tuple(batches), seconds, run(seconds))


def _held_bytes(plan: BatchTimes, batches: Sequence[Batch]) -> float:
    """About the most that a chip holds: the cache of a part, beside its largest batch."""
    cached: dict[int | None, int] = {}
    for batch in batches:
        if batch.runs is Runs.CONTEXTS:
            cached[batch.part] = cached.get(batch.part, 0) + batch.tokens
    tokens = np.array([(batch.tokens, cached.get(batch.part, 0)) for batch in batches], dtype=np.float64)
    own, beside = tokens.T
    return float(plan.held_bytes(own, beside, max(plan.layers(*_sizes(batches)))).max())


def _rate(plan: BatchTimes, batch: Floats, length: Floats) -> Floats:
    """Flops a second of each of the chips that work on a batch."""
    sizes = batch, length, length
    busy_s: Floats = plan.seconds(*sizes).sum(axis=0)
    return plan.flops(*sizes) / (busy_s * (plan.chips // plan.stages))


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
