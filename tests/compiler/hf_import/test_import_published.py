"""Configs as models were published with them, and folders of models."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from escc.compiler.commands.main import app
from escc.compiler.hf_import.architectures import BESIDE
from escc.compiler.plan.pipeline import load
from escc.compiler.report.hardware import parameter_count

GPT2: Mapping[str, Any] = {
    "activation_function": "gelu_new",
    "architectures": ["GPT2LMHeadModel"],
    "attn_pdrop": 0.1,
    "bos_token_id": 50256,
    "embd_pdrop": 0.1,
    "eos_token_id": 50256,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05,
    "model_type": "gpt2",
    "n_ctx": 1024,
    "n_positions": 1024,
    "resid_pdrop": 0.1,
    "summary_activation": None,
    "summary_first_dropout": 0.1,
    "summary_proj_to_labels": True,
    "summary_type": "cls_index",
    "summary_use_proj": True,
    "vocab_size": 50257,
}
FALCON: Mapping[str, Any] = {
    "alibi": False,
    "apply_residual_connection_post_layernorm": False,
    "architectures": ["FalconForCausalLM"],
    "attention_dropout": 0.0,
    "bias": False,
    "bos_token_id": 11,
    "eos_token_id": 11,
    "hidden_dropout": 0.0,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05,
    "model_type": "falcon",
    "multi_query": True,
    "parallel_attn": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 65024,
}
PUBLISHED: Mapping[str, tuple[Mapping[str, Any], int]] = {  # with how many parameters, a tied table counted once
    "SmolLM2-135M": (
        {
            "architectures": ["LlamaForCausalLM"],
            "attention_bias": False,
            "attention_dropout": 0.0,
            "bos_token_id": 0,
            "eos_token_id": 0,
            "hidden_act": "silu",
            "hidden_size": 576,
            "initializer_range": 0.041666666666666664,
            "intermediate_size": 1536,
            "is_llama_config": True,
            "max_position_embeddings": 8192,
            "model_type": "llama",
            "num_attention_heads": 9,
            "num_hidden_layers": 30,
            "num_key_value_heads": 3,
            "pretraining_tp": 1,
            "rms_norm_eps": 1e-05,
            "rope_interleaved": False,
            "rope_scaling": None,
            "rope_theta": 100000,
            "tie_word_embeddings": True,
            "torch_dtype": "bfloat16",
            "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16", "fp16": "float16"}},
            "transformers_version": "4.40.1",
            "use_cache": True,
            "vocab_size": 49152,
        },
        134_515_008,
    ),
    "falcon-7b": (
        {**FALCON, "hidden_size": 4544, "num_attention_heads": 71, "num_hidden_layers": 32},
        6_921_720_704,
    ),
    "falcon-40b": (
        {
            **FALCON,
            "hidden_size": 8192,
            "new_decoder_architecture": True,
            "num_attention_heads": 128,
            "num_hidden_layers": 60,
            "num_kv_heads": 8,
        },
        41_303_293_952,
    ),
    "distilgpt2": (
        {
            **GPT2,
            "_num_labels": 1,
            "id2label": {"0": "LABEL_0"},
            "label2id": {"LABEL_0": 0},
            "n_embd": 768,
            "n_head": 12,
            "n_layer": 6,
            "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
        },
        81_912_576,
    ),
    "gpt2-medium": (
        {**GPT2, "n_embd": 1024, "n_head": 16, "n_layer": 24, "n_special": 0, "predict_special_tokens": True},
        354_823_168,
    ),
    "gpt2-xl": ({**GPT2, "n_embd": 1600, "n_head": 25, "n_layer": 48, "output_past": True}, 1_557_611_200),
    "gpt-neox-20b": (
        {
            "architectures": ["GPTNeoXForCausalLM"],
            "attention_probs_dropout_prob": 0,
            "bos_token_id": 0,
            "eos_token_id": 0,
            "hidden_act": "gelu_fast",
            "hidden_dropout_prob": 0,
            "hidden_size": 6144,
            "initializer_range": 0.02,
            "intermediate_size": 24576,
            "layer_norm_eps": 1e-05,
            "max_position_embeddings": 2048,
            "model_type": "gpt_neox",
            "num_attention_heads": 64,
            "num_hidden_layers": 44,
            "rotary_emb_base": 10000,
            "rotary_pct": 0.25,
            "tie_word_embeddings": False,
            "torch_dtype": "float16",
            "transformers_version": "4.19.0.dev0",
            "use_cache": True,
            "vocab_size": 50432,
        },
        20_554_567_680,
    ),
    "Qwen2.5-0.5B": (
        {
            "architectures": ["Qwen2ForCausalLM"],
            "attention_dropout": 0.0,
            "bos_token_id": 151643,
            "eos_token_id": 151643,
            "hidden_act": "silu",
            "hidden_size": 896,
            "initializer_range": 0.02,
            "intermediate_size": 4864,
            "max_position_embeddings": 32768,
            "max_window_layers": 24,
            "model_type": "qwen2",
            "num_attention_heads": 14,
            "num_hidden_layers": 24,
            "num_key_value_heads": 2,
            "rms_norm_eps": 1e-06,
            "rope_theta": 1000000.0,
            "sliding_window": 32768,
            "tie_word_embeddings": True,
            "torch_dtype": "bfloat16",
            "transformers_version": "4.40.1",
            "use_cache": True,
            "use_mrope": False,
            "use_sliding_window": False,
            "vocab_size": 151936,
        },
        494_032_768,
    ),
    "phi-2": (
        {
            "architectures": ["PhiForCausalLM"],
            "attention_dropout": 0.0,
            "bos_token_id": 50256,
            "embd_pdrop": 0.0,
            "eos_token_id": 50256,
            "hidden_act": "gelu_new",
            "hidden_size": 2560,
            "initializer_range": 0.02,
            "intermediate_size": 10240,
            "layer_norm_eps": 1e-05,
            "max_position_embeddings": 2048,
            "model_type": "phi",
            "num_attention_heads": 32,
            "num_hidden_layers": 32,
            "num_key_value_heads": 32,
            "partial_rotary_factor": 0.4,
            "qk_layernorm": False,
            "resid_pdrop": 0.1,
            "rope_scaling": None,
            "rope_theta": 10000.0,
            "tie_word_embeddings": False,
            "torch_dtype": "float16",
            "transformers_version": "4.37.0",
            "use_cache": True,
            "vocab_size": 51200,
        },
        2_779_683_840,
    ),
    "gemma-2b": (
        {
            "architectures": ["GemmaForCausalLM"],
            "attention_bias": False,
            "attention_dropout": 0.0,
            "bos_token_id": 2,
            "eos_token_id": 1,
            "head_dim": 256,
            "hidden_act": "gelu",
            "hidden_activation": None,
            "hidden_size": 2048,
            "initializer_range": 0.02,
            "intermediate_size": 16384,
            "max_position_embeddings": 8192,
            "model_type": "gemma",
            "num_attention_heads": 8,
            "num_hidden_layers": 18,
            "num_key_value_heads": 1,
            "pad_token_id": 0,
            "rms_norm_eps": 1e-06,
            "rope_scaling": None,
            "rope_theta": 10000.0,
            "torch_dtype": "bfloat16",
            "transformers_version": "4.38.0.dev0",
            "use_cache": True,
            "vocab_size": 256000,
        },
        2_506_172_416,
    ),
    "gemma-2-27b": (
        {
            "architectures": ["Gemma2ForCausalLM"],
            "attention_bias": False,
            "attention_dropout": 0.0,
            "attn_logit_softcapping": 50.0,
            "bos_token_id": 2,
            "cache_implementation": "hybrid",
            "eos_token_id": 1,
            "final_logit_softcapping": 30.0,
            "head_dim": 128,
            "hidden_act": "gelu_pytorch_tanh",
            "hidden_activation": "gelu_pytorch_tanh",
            "hidden_size": 4608,
            "initializer_range": 0.02,
            "intermediate_size": 36864,
            "max_position_embeddings": 8192,
            "model_type": "gemma2",
            "num_attention_heads": 32,
            "num_hidden_layers": 46,
            "num_key_value_heads": 16,
            "pad_token_id": 0,
            "query_pre_attn_scalar": 144,
            "rms_norm_eps": 1e-06,
            "rope_theta": 10000.0,
            "sliding_window": 4096,
            "sliding_window_size": 4096,
            "torch_dtype": "float32",
            "use_cache": True,
            "vocab_size": 256000,
        },
        27_227_128_320,
    ),
    "OLMoE-1B-7B-0924": (
        {
            "architectures": ["OlmoeForCausalLM"],
            "attention_bias": False,
            "attention_dropout": 0.0,
            "clip_qkv": None,
            "eos_token_id": 50279,
            "hidden_act": "silu",
            "hidden_size": 2048,
            "initializer_range": 0.02,
            "intermediate_size": 1024,
            "max_position_embeddings": 4096,
            "model_type": "olmoe",
            "norm_topk_prob": False,
            "num_attention_heads": 16,
            "num_experts": 64,
            "num_experts_per_tok": 8,
            "num_hidden_layers": 16,
            "num_key_value_heads": 16,
            "output_router_logits": False,
            "pad_token_id": 1,
            "rms_norm_eps": 1e-05,
            "rope_scaling": None,
            "rope_theta": 10000.0,
            "router_aux_loss_coef": 0.01,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
            "use_cache": True,
            "vocab_size": 50304,
        },
        6_919_161_856,
    ),
    "gpt-j-6b": (
        {
            "activation_function": "gelu_new",
            "architectures": ["GPTJForCausalLM"],
            "attn_pdrop": 0.0,
            "bos_token_id": 50256,
            "embd_pdrop": 0.0,
            "eos_token_id": 50256,
            "gradient_checkpointing": False,
            "initializer_range": 0.02,
            "layer_norm_epsilon": 1e-05,
            "model_type": "gptj",
            "n_embd": 4096,
            "n_head": 16,
            "n_inner": None,
            "n_layer": 28,
            "n_positions": 2048,
            "resid_pdrop": 0.0,
            "rotary": True,
            "rotary_dim": 64,
            "scale_attn_weights": True,
            "summary_type": "cls_index",
            "summary_use_proj": True,
            "tie_word_embeddings": False,
            "tokenizer_class": "GPT2Tokenizer",
            "use_cache": True,
            "vocab_size": 50400,
        },
        6_050_882_784,
    ),
    "opt-6.7b": (
        {
            "_remove_final_layer_norm": False,
            "activation_dropout": 0.0,
            "activation_function": "relu",
            "architectures": ["OPTForCausalLM"],
            "attention_dropout": 0.0,
            "bos_token_id": 2,
            "do_layer_norm_before": True,
            "dropout": 0.1,
            "eos_token_id": 2,
            "ffn_dim": 16384,
            "hidden_size": 4096,
            "init_std": 0.02,
            "layerdrop": 0.0,
            "max_position_embeddings": 2048,
            "model_type": "opt",
            "num_attention_heads": 32,
            "num_hidden_layers": 32,
            "pad_token_id": 1,
            "prefix": "</s>",
            "torch_dtype": "float16",
            "use_cache": True,
            "vocab_size": 50272,
            "word_embed_proj_dim": 4096,
        },
        6_658_473_984 - 2 * 4096,  # without the first places, which no token has
    ),
    "stablelm-2-12b": (
        {
            "architectures": ["StableLmForCausalLM"],
            "attention_dropout": 0.0,
            "bos_token_id": 100257,
            "eos_token_id": 100257,
            "hidden_act": "silu",
            "hidden_dropout": 0.0,
            "hidden_size": 5120,
            "initializer_range": 0.02,
            "intermediate_size": 13824,
            "layer_norm_eps": 1e-05,
            "max_position_embeddings": 4096,
            "model_type": "stablelm",
            "num_attention_heads": 32,
            "num_hidden_layers": 40,
            "num_key_value_heads": 8,
            "partial_rotary_factor": 0.25,
            "qk_layernorm": True,
            "rope_theta": 10000,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
            "use_cache": True,
            "use_parallel_residual": True,
            "use_qkv_bias": False,
            "vocab_size": 100352,
        },
        12_143_185_920,
    ),
}


def imported(path: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["import", str(path), *arguments])


def folder(tmp_path: Path, name: str = "Qwen2.5-0.5B") -> Path:
    """A model's folder, as it is downloaded."""
    made = tmp_path / name
    made.mkdir()
    (made / "config.json").write_text(json.dumps(PUBLISHED[name][0], indent=2))
    (made / "generation_config.json").write_text("{}")
    return made


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config_gives_a_model_of_its_size(name: str, tmp_path: Path) -> None:
    result = imported(folder(tmp_path, name), "-o", str(tmp_path / "model.esti"))
    assert result.exit_code == 0, result.output
    assert parameter_count(load(tmp_path / "model.esti")) == PUBLISHED[name][1]


