"""Weights stored narrower: the matrices alone, and what a chip stores and loads of them."""

from __future__ import annotations

import pytest

from escc.compiler.plan.pipeline import compile_phase
from escc.cost.hardware import Hardware
from escc.ir.diagnostics import Source
from escc.ir.dtype import Dtype
from escc.ir.mesh import Mesh
from escc.ir.text.read import parse
from escc.passes.choose import Options
from escc.passes.expansion.expand import expand, with_weights

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
PROGRAM = expand(parse(SOURCE), SOURCE)


@pytest.mark.parametrize("dtype", [Dtype.INT8, Dtype.FP8, Dtype.INT4])
def test_matrices_in_bf16_are_stored_otherwise_and_nothing_else_is(dtype: Dtype) -> None:
    before, after = PROGRAM.table(), with_weights(PROGRAM, dtype).table()
    assert {name for name in before if before[name] != after[name]} == {"Wi"}
    assert after["Wi"].dtype is dtype
    assert with_weights(PROGRAM, Dtype.BF16) == PROGRAM


def test_a_chip_stores_and_loads_half() -> None:
    options = Options(Hardware.of_paper("tpu-v4"))
    wide, narrow = (
        compile_phase(program, "main", Mesh.parse("1"), options).estimate
        for program in (PROGRAM, with_weights(PROGRAM, Dtype.INT8))
    )
    assert dict(wide.stored_bytes)["Wi"] == 2 * dict(narrow.stored_bytes)["Wi"] == 2 * 64 * 256
    loaded = [{op.result: op.hbm_bytes for op in found.ops}["h"] for found in (wide, narrow)]
    # The matrix, beside n, which is read, and h, which is written for those after it.
    assert loaded == [2 * 64 * 256 + 2 * 8 * (64 + 256), 64 * 256 + 2 * 8 * (64 + 256)]
    flops = [{op.result: op.flops for op in found.ops} for found in (wide, narrow)]
    assert flops[0] == flops[1]
