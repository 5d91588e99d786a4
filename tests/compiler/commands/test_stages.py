"""`escc compile --stages`: what it prints and writes of a pipeline, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from programs import TINY_DECODER, TINY_GROUPS
from typer.testing import CliRunner, Result

from escc.compiler.commands import check
from escc.compiler.commands.main import app
from escc.compiler.plan.pipeline import parse
from escc.compiler.plan.tries import tries
from escc.cost.hardware import Hardware
from escc.ir.mesh import Mesh
from escc.passes.options import Options

pytestmark = pytest.mark.usefixtures("known_plans")

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "golden" / "written"


@pytest.fixture
def compiled(tmp_path, monkeypatch):
    """Compiles the tiny decoder, a file of a folder of its own, with some arguments."""
    monkeypatch.chdir(tmp_path)
    Path("tiny.esti").write_text(TINY_DECODER.replace("repeat 5", "repeat 3"))

    def invoke(*arguments: str) -> Result:
        return CliRunner().invoke(app, ["compile", "tiny.esti", "--hardware", "h100", *arguments])

    return invoke


def test_a_pipeline_is_told_by_phases_and_stages(compiled, update_golden):
    found = compiled("--chips", "node=2,gpu=3", "--stages", "2", "--micro-batches", "prefill=4", "--check")
    assert found.exit_code == 0, found.output
    golden = GOLDEN / "pipeline.txt"
    if update_golden:
        golden.write_text(found.stdout)
    assert found.stdout == golden.read_text()


def test_auto_tries_every_axis_and_none(compiled):
    found = compiled("--chips", "node=2,gpu=3", "--stages", "auto", "--phase", "decode")
    assert found.exit_code == 0, found.output
    table = found.stdout.split("\n\n")[0]
    assert table.startswith("Pipelines, quickest first")
    assert all(text in table for text in ("2 along node", "3 along gpu", " - "))
    assert table.count("or more") == 4  # times that are shown to be longer than without stages
    assert "Plan of" in found.stdout


def test_ways_are_left_where_their_bounds_show_that_another_is_quicker():
    program = parse(TINY_DECODER.replace("repeat 5", "repeat 2"))
    given = program, ["decode"], [Mesh.parse("2")], Options(Hardware.load("h100")), None
    (best, beaten), planned = tries(*given), {one.axis: one.price for one in tries(*given, every=True)}
    assert (best.axis, best.price) == (None, planned[None])
    assert beaten.beaten and beaten.found is None
    assert best.price <= beaten.bound <= planned["x"]


def test_stages_are_written_to_files_of_their_own(compiled, tmp_path):
    arguments = ["--chips", "2x3", "--stages", "2", "--phase", "decode", "-o", "out"]
    for emit in ("text", "json", "jax"):
        assert compiled(*arguments, "--emit", emit).exit_code == 0
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"tiny_pipeline.json", "tiny_pipeline.txt", "tiny_pipeline_jax.json"} <= names
    assert {f"tiny_stage_{n}_decode_jax.py" for n in (1, 2)} <= names
    data = json.loads((tmp_path / "out" / "tiny_pipeline.json").read_text())
    assert sum(data["layers"]) == 3 and data["axis"] == "x"
    assert data["passed"][0] and data["received"][1] and not data["passed"][1]
    before = {path: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert compiled(*arguments).exit_code == 1  # they are there already
    assert before == {path: path.read_bytes() for path in (tmp_path / "out").iterdir()}


def test_data_has_the_pipeline_and_the_plans_of_its_stages(compiled):
    counts = ["--micro-batches", "decode=4", "--micro-batches", "prefill=2"]
    found = compiled("--chips", "2x3", "--stages", "2", *counts, "--emit", "json")
    data = json.loads(found.stdout)
    decode = next(one for one in data["pipeline"]["phases"] if one["phase"] == "decode")
    assert decode["micro_batches"] == 4 and decode["waits"]
    slowest, all_s = max(decode["stages_s"]), sum(decode["stages_s"])
    calls = decode["calls"]
    expected = (calls - 1) * max(all_s, 4 * slowest) + all_s + 3 * slowest
    assert decode["seconds"] == pytest.approx(expected)
    assert len(data["stages"]) == 2
    assert data["pipeline"]["objective_s"] == pytest.approx(sum(p["seconds"] for p in data["pipeline"]["phases"]))


def test_what_a_user_should_know_is_said_once_and_in_data(compiled):
    asked = (
        "--chips",
        "10",
        "--hardware",
        "tpu-v4",
        "--stages",
        "2",
        "--phase",
        "decode",
        "--micro-batches",
        "decode=1",
    )
    found = compiled(*asked, "--emit", "json")
    offered, idle = "No slice of 10 chips of tpu-v4 is offered.", "In phase `decode` axis `y` (5) can split no dim"
    assert [found.stderr.count(f"warning: {said}") for said in (offered, idle)] == [1, 1]
    data = json.loads(found.stdout)
    assert data["pipeline"]["warnings"] == [offered]
    assert all(idle in stage["warnings"][0] for stage in data["stages"])


def test_stages_along_an_axis_of_a_count_of_chips(compiled):
    found = compiled("--chips", "4", "--stages", "2", "--phase", "decode")
    assert found.exit_code == 0, found.output
    assert "2 stages along" in found.stdout


def test_stages_end_between_blocks_of_a_repetition_and_those_that_stream_do_not(compiled, tmp_path: Path):
    Path("groups.esti").write_text(TINY_GROUPS)
    given = ["compile", str(tmp_path / "groups.esti"), "--chips", "2x1", "--stages", "2", "--phase", "decode"]
    found = CliRunner().invoke(app, [*given, "--hardware", "h100", "--check"])
    assert found.exit_code == 0, found.output
    assert [row.split()[:2] for row in found.stdout.splitlines()[7:9]] == [["1", "4"], ["2", "5"]]
    assert "status     optimal: proven" in found.stdout and "checked decode" in found.stdout
    workstation = str(ROOT / "examples" / "hardware" / "a6000-workstation.toml")
    given += ["--micro-batches", "decode=1", "--hardware", workstation, "--offload", "weights"]
    found = CliRunner().invoke(app, given)
    assert found.exit_code == 0, found.output
    assert "  stage  repetitions  " in found.stdout
    assert " among divisions between repetitions of `group`" in found.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--chips", "2x3", "--stages", "4"], "No axis of `x=2 y=3` has 4 chips"),
        (["--chips", "2x3", "--stages", "none"], "`--stages none` is no count"),
        (["--chips", "2x3", "--stages", "-1"], "`--stages -1` is no count"),
        (["--chips", "8x2", "--stages", "8"], "8 stages along `x` are more than the model's 3 layers"),
        (["--chips", "2x3", "--micro-batches", "decode=2"], "Micro-batches are those of stages"),
        (["--chips", "2x3", "--stages", "2", "--micro-batches", "decode=3"], "do not divide the batch"),
        (["--chips", "2x3", "--stages", "2", "--micro-batches", "decod=2"], "names no phase"),
        (["--chips", "2x3", "--stages", "2", "--micro-batches", "decode=0"], "gives no count"),
        (["--chips", "2x3", "--stages", "2", "--objective", "memory"], "Stages are chosen by time"),
        (["--chips", "2x3", "--stages", "2", "--overlap"], "Loops are not made in stages"),
        (["--chips", "2x3", "--stages", "2", "--emit", "jax"], "each a program of its own"),
        *(
            (["--chips", "2x3", "--stages", count, "--separate"], "`--separate` does not go with `--stages`")
            for count in ("1", "2", "auto")
        ),
    ],
)
def test_what_cannot_be_is_said(compiled, arguments, said):
    found = compiled(*arguments)
    assert found.exit_code == 1, found.output
    assert said in found.stderr
    assert "Traceback" not in found.output


def test_the_jax_module_of_a_pipeline_gives_what_its_stages_do_unsharded(compiled):
    pytest.importorskip("jax")
    arguments = ["--chips", "2x2", "--stages", "2", "--phase", "decode", "--micro-batches", "decode=2"]
    assert compiled(*arguments, "--emit", "jax", "-o", "out").exit_code == 0
    ran = subprocess.run(
        [sys.executable, "out/tiny_pipeline_decode_jax.py"], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "largest relative difference" in ran.stdout


def test_check_runs_the_pipeline_and_looks_at_the_module_of_each_stage(compiled, monkeypatch):
    pytest.importorskip("jax")
    looked = []

    def look(one):  # what `check_jax` finds of a module is tested with it
        looked.append((one.spmd.name, one.phase))
        return SimpleNamespace(sound=one.spmd.name != "tiny stage 2")

    monkeypatch.setattr(check, "check_jax", look)
    monkeypatch.setattr(check, "jax_check_text", lambda one, _: f"{one.spmd.name}\n")
    arguments = ["check", "tiny.esti", "--hardware", "h100", "--chips", "2", "--stages", "2", "--phase", "decode"]
    found = CliRunner().invoke(app, [*arguments, "--micro-batches", "decode=2", "--backend", "jax"])
    assert looked == [(f"tiny stage {n}", "decode") for n in (1, 2)]
    assert "checked decode: micro-batches through virtual chips" in found.stdout
    assert found.exit_code == 1 and "phase decode does not do what the plan says" in found.stderr
    refused = CliRunner().invoke(app, [*arguments, "--backend", "tpu"])
    assert refused.exit_code == 1 and "`--backend tpu` does not go with `--stages`" in refused.output


def test_the_page_draws_micro_batches_in_the_stages(compiled):
    counts = ["--phase", "decode", "--micro-batches", "decode=2"]
    found = compiled("--chips", "2x3", "--stages", "2", *counts, "--emit", "html")
    assert found.exit_code == 0, found.output
    assert found.stdout.count("<title>micro-batch 1</title>") == found.stdout.count("<title>micro-batch 2</title>") == 6
    assert "8 calls of 2 micro-batches take" in found.stdout and "drawn: 3 of the calls" in found.stdout


def test_explain_has_the_formulas_of_a_pipeline(compiled):
    arguments = ["explain", "tiny.esti", "--chips", "2x3", "--hardware", "h100", "--stages", "2"]
    counts = ["--micro-batches", "prefill=4", "--micro-batches", "decode=1"]
    found = CliRunner().invoke(app, [*arguments, *counts, "--format", "json"])
    assert found.exit_code == 0, found.output
    data = json.loads(found.stdout)
    prefill, decode = data["pipeline"]
    assert (prefill["formula"], prefill["even_stages"]) == ("T + t*(m - 1)", "t*(P + m - 1)")
    assert "(n - 1)*Max(P, m)" in decode["even_stages"]
    for one in (prefill, decode):
        assert one["value_s"] == pytest.approx(one["plan_s"])
    assert len(data["phases"]) == 4  # of two stages
    refused = CliRunner().invoke(app, [*arguments, "--trace"])
    assert refused.exit_code == 1 and "`--trace` does not go with `--stages`" in refused.output


def test_axes_that_are_alike_are_tried_once(compiled):
    table = compiled("--chips", "x=2,y=2,z=1", "--stages", "auto", "--phase", "decode").stdout.split("\n\n")[0]
    assert "2 along x" in table and "along y" not in table
    Path("small.pins").write_text("stored table V_yE\n")
    named = compiled("--chips", "x=2,y=2,z=1", "--stages", "2", "--phase", "decode", "--pin", "small.pins")
    assert "2 along y" in named.output
