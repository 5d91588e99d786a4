"""A pipeline that was planned, and why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from ...cost.stages import Rounds
from ...ir.mesh import Mesh
from ...ir.record import record
from ..lower.insert import insert
from ..options import Options
from ..plan import Cutoff, NoPlan, Outcome, Plan, relative_gap
from .boundaries import Ends
from .divide import Stage


@record
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

    @cached_property
    def taken(self) -> Ends:
        """For each phase the layouts in which it takes what it receives."""
        found = []
        for spmd in insert(self.plan):
            values = spmd.table()
            found.append((spmd.phase, tuple(values[name].layout for name in self.stage.received)))
        return tuple(found)

    @cached_property
    def handed(self) -> Ends:
        """For each phase the layouts in which it has what it hands on."""
        found = []
        for spmd in insert(self.plan):
            values, results = spmd.table(), dict(zip(self.stage.program.results, spmd.results, strict=True))
            found.append((spmd.phase, tuple(values[results[name]].layout for name in self.stage.passed)))
        return tuple(found)


@record
class SplitBound:
    """What every pipeline with batches divided in one way takes at the least: `computing_s` if nothing waits for the
    host, infinite where it was shown that none fits; `fetching_s` if nothing but that takes time."""

    computing_s: float
    fetching_s: float


@record
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
    def layers(self) -> tuple[int, ...]:
        """How many layers each stage has."""
        return tuple(one.stage.layers for one in self.stages)

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


class SlowStages(Cutoff):
    """Stages that were to be looked at take no less than was asked for: in all ways `bound` if nothing waits for the
    host."""


class TurnOver(Exception):
    """Other ways to divide batches have their turn before more stages of one are planned."""


class SlowPipelines(Cutoff):
    """None takes less than was asked for. `splits`: as NoPipeline has them."""

    def __init__(self, bound: float, splits: tuple[SplitBound, ...]):
        super().__init__(bound)
        self.splits = splits


def refusal(refused: Sequence[NoPlan]) -> NoPlan:
    """Why there is no pipeline: of several ways to have one, each refused, one that is not shown to fit nowhere."""
    return next((one for one in refused if one.outcome is Outcome.UNPROVEN), refused[0])
