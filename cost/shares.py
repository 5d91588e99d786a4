"""What the time of a program goes to: arithmetic, HBM, the bytes of the network, or its latencies.

An op's time is shared out by its hardware's rule: of the longer of two times all is the longer one's, of
a sum each has its own, and of a root of squares each has its square over the root. So the shares of a
program add up to what its steps take one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import fsum

from ..ir.spmd import SpmdProgram
from .estimate import Estimate, MoveCost, OpCost
from .hardware import Hardware, Rule
from .network import Network


@dataclass(frozen=True)
class Shares:
    """Seconds on a chip, in all."""

    compute_s: float
    hbm_s: float
    network_s: float
    latency_s: float

    @property
    def total_s(self) -> float:
        """All of it."""
        return fsum((self.compute_s, self.hbm_s, self.network_s, self.latency_s))

    def times(self, count: int) -> Shares:
        """The same, `count` times."""
        return Shares(count * self.compute_s, count * self.hbm_s, count * self.network_s, count * self.latency_s)

    def __add__(self, other: Shares) -> Shares:
        return Shares(
            self.compute_s + other.compute_s,
            self.hbm_s + other.hbm_s,
            self.network_s + other.network_s,
            self.latency_s + other.latency_s,
        )


def shares(spmd: SpmdProgram, estimate: Estimate, hardware: Hardware) -> Shares:
    """What the time of a program's steps, each by itself, goes to; `estimate`: its cost on `hardware`."""
    network = Network(hardware, spmd.mesh)
    compute = [op.times * _compute_s(op, hardware.calibrated.op_rule) for op in estimate.ops]
    latency = [move.times * _latency_s(move, network) for move in estimate.moves]
    ops_s = fsum(op.times * op.seconds for op in estimate.ops)
    moves_s = fsum(move.times * move.seconds for move in estimate.moves)
    return Shares(fsum(compute), ops_s - fsum(compute), moves_s - fsum(latency), fsum(latency))


def _compute_s(op: OpCost, rule: Rule) -> float:
    """How much of an op's time is its arithmetic's."""
    match rule:
        case Rule.MAX:
            return op.seconds if op.compute_s >= op.memory_s else 0.0
        case Rule.SUM:
            return op.compute_s
        case Rule.ROOT_OF_SQUARES:
            return op.compute_s**2 / op.seconds if op.seconds else 0.0


def _latency_s(move: MoveCost, network: Network) -> float:
    return 0.0 if move.joined else float(network.latency_s(move.kind, move.axes))
