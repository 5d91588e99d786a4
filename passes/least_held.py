"""What all plans of a phase hold on a chip at the least, as is known before any is looked for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..ir.mesh import Mesh
from ..ir.program import Program
from .expansion.once import sent_once
from .expansion.orders import Orders
from .layouts.space import Mask
from .options import Options
from .search.derive_memory_bounds import needs
from .search.graph import build_graph
from .search.memory_bounds import MemoryBounds


def least_live_bytes(program: Program, phase: str, mesh: Mesh, options: Options) -> float:
    """What every plan of a phase holds on a chip at the least, beside what is stored, where it holds most; 0 where its
    products may be in several orders, or tokens go once to groups of experts: it is not looked at then."""
    known = _needs(program, phase, mesh, options)
    return 0.0 if known is None else known[0].worst(known[1])[1]


def may_fit(program: Program, phase: str, mesh: Mesh, options: Options) -> bool:
    """Whether a phase may have a plan within the memory of a chip, by all that is known of what choices take together;
    True where `least_live_bytes` does not look."""
    known = _needs(program, phase, mesh, options)
    return known is None or known[0].tightened(known[1], options.capacity, options.stored_bytes) is not None


def _needs(program: Program, phase: str, mesh: Mesh, options: Options) -> tuple[MemoryBounds, Sequence[Mask]] | None:
    """What plans hold, and all choices that they have; None where it is not looked at."""
    orders = Orders(program)
    ordered = orders.ordered(phase)
    if orders.choices(phase) or sent_once(ordered, phase) is not None:
        return None
    graph = build_graph(ordered, phase, mesh, options.hardware)
    every = [np.ones(len(node.seconds), dtype=bool) for node in graph.nodes]
    hardware = options.hardware
    return needs(ordered, phase, mesh, graph, None, hardware.lanes, hardware.fuses_products), every
