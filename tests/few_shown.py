"""A model whose masks show fewer than are to be chosen: keys of the future, experts beside the best group, a dim of one
place. And its results, worked out alone."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from functools import cache

import numpy as np
from expert_models import Layer

from escc.compiler.emit.jax_source import emit_jax
from escc.compiler.plan.compiled import CompiledPhase

Array = np.ndarray

MODEL = """
dim B = 16, L = 4, M = 4, Q = 2, E = 3, F = 5, N = 4, Y = 2, T = 1
dim X = N * Y
main(s: f32[B,L,M], v: f32[B,M,Q], r: f32[B,X], n: f32[B,E], t: f32[B,T]) {
  param W: f32[X,E,F]
  m = choose(s, over=M, keep=3, mask=causal(L, M))
  p = softmax(s, over=M, among=m)
  o[B,L,Q] = p[B,L,M] * v[B,M,Q]
  g = choose(max(r, over=Y), over=N, keep=1)
  e: f32 = choose(r, over=X, keep=3, among=g)
  h = max(e, over=Y)
  c[B,N,E] = h[B,N] * n[B,E]
  d[B,X,E] = e[B,X] * c[B,N,E]
  u[B,X,F] = d[B,X,E] * W[X,E,F]
  z[B,N,F] = e[B,X] * u[B,X,F]
  y[B,F] = z[B,N,F]
  one = choose(t, over=T, keep=1, among=relu(t))
  return m, o, e, y, one
}
"""
ROWS = "stored n B_xyE\nstored W N_xY_yEF\nuse d.c B_yN_xE\nresult z BN_xF partialsum-y\n"
PINS = {
    "what is chosen from lies whole": "stored s B_xyLM\nstored W NYEF\n",
    "what is chosen from is split": "stored s B_xLM_y\nresult p B_xLM_y\n" + ROWS,
}


def expected(given: Mapping[str, Array]) -> dict[str, Array]:
    """The results of the model, element by element."""
    s, r, n, weights = given["s"], given["r"], given["n"], given["W"]
    m, e, o, y = np.zeros(s.shape), np.zeros(r.shape), np.zeros((*s.shape[:2], 2)), np.zeros((len(n), 5))
    for b, query in np.ndindex(*s.shape[:2]):
        seen = np.sort(np.argsort(s[b, query, : query + 1])[-3:])
        share = np.exp(s[b, query, seen])
        m[b, query, seen] = 1
        o[b, query] = share @ given["v"][b, seen] / share.sum()
    for b in range(len(n)):
        best = r[b].max(-1).argmax()
        e[b, best] = 1
        y[b] = n[b] @ weights[best].sum(0)
    return {"m": m, "o": o, "e": e, "y": y, "one": (given["t"] > 0).astype(float)}


def assert_as_expected(given: Mapping[str, Array], found: Mapping[str, Array]) -> None:
    """Fail where results, by name, are others than those of what is `given`."""
    for name, array in expected(given).items():
        np.testing.assert_allclose(found[name], array, atol=1e-5, err_msg=name)


@cache
def compiled(name: str) -> CompiledPhase:
    """The plan under the pins of a name, with room for all rows, which is said as a share of those expected."""
    return Layer(MODEL, "2x2", PINS[name]).compiled(Fraction(100))


# Instead of comparing itself at small sizes, a module keeps what it made at full size.
SAVING = '''
def main():
    """Save what the step is given, and its results."""
    rng = np.random.default_rng(0)
    given = tensors(FULL, lambda shape, dtype, terms=1: rng.standard_normal(shape).astype(dtype))
    results, _ = build(make_mesh())(*given, jnp.int32(FULL.M))
    params, *inputs = given
    found = dict(zip(("made m", "made o", "made e", "made y", "made one"), results), **params)
    np.savez("PATH", **found, **dict(zip("svrnt", inputs)))
    return 0


if __name__'''


def saving(name: str, path: str) -> str:
    """The emitted JAX module, which saves what it makes under a path."""
    one = compiled(name)
    text = emit_jax(one.program, one.spmd, one.estimate)
    return text.replace("\nif __name__", SAVING.replace("PATH", path), 1)


def saved(path: str) -> tuple[dict[str, Array], dict[str, Array]]:
    """What a module that saved under a path was given, and what it made."""
    with np.load(path) as every:
        made = {name.removeprefix("made "): every[name] for name in every if name.startswith("made ")}
        return {name: every[name] for name in every if not name.startswith("made ")}, made
