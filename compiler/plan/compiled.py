"""What compiling gives: phases, each with its verified program and its cost, and what they come to together."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import overload

from ...cost.estimate import Estimate, Scope, estimate, local_bytes, scopes
from ...cost.hardware import Hardware
from ...cost.memory import MemoryUse, memory
from ...cost.platform import Platform
from ...cost.predict import Prediction, predict_phase
from ...cost.streams import host_bytes
from ...ir.diagnostics import Diagnostic
from ...ir.program import Program
from ...ir.record import record
from ...ir.spmd import SpmdProgram
from ...passes.lower.insert import spell_handovers
from ...passes.plan import HandoverPlan, Objective, Outcome, PhasePlan, Plan
from ..simulate.check_report import ERROR_TOLERANCE, CheckReport


@record
class CompiledPhase:
    """One phase, compiled: the plan, the verified sharded program, and what it costs.

    `program` is the one that was compiled, with all pins that hold, its products as they are written.
    `checked`: what a run showed, None where none was asked for. `warnings`: what a user should know, and may well want.
    `overlapped`: whether loops were looked for, in which some steps hide others.
    """

    program: Program
    hardware: Hardware
    plan: Plan
    spmd: SpmdProgram
    estimate: Estimate
    checked: CheckReport | None
    warnings: tuple[Diagnostic, ...]
    overlapped: bool = False

    @property
    def phase(self) -> str:
        """The phase's name."""
        return self.spmd.phase

    @property
    def phase_plan(self) -> PhasePlan:
        """What was planned for the phase."""
        return next(phase for phase in self.plan.phases if phase.phase == self.phase)

    @property
    def together(self) -> bool:
        """Whether it was planned with other phases: then what is proven is proven of all of them."""
        return len(self.plan.phases) > 1

    @property
    def for_tpu(self) -> bool:
        """Whether its modules are compiled by the TPU's compiler."""
        return self.hardware.tpu_compiler is not None

    @property
    def platform(self) -> Platform:
        """Whose compiler its modules are written for: what is no TPU is a GPU, or takes what GPUs take."""
        return Platform.TPU if self.for_tpu else Platform.GPU

    @property
    def calls(self) -> int:
        """How often the phase is called for one batch."""
        return self.program.phase(self.phase).calls

    @property
    def beside_s(self) -> float:
        """What the time that was minimised leaves out: waiting for the host, less what loops hide."""
        timed = self.plan.objective is Objective.TIME or memory_is_limit(self.plan)
        totals = self.estimate.totals()
        return totals.waiting_s - totals.hidden_s if timed else 0.0

    @cached_property
    def prediction(self) -> Prediction:
        """What one step takes."""
        return predict_phase(self.phase_plan.program, self.spmd, self.estimate, self.memory, self.hardware)

    @cached_property
    def memory(self) -> MemoryUse:
        """What a chip holds."""
        return memory(self.spmd, self.hardware.lanes, self.hardware.fuses_products)

    @property
    def host_bytes(self) -> float:
        """What each host holds for its chips."""
        host = self.hardware.host
        return (
            0.0
            if host is None
            else host_bytes(self.spmd, self.hardware, lambda value: float(local_bytes(value, self.spmd)))
        )

    @cached_property
    def scopes(self) -> tuple[Scope, ...]:
        """What one repetition of each repeat takes."""
        return scopes(self.spmd, self.estimate)

    @property
    def sound(self) -> bool:
        """Whether a run, if there was one, agreed with the reference and with the predicted bytes."""
        return self.checked is None or (self.checked.max_error <= ERROR_TOLERANCE and self.checked.equal)


@record
class Compilation(Sequence[CompiledPhase]):
    """The phases of a model on a mesh, compiled: at least one, all under one plan or each under its own."""

    phases: tuple[CompiledPhase, ...]

    @overload
    def __getitem__(self, index: int) -> CompiledPhase: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[CompiledPhase, ...]: ...

    def __getitem__(self, index: int | slice) -> CompiledPhase | tuple[CompiledPhase, ...]:
        return self.phases[index]

    def __len__(self) -> int:
        return len(self.phases)

    def __iter__(self) -> Iterator[CompiledPhase]:
        return iter(self.phases)

    @property
    def stages(self) -> tuple[Compilation, ...]:
        """Itself, alone: the one stage of what is not divided."""
        return (self,)

    @property
    def together(self) -> bool:
        """Whether several phases were planned as one."""
        return self.phases[0].together

    @property
    def plans(self) -> tuple[Plan, ...]:
        """One plan for all phases, or one for each."""
        return (self.phases[0].plan,) if self.together else tuple(one.plan for one in self.phases)

    @property
    def outcome(self) -> Outcome:
        """Whether all that was planned is proven cheapest."""
        proven = all(plan.outcome is Outcome.OPTIMAL for plan in self.plans)
        return Outcome.OPTIMAL if proven else Outcome.FEASIBLE

    @property
    def total_s(self) -> float:
        """What all phases take, each as often as it is called, and what hands their caches on; of one phase, one
        call."""
        handed_s = math.fsum(self._calls(each.before) * each.price for each in self._handovers)
        return math.fsum(self._calls(one.phase) * one.estimate.totals().total_s for one in self.phases) + handed_s

    @property
    def bytes_sent(self) -> float:
        """What a chip sends in these calls."""
        sent = math.fsum(self._calls(one.phase) * one.estimate.totals().bytes_sent for one in self.phases)
        spelled = spell_handovers(self.plans[0]) if self.together else ()
        for each, spmd in zip(self._handovers, spelled, strict=True):
            sent += self._calls(each.before) * estimate(spmd, self.phases[0].hardware).totals().bytes_sent
        return sent

    @property
    def _handovers(self) -> tuple[HandoverPlan, ...]:
        return self.plans[0].handovers if self.together else ()

    def _calls(self, phase: str) -> int:
        """How often a phase counts."""
        return {one.phase: one.calls for one in self.phases}[phase] if len(self.phases) > 1 else 1

    @property
    def price(self) -> float:
        """The objective of all phases over all of their calls; of one phase, of one call. Where that is time, with
        waiting for the host, and without what loops hide; where it is memory, the bytes that a chip stores in the phase
        in which it stores most."""
        if self.phases[0].plan.objective is Objective.MEMORY:
            return max(one.phase_plan.price for one in self.phases)
        if len(self.phases) == 1:
            return self.phases[0].plan.price + self.phases[0].beside_s
        beside_s = math.fsum(one.calls * one.beside_s for one in self.phases)
        if self.together:
            return self.phases[0].plan.price + beside_s
        return math.fsum(one.calls * one.plan.price for one in self.phases) + beside_s

    @property
    def sound(self) -> bool:
        """Whether all runs, if there were any, agreed with the reference and with the predicted bytes."""
        return all(one.sound for one in self.phases)

    @property
    def warnings(self) -> tuple[Diagnostic, ...]:
        """What a user should know, of all phases."""
        return tuple(warning for one in self.phases for warning in one.warnings)


def memory_is_limit(plan: Plan) -> bool:
    """Whether memory, though it is to be least, is no more than a limit, and what is minimised is the time."""
    return plan.objective is Objective.MEMORY and len(plan.phases) > 1
