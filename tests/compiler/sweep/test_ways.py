"""Points of a sweep as pipelines and with streams: the figures are those of the plans that `escc compile` makes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from programs import TINY_DECODER
from typer.testing import CliRunner

from escc.compiler.commands.main import app
from escc.compiler.plan.offload import compile_offloaded
from escc.compiler.plan.pipeline import parse, read_model
from escc.compiler.plan.staged import compile_staged
from escc.compiler.plan.tries import tries
from escc.compiler.plan.way import Offload
from escc.compiler.sweep.grid import grid
from escc.compiler.sweep.points import IN_MESH_ORDER, Asked, Status, Sweep, record_of
from escc.compiler.sweep.solve import solve
from escc.compiler.sweep.sweep_text import sweep_text
from escc.compiler.sweep.ways import pipelined
from escc.cost.hardware import Calibrated, Hardware, Host
from escc.ir.diagnostics import InputError
from escc.ir.mesh import Mesh
from escc.passes.layouts import mesh_order
from escc.passes.options import Options

H100 = Hardware.load("h100")
SMALL = replace(H100, hbm_bytes=400e3, host=Host(1e9, 1e11, 1e9, 8))
TEXT = TINY_DECODER.replace("repeat 5", "repeat 3")
FEW_OPS = """
dim B, L, M
dim E = 64, F = 64
block layer(x: bf16[B,L,E]) -> bf16[B,L,E] {
  param Wk: bf16[E,F]
  param Wd: bf16[F,E]
  cache keys: bf16[B,M,F]
  k[B,L,F] = x[B,L,E] * Wk[E,F]
  ks = append(keys, k, L into M)
  s[B,L,M] = k[B,L,F] * ks[B,M,F]
  p = softmax(s, over=M, mask=causal(L, M))
  o[B,L,F] = p[B,L,M] * ks[B,M,F]
  d[B,L,E] = o[B,L,F] * Wd[F,E]
  return x + d
}
main(x: bf16[B,L,E]) { return repeat 8 layer(x) }
phase prefill { B = 4, L = 32, M = 32 }
phase decode { B = 4, L = 1, M = 32, calls = 8 }
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.esti"
    path.write_text(TEXT)
    return path


def swept(
    model: Path, hardware: Hardware, chips: str, offload: Offload = Offload.NONE, stages: int | None = None
) -> Sweep:
    """Decode of 4 sequences on one kind of chips."""
    lists = chips, "4", None, "bf16", None
    return grid(Asked(source=read_model(model)), [hardware], lists, "decode", offload, stages=stages)


def test_a_point_with_streams_is_the_plan_with_streams(model: Path) -> None:
    sweep = swept(model, replace(SMALL, hbm_bytes=255e3), "1", offload=Offload.WEIGHTS)
    [record] = (solve(sweep, point) for point in sweep.points)
    options = Options(sweep.hardware[0])
    found = compile_offloaded(parse(TEXT), ["decode"], Mesh.parse("1"), options, Offload.WEIGHTS)
    assert record.latency_s == pytest.approx(found.price) and found.streamed
    assert len(found.tensors) == 5 and not found.kinds
    assert record.way == f"{' and '.join(found.tensors)} of {found.streamed} of 3 layers streamed"
    assert record_of(record.data()) == record
    assert sweep.header()["offload"] == "weights"
    told = "so many chips, with weights streamed 1 layer ahead or not, are quicker."
    assert told in sweep_text(sweep, [replace(record, status=Status.OPTIMAL)], None)


