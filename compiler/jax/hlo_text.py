"""The text of a compiled module (HLO) as computations of instructions, and how often each of these runs.

Reads nothing but the text: counts come from the trip counts of the loops around.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from fractions import Fraction
from functools import cached_property

from ...ir.record import record

BITS = {
    "pred": 8,
    "f4e2m1fn": 4,
    "s4": 4,
    "u4": 4,
    "s8": 8,
    "u8": 8,
    "f8e4m3fn": 8,
    "f8e8m0fnu": 8,
    "bf16": 16,
    "f16": 16,
    "s16": 16,
    "u16": 16,
    "s32": 32,
    "u32": 32,
    "f32": 32,
    "f64": 64,
    "s64": 64,
    "u64": 64,
}

# What devices send each other, by the beginning of its opcode.
SENDS = ("all-", "reduce-scatter", "ragged-all-", "collective-")

# Of collectives that are taken apart: what begins one and what ends it in the fusions that do so.
STARTS, ENDS = '"AsyncCollectiveStart"', '"AsyncCollectiveDone"'

_COMPUTATION = re.compile(r"(?P<entry>ENTRY )?%?(?P<name>[\w.\-]+) \(.*\) -> .*\{")
_INSTRUCTION = re.compile(
    r"\s+(?P<root>ROOT )?%?(?P<name>[\w.\-]+) = (?P<type>\((?:[^()=]|\([^()]*\))*\)|\S+) (?P<opcode>[a-z][\w\-]*)"
    r"\((?P<rest>.*)"
)
_ARRAY = re.compile(r"([a-z]\w*)\[([\d,]*)\]")
_NAME = re.compile(r"%([\w.\-]+)")


class ModuleError(Exception):
    """The text is not that of a module as this reader knows them."""


@record
class Instruction:
    """A line of a module. `rest`: what follows the opening parenthesis of its operands. `root`: it is what its
    computation gives."""

    name: str
    type: str
    opcode: str
    rest: str
    root: bool

    def attribute(self, key: str) -> str | None:
        """The computation that an attribute names."""
        found = re.search(rf"\b{key}=%?([\w.\-]+)", self.rest)
        return found[1] if found else None

    @cached_property
    def operands(self) -> list[str]:
        """The names of what it reads."""
        return _NAME.findall(self.rest[: self.rest.index(")")])

    @property
    def called(self) -> str | None:
        """The computation that it runs once, if there is one."""
        if self.opcode.removesuffix("-start") not in ("call", "fusion", "conditional", "async"):
            return None
        keys = ("to_apply", "calls", "called_computations")
        return next((name for key in keys if (name := self.attribute(key))), None)


@record
class Module:
    """The computations of a module by name, each in its order, and the name of the one that it starts with."""

    computations: dict[str, list[Instruction]]
    entry: str

    @cached_property
    def types(self) -> dict[str, str]:
        """The types of all instructions, by name."""
        return {i.name: i.type for body in self.computations.values() for i in body}

    def executed(self, fused: bool = True) -> Iterator[tuple[Instruction, int]]:
        """Every instruction that runs, and how often; without `fused` those of fusions count as the fusion alone.

        Of a loop whose trip count is not to be found, such as one over the blocks that a mask shows, all counts once.
        Raises ModuleError where such a loop sends something.
        """
        yield from self._executed(self.entry, 1, fused)

    def _executed(self, name: str, times: int, fused: bool) -> Iterator[tuple[Instruction, int]]:
        for instruction in self.computations[name]:
            yield instruction, times
            if instruction.opcode == "while":
                body = instruction.attribute("body") or ""
                yield from self._executed(body, times * self._counted(instruction, body), fused)
            elif (called := instruction.called) in self.computations and (fused or instruction.opcode != "fusion"):
                yield from self._executed(called or "", times, fused)

    def _counted(self, loop: Instruction, body: str) -> int:
        """How often a loop counts."""
        try:
            return self.trips(loop)
        except ModuleError:
            if self.sends(body):
                raise
            return 1

    def sends(self, name: str) -> bool:
        """Whether devices send each other something in a computation, or in what it runs."""
        for each in self.computations.get(name, ()):
            inner = (found for key in ("body", "to_apply", "calls") if (found := each.attribute(key)))
            if each.opcode.startswith(SENDS) or any(map(self.sends, inner)):
                return True
        return False

    def trips(self, loop: Instruction) -> int:
        """How often the body of a loop runs: what the compiler says, or else what it counts up to from zero."""
        if known := re.search(r'"known_trip_count":\{"n":"(\d+)"\}', loop.rest):
            return int(known[1])
        condition = self.computations.get(loop.attribute("condition") or "", [])
        below = [i for i in condition if i.opcode == "compare" and "direction=LT" in i.rest]
        limits = [i.rest for i in condition if i.opcode == "constant" and below and i.name in below[0].operands]
        if len(below) != 1 or len(limits) != 1 or not (number := re.match(r"(\d+)\)", limits[0])):
            raise ModuleError(f"the loop `{loop.name}` does not say how often it runs")
        return int(number[1])


def read_module(text: str) -> Module:
    """The module that a text is. Raises ModuleError where it has no entry."""
    computations: dict[str, list[Instruction]] = {}
    body: list[Instruction] | None = None
    entry = ""
    for line in re.sub(r"/\*.*?\*/", "", text).splitlines():
        if head := _COMPUTATION.fullmatch(line.rstrip()):
            body = computations.setdefault(head["name"], [])
            entry = head["name"] if head["entry"] else entry
        elif body is not None and (part := _INSTRUCTION.match(line)):
            body.append(Instruction(part["name"], part["type"], part["opcode"], part["rest"], bool(part["root"])))
    if not entry:
        raise ModuleError("the module has no entry")
    return Module(computations, entry)


def size_of(text: str) -> Fraction:
    """The bytes of an array, or of a tuple of them, from the text of its type."""
    total = Fraction(0)
    for name, sizes in _ARRAY.findall(text):
        if name not in BITS:
            raise ModuleError(f"the element type `{name}` is not known")
        total += math.prod(int(n) for n in sizes.split(",") if n) * Fraction(BITS[name], 8)
    return total
