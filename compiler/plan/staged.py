"""A model compiled as a pipeline: every stage a plan of its own, verified and priced like any other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ...cost.stages import Rounds, passed_bytes
from ...ir.diagnostics import Diagnostic, InternalError, fail
from ...ir.mesh import Mesh
from ...ir.program import Kind, Program, stored_in
from ...ir.record import record
from ...ir.spmd import SpmdProgram
from ...ir.streams import host_tensors
from ...passes.options import Options
from ...passes.stages.bounds import Known
from ...passes.stages.choose_stages import choose_stages
from ...passes.stages.divide import Stage
from ...passes.stages.layers import dividing
from ...passes.stages.staged_plan import StagedPlan
from ..simulate.check_report import ERROR_TOLERANCE
from ..simulate.spmd_interpreter import ExecutionError
from ..simulate.staged import check_pipeline
from .compiled import Compilation
from .pipeline import compile_plan
from .serving import Served, Stream, served_by, serving

STREAMED = {Kind.PARAM: "weights", Kind.CACHE: "caches"}


@record
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

    @property
    def between(self) -> str:
        """What stages end between, in words: layers, or repetitions of several."""
        return dividing(self.program, sum(self.plan.layers))

    @property
    def warnings(self) -> tuple[Diagnostic, ...]:
        """What a user should know, and may well want, of whatever stages: each once."""
        found: dict[str, Diagnostic] = {}
        for stage in self.stages:
            for warning in stage.warnings:
                found.setdefault(warning.message, warning)  # their hints speak of the dims of a stage
        return tuple(found.values())

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

    @property
    def streamed_layers(self) -> tuple[int, ...]:
        """How many of its layers each stage streams from its host."""
        return tuple(sum(fetch.streamed for fetch in stage[0].estimate.fetches) for stage in self.stages)

    @property
    def streamed_what(self) -> str:
        """What any stage streams, in words."""
        return streamed_what([stage[0].spmd for stage in self.stages])

    def served(self, stream: Stream) -> Served:
        """What a stream gets of a program that `of_stream` gave: a decode step takes all of the batch through the
        stages. Prompts follow each other through them; the longest times count all stages for one of them. A chip holds
        what those of the fullest stage do."""
        prefill, decode = (one.phase for one in self.stages[0])
        step_s = self.phase_s(decode) / self.rounds[decode].calls
        alone_s = stream.chunks * math.fsum(self.stages_s(prefill))
        return served_by(self.stages, self.plan.price, step_s, self.plan.mesh.chips, stream, alone_s)

    def passed_bytes(self, stage: int, phase: str) -> float:
        """What a chip of a stage hands to the next one, of a micro-batch."""
        one = next(one for one in self.stages[stage] if one.phase == phase)
        planned = self.plan.stages[stage]
        return math.fsum(passed_bytes(one.spmd, planned.stage.program.results, planned.options.passing))


def streamed_what(spmds: Sequence[SpmdProgram]) -> str:
    """What any of some programs streams, in words: kinds of which layers come whole, and what else does by name."""
    every = [one for spmd in spmds for one in host_tensors(spmd).values()]
    streamed, around = {one.value.name: one.kind for one in every}, {one.repeats[0] for one in every}
    stored = [each for spmd in spmds for each in stored_in(spmd.body).items()]
    may = {(one.value, one.kind) for one, at in stored if at.repeats and at.repeats[0].name in around}
    whole = [kind for kind in STREAMED if {name for name, of in may if of is kind} <= {*streamed}]
    words = [word for kind, word in STREAMED.items() if kind in whole and kind in streamed.values()]
    return " and ".join([*words, *(name for name, kind in streamed.items() if kind not in whole)])


def compile_staged(
    program: Program,
    phases: Sequence[str],
    mesh: Mesh,
    axis: str,
    options: Options,
    micro_batches: Mapping[str, int] | None = None,
    run: bool = False,
    known: Known | None = None,
) -> Staged:
    """The pipeline along an axis; `known` as `choose_stages` has it. Raises as that and `compile_plan` do."""
    if options.overlap:
        raise fail("Loops are not made in stages.", hint="leave out `--overlap`, or `--stages`")
    plan = choose_stages(program, phases, mesh, axis, serving(program).batch, options, micro_batches, known)
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
