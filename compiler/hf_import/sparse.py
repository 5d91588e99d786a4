"""Further mixtures of experts: Hunyuan, AFMoE, K-EXAONE, MiMo-V2, Ling, DeepSeekMoE, Granite 4, DBRX, Arctic, Grok."""

from __future__ import annotations

from dataclasses import replace

from .common import (
    FULL,
    MOST_LAYERS,
    WINDOW,
    Defaults,
    Sizes,
    divided,
    kinds_of,
    nested,
    read_activation,
    read_layers,
    read_sizes,
)
from .description import Attention, Experts, FeedForward, Gate, Layer, Norms, QueryNorm, Router, Stack
from .experts import after_dense, check_counts, corrected
from .fields import Fields
from .gemma import SCALED
from .gpt import LAYER_NORM
from .kin import exaone_heads, hunyuan_heads, multiplied
from .llama import heads_of, normed, read_window, stacked
from .rotary import number_text, rope, ropes_by_kind


def _same(fields: Fields, name: str, layers: int, default: int) -> int:
    """A number that a config says once, or for each layer, and always the same."""
    node = fields.get(name)
    if node is None or not isinstance(node.value, tuple):
        return fields.count(name, default)
    found = fields.numbers(name)
    if fields.complete and (len(set(found)) != 1 or len(found) != layers or not found[0].is_integer()):
        fields.refuse(name, f"`{name}` must be one number for all {layers:,} layers.")
    return int(found[0]) if found else 1


def hunyuan_moe(fields: Fields) -> Stack:
    """Hunyuan A13B: an expert that all tokens take, and softmax over all others."""
    sizes, attention = hunyuan_heads(fields)
    for name in ("group_limited_greedy", "n_group", "topk_group", "routed_scaling_factor"):
        fields.must_be(name, [False], "only models without that are known here")
    fields.must_be("norm_topk_prob", [True], "weights add to 1 here")
    fields.must_be("use_mixed_mlp_moe", [True], "only models with an expert that all tokens take are known")
    fields.must_be("moe_layer_num_skipped", [0], "only models with experts in all layers are known")
    width = fields.count("intermediate_size")
    if _same(fields, "moe_intermediate_size", sizes.layers, width) != width:
        fields.refuse("moe_intermediate_size", f"`moe_intermediate_size` is not {width:,}, as `intermediate_size` is.")
    if _same(fields, "num_shared_expert", sizes.layers, 1) != 1:
        fields.refuse("num_shared_expert", "Only one expert that all tokens take is known here.")
    count, kept = fields.count("num_experts", 1), _same(fields, "moe_topk", sizes.layers, 1)
    check_counts(fields, ("num_local_experts",), "moe_topk", count, kept)
    fields.must_be("num_experts_per_tok", [kept], f"`moe_topk` is {kept}")
    activation = read_activation(fields, "hidden_act", "silu")
    experts = Experts(count, kept, width, activation, Router("softmax", normalised=True), shared=width)
    return stacked(fields, sizes, Layer(attention, experts), epsilon=1e-5)


def afmoe(fields: Fields) -> Stack:
    """AFMoE (Trinity): norms on both sides, heads that are gated, three layers of four with a window and rope."""
    sizes = read_sizes(fields, Defaults(kv_heads=None, head_dim=128, context=16384), kinds=None)
    kinds = kinds_of(fields, sizes.layers, fields.count("global_attn_every_n_layers", 4))
    window, bias = read_window(fields, sizes, 1024), fields.flag("attention_bias", False)
    plain = Attention(sizes.heads, sizes.kv_heads, sizes.head_dim, bias=bias, output_bias=bias, gate=Gate.ELEMENT)
    plain = replace(plain, query_norm=QueryNorm.HEAD)
    near = replace(plain, rope=rope(fields, sizes), window=window)
    for name in ("n_group", "topk_group", "num_expert_groups", "num_limited_groups"):
        fields.must_be(name, [1], "groups of experts are not known here")
    fields.must_be("score_func", ["sigmoid"], "only sigmoid scores are known")
    fields.must_be("route_norm", [True], "weights add to 1 here")
    fields.inert(["load_balance_coeff"])  # of training
    count, kept = fields.count("num_experts", 64), fields.count("num_experts_per_tok", 6)
    check_counts(fields, ("num_local_experts",), "num_experts_per_tok", count, kept)
    width, activation = fields.count("moe_intermediate_size", 1408), read_activation(fields, "hidden_act", "silu")
    router = Router("sigmoid", normalised=True, factor=fields.number("route_scale", 1.0), correction=True)
    shared = width * fields.count("num_shared_experts", 2)
    experts = Experts(count, kept, width, activation, router, shared=shared)
    dense = FeedForward(fields.count("intermediate_size"), activation)
    first = fields.whole("num_dense_layers", 1)
    layers = tuple(
        Layer(near if kind == WINDOW else plain, dense if at < first else experts, norms=Norms.BOTH)
        for at, kind in enumerate(kinds)
    )
    model = stacked(fields, sizes, layers, epsilon=1e-5)
    return replace(model, embedding=SCALED if fields.flag("mup_enabled", False) else "")


