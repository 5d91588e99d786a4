"""`escc schedule` from the command line: batches, predictions, files, and what is refused."""

from __future__ import annotations

import csv
import json
import random
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from programs import TINY_DECODER
from typer.testing import CliRunner, Result

from escc.compiler.commands import schedule as command
from escc.compiler.commands.main import app
from escc.compiler.plan.pipeline import compile_phase, load
from escc.compiler.plan.serving import of_batches
from escc.cost.hardware import Hardware
from escc.ir.mesh import Mesh
from escc.passes.batches.pipeline import run
from escc.passes.options import Options

pytestmark = pytest.mark.usefixtures("known_plans")

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "golden" / "written" / "schedule.txt"
MODEL = str(ROOT / "examples" / "schedule" / "llama-33b.esti")
STAGED = ("--chips", "4", "--hardware", "v100-pcie", "--stages", "4")


@pytest.fixture
def lengths(tmp_path: Path) -> Path:
    draw, path = random.Random(3), tmp_path / "l.csv"
    contexts = [(n, draw.randint(12, 118)) for n in range(400)]
    draw.shuffle(contexts)
    rows = [f"c{n},{context},{draw.randint(2, 50)}" for n, context in contexts for _ in range(4)]
    path.write_text("\n".join(("id,context,ending", *rows)) + "\n")
    return path


def schedule(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["schedule", *map(str, arguments)])


