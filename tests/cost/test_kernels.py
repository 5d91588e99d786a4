"""Which ops run as one kernel and what goes through HBM between kernels, of models and of small programs by hand."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest
from judge.generator import generate

from escc.compiler.plan.pipeline import compile_phase, load, parse
from escc.cost.arithmetic import arithmetic
from escc.cost.hardware import Calibrated, Engine, Hardware
from escc.cost.kernels import Launch, launches
from escc.cost.ops import FP8_KERNELS
from escc.ir.dtype import Dtype
from escc.ir.mesh import Mesh
from escc.ir.program import Einsum, Op, Program, Region, Repeat, operand_names, walk
from escc.ir.spmd import Compute, Move, SpmdProgram
from escc.passes.options import Options

NONE = Launch(frozenset(), frozenset(), False)
V4 = Hardware.of_paper("tpu-v4")


def model(name: str, **sizes: int) -> Program:
    return load(Path(name), sizes)


def read(text: str) -> Program:
    """A program of dims B, C, E, F, L and M."""
    return parse(f'model "toy"\ndim B = 8, C = 8, E = 16, F = 32, L = 2, M = 64\n{text}')


def launched(program: Program | SpmdProgram) -> dict[str, Launch]:
    """The launches of the ops, of a program at the sizes of its first phase."""
    return launches(program, dict(program.sizes if isinstance(program, SpmdProgram) else program.phases[0].sizes))


def found(program: Program, prefix: str = "") -> dict[str, Launch]:
    """The launches of the ops whose names begin with `prefix`, without it, in program order."""
    return {name.removeprefix(prefix): one for name, one in launched(program).items() if name.startswith(prefix)}


def moved(some: Mapping[str, Launch], prefix: str = "") -> dict[str, set[str]]:
    """What each op reads, of those that read."""
    return {name: {value.removeprefix(prefix) for value in one.reads} for name, one in some.items() if one.reads}


def written(some: Mapping[str, Launch]) -> set[str]:
    return {name for name, one in some.items() if one.writes}


def kernels(some: Iterable[Launch]) -> int:
    return sum(one.kernels for one in some)


# Models


def test_a_layer_of_llama_is_seven_kernels() -> None:
    layer = found(model("llama-3-70b"), "layer.")
    assert kernels(layer.values()) == 7
    # What goes from one to the next, in order: the norm, the queries (keys and values go to caches), what attention
    # makes, the residual, the norm, the product of the activation, the residual.
    assert written(layer) == {"n1", "rq", "o", "y", "n2", "h", "return"}
    projected = moved(layer, "layer.")
    # One of a kernel's ops reads what all of them do; weights are each op's own.
    shared = {
        value: [name for name, values in projected.items() if value in values]
        for value in ("x", "n1", "rq", "o", "y", "n2", "h")
    }
    # x and y are read twice: by a norm, and by the sum.
    assert {value: len(readers) for value, readers in shared.items()} == {
        "x": 2,
        "n1": 1,
        "rq": 1,
        "o": 1,
        "y": 2,
        "n2": 1,
        "h": 1,
    }
    assert set(shared["x"]) == {"n1.square_sum", "y"} and set(shared["y"]) == {"n2.square_sum", "return"}
    assert shared["n1"][0] in ("q", "k", "v") and shared["n2"][0] in ("u", "g")
    weights = {name: values - set(shared) for name, values in projected.items() if values - set(shared)}
    assert weights == {
        "n1": {"scale1"},
        "q": {"Wq"},
        "k": {"Wk"},
        "v": {"Wv"},
        "ks": {"keys"},
        "vs": {"values"},
        "s": {"ks"},
        "o": {"vs"},
        "a": {"Wo"},
        "n2": {"scale2"},
        "u": {"Wi"},
        "g": {"Wg"},
        "d": {"Wd"},
    }


def test_the_bytes_of_a_layer_of_llama() -> None:
    one = compile_phase(model("llama-3-70b", B=4), "decode", Mesh.parse("1"), Options(V4, capacity_bytes=inf))
    layer = [op for op in one.estimate.ops if op.result.startswith("layer.")]
    rows, context, wide, inner, heads, kv, head = 4, 8192, 8192, 28672, 64, 8, 128
    weights = wide * (2 * heads * head + 2 * kv * head + 3 * inner + 2)
    caches = 2 * rows * (context + 1) * kv * head  # all read, and one entry of each written
    residuals = 6 * rows * wide  # x and y are read twice; y and the result are written
    between = 2 * rows * (2 * wide + heads * head + heads * head + inner)  # two norms, queries, attention, h
    assert sum(op.hbm_bytes for op in layer) == 2 * (weights + caches + residuals + between)


def test_a_layer_of_palm_is_five_kernels() -> None:
    layer = found(model("palm-540b"), "layer.")
    # The norm; all projections of what it makes; attention; its output projection with the sum, which waits for
    # the other branch; the down projection.
    assert kernels(layer.values()) == 5
    assert written(layer) == {"n", "rq", "h", "o", "d", "return"}
    readers = [name for name, values in moved(layer, "layer.").items() if "n" in values]
    assert len(readers) == 1 and readers[0] in ("q", "k", "v", "u", "g")
    assert layer["return"].reads == {"layer.x", "layer.d"}


def test_steps_and_layers_begin_once() -> None:
    for name, repeats in (("llama-3-70b", 1), ("palm-540b", 1)):
        some = launched(model(name))
        assert sum(one.layers for one in some.values()) == repeats
        assert [one.steps for one in some.values() if one.steps] == [1.0]


def test_where_all_is_repeated_each_repetition_begins_a_part_of_a_step() -> None:
    program = read("""
    block layer(x: bf16[B,E]) -> bf16[B,E] { return exp(x) }
    main(x: bf16[B,E]) { return repeat 5 layer(x) }
    """)
    (one,) = launched(program).values()
    assert (one.kernels, one.layers, one.steps) == (1, 1, 0.2)


# Small programs


def test_a_lone_matmul_is_a_kernel() -> None:
    program = read("""main(x: bf16[B,E]) {
      param W: bf16[E,F]
      u[B,F] = x[B,E] * W[E,F]
      return u
    }""")
    assert launched(program) == {"u": Launch(frozenset({"x", "W"}), frozenset(), True, 1, 0, 1.0)}


def test_pointwise_ops_after_a_matmul_are_of_its_kernel() -> None:
    program = read("""main(x: bf16[B,E]) {
      param W: bf16[E,F]
      param b: bf16[F]
      u[B,F] = x[B,E] * W[E,F]
      h = gelu(u + b)
      return h
    }""")
    some = launched(program)
    assert kernels(some.values()) == 1
    assert written(some) == {"h"}
    assert set().union(*moved(some).values()) == {"x", "W", "b"}


def test_an_outer_product_is_of_no_matmuls_kernel() -> None:
    """No part of a matmul holds a block of `k` and its block of `v`, which other columns are."""
    program = read("""dim N = 8, D = 8
    main(x: bf16[B,E]) {
      param Wk: bf16[E,N]
      param Wv: bf16[E,D]
      k[B,N] = x[B,E] * Wk[E,N]
      v[B,D] = x[B,E] * Wv[E,D]
      y[B,N,D] = k[B,N] * v[B,D]
      return y
    }""")
    some = launched(program)
    assert kernels(some.values()) == 2 and written(some) == {"k", "v", "y"}
    assert moved(some)["y"] == {"k", "v"}


def test_a_state_is_brought_up_to_date_in_one_kernel() -> None:
    """As by linear attention: what is forgotten and what comes in, each larger than the projection that it is of."""
    program = read("""dim N = 8, D = 8
    main(x: bf16[B,E], S: bf16[B,N,D]) {
      param Wk, Wq: bf16[E,N]
      param Wv: bf16[E,D]
      param Wf: bf16[E]
      k[B,N] = x[B,E] * Wk[E,N]
      q[B,N] = x[B,E] * Wq[E,N]
      v[B,D] = x[B,E] * Wv[E,D]
      f[B] = x[B,E] * Wf[E]
      kv[B,N,D] = k[B,N] * v[B,D]
      after = S * sigmoid(f) + kv
      y[B,D] = q[B,N] * after[B,N,D]
      return y, after
    }""")
    some = launched(program)
    state = {name: one for name, one in some.items() if name in ("kv", "after") or name.startswith("after.")}
    assert kernels(state.values()) == 1 and kernels(some.values()) == 3
    assert written(some) & state.keys() == {"after"}


def test_a_chain_of_pointwise_ops_is_a_kernel() -> None:
    program = read("""main(x: bf16[B,E], y: bf16[B,E]) {
      a = exp(x)
      b = tanh(a)
      c = b + y
      d = silu(c)
      return d
    }""")
    some = launched(program)
    assert kernels(some.values()) == 1
    assert moved(some) == {"a": {"x"}, "c": {"y"}}
    assert written(some) == {"d"}


def test_a_value_that_two_kernels_read_is_written_once_and_read_by_each() -> None:
    program = read("""main(x: bf16[B,E], y: bf16[B,E]) {
      param W: bf16[E,F]
      a = exp(x)
      c[B,F] = a[B,E] * W[E,F]
      d[B] = y[B,E] * a[B,E]
      return c, d
    }""")
    some = launched(program)
    assert written(some) == {"a", "c", "d"}
    assert [name for name, values in moved(some).items() if "a" in values] == ["c", "d"]
    assert kernels(some.values()) == 3


def test_the_largest_of_projections_reads_their_input_whatever_their_names_are() -> None:
    """A small one pays for it in the open, which a large one that computes for longer does not."""
    text = """main(x: bf16[B,E]) {
      param W: bf16[E,F]
      param V: bf16[E,L]
      {large}[B,F] = x[B,E] * W[E,F]
      {small}[B,L] = x[B,E] * V[E,L]
      return {large}, {small}
    }"""
    for large, small in (("a", "z"), ("z", "a")):
        some = launched(read(text.replace("{large}", large).replace("{small}", small)))
        assert moved(some) == {large: {"x", "W"}, small: {"V"}} and kernels(some.values()) == 1


def test_an_input_is_read_once_by_projections_and_by_a_softmax() -> None:
    program = read("""main(x: bf16[B,E]) {
      param W, V: bf16[E,F]
      u[B,F] = x[B,E] * W[E,F]
      g[B,F] = x[B,E] * V[E,F]
      h = silu(g) * u
      p = softmax(x, over=E)
      return h, p
    }""")
    some = launched(program)
    assert kernels(some.values()) == 2
    assert sorted(name for name, one in some.items() if "x" in one.reads) == ["g", "p.max"]
    assert written(some) == {"h", "p"}


def test_a_softmax_that_is_not_in_attention_is_a_kernel() -> None:
    program = read("""main(x: bf16[B,E]) {
      param W: bf16[E,F]
      u[B,F] = x[B,E] * W[E,F]
      p = softmax(u, over=F)
      return p
    }""")
    some = launched(program)
    assert kernels(some.values()) == 2
    assert written(some) == {"u", "p"}
    assert moved(some)["u"] == {"x", "W"}
    assert set().union(*(one.reads for name, one in some.items() if name != "u")) == {"u"}
    assert [name for name, one in some.items() if "u" in one.reads] == ["p.max"]


ATTENTION = """
block attend(x: bf16[B,L,E]) -> bf16[B,L,E] {
  param Wq, Wk, Wv, Wo: bf16[E,F]
  cache keys, values: bf16[B,M,F]
  q[B,L,F] = x[B,L,E] * Wq[E,F]
  k[B,L,F] = x[B,L,E] * Wk[E,F]
  v[B,L,F] = x[B,L,E] * Wv[E,F]
  ks = append(keys, k, L into M)
  vs = append(values, v, L into M)
  s[B,L,M] = q[B,L,F] * ks[B,M,F]
  p = softmax(s / sqrt(size(F)), over=M, mask=causal(L, M))
  o[B,L,F] = p[B,L,M] * vs[B,M,F]
  a[B,L,E] = o[B,L,F] * Wo[E,F]
  return a
}
main(x: bf16[B,L,E]) { return repeat 3 attend(x) }
"""


def test_attention_reads_its_caches_once_and_its_scores_never() -> None:
    some = found(read(ATTENTION), "attend.")
    inside = {name: one for name, one in some.items() if name in ("s", "o") or name.startswith("p")}
    assert kernels(inside.values()) == 1
    # It reads queries and caches, and writes what it makes of them.
    assert moved(inside, "attend.") == {"s": {"q", "ks"}, "o": {"vs"}}
    assert written(inside) == {"o"}
    assert {name: set(one.caches) for name, one in inside.items() if one.caches} == {
        "s": {"attend.ks"},
        "o": {"attend.vs"},
    }
    # Keys and values are written by the appends, of the kernel that makes them, and no more.
    assert kernels(some.values()) == 3
    assert written(some) - set(inside) == {"q", "a"}
    assert all(not some[name].caches for name in ("ks", "vs"))


def test_one_cache_of_keys_and_values_is_read_once() -> None:
    text = ATTENTION.replace("cache keys, values:", "cache keys:").replace("  vs = append(values, v, L into M)\n", "")
    text = text.replace("Wq, Wk, Wv, Wo", "Wq, Wk, Wo").replace("  v[B,L,F] = x[B,L,E] * Wv[E,F]\n", "")
    some = found(read(text.replace("vs[B,M,F]", "ks[B,M,F]")), "attend.")
    assert moved(some, "attend.")["s"] == {"q", "ks"}
    assert not some["o"].reads and not some["o"].caches and some["o"].writes


def test_scores_that_are_wanted_elsewhere_are_written() -> None:
    text = ATTENTION.replace("-> bf16[B,L,E] {", "-> bf16[B,L,E] {\n  param Wm: bf16[M,E]").replace(
        "return a", "m[B,L,E] = p[B,L,M] * Wm[M,E]\n  return a + m"
    )
    some = found(read(text), "attend.")
    assert {"p", "o"} <= written(some) and "s" not in written(some)
    assert "attend.p" in some["m"].reads


TWO = ATTENTION.replace("return a\n", "{product}\n  b[B,L,E] = t[B,L,F] * Wo[E,F]\n  return a + b\n")
WINDOW = "w = softmax(s, over=M, mask=causal(L, M, window=2))\n  t[B,L,F] = w[B,L,M] * {values}[B,M,F]"


@pytest.mark.parametrize("values", ["vs", "ks"])
def test_scores_that_two_attentions_read_are_written_once_and_read_by_each(values: str) -> None:
    """They are held whole, and neither attention makes blocks of them."""
    some = found(read(TWO.replace("{product}", WINDOW.replace("{values}", values))), "attend.")
    assert written(some) - {"a", "b", "return"} == {"q", "s", "o", "t"}
    read_by = moved(some, "attend.")
    assert [name for name, read in read_by.items() if "s" in read] == ["p.masked", "w.masked"]
    assert read_by["s"] == {"q", "ks"} and read_by["o"] == {"vs"} and read_by["t"] == {values}
    assert kernels(one for name, one in some.items() if name[0] in "spwot") == 3


def test_shares_that_two_products_read_are_written_once_and_read_by_each() -> None:
    """Attention runs in no blocks then: its scores are held whole as well, masked as they are made."""
    some = found(read(TWO.replace("{product}", "t[B,L,F] = p[B,L,M] * ks[B,M,F]")), "attend.")
    assert {"p.masked", "p", "o", "t"} <= written(some) and not {"s", "p.exp"} & written(some)
    read_by = moved(some, "attend.")
    assert [name for name, read in read_by.items() if "p" in read] == ["o", "t"]
    assert [name for name, read in read_by.items() if "p.masked" in read] == ["p.max"]
    assert kernels(one for name, one in some.items() if name[0] in "spot") == 4


@pytest.mark.parametrize("wanted", ["s", "p"])
def test_attention_reads_scores_that_are_wanted_elsewhere_as_any_other_kernel_does(wanted: str) -> None:
    """As they are held whole."""
    text = TWO.replace("{product}", f"t[B,L,F] = {wanted}[B,L,M] * Wm[M,F]")
    some = found(read(text.replace("  cache keys", "  param Wm: bf16[M,F]\n  cache keys")), "attend.")
    assert {wanted, "o", "t"} <= written(some)
    readers = [name for name, read in moved(some, "attend.").items() if wanted in read]
    assert readers == (["p.masked", "t"] if wanted == "s" else ["o", "t"])


def test_attention_reads_scores_that_are_handed_on() -> None:
    text = """
