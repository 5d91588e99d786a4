"""Published worked answers about experts: an exercise of the scaling-book, and the bytes that DeepEP sends."""

from __future__ import annotations

from pathlib import Path

import pytest
import sympy

from escc.compiler.plan.pipeline import compile_phase
from escc.compiler.report.hardware import parameter_count
from escc.cost.estimate import OpWork, Scale, step_costs
from escc.cost.hardware import Hardware
from escc.ir.diagnostics import Source
from escc.ir.dtype import Dtype
from escc.ir.mesh import Mesh
from escc.ir.program import Program
from escc.ir.text.read import parse
from escc.passes.expansion.expand import expand
from escc.passes.expansion.narrowed import narrowed
from escc.passes.options import Options

V5E = Hardware.load("tpu-v5e", datasheet=True)
TEXT = (Path(__file__).parents[1] / "data" / "experts-exercise.esti").read_text(encoding="utf-8")


def model(weights: Dtype | None = None, **sizes: int) -> Program:
    """The exercise's model: 64 layers, each with 16 experts of which a token takes 2."""
    source = Source("exercise.esti", TEXT)
    return expand(narrowed(parse(source), weights), source, sizes)


def test_the_experts_of_the_exercise_have_212_billion_parameters() -> None:
    """The scaling-book, inference, exercise on experts: about 212e9."""
    assert parameter_count(model()) == pytest.approx(212e9, rel=0.005)


def test_in_int8_they_load_in_two_milliseconds_on_8x16() -> None:
    """As each chip loads its share of all weights once: 212e9 / (128 * 8.1e11) s."""
    program = model(Dtype.INT8, B=4096)
    count = parameter_count(program)
    assert count / (128 * V5E.hbm_bytes_per_s) == pytest.approx(2.0e-3, rel=0.05)
    compiled = compile_phase(program, "decode", Mesh.parse("8x16"), Options(V5E, capacity_bytes=1e18))
    stored = sum(size for _, size in compiled.estimate.stored_bytes)
    assert stored >= count / 128  # and no plan holds less on a chip


def test_arithmetic_binds_from_the_published_batch_on() -> None:
    """Where 16 experts are loaded for 2 that a token takes, 240 flops a byte take 8 times as many tokens: 1,920."""
    flops_per_byte = V5E.peak_flops_per_s / V5E.hbm_bytes_per_s
    assert flops_per_byte * 16 / 2 == pytest.approx(1920, rel=0.01)

    def ratio(batch: int) -> float:
        """Seconds of arithmetic over those of loading, of the einsum of the gates on one chip."""
        one = compile_phase(model(B=batch), "decode", Mesh.parse("1"), Options(V5E, capacity_bytes=1e18))
        weights = dict(one.estimate.stored_bytes)["layer.Wg"] / 64
        (gates,) = (op for op in one.estimate.ops if op.result == "layer.g")
        return gates.flops / V5E.peak_flops_per_s / (weights / V5E.hbm_bytes_per_s)

    assert ratio(1920) == pytest.approx(1.0, rel=0.01)
    assert ratio(960) == pytest.approx(0.5, rel=0.01)


@pytest.mark.parametrize(("batch", "met"), [(1, 2 / 16), (2, 1 - (14 / 16) ** 2), (512, 1.0)])
def test_few_tokens_load_the_experts_that_they_meet(batch: int, met: float) -> None:
    one = compile_phase(model(B=batch), "decode", Mesh.parse("1"), Options(V5E, capacity_bytes=1e18))
    (down,) = (op for op in one.estimate.ops if op.result == "layer.d")
    weights = dict(one.estimate.stored_bytes)["layer.Wd"] / 64
    values = 2 * batch * 2 * (16384 + 4096)  # what goes in, and out, of two experts for each token
    assert down.hbm_bytes == pytest.approx(weights * met + values, rel=1e-9)


DISPATCH = """
dim B = 1024, X = 256, E = 7168, S = 56, F = 2048
main(n: fp8[B,E] @ B_xE, c: f32[B,S] @ B_xS, s: f32[B,X] @ B_xX) {
  param Wi: bf16[X,E,F] @ X_xEF
  param Ws: bf16[X,S,F] @ X_xSF
  m = choose(s, over=X, keep=8)
  e: fp8[B,X,E] @ B_xXE = m[B,X] * n[B,E]
  g: f32[B,X,S] @ B_xXS = m[B,X] * c[B,S]
  u[B,X,F] @ BX_xF = e[B,X,E] * Wi[X,E,F]
  v[B,X,F] @ BX_xF = g[B,X,S] * Ws[X,S,F]
  return u, v
}
"""


def test_a_dispatch_sends_what_deepep_prints() -> None:
    """128 tokens a chip, 7,168 wide, each to 8 of 256 experts, in fp8 with a scale of 4 bytes for 128 numbers: 98 GB/s
    in 77 us (the README of DeepEP, low-latency kernels, 8 chips), which counts what stays on a chip as well."""
    source = Source("dispatch.esti", DISPATCH)
    options = Options(Hardware.load("h100", datasheet=True), capacity_bytes=1e18)
    one = compile_phase(expand(parse(source), source), "main", Mesh.parse("8"), options)
    assert {move.kind for move in one.estimate.moves if move.bytes_sent} == {"all-to-all"}
    sent = sum(move.bytes_sent for move in one.estimate.moves) * 8 / 7
    assert sent == 128 * 8 * (7168 + 4 * 56)
    assert sent / 77e-6 == pytest.approx(98e9, rel=0.01)


def test_the_share_that_is_read_is_a_formula() -> None:
    """1 - (1 - k/X)^T, in the dims of the program."""
    one = compile_phase(model(B=8), "decode", Mesh.parse("1"), Options(V5E, capacity_bytes=1e18))
    symbols = Scale(lambda dim: sympy.Symbol(dim, positive=True), lambda axis: sympy.Integer(1))
    works = {step.result: step.work for step in step_costs(one.spmd, symbols) if isinstance(step, OpWork)}
    b, length, x = (sympy.Symbol(name, positive=True) for name in ("B", "L", "X"))
    assert works["layer.d"].hbm_bytes.has((1 - 2 / x) ** (b * length))
