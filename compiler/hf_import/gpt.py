"""GPT-2, GPT-J, GPT-NeoX, OPT, Falcon, Phi and what else has layernorm, and mostly biases and a plain feed-forward."""

from __future__ import annotations

from dataclasses import replace

from ...passes.expansion.dims import MAX_SIZE
from .checkpoint_styles import CODEGEN_CHIPS
from .common import Defaults, Sizes, divided, even_sizes, read_activation, read_layers, read_sizes
from .description import Attention, Block, FeedForward, Layer, Norm, Norms, QueryNorm, Rope, Slopes, Stack
from .fields import Fields
from .llama import feed_forward, normed, plain_forward
from .rotary import rope

LAYER_NORM = Norm("layernorm", 1e-5, bias=True)  # as PyTorch has it
OF_RUNNERS = (  # how an engine for StarCoder computes the same
    *("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32", "inference_runner", "max_batch_size"),
    *("max_sequence_length", "pad_key_length", "pre_allocate_kv_cache", "validate_runner_input"),
)
GPT2_NAMES = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}


def gpt2(fields: Fields) -> Stack:
    """GPT-2: serial blocks, learned positions, one table that embeds and scores."""
    sizes, forward = _gpt_sizes(fields, 1024)
    fields.must_be(
        "scale_attn_by_inverse_layer_idx", [False], "scores that are scaled layer by layer are not supported"
    )
    attention = Attention(
        sizes.heads,
        sizes.heads,
        sizes.head_dim,
        bias=True,
        output_bias=True,
        scale=None if fields.flag("scale_attn_weights", True) else 1.0,
    )
    model = normed(fields, sizes, Layer(attention, forward), _norm(fields, "layer_norm_epsilon"), tied=True)
    return replace(model, places=sizes.context)


def gptj(fields: Fields) -> Stack:
    """GPT-J: blocks side by side with one norm, rope that turns neighbours of a part of each head, scores with a
    bias."""
    sizes, forward = _gpt_sizes(fields, 2048)
    turned = fields.count("rotary_dim", 64)
    fields.must_be("scale_attn_weights", [True], "scores are always scaled")
    fields.must_be("rotary", [True], "only models with rope are known here")
    if fields.complete and (turned > sizes.head_dim or turned % 2):
        fields.refuse("rotary_dim", f"Rope turns pairs, and here {turned} of the {sizes.head_dim} elements of a head.")
    attention = Attention(sizes.heads, sizes.heads, sizes.head_dim, Rope(10000.0, turned, halves=False))
    layer = Layer(attention, forward, Block.PARALLEL)
    model = normed(fields, sizes, layer, _norm(fields, "layer_norm_epsilon"), tied=False)
    return replace(model, head_bias=True)


def codegen(fields: Fields) -> Stack:
    """CodeGen: GPT-J, whose fused projection is made for four chips."""
    model = gptj(fields)
    heads = fields.count("n_head")
    if fields.complete and heads % CODEGEN_CHIPS:
        fields.refuse("n_head", f"{heads} does not divide into {CODEGEN_CHIPS} parts, as projections are stored.")
    return model


def gpt_bigcode(fields: Fields) -> Stack:
    """StarCoder and SantaCoder: GPT-2 all of whose heads share a key and a value."""
    sizes, forward = _gpt_sizes(fields, 1024)
    fields.inert(OF_RUNNERS)
    fields.must_be("scale_attn_weights", [True], "scores are always scaled")
    fields.must_be("multi_query", [True], "only heads that share a key and a value are known here")
    fields.must_be("num_key_value_heads", [1], "only heads that share a key and a value are known here")
    attention = Attention(sizes.heads, 1, sizes.head_dim, bias=True, output_bias=True)
    norm = _norm(fields, "layer_norm_epsilon")
    model = normed(fields, replace(sizes, kv_heads=1), Layer(attention, forward), norm, tied=True)
    return replace(model, places=sizes.context)


def gpt_neo(fields: Fields) -> Stack:
    """GPT-Neo: GPT-2 with scores that are not scaled, and windows on some layers."""
    named = {"num_attention_heads": "num_heads", "num_hidden_layers": "num_layers"}
    sizes = even_sizes(fields.renamed(named), 2048)
    window = fields.count("window_size", 256)
    kinds = fields.words("attention_layers", ("global", "local"), sizes.layers) or ["global"] * sizes.layers
    fields.inert(["attention_types"])  # which says the same
    width = fields.count("intermediate_size", 4 * sizes.model_dim, null=4 * sizes.model_dim)
    forward = FeedForward(width, read_activation(fields, "activation_function", "gelu"), gated=False, bias=True)
    attention = Attention(sizes.heads, sizes.heads, sizes.head_dim, output_bias=True, scale=1.0)
    near = replace(attention, window=window if window < sizes.context else None)
    layers = tuple(Layer(near if kind == "local" else attention, forward) for kind in kinds)
    model = normed(fields, sizes, layers, _norm(fields, "layer_norm_epsilon"), tied=True)
    return replace(model, places=sizes.context)