def exaone_moe(fields: Fields) -> Stack:
    """K-EXAONE: EXAONE 4 with norms before attention, and experts as of DeepSeek-V3."""
    sizes, attention = exaone_heads(fields)
    fields.must_be("first_last_k_dense_replace", [0], "only the first layers may be dense")
    fields.inert(["is_moe_layer"])  # which `mlp_layer_types` says
    own = fields.renamed({"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts"})
    experts = corrected(own, (64, 8, 1024), 2.5, (1, 1))
    return after_dense(fields, sizes, attention, experts, 1, epsilon=1e-5)


def mimo_v2(fields: Fields) -> Stack:
    """MiMo-V2-Flash: five layers of six look through a window, and have sinks, a rope of their own, and twice as many
    kv-heads; values are narrower than keys, and scaled."""
    sizes = read_sizes(fields, Defaults(kv_heads=4, head_dim=192, context=262144), kinds=None)
    pattern = fields.flags("hybrid_layer_pattern", sizes.layers)
    kinds = [WINDOW if one else FULL for one in pattern] if pattern else kinds_of(fields, sizes.layers, 6)
    if pattern is None and fields.get("layer_types") is None:
        kinds[0] = FULL
    fields.inert(["layer_types", "hybrid_block_size", "attention_chunk_size"])
    for name, alone in (("add_full_attention_sink_bias", False), ("add_swa_attention_sink_bias", True)):
        fields.must_be(name, [alone], f"only models where it is {str(alone).lower()} are known")
    bias, groups = fields.flag("attention_bias", False), fields.count("swa_num_key_value_heads", 2 * sizes.kv_heads)
    for name, same in (("swa_num_attention_heads", sizes.heads), ("swa_head_dim", sizes.head_dim)):
        fields.must_be(name, [same], "layers with windows have such heads as the others here")
    value = fields.count("v_head_dim", 128)
    fields.must_be("swa_v_head_dim", [value], "layers with windows have such values as the others here")
    share = fields.number("partial_rotary_factor", 0.334)
    bases = {FULL: ("rope_theta", 5e6), WINDOW: ("swa_rope_theta", 1e4)}
    turned = ropes_by_kind(fields, sizes, bases, FULL, share)
    window = _window(fields, sizes)
    whole = Attention(sizes.heads, sizes.kv_heads, sizes.head_dim, turned[FULL], bias=bias, value_dim=value)
    whole = replace(whole, value_scale=fields.optional("attention_value_scale", 0.707) or 1.0)
    divided(fields, "swa_num_key_value_heads", sizes.heads, groups, "kv-heads")
    part = replace(whole, kv_heads=groups, rope=turned[WINDOW], window=window, sinks=True)
    frequency = fields.flags("moe_layer_freq", sizes.layers)
    own = fields.renamed({"rms_norm_eps": "layernorm_epsilon"})
    experts = corrected(own, (256, 8, 2048), 1.0, (1, 1), shared=0)
    words = fields.words("mlp_layer_types", ("dense", "sparse"), sizes.layers)
    sparse = [word == "sparse" for word in words] if words else frequency or [at > 0 for at in range(sizes.layers)]
    dense = FeedForward(fields.count("intermediate_size"), experts.activation)
    layers = tuple(
        Layer(part if kind == WINDOW else whole, experts if one else dense)
        for kind, one in zip(kinds, sparse, strict=True)
    )
    return stacked(own, sizes, layers, epsilon=1e-5)


