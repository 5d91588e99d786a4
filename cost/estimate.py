"""What a sharded program costs, read off the program itself, step by step.

Nothing here knows how the program was chosen: the figures are recomputed from its layouts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from ..ir.collective import axes_of, kind
from ..ir.mesh import Mesh
from ..ir.program import Append, Kind, Signature, Stored, signature
from ..ir.spmd import Compute, Move, SpmdProgram, SpmdValue, walk_spmd
from . import collectives
from .hardware import Hardware
from .network import Network
from .ops import work


@dataclass(frozen=True)
class OpCost:
    """One op on one chip, once: its work and its seconds. `times`: how often it runs."""

    result: str
    times: int
    flops: float
    hbm_bytes: float
    compute_s: float
    memory_s: float
    seconds: float


@dataclass(frozen=True)
class MoveCost:
    """One collective, once: the bytes that each chip sends and its seconds. `times`: how often it runs."""

    result: str
    times: int
    kind: str
    axes: tuple[str, ...]
    bytes_sent: float
    seconds: float


@dataclass(frozen=True)
class Totals:
    """What a run takes on a chip. `compute_s` and `memory_s` are what arithmetic and HBM alone would
    take; `op_s` what the ops take by the hardware's rule; `total_s` that and the communication."""

    compute_s: float
    memory_s: float
    op_s: float
    comm_s: float
    bytes_sent: float
    collectives: int

    @property
    def total_s(self) -> float:
        """Seconds in all."""
        return self.op_s + self.comm_s


@dataclass(frozen=True)
class Estimate:
    """The steps of a program in order, and what is stored on a chip (bytes, all repetitions)."""

    ops: tuple[OpCost, ...]
    moves: tuple[MoveCost, ...]
    stored_bytes: tuple[tuple[str, float], ...]

    def totals(self, once: bool = False) -> Totals:
        """The sum over all steps; `once`: of each step once, whatever the repeats around it."""

        def times(cost: OpCost | MoveCost) -> int:
            return 1 if once else cost.times

        return Totals(
            math.fsum(times(c) * c.compute_s for c in self.ops),
            math.fsum(times(c) * c.memory_s for c in self.ops),
            math.fsum(times(c) * c.seconds for c in self.ops),
            math.fsum(times(c) * c.seconds for c in self.moves),
            math.fsum(times(c) * c.bytes_sent for c in self.moves),
            sum(times(c) for c in self.moves if c.bytes_sent),
        )


def estimate(spmd: SpmdProgram, hardware: Hardware) -> Estimate:
    """The cost of every step of a sharded program on `hardware`."""
    values, sizes = spmd.table(), dict(spmd.sizes)
    plain = {name: value.value for name, value in values.items()}
    network = Network(hardware, spmd.mesh)
    resident: set[str] = set()
    ops: list[OpCost] = []
    moves: list[MoveCost] = []
    stored: list[tuple[str, float]] = []
    for placed in walk_spmd(spmd.body):
        match placed.item:
            case Stored(name, which) if which is not Kind.INPUT:
                resident.add(name)
                stored.append((name, placed.times * float(local_bytes(values[name], spmd))))
            case Compute(op):
                if isinstance(op, Append):
                    resident.add(op.result)
                sig = signature(op, plain)
                local = _local_sizes(sig, op.result, values, sizes, spmd.mesh)
                done = work(op, sig, plain, resident, local.__getitem__)
                flops, hbm = float(done.flops), float(done.hbm_bytes)
                times = hardware.compute_s(flops), hardware.memory_s(hbm), float(hardware.op_s(flops, hbm))
                ops.append(OpCost(op.result, placed.times, flops, hbm, *times))
            case Move(result, operand, collective):
                if operand in resident:
                    resident.add(result)
                axes = axes_of(collective, values[operand].layout)
                before, after = (local_bytes(values[n], spmd) for n in (operand, result))
                name = kind(collective)
                sent = float(collectives.bytes_sent(name, before, after, spmd.mesh.size(*axes)))
                seconds = float(network.collective_s(name, axes, float(before), float(after)))
                moves.append(MoveCost(result, placed.times, name, axes, sent, seconds))
    return Estimate(tuple(ops), tuple(moves), tuple(stored))


def predict(spmd: SpmdProgram) -> tuple[Fraction, ...]:
    """The bytes that each chip sends in each collective of a program, in program order, exactly."""
    values = spmd.table()
    out = []
    for placed in walk_spmd(spmd.body):
        if isinstance(placed.item, Move):
            step = placed.item
            before, after = (local_bytes(values[n], spmd) for n in (step.operand, step.result))
            ways = spmd.mesh.size(*axes_of(step.collective, values[step.operand].layout))
            out.append(Fraction(collectives.bytes_sent(kind(step.collective), before, after, ways)))
    return tuple(out)


def local_bytes(value: SpmdValue, spmd: SpmdProgram) -> Fraction:
    """The bytes that a chip holds of a value."""
    sizes = dict(spmd.sizes)
    shape = value.layout.local_shape([sizes[d] for d in value.dims], spmd.mesh)
    return Fraction(math.prod(shape) * value.dtype.bits, 8)


def _local_sizes(
    sig: Signature, result: str, values: Mapping[str, SpmdValue], sizes: Mapping[str, int], mesh: Mesh
) -> dict[str, int]:
    """The size on a chip of each index of an op: what splits an index shows at some operand or the result."""
    ways = dict.fromkeys(sig.indices, 1)
    for name, indices in [(use.value, use.indices) for use in sig.uses] + [(result, sig.result)]:
        for index, axes in zip(indices, values[name].layout.dims, strict=True):
            ways[index] = max(ways[index], mesh.size(*axes))
    return {i: sizes[i] // ways[i] for i in sig.indices}
