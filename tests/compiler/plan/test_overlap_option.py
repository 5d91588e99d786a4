"""`--overlap`: what the plan's text, its data and the ranking of slices say of it, and that all else stays."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from escc.compiler.commands.main import app
from escc.compiler.plan.pipeline import compile_phases, load
from escc.compiler.plan.shapes import compile_shapes, slice_shapes
from escc.compiler.report.text import report, together_text
from escc.compiler.text.terminal import time_text
from escc.cost.hardware import Hardware
from escc.ir.diagnostics import Source
from escc.ir.mesh import Mesh
from escc.ir.text.read_spmd import parse_spmd
from escc.passes.options import Options
from escc.passes.plan import Objective

EXAMPLES = Path(__file__).parents[3] / "examples"
PAPER = ("--datasheet", "--network", "flat")
PALM = ("compile", str(EXAMPLES / "palm-540b.esti"), "--chips", "4x4x4", "--phase", "decode", *PAPER)
FEED_FORWARD = str(EXAMPLES / "feed-forward.esti")
V4 = Hardware.of_paper("tpu-v4")
OPTIONS = Options(V4, overlap=True)
BOTH = ["prefill", "decode"]


def invoke(*arguments: str) -> Result:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result


def data(*arguments: str) -> Any:
    return json.loads(invoke(*arguments, "--emit", "json").stdout)


def row(text: str, name: str) -> list[str]:
    """The cells of a row of the table of times."""
    (line,) = [line for line in text.splitlines() if line.startswith(f"  {name}  ")]
    return re.split(r" {2,}", line.strip())


def listing(text: str) -> str:
    return text[text.index("\nsharded ") + 1 :]


@pytest.fixture(scope="module")
def shown() -> str:
    return invoke(*PALM, "--overlap", "--check", "--verbose").stdout


def test_the_text_marks_the_loops_and_says_what_they_hide(shown: str) -> None:
    marks = [line for line in listing(shown).splitlines() if line.startswith("~")]
    assert len(marks) >= 6
    spmd = parse_spmd(Source("plan", listing(shown)))
    assert spmd.name == "palm-540b"
    hides = [float(us) for us in re.findall(r"loop hides ([0-9.]+) us", shown)]
    found = data(*PALM, "--overlap")
    assert hides == [round(loop["hidden_s"] * 1e6, 1) for loop in found["loops"]]
    assert f"{len(hides)} loops hide {time_text(found['totals']['hidden_s'])}; the plan is chosen" in shown
    assert "equal to the reference" in shown and "as predicted" in shown
    assert max(map(len, shown.splitlines())) <= 100


def test_the_figures_add_up(shown: str) -> None:
    found = data(*PALM, "--overlap")
    for totals in (found["totals"], found["totals_once"], *found["repeats"]):
        assert totals["total_s"] == pytest.approx(totals["op_s"] + totals["comm_s"] - totals["hidden_s"])
    hidden = sum(loop["times"] * loop["hidden_s"] for loop in found["loops"])
    assert found["totals"]["hidden_s"] == pytest.approx(hidden)
    assert found["repeats"][0]["hidden_s"] == pytest.approx(hidden / 118)
    steps = {step["result"]: step for step in found["steps"]}
    for loop in found["loops"]:
        ran = [steps[name] for name in loop["results"]]
        sent = sum(step.get("bytes_sent_per_chip", 0) for step in ran)
        assert loop["permutes"] * loop["permute_bytes"] == sent
        assert loop["hidden_s"] == pytest.approx(sum(step["seconds"] for step in ran) - loop["seconds"])
    assert row(shown, "whole program")[5] == time_text(found["totals"]["total_s"])
    assert f"Less what loops hide, {time_text(found['totals']['hidden_s'])} of the whole program" in shown


def test_the_plan_is_the_one_without() -> None:
    plain, looped = data(*PALM), data(*PALM, "--overlap")
    assert plain["objective_s"] == looped["objective_s"] and plain["bound_s"] == looped["bound_s"]
    assert plain["stored"] == looped["stored"]
    assert looped["totals"]["total_s"] < plain["totals"]["total_s"]
    assert plain["totals"]["total_s"] == pytest.approx(plain["objective_s"], rel=1e-12)
    assert looped["totals"]["bytes_sent_per_chip"] == plain["totals"]["bytes_sent_per_chip"]


def test_without_the_option_nothing_is_said_of_loops() -> None:
    text = invoke(*PALM).stdout
    assert "~" not in text and "hid" not in text and "loop" not in text
    found = data(*PALM)
    assert "loops" not in found and "hidden_s" not in found["totals"]


def test_where_nothing_can_be_hidden_the_text_says_so() -> None:
    text = invoke("compile", FEED_FORWARD, "--chips", "1", "--overlap").stdout
    assert "overlap    no loop would hide anything" in text and "~" not in text
    assert data("compile", FEED_FORWARD, "--chips", "1", "--overlap")["loops"] == []


def test_slices_are_ranked_by_the_time_with_overlap() -> None:
    program = load(EXAMPLES / "feed-forward.esti")
    shapes = compile_shapes(program, ["main"], slice_shapes(16, 3), OPTIONS)
    totals = [shape.compiled[0].estimate.totals() for shape in shapes]
    assert [t.total_s for t in totals] == sorted(t.total_s for t in totals)
    assert all(shape.price == pytest.approx(t.total_s) for shape, t in zip(shapes, totals, strict=True))
    assert any(t.hidden_s for t in totals)


@pytest.mark.parametrize("objective", [Objective.COMMUNICATION, Objective.MEMORY])
def test_what_is_not_time_is_not_hidden(objective: Objective) -> None:
    program = load(EXAMPLES / "feed-forward.esti", {"B": 65536})
    options = replace(OPTIONS, objective=objective, stored_bytes=1e9)  # neither matrix fits whole
    compiled = compile_phases(program, ["main"], Mesh.parse("4x4"), options)
    assert compiled[0].estimate.totals().hidden_s > 0
    assert compiled.price == compiled[0].plan.price
    text = report(compiled[0])
    assert re.search("overlap    [12] loops? hides? ", text) and "bound" not in text.split("overlap")[1]


def test_phases_planned_together_count_what_each_call_hides(tmp_path: Path) -> None:
    path = tmp_path / "two.esti"
    text = Path(FEED_FORWARD).read_text().replace("dim B = 512, L = 1", "dim B, L = 1")
    path.write_text(text + "phase prefill { B = 65536 }\nphase decode { B = 1024, calls = 64 }\n")
    program = load(path)
    compiled = compile_phases(program, BOTH, Mesh.parse("4x4"), OPTIONS)
    totals = [one.estimate.totals() for one in compiled]
    calls = [1, 64]
    assert totals[1].hidden_s > 0
    hidden = sum(n * t.hidden_s for n, t in zip(calls, totals, strict=True))
    assert compiled.price == pytest.approx(compiled[0].plan.price - hidden)
    text = together_text(compiled)
    assert row(text, "together")[-1] == time_text(compiled.price)
    assert row(text, "decode")[-2] == time_text(totals[1].total_s)
    assert "what loops hide is taken off" in text


def test_check_takes_the_option() -> None:
    assert "--overlap" in invoke("check", "--help").stdout
