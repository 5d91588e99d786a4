"""Plans as modules: NumPy, JAX and PartitionSpecs for each phase, and JAX for the stages of a pipeline."""

from __future__ import annotations

from dataclasses import replace

from ..emit.jax_pipeline import StageModule, emit_pipeline
from ..emit.jax_source import emit_jax
from ..emit.numpy_source import emit_numpy
from ..emit.specs import specs_json, specs_module
from ..hf_import.weight_map import WeightMap
from ..plan.compiled import CompiledPhase
from ..plan.staged import Staged
from ..simulate.shrink import shrink
from ..text.files import file_stem
from .targets import Emit

__all__ = ["module_text", "specs_json", "stage_modules"]


def module_text(one: CompiledPhase, emit: Emit, weights: WeightMap | None) -> str:
    """The module of a phase; `weights` says what its parameters are made of, for one that loads them."""
    if emit is Emit.NUMPY:
        return emit_numpy(one.program, one.spmd)
    if emit is Emit.SPECS:
        return specs_module(one.spmd)
    return emit_jax(one.program, one.spmd, one.estimate, weights, platform=one.platform)


def stage_modules(staged: Staged) -> dict[str, str]:
    """A JAX module for each stage and phase, and for each phase the one that runs them, at the same small sizes."""
    texts: dict[str, str] = {}
    for n, (phase, _) in enumerate(staged.plan.rounds):
        stages = [stage[n] for stage in staged.stages]
        bound = replace(staged.program.phase(phase), sizes=stages[0].spmd.sizes)
        whole = replace(staged.program, phases=(bound,))
        smalls = shrink(whole, [one.spmd for one in stages]).spmds
        modules = []
        for one, small, planned in zip(stages, smalls, staged.plan.stages, strict=True):
            file = file_stem(one.program.name, phase) + "_jax"
            texts[f"{file}.py"] = emit_jax(one.program, one.spmd, one.estimate, small=small, platform=one.platform)
            modules.append(StageModule(file, one.spmd, planned.stage.received))
        name = staged.program.name
        texts[f"{file_stem(name, 'pipeline', phase)}_jax.py"] = emit_pipeline(name, modules)
    return texts
