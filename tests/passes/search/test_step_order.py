"""Which steps run before which others: what is said to is so in every plan, however its collectives run as one."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from judge.generator import generate
from problems import drawn

from escc.compiler.plan.pipeline import program_of
from escc.cost.hardware import Convention, Hardware
from escc.ir.dataflow import reads
from escc.ir.diagnostics import Source
from escc.ir.mesh import Mesh
from escc.ir.program import Program, walk
from escc.ir.spmd import Compute, Move, SpmdProgram
from escc.passes.search.combinable import ALONE, Groups, find_knots
from escc.passes.search.derive_memory_bounds import ORDERED, LiveValues
from escc.passes.search.limits import Limits
from escc.passes.search.problem import Problem
from escc.passes.search.step_order import StepOrder, joined
from escc.passes.search.taken_products import Takings

from .test_memory_bounds import searched

LINKS = Hardware.of_paper("tpu-v4").with_network(Convention.LINKS)
ATTENTION = """
dim B = 16, L = 32, M = 32, E = 64, H = 8, Q = 16, F = 128
block layer(x: bf16[B,L,E]) -> bf16[B,L,E] {
  param Wq, Wk, Wv: bf16[E,H,Q]
  param Wo: bf16[H,Q,E]
  param Wi, Wg: bf16[E,F]
  param Wd: bf16[F,E]
  cache keys, values: bf16[B,M,H,Q]
  n = exp(x)
  q[B,L,H,Q] = n[B,L,E] * Wq[E,H,Q]
  r = exp(q)
  k[B,L,H,Q] = n[B,L,E] * Wk[E,H,Q]
  v[B,L,H,Q] = n[B,L,E] * Wv[E,H,Q]
  ks = append(keys, k, L into M)
  vs = append(values, v, L into M)
  s[B,L,H,M] = r[B,L,H,Q] * ks[B,M,H,Q]
  p = softmax(s, over=M, mask=causal(L, M))
  o[B,L,H,Q] = p[B,L,H,M] * vs[B,M,H,Q]
  a[B,L,E] = o[B,L,H,Q] * Wo[H,Q,E]
  u[B,L,F] = n[B,L,E] * Wi[E,F]
  h = gelu(u)
  d[B,L,E] = h[B,L,F] * Wd[F,E]
  return x + a + d
}
main(x: bf16[B,L,E]) {
  y = repeat 2 layer(x)
  return y
}
"""

LATE = """
dim B = 64, E = 64, F = 64
block layer(x: bf16[B,E]) -> bf16[B,E] {
  param Wh: bf16[E,F]
  param Wq, Wk: bf16[F,E]
  n = exp(x)
  h[B,F] = n[B,E] * Wh[E,F]
  m = exp(n)
  q[B,E] = h[B,F] * Wq[F,E]
  r = exp(q)
  w = r * m
  k[B,E] = h[B,F] * Wk[F,E]
  y = exp(n)
  z = exp(y)
  t = w * k * z
  return x + t
}
main(x: bf16[B,E]) {
  y = repeat 2 layer(x)
  return y
}
"""


def ordered(program: Program, phase: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Problem, Limits, StepOrder]:
    """What the search is handed for a program on 2x2 chips, and the order of its steps."""
    problem, limits = searched(program, phase, Mesh.parse("2x2"), LINKS, monkeypatch)
    as_one = ORDERED if problem.groups is None else joined(problem.groups, problem.graph, phase)
    return problem, limits, LiveValues(program, problem.graph, as_one, Takings({}, {}), 1, {}).order


def places(spmd: SpmdProgram) -> dict[str, int]:
    """Where each step stands, by what it makes."""
    steps = (placed.item for placed in walk(spmd.body))
    return {step.result: n for n, step in enumerate(steps) if isinstance(step, Compute | Move)}


def compared(problem: Problem, limits: Limits, order: StepOrder, draws: int) -> tuple[int, int]:
    """Of some plans how many pairs of steps are said to keep their order, and how many do not keep it."""
    said = turned = 0
    steps = [n for n, node in enumerate(problem.graph.nodes) if order.is_step(n) and order.repeats[n]]
    for draw in range(draws):
        at = places(limits.spell(problem.found(drawn(problem, draw)), True))
        for k, first in enumerate(steps):
            for second in steps[k + 1 :]:
                names = [problem.graph.nodes[n].name for n in (first, second)]
                keeps = order.precedes(first, second)
                assert not keeps or at[names[0]] < at[names[1]], (draw, names)
                assert not order.precedes(second, first)
                said, turned = said + keeps, turned + (at[names[0]] > at[names[1]])
    return said, turned


@pytest.mark.parametrize("seed", range(60))
def test_steps_that_are_said_to_keep_their_order_do(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem, limits, order = ordered(generate(seed).program, "main", monkeypatch)
    every = [n for n, _ in enumerate(problem.graph.nodes) if order.is_step(n)]
    for draw in range(6):
        at = places(limits.spell(problem.found(drawn(problem, draw)), True))
        for first in every:
            for second in every:
                names = [problem.graph.nodes[n].name for n in (first, second)]
                assert not order.precedes(first, second) or at[names[0]] < at[names[1]], (draw, names)


EARLY = """
dim B = 16, L = 4, M = 16, E = 64, F = 64
block layer(x: bf16[B,L,E]) -> bf16[B,L,E] {
  param Wi, Wg: bf16[E,F]
  param Wd: bf16[F,E]
  cache keys: bf16[B,M,E]
  old = max(keys, over=M)
  u[B,L,F] = x[B,L,E] * Wi[E,F]
  g[B,L,F] = x[B,L,E] * Wg[E,F]
  h = u * g
  d[B,L,E] = h[B,L,F] * Wd[F,E]
  ks = append(keys, d, L into M)
  s[B,L,M] = d[B,L,E] * ks[B,M,E]
  p = softmax(s, over=M, mask=causal(L, M))
  o[B,L,E] = p[B,L,M] * ks[B,M,E]
  return x + o * old
}
main(x: bf16[B,L,E]) { return repeat 2 layer(x) }
"""


def test_a_cache_is_there_before_what_is_appended_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    program = program_of(Source("layer.esti", EARLY))
    problem, limits, order = ordered(program, "main", monkeypatch)
    node = {each.name: n for n, each in enumerate(problem.graph.nodes)}
    reads, append = (next(n for name, n in node.items() if name.endswith(last)) for last in ("old", "ks"))
    assert reads < append and append not in order.earlier[reads] and not order.kept
    scores = next(n for name, n in node.items() if name.endswith(".s"))
    assert append in order.earlier[scores], "what reads the new version waits for it"
    said, _ = compared(problem, limits, order, 20)
    assert said > 0


def test_most_steps_of_a_layer_keep_it_and_some_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where queries wait for keys and values what is made of them does too."""
    problem, limits, order = ordered(program_of(Source("layer.esti", ATTENTION)), "main", monkeypatch)
    said, turned = compared(problem, limits, order, 40)
    assert turned > 0 and not order.kept
    steps = [n for n, _ in enumerate(problem.graph.nodes) if order.is_step(n) and order.repeats[n]]
    assert said > 0.6 * 40 * len(steps) * (len(steps) - 1) / 2
    number = {node.name: n for n, node in enumerate(problem.graph.nodes)}
    assert order.precedes(number["layer.n"], number["layer.v"])
    assert order.precedes(number["layer.u"], number["layer.h"]), "one waits for the other"
    assert order.precedes(number["layer.k"], number["layer.v"]), "both read what waits for nothing"
    assert not order.precedes(number["layer.r"], number["layer.v"]), "queries may be moved with values"


