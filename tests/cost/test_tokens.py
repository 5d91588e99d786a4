"""Which dims count tokens, and how many tokens a phase has."""

from __future__ import annotations

from pathlib import Path

import pytest

from escc.compiler.plan.pipeline import load, model_names
from escc.cost.tokens import token_dims, tokens
from escc.ir.diagnostics import Source
from escc.ir.text.read import parse
from escc.passes.expansion.expand import expand


@pytest.mark.parametrize("name", model_names())
def test_tokens_are_those_of_all_sequences(name: str) -> None:
    program = load(Path(name), {"B": 6})
    assert token_dims(program) == ("B", "L")
    assert tokens(program, "decode") == 6
    assert tokens(program, "prefill") == 6 * dict(program.phase("prefill").sizes)["L"]


COUNTED = [
    (
        "(x: bf16[B,L,E], kept: bf16[B,M]) { param W: bf16[E]\n s[B,L,M] = x[B,L,E] * W[E] * x[B,M,E]\n"
        " p = softmax(s, over=M, among=kept)\n return p }",
        ("B", "L"),
    ),
    (
        "(x: bf16[B,E], read: bf16[B,T,E]) { param W: bf16[E]\n s[B,T] = x[B,E] * W[E] * read[B,T,E]\n return s }",
        ("B",),
    ),
    ("(by: f32[E], x: bf16[B,E]) { param W: bf16[E]\n y = x * W * by\n return y }", ("B",)),
    ("(x: bf16[B,L,E]) { y = x * 2\n return y }", ("B", "L")),
    ("(x: bf16[B]) { y = x * 2\n return y }", ("B",)),
    # A table of learned positions has the places of the prompt; a matrix for each of some groups has their dim.
    (
        "(x: bf16[B,L,E]) { param P: bf16[L,E]\n param W: bf16[E,E2]\n h = x + P\n"
        " y[B,L,E2] = h[B,L,E] * W[E,E2]\n return y }",
        ("B", "L"),
    ),
    ("(x: bf16[B,L,E]) { param W: bf16[L,E,E2]\n y[B,L,E2] = x[B,L,E] * W[L,E,E2]\n return y }", ("B",)),
    (
        "(x: bf16[B,E]) { param W: bf16[E,E2]\n param s: bf16[E,E2]\n w = W * s\n"
        " y[B,E2] = x[B,E] * w[E,E2]\n return y }",
        ("B",),
    ),
    ("(x: bf16[B,L,E]) { param P: bf16[L,E]\n y = x + P\n return y }", ("B",)),
    ("(ids: i32[B,L]) { param P: bf16[T,E]\n x = take(P, ids, over=T)\n return x }", ("B", "L")),
]


@pytest.mark.parametrize(("text", "dims"), COUNTED)
def test_a_mask_or_what_is_attended_to_counts_no_tokens(text: str, dims: tuple[str, ...]) -> None:
    source = Source("counted.esti", "dim B = 8, L = 16, M = L, E = 32, E2 = 24, T = 20\nmain" + text)
    assert token_dims(expand(parse(source), source)) == dims


ATTENTION = """dim B = 8, L = 16, M = 64, K = 2, G = 3, Q = 32
dim H = K * G
main(q: bf16[B,L,H,Q], k: bf16[B,L,K,Q], v: bf16[B,L,K,Q]) {{
  cache keys, values: bf16[B,M,K,Q]
  param t: bf16[H]
  ks = append(keys, {0}, L into M)
  vs = append(values, v, L into M)
  s[B,L,H,M] = q[B,L,H,Q] * ks[B,M,K,Q]{1}
  p = softmax(s, over=M, mask=causal(L, M))
  o[B,L,H,Q] = p[B,L,H,M] * vs[B,M,K,Q]
  return o
}}"""


@pytest.mark.parametrize("scaled", ["", " * t[H]"])
@pytest.mark.parametrize("new", ["k", "rope(k, over=Q, at=L into M, base=10000)"])
def test_heads_of_queries_keys_and_values_that_are_given_count_no_tokens(new: str, scaled: str) -> None:
    text = ATTENTION.format(new, scaled)
    source = Source("attention.esti", text if scaled else text.replace("  param t: bf16[H]\n", ""))
    program = expand(parse(source), source)
    assert token_dims(program) == ("B", "L")
    assert tokens(program, "main") == 8 * 16
