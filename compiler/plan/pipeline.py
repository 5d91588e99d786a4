"""The driver: strings the passes together, from the text of a model to a verified plan and its cost.

Every plan is verified, and its price recomputed from the sharded program, before anyone sees it.
Non-goals: files to write, text to print.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from ...cost.estimate import Estimate, estimate, predict, predict_host
from ...cost.stages import passed_s
from ...ir.dataflow import appends
from ...ir.diagnostics import Diagnostic, InputError, InternalError, Source, did_you_mean, fail
from ...ir.dtype import Dtype
from ...ir.mesh import Mesh
from ...ir.program import Program, stored_in
from ...ir.spmd import SpmdProgram
from ...ir.text.pins import merge_pins, parse_pins, parse_places
from ...ir.text.read import parse as read_text
from ...ir.text.read import read_source
from ...ir.verify.verify import verify
from ...passes.choose import choose
from ...passes.expansion.expand import expand
from ...passes.expansion.narrowed import narrowed
from ...passes.expansion.orders import Orders
from ...passes.lower.insert import insert, spell_handovers
from ...passes.options import Options
from ...passes.plan import Objective, Plan
from ...passes.search.join_phases import for_each
from ..simulate.check_report import CheckReport
from ..text.arguments import checked
from ..text.files import path_of
from ..text.late import late
from .compiled import Compilation, CompiledPhase, memory_is_limit

FOLDER = Path(__file__).parents[1] / "models"  # importlib.resources takes longer to import than to read one


def model_names() -> tuple[str, ...]:
    """The names of the shipped models, sorted."""
    return tuple(sorted(file.stem for file in FOLDER.iterdir() if file.suffix == ".esti"))


def model_source(name: str) -> Source:
    """The text of the shipped model `name`. Raises InputError when there is none."""
    if name not in model_names():
        raise fail(f"There is no model `{name[:60]}`.", hint=_near(name))
    return Source(f"{name}.esti", (FOLDER / f"{name}.esti").read_text(encoding="utf-8"))


def read_model(file: Path) -> Source:
    """The text of a file, or of the shipped model of that name where there is no such file.

    Raises InputError when it is neither, or when the file cannot be read.
    """
    name = str(file)
    if name in model_names() and not os.path.isfile(file):
        return model_source(name)
    if file.name == name and not file.suffix.startswith(".esti") and not os.path.exists(file):
        raise fail(f"`{name[:60]}` does not exist, and is no model that is shipped.", hint=_near(name))
    return read_source(file)


def _near(name: str) -> str:
    return did_you_mean(name, model_names()) or "`escc models` lists them"


PRICE_TOLERANCE = 1e-9  # relative, between the price of a plan and that of the program made from it


@checked
def load(
    file: str | Path,
    settings: Mapping[str, int] | None = None,
    pins: Sequence[str | Path] = (),
    pads: Mapping[str, int] | None = None,
    phase: str | None = None,
    weights: Dtype | None = None,
    caches: Dtype | None = None,
) -> Program:
    """The program of a model file, or of a shipped model by its name, with the pins of files beside it.

    Dims are set by `settings`, and padded to the sizes of `pads`. With a `phase` the program has no other,
    and sizes that only others could not have are no matter. Matrices in bf16 and f16 are stored as `weights`, and
    caches as `caches`, each with scales; None leaves them. A pin of a file replaces the model's of the same
    place, and that of an earlier file. Raises InputError when a file cannot be read or is wrong.
    """
    program = program_of(read_model(path_of(file)), settings, pads, phase, weights, caches)
    if phase is not None:
        select_phases(program, phase)
    for path in map(path_of, pins):
        program = with_pins(program, read_source(path))
    return program


def program_of(
    source: Source,
    settings: Mapping[str, int] | None = None,
    pads: Mapping[str, int] | None = None,
    phase: str | None = None,
    weights: Dtype | None = None,
    caches: Dtype | None = None,
) -> Program:
    """The program of a text, as `load` says. Raises InputError with all that is wrong in it."""
    return expand(narrowed(read_text(source), weights, caches), source, settings, pads, phase)


def with_pins(program: Program, source: Source) -> Program:
    """The program with the pins of a file, which may name what only some of its phases make. Raises InputError."""
    orders = Orders(program)
    found = parse_pins(source, *(orders.ordered(phase.name) for phase in program.phases))
    return replace(program, pins=merge_pins(program.pins, found), places=parse_places(source, program))


@checked
def parse(text: str, settings: Mapping[str, int] | None = None, name: str = "text") -> Program:
    """The program of a model's text, with dims set by `settings`; `name` is what messages call the text.

    Raises InputError with all that is wrong in it.
    """
    source = Source(name, text)
    return expand(read_text(source), source, settings)


def select_phases(program: Program, wanted: str | Sequence[str] | None) -> tuple[str, ...]:
    """The phases to compile, in the order of the program: one, some, or all when it is None. Raises InputError for
    an unknown one, and where there are none."""
    names = tuple(p.name for p in program.phases)
    if wanted is None:
        return names
    chosen = [wanted] if isinstance(wanted, str) else wanted
    for phase in chosen:
        if phase not in names:
            hint = did_you_mean(phase, names) or f"the phases are {', '.join(names)}"
            raise fail(f"The model has no phase `{phase[:60]}`.", hint=hint)
    if not chosen:
        raise fail("No phase is asked for.", hint=f"the phases are {', '.join(names)}")
    return tuple(name for name in names if name in chosen)


def compile_phase(program: Program, phase: str, mesh: Mesh, options: Options, run: bool = False) -> CompiledPhase:
    """Plan one phase, spell it out, verify it and price it; with `run`, also run it on virtual chips.

    Raises InputError when pins or memory leave no plan, or when the program is too large to run;
    InternalError when the result does not hold together.
    """
    [compiled] = compile_plan(program, choose(program, phase, mesh, options), options, run)
    return compiled


def compile_phases(
    program: Program, phases: Sequence[str], mesh: Mesh, options: Options, run: bool = False, separate: bool = False
) -> Compilation:
    """Compile phases, together or each on its own. Raises InputError with what is wrong with any of them."""
    streamed = {one.value for one in stored_in(program.body) if one.streamed}
    for name in program.on_host:
        if name not in streamed:
            raise fail(f"`{name}` is placed with the host, and nothing is streamed from there here.")
    if separate or len(phases) == 1:
        return Compilation(tuple(for_each(phases, lambda phase: compile_phase(program, phase, mesh, options, run))))
    return Compilation(compile_plan(program, choose(program, phases, mesh, options), options, run))


def compile_plan(program: Program, plan: Plan, options: Options, run: bool = False) -> tuple[CompiledPhase, ...]:
    """The phases of a plan, spelled out, verified and priced; with `run`, also run on virtual chips.

    Raises InternalError when the result does not hold together.
    """
    out = []
    for spmd, phase in zip(insert(plan), plan.phases, strict=True):
        try:
            verify(spmd, phase.program)
        except InputError as error:
            raise InternalError(f"the plan of phase `{phase.phase}` does not verify: {error}") from error
        cost = estimate(spmd, options.hardware)
        handed_s = passed_s(spmd, program.results, options.passing)
        _confirm(phase.price, _objective(cost, plan.objective) + handed_s)
        if options.overlap:
            spmd = _overlapped(phase.program, spmd, options)
            cost = estimate(spmd, options.hardware)
        checked = run_check(program, spmd) if run else None
        warnings = (*idle_axes(program, phase.phase, plan.mesh), *_not_finite(phase.phase, checked))
        out.append(CompiledPhase(program, options.hardware, plan, spmd, cost, checked, warnings, options.overlap))
    if len(out) > 1:
        _confirm_whole(program, plan, out, options)
    return tuple(out)


def with_runs(compiled: Compilation) -> Compilation:
    """The same, with each phase run on virtual chips. Raises as `run_check` does."""
    return Compilation(tuple(replace(one, checked=run_check(one.program, one.spmd)) for one in compiled))


def run_check(program: Program, spmd: SpmdProgram) -> CheckReport:
    """A sharded program run on virtual chips, beside the program that it is of. Raises InputError when it is too
    large to run, or where what the model computes does not stay finite and differs; InternalError when it does not
    run."""
    simulate = late("compiler.simulate.check")
    try:
        found: CheckReport = simulate.check(program, spmd, predict, predict_host=predict_host)
    except simulate.ExecutionError as error:
        raise InternalError(f"the plan of phase `{spmd.phase}` does not run: {error}") from error
    return found


def _overlapped(program: Program, spmd: SpmdProgram, options: Options) -> SpmdProgram:
    """The sharded program with loops, verified."""
    looped: SpmdProgram = late("passes.overlap.overlap").overlap(
        spmd, options.hardware, options.capacity, options.settings
    )
    try:
        verify(looped, program)
    except InputError as error:
        raise InternalError(f"the loops of phase `{spmd.phase}` do not verify: {error}") from error
    return looped


def _objective(cost: Estimate, objective: Objective) -> float:
    """What was minimised: of times those of all steps one after the other."""
    totals = cost.totals()
    match objective:
        case Objective.TIME:
            return totals.apart_s
        case Objective.COMMUNICATION:
            return totals.comm_s
        case Objective.MEMORY:
            return math.fsum(size for _, size in cost.stored_bytes)


def _confirm_whole(program: Program, plan: Plan, compiled: Sequence[CompiledPhase], options: Options) -> None:
    """Compare what was minimised over several phases with what their programs and handovers cost."""
    calls = {phase.name: phase.calls for phase in program.phases}
    whole = 0.0
    for spmd, handover in zip(spell_handovers(plan), plan.handovers, strict=True):
        try:
            verify(spmd)
        except InputError as error:
            raise InternalError(f"the handover `{spmd.phase}` does not verify: {error}") from error
        _confirm(handover.price, estimate(spmd, options.hardware).totals().comm_s)
        whole += calls[handover.before] * handover.price
    timed = Objective.TIME if memory_is_limit(plan) else plan.objective
    for one in compiled:
        handed_s = passed_s(one.spmd, program.results, options.passing)
        whole += calls[one.phase] * (_objective(one.estimate, timed) + handed_s)
    _confirm(plan.price, whole)


def _confirm(price: float, recomputed: float) -> None:
    """Compare what was minimised with what the finished program costs."""
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


def _not_finite(phase: str, checked: CheckReport | None) -> tuple[Diagnostic, ...]:
    """A warning where the results of a run are no finite numbers."""
    if checked is None or checked.not_finite is None:
        return ()
    message = f"On random data results of phase `{phase}` are not finite: {checked.not_finite.sentence} first."
    hint = "the plan makes them where the model does"
    return (Diagnostic(message, hint=hint, severity="warning"),)


def unfilled(program: Program, phases: Sequence[str]) -> tuple[Diagnostic, ...]:
    """A warning where all calls of a phase do not fill the caches of the next one of `phases`."""
    table = program.table()
    found: dict[str, Diagnostic] = {}
    for before, after in pairwise(program.phase(name) for name in phases):
        sizes = [dict(phase.sizes) for phase in (before, after)]
        for append in (op for op in appends(program).values() if not op.context):
            dims = [dim for dim in table[append.cache].dims if dim != append.target]
            slots, filled = (math.prod(size[dim] for dim in dims) for size in reversed(sizes))
            if slots % filled or sizes[0][append.target] > sizes[1][append.target]:
                found[before.name] = Diagnostic(
                    f"The caches that phase `{before.name}` leaves are no even part of those of `{after.name}`.",
                    hint=f"the handover is priced, but `{after.name}` cannot go on with all of them",
                    severity="warning",
                )
            elif before.calls < slots // filled:
                found[before.name] = Diagnostic(
                    f"Phase `{before.name}` has {before.calls} of the {slots // filled} calls "
                    f"that fill the caches of `{after.name}`.",
                    hint=f"write `calls = {slots // filled}` in `{before.name}` to count all of them",
                    severity="warning",
                )
    return tuple(found.values())