main(q: bf16[B,L,E], k: bf16[B,M,E]) {
  s[B,L,M] = q[B,L,E] * k[B,M,E]
  p = softmax(s, over=M)
  o[B,L,E] = p[B,L,M] * k[B,M,E]
  return o, s
}
"""
    for result, readers in (("return o, s", {"p.max", "p.exp"}), ("return o", set())):
        some = found(read(text.replace("return o, s", result)))
        assert ("s" in written(some)) == bool(readers)
        assert {name for name, reads in moved(some).items() if "s" in reads} <= readers
        assert any("s" in reads for reads in moved(some).values()) == bool(readers)


def test_what_is_left_of_attention_without_its_softmax_is_a_product_as_any() -> None:
    """A map before it is made with what that follows, of which it is a part no more."""
    text = """
main(q: bf16[B,L,E], k: bf16[B,M,E]) {
  s[B,L,M] = q[B,L,E] * k[B,M,E]
  p = softmax(s, over=M)
  r = gelu(p)
  o[B,L,E] = r[B,L,M] * k[B,M,E]
  return o, p
}
"""
    some = found(read(text))
    assert {"p", "r", "o"} <= written(some) and moved(some)["o"] == {"r", "k"}
    alone = found(read(text.replace("return o, p", "return o")))
    assert not {"p", "r"} & written(alone)


def test_a_maximum_that_others_read_leaves_attention_one_kernel() -> None:
    """As it leaves its scores in blocks: it is no score itself."""
    text = """
