"""Models whose checkpoints bring code of their own compute what that code was published to do, from its tensors.

A checkpoint of just the tensors that the judge asks for is imported, and must answer alike in prefill and decoding.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from own_code import (
    VOCABULARY,
    WIDTH,
    Array,
    Config,
    Tensors,
    arctic,
    baichuan,
    bailing,
    chatglm,
    deepseek,
    exaone,
    grok,
    internlm,
    internlm2,
    jais,
    minicpm,
    nemotron_nas,
    orion,
    qwen,
    step3p5,
)
from saved_llama import save

from escc.compiler.hf_import import own_code
from escc.compiler.hf_import.architectures import read_config
from escc.compiler.hf_import.checkpoint import map_of, open_checkpoint
from escc.compiler.hf_import.checkpoint_files import checkpoint_tensors
from escc.compiler.hf_import.json_text import read_json
from escc.compiler.hf_import.parameter_parts import parameter_parts
from escc.compiler.hf_import.weight_map import parameters
from escc.compiler.hf_import.write import model_text
from escc.compiler.run.language_model import language_model
from escc.compiler.simulate.reference import random_stored, run_reference
from escc.ir.diagnostics import Source
from escc.ir.text.read import parse
from escc.passes.expansion.expand import expand

BATCH, PROMPT, TOKENS = 2, 6, 9
SIZES: Config = {
    "hidden_size": WIDTH,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-3,
}
MOE: Config = SIZES | {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 10}


EVEN: Config = {name: value for name, value in SIZES.items() if name != "num_key_value_heads"}
CASES: dict[str, tuple[Callable[[Tensors, Config, Array], Array], Config]] = {
    "internlm": (
        internlm,
        EVEN | {"model_type": "internlm", "bias": True, "rotary": {"base": 10000, "type": "dynamic"}},
    ),
    "internlm2": (
        internlm2,
        SIZES
        | {
            "model_type": "internlm2",
            "bias": False,
            "rope_theta": 50,
            "rope_scaling": {"type": "dynamic", "factor": 2.0},
        },
    ),
    "baichuan, rope": (baichuan, EVEN | {"model_type": "baichuan", "z_loss_weight": 0}),
    "baichuan, slopes": (
        baichuan,
        {name: value for name, value in EVEN.items() if name != "max_position_embeddings"}
        | {"model_type": "baichuan", "model_max_length": 64, "vocab_size": 125696},
    ),
    "minicpm": (
        minicpm,
        SIZES
        | {"model_type": "minicpm", "scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 8, "rope_scaling": None},
    ),
    "chatglm": (
        chatglm,
        {
            "model_type": "chatglm",
            "hidden_size": WIDTH,
            "ffn_hidden_size": 20,
            "num_layers": 2,
            "num_attention_heads": 6,
            "multi_query_attention": True,
            "multi_query_group_num": 2,
            "kv_channels": 8,
            "padded_vocab_size": VOCABULARY,
            "seq_length": 64,
            "layernorm_epsilon": 1e-3,
            "add_qkv_bias": True,
            "rope_ratio": 5,
        },
    ),
    "exaone": (
        exaone,
        {name: value for name, value in SIZES.items() if name not in ("num_hidden_layers", "rms_norm_eps")}
        | {"model_type": "exaone", "num_layers": 2, "layer_norm_epsilon": 1e-3, "activation_function": "silu"},
    ),
    "qwen": (
        qwen,
        {name: value for name, value in EVEN.items() if name != "rms_norm_eps"}
        | {"model_type": "qwen", "kv_channels": 4, "layer_norm_epsilon": 1e-3, "no_bias": True, "seq_length": 64},
    ),
    "orion": (orion, SIZES | {"model_type": "orion"}),
    "deepseek": (
        deepseek,
        SIZES
        | {
            "model_type": "deepseek",
            "n_routed_experts": 6,
            "n_shared_experts": 2,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 10,
            "first_k_dense_replace": 1,
        },
    ),
    "bailing_moe": (
        bailing,
        MOE
        | {
            "model_type": "bailing_moe",
            "num_shared_experts": 2,
            "first_k_dense_replace": 0,
            "norm_topk_prob": True,
            "norm_head": True,
        },
    ),
    "bailing_moe_v2": (
        bailing,
        MOE
        | {
            "model_type": "bailing_moe_v2",
            "head_dim": 8,
            "num_shared_experts": 1,
            "moe_shared_expert_intermediate_size": 14,
            "first_k_dense_replace": 1,
            "partial_rotary_factor": 0.5,
            "n_group": 3,
            "topk_group": 2,
            "routed_scaling_factor": 2.5,
        },
    ),
    "arctic": (arctic, SIZES | {"model_type": "arctic", "num_local_experts": 5, "num_experts_per_tok": 2}),
    "grok": (
        grok,
        SIZES
        | {
            "model_type": "grok-1",
            "num_experts": 5,
            "num_experts_per_tok": 2,
            "attn_output_multiplier": 0.4,
            "max_attn_value": 3.0,
            "embedding_multiplier_scale": 5.0,
            "output_multiplier_scale": 0.6,
        },
    ),
    "jais": (
        jais,
        {
            "model_type": "jais",
            "n_embd": WIDTH,
            "n_head": 6,
            "n_layer": 2,
            "n_inner": 20,
            "n_positions": 64,
            "vocab_size": VOCABULARY,
            "activation_function": "swiglu",
            "position_embedding_type": "alibi",
            "embeddings_scale": 14.6,
            "width_scale": 0.111,
            "scale_qk_dot_by_d": True,
            "layer_norm_epsilon": 1e-3,
        },
    ),
}
CASES["jais, later names"] = (
    jais,
    {name: value for name, value in CASES["jais"][1].items() if not name.endswith(("_scale", "_by_d"))}
    | {"mup_embeddings_scale": 9.0, "mup_width_scale": 0.4, "mup_output_alpha": 0.5, "mup_scale_qk_dot_by_d": True},
)
SIZES_OF_VL2: Config = {"use_mla": False, "kv_lora_rank": None, "q_lora_rank": None, "qk_nope_head_dim": 0}
CASES["deepseek_v2 without latents"] = (
    deepseek,
    {**CASES["deepseek"][1], "model_type": "deepseek_v2", "topk_method": "greedy", **SIZES_OF_VL2},
)
CASES["step3p5"] = (
    step3p5,
    {
        "model_type": "step3p5",
        "hidden_size": WIDTH,
        "intermediate_size": 20,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_attention_groups": 2,
        "head_dim": 8,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-3,
        "num_nextn_predict_layers": 1,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention", "full_attention"],
        "rope_theta": [50.0, 30.0, 30.0, 50.0, 50.0],
        "partial_rotary_factors": [0.5, 1.0, 1.0, 0.5, 0.5],
        "attention_other_setting": {"attention_type": "sliding_attention", "num_attention_heads": 6},
        "sliding_window": 4,
        "moe_layers_enum": "1,3,4",
        "moe_num_experts": 6,
        "moe_top_k": 2,
        "moe_intermediate_size": 10,
        "share_expert_dim": 14,
        "moe_router_scaling_factor": 3.0,
        "swiglu_limits": [0.0, 0.0, 0.0, 0.2, 0],
        "swiglu_limits_shared": [0.0, 0.0, 0.1, 0.3, 0],
    },
)


def block(group: int | None, mult: float | None) -> dict[str, Any]:
    """What Nemotron says of a layer: how many heads share a key, and how wide its feed-forward is; None for none."""
    return {
        "attention": {"n_heads_in_group": group, "no_op": group is None, "window_length": None},
        "ffn": {"ffn_mult": mult, "no_op": mult is None, "sparsify": None},
    }


CASES["nemotron-nas"] = (
    nemotron_nas,
    {
        "model_type": "nemotron-nas",
        "hidden_size": WIDTH,
        "intermediate_size": None,
        "num_attention_heads": 6,
        "num_hidden_layers": 7,
        "num_key_value_heads": None,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-3,
        "block_configs": [
            *(block(3, 1.0), block(3, 1.0), block(None, 1.0), block(6, None)),
            *(block(None, 20.0), block(1, 20.0), block(2, 1.0)),
        ],
    },
)


@pytest.mark.parametrize("name", CASES)
def test_what_code_beside_a_checkpoint_computes_is_imported(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_code, "LLAMA_7B", WIDTH if name == "baichuan, rope" else 4096)
    judge, config = CASES[name]
    ids = np.random.default_rng(7).integers(0, VOCABULARY, size=(BATCH, TOKENS))
    tensors = Tensors()
    expected = judge(tensors, config, ids)
    folder = save(tmp_path / "saved", tensors.made)
    (folder / "config.json").write_text(json.dumps(config))
    described = read_config(read_json(Source("config.json", json.dumps(config))))
    source = Source("small.esti", model_text(described, "small"))
    program = expand(parse(source), source, {"B": BATCH})
    made, kept_tensors, arrays = map_of(described, program, open_checkpoint(folder)), checkpoint_tensors(folder), {}
    for called, parameter in parameters(program).items():
        shape = (*parameter.counts, *parameter.shape)
        whole = tuple(slice(0, n) for n in shape)
        (arrays[called],) = parameter_parts(kept_tensors, str(made[called]), shape, np.float64, [whole])
    model = language_model(program)
    sizes = {**dict(program.phase("prefill").sizes), "M": TOKENS}
    state = random_stored(program, {**sizes, "L": PROMPT}, seed=1)
    state |= {called: array.reshape(state[called].shape) for called, array in arrays.items()}
    for first, last in [(0, PROMPT), *((at, at + 1) for at in range(PROMPT, TOKENS))]:
        state["tokens"] = ids[:, first:last]
        contexts = dict.fromkeys(model.counted, last)
        found = run_reference(program, {**sizes, "L": last - first}, state, contexts, model.scores)
        np.testing.assert_allclose(found[model.scores[0]], expected[:, last - 1], rtol=0, atol=1e-10)
        state |= {cache: found[version] for cache, version in model.caches}
