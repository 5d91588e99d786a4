"""Models whose blocks are written out one after the other, as text: blocks of a few kinds, in any order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

BLOCKS = {
    "forward": """(x: bf16[B,L,E]) -> bf16[B,L,E] {
  param Wi: bf16[E,F]
  param Wd: bf16[F,E]
  u[B,L,F] = x[B,L,E] * Wi[E,F]
  h = gelu(u)
  d[B,L,E] = h[B,L,F] * Wd[F,E]
  return x + d
}""",
    "gated": """(x: bf16[B,L,E]) -> bf16[B,L,E] {
  param Wi, Wg: bf16[E,F]
  param Wd: bf16[F,E]
  u[B,L,F] = x[B,L,E] * Wi[E,F]
  g[B,L,F] = x[B,L,E] * Wg[E,F]
  h = silu(g) * u
  d[B,L,E] = h[B,L,F] * Wd[F,E]
  return x + d
}""",
    "normed": """(x: bf16[B,L,E]) -> bf16[B,L,E] {
  param scale: bf16[E]
  param W: bf16[E,G]
  param V: bf16[G,E]
  n = rmsnorm(x, scale, over=E)
  u[B,L,G] = n[B,L,E] * W[E,G]
  d[B,L,E] = u[B,L,G] * V[G,E]
  return x + d
}""",
    "linear": """(x: bf16[B,L,E]) -> bf16[B,L,E] {
  param W: bf16[E,F]
  param V: bf16[F,E]
  u[B,L,F] = x[B,L,E] * W[E,F]
  y[B,L,E] = u[B,L,F] * V[F,E]
  return y
}""",
    "attention": """(x: bf16[B,L,E]) -> bf16[B,L,E] {
  param Wq: bf16[E,H,Q]
  param Wk: bf16[E,Q]
  param Wo: bf16[H,Q,E]
  cache keys: bf16[B,M,Q]
  q[B,L,H,Q] = x[B,L,E] * Wq[E,H,Q]
  k[B,L,Q] = x[B,L,E] * Wk[E,Q]
  ks = append(keys, k, L into M)
  s[B,L,H,M] = q[B,L,H,Q] * ks[B,M,Q]
  p = softmax(s, over=M, mask=causal(L, M))
  o[B,L,H,Q] = p[B,L,H,M] * ks[B,M,Q]
  a[B,L,E] = o[B,L,H,Q] * Wo[H,Q,E]
  return x + a
}""",
    "tied": """(x: bf16[B,L,E], W: bf16[E,F], V: bf16[F,E]) -> bf16[B,L,E] {
  u[B,L,F] = x[B,L,E] * W[E,F]
  d[B,L,E] = u[B,L,F] * V[F,E]
  return x + d
}""",
}
SIZES = {"B": 8, "L": 1, "M": 8, "E": 64, "F": 32, "G": 16, "H": 4, "Q": 16}


def written_out(blocks: Sequence[str], sizes: Mapping[str, int] = SIZES, phases: str = "") -> str:
    """A model of `blocks` in that order, those that are `tied` with one pair of parameters for all. With `phases`
    these bind the dims that `sizes` lacks."""
    every = [f"{name} = {size}" for name, size in sizes.items()]
    bound = ["B, L, M"] if phases else []
    kinds = dict.fromkeys(blocks)
    tied = "tied" in kinds
    calls = [
        f"  x{n} = {block}(x{m}{', W, V' if block == 'tied' else ''})"
        for block, (m, n) in zip(blocks, pairwise(range(len(blocks) + 1)), strict=True)
    ]
    shared = ["  param W: bf16[E,F]", "  param V: bf16[F,E]"] if tied else []
    return "\n".join(
        [
            'model "written-out"',
            f"dim {', '.join([*bound, *every])}",
            *(f"block {kind}{BLOCKS[kind]}" for kind in kinds),
            "main(x0: bf16[B,L,E]) {",
            *shared,
            *calls,
            f"  return x{len(blocks)}",
            "}",
            phases,
        ]
    )


def repeated(block: str, count: int, sizes: Mapping[str, int] = SIZES) -> str:
    """A model that repeats one block."""
    text = written_out([block], sizes)
    return text.replace(f"x1 = {block}(x0)\n", "").replace("return x1", f"return repeat {count} {block}(x0)")
