"""What virtual chips fetch from their host: the bytes that prices count, of parts that make what the chips hold."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from programs import TINY_DECODER

from escc.compiler.plan.offload import streaming
from escc.compiler.plan.pipeline import InternalError, compile_phase, parse, run_check
from escc.cost.hardware import Hardware, Host
from escc.ir.mesh import Mesh
from escc.ir.program import Kind
from escc.ir.streams import HostTensor
from escc.passes.choose import Options

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
