"""What `escc compile` writes of a pipeline: its own text, data or page, and the plans and modules of its stages."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ...ir.diagnostics import Diagnostic, fail
from ..plan.staged import Staged
from ..plan.tries import Try
from ..text.files import file_stem
from ..text.late import late
from .json import json_text
from .served_stream import ServedStream
from .staged_text import staged_data, staged_text, tries_text
from .targets import Emit, emitting, in_files, in_one
from .text import Detail

HINT = "write all to files with `-o DIR`"


def staged_in_one(
    staged: Staged,
    found: Sequence[Try],
    emit: Emit,
    detail: Detail,
    serves: ServedStream | None = None,
    said: Sequence[Diagnostic] = (),
) -> str:
    """The pipeline as one text: `detail` says whether the plans of its stages are told, and `serves` what data and
    pages say of a stream of requests. `said`: warnings of no stage by itself. Raises InputError for modules, of which
    there is one for each stage."""
    if emit is Emit.JSON:
        plans = [json.loads(json_text(stage, ())) for stage in staged.stages]
        return json.dumps({"pipeline": _data(staged, found, serves, said), "stages": plans}, indent=2) + "\n"
    if emit is Emit.HTML:
        return _staged_page(staged, found, serves, said)
    if emit is not Emit.TEXT:
        raise fail(f"The pipeline has {len(staged.stages)} stages, each a program of its own.", hint=HINT)
    parts = [tries_text(found)] if len(found) > 1 else []
    parts.append(staged_text(staged, found))
    if detail is not Detail.SUMMARY:
        parts += [in_one(stage, emit, (), detail) for stage in staged.stages]
    return "\n".join(parts)


def _data(
    staged: Staged, found: Sequence[Try], serves: ServedStream | None, said: Sequence[Diagnostic]
) -> dict[str, object]:
    """The pipeline, with what a stream of requests gets of it."""
    stream = {} if serves is None else {"stream": serves.data()}
    return staged_data(staged, found) | stream | {"warnings": [warning.message for warning in said]}


def _staged_page(staged: Staged, found: Sequence[Try], serves: ServedStream | None, said: Sequence[Diagnostic]) -> str:
    """The page; its module takes longer to import than `compile` takes to start."""
    page: str = late("compiler.report.page.staged").staged_page(staged, found, serves, said)
    return page


def staged_files(
    staged: Staged,
    found: Sequence[Try],
    emit: Emit,
    detail: Detail,
    serves: ServedStream | None = None,
    said: Sequence[Diagnostic] = (),
) -> dict[str, str]:
    """A text for each file: the pipeline's own, with warnings that are `said` of no stage by itself, and those of its
    stages."""
    stem = file_stem(staged.program.name, "pipeline")
    if emit is Emit.HTML:
        return {f"{stem}.html": _staged_page(staged, found, serves, said)}
    if emit is Emit.TEXT:
        texts = {f"{stem}.txt": staged_text(staged, found)}
    else:  # beside modules too: what each stage gets of the one before
        data = json.dumps(_data(staged, found, serves, said), indent=2) + "\n"
        texts = {f"{stem}{'' if emit is Emit.JSON else f'_{emit}'}.json": data}
    if emit is Emit.JAX:
        modules: dict[str, str] = emitting().stage_modules(staged)
        return texts | modules
    for stage in staged.stages:
        texts |= in_files(stage, emit, (), detail)
    return texts
