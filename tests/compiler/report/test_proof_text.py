"""What text says is proven where streams or stages were looked for, and a plan without any is the quickest that is
known."""

from __future__ import annotations

from dataclasses import replace

import pytest
from programs import TINY_DECODER

from escc.compiler.plan.offload import Offloaded, compile_offloaded
from escc.compiler.plan.pipeline import compile_phases, parse
from escc.compiler.plan.tries import Try
from escc.compiler.plan.way import Offload
from escc.compiler.report.offload_text import offload_data, offload_text
from escc.compiler.report.staged_text import tries_text
from escc.cost.hardware import Hardware, Host
from escc.ir.mesh import Mesh
from escc.passes.options import Options

HOST = Host(dram_bytes=1e11, dram_bytes_per_s=2e11, link_bytes_per_s=2e10, host_chips=2)
MESH, OPTIONS = Mesh.parse("gpu=2"), Options(replace(Hardware.load("v100"), host=HOST))


@pytest.mark.parametrize(
    ("least", "status"), [(0.9, "feasible: the optimum may be up to 10.00% lower"), (1.0, "optimal: ")]
)
def test_a_plan_without_stages_is_proven_among_all_ways(least: float, status: str) -> None:
    found = compile_phases(parse(TINY_DECODER), ["decode"], MESH, OPTIONS)
    tried = Try(MESH, None, found, 2.0, 2.0), Try(MESH, "gpu", None, float("inf"), 2 * least, beaten=True)
    *_, objective, bound, said = tries_text(tried).splitlines()
    assert objective.split() == ["objective", "2.00000", "s:", "all", "calls", "of", "all", "phases"]
    assert bound.split() == ["bound", f"{2 * least:.5f}", "s"]
    assert said.split(maxsplit=1)[1].startswith(status)


def test_where_nothing_streams_it_is_said_what_is_proven_of_streams() -> None:
    found = compile_offloaded(parse(TINY_DECODER), ["decode"], MESH, OPTIONS, Offload.WEIGHTS, 1)
    assert found.streamed == 0
    assert _status(found) == offload_data(found)["status"] == "optimal"
    wide = replace(found, bound=0.75 * found.price)
    assert _status(wide) == offload_data(wide)["status"] == "feasible"
    assert "may be up to 25.00% lower" in offload_text(wide)


def _status(found: Offloaded) -> str:
    """The status that text says."""
    first, *_, last = offload_text(found).splitlines()
    assert first.startswith("Streams: none, the chips hold all")
    return last.split()[1].rstrip(":")
