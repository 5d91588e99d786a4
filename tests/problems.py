"""Problems of the search, of models that are given as text."""

from __future__ import annotations

import math

import numpy as np

from escc.compiler.plan.pipeline import parse
from escc.cost.hardware import Hardware
from escc.cost.memory import memory
from escc.cost.network import Network
from escc.ir.diagnostics import InputError
from escc.ir.mesh import Mesh
from escc.ir.program import Program
from escc.ir.verify.verify import verify
from escc.passes.choose import choose
from escc.passes.ilp.solver import Settings
from escc.passes.lower.insert import insert
from escc.passes.options import Options
from escc.passes.plan import Plan
from escc.passes.search.dual_ascent import DualAscent
from escc.passes.search.graph import build_graph
from escc.passes.search.join_phases import join_phases
from escc.passes.search.prices import all_moves
from escc.passes.search.problem import Problem
from escc.passes.search.steiner import Distances

# A feed-forward whose products a pointwise op alone reads.
GATED = """
dim B = 64, E = 32, F = 128
block layer(x: bf16[B,E]) -> bf16[B,E] {
  param Wi, Wg: bf16[E,F]
  param Wd: bf16[F,E]
  n = exp(x)
  u[B,F] = n[B,E] * Wi[E,F]
  g[B,F] = n[B,E] * Wg[E,F]
  h = silu(g) * u
  d[B,E] = h[B,F] * Wd[F,E]
  return x + d
}
main(x: bf16[B,E]) {
  y = repeat 2 layer(x)
  return y
}
"""


def problem_of(text: str, chips: str, hardware: str = "tpu-v4", phase: str = "main") -> Problem:
    """The problem of the only phase of a model, without pins, whatever memory chips have."""
    chip, mesh, program = Hardware.load(hardware), Mesh.parse(chips), parse(text)
    graph = join_phases([build_graph(program, phase, mesh, chip)], [program.phase(phase)])
    moves = all_moves({phase: program}, graph, Network(chip, mesh))
    known: dict[tuple[int, bytes], Distances] = {}
    near = [
        None if arcs is None else known.setdefault((id(arcs), s.tobytes()), Distances(arcs, s))
        for arcs, s in zip(moves.arcs, moves.seconds, strict=True)
    ]
    return Problem(graph, [node.seconds for node in graph.nodes], near, Settings(), None, moves.groups)


def drawn(problem: Problem, seed: int) -> tuple[int, ...]:
    """Some plan."""
    rng = np.random.default_rng(seed)
    prices = [rng.random(len(p)) for p in problem.prices]
    scale = 10.0 ** rng.integers(-2, 3)
    scaled = [None if d is None else d.price * scale / d.price.max(initial=1e-30) for d in problem.distances]
    pairs = zip(problem.distances, scaled, strict=True)
    near = [None if d is None or p is None else Distances(d.arcs, p) for d, p in pairs]
    ascent = DualAscent(problem.graph, prices, near)
    plan = tuple(ascent.round())
    assert math.isfinite(ascent.price_of(plan))
    return plan


def planned_within(program: Program, mesh: Mesh, hardware: Hardware, capacity: float) -> Plan | InputError:
    """The plan of a program for chips of so many bytes, which keeps to them, or why there is none."""
    try:
        plan = choose(program, "main", mesh, Options(hardware, capacity_bytes=capacity))
    except InputError as error:
        return error
    (spmd,) = insert(plan)
    verify(spmd, program)
    assert memory(spmd).total_bytes <= capacity
    return plan
