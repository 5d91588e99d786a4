"""Models that say their sizes in other words have as many parameters as were published."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from escc.compiler.hf_import.architectures import read_config
from escc.compiler.hf_import.json_text import read_json
from escc.compiler.hf_import.write import model_text
from escc.compiler.report.hardware import parameter_count
from escc.ir.diagnostics import Source
from escc.ir.text.read import parse
from escc.passes.expansion.expand import expand


def sizes(
    kind: str, width: int, forward: int, layers: int, heads: int, kv_heads: int, vocabulary: int, **more: Any
) -> dict[str, Any]:
    """A config by the names that most have."""
    return {
        "model_type": kind,
        "hidden_size": width,
        "intermediate_size": forward,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocabulary,
        **more,
    }


BAICHUAN: Mapping[str, Any] = {"model_type": "baichuan", "vocab_size": 64000}
CHATGLM: Mapping[str, Any] = {"multi_query_attention": True, "multi_query_group_num": 2, "add_qkv_bias": True}
BAILING: Mapping[str, Any] = {"head_dim": 128, "rope_theta": 600000}
# Where no other source is said, the counts are those that the model's page on Hugging Face gives for its safetensors,
# less what stands in them beside the model (layers that guess further tokens, and what sees).
PUBLISHED: Mapping[str, tuple[Mapping[str, Any], int]] = {
    # https://github.com/baichuan-inc/Baichuan-7B and .../Baichuan-13B, tables of the models
    "Baichuan-7B": (
        BAICHUAN
        | {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32}
        | {"max_position_embeddings": 4096},
        7_000_559_616,
    ),
    "Baichuan-13B": (
        BAICHUAN
        | {"hidden_size": 5120, "intermediate_size": 13696, "num_hidden_layers": 40, "num_attention_heads": 40}
        | {"model_max_length": 4096},
        13_264_901_120,
    ),
    # Model cards: https://huggingface.co/bigscience/bloom-7b1 and https://huggingface.co/bigscience/bloom
    "bloom-7b1": (
        {"model_type": "bloom", "hidden_size": 4096, "n_layer": 30, "n_head": 32, "vocab_size": 250880},
        7_069_016_064,
    ),
    "bloom": (
        {"model_type": "bloom", "n_embed": 14336, "n_layer": 70, "num_attention_heads": 112, "vocab_size": 250880}
        | {"n_head": 112},
        176_247_271_424,
    ),
    # As `transformers` makes it of the published config, less two rows of positions that no token has
    "opt-350m": (
        {"model_type": "opt", "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "ffn_dim": 4096}
        | {"do_layer_norm_before": False, "word_embed_proj_dim": 512, "vocab_size": 50272},
        331_194_368,
    ),
    "mpt-7b": (
        {"model_type": "mpt", "d_model": 4096, "n_layers": 32, "n_heads": 32, "vocab_size": 50432},
        6_649_286_656,
    ),
    "starcoder": (
        {"model_type": "gpt_bigcode", "n_embd": 6144, "n_layer": 40, "n_head": 48, "n_inner": 24576}
        | {"n_positions": 8192, "vocab_size": 49152},
        15_517_456_384,
    ),
    "gpt-neo-2.7B": (
        {"model_type": "gpt_neo", "hidden_size": 2560, "num_layers": 32, "num_heads": 20, "vocab_size": 50257}
        | {"attention_layers": ["global", "local"] * 16},
        2_651_307_520,
    ),
    # Said as 16B in https://arxiv.org/abs/2203.13474; counted as `transformers` makes it of the published config
    "codegen-16B-mono": (
        {"model_type": "codegen", "n_embd": 6144, "n_layer": 34, "n_head": 24, "vocab_size": 51200},
        16_032_155_648,
    ),
    "dbrx-base": (
        {"model_type": "dbrx", "d_model": 6144, "n_layers": 40, "n_heads": 48, "vocab_size": 100352}
        | {"attn_config": {"kv_n_heads": 8}}
        | {"ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4}},
        131_596_523_520,
    ),
    "internlm2-7b": (sizes("internlm2", 4096, 14336, 32, 32, 8, 92544, bias=False), 7_737_708_544),
    "internlm3-8b-instruct": (sizes("internlm3", 4096, 10240, 48, 32, 2, 128512), 8_804_241_408),
    "chatglm3-6b": (
        {"model_type": "chatglm", "hidden_size": 4096, "ffn_hidden_size": 13696, "num_layers": 28, "kv_channels": 128}
        | {"num_attention_heads": 32, "padded_vocab_size": 65024, **CHATGLM},
        6_243_584_000,
    ),
    "glm-4-9b-chat": (
        {"model_type": "chatglm", "hidden_size": 4096, "ffn_hidden_size": 13696, "num_layers": 40, "kv_channels": 128}
        | {"num_attention_heads": 32, "padded_vocab_size": 151552, **CHATGLM},
        9_399_951_360,
    ),
    "Qwen-7B": (
        {"model_type": "qwen", "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32}
        | {"num_attention_heads": 32, "vocab_size": 151936},
        7_721_324_544,
    ),
    "MiniCPM-2B-sft-bf16": (sizes("minicpm", 2304, 5760, 40, 36, 36, 122753), 2_724_880_896),
    "EXAONE-3.5-7.8B-Instruct": (
        {"model_type": "exaone", "hidden_size": 4096, "intermediate_size": 14336, "num_layers": 32}
        | {"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 102400, "activation_function": "silu"},
        7_818_448_896,
    ),
    "OLMo-7B-hf": (sizes("olmo", 4096, 11008, 32, 32, 32, 50304), 6_888_095_744),
    "deepseek-moe-16b-base": (
        sizes("deepseek", 2048, 10944, 28, 16, 16, 102400, moe_intermediate_size=1408, n_routed_experts=64)
        | {"n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1},
        16_375_728_128,
    ),
    "Hunyuan-A13B-Instruct": (
        sizes("hunyuan_v1_moe", 4096, 3072, 32, 32, 8, 128167, num_experts=64, moe_topk=[8] * 32)
        | {"moe_intermediate_size": [3072] * 32, "num_shared_expert": [1] * 32, "tie_word_embeddings": True},
        80_393_183_232,
    ),
    "Ling-lite-1.5": (
        sizes("bailing_moe", 2048, 5632, 28, 16, 4, 126464, num_experts=64, num_experts_per_tok=6)
        | {"moe_intermediate_size": 1408, "num_shared_experts": 2, **BAILING},
        16_801_974_272,
    ),
    "Ling-mini-2.0": (
        sizes("bailing_moe", 2048, 5120, 20, 16, 4, 157184, num_experts=256, num_experts_per_tok=8)
        | {"architectures": ["BailingMoeV2ForCausalLM"], "moe_intermediate_size": 512, "num_shared_experts": 1}
        | {"first_k_dense_replace": 1, "n_group": 8, "topk_group": 4, "partial_rotary_factor": 0.5, **BAILING},
        16_255_643_392,
    ),
    "granite-4.0-micro": (
        sizes("granitemoehybrid", 2560, 8192, 40, 40, 8, 100352, layer_types=["attention"] * 40)
        | {"num_local_experts": 0, "num_experts_per_tok": 0, "shared_intermediate_size": 8192}
        | {"tie_word_embeddings": True, "position_embedding_type": "rope", "mamba_d_state": 128},
        3_402_836_480,
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_model_has_as_many_parameters_as_were_published(name: str) -> None:
    config, count = PUBLISHED[name]
    source = Source("m.esti", model_text(read_config(read_json(Source("config.json", json.dumps(config)))), "m"))
    assert parameter_count(expand(parse(source), source, {})) == count
