"""What virtual chips fetch from their host: the bytes that prices count, of parts that make what the chips hold."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from programs import TINY_DECODER

from escc.compiler.emit.numpy_source import emit_numpy
from escc.compiler.plan.pipeline import compile_phase, parse, run_check
from escc.compiler.plan.streamed_layers import streaming
from escc.cost.estimate import local_bytes
from escc.cost.hardware import Hardware, Host
from escc.ir.diagnostics import InternalError
from escc.ir.mesh import Mesh
from escc.ir.program import Kind
from escc.ir.streams import HostTensor
from escc.passes.options import Options

HOST = Host(dram_bytes=1e9, dram_bytes_per_s=1e11, link_bytes_per_s=1e10, host_chips=8)
CHIP = replace(Hardware.load("h100"), host=HOST)


def streamed(phase: str, mesh: str, count: int):
    program = streaming(parse(TINY_DECODER), frozenset({Kind.PARAM, Kind.CACHE}), count, 1)
    return compile_phase(program, phase, Mesh.parse(mesh), Options(CHIP))


@pytest.mark.parametrize(("phase", "mesh"), [("decode", "1"), ("decode", "4x2"), ("prefill", "2x2")])
def test_bytes_over_the_host_are_those_that_are_priced(phase: str, mesh: str):
    reports = [run_check(one.program, one.spmd) for one in (streamed(phase, mesh, 3), streamed(phase, mesh, 5))]
    assert all(one.equal and one.max_error < 1e-9 for one in reports)
    some, every = (one.host.counted for one in reports)
    assert every == tuple(2 * size for size in some)  # of two layers one is streamed, or both are
    assert min(every) > 0


NESTED = """
model "nested"
dim B = 4, E = 16, F = 32
block inner(x: bf16[B,E]) -> bf16[B,E] {
  param W: bf16[E,F]
  param U: bf16[F,E]
  h[B,F] = x[B,E] * W[E,F]
  d[B,E] = h[B,F] * U[F,E]
  return x + d
}
block layer(x: bf16[B,E]) -> bf16[B,E] {
  cache last: bf16[B,E]
  y = x + last
  return repeat 2 inner(y)
}
main(x: bf16[B,E]) { return repeat 5 layer(x) }
"""


def test_a_written_program_has_its_layers_from_the_host(tmp_path: Path):
    program = streaming(parse(NESTED), frozenset({Kind.PARAM, Kind.CACHE}), 3, 1)
    one = compile_phase(program, "main", Mesh.parse("2"), Options(CHIP))
    text = emit_numpy(program, one.spmd)
    assert text.count(" = Streamed(mesh, stored[") == 3 and ".at(i_layer, i_layer_inner)" in text
    (tmp_path / "nested.py").write_text(text)
    done = subprocess.run([sys.executable, tmp_path / "nested.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    held, values = dict(one.memory.stored), one.spmd.table()
    for name in ("layer.inner.W", "layer.inner.U"):  # of 2 layers that stay, one that runs and one that comes
        assert held[name] == 4 * 2 * local_bytes(values[name], one.spmd)


def test_a_host_that_sends_other_bytes_is_found_out():
    one = streamed("decode", "2", 5)
    report = run_check(one.program, one.spmd)
    assert report.equal
    doubled = replace(report.host, counted=(2 * report.host.counted[0], Fraction(0)))
    assert not replace(report, host=doubled).equal


def test_chips_that_gather_too_much_are_found_out(monkeypatch: pytest.MonkeyPatch):
    one = streamed("decode", "2x2", 5)
    gathers = property(lambda self: [(dim, axes) for dim, axes in enumerate(self.parts.dims) if axes])
    monkeypatch.setattr(HostTensor, "gathers", gathers)
    with pytest.raises(InternalError, match="does not come from the host as the chips are to hold it"):
        run_check(one.program, one.spmd)