def _window(fields: Fields, sizes: Sizes) -> int | None:
    """How many tokens back a query sees: `sliding_window_size` leaves its own out, `sliding_window` counts it."""
    if fields.get("sliding_window_size") is not None:
        fields.inert(["sliding_window"])
        window = fields.count("sliding_window_size") + 1
        return window if window < sizes.context else None
    return read_window(fields, sizes, 129)


OF_BAILING = ("num_shared_experts", "norm_softmax", "multi_gate", "max_window_layers", "sliding_window", "rotary_dim")


def _bailing_heads(fields: Fields) -> tuple[Sizes, Attention]:
    sizes = read_sizes(fields, Defaults(kv_heads=None, head_dim=None, context=32768))
    for name in ("use_sliding_window", "use_qkv_bias", "use_bias", "multi_gate", "norm_softmax"):
        fields.must_be(name, [False], "only models without that are known")
    fields.must_be("use_rmsnorm", [True], "only rmsnorm is known here")
    fields.inert((*OF_BAILING, "using_split_qkv_in_self_attention", "router_type"))
    return sizes, Attention(sizes.heads, sizes.kv_heads, sizes.head_dim)


def bailing(fields: Fields) -> Stack:
    """Ling and Ring of the first version: attention as of Llama, experts weighed by their softmax."""
    sizes, attention = _bailing_heads(fields)
    attention = replace(attention, rope=rope(fields, sizes))
    count, kept = fields.count("num_experts"), fields.count("num_experts_per_tok")
    check_counts(fields, ("num_local_experts",), "num_experts_per_tok", count, kept)
    width, activation = fields.count("moe_intermediate_size"), read_activation(fields, "hidden_act", "silu")
    router = Router("softmax", normalised=fields.flag("norm_topk_prob", True))
    shared = width * fields.whole("num_shared_experts", 0)
    experts = Experts(count, kept, width, activation, router, shared=shared)
    model = after_dense(fields, sizes, [attention] * sizes.layers, experts, 0)
    return replace(model, head_norm=fields.flag("norm_head", False))