@pytest.mark.parametrize(("text", "known"), [(LATE, 0), (ATTENTION, 20)])
def test_a_value_that_is_said_to_lie_as_it_was_made_is_not_moved_before(
    text: str, known: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, limits, order = ordered(program_of(Source("layer.esti", text)), "main", monkeypatch)
    steps = [n for n, _ in enumerate(problem.graph.nodes) if order.is_step(n) and order.repeats[n]]
    seen = 0
    for draw in range(40):
        spmd = limits.spell(problem.found(drawn(problem, draw)), True)
        at = places(spmd)
        moves = [placed.item for placed in walk(spmd.body) if isinstance(placed.item, Move)]
        for tensor in problem.graph.tensors:
            first = [at[move.result] for move in moves if move.operand == tensor.value.name]
            uses = [port.node for port in tensor.uses]
            for now in steps:
                after = tensor.source.node < now and uses and all(order.precedes(now, use) for use in uses)
                if after and tensor.source.node in steps and order.unmoved(tensor, now):
                    seen += 1
                    assert all(at[problem.graph.nodes[now].name] < place for place in first)
    assert seen >= known


@pytest.mark.parametrize("text", [LATE, ATTENTION])
def test_a_value_that_is_said_to_wait_is_moved_no_further_than_to_where_it_has_been_read(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, limits, order = ordered(program_of(Source("layer.esti", text)), "main", monkeypatch)
    steps = [n for n, _ in enumerate(problem.graph.nodes) if order.is_step(n) and order.repeats[n]]
    seen = moved = 0
    for draw in range(20):
        spmd = limits.spell(problem.found(drawn(problem, draw)), True)
        at, items = places(spmd), [placed.item for placed in walk(spmd.body)]
        moves = {item.result: item for item in items if isinstance(item, Move)}
        read = {item.result: reads(item) for item in items if isinstance(item, Compute)}
        for tensor in problem.graph.tensors:
            ways = {name: way for name in moves if (way := _way(moves, name))[-1] == tensor.value.name}
            for now in steps:
                place = at[problem.graph.nodes[now].name]
                later = [port for port in tensor.uses if order.precedes(now, port.node)]
                gone = [port.node for port in tensor.uses if port.node == now or order.precedes(port.node, now)]
                if later and len(later) + len(gone) == len(tensor.uses) and order.waits(tensor, now, later):
                    names = {name for node in gone for name in read[problem.graph.nodes[node].name]}
                    known = {step for name in names for step in ways.get(name, ())}
                    assert all(name in known for name in ways if at[name] < place), (draw, tensor.value.name)
                    seen, moved = seen + bool(gone), moved + any(at[name] > place for name in ways)
    assert seen >= 20 and moved >= 20


def _way(moves: Mapping[str, Move], name: str) -> list[str]:
    """A copy, what it is made of, and so on, up to what is made by no move."""
    way = [name]
    while way[-1] in moves:
        way.append(moves[way[-1]].operand)
    return way


@pytest.mark.parametrize("seed", range(20))
def test_values_hang_together_that_groups_link(seed: int) -> None:
    """As far as one gets from value to value over groups that both may be in."""
    rng = np.random.default_rng(seed)
    of = [rng.choice(12, size=rng.integers(0, 3), replace=False) for _ in range(9)]
    values = [SimpleNamespace(name=f"v{n}") for n in range(9)]
    graph: Any = SimpleNamespace(tensors=[SimpleNamespace(phase="main", value=value) for value in values])
    arcs = [np.append(own, ALONE) for own in of]
    knot = find_knots(["main"] * 12, arcs)
    found = joined(Groups(np.ones(12), arcs, knot, frozenset(knot), np.arange(len(knot))), graph, "main")
    near = np.array([[bool(set(a) & set(b)) for b in of] for a in of])
    for _ in range(9):
        near |= (near.astype(int) @ near.astype(int)) > 0
    expected = {f"v{n}": {f"v{m}" for m in np.flatnonzero(row)} for n, row in enumerate(near) if row.sum() > 1}
    assert found == expected


def test_values_of_another_phase_say_nothing_of_one() -> None:
    """Though they are called alike."""
    knot = [("first", 0), ("second", 1)]
    arcs = [np.array([g]) for g in (0, 0, ALONE, ALONE, 1, 1)]
    values = [SimpleNamespace(phase=phase, value=SimpleNamespace(name=f"v{n}")) for phase, _ in knot for n in range(3)]
    groups = Groups(np.ones(2), arcs, knot, frozenset(knot), np.arange(2))
    graph = cast(Any, SimpleNamespace(tensors=values))
    assert joined(groups, graph, "first") == {key: {"v0", "v1"} for key in ("v0", "v1")}
    assert joined(groups, graph, "second") == {key: {"v1", "v2"} for key in ("v1", "v2")}


TWICE = """
dim B = 64, E = 64, F = 64
block layer(x: bf16[B,E]) -> bf16[B,E] {
  param Wi, Wv, Ww, Wz: bf16[E,F]
  param Wd: bf16[F,E]
  n = exp(x)
  u[B,F] = n[B,E] * Wi[E,F]
  m = exp(x)
  v[B,F] = m[B,E] * Wv[E,F]
  w[B,F] = m[B,E] * Ww[E,F]
  z[B,F] = n[B,E] * Wz[E,F]
  t = u * v * w * z
  d[B,E] = t[B,F] * Wd[F,E]
  return x + d
}
main(x: bf16[B,E]) { return repeat 2 layer(x) }
"""


def test_two_copies_of_one_value_may_be_made_as_one_and_wait_for_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then what reads the second one runs where the first one is read."""
    _, _, order = ordered(program_of(Source("layer.esti", TWICE)), "main", monkeypatch)
    number = {node.name: n for n, node in enumerate(order.graph.nodes)}
    assert {"layer.n", "layer.m"} <= (order.joined or {}).get("layer.n", frozenset())
    assert order.precedes(number["layer.m"], number["layer.w"]) and order.precedes(number["layer.n"], number["layer.z"])
    assert not order.precedes(number["layer.m"], number["layer.z"])
