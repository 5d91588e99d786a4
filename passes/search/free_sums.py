"""Sums by groups of experts as if they were made in one step with what they come to: of these plans the cheapest bounds
all, with such sums and without them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...cost.hardware import Hardware
from ...cost.hidden import shown
from ...cost.kernels import launches
from ...ir.dataflow import ops
from ...ir.mesh import Mesh
from ...ir.program import Op, Phase, Program, operand_names, walk
from ...ir.spmd import unsharded
from .graph import Graph, seconds_of


def with_free_sums(
    graph: Graph, program: Program, there: Program, phase: Phase, calls: int, mesh: Mesh, hardware: Hardware
) -> Graph:
    """The graph of a phase that runs a `program` with sums by groups, or the part of a graph that is that phase's, in
    which to make the sums takes no longer than what they come to takes in `there`, the same program without them, and
    to sum them nothing. So a plan of `there` costs no less than that plan of this graph in which the sums lie as there
    what they come to, and are never moved. `calls`: how often the phase counts."""
    sizes = dict(phase.sizes)
    mean, values = sizes | dict(phase.mean), program.table()
    made = {op.result: op for op in ops(there)}
    summed = _summed(program, there)
    times = {item.result: placed.times for placed in walk(program.body) if isinstance(item := placed.item, Op)}
    ours, theirs = launches(program, sizes), launches(there, sizes)
    seen = shown(unsharded(program, phase.name, mesh))
    nodes = list(graph.nodes)
    for n, node in enumerate(nodes):
        op = node.item
        if node.phase not in (None, phase.name) or not isinstance(op, Op) or node.table is None:
            continue
        if op.result in summed.values():
            nodes[n] = replace(node, seconds=np.zeros(len(node.seconds)))
            continue
        own = made[summed.get(op.result, op.result)]
        if own is op and theirs[op.result] == ours[op.result]:
            continue
        launch, masks = theirs[own.result], seen.get(op.result)
        once_s = seconds_of(own, node.table, values, mean, launch, hardware, masks)
        nodes[n] = replace(node, seconds=np.minimum(node.seconds, calls * times[op.result] * once_s))
    return replace(graph, nodes=tuple(nodes))


def free_sums_bytes(graph: Graph, program: Program, there: Program, phase: Phase) -> float:
    """What the sums by groups, and what they come to, take on a chip at the most, in bytes: so much more than without
    them a plan may hold."""
    summed = _summed(program, there)
    names = {*summed, *summed.values()}
    return sum(t.total_bytes for t in graph.tensors if t.phase in (None, phase.name) and t.value.name in names)


def _summed(program: Program, there: Program) -> dict[str, str]:
    """By sums by groups what they come to, of all that a program has and `there` has not."""
    more = program.table().keys() - there.table().keys()
    return {name: op.result for op in ops(program) for name in operand_names(op) if name in more}
