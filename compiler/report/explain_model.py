"""Models explained: planned, and the cost of each phase as formulas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Unpack, overload

from ...cost.formulas.symbolic import Form
from ...cost.hardware import Hardware
from ...ir.diagnostics import fail
from ...ir.mesh import Mesh
from ...ir.program import Program
from ..text.arguments import checked, one_of
from .compiled_model import CompileOptions, compile
from .compiled_pipeline import CompiledPipeline
from .explain_stages import ExplainedPipeline, explain_pipeline
from .explain_text import Explained, explained_phase


@overload
def explain(
    program: Program | str | Path,
    mesh: Mesh | str | int,
    hardware: Hardware | str = "tpu-v4",
    phases: str | Sequence[str] | None = None,
    *,
    form: str = Form.EXACT,
    drop_ones: bool = False,
    trace: bool = False,
    stages: None = None,
    **options: Unpack[CompileOptions],
) -> tuple[Explained, ...]: ...


@overload
def explain(
    program: Program | str | Path,
    mesh: Mesh | str | int,
    hardware: Hardware | str = "tpu-v4",
    phases: str | Sequence[str] | None = None,
    *,
    form: str = Form.EXACT,
    drop_ones: bool = False,
    trace: bool = False,
    stages: int | str | None,
    **options: Unpack[CompileOptions],
) -> tuple[Explained, ...] | ExplainedPipeline: ...


@checked
def explain(
    program: Program | str | Path,
    mesh: Mesh | str | int,
    hardware: Hardware | str = "tpu-v4",
    phases: str | Sequence[str] | None = None,
    *,
    form: str = Form.EXACT,
    drop_ones: bool = False,
    trace: bool = False,
    stages: int | str | None = None,
    **options: Unpack[CompileOptions],
) -> tuple[Explained, ...] | ExplainedPipeline:
    """The cost of a model's plan as formulas (SymPy), for each of its phases; `options` are those of `compile`.

    `form`: `exact`, or `large` for many chips, without the factor (K-1)/K. `drop_ones` leaves dims of size 1 out.
    `trace` moves the collectives over a simulation of the links beside their formulas. An `Explained` prints
    itself; its `explanation` has the formulas and the figures of the plan. Of `stages` where a pipeline is quickest
    an `ExplainedPipeline` comes back: the formulas of all calls of its `phases`, in the times of its stages, and
    of each of its `stages` those of its phases; collectives of stages are not traced. Raises as `compile` does.
    """
    wanted = one_of(Form, form, "form")
    if trace and stages is not None:
        raise fail("`trace` does not go with `stages`.", hint="leave one of them out")
    compiled = compile(program, mesh, hardware, phases, stages=stages, **options)
    if isinstance(compiled, CompiledPipeline):
        return replace(explain_pipeline(compiled.staged, wanted, drop_ones), warnings=compiled.warnings)
    found = [explained_phase(one, wanted, drop_ones, trace) for one in compiled.phases]
    return tuple(replace(one, warnings=(*compiled.remarks, *one.warnings)) for one in found)
