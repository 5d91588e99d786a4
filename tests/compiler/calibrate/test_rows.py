"""Rows as planned steps: which steps, on which slices, under which pins, and what their work is as arrays."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from escc.compiler.calibrate.fit import work_of
from escc.compiler.calibrate.measurements import Measurements, parse_measurements
from escc.compiler.calibrate.rows import plan_step, plan_steps, runs, slice_of
from escc.compiler.calibrate.validate import validate
from escc.cost.estimate import estimate
from escc.cost.hardware import Calibrated, Hardware, Rule
from escc.ir.diagnostics import InputError, Source
from escc.ir.dtype import Dtype
from escc.ir.layout import format_layout
from escc.ir.spmd import SpmdProgram

V4 = Hardware.of_paper("tpu-v4")
MEASURED = replace(
    V4.with_network("links"),
    calibrated=Calibrated(Rule.ROOT_OF_SQUARES, 0.8, 0.7, 0.6, 3e-6, 4e-6, axes_at_once=2),
)
HEADER = (
    "id,source,model,hardware,phase,chips,batch,input_tokens,output_tokens,weights,ffn_layout,attention_layout,time_ms"
)
TEXT = """model "tiny"
dim B, L, M, E = 64, F = 256, H = 8, Q = 16
block layer(x: bf16[B,L,E]) -> bf16[B,L,E] {
  param Wq: bf16[E,H,Q]
  param Wk, Wv: bf16[E,Q]
  param Wo: bf16[H,Q,E]
  param Wi: bf16[E,F]
  param Wd: bf16[F,E]
  cache keys, values: bf16[B,M,Q]
  q[B,L,H,Q] = x[B,L,E] * Wq[E,H,Q]
  k[B,L,Q] = x[B,L,E] * Wk[E,Q]
  v[B,L,Q] = x[B,L,E] * Wv[E,Q]
  ks = append(keys, k, L into M)
  vs = append(values, v, L into M)
  s[B,L,H,M] = q[B,L,H,Q] * ks[B,M,Q]
  p = softmax(s, over=M, mask=causal(L, M))
  o[B,L,H,Q] = p[B,L,H,M] * vs[B,M,Q]
  a[B,L,E] = o[B,L,H,Q] * Wo[H,Q,E]
  u[B,L,F] = x[B,L,E] * Wi[E,F]
  h = gelu(u)
  d[B,L,E] = h[B,L,F] * Wd[F,E]
  return x + a + d
}
main(x: bf16[B,L,E]) { return repeat 4 layer(x) }
phase prefill { B = 8, L = 16, M = 16 }
phase decode { B = 8, L = 1, M = 16, calls = 4 }
"""


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.esti"
    path.write_text(TEXT)
    return path


@pytest.fixture(autouse=True)
def one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 1)


def read(*rows: str) -> Measurements:
    return parse_measurements(Source("m.csv", "\n".join([HEADER, *rows])), "tpu-v4")


def row(model: Path, phase: str, name: str = "a", counts: str = "4,8,30,9", how: str = "bf16,ws2d,batch") -> str:
    return f"{name},t,{model},tpu-v4,{phase},{counts},{how},1.0"


@pytest.mark.parametrize(
    ("phase", "expected"),
    [
        ("prefill", [("prefill", 30, 30, 1)]),
        ("decode", [("decode", 1, 35, 9)]),
        ("decode-step", [("decode", 1, 30, 1)]),
        ("total", [("prefill", 30, 30, 1), ("decode", 1, 35, 9)]),
    ],
)
def test_the_steps_of_a_phase(tiny: Path, phase: str, expected: list[tuple[str, int, int, int]]) -> None:
    [run] = runs(read(row(tiny, phase)), V4)
    found = [(step.phase, step.tokens, step.context, count) for step, count in run.steps]
    assert found == expected
    step = run.steps[0][0]
    assert (step.batch, step.mesh.sizes, step.weights) == (8, (2, 2), Dtype.BF16)


@pytest.mark.parametrize(
    ("chips", "shape"),
    [(64, "4x4x4"), (32, "2x4x4"), (16, "2x2x4"), (8, "2x2x2"), (128, "4x4x8"), (1, "1"), (7, "7"), (27, "3x3x3")],
)
def test_slices(chips: int, shape: str) -> None:
    assert "x".join(map(str, slice_of(chips, V4).sizes)) == shape
    assert len(slice_of(chips, Hardware.of_paper("h100")).sizes) == 1


def test_a_mesh_of_its_own(tiny: Path) -> None:
    text = "\n".join([HEADER + ",mesh", row(tiny, "prefill") + ",1x4"])
    [run] = runs(parse_measurements(Source("m.csv", text), "tpu-v4"), V4)
    assert run.steps[0][0].mesh.sizes == (1, 4)


def test_a_step_is_planned_under_its_pins(tiny: Path) -> None:
    [run] = runs(read(row(tiny, "decode", how="int8,ws2d,batch")), V4)
    spmd = plan_step(run.steps[0][0], MEASURED)
    assert isinstance(spmd, SpmdProgram)
    found = {name: (format_layout(v.dims, v.layout), v.dtype) for name, v in spmd.table().items()}
    assert found["layer.Wi"] == ("E_xF_y", Dtype.INT8)
    assert found["layer.keys"] == ("B_xyMQ", Dtype.BF16)
    assert dict(spmd.sizes)["M"] == 35


def test_what_rows_share_is_planned_once(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = []
    monkeypatch.setattr(
        "escc.compiler.calibrate.rows.plan_step",
        lambda step, hardware: planned.append(step) or plan_step(step, hardware),
    )
    measurements = read(row(tiny, "total"), row(tiny, "prefill", "b"), row(tiny, "decode", "c"))
    programs = plan_steps(runs(measurements, V4), MEASURED)
    assert len(planned) == len(programs) == 2


def test_what_cannot_be_planned_names_its_row(tiny: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.esti"
    other.write_text(TEXT.replace("phase decode", "phase generate"))
    bad = read(
        row(tiny, "prefill", "a", counts="7,8,30,9"),
        row(other, "decode", "b"),
        row(tiny, "decode", "fine"),
    )
    with pytest.raises(InputError) as caught:
        plan_steps(runs(bad, V4), MEASURED)
    said = str(caught.value)
    assert "Row `a`: The layout `ws2d` needs 2 axes, and the mesh 7 has 1." in said
    assert "Row `b`: The model has no phase `decode`." in said
    assert len(caught.value.diagnostics) == 2


def test_processes_make_the_same_plans(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    all_runs = runs(read(row(tiny, "total")), V4)
    alone = plan_steps(all_runs, MEASURED)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert plan_steps(all_runs, MEASURED) == alone


@pytest.mark.parametrize("at_once", [None, 1, 2])
def test_the_arrays_say_what_the_estimates_say(tiny: Path, at_once: int | None) -> None:
    chip = replace(MEASURED, calibrated=replace(MEASURED.calibrated, axes_at_once=at_once))
    all_runs = runs(read(row(tiny, "total"), row(tiny, "decode", "b", counts="4,4,100,5")), V4)
    programs = plan_steps(all_runs, chip)
    expected = [
        sum(count * estimate(programs[step], chip).totals().total_s for step, count in run.steps) for run in all_runs
    ]
    assert work_of([run.steps for run in all_runs], programs, chip).seconds(chip).tolist() == pytest.approx(
        expected, rel=1e-12
    )


def test_a_validation_by_hand(tiny: Path) -> None:
    measurements = read(row(tiny, "total"), row(tiny, "decode-step", "b"))
    found = validate(measurements, MEASURED)
    programs = plan_steps(runs(measurements, V4), MEASURED)
    for one, run in zip(found.rows, runs(measurements, V4), strict=True):
        totals = [(count, estimate(programs[step], MEASURED).totals()) for step, count in run.steps]
        assert one.predicted_s == pytest.approx(sum(n * t.total_s for n, t in totals), rel=1e-12)
        assert one.error == pytest.approx(one.predicted_s / 1e-3 - 1, rel=1e-9)
        # At the peaks: what is reached is 0.8 and 0.7 of them.
        least = max(sum(n * t.compute_s for n, t in totals) * 0.8, sum(n * t.memory_s for n, t in totals) * 0.7)
        assert one.least_s == pytest.approx(least, rel=1e-12)
        assert not one.impossible
        latency = sum(
            n * m.times * (3e-6 + 4e-6 * hops(m.kind, len(m.axes)))
            for n, program in ((n, estimate(programs[s], MEASURED)) for s, n in run.steps)
            for m in program.moves
            if m.bytes_sent and not m.joined
        )
        assert one.shares.latency_s == pytest.approx(latency, rel=1e-9)
    assert found.mape == pytest.approx(np.mean([abs(one.error) for one in found.rows]))
    assert abs(found.worst.error) == max(abs(one.error) for one in found.rows)


def hops(kind: str, axes: int) -> int:
    """On lines of two chips."""
    return axes * (2 if kind == "all-reduce" else 1)


def test_a_measured_time_below_the_peaks_is_said(tiny: Path) -> None:
    fast = row(tiny, "prefill", counts="4,512,4096,0").replace("1.0", "0.000001")
    [one] = validate(read(fast), MEASURED).rows
    assert one.impossible == ("measured",)
