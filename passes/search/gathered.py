"""What chips take to gather what each fetched a part of from its host, as a price of how parameters are stored."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...cost.estimate import local_bytes
from ...cost.hardware import Hardware
from ...cost.network import Network
from ...ir.collective import CollectiveKind
from ...ir.layout import Layout
from ...ir.mesh import Mesh
from ...ir.program import Kind, Program, Stored, stored_in
from ...ir.spmd import SpmdProgram, unsharded
from ...ir.streams import host_tensor
from .graph import Graph


def with_gathers(graph: Graph, program: Program, phase: str, mesh: Mesh, hardware: Hardware, weight: float) -> Graph:
    """The graph of a phase in which a layout of a parameter that is streamed also costs what gathering takes, times a
    `weight`: the least that its bytes add to what is gathered with them, in all repetitions that are streamed. So no
    plan costs more than it computes and gathers, weighted, and the cheapest bounds them all."""
    plain, network, nodes = unsharded(program, phase, mesh), Network(hardware, mesh), list(graph.nodes)
    held = stored_in(program.body, Kind.PARAM)
    for tensor in graph.tensors:
        n = tensor.source.node
        item = nodes[n].item
        if isinstance(item, Stored) and item in held and item.streamed is not None:
            rows = tensor.source.rows
            known = {k: _gather_s(plain, item, network, tensor.space.layout(int(k))) for k in np.unique(rows)}
            gathered_s = np.array([known[k] for k in rows])
            nodes[n] = replace(nodes[n], seconds=nodes[n].seconds + weight * item.streamed.count * gathered_s)
    return replace(graph, nodes=tuple(nodes))


def _gather_s(plain: SpmdProgram, stored: Stored, network: Network, layout: Layout) -> float:
    """What gathering one repetition of a tensor that lies so on the chips takes at the least."""
    value = replace(plain.table()[stored.value], layout=layout)
    one = host_tensor(plain, stored, stored_in(plain.body)[stored], value, None)
    axes, size = one.gathered_axes, float(local_bytes(value, plain))
    if not axes:
        return 0.0
    ways = network.mesh.size(*axes)
    return float(network.least_added_s(CollectiveKind.ALL_GATHER, axes, size / ways, size))
