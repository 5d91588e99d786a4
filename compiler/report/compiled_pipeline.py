"""A model compiled as a pipeline, as a script holds it: its stages' plans, and all that is made of them."""

from __future__ import annotations

from pathlib import Path

from ...ir.diagnostics import Diagnostic
from ...ir.mesh import Mesh
from ...ir.program import Program
from ...ir.record import record
from ...passes.plan import Outcome
from ..plan.compiled import Compilation
from ..plan.pipeline import unfilled
from ..plan.staged import Staged
from ..plan.tries import Try, outcome_of
from ..text.arguments import one_of
from ..text.files import path_of, write_files
from ..text.late import late
from .staged_targets import staged_files, staged_in_one
from .targets import Emit
from .text import Detail


@record
class CompiledPipeline:
    """The stages of a program along an axis of a mesh, compiled, each with all phases. `tried`: every way to divide the
    chips that was tried, the quickest first, which is this one. `choice`: what is to be said of batches that were
    tried. `remarks`: what is to be said of the chips that were asked for. Printed, it is its report without the
    programs."""

    staged: Staged
    tried: tuple[Try, ...]
    choice: str = ""
    remarks: tuple[Diagnostic, ...] = ()

    @property
    def program(self) -> Program:
        """What was compiled."""
        return self.staged.program

    @property
    def mesh(self) -> Mesh:
        """The chips that all stages run on."""
        return self.staged.plan.mesh

    @property
    def axis(self) -> str:
        """The axis along which there are stages."""
        return self.staged.plan.axis

    @property
    def stages(self) -> tuple[Compilation, ...]:
        """The compiled phases of each stage."""
        return self.staged.stages

    @property
    def micro_batches(self) -> dict[str, int]:
        """How many micro-batches each phase has."""
        return {phase: rounds.micro_batches for phase, rounds in self.staged.plan.rounds}

    @property
    def warnings(self) -> tuple[Diagnostic, ...]:
        """What a user should know, and may well want: each once, of whatever stages."""
        return (*self.of_no_stage, *self.staged.warnings)

    @property
    def of_no_stage(self) -> tuple[Diagnostic, ...]:
        """Those of the warnings that are of no stage by itself."""
        return (*self.remarks, *unfilled(self.program, list(self.micro_batches)))

    @property
    def outcome(self) -> Outcome:
        """Whether it is proven the quickest of all that was tried."""
        return outcome_of(self.tried)[0]

    @property
    def seconds(self) -> float:
        """What all calls of all phases take."""
        return self.staged.plan.price

    def report(self, detail: str = Detail.PROGRAM) -> str:
        """The pipeline as text, after what was tried (`summary`), with the plans of its stages (`program`), and all of
        their steps (`verbose`)."""
        return staged_in_one(self.staged, self.tried, Emit.TEXT, one_of(Detail, detail, "detail"))

    def emit(self, target: str) -> str:
        """The pipeline as `text`, `json` or `html`. Raises InputError for modules, of which each stage has its own."""
        return staged_in_one(
            self.staged, self.tried, one_of(Emit, target, "target"), Detail.SUMMARY, said=self.of_no_stage
        )

    def write(self, target: str, folder: str | Path, force: bool = False) -> tuple[Path, ...]:
        """Write the pipeline and the plans or modules of its stages into a folder. Raises InputError where one is there
        already, unless `force` is given, or where the folder cannot be written to."""
        texts = staged_files(
            self.staged, self.tried, one_of(Emit, target, "target"), Detail.PROGRAM, said=self.of_no_stage
        )
        return write_files(path_of(folder), texts, force)

    def __str__(self) -> str:
        return self.report(Detail.SUMMARY)

    def _repr_html_(self) -> str:
        """The page of the pipeline, in a frame of its own, for notebooks."""
        framed: str = late("compiler.report.page.render").framed(self.emit(Emit.HTML))
        return framed
