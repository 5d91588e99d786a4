"""`escc sweep` from the command line: points, targets, pictures, and files that are gone on with."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from escc.compiler.commands.main import app
from escc.compiler.sweep.results import ResultsFile
from escc.compiler.text.terminal import time_text

pytestmark = pytest.mark.usefixtures("known_plans")

MODEL = """\
model "tiny"
dim B, L, M
dim E = 1024, F = 4096, Q = 1024
block layer(x: bf16[B,L,E]) -> bf16[B,L,E] {
  param Wk, Wq: bf16[E,Q]
  param Wo: bf16[Q,E]
  param Wi: bf16[E,F]
  param Wd: bf16[F,E]
  cache keys: bf16[B,M,Q]
  k[B,L,Q] = x[B,L,E] * Wk[E,Q]
  q[B,L,Q] = x[B,L,E] * Wq[E,Q]
  ks = append(keys, k, L into M)
  s[B,L,M] = q[B,L,Q] * ks[B,M,Q]
  o[B,L,Q] = s[B,L,M] * ks[B,M,Q]
  a[B,L,E] = o[B,L,Q] * Wo[Q,E]
  u[B,L,F] = a[B,L,E] * Wi[E,F]
  d[B,L,E] = u[B,L,F] * Wd[F,E]
  return x + d
}
main(x: bf16[B,L,E]) { return repeat 4 layer(x) }
phase prefill { B = 8, L = 64, M = 64 }
phase decode { B = 8, L = 1, M = 64 }
"""
GRID = ("--chips", "4,8", "--batch", "8,64", "--context", "64", "--weights", "bf16,int8", "--phase", "decode")


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "tiny.esti"
    path.write_text(MODEL)
    return str(path)


def sweep(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["sweep", *arguments, "--jobs", "1"])


def data(*arguments: str) -> dict[str, Any]:
    result = sweep(*arguments, "--emit", "json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_every_point_is_planned_and_proven(model: str) -> None:
    points = data(model, *GRID)["points"]
    assert [(p["weights"], p["chips"], p["batch"]) for p in points] == [
        (weights, chips, batch) for weights in ("bf16", "int8") for chips in (4, 8) for batch in (8, 64)
    ]
    assert all(p["status"] == "optimal" and p["bound_s"] >= p["latency_s"] * (1 - 1e-9) for p in points)
    assert all(p["tokens"] == p["batch"] and p["low_s"] < p["latency_s"] < p["high_s"] for p in points)
    assert all(sum(p["spent_s"].values()) == pytest.approx(p["latency_s"]) for p in points)
    # Half the bytes of weights to read: never slower.
    for wide, narrow in zip(points[:4], points[4:], strict=True):
        assert narrow["latency_s"] <= wide["latency_s"]


def test_each_point_is_what_compile_finds_on_its_best_shape(model: str) -> None:
    arguments = (model, "--chips", "8", "--batch", "64", "--context", "64", "--phase", "decode")
    (point,) = data(*arguments, "--datasheet")["points"]
    told = ["compile", model, "--chips", point["slice"], "--set", "B=64", "--set", "M=64", "--phase", "decode"]
    compiled = json.loads(CliRunner().invoke(app, [*told, "--datasheet", "--emit", "json"]).stdout)
    assert compiled["totals"]["total_s"] == pytest.approx(point["latency_s"])


def test_text_has_a_row_for_each_point_a_plot_and_an_answer(model: str) -> None:
    result = sweep(model, *GRID, "--max-latency", "1s")
    assert result.exit_code == 0
    rows = [line for line in result.stdout.splitlines() if " decode  " in line and "|" not in line]
    assert len(rows) == 8 and "All 8 are proven" in result.stdout
    assert "o bf16, x int8" in result.stdout
    cheapest = min(data(model, *GRID)["points"], key=lambda p: p["chip_s_per_million"])
    assert f"on {cheapest['chips']} chips, batch {cheapest['batch']}," in result.stdout.split("The cheapest: ")[1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--max-latency", "1us"), "None is; nearest comes: "),
        (("--max-cost", "1e12"), "The quickest: "),
        (("--max-latency", "1s", "--max-cost", "1e12"), "The cheapest: "),
    ],
)
def test_targets_are_answered(model: str, options: tuple[str, ...], said: str) -> None:
    assert said in sweep(model, *GRID, *options).stdout


def test_points_without_a_plan_say_why(model: str) -> None:
    result = sweep(model, "--chips", "8", "--batch", "1048576", "--context", "65536", "--phase", "decode")
    assert result.exit_code == 1 and "error: No point of the grid has a plan." in result.stderr
    assert "Without a plan: 1 of 1 points" in result.stdout and "GB more than the 32.95 GB" in result.stdout


def test_a_sweep_is_done_where_some_point_has_a_plan_and_its_files_are_there_in_any_case(
    model: str, tmp_path: Path
) -> None:
    too_large = ("--context", "65536", "--phase", "decode", "--chips", "8", "--batch")
    assert sweep(model, *too_large, "1048576,8").exit_code == 0
    result = sweep(model, *too_large, "1048576", "--emit", "html", "-o", str(tmp_path / "none.jsonl"))
    assert result.exit_code == 1 and "No point of the grid has a plan." in result.stderr
    assert len((tmp_path / "none.jsonl").read_text().splitlines()) == 2 and (tmp_path / "none.html").is_file()
    written = sweep(model, *too_large, "1048576", "--emit", "json")
    assert written.exit_code == 1 and json.loads(written.stdout)["points"][0]["status"] == "infeasible"


def test_a_stream_that_no_place_serves_is_no_success(model: str) -> None:
    stream = ("--hardware", "h100", "--chips", "1", "--input", "8", "--output", "8", "--batch", "2")
    assert sweep(model, *stream).exit_code == 0
    for emit, said in (("text", "None serves it."), ("json", '"places": [')):
        result = sweep(model, *stream, "--max-latency", "0.01us", "--emit", emit)
        assert result.exit_code == 1 and said in result.stdout and "No place serves the stream." in result.stderr


def test_an_interrupted_sweep_ends_as_the_whole_one(model: str, tmp_path: Path) -> None:
    whole, other = tmp_path / "whole.jsonl", tmp_path / "other.jsonl"
    grid = ("--chips", "4", "--batch", "8,16,32", "--context", "64", "--phase", "decode")
    assert sweep(model, *grid, "-o", str(whole)).exit_code == 0
    content = whole.read_bytes()
    ends = [0, *(n + 1 for n, byte in enumerate(content) if byte == ord("\n"))]
    assert len(ends) == 5
    for end in ends:
        for cut in (0, 7):  # at the end of a line, and in the middle of one
            other.write_bytes(content[: end + cut] if end + cut <= len(content) else content)
            assert sweep(model, *grid, "-o", str(other)).exit_code == 0
            assert other.read_bytes() == content


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"hello\n", "no results file of a sweep"),
        (b"hello", "no results file of a sweep"),
        (b'{"escc_sweep": 1}\n', "holds another sweep"),
    ],
)
def test_another_file_is_refused_and_left_alone(model: str, tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "found.jsonl"
    path.write_bytes(content)
    result = sweep(model, *GRID, "-o", str(path))
    assert result.exit_code == 1 and said in result.stderr
    assert path.read_bytes() == content


def test_damaged_lines_are_refused_with_their_place(model: str, tmp_path: Path) -> None:
    path = tmp_path / "found.jsonl"
    assert sweep(model, *GRID, "-o", str(path)).exit_code == 0
    header, *lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(header + lines[0] + b"{}\n" + lines[2])
    result = sweep(model, *GRID, "-o", str(path))
    assert result.exit_code == 1 and "found.jsonl:3:1: error: Line 3 is no point of a sweep." in result.stderr
    assert path.read_bytes() == header + lines[0] + b"{}\n" + lines[2]


def test_a_full_disk_is_said_and_what_is_there_stays(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, written = tmp_path / "found.jsonl", ResultsFile._append

    def full(self: ResultsFile, line: bytes) -> None:
        if len(self.records) == 2:
            raise self._unwritable(OSError(28, "No space left on device"))
        written(self, line)

    with monkeypatch.context() as patched:
        patched.setattr(ResultsFile, "_append", full)
        result = sweep(model, *GRID, "-o", str(path))
    assert result.exit_code == 1 and "cannot be written to: No space left on device" in result.stderr
    assert len(path.read_bytes().splitlines()) == 3
    assert sweep(model, *GRID, "-o", str(path)).exit_code == 0
    assert len(path.read_bytes().splitlines()) == 9


@pytest.mark.parametrize("form", ["html", "svg", "png"])
def test_pictures_stand_beside_the_results_and_are_the_same_every_time(model: str, tmp_path: Path, form: str) -> None:
    path = tmp_path / "found.jsonl"
    contents = []
    for _ in range(2):
        result = sweep(model, *GRID, "-o", str(path), "--emit", form, "--force")
        assert result.exit_code == 0, result.output
        contents.append((tmp_path / f"found.{form}").read_bytes())
    assert contents[0] == contents[1] and len(contents[0]) > 1000
    result = sweep(model, *GRID, "-o", str(path), "--emit", form)
    assert result.exit_code == 1 and "exists already" in result.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--chips", "4..9"), ["`4..9`, and 9 is no power of two"]),
        (("--chips", "x", "--batch", "0", "--weights", "bf17"), ["no number", "names `0`", "did you mean `bf16`?"]),
        (("--weights", "int8,int8"), ["names `int8` twice"]),
        (("--max-latency", "30"), ["is no time"]),
        (("--max-cost", "-1"), ["is no cost"]),
        (("--emit", "png"), ["beside the results file"]),
        (("-o", "found.txt"), ["no name of a results file"]),
        (("-o", "/nowhere/found.jsonl"), ["is no folder"]),
        (("--phase", "train"), ["no phase `train`"]),
        (("--hardware", "tpu-v9"), ["no hardware preset"]),
        (("--batch", "1..1073741824", "--context", "1..1073741824", "--chips", "1..1048576"), []),
    ],
)
def test_wrong_options_are_said_all_at_once(model: str, options: tuple[str, ...], said: list[str]) -> None:
    given = dict(zip(options[::2], options[1::2], strict=True))
    grid = {"--chips": "4", "--batch": "8", "--phase": "decode"} | given
    if not said:
        grid["--weights"] = "bf16,int8,fp8,int4"
        del grid["--phase"]
        said = ["points; at most 100,000 are supported"]
    result = sweep(model, *(word for pair in grid.items() for word in pair))
    assert result.exit_code == 1
    assert all(text in result.stderr for text in said), result.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--set", "B=7"), "`--set` gives dim `B` a size, and `--batch` others."),
        (("--context", "64", "--set", "M=96"), "`--set` gives dim `M` a size, and `--context` others."),
        (("--context", "128", "--set", "L=64"), "`--set` gives dim `L` a size, and `--context` others."),
        (("--ahead", "3"), "`--ahead` is of streams from the host."),
    ],
)
def test_what_a_grid_would_not_heed_is_refused(model: str, options: tuple[str, ...], said: str) -> None:
    result = sweep(model, "--chips", "4", "--batch", "4", *options)
    assert result.exit_code == 1 and said in result.stderr


def test_sizes_that_a_grid_leaves_alone_may_be_set(model: str) -> None:
    found = data(model, "--chips", "4", "--batch", "4", "--context", "64", "--phase", "prefill", "--set", "L=16,F=2048")
    assert found["points"][0]["tokens"] == 4 * 16


def test_caches_have_the_types_that_help_names(model: str) -> None:
    said = " ".join(CliRunner().invoke(app, ["sweep", "--help"], terminal_width=200).stdout.split())
    found = data(model, "--chips", "4", "--batch", "4", "--phase", "decode", "--caches", "bf16,int8,fp8,fp4,int4")
    assert "Types of the caches: bf16, int8, fp8, fp4, int4." in said
    assert [point["caches"] for point in found["points"]] == [None, "int8", "fp8", "fp4", "int4"]


def test_a_grid_goes_over_chips_and_types_of_caches(model: str) -> None:
    point = ("--chips", "4", "--batch", "8", "--phase", "decode", "--caches", "bf16,int8", "--max-latency", "1s")
    found = data(model, *point, "--hardware", "h100,h200")
    records = {(record["hardware"], record["caches"]): record for record in found["points"]}
    assert len(found["points"]) == len(records) == 4
    for chip in ("h100", "h200"):
        [alone] = data(model, *point[:6], "--caches", "int8", "--hardware", chip)["points"]
        same = records[f"{chip}-measured", "int8"]
        others = {"hardware", "dollars_per_million"} if chip == "h100" else {"hardware"}  # h200 has no price
        assert {name for name in same if same[name] != alone[name]} == others
    said = sweep(model, *point, "--hardware", "h100,h200").output
    assert "hardware" in said and "caches" in said and "chip-seconds per million tokens" in said
    assert re.search(r"^  escc compile .* --hardware h[12]00 ", said, re.MULTILINE)


def test_a_page_leads_to_the_plans_of_the_frontier(model: str, tmp_path: Path) -> None:
    file = tmp_path / "my sweep.jsonl"
    done = sweep(model, *GRID, "-o", str(file), "--emit", "html", "--plans", "--max-latency", "1ms")
    assert done.exit_code == 0, done.output
    page = file.with_suffix(".html").read_text()
    numbers = sorted(int(number) for number in re.findall(r'<a href="my%20sweep-([0-9]+)\.html"><g', page))
    assert numbers and 'class="limit"' in page
    assert sorted(int(p.stem.split("-")[1]) for p in tmp_path.glob("my sweep-*.html")) == numbers
    records = [json.loads(line) for line in file.read_text().splitlines()[1:]]
    for number in numbers:
        text = (tmp_path / f"my sweep-{number}.html").read_text()
        assert time_text(records[number - 1]["latency_s"]) in text
    again = sweep(model, *GRID, "-o", str(file), "--emit", "html", "--plans")
    assert again.exit_code == 1 and "exist" in again.output


EXPERTS = MODEL.replace(
    "  u[B,L,F] = a[B,L,E] * Wi[E,F]\n  d[B,L,E] = u[B,L,F] * Wd[F,E]\n",
    "  param Wr: bf16[E,X]\n  r[B,L,X] = a[B,L,E] * Wr[E,X]\n  m = choose(r, over=X, keep=2)\n"
    "  e[B,L,X,E] = m[B,L,X] * a[B,L,E]\n  u[B,L,X,F] = e[B,L,X,E] * Wi[X,E,F]\n"
    "  f[B,L,X,E] = u[B,L,X,F] * Wd[X,F,E]\n  d[B,L,E] = m[B,L,X] * f[B,L,X,E]\n",
)
EXPERTS = EXPERTS.replace("F = 4096", "F = 4096, X = 8")
EXPERTS = EXPERTS.replace("bf16[E,F]", "bf16[X,E,F] @ X_xEF").replace("bf16[F,E]", "bf16[X,F,E] @ X_xFE")


def test_the_busiest_chip_of_each_point_has_more(tmp_path: Path) -> None:
    file = tmp_path / "experts.esti"
    file.write_text(EXPERTS)
    grid = (str(file), "--chips", "2", "--batch", "512", "--phase", "decode", "--hardware", "h100")
    points = [data(*grid, "--skew", skew) for skew in ("1", "2")]
    [[even], [uneven]] = (found["points"] for found in points)
    assert points[1]["sweep"]["skew"] == 2 and uneven["latency_s"] > 1.02 * even["latency_s"]
    said = sweep(*grid, "--skew", "2", "--max-latency", "1s").stdout
    [command] = (line for line in said.splitlines() if line.startswith("  escc compile"))
    compiled = CliRunner().invoke(app, [*command.split()[1:], "--emit", "json"])
    assert json.loads(compiled.stdout)["prediction"]["latency_s"] == uneven["latency_s"]
    again = sweep(*grid, "--skew", "0.5")
    assert again.exit_code == 1 and "`--skew 0.5` is no number from 1 to 999,999." in again.output


@pytest.mark.parametrize("more", [(), ("--datasheet",), ("--network", "flat", "--engine", "vllm")])
def test_the_answer_names_a_command_that_takes_as_long(model: str, more: tuple[str, ...]) -> None:
    grid = ("--chips", "8", "--batch", "16", "--context", "64", "--phase", "decode", "--weights", "int8")
    found = sweep(model, *grid, *more, "--max-latency", "1s")
    assert found.exit_code == 0, found.output
    lines = found.stdout.splitlines()
    command = next(line for line in lines if line.startswith("  escc compile"))
    takes = lines[lines.index(command) - 1].split(" a step")[0].strip()
    compiled = CliRunner().invoke(app, command.split()[1:])
    assert compiled.exit_code == 0 and f"A step takes {takes}" in compiled.stdout
