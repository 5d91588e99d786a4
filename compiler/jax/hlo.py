"""The collectives in the text of a compiled module (HLO): what each is, over which axes, how many bytes it sends.

Reads nothing but the text, and knows no plan: bytes follow from the shapes there, axes from the groups
of devices, counts from the trip counts of the loops around.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from ...ir.collective import CollectiveKind
from ...ir.mesh import Mesh

BITS = {
    "pred": 8,
    "s4": 4,
    "u4": 4,
    "s8": 8,
    "u8": 8,
    "f8e4m3fn": 8,
    "bf16": 16,
    "f16": 16,
    "s32": 32,
    "u32": 32,
    "f32": 32,
    "f64": 64,
    "s64": 64,
}
KINDS = {
    "all-gather": CollectiveKind.ALL_GATHER,
    "all-reduce": CollectiveKind.ALL_REDUCE,
    "reduce-scatter": CollectiveKind.REDUCE_SCATTER,
    "all-to-all": CollectiveKind.ALL_TO_ALL,
    "ragged-all-to-all": CollectiveKind.ALL_TO_ALL,
    "collective-permute": CollectiveKind.PERMUTE,
}

_COMPUTATION = re.compile(r"(?P<entry>ENTRY )?%?(?P<name>[\w.\-]+) \(.*\) -> .*\{")
_INSTRUCTION = re.compile(
    r"\s+(?:ROOT )?%?(?P<name>[\w.\-]+) = (?P<type>\([^=]*?\)|\S+) (?P<opcode>[a-z][\w\-]*)\((?P<rest>.*)"
)
_ARRAY = re.compile(r"([a-z]\w*)\[([\d,]*)\]")
_MESH_GROUPS = re.compile(
    r"replica_groups=mesh\[(?P<mesh>[^\]]*)\](?:, device_ids=\(\[(?P<tile>[\d,]+)\]T\((?P<order>[\d,]+)\)\))?"
    r" *\{(?P<chosen>'[^':]+'(?::\(\d+\)\d+)?(?:, ?'[^':]+'(?::\(\d+\)\d+)?)*)\}"
)
_NAME = re.compile(r"%([\w.\-]+)")


class ModuleError(Exception):
    """The text is not that of a module as this reader knows them."""


@dataclass(frozen=True)
class ModuleTransfer:
    """A collective: its kind, the mesh axes over which devices exchange data (sorted; None where its groups
    are no axes of the mesh), and the bytes that each device sends in one execution. `routing`: they are bits that say
    which rows are sent, the only unsigned numbers of emitted modules."""

    kind: CollectiveKind
    axes: tuple[str, ...] | None
    bytes: Fraction
    routing: bool = False


@dataclass(frozen=True)
class _Instruction:
    name: str
    type: str
    opcode: str
    rest: str

    def attribute(self, key: str) -> str | None:
        """The computation that an attribute names."""
        found = re.search(rf"\b{key}=%?([\w.\-]+)", self.rest)
        return found[1] if found else None


def collectives_of(text: str, mesh: Mesh) -> Counter[ModuleTransfer]:
    """How often each collective of a module runs, on devices that are numbered along `mesh` row by row.

    Raises ModuleError for a loop whose trip count is not to be found, or a collective in a form that is
    not known.
    """
    computations, entry = _read(text)
    types = {i.name: i.type for body in computations.values() for i in body}
    found: Counter[ModuleTransfer] = Counter()
    for instruction, times in _executed(computations, entry, 1):
        found[_sent(instruction, types, mesh)] += times
    return found


def _read(text: str) -> tuple[dict[str, list[_Instruction]], str]:
    """The computations of a module by name, and the name of the one that it starts with."""
    computations: dict[str, list[_Instruction]] = {}
    body: list[_Instruction] | None = None
    entry = ""
    for line in re.sub(r"/\*.*?\*/", "", text).splitlines():
        if head := _COMPUTATION.fullmatch(line.rstrip()):
            body = computations.setdefault(head["name"], [])
            entry = head["name"] if head["entry"] else entry
        elif body is not None and (part := _INSTRUCTION.match(line)):
            body.append(_Instruction(part["name"], part["type"], part["opcode"], part["rest"]))
    if not entry:
        raise ModuleError("the module has no entry")
    return computations, entry


def _executed(computations: dict[str, list[_Instruction]], name: str, times: int) -> Iterator[tuple[_Instruction, int]]:
    """The collectives that a computation runs, and how often."""
    for instruction in computations[name]:
        opcode = instruction.opcode.removesuffix("-start")
        if opcode in KINDS:
            yield instruction, times
        elif opcode == "while":
            body = instruction.attribute("body") or ""
            yield from _executed(computations, body, times * _trips(computations, instruction))
        elif opcode in ("call", "fusion", "conditional", "async"):
            for key in ("to_apply", "calls", "called_computations"):
                if (called := instruction.attribute(key)) in computations:
                    yield from _executed(computations, called or "", times)


def _trips(computations: dict[str, list[_Instruction]], loop: _Instruction) -> int:
    """How often the body of a loop runs: what the compiler says, or else what it counts up to from zero."""
    if known := re.search(r'"known_trip_count":\{"n":"(\d+)"\}', loop.rest):
        return int(known[1])
    condition = computations.get(loop.attribute("condition") or "", [])
    below = [i for i in condition if i.opcode == "compare" and "direction=LT" in i.rest]
    limits = [i.rest for i in condition if i.opcode == "constant" and below and i.name in _NAME.findall(below[0].rest)]
    if len(below) != 1 or len(limits) != 1 or not (number := re.match(r"(\d+)\)", limits[0])):
        raise ModuleError(f"the loop `{loop.name}` does not say how often it runs")
    return int(number[1])


def _sent(instruction: _Instruction, types: dict[str, str], mesh: Mesh) -> ModuleTransfer:
    opcode = instruction.opcode.removesuffix("-start")
    operands = _NAME.findall(instruction.rest[: instruction.rest.index(")")])
    before = sum((_size(types[name]) for name in operands), Fraction(0))
    routing = all(types[name].startswith("u8[") for name in operands)
    if opcode == "collective-permute":
        pairs = [(int(a), int(b)) for a, b in re.findall(r"\{(\d+),(\d+)\}", instruction.rest)]
        moved = any(a != b for a, b in pairs)
        return ModuleTransfer(KINDS[opcode], _permuted_axes(pairs, mesh), before if moved else Fraction(0), routing)
    groups = _groups(instruction.rest, mesh.chips)
    ways = groups.shape[1]
    factor = {"all-gather": ways, "all-reduce": 2}.get(opcode, 1)  # of what a device holds before
    return ModuleTransfer(KINDS[opcode], _axes(groups, mesh), before * factor * (ways - 1) / ways, routing)


def _size(text: str) -> Fraction:
    """The bytes of an array, or of a tuple of them, from the text of its type."""
    total = Fraction(0)
    for name, sizes in _ARRAY.findall(text):
        if name not in BITS:
            raise ModuleError(f"the element type `{name}` is not known")
        total += math.prod(int(n) for n in sizes.split(",") if n) * Fraction(BITS[name], 8)
    return total


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