main(q: bf16[B,L,E], k: bf16[B,M,E], z: bf16[B,L,E]) {
  s[B,L,M] = q[B,L,E] * k[B,M,E]
  m = max(s, over=M)
  e = exp(s - m)
  o[B,L,E] = e[B,L,M] * k[B,M,E]
  y[B,L,E] = m[B,L] * z[B,L,E]
  n = max(y, over=L)
  t[B,L] = z[B,L,E] * n[B,E]
  return o, t
}
"""
    some = found(read(text))
    assert "s" not in written(some) and "e" not in written(some)


def test_matmuls_without_a_softmax_between_them_are_kernels_of_their_own() -> None:
    program = read("""main(q: bf16[B,E], k: bf16[M,E], v: bf16[M,F]) {
      s[B,M] = q[B,E] * k[M,E]
      r = silu(s)
      o[B,F] = r[B,M] * v[M,F]
      return o
    }""")
    some = launched(program)
    assert kernels(some.values()) == 2
    assert moved(some) == {"s": {"q", "k"}, "o": {"r", "v"}}
    assert written(some) == {"r", "o"}


def test_a_norm_is_a_kernel_of_its_own_after_a_product_without_weights() -> None:
    """Which it does not weigh, though it sums squares of it."""
    text = """
main(w: bf16[B,C], d: bf16[B,C,E], x: bf16[B,E]) {
  param scale: bf16[E]
  e[B,E] = w[B,C] * d[B,C,E]
  y = x + e
  n = rmsnorm(y, scale, over=E)
  return y + n
}
"""
    got = found(read(text))
    assert {name for name, one in got.items() if one.kernels} == {"e", "n.square_sum"}
    assert written(got) == {"y", "return"}


@pytest.mark.parametrize("weights", ["w[B,L,C]", "z[C]"])
def test_what_weighs_and_sums_scores_is_of_their_kernel(weights: str) -> None:
    text = f"""