def bailing_v2(fields: Fields) -> Stack:
    """Ling and Ring 2.0: norms of each head, rope on a part of it, experts as of DeepSeek-V3."""
    sizes, attention = _bailing_heads(fields)
    turned = rope(fields, sizes, share=("partial_rotary_factor", 1.0))
    norm = QueryNorm.HEAD if fields.flag("use_qk_norm", True) else QueryNorm.NONE
    attention = replace(attention, rope=turned, query_norm=norm)
    fields.must_be("moe_router_enable_expert_bias", [True], "only scores with a correction are known")
    fields.must_be("score_function", ["sigmoid"], "only sigmoid scores are known")
    fields.must_be("norm_head", [False], "only models without that are known")
    width = fields.count("moe_intermediate_size")
    factor = fields.number("routed_scaling_factor", fields.number("moe_router_topk_scaling_factor", 1.0))
    own = fields.renamed({"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts"})
    experts = corrected(own, (None, None, width), factor, (1, 1), shared=0)
    shared = fields.count("moe_shared_expert_intermediate_size", width)
    experts = replace(experts, shared=shared * (experts.shared // width))
    return after_dense(fields, sizes, [attention] * sizes.layers, experts, 0)


MAMBA = (  # what Granite 4 says of layers that it may have
    *("mamba_chunk_size", "mamba_conv_bias", "mamba_d_conv", "mamba_d_head", "mamba_d_state", "mamba_expand"),
    *("mamba_n_groups", "mamba_n_heads", "mamba_proj_bias", "time_step_limit", "time_step_min", "time_step_max"),
    *("init_method", "normalization_function"),
)


def granite_hybrid(fields: Fields) -> Stack:
    """Granite 4 all of whose layers are attention: a feed-forward that all tokens take, and maybe experts beside it."""
    fields.inert((*MAMBA, "layers_block_type"))
    layers = fields.count("num_hidden_layers", most=MOST_LAYERS)
    name = "layer_types" if "layer_types" in fields.entries else "layers_block_type"
    kinds = fields.words(name, ("attention", "full_attention", "mamba"), layers)
    if kinds is None or "mamba" in kinds:
        message = "`granitemoehybrid` has state-space layers, which are not understood."
        fields.refuse(name, message)
    turned = fields.choice("position_embedding_type", {"rope": True, "nope": False}, False, null=False)
    return multiplied(fields, _shared(fields), turned, kinds=None)


def granite_shared(fields: Fields) -> Stack:
    """Granite with experts and one that all tokens take."""
    return multiplied(fields, _shared(fields))


def _shared(fields: Fields) -> FeedForward | Experts:
    """A feed-forward that all tokens take, and beside it experts, where there are any."""
    fields.inert(["num_experts_per_tok", "intermediate_size", "num_experts"])
    count, activation = fields.whole("num_local_experts", 8), read_activation(fields, "hidden_act", "silu")
    if count == 0:
        return FeedForward(fields.count("shared_intermediate_size", 1024), activation)
    shared, kept = fields.whole("shared_intermediate_size", 1024), fields.count("num_experts_per_tok", 2)
    check_counts(fields, ("num_experts",), "num_experts_per_tok", count, kept)
    width, router = fields.count("intermediate_size"), Router("softmax", normalised=True)
    return Experts(count, kept, width, activation, router, shared=shared)


def dbrx(fields: Fields) -> Stack:
    """DBRX: layernorm without a shift, queries, keys and values that are cut off, experts weighed by their softmax."""
    model_dim, heads = fields.count("d_model"), fields.count("n_heads")
    said, forward = nested(fields, "attn_config"), nested(fields, "ffn_config")
    groups = said.count("kv_n_heads", 1)
    sizes = Sizes(
        layers=read_layers(fields, "n_layers"),
        model_dim=model_dim,
        heads=heads,
        kv_heads=groups,
        head_dim=divided(fields, "n_heads", model_dim, heads, "heads"),
        vocabulary=fields.count("vocab_size"),
        context=fields.count("max_seq_len", 2048),
    )
    divided(fields, "n_heads", heads, groups, "kv-heads")
    fields.must_be("num_key_value_heads", [groups], f"`kv_n_heads` is {groups}")
    base = said.number("rope_theta", 1e4)
    turned = rope(fields, sizes, default_base=base)
    attention = Attention(heads, groups, sizes.head_dim, turned, clip=said.optional("clip_qkv"))
    said.inert(["attn_pdrop"])
    said.refuse_unknown()
    count, kept = forward.count("moe_num_experts", 4), forward.count("moe_top_k", 1)
    check_counts(forward, (), "moe_top_k", count, kept)
    forward.must_be("moe_normalize_expert_weights", [1, 1.0], "weights add to 1 here")
    forward.must_be("hidden_size", [model_dim], f"`d_model` is {model_dim:,}")
    forward.inert(["moe_jitter_eps", "moe_loss_weight"])
    act = forward.part("ffn_act_fn")
    activation = "silu" if act is None else read_activation(act, "name", "silu")
    width = forward.count("ffn_hidden_size", 3584)
    forward.refuse_unknown()
    experts = Experts(count, kept, width, activation, Router("softmax", normalised=True))
    norm = replace(LAYER_NORM, bias=False)
    return normed(fields, sizes, Layer(attention, experts), norm, tied=False)


OF_ARCTIC = (  # how its program trains and places experts, or packs tokens
    *("enable_expert_tensor_parallelism", "enc_index", "max_sequence_length", "moe_eval_capacity_factor"),
    *("moe_min_capacity", "moe_token_dropping", "moe_train_capacity_factor"),
)


def arctic(fields: Fields) -> Stack:
    """Arctic: a dense feed-forward as wide as the model, and experts beside it of what the layer is given."""
    sizes = read_sizes(fields, Defaults(kv_heads=None, head_dim=None, context=4096))
    fields.inert(OF_ARCTIC)
    fields.must_be("parallel_attn_mlp_res", [True], "only experts of what the layer is given are known here")
    fields.must_be("use_residual", [True], "only models with a dense feed-forward are known here")
    fields.must_be("moe_layer_frequency", [1], "only models with experts in all layers are known here")
    fields.must_be("quantization", [], "weights that its own program packs are not known")
    attention = replace(heads_of(fields, sizes), window=read_window(fields, sizes, None))
    count, kept = fields.count("num_local_experts", 8), fields.count("num_experts_per_tok", 2)
    check_counts(fields, ("num_experts",), "num_experts_per_tok", count, kept)
    width, activation = fields.count("intermediate_size"), read_activation(fields, "hidden_act", "silu")
    experts = Experts(count, kept, width, activation, Router("softmax", normalised=kept > 1))
    layer = Layer(attention, FeedForward(sizes.model_dim, activation), beside=experts)
    return stacked(fields, sizes, layer, epsilon=1e-5)


def grok(fields: Fields) -> Stack:
    """Grok-1: norms on both sides, capped scores, experts by an exact gelu, weighed by their softmax over all."""
    sizes = read_sizes(fields, Defaults(kv_heads=None, head_dim=None, context=8192))
    attention = replace(
        heads_of(fields, sizes),
        scale=fields.number("attn_output_multiplier", 1.0),
        cap=fields.optional("max_attn_value", 30.0),
    )
    count, kept = fields.count("num_experts", 8), fields.count("num_experts_per_tok", 2)
    check_counts(fields, ("num_local_experts",), "num_experts_per_tok", count, kept)
    width = fields.count("intermediate_size")
    experts = Experts(count, kept, width, "gelu_exact", Router("softmax", normalised=False))
    model = stacked(fields, sizes, Layer(attention, experts, norms=Norms.BOTH), tied=True, epsilon=1e-5)
    embedding = number_text(fields.number("embedding_multiplier_scale", 1.0))
    return replace(model, embedding=embedding, logit_scale=fields.number("output_multiplier_scale", 1.0))


def sarvam_moe(fields: Fields) -> Stack:
    """Sarvam 30B: norms of each head, and experts as of DeepSeek-V3, by the names of Ling."""
    named = {"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts"}
    named |= {"attention_bias": "use_qkv_bias"}
    own = fields.renamed({a: b for a, b in named.items() if b in fields.entries and a not in fields.entries})
    sizes = read_sizes(own, Defaults(kv_heads=4, head_dim=64, context=131072))
    own.must_be("moe_router_enable_expert_bias", [True], "only scores with a correction are known")
    own.must_be("score_function", ["sigmoid"], "only sigmoid scores are known")
    turned = rope(own, sizes, share=("partial_rotary_factor", 1.0), default_base=8e6)
    norm = QueryNorm.HEAD if own.flag("use_qk_norm", True) else QueryNorm.NONE
    attention = Attention(sizes.heads, sizes.kv_heads, sizes.head_dim, turned, bias=own.flag("attention_bias", False))
    experts = corrected(own, (128, 6, 1024), 2.5, (1, 1))
    return after_dense(own, sizes, [replace(attention, query_norm=norm)] * sizes.layers, experts, 1)


def hy_v3(fields: Fields) -> Stack:
    """Hunyuan 3: norms of each head, and experts chosen by sigmoid scores with a correction."""
    sizes = read_sizes(fields, Defaults(kv_heads=8, head_dim=128, context=131072))
    fields.must_be("mlp_bias", [False], "biases of feed-forwards are not known here")
    fields.inert(["enable_moe_fp32_combine"])  # it moves roundings only
    bias, turned = fields.flag("attention_bias", False), rope(fields, sizes, default_base=11158840.0)
    attention = Attention(sizes.heads, sizes.kv_heads, sizes.head_dim, turned, bias=bias, output_bias=bias)
    attention = replace(attention, query_norm=QueryNorm.HEAD)
    named = {"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts"}
    own = fields.renamed(named | {"routed_scaling_factor": "router_scaling_factor"})
    experts = corrected(own, (192, 8, 1536), 2.826, (1, 1))
    return after_dense(fields, sizes, [attention] * sizes.layers, experts, 1, epsilon=1e-5)
