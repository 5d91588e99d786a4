"""Tokens that go once to a group of experts: the same numbers, and where nothing is to be gained."""

from __future__ import annotations

import numpy as np
import pytest

from escc.compiler.plan.pipeline import parse
from escc.compiler.simulate.reference import random_stored, run_reference
from escc.ir.program import Einsum, Reduce, walk
from escc.passes.expansion.once import Way, sent_once, ways_of

LAYER = """
dim B = 6, L = 2, E = 5, N = 3, Y = 4, F = 7
dim X = N * Y
block layer(n: f32[B,L,E]) -> f32[B,L,E] {
  param Wr: f32[E,X]
  param Wi: f32[X,E,F]
  param Wd: f32[X,F,E]
  param bd: f32[X,E]
  s[B,L,X] = n[B,L,E] * Wr[E,X]
  m = choose(s, over=X, keep=3)
  w = m * exp(s)
  e[B,L,X,E] = SENT
  u[B,L,X,F] = e[B,L,X,E] * Wi[X,E,F]
  h = relu(u)
  d[B,L,X,E] = h[B,L,X,F] * Wd[X,F,E]
  y[B,L,E] = BACK
  b[B,L,E] = w[B,L,X] * bd[X,E]
  return n + y + b
}
main(n: f32[B,L,E]) { return repeat 2 layer(n) }
"""
SENT, BACK = "m[B,L,X] * n[B,L,E]", "w[B,L,X] * d[B,L,X,E]"
WAYS = {
    "there and back": (SENT, BACK),
    "with weights before": ("n[B,L,E] * w[B,L,X]", "d[B,L,X,E]"),
    "back by a matrix": (SENT, "h[B,L,X,F] * Wd[X,F,E]"),
}


@pytest.mark.parametrize("way", WAYS)
def test_sent_once_it_computes_the_same(way: str) -> None:
    there, back = WAYS[way]
    program = parse(LAYER.replace("SENT", there).replace("BACK", back))
    once = sent_once(program, "main")
    assert once is not None
    sizes = dict(program.phase("main").sizes)
    stored = random_stored(program, sizes, 3)
    expected, found = (run_reference(one, sizes, stored) for one in (program, once))
    assert all(np.allclose(found[name], array, rtol=1e-12) for name, array in expected.items())
    items = [placed.item for placed in walk(once.body)]
    [blocks] = [item for item in items if isinstance(item, Reduce)]
    made = {item.result: item for item in items if isinstance(item, Einsum)}
    assert made["layer.e.sent"].operands[0] == blocks.result and "layer.e.sent" in made["layer.e"].operands
    assert made["layer.y"].operands == ("layer.y.sums",)
    assert made["layer.b"] in [placed.item for placed in walk(program.body)]  # which nobody sends
    values = once.table()
    chosen = {name: values[name].chosen[0] for name in ("layer.e.sent", "layer.e", "layer.y.sums")}
    assert [one.over for one in chosen.values()] == [("N",), ("N", "Y"), ("N",)]


@pytest.mark.parametrize("way", [Way.THERE, Way.BOTH])
def test_each_mask_sends_in_its_own_way_and_computes_the_same(way: Way) -> None:
    dims, layer = LAYER.replace("SENT", SENT).replace("BACK", BACK).split("main")[0].split("block", 1)
    other = layer.replace("layer", "other").replace("X", "V").replace("keep=3", "keep=2")
    main = "main(n: f32[B,L,E]) {\n a = repeat 1 layer(n)\n return repeat 1 other(a)\n}\n"
    program = parse(f"{dims}dim M = 2, Z = 3\ndim V = M * Z\nblock{layer}block{other}{main}")
    sizes = dict(program.phase("main").sizes)
    every = (Way.EACH, Way.THERE, Way.BOTH)
    assert ways_of(program, "main") == {"layer.m": every, "other.m": every}
    stored = random_stored(program, sizes, 3)
    expected = run_reference(program, sizes, stored)
    once = sent_once(program, "main", {"other.m": way})
    assert once is not None
    found = run_reference(once, sizes, stored)
    assert all(np.allclose(found[name], array, rtol=1e-12) for name, array in expected.items())
    sums = {"other.y.sums"} if way is Way.BOTH else set()
    assert once.table().keys() - program.table().keys() == {"other.m.blocks", "other.e.sent", *sums}


NOT_GAINED = {
    "one expert each": ("keep=3", "keep=1"),
    "experts in no groups": ("X = N * Y", "X = 12"),
    "groups of one": ("Y = 4", "Y = 1"),
    "experts that are padded": ("N = 3,", "N = 3 pad 4,"),
    "tokens that nobody multiplies": (SENT, "m[B,L,X] * Wi[X,E,F] * n[B,L,E]"),
}


@pytest.mark.parametrize("why", NOT_GAINED)
def test_where_nothing_is_gained_nothing_is_written(why: str) -> None:
    before, after = NOT_GAINED[why]
    text = LAYER.replace("SENT", SENT).replace("BACK", BACK)
    assert before in text
    if why == "tokens that nobody multiplies":
        text = text.replace("e[B,L,X,E] = " + before + "\n", "")
        text = text.replace("u[B,L,X,F] = e[B,L,X,E] * Wi[X,E,F]", "u[B,L,X,F] = " + after)
    else:
        text = text.replace(before, after)
    assert sent_once(parse(text), "main") is None


def test_masks_over_padded_dims_leave_others_alone() -> None:
    layer = LAYER.replace("SENT", SENT).replace("BACK", BACK).replace("Y = 4,", "Y = 4, M = 3 pad 4, Z = 4,")
    layer = layer.replace("  return n + y + b", PADDED).replace("dim X = N * Y", "dim X = N * Y\ndim V = M * Z")
    program = parse(layer)
    assert list(ways_of(program, "main")) == ["layer.m"]
    once = sent_once(program, "main")
    assert once is not None and "layer.e.sent" in once.table() and "layer.k.blocks" not in once.table()


PADDED = """  param Vr: f32[E,V]
  param Vi: f32[V,E]
  q[B,L,V] = n[B,L,E] * Vr[E,V]
  k = choose(q, over=V, keep=3)
  g[B,L,V,E] = k[B,L,V] * n[B,L,E]
  z[B,L,E] = g[B,L,V,E] * Vi[V,E]
  return n + y + b + z"""
