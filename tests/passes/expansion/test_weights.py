"""Weights and caches in fewer bits: which of them, with which scales, and what a chip stores and loads of them."""

from __future__ import annotations

import pytest
from model_text import print_model

from escc.compiler.plan.pipeline import compile_phase, program_of
from escc.cost.hardware import Hardware
from escc.ir.diagnostics import InputError, Source
from escc.ir.dtype import Dtype
from escc.ir.mesh import Mesh
from escc.ir.text.read import parse
from escc.passes.expansion.narrowed import narrowed
from escc.passes.options import Options

TEXT = """model "layer"
dim B = 8, E = 64, F = 256
main(x: bf16[B,E], y: bf16[B,F]) {
  param scale: bf16[E]
  param Wi: bf16[E,F]
  param Wd: f32[F,E]
  cache old: bf16[B,F]
  n = rmsnorm(x, scale, over=E)
  h[B,F] = n[B,E] * Wi[E,F]
  d[B,E] = h[B,F] * Wd[F,E]
  return d, h + y + old
}
"""
SOURCE = Source("layer.esti", TEXT)
PROGRAM = program_of(SOURCE)

SERVED = """dim B = 4, L = 1, M = 16, E = 64, V = 32, C = 16, Q = 8, R = 4
dim K = 2, G = 2, X = 4
dim H = K * G
param table: bf16[V,E]
block layer(x: bf16[B,L,E]) -> bf16[B,L,E] {
  param Wq: bf16[E,H,Q]
  param Wk, Wv: bf16[E,K,Q]
  param bq: bf16[H,Q]
  param Wc: bf16[C,H,Q]
  param Wo: bf16[H,Q,E]
  param Wr: bf16[E,X]
  param Wx: bf16[X,E,E2]
  cache keys: bf16[B,M,K,Q]
  cache latents: bf16[B,C,M]
  cache counts: bf16[B,M]
  cache given: int8[B,M,Q] * f32[B,M]
  return x
}
"""


def declared(text: str, weights: Dtype | None, caches: Dtype | None) -> list[str]:
    printed = print_model(narrowed(parse(Source("t.esti", text)), weights, caches))
    return [line.strip() for line in printed.splitlines() if line.strip().startswith(("param", "cache"))]


def test_matrices_have_a_scale_for_each_output_and_tables_for_each_row() -> None:
    lines = """  q[B,L,H,Q] = x[B,L,E] * Wq[E,H,Q]
  k[B,L,K,Q] = x[B,L,E] * Wk[E,K,Q]
  v[B,L,K,Q] = x[B,L,E] * Wv[E,K,Q]
  s[B,L,H,M] = q[B,L,H,Q] * Wc[C,H,Q] * cs[B,C,M]
  a[B,L,E] = o[B,L,H,Q] * Wo[H,Q,E]
  r[B,L,X] = x[B,L,E] * Wr[E,X]
  u[B,L,X,E2] = x[B,L,E] * Wx[X,E,E2]
  z[B,L,K] = x[B,L,E] * Wp[E,H]
  ks = append(keys, k + 1, L into M)
  cs = 2 * append(latents, c, L into M)
  cc = append(counts, c, L into M)
  gs = append(given, c, L into M)
"""
    text = SERVED.replace("  return x\n", "  param Wp: bf16[E,H]\n" + lines + "  return x + take(rows, t, over=V)\n")
    text = text.replace("param table", "param rows: bf16[V,E]\nparam table")
    text += "main(t: i32[B,L]) {\n  logits[B,L,V] = x[B,L,E] * table[V,E]\n  return take(table, t, over=V)\n}\n"
    assert declared(text, Dtype.INT8, Dtype.FP8) == [
        "param rows: int8[V,E] * f32[V]",
        "param table: int8[V,E] * f32[V]",
        "param Wq: int8[E,H,Q] * f32[H,Q]",
        "param Wk, Wv: int8[E,K,Q] * f32[K,Q]",
        "param bq: bf16[H,Q]",
        "param Wc: int8[C,H,Q] * f32[H]",
        "param Wo: int8[H,Q,E] * f32[E]",
        "param Wr: int8[E,X] * f32[X]",
        "param Wx: int8[X,E,E2] * f32[X,E2]",
        "cache keys: fp8[B,M,K,Q] * f32[B,M,K]",
        "cache latents: fp8[B,C,M] * f32[B,M]",
        "cache counts: bf16[B,M]",
        "cache given: int8[B,M,Q] * f32[B,M]",
        "param Wp: int8[E,H] * f32[]",  # H is summed in part, so no part of it has a scale of its own
    ]
    untouched = declared(text, None, None)
    assert untouched == declared(text, Dtype.BF16, None) and "param Wq: bf16[E,H,Q]" in untouched