main(q: bf16[B,L,C,E], k: bf16[B,M,E], w: bf16[B,L,C]) {{
  param z: bf16[C]
  s[B,L,C,M] = q[B,L,C,E] * k[B,M,E]
  r = relu(s)
  t[B,L,M] = r[B,L,C,M] * {weights}
  return t
}}
"""
    got = found(read(text))
    assert kernels(got.values()) == 1 and written(got) == {"t"}


def test_a_projection_of_what_attention_makes_is_no_sum_of_scores() -> None:
    text = """
main(q: bf16[B,L,C,E], k: bf16[B,M,E], v: bf16[B,M,F]) {
  param z: bf16[C]
  param y: bf16[F]
  s[B,L,C,M] = q[B,L,C,E] * k[B,M,E]
  p = softmax(s, over=M)
  o[B,L,C,F] = p[B,L,C,M] * v[B,M,F]
  SUM
  return t
}
"""
    for last in ("t[B,L,F] = o[B,L,C,F] * z[C]", "t[B,L,C] = o[B,L,C,F] * y[F]"):
        got = found(read(text.replace("SUM", last)))
        assert kernels(got.values()) == 2 and written(got) == {"o", "t"}


SCORES = """
main(q: bf16[B,L,C,E], k: bf16[B,M,E], v: bf16[B,M,F], x: bf16[B,M,E], a: bf16[B,L], c: bf16[B,M]) {{
  param t: bf16[C]
  param S: bf16[L,C,E]
  param R: bf16[M,E]
  {scores}
  o[B,L,C,F] = p[B,L,C,M] * v[B,M,F]
  return o{more}
}}
"""
JOINED = {  # scores, and how many kernels there are then
    "a factor of each head": "s[B,L,C,M] = q[B,L,C,E] * k[B,M,E] * t[C]\n  p = softmax(s, over=M)",
    "learned queries": "s[B,L,C,M] = S[L,C,E] * k[B,M,E]\n  p = softmax(s, over=M)",
    "a learned table of places": "s[B,L,C,M] = q[B,L,C,E] * R[M,E]\n  p = softmax(s / 2, over=M)",
    "a bias that is a product": (
        "m[B,L,M] = a[B,L] * c[B,M]\n  s[B,L,C,M] = q[B,L,C,E] * k[B,M,E]\n  p = softmax(s + tanh(m), over=M)"
    ),
}


@pytest.mark.parametrize("name", JOINED)
def test_scores_are_never_written_whatever_enters_into_them(name: str) -> None:
    got = found(read(SCORES.format(scores=JOINED[name], more="")))
    assert kernels(got.values()) == 1 and written(got) == {"o"}


def test_a_bias_that_others_read_is_written() -> None:
    got = found(read(SCORES.format(scores=JOINED["a bias that is a product"], more=", m")))
    assert written(got) == {"o", "m"}


APART = {  # what a weight makes that is no score, and what is written of it
    "shares of experts": (
        "s[B,C] = x[B,E] * W[E,C]\n  p = softmax(s, over=C)\n  o[B,F] = p[B,C] * y[B,C,F]",
        {"s", "p", "o"},
    ),
    "a normalised projection": (
        "s[B,F] = x[B,E] * U[E,F]\n  n = rmsnorm(s, t, over=F)\n  o[B,M] = n[B,F] * k[M,F]",
        {"s", "n", "o"},
    ),
    "one of several projections of a value": (
        "s[B,C] = x[B,E] * W[E,C]\n  p = softmax(s, over=B)\n  u[B,F] = x[B,E] * U[E,F]\n  o[C,F] = p[B,C] * u[B,F]",
        {"s", "p", "u", "o"},
    ),
}


@pytest.mark.parametrize("name", APART)
def test_a_projection_is_no_part_of_attention(name: str) -> None:
    body, wanted = APART[name]
    params = "param W: bf16[E,C]\n  param U: bf16[E,F]\n  param t: bf16[F]"
    got = found(read(f"main(x: bf16[B,E], y: bf16[B,C,F], k: bf16[M,F]) {{\n  {params}\n  {body}\n  return o\n}}"))
    assert kernels(got.values()) == 3 and written(got) == wanted


def test_what_two_kernels_make_of_one_another_is_none() -> None:
    """A sum of a product and of what that multiplies waits for the product, and so reads both."""
    text = """
