"""Attention as served models have it, for several chips in NumPy and JAX: windows, chunks, sinks, scaled rope."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from escc.compiler.emit.jax_source import emit_jax
from escc.compiler.emit.numpy_source import emit_numpy
from escc.compiler.jax.check import check_jax
from escc.compiler.plan.compiled import CompiledPhase
from escc.compiler.plan.pipeline import compile_phases
from escc.cost.hardware import Hardware
from escc.ir.diagnostics import Source
from escc.ir.mesh import Mesh
from escc.ir.text.read import parse
from escc.passes.expansion.expand import expand
from escc.passes.options import Options

pytestmark = pytest.mark.usefixtures("forked_jax")

BLOCK = """
model "served"
dim B = 4, L, M = 32, E = 16, F = 32, Q = {pairs}, K = 2, G = 2
dim H = K * G

block layer(x: bf16[B,L,E]) -> bf16[B,L,E] {{
  param Wq: bf16[E,H,Q]
  param Wk: bf16[E,K,Q]
  param Wo: bf16[H,Q,E]
  param Wi: bf16[E,F]
  param Wd: bf16[F,E]
  param z: bf16[H]
  cache keys: bf16[B,M,K,Q] @ BM_xK_yQ
  q[B,L,H,Q] = x[B,L,E] * Wq[E,H,Q]
  k[B,L,K,Q] = x[B,L,E] * Wk[E,K,Q]
  rq = rope(q, over=Q, at=L into M, base=100, scaling={scaling})
  ks = append(keys, rope(k, over=Q, at=L into M, base=100, scaling={scaling}), L into M)
  s[B,L,H,M] = rq[B,L,H,Q] * ks[B,M,K,Q]
  p = softmax(s / sqrt(size(Q)), over=M, mask=causal(L, M{mask}), sink=z)
  o[B,L,H,Q] = p[B,L,H,M] * ks[B,M,K,Q]
  a[B,L,E] = o[B,L,H,Q] * Wo[H,Q,E]
  y = minimum(maximum(x + a, -7), 7)
  u[B,L,F] = y[B,L,E] * Wi[E,F]
  h = gelu_exact(u) * erf(u)
  d[B,L,E] = h[B,L,F] * Wd[F,E]
  return y + d
}}
main(x: bf16[B,L,E]) {{ return repeat 2 layer(x) }}
phase prefill {{ L = 8 }}
phase decode {{ L = 1, calls = 4 }}
"""
CASES = {
    "a chunk and yarn, padded": {
        "pairs": "6 pad 8",
        "scaling": "yarn(8, 4, 1, 64, exact)",
        "mask": ", chunk=3",
    },
    "a window in a chunk and longrope": {
        "pairs": "8",
        "scaling": "longrope(1.19, [1, 1.5, 3, 9.25])",
        "mask": ", window=4, chunk=6",
    },
}


@cache
def compiled(name: str) -> tuple[CompiledPhase, ...]:
    source = Source("served.esti", BLOCK.format(**CASES[name]))
    program = expand(parse(source), source)
    phases = [phase.name for phase in program.phases]
    return compile_phases(program, phases, Mesh.parse("2x2"), Options(Hardware.of_paper("tpu-v4")), run=True)


@pytest.mark.parametrize("name", CASES)
def test_chips_compute_what_one_does(name: str, tmp_path: Path) -> None:
    for one in compiled(name):
        assert one.checked is not None and one.checked.equal and one.checked.max_error < 1e-12
        report = check_jax(one)
        assert report.sound
        file = tmp_path / f"{one.phase}.py"
        file.write_text(emit_numpy(one.program, one.spmd))
        done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
        for text in (file.read_text(), emit_jax(one.program, one.spmd, one.estimate)):
            assert max(map(len, text.splitlines())) <= 120


def test_a_sink_joins_the_maximum_and_the_sum_of_all_chips() -> None:
    """The context is split, so both are partial before the sink comes to them, and complete with it."""
    for one in compiled("a chunk and yarn, padded"):
        layouts = {value.name: str(value.layout) for value in one.spmd.values}
        assert any(name.startswith("layer.p.max") and "partial" in text for name, text in layouts.items())
        made = [text for name, text in layouts.items() if name.startswith(("layer.p.top", "layer.p.total"))]
        assert made and not any("partialsum" in text for text in made)
