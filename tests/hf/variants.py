"""Configs small enough to run, of every architecture that is imported: what is compared with transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Config = Mapping[str, Any]

SIZES: Config = {
    "hidden_size": 24,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "vocab_size": 23,
    "max_position_embeddings": 64,
}
LLAMA3: Config = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 20,
}
LINEAR: Config = {"rope_type": "linear", "factor": 2.5}
LLAMA: Config = SIZES | {"model_type": "llama", "num_key_value_heads": 2, "head_dim": 8}
MISTRAL: Config = SIZES | {"model_type": "mistral", "num_key_value_heads": 3, "sliding_window": None}
QWEN2: Config = SIZES | {"model_type": "qwen2", "num_key_value_heads": 2}
QWEN3: Config = SIZES | {"model_type": "qwen3", "num_key_value_heads": 2, "head_dim": 6}
GEMMA: Config = SIZES | {"model_type": "gemma", "num_key_value_heads": 1, "head_dim": 8}
NEOX: Config = SIZES | {"model_type": "gpt_neox", "num_attention_heads": 3, "hidden_act": "gelu_new"}
PHI: Config = SIZES | {"model_type": "phi", "num_attention_heads": 3}
GPT2: Config = {"model_type": "gpt2", "n_embd": 12, "n_head": 3, "n_layer": 2, "n_positions": 32, "vocab_size": 23}

# What a config says beside its sizes, from none of it to all of it; the first of each says as little as may be.
VARIANTS: Mapping[str, Config] = {
    "llama, least": SIZES | {"model_type": "llama"},
    "llama, grouped, wide heads": LLAMA | {"rms_norm_eps": 1e-2},
    "llama, one kv-head, tied": LLAMA | {"num_key_value_heads": 1, "tie_word_embeddings": True},
    "llama, biases": LLAMA | {"attention_bias": True, "mlp_bias": True},
    "llama, nulls": LLAMA | {"num_key_value_heads": None, "head_dim": None, "rope_scaling": None, "pad_token_id": None},
    "llama, llama3": LLAMA | {"head_dim": 16, "rope_theta": 50.0, "rope_scaling": LLAMA3},
    "llama, llama3 without its context": LLAMA
    | {"rope_theta": 500.0, "rope_scaling": {k: v for k, v in LLAMA3.items() if k[:8] != "original"}},
    "llama, linear": LLAMA | {"rope_scaling": {"type": "linear", "factor": 2}, "hidden_act": "relu"},
    "llama, newer rope": LLAMA | {"rope_parameters": {**LINEAR, "rope_theta": 99.5}, "rope_theta": 5.0},
    "llama, both ropes": LLAMA
    | {"rope_scaling": {**LINEAR, "rope_theta": 99.5}, "rope_parameters": {**LINEAR, "rope_theta": 99.5}},
    "llama, no experts": LLAMA | {"num_local_experts": 0, "num_experts_per_tok": 0, "pretraining_tp": 2},
    "mistral, least": SIZES
    | {"model_type": "mistral", "hidden_size": 32, "num_attention_heads": 8, "sliding_window": 64},
    "mistral, null head_dim": MISTRAL | {"head_dim": None},
    "mistral, grouped, tied": MISTRAL | {"tie_word_embeddings": True, "rope_theta": 1e6, "head_dim": 10},
    "mistral, rope scaled": MISTRAL | {"rope_parameters": LINEAR, "hidden_act": "gelu_pytorch_tanh"},
    "qwen2, least": SIZES | {"model_type": "qwen2", "hidden_size": 64, "num_attention_heads": 32},
    "qwen2, no kv-heads said": QWEN2 | {"num_key_value_heads": None},
    "qwen2, grouped, tied": QWEN2 | {"tie_word_embeddings": True, "use_sliding_window": False, "sliding_window": 3},
    "qwen2, window on no layer": QWEN2 | {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 2},
    "qwen2, layers named": QWEN2 | {"layer_types": ["full_attention"] * 2, "head_dim": 10, "use_mrope": False},
    "qwen2, no window": QWEN2 | {"use_sliding_window": True, "sliding_window": None, "max_window_layers": 0},
    "qwen3, least": SIZES | {"model_type": "qwen3", "num_attention_heads": 32},
    "qwen3, biases": QWEN3 | {"attention_bias": True, "rms_norm_eps": 1e-3},
    "qwen3, tied, one kv-head": QWEN3 | {"num_key_value_heads": 1, "tie_word_embeddings": True},
    "qwen3, rope scaled": QWEN3 | {"rope_scaling": LLAMA3, "num_key_value_heads": 6},
    "gemma, least": SIZES | {"model_type": "gemma", "num_attention_heads": 16, "hidden_size": 16},
    "gemma, as first published": GEMMA | {"hidden_act": "gelu"},
    "gemma, its own activation": GEMMA | {"hidden_act": "silu", "hidden_activation": "gelu_pytorch_tanh"},
    "gemma, the older activation": GEMMA | {"hidden_activation": "relu"},
    "gemma, biases, untied": GEMMA
    | {"attention_bias": True, "tie_word_embeddings": False, "num_key_value_heads": 3, "rope_theta": 77},
    "gpt2, least": GPT2,
    "gpt2, plain scores": GPT2
    | {"n_inner": 20, "scale_attn_weights": False, "layer_norm_epsilon": 0.1, "activation_function": "relu"},
    "gpt2, untied": GPT2 | {"tie_word_embeddings": False, "n_inner": None, "reorder_and_upcast_attn": True, "n_ctx": 7},
    "gpt_neox, least": NEOX,
    "gpt_neox, the exact gelu": NEOX | {"hidden_act": "gelu"},
    "gpt_neox, serial": NEOX | {"use_parallel_residual": False, "rotary_pct": 1.0, "hidden_act": "gelu_fast"},
    "gpt_neox, no biases, tied": NEOX | {"attention_bias": False, "tie_word_embeddings": True, "rotary_emb_base": 50},
    "gpt_neox, kv-heads": NEOX | {"num_key_value_heads": 1, "layer_norm_eps": 1e-2},
    "gpt_neox, head_dim": NEOX | {"head_dim": 16, "rotary_pct": 0.25},
    "gpt_neox, newer rope": NEOX
    | {"rope_parameters": {"rope_theta": 9.0, "partial_rotary_factor": 0.5, **LINEAR}, "rotary_pct": 1.0},
    "gpt_neox, as 4.57 saves": NEOX
    | {"rope_theta": 30, "rotary_emb_base": 30, "rotary_pct": 0.75, "partial_rotary_factor": 0.75, "is_decoder": False},
    "phi, least": {name: value for name, value in PHI.items() if name != "intermediate_size"},
    "phi, grouped": PHI | {"num_key_value_heads": 1, "partial_rotary_factor": 0.75, "head_dim": 16},
    "phi, tied": PHI | {"tie_word_embeddings": True, "hidden_act": "silu", "rope_theta": 50.0},
    "phi, rope scaled": PHI | {"rope_scaling": {**LINEAR, "partial_rotary_factor": 0.25}, "num_key_value_heads": None},
}