@pytest.mark.parametrize("dtype", [Dtype.INT8, Dtype.FP8, Dtype.INT4])
def test_matrices_in_bf16_are_stored_otherwise_and_nothing_else_is(dtype: Dtype) -> None:
    before, after = PROGRAM.table(), program_of(SOURCE, weights=dtype).table()
    assert {name for name in after if name not in before or before[name] != after[name]} == {"Wi", "Wi.scale"}
    assert after["Wi"].dtype is dtype and after["Wi.scale"].dims == ("F",)
    assert program_of(SOURCE, weights=Dtype.BF16) == PROGRAM
    with pytest.raises(InputError, match="Caches cannot be stored as f32, with scales"):
        program_of(SOURCE, caches=Dtype.F32)


def test_a_model_in_f16_computes_in_it() -> None:
    text = """model "half"
dim B = 4, E = 8, F = 8, V = 16
param table: f16[V,E]
block layer(x: f16[B,E]) -> f16[B,E] {
  param W: f16[E,F]
  param U: f16[F,E]
  h[B,F] = x[B,E] * W[E,F]
  y[B,E] = h[B,F] * U[F,E]
  return y
}
main(t: i32[B]) {
  y = repeat 2 layer(take(table, t, over=V))
  logits[B,V] = y[B,E] * table[V,E]
  return logits
}
"""
    after = program_of(Source("half.esti", text), weights=Dtype.INT8).table()
    assert {name for name, value in after.items() if value.dtype is Dtype.INT8} == {"layer.W", "layer.U"}
    assert {value.dtype for name, value in after.items() if "scale" not in name} == {Dtype.F16, Dtype.INT8, Dtype.I32}


def test_what_is_asked_for_is_what_a_text_says() -> None:
    written = TEXT.replace("Wi: bf16[E,F]", "Wi: int8[E,F] * f32[F]").replace(
        "old: bf16[B,F]", "old: fp8[B,F] * f32[B]"
    )
    assert program_of(SOURCE, weights=Dtype.INT8, caches=Dtype.FP8) == program_of(Source("layer.esti", written))


def test_a_chip_stores_and_loads_half_and_the_scales() -> None:
    options = Options(Hardware.of_paper("tpu-v4"))
    wide, narrow = (
        compile_phase(program, "main", Mesh.parse("1"), options).estimate
        for program in (PROGRAM, program_of(SOURCE, weights=Dtype.INT8))
    )
    assert dict(wide.stored_bytes)["Wi"] == 2 * dict(narrow.stored_bytes)["Wi"] == 2 * 64 * 256
    assert dict(narrow.stored_bytes)["Wi.scale"] == 4 * 256
    loaded = [{op.result: op.hbm_bytes for op in found.ops}["h"] for found in (wide, narrow)]
    # The matrix, beside n, which is read, and h, which is written for those after it.
    assert loaded == [2 * 64 * 256 + 2 * 8 * (64 + 256), 64 * 256 + 4 * 256 + 2 * 8 * (64 + 256)]
    flops = [{op.result: op.flops for op in found.ops}["h"] for found in (wide, narrow)]
    assert flops[1] == flops[0] + 8 * 256  # each sum times its scale


@pytest.mark.parametrize(
    ("weights", "caches", "said"),
    [
        (
            Dtype.INT8,
            None,
            "`--weights int8` changes nothing: no parameter is in bf16 or f16 and could be stored as",
        ),
        (None, Dtype.FP8, "`--caches fp8` changes nothing: no cache is in bf16 or f16 and could be stored as"),
    ],
)
def test_what_changes_nothing_is_refused(weights: Dtype | None, caches: Dtype | None, said: str) -> None:
    """It would be planned, and shown in a sweep, as if it were stored so."""
    text = "dim B = 2, E = 4\nmain(x: f32[B,E]) { param W: f32[E,E]\n  param b: bf16[E]\n  return x * W[E,E] }"
    with pytest.raises(InputError) as refused:
        narrowed(parse(Source("t.esti", text)), weights, caches)
    [diagnostic] = refused.value.diagnostics
    assert diagnostic.message == f"{said} {weights or caches}."
    assert diagnostic.hint == ("the model has them in f32" if weights else "the model has none of two dims or more")
