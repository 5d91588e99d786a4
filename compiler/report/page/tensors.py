"""The tensors of a compiled phase, as the page shows them: each with its shards drawn. Sizes are bytes."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from ....cost.estimate import local_bytes
from ....ir.layout import format_layout
from ....ir.program import Kind, Repeat, Stored, stored_in, walk
from ....ir.record import record
from ....ir.spmd import SpmdProgram, SpmdValue
from ...plan.compiled import CompiledPhase
from .shards import Dim, Drawing, dims_of, draw_shards


@record
class Tensor:
    """A value as it lies on the mesh. `kind`: of what is stored, None for what is made.

    `shape`: on a chip; `bytes`: on a chip, once; `repeats`: how often it is stored. `total_bytes`: all that
    a chip stores of it. `copies`: how many chips hold the same; `addends`: over how many a sum (or
    maximum) goes that is not complete.
    """

    name: str
    kind: Kind | None
    layout: str
    dtype: str
    dims: tuple[Dim, ...]
    drawing: Drawing
    shape: str
    bytes: float
    repeats: int
    total_bytes: float
    partial: tuple[str, ...]
    reduction: str
    addends: int
    copies: int
    copied_over: tuple[str, ...]

    @property
    def indexed(self) -> list[tuple[str, int, list[str]]]:
        """For the page's script: each dim, its size, and the axes that cut it."""
        return [(dim.name, dim.size, [axis for axis, _ in dim.axes]) for dim in self.dims]


def tensors_of(compiled: CompiledPhase) -> Iterator[Tensor]:
    """What is stored, in program order, then what is made."""
    spmd = compiled.spmd
    total = dict(compiled.estimate.stored_bytes)
    table = spmd.table()
    for one, placed in stored_in(spmd.body).items():
        yield _tensor(table[one.value], spmd, one.kind, placed.times, total.get(one.value, 0.0))
    for name in _made(spmd):
        yield _tensor(table[name], spmd, None, 1, 0.0)


def _made(spmd: SpmdProgram) -> Iterator[str]:
    """The values that steps make, what enters repeats, and at the end what leaves them."""
    left: list[str] = []
    for placed in walk(spmd.body):
        match placed.item:
            case Repeat(_, _, carries):
                yield from (carry.inside for carry in carries)
                left += (carry.result for carry in carries)
            case Stored():
                pass
            case step:
                yield step.result
    yield from left


def _tensor(value: SpmdValue, spmd: SpmdProgram, kind: Kind | None, repeats: int, total_bytes: float) -> Tensor:
    mesh, layout, known = spmd.mesh, value.layout, dict(spmd.sizes)
    sizes = [known[dim] for dim in value.dims]
    dims = dims_of(value.dims, sizes, layout.dims, mesh)
    copied = tuple(axis for axis, size in mesh.axes if size > 1 and axis not in (*layout.split_axes, *layout.partial))
    return Tensor(
        value.name,
        kind,
        format_layout(value.dims, layout),
        str(value.dtype),
        dims,
        draw_shards(dims),
        " x ".join(map(str, layout.local_shape(sizes, mesh))) or "1",
        float(local_bytes(value, spmd)),
        repeats,
        total_bytes,
        layout.partial,
        layout.reduction.value,
        mesh.size(*layout.partial),
        mesh.size(*copied),
        copied,
    )


def interest(tensor: Tensor) -> tuple[bool, bool, int, int]:
    """Which tensor is shown first, the largest: a parameter, else what is stored, and then what is cut most."""
    ways = [dim.ways for dim in tensor.dims]
    return tensor.kind is Kind.PARAM, tensor.kind is not None, sum(way > 1 for way in ways), prod(ways)
