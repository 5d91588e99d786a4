"""`escc validate` and `escc calibrate` on the command line: what they print, write and refuse."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from escc.compiler.calibrate.probe import CPU_DEVICES, Probe, probe, probe_text, probed, probed_hardware
from escc.compiler.commands.main import app
from escc.cost.hardware import Convention, Hardware, Switch, parse_hardware
from escc.ir.diagnostics import InputError, Source

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
ROWS = (
    "a,one,{m},tpu-v4,prefill,4,8,64,0,bf16,ws2d,batch,1.1",
    "b,one,{m},tpu-v4,prefill,4,64,1024,0,int8,wg-xyz,batch,60",
    "c,two,{m},tpu-v4,decode,4,8,64,4,bf16,ws1d,batch,3.5",
    "d,two,{m},tpu-v4,decode,4,512,64,4,bf16,ws2d,batch,5",
    "e,two,{m},tpu-v4,decode,4,64,64,4,int8,ws2d,batch,3",
    "f,two,gpt-9,a100-80,decode,4,64,64,4,bf16,tp4,heads,3",
)


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture(autouse=True)
def one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 1)


@pytest.fixture
def file(tmp_path: Path) -> str:
    model = tmp_path / "layers.esti"
    model.write_text(TEXT)
    path = tmp_path / "mine.csv"
    path.write_text("\n".join([HEADER, *(row.format(m=model) for row in ROWS)]))
    return str(path)


def test_validate_prints_json(file: str) -> None:
    result = invoke("validate", file, "--hardware", "tpu-v4", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [row["id"] for row in found["rows"]] == list("abcde")
    for row in found["rows"]:
        assert row["error"] == pytest.approx((row["predicted_ms"] - row["measured_ms"]) / row["measured_ms"])
        assert sum(row["shares"].values()) == pytest.approx(1.0)
        assert row["predicted_ms"] > row["least_ms"]
    assert found["mape"] == pytest.approx(sum(abs(row["error"]) for row in found["rows"]) / 5)
    assert found["worst"] == max(found["rows"], key=lambda row: abs(row["error"]))
    assert (found["left_out"], found["hardware"]) == (1, "tpu-v4-measured")
    assert result.stderr == "1 row is of other hardware than tpu-v4, and left out\n"


def test_validate_prints_a_table_and_says_what_is_impossible(file: str) -> None:
    path = Path(file)
    path.write_text(path.read_text().replace(",60\n", ",0.5\n"))
    result = invoke("validate", file, "--datasheet")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == f"Predicted and measured: {file} on tpu-v4"
    assert [line.split()[0] for line in lines[2:7]] == list("abcde")
    assert any(line.startswith("  b: measured below ") for line in lines)
    assert "5 rows, mean absolute error" in result.stdout and "worst b, +" in result.stdout


def test_calibrate_writes_a_file_that_validate_reads(file: str, tmp_path: Path) -> None:
    written = tmp_path / "out" / "my.toml"
    result = invoke("calibrate", file, "--axes-at-once", "1", "-o", str(written), "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert {one["name"] for one in found["parameters"]} == {
        "compute_efficiency",
        "hbm_efficiency",
        "network_efficiency",
        "kernel_s",
        "hop_latency_s",
    }
    assert all(one["identified"] == (one["reason"] is None) for one in found["parameters"])
    chip = Hardware.load(str(written))
    assert (chip.name, chip.convention, chip.calibrated.error) == ("tpu-v4-measured", "links", found["error"])
    validated = json.loads(invoke("validate", file, "--hardware", str(written), "--json").stdout)
    if found["settled"]:
        assert validated["mape"] == pytest.approx(found["mape"], rel=0.05)
    before = written.read_bytes()
    again = invoke("calibrate", file, "-o", str(written))
    assert again.exit_code == 1 and "exists already" in again.stderr and written.read_bytes() == before


@pytest.mark.parametrize(
    ("factor", "said"),
    [
        (1e-3, "the least at the datasheet's peaks."),
        (1e-250, "the least at the datasheet's peaks."),
        (1e3, "times what the slowest figures that are fitted give."),
        (1e250, "No figures fit: this was measured in "),
    ],
)
def test_times_in_other_units_are_refused_before_a_file_is_written(
    file: str, tmp_path: Path, factor: float, said: str
) -> None:
    header, *rows = Path(file).read_text().splitlines()
    cells = [row.rsplit(",", 1) for row in rows]
    Path(file).write_text("\n".join([header, *(f"{rest},{float(time) * factor!r}" for rest, time in cells)]))
    written = tmp_path / "my.toml"
    result = invoke("calibrate", file, "--axes-at-once", "1", "-o", str(written))
    assert result.exit_code == 1, result.output
    assert said in result.stderr and "hint: `time_ms` is in milliseconds" in result.stderr
    assert any(line.startswith(f"{file}:") and ":1: error: " in line for line in result.stderr.splitlines())
    assert not written.exists() and not result.stdout


def test_calibrate_prints_a_table(file: str) -> None:
    result = invoke("calibrate", file, "--latency", "collective", "--rule", "max", "--axes-at-once", "2")
    assert result.exit_code == 0, result.output
    assert "Fitted: tpu-v4-measured, to 5 rows of " in result.stdout
    assert "collective_latency_s" in result.stdout and "hop_latency_s" not in result.stdout
    assert "an op takes the max of its two times" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("validate", "nowhere.csv"), "`nowhere.csv` does not exist"),
        (("validate", "{file}", "--hardware", "tpu-v9"), "There is no hardware preset `tpu-v9`"),
        (("validate", "{file}", "--hardware", "h100"), "The file has no row of `h100`"),
        (("calibrate", "{file}", "-o", "my.csv"), "`my.csv` is no name of a hardware file"),
        (("calibrate", "{file}", "--latency", "both", "--hardware", "a100-80"), "is no model that is shipped"),
        (("calibrate", "{one}"), "One row cannot give 5 parameters"),
        (("calibrate", "{empty}"), "The file has no rows"),
        (("calibrate", "{bad}"), "There is no layout of the feed-forward `tp4`"),
        (("calibrate", "{file}", "--probe"), "reads no file"),
    ],
)
def test_wrong_input_is_said(file: str, tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    lines = Path(file).read_text().splitlines()
    texts = {"one": lines[:2], "empty": lines[:1], "bad": [lines[0], lines[6].replace("a100-80", "tpu-v4")]}
    paths = {"file": file}
    for name, text in texts.items():
        paths[name] = str(tmp_path / f"{name}.csv")
        Path(paths[name]).write_text("\n".join(text))
    result = invoke(*(argument.format(**paths) for argument in arguments))
    assert result.exit_code == 1, result.output
    assert said in result.stderr
    assert "Traceback" not in result.output and not result.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--matmuls", "t.csv", "--rule", "sum"), "`--rule` goes with measured rows alone."),
        (("--matmuls", "t.csv", "--rule", "max"), "`--rule` goes with measured rows alone."),
        (("--collectives", "t.csv", "--latency", "both"), "`--latency` goes with measured rows alone."),
        (("--steps", "t.csv", "--axes-at-once", "2"), "`--axes-at-once` goes with measured rows alone."),
        (("--matmuls", "t.csv", "--engine", "vllm"), "`--engine` goes with `--steps` or `--all-reduce`."),
        (("--steps", "t.csv", "--like", "h100"), "`--like` goes with tables without `--steps`."),
        (("t.csv", "--like", "h100"), "`--like` goes with tables without `--steps`."),
        (("t.csv", "--source", "a bench"), "`--source` goes with tables."),
        (("t.csv", "--engine", "vllm"), "`--engine` goes with `--steps` or `--all-reduce`."),
        (("t.csv", "--probe", "--rule", "sum"), "`--rule` goes with measured rows alone."),
        (("t.csv", "--probe", "--hardware", "h100"), "`--hardware` goes with measured times, not with `--probe`."),
    ],
)
def test_options_that_would_change_nothing_are_refused(arguments: tuple[str, ...], said: str) -> None:
    result = invoke("calibrate", *arguments)
    assert result.exit_code == 2, result.output
    assert said in " ".join(result.stderr.split()) and not result.stdout


def test_a_probe_of_this_machine(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    found = probe()
    assert found.devices >= 1 and found.flops_per_s > 1e8 and found.memory_bytes_per_s > 1e6
    assert found.memory_bytes > 1 << 20
    if found.platform == "cpu":
        assert found.devices == CPU_DEVICES and found.start_s < 1.0
        chip = parse_hardware(Source("probed.toml", probed_hardware(found)))
        assert chip == probed(found)


PROBE = Probe(
    platform="gpu",
    kind="Made Up 3000",
    devices=4,
    memory_bytes=1 << 30,
    matmuls=((2e9, 0.1), (2e12, 1.0)),
    copies=((2e9, 1e-2), (1e9, 1e-3)),
    gathers=((1e3, 1e-5), (1e8, 1.01e-3)),
)


def test_a_probe_as_hardware() -> None:
    chip = probed(PROBE)
    assert (chip.name, chip.peak_flops_per_s, chip.hbm_bytes) == ("made-up-3000-measured", 2e12, 1 << 30)
    assert (chip.hbm_bytes_per_s, chip.fabric) == (1e12, Switch(4, 1e11))
    assert (chip.calibrated.collective_latency_s, chip.convention) == (1e-5, Convention.LINKS)
    assert parse_hardware(Source("probed.toml", probed_hardware(PROBE))) == chip
    assert "all-gather" in probe_text(PROBE)


def test_one_device_has_no_network() -> None:
    alone = Probe("gpu", "one", 1, 1 << 30, PROBE.matmuls, PROBE.copies, ())
    assert "One device has no network to measure" in probe_text(alone)
    with pytest.raises(InputError, match="one device here"):
        probed(alone)


def test_without_jax_a_sentence_says_so(tmp_path: Path) -> None:
    """JAX is hidden from a process by a finder that does not find its files."""
    hide = (
        "import sys, importlib.metadata as m\n"
        "found = m.version\n"
        "def version(name):\n"
        "    if name == 'jax': raise m.PackageNotFoundError(name)\n"
        "    return found(name)\n"
        "m.version = version\n"
        "from escc.compiler.commands.main import run\n"
        "sys.argv = ['escc', 'calibrate', '--probe']\n"
        "run()\n"
    )
    ended = subprocess.run([sys.executable, "-c", hide], capture_output=True, cwd=tmp_path, check=False)
    assert ended.returncode == 1 and b"JAX is not installed." in ended.stderr and b"Traceback" not in ended.stderr


def test_the_sheet_of_measured_hardware() -> None:
    result = invoke("hardware", "tpu-v4-measured")
    assert result.exit_code == 0, result.output
    for said in (
        "links, unless `--network` says otherwise",
        "at most 2 at once",
        "about 226 tokens on",
    ):
        assert said in result.stdout
    assert "tpu-v4-measured" in invoke("hardware").stdout
    assert "root mean square" not in invoke("hardware", "tpu-v4").stdout


def test_measured_hardware_is_seen_by_its_links_unless_asked_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "sum.esti"
    path.write_text(
        'model "sum"\ndim B = 64, E = 64\nmain(x: bf16[B,E] @ BE_x) { param W: bf16[E] @ E_x\n'
        "  u[B] = x[B,E] * W[E]\n  return u }\n"
    )

    def comm_s(*network: str) -> float:
        result = invoke(
            "compile", str(path), "--chips", "4", "--hardware", "tpu-v4-measured", "--emit", "json", *network
        )
        assert result.exit_code == 0, result.output
        return float(json.loads(result.stdout)["totals"]["comm_s"])

    assert comm_s() == comm_s("--network", "links") > 3e-6 > comm_s("--network", "flat")
