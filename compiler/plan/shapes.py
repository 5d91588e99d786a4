"""Slice shapes: a count of chips compiled on every mesh that it can be laid out as, best first.

Non-goals: meshes of unlike hardware, and axes beyond those that the hardware's slices have.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...cost.hardware import Hardware, Torus
from ...ir.diagnostics import InputError
from ...ir.mesh import DEFAULT_NAMES, Mesh
from ...ir.program import Program
from ...passes.choose import Options
from ..text.terminal import table
from .compiled import Compilation
from .pipeline import compile_phases


@dataclass(frozen=True)
class Shape:
    """A mesh and what came of it: the compiled phases, or why there are none."""

    mesh: Mesh
    compiled: Compilation | None
    reason: str | None = None

    @property
    def price(self) -> float:
        """The objective, over all calls of all phases; infinite where nothing could be compiled."""
        return float("inf") if self.compiled is None else self.compiled.price


def meshes_of(text: str, hardware: Hardware) -> tuple[Mesh, ...]:
    """The mesh that a text names, or for a count of chips every shape of slice that the hardware offers.

    A torus offers as many axes as it has, a switch one. Raises InputError when the text is no mesh.
    """
    mesh = Mesh.parse(text)
    if not text.strip().isdigit():
        return (mesh,)
    return slice_shapes(mesh.chips, hardware.fabric.dimensions if isinstance(hardware.fabric, Torus) else 1)


def slice_shapes(chips: int, axes: int) -> tuple[Mesh, ...]:
    """The meshes of `chips` chips with at most `axes` axes, longest axis last, each once.

    One chip, and a prime count, have one shape.
    """
    sizes = list(_factors(chips, axes, 2)) or [(1,)]
    return tuple(Mesh(tuple(zip(DEFAULT_NAMES, shape, strict=False))) for shape in sorted(sizes, key=len))


def _factors(count: int, axes: int, least: int) -> Iterator[tuple[int, ...]]:
    """The ways to write a count as a product of at most `axes` factors that do not fall below `least`."""
    if count >= least:
        yield (count,)
    if axes > 1:
        for first in range(least, int(count**0.5) + 1):
            if count % first == 0:
                for rest in _factors(count // first, axes - 1, first):
                    yield (first, *rest)


def compile_shapes(
    program: Program, phases: Sequence[str], meshes: Sequence[Mesh], options: Options, separate: bool = False
) -> tuple[Shape, ...]:
    """Every mesh compiled, the cheapest first; of equal ones the one with fewer axes.

    Raises InputError, with what the first mesh says, when no mesh has a plan.
    """
    shapes: list[Shape] = []
    refused: list[InputError] = []
    for mesh in meshes:
        try:
            shapes.append(Shape(mesh, compile_phases(program, phases, mesh, options, separate=separate)))
        except InputError as error:
            refused.append(error)
            shapes.append(Shape(mesh, None, error.diagnostics[0].message))
    if len(refused) == len(meshes):
        raise refused[0]
    return tuple(sorted(shapes, key=lambda s: s.price))


def ranking(shapes: Sequence[Shape]) -> str:
    """The shapes as a table: the objective of each, beside the best, or why there is no plan."""
    best = shapes[0].price
    rows = [("slice", "total", "beside the best", "bytes sent by a chip")]
    for shape in shapes:
        name = "x".join(map(str, shape.mesh.sizes))
        if shape.compiled is None:
            rows.append((name, "-", "-", shape.reason or ""))
            continue
        sent = sum(c.estimate.totals().bytes_sent for c in shape.compiled)
        seconds = sum(c.estimate.totals().total_s for c in shape.compiled)
        share = f"{shape.price / best:.3f}" if best else "-"
        rows.append((name, f"{seconds * 1e3:.4g} ms", share, f"{sent / 1e6:,.2f} MB"))
    return "\n".join(["Slice shapes, cheapest first", *table(rows, 1)]) + "\n"


def ranking_data(shapes: Sequence[Shape]) -> list[dict[str, object]]:
    """The shapes for JSON, cheapest first. Figures are null where there is no plan, for `reason`.

    `objective` is in the unit of what the plan has least of; `beside_best` its ratio to the best's.
    """
    best = shapes[0].price
    out: list[dict[str, object]] = []
    for shape in shapes:
        totals = [one.estimate.totals() for one in shape.compiled or ()]
        planned = bool(totals)
        out.append(
            {
                "mesh": dict(shape.mesh.axes),
                "objective": shape.price if planned else None,
                "beside_best": shape.price / best if planned and best else None,
                "total_s": sum(t.total_s for t in totals) if planned else None,
                "bytes_sent_per_chip": sum(t.bytes_sent for t in totals) if planned else None,
                "reason": shape.reason,
            }
        )
    return out
