"""The shipped models as a table: layers, sizes, and how many parameters each has."""

from __future__ import annotations

import math

from ...ir.program import Kind, Program, Repeat, Stored, walk
from ...ir.text.read import parse
from ...passes.expansion.expand import expand
from ..plan.model_files import model_names, model_source
from ..text.table import table


def models_table() -> str:
    """The shipped models, a line each."""
    rows = [("name", "dims of its weights", "layers", "parameters")]
    for name in model_names():
        source = model_source(name)
        program = expand(parse(source), source)
        rows.append((name, _split_dims(program), str(_layers(program)), f"{parameter_count(program) / 1e9:.2f}e9"))
    return "\n".join(table(rows, left=2)) + "\n"


def parameter_count(program: Program) -> int:
    """How many elements the parameters of a program have, in all repetitions together, without padding."""
    values, sizes = program.table(), program.true_sizes(dict(program.phases[0].sizes))
    return sum(
        placed.times * math.prod(sizes[dim] for dim in values[placed.item.value].dims)
        for placed in walk(program.body)
        if isinstance(placed.item, Stored) and placed.item.kind is Kind.PARAM
    )


def _layers(program: Program) -> int:
    return sum(placed.times * placed.item.count for placed in walk(program.body) if isinstance(placed.item, Repeat))


def _split_dims(program: Program) -> str:
    values = program.table()
    stored = [placed.item for placed in walk(program.body) if isinstance(placed.item, Stored)]
    named = {dim for item in stored if item.kind is Kind.PARAM for dim in values[item.value].dims}
    sizes = program.true_sizes(dict(program.phases[0].sizes))
    return " ".join(f"{dim}={size}" for dim, size in sizes.items() if dim in named)
