"""How emitted JAX files make numbers of codes with scales: as the reference, and on TPUs without laying out scales."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from emitted_files import run_files

from escc.compiler import emit
from escc.compiler.emit.jax_source import emit_jax
from escc.compiler.jax.tpu import check_tpu
from escc.compiler.plan.compiled import CompiledPhase
from escc.compiler.plan.pipeline import compile_phase, parse
from escc.cost.hardware import Hardware
from escc.cost.platform import Platform
from escc.ir.mesh import Mesh
from escc.passes.options import Options

needs_libtpu = pytest.mark.skipif(find_spec("libtpu") is None, reason="the TPU's compiler, libtpu, is not installed")

COMPARED = """
rng = np.random.default_rng(0)
codes = rng.integers(-8, 8, (6, 8, 12)).astype(np.int8)


def whole(a):
    a = a.reshape((1,) * (codes.ndim - a.ndim) + a.shape)
    for axis, (size, count) in enumerate(zip(codes.shape, a.shape)):
        a = np.repeat(a, size // count, axis)
    return a


for shapes, less in [
    ([(3, 1, 4)], None),
    ([(6, 2, 1)], (6, 2, 1)),
    ([(6, 4, 12), (3, 8, 2)], (2, 4, 3)),
    ([(2, 8, 1), (3, 8, 1)], None),
    ([(4, 1), (12,), ()], None),
    ([], (6, 1, 1)),
]:
    scales = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    zeros = 0 if less is None else rng.integers(-8, 8, less).astype(np.int8)
    expected = codes - whole(np.asarray(zeros, np.float32))
    for each in scales:
        expected = expected * whole(each)
    found = jax.jit(lambda *a: decoded(a[0], jnp.float32, *a[2:], zeros=a[1]))(codes, zeros, *scales)
    assert found.shape == codes.shape
    np.testing.assert_allclose(found, expected, rtol=1e-6)
"""


def test_codes_are_decoded_as_if_scales_stood_for_each_place(tmp_path: Path) -> None:
    """Groups along some dimensions, of one length or several, with zero points or without."""
    text = (Path(emit.__file__).parent / "jax_runtime.py").read_text() + COMPARED + "raise SystemExit(0)"
    broken = {
        "no groups of groups": ("jnp.repeat(a, count // a.shape[i], i)", "jnp.tile(a, (count // a.shape[i], 1, 1))"),
        "along the last": ("jnp.repeat(a, last[0] // a.shape[-1], -1)", "jnp.tile(a, last[0] // a.shape[-1])"),
        "no zeros": ("held.astype(jnp.float32) - less", "held.astype(jnp.float32) + less"),
    }
    assert all(right in text for right, _ in broken.values())
    texts = {"right": text} | {name: text.replace(*pair) for name, pair in broken.items()}
    codes = run_files(texts, tmp_path)
    assert [name for name, code in codes.items() if code == "0"] == ["right"]


GROUPS = """
dim B = 64, E = 128, F = 256
dim E32 = E / 32, F64 = F / 64
main(x: bf16[B,E]) {
  param W: CODES[E,F] * SCALE
  y[B,F] = x[B,E] * W[E,F]
  return y
}
"""
MADE = 'decoded(params["W"], cfg.bf16, params["W.scale"])'
SPREAD = 'decoded(params["W"], cfg.bf16, lax.optimization_barrier(jnp.repeat(params["W.scale"], cfg.E // cfg.E32, 0)))'


@pytest.mark.parametrize(
    ("codes", "scale", "tpu"),
    [
        ("fp8", "f32[E32,F64]", MADE),
        ("fp8", "f32[F64]", MADE),
        ("int4", "bf16[E32,F]", MADE),
        ("fp4", "e8m0[E32,F]", SPREAD),  # of few bits, as they are stored
    ],
)
def test_codes_are_decoded_where_they_are_multiplied(codes: str, scale: str, tpu: str, tmp_path: Path) -> None:
    model = parse(GROUPS.replace("CODES", codes).replace("SCALE", scale))
    one = compile_phase(model, "main", Mesh.parse("2"), Options(Hardware.load("tpu-v4")))
    platforms = {"True": Platform.TPU, "False": Platform.ANY}
    texts = {name: emit_jax(one.program, one.spmd, one.estimate, platform=each) for name, each in platforms.items()}
    plain = {name: " ".join(text.split()).replace("( ", "(").replace(" )", ")") for name, text in texts.items()}
    assert tpu in plain["True"] and MADE in plain["False"] and "barrier(" not in plain["False"].partition("def main")[2]
    assert run_files(texts, tmp_path) == dict.fromkeys(texts, "0")


STACK = """
dim B = 64, E = 16384, F = 16384, E128 = E / 128, F128 = F / 128
block layer(x: bf16[B,E]) -> bf16[B,E] {
  param Wi: fp8[E,F] * f32[E128,F128]
  param Wd: fp8[F,E] * f32[F128,E128]
  y[B,F] = x[B,E] * Wi[E,F]
  z[B,E] = y[B,F] * Wd[F,E]
  return z
}
main(x: bf16[B,E]) { return repeat 4 layer(x) }
"""
EXPERTS = """
dim B = 8192, E = 2048, T = 4096, X = 8, E128 = E / 128, T128 = T / 128
block layer(x: bf16[B,E]) -> bf16[B,E] {
  param Wr: bf16[E,X]
  param Wi: fp8[X,E,T] * f32[X,E128,T128]
  param Wd: fp8[X,T,E] * f32[X,T128,E128]
  r: f32[B,X] = x[B,E] * Wr[E,X]
  m: bf16 = choose(r, over=X, keep=1)
  t[B,X,E] = m[B,X] * x[B,E]
  u[B,X,T] = t[B,X,E] * Wi[X,E,T]
  h = silu(u)
  d[B,X,E] = h[B,X,T] * Wd[X,T,E]
  y[B,E] = m[B,X] * d[B,X,E]
  return x + y
}
main(x: bf16[B,E]) { return repeat 4 layer(x) }
"""


def on_v4(text: str) -> CompiledPhase:
    return compile_phase(parse(text), "main", Mesh.parse("2x2"), Options(Hardware.load("tpu-v4")))


@needs_libtpu
def test_a_tpu_lays_out_no_scales_for_each_place() -> None:
    """Its codes in groups are all that there is of a matrix beside what is stored."""
    found = check_tpu(on_v4(STACK))
    assert found.memory["live"] - found.memory["argument"] <= 1.1 * 16384**2 / 2  # a chip has half of it


@needs_libtpu
def test_a_tpu_holds_of_matrices_that_multiply_rows_what_is_counted() -> None:
    """No more than one decoded, with its codes in groups, and no less than that one."""
    found = check_tpu(on_v4(EXPERTS))
    assert found.memory["argument"] + 2 * 8 * 2048 * 4096 <= found.memory["live"] <= found.planned_bytes
