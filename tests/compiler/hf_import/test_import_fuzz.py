"""Broken configs by the hundred: each gives a model or a diagnostic, and nothing else."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
from hf.variants import VARIANTS
from typer.testing import CliRunner

from escc.compiler.commands.main import app
from escc.compiler.hf_import.architectures import read_config
from escc.compiler.hf_import.json_text import read_json
from escc.compiler.hf_import.readers import READERS
from escc.compiler.hf_import.write import model_text
from escc.ir.diagnostics import InputError, Source
from escc.ir.text.read import parse
from escc.passes.expansion.expand import expand

ROPES: tuple[Any, ...] = (
    {},
    {"rope_type": "linear", "factor": 2},
    {"type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4},
    {"rope_type": "llama3", "factor": 1e300, "low_freq_factor": 4, "high_freq_factor": 4},
    {"rope_type": "default", "rope_theta": 1e-300, "partial_rotary_factor": 1e12},
    {"rope_type": ["linear"], "factor": {}},
    {"rope_type": "yarn"},
)
ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, 2, 3, 7, 64, -1, 10**18, 10**60, 10**80, 0.5, 1.0, -0.0, 1e300, 5e-324),
    *(float("inf"), float("nan"), "", "gelu", "silu", "64", "\x00", "a\x1b[2J\u202e", "\ud800", "x" * 3000, '"\n#}{'),
    *([], {}, [1, [2, [3]]], ["full_attention"] * 2, [None], {"a": {"b": None}}, {"bits": 4}, [[]] * 40),
    *ROPES,
)
SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
NAMES = (
    *SIZES,
    *("n_embd", "n_head", "n_layer", "n_inner", "n_positions", "num_key_value_heads", "head_dim", "layer_types"),
    *("rope_theta", "rope_scaling", "rope_parameters", "rotary_pct", "rotary_emb_base", "partial_rotary_factor"),
    *("hidden_act", "activation_function", "tie_word_embeddings", "attention_bias", "torch_dtype", "dtype"),
    *("sliding_window", "use_sliding_window", "max_window_layers", "max_position_embeddings", "rms_norm_eps"),
    *("layer_norm_eps", "architectures", "num_local_experts", "num_experts_per_tok", "quantization_config"),
    *("use_parallel_residual", "is_causal", "pruned_heads", "id2label", "model_type", "a\x1b", "\u202e", "\ud800", ""),
)


def mutilated(rng: random.Random) -> bytes:
    """A config in which some fields are odd, and perhaps some bytes."""
    kind = rng.choice(list(READERS))
    sizes = {"n_embd": 64, "n_head": 4, "n_layer": 2} if kind == "gpt2" else dict.fromkeys(SIZES, 64)
    fields: dict[str, Any] = {"model_type": kind, **sizes, "vocab_size": 9}
    if kind != "gpt2":
        fields |= {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_act": "gelu_new"}
    if kind == "mistral":
        fields["sliding_window"] = None
    for name in rng.sample(NAMES, rng.randrange(2)):
        fields[name] = rng.choice(ODD)
    if rng.random() < 0.3:
        fields.pop(rng.choice(list(fields)))
    text = json.dumps(fields, indent=rng.choice((None, 1)), ensure_ascii=rng.random() < 0.9)
    data = bytearray(text.encode(errors="surrogatepass"))
    for _ in range(rng.choice((0, 0, 0, 1, 3))):
        at = rng.randrange(len(data))
        data[at : at + rng.randrange(3)] = rng.choice(
            (b"", b'"', b"{", b"]", b",", b"\\", b"0", b"\xff", b"\n", b"[" * 99)
        )
    return bytes(data)


@pytest.mark.parametrize("seed", range(2))
def test_a_mutilated_config_gives_a_model_or_a_diagnostic(seed: int, tmp_path: Path) -> None:
    rng, codes = random.Random(seed), [0, 0]
    config, output = tmp_path / "config.json", tmp_path / "model.esti"
    for _ in range(100):
        data = mutilated(rng)
        config.write_bytes(data)
        start = time.process_time()
        result = CliRunner().invoke(app, ["import", str(config), "-o", str(output)])
        assert time.process_time() - start < 5, data
        assert result.exit_code in (0, 1), (data, result.output)
        assert result.exception is None or isinstance(result.exception, SystemExit), data
        assert output.exists() == (result.exit_code == 0), data
        assert result.exit_code == 0 or "error: " in result.stderr, data
        result.output.encode()  # whatever names the config has, a terminal can show them
        codes[result.exit_code] += 1
        output.unlink(missing_ok=True)
    assert min(codes) > 9
    assert list(tmp_path.iterdir()) == [config]


def odd(rng: random.Random) -> dict[str, Any]:
    """A config of a small model, of which some fields, or those of objects in it, are odd or missing."""
    config: dict[str, Any] = json.loads(json.dumps(rng.choice(sorted(VARIANTS.items()))[1]))
    objects = [config, *(part for part in config.values() if isinstance(part, dict) and part)]
    for _ in range(rng.choice((1, 1, 2, 4))):
        part = rng.choice(objects)
        name = rng.choice(sorted(part) or [""])
        if rng.random() < 0.2:
            part.pop(name, None)
        else:
            part[name] = rng.choice(ODD)
    return config


def test_a_config_with_odd_fields_gives_a_model_that_is_right_or_a_diagnostic(fuzz: int) -> None:
    rng, found = random.Random(9), [0, 0]
    for _ in range(max(fuzz, 300)):
        config = odd(rng)
        try:
            text = model_text(read_config(read_json(Source("config.json", json.dumps(config)))), "m")
        except InputError:
            found[0] += 1
            continue
        source = Source("m.esti", text)
        assert expand(parse(source), source, {}), config
        found[1] += 1
    assert min(found) > 30
