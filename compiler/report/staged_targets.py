"""What `escc compile --stages` writes of a pipeline: its text, its stages' plans and modules, data."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module

from ...ir.diagnostics import fail
from ..emit.jax_pipeline import StageModule, emit_pipeline
from ..emit.jax_source import emit_jax
from ..plan.staged import Staged
from ..plan.tries import Try
from ..simulate.shrink import shrink
from ..text.files import file_stem
from .json import json_text
from .staged_text import staged_data, staged_text, tries_text
from .targets import Emit, in_files, in_one
from .text import Detail


def staged_in_one(staged: Staged, found: Sequence[Try], emit: Emit, detail: Detail) -> str:
    """The pipeline as one text: `detail` says whether the plans of its stages are told. Raises InputError for modules,
    of which there is one for each stage."""
    if emit is Emit.JSON:
        plans = [json.loads(json_text(stage, ())) for stage in staged.stages]
        return json.dumps({"pipeline": staged_data(staged, found), "stages": plans}, indent=2) + "\n"
    if emit is Emit.HTML:
        return _page(staged, found)
    if emit is not Emit.TEXT:
        raise fail(f"The pipeline has {len(staged.stages)} stages, each a program of its own.", hint=HINT)
    parts = [tries_text(found)] if len(found) > 1 else []
    parts.append(staged_text(staged, found))
    if detail is not Detail.SUMMARY:
        parts += [in_one(stage, emit, (), detail) for stage in staged.stages]
    return "\n".join(parts)


def _page(staged: Staged, found: Sequence[Try]) -> str:
    """The page; its module takes longer to import than `compile` takes to start."""
    page: str = import_module(".page.staged", __package__).staged_page(staged, found)
    return page


HINT = "write all to files with `-o DIR`"


def staged_files(staged: Staged, found: Sequence[Try], emit: Emit, detail: Detail) -> dict[str, str]:
    """A text for each file: the pipeline's own, and those of its stages."""
    stem = file_stem(staged.program.name, "pipeline")
    if emit is Emit.HTML:
        return {f"{stem}.html": _page(staged, found)}
    if emit is Emit.TEXT:
        texts = {f"{stem}.txt": staged_text(staged, found)}
    else:  # beside modules too: what each stage gets of the one before
        data = json.dumps(staged_data(staged, found), indent=2) + "\n"
        texts = {f"{stem}{'' if emit is Emit.JSON else f'_{emit}'}.json": data}
    if emit is Emit.JAX:
        return texts | _modules(staged)
    for stage in staged.stages:
        texts |= in_files(stage, emit, (), detail)
    return texts


def _modules(staged: Staged) -> dict[str, str]:
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
            texts[f"{file}.py"] = emit_jax(one.program, one.spmd, one.estimate, small=small, tpu=one.for_tpu)
            modules.append(StageModule(file, one.spmd, planned.stage.received))
        name = staged.program.name
        texts[f"{file_stem(name, 'pipeline', phase)}_jax.py"] = emit_pipeline(name, modules)
    return texts
