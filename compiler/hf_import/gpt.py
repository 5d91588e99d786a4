"""GPT-2, GPT-NeoX and Phi: layernorm, biases, a plain feed-forward."""

from __future__ import annotations

from ...ir.dtype import Dtype
from .common import divided, read_activation, read_layers, read_sizes
from .fields import Fields
from .rotary import rope
from .transformer import Biases, Block, Norm, Transformer


def gpt2(fields: Fields, dtype: Dtype) -> Transformer:
    """GPT-2: serial blocks, learned positions, one table that embeds and scores."""
    model_dim, heads, places = fields.count("n_embd"), fields.count("n_head"), fields.count("n_positions", 1024)
    fields.inert(["n_ctx"])  # an older name of n_positions, no longer read
    fields.must_be(
        "scale_attn_by_inverse_layer_idx", [False], "scores that are scaled layer by layer are not supported"
    )
    return Transformer(
        architecture="gpt2",
        dtype=dtype,
        layers=read_layers(fields, "n_layer"),
        model_dim=model_dim,
        ff_dim=fields.count("n_inner", 4 * model_dim),
        heads=heads,
        kv_heads=heads,
        head_dim=divided(fields, "n_head", model_dim, heads, "heads"),
        vocabulary=fields.count("vocab_size"),
        context=places,
        norm=Norm("layernorm", fields.number("layer_norm_epsilon", 1e-5), bias=True),
        block=Block.SERIAL,
        activation=read_activation(fields, "activation_function", "gelu"),
        gated=False,
        tied=fields.flag("tie_word_embeddings", True),
        biases=Biases(qkv=True, output=True, feed_forward=True),
        places=places,
        scaled_scores=fields.flag("scale_attn_weights", True),
    )


def gpt_neox(fields: Fields, dtype: Dtype) -> Transformer:
    """GPT-NeoX and Pythia: blocks side by side with a norm each, rope on a part of each head."""
    sizes = read_sizes(fields, kv_heads=None, head_dim=None, context=2048)
    bias, parallel = fields.flag("attention_bias", True), fields.flag("use_parallel_residual", True)
    return Transformer(
        architecture="gpt_neox",
        dtype=dtype,
        layers=sizes.layers,
        model_dim=sizes.model_dim,
        ff_dim=fields.count("intermediate_size"),
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        vocabulary=sizes.vocabulary,
        context=sizes.context,
        norm=Norm("layernorm", fields.number("layer_norm_eps", 1e-5), bias=True),
        block=Block.PARALLEL_TWO_NORMS if parallel else Block.SERIAL,
        activation=read_activation(fields, "hidden_act"),
        gated=False,
        tied=fields.flag("tie_word_embeddings", False),
        biases=Biases(qkv=bias, output=bias, feed_forward=True),
        rope=rope(fields, sizes.head_dim, base="rotary_emb_base", share=("rotary_pct", 0.25)),
    )


def phi(fields: Fields, dtype: Dtype) -> Transformer:
    """Phi 1 and 2: blocks side by side with one norm, rope on a part of each head."""
    sizes = read_sizes(fields, kv_heads=None, head_dim=None, context=2048)
    fields.must_be("qk_layernorm", [False], "norms on queries and keys are not supported here")
    return Transformer(
        architecture="phi",
        dtype=dtype,
        layers=sizes.layers,
        model_dim=sizes.model_dim,
        ff_dim=fields.count("intermediate_size", 4 * sizes.model_dim),
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        vocabulary=sizes.vocabulary,
        context=sizes.context,
        norm=Norm("layernorm", fields.number("layer_norm_eps", 1e-5), bias=True),
        block=Block.PARALLEL,
        activation=read_activation(fields, "hidden_act", "gelu"),
        gated=False,
        tied=fields.flag("tie_word_embeddings", False),
        biases=Biases(qkv=True, output=True, feed_forward=True, head=True),
        rope=rope(fields, sizes.head_dim, share=("partial_rotary_factor", 0.5)),
    )