def test_a_folder_is_its_config(tmp_path: Path) -> None:
    made = folder(tmp_path)
    result = imported(made)
    assert 'model "Qwen2.5-0.5B"' in result.stdout
    assert imported(made / "config.json").stdout == result.stdout


@pytest.mark.parametrize("name", BESIDE)
def test_a_quantisation_beside_the_config_is_seen(name: str, tmp_path: Path) -> None:
    made = folder(tmp_path)
    (made / name).write_text('{"bits": 4}')
    (made / "elsewhere.json").write_text((made / "config.json").read_text())
    for path in (made, made / "config.json"):
        result = imported(path, "-o", str(tmp_path / "model.esti"))
        assert result.exit_code == 1 and not (tmp_path / "model.esti").exists()
        assert f"`{made / name}` says that the weights are {BESIDE[name]}" in result.stderr
    assert imported(made / "elsewhere.json").exit_code == 0


def test_a_folder_without_a_config(tmp_path: Path) -> None:
    result = imported(tmp_path)
    assert result.exit_code == 1
    assert f"The folder `{tmp_path}` has no `config.json`." in result.stderr


def test_a_config_may_name_very_many_labels(tmp_path: Path) -> None:
    labels = {str(number): f"LABEL_{number}" for number in range(550_000)}
    text = json.dumps({**PUBLISHED["distilgpt2"][0], "id2label": labels})
    assert 13e6 < len(text) < 16e6
    (tmp_path / "large.json").write_text(text)
    assert imported(tmp_path / "large.json").exit_code == 0
