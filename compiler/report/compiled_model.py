"""A model compiled, as a script or a notebook holds it: its plans, what they cost, and all that is made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, overload

from ...cost.engine_file import load_engine
from ...cost.hardware import Convention, Hardware
from ...ir.choices import with_capacity, with_skew
from ...ir.diagnostics import Diagnostic, fail
from ...ir.mesh import Mesh
from ...ir.program import Program
from ...ir.record import record
from ...passes.ilp.solver import SOLVERS, Settings
from ...passes.options import Options
from ...passes.plan import NoPlan, Objective, Outcome
from ..plan.compiled import Compilation, CompiledPhase
from ..plan.pipeline import compile_phases, load, run_check, select_phases, unfilled
from ..plan.shapes import Shape, best_of, meshes_to_compile, ranking
from ..plan.way import Offload, Way, ahead_of
from ..text.arguments import capacity_of, checked, one_of, refuse_no_share, skew_of
from ..text.files import path_of, write_files
from ..text.late import late
from .targets import ALONE, Emit, in_files, in_one
from .text import Detail

if TYPE_CHECKING:
    from ..plan.offload import Offloaded
    from ..plan.tries import Try
    from .compiled_pipeline import CompiledPipeline


@record
class CompiledModel:
    """The phases of a program, compiled for a mesh of chips.

    `shapes`: where a count of chips was asked for, all shapes of slice, cheapest first; the phases are those of
    the first. `offloaded`: what is streamed from the host, where that was asked for. `choice`: what is to be said of
    batches, streams and stages that were tried. `tried`: the ways to have stages, or none, where stages were asked for.
    `remarks`: what is to be said of the chips that were asked for. Printed, it is its report without the program.
    """

    phases: Compilation
    shapes: tuple[Shape, ...] = ()
    offloaded: Offloaded | None = None
    choice: str = ""
    tried: tuple[Try, ...] = ()
    remarks: tuple[Diagnostic, ...] = ()

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
        """Whether the plans are proven cheapest: of all that stream tensors of the same layers, or have stages, where
        that was asked for."""
        if self.tried:
            found: Outcome = late("compiler.plan.tries").outcome_of(self.tried)[0]
            return found
        return self.phases.outcome if self.offloaded is None else self.offloaded.outcome

    @property
    def warnings(self) -> tuple[Diagnostic, ...]:
        """What a user should know, and may well want."""
        return (*self.of_no_phase, *self.phases.warnings)

    @property
    def of_no_phase(self) -> tuple[Diagnostic, ...]:
        """Those of the warnings that are of no phase by itself."""
        return (*self.remarks, *unfilled(self.program, [one.phase for one in self.phases]))

    @property
    def module_warnings(self) -> tuple[Diagnostic, ...]:
        """What a user should know of its JAX modules: which take more of a chip than there is, and their plan not."""
        planned = late("compiler.jax.planned")
        return tuple(warning for one in self.phases for warning in planned.too_large(one))

    @property
    def seconds(self) -> float:
        """What all phases take, each as often as it is called, and what hands their caches on; of one phase, one
        call."""
        return self.phases.total_s

    def __getitem__(self, phase: str) -> CompiledPhase:
        """A phase by its name. Raises InputError where none of that name was compiled."""
        names = [one.phase for one in self.phases]
        return self.phases[names.index(one_of(names, phase, "compiled phase"))]

    def report(self, detail: str = Detail.PROGRAM) -> str:
        """The plans as text: what a step takes and what is proven, and what is stored where (`summary`), with the
        sharded program (`program`), and all of its steps (`verbose`)."""
        first = ranking(self.shapes) + "\n" if self.shapes else ""
        first += self.choice + "\n" if self.choice else ""
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
        return in_one(chosen, emit, self.shapes, chosen=self.chosen(), said=self.of_no_phase)

    def write(self, target: str, folder: str | Path, force: bool = False) -> tuple[Path, ...]:
        """Write what `emit` gives into a folder, a file for each phase. Raises InputError where one is there
        already, unless `force` is given, or where the folder cannot be written to."""
        emit, chosen = one_of(Emit, target, "target"), self.chosen()
        texts = in_files(self.phases, emit, self.shapes, chosen=chosen, said=self.of_no_phase)
        return write_files(path_of(folder), texts, force)

    def chosen(self) -> dict[str, Any]:
        """What data says of the choice among streams and stages, where these were asked for."""
        data: dict[str, Any] = {}
        if self.offloaded is not None:
            data["offload"] = late("compiler.report.offload_text").offload_data(self.offloaded)
        if self.tried:
            data["tried"] = late("compiler.report.staged_text").tried_data(self.tried)
        return data

    def check(self, backend: str = "numpy") -> tuple[Any, ...]:
        """Run each phase on shrunken dims and compare with the unsharded model: on virtual chips (`numpy`), which
        gives a CheckReport for each, or as the emitted module on CPU devices (`jax`), which gives a JaxReport; or
        compile the module at full size with the TPU's compiler (`tpu`), without a TPU, or with that of the GPUs
        that are here (`gpu`), which gives a ModuleReport.

        Raises InputError where it is too large to run, or does not fit, or JAX or that compiler is missing.
        """
        if one_of(("numpy", "jax", "tpu", "gpu"), backend, "backend") == "numpy":
            return tuple(run_check(one.program, one.spmd) for one in self.phases)
        checker = late(f"compiler.jax.{'check' if backend == 'jax' else backend}")
        return tuple(getattr(checker, f"check_{backend}")(one) for one in self.phases)

    def __str__(self) -> str:
        return self.report(Detail.SUMMARY)

    def _repr_html_(self) -> str:
        """The page of the plan, in a frame of its own, for notebooks."""
        framed: str = late("compiler.report.page.render").framed(self.emit(Emit.HTML))
        return framed


class CompileOptions(TypedDict, total=False):
    """What `compile` takes by name beside `stages`, by which what it gives differs."""

    objective: str
    network: str | None
    hbm_fraction: float
    solver: str
    overlap: bool
    separate: bool
    check: bool
    datasheet: bool
    engine: str | None
    any_shape: bool
    capacity: float | str | None
    skew: float | str
    micro_batches: Mapping[str, int] | None
    offload: str
    ahead: int | None
    parts: bool


@overload
def compile(
    program: Program | str | Path,
    mesh: Mesh | str | int,
    hardware: Hardware | str = "tpu-v4",
    phases: str | Sequence[str] | None = None,
    *,
    stages: None = None,
    **options: Unpack[CompileOptions],
) -> CompiledModel: ...


@overload
def compile(
    program: Program | str | Path,
    mesh: Mesh | str | int,
    hardware: Hardware | str = "tpu-v4",
    phases: str | Sequence[str] | None = None,
    *,
    stages: int | str | None,
    **options: Unpack[CompileOptions],
) -> CompiledModel | CompiledPipeline: ...


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
    skew: float | str = 1,
    stages: int | str | None = None,
    micro_batches: Mapping[str, int] | None = None,
    offload: str = Offload.NONE,
    ahead: int | None = None,
    parts: bool = False,
) -> CompiledModel | CompiledPipeline:
    """The cheapest sharded program of a model on a mesh of chips, for all of its phases or some.

    `program`: as `load` and `parse` give it, or a file or shipped model for `load`. `mesh`: `4x4x4`,
    `node=2,gpu=8`, or a count of chips, `64`, of which all shapes of slice that are offered are compiled, with
    `any_shape` the others too. `hardware`: a preset, with the figures that were measured unless `datasheet` is
    given, or a file, `NAME.toml`, or a `Hardware`, whose figures are its own; `engine`: what serves, `vllm` or a file;
    `network`, `flat` or `links`, says how the network is seen. `objective`: `time`, `communication` or `memory`.
    `hbm_fraction` of the memory of a chip is used. `separate` plans each phase alone; `overlap` puts collectives into
    loops with einsums; `check` runs the plan on virtual chips. `capacity`: for how many chosen entries modules and plan
    have room, of those that are expected; None or `full`: for all. `skew`: how many times the mean load of chosen
    entries the busiest chip has. `parts`: look for plans that split axes of the mesh in parts, too.

    `stages`: over how many stages the layers are divided, along an axis of as many chips, or `auto`: along any, or
    none, whichever is quickest; then a CompiledPipeline comes back, a CompiledModel where there are none.
    `micro_batches`: how many a phase has, by its name; others are chosen. `offload`: what may be streamed from the
    host, `weights`, `caches` or `auto`, and `ahead`: how many layers before they are needed, 1 without it.

    Raises EsccError: InputError where something of this is wrong or no plan fits (NoPlan then says whether that
    is proven), InternalError where a plan does not hold together.
    """
    refuse_no_share(hbm_fraction)
    chosen = program if isinstance(program, Program) else load(program)
    chosen = with_capacity(chosen, capacity_of(None if capacity is None else str(capacity)))
    chosen = with_skew(chosen, skew_of(str(skew)))
    chip = _chip(hardware, datasheet)
    if network is not None:
        chip = chip.with_network(one_of(Convention, network, "network"))
    if engine is not None:
        chip = chip.with_engine(load_engine(engine))
    least = one_of(Objective, objective, "objective")
    options = Options(
        chip,
        least,
        hbm_fraction * chip.room_bytes,
        settings=Settings(one_of([*SOLVERS], solver, "solver")),
        overlap=overlap,
        parts=parts,
    )
    meshes, remarks = meshes_to_compile(str(mesh) if isinstance(mesh, int) else mesh, chip, any_shape)
    streams = one_of(Offload, offload, "kind of tensors to offload")
    names = select_phases(chosen, phases)
    if stages is None and micro_batches:
        raise fail("Micro-batches are those of stages.", hint='add `stages="auto"`, or how many')
    if separate and (stages is not None or streams is not Offload.NONE or chosen.on_host):
        beside = "offload" if stages is None else "stages"
        raise fail(f"`separate` does not go with `{beside}`.", hint="leave one of them out")
    counts = counts_of(micro_batches or {}, names)
    layers_ahead = ahead_of(ahead, streams is not Offload.NONE or bool(chosen.on_host))
    way = Way(None if stages is None else _stages(stages), counts, streams, layers_ahead, separate, check)
    return replace(compile_model(chosen, meshes, options, names, way), remarks=remarks)


def _chip(hardware: Hardware | str, datasheet: bool) -> Hardware:
    """The chip that is named, or given. Raises InputError where the datasheet's figures are asked for of one that is
    given with measured ones."""
    if not isinstance(hardware, Hardware):
        return Hardware.load(hardware, datasheet)
    if datasheet and not hardware.at_peaks:
        hint = f'name it, as "{hardware.chip}", or load it by `Hardware.load(NAME, datasheet=True)`'
        raise fail(f"`datasheet` is of a chip that is named, and {hardware.name} is given with its figures.", hint=hint)
    return hardware


def _stages(wanted: int | str) -> int:
    """How many stages are asked for, 0 where it is `auto`. Raises InputError for what is no count."""
    if wanted == "auto":
        return 0
    if not isinstance(wanted, int) or isinstance(wanted, bool) or wanted < 1:
        raise fail(f"`stages` is {wanted!r:.60}.", hint="it is a count, or `auto`")
    return wanted


def counts_of(micro_batches: Mapping[str, int], phases: Sequence[str]) -> Mapping[str, int]:
    """Micro-batches by phase. Raises InputError for what is no phase, and for what is no count."""
    for name, count in micro_batches.items():
        one_of(phases, name, "compiled phase")
        if count < 1:
            raise fail(f"`micro_batches` has {count} of phase `{name}`.", hint="it is a count, at least 1")
    return micro_batches


def compile_model(
    program: Program, meshes: Sequence[Mesh], options: Options, phases: Sequence[str], way: Way
) -> CompiledModel | CompiledPipeline:
    """The phases of a program on the best of several meshes, in one way. Raises as `compile` does."""
    try:
        return _compiled(program, meshes, options, phases, way)
    except NoPlan as refused:
        if way.offload is not Offload.NONE or program.on_host or options.objective is not Objective.TIME:
            raise
        raise late("compiler.plan.other_ways").advised(
            refused, program, phases, meshes, options, way.stages is not None
        ) from None


def _compiled(
    program: Program, meshes: Sequence[Mesh], options: Options, phases: Sequence[str], way: Way
) -> CompiledModel | CompiledPipeline:
    if way.stages is not None or way.offload is not Offload.NONE or program.on_host:
        other = late("compiler.report.stages_and_streams")
        found: CompiledModel | CompiledPipeline = other.staged_or_streamed(program, meshes, options, phases, way)
        return found
    shapes, best = best_of(program, phases, meshes, options, way.separate)
    return CompiledModel(compile_phases(program, phases, best, options, way.check, way.separate), shapes)
