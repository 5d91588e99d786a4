"""The collectives in the text of a compiled module (HLO): what each is, over which axes, how many bytes it sends.

Reads nothing but the text, and knows no plan: bytes follow from the shapes there, axes from the groups of devices.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from ...ir.collective import CollectiveKind
from ...ir.mesh import Mesh
from ...ir.record import record
from .hlo_text import ENDS, Instruction, Module, ModuleError, read_module, size_of

KINDS = {
    "all-gather": CollectiveKind.ALL_GATHER,
    "all-reduce": CollectiveKind.ALL_REDUCE,
    "reduce-scatter": CollectiveKind.REDUCE_SCATTER,
    "all-to-all": CollectiveKind.ALL_TO_ALL,
    "ragged-all-to-all": CollectiveKind.ALL_TO_ALL,
    "collective-permute": CollectiveKind.PERMUTE,
}

BESIDE = "async_collective_fusion"  # what runs beside collectives that are taken apart

_MESH_GROUPS = re.compile(
    r"replica_groups=mesh\[(?P<mesh>[^\]]*)\](?:, device_ids=\(\[(?P<tile>[\d,]+)\]T\((?P<order>[\d,]+)\)\))?"
    r" *\{(?P<chosen>'[^':]+'(?::\(\d+\)\d+)?(?:, ?'[^':]+'(?::\(\d+\)\d+)?)*)\}"
)


@record
class ModuleTransfer:
    """A collective: its kind, the mesh axes over which devices exchange data (sorted; None where its groups
    are no axes of the mesh), and the bytes that each device sends in one execution. `routing`: they are bits that say
    which rows are sent, the only unsigned numbers of emitted modules."""

    kind: CollectiveKind
    axes: tuple[str, ...] | None
    bytes: Fraction
    routing: bool = False


def collectives_of(text: str, mesh: Mesh) -> Counter[ModuleTransfer]:
    """How often each collective of a module runs, on devices that are numbered along `mesh` row by row.

    Raises ModuleError for a loop whose trip count is not to be found, or a collective in a form that is
    not known.
    """
    return transfers_of(read_module(text), mesh)


def transfers_of(module: Module, mesh: Mesh) -> Counter[ModuleTransfer]:
    """As `collectives_of`, of a module that was read."""
    found: Counter[ModuleTransfer] = Counter()
    under_way = _under_way(module)
    for instruction, times in module.executed():
        if instruction.opcode.removesuffix("-start") in KINDS and instruction.name not in under_way:
            for sent in _sent(instruction, module.types, mesh):
                found[sent] += times
    return found


def _under_way(module: Module) -> set[str]:
    """The collectives that another one has begun: the TPU's compiler takes one apart into a fusion that starts it,
    fusions that have a part of it beside their arithmetic, and one that ends it, and each names the whole."""
    found: set[str] = set()
    for name, body in module.computations.items():
        ends = any(each.opcode == "custom-call" and ENDS in each.rest for each in body)
        if ends or name.startswith(BESIDE):
            found |= {each.name for each in body if each.opcode in KINDS}
    return found


def _sent(instruction: Instruction, types: dict[str, str], mesh: Mesh) -> Iterator[ModuleTransfer]:
    """What a collective sends: of several arrays, those that say which rows are sent apart from the others."""
    held = [types[name] for name in instruction.operands]
    if instruction.opcode.startswith("ragged"):
        held = held[:1]  # then come what is written into, and which rows go where
    routing = [each for each in held if each.startswith("u8[")]
    rest = [each for each in held if each not in routing]
    for arrays, is_routing in ((rest, False), (routing, True)):
        if arrays:
            before = sum((size_of(each) for each in arrays), Fraction(0))
            yield replace(_transfer(instruction, before, mesh), routing=is_routing)


def _transfer(instruction: Instruction, before: Fraction, mesh: Mesh) -> ModuleTransfer:
    """What a collective of `before` bytes on each device sends."""
    opcode = instruction.opcode.removesuffix("-start")
    if opcode == "collective-permute":
        pairs = [(int(a), int(b)) for a, b in re.findall(r"\{(\d+),(\d+)\}", instruction.rest)]
        moved = any(a != b for a, b in pairs)
        return ModuleTransfer(KINDS[opcode], _permuted_axes(pairs, mesh), before if moved else Fraction(0))
    groups = _groups(instruction.rest, mesh.chips)
    ways = groups.shape[1]
    factor = {"all-gather": ways, "all-reduce": 2}.get(opcode, 1)  # of what a device holds before
    return ModuleTransfer(KINDS[opcode], _axes(groups, mesh), before * factor * (ways - 1) / ways)


def _groups(rest: str, devices: int) -> NDArray[np.int64]:
    """The groups of devices that a collective names, one in each row."""
    if iota := re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", rest):
        shape, tile, order = ([int(n) for n in part.split(",")] if part else [] for part in iota.groups())
        numbers = np.arange(devices).reshape(tile)
        return (numbers.transpose(order) if order else numbers).reshape(shape)
    if listed := re.search(r"replica_groups=\{(\{[\d,{}]*\})\}", rest):
        return np.array([[int(n) for n in g.split(",")] for g in re.findall(r"\{([\d,]+)\}", listed[1])])
    if named := _MESH_GROUPS.search(rest):
        return _mesh_groups(named, devices)
    if "replica_groups={}" in rest:
        return np.arange(devices).reshape(1, -1)
    raise ModuleError("a collective names its devices in a form that is not known")


def _mesh_groups(named: re.Match[str], devices: int) -> NDArray[np.int64]:
    """The groups along some axes of a mesh that the module describes. `'a':(2)4` is a part of the axis a: of its
    devices, counted major to minor, 2 times 4 times so many as are left, the 4."""
    sizes = {name: int(n) for name, n in re.findall(r"'([^']+)'=(\d+)", named["mesh"])}
    chosen: list[tuple[str, int]] = []  # an axis, and which of its parts
    parts = {name: [size] for name, size in sizes.items()}
    for name, before, size in re.findall(r"'([^']+)'(?::\((\d+)\)(\d+))?", named["chosen"]):
        if before:
            parts[name] = [int(before), int(size), sizes[name] // (int(before) * int(size))]
        chosen.append((name, 1 if before else 0))
    numbers = np.arange(devices)
    if named["tile"]:
        order = [int(n) for n in named["order"].split(",")]
        numbers = numbers.reshape([int(n) for n in named["tile"].split(",")]).transpose(order)
    places = [(name, k) for name, split in parts.items() for k in range(len(split))]
    last = [*(place for place in places if place not in chosen), *chosen]
    shape = [size for split in parts.values() for size in split]
    members = math.prod(parts[name][k] for name, k in chosen)
    return numbers.reshape(shape).transpose([places.index(place) for place in last]).reshape(-1, members)


def _axes(groups: NDArray[np.int64], mesh: Mesh) -> tuple[str, ...] | None:
    """The axes along which the devices of each group differ; None where the groups are not all of that kind."""
    coordinates = np.array(np.unravel_index(groups, mesh.sizes))  # axis of the mesh, group, member
    differ = [not (along == along[:, :1]).all() for along in coordinates]
    axes = tuple(sorted(name for name, d in zip(mesh.names, differ, strict=True) if d))
    whole = groups.shape[1] == mesh.size(*axes) and all(len(set(group)) == len(group) for group in groups.tolist())
    return axes if whole else None


def _permuted_axes(pairs: Sequence[tuple[int, int]], mesh: Mesh) -> tuple[str, ...]:
    """The axes along which some device and the one that it sends to differ."""
    ends = np.array(np.unravel_index(np.array(pairs), mesh.sizes))
    return tuple(
        sorted(name for name, along in zip(mesh.names, ends, strict=True) if (along[:, 0] != along[:, 1]).any())
    )