main(x: bf16[B,E], y: bf16[B,E]) {
  param W: bf16[E,C]
  param V: bf16[C,E]
  a = x + y
  u[B,C] = a[B,E] * W[E,C]
  v[B,E] = u[B,C] * V[C,E]
  h = sum(v * a, over=E)
  return h
}
"""
    some = launched(read(text))
    assert kernels(some.values()) == 4 and written(some) == {"a", "u", "v", "h"}
    assert some["h.input"].reads == {"v", "a"}


def test_what_a_repeat_stands_between_is_not_one_kernel() -> None:
    text = """
block turn(x: bf16[B,E]) -> bf16[B,E] { return exp(x) }
main(x: bf16[B,E], y: bf16[B,E]) {
  a = x + y
  r = repeat 3 turn(a)
  return r + a
}
"""
    some = launched(read(text))
    assert kernels(some.values()) == 3 and "a" in some["return"].reads


@pytest.mark.parametrize(("rows", "count"), [(2**10, 1), (2**11, 2)])
def test_what_follows_a_reduction_of_everything_is_a_kernel_of_its_own(rows: int, count: int) -> None:
    """Where that is more than a part of a kernel holds: no part of it knows the result before all have run."""
    text = f"dim R = {rows}, S = 1024\nmain(x: bf16[R,S]) {{ return x / max(abs(x), over=[R,S]) }}"
    some = launched(parse(f'model "toy"\n{text}'))
    assert kernels(some.values()) == count
    assert sum("x" in one.reads for one in some.values()) == count
    assert written(some) == ({"return"} if count == 1 else {"return", "return.max"})


def test_a_parameter_is_read_once_by_a_kernel() -> None:
    """As any value, by the largest op that reads it."""
    text = """
main(x: bf16[B,E], y: bf16[B,E]) {
  param P: bf16[B,E]
  param W: bf16[E,F]
  a = exp(x * P) + P
  u[B,F] = y[B,E] * W[E,F]
  w[B] = y[B,E] * W[E,F]
  return a, u, w
}
"""
    some = launched(read(text))
    assert kernels(some.values()) == 2
    assert sum("P" in one.reads for one in some.values()) == 1
    assert [name for name, one in some.items() if "W" in one.reads] == ["u"]


def test_each_that_looks_up_reads_rows_of_its_own() -> None:
    text = """
