"""The work of measured rows as arrays, from which many hardware figures are tried at once.

What an op takes is `Hardware.op_s` of these arrays, and what collectives take is linear in the figures: so
what is tried here, row by row, is what `estimate` says of the programs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ...cost.estimate import OpWork, Transfer, concrete_sizes, step_costs
from ...cost.hardware import Calibrated, Convention, Hardware
from ...cost.network import Network
from .rows import Programs, Run


@dataclass(frozen=True, eq=False)
class Work:
    """The work of `len(transfer_s)` rows.

    Of each op: `row`, how often it runs (`times`), its flops and HBM bytes. Of each row: what its
    collectives carry, in seconds at the full rate of the links; how many start; and their hops.
    """

    row: NDArray[np.intp]
    times: Floats
    flops: Floats
    hbm_bytes: Floats
    transfer_s: Floats
    starts: Floats
    hops: Floats

    def seconds(self, hardware: Hardware) -> Floats:
        """What each row takes with the calibrated figures of `hardware`, on the links."""
        found = hardware.calibrated
        ops = np.bincount(self.row, self.times * hardware.op_s(self.flops, self.hbm_bytes), len(self.transfer_s))
        latency = self.starts * found.collective_latency_s + self.hops * hardware.hop_s
        return np.asarray(ops + self.transfer_s / found.network_efficiency + latency)

    def take(self, rows: Sequence[int]) -> Work:
        """The work of some of the rows."""
        chosen = np.asarray(rows, dtype=np.intp)
        place = np.full(len(self.transfer_s), -1, dtype=np.intp)
        place[chosen] = np.arange(len(chosen))
        kept = place[self.row] >= 0
        per_op = (array[kept] for array in (self.times, self.flops, self.hbm_bytes))
        per_row = (array[chosen] for array in (self.transfer_s, self.starts, self.hops))
        return Work(place[self.row][kept], *per_op, *per_row)


def work_of(runs: Sequence[Run], programs: Programs, hardware: Hardware) -> Work:
    """The work of measured rows, whose collectives use as many axes at once as `hardware` says."""
    ops: list[tuple[int, float, float, float]] = []
    moves = np.zeros((len(runs), 3))
    bare = Calibrated(axes_at_once=hardware.calibrated.axes_at_once, hop_latency_s=0.0)
    priced = [
        replace(hardware, calibrated=figures, convention=Convention.LINKS)
        for figures in (bare, replace(bare, collective_latency_s=1.0), replace(bare, hop_latency_s=1.0))
    ]
    for n, run in enumerate(runs):
        for step, count in run.steps:
            spmd = programs[step]
            networks = [Network(chip, spmd.mesh) for chip in priced]
            for item in step_costs(spmd, concrete_sizes(spmd)):
                if isinstance(item, OpWork):
                    ops.append((n, count * item.times, float(item.work.flops), float(item.work.hbm_bytes)))
                elif isinstance(item, Transfer):
                    held = float(item.before_bytes), float(item.after_bytes)
                    sizes = held, (0.0, 0.0), (0.0, 0.0)
                    taken = [
                        network.collective_s(item.kind, item.axes, *size, joined=item.joined)
                        for network, size in zip(networks, sizes, strict=True)
                    ]
                    moves[n] += count * item.times * np.array(taken, dtype=np.float64)
    columns = np.array(ops, dtype=np.float64).reshape(-1, 4).T
    return Work(columns[0].astype(np.intp), *columns[1:], *moves.T)
