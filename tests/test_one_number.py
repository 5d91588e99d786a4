"""One number for one plan: every command prices it alike, with the options that nobody gave."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from escc.compiler.commands.main import app
from escc.compiler.report.compiled_model import compile
from escc.compiler.report.explain_model import explain
from escc.compiler.sweep.run import sweep
from escc.compiler.text.terminal import time_text
from escc.cost.hardware import MEASURED, Calibrated, Convention, Hardware, Switch, hardware_toml, presets
from escc.ir.collective import CollectiveKind
from escc.ir.mesh import Mesh

CHIPS = [name for name in presets() if not name.endswith(MEASURED)]
MODEL = """model "pair"
dim B = 64, E = 4096, F = 16384
main(x: bf16[B,E]) {
  param Wi: bf16[E,F]
  param Wd: bf16[F,E]
  u[B,F] = x[B,E] * Wi[E,F]
  h = gelu(u)
  d[B,E] = h[B,F] * Wd[F,E]
  return d
}
"""


def ran(*argv: str) -> str:
    found = CliRunner().invoke(app, list(argv))
    assert found.exit_code == 0, found.output
    return found.stdout


@pytest.mark.parametrize("chip", CHIPS)
def test_compile_explain_sweep_and_the_page_agree(chip: str, tmp_path: Path) -> None:
    file = tmp_path / "pair.esti"
    file.write_text(MODEL)
    hardware = Hardware.load(chip)
    [record] = sweep(file, 4, 64, chip, jobs=1).records
    assert record.latency_s is not None and record.slice is not None
    mesh = f"x={record.slice}" if record.slice.isdigit() else record.slice
    model = compile(str(file), mesh, chip)
    assert model.seconds == record.latency_s
    data = json.loads(ran("compile", str(file), "--chips", mesh, "--hardware", chip, "--emit", "json"))
    totals = data["totals"]["whole_program"] if "whole_program" in data["totals"] else data["totals"]
    assert totals["total_s"] == model.seconds
    shown = f"A step takes {time_text(model.seconds)}"
    assert shown in ran("compile", str(file), "--chips", mesh, "--hardware", chip)
    assert time_text(model.seconds) in ran("compile", str(file), "--chips", mesh, "--hardware", chip, "--emit", "html")
    [explained] = explain(str(file), mesh, chip)
    own = model.phases[0].estimate.totals()
    for line in explained.explanation.totals:
        plan_s = {"communication": own.comm_s, "compute": own.compute_s, "memory": own.memory_s}[line.what]
        assert line.plan_s == plan_s and line.value_s == pytest.approx(plan_s, rel=1e-9)
    assert hardware.convention is Convention.LINKS and not hardware.at_peaks


def test_a_plan_at_peaks_says_so(tmp_path: Path) -> None:
    file = tmp_path / "pair.esti"
    file.write_text(MODEL)
    argv = ["compile", str(file), "--chips", "x=4", "--hardware", "h100"]
    assert "priced at peaks, which no chip reaches; leave out `--datasheet`" in ran(*argv, "--datasheet")
    assert "shares of the peaks that were measured: compute 79%" in ran(*argv)
    assert "those of h100-measured" in ran(*argv[:-1], "a100-80")


def test_a_chip_without_figures_has_those_of_its_like_and_wide_bars() -> None:
    like, own = Hardware.load("a100-80"), Hardware.load("h100")
    assert like.calibrated.hbm_efficiency == own.calibrated.hbm_efficiency
    assert like.protocols == own.protocols and like.calibrated.error >= 0.25 > own.calibrated.error
    assert like.peak_flops_per_s == Hardware.load("a100-80", datasheet=True).peak_flops_per_s


def test_llama_on_one_node_has_two_collectives_a_layer() -> None:
    model = compile("llama-3-70b", Mesh.parse("8"), "h100", "decode")
    [layer] = model.phases[0].scopes
    assert layer.once.collectives <= 2


def test_two_nodes_are_priced_with_the_slow_level_and_no_worse_than_by_hand(tmp_path: Path) -> None:
    file = tmp_path / "pair.esti"
    file.write_text(MODEL)
    model = compile(str(file), 16, "h100")
    assert isinstance(Hardware.load("h100").fabric, Switch)
    assert {str(shape.mesh) for shape in model.shapes} >= {"node=2 x=8", "node=2 x=2 y=4"}
    assert all("node=2" in str(shape.mesh) for shape in model.shapes)
    for mesh in ("node=2,gpu=8", "node=2,a=4,b=2", "2x8"):
        assert model.phases.price <= compile(str(file), mesh, "h100").phases.price * (1 + 1e-9)


def test_a_plan_says_what_of_its_prices_was_measured(tmp_path: Path) -> None:
    file, chip = tmp_path / "pair.esti", tmp_path / "chip.toml"
    file.write_text(MODEL)
    measured = Hardware.load("h100-measured")
    argv = ["compile", str(file), "--chips", "x=4", "--hardware", str(chip)]
    ops = "shares of the peaks that were measured: compute 79%, HBM 86%, 3.5 us a kernel"
    gathers = tuple((kind, one) for kind, one in measured.protocols if kind is CollectiveKind.ALL_GATHER)
    peaks = "peaks of arithmetic and HBM, which no chip reaches"
    bare = replace(measured, calibrated=Calibrated(error=0.1))
    for hardware, said in (
        (measured, (f"{ops}\n", "collectives as measured", "in 95% of cases")),
        (replace(measured, protocols=()), (f"{ops}; links at the datasheet's rate\n",)),
        (
            replace(measured, protocols=gathers),
            (f"{ops}; links at the datasheet's rate in reduce-scatter, all-reduce",),
        ),
        (bare, (f"{peaks}; collectives as measured\n",)),
        (replace(bare, protocols=gathers), (f"{peaks}; all-gather as measured\n", "all-gather as measured, others at")),
    ):
        chip.write_text(hardware_toml(hardware, [], []))
        shown = ran(*argv)
        assert all(text in shown for text in said)
        assert ("in 95% of cases" in shown) == (hardware is measured)


@pytest.mark.parametrize(
    ("mesh", "links"),
    [
        ("node=2", "links of 50 GB/s between 2 nodes of 1"),
        ("node=2,gpu=2", "links of 450 GB/s and 50 GB/s between 2 nodes of 2"),
    ],
)
def test_a_plan_over_nodes_says_what_joins_them_and_that_it_was_not_measured(
    tmp_path: Path, mesh: str, links: str
) -> None:
    file, pins = tmp_path / "pair.esti", tmp_path / "split.pins"
    file.write_text(MODEL)
    pins.write_text("stored Wi [E/node, F]\nstored Wd [F/node, E]\n")
    argv = ["compile", str(file), "--chips", mesh, "--pin", str(pins)]
    shown = ran(*argv, "--hardware", "h100")
    assert f"network   {links}, collectives as measured in a node\n" in shown
    assert "3.5 us a kernel; between nodes as in a node, which was not measured\n" in shown
    assert " (no range: what goes between nodes was not measured): 64 tokens" in shown and "of cases" not in shown
    prediction = json.loads(ran(*argv, "--hardware", "h100", "--emit", "json"))["prediction"]
    told = {key: prediction[key] for key in ("low_s", "high_s", "not_measured")}
    assert told == {"low_s": None, "high_s": None, "not_measured": ["what goes between nodes"]}
    bare = ran(*argv, "--hardware", "h100", "--datasheet")
    assert f"network   {links}, no latency\n" in bare and "between nodes as" not in bare and "no range" not in bare
