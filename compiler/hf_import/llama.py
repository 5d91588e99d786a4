"""Llama and its kin: serial blocks, rmsnorm, rope, a gated feed-forward."""

from __future__ import annotations

from dataclasses import replace

from ...ir.dtype import Dtype
from .common import Sizes, read_activation, read_sizes
from .fields import Fields
from .rotary import rope
from .transformer import Biases, Block, Norm, Transformer


def llama(fields: Fields, dtype: Dtype) -> Transformer:
    """Llama 2 and 3, and what is built like them."""
    sizes = read_sizes(fields, kv_heads=None, head_dim=None, context=2048)
    attention, feed_forward = fields.flag("attention_bias", False), fields.flag("mlp_bias", False)
    model = _model(fields, "llama", dtype, sizes, tied=False)
    return replace(model, biases=Biases(qkv=attention, output=attention, feed_forward=feed_forward))


def mistral(fields: Fields, dtype: Dtype) -> Transformer:
    """Mistral, where no window hides earlier tokens."""
    sizes = read_sizes(fields, kv_heads=8, head_dim=None, context=131072)
    given = "sliding_window" in fields.entries
    if not given or fields.get("sliding_window") is not None:
        window = fields.count("sliding_window", 4096)
        if window < sizes.context:
            message = f"Attention reaches {window} tokens back of {sizes.context}; a sliding window is not supported."
            hint = f"for contexts within the window, set `max_position_embeddings` to {window}"
            fields.refuse("sliding_window", message, hint)
    return _model(fields, "mistral", dtype, sizes, tied=False)


def qwen2(fields: Fields, dtype: Dtype) -> Transformer:
    """Qwen 2 and 2.5: biases on queries, keys and values."""
    sizes = read_sizes(fields, kv_heads=32, head_dim=None, context=32768)
    _no_window(fields)
    return replace(_model(fields, "qwen2", dtype, sizes, tied=False), biases=Biases(qkv=True))


def qwen3(fields: Fields, dtype: Dtype) -> Transformer:
    """Qwen 3: norms on queries and keys."""
    sizes = read_sizes(fields, kv_heads=32, head_dim=128, context=32768)
    _no_window(fields)
    bias = fields.flag("attention_bias", False)
    model = _model(fields, "qwen3", dtype, sizes, tied=False)
    return replace(model, biases=Biases(qkv=bias, output=bias), qk_norm=True)


def gemma(fields: Fields, dtype: Dtype) -> Transformer:
    """Gemma, the first: scaled embeddings, and norms whose scale is stored less 1."""
    sizes = read_sizes(fields, kv_heads=16, head_dim=256, context=8192)
    bias = fields.flag("attention_bias", False)
    fields.inert(["hidden_act"])  # `transformers` reads the other one, and takes tanh gelu where it is missing
    model = _model(fields, "gemma", dtype, sizes, tied=True, activation=("hidden_activation", "gelu"))
    norm = replace(model.norm, offset=True)
    return replace(model, norm=norm, biases=Biases(qkv=bias, output=bias), scaled_embedding=True)


def _model(
    fields: Fields,
    architecture: str,
    dtype: Dtype,
    sizes: Sizes,
    tied: bool,
    activation: tuple[str, str] = ("hidden_act", "silu"),
) -> Transformer:
    """`tied` and `activation`, the latter with its field, where the config does not say."""
    return Transformer(
        architecture=architecture,
        dtype=dtype,
        layers=sizes.layers,
        model_dim=sizes.model_dim,
        ff_dim=fields.count("intermediate_size"),
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        vocabulary=sizes.vocabulary,
        context=sizes.context,
        norm=Norm("rmsnorm", fields.number("rms_norm_eps", 1e-6)),
        block=Block.SERIAL,
        activation=read_activation(fields, *activation),
        gated=True,
        tied=fields.flag("tie_word_embeddings", tied),
        rope=rope(fields, sizes.head_dim),
    )


def _no_window(fields: Fields) -> None:
    """A sliding window must be off; what else is said about it then does not count."""
    fields.inert(["sliding_window", "max_window_layers"])
    fields.must_be("use_sliding_window", [False], "attention within a sliding window is not supported")
    node = fields.get("layer_types")
    if node is None:
        return
    kinds = [item.value for item in node.value] if isinstance(node.value, tuple) else [node.value]
    if any(kind != "full_attention" for kind in kinds):
        fields.refuse("layer_types", "`layer_types` names layers that are not `full_attention`.")