def data(*arguments: str | Path) -> dict[str, Any]:
    result = schedule(*arguments, "--emit", "json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_text_is_as_it_was(lengths: Path, update_golden: bool) -> None:
    result = schedule(lengths, MODEL, *STAGED, "--theta", "2048", "--theta-context", "6000", "--steps")
    assert result.exit_code == 0, result.output
    found = schedule(lengths, MODEL, *STAGED)
    assert found.exit_code == 0, found.output
    text = result.stdout + "\n" + found.stdout
    if update_golden:
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


def test_batches_run_as_predicted(lengths: Path) -> None:
    found = data(lengths, MODEL, *STAGED, "--theta", "1000", "--theta-context", "3000")
    starts = np.array([batch["starts_s"] for batch in found["batches"]]).T
    ends = np.array([batch["ends_s"] for batch in found["batches"]]).T
    again = run(ends - starts)
    assert again.seconds == pytest.approx(found["total_s"]) and (again.starts == pytest.approx(starts))
    assert found["layers"] == [15, 15, 15, 15]
    rows = list(csv.DictReader(lengths.open()))
    scored = [line for batch in found["batches"] if batch["runs"] == "endings" for line in batch["members"]]
    assert sorted(scored) == list(range(2, len(rows) + 2))
    cached = {}
    for batch in found["batches"]:
        for member in batch["members"]:
            if batch["runs"] == "contexts":
                cached[member] = batch["tokens"]
            else:
                row = rows[member - 2]
                assert cached[row["id"]] == batch["cached"]
                assert batch["cached"] + batch["tokens"] >= int(row["context"]) + int(row["ending"])


def test_a_batch_that_chips_split_takes_what_compiling_for_its_rows_says(tmp_path: Path) -> None:
    path, model = tmp_path / "l.csv", tmp_path / "tiny.esti"
    path.write_text("context,ending\n" + "".join(f"{40 + n % 5},25\n" for n in range(33)))
    model.write_text(TINY_DECODER)
    on = ("--chips", "2x2", "--hardware", "tpu-v4")
    found = data(path, model, *on, "--theta", "600")
    assert found["batch_shares"] == 4 and [other["batch_shares"] for other in found["otherwise"]] == [1, 2]
    assert all(other["total_s"] > found["total_s"] for other in found["otherwise"])
    program, taken_s, empty = load(model), 0.0, 0
    for batch in found["batches"]:
        rows, tokens = batch["rows"], batch["tokens"]
        assert rows == 4 * max(batch["share_sizes"]) and sum(batch["share_sizes"]) == len(batch["members"])
        assert rows * tokens >= 600
        compiled = compile_phase(
            of_batches(program, rows, tokens, tokens), "prefill", Mesh.parse("2x2"), Options(Hardware.load("tpu-v4"))
        )
        assert batch["ends_s"][0] - taken_s == pytest.approx(compiled.estimate.totals().total_s)
        taken_s, empty = batch["ends_s"][0], empty + (rows - len(batch["members"])) * tokens
    assert found["total_s"] == pytest.approx(taken_s) and found["empty_tokens"] == empty > 0
    text = schedule(path, model, *on, "--theta", "600").stdout
    assert f"  Each batch is split over 4 chips; {empty:,} tokens are of rows left empty for it, " in text
    assert "  By plans that split them otherwise it takes " in text
    rows = list(csv.DictReader(schedule(path, model, *on, "--theta", "600", "--emit", "csv").stdout.splitlines()))
    in_shares = [[int(row["share"]) for row in rows if row["batch"] == str(n)] for n in range(len(found["batches"]))]
    sizes = [[shares.count(n) for n in range(4)] for shares in in_shares]
    assert sizes == [batch["share_sizes"] for batch in found["batches"]]
    assert in_shares == [sorted(shares) for shares in in_shares]


def test_found_thresholds_take_less_than_those_around(lengths: Path) -> None:
    found = data(lengths, MODEL, *STAGED)
    busy, rates = found["rates"]["busy_tokens"], np.array(found["rates"]["flops_per_s"])
    assert (np.diff(rates, axis=1) > -1e-3 * rates[:, 1:]).all()
    assert 0 < busy < 2000 and found["threshold_tokens"] % busy == 0
    every = {}
    for tokens, shared in product((busy, 2 * busy, 4 * busy), (4, 8, 16)):
        given = "--theta", str(tokens), "--theta-context", str(shared * busy)
        every[tokens, shared * busy] = data(lengths, MODEL, *STAGED, *given)
    least_s = min(other["total_s"] for other in every.values())
    assert found["total_s"] <= 1.005 * least_s  # of those as quick it has the fewest batches
    quick = [other["batch_count"] for other in every.values() if other["total_s"] <= 1.004 * least_s]
    assert found["batch_count"] <= min(quick)
    assert every[busy, 16 * busy]["total_s"] > 1.005 * least_s  # the two are not found one after the other


def test_found_thresholds_leave_room_for_caches(lengths: Path, tmp_path: Path) -> None:
    """Beside 16.9 GB of weights; 26.6 kB a layer for each token."""
    (tmp_path / "less.toml").write_text((ROOT / "cost/presets/v100-pcie.toml").read_text().replace("32e9", "17.2e9"))
    on = ("--chips", "4", "--hardware", str(tmp_path / "less.toml"), "--stages", "4")
    found = data(lengths, MODEL, *on)
    assert found["hbm_bytes"] <= 17.2e9 < data(lengths, MODEL, *STAGED)["hbm_bytes"]
    assert found["context_threshold_tokens"] < data(lengths, MODEL, *STAGED)["context_threshold_tokens"]


def test_each_step_says_what_it_brings(lengths: Path) -> None:
    found = data(lengths, MODEL, *STAGED, "--theta", "2048", "--theta-context", "6000", "--steps")
    times = [step["total_s"] for step in found["ladder"]]
    assert len(times) == 7 and times[0] > 1.5 * times[1] > 1.5 * times[2] > 1.5 * times[3]
    assert times[6] < times[5] and times[6] == found["total_s"]
    assert found["padding_saved_tokens"] == found["ladder"][1]["padding_tokens"] - found["padding_tokens"]


def test_without_shared_contexts_requests_run_whole(tmp_path: Path) -> None:
    path = tmp_path / "l.csv"
    path.write_text("context,ending\n" + "".join(f"{n % 50 + 1},{n % 7 + 1}\n" for n in range(200)))
    found = data(path, MODEL, *STAGED, "--theta", "300", "--steps")
    assert {batch["runs"] for batch in found["batches"]} == {"requests"} and found["context_threshold_tokens"] is None
    assert len(found["ladder"]) == 3


def test_a_threshold_of_contexts_that_changes_nothing_is_said(tmp_path: Path) -> None:
    path = tmp_path / "l.csv"
    path.write_text("context,ending\n10,2\n10,3\n")
    said = "warning: No contexts are shared, so that a threshold of contexts changes nothing."
    plain = schedule(path, MODEL, *STAGED, "--theta", "8")
    result = schedule(path, MODEL, *STAGED, "--theta", "8", "--theta-context", "1000")
    assert result.exit_code == 0 and said in result.stderr and said not in plain.stderr
    assert result.stdout == plain.stdout


def test_what_fills_no_batch_is_said(tmp_path: Path) -> None:
    path = tmp_path / "l.csv"
    path.write_text("id,context,ending\na,10,2\na,10,3\nb,11,1\n")
    result = schedule(path, MODEL, *STAGED, "--theta", "500", "--theta-context", "900")
    assert "1 batch stays below the threshold of contexts" in result.stdout
    assert "1 batch stays below the threshold of endings" in result.stdout


def test_what_does_not_fit_beside_its_caches_is_said(lengths: Path) -> None:
    """26.6 kB a layer for each token that is cached, 15 layers, beside 16.3 GB of weights."""
    small = data(lengths, MODEL, *STAGED, "--theta", "1000", "--theta-context", "3000")
    large = schedule(lengths, MODEL, *STAGED, "--theta", "40000", "--theta-context", "3000")
    assert 16.3e9 < small["hbm_bytes"] < 25e9
    assert large.exit_code == 0 and "warning: A batch with its caches takes about" in large.stderr


def test_csv_has_a_line_for_each_member(lengths: Path, tmp_path: Path) -> None:
    out = tmp_path / "out" / "b.csv"
    result = schedule(lengths, MODEL, *STAGED, "--theta", "2048", "--emit", "csv", "-o", out)
    assert result.exit_code == 0 and "All of it takes" in result.stdout
    rows = list(csv.DictReader(out.open()))
    assert len(rows) == 400 + 1600 and {row["runs"] for row in rows} == {"contexts", "endings"}
    again = schedule(lengths, MODEL, *STAGED, "--theta", "2048", "--emit", "csv", "-o", out)
    assert again.exit_code == 1 and "exists already" in again.stderr
    before = out.read_bytes()
    forced = schedule(lengths, MODEL, *STAGED, "--theta", "2048", "--emit", "csv", "-o", out, "--force")
    assert forced.exit_code == 0 and out.read_bytes() == before


def test_an_interrupted_schedule_leaves_the_file_whole(
    lengths: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "b.csv"
    out.write_text("mine\n")
    for name in ("schedule", "_content"):
        with monkeypatch.context() as patch:

            def interrupted(*_: object) -> None:
                raise KeyboardInterrupt

            patch.setattr(command, name, interrupted)
            assert schedule(lengths, MODEL, *STAGED, "--emit", "csv", "-o", out, "--force").exit_code != 0
    assert out.read_text() == "mine\n" and [path.name for path in tmp_path.iterdir()] == ["l.csv", "b.csv"]


def test_one_batch_is_alike_and_takes_no_longer_than_it_does(tmp_path: Path) -> None:
    lengths, model = tmp_path / "one.csv", tmp_path / "m.esti"
    lengths.write_text("context,ending\n100,10\n")
    model.write_text(TINY_DECODER.replace("repeat 5", "repeat 2").replace("phase decode", "phase later"))
    found = schedule(lengths, model, "--chips", "2", "--stages", "2")
    assert found.exit_code == 0, found.output
    whole = found.stdout.split("All of it takes ")[1].split(":")[0]
    assert f"with batches all alike it would take {whole}." in found.stdout


def test_a_page_draws_the_stages(lengths: Path, tmp_path: Path) -> None:
    out = tmp_path / "s.html"
    given = *STAGED, "--theta", "2048", "--theta-context", "6000"
    assert schedule(lengths, MODEL, *given, "--steps", "--emit", "html", "-o", out).exit_code == 0
    page = out.read_text()
    assert page.count('<rect class="bubble"') == 4 and "<title>batch 0, contexts: " in page
    assert "contexts in mini-batches" in page and "<dt>tokens of padding saved</dt>" in page
    assert "<p>Quicker without the thresholds or stages that are given: shared contexts.</p>" in page
    refused = schedule(lengths, MODEL, *STAGED, "--emit", "html")
    assert refused.exit_code == 1 and "A page is written into a file." in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--chips", "4", "--stages", "3"), "3 stages do not divide axis `x` of 4 chips."),
        (("--chips", "64", "--stages", "64"), "The model has 60 layers, and cannot be divided into 64 stages."),
        (("--chips", "1"), "The parameters and caches take at least"),
        (("--chips", "0x4"), "0x4"),
    ],
)
def test_what_cannot_be_run_is_refused(lengths: Path, arguments: tuple[str, ...], complaint: str) -> None:
    result = schedule(lengths, MODEL, "--hardware", "v100-pcie", *arguments)
    assert result.exit_code == 1 and complaint in result.stderr and "Traceback" not in result.stderr


def test_models_without_caches_and_broken_files_are_refused(lengths: Path, tmp_path: Path) -> None:
    plain = schedule(lengths, ROOT / "examples" / "feed-forward.esti", *STAGED)
    assert plain.exit_code == 1 and "need a model with caches" in plain.stderr
    path = tmp_path / "broken.csv"
    path.write_text("context,ending\n5,-1\n")
    result = schedule(path, MODEL, *STAGED)
    assert result.exit_code == 1 and f"{path}:2:3: error: `ending` must be" in result.stderr
    assert schedule(tmp_path / "none.csv", MODEL, *STAGED).exit_code == 1
