"""A model compiled as a pipeline: every stage a plan of its own, verified and priced like any other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ...cost.stages import Rounds, passed_bytes
from ...ir.diagnostics import InputError, fail
from ...ir.mesh import Mesh
from ...ir.program import Program
from ...ir.spmd import SpmdProgram
from ...passes.choose import Options
from ...passes.plan import NoPlan, Objective, Outcome, relative_gap
from ...passes.stages.choose_stages import StagedPlan, choose_stages
from ...passes.stages.divide import Stage
from ..simulate.check import ERROR_TOLERANCE
from ..simulate.spmd_interpreter import ExecutionError
from ..simulate.staged import check_pipeline
from .compiled import Compilation
from .pipeline import InternalError, compile_phases, compile_plan
from .serving import serving


@dataclass(frozen=True)
class Staged:
    """A pipeline, compiled: `stages` in order, each called by its number, of `plan`'s; `program`: what it is of.
    `errors`: for each phase the largest difference from the whole model that a run on virtual chips showed, relative
    to the largest element; none where none was asked for."""

    program: Program
    plan: StagedPlan
    stages: tuple[Compilation, ...]
    errors: tuple[tuple[str, float], ...] = ()

    @property
    def rounds(self) -> Mapping[str, Rounds]:
        """How often each phase runs, in how many micro-batches."""
        return dict(self.plan.rounds)

    @property
    def sound(self) -> bool:
        """Whether all runs, if there were any, agreed with the reference and with the predicted bytes."""
        return all(stage.sound for stage in self.stages) and all(e <= ERROR_TOLERANCE for _, e in self.errors)

    def stages_s(self, phase: str) -> tuple[float, ...]:
        """What a micro-batch of a phase takes in each stage, with handing on."""
        return tuple(stage.seconds(phase) for stage in self.plan.stages)

    def phase_s(self, phase: str) -> float:
        """All calls of a phase."""
        seconds = self.stages_s(phase)
        return float(self.rounds[phase].seconds(math.fsum(seconds), max(seconds)))

    def idle_share(self, phase: str) -> float:
        """The share of the time of a phase in which a stage has nothing to do, on average."""
        rounds, seconds = self.rounds[phase], self.stages_s(phase)
        busy_s = rounds.calls * rounds.micro_batches * math.fsum(seconds) / len(seconds)
        return 1 - busy_s / self.phase_s(phase)

    def passed_bytes(self, stage: int, phase: str) -> float:
        """What a chip of a stage hands to the next one, of a micro-batch."""
        one = next(one for one in self.stages[stage] if one.phase == phase)
        planned = self.plan.stages[stage]
        return math.fsum(passed_bytes(one.spmd, planned.stage.program.results, planned.options.passing))


def compile_staged(
    program: Program,
    phases: Sequence[str],
    mesh: Mesh,
    axis: str,
    options: Options,
    micro_batches: Mapping[str, int] | None = None,
    run: bool = False,
) -> Staged:
    """The pipeline along an axis. Raises as `choose_stages` and `compile_plan` do."""
    if options.overlap:
        raise fail("Loops are not made in stages.", hint="leave out `--overlap`, or `--stages`")
    plan = choose_stages(program, phases, mesh, axis, serving(program).batch, options, micro_batches)
    stages = []
    for n, one in enumerate(plan.stages):
        name = f"{program.name} stage {n + 1}"
        own = (replace(phase, program=replace(phase.program, name=name)) for phase in one.plan.phases)
        stage = replace(one.stage.program, name=name), replace(one.plan, phases=tuple(own))
        stages.append(Compilation(compile_plan(*stage, one.options, run)))
    errors: tuple[tuple[str, float], ...] = ()
    if run:
        parts = [one.stage for one in plan.stages]
        errors = tuple((name, _checked(program, parts, [s[n].spmd for s in stages])) for n, name in enumerate(phases))
    return Staged(program, plan, tuple(stages), errors)


def _checked(program: Program, stages: Sequence[Stage], spmds: Sequence[SpmdProgram]) -> float:
    """The largest difference between a model and its pipeline in a phase."""
    try:
        return check_pipeline(program, stages, spmds, serving(program).batch)
    except ExecutionError as error:
        raise InternalError(f"the pipeline of phase `{spmds[0].phase}` does not run: {error}") from error


@dataclass(frozen=True)
class Try:
    """A mesh with the axis along which there are stages, None for none, and what came of it: seconds of all calls of
    all phases, or why there is no plan. `bound`: what every such plan takes at the least, as far as that is proven."""

    mesh: Mesh
    axis: str | None
    found: Compilation | Staged | None
    price: float
    bound: float
    reason: str | None = None


def tries(
    program: Program,
    phases: Sequence[str],
    meshes: Sequence[Mesh],
    options: Options,
    stages: int | None,
    micro_batches: Mapping[str, int] | None = None,
    run: bool = False,
) -> tuple[Try, ...]:
    """Every mesh with so many stages along an axis, or with `None` without stages and with stages along each axis, the
    quickest first.

    Raises InputError where no mesh has such an axis, or with what the first says where none has a plan.
    """
    if program.on_host:
        raise fail(f"`{program.on_host[0]}` is placed with the host, from where stages do not stream.")
    if options.objective is not Objective.TIME:
        raise fail(f"Stages are chosen by time, and `{options.objective}` is asked for.")
    ways = [(mesh, axis) for mesh in meshes for axis in _axes(mesh, stages)]
    if not ways:
        listed = " or ".join(f"`{mesh}`" for mesh in meshes[:3])
        hint = f"name one, as `--chips stage={stages},gpu=8`"
        raise fail(f"No axis of {listed} has {stages} chips, for as many stages.", hint=hint)
    found: list[Try] = []
    refused: list[InputError] = []
    for mesh, axis in ways:
        try:
            if axis is None:
                whole = compile_phases(program, phases, mesh, options, run)
                price = whole.price * _calls(whole)
                found.append(Try(mesh, None, whole, price, price * whole.plans[0].least / whole.plans[0].price))
            else:
                staged = compile_staged(program, phases, mesh, axis, options, micro_batches, run)
                found.append(Try(mesh, axis, staged, staged.plan.price, staged.plan.bound))
        except InputError as error:
            refused.append(error)
            unproven = isinstance(error, NoPlan) and error.outcome is Outcome.UNPROVEN
            bound = 0.0 if unproven else math.inf
            found.append(Try(mesh, axis, None, math.inf, bound, error.diagnostics[0].message))
    if len(refused) == len(ways):
        raise refused[0]
    return tuple(sorted(found, key=lambda one: one.price))


def least_bound(found: Sequence[Try]) -> float:
    """What every plan of some tries takes at the least."""
    return min(one.bound for one in found)


def outcome_of(found: Sequence[Try]) -> tuple[Outcome, float]:
    """Whether the first of some tries is proven the quickest of all, and the gap."""
    gap = relative_gap(found[0].price, least_bound(found))
    return Outcome.of(gap), gap


def _axes(mesh: Mesh, stages: int | None) -> list[str | None]:
    """The axes along which there may be stages; None stands for none."""
    long = [name for name, size in mesh.axes if size > 1]
    if stages is None:
        return [None, *long]
    return [None] if stages == 1 else [name for name in long if mesh.size(name) == stages]


def _calls(compiled: Compilation) -> int:
    """How often the price of a compilation counts: that of one phase is of one call."""
    return compiled[0].calls if len(compiled) == 1 else 1
