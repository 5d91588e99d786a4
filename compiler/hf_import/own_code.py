"""Dense models whose checkpoints bring code of their own: InternLM, Baichuan, MiniCPM, ChatGLM, EXAONE 3, Qwen 1, MiMo.

What they compute is what that code does, as it was published; where they keep to Llama, only names differ.
"""

from __future__ import annotations

import math
from dataclasses import replace

from .common import Defaults, Sizes, divided, read_layers, read_sizes
from .description import Attention, FeedForward, Layer, Norm, Rope, Slopes, Stack
from .fields import Fields
from .latent import latent_sizes, read_latent
from .llama import feed_forward, heads_of, llama, normed, qwen2, stacked
from .rotary import number_text, rope

LLAMA_7B = 4096  # how wide the model is: of Baichuan's two sizes the one with rope
BAICHUAN_2 = 125696  # its vocabulary: of the models that divide what makes scores by its length


def internlm(fields: Fields) -> Stack:
    """InternLM: Llama with biases in attention."""
    part = fields.part("rotary")
    base = 10000.0
    if part is not None:
        part.must_be("type", ["origin", "dynamic"], "that scaling is not known here")
        base = part.number("base", base)
        part.refuse_unknown()
    sizes = read_sizes(fields, Defaults(kv_heads=None, head_dim=None, context=2048))
    bias = fields.flag("bias", True)
    attention = Attention(sizes.heads, sizes.kv_heads, sizes.head_dim, Rope(base, sizes.head_dim), bias, bias)
    return stacked(fields, sizes, Layer(attention, feed_forward(fields)))


def internlm2(fields: Fields) -> Stack:
    """InternLM 2 and 2.5: Llama with queries, keys and values in one matrix, kv-head by kv-head."""
    sizes = read_sizes(fields, Defaults(kv_heads=None, head_dim=None, context=2048))
    bias = fields.flag("bias", True)
    attention = replace(heads_of(fields, sizes), bias=bias, output_bias=bias)
    return stacked(fields, sizes, Layer(attention, feed_forward(fields)))


def internlm3(fields: Fields) -> Stack:
    """InternLM 3: Llama, whose switches of biases have other names."""
    fields = fields.renamed({"attention_bias": "qkv_bias", "mlp_bias": "bias"})
    sizes = read_sizes(fields, Defaults(kv_heads=2, head_dim=128, context=32768))
    bias = fields.flag("attention_bias", False)
    attention = replace(heads_of(fields, sizes), bias=bias, output_bias=bias)
    forward = replace(feed_forward(fields), bias=fields.flag("mlp_bias", False))
    return stacked(fields, sizes, Layer(attention, forward), epsilon=1e-5)


def baichuan(fields: Fields) -> Stack:
    """Baichuan: Llama; the larger one with ALiBi, the second version with scores by columns that have length 1."""
    fields.inert(["max_position_embeddings", "model_max_length"])
    heads, model_dim = fields.count("num_attention_heads"), fields.count("hidden_size")
    name = "max_position_embeddings" if "max_position_embeddings" in fields.entries else "model_max_length"
    sizes = Sizes(
        layers=read_layers(fields, "num_hidden_layers"),
        model_dim=model_dim,
        heads=heads,
        kv_heads=heads,
        head_dim=divided(fields, "num_attention_heads", model_dim, heads, "heads"),
        vocabulary=fields.count("vocab_size"),
        context=fields.count(name, 4096),
    )
    attention = Attention(heads, heads, sizes.head_dim)
    if model_dim == LLAMA_7B:
        attention = replace(attention, rope=rope(fields, sizes))
    else:
        attention = replace(attention, slopes=Slopes())
    model = stacked(fields, sizes, Layer(attention, feed_forward(fields)))
    return replace(model, head_norm=sizes.vocabulary == BAICHUAN_2)


def minicpm(fields: Fields) -> Stack:
    """MiniCPM 1 to 4: Llama with embeddings, residuals and logits that are scaled by depth and width."""
    fields.inert(["mup_denominator"])  # of training
    return _scaled(fields, llama(fields))


def minicpm3(fields: Fields) -> Stack:
    """MiniCPM 3: latent attention without experts, scaled likewise."""
    sizes = latent_sizes(fields, 32768, turned=32)
    value = sizes.model_dim // sizes.heads
    latent = read_latent(fields, sizes, 768, interleaved=False, mscale=False, dims=(64, value), rank=256)
    return _scaled(fields, stacked(fields, sizes, Layer(latent, feed_forward(fields)), tied=True, epsilon=1e-5))


def _scaled(fields: Fields, model: Stack) -> Stack:
    """A model whose embeddings, residuals and logits are scaled (MiniCPM, arXiv:2404.06395, table 1)."""
    tied = "tie_word_embeddings" not in fields.entries or model.tied
    embedding, depth = fields.number("scale_emb", 12.0), fields.number("scale_depth", 1.4)
    residual = depth / math.sqrt(len(model.layers))
    base = fields.count("dim_model_base", 256, null=model.model_dim)
    layers = tuple(replace(layer, residual=residual) for layer in model.layers)
    scale = "" if embedding == 1 else number_text(embedding)
    return replace(model, layers=layers, embedding=scale, logit_scale=base / model.model_dim, tied=tied)


