"""What collectives cost together: trees beside shortest paths that know what has been combined, and plans beside what
the search has priced."""

from __future__ import annotations

import math
import random
from functools import cache
from typing import Any

import pytest
from problems import problem_of

from escc.compiler.plan.pipeline import parse
from escc.cost.hardware import Hardware
from escc.ir.diagnostics import Source
from escc.ir.mesh import Mesh
from escc.ir.text.pins import parse_pins
from escc.passes.choose import choose
from escc.passes.options import Options
from escc.passes.search import tree_costs
from escc.passes.search.combinable import ALONE
from escc.passes.search.prices import Moves
from escc.passes.search.problem import Problem
from escc.passes.search.tree_costs import Trees

LATENT = """
dim B = 64, L = 1, M = 4096
dim E = 2048, H = 16, Q = 128, P = 64, R = 512, V = 128
block attention(x: bf16[B,L,E]) -> bf16[B,L,E] {
  param Wq: bf16[E,H,Q]
  param Wqr: bf16[E,H,P]
  param Wc: bf16[E,R]
  param Wkr: bf16[E,P]
  param Wuk: bf16[R,H,Q]
  param Wuv: bf16[R,H,V]
  param Wo: bf16[H,V,E]
  cache latents: bf16[B,M,R]
  cache turned: bf16[B,M,P]
  q[B,L,H,Q]  = x[B,L,E] * Wq[E,H,Q]
  qr[B,L,H,P] = x[B,L,E] * Wqr[E,H,P]
  c[B,L,R]    = x[B,L,E] * Wc[E,R]
  kr[B,L,P]   = x[B,L,E] * Wkr[E,P]
  cs = append(latents, c, L into M)
  ks = append(turned, rope(kr, over=P, at=L into M), L into M)
  rq = rope(qr, over=P, at=L into M)
  s1[B,L,H,M] = q[B,L,H,Q] * Wuk[R,H,Q] * cs[B,M,R]
  s2[B,L,H,M] = rq[B,L,H,P] * ks[B,M,P]
  p = softmax((s1 + s2) / sqrt(size(Q) + size(P)), over=M, mask=causal(L, M))
  o[B,L,H,V] = p[B,L,H,M] * cs[B,M,R] * Wuv[R,H,V]
  a[B,L,E]   = o[B,L,H,V] * Wo[H,V,E]
  return x + a
}
main(x: bf16[B,L,E]) { return repeat 3 attention(x) }
"""
PINS = """
use attention.p.sum.exp [B/gpu.node, L, H, M]
use attention.kr.x [B/node, L, E/gpu]
"""


def _least(problem: Problem, t: int, root: int, target: int, open_: frozenset[int]) -> float:
    """The cheapest path that saves the latency of each open group once, and of groups in their order."""
    near, groups = problem.distances[t], problem.groups
    assert near is not None and groups is not None
    of = groups.of[t]
    assert of is not None
    arcs = list(
        zip(near.arcs.source.tolist(), near.arcs.target.tolist(), near.price.tolist(), of.tolist(), strict=True)
    )
    known, changed = {root: {ALONE: 0.0}}, True  # of each layout the price by the last group
    while changed:
        changed = False
        for source, there, price, group in arcs:
            lead = group if group == ALONE else int(groups.lead[group])
            for last, before in list(known.get(source, {}).items()):
                saves = group in open_ and lead > last
                after = before + price - (float(groups.latency_s[group]) if saves else 0.0)
                own = known.setdefault(there, {})
                if after < own.get(max(last, lead), math.inf):
                    own[max(last, lead)], changed = after, True
    return min(known.get(target, {}).values(), default=math.inf)


@pytest.mark.parametrize("chips", ["node=2,gpu=2", "node=2,gpu=4"])
def test_a_tree_to_one_layout_is_the_cheapest_path_that_combines(chips: str) -> None:
    problem, rng, several = problem_of(LATENT, chips, "h100"), random.Random(1), 0
    assert problem.groups is not None
    for _ in range(150):
        t = rng.choice([t for t, some in enumerate(problem.trees.joinable) if some])
        near, of = problem.distances[t], problem.groups.of[t]
        assert near is not None and of is not None
        root, target = rng.choice(near.arcs.source.tolist()), rng.choice(near.arcs.target.tolist())
        open_ = frozenset(group for group in problem.trees.joinable[t] if rng.random() < 0.7)
        least = _least(problem, t, root, target, open_)
        if root == target or least == math.inf:
            continue
        tree = problem.trees._tree(t, root, frozenset({target}), open_)
        own = tree_costs._combined(root, near, problem.groups.led(of), tree)
        joined = (int(of[arc]) for arc, lead in zip(tree, own, strict=True) if lead != ALONE)
        saved = sum(float(problem.groups.latency_s[group]) for group in joined if group in open_)
        assert float(near.price[list(tree)].sum()) - saved == pytest.approx(least, rel=1e-9)
        several += len(tree) > 1 and saved > 0
    assert several >= 10


def test_a_plan_pays_what_the_search_has_priced_though_trees_of_all_arcs_cost_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program, mesh, hardware = parse(LATENT), Mesh.parse("node=2,gpu=4"), Hardware.load("h100")
    pins = parse_pins(Source("test.pins", PINS), program)
    plan = choose(program, "main", mesh, Options(hardware, pins=pins))
    assert plan.gap <= 1e-9
    inner = Moves.trees

    def plain(*given: Any, **named: Any) -> Trees:
        trees = inner(*given, **named)
        trees._tree = cache(lambda t, root, targets, _: trees._find(t, root, targets, frozenset()))
        return trees

    monkeypatch.setattr(Moves, "trees", plain)
    again = choose(program, "main", mesh, Options(hardware, pins=pins))
    assert again.price == pytest.approx(plan.price, rel=1e-9)
