"""A plan read off what the search has chosen: layouts, and the collectives between them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...ir.layout import Layout
from ...ir.program import Carry, Phase, Program, Stored
from ..layouts.reshard import KINDS, collective
from ..plan import HandoverPlan, Leg, Objective, OpPlan, PhasePlan, Tree
from .combinable import ALONE
from .graph import Graph, Handover, Result
from .join_phases import view
from .prices import Moves
from .problem import Candidate, Problem
from .tree_costs import TreeCosts, Trees

ROUNDED = 1e-9  # relative: what sums of one price differ by


def paid_by(found: Candidate, problem: Problem, moves: Moves, trees: Trees) -> TreeCosts:
    """The bill of what `found` is, a plan of `problem`: its cheapest `trees` of all `moves`. Where collectives run as
    one not all trees are looked at, and the search may know cheaper ones, of the fewer arcs that it has; then those,
    since they are what it has priced."""
    paid = trees.bill(found.chosen, found.shared, dict(found.detours))
    apart = sum(float(p[c]) for p, c in zip(problem.prices, found.chosen, strict=True))
    if found.detours or apart + sum(moves.prices(paid)) <= found.price * (1 + ROUNDED):
        return paid
    known = problem.trees.bill(found.chosen, found.shared)
    own = {t: _among_all(t, tree, problem, moves) for t, tree in enumerate(known.arcs) if tree}
    return trees.bill(found.chosen, known.shared, own)


def _among_all(t: int, tree: Sequence[int], problem: Problem, moves: Moves) -> tuple[int, ...]:
    """A tree of the arcs that the search has, as one of all arcs of a tensor."""
    every, near = moves.arcs[t], problem.distances[t]
    assert every is not None and near is not None, "what is read may move"
    some = near.arcs
    same = [
        np.flatnonzero(
            (every.source == some.source[arc])
            & (every.target == some.target[arc])
            & (every.kind == some.kind[arc])
            & (every.axes == some.axes[arc])
        )
        for arc in tree
    ]
    return tuple(int(each[0]) for each in same)


def read_phase(
    phase: str,
    program: Program,
    calls: int,
    moves: Moves,
    paid: TreeCosts,
    problem: Problem,
    found: Candidate,
    objective: Objective,
) -> PhasePlan:
    """The plan of a phase, which runs `program` and is called `calls` times, in what `found` is; `paid`: the trees of
    that, of all `moves`."""
    chosen, graph = found.chosen, problem.graph
    own = {t.value.name: t for t in graph.tensors if t.phase == phase}
    ops, carries, results = [], [], []
    price = 0.0
    for n, node in enumerate(graph.nodes):
        if node.phase != phase:
            continue
        price += float(problem.prices[n][chosen[n]])
        match node.item:
            case Result(value):
                port = next(u for u in own[value].uses if u.node == n)
                results.append((value, own[value].space.layout(int(port.rows[chosen[n]]))))
            case Carry(_, inside, _, _):
                tensor = own[inside]
                carries.append((inside, tensor.space.layout(int(tensor.source.rows[chosen[n]]))))
            case Stored():
                pass
            case _:
                table, row = node.table, chosen[n]
                assert table is not None
                uses = tuple(table.use_layout(row, k) for k in range(len(table.signature.uses)))
                ops.append(OpPlan(node.name, uses, table.result_layout(row)))
    alone = all(node.phase == phase for node in graph.nodes)
    legs, moved = _moved(phase, graph, moves, paid, chosen)
    price = (price + moved) / calls
    bound = min(price, found.bound / calls) if alone else None
    if objective is Objective.MEMORY:
        shown = view(graph, phase)
        nodes = ((n.stored_bytes, c) for n, c in zip(shown.nodes, chosen, strict=True))
        price, bound = sum(float(size[c]) for size, c in nodes if size is not None), least_bytes(shown)
    return PhasePlan(phase, program, tuple(ops), legs, tuple(carries), tuple(results), price, bound)


def read_handovers(
    phases: Sequence[Phase], moves: Moves, paid: TreeCosts, problem: Problem, found: Candidate
) -> tuple[HandoverPlan, ...]:
    """How caches go from each phase to the next."""
    calls = {phase.name: phase.calls for phase in phases}
    out = []
    for handover in dict.fromkeys(t.phase for t in problem.graph.tensors if isinstance(t.phase, Handover)):
        legs, price = _moved(handover, problem.graph, moves, paid, found.chosen)
        out.append(HandoverPlan(handover.before, handover.after, legs, price / calls[handover.before]))
    return tuple(out)


def _moved(
    phase: str | Handover, graph: Graph, moves: Moves, paid: TreeCosts, chosen: Sequence[int]
) -> tuple[tuple[Tree, ...], float]:
    """How the tensors of a phase move, and what that costs."""
    own = [t for t, tensor in enumerate(graph.tensors) if tensor.phase == phase]
    legs = tuple(_tree(t, graph, moves, graph.tensors[t].ends(chosen)[0], paid) for t in own)
    prices = moves.prices(paid)
    return legs, sum(prices[t] for t in own)


def _tree(t: int, graph: Graph, moves: Moves, root: int, paid: TreeCosts) -> Tree:
    """How one tensor moves."""
    tensor, arcs, legs = graph.tensors[t], moves.arcs[t], []
    for arc, group in zip(paid.arcs[t], paid.groups[t], strict=True):
        assert arcs is not None
        before, after = (tensor.space.layout(int(end[arc])) for end in (arcs.source, arcs.target))
        done = collective(KINDS[int(arcs.kind[arc])], before, after)
        legs.append(Leg(before, after, done, None if group == ALONE else group))
    return Tree(tensor.value.name, tensor.space.layout(root), tuple(legs))


def stored_layouts(graph: Graph, chosen: Sequence[int]) -> tuple[tuple[str, Layout], ...]:
    """The layout in which each parameter, cache and input is stored."""
    out = []
    for tensor in graph.tensors:
        node = graph.nodes[tensor.source.node]
        if isinstance(node.item, Stored) or node.stored == tensor.value.name:
            out.append((tensor.value.name, tensor.space.layout(int(tensor.source.rows[chosen[tensor.source.node]]))))
    return tuple(out)


def least_bytes(graph: Graph) -> float:
    """The bytes that parameters and caches take on a chip at least."""
    return sum(float(n.stored_bytes.min()) for n in graph.nodes if n.stored_bytes is not None)
