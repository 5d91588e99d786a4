"""What a loop of looped steps takes: the longer of its arithmetic and its transfer with one block beside it, and what
that hides.

Blocks are passed on along one axis at a time, so a loop over several axes does not use their links at
once, as the collectives in its place would: it may take longer than they. What every block needs whole and
finds in HBM is read again for each.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace
from fractions import Fraction
from math import fsum, prod

from ..ir.chosen import held_share
from ..ir.program import Einsum
from ..ir.record import record
from ..ir.spmd import Compute, SpmdProgram, SpmdValue
from ..ir.verify.fused import CollectiveMatmul
from .network import Network
from .ops import Work, busiest
from .sendings import quickest_s


@record
class LoopCost:
    """A loop, once. `results`: what its steps make, in order; `times`: how often it runs.

    `halves`: 2 where each block is cut in two along the dim of the first stage, to go round both ways,
    else 1. `permutes`: the collective-permutes of all of it, each of `permute_bytes` from every chip. `blocks`: how
    many blocks each chip has to do with. `op_s`: its ops, block by block, `kernels_s` of it to start the kernels of
    each block but one; `transfer_s`: the permutes of all rounds, `hops_s` of it whatever they carry; `start_s`: what
    comes before either. `apart_s`: what its steps take one after the other.
    """

    results: tuple[str, ...]
    times: int
    halves: int
    permutes: int
    permute_bytes: Fraction
    blocks: int
    op_s: float
    kernels_s: float
    transfer_s: float
    hops_s: float
    start_s: float
    apart_s: float

    @property
    def first(self) -> str:
        """What its first step makes."""
        return self.results[0]

    @property
    def seconds(self) -> float:
        """What it takes: transfers run beside the ops on all blocks but one, the last that comes or the first that
        goes."""
        return self.start_s + (self.transfer_s + self.op_s / self.blocks if self.waits else self.op_s)

    @property
    def waits(self) -> bool:
        """Whether its ops wait for what is transferred."""
        return self.transfer_s + self.op_s / self.blocks > self.op_s

    @property
    def hidden_s(self) -> float:
        """What is saved beside its steps one after the other; negative where that is quicker."""
        return self.apart_s - self.seconds


@record
class Alone:
    """What the steps of a program do by themselves, by their results: seconds of all, and the work of ops.

    `reads`: the values that each op reads from HBM.
    """

    seconds: Mapping[str, float]
    works: Mapping[str, Work]
    reads: Mapping[str, Set[str]]


def loop_cost(loop: CollectiveMatmul, times: int, spmd: SpmdProgram, network: Network, alone: Alone) -> LoopCost:
    """The cost of a loop of steps of `spmd`."""
    block, sizes = spmd.table()[loop.block], dict(spmd.sizes)
    shape = block.layout.local_shape([sizes[dim] for dim in block.dims], spmd.mesh)
    stages = loop.stages
    closed = any(stage.axis in network.rings for stage in stages)
    halves = 2 if closed and shape[stages[0].dim] % 2 == 0 else 1
    block_bytes = _local_bytes(block, spmd)
    load = busiest(block.chosen, lambda d: shape[block.dims.index(d)], sizes.__getitem__)
    gathered, transfer_s, hops_s = 1, 0.0, 0.0
    for stage in stages:
        ways = spmd.mesh.size(stage.axis)
        passed = gathered * (ways - 1)
        passing = network.passing_on(stage.axis, both_ways=halves == 2)
        transfer_s += passed * float(quickest_s(passing, float(block_bytes * load)))
        hops_s += passed * network.hop_s(stage.axis)
        gathered *= ways
    rounds = gathered - 1
    once_s = sum(network.hardware.kernels_s(alone.works[step.result]) for step in loop.ops)
    kernels_s = (halves * gathered - 1) * once_s
    return LoopCost(
        results=tuple(step.result for step in loop.steps),
        times=times,
        halves=halves,
        permutes=halves * rounds,
        permute_bytes=block_bytes / halves,
        blocks=gathered,
        op_s=kernels_s + fsum(_by_blocks_s(step, loop, halves, spmd, network, alone) for step in loop.ops),
        kernels_s=kernels_s,
        transfer_s=transfer_s,
        hops_s=hops_s,
        start_s=network.start_s,
        apart_s=fsum(alone.seconds[step.result] for step in loop.steps),
    )


def _by_blocks_s(
    step: Compute, loop: CollectiveMatmul, halves: int, spmd: SpmdProgram, network: Network, alone: Alone
) -> float:
    """Seconds of an op of a loop that runs block by block, as one kernel.

    The blocks of an operand that has a dim of the loop are read one by one; one that lacks it is read
    again for each.
    """
    op, work = step.op, alone.works[step.result]
    again = alone.reads[step.result]
    if not isinstance(op, Einsum) or not again:
        return alone.seconds[step.result]
    table = spmd.table()
    moved = op.indices[op.operands.index(loop.gathers[-1].result)] if loop.gathers else op.output
    more_bytes = Fraction(0)
    for name, indices in zip(op.operands, op.indices, strict=True):
        if name in again:
            lacking = [stage for stage in loop.stages if moved[stage.dim] not in indices]
            reads = prod(spmd.mesh.size(stage.axis) for stage in lacking)
            if loop.stages[0] in lacking:
                reads *= halves
            more_bytes += (reads - 1) * _local_bytes(table[name], spmd)
    more = replace(work, hbm_bytes=work.hbm_bytes + float(more_bytes))
    return float(network.hardware.work_s(more))


def _local_bytes(value: SpmdValue, spmd: SpmdProgram) -> Fraction:
    sizes = dict(spmd.sizes)
    shape = value.layout.local_shape([sizes[dim] for dim in value.dims], spmd.mesh)
    share = Fraction(held_share(value.chosen, lambda dim: Fraction(sizes[dim])))
    return Fraction(prod(shape) * value.dtype.bits, 8) * share
