"""Layers in patterns: what is written runs each layer once, in order, and its weights are those of that layer."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from escc.compiler.hf_import.architectures import read_config
from escc.compiler.hf_import.checkpoint_names import style_of
from escc.compiler.hf_import.description import Attention, FeedForward, Layer, Transformer, runs_of
from escc.compiler.hf_import.json_text import read_json
from escc.compiler.hf_import.weight_map import parameters, tensors_of
from escc.compiler.hf_import.weights import weight_map
from escc.compiler.hf_import.write import Model, model_text
from escc.ir.diagnostics import Source
from escc.ir.dtype import Dtype
from escc.ir.program import Program, Repeat, walk
from escc.ir.text.read import parse
from escc.passes.expansion.expand import expand

SIZES = {
    "hidden_size": 24,
    "intermediate_size": 20,
    "num_hidden_layers": 8,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 23,
    "max_position_embeddings": 64,
}
DEEPSEEK = {
    "model_type": "deepseek_v3",
    "q_lora_rank": 10,
    "kv_lora_rank": 8,
    "n_routed_experts": 8,
    "n_group": 4,
    "topk_group": 2,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 10,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "gemma3": {"model_type": "gemma3_text", "head_dim": 8, "sliding_window": 5, "num_hidden_layers": 20},
    "gpt_oss": {"model_type": "gpt_oss", "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2},
    "llama4": {"model_type": "llama4_text", "head_dim": 8, "interleave_moe_layer_step": 2, "num_local_experts": 4},
    "deepseek": DEEPSEEK,
    "stablelm": {"model_type": "stablelm", "qk_layernorm": True, "partial_rotary_factor": 0.5},
    "qwen3_moe": {"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "mlp_only_layers": [1, 4]},
}


def described(name: str) -> Transformer:
    return read_config(read_json(Source("config.json", json.dumps(SIZES | CONFIGS[name]))))


def program_of(model: Transformer) -> Program:
    source = Source("small.esti", model_text(model, "small"))
    return expand(parse(source), source)


def windowed(kinds: list[int]) -> list[Layer]:
    attention = Attention(4, 4, 8)
    return [Layer(replace(attention, window=kind or None), FeedForward(16, "silu")) for kind in kinds]


@given(st.lists(st.integers(0, 2), min_size=1, max_size=30))
@settings(max_examples=200, deadline=None)
def test_runs_are_the_layers_in_order(kinds: list[int]) -> None:
    layers = windowed(kinds)
    assert [kind for run in runs_of(layers) for _ in range(run.times) for kind in run.kinds] == layers


@given(st.lists(st.integers(0, 2), min_size=1, max_size=16))
@settings(max_examples=60, deadline=None)
def test_each_layer_stands_for_its_own(kinds: list[int]) -> None:
    layers = windowed(kinds)
    model = replace(described("deepseek"), layers=tuple(layers))
    found: dict[int, Layer] = {}
    counts = {name: p.counts for name, p in parameters(program_of(model)).items()}
    for placed in Model(model).placed():
        for at in itertools.product(*map(range, counts[f"{placed.prefix}Wo"])):
            index = placed.first + sum(n * stride for n, stride in zip(at, placed.strides, strict=True))
            assert index not in found
            found[index] = placed.kind
    assert [found[index] for index in range(len(layers))] == layers


@pytest.mark.parametrize("name", CONFIGS)
def test_every_tensor_of_every_layer_is_taken_once(name: str) -> None:
    model = described(name)
    program, made = program_of(model), weight_map(model, style_of(model))
    wanted = parameters(program)
    assert set(made) == set(wanted)
    used = [tensor for parameter, one in made.items() for tensor in tensors_of(one, wanted[parameter])]
    for layer in range(len(model.layers)):
        prefix = f"model.layers.{layer}."
        assert used.count(f"{prefix}input_layernorm.weight") == 1
        assert any(tensor.startswith(prefix) and "o_proj" in tensor for tensor in used)


@pytest.mark.parametrize(("name", "count"), [("deepseek", 8), ("qwen3_moe", 4)])
def test_every_expert_has_its_own_tensors(name: str, count: int) -> None:
    model = described(name)
    wanted, made = parameters(program_of(model)), weight_map(model, style_of(model))
    found = [t for p, one in made.items() if re.search(r"experts(:\d+)?\.Wd$", p) for t in tensors_of(one, wanted[p])]
    sparse = [at for at, layer in enumerate(model.layers) if not isinstance(layer.forward, FeedForward)]
    named = (f"model.layers.{at}.mlp.experts.{n}.down_proj.weight" for at in sparse for n in range(count))
    assert sorted(found) == sorted(named)


def test_every_head_has_its_own_norm() -> None:
    model = described("stablelm")
    wanted, made = parameters(program_of(model)), weight_map(model, style_of(model))
    for letter, count in (("q", 6), ("k", 2)):
        found = tensors_of(made[f"layer.scale_{letter}r"], wanted[f"layer.scale_{letter}r"])
        module = f"self_attn.{letter}_layernorm.norms"
        named = (f"model.layers.{at}.{module}.{n}.weight" for at in range(8) for n in range(count))
        assert sorted(found) == sorted(named)


def test_patterns_repeat() -> None:
    body = program_of(described("gemma3")).body
    repeats = [placed.item.count for placed in walk(body) if isinstance(placed.item, Repeat)]
    assert repeats == [3, 5, 2]  # three times five with a window and one without, and two with a window behind


def test_queries_that_grow_stay_in_the_type_of_the_model() -> None:
    config = json.dumps(SIZES | CONFIGS["llama4"] | {"torch_dtype": "bfloat16"})
    model = read_config(read_json(Source("config.json", config)))
    assert "hq: bf16 = q * heat" in model_text(model, "small")
    made = program_of(model).values
    assert {value.dtype for value in made if value.name.endswith((".s", ".o", ".y"))} == {Dtype.BF16}


def test_caches_of_chunks_wrap_as_those_of_windows_do() -> None:
    chunked = json.dumps(SIZES | CONFIGS["llama4"] | {"attention_chunk_size": 5})
    text = model_text(read_config(read_json(Source("config.json", chunked))), "small")
    assert "mask=causal(L, W, chunk=5, of=M)" in text and "append(keys, rk, L into W, of=M)" in text
    assert "append(keys, k, L into M)" in text  # every fourth layer sees all
    assert "phase decode  { B = 64, L = 1, M = 64, W = 5" in text
    assert ", of=M" not in model_text(described("llama4"), "small")  # 8,192 places are more than there are
