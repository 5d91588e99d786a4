"""Slice shapes: a count of chips compiled on every mesh that it can be laid out as, best first.

Non-goals: meshes of unlike hardware, and axes beyond those that the hardware's slices have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ...cost.hardware import Hardware, Switch, Torus
from ...cost.topology import FAR_NAMES
from ...ir.diagnostics import Diagnostic, InputError, fail, size_text
from ...ir.mesh import DEFAULT_NAMES, Mesh
from ...ir.program import Program
from ...ir.record import record
from ...passes.options import Options
from ...passes.plan import Objective
from ..text.terminal import table, time_text
from .compiled import Compilation
from .pipeline import compile_phases


@record
class Shape:
    """A mesh and what came of it: the compiled phases, or why there are none."""

    mesh: Mesh
    compiled: Compilation | None
    reason: str | None = None

    @property
    def price(self) -> float:
        """The objective, over all calls of all phases; infinite where nothing could be compiled."""
        return float("inf") if self.compiled is None else self.compiled.price


MOST_AXES = 4  # of a mesh of nodes; more take minutes


def meshes_of(text: str | Mesh, hardware: Hardware, any_shape: bool = False) -> tuple[Mesh, ...]:
    """The mesh that a text names, or for a count of chips every shape of slice that the hardware offers; with
    `any_shape` also those that are not offered.

    A torus offers slices of as many axes as it has, of the shapes that its file lists. Behind switches a count is any
    part of a node, or whole nodes, with `any_shape` as many of each node as divide it: axes of nodes stand before
    those in a node, whose chips go on one axis or several.

    Raises InputError when the text is no mesh, or a count of which nothing is offered, and for a mesh that
    has `any_shape` beside it.
    """
    mesh = text if isinstance(text, Mesh) else Mesh.parse(text)
    if not _is_count(text):
        if any_shape:
            raise fail("`--any-shape` is of a count of chips, and the mesh has its shape.", hint="leave it out")
        return (mesh,)
    match hardware.fabric:
        case Torus() as torus:
            every = slice_shapes(mesh.chips, torus.dimensions)
            found = tuple(one for one in every if any_shape or torus.offers(one.sizes))
        case Switch(node_chips):
            whole = [min(mesh.chips, node_chips)] if _whole_nodes(mesh.chips, node_chips) else []
            parts = [k for k in range(min(mesh.chips, node_chips), 0, -1) if mesh.chips % k == 0]
            if hardware.between_bytes_per_s is None:  # no more nodes than have to be
                parts = parts[:1]
            found = _node_shapes(mesh.chips, parts if any_shape else whole, node_chips)
    if not found:
        counted = "one chip" if mesh.chips == 1 else f"{mesh.chips} chips"
        said, shape = f"No slice of {counted} of {hardware.chip} is offered.", "4x4x4"
        if isinstance(hardware.fabric, Switch):
            said = f"{counted} of {hardware.chip} fill no whole nodes, which have {hardware.fabric.node_chips}."
            shape = "node=2,gpu=6"
        raise fail(said, hint=f"name its shape, as `{shape}`, or add `--any-shape`")
    return found


def meshes_to_compile(
    text: str | Mesh, hardware: Hardware, any_shape: bool = False
) -> tuple[tuple[Mesh, ...], tuple[Diagnostic, ...]]:
    """As `meshes_of`, but of a count of which nothing is offered all shapes, with a warning that says so."""
    try:
        return meshes_of(text, hardware, any_shape), ()
    except InputError as error:
        if any_shape or not _is_count(text):
            raise
        found = meshes_of(text, hardware, any_shape=True)
        behind = isinstance(hardware.fabric, Switch)
        hint = f"what is planned for are {'nodes filled in part' if behind else 'shapes that nobody can rent'}"
        return found, (Diagnostic(error.diagnostics[0].message, hint=hint, severity="warning"),)


def _is_count(text: str | Mesh) -> bool:
    return isinstance(text, str) and text.strip().isdigit()


def _whole_nodes(chips: int, node_chips: int) -> bool:
    """Whether chips are a part of one node, of which any number may be taken, or fill some."""
    return chips < node_chips or chips % node_chips == 0


def _node_shapes(chips: int, insides: Sequence[int], node_chips: int) -> tuple[Mesh, ...]:
    """The ways to write chips behind switches, so many `insides` each node: nodes first, fewest axes first, of equal
    ones those of the fullest nodes. An axis of nodes alone is called `node`; two that join nodes filled in part are
    called so that they do, too."""
    found = []
    for inside in insides:
        near = [shape for axes in range(1, MOST_AXES) for shape in _factors(inside, axes, 2) if len(shape) == axes]
        far = [shape for axes in (1, 2) for shape in _factors(chips // inside, axes, 2) if len(shape) == axes]
        for out in far or [()]:
            for sizes in near or [()]:
                if len(out) + len(sizes) <= MOST_AXES:
                    far_names = FAR_NAMES[: len(out)] if len(out) == 1 or inside < node_chips else ()
                    names = (*far_names, *DEFAULT_NAMES)
                    found.append(Mesh(tuple(zip(names, (*out, *sizes) or (1,), strict=False))))
    return tuple(sorted(found, key=lambda mesh: len(mesh.sizes)))


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
    """Every mesh compiled, as `ranked` has them. Raises InputError, with what the first mesh says, when no mesh has a
    plan."""
    return ranked(meshes, lambda mesh: compile_phases(program, phases, mesh, options, separate=separate), options)


def ranked(meshes: Sequence[Mesh], made: Callable[[Mesh], Compilation], options: Options) -> tuple[Shape, ...]:
    """What is `made` of every mesh, the cheapest first; of those that send or store the same the quickest, and of equal
    ones the one with fewer axes.

    Raises InputError, with what the first mesh says, when nothing can be made of any.
    """
    shapes: list[Shape] = []
    refused: list[InputError] = []
    for mesh in meshes:
        try:
            shapes.append(Shape(mesh, made(mesh)))
        except InputError as error:
            refused.append(error)
            shapes.append(Shape(mesh, None, error.diagnostics[0].message))
    if len(refused) == len(meshes):
        raise refused[0]
    timed = options.objective is Objective.TIME
    return tuple(sorted(shapes, key=lambda s: (s.price, 0.0 if timed or s.compiled is None else s.compiled.total_s)))


def best_of(
    program: Program, phases: Sequence[str], meshes: Sequence[Mesh], options: Options, separate: bool = False
) -> tuple[tuple[Shape, ...], Mesh]:
    """Several meshes as `compile_shapes` has them, and the first; of one mesh no shapes, and that, uncompiled."""
    shapes = compile_shapes(program, phases, meshes, options, separate) if len(meshes) > 1 else ()
    return shapes, shapes[0].mesh if shapes else meshes[0]


def mesh_name(mesh: Mesh) -> str:
    """A mesh as `--chips` takes it: `4x4x4`, or `node=2,x=8` where axes have names of their own."""
    plain = mesh.names == tuple(DEFAULT_NAMES[: len(mesh.names)])
    return "x".join(map(str, mesh.sizes)) if plain else ",".join(f"{name}={size}" for name, size in mesh.spelled)


def ranking(shapes: Sequence[Shape]) -> str:
    """The shapes as a table: the objective of each, beside the best, or why there is no plan."""
    best = shapes[0].price
    several = any(shape.compiled is not None and len(shape.compiled) > 1 for shape in shapes)
    rows = [("slice", "all calls" if several else "total", "beside the best", "bytes sent by a chip")]
    for shape in shapes:
        name = mesh_name(shape.mesh)
        if shape.compiled is None:
            rows.append((name, "-", "-", shape.reason or ""))
            continue
        share = f"{shape.price / best:.3f}" if best else "-"
        rows.append((name, time_text(shape.compiled.total_s), share, size_text(shape.compiled.bytes_sent)))
    return "\n".join(["Slice shapes, cheapest first", *table(rows, 1)]) + "\n"


def ranking_data(shapes: Sequence[Shape]) -> list[dict[str, object]]:
    """The shapes for JSON, cheapest first. Figures are null where there is no plan, for `reason`.

    `objective` is in the unit of what the plan has least of; `beside_best` its ratio to the best's. Seconds and bytes
    are those of all calls of all phases, or of one call of one.
    """
    best = shapes[0].price
    return [
        {
            "mesh": dict(shape.mesh.axes),
            "objective": shape.price if shape.compiled else None,
            "beside_best": shape.price / best if shape.compiled and best else None,
            "total_s": shape.compiled.total_s if shape.compiled else None,
            "bytes_sent_per_chip": shape.compiled.bytes_sent if shape.compiled else None,
            "reason": shape.reason,
        }
        for shape in shapes
    ]
