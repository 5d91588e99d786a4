"""How kinds of checkpoints call the tensors of a model, and how they keep them.

The names are those of the library `transformers` (https://github.com/huggingface/transformers) in version 5.23 and of
the specification of GGUF (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

from ...ir.record import record
from .description import Norms
from .weight_map import Made


@record
class ExpertStyle:
    """How a kind of checkpoint calls the parts of experts: what it chooses them by, what the names of each begin with,
    its matrices; `fused`: what is made of tensors of all experts, where they are in such. `shared`: the one that all
    tokens take, and what it is weighed by. `routed`, `corrected`: what the first two are made by."""

    router: str = "mlp.gate"
    routed: tuple[str, ...] = ("transpose",)
    correction: str = "mlp.gate.e_score_correction_bias"
    corrected: tuple[str, ...] = ()
    each: str = "mlp.experts.{}"
    up: str = "up_proj"
    gate: str = "gate_proj"
    down: str = "down_proj"
    fused: Mapping[str, Made] = field(default_factory=dict)
    shared: str = "mlp.shared_experts"
    shared_gate: str = "mlp.shared_expert_gate"
    router_scale: str = "router.scale"
    per_expert: str = "router.per_expert_scale"


@record
class Style:
    """How a kind of checkpoint calls and keeps things. `block`: what the names of a block's tensors begin with.
    `fused`: the one module of queries, keys and values, None where they stand apart, and `by_head` whether it has
    them kv-head by kv-head, its queries, its key and its value; `stacked`: one that has them one behind the other, of
    widths of their own; `chips`: for how many chips it has queries, values and keys, those of one chip together.
    `gate_up`: the one module of both. `from_to`: whether matrices are [from, to]. `halves`:
    whether what rope turns together lies half of that apart. `first_place`: the row of the first token in a table of
    positions."""

    table: str
    norm: str
    head: str
    block: str
    norms: tuple[str, ...]
    query: str
    key: str
    value: str
    output: str
    up: str
    gate: str
    down: str
    places: str = ""
    first_place: int = 0
    table_norm: str = ""
    query_norm: str = ""
    key_norm: str = ""
    fused: str | None = None
    by_head: bool = False
    two_norms: tuple[str, ...] = ()  # of blocks that stand side by side, where these are others
    stacked: str | None = None
    chips: int = 0
    gate_up: str | None = None
    from_to: bool = False
    halves: bool = True
    other_norms: Mapping[Norms, tuple[str, ...]] = field(default_factory=lambda: OTHER_NORMS)
    sinks: str = "self_attn.sinks"
    latent: str = "self_attn."  # what the names of latent attention begin with
    attention_gate: str = "self_attn.gate_proj"
    activation: str = "mlp.act_fn"  # what its own numbers stand in
    experts: ExpertStyle = ExpertStyle()
    widened: str = "model.decoder.project_in"  # what makes embeddings as wide as the model, and what it makes narrow
    narrowed: str = "model.decoder.project_out"
    own_table: str = "model.embed_tokens_per_layer"  # of embeddings that layers have for themselves
    own_projection: str = "model.per_layer_model_projection"
    own_norm: str = "model.per_layer_projection_norm"


OTHER_NORMS: Mapping[Norms, tuple[str, ...]] = {
    Norms.AFTER: ("post_attention_layernorm", "post_feedforward_layernorm"),
    Norms.BOTH: (
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
        "post_feedforward_layernorm_1",
        "pre_feedforward_layernorm_2",
        "post_feedforward_layernorm_2",
        "post_per_layer_input_norm",
    ),
}
LLAMA = Style(
    table="model.embed_tokens",
    norm="model.norm",
    head="lm_head",
    block="model.layers.{}.",
    norms=("input_layernorm", "post_attention_layernorm"),
    query="self_attn.q_proj",
    key="self_attn.k_proj",
    value="self_attn.v_proj",
    output="self_attn.o_proj",
    up="mlp.up_proj",
    gate="mlp.gate_proj",
    down="mlp.down_proj",
    query_norm="self_attn.q_norm",
    key_norm="self_attn.k_norm",
)
PHI = replace(
    LLAMA,
    norm="model.final_layernorm",
    norms=("input_layernorm", "input_layernorm"),
    output="self_attn.dense",
    up="mlp.fc1",
    gate="",
    down="mlp.fc2",
    query_norm="self_attn.q_layernorm",
    key_norm="self_attn.k_layernorm",
)
STABLELM = replace(LLAMA, query_norm="self_attn.q_layernorm.norms.{}", key_norm="self_attn.k_layernorm.norms.{}")
OPT = replace(
    LLAMA,
    table="model.decoder.embed_tokens",
    places="model.decoder.embed_positions",
    first_place=2,
    norm="model.decoder.final_layer_norm",
    block="model.decoder.layers.{}.",
    norms=("self_attn_layer_norm", "final_layer_norm"),
    output="self_attn.out_proj",
    up="fc1",
    gate="",
    down="fc2",
)
NEOX = Style(
    table="gpt_neox.embed_in",
    norm="gpt_neox.final_layer_norm",
    head="embed_out",
    block="gpt_neox.layers.{}.",
    norms=("input_layernorm", "post_attention_layernorm"),
    query="",
    key="",
    value="",
    output="attention.dense",
    up="mlp.dense_h_to_4h",
    gate="",
    down="mlp.dense_4h_to_h",
    fused="attention.query_key_value",
    by_head=True,
)
FALCON = replace(
    NEOX,
    table="transformer.word_embeddings",
    norm="transformer.ln_f",
    head="lm_head",
    block="transformer.h.{}.",
    two_norms=("ln_attn", "ln_mlp"),
    output="self_attention.dense",
    fused="self_attention.query_key_value",
)
PERSIMMON = replace(
    PHI,
    norms=LLAMA.norms,
    up="mlp.dense_h_to_4h",
    down="mlp.dense_4h_to_h",
    fused="self_attn.query_key_value",
    by_head=True,
)
GPT2 = Style(
    table="transformer.wte",
    norm="transformer.ln_f",
    head="lm_head",
    block="transformer.h.{}.",
    norms=("ln_1", "ln_2"),
    query="",
    key="",
    value="",
    output="attn.c_proj",
    up="mlp.c_fc",
    gate="",
    down="mlp.c_proj",
    places="transformer.wpe",
    fused="attn.c_attn",
    from_to=True,
)
GPTJ = replace(
    GPT2,
    query="attn.q_proj",
    key="attn.k_proj",
    value="attn.v_proj",
    output="attn.out_proj",
    up="mlp.fc_in",
    down="mlp.fc_out",
    fused=None,
    from_to=False,
)
CODEGEN_CHIPS = 4  # that a fused projection was made for
CODEGEN = replace(GPTJ, fused="attn.qkv_proj", chips=CODEGEN_CHIPS)
GGUF = Style(
    table="token_embd",
    norm="output_norm",
    head="output",
    block="blk.{}.",
    norms=("attn_norm", "ffn_norm"),
    query="attn_q",
    key="attn_k",
    value="attn_v",
    output="attn_output",
    up="ffn_up",
    gate="ffn_gate",
    down="ffn_down",
    query_norm="attn_q_norm",
    key_norm="attn_k_norm",
)
MIXTRAL = replace(
    LLAMA,
    experts=ExpertStyle(
        router="block_sparse_moe.gate",
        correction="block_sparse_moe.e_score_correction_bias",
        each="block_sparse_moe.experts.{}",
        up="w3",
        gate="w1",
        down="w2",
    ),
)
GRANITE_MOE = replace(
    LLAMA,
    experts=ExpertStyle(
        router="block_sparse_moe.router.layer",
        fused={
            "Wi": Made("block_sparse_moe.input_linear.weight", ("transpose", "part 2 of 2")),
            "Wg": Made("block_sparse_moe.input_linear.weight", ("transpose", "part 1 of 2")),
            "Wd": Made("block_sparse_moe.output_linear.weight", ("transpose",)),
        },
    ),
)
QWEN2_MOE = replace(LLAMA, experts=ExpertStyle(shared="mlp.shared_expert"))
ERNIE = replace(LLAMA, experts=ExpertStyle(correction="mlp.moe_statics.e_score_correction_bias"))
ERNIE_VL = replace(  # corrections of the experts of text and of images lie in one tensor
    ERNIE, experts=replace(ERNIE.experts, routed=(), corrected=("transpose", "first 1"))
)
GPT_OSS = replace(
    LLAMA,
    experts=ExpertStyle(
        router="mlp.router",
        fused={
            "Wi": Made("mlp.experts.gate_up_proj", ("every 2 from 2",)),
            "Wg": Made("mlp.experts.gate_up_proj", ("every 2 from 1",)),
            "Wd": Made("mlp.experts.down_proj"),
            "bi": Made("mlp.experts.gate_up_proj_bias", ("every 2 from 2",)),
            "bg": Made("mlp.experts.gate_up_proj_bias", ("every 2 from 1",)),
            "bd": Made("mlp.experts.down_proj_bias"),
        },
    ),
)
LLAMA4 = replace(
    LLAMA,
    up="feed_forward.up_proj",
    gate="feed_forward.gate_proj",
    down="feed_forward.down_proj",
    experts=ExpertStyle(
        router="feed_forward.router",
        fused={
            "Wi": Made("feed_forward.experts.gate_up_proj", ("part 2 of 2",)),
            "Wg": Made("feed_forward.experts.gate_up_proj", ("part 1 of 2",)),
            "Wd": Made("feed_forward.experts.down_proj"),
        },
        shared="feed_forward.shared_expert",
    ),
)
GEMMA4 = replace(
    LLAMA,
    experts=ExpertStyle(
        router="router.proj",
        fused={
            "Wi": Made("experts.gate_up_proj", ("transpose", "part 2 of 2")),
            "Wg": Made("experts.gate_up_proj", ("transpose", "part 1 of 2")),
            "Wd": Made("experts.down_proj", ("transpose",)),
        },
    ),
)
