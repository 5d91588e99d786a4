"""Where a relaxation begins: nothing costs less than it takes, and it begins no higher than the optimum."""

from __future__ import annotations

import numpy as np
import pytest

from escc.compiler.plan.pipeline import load
from escc.cost.hardware import Hardware
from escc.cost.network import Network
from escc.ir.mesh import Mesh
from escc.passes.ilp.model import continuous, shifted
from escc.passes.ilp.solver import Settings, solve
from escc.passes.search.dual_ascent import DualAscent
from escc.passes.search.graph import build_graph
from escc.passes.search.integer_program import choice_program
from escc.passes.search.join_phases import join_phases
from escc.passes.search.prices import all_moves
from escc.passes.search.row_worths import row_worths
from escc.passes.search.steiner import Distances


@pytest.mark.parametrize("sweeps", [0, 1, 6])
@pytest.mark.parametrize("model", ["palm-540b", "llama-3-8b"])
def test_no_column_costs_less_than_it_takes(model: str, sweeps: int) -> None:
    hardware = Hardware.load("tpu-v4")
    program, mesh = load(model), Mesh.parse("4")
    graph = join_phases([build_graph(program, "decode", mesh, hardware)], [program.phase("decode")])
    moves = all_moves({"decode": program}, graph, Network(hardware, mesh))
    assert moves.groups is not None
    near = [None if a is None else Distances(a, s) for a, s in zip(moves.arcs, moves.seconds, strict=True)]
    prices = [node.seconds for node in graph.nodes]
    ascent = DualAscent(graph, prices, near, moves.groups)
    for _ in range(sweeps):
        ascent.sweep()
    flows = [None if d is None else (d.arcs, d.price) for d in near]
    program_ = choice_program(graph, prices, flows, moves.groups)
    arcs = {t: np.ones(len(d.price), dtype=bool) for t, d in enumerate(near) if d is not None}
    worth = row_worths(program_, ascent, arcs, 1.0)
    relaxed = continuous(program_.model)
    left, taken = shifted(relaxed, worth)
    scale = ascent.bound()
    assert left.cost.min() >= -1e-9 * scale
    optimum = solve(relaxed, Settings()).bound
    assert 0 < taken <= optimum * (1 + 1e-9)
    assert taken >= scale * (1 - 0.01), "what the ascent has shown is not lost where one copy serves several uses"
    assert np.count_nonzero(left.cost <= 1e-9 * scale) < 0.5 * len(left.cost)
