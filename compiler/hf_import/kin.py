"""What is built like Llama but for a norm, a window, a bias or a multiplier: Phi-3, OLMo, EXAONE, GLM-4, Cohere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .common import FULL, WINDOW, Defaults, Sizes, kinds_of, read_kinds, read_sizes
from .description import Attention, Block, Experts, FeedForward, Layer, Norm, Norms, QueryNorm, Stack
from .fields import Fields
from .llama import biased_heads, by_kind, feed_forward, heads_of, normed, plain_forward, read_window, stacked
from .rotary import heated, number_text, rope, ropes_by_kind

# What the configs of Phi-3 and Phi-4 that see or hear have beside the text, which the adapters of their weights leave.
BESIDE_PHI3 = ("embd_layer", "img_processor", "audio_processor", "vision_lora", "speech_lora")


def ministral(fields: Fields) -> Stack:
    """Ministral: Mistral, some of whose layers look through a window."""
    sizes = read_sizes(fields, Defaults(kv_heads=8, head_dim=None, context=131072), kinds=None)
    window = read_window(fields, sizes, 4096)
    kinds = read_kinds(fields, sizes.layers, (FULL, WINDOW)) or [WINDOW] * sizes.layers
    layers = by_kind(heads_of(fields, sizes), feed_forward(fields), kinds, window)
    return stacked(fields, sizes, layers)


def ministral3(fields: Fields) -> Stack:
    """Ministral 3: queries grow with their place, from what the model was first trained for on."""
    sizes = read_sizes(fields, Defaults(kv_heads=8, head_dim=128, context=262144))
    attention = replace(heads_of(fields, sizes), window=read_window(fields, sizes, None), heated=heated(fields))
    return stacked(fields, sizes, Layer(attention, feed_forward(fields)), epsilon=1e-5)


def phi3(fields: Fields) -> Stack:
    """Phi-3 and Phi-4: rope on a part of each head, scaled pair by pair where it is; fused projections."""
    fields.inert(BESIDE_PHI3)
    fields.must_be("full_attn_mod", [1], "layers that see but some tokens are not known here")
    fields.must_be("interpolate_factor", [1], "positions that are interpolated are not known here")
    sizes = read_sizes(fields, Defaults(kv_heads=None, head_dim=None, context=4096))
    original = fields.count("original_max_position_embeddings", 4096)
    turned = rope(fields, sizes, share=("partial_rotary_factor", 1.0), original=original)
    window = read_window(fields, sizes, None)
    attention = Attention(sizes.heads, sizes.kv_heads, sizes.head_dim, turned, window=window)
    return stacked(fields, sizes, Layer(attention, feed_forward(fields)), epsilon=1e-5)


def olmo2(fields: Fields) -> Stack:
    """OLMo 2: norms behind attention and feed-forward, and over all heads of queries and keys."""
    sizes = read_sizes(fields, Defaults(kv_heads=None, head_dim=None, context=2048))
    attention = biased_heads(fields, sizes, QueryNorm.ALL)
    return stacked(fields, sizes, Layer(attention, feed_forward(fields), norms=Norms.AFTER), epsilon=1e-5)


def olmo3(fields: Fields) -> Stack:
    """OLMo 3: OLMo 2, three layers of four looking through a window; only the others scale their rope."""
    sizes = read_sizes(fields, Defaults(kv_heads=None, head_dim=None, context=2048), kinds=None)
    bias = fields.flag("attention_bias", False)
    # `transformers` takes `rope_theta` for the layers that see all tokens alone.
    turned = ropes_by_kind(fields, sizes, {FULL: ("rope_theta", 5e5), WINDOW: ("", 5e5)}, FULL)
    plain = Attention(sizes.heads, sizes.kv_heads, sizes.head_dim, bias=bias, output_bias=bias)
    attention, forward = replace(plain, query_norm=QueryNorm.ALL), feed_forward(fields)
    window = read_window(fields, sizes, 4096)
    kinds = kinds_of(fields, sizes.layers, 4)
    reach = {FULL: None, WINDOW: window}
    layers = tuple(
        Layer(replace(attention, rope=turned[k], window=reach[k]), forward, norms=Norms.AFTER) for k in kinds
    )
    return stacked(fields, sizes, layers, epsilon=1e-5)


def helium(fields: Fields) -> Stack:
    """Helium: Llama with rope that turns neighbours."""
    sizes = read_sizes(fields, Defaults(kv_heads=20, head_dim=128, context=4096))
    bias, turned = fields.flag("attention_bias", False), replace(rope(fields, sizes, default_base=1e5), halves=False)
    attention = Attention(sizes.heads, sizes.kv_heads, sizes.head_dim, turned, bias=bias)
    forward = replace(feed_forward(fields), bias=fields.flag("mlp_bias", False))
    return stacked(fields, sizes, Layer(attention, forward), epsilon=1e-8)


def exaone4(fields: Fields) -> Stack:
    """EXAONE 4: norms behind attention and feed-forward, and of each head."""
    sizes, attention = exaone_heads(fields)
    forward = feed_forward(fields)
    layers = tuple(Layer(own, forward, norms=Norms.AFTER) for own in attention)
    return stacked(fields, sizes, layers, epsilon=1e-5)


def exaone_heads(fields: Fields) -> tuple[Sizes, list[Attention]]:
    """The sizes and the attention of each layer of EXAONE 4: of the larger ones three layers of four look through a
    window, and the others have no positions."""
    sizes = read_sizes(fields, Defaults(kv_heads=32, head_dim=None, context=2048), kinds=None)
    window, kinds = read_window(fields, sizes, 4096), read_kinds(fields, sizes.layers, (FULL, WINDOW))
    fields.inert(["reorder_and_qk_norm"])  # which it always does
    hybrid = "sliding_window" not in fields.entries or fields.get("sliding_window") is not None
    if kinds is None:
        every = fields.count("sliding_window_pattern", 4) if hybrid else 1
        kinds = [FULL if (at + 1) % every == 0 else WINDOW for at in range(sizes.layers)]
    fields.inert(["sliding_window_pattern"])
    near = replace(heads_of(fields, sizes), query_norm=QueryNorm.HEAD)
    attention = {WINDOW: replace(near, window=window), FULL: replace(near, rope=None) if hybrid else near}
    return sizes, [attention[kind] for kind in kinds]


def apertus(fields: Fields) -> Stack:
    """Apertus: norms of each head, and a feed-forward without a gate by xIELU."""
    sizes = read_sizes(fields, Defaults(kv_heads=None, head_dim=None, context=65536))
    fields.must_be("qk_norm", [True], "only models with norms on queries and keys are known here")
    fields.must_be("post_norm", [False], "only norms before attention and feed-forward are known here")
    fields.must_be("mlp_bias", [False], "biases of feed-forwards are not known here")
    turned = rope(fields, sizes, default_base=1.2e7, default_scaling="llama3(8, 1, 4, 8192)")
    bias = fields.flag("attention_bias", False)
    attention = Attention(sizes.heads, sizes.kv_heads, sizes.head_dim, turned, bias=bias, output_bias=bias)
    activation = fields.choice("hidden_act", {"xielu": "xielu"}, "xielu")
    forward = FeedForward(fields.count("intermediate_size", 14336), activation, gated=False)
    return stacked(fields, sizes, Layer(replace(attention, query_norm=QueryNorm.HEAD), forward), epsilon=1e-5)


OF_HUNYUAN = (  # what its configs have of tokens, and of models that classify or have experts
    *("add_classification_head", "class_num", "dense_list", "pool_type", "eod_token_id", "im_start_id", "im_end_id"),
    *("mask_init_id", "org_vocab_size", "pad_id", "text_start_id", "text_end_id", "cla_share_factor", "moe_topk"),
    *("anyres_pooling_size", "anyres_vit_max_image_size", "anyres_vit_two_views", "capacity_factor"),
    *("moe_drop_tokens", "moe_random_routing_dropped_token", "vision_start_id", "vision_end_id", "video_start_id"),
    *("video_end_id", "num_media_embeds", "skip_cls_token", "max_image_size", "min_image_size", "image_token_id"),
    *("mask_attn",),
)


def hunyuan_dense(fields: Fields) -> Stack:
    """Hunyuan of 0.5B to 7B: norms of each head behind rope."""
    fields.must_be("num_experts", [0, 1], "experts are not known here")
    fields.must_be("use_mixed_mlp_moe", [False], "experts are not known here")
    sizes, attention = hunyuan_heads(fields)
    return stacked(fields, sizes, Layer(attention, feed_forward(fields)), epsilon=1e-5)


def hunyuan_heads(fields: Fields) -> tuple[Sizes, Attention]:
    """The sizes and the attention of Hunyuan, with experts or without."""
    fields.inert(OF_HUNYUAN)
    for name in ("use_qk_norm", "use_rotary_pos_emb"):
        fields.must_be(name, [True], "only models that have that are known")
    for name in ("use_cla", "use_mla", "position_embedding_xdrope", "mlp_bias"):
        fields.must_be(name, [False], "only models without that are known")
    fields.must_be("norm_type", ["rms"], "only rmsnorm is known here")
    sizes = read_sizes(fields, Defaults(kv_heads=None, head_dim=None, context=2048))
    fields.must_be("attention_head_dim", [sizes.head_dim], "it is another than `head_dim`")
    bias = fields.flag("attention_bias", False)
    attention = replace(heads_of(fields, sizes), bias=bias, output_bias=bias, query_norm=QueryNorm.TURNED)
    return sizes, attention


def olmo(fields: Fields) -> Stack:
    """OLMo, the first: layernorm without a scale, and maybe queries, keys and values that are cut off."""
    sizes = read_sizes(fields, Defaults(kv_heads=None, head_dim=None, context=2048))
    attention = replace(biased_heads(fields, sizes), clip=fields.optional("clip_qkv"))
    norm = Norm("layernorm", 1e-5, scaled=False)
    return normed(fields, sizes, Layer(attention, feed_forward(fields)), norm, tied=False)


def seed_oss(fields: Fields) -> Stack:
    """Seed-OSS: biases on queries, keys and values."""
    sizes = read_sizes(fields, Defaults(kv_heads=8, head_dim=128, context=524288))
    bias, output = fields.flag("attention_bias", True), fields.flag("attention_out_bias", False)
    attention = replace(heads_of(fields, sizes), bias=bias, output_bias=output)
    forward = replace(feed_forward(fields), bias=fields.flag("mlp_bias", False))
    return stacked(fields, sizes, Layer(attention, forward))


def ernie4_5(fields: Fields) -> Stack:
    """ERNIE 4.5: rope that turns neighbours."""
    sizes = read_sizes(fields, Defaults(kv_heads=2, head_dim=128, context=131072))
    bias, turned = fields.flag("use_bias", False), replace(rope(fields, sizes, default_base=5e5), halves=False)
    attention = Attention(sizes.heads, sizes.kv_heads, sizes.head_dim, turned, bias=bias, output_bias=bias)
    forward = replace(feed_forward(fields), bias=bias)
    return stacked(fields, sizes, Layer(attention, forward), tied=True, epsilon=1e-5)


def glm(fields: Fields) -> Stack:
    """GLM-4 9B: rope that turns neighbours of half of each head."""
    sizes, layer = _glm_layer(fields)
    return stacked(fields, sizes, layer, epsilon=1.5625e-7)


def glm4(fields: Fields) -> Stack:
    """GLM-4 of 2025: the same with norms before and behind attention and feed-forward."""
    sizes, layer = _glm_layer(fields)
    return stacked(fields, sizes, replace(layer, norms=Norms.BOTH), epsilon=1.5625e-7)


def glm4v(fields: Fields) -> Stack:
    """The text of GLM-4.1V: GLM-4 of 2025, always with biases."""
    fields.inert(["attention_bias"])  # which it does not read
    sizes, layer = _glm_layer(fields, always=True)
    return stacked(fields, sizes, replace(layer, norms=Norms.BOTH), epsilon=1e-5)


def _glm_layer(fields: Fields, always: bool = False) -> tuple[Sizes, Layer]:
    """Sizes, and a layer, `always` with biases on queries, keys and values, or as the config says."""
    sizes = read_sizes(fields, Defaults(kv_heads=2, head_dim=128, context=131072))
    turned = replace(rope(fields, sizes, share=("partial_rotary_factor", 0.5)), halves=False)
    bias = always or fields.flag("attention_bias", True)
    attention = Attention(sizes.heads, sizes.kv_heads, sizes.head_dim, turned, bias=bias)
    return sizes, Layer(attention, feed_forward(fields))


def granite(fields: Fields) -> Stack:
    """Granite: embeddings, scores, residuals and logits are multiplied by numbers of the config."""
    forward = replace(feed_forward(fields), bias=fields.flag("mlp_bias", False))
    return multiplied(fields, forward)


def multiplied(
    fields: Fields, forward: FeedForward | Experts, turned: bool = True, kinds: Sequence[str] | None = (FULL,)
) -> Stack:
    """A model as Granite is, of any feed-forward. `turned`: whether it has rope. `kinds`: of layers that may be
    named."""
    sizes = read_sizes(fields, Defaults(kv_heads=None, head_dim=None, context=2048), kinds)
    attention = replace(biased_heads(fields, sizes), scale=fields.optional("attention_multiplier", 1.0) or 1.0)
    attention = attention if turned else replace(attention, rope=None)
    layer = Layer(attention, forward, residual=fields.number("residual_multiplier", 1.0))
    model = stacked(fields, sizes, layer)
    factor = fields.number("embedding_multiplier", 1.0)
    embedding = "" if factor == 1 else number_text(factor)
    return replace(model, embedding=embedding, logit_scale=1 / fields.number("logits_scaling", 1.0))


def smollm3(fields: Fields) -> Stack:
    """SmolLM3: every fourth layer has no positions."""
    sizes = read_sizes(fields, Defaults(kv_heads=4, head_dim=None, context=32768), kinds=None)
    every = fields.count("no_rope_layer_interval", 4)
    ropes = fields.flags("no_rope_layers", sizes.layers)  # 1 where a layer has rope, for all its name
    ropes = ropes or [(at + 1) % every != 0 for at in range(sizes.layers)]
    bias, used = fields.flag("attention_bias", False), fields.flag("use_sliding_window", False)
    window = read_window(fields, sizes, None) if used else None
    kinds = read_kinds(fields, sizes.layers, (FULL, WINDOW))
    kinds = kinds or [WINDOW if used and window is not None and not one else FULL for one in ropes]
    fields.inert(["sliding_window", "max_window_layers"])
    turned = rope(fields, sizes, default_base=2e6)
    attention = Attention(sizes.heads, sizes.kv_heads, sizes.head_dim, bias=bias, output_bias=bias)
    forward = replace(feed_forward(fields), bias=fields.flag("mlp_bias", False))
    layers = tuple(
        Layer(replace(attention, rope=turned if one else None, window=window if k == WINDOW else None), forward)
        for one, k in zip(ropes, kinds, strict=True)
    )
    return stacked(fields, sizes, layers, tied=True)


def cwm(fields: Fields) -> Stack:
    """Code World Model: Llama 3, three layers of four of which look through a window."""
    sizes = read_sizes(fields, Defaults(kv_heads=8, head_dim=128, context=131072), kinds=None)
    turned = rope(fields, sizes, default_base=1e6, default_scaling="llama3(16, 1, 4, 8192)")
    kinds = read_kinds(fields, sizes.layers, (FULL, WINDOW))
    kinds = kinds or [WINDOW if at % 4 else FULL for at in range(sizes.layers)]
    attention = Attention(sizes.heads, sizes.kv_heads, sizes.head_dim, turned)
    forward = replace(feed_forward(fields), bias=fields.flag("mlp_bias", False))
    layers = by_kind(attention, forward, kinds, read_window(fields, sizes, 8192))
    return stacked(fields, sizes, layers, epsilon=1e-5)


def iquestcoder(fields: Fields) -> Stack:
    """IQuest-Coder: Llama with other sizes, where the config does not say."""
    sizes = read_sizes(fields, Defaults(kv_heads=8, head_dim=128, context=131072))
    fields.must_be("clip_qkv", [], "queries, keys and values that are cut off are not known here")
    attention = biased_heads(fields, sizes)
    forward = replace(feed_forward(fields), bias=fields.flag("mlp_bias", False))
    return stacked(fields, sizes, Layer(attention, forward), epsilon=1e-5)


def hyperclovax(fields: Fields) -> Stack:
    """HyperCLOVA X: Granite with norms on both sides, whose logits are multiplied and not divided."""
    after = fields.flag("use_post_norm", True)
    heads, width = fields.count("num_attention_heads"), fields.count("hidden_size")
    said = fields.get("attention_multiplier") is not None
    forward = replace(feed_forward(fields), bias=fields.flag("mlp_bias", False))
    model = multiplied(fields, forward)
    scale = fields.number("attention_multiplier") if said else max(1, width // max(1, heads)) ** -0.5
    layers = tuple(
        replace(layer, norms=Norms.BOTH if after else Norms.BEFORE, attention=_with_scale(layer, scale))
        for layer in model.layers
    )
    return replace(model, layers=layers, logit_scale=fields.number("logits_scaling", 1.0))


def _with_scale(layer: Layer, scale: float) -> Attention:
    assert isinstance(layer.attention, Attention)
    return replace(layer.attention, scale=scale)


def starcoder2(fields: Fields) -> Stack:
    """StarCoder 2: layernorm, biases, a plain feed-forward, and maybe a window."""
    sizes = read_sizes(fields, Defaults(kv_heads=2, head_dim=None, context=4096))
    fields.must_be("norm_type", ["layer_norm"], "only layernorm is known here")
    fields.must_be("mlp_type", ["default"], "only the plain feed-forward is known here")
    bias, window = fields.flag("use_bias", True), read_window(fields, sizes, None)
    attention = replace(heads_of(fields, sizes), bias=bias, output_bias=bias, window=window)
    layer = Layer(attention, plain_forward(fields, "gelu", bias))
    norm = Norm("layernorm", fields.number("norm_epsilon", 1e-5), bias=True)
    return normed(fields, sizes, layer, norm, tied=True)


def cohere(fields: Fields) -> Stack:
    """Command R: attention and feed-forward side by side, rope that turns neighbours, scaled logits."""
    sizes = read_sizes(fields, Defaults(kv_heads=None, head_dim=None, context=8192))
    bias, norms = fields.flag("attention_bias", False), fields.flag("use_qk_norm", False)
    turned = replace(rope(fields, sizes, default_base=5e5), halves=False)
    attention = Attention(sizes.heads, sizes.kv_heads, sizes.head_dim, turned, bias=bias, output_bias=bias)
    attention = replace(attention, query_norm=QueryNorm.OWN if norms else QueryNorm.NONE)
    return _parallel(fields, sizes, [attention] * sizes.layers)


def cohere2(fields: Fields) -> Stack:
    """Command R7B and A: three layers of four look through a window, the others have no positions."""
    sizes = read_sizes(fields, Defaults(kv_heads=None, head_dim=None, context=8192), kinds=None)
    every = fields.count("sliding_window_pattern", 4)
    bias, window = fields.flag("attention_bias", False), read_window(fields, sizes, 4096)
    kinds = kinds_of(fields, sizes.layers, every)
    turned = replace(rope(fields, sizes), halves=False)
    plain = Attention(sizes.heads, sizes.kv_heads, sizes.head_dim, bias=bias, output_bias=bias)
    near = replace(plain, rope=turned, window=window)
    fields.inert(["cache_implementation", "order_of_interleaved_layers", "rotary_pct", "layer_switch"])
    fields.inert(["_sliding_window_pattern"])  # what `layer_types` came from
    return _parallel(fields, sizes, [near if k == WINDOW else plain for k in kinds])


def _parallel(fields: Fields, sizes: Sizes, attentions: Sequence[Attention]) -> Stack:
    forward = feed_forward(fields)
    fields.must_be("position_embedding_type", ["rope_gptj"], "only rope that turns neighbours is known here")
    for name in ("use_embedding_sharing", "use_gated_activation", "use_parallel_block", "use_parallel_embedding"):
        fields.must_be(name, [True], "that is always so here")
    layers = tuple(Layer(attention, forward, Block.PARALLEL) for attention in attentions)
    norm = Norm("layernorm", fields.number("layer_norm_eps", 1e-5))
    model = normed(fields, sizes, layers, norm, tied=True)
    return replace(model, logit_scale=fields.number("logit_scale", 0.0625))