def _norm(fields: Fields, epsilon: str = "layer_norm_eps", offset: bool = False) -> Norm:
    """Layernorm with a shift; `epsilon`: the field that has its epsilon."""
    return Norm("layernorm", fields.number(epsilon, 1e-5), bias=True, offset=offset)


def _gpt_sizes(fields: Fields, context: int) -> tuple[Sizes, FeedForward]:
    """The sizes of a model, and its feed-forward, under the names that GPT-2 gave them. `context`: where the config
    does not say."""
    sizes, width = gpt_sizes(fields, context)
    found = read_activation(fields, "activation_function", "gelu")
    return sizes, FeedForward(width, found, gated=False, bias=True)


def gpt_sizes(fields: Fields, context: int) -> tuple[Sizes, int]:
    """The sizes of a model, and how wide its feed-forward is, by the same names."""
    model_dim = fields.count("n_embd", most=MAX_SIZE // 4)  # the feed-forward is 4 times as wide
    heads = fields.count("n_head")
    fields.inert(["n_ctx"])  # an older name of n_positions, no longer read
    for name, own in GPT2_NAMES.items():
        if name in fields.entries:
            fields.refuse(name, f"`{name}` is another name of `{own}` here.", f"write `{own}` alone")
    sizes = Sizes(
        layers=read_layers(fields, "n_layer"),
        model_dim=model_dim,
        heads=heads,
        kv_heads=heads,
        head_dim=divided(fields, "n_head", model_dim, heads, "heads"),
        vocabulary=fields.count("vocab_size"),
        context=fields.count("n_positions", context),
    )
    return sizes, fields.count("n_inner", 4 * model_dim, null=4 * model_dim)


def opt(fields: Fields) -> Stack:
    """OPT: serial blocks, relu, learned positions; OPT-350m has norms behind sums, and narrow embeddings."""
    sizes = even_sizes(fields, 2048)
    before, last = fields.flag("do_layer_norm_before", True), not fields.flag("_remove_final_layer_norm", False)
    fields.must_be("layer_norm_elementwise_affine", [True], "norms without a scale are not known here")
    narrow = fields.count("word_embed_proj_dim", sizes.model_dim, null=sizes.model_dim)
    bias = fields.flag("enable_bias", True)
    attention = Attention(sizes.heads, sizes.heads, sizes.head_dim, bias=bias, output_bias=bias)
    forward = plain_forward(fields, "relu", bias, "ffn_dim", "activation_function")
    layer = Layer(attention, forward, norms=Norms.BEFORE if before else Norms.SUM)
    model = normed(fields, sizes, layer, LAYER_NORM, tied=True)
    width = 0 if narrow == sizes.model_dim else narrow
    return replace(model, places=sizes.context, final_norm=before and last, embedding_width=width)


def gpt_neox(fields: Fields) -> Stack:
    """GPT-NeoX and Pythia: blocks side by side with a norm each, rope on a part of each head."""
    sizes = even_sizes(fields, 2048)
    heads, head_dim = sizes.heads, sizes.head_dim
    fields.inert(["num_key_value_heads"])  # every head has keys and values of its own
    bias, parallel = fields.flag("attention_bias", True), fields.flag("use_parallel_residual", True)
    # Heads are as wide as divides the model, but rope takes its share of `head_dim` where a config has one.
    turned = rope(fields, sizes, "rotary_emb_base", ("rotary_pct", 0.25), fields.count("head_dim", head_dim, head_dim))
    attention = Attention(heads, heads, head_dim, turned, bias=bias, output_bias=bias)
    block = Block.PARALLEL_TWO_NORMS if parallel else Block.SERIAL
    layer = Layer(attention, plain_forward(fields, None, bias=True), block)
    return normed(fields, sizes, layer, _norm(fields), tied=False)


def falcon(fields: Fields) -> Stack:
    """Falcon: blocks side by side with one norm and one kv-head (7B), or with a norm each and groups of heads (40B,
    180B); or serial ones."""
    sizes = even_sizes(fields, 2048)
    heads = sizes.heads
    newer, parallel = fields.flag("new_decoder_architecture", False), fields.flag("parallel_attn", True)
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
    sizes = replace(sizes, kv_heads=groups)
    bias, width = fields.flag("bias", False), 4 * sizes.model_dim
    fields.inert(["ff_factor"])  # by which `ffn_hidden_size` came to be
    slopes = Slopes(inside=True) if fields.flag("alibi", False) else None
    if slopes and 1 < groups < heads:
        fields.refuse("alibi", "Slopes of heads in groups are not known.")
    turned = rope(fields, sizes)
    attention = Attention(heads, groups, sizes.head_dim, None if slopes else turned, bias=bias, output_bias=bias)
    attention = replace(attention, slopes=slopes)
    width = fields.count("ffn_hidden_size", width, null=width, most=MAX_SIZE)
    forward = FeedForward(width, read_activation(fields, "activation", "gelu_exact"), gated=False, bias=bias)
    block = (Block.PARALLEL_TWO_NORMS if norms == 2 else Block.PARALLEL) if parallel else Block.SERIAL
    layer = Layer(attention, forward, block)
    return normed(fields, sizes, layer, _norm(fields, "layer_norm_epsilon"), tied=True)


def phi(fields: Fields) -> Stack:
    """Phi 1 and 2: blocks side by side with one norm, rope on a part of each head."""
    sizes = read_sizes(fields, Defaults(kv_heads=None, head_dim=None, context=2048))
    if (norms := fields.flag("qk_layernorm", False)) and sizes.head_dim * sizes.heads != sizes.model_dim:
        fields.refuse("qk_layernorm", "Norms are of heads that are as wide as divides the model.")
    turned = rope(fields, sizes, share=("partial_rotary_factor", 0.5))
    attention = Attention(sizes.heads, sizes.kv_heads, sizes.head_dim, turned, bias=True, output_bias=True)
    attention = replace(attention, query_norm=QueryNorm.LAYER if norms else QueryNorm.NONE)
    activation = read_activation(fields, "hidden_act", "gelu")
    forward = FeedForward(fields.count("intermediate_size", 8192), activation, gated=False, bias=True)
    model = normed(fields, sizes, Layer(attention, forward, Block.PARALLEL), _norm(fields), tied=False)
    return replace(model, head_bias=True)


def stablelm(fields: Fields) -> Stack:
    """StableLM: layernorm, a gated feed-forward, rope on a part of each head, and maybe norms of each head or blocks
    side by side."""
    sizes = read_sizes(fields, Defaults(kv_heads=32, head_dim=None, context=4096))
    fields.must_be("rotary_scaling_factor", [1, 1.0], "rope is scaled by `rope_scaling`")
    fields.inert(["norm_eps", "rope_pct"])  # older names of fields that stand beside them
    turned = rope(fields, sizes, share=("partial_rotary_factor", 0.25))
    bias = fields.flag("use_qkv_bias", False)
    norm = QueryNorm.OWN if fields.flag("qk_layernorm", False) else QueryNorm.NONE
    attention = Attention(sizes.heads, sizes.kv_heads, sizes.head_dim, turned, bias=bias, query_norm=norm)
    block = Block.PARALLEL if fields.flag("use_parallel_residual", False) else Block.SERIAL
    return normed(fields, sizes, Layer(attention, feed_forward(fields), block), _norm(fields), tied=False)


def persimmon(fields: Fields) -> Stack:
    """Persimmon: serial blocks, norms with a shift on queries and keys, the square of relu."""
    heads = fields.count("num_attention_heads")
    sizes = read_sizes(fields, Defaults(kv_heads=heads, head_dim=None, context=16384))
    turned = rope(fields, sizes, share=("partial_rotary_factor", 0.5))
    norm = QueryNorm.LAYER if fields.flag("qk_layernorm", True) else QueryNorm.NONE
    attention = Attention(heads, heads, sizes.head_dim, turned, bias=True, output_bias=True, query_norm=norm)
    layer = Layer(attention, plain_forward(fields, "relu2", bias=True))
    return normed(fields, sizes, layer, _norm(fields), tied=False)


def nemotron(fields: Fields) -> Stack:
    """Nemotron: layernorm by scales that are stored less 1, the square of relu, rope on half of each head."""
    sizes = read_sizes(fields, Defaults(kv_heads=None, head_dim=None, context=4096))
    turned = rope(fields, sizes, share=("partial_rotary_factor", 0.5))
    bias = fields.flag("attention_bias", False)
    attention = Attention(sizes.heads, sizes.kv_heads, sizes.head_dim, turned, bias=bias, output_bias=bias)
    layer = Layer(attention, plain_forward(fields, "relu2", fields.flag("mlp_bias", False)))
    fields.inert(["kv_channels", "layer_norm_eps", "rope_percent"])  # names of other programs for the same
    return normed(fields, sizes, layer, _norm(fields, "norm_eps", offset=True), tied=False)
