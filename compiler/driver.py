"""The driver: strings the passes together, from the text of a model to a verified plan and its cost.

Every plan is verified, and its price recomputed from the sharded program, before anyone sees it.
Non-goals: files to write, text to print.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..cost.estimate import Estimate, estimate, predict
from ..cost.hardware import Hardware
from ..ir.diagnostics import Diagnostic, InputError, did_you_mean, fail
from ..ir.mesh import Mesh
from ..ir.parser import parse, read_source
from ..ir.pins import merge_pins, parse_pins
from ..ir.program import Program
from ..ir.spmd import SpmdProgram
from ..ir.verify import verify
from ..passes.choose import Options, choose
from ..passes.expand import expand
from ..passes.insert import insert
from ..passes.plan import Objective, Plan
from .backends.check import CheckReport, check
from .backends.virtual import ExecutionError

PRICE_TOLERANCE = 1e-9  # relative, between the price of a plan and that of the program made from it
ERROR_TOLERANCE = 1e-9  # relative, between a sharded program and its reference, in float64


class InternalError(Exception):
    """The compiler contradicts itself: a bug, whatever the input was."""


@dataclass(frozen=True)
class Compiled:
    """One phase, compiled: the plan, the verified sharded program, and what it costs.

    `program` is the one that was compiled, with all pins that hold. `checked`: what a run showed,
    None where none was asked for. `warnings`: what a user should know, and may well want.
    """

    program: Program
    hardware: Hardware
    plan: Plan
    spmd: SpmdProgram
    estimate: Estimate
    checked: CheckReport | None
    warnings: tuple[Diagnostic, ...]

    @property
    def phase(self) -> str:
        """The phase's name."""
        return self.spmd.phase

    @property
    def sound(self) -> bool:
        """Whether a run, if there was one, agreed with the reference and with the predicted bytes."""
        return self.checked is None or (self.checked.max_error <= ERROR_TOLERANCE and self.checked.equal)


def load(file: Path, settings: Mapping[str, int] | None = None, pins: Sequence[Path] = ()) -> Program:
    """The program of a model file, dims set by `settings`, with the pins of files beside it.

    A pin of a file replaces the model's of the same place, and that of an earlier file. Raises
    InputError when a file cannot be read or is wrong.
    """
    source = read_source(file)
    program = expand(parse(source), source, settings)
    for path in pins:
        program = replace(program, pins=merge_pins(program.pins, parse_pins(read_source(path), program)))
    return program


def select_phases(program: Program, phase: str | None) -> tuple[str, ...]:
    """The phases to compile: `phase`, or all when it is None. Raises InputError for an unknown one."""
    names = tuple(p.name for p in program.phases)
    if phase is None:
        return names
    if phase not in names:
        hint = did_you_mean(phase, names) or f"the phases are {', '.join(names)}"
        raise fail(f"The model has no phase `{phase[:60]}`.", hint=hint)
    return (phase,)


def compile_phase(program: Program, phase: str, mesh: Mesh, options: Options, run: bool = False) -> Compiled:
    """Plan one phase, spell it out, verify it and price it; with `run`, also run it on virtual chips.

    Raises InputError when pins or memory leave no plan, or when the program is too large to run;
    InternalError when the result does not hold together.
    """
    plan = choose(program, phase, mesh, options)
    [spmd] = insert(program, plan)
    try:
        verify(spmd, program)
    except InputError as error:
        raise InternalError(f"the plan of phase `{phase}` does not verify: {error}") from error
    cost = estimate(spmd, options.hardware)
    _confirm_price(plan, cost)
    checked = None
    if run:
        try:
            checked = check(program, spmd, predict)
        except ExecutionError as error:
            raise InternalError(f"the plan of phase `{phase}` does not run: {error}") from error
    return Compiled(program, options.hardware, plan, spmd, cost, checked, idle_axes(program, phase, mesh))


def compile_phases(
    program: Program, phases: Sequence[str], mesh: Mesh, options: Options, run: bool = False
) -> tuple[Compiled, ...]:
    """Compile phases, each on its own. Raises InputError with what is wrong with any of them."""
    done: list[Compiled] = []
    failed: dict[Diagnostic, list[str]] = {}
    for phase in phases:
        try:
            done.append(compile_phase(program, phase, mesh, options, run))
        except InputError as error:
            for diagnostic in error.diagnostics:
                failed.setdefault(diagnostic, []).append(phase)
    if failed:
        raise InputError(
            d if len(where) == len(phases) else replace(d, message=f"Phase {', '.join(where)}: {d.message}")
            for d, where in failed.items()
        )
    return tuple(done)


def _confirm_price(plan: Plan, cost: Estimate) -> None:
    """Compare the objective that was minimised with what the finished program costs."""
    totals = cost.totals()
    recomputed = {
        Objective.TIME: totals.total_s,
        Objective.COMMUNICATION: totals.comm_s,
        Objective.MEMORY: math.fsum(size for _, size in cost.stored_bytes),
    }[plan.objective]
    price = plan.phases[0].price
    if not math.isclose(recomputed, price, rel_tol=PRICE_TOLERANCE):
        raise InternalError(f"the plan was priced at {price!r}, and its program costs {recomputed!r}")


def idle_axes(program: Program, phase: str, mesh: Mesh) -> tuple[Diagnostic, ...]:
    """A warning for every axis of the mesh that divides no dim of the program."""
    sizes = dict(program.phase(phase).sizes)
    named = dict.fromkeys(dim for value in program.values for dim in value.dims)
    split = [dim for dim in named if sizes[dim] > 1]
    listed = ", ".join(f"{dim}={sizes[dim]}" for dim in split[:8]) + (", ..." if len(split) > 8 else "")
    return tuple(
        Diagnostic(
            f"In phase `{phase}` axis `{axis}` ({size}) can split no dim of the program; it replicates.",
            hint=f"{size} divides none of {listed}" if split else "every dim has size 1",
            severity="warning",
        )
        for axis, size in mesh.axes
        if size > 1 and not any(sizes[dim] % size == 0 for dim in split)
    )
