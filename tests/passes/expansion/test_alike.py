"""What functions share of what they make alike: nothing that blocks of attention are made of."""

from __future__ import annotations

import pytest

from escc.cost.attention import attentions
from escc.cost.summed_scores import summed_scores
from escc.ir.diagnostics import Source
from escc.ir.mesh import Mesh
from escc.ir.program import Program
from escc.ir.spmd import unsharded
from escc.ir.text.read import parse
from escc.passes.expansion.expand import expand

FRAME = """\
dim B = 1, L = 4096, M = 4096, H = 4, Q = 8
cache keys, vals: bf16[B,M,H,Q]
block two(q: bf16[B,L,H,Q], ks: bf16[B,M,H,Q], vs: bf16[B,M,H,Q], z: f32[H]) -> bf16[B,L,H,Q] {
  s[B,L,H,M] = q[B,L,H,Q] * ks[B,M,H,Q]
%s
}
main(q: bf16[B,L,H,Q], k: bf16[B,L,H,Q], z: f32[H]) {
  return two(q, append(keys, k, L into M), append(vals, k, L into M), z)
}
"""
SUMS = """  o[B,L,H,Q] = p[B,L,H,M] * vs[B,M,H,Q]
  r[B,L,H,Q] = w[B,L,H,M] * vs[B,M,H,Q]
  return o + r"""
SHARES = {
    "scores in a function": ("s / sqrt(size(Q))", ""),
    "a sink": ("s / 8", ", sink=2 * z"),
    "capped scores": ("30 * tanh(s / 30)", ""),
}


def program(lines: str) -> Program:
    source = Source("test.esti", FRAME % lines)
    return expand(parse(source), source)


@pytest.mark.parametrize("name", SHARES)
def test_two_softmaxes_of_the_same_scores_run_in_blocks_each(name: str) -> None:
    scores, rest = SHARES[name]
    both = f"  p = softmax({scores}, over=M{rest})\n  w = softmax({scores}, over=M{rest})\n"
    found = attentions(unsharded(program(both + SUMS), "main", Mesh.parse("1")))
    assert [one.product.result for one in found] == ["two.o", "two.r"]
    assert not found[0].unmade & found[1].unmade
    assert {one.largest.result for one in found} == {"two.p.max", "two.w.max"}


def test_what_two_sums_over_heads_have_alike_runs_in_blocks_in_each() -> None:
    lines = """  p = sum(relu(s / 8), over=H)
  w = mean(relu(s / 8), over=H)
  a[B,L,H,Q] = p[B,L,M] * vs[B,M,H,Q]
  b[B,L,H,Q] = w[B,L,M] * vs[B,M,H,Q]
  return a + b"""
    found = summed_scores(unsharded(program(lines), "main", Mesh.parse("1")))
    assert not found[0].unmade & found[1].unmade
    assert [one.sum.result for one in found] == ["two.p", "two.w.sum"]
