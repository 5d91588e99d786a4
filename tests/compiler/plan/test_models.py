"""The shipped models: their sizes, that they compile and run, and that a name stands for a file."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from model_text import print_model
from typer.testing import CliRunner, Result

from escc.compiler.commands.main import app
from escc.compiler.plan.pipeline import compile_phase, load, model_names, model_source
from escc.compiler.report.hardware import parameter_count
from escc.cost.hardware import Hardware
from escc.ir.mesh import Mesh
from escc.ir.program import Program
from escc.ir.text.read import parse
from escc.passes.options import Options

# Parameters as published, in the papers of PaLM (table 1: 8.63, 62.50 and 540.35 billion), Megatron-Turing
# NLG (530 billion), Llama 2 (13.0), Llama 3 (8.03, 70.6), GPT-3 (175) and GPT-NeoX (20.6). The last two of
# PaLM are variants that "Efficiently Scaling Transformer Inference" keeps at about 540 billion. Those with experts,
# and of Qwen 3 and Gemma 3 (without what sees images), are of the papers and model cards; of DeepSeek-V3 and Kimi-K2
# without the layers that guess further tokens.
PUBLISHED = {
    "palm-8b": 8.63e9,
    "palm-62b": 62.50e9,
    "palm-540b": 540.35e9,
    "palm-540b-serial": 540e9,
    "palm-540b-multihead": 540e9,
    "megatron-530b": 529.5e9,
    "llama-2-13b": 13.0e9,
    "llama-3-8b": 8.03e9,
    "llama-3-70b": 70.6e9,
    "gpt-3-175b": 175e9,
    "gpt-neox-20b": 20.6e9,
    "deepseek-v3": 671e9,
    "kimi-k2": 1.026e12,
    "qwen3-235b-a22b": 235e9,
    "qwen3-32b": 32.8e9,
    "mixtral-8x7b": 46.7e9,
    "gpt-oss-120b": 116.8e9,
    "llama-4-scout": 107.8e9,
    "gemma-3-27b": 27.0e9,
}
OF_LATER_YEARS = list(PUBLISHED)[11:]
NO_LIMIT = 1e18  # bytes a chip: eight chips are too few for the largest


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@cache
def shipped(name: str) -> Program:
    """A model, read once for all that is asked of it."""
    return load(Path(name))


def test_every_model_is_published() -> None:
    assert set(model_names()) == set(PUBLISHED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_model_has_as_many_parameters_as_published(name: str) -> None:
    program = shipped(name)
    assert parameter_count(program) == pytest.approx(PUBLISHED[name], rel=0.005)
    assert [phase.name for phase in program.phases] == ["prefill", "decode"]


def test_parameters_are_those_of_configs_exactly_without_their_scales() -> None:
    experts = 36 * 128 * 3 * (2880 * 2880 + 2880)  # gates, ups and downs, each with a bias
    attention = 36 * (2880 * 64 * (64 + 8 + 8) + 64 * (64 + 8 + 8) + 64 * 64 * 2880 + 2880 + 64)
    routers_and_norms = 36 * (2880 * 128 + 128 + 2 * 2880)
    assert parameter_count(shipped("gpt-oss-120b")) == experts + attention + routers_and_norms + (2 * 201088 + 1) * 2880
    latent = 7168 * (1536 + 512 + 64) + 1536 * 64 * 192 + 512 * 64 * 256 + 64 * 128 * 7168 + 1536 + 512 + 2 * 7168
    layers = 3 * 7168 * 18432 + 60 * (385 * 3 * 7168 * 2048 + 7168 * 384 + 384)
    assert parameter_count(shipped("kimi-k2")) == 61 * latent + layers + (2 * 163840 + 1) * 7168


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_model_is_named_like_its_file_and_prints_stably(name: str) -> None:
    source = model_source(name)
    model = parse(source)
    assert shipped(name).name == name
    assert max(map(len, source.text.splitlines())) <= 110
    assert parse(type(source)("printed", print_model(model))) == model


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_model_compiles_in_decode_on_64_chips(name: str) -> None:
    compiled = compile_phase(
        shipped(name),
        "decode",
        Mesh.parse("8x8" if name in OF_LATER_YEARS else "4x4x4"),  # on three axes some proofs take minutes
        Options(Hardware.of_paper("tpu-v4")),
    )
    assert compiled.plan.phases[0].gap <= 1e-9
    assert compiled.warnings == ()


@pytest.mark.parametrize(("name", "phase"), [("palm-8b", "prefill"), *((name, "decode") for name in PUBLISHED)])
def test_a_model_runs_as_its_reference(name: str, phase: str) -> None:
    options = Options(Hardware.of_paper("tpu-v4"), capacity_bytes=NO_LIMIT)
    compiled = compile_phase(shipped(name), phase, Mesh.parse("2x2"), options, run=True)
    assert compiled.checked is not None
    assert compiled.checked.max_error <= 1e-9
    assert compiled.checked.equal


def test_models_are_listed_and_shown() -> None:
    lines = invoke("models").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["name", *model_names()]
    (line,) = (line for line in lines if "llama-3-70b" in line)
    assert line.split()[-2:] == ["80", "70.55e9"]
    assert "V=128256 K=8 G=8" in line
    shown = invoke("models", "show", "gpt-neox-20b")
    assert shown.exit_code == 0
    assert shown.stdout == model_source("gpt-neox-20b").text
    refused = invoke("models", "show", "palm-8")
    assert refused.exit_code == 1
    assert "did you mean `palm-8b`?" in refused.stderr


def test_a_file_wins_over_a_model_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert invoke("check", "palm-8b").stdout.startswith("ok: model palm-8b, phases prefill, decode")
    (tmp_path / "palm-8b").mkdir()  # a folder is no model
    assert invoke("check", "palm-8b").stdout.startswith("ok: model palm-8b, phases prefill, decode")
    (tmp_path / "palm-8b").rmdir()
    (tmp_path / "palm-8b").write_text('model "mine"\ndim B = 2\nmain(x: bf16[B]) { return x + x }\n')
    assert invoke("check", "palm-8b").stdout.startswith("ok: model mine, phase main")


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    refused = invoke("compile", "llama3-70b", "--chips", "4")
    assert refused.exit_code == 1
    assert "`llama3-70b` does not exist, and is no model that is shipped" in refused.stderr
    assert "did you mean `llama-3-70b`?" in refused.stderr
    assert "`escc models` lists them" in invoke("check", "xyz").stderr
    assert "`palm-8b.esti` does not exist." in invoke("check", "palm-8b.esti").stderr
