"""Models whose attention emitted modules make in blocks or in kernels: what they mask, and how it lies on chips."""

from __future__ import annotations

import re
from functools import cache

from escc.compiler.emit.jax_source import emit_jax
from escc.compiler.plan.compiled import CompiledPhase
from escc.compiler.plan.pipeline import compile_phases
from escc.cost.hardware import Hardware
from escc.cost.platform import Platform
from escc.ir.diagnostics import Source
from escc.ir.mesh import Mesh
from escc.ir.text.read import parse
from escc.passes.expansion.expand import expand
from escc.passes.options import Options

MODEL = """
model "attending"
dim B = 4, L = {new}, M = 8192, E = 32, Q = 8, R = 4, K = 4, G = 2
dim H = K * G
param Wq: bf16[E,H,Q]
param Wr: bf16[E,H,R]
param Wk: bf16[E,K,Q]
param Wv: bf16[E,K,Q]
param z: bf16[H]
param narrow: bf16[Q]
main(x: bf16[B,L,E], t: bf16[B,M,R]) {{
  cache keys: bf16[B,M,K,Q] @ {layout}
  cache values: {values} @ {layout}
  q[B,L,H,Q] = x[B,L,E] * Wq[E,H,Q]
  r[B,L,H,R] = x[B,L,E] * Wr[E,H,R]
  k[B,L,K,Q] = x[B,L,E] * Wk[E,K,Q]
  v[B,L,K,Q] = x[B,L,E] * Wv[E,K,Q]
  ks = append(keys, k, L into M)
  vs = append(values, v, L into M)
  s[B,L,H,M] @ {split} = q[B,L,H,Q] * ks[B,M,K,Q]
  {scores}
  {product}
  return o
}}
phase prefill {{ }}
"""
PRODUCT = "o[B,L,H,Q] = p[B,L,H,M] * vs[B,M,K,Q]"
BYTES = "int8[B,M,K,Q] * f32[B,M,K]"
SPLIT, ALONE = ("BM_xK_yQ", "BLK_yGM_x"), ("B_xMK_yQ", "B_xLK_yGM")
INDEXER = """\
w[B,L,H,M] = r[B,L,H,R] * t[B,M,R]
  f = relu(w / 2)
  i: f32[B,L,M] = z[H] * f[B,L,H,M]
  m = choose(i, over=M, keep=2048, mask=causal(L, M))
  c[B,L,H,M] = m[B,L,M] * s[B,L,H,M]
  p = softmax(c, over=M, mask=causal(L, M), among=m)"""
CASES = {  # what makes shares of scores, and how caches and scores lie
    "a window and a sink over a split context": ("p = softmax(s, over=M, mask=causal(L, M, window=3), sink=z)", SPLIT),
    "a chunk and a cap": (
        "c = 5 * tanh(s / 5)\n  p = softmax(c, over=M, mask=causal(L, M, chunk=4))",
        ALONE,
    ),
    "scores of two products": (
        "w[B,L,H,M] = r[B,L,H,R] * t[B,M,R]\n  p = softmax((s + w) / 3, over=M)",
        SPLIT,
    ),
    "values that are made after the scores and gathered": (
        "p = softmax(s, over=M)\n  y[B,M,K,Q] @ B_xM_yKQ = vs[B,M,K,Q] * narrow[Q]",
        ALONE,
    ),
    "a mask that is made of queries and keys": (
        "w[B,L,H,M] = r[B,L,H,R] * t[B,M,R]\n  n = relu(w)\n  p = softmax(s, over=M, among=n)",
        ALONE,
    ),
    "values in bytes with scales, and a gate, over a split context": (
        "u[B,L,H] = r[B,L,H,R]\n  p = softmax(s, over=M, mask=causal(L, M))",
        SPLIT,
    ),
    "tokens that an indexer chooses over a split context": (INDEXER, SPLIT),
    "tokens that an indexer chooses": (INDEXER, ALONE),
}
RAGGED = {"L": 10, "M": 12, "L_block": 4, "M_block": 5}  # blocks divide neither, nor what a chip has of the context


@cache
def compiled(name: str, new: int = 4096) -> CompiledPhase:
    """The plan of a case, of so many new tokens."""
    made, (layout, split) = CASES[name]
    product = PRODUCT.replace("vs", "y") if "y[" in made else PRODUCT
    product, values = (f"{product} * u[B,L,H]", BYTES) if "gate" in name else (product, "bf16[B,M,K,Q]")
    text = MODEL.format(new=new, scores=made, layout=layout, split=split, product=product, values=values)
    source = Source("a.esti", text)
    [one] = compile_phases(
        expand(parse(source), source), ["prefill"], Mesh.parse("2x2"), Options(Hardware.of_paper("tpu-v4"))
    )
    return one


def emitted(name: str, new: int = 4096, platform: Platform = Platform.ANY) -> str:
    """The module of a case, of so many new tokens."""
    one = compiled(name, new)
    return emit_jax(one.program, one.spmd, one.estimate, platform=platform)


def ragged(name: str, platform: Platform = Platform.ANY) -> str:
    """The module of a case, which compares itself at sizes that blocks do not divide."""
    head, small, rest = emitted(name, platform=platform).partition("SMALL = ")
    line, end, after = rest.partition("\n\n")
    for field, size in RAGGED.items():
        line = re.sub(rf"\b{field}=\d+", f"{field}={size}", line)
    return head + small + line + end + after
