"""`escc import`: what it writes, and what it refuses, always with the place and never with a traceback."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from escc.compiler.commands.main import app
from escc.compiler.hf_import.readers import READERS
from escc.compiler.plan.pipeline import load, parse

SMALL: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 96,
    "max_position_embeddings": 128,
    "rope_theta": 500000.0,
    "rms_norm_eps": 1e-05,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "use_cache": True,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
LINEAR = {"rope_type": "linear", "factor": 2.0}
MIXTRAL = {"model_type": "mixtral", "architectures": None}
DEEPSEEK = {"model_type": "deepseek_v3", "architectures": None, "n_routed_experts": 8, "num_experts_per_tok": 3}


def imported(tmp_path: Path, text: str, *arguments: str) -> Result:
    path = tmp_path / "small.json"
    path.write_text(text, encoding="utf-8")
    return CliRunner().invoke(app, ["import", str(path), *arguments])


def config(**changes: Any) -> str:
    """The small config with changes; a change to `...` takes the field out."""
    fields = {name: value for name, value in (SMALL | changes).items() if value is not ...}
    return json.dumps(fields, indent=2)


def refused(tmp_path: Path, text: str, *said: str) -> str:
    """What is said of a config that is refused, and that nothing is written."""
    output = tmp_path / "out.esti"
    result = imported(tmp_path, text, "-o", str(output))
    assert result.exit_code == 1, result.output
    assert isinstance(result.exception, SystemExit)
    assert result.stdout == "" and not output.exists()
    for part in said:
        assert part in result.stderr
    return result.stderr


def test_an_imported_model_compiles_and_runs(tmp_path: Path) -> None:
    output = tmp_path / "new" / "small.esti"
    result = imported(tmp_path, config(), "-o", str(output))
    assert result.exit_code == 0, result.output
    assert result.stdout == f"wrote {output}\n"
    arguments = ["compile", str(output), "--chips", "2x2", "--check", "--phase", "decode"]
    compiled = CliRunner().invoke(app, arguments)
    assert compiled.exit_code == 0, compiled.output
    assert 'Plan of "small", phase decode' in compiled.stdout
    assert "equal to the reference" in compiled.stdout


def test_without_an_output_the_model_is_printed(tmp_path: Path) -> None:
    result = imported(tmp_path, config())
    assert result.stdout.startswith("# Imported from a Hugging Face config of architecture llama.\n")
    assert 'model "small"' in result.stdout
    assert result.stderr == "135,616 parameters\n"
    assert imported(tmp_path, config()).stdout == result.stdout


def test_a_config_is_called_after_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "my model" / "config.json"
    path.parent.mkdir()
    path.write_text(config())
    assert 'model "my-model"' in CliRunner().invoke(app, ["import", str(path)]).stdout


def test_a_long_name_of_a_folder_is_cut_to_a_title(tmp_path: Path) -> None:
    folder = "models--someone--Meta-Llama-3.1-8B-Instruct-quantized.w8a8-dynamic-v2"
    path = tmp_path / folder / "config.json"
    path.parent.mkdir()
    path.write_text(config())
    ran = CliRunner().invoke(app, ["import", str(path)])
    assert ran.exit_code == 0, ran.output
    assert f'model "{folder[:64]}"' in ran.stdout


def test_the_config_of_llama_3_gives_the_shipped_model(tmp_path: Path) -> None:
    sizes = {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 8192,
    }
    output = tmp_path / "llama.esti"
    assert imported(tmp_path, config(**sizes), "-o", str(output)).exit_code == 0
    found, shipped = load(output), load(Path("llama-3-8b"))
    assert (found.body, found.values, found.results) == (shipped.body, shipped.values, shipped.results)
    fixed = [name for name, _ in shipped.phases[0].sizes if name not in ("B", "L", "M")]
    assert [dict(found.phases[0].sizes)[n] for n in fixed] == [dict(shipped.phases[0].sizes)[n] for n in fixed]


def test_an_existing_file_is_kept_unless_forced(tmp_path: Path) -> None:
    output = tmp_path / "small.esti"
    output.write_text("mine")
    result = imported(tmp_path, config(), "-o", str(output))
    assert result.exit_code == 1
    assert f"`{output}` exists already." in result.stderr
    assert output.read_text() == "mine"
    assert imported(tmp_path, config(), "-o", str(output), "--force").exit_code == 0
    assert output.read_text().startswith("# Imported")
    assert imported(tmp_path, config(), "-o", str(tmp_path)).exit_code == 1
    assert "names no file" in imported(tmp_path, config(), "-o", "").stderr


@pytest.mark.parametrize(
    ("named", "asked", "dtype"),
    [
        ("bfloat16", None, "bf16"),
        ("float16", None, "f16"),
        ("float32", None, "f32"),
        (..., None, "f32"),
        (..., "bf16", "bf16"),
        ("float32", "f16", "f16"),
    ],
)
def test_the_type_of_the_weights(tmp_path: Path, named: object, asked: str | None, dtype: str) -> None:
    arguments = () if asked is None else ("--dtype", asked)
    assert f"param Wu: {dtype}[E,V]" in imported(tmp_path, config(torch_dtype=named), *arguments).stdout
    assert imported(tmp_path, config(), "--dtype", "i32").exit_code == 2


@pytest.mark.parametrize(
    ("changes", "place", "said"),
    [
        ({"hidden_size": -64}, "6:18", "`hidden_size` must be a whole number from 1"),
        ({"hidden_size": 0}, "6:18", "`hidden_size` must be a whole number from 1"),
        ({"hidden_size": 64.0}, "6:18", "`hidden_size` must be a whole number from 1"),
        ({"hidden_size": "64"}, "6:18", "`hidden_size` must be a whole number from 1"),
        ({"hidden_size": True}, "6:18", "`hidden_size` must be a whole number from 1"),
        ({"hidden_size": [64]}, "6:18", "`hidden_size` must be a whole number from 1"),
        ({"hidden_size": 10**30}, "6:18", "`hidden_size` must be a whole number from 1"),
        ({"hidden_size": ...}, "1:1", "The field `hidden_size` is missing."),
        (
            {"hidden_size": None},
            "6:18",
            "from 1 to 1,099,511,627,776, and is null.",
        ),
        ({"num_hidden_layers": 10**9}, "8:24", "`num_hidden_layers` must be a whole number"),
        ({"num_attention_heads": 7}, "9:3", "64 does not divide into 7 heads."),
        ({"num_attention_heads": 6}, "9:3", "64 does not divide into 6 heads."),
        ({"num_key_value_heads": 3}, "10:3", "8 does not divide into 3 kv-heads."),
        ({"head_dim": 7}, "19:3", "Rope turns pairs"),
        ({"rope_theta": 0}, "13:17", "`rope_theta` must be a number above 0"),
        ({"tie_word_embeddings": "no"}, "15:26", "`tie_word_embeddings` must be true or false."),
        ({"torch_dtype": "float8_e4m3fn"}, "16:18", "`torch_dtype` must be"),
        ({"hidden_act": "xielu"}, "19:17", "`hidden_act` must be"),
        ({"model_type": "lama"}, "5:3", "Architecture `lama` is not understood."),
        ({"model_type": 7}, "5:3", "`model_type` names no architecture."),
        ({"model_type": ...}, "1:1", "`model_type` names no architecture."),
        ({"model_type": "jetmoe", "num_local_experts": 8}, "5:3", "`jetmoe` is a mixture of experts"),
        (MIXTRAL | {"num_experts_per_tok": 9}, "17:3", "A token takes 9 experts, and there are 8."),
        (MIXTRAL | {"num_local_experts": 0}, "17:24", "`num_local_experts` must be a whole number from 1"),
        (MIXTRAL | {"num_local_experts": 8, "num_experts": 4}, "18:3", "is another count of experts than 8"),
        (DEEPSEEK | {"n_group": 3}, "19:3", "8 experts do not go into 3 groups."),
        (DEEPSEEK | {"n_group": 4, "topk_group": 5}, "20:3", "5 of 4 groups do not hold the 3 experts of a token."),
        (DEEPSEEK | {"n_group": 4, "topk_group": 1}, "20:3", "1 of 4 groups do not hold the 3 experts of a token."),
        (DEEPSEEK | {"scoring_func": "softmax"}, "19:3", "only sigmoid scores are known"),
        (DEEPSEEK | {"mlp_layer_types": ["dense"]}, "19:3", "must say `dense` or `sparse` for each of the 3 layers"),
        (
            {"model_type": "qwen3_next", "num_experts": 8, "linear_conv_kernel_dim": 4},
            "5:3",
            "layers of linear attention",
        ),
        ({"model_type": "lama", "layer_types": ["full_attention", "mamba"]}, "5:3", "`lama` has state-space layers"),
        ({"model_type": "rwkv"}, "5:3", "`rwkv` has layers of linear attention"),
        ({"num_experts": 8}, "5:3", "`llama` is a mixture of experts (`num_experts`)"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "2:3", "does not name `LlamaForCausalLM`"),
        ({"architectures": None, "auto_map": {}}, "17:3", "`auto_map` is set"),
        ({"quantization_config": {"quant_method": "hqq"}}, "19:3", "is `hqq`, which is not understood"),
        (
            {"quantization_config": {"quant_method": "gptq", "bits": 3}},
            "19:3",
            "is `gptq` with codes of a type that is",
        ),
        (
            {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": "128"}},
            "22:5",
            "`group_size` must be",
        ),
        (
            {"quantization_config": {"quant_method": "fp8"}, "compression_config": {"quant_method": "fbgemm_fp8"}},
            "22:3",
            "`compression_config` says otherwise",
        ),
        ({"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 0}}, "22:5", "or -1 for all inputs"),
        (
            {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128]}},
            "21:5",
            "must be two whole numbers",
        ),
        (
            {"quantization_config": {"quant_method": "fp8", "weight_block_size": [0, 8]}},
            "21:5",
            "must be two whole numbers",
        ),
        (
            {"rope_scaling": {"type": "longrope", "short_factor": [1.0] * 3, "long_factor": [1.0] * 4}},
            "21:5",
            "`short_factor` has 3 factors, and rope turns 4 pairs.",
        ),
        ({"logit_scale": 0.5}, "19:3", "The field `logit_scale` is not understood"),
        ({"attn_logit_softcapping": 50.0}, "19:3", "`attn_logit_softcapping` is not understood"),
        ({"layer_types": ["sliding_attention"]}, "19:3", "names layers that are not `full_attention`"),
        ({"layer_types": ["full_attention"] * 2}, "19:3", "has 2 layers, and `num_hidden_layers` says 3"),
        ({"rope_scaling": 8}, "19:3", "`rope_scaling` must be an object."),
        ({"rope_scaling": {"type": "ntk", "factor": 4}}, "20:5", "Rope scaling `ntk` is not supported."),
        ({"rope_scaling": {"type": "linear", "rope_type": "default"}}, "20:5", "`type` and `rope_type` differ."),
        ({"rope_scaling": {"type": "linear"}}, "19:19", "The field `factor` is missing."),
        ({"rope_scaling": {"type": "linear", "factor": 2, "mscale": 1}}, "22:5", "`mscale` is not understood"),
        ({"rope_scaling": LLAMA3 | {"low_freq_factor": 4.5}}, "22:5", "`low_freq_factor` must not be above"),
        ({"rope_scaling": LINEAR, "rope_parameters": LLAMA3}, "19:3", "`rope_parameters` say different things"),
        ({"rope_parameters": LINEAR | {"partial_rotary_factor": 0.5}}, "19:3", "Rope turns all of a head"),
        ({"is_causal": False}, "19:3", "`is_causal` is set"),
        ({"is_causal": None}, "19:16", "`is_causal` must be true or false, and is null."),
        ({"hidden_size": float("inf")}, "6:18", "`hidden_size` must be a whole number from 1"),
        ({"rms_norm_eps": float("nan")}, "14:19", "`rms_norm_eps` must be a number above 0"),
        ({"rms_norm_eps": None}, "14:19", "and is null."),
        ({"hidden_act": None}, "19:17", "and is null."),
        ({"rope_theta": None}, "13:17", "and is null."),
        ({"dtype": "float8_e4m3fn"}, "19:12", "`dtype` must be"),
        ({"mlp_bias": 1}, "19:15", "`mlp_bias` must be true or false."),
        ({"quantization": {"bits": 4}}, "19:3", "`quantization` is of this kind, which is not understood"),
        ({"use_bidirectional_attention": True}, "19:3", "no part of this architecture, so it can only be false"),
        ({"num_local_experts": 1}, "5:3", "is a mixture of experts (`num_local_experts`)"),
        ({"num_local_experts": False}, "5:3", "is a mixture of experts (`num_local_experts`)"),
        ({"num_experts_per_tok": 2}, "5:3", "is a mixture of experts (`num_experts_per_tok`)"),
    ],
    ids=lambda value: json.dumps(value, default=str)[:40] if isinstance(value, dict) else None,
)
def test_a_wrong_field_is_pointed_at(tmp_path: Path, changes: dict[str, Any], place: str, said: str) -> None:
    shown = refused(tmp_path, config(**changes), said)
    assert f"small.json:{place}: error: " in shown
    assert "^" in shown


def test_all_wrong_fields_are_named_in_their_order(tmp_path: Path) -> None:
    shown = refused(tmp_path, config(hidden_size=-1, vocab_size=0, mup=2, rope_scaling={"type": "ntk"}))
    order = ["`hidden_size`", "`vocab_size`", "`mup`", "`ntk`"]
    assert sorted(order, key=shown.index) == order
    assert shown.count("error: ") == 4


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "Expected a value, found the end of the file."),
        ("hello", "Expected a value, found `hello`."),
        ("[1, 2]", "The file holds no JSON object."),
        ("{", "Expected a key in quotes, found the end of the file."),
        ('{"a": 1', "Expected `,` or `}`, found the end of the file."),
        ('{"a": 1,}', "Expected a key in quotes, found `}`."),
        ('{"a" 1}', "Expected `:`, found `1`."),
        ('{"a": [1 2]}', "Expected `,` or `]`, found `2`."),
        ('{"a": 1} x', "Expected the end of the file, found `x`."),
        ('{"a": nan}', "Expected a value, found `nan`."),
        ('{"a": Infinity8}', "Expected a value, found `Infinity8`."),
        ('{"a": 1e999}', "The number 1e999 is out of range."),
        ('{"a": 007}', "Expected a value, found `007`."),
        ('{"a": ' + "9" * 5000 + "}", "The number has more than 64 digits."),
        ('{"a": "\\x"}', "The text holds an escape that JSON does not have."),
        ('{"a": "\n"}', "Expected a value"),
        ('{"a": ' + "[" * 100_000, "Values are nested more than 16 deep."),
        ('{"a": 1, "a": 2}', "The key `a` stands twice."),
        ("{'a': 1}", "Expected a key in quotes"),
        ("\0", "NUL bytes"),
        ("{}" + " " * 16_000_000, "larger than 16 MB"),
        ('{"a": [' + "1," * 7_000_000 + "2", "Here the text ceases to be JSON"),
        ('{"a": [' + "1," * 7_000_000 + "[" * 100_000, "Values are nested more than 16 deep."),
        ('{"a": "' + "x" * 15_000_000, "Expected a value, found"),
        ("{" + ",".join(f'"{n}": 1' for n in range(20_000)), "The object has more than 10,000 keys."),
    ],
    ids=lambda text: text[:20],
)
def test_what_is_no_config_is_refused(tmp_path: Path, text: str, said: str) -> None:
    start = time.process_time()
    refused(tmp_path, text, said)
    assert time.process_time() - start < 5


@pytest.mark.parametrize("name", ['"a{}"', '"a"', '"hidden_size{}"'])
def test_very_many_fields_are_refused_in_little_time(tmp_path: Path, name: str) -> None:
    start = time.process_time()
    more = ", ".join(f"{name.format(number)}: 1" for number in range(9_000))
    shown = refused(tmp_path, config()[:-2] + ", " + more + "}", "error: ")
    assert time.process_time() - start < 5
    assert shown.count("error: ") <= 21


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path, Path("/dev/null"), Path("a" * 5000)):
        result = CliRunner().invoke(app, ["import", str(path)])
        assert result.exit_code == 1
        assert str(path)[:200] in result.stderr


def test_a_truncated_config_is_refused_wherever_it_ends(tmp_path: Path) -> None:
    text = config()
    for end in range(0, len(text) - 1, 7):
        refused(tmp_path, text[:end])


def test_every_architecture_wants_its_sizes(tmp_path: Path) -> None:
    for name, (head, _) in READERS.items():
        shown = refused(tmp_path, json.dumps({"model_type": name, "architectures": [head]}))
        assert shown.count("is missing.") >= 4


def test_a_window_as_long_as_the_context_changes_nothing(tmp_path: Path) -> None:
    changes = {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "num_key_value_heads": 2}
    assert imported(tmp_path, config(**changes, sliding_window=None)).exit_code == 0
    assert imported(tmp_path, config(**changes, sliding_window=128)).exit_code == 0
    same = imported(tmp_path, config(**changes, sliding_window=128)).stdout
    assert imported(tmp_path, config(**changes, sliding_window=None)).stdout == same
    narrow = imported(tmp_path, config(**changes, sliding_window=127)).stdout
    assert "mask=causal(L, W, window=127, of=M)" in narrow and "append(keys, rk, L into W, of=M)" in narrow
    assert "phase prefill { B = 64, L = 128, M = 128, W = 128 }" in narrow
    assert "phase decode  { B = 64, L = 1, M = 128, W = 127, calls = 64 }" in narrow
    assert "W" not in re.findall(r"\b[A-Z]\b", same)
    wide = imported(tmp_path, config(**changes, max_position_embeddings=8192)).stdout
    assert "mask=causal(L, W, window=4096, of=M)" in wide and "append(keys, rk, L into W, of=M)" in wide
    assert "phase decode  { B = 64, L = 1, M = 2048, W = 2048, calls = 64 }" in wide
    longer = parse(wide, {"M": 8192}).phase("decode")
    assert dict(longer.sizes)["W"] == 4096, "of a longer context the window is kept"


def test_a_config_of_a_model_that_is_too_large_is_refused(tmp_path: Path) -> None:
    size, heads = 2**40, {"num_attention_heads": 1, "num_key_value_heads": 1}
    text = config(hidden_size=size, intermediate_size=size, head_dim=size, **heads)
    refused(tmp_path, text, "small.json` is too large. In phase `prefill`, `", "` has more than 2^60 elements.")


def test_layers_that_follow_each_other_in_no_pattern_may_be_too_many(tmp_path: Path) -> None:
    """Each kind of layer has its turn at random, so that little of them can be written as repeats."""
    kinds = random.Random(1).choices(["sliding_attention", "full_attention"], k=4096)
    fields = {"model_type": "olmo3", "architectures": None, "sliding_window": 8}
    text = config(**fields, num_hidden_layers=4096, layer_types=kinds)
    refused(tmp_path, text, "small.json` is too large. The program expands to more than 20,000 values.")
