"""What `escc compile` writes: plans as text, programs, PartitionSpecs, data or a page, in one piece or in files; of a
pipeline its own text or data, and the plans and modules of its stages.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum
from importlib import import_module
from typing import Any

from ...ir.diagnostics import fail
from ..hf_import.weight_map import WeightMap
from ..plan.compiled import Compilation
from ..plan.shapes import Shape
from ..plan.staged import Staged
from ..plan.tries import Try
from ..text.files import file_stem
from .json import json_text
from .staged_text import staged_data, staged_text, tries_text
from .text import Detail, advice, report, together_text


class Emit(StrEnum):
    """What `compile` writes."""

    TEXT = "text"
    NUMPY = "numpy"
    JAX = "jax"
    SPECS = "specs"
    JSON = "json"
    HTML = "html"


ENDINGS = {  # of a file's name, each target's own, so that all can lie in one folder
    Emit.TEXT: ".txt",
    Emit.NUMPY: "_numpy.py",
    Emit.JAX: "_jax.py",
    Emit.SPECS: "_specs.py",
    Emit.JSON: ".json",
    Emit.HTML: ".html",
}
ALONE = (Emit.NUMPY, Emit.JAX, Emit.SPECS)  # a module for each phase


def file_names(model: str, phases: Sequence[str], emit: Emit) -> list[str]:
    """The files that are written for `phases` of a model; all of them share one page."""
    if emit is Emit.HTML:
        return [file_stem(model, *phases[: len(phases) == 1]) + ENDINGS[emit]]
    names = [file_stem(model, phase) + ENDINGS[emit] for phase in phases]
    return [*names, *map(_beside, names)] if emit is Emit.SPECS else names


def in_one(
    compiled: Compilation,
    emit: Emit,
    shapes: Sequence[Shape],
    detail: Detail = Detail.PROGRAM,
    weights: WeightMap | None = None,
) -> str:
    """All phases as one text; `detail` says how much reports tell, and `weights` what parameters are made of, for
    modules that load them."""
    whole = _each(compiled, emit, shapes, detail, weights)
    if emit is not Emit.TEXT:
        return whole
    first = [f"{together_text(compiled)}\n"] if compiled.together else []
    last = [advice(compiled)] if detail is Detail.SUMMARY else []
    return "\n".join([*first, whole, *last])


def in_files(
    compiled: Compilation,
    emit: Emit,
    shapes: Sequence[Shape],
    detail: Detail = Detail.PROGRAM,
    weights: WeightMap | None = None,
) -> dict[str, str]:
    """A text for each file, as `in_one` has it. Of phases planned together each says what is proven of all."""
    if emit is Emit.HTML:
        [name] = file_names(compiled[0].program.name, [one.phase for one in compiled], emit)
        return {name: in_one(compiled, emit, shapes)}
    out = {}
    for one in compiled:
        name = file_stem(one.program.name, one.phase) + ENDINGS[emit]
        text = _each(Compilation((one,)), emit, shapes, detail, weights)
        out[name] = f"{text}\n\n{together_text(compiled)}\n" if emit is Emit.TEXT and compiled.together else text
        if emit is Emit.SPECS:
            out[_beside(name)] = _emitting().specs_json(one.spmd)
    return out


def _beside(name: str) -> str:
    """The file of data beside a module of specs."""
    return name.removesuffix("py") + "json"


def _each(compiled: Compilation, emit: Emit, shapes: Sequence[Shape], detail: Detail, weights: WeightMap | None) -> str:
    match emit:
        case Emit.TEXT:
            return "\n\n".join(report(one, detail) for one in compiled)
        case Emit.NUMPY | Emit.JAX | Emit.SPECS:
            return "\n".join(_emitting().module_text(one, emit, weights) for one in compiled)
        case Emit.JSON:
            return json_text(compiled, shapes)
        case Emit.HTML:
            return _page(compiled, shapes)


def _emitting() -> Any:
    """What writes modules, which most plans do without."""
    return import_module(".modules", __package__)


def _page(compiled: Compilation, shapes: Sequence[Shape]) -> str:
    """The page; its module takes longer to import than `compile` takes to start."""
    page: str = import_module(".page.render", __package__).plan_page(compiled, shapes=shapes)
    return page


def staged_in_one(staged: Staged, found: Sequence[Try], emit: Emit, detail: Detail) -> str:
    """The pipeline as one text: `detail` says whether the plans of its stages are told. Raises InputError for modules,
    of which there is one for each stage."""
    if emit is Emit.JSON:
        plans = [json.loads(json_text(stage, ())) for stage in staged.stages]
        return json.dumps({"pipeline": staged_data(staged, found), "stages": plans}, indent=2) + "\n"
    if emit is Emit.HTML:
        return _staged_page(staged, found)
    if emit is not Emit.TEXT:
        raise fail(f"The pipeline has {len(staged.stages)} stages, each a program of its own.", hint=HINT)
    parts = [tries_text(found)] if len(found) > 1 else []
    parts.append(staged_text(staged, found))
    if detail is not Detail.SUMMARY:
        parts += [in_one(stage, emit, (), detail) for stage in staged.stages]
    return "\n".join(parts)


def _staged_page(staged: Staged, found: Sequence[Try]) -> str:
    """The page; its module takes longer to import than `compile` takes to start."""
    page: str = import_module(".page.staged", __package__).staged_page(staged, found)
    return page


HINT = "write all to files with `-o DIR`"


def staged_files(staged: Staged, found: Sequence[Try], emit: Emit, detail: Detail) -> dict[str, str]:
    """A text for each file: the pipeline's own, and those of its stages."""
    stem = file_stem(staged.program.name, "pipeline")
    if emit is Emit.HTML:
        return {f"{stem}.html": _staged_page(staged, found)}
    if emit is Emit.TEXT:
        texts = {f"{stem}.txt": staged_text(staged, found)}
    else:  # beside modules too: what each stage gets of the one before
        data = json.dumps(staged_data(staged, found), indent=2) + "\n"
        texts = {f"{stem}{'' if emit is Emit.JSON else f'_{emit}'}.json": data}
    if emit is Emit.JAX:
        modules: dict[str, str] = _emitting().stage_modules(staged)
        return texts | modules
    for stage in staged.stages:
        texts |= in_files(stage, emit, (), detail)
    return texts
