"""GPT-2, GPT-NeoX, Falcon and Phi: layernorm, biases, a plain feed-forward."""

from __future__ import annotations

from ...ir.dtype import Dtype
from ...passes.expansion.dims import MAX_SIZE
from .common import Defaults, Sizes, divided, read_activation, read_layers, read_sizes
from .description import Attention, Block, FeedForward, Layer, Norm, Transformer
from .fields import Fields
from .rotary import rope

GPT2_NAMES = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}


def gpt2(fields: Fields, dtype: Dtype) -> Transformer:
    """GPT-2: serial blocks, learned positions, one table that embeds and scores."""
    model_dim = fields.count("n_embd", most=MAX_SIZE // 4)  # the feed-forward is 4 times as wide
    heads, places = fields.count("n_head"), fields.count("n_positions", 1024)
    fields.inert(["n_ctx"])  # an older name of n_positions, no longer read
    for name, own in GPT2_NAMES.items():
        if name in fields.entries:
            fields.refuse(name, f"`{name}` is another name of `{own}` here.", f"write `{own}` alone")
    fields.must_be(
        "scale_attn_by_inverse_layer_idx", [False], "scores that are scaled layer by layer are not supported"
    )
    attention = Attention(
        heads=heads,
        kv_heads=heads,
        head_dim=divided(fields, "n_head", model_dim, heads, "heads"),
        bias=True,
        output_bias=True,
        scale=None if fields.flag("scale_attn_weights", True) else 1.0,
    )
    width = fields.count("n_inner", 4 * model_dim, null=4 * model_dim)
    layers = read_layers(fields, "n_layer")
    forward = FeedForward(width, read_activation(fields, "activation_function", "gelu"), gated=False, bias=True)
    return Transformer(
        architecture="gpt2",
        dtype=dtype,
        model_dim=model_dim,
        vocabulary=fields.count("vocab_size"),
        context=places,
        norm=Norm("layernorm", fields.number("layer_norm_epsilon", 1e-5), bias=True),
        layers=(Layer(attention, forward),) * layers,
        tied=fields.flag("tie_word_embeddings", True),
        places=places,
    )


def gpt_neox(fields: Fields, dtype: Dtype) -> Transformer:
    """GPT-NeoX and Pythia: blocks side by side with a norm each, rope on a part of each head."""
    model_dim, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    head_dim = divided(fields, "num_attention_heads", model_dim, heads, "heads")
    fields.inert(["num_key_value_heads"])  # every head has keys and values of its own
    sizes = Sizes(
        layers=read_layers(fields, "num_hidden_layers"),
        model_dim=model_dim,
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        vocabulary=fields.count("vocab_size"),
        context=fields.count("max_position_embeddings", 2048),
    )
    bias, parallel = fields.flag("attention_bias", True), fields.flag("use_parallel_residual", True)
    # Heads are as wide as divides the model, but rope takes its share of `head_dim` where a config has one.
    turned = rope(fields, sizes, "rotary_emb_base", ("rotary_pct", 0.25), fields.count("head_dim", head_dim, head_dim))
    attention = Attention(heads, heads, head_dim, turned, bias=bias, output_bias=bias)
    forward = FeedForward(
        fields.count("intermediate_size"), read_activation(fields, "hidden_act"), gated=False, bias=True
    )
    block = Block.PARALLEL_TWO_NORMS if parallel else Block.SERIAL
    return Transformer(
        architecture="gpt_neox",
        dtype=dtype,
        model_dim=sizes.model_dim,
        vocabulary=sizes.vocabulary,
        context=sizes.context,
        norm=Norm("layernorm", fields.number("layer_norm_eps", 1e-5), bias=True),
        layers=(Layer(attention, forward, block),) * sizes.layers,
        tied=fields.flag("tie_word_embeddings", False),
    )


def falcon(fields: Fields, dtype: Dtype) -> Transformer:
    """Falcon: blocks side by side with one norm and one kv-head (7B), or with a norm each and groups of heads (40B,
    180B); or serial ones."""
    model_dim, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    newer, parallel = fields.flag("new_decoder_architecture", False), fields.flag("parallel_attn", True)
    fields.must_be("alibi", [False], "positions that are added to scores are not supported")
    fields.must_be("apply_residual_connection_post_layernorm", [False], "what norms make is not added to")
    single, norms = fields.flag("multi_query", True), fields.count("num_ln_in_parallel_attn", 1 + newer, 1 + newer)
    if norms != 1 and not (newer and norms == 2):
        fields.refuse("num_ln_in_parallel_attn", f"Blocks with {norms} norms are not understood here.")
    if newer and not parallel:
        fields.refuse("parallel_attn", "Blocks of the newer kind stand side by side.")
    groups = fields.count("num_kv_heads", heads, heads)
    if not newer:
        if not single and groups != heads:
            fields.refuse("num_kv_heads", f"{heads} heads have a key each, and there are to be {groups}.")
        groups = 1 if single else heads
    divided(fields, "num_kv_heads", heads, groups, "kv-heads")
    sizes = Sizes(
        layers=read_layers(fields, "num_hidden_layers"),
        model_dim=model_dim,
        heads=heads,
        kv_heads=groups,
        head_dim=divided(fields, "num_attention_heads", model_dim, heads, "heads"),
        vocabulary=fields.count("vocab_size"),
        context=fields.count("max_position_embeddings", 2048),
    )
    bias, width = fields.flag("bias", False), 4 * model_dim
    attention = Attention(heads, groups, sizes.head_dim, rope(fields, sizes), bias=bias, output_bias=bias)
    width = fields.count("ffn_hidden_size", width, null=width, most=MAX_SIZE)
    forward = FeedForward(width, read_activation(fields, "activation", "gelu_exact"), gated=False, bias=bias)
    block = (Block.PARALLEL_TWO_NORMS if norms == 2 else Block.PARALLEL) if parallel else Block.SERIAL
    return Transformer(
        architecture="falcon",
        dtype=dtype,
        model_dim=model_dim,
        vocabulary=sizes.vocabulary,
        context=sizes.context,
        norm=Norm("layernorm", fields.number("layer_norm_epsilon", 1e-5), bias=True),
        layers=(Layer(attention, forward, block),) * sizes.layers,
        tied=fields.flag("tie_word_embeddings", True),
    )


def phi(fields: Fields, dtype: Dtype) -> Transformer:
    """Phi 1 and 2: blocks side by side with one norm, rope on a part of each head."""
    sizes = read_sizes(fields, Defaults(kv_heads=None, head_dim=None, context=2048))
    fields.must_be("qk_layernorm", [False], "norms on queries and keys are not supported here")
    turned = rope(fields, sizes, share=("partial_rotary_factor", 0.5))
    attention = Attention(sizes.heads, sizes.kv_heads, sizes.head_dim, turned, bias=True, output_bias=True)
    activation = read_activation(fields, "hidden_act", "gelu")
    forward = FeedForward(fields.count("intermediate_size", 8192), activation, gated=False, bias=True)
    return Transformer(
        architecture="phi",
        dtype=dtype,
        model_dim=sizes.model_dim,
        vocabulary=sizes.vocabulary,
        context=sizes.context,
        norm=Norm("layernorm", fields.number("layer_norm_eps", 1e-5), bias=True),
        layers=(Layer(attention, forward, Block.PARALLEL),) * sizes.layers,
        tied=fields.flag("tie_word_embeddings", False),
        head_bias=True,
    )
