"""Models whose scores fall with how far back a key stands, in place of positions (ALiBi): Bloom, MPT and Jais."""

from __future__ import annotations

from dataclasses import replace

from ...passes.expansion.dims import MAX_SIZE
from .common import Sizes, divided, nested, read_activation, read_layers
from .description import Attention, FeedForward, Layer, Norm, Slopes, Stack
from .fields import Fields
from .gpt import gpt_sizes
from .llama import normed
from .rotary import number_text

OF_MEGATRON = (  # how the program in which Bloom was trained computes the same
    *("attention_softmax_in_fp32", "bias_dropout_fusion", "masked_softmax_fusion", "offset_alibi", "skip_bias_add"),
    *("skip_bias_add_qkv", "slow_but_exact"),
)


def bloom(fields: Fields) -> Stack:
    """Bloom: layernorm, biases, and a norm behind the embeddings."""
    wide = "hidden_size" if "hidden_size" in fields.entries else "n_embed"
    model_dim, heads = fields.count(wide, most=MAX_SIZE // 4), fields.count("n_head")
    for name, same in (("n_embed", model_dim), ("num_attention_heads", heads)):
        if fields.get(name) is not None and fields.count(name) != same and fields.complete:
            fields.refuse(name, f"`{name}` is not {same:,}, as another field says.")
    fields.must_be("apply_residual_connection_post_layernorm", [False], "what norms make is not added to")
    fields.inert(OF_MEGATRON)
    sizes = Sizes(
        layers=read_layers(fields, "n_layer"),
        model_dim=model_dim,
        heads=heads,
        kv_heads=heads,
        head_dim=divided(fields, "n_head", model_dim, heads, "heads"),
        vocabulary=fields.count("vocab_size"),
        context=fields.count("seq_length", 2048),
    )
    attention = Attention(heads, heads, sizes.head_dim, bias=True, output_bias=True, slopes=Slopes())
    layer = Layer(attention, FeedForward(4 * model_dim, "gelu", gated=False, bias=True))
    norm = Norm("layernorm", fields.number("layer_norm_epsilon", 1e-5), bias=True)
    return replace(normed(fields, sizes, layer, norm, tied=True), embedding_norm=True)


def mpt(fields: Fields) -> Stack:
    """MPT: layernorm without a shift, no biases, queries, keys and values that may be cut off."""
    model_dim, heads = fields.count("d_model", most=MAX_SIZE // 64), fields.count("n_heads")
    fields.must_be("no_bias", [True], "biases are not known here")
    fields.must_be("norm_type", ["low_precision_layernorm", "layernorm"], "only layernorm is known here")
    fields.must_be("logit_scale", [], "scores that are scaled are not known here")
    fields.must_be("embedding_fraction", [1.0, 1], "it is of training")
    fields.must_be("learned_pos_emb", [True], "positions are learned, or stand in scores")
    fields.inert(["init_config", "init_device", "tokenizer_name", "verbose"])
    part = nested(fields, "attn_config")
    part.must_be("alibi", [True], "only scores that fall with distance are known here")
    part.must_be("qk_ln", [False], "norms on queries and keys are not known here")
    part.must_be("prefix_lm", [False], "only models in which a token sees none after it are known")
    part.must_be("attn_type", ["multihead_attention"], "only heads with keys of their own are known")
    part.must_be("alibi_bias_max", [8], "only slopes down to 2^-8 are known here")
    part.inert(["attn_impl", "attn_pdrop", "attn_uses_sequence_id"])
    sizes = Sizes(
        layers=read_layers(fields, "n_layers"),
        model_dim=model_dim,
        heads=heads,
        kv_heads=heads,
        head_dim=divided(fields, "n_heads", model_dim, heads, "heads"),
        vocabulary=fields.count("vocab_size"),
        context=fields.count("max_seq_len", 2048),
    )
    attention = Attention(
        heads,
        heads,
        sizes.head_dim,
        scale=part.optional("softmax_scale"),
        clip=part.optional("clip_qkv"),
        slopes=Slopes(),
    )
    part.refuse_unknown()
    fields.must_be("expansion_ratio", [4], "only feed-forwards that are four times as wide are known here")
    layer = Layer(attention, FeedForward(4 * model_dim, "gelu_exact", gated=False))
    norm = Norm("layernorm", fields.number("layer_norm_epsilon", 1e-5))
    return normed(fields, sizes, layer, norm, tied=True)


def jais(fields: Fields) -> Stack:
    """Jais: GPT-2 with ALiBi, a gated feed-forward, and embeddings, scores and logits that are scaled (muP)."""
    activation = fields.get("activation_function")
    gated = activation is not None and activation.value == "swiglu"
    fields.inert(["activation_function"] if gated else [])
    sizes, width = gpt_sizes(fields, 2048)
    fields.must_be("position_embedding_type", ["alibi"], "only scores that fall with distance are known here")
    fields.must_be("scale_attn_weights", [True], "scores are always scaled")
    fields.must_be("alibi_scaling", [], "slopes that change with the length are not known here")
    older = "width_scale" in fields.entries  # later ones have names that begin with `mup`
    whole = fields.flag("scale_qk_dot_by_d" if older else "mup_scale_qk_dot_by_d", False)
    attention = Attention(
        sizes.heads,
        sizes.heads,
        sizes.head_dim,
        bias=True,
        output_bias=True,
        scale=1 / sizes.head_dim if whole else None,
        slopes=Slopes(),
    )
    kind = "silu" if gated else read_activation(fields, "activation_function", "gelu")
    forward = FeedForward(width, kind, gated=gated, bias=True)
    norm = Norm("layernorm", fields.number("layer_norm_epsilon", 1e-5), bias=True)
    model = normed(fields, sizes, Layer(attention, forward), norm, tied=True)
    scale = fields.number("embeddings_scale" if older else "mup_embeddings_scale", 1.0)
    logits = fields.number("width_scale" if older else "mup_width_scale", 1.0)
    logits *= 1.0 if older else fields.number("mup_output_alpha", 1.0)
    return replace(model, embedding="" if scale == 1 else number_text(scale), logit_scale=logits)
