"""What `escc compile` writes: plans as text, programs, PartitionSpecs, data or a page, in one piece or in files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from ...ir.diagnostics import Diagnostic
from ..plan.compiled import Compilation
from ..plan.shapes import Shape
from ..text.files import file_stem
from ..text.late import late
from .advice import advice
from .text import Detail, report, together_text

if TYPE_CHECKING:
    from ..hf_import.weight_map import WeightMap
    from .served_stream import ServedStream


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
    chosen: Mapping[str, object] | None = None,
    serves: ServedStream | None = None,
    said: Sequence[Diagnostic] = (),
) -> str:
    """All phases as one text; `detail` says how much reports tell, `weights` what parameters are made of, for modules
    that load them, `chosen` what data says of the choice among streams and stages, `serves` what data and pages say of
    a stream of requests, and `said` which warnings of no phase by itself they have."""
    whole = _each(compiled, emit, shapes, detail, weights, chosen, serves, said)
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
    chosen: Mapping[str, object] | None = None,
    serves: ServedStream | None = None,
    said: Sequence[Diagnostic] = (),
) -> dict[str, str]:
    """A text for each file, as `in_one` has it. Of phases planned together each says what is proven of all."""
    if emit is Emit.HTML:
        [name] = file_names(compiled[0].program.name, [one.phase for one in compiled], emit)
        return {name: in_one(compiled, emit, shapes, serves=serves, said=said)}
    out = {}
    for one in compiled:
        name = file_stem(one.program.name, one.phase) + ENDINGS[emit]
        text = _each(Compilation((one,)), emit, shapes, detail, weights, chosen, serves, said)
        out[name] = f"{text}\n\n{together_text(compiled)}\n" if emit is Emit.TEXT and compiled.together else text
        if emit is Emit.SPECS:
            out[_beside(name)] = emitting().specs_json(one.spmd)
    return out


def _beside(name: str) -> str:
    """The file of data beside a module of specs."""
    return name.removesuffix("py") + "json"


def _each(
    compiled: Compilation,
    emit: Emit,
    shapes: Sequence[Shape],
    detail: Detail,
    weights: WeightMap | None,
    chosen: Mapping[str, object] | None,
    serves: ServedStream | None,
    said: Sequence[Diagnostic],
) -> str:
    match emit:
        case Emit.TEXT:
            return "\n\n".join(report(one, detail) for one in compiled)
        case Emit.NUMPY | Emit.JAX | Emit.SPECS:
            return "\n".join(emitting().module_text(one, emit, weights) for one in compiled)
        case Emit.JSON:
            more = dict(chosen or {}) | ({} if serves is None else {"stream": serves.data()})
            text: str = late("compiler.report.json").json_text(compiled, shapes, more, said)
            return text
        case Emit.HTML:
            return _page(compiled, shapes, serves, said)


def emitting() -> Any:
    """What writes modules, which most plans do without."""
    return late("compiler.report.modules")


def _page(
    compiled: Compilation, shapes: Sequence[Shape], serves: ServedStream | None, said: Sequence[Diagnostic]
) -> str:
    """The page; its module takes longer to import than `compile` takes to start."""
    page: str = late("compiler.report.page.render").plan_page(compiled, shapes=shapes, serves=serves, said=said)
    return page