main(i: i32[B], j: i32[B]) {
  param T: bf16[F,E]
  a = take(T, i, over=F)
  b = take(T, j, over=F)
  return a + b
}
"""
    some = launched(read(text))
    assert some["a"].reads == {"T", "i"} and some["b"].reads == {"T", "j"}


CODES = """
main(x: bf16[B,E], y: bf16[B,E]) {
  param q, r: int4[E,F]
  param s, g: bf16[F]
  t = s * g
  W: bf16 = q * t
  V: bf16 = r * t
  u[B,F] = x[B,E] * W[E,F]
  v[B,F] = {other}[B,E] * V[E,F]
  return u, v
}
"""


@pytest.mark.parametrize(("other", "stored", "count"), [("x", set(), 1), ("y", {"t"}, 3)])
def test_weights_are_made_where_they_are_read_in_however_many_ops(other: str, stored: set[str], count: int) -> None:
    """Codes that a kernel multiplies by are never written as numbers, though their scales are made of others first;
    what two kernels read is, once."""
    some = launched(read(CODES.replace("{other}", other)))
    assert written(some) - {"u", "v"} == stored and kernels(some.values()) == count


def test_weights_that_no_kernel_or_several_read_are_made_by_one() -> None:
    program = read("""main(x: bf16[B,F]) {
      param s, g: bf16[F]
      t = s * g
      a = exp(t)
      b = tanh(t)
      return a, b
    }""")
    some = launched(program)
    assert kernels(some.values()) == 1 and written(some) == {"a", "b"}


def test_what_is_spread_for_one_other_is_made_there() -> None:
    """In however many steps: more of it is not written than it is made of."""
    for steps in ("t[B,C,F] = m[B,C] * b[C,F]", "t0[B,C,F] = m[B,C] * b[C,F]\n  t = gelu(t0)"):
        text = f"""
main(x: bf16[B,E], y: bf16[B,C]) {{
  param W: bf16[E,C,F]
  param b: bf16[C,F]
  m = softmax(y, over=C)
  u[B,C,F] = x[B,E] * W[E,C,F]
  {steps}
  h = relu(u + t)
  return h, m
}}
"""
        some = launched(read(text))
        assert written(some) == {"m", "h"} and kernels(some.values()) == 2, steps


def test_what_is_spread_of_a_result_follows_it_with_what_waits_for_both() -> None:
    """It could not be made in the kernel of the product, which the maximum waits for."""
    text = """
main(x: bf16[B,E]) {
  param W: bf16[E,F]
  param b: bf16[F]
  u[B,F] = x[B,E] * W[E,F]
  m = max(u, over=F)
  t[B,F] = m[B] * b[F]
  return u - t
}
"""
    some = launched(read(text))
    assert written(some) == {"u", "return"} and kernels(some.values()) == 2


def test_the_largest_of_a_value_are_looked_for_once() -> None:
    """What they are and where they stand is read off together; of more or of other keys, they are looked for again."""
    text = """
