"""What a compiled module (HLO) copies of what it is given, and what it computes while collectives are under way."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from ...ir.record import record
from .hlo_text import ENDS, STARTS, Instruction, Module, size_of

# What only puts elements elsewhere.
MOVING = {
    "bitcast",
    "constant",
    "copy",
    "dynamic-slice",
    "parameter",
    "reshape",
    "slice",
    "transpose",
}
THROUGH = {"bitcast", "copy", "copy-done", "copy-start", "dynamic-slice", "get-tuple-element", "reshape", "slice"}
THROUGH |= {"transpose", "fusion"}
MULTIPLIES = {"convolution", "dot"}
NEAR_MEMORY = re.compile(r"\{[^}]*S\([1-9]\d*\)[^}]*\}")  # a layout in a memory of the chip other than its HBM


@record
class Copy:
    """A copy of something that a step is given, `name`, in HBM: its type, and its bytes each time, and how often."""

    name: str
    type: str
    bytes: int
    times: int


@record
class Hidden:
    """Collectives of one kind that do not wait: how many of them run, and how many have a product of matrices between
    start and done."""

    opcode: str
    every: int
    beside_products: int


def copies_of(module: Module, least_bytes: float) -> tuple[Copy, ...]:
    """The copies, relayouts and slices of parameters of the entry, of at least so many bytes each, the largest first.

    What only comes into a memory nearer to the arithmetic is none, and so is what goes back from there.
    """
    sources = _Sources(module)
    found: dict[Copy, int] = {}
    for instruction, times in module.executed(fused=False):
        kind = instruction.type
        if instruction.opcode not in ("copy", "copy-start", "transpose", "slice", "dynamic-slice", "fusion"):
            continue
        if instruction.opcode == "copy-start":  # of (destination, source, context) the first
            kind = re.split(r"(?<=\}), ", kind.strip("()"))[0]
        if NEAR_MEMORY.search(kind) or kind.startswith("(") or sources.comes_back(instruction):
            continue
        size = int(size_of(kind))
        if size < least_bytes or not _moves(instruction, module):
            continue
        if name := sources.of(instruction):
            copy = Copy(name, re.sub(r"\{.*", "", kind), size, 0)
            found[copy] = found.get(copy, 0) + times
    every = (Copy(copy.name, copy.type, copy.bytes, times) for copy, times in found.items())
    return tuple(sorted(every, key=lambda copy: (-copy.bytes * copy.times, copy.name)))


def _moves(instruction: Instruction, module: Module) -> bool:
    """Whether an instruction, or all that a fusion is made of, only puts elements elsewhere."""
    if instruction.opcode != "fusion":
        return True
    body = module.computations.get(instruction.called or "", [])
    return {inner.opcode for inner in body} <= MOVING and any(inner.opcode != "parameter" for inner in body)


@dataclass
class _Sources:
    """Of instructions, the parameter of the entry that they hold, in whatever form."""

    module: Module
    carried: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.by_name = {i.name: i for body in self.module.computations.values() for i in body}
        self.home = {i.name: name for name, body in self.module.computations.items() for i in body}
        self.loops = {
            i.attribute("body"): i
            for body in self.module.computations.values()
            for i in body
            if i.opcode == "while" and i.attribute("body")
        }

    def of(self, instruction: Instruction) -> str | None:
        """The name of the parameter, None where it is none."""
        for _ in range(len(self.by_name)):
            if instruction.opcode == "parameter":
                name = re.search(r'op_name="([^"]*)"', instruction.rest)
                entry = self.home[instruction.name] == self.module.entry
                return name[1].replace("\\'", "'") if name and entry else None
            following = self._before(instruction)
            if following is None:
                return None
            instruction = following
        return None

    def comes_back(self, instruction: Instruction) -> bool:
        """Whether an instruction copies out of a memory nearer to the arithmetic."""
        read = self.by_name.get(instruction.operands[0]) if instruction.operands else None
        return instruction.opcode.startswith("copy") and bool(read and NEAR_MEMORY.search(read.type))

    def _keeps(self, instruction: Instruction) -> bool:
        """Whether what an instruction makes is what it reads, moved or with some of it written anew. What is computed
        of it, such as the rows of a table that a loop begins with, is another value."""
        if instruction.opcode != "fusion" or _moves(instruction, self.module):
            return True
        body = self.module.computations.get(instruction.called or "", [])
        return any(inner.opcode == "dynamic-update-slice" and inner.type == instruction.type for inner in body)

    def _before(self, instruction: Instruction) -> Instruction | None:
        """What an instruction has its elements from."""
        operands = [self.by_name[name] for name in instruction.operands if name in self.by_name]
        if instruction.opcode not in THROUGH or not operands or not self._keeps(instruction):
            return None
        if instruction.opcode != "get-tuple-element":
            return max(operands, key=lambda each: size_of(each.type) if not each.type.startswith("(") else 0)
        [whole] = operands[:1]
        index = re.search(r"index=(\d+)", instruction.rest)
        if whole.opcode == "parameter" and (loop := self.loops.get(self.home[whole.name])) is not None:
            whole = self.by_name[loop.operands[0]]
        elif whole.opcode == "while":
            whole = self.by_name[whole.operands[0]]
        if whole.opcode == "tuple" and index is not None:
            return self.by_name.get(whole.operands[int(index[1])])
        return None


def hidden_in(module: Module) -> tuple[Hidden, ...]:
    """Of each kind of collective that starts and is done apart, how many have a product of matrices between."""
    counted: dict[str, list[int]] = {}
    times = _times_of_computations(module)
    for name, body in module.computations.items():
        waiting: dict[str, bool] = {}
        for instruction in body:
            part = _end_of(instruction, module)
            if part is not None and part.starts:
                waiting[part.collective] = False
            elif part is not None and part.collective in waiting:
                every = counted.setdefault(part.opcode, [0, 0])
                every[0] += times.get(name, 0)
                every[1] += times.get(name, 0) * waiting.pop(part.collective)
            elif waiting and _multiplies(instruction, module):
                waiting = dict.fromkeys(waiting, True)
    return tuple(Hidden(opcode, *both) for opcode, both in sorted(counted.items()) if both[0])


@record
class _End:
    """An end of a collective of kind `opcode`: where it `starts`, or is done. `collective`: the same at both."""

    opcode: str
    collective: str
    starts: bool


def _end_of(instruction: Instruction, module: Module) -> _End | None:
    """The end of a collective that an instruction is, if it is one: a start or a done of its own, or a fusion that
    begins or ends one that is taken apart, whose channel both of them name."""
    opcode = instruction.opcode
    if re.fullmatch(r"(all-|reduce-|collective-).*-start", opcode):
        return _End(opcode.removesuffix("-start"), instruction.name, True)
    if opcode.endswith("-done") and instruction.operands:
        return _End(opcode.removesuffix("-done"), instruction.operands[0], False)
    inside = list(_inside(instruction, module)) if opcode == "fusion" else []
    ends = [STARTS in each.rest for each in inside if STARTS in each.rest or ENDS in each.rest]
    channels = [(each.opcode, found[0]) for each in inside if (found := re.search(r"channel_id=\d+", each.rest))]
    return _End(*channels[0], ends[0]) if ends and channels else None


def _times_of_computations(module: Module) -> dict[str, int]:
    """How often each computation that runs runs."""
    home = {i.name: name for name, body in module.computations.items() for i in body}
    found: dict[str, int] = {}
    for instruction, times in module.executed(fused=False):
        if instruction.root:
            found[home[instruction.name]] = found.get(home[instruction.name], 0) + times
    return found


def _multiplies(instruction: Instruction, module: Module) -> bool:
    """Whether a product of matrices is made."""
    if instruction.opcode in MULTIPLIES:
        return True
    return any(_multiplies(inner, module) for inner in _inside(instruction, module))


def _inside(instruction: Instruction, module: Module) -> Iterator[Instruction]:
    yield from module.computations.get(instruction.called or "", [])
