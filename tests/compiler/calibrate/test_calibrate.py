"""Calibration from rows to figures: they come back through planning, and leaving out is leaving out."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from escc.compiler.calibrate.calibrate import calibrate, mean_absolute
from escc.compiler.calibrate.calibration_text import calibrated_hardware, calibration_data, calibration_text
from escc.compiler.calibrate.fit import EFFICIENCIES, HOP, fit, started, work_of
from escc.compiler.calibrate.measurements import Measurements, parse_measurements
from escc.compiler.calibrate.rows import plan_steps, runs
from escc.cost.estimate import estimate
from escc.cost.hardware import Calibrated, Convention, Hardware, Rule, parse_hardware
from escc.ir.diagnostics import InputError, Source

V4 = Hardware.of_paper("tpu-v4")
TRUE = replace(
    V4.with_network("links"),
    calibrated=Calibrated(Rule.ROOT_OF_SQUARES, 0.71, 0.62, 0.55, 0.0, 7e-6, axes_at_once=1),
)
HEADER = (
    "id,source,model,hardware,phase,chips,batch,input_tokens,output_tokens,weights,ffn_layout,attention_layout,time_ms"
)
TEXT = """model "layers"
dim B, L, M, E = 4096, F = 16384
block layer(x: bf16[B,L,E]) -> bf16[B,L,E] {
  param Wi: bf16[E,F]
  param Wd: bf16[F,E]
  u[B,L,F] = x[B,L,E] * Wi[E,F]
  h = gelu(u)
  d[B,L,E] = h[B,L,F] * Wd[F,E]
  return x + d
}
main(x: bf16[B,L,E]) {
  param position: bf16[M,E]
  y = repeat 4 layer(x)
  return y, position
}
phase prefill { B = 8, L = 16, M = 16 }
phase decode { B = 8, L = 1, M = 16, calls = 4 }
"""
ROWS = (  # source, phase, chips, batch, tokens, layout
    ("one", "prefill", 8, 8, 64, "ws2d"),
    ("one", "prefill", 8, 64, 1024, "wg-xyz"),
    ("one", "prefill", 8, 64, 256, "ws2d"),
    ("two", "decode", 8, 8, 64, "ws2d"),
    ("two", "decode", 8, 256, 64, "ws1d"),
    ("two", "decode", 8, 1024, 64, "ws2d"),
    ("two", "prefill", 4, 16, 512, "wg-x"),
    ("three", "decode", 4, 8, 64, "ws1d"),
)


@pytest.fixture(autouse=True)
def one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 1)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "layers.esti"
    path.write_text(TEXT)
    return path


def read(file: Path, times_ms: list[float], rows: slice = slice(None)) -> Measurements:
    lines = [
        f"r{n},{source},{file},tpu-v4,{phase},{chips},{batch},{tokens},4,bf16,{layout},batch,{time!r}"
        for n, ((source, phase, chips, batch, tokens, layout), time) in enumerate(zip(ROWS, times_ms, strict=True))
    ]
    return parse_measurements(Source("m.csv", "\n".join([HEADER, *lines[rows]])), "tpu-v4")


def true_times_ms(file: Path) -> list[float]:
    """What the rows take on TRUE, each planned for it."""
    all_runs = runs(read(file, [1.0] * len(ROWS)), TRUE)
    programs = plan_steps(all_runs, TRUE)
    return [1e3 * sum(n * estimate(programs[s], TRUE).totals().total_s for s, n in run.steps) for run in all_runs]


def test_figures_come_back_through_planning(file: Path) -> None:
    measurements = read(file, true_times_ms(file))
    found = calibrate(measurements, V4, (HOP,), Rule.ROOT_OF_SQUARES)
    assert found.settled and 1 < found.rounds <= 4
    expected, got = TRUE.calibrated, found.fit.hardware.calibrated
    assert got.axes_at_once == 1 and [number for number, _ in found.losses] == [1, 2, None]
    for parameter in (*EFFICIENCIES, HOP):
        assert getattr(got, parameter.name) == pytest.approx(getattr(expected, parameter.name), rel=0.01)
    assert found.fit.hardware.convention is Convention.LINKS
    assert mean_absolute(found.errors) < 1e-3
    assert [one.source for one in found.left_out] == ["one", "two", "three"]
    # Written, it reads as the same hardware.
    text = calibrated_hardware(found, "m.csv", {"hardware": "tpu-v4", "axes-at-once": None})
    assert parse_hardware(Source("mine.toml", text)) == found.fit.hardware
    assert "# Written by `escc calibrate m.csv --hardware tpu-v4`" in text
    assert "8 rows of m.csv: 3 of one, 4 of two, 1 of three" in text
    assert "hop_latency_s" in calibration_text(found)
    data = calibration_data(found)
    assert data["settled"] is True and data["rows"] == 8 and data["axes_at_once"] == 1


def test_a_source_is_left_out_of_its_own_prediction(file: Path) -> None:
    """The errors of a source's rows are those of a fit to the others alone."""
    times = true_times_ms(file)
    rough = [time * factor for time, factor in zip(times, (1.1, 0.9, 1.05, 0.93, 1.04, 1.1, 0.95, 0.97), strict=True)]
    found = calibrate(read(file, rough), V4, (HOP,), Rule.ROOT_OF_SQUARES, axes_at_once=1)
    by_source = {one.source: dict(one.errors) for one in found.left_out}
    assert {source: sorted(errors) for source, errors in by_source.items()} == {
        "one": ["r0", "r1", "r2"],
        "two": ["r3", "r4", "r5", "r6"],
        "three": ["r7"],
    }
    measurements = read(file, rough)
    all_runs = runs(measurements, V4)
    programs = plan_steps(all_runs, found.fit.hardware)
    parameters = (*EFFICIENCIES, HOP)
    work = work_of([run.steps for run in all_runs], programs, found.fit.hardware)
    seconds = np.array(rough) / 1e3
    others = fit(work.take(range(7)), seconds[:7], started(found.fit.hardware, parameters), parameters).hardware
    expected = float(work.take([7]).seconds(others)[0] / seconds[7] - 1)
    assert by_source["three"]["r7"] == pytest.approx(expected, rel=0.05)


def test_a_source_without_which_too_few_rows_are_left_is_not_judged(file: Path) -> None:
    measurements = read(file, true_times_ms(file), slice(1, 7))
    found = calibrate(measurements, V4, (HOP,), Rule.ROOT_OF_SQUARES, axes_at_once=1)
    # Without one 4 rows are left, as many as figures; without two there are 2.
    assert [(one.source, len(one.errors)) for one in found.left_out] == [("one", 2), ("two", 0)]


def test_one_row_for_four_figures_is_refused(file: Path) -> None:
    with pytest.raises(InputError, match="One row cannot give 4 parameters"):
        calibrate(read(file, [1.0] * len(ROWS), slice(0, 1)), V4, (HOP,), Rule.ROOT_OF_SQUARES)
