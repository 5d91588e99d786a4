"""The layouts of a plan as PartitionSpecs, for people who keep model code of their own: as Python and as JSON.

Beside what is stored stand the points at which `with_sharding_constraint` holds a value to the plan.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from ...ir.dataflow import origins
from ...ir.inert import docstring, literal
from ...ir.layout import Layout
from ...ir.program import Kind, Repeat, operand_names, walk
from ...ir.record import record
from ...ir.spmd import Compute, SpmdProgram
from .jax_text import spec_text
from .jax_tree import Leaf, names_of

WIDTH = 120
TITLE = '"""PartitionSpecs of the tensors of a model, for JAX.'  # and nothing of a model in the first two lines
MAKE_MESH = (
    "",
    "",
    "def make_mesh():",
    '    """The mesh, of as many devices as it takes; the compiler follows the specs, for its axes are Auto."""',
    "    return jax.make_mesh(tuple(MESH.values()), tuple(MESH), axis_types=(AxisType.Auto,) * len(MESH))",
)
TABLES = {Kind.PARAM: "PARAMS", Kind.CACHE: "CACHES", Kind.INPUT: "INPUTS"}


@record
class Point:
    """A layout in which a value stands somewhere: `readers` are the ops that read it so, none as it is made."""

    layout: Layout
    readers: tuple[str, ...]


def constraints(spmd: SpmdProgram) -> dict[str, tuple[Point, ...]]:
    """For each value that an op makes, its complete layouts: as it is made first, then as ops read it,
    `next REPEAT` where the next repetition does, and `return` where it is a result.

    Partial values have none, because no PartitionSpec says so: what completes them follows from the next.
    """
    values = spmd.table()
    origin = origins(spmd)
    found: dict[str, dict[Layout, list[str]]] = {}

    def read(name: str, reader: str) -> None:
        points, layout = found.get(origin.get(name, name)), values[name].layout
        if points is not None and not layout.partial:
            points.setdefault(layout, []).append(reader)

    for placed in walk(spmd.body):
        match placed.item:
            case Compute(op):
                found[op.result] = {} if values[op.result].layout.partial else {values[op.result].layout: []}
                for name in operand_names(op):
                    read(name, op.result)
    for placed in walk(spmd.body):
        if isinstance(placed.item, Repeat):
            for carry in placed.item.carries:
                read(carry.next, f"next {placed.item.name}")
    for name in spmd.results:
        read(name, "return")
    return {
        name: tuple(Point(layout, tuple(readers)) for layout, readers in points.items())
        for name, points in found.items()
        if points and values[name].dims
    }


def specs_module(spmd: SpmdProgram) -> str:
    """A Python module of PartitionSpecs."""
    names = names_of(spmd, (), ())
    lines = [
        TITLE,
        "",
        docstring(f"Model {spmd.name}, phase {spmd.phase}, on {spmd.mesh.chips} chips: {spmd.mesh}."),
        "",
        "Tensors of a repeat are stacked, one for each repetition. CONSTRAINTS holds the specs that a value has",
        "as it is made (no reader named) and as others read it: apply `jax.lax.with_sharding_constraint` there.",
        '"""',
        "",
        "import jax",
        "from jax.sharding import AxisType",
        "from jax.sharding import PartitionSpec as P",
        "",
    ]
    lines.append(f"MESH = {{{', '.join(f'{literal(n)}: {size}' for n, size in spmd.mesh.axes)}}}")
    for kind, table in TABLES.items():
        if names.of(kind):
            first, *rest = names.tree_lines(kind, _leaf_text, "")
            lines += ["", f"{table} = {first}", *rest]
    values = spmd.table()
    lines += ["", "RESULTS = {"]
    lines += [f"    {literal(name)}: {spec_text(values[name].layout.dims)}," for name in spmd.results]
    lines += ["}", "", "CONSTRAINTS = {"]
    for name, points in constraints(spmd).items():
        lines.append(f"    {literal(name)}: [")
        for point in points:
            readers = f"[{', '.join(literal(reader) for reader in point.readers)}]"
            text = f"({spec_text(point.layout.dims)}, {readers}),"
            lines += textwrap.wrap(
                text, WIDTH, initial_indent=" " * 8, subsequent_indent=" " * 12, break_on_hyphens=False
            )
        lines.append("    ],")
    return "\n".join([*lines, "}", *MAKE_MESH]) + "\n"


def specs_json(spmd: SpmdProgram) -> str:
    """The same as JSON: a spec is a list that gives for each dimension the axes that split it."""
    names, values = names_of(spmd, (), ()), spmd.table()
    tables: dict[str, Mapping[str, Any]] = {
        table.lower(): {leaf.value: _leaf_data(leaf) for leaf in names.of(kind)} for kind, table in TABLES.items()
    }
    points = {
        name: [{"spec": _spec(point.layout), "readers": list(point.readers)} for point in found]
        for name, found in constraints(spmd).items()
    }
    data = {
        "model": spmd.name,
        "phase": spmd.phase,
        "mesh": dict(spmd.mesh.axes),
        **tables,
        "results": {name: _spec(values[name].layout) for name in spmd.results},
        "constraints": points,
    }
    return json.dumps(data, indent=1) + "\n"


def _leaf_text(leaf: Leaf) -> tuple[str, str]:
    return spec_text(leaf.layout.dims, len(leaf.repeats)), f"{leaf.dtype} [{', '.join((*leaf.repeats, *leaf.dims))}]"


def _leaf_data(leaf: Leaf) -> dict[str, Any]:
    spec: Sequence[list[str]] = [[] for _ in leaf.repeats]
    return {"dims": [*leaf.repeats, *leaf.dims], "dtype": leaf.dtype.value, "spec": [*spec, *_spec(leaf.layout)]}


def _spec(layout: Layout) -> list[list[str]]:
    return [list(axes) for axes in layout.dims]
