"""Where the axes of a mesh lie in the network: on rings or lines of a torus, behind a switch, or between nodes.

An axis belongs to one level, each part of one to its own. Axes called `node`, `slice` or `dcn` join nodes or
slices. Of the others, on a torus each is an axis of the slice; behind switches the last axes of the mesh, as
many as fill no more than a node, lie in the node, and those before them join nodes. No host has chips of several
nodes, unless it has more of them than a node.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from math import prod

import numpy as np

from ..ir.diagnostics import InputError, fail, listed
from ..ir.mesh import Mesh, part_of
from ..ir.record import record
from .hardware import Hardware, Switch, Torus, Wrap

FAR_NAMES = ("node", "slice", "dcn")  # names of axes that join nodes or slices


class Level(StrEnum):
    """What the chips along an axis are linked by."""

    RING = "ring"
    LINE = "line"
    SWITCH = "switch"
    BETWEEN = "between"


@record
class Axis:
    """An axis of a mesh on its level, or a part of one. Along a part of an axis of a torus `stride` links lie from one
    chip to the next, and as many groups of chips share each link: those between."""

    size: int
    level: Level
    stride: int = 1


def place_axes(mesh: Mesh, hardware: Hardware) -> dict[str, Axis]:
    """Each axis of `mesh`, by name, on its level; those of a part as they lie in the whole.

    Raises InputError when the torus has too few dimensions or chips for the mesh, or when axes join
    nodes and the hardware has no figure for that.
    """
    near = [(name, size) for name, size in mesh.part_of or mesh.axes if part_of(name) not in FAR_NAMES]
    match hardware.fabric:
        case Torus() as torus:
            placed = _parts_on_torus(near, torus, hardware.name)
        case Switch(node_chips):
            placed = _behind_switch(near, node_chips)
    axes = {name: placed.get(name, Axis(size, Level.BETWEEN)) for name, size in mesh.axes}
    far = [name for name, axis in axes.items() if axis.level is Level.BETWEEN and axis.size > 1]
    if far and hardware.between_bytes_per_s is None:
        named = listed(far)
        raise fail(
            f"Axis {named} joins nodes, and {hardware.name} has no figure for the network between them.",
            hint="give `between_bytes_per_s` in a hardware file of your own, or take `--network flat`",
        )
    return axes


def islands(hardware: Hardware) -> str:
    """What axes join that lie between the networks of single groups of chips, in words."""
    return "nodes" if isinstance(hardware.fabric, Switch) else "slices"


def _parts_on_torus(near: Sequence[tuple[str, int]], torus: Torus, chip: str) -> dict[str, Axis]:
    """Axes and parts of axes. The outermost part of a ring is one, of chips that lie apart; others are lines."""
    sizes: dict[str, int] = {}
    for name, size in near:
        sizes[part_of(name)] = sizes.get(part_of(name), 1) * size
    whole = _on_torus(tuple(sizes.items()), torus, chip)
    stride, placed = dict.fromkeys(whole, 1), {}
    for name, size in reversed(near):
        axis = part_of(name)
        outermost = stride[axis] * size == sizes[axis]
        placed[name] = Axis(size, whole[axis].level if outermost else Level.LINE, stride[axis])
        stride[axis] *= size
    return placed


def _on_torus(near: Sequence[tuple[str, int]], torus: Torus, chip: str) -> dict[str, Axis]:
    live = [size for _, size in near if size > 1]
    if len(live) > torus.dimensions:
        raise _too_large(f"{len(live)} axes, and the torus of {chip} has {torus.dimensions} dimensions")
    if prod(live) > torus.largest_slice_chips:
        raise _too_large(f"{prod(live)} chips, and the largest slice of {chip} has {torus.largest_slice_chips}")
    side = torus.wrap_axis_chips
    match torus.wrap:
        case Wrap.ALWAYS:
            wrapped = dict.fromkeys(live, True)
        case Wrap.NEVER:
            wrapped = dict.fromkeys(live, False)
        case Wrap.CUBES:
            whole = len(live) == torus.dimensions and all(size % side == 0 for size in live)
            wrapped = dict.fromkeys(live, whole)
        case Wrap.FULL_AXIS:
            wrapped = {size: size == side for size in live}
    return {name: Axis(size, Level.RING if wrapped.get(size) else Level.LINE) for name, size in near}


def _too_large(what: str) -> InputError:
    hint = "call the axis that joins slices `slice`, or take `--network flat`"
    return fail(f"The mesh has {what}.", hint=hint)


@record
class Hosts:
    """The machines that the chips of a mesh are plugged into: how many, and the chips of the one with the most."""

    count: int
    most_chips: int


def hosts_of(mesh: Mesh, hardware: Hardware) -> Hosts:
    """The hosts of a mesh: of each node the chips in their order, as many to each host as it has. `hardware` has a
    host."""
    together, each = prod(size for _, size in _near_a_host(mesh, hardware)), _chips_of_host(hardware)
    return Hosts(mesh.chips // together * -(-together // each), min(together, each))


def host_numbers(mesh: Mesh, hardware: Hardware) -> np.ndarray:
    """The number of the host of each chip, an array of the mesh's sizes. Hosts are those of `hosts_of`."""
    near = [name for name, _ in _near_a_host(mesh, hardware)]
    order = sorted(range(len(mesh.axes)), key=lambda n: mesh.names[n] in near)  # those in a node last
    together, each = mesh.size(*near), _chips_of_host(hardware)
    node, chip = np.divmod(np.arange(mesh.chips), together)
    numbers = node * -(-together // each) + chip // each
    found: np.ndarray = numbers.reshape([mesh.sizes[n] for n in order]).transpose(np.argsort(order))
    return found


def _near_a_host(mesh: Mesh, hardware: Hardware) -> list[tuple[str, int]]:
    """The axes along which chips may have one host: those in a node or slice, and behind switches as many as fill a
    host that has chips of several nodes."""
    near = [(name, size) for name, size in mesh.axes if part_of(name) not in FAR_NAMES]
    if not isinstance(hardware.fabric, Switch):
        return near
    placed = _behind_switch(near, max(hardware.fabric.node_chips, _chips_of_host(hardware)))
    return [(name, size) for name, size in near if name in placed]


def _chips_of_host(hardware: Hardware) -> int:
    assert hardware.host is not None, "`host_of` refuses hardware without one"
    return hardware.host.host_chips


def _behind_switch(near: Sequence[tuple[str, int]], node_chips: int) -> dict[str, Axis]:
    placed: dict[str, Axis] = {}
    filled = 1
    for name, size in reversed(near):
        filled *= size
        if filled > node_chips:
            break
        placed[name] = Axis(size, Level.SWITCH)
    return placed