CHATGLM = {
    "num_hidden_layers": "num_layers",
    "intermediate_size": "ffn_hidden_size",
    "max_position_embeddings": "seq_length",
    "vocab_size": "padded_vocab_size",
    "head_dim": "kv_channels",
    "rms_norm_eps": "layernorm_epsilon",
}
OF_CHATGLM = (  # how the program in which it was trained computes the same
    *("apply_query_key_layer_scaling", "attention_softmax_in_fp32", "bias_dropout_fusion", "fp32_residual_connection"),
    *("quantization_bit", "pre_seq_len", "prefix_projection", "num_hidden_layers", "vocab_size"),
)


def chatglm(fields: Fields) -> Stack:
    """ChatGLM 2 and 3, GLM-4 9B: rope that turns neighbours of half of each head; fused projections."""
    fields.inert(OF_CHATGLM)
    fields.must_be("rmsnorm", [True], "only rmsnorm is known here")
    fields.must_be("original_rope", [True], "only rope that turns neighbours is known here")
    fields.must_be("post_layer_norm", [True], "only models with a norm behind the last layer are known")
    fields.must_be("apply_residual_connection_post_layernorm", [False], "what norms make is not added to")
    fields.must_be("add_bias_linear", [False], "biases of feed-forwards are not known here")
    base = 10000.0 * fields.number("rope_ratio", 1.0)
    own = fields.renamed(CHATGLM)
    groups = "multi_query_group_num" if fields.flag("multi_query_attention", False) else "num_attention_heads"
    fields.inert(["multi_query_group_num"])
    sizes = read_sizes(own.renamed({"num_key_value_heads": groups}), Defaults(None, None, 2048))
    turned = Rope(base, sizes.head_dim // 2, halves=False)
    attention = Attention(sizes.heads, sizes.kv_heads, sizes.head_dim, turned, bias=fields.flag("add_qkv_bias", False))
    layer = Layer(attention, FeedForward(own.count("intermediate_size"), "silu"))
    return stacked(own, sizes, layer, epsilon=1e-5)


EXAONE = {"num_hidden_layers": "num_layers", "hidden_act": "activation_function", "rms_norm_eps": "layer_norm_epsilon"}


def exaone(fields: Fields) -> Stack:
    """EXAONE 3 and 3.5: Llama by the names of GPT-2."""
    own = fields.renamed(EXAONE)
    sizes = read_sizes(own, Defaults(kv_heads=None, head_dim=None, context=2048))
    return stacked(own, sizes, Layer(heads_of(own, sizes), feed_forward(own)), epsilon=1e-5)


OF_QWEN = (
    *("bf16", "fp16", "fp32", "onnx_safe", "softmax_in_fp32", "use_cache_quantization", "use_cache_kernel"),
    *("use_dynamic_ntk", "use_logn_attn", "max_position_embeddings"),  # of contexts longer than trained on
    "visual",  # of Qwen-VL
)


def qwen(fields: Fields) -> Stack:
    """Qwen, the first: biases on queries, keys and values; the gate and what it gates are each half as wide as said."""
    fields.inert(OF_QWEN)
    fields.must_be("no_bias", [True], "biases of other projections are not known here")
    fields.must_be("scale_attn_weights", [True], "scores are always scaled")
    fields.must_be("rotary_pct", [1, 1.0], "rope turns all of a head")
    heads, model_dim = fields.count("num_attention_heads"), fields.count("hidden_size")
    sizes = Sizes(
        layers=read_layers(fields, "num_hidden_layers"),
        model_dim=model_dim,
        heads=heads,
        kv_heads=heads,
        head_dim=fields.count("kv_channels", 128),
        vocabulary=fields.count("vocab_size"),
        context=fields.count("seq_length", 2048),
    )
    turned = rope(fields, sizes, base="rotary_emb_base")
    width = divided(fields, "intermediate_size", fields.count("intermediate_size"), 2, "halves")
    attention = Attention(heads, heads, sizes.head_dim, turned, bias=True)
    norm = Norm("rmsnorm", fields.number("layer_norm_epsilon", 1e-6))
    return normed(fields, sizes, Layer(attention, FeedForward(width, "silu")), norm, tied=False)


def mimo(fields: Fields) -> Stack:
    """MiMo 7B: Qwen 2, beside which layers that guess more tokens stand."""
    fields.must_be("attention_bias", [True], "only models with biases on queries, keys and values are known here")
    return qwen2(fields)


def orion(fields: Fields) -> Stack:
    """Orion: Llama with layernorm."""
    fields.inert(["max_sequence_length"])  # of training
    sizes = read_sizes(fields, Defaults(kv_heads=None, head_dim=None, context=4096))
    bias = fields.flag("attention_bias", False)
    attention = replace(heads_of(fields, sizes), bias=bias, output_bias=bias)
    norm = Norm("layernorm", fields.number("rms_norm_eps", 1e-5), bias=True)
    return normed(fields, sizes, Layer(attention, feed_forward(fields)), norm, tied=False)
