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
CODEGEN: Config = GPT2 | {"model_type": "codegen", "n_embd": 24, "n_head": 4, "rotary_dim": 4}
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
GEMMA4_E: Config = GEMMA4 | {  # as the small ones are
    "hidden_size_per_layer_input": 6,
    "vocab_size_per_layer_input": 23,
    "num_kv_shared_layers": 3,
    "num_hidden_layers": 7,
    "layer_types": ["sliding_attention", "full_attention"] * 3 + ["full_attention"],
}
GEMMA3N: Config = {k: v for k, v in GEMMA4_E.items() if k != "global_head_dim"} | {
    "model_type": "gemma3n_text",
    "laurel_rank": 5,
    "altup_num_inputs": 4,
    "activation_sparsity_pattern": [0.95, 0.5, 0.0, 0.0, 0.9, 0.0, 0.0],
    "intermediate_size": [20, 20, 20, 20, 12, 20, 20],
}
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
CWM: Config = SIZES | {
    "model_type": "cwm",
    "num_key_value_heads": 2,
    "head_dim": 8,
    "sliding_window": 5,
    "num_hidden_layers": 5,
}
HYPER_CLOVA: Config = SIZES | {"model_type": "hyperclovax", "num_key_value_heads": 2}
HY_V3: Config = MOE | {
    "model_type": "hy_v3",
    "head_dim": 8,
    "num_experts": 6,
    "moe_intermediate_size": 10,
    "num_hidden_layers": 3,
}
MISTRAL4: Config = {
    name: value
    for name, value in DEEPSEEK.items()
    if name not in ("n_group", "topk_group", "first_k_dense_replace", "topk_method")
} | {
    "model_type": "mistral4",
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 16.0,
        "original_max_position_embeddings": 4,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.3,
        "partial_rotary_factor": 0.4,
    },
}
YOUTU: Config = {name: value for name, value in MINICPM3.items() if name not in ("dim_model_base", "model_type")} | {
    "model_type": "youtu",
    "v_head_dim": 5,
}
SARVAM: Config = GLM4_MOE | {"model_type": "sarvam_moe", "head_dim": 8}
SARVAM_MLA: Config = {name: value for name, value in DEEPSEEK.items() if name not in ("n_group", "topk_group")} | {
    "model_type": "sarvam_mla"
}
LONGCAT: Config = {
    "model_type": "longcat_flash",
    "hidden_size": 24,
    "ffn_hidden_size": 20,
    "num_layers": 2,
    "num_attention_heads": 6,
    "vocab_size": 23,
    "max_position_embeddings": 64,
    "q_lora_rank": 10,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "head_dim": 4,
    "v_head_dim": 5,
    "n_routed_experts": 6,
    "zero_expert_num": 3,
    "moe_topk": 4,
    "expert_ffn_hidden_size": 10,
    "routed_scaling_factor": 2.5,
}

# Models that see: the part for text of one of the above, beside a tower of one small layer.
TOWER: Config = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 8,
    "depth": 1,
    "embed_dim": 16,
    "num_heads": 2,
    "out_hidden_size": 24,
    "feature_layer": 0,
    "deepstack_visual_indexes": [0],
    "fullatt_block_indexes": [0],
}
SIGLIP: Config = TOWER | {"model_type": "siglip_vision_model"}


def seeing(kind: str, text: Config, tower: Config = TOWER) -> Config:
    """A model of that type with such a part for text and such a tower."""
    return {"model_type": kind, "text_config": text, "vision_config": tower}


WIDE = {name: value for name, value in QWEN2.items() if name != "model_type"} | {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "head_dim": 16,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]},
}
ERNIE_VL = {name: value for name, value in ERNIE_MOE.items() if name != "model_type"} | {
    "head_dim": 8,
    "moe_intermediate_size": [10, 6],  # of experts for text, and for images
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]},
}
WIDE_TOWER: Config = TOWER | {"out_hidden_size": 64}
SEEING: Mapping[str, Config] = {
    "gemma3": seeing("gemma3", GEMMA3, SIGLIP),
    "mistral3": seeing("mistral3", MISTRAL),  # whose own head is tied, whatever Mistral's is
    "llava": seeing("llava", LLAMA, TOWER | {"model_type": "clip_vision_model"}),
    "internvl": seeing("internvl", QWEN2, TOWER | {"image_size": [16, 16], "patch_size": [8, 8]}),
    "idefics3": seeing("idefics3", LLAMA),
    "cohere2_vision": seeing("cohere2_vision", COHERE | {"model_type": "cohere2", "logit_scale": 1.0}, SIGLIP),
    "qwen2_vl": seeing("qwen2_vl", WIDE, TOWER | {"hidden_size": 64}),
    "qwen3_vl": seeing("qwen3_vl", WIDE, WIDE_TOWER),
    "qwen3_vl_moe": seeing(
        "qwen3_vl_moe", WIDE | {"num_experts": 5, "moe_intermediate_size": 10, "num_experts_per_tok": 2}, WIDE_TOWER
    ),
    "ernie4_5_vl_moe": seeing("ernie4_5_vl_moe", ERNIE_VL),
}
