"""A model compiled, as a script or a notebook holds it: its plans, what they cost, and all that is made of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from ...cost.hardware import Convention, Hardware, load_engine
from ...ir.choices import with_capacity
from ...ir.diagnostics import Diagnostic, did_you_mean, fail
from ...ir.mesh import Mesh
from ...ir.program import Program
from ...passes.choose import Options
from ...passes.ilp.solver import SOLVERS, Settings
from ...passes.plan import Objective, Outcome
from ..plan.compiled import Compilation, CompiledPhase
from ..plan.pipeline import compile_phases, load, run_check, select_phases, unfilled
from ..plan.shapes import Shape, compile_shapes, meshes_to_compile, ranking
from ..text.arguments import capacity_of, checked
from ..text.files import write_files
from .targets import ALONE, Emit, in_files, in_one
from .text import Detail

FRAME = '<iframe srcdoc="{page}" width="100%" height="640" style="border:1px solid #8888"></iframe>'


@dataclass(frozen=True)
class CompiledModel:
    """The phases of a program, compiled for a mesh of chips.

    `shapes`: where a count of chips was asked for, all shapes of slice, cheapest first; the phases are those of
    the first. Printed, it is its report without the program.
    """

    phases: Compilation
    shapes: tuple[Shape, ...] = ()

    @property
    def program(self) -> Program:
        """What was compiled, with all pins that hold."""
        return self.phases[0].program

    @property
    def mesh(self) -> Mesh:
        """The chips that it runs on."""
        return self.phases[0].spmd.mesh

    @property
    def outcome(self) -> Outcome:
        """Whether the plans are proven cheapest."""
        return self.phases.outcome

    @property
    def warnings(self) -> tuple[Diagnostic, ...]:
        """What a user should know, and may well want."""
        return (*self.phases.warnings, *unfilled(self.program, [one.phase for one in self.phases]))

    @property
    def seconds(self) -> float:
        """What all phases take, each as often as it is called; of one phase, one call."""
        if len(self.phases) == 1:
            return self.phases[0].estimate.totals().total_s
        return sum(one.calls * one.estimate.totals().total_s for one in self.phases)

    def __getitem__(self, phase: str) -> CompiledPhase:
        """A phase by its name. Raises InputError where none of that name was compiled."""
        names = [one.phase for one in self.phases]
        return self.phases[names.index(one_of(names, phase, "compiled phase"))]

    def report(self, detail: str = Detail.PROGRAM) -> str:
        """The plans as text: what a step takes and what is proven, and what is stored where (`summary`), with the
        sharded program (`program`), and all of its steps (`verbose`)."""
        first = ranking(self.shapes) + "\n" if self.shapes else ""
        return first + in_one(self.phases, Emit.TEXT, self.shapes, one_of(Detail, detail, "detail"))

    def emit(self, target: str, phase: str | None = None) -> str:
        """The plan as `numpy`, `jax`, `specs`, `json`, `html` or `text`; of several phases as a module the one of
        a `phase`.

        Raises InputError for an unknown target or phase, or where a phase must be named.
        """
        emit = one_of(Emit, target, "target")
        chosen = self.phases if phase is None else Compilation((self[phase],))
        if emit in ALONE and len(chosen) > 1:
            listed = ", ".join(one.phase for one in chosen)
            raise fail(f"The model has {len(chosen)} phases, each a program of its own.", hint=f"name one of {listed}")
        return in_one(chosen, emit, self.shapes)

    def write(self, target: str, folder: str | Path, force: bool = False) -> tuple[Path, ...]:
        """Write what `emit` gives into a folder, a file for each phase. Raises InputError where one is there
        already, unless `force` is given, or where the folder cannot be written to."""
        return write_files(Path(folder), in_files(self.phases, one_of(Emit, target, "target"), self.shapes), force)

    def check(self, backend: str = "numpy") -> tuple[Any, ...]:
        """Run each phase on shrunken dims and compare with the unsharded model: on virtual chips (`numpy`), which
        gives a CheckReport for each, or as the emitted module on CPU devices (`jax`), which gives a JaxReport.

        Raises InputError where it is too large to run, or JAX is missing.
        """
        if one_of(("numpy", "jax"), backend, "backend") == "numpy":
            return tuple(run_check(one.program, one.spmd) for one in self.phases)
        checker = import_module("..jax.check", __package__)  # few plans are checked there
        return tuple(checker.check_jax(one) for one in self.phases)

    def __str__(self) -> str:
        return self.report(Detail.SUMMARY)

    def _repr_html_(self) -> str:
        """The page of the plan, in a frame of its own, for notebooks."""
        return FRAME.format(page=escape(self.emit(Emit.HTML), quote=True))


T = TypeVar("T")


def one_of(known: Iterable[T], name: str, what: str) -> T:
    """What is called `name`, of things by their names. Raises InputError where there is nothing of that name."""
    names = {str(one): one for one in known}
    if name not in names:
        hint = did_you_mean(str(name), names) or f"they are {', '.join(names)}"
        raise fail(f"There is no {what} `{str(name)[:60]}`.", hint=hint)
    return names[name]


@checked
def compile(
    program: Program | str | Path,
    mesh: Mesh | str | int,
    hardware: Hardware | str = "tpu-v4",
    phases: str | Sequence[str] | None = None,
    *,
    objective: str = Objective.TIME,
    network: str | None = None,
    hbm_fraction: float = 1.0,
    solver: str = Settings.solver,
    overlap: bool = False,
    separate: bool = False,
    check: bool = False,
    datasheet: bool = False,
    engine: str | None = None,
    any_shape: bool = False,
    capacity: float | str | None = None,
) -> CompiledModel:
    """The cheapest sharded program of a model on a mesh of chips, for all of its phases or some.

    `program`: as `load` and `parse` give it, or a file or shipped model for `load`. `mesh`: `4x4x4`,
    `node=2,gpu=8`, or a count of chips, `64`, of which all shapes of slice that are offered are compiled, with
    `any_shape` the others too. `hardware`: a preset, with the figures that were measured unless `datasheet` is
    given, or a file, `NAME.toml`; `engine`: what serves, `vllm` or a file; `network`, `flat` or `links`, says how
    the network is seen. `objective`: `time`, `communication` or `memory`. `hbm_fraction` of the memory of a chip is
    used. `separate` plans each phase alone; `overlap` puts collectives into loops with einsums; `check` runs the
    plan on virtual chips. `capacity`: for how many chosen entries modules and plan have room, of those that are
    expected; None or `full`: for all.

    Raises EsccError: InputError where something of this is wrong or no plan fits (NoPlan then says whether that
    is proven), InternalError where a plan does not hold together.
    """
    if not 0 <= hbm_fraction <= 1:
        raise fail(f"`hbm_fraction` is {hbm_fraction!r}.", hint="it is a share of the memory, from 0 to 1")
    chosen = program if isinstance(program, Program) else load(program)
    chosen = with_capacity(chosen, capacity_of(None if capacity is None else str(capacity)))
    chip = hardware if isinstance(hardware, Hardware) else Hardware.load(hardware, datasheet)
    if network is not None:
        chip = chip.with_network(one_of(Convention, network, "network"))
    if engine is not None:
        chip = chip.with_engine(load_engine(engine))
    least = one_of(Objective, objective, "objective")
    options = Options(
        chip,
        least,
        hbm_fraction * chip.hbm_bytes,
        settings=Settings(one_of([*SOLVERS], solver, "solver")),
        overlap=overlap,
    )
    meshes = (mesh,) if isinstance(mesh, Mesh) else meshes_to_compile(str(mesh), chip, any_shape)[0]
    return compile_model(chosen, meshes, options, phases, separate, check)


def compile_model(
    program: Program,
    meshes: Sequence[Mesh],
    options: Options,
    phases: str | Sequence[str] | None = None,
    separate: bool = False,
    check: bool = False,
) -> CompiledModel:
    """The phases of a program on the best of several meshes. Raises as `compile` does."""
    names = select_phases(program, phases)
    shapes = compile_shapes(program, names, meshes, options, separate) if len(meshes) > 1 else ()
    best = shapes[0].mesh if shapes else meshes[0]
    return CompiledModel(compile_phases(program, names, best, options, check, separate), shapes)
