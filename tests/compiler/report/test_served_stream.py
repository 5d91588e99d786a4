"""What a stream of requests gets, in text, in data and on pages alike."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from escc.compiler.commands.main import app
from escc.compiler.plan.serving import Served, Stream
from escc.compiler.report.served_stream import ServedStream

pytestmark = pytest.mark.usefixtures("known_plans")

TEXT = """model "small"
dim B, L, M
dim E = 32, K = 4, Q = 8
block layer(x: bf16[B,L,E]) -> bf16[B,L,E] {
  param Wq, Wk, Wv: bf16[E,K,Q]
  param Wo: bf16[K,Q,E]
  cache keys, values: bf16[B,M,K,Q]
  q[B,L,K,Q] = x[B,L,E] * Wq[E,K,Q]
  k[B,L,K,Q] = x[B,L,E] * Wk[E,K,Q]
  v[B,L,K,Q] = x[B,L,E] * Wv[E,K,Q]
  ks = append(keys, k, L into M)
  vs = append(values, v, L into M)
  s[B,L,K,M] = q[B,L,K,Q] * ks[B,M,K,Q]
  p = softmax(s, over=M, mask=causal(L, M))
  o[B,L,K,Q] = p[B,L,K,M] * vs[B,M,K,Q]
  a[B,L,E] = o[B,L,K,Q] * Wo[K,Q,E]
  return x + a
}
main(x: bf16[B,L,E]) { return repeat 2 layer(x) }
phase prefill { B = 1, L = 20, M = 20 }
phase decode  { B = 4, L = 1, M = 20 }
"""
PRESET = Path(__file__).parents[3] / "cost" / "presets" / "h100.toml"
HOST = """
[host]
dram_bytes = 1e9
dram_bytes_per_s = 100e9
link_bytes_per_s = 20e9
host_chips = 1
"""
ARGV = ["--input", "20", "--output", "10", "--batch", "4"]
PLAIN = ["--chips", "x=1"]


def compiled(folder: Path, *more: str) -> str:
    """What `compile` prints of a stream."""
    model, chip = folder / "small.esti", folder / "mine.toml"
    model.write_text(TEXT)
    chip.write_text(PRESET.read_text() + HOST)
    ran = CliRunner().invoke(app, ["compile", str(model), "--hardware", str(chip), *ARGV, *more])
    assert ran.exit_code == 0, ran.output
    return ran.stdout


@pytest.mark.parametrize("how", [PLAIN, ["--chips", "x=2"]])
def test_times_are_times_whatever_is_to_be_least(tmp_path: Path, how: list[str]) -> None:
    for least in ("time", "communication", "memory"):
        found = json.loads(compiled(tmp_path, *how, "--objective", least, "--emit", "json"))
        served, decode = found["stream"], found["phases"][1]
        assert served["step_s"] == pytest.approx(decode["totals"]["total_s"])
        assert served["prefill_s"] == pytest.approx(found["phases"][0]["totals"]["total_s"]), "nothing is handed on"
        assert served["token_s"] == pytest.approx(served["step_s"] + 4 / 10 * served["prefill_s"])


@pytest.mark.parametrize("how", [PLAIN, [*PLAIN, "--offload", "weights"], ["--chips", "stage=2", "--stages", "2"]])
def test_data_and_pages_have_the_figures_of_the_text(tmp_path: Path, how: list[str]) -> None:
    found = json.loads(compiled(tmp_path, *how, "--emit", "json"))
    data = (found if "--stages" not in how else found["pipeline"])["stream"]
    stream = ServedStream(
        Stream(data["input_tokens"], data["output_tokens"], data["batch"], data["chunk"]),
        Served(**{name: data[name] for name in Served.__dataclass_fields__}),
    )
    assert (stream.stream, data["places"]) == (Stream(20, 10, 4), 30)
    assert data["tokens_per_s"] == pytest.approx(4 / data["token_s"]) and 0 < data["step_s"] < data["token_s"]
    text, page = compiled(tmp_path, *how), compiled(tmp_path, *how, "--emit", "html")
    assert text.endswith("\n" + stream.text())
    for name, told in stream.facts():
        assert f"<dt>{name}</dt><dd>{told}</dd>" in page


def test_files_have_them_too(tmp_path: Path) -> None:
    compiled(tmp_path, *PLAIN, "--emit", "json", "-o", str(tmp_path))
    files = [json.loads((tmp_path / f"small_{phase}.json").read_text()) for phase in ("prefill", "decode")]
    assert files[0]["stream"] == files[1]["stream"]
    compiled(tmp_path, "--chips", "stage=2", "--stages", "2", "--emit", "json", "-o", str(tmp_path / "staged"))
    assert "stream" in json.loads((tmp_path / "staged" / "small_pipeline.json").read_text())


def test_a_phase_alone_serves_no_stream(tmp_path: Path) -> None:
    assert "stream" not in json.loads(compiled(tmp_path, *PLAIN, "--phase", "decode", "--emit", "json"))


def test_what_is_held_has_the_unit_that_fits() -> None:
    held = ServedStream(Stream(20, 10, 4), Served(1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.5e6, 1))
    assert "a chip holds 1.5 MB, with 30 places" in held.text() and ("a chip holds", "1.5 MB") in held.facts()
