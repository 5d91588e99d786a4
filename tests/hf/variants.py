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
FALCON: Config = {k: v for k, v in SIZES.items() if k != "intermediate_size"} | {"model_type": "falcon"}
FALCON_40B: Config = FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2, "ffn_hidden_size": 20}
PHI: Config = SIZES | {"model_type": "phi", "num_attention_heads": 3}
GPT2: Config = {"model_type": "gpt2", "n_embd": 12, "n_head": 3, "n_layer": 2, "n_positions": 32, "vocab_size": 23}
GPTJ: Config = GPT2 | {"model_type": "gptj", "n_embd": 24, "rotary_dim": 4}
OPT: Config = {k: v for k, v in SIZES.items() if k != "intermediate_size"} | {"model_type": "opt", "ffn_dim": 20}
STABLELM: Config = SIZES | {"model_type": "stablelm", "hidden_size": 48, "num_key_value_heads": 2}
PERSIMMON: Config = SIZES | {"model_type": "persimmon"}
NEMOTRON: Config = SIZES | {"model_type": "nemotron", "num_key_value_heads": 2, "head_dim": 8}
ARCEE: Config = SIZES | {"model_type": "arcee", "num_key_value_heads": 2, "head_dim": 8}

MOE: Config = SIZES | {"num_key_value_heads": 2, "num_experts_per_tok": 2}
MIXTRAL: Config = MOE | {"model_type": "mixtral", "num_local_experts": 4}
GRANITE_MOE: Config = MOE | {"model_type": "granitemoe", "num_local_experts": 5}
PHIMOE: Config = MOE | {"model_type": "phimoe", "num_local_experts": 5}
QWEN3_MOE: Config = MOE | {"model_type": "qwen3_moe", "head_dim": 6, "num_experts": 5, "moe_intermediate_size": 10}
QWEN2_MOE: Config = MOE | {
    "model_type": "qwen2_moe",
    "num_experts": 5,
    "moe_intermediate_size": 10,
    "shared_expert_intermediate_size": 14,
}
GLM4_MOE: Config = MOE | {
    "model_type": "glm4_moe",
    "head_dim": 8,
    "n_routed_experts": 6,
    "moe_intermediate_size": 10,
    "num_hidden_layers": 3,
}
MINIMAX: Config = MOE | {"model_type": "minimax_m2", "head_dim": 8, "num_local_experts": 6, "rotary_dim": 4}
DEEPSEEK: Config = SIZES | {
    "model_type": "deepseek_v3",
    "num_key_value_heads": 6,
    "num_hidden_layers": 3,
    "first_k_dense_replace": 1,
    "q_lora_rank": 10,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 5,
    "n_routed_experts": 8,
    "n_group": 4,
    "topk_group": 2,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 10,
}
DEEPSEEK_V2: Config = DEEPSEEK | {"model_type": "deepseek_v2", "n_group": None, "topk_group": None}
YARN: Config = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}
DEEPSEEK_V32: Config = DEEPSEEK | {
    "model_type": "deepseek_v32",
    "index_topk": 4,
    "index_n_heads": 16,  # of few heads all may score 0, and which of equal ones come first is not said
    "index_head_dim": 10,
}
GLM_DSA: Config = DEEPSEEK_V32 | {"model_type": "glm_moe_dsa", "n_group": 1, "topk_group": 1}
GEMMA2: Config = SIZES | {"model_type": "gemma2", "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 5}
GEMMA3: Config = GEMMA2 | {"model_type": "gemma3_text", "num_hidden_layers": 7}
GPT_OSS: Config = MOE | {"model_type": "gpt_oss", "head_dim": 8, "num_local_experts": 5, "sliding_window": 5}
MINISTRAL: Config = SIZES | {"model_type": "ministral", "num_key_value_heads": 2, "head_dim": 4, "sliding_window": 5}
MINISTRAL3: Config = SIZES | {
    "model_type": "ministral3",
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 16.0,
        "original_max_position_embeddings": 4,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.3,
    },
}
PHI3: Config = SIZES | {"model_type": "phi3", "pad_token_id": 0}
OLMO2: Config = SIZES | {"model_type": "olmo2"}
OLMO3: Config = SIZES | {"model_type": "olmo3", "sliding_window": 5, "num_hidden_layers": 5}
GRANITE: Config = SIZES | {"model_type": "granite", "num_key_value_heads": 2}
SMOLLM3: Config = SIZES | {"model_type": "smollm3", "num_key_value_heads": 2, "num_hidden_layers": 5, "pad_token_id": 0}
STARCODER2: Config = SIZES | {"model_type": "starcoder2"}
COHERE: Config = SIZES | {"model_type": "cohere"}
EXAONE4: Config = SIZES | {"model_type": "exaone4", "num_key_value_heads": 2, "sliding_window": 5}
SEED_OSS: Config = SIZES | {"model_type": "seed_oss", "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0}
GLM_LITE: Config = {k: v for k, v in DEEPSEEK.items() if k not in ("first_k_dense_replace", "topk_method")} | {
    "model_type": "glm4_moe_lite"
}
SOLAR: Config = {k: v for k, v in GLM4_MOE.items() if k != "intermediate_size"} | {"model_type": "solar_open"}
FLEX_OLMO: Config = MOE | {"model_type": "flex_olmo", "num_experts": 5, "pad_token_id": 0}
HELIUM: Config = SIZES | {"model_type": "helium", "num_key_value_heads": 2, "head_dim": 4, "pad_token_id": 0}
ERNIE: Config = SIZES | {"model_type": "ernie4_5", "num_key_value_heads": 2, "head_dim": 8}
GLM: Config = SIZES | {"model_type": "glm", "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0}
OLMOE: Config = MOE | {"model_type": "olmoe", "num_experts": 5, "pad_token_id": 0}
DOTS1: Config = GLM4_MOE | {"model_type": "dots1", "n_shared_experts": 2, "max_window_layers": 3}
ERNIE_MOE: Config = {k: v for k, v in MOE.items() if k != "num_experts_per_tok"} | {
    "model_type": "ernie4_5_moe",
    "num_hidden_layers": 3,
    "moe_num_experts": 5,
    "moe_k": 2,
    "moe_intermediate_size": 10,
}
GEMMA4: Config = GEMMA2 | {"model_type": "gemma4_text", "global_head_dim": 8, "hidden_size_per_layer_input": 0}
LLAMA4: Config = MOE | {
    "model_type": "llama4_text",
    "head_dim": 8,
    "num_local_experts": 4,
    "num_hidden_layers": 4,
    "intermediate_size_mlp": 14,
    "attention_chunk_size": 5,
    "num_experts_per_tok": 1,
}
BLOOM: Config = {
    "model_type": "bloom",
    "vocab_size": 29,
    "hidden_size": 24,
    "n_layer": 2,
    "n_head": 6,
    "seq_length": 64,
}
MPT: Config = {"model_type": "mpt", "vocab_size": 29, "d_model": 24, "n_layers": 2, "n_heads": 6, "max_seq_len": 64}
BIGCODE: Config = {k: v for k, v in GPT2.items() if k != "model_type"} | {"model_type": "gpt_bigcode"}
GPT_NEO: Config = {
    "model_type": "gpt_neo",
    "vocab_size": 29,
    "hidden_size": 24,
    "num_layers": 2,
    "num_heads": 6,
    "max_position_embeddings": 64,
    "attention_types": [[["global", "local"], 1]],
    "attention_layers": ["global", "local"],
    "window_size": 5,
}
VAULT_GEMMA: Config = GEMMA2 | {"model_type": "vaultgemma"}
APERTUS: Config = SIZES | {"model_type": "apertus", "num_key_value_heads": 2}
HUNYUAN: Config = SIZES | {"model_type": "hunyuan_v1_dense", "num_key_value_heads": 2, "head_dim": 8}
ALPHA: Config = {"type": "dynamic", "factor": 1.0, "alpha": 100.0}
HUNYUAN_MOE: Config = {k: v for k, v in MOE.items() if k != "num_experts_per_tok"} | {
    "model_type": "hunyuan_v1_moe",
    "num_experts": 5,
    "moe_topk": 2,
    "head_dim": 8,
}
OLMO: Config = SIZES | {"model_type": "olmo"}
AFMOE: Config = MOE | {
    "model_type": "afmoe",
    "head_dim": 8,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 10,
    "num_hidden_layers": 4,
    "sliding_window": 5,
}
EXAONE_MOE: Config = MOE | {
    "model_type": "exaone_moe",
    "num_experts": 6,
    "moe_intermediate_size": 10,
    "num_hidden_layers": 4,
    "sliding_window": 5,
}
MIMO_V2: Config = MOE | {
    "model_type": "mimo_v2_flash",
    "num_key_value_heads": 1,
    "head_dim": 12,
    "v_head_dim": 6,
    "n_routed_experts": 6,
    "moe_intermediate_size": 10,
    "num_hidden_layers": 7,
    "sliding_window": 5,
}
GRANITE_SHARED: Config = MOE | {
    "model_type": "granitemoeshared",
    "num_local_experts": 5,
    "shared_intermediate_size": 14,
}
GRANITE_HYBRID: Config = GRANITE_SHARED | {
    "model_type": "granitemoehybrid",
    "num_local_experts": 0,
    "num_experts_per_tok": 0,
    "layer_types": ["attention"] * 2,
    "position_embedding_type": "rope",
    "mamba_n_heads": 6,
    "mamba_d_head": 8,
}
DBRX: Config = {
    "model_type": "dbrx",
    "vocab_size": 29,
    "d_model": 24,
    "n_layers": 2,
    "n_heads": 6,
    "max_seq_len": 64,
    "attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8},
    "ffn_config": {"ffn_hidden_size": 14, "moe_num_experts": 5, "moe_top_k": 2},
}
INTERNLM3: Config = SIZES | {"model_type": "internlm3", "num_key_value_heads": 2, "head_dim": 8}
MINICPM3: Config = SIZES | {
    "model_type": "minicpm3",
    "num_key_value_heads": 6,
    "q_lora_rank": 10,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "dim_model_base": 12,
}

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
    "falcon, least": FALCON,
    "falcon, serial, untied": FALCON | {"parallel_attn": False, "tie_word_embeddings": False, "rope_theta": 500.0},
    "falcon, as many kv-heads, biases": FALCON | {"multi_query": False, "bias": True, "activation": "relu"},
    "falcon, groups, two norms": FALCON_40B,
    "falcon, groups, biases": FALCON_40B | {"bias": True, "num_kv_heads": 3, "layer_norm_epsilon": 1e-2},
    "falcon, groups, one norm": FALCON_40B | {"num_ln_in_parallel_attn": 1, "num_kv_heads": 1},
    "gpt_neox, as 4.57 saves": NEOX
    | {"rope_theta": 30, "rotary_emb_base": 30, "rotary_pct": 0.75, "partial_rotary_factor": 0.75, "is_decoder": False},
    "phi, least": {name: value for name, value in PHI.items() if name != "intermediate_size"},
    "phi, grouped": PHI | {"num_key_value_heads": 1, "partial_rotary_factor": 0.75, "head_dim": 16},
    "phi, tied": PHI | {"tie_word_embeddings": True, "hidden_act": "silu", "rope_theta": 50.0},
    "phi, rope scaled": PHI | {"rope_scaling": {**LINEAR, "partial_rotary_factor": 0.25}, "num_key_value_heads": None},
    "phi, norms": PHI | {"qk_layernorm": True, "num_key_value_heads": 1},
    "phi, norms of whole heads": PHI | {"qk_layernorm": True, "partial_rotary_factor": 1.0},
    "gptj, least": GPTJ,
    "gptj, all of a head, tied": GPTJ | {"rotary_dim": 8, "tie_word_embeddings": True, "n_inner": 20},
    "gptj, published fields": GPTJ
    | {"activation_function": "gelu", "layer_norm_epsilon": 1e-2, "scale_attn_weights": True, "tokenizer_class": "G"},
    "opt, least": OPT,
    "opt, untied": OPT | {"tie_word_embeddings": False, "activation_function": "gelu"},
    "opt, no biases": OPT | {"enable_bias": False, "word_embed_proj_dim": 24, "_remove_final_layer_norm": False},
    "stablelm, least": STABLELM | {"num_key_value_heads": 6},
    "stablelm, norms, grouped": STABLELM | {"qk_layernorm": True, "use_qkv_bias": True},
    "stablelm, norms, parallel, tied": STABLELM
    | {
        "qk_layernorm": True,
        "use_parallel_residual": True,
        "tie_word_embeddings": True,
        "partial_rotary_factor": 1.0,
        "num_key_value_heads": 1,
    },
    "persimmon, least": PERSIMMON,
    "persimmon, without norms": PERSIMMON | {"qk_layernorm": False, "hidden_act": "gelu", "rope_theta": 50.0},
    "persimmon, all of a head, tied": PERSIMMON | {"partial_rotary_factor": 1.0, "tie_word_embeddings": True},
    "nemotron, least": NEMOTRON,
    "nemotron, biases, tied": NEMOTRON | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    "nemotron, all of a head": NEMOTRON | {"partial_rotary_factor": 1.0, "norm_eps": 1e-2, "hidden_act": "gelu"},
    "arcee, least": {k: v for k, v in ARCEE.items() if k not in ("head_dim", "num_key_value_heads")},
    "arcee, biases": ARCEE | {"attention_bias": True, "mlp_bias": True},
    "arcee, yarn, tied": ARCEE | {"rope_scaling": YARN, "tie_word_embeddings": True},
    "phimoe, least": PHIMOE,
    "phimoe, many near": PHIMOE | {"router_jitter_noise": 0.4, "attention_bias": True, "tie_word_embeddings": True},
    "phimoe, longrope": PHIMOE
    | {
        "lm_head_bias": True,
        "rope_scaling": {
            "type": "longrope",
            "short_factor": [1.0, 1.5],
            "long_factor": [2.0, 3.0],
            "short_mscale": 1.2,
            "long_mscale": 1.2,
            "original_max_position_embeddings": 32,
        },
    },
    "granitemoe, least": GRANITE_MOE,
    "granitemoe, all multipliers": GRANITE_MOE
    | {
        "embedding_multiplier": 12.0,
        "attention_multiplier": 0.015625,
        "residual_multiplier": 0.22,
        "logits_scaling": 2.0,
    },
    "granitemoe, biases, tied": GRANITE_MOE | {"attention_bias": True, "tie_word_embeddings": True},
    "mixtral, least": MIXTRAL,
    "mixtral, tied, one expert": MIXTRAL | {"tie_word_embeddings": True, "num_experts_per_tok": 1},
    "mixtral, wide heads": MIXTRAL | {"head_dim": 8, "rope_theta": 50.0},
    "qwen3_moe, least": QWEN3_MOE,
    "qwen3_moe, weights add to 1": QWEN3_MOE | {"norm_topk_prob": True, "attention_bias": True},
    "qwen3_moe, dense layers": QWEN3_MOE | {"num_hidden_layers": 5, "mlp_only_layers": [0, 2, 4]},
    "qwen3_moe, every other": QWEN3_MOE | {"num_hidden_layers": 4, "decoder_sparse_step": 2},
    "qwen2_moe, least": QWEN2_MOE,
    "qwen2_moe, weights add to 1": QWEN2_MOE | {"norm_topk_prob": True},
    "qwen2_moe, without biases": QWEN2_MOE | {"qkv_bias": False, "tie_word_embeddings": True},
    "glm4_moe, least": GLM4_MOE,
    "glm4_moe, norms and biases": GLM4_MOE | {"use_qk_norm": True, "attention_bias": True, "n_shared_experts": 2},
    "glm4_moe, groups": GLM4_MOE | {"n_group": 3, "topk_group": 2, "routed_scaling_factor": 2.5},
    "minimax_m2, least": MINIMAX,
    "minimax_m2, rope on all": MINIMAX | {"rotary_dim": 8},
    "minimax_m2, published fields": MINIMAX | {"use_qk_norm": True, "scoring_func": "sigmoid", "rope_theta": 5e3},
    "deepseek_v3, least": DEEPSEEK,
    "deepseek_v3, one group, whole queries": DEEPSEEK | {"n_group": 1, "topk_group": 1, "q_lora_rank": None},
    "deepseek_v3, weights as they are": DEEPSEEK | {"norm_topk_prob": False, "first_k_dense_replace": 0},
    "deepseek_v3, halves": DEEPSEEK | {"rope_interleave": False, "n_shared_experts": 2},
    "deepseek_v2, greedy": DEEPSEEK_V2 | {"topk_method": "greedy"},
    "deepseek_v2, groups": DEEPSEEK_V2 | {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2},
    "deepseek_v2, whole queries": DEEPSEEK_V2 | {"q_lora_rank": None, "routed_scaling_factor": 3.0},
    "deepseek_v3, yarn": DEEPSEEK | {"rope_scaling": YARN | {"mscale": 1.0, "mscale_all_dim": 0.7}},
    "deepseek_v32, least": DEEPSEEK_V32,
    "deepseek_v32, yarn": DEEPSEEK_V32 | {"rope_scaling": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}},
    "deepseek_v32, all tokens": DEEPSEEK_V32 | {"index_topk": 13},
    "glm_moe_dsa, least": GLM_DSA,
    "glm_moe_dsa, one token": GLM_DSA | {"index_topk": 1},
    "glm_moe_dsa, groups": GLM_DSA | {"n_group": 4, "topk_group": 2},
    "gemma2, least": GEMMA2,
    "gemma2, uncapped": GEMMA2 | {"attn_logit_softcapping": None, "final_logit_softcapping": None},
    "gemma2, own scale": GEMMA2 | {"query_pre_attn_scalar": 20, "attention_bias": True, "tie_word_embeddings": False},
    "gemma3_text, least": GEMMA3,
    "gemma3_text, older rope": GEMMA3 | {"rope_theta": 77.0, "rope_scaling": LINEAR, "rope_local_base_freq": 30.0},
    "gemma3_text, other pattern": GEMMA3 | {"sliding_window_pattern": 3, "query_pre_attn_scalar": 9},
    "gpt_oss, least": GPT_OSS,
    "gpt_oss, plain rope": GPT_OSS | {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}},
    "gpt_oss, layers named": GPT_OSS
    | {"layer_types": ["full_attention", "sliding_attention"], "swiglu_limit": 0.5, "attention_bias": False},
    "llama4_text, least": LLAMA4,
    "llama4_text, without norms": LLAMA4 | {"use_qk_norm": False, "attn_temperature_tuning": False},
    "llama4_text, every other": LLAMA4
    | {"interleave_moe_layer_step": 2, "no_rope_layer_interval": 2, "floor_scale": 3, "attention_bias": True},
    "ministral, least": MINISTRAL,
    "ministral, wide window": MINISTRAL | {"sliding_window": 64},
    "ministral, layers named": MINISTRAL | {"layer_types": ["sliding_attention", "full_attention"]},
    "ministral3, least": MINISTRAL3,
    "ministral3, window": MINISTRAL3 | {"sliding_window": 5, "tie_word_embeddings": True},
    "ministral3, cool": MINISTRAL3
    | {"rope_parameters": {**MINISTRAL3["rope_parameters"], "llama_4_scaling_beta": 0}, "num_key_value_heads": 6},
    "llama, dynamic": LLAMA | {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
    "phi3, least": PHI3,
    "phi3, part of a head, window": PHI3
    | {"partial_rotary_factor": 0.5, "sliding_window": 4, "num_key_value_heads": 2},
    "phi3, longrope": PHI3
    | {
        "original_max_position_embeddings": 32,
        "rope_scaling": {"type": "longrope", "short_factor": [1.0, 1.5], "long_factor": [2.0, 3.0]},
    },
    "olmo2, least": OLMO2,
    "olmo2, grouped, biases": OLMO2 | {"num_key_value_heads": 2, "attention_bias": True},
    "olmo2, tied": OLMO2 | {"tie_word_embeddings": True, "rope_theta": 77.0},
    "olmo3, least": OLMO3,
    "olmo3, scaled": OLMO3 | {"rope_scaling": YARN, "rope_theta": 99.0},
    "olmo3, grouped": OLMO3 | {"num_key_value_heads": 3, "num_hidden_layers": 9},
    "granite, least": GRANITE,
    "granite, all multipliers": GRANITE
    | {
        "embedding_multiplier": 12.0,
        "attention_multiplier": 0.015625,
        "residual_multiplier": 0.22,
        "logits_scaling": 8.0,
    },
    "granite, biases, tied": GRANITE | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    "smollm3, least": SMOLLM3,
    "smollm3, window": SMOLLM3 | {"use_sliding_window": True, "sliding_window": 4, "no_rope_layer_interval": 2},
    "smollm3, layers named": SMOLLM3 | {"no_rope_layers": [0, 1, 1, 0, 1], "tie_word_embeddings": False},
    "starcoder2, least": STARCODER2,
    "starcoder2, window": STARCODER2 | {"sliding_window": 4, "tie_word_embeddings": False},
    "starcoder2, no biases": STARCODER2 | {"use_bias": False, "norm_epsilon": 1e-2},
    "cohere, least": COHERE,
    "cohere, grouped, biases": COHERE | {"num_key_value_heads": 2, "attention_bias": True},
    "cohere, own scale": COHERE | {"logit_scale": 0.5, "rope_theta": 50.0},
    "cohere, norms of each head": COHERE | {"use_qk_norm": True, "num_key_value_heads": 2, "layer_norm_eps": 1e-2},
    "cohere2, least": COHERE | {"model_type": "cohere2", "sliding_window": 4, "num_hidden_layers": 5},
    "cohere2, other pattern": COHERE | {"model_type": "cohere2", "sliding_window": 4, "sliding_window_pattern": 2},
    "cohere2, no window": COHERE | {"model_type": "cohere2", "sliding_window": 64, "num_key_value_heads": 3},
    "glm4_moe_lite, least": GLM_LITE,
    "glm4_moe_lite, whole queries": GLM_LITE | {"q_lora_rank": None, "n_shared_experts": 2},
    "glm4_moe_lite, layers named, halves": GLM_LITE
    | {"mlp_layer_types": ["sparse", "dense", "sparse"], "rope_interleave": False, "num_hidden_layers": 3},
    "solar_open, least": SOLAR,
    "solar_open, two shared, tied": SOLAR | {"n_shared_experts": 2, "tie_word_embeddings": True},
    "solar_open, biases, groups": SOLAR | {"attention_bias": True, "n_group": 3, "topk_group": 2},
    "flex_olmo, least": FLEX_OLMO,
    "flex_olmo, tied, one expert": FLEX_OLMO | {"tie_word_embeddings": True, "num_experts_per_tok": 1},
    "flex_olmo, weights add to 1": FLEX_OLMO | {"norm_topk_prob": True, "attention_bias": True},
    "helium, least": HELIUM,
    "helium, one kv-head": HELIUM | {"num_key_value_heads": 1, "rope_theta": 50.0},
    "helium, biases, tied": HELIUM | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    "exaone4, least": EXAONE4 | {"num_hidden_layers": 5},
    "exaone4, one kind": EXAONE4 | {"sliding_window": None, "layer_types": ["full_attention"] * 2, "rope_theta": 50.0},
    "exaone4, layers named": EXAONE4
    | {"layer_types": ["sliding_attention", "full_attention"], "sliding_window_pattern": "LG", "head_dim": 8},
    "seed_oss, least": SEED_OSS,
    "seed_oss, other biases": SEED_OSS | {"attention_bias": False, "attention_out_bias": True, "mlp_bias": True},
    "seed_oss, tied": SEED_OSS | {"tie_word_embeddings": True, "num_key_value_heads": 1},
    "ernie4_5, least": ERNIE,
    "ernie4_5, as many kv-heads": ERNIE | {"num_key_value_heads": 6, "rms_norm_eps": 1e-2},
    "ernie4_5, biases, untied": ERNIE | {"use_bias": True, "tie_word_embeddings": False, "rope_theta": 50.0},
    "ernie4_5_moe, least": ERNIE_MOE,
    "ernie4_5_moe, every other, none shared": ERNIE_MOE
    | {"num_hidden_layers": 5, "moe_layer_interval": 2, "moe_layer_end_index": 3, "moe_num_shared_experts": 0},
    "ernie4_5_moe, one shared, untied": ERNIE_MOE | {"moe_num_shared_experts": 1, "tie_word_embeddings": False},
    "glm, least": GLM,
    "glm, tied": GLM | {"tie_word_embeddings": True, "rope_theta": 50.0},
    "glm, no biases, all of a head": GLM | {"attention_bias": False, "partial_rotary_factor": 1.0},
    "glm4, least": GLM | {"model_type": "glm4"},
    "glm4, tied": GLM | {"model_type": "glm4", "tie_word_embeddings": True, "rms_norm_eps": 1e-2},
    "glm4, no biases, one kv-head": GLM | {"model_type": "glm4", "attention_bias": False, "num_key_value_heads": 1},
    "olmoe, least": OLMOE,
    "olmoe, tied, one expert": OLMOE | {"tie_word_embeddings": True, "num_experts_per_tok": 1},
    "olmoe, weights add to 1": OLMOE | {"norm_topk_prob": True, "attention_bias": True},
    "dots1, least": DOTS1,
    "dots1, groups": DOTS1
    | {"n_group": 3, "topk_group": 2, "routed_scaling_factor": 2.5, "norm_topk_prob": True, "first_k_dense_replace": 1},
    "dots1, windows": DOTS1 | {"sliding_window": 5, "max_window_layers": 1, "first_k_dense_replace": 2},
    "falcon, alibi": FALCON | {"alibi": True, "num_attention_heads": 4, "bias": True, "parallel_attn": False},
    "bloom, least": BLOOM,
    "bloom, a power of two of heads": BLOOM | {"n_head": 8, "layer_norm_epsilon": 1e-2},
    "bloom, untied": BLOOM | {"n_head": 3, "tie_word_embeddings": False},
    "mpt, least": MPT,
    "mpt, cut off": MPT | {"attn_config": {"alibi": True, "clip_qkv": 0.5, "alibi_bias_max": 8}},
    "mpt, own scale, a power of two of heads": MPT
    | {"n_heads": 4, "attn_config": {"alibi": True, "softmax_scale": 0.2}, "layer_norm_epsilon": 1e-2},
    "gpt_bigcode, least": BIGCODE,
    "gpt_bigcode, exact gelu": BIGCODE | {"activation_function": "gelu", "n_inner": 20},
    "gpt_bigcode, untied": BIGCODE | {"tie_word_embeddings": False, "multi_query": True},
    "gpt_neo, least": GPT_NEO,
    "gpt_neo, without windows": GPT_NEO
    | {"attention_types": [[["global"], 2]], "attention_layers": ["global", "global"], "intermediate_size": 20},
    "gpt_neo, untied": GPT_NEO | {"tie_word_embeddings": False, "activation_function": "relu"},
    "vaultgemma, least": VAULT_GEMMA,
    "vaultgemma, uncapped": VAULT_GEMMA | {"attn_logit_softcapping": None, "final_logit_softcapping": None},
    "vaultgemma, one kind": VAULT_GEMMA | {"layer_types": ["full_attention"] * 2, "query_pre_attn_scalar": 9},
    "apertus, least": APERTUS,
    "apertus, tied": APERTUS | {"tie_word_embeddings": True, "num_key_value_heads": 6},
    "apertus, plain rope": APERTUS | {"rope_parameters": {"rope_type": "default", "rope_theta": 77.0}},
    "hunyuan_v1_dense, least": HUNYUAN,
    "hunyuan_v1_dense, a larger base, tied": HUNYUAN | {"rope_scaling": ALPHA, "tie_word_embeddings": True},
    "hunyuan_v1_dense, biases": HUNYUAN | {"attention_bias": True, "rope_theta": 50.0},
    "hunyuan_v1_moe, least": HUNYUAN_MOE,
    "hunyuan_v1_moe, a larger base, tied": HUNYUAN_MOE | {"rope_scaling": ALPHA, "tie_word_embeddings": True},
    "hunyuan_v1_moe, one expert": HUNYUAN_MOE | {"moe_topk": 1, "attention_bias": True},
    "olmo, least": OLMO,
    "olmo, cut off": OLMO | {"clip_qkv": 0.5, "num_key_value_heads": 2},
    "olmo, tied": OLMO | {"tie_word_embeddings": True, "attention_bias": True},
    "afmoe, least": AFMOE,
    "afmoe, scaled": AFMOE | {"mup_enabled": True, "route_scale": 2.5, "num_shared_experts": 1, "num_dense_layers": 2},
    "afmoe, layers named": AFMOE
    | {"layer_types": ["sliding_attention", "full_attention"] * 2, "num_dense_layers": 0, "tie_word_embeddings": True},
    "exaone_moe, least": EXAONE_MOE,
    "exaone_moe, groups": EXAONE_MOE | {"n_group": 3, "topk_group": 2, "num_shared_experts": 2},
    "exaone_moe, layers named": EXAONE_MOE
    | {"mlp_layer_types": ["dense", "sparse"] * 2, "layer_types": ["sliding_attention", "full_attention"] * 2},
    "mimo_v2_flash, least": MIMO_V2,
    "mimo_v2_flash, biases": MIMO_V2 | {"attention_bias": True, "attention_value_scale": 0.3},
    "mimo_v2_flash, groups": MIMO_V2
    | {"n_group": 3, "topk_group": 2, "routed_scaling_factor": 2.5, "num_key_value_heads": 3},
    "granitemoeshared, least": GRANITE_SHARED,
    "granitemoeshared, multipliers": GRANITE_SHARED
    | {"embedding_multiplier": 12.0, "residual_multiplier": 0.22, "attention_multiplier": 0.1, "logits_scaling": 2.0},
    "granitemoeshared, tied": GRANITE_SHARED | {"tie_word_embeddings": True, "num_key_value_heads": 6},
    "granitemoehybrid, least": GRANITE_HYBRID,
    "granitemoehybrid, no positions, tied": GRANITE_HYBRID
    | {"position_embedding_type": None, "tie_word_embeddings": True, "attention_bias": True},
    "granitemoehybrid, experts": GRANITE_HYBRID
    | {"num_local_experts": 5, "num_experts_per_tok": 2, "residual_multiplier": 0.22},
    "dbrx, least": DBRX,
    "dbrx, cut off": DBRX | {"attn_config": {"kv_n_heads": 3, "clip_qkv": 0.5, "rope_theta": 1e4}},
    "dbrx, one expert": DBRX
    | {
        "attn_config": {"kv_n_heads": 6, "clip_qkv": 2.0, "rope_theta": 1e4},
        "ffn_config": {"ffn_hidden_size": 12, "moe_num_experts": 3, "ffn_act_fn": {"name": "gelu"}},
    },
    "internlm3, least": INTERNLM3,
    "internlm3, biases": INTERNLM3 | {"qkv_bias": True, "bias": True},
    "internlm3, dynamic rope, tied": INTERNLM3
    | {"rope_scaling": {"rope_type": "dynamic", "factor": 6.0}, "tie_word_embeddings": True},
    "minicpm3, least": MINICPM3,
    "minicpm3, whole queries, untied": MINICPM3 | {"q_lora_rank": None, "tie_word_embeddings": False},
    "minicpm3, own scales": MINICPM3 | {"scale_emb": 3, "scale_depth": 2.5, "v_head_dim": 5, "rope_theta": 50.0},
    "starcoder2, published fields": STARCODER2 | {"norm_type": "layer_norm", "mlp_type": "default"},
    "gemma2, published fields": GEMMA2
    | {"hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh", "cache_implementation": "hybrid"},
    "gemma4_text, least": GEMMA4,
    "gemma4_text, experts": GEMMA4
    | {"enable_moe_block": True, "num_experts": 5, "top_k_experts": 2, "moe_intermediate_size": 10},
    "gemma4_text, keys are values": GEMMA4
    | {
        "attention_k_eq_v": True,
        "num_global_key_value_heads": 1,
        "global_head_dim": 16,
        "final_logit_softcapping": 3.0,
        "num_hidden_layers": 7,
    },
}
