"""What a chip of a TPU holds while a collective runs, beside what that reads and what it makes, arc by arc."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ...cost.tpu_collectives import Kept
from ...ir.collective import CollectiveKind
from ...ir.mesh import Mesh
from ...ir.spmd import SpmdValue
from ..layouts.reshard import KINDS, Arcs, collective
from .graph import Tensor

Floats = NDArray[np.float64]
HOLDING = [KINDS.index(kind) for kind in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER)]


def beside_moves(tensor: Tensor, arcs: Arcs, mesh: Mesh, sizes: Mapping[str, int], lanes: int) -> Floats:
    """The bytes beside each of the arcs of a tensor, of dims of these `sizes`; nothing without `lanes`, as
    `cost.memory` has them. Shape [arcs]."""
    more = np.zeros(len(arcs))
    for arc in np.flatnonzero(np.isin(arcs.kind, HOLDING)) if lanes > 1 else ():
        here, there = (tensor.space.layout(int(ends[arc])) for ends in (arcs.source, arcs.target))
        value = tensor.value
        read = SpmdValue(value.name, value.dims, value.dtype, here, value.chosen)
        run = collective(KINDS[arcs.kind[arc]], here, there)
        times = sum(times for _, times in Kept(mesh, {value.name: read}, sizes).beside(value.name, run))
        more[arc] = tensor.total_bytes / float(tensor.space.space.shards[arcs.source[arc]]) * float(times)
    return more