dim K = 4, S = 2
main(x: bf16[B,E]) {{
  v, i = top_k(x, over=E, keep=K)
  w, j = top_k({0}, over=E, keep={1})
  return v, i, w, j
}}
"""
    for keys, keep, count in (("x", "K", 1), ("x", "S", 2), ("-x", "K", 2)):
        some = launched(read(text.format(keys, keep)))
        assert kernels(some.values()) == count
        assert sum("x" in one.reads for one in some.values()) == count


def test_a_norm_is_of_the_kernel_of_the_sum_that_it_reads() -> None:
    """Its sum of squares reduces one tensor, and multiplies none by another."""
    program = read("""main(x: bf16[B,E], y: bf16[B,E]) {
      param scale: bf16[E]
      a = x + y
      n = rmsnorm(a, scale, over=E)
      return n, a
    }""")
    some = launched(program)
    assert kernels(some.values()) == 1 and written(some) == {"n", "a"}
    assert set().union(*moved(some).values()) == {"x", "y", "scale"}


def test_what_chooses_other_entries_of_one_value_is_another_kernel() -> None:
    program = read("""dim K = 4, S = 2
    main(x: bf16[B,E]) {
      m = choose(x, over=E, keep=4)
      n = choose(x, over=E, keep=2)
      return m * x, n * x
    }""")
    assert kernels(launched(program).values()) == 2


@pytest.mark.parametrize(
    ("other", "count", "reads"),
    [
        ("sum(x * x, over=E)", 1, 1),
        ("max(exp(x) - 1, over=E)", 1, 1),
        ("sum(x + y, over=E)", 2, 2),  # of something else as well
        ("sum(y, over=E)", 2, 1),
        ("sum(x * x, over=B)", 2, 2),  # whose rows are others
    ],
)
def test_reductions_of_one_value_are_one_kernel(other: str, count: int, reads: int) -> None:
    """As XLA fuses those of a layernorm: what they reduce is read once."""
    program = read(f"""main(x: bf16[B,E], y: bf16[B,E]) {{
      m = sum(x, over=E)
      n = {other}
      return m, n
    }}""")
    some = launched(program)
    assert kernels(some.values()) == count
    assert sum("x" in one.reads for one in some.values()) == reads


@pytest.mark.parametrize("weights", ["WiWg", "WgWi"])
@pytest.mark.parametrize("product", ["silu(g) * u", "u * silu(g)"])
def test_what_is_read_once_is_read_by_the_same_op_whatever_weights_are_called(weights: str, product: str) -> None:
    """By the one that has to be complete: it reads all of the rows where the other may read a part of each."""
    first, second = weights[:2], weights[2:]
    program = read(f"""main(x: bf16[B,E]) {{
      param {first}, {second}: bf16[E,F]
      u[B,F] = x[B,E] * {first}[E,F]
      g[B,F] = x[B,E] * {second}[E,F]
      return {product}
    }}""")
    assert moved(launched(program)) == {"u": {first}, "g": {"x", second}}


def test_a_layernorm_is_one_kernel() -> None:
    """Whichever way round its sums stand."""
    sums = "t = sum(x * x, over=E)\n", "m = sum(x, over=E)\n"
    for first, second in (sums, sums[::-1]):
        for norm in ("layernorm(x, scale, over=E)", "(x - m) * rsqrt(t - m * m) * scale"):
            own = "" if "over" in norm else first + second
            some = launched(read(f"main(x: bf16[B,E]) {{\nparam scale: bf16[E]\n{own}return {norm}\n}}"))
            assert kernels(some.values()) == 1 and written(some) == {"return"}
            assert sorted(name for one in some.values() for name in one.reads) == ["scale", "x"]


def test_a_norm_of_keys_is_no_part_of_attention() -> None:
    """Which begins with the product of queries and keys, though caches of few bits reduce keys before."""
    text = ATTENTION.replace("bf16[B,M,F]", "fp8[B,M,F] * f32[B,M]").replace(
        "ks = append(keys, k,", "param scale: bf16[F]\n  n = rmsnorm(k, scale, over=F)\n  ks = append(keys, n,"
    )
    some = found(read(text), "attend.")
    (norm,) = (name for name in some if name.startswith("n.") and "square_sum" in name)
    assert some[norm].kernels == 1 and some[norm].reads == {"attend.k"}


TURN = """
block turn(x: bf16[B,C], W: bf16[E,C]) -> bf16[B,C] {
  y[B,E] = x[B,C] * W[E,C]
  return max(y, over=E) * x
}
main(x: bf16[B,C]) {
  param U: bf16[E,C]
  {made}
  return repeat 3 turn(x, W)
}
"""


@pytest.mark.parametrize("made", ["W = 0.5 * U", "W[E,C] = U[E,C]"])
def test_a_weight_that_is_made_outside_of_a_repeat_is_read_in_every_turn(made: str) -> None:
    """A kernel makes it once."""
    some = launched(read(TURN.replace("{made}", made)))
    assert some["W"].writes and some["W"].kernels == 1 and some["W"].reads == {"U"}
    assert [name for name, one in some.items() if "W" in one.reads] == ["turn.y"]


def test_what_no_tensor_enters_into_costs_nothing() -> None:
    program = model("llama-3-70b")
    some = launched(program)
    free, known = (
        set(),
        {placed.item.result: placed.item for placed in walk(program.body) if hasattr(placed.item, "result")},
    )
    for name, op in known.items():
        if all(one in free for one in operand_names(op)):
            free.add(name)
    assert {"layer.rq.pos", "layer.rk.index", "layer.p.pos_q", "layer.p.pos_k", "z.place", "return.index"} <= free
    assert {replace(some[name], steps=0.0) for name in free} == {NONE}
    assert not any(one.reads & free for one in some.values())


# Laws


def shuffled(region: Region[Op], rng: random.Random) -> Region[Op]:
    """The items in another order in which makers still stand before their readers."""

    def needs(item: Op | Repeat[Op]) -> set[str]:
        if isinstance(item, Repeat):
            return {carry.initial for carry in item.carries}.union(*(needs(each) for each in item.body.items))
        return set(operand_names(item))

    def makes(item: Op | Repeat[Op]) -> set[str]:
        return {carry.result for carry in item.carries} if isinstance(item, Repeat) else {item.result}

    items = [replace(i, body=shuffled(i.body, rng)) if isinstance(i, Repeat) else i for i in region.items]
    made, order = set().union(*map(makes, items)) if items else set(), []
    while items:
        ready = [item for item in items if not needs(item) & made]
        order.append(rng.choice(ready))
        items.remove(order[-1])
        made -= makes(order[-1])
    stored = rng.sample(region.stored, len(region.stored))
    return Region(tuple(stored), tuple(order))


def of_models() -> list[Program]:
    return [model(name) for name in ("llama-3-70b", "palm-540b", "gpt-neox-20b")]


def test_the_order_of_ops_does_not_matter() -> None:
    rng, changed = random.Random(0), 0
    for program in [*of_models(), *(generate(seed).program for seed in range(80))]:
        for _ in range(3):
            other = replace(program, body=shuffled(program.body, rng))
            changed += other.body.items != program.body.items
            assert launched(other) == launched(program)
    assert changed > 60


def projecting(seed: int, names: random.Random) -> Program:
    """Projections of one value by weights of several types and what reads them, with names drawn by `names`."""
    rng = random.Random(seed)
    types = {"fp8[E,F] * f32[F]": "c[F]", "int8[E,F] * f32[F]": "c[F]", "bf16[E,F]": "c[E]"}
    weights = [rng.choice(list(types)) for _ in range(rng.randint(2, 4))]
    called = [f"{name}{n}" for n, name in enumerate(names.sample("abdefghijkopqrsuvw", 18))]
    lines, made = [f"param W{n}: {weight}" for n, weight in enumerate(weights)], []
    for n in range(len(weights)):
        made.append(called.pop())
        lines.append(f"{made[-1]}[B,F] = x[B,E] * W{n}[E,F]")
    for _ in range(rng.randint(1, 5)):
        one, other, new = rng.choice(made), rng.choice(made), called.pop()
        lines.append(f"{new} = {rng.choice(['silu({0}) * {1}', 'gelu({0})', '{0} * {1} * z', 'softmax({0}, over=F)'])}")
        lines[-1] = lines[-1].format(one, other)
        made.append(new)
    lines += ["param V: bf16[F,E]", f"out[B,E] = {rng.choice(made)}[B,F] * V[F,E]", f"return out, {made[-1]}"]
    return read("main(x: bf16[B,E], z: bf16[B,F]) {\n  " + "\n  ".join(lines) + "\n}")


def charged(program: Program) -> list[object]:
    """What each op is charged with, by what the ops are."""
    values, some = program.table(), launched(program)

    def what(name: str) -> tuple[object, ...]:
        return values[name].dims, values[name].dtype

    return sorted(
        (
            type(op).__name__,
            str(arithmetic(op, values)),
            what(op.result),
            one.kernels,
            one.writes,
            sorted(map(what, one.reads)),
        )
        for op in program.body.items
        if not isinstance(op, Repeat) and (one := some[op.result])
    )


def test_names_and_order_change_no_charge() -> None:
    rng, mixed = random.Random(0), 0
    for seed in range(30):
        program = projecting(seed, rng)
        mixed += len({arithmetic(op, program.table()) for op in program.body.items if isinstance(op, Einsum)}) > 1
        for _ in range(3):
            other = projecting(seed, rng)
            assert charged(replace(other, body=shuffled(other.body, rng))) == charged(program), seed
    assert mixed > 10


@pytest.mark.parametrize(
    ("narrow", "peak"), [("fp8", {"peak_fp8_flops_per_s": 1e15}), ("fp4", {"peak_fp4_flops_per_s": 1e15})]
)
def test_a_kernel_with_a_matmul_in_fewer_bits_takes_the_launches_of_one(narrow: str, peak: dict[str, float]) -> None:
    """Under an engine that brings its operand to these, whichever of its ops comes first, by name or by size, on
    however many chips; where these have no arithmetic in it, or there is no such engine, it is one as in bf16."""
    text = """main(x: bf16[B,E]) {
      param T: {2}[E,F] * f32[F]
      param V: bf16[E,F]
      {0}[B,F] = x[B,E] * T[E,F]
      {1}[B,F] = x[B,E] * V[E,F]
      return {0}, {1}
    }"""
    programs = [read(text.replace("{0}", a).replace("{1}", b).replace("{2}", narrow)) for a, b in ("ab", "ba")]
    chip = replace(V4, calibrated=Calibrated(kernel_s=1.0))
    served = chip.with_engine(Engine("mine", quantises=(Dtype(narrow),)))
    for bare, has, kernels in ((served, {}, 1), (chip, peak, 1), (served, peak, FP8_KERNELS)):
        options = Options(replace(bare, **has), capacity_bytes=inf)
        plans = [compile_phase(one, "main", Mesh.parse(mesh), options) for mesh in "12" for one in programs]
        assert [sum(op.launch_s for op in one.estimate.ops) for one in plans] == [kernels] * 4


def as_originals(spmd: SpmdProgram) -> dict[str, Launch]:
    """The launches of a sharded program, with what copies are copies of in their place."""
    source: dict[str, str] = {}
    for placed in walk(spmd.body):
        if isinstance(placed.item, Move):
            source[placed.item.result] = source.get(placed.item.operand, placed.item.operand)

    def back(names: frozenset[str]) -> frozenset[str]:
        return frozenset(source.get(name, name) for name in names)

    return {name: replace(one, reads=back(one.reads), caches=back(one.caches)) for name, one in launched(spmd).items()}


@pytest.mark.parametrize(("name", "phase"), [("llama-3-70b", "decode"), ("palm-540b", "prefill")])
def test_a_sharded_model_runs_the_kernels_of_its_program(name: str, phase: str) -> None:
    program = model(name)
    spmd = compile_phase(program, phase, Mesh.parse("4x4"), Options(V4, capacity_bytes=inf)).spmd
    assert sum(isinstance(placed.item, Move) for placed in walk(spmd.body)) > 3
    assert as_originals(spmd) == launches(program, dict(program.phase(phase).sizes))


def test_sharded_programs_run_the_kernels_of_theirs() -> None:
    moves = 0
    for seed in range(40):
        case = generate(seed)
        spmd = compile_phase(case.program, "main", case.mesh, Options(V4, capacity_bytes=inf)).spmd
        moves += sum(isinstance(placed.item, Move) for placed in walk(spmd.body))
        assert as_originals(spmd) == launched(case.program), seed
        # An op reads copies that it has as operands, no others.
        for placed in walk(spmd.body):
            if isinstance(placed.item, Compute):
                op = placed.item.op
                assert launched(spmd)[op.result].reads <= set(operand_names(op))
    assert moves > 20


def test_what_is_read_from_another_kernel_was_written_or_comes_from_outside() -> None:
    for program in [*of_models(), *(generate(seed).program for seed in range(80))]:
        some = launched(program)
        appended = {placed.item.result for placed in walk(program.body) if type(placed.item).__name__ == "Append"}
        read_ones = frozenset().union(*(one.reads for one in some.values()))
        assert {name for name in read_ones & some.keys() if not some[name].writes} <= appended
        ends = set(program.results)
        for placed in walk(program.body):
            if isinstance(placed.item, Repeat):
                ends |= {name for carry in placed.item.carries for name in (carry.initial, carry.next)}
        assert written(some) <= read_ones | ends
        assert kernels(some.values()) >= 1


@pytest.mark.parametrize(("rows", "read_bytes"), [(2, 2 * 4096 * 2), (488, 488 * 4096 * 2), (489, 32768 * 4096 * 2)])
def test_of_a_table_that_no_cache_holds_every_row_is_read_anew(rows: int, read_bytes: int) -> None:
    program = parse(f"""model "table"
    dim V = {rows}, B = 32768, E = 4096
    main(ids: i32[B], x: bf16[B,E]) {{
      param table: bf16[V,E]
      y = x + take(table, ids, over=V)
      return y
    }}""")
    plan = compile_phase(program, "main", Mesh.parse("1"), Options(V4, capacity_bytes=inf))
    beside = 32768 * 4096 * 2 * 2 + 32768 * 4  # x, y and ids
    assert sum(op.hbm_bytes for op in plan.estimate.ops) == read_bytes + beside
