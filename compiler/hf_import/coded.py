"""Matrices that a checkpoint keeps as codes with a scale for each row, declared so in the text of a model.

That is what the language can say of quantised checkpoints without other dims: of groups and blocks of a row it cannot.
Codes are then made again of the numbers that they stand for, which gives the same ones where the largest code of a row
is the largest of its type, as quantising by the largest magnitude leaves it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from ...ir.diagnostics import Source
from ...ir.dtype import Dtype
from ...ir.program import Program
from ...ir.text.read import parse
from ...ir.text.surface import Block, Declaration, Main, Model
from ...ir.text.write import print_declaration
from ...passes.expansion.expand import expand
from ...passes.expansion.narrowed import narrowed
from .checkpoint import ROWS, Checkpoint
from .weight_map import Made, Parameter, WeightMap, parameters, tensors_of


def coded_text(source: Source, program: Program, made: WeightMap, checkpoint: Checkpoint) -> tuple[str, frozenset[str]]:
    """The text of an imported model with such matrices in few bits, and the tensors that these are made of."""
    model, wanted, tensors = parse(source), parameters(program), set[str]()
    for dtype in (Dtype.INT8, Dtype.FP8):
        fits = {name: _dtype(made[name], one, checkpoint) is dtype for name, one in wanted.items()}
        fits = {name: fits[name] and _one_scale_a_row(name, model, source, dtype, made, checkpoint) for name in fits}
        only = {_local(name) for name in fits} - {_local(name) for name, fit in fits.items() if not fit}
        model = narrowed(model, dtype, only=only)
        tensors |= {t for name, one in wanted.items() if _local(name) in only for t in tensors_of(made[name], one)}
    return _rewritten(source.text, model), frozenset(tensors)


def _local(name: str) -> str:
    """What a parameter is called in its block."""
    return name.rpartition(".")[2].partition(":")[0]


def _dtype(one: Made, parameter: Parameter, checkpoint: Checkpoint) -> Dtype | None:
    """The type of codes that all tensors of a parameter are kept in, each row with a scale; None for others."""
    found = set[Dtype | None]()
    for name in tensors_of(one, parameter):
        if checkpoint.types[name] == ROWS:
            found.add(Dtype.INT8)
        elif one.scale and math.prod(checkpoint.shapes[name + one.scale]) == checkpoint.shapes[name][0]:
            found.add(Dtype.FP8)
        else:
            found.add(None)
    return found.pop() if len(found) == 1 else None


def _one_scale_a_row(
    name: str, model: Model, source: Source, dtype: Dtype, made: WeightMap, checkpoint: Checkpoint
) -> bool:
    """Whether a scale for each output is one for each row of the tensors: what products sum over is what a row has."""
    program = expand(narrowed(model, dtype, only={_local(name)}), source)
    values, sizes = program.table(), dict(program.phases[0].sizes)
    if f"{name}.scale" not in values:
        return False
    summed = [sizes[dim] for dim in values[name].dims if dim not in values[f"{name}.scale"].dims]
    first = tensors_of(made[name], parameters(program)[name])[0]
    return math.prod(summed) == checkpoint.shapes[first][-1]


def _rewritten(text: str, model: Model) -> str:
    """The text with the declarations of a model in place of its own, line by line."""
    by_line: dict[int, list[str]] = {}
    for one in _declarations(model):
        by_line.setdefault(one.type.span.line, []).append(print_declaration(one))
    lines = list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        indent = line[: len(line) - len(line.lstrip())]
        kept = number not in by_line or by_line[number] == [line.strip()]
        lines += [line] if kept else [indent + one for one in by_line[number]]
    return "\n".join(lines) + "\n"


def _declarations(model: Model) -> Iterable[Declaration]:
    for item in model.items:
        if isinstance(item, Declaration):
            yield item
        elif isinstance(item, Block | Main):
            yield from (line for line in item.lines if isinstance(line, Declaration))
