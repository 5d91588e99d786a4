"""Attention in a row: what waits for nothing of it is made before its maximum, and all else after its product."""

from __future__ import annotations

import numpy as np
import pytest

from escc.compiler.simulate.reference import run_reference
from escc.cost.attention import attentions
from escc.cost.blocks import in_blocks, perhaps_in_blocks
from escc.ir.diagnostics import Source
from escc.ir.mesh import Mesh
from escc.ir.program import Program
from escc.ir.spmd import unsharded
from escc.ir.text.read import parse
from escc.passes.expansion.attention_order import in_a_row
from escc.passes.expansion.expand import expand
from escc.passes.expansion.orders import in_order

HEAD = """
model "attending"
dim B = 2, L = {new}, M = 8192, H = 8, Q = 8, C = 16, E = 12
main(q: f32[B,L,H,Q], x: f32[B,L,C], n: f32[B,L,E]) {{
  param Wv: f32[C,H,Q]
  param We: f32[E,Q]
  cache keys: f32[B,M,C]
  cache others: f32[B,M,Q]
  v[B,L,Q] = n[B,L,E] * We[E,Q]
  ks = append(keys, x, L into M)
  s[B,L,H,M] = q[B,L,H,Q] * Wv[C,H,Q] * ks[B,M,C]
"""
LATENT = """\
  vs = append(others, v, L into M)
  p = softmax(s, over=M)
  o[B,L,H,Q] = p[B,L,H,M] * ks[B,M,C] * Wv[C,H,Q]
  return o, vs
"""
APART = """\
  vs = append(others, v, L into M)
  p = softmax(s, over=M)
  z = v * 2
  o[B,L,H,Q] = p[B,L,H,M] * vs[B,M,Q]
  return o, z
"""
OVERWRITTEN = """\
  p = softmax(s, over=M)
  z[B,Q] = others[B,M,Q]
  vs = append(others, v, L into M)
  o[B,L,H,Q] = p[B,L,H,M] * vs[B,M,Q]
  return o, z
"""
AMONG = """\
  vs = append(others, v, L into M)
  t[B,L,M] = q[B,L,H,Q] * vs[B,M,Q]
  m = choose(t, over=M, keep=64)
  p = softmax(s, over=M, among=m)
  o[B,L,H,Q] = p[B,L,H,M] * vs[B,M,Q]
  return o
"""


def program(rest: str, new: int = 4096) -> Program:
    source = Source("a.esti", HEAD.format(new=new) + rest + "}\n")
    return expand(parse(source), source)


def made(one: Program) -> list[str]:
    return [item.result for item in one.body.items]  # type: ignore[union-attr]


def test_values_multiplied_out_of_a_latent_cache_are_there_before_the_maximum() -> None:
    one = in_order(program(LATENT), "main")
    order = made(one)
    assert order.index("o.part1") < order.index("p.max")
    assert len(attentions(unsharded(one, "main", Mesh.parse("1")))) == 1


def test_what_has_nothing_to_do_with_attention_comes_after_it() -> None:
    plain = program(APART)
    order = made(in_order(plain, "main"))
    assert order[order.index("p.max") :] == ["p.max", "p.exp", "p.sum", "p", "o", "z"]
    assert set(made(plain)) <= set(order)


@pytest.mark.parametrize("rest", [LATENT, APART])
def test_the_order_changes_no_number(rest: str) -> None:
    one = program(rest)
    small = dict(one.phases[0].sizes) | {"L": 3, "M": 5}
    rng = np.random.default_rng(0)
    dims = {value.name: value.dims for value in one.values}
    given = {s.value: rng.standard_normal([small[d] for d in dims[s.value]]) for s in one.body.stored}
    found, plain = run_reference(in_order(one, "main"), small, given), run_reference(one, small, given)
    for name in one.results:
        np.testing.assert_allclose(found[name], plain[name], rtol=1e-10)


def test_a_program_in_a_row_and_one_with_few_scores_are_left_as_they_are() -> None:
    row = in_order(program(LATENT), "main")
    assert in_a_row(row, "main") is row
    order = made(in_order(program(APART, new=1), "main"))
    assert order.index("z") < order.index("o")


def test_what_an_append_overwrites_keeps_its_place() -> None:
    one = program(OVERWRITTEN)
    assert in_a_row(one, "main") is one


@pytest.mark.parametrize("rest", [APART, AMONG])
def test_scores_that_may_be_in_blocks_are_those_that_blocks_are_made_of(rest: str) -> None:
    spmd = unsharded(in_order(program(rest), "main"), "main", Mesh.parse("1"))
    rows = {"p.max", "p.sum"}
    assert perhaps_in_blocks(spmd) == {name for one in in_blocks(spmd) for name in one.unmade} | rows
    assert perhaps_in_blocks(spmd) - rows >= {"s", "p.exp", "p"}
