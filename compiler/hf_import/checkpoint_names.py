"""How checkpoints of each architecture call the tensors of a model: those that do not call them as Llama does.

The names are those of the library `transformers` (https://github.com/huggingface/transformers) in version 5.23, and of
the code that models without a class there bring along.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .checkpoint_styles import (
    CODEGEN,
    ERNIE,
    ERNIE_VL,
    FALCON,
    GEMMA4,
    GPT2,
    GPT_OSS,
    GPTJ,
    GRANITE_MOE,
    LLAMA,
    LLAMA4,
    MIXTRAL,
    NEOX,
    OPT,
    PERSIMMON,
    PHI,
    QWEN2_MOE,
    STABLELM,
    ExpertStyle,
    Style,
)
from .description import Norms, Transformer
from .weight_map import Made

MPT = replace(
    GPT2,
    norm="transformer.norm_f",
    block="transformer.blocks.{}.",
    norms=("norm_1", "norm_2"),
    output="attn.out_proj",
    fused="attn.Wqkv",
    up="ffn.up_proj",
    down="ffn.down_proj",
    from_to=False,
)
GPT_NEO = replace(
    GPT2,
    query="attn.attention.q_proj",
    key="attn.attention.k_proj",
    value="attn.attention.v_proj",
    output="attn.attention.out_proj",
    fused=None,
    from_to=False,
)
SHARED_LINEAR = {
    "Wsi": Made("shared_mlp.input_linear.weight", ("transpose", "part 2 of 2")),
    "Wsg": Made("shared_mlp.input_linear.weight", ("transpose", "part 1 of 2")),
    "Wsd": Made("shared_mlp.output_linear.weight", ("transpose",)),
}
GRANITE_SHARED = replace(
    GRANITE_MOE,
    gate_up="shared_mlp.input_linear",
    down="shared_mlp.output_linear",
    experts=replace(GRANITE_MOE.experts, fused={**GRANITE_MOE.experts.fused, **SHARED_LINEAR}),
)
HUNYUAN = replace(
    LLAMA,
    query_norm="self_attn.query_layernorm",
    key_norm="self_attn.key_layernorm",
    experts=ExpertStyle(router="mlp.gate.wg", shared="mlp.shared_mlp"),
)
DBRX_EXPERTS = "heads {experts}", "roll"  # which all lie behind each other
DBRX = replace(
    MPT,
    norms=("norm_attn_norm.norm_1", "norm_attn_norm.norm_2"),
    output="norm_attn_norm.attn.out_proj",
    fused=None,
    stacked="norm_attn_norm.attn.Wqkv",
    experts=ExpertStyle(
        router="ffn.router.layer",
        fused={
            "Wi": Made("ffn.experts.mlp.v1", ("transpose", *DBRX_EXPERTS, "transpose")),
            "Wg": Made("ffn.experts.mlp.w1", ("transpose", *DBRX_EXPERTS, "transpose")),
            "Wd": Made("ffn.experts.mlp.w2", ("transpose", *DBRX_EXPERTS)),
        },
    ),
)
ARCTIC = replace(
    MIXTRAL,
    norms=("input_layernorm", "residual_layernorm", "post_attention_layernorm"),
    up="residual_mlp.w3",
    gate="residual_mlp.w1",
    down="residual_mlp.w2",
)
GROK = replace(
    LLAMA,
    query="attn.q_proj",
    key="attn.k_proj",
    value="attn.v_proj",
    output="attn.o_proj",
    other_norms={Norms.BOTH: ("pre_attn_norm", "post_attn_norm", "pre_moe_norm", "post_moe_norm")},
    experts=ExpertStyle(
        router="moe_block.gate", each="moe_block.experts.{}", up="linear_v", gate="linear", down="linear_1"
    ),
)
AFMOE = replace(
    LLAMA,
    other_norms={
        Norms.BOTH: ("input_layernorm", "post_attention_layernorm", "pre_mlp_layernorm", "post_mlp_layernorm")
    },
    experts=ExpertStyle(router="mlp.router.gate", correction="mlp.expert_bias"),
)
BAILING = replace(
    LLAMA,
    table="model.word_embeddings",
    stacked="attention.query_key_value",
    output="attention.dense",
    query_norm="attention.query_layernorm",
    key_norm="attention.key_layernorm",
    experts=ExpertStyle(correction="mlp.gate.expert_bias"),
)
FUSED = {
    "Wi": Made("mlp.experts.gate_up_proj", ("transpose", "part 2 of 2")),
    "Wg": Made("mlp.experts.gate_up_proj", ("transpose", "part 1 of 2")),
    "Wd": Made("mlp.experts.down_proj", ("transpose",)),
}
LONGCAT = replace(
    LLAMA,
    norms=("input_layernorm.0", "post_attention_layernorm.0"),
    latent="self_attn.0.",
    up="mlps.0.up_proj",
    gate="mlps.0.gate_proj",
    down="mlps.0.down_proj",
    experts=ExpertStyle(router="mlp.router.classifier", correction="mlp.router.e_score_correction_bias"),
)
STEP = replace(
    LLAMA,
    attention_gate="self_attn.g_proj",
    experts=ExpertStyle(
        router="moe.gate",
        correction="moe.router_bias",
        fused={
            "Wi": Made("moe.up_proj.weight", ("transpose",)),
            "Wg": Made("moe.gate_proj.weight", ("transpose",)),
            "Wd": Made("moe.down_proj.weight", ("transpose",)),
        },
        shared="share_expert",
    ),
)
INTERNLM2 = replace(
    LLAMA,
    table="model.tok_embeddings",
    head="output",
    norms=("attention_norm", "ffn_norm"),
    fused="attention.wqkv",
    by_head=True,
    output="attention.wo",
    up="feed_forward.w3",
    gate="feed_forward.w1",
    down="feed_forward.w2",
)
CHATGLM = replace(
    LLAMA,
    table="transformer.embedding.word_embeddings",
    norm="transformer.encoder.final_layernorm",
    head="transformer.output_layer",
    block="transformer.encoder.layers.{}.",
    stacked="self_attention.query_key_value",
    output="self_attention.dense",
    gate_up="mlp.dense_h_to_4h",
    down="mlp.dense_4h_to_h",
)
EXAONE = replace(
    LLAMA,
    table="transformer.wte",
    norm="transformer.ln_f",
    block="transformer.h.{}.",
    norms=("ln_1", "ln_2"),
    query="attn.attention.q_proj",
    key="attn.attention.k_proj",
    value="attn.attention.v_proj",
    output="attn.attention.out_proj",
    up="mlp.c_fc_1",
    gate="mlp.c_fc_0",
    down="mlp.c_proj",
)
QWEN = replace(
    EXAONE,
    fused="attn.c_attn",
    output="attn.c_proj",
    up="mlp.w1",
    gate="mlp.w2",
)
GLM4_NORMS = ("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm")
GLM4 = replace(LLAMA, gate_up="mlp.gate_up_proj", other_norms={Norms.BOTH: GLM4_NORMS})
PHI3 = replace(LLAMA, stacked="self_attn.qkv_proj", gate_up="mlp.gate_up_proj")
STYLES: Mapping[str, Style] = {  # by architecture; all others are as Llama
    "phi": PHI,
    "gpt_neox": NEOX,
    "falcon": FALCON,
    "gpt2": GPT2,
    "gptj": GPTJ,
    "codegen": CODEGEN,
    "opt": OPT,
    "stablelm": STABLELM,
    "persimmon": PERSIMMON,
    "granitemoe": GRANITE_MOE,
    "mixtral": MIXTRAL,
    "minimax_m2": MIXTRAL,
    "phimoe": MIXTRAL,
    "qwen2_moe": QWEN2_MOE,
    "ernie4_5_moe": ERNIE,
    "ernie4_5_moe_vl": ERNIE_VL,
    "ernie4_5_vl_moe_text": ERNIE_VL,
    "phi3": PHI3,
    "starcoder2": replace(LLAMA, up="mlp.c_fc", gate="", down="mlp.c_proj"),
    "cohere": replace(LLAMA, norms=("input_layernorm",)),
    "cohere2": replace(LLAMA, norms=("input_layernorm",)),
    "glm": replace(LLAMA, gate_up="mlp.gate_up_proj"),
    "glm4": GLM4,
    "gpt_oss": GPT_OSS,
    "llama4_text": LLAMA4,
    "gemma4_text": GEMMA4,
    "bloom": replace(FALCON, table_norm="transformer.word_embeddings_layernorm"),
    "mpt": MPT,
    "jais": replace(GPT2, gate="mlp.c_fc2"),
    "gpt_bigcode": replace(GPT2, fused=None, stacked="attn.c_attn", from_to=False),
    "gpt_neo": GPT_NEO,
    "vaultgemma": replace(LLAMA, norms=("input_layernorm", "pre_feedforward_layernorm")),
    "apertus": replace(LLAMA, norms=("attention_layernorm", "feedforward_layernorm")),
    "hunyuan_v1_dense": HUNYUAN,
    "hunyuan_v1_moe": HUNYUAN,
    "afmoe": AFMOE,
    "exaone_moe": replace(LLAMA, experts=ExpertStyle(correction="mlp.e_score_correction_bias")),
    "mimo_v2_flash": replace(LLAMA, sinks="self_attn.attention_sink_bias"),
    "granitemoehybrid": GRANITE_SHARED,
    "granitemoeshared": GRANITE_SHARED,
    "dbrx": DBRX,
    "arctic": ARCTIC,
    "grok-1": GROK,
    "bailing_moe": BAILING,
    "bailing_moe_v2": BAILING,
    "internlm2": INTERNLM2,
    "baichuan": replace(LLAMA, stacked="self_attn.W_pack"),
    "chatglm": CHATGLM,
    "exaone": EXAONE,
    "qwen": QWEN,
    "step3p5": STEP,
    "longcat_flash": LONGCAT,
    "sarvam_moe": BAILING,
    "mistral4": replace(LLAMA, experts=ExpertStyle(fused=FUSED)),
    "hyperclovax": replace(
        LLAMA,
        other_norms={Norms.BOTH: ("input_layernorm", "post_norm1", "post_attention_layernorm", "post_norm2")},
    ),
    "hy_v3": replace(
        LLAMA,
        experts=ExpertStyle(router="mlp.router.gate", correction="mlp.expert_bias", shared="mlp.shared_mlp"),
    ),
    "phi3_v": PHI3,
    "phi4mm": PHI3,
    "glm4v_text": GLM4,
}


def style_of(model: Transformer) -> Style:
    """How folders of safetensors files keep a model."""
    return STYLES.get(model.architecture, LLAMA)