def test_a_point_in_stages_is_the_pipeline(model: Path) -> None:
    sweep = swept(model, H100, "2", stages=2)
    [record] = (solve(sweep, point) for point in sweep.points)
    mesh = Mesh.parse("2")
    staged = compile_staged(parse(TEXT), ["decode"], mesh, "x", Options(H100))
    rounds = staged.rounds["decode"]
    assert record.latency_s == pytest.approx(staged.phase_s("decode") / rounds.calls)
    assert record.tokens == 4  # all micro-batches
    assert record.way == f"2 stages along x, {rounds.micro_batches} micro-batch{'es' * (rounds.micro_batches > 1)}"
    told = "no layouts on any slice shape of so many chips in 2 stages are quicker."
    assert f"All 1 are proven: {told}" in sweep_text(sweep, [record], None)
    found = pipelined(staged, "decode")
    assert sum(found.spent.seconds) == pytest.approx(found.seconds)
    each = [one.prediction for stage in staged.stages for one in stage]
    flops = [(one.mfu or 0.0) * one.seconds * one.chips for one in each]
    assert (found.mfu or 0.0) * found.seconds * found.chips == pytest.approx(sum(flops) * rounds.micro_batches)
    slowest = max(each, key=lambda one: one.seconds)
    assert found.low_s is not None and slowest.low_s is not None
    assert found.low_s / found.seconds == pytest.approx(slowest.low_s / slowest.seconds)
    first, *others = staged.stages
    bare = replace(H100, protocols=())
    for unsure in (replace(H100, calibrated=Calibrated()), bare):  # of one stage the ops; of all what they hand on
        stages = (tuple(replace(one, hardware=unsure) for one in first), *others)
        unknown = pipelined(replace(staged, stages=stages), "decode")
        assert unknown.low_s is None and unknown.high_s is None and unknown.seconds == found.seconds
    across = pipelined(compile_staged(parse(TEXT), ["decode"], Mesh.parse("node=2"), "node", Options(H100)), "decode")
    assert found.beyond == () and (across.low_s, across.beyond) == (None, ("what goes between nodes",))


def test_a_point_in_stages_that_stream_is_the_quickest_of_all_ways(model: Path) -> None:
    """Dozens of plans in which memory binds, of a model of few ops."""
    model.write_text(FEW_OPS)
    program, hardware = parse(FEW_OPS), replace(SMALL, hbm_bytes=110e3, host=replace(SMALL.host, host_chips=1))
    for stages, way in ((0, "weights of "), (2, "2 stages along x, ")):
        sweep = swept(model, hardware, "2", offload=Offload.WEIGHTS, stages=stages)
        [record] = (solve(sweep, point) for point in sweep.points)
        given = program, ["decode"], [Mesh.parse("2")], Options(hardware), stages or None
        found = tries(*given, offload=Offload.WEIGHTS)
        assert record.latency_s == pytest.approx(found[0].price / program.phase("decode").calls)
        assert len(record.tried) == len(found) == (2 if stages == 0 else 1)
        assert record.way is not None and record.way.startswith(way) and record.way.endswith(" of 8 layers streamed")
        assert record_of(record.data()) == record
        assert sweep.header()["offload"] == "weights" and sweep.header()["stages"] == stages


def test_what_does_not_go_together_is_refused(model: Path) -> None:
    with pytest.raises(InputError, match="has no host"):
        swept(model, H100, "1", offload=Offload.AUTO)
    stream = ["--input", "8", "--output", "8", "--hardware", "h100", "--stages", "2"]
    done = CliRunner().invoke(app, ["sweep", str(model), "--chips", "2", *stream])
    assert done.exit_code == 1 and "`--stages` is of a grid" in done.output


@pytest.mark.parametrize(("offload", "stages"), [(Offload.NONE, 0), (Offload.WEIGHTS, None)])
def test_shapes_of_which_not_all_orders_are_looked_at_leave_no_point_without_a_bound(
    model: Path, offload: Offload, stages: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a plain sweep: such a shape is one more try, and its missing bound is not the point's."""
    monkeypatch.setattr(mesh_order, "FEW_AXES", 1)
    monkeypatch.setattr(mesh_order, "MOST", 0)
    sweep = swept(model, SMALL, "4", offload=offload, stages=stages)
    [record] = (solve(sweep, point) for point in sweep.points)
    assert IN_MESH_ORDER in {one.status for one in record.tried}
    assert record.bound_s is not None and record.bound_s > 0
