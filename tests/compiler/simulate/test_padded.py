"""Padded programs, compiled and run: shrunken dims stay padded, and the check sees what padding may spoil."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from escc.compiler.emit.numpy_source import emit_numpy
from escc.compiler.plan.compiled import Compilation, CompiledPhase
from escc.compiler.plan.pipeline import compile_phases
from escc.compiler.report.json import json_text
from escc.compiler.report.text import report
from escc.compiler.simulate.check import check
from escc.compiler.simulate.reference import random_stored
from escc.compiler.simulate.shrink import shrink, true_part, zero_padded
from escc.cost.estimate import predict
from escc.cost.hardware import Hardware
from escc.cost.ops import model_flops
from escc.ir.diagnostics import Source
from escc.ir.expr import Call, Const
from escc.ir.mesh import Mesh
from escc.ir.program import Map, Program
from escc.ir.spmd import Compute, SpmdProgram
from escc.ir.text.read import parse
from escc.passes.expansion.expand import expand
from escc.passes.options import Options

HARDWARE = Hardware.of_paper("tpu-v4")
ATTENTION = """
model "attention"
dim B = 6 pad 8, L, M = 16, E = 20 pad 24, H = 6 pad 8, Q = 6 pad 8, V = 29 pad 32
dim H2 = H
param table: bf16[V,E]
block layer(x: bf16[B,L,E]) -> bf16[B,L,E] {
  param scale, bias: bf16[E]
  param Wq: bf16[E,H,Q]
  param Wk: bf16[E,Q]
  param mix: bf16[H,H2]
  param Wo: bf16[H2,Q,E]
  cache keys: bf16[B,M,Q]

  n = layernorm(x, scale, bias, over=E)
  q[B,L,H,Q] = n[B,L,E] * Wq[E,H,Q]
  k[B,L,Q] = n[B,L,E] * Wk[E,Q]
  ks = append(keys, rope(k, over=Q, at=L into M), L into M)
  s[B,L,H,M] = q[B,L,H,Q] * ks[B,M,Q]
  p = softmax(s / sqrt(size(Q)), over=M, mask=causal(L, M))
  o[B,L,H,Q] = p[B,L,H,M] * ks[B,M,Q]
  g = sigmoid(o)
  o2[B,L,H2,Q] = g[B,L,H,Q] * mix[H,H2]
  a[B,L,E] = o2[B,L,H2,Q] * Wo[H2,Q,E]
  return x + a
}
main(tokens: i32[B,L]) {
  x = take(table, tokens, over=V)
  y = repeat 3 layer(x)
  z = last(y, over=L)
  t[B,V] = z[B,E] * table[V,E]
  p = softmax(t, over=V)
  return argmax(t, over=V), p, mean(p * p, over=[B, V]), max(t - 9, over=V)
}
phase prefill { L = 4 }
phase decode { L = 1, calls = 2 }
"""
SUM = "dim B = 12, F = 9 pad 12\nmain(x: bf16[B,F]) { h = exp(x)\n s = sum(h, over=F)\n return s, h }"
DENSE = """
dim B = 8, E = 6 pad 8, F = 10 pad 12
main(x: bf16[B,E]) {
  param W: bf16[E,F]
  y[B,F] = x[B,E] * W[E,F]
  return y
}
"""


def expanded(text: str) -> Program:
    source = Source("test.esti", text)
    return expand(parse(source), source)


def compiled(text: str, mesh: str) -> tuple[CompiledPhase, ...]:
    program = expanded(text)
    phases = [phase.name for phase in program.phases]
    options = Options(HARDWARE, capacity_bytes=1e18)
    return compile_phases(program, phases, Mesh.parse(mesh), options, run=True, separate=True)


@pytest.mark.parametrize("mesh", ["1", "2", "2x2", "4", "2x4"])
def test_a_padded_program_runs_as_its_reference_without_padding(mesh: str) -> None:
    for one in compiled(ATTENTION, mesh):
        assert one.checked is not None and one.checked.equal and one.checked.max_error < 1e-12
        sizes = dict(one.checked.sizes)
        for dim, true in one.program.padding:
            assert 1 < sizes[true] < sizes[dim]


@pytest.mark.parametrize("mesh", ["1", "2x2", "2x4"])
def test_shrunken_dims_stay_padded_and_differ(mesh: str) -> None:
    phases = compiled(ATTENTION, mesh)
    small = shrink(phases[0].program, [one.spmd for one in phases])
    prefill, decode = (dict(spmd.sizes) for spmd in small.spmds)
    assert prefill["H"] == prefill["H2"] and prefill["Q"] % 2 == prefill["Q_true"] % 2 == 0
    large = [n for d, n in prefill.items() if d != "H2"]
    assert len(set(large)) == len(large) and min(large) > 1
    assert {d: n for d, n in decode.items() if d != "L"} == {d: n for d, n in prefill.items() if d != "L"}
    ways = {v.layout.dims[v.dims.index("H")] for one in phases for v in one.spmd.values if "H" in v.dims}
    blocks = max(Mesh.parse(mesh).size(*axes) for axes in ways)
    if blocks > 1:
        shard = prefill["H"] // blocks
        empty, odd = divmod(prefill["H"] - prefill["H_true"], shard)
        assert empty >= 1 and odd, "one shard is empty, and another is not full"


def test_a_dim_that_a_phase_does_not_pad_is_as_large_as_its_padded_size() -> None:
    text = "dim B\nmain(x: bf16[B]) { return exp(x) }\nphase a { B = 6 }\nphase b { B = 8 }"
    source = Source("t", text)
    program = expand(parse(source), source, None, {"B": 8})
    one, other = compile_phases(program, ["a", "b"], Mesh.parse("4"), Options(HARDWARE), separate=True)
    a, b = (dict(spmd.sizes) for spmd in shrink(program, [one.spmd, other.spmd]).spmds)
    assert a["B"] == b["B"] == b["B_true"] > a["B_true"]


def without_mask(spmd: SpmdProgram) -> SpmdProgram:
    """The same with the mask of a sum taken off: the value as it is."""

    def changed(item: object) -> object:
        match item:
            case Compute(Map(name, Call("where", (_, kept, Const(0.0))))) if name.endswith(".masked"):
                return Compute(Map(name, kept))
        return item

    body = replace(spmd.body, items=tuple(map(changed, spmd.body.items)))  # type: ignore[arg-type]
    assert body != spmd.body
    return replace(spmd, body=body)


def test_a_mask_that_is_missing_is_seen() -> None:
    [one] = compiled(SUM, "4")
    assert one.checked is not None and one.checked.max_error < 1e-12
    assert check(one.program, without_mask(one.spmd), predict).max_error > 1e-3


def test_a_wrong_true_size_is_seen() -> None:
    """The sharded program masks by another size than the reference has."""
    [one] = compiled(SUM, "4")

    def shifted(spmd: SpmdProgram) -> SpmdProgram:
        items = []
        for item in spmd.body.items:
            match item:
                case Compute(Map(name, Call("where", (Call("less_equal", (place, last)), kept, fill)))):
                    low = Call("less_equal", (place, Call("subtract", (last, Const(1.0)))))
                    item = Compute(Map(name, Call("where", (low, kept, fill))))
            items.append(item)
        return replace(spmd, body=replace(spmd.body, items=tuple(items)))

    assert check(one.program, shifted(one.spmd), predict).max_error > 1e-3


def test_arrays_are_padded_with_zeros_and_cut_again() -> None:
    program = expanded(ATTENTION)
    sizes = dict(program.phase("prefill").sizes)
    stored = random_stored(program, program.true_sizes(sizes), seed=1)
    padded = zero_padded(program, sizes, stored)
    assert padded["layer.Wq"].shape == (3, 24, 8, 8) and stored["layer.Wq"].shape == (3, 20, 6, 6)
    for name, array in stored.items():
        assert np.array_equal(true_part(program, sizes, name, padded[name]), array)
        assert np.count_nonzero(padded[name]) == np.count_nonzero(array)
    assert stored["tokens"].max() < 29


def test_a_scale_whose_type_has_no_zero_is_padded_with_ones() -> None:
    program = expanded("dim B = 2, E = 5 pad 8\nmain(s: e8m0[E], x: bf16[B,E]) { return x * s }")
    padded = zero_padded(program, dict(program.phases[0].sizes), {"s": np.full(5, 4.0), "x": np.full((2, 5), 4.0)})
    assert padded["s"].tolist() == [4.0] * 5 + [1.0] * 3
    assert not padded["x"][:, 5:].any()


def test_model_flops_leave_padding_out() -> None:
    assert model_flops(expanded(DENSE), "main") == 2 * 8 * 6 * 10
    [one] = compiled(DENSE, "2")
    used = one.prediction.mfu
    assert used == pytest.approx(960 / (one.estimate.totals().total_s * 2 * HARDWARE.peak_flops_per_s))


def test_model_flops_count_repeats_and_tied_tables_and_no_attention() -> None:
    program = expanded(ATTENTION)
    layer = 2 * (20 * 6 * 6 + 20 * 6 + 6 * 6 * 6 + 6 * 6 * 20)
    assert model_flops(program, "decode") == 6 * (3 * layer + 2 * 20 * 29)
    assert model_flops(program, "prefill") == 6 * (3 * 4 * layer + 2 * 20 * 29)


def test_the_report_says_what_is_padded() -> None:
    [one] = compiled(DENSE, "2")
    lines = report(one).splitlines()
    assert "  padding   E 6 to 8, F 10 to 12" in lines
    assert any(line.startswith("  MFU ") for line in lines)
    data = json.loads(json_text(Compilation((one,))))
    assert data["true_sizes"] == {"E": 6, "F": 10} and data["sizes"]["E"] == 8
    assert data["model_flops"] == 960 and data["mfu"] == one.prediction.mfu
    [plain] = compiled(DENSE.replace(" pad 8", "").replace(" pad 12", ""), "2")
    assert not any(line.startswith("  padding") for line in report(plain).splitlines())


def run_file(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    file = folder / "emitted.py"
    file.write_text(text)
    return subprocess.run([sys.executable, str(file)], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("phase", [0, 1])
def test_the_emitted_file_compares_with_the_program_without_padding(phase: int, tmp_path: Path) -> None:
    one = compiled(ATTENTION, "2x2")[phase]
    text = emit_numpy(one.program, one.spmd)
    assert max(map(len, text.splitlines())) <= 120
    done = run_file(text, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    wrong = text.replace("np.pad(whole, beyond[name])", "np.pad(whole, beyond[name], constant_values=1)")
    assert wrong != text and run_file(wrong, tmp_path).returncode == 1
    ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", str(tmp_path)]
    assert subprocess.run(ruff, capture_output=True).returncode == 0
