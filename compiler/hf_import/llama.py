"""Llama and its kin: serial blocks, rmsnorm, rope, a gated feed-forward."""

from __future__ import annotations

from dataclasses import replace

from ...ir.dtype import Dtype
from .common import Biases, Block, Defaults, Norm, Sizes, Transformer, read_activation, read_sizes
from .fields import Fields
from .rotary import rope


def llama(fields: Fields, dtype: Dtype) -> Transformer:
    """Llama 2 and 3, and what is built like them."""
    sizes = read_sizes(fields, Defaults(kv_heads=None, head_dim=None, context=2048))
    attention, feed_forward = fields.flag("attention_bias", False), fields.flag("mlp_bias", False)
    model = _model(fields, "llama", dtype, sizes, tied=False)
    return replace(model, biases=Biases(qkv=attention, output=attention, feed_forward=feed_forward))


def mistral(fields: Fields, dtype: Dtype) -> Transformer:
    """Mistral, where no window hides earlier tokens."""
    sizes = read_sizes(fields, Defaults(kv_heads=8, head_dim=None, context=131072))
    _refuse_window(fields, sizes)
    return _model(fields, "mistral", dtype, sizes, tied=False)


def qwen2(fields: Fields, dtype: Dtype) -> Transformer:
    """Qwen 2 and 2.5: biases on queries, keys and values."""
    sizes = read_sizes(fields, Defaults(kv_heads=32, head_dim=None, context=32768))
    _check_layers_with_window(fields, sizes)
    return replace(_model(fields, "qwen2", dtype, sizes, tied=False), biases=Biases(qkv=True))


def qwen3(fields: Fields, dtype: Dtype) -> Transformer:
    """Qwen 3: norms on queries and keys."""
    sizes = read_sizes(fields, Defaults(kv_heads=32, head_dim=128, context=32768))
    _check_layers_with_window(fields, sizes)
    bias = fields.flag("attention_bias", False)
    model = _model(fields, "qwen3", dtype, sizes, tied=False)
    return replace(model, biases=Biases(qkv=bias, output=bias), qk_norm=True)


def gemma(fields: Fields, dtype: Dtype) -> Transformer:
    """Gemma, the first: scaled embeddings, and norms whose scale is stored less 1."""
    sizes = read_sizes(fields, Defaults(kv_heads=16, head_dim=256, context=8192, strict=True))
    bias = fields.flag("attention_bias", False)
    # Versions 4.39 to 4.47 read `hidden_activation` instead. `gelu` is what the first configs call the tanh gelu.
    fields.inert(["hidden_activation"])
    model = _model(fields, "gemma", dtype, sizes, tied=True, activation="gelu", exact_gelu=False)
    norm = replace(model.norm, offset=True)
    return replace(model, norm=norm, biases=Biases(qkv=bias, output=bias), scaled_embedding=True)


def _model(
    fields: Fields,
    architecture: str,
    dtype: Dtype,
    sizes: Sizes,
    tied: bool,
    activation: str = "silu",
    exact_gelu: bool = True,
) -> Transformer:
    """`tied` and `activation`, where the config does not say. `exact_gelu`: whether that is what `gelu` means."""
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
        activation=read_activation(fields, "hidden_act", activation, exact_gelu),
        gated=True,
        tied=fields.flag("tie_word_embeddings", tied),
        rope=rope(fields, sizes),
    )


def _check_layers_with_window(fields: Fields, sizes: Sizes) -> None:
    """Layers from `max_window_layers` on look through a sliding window, where it is switched on."""
    if fields.flag("use_sliding_window", False) and fields.get("layer_types") is None:
        node = fields.get("max_window_layers")
        every = node is not None and node.value == 0 and not isinstance(node.value, bool)
        if every or fields.count("max_window_layers", 28) < sizes.layers:
            _refuse_window(fields, sizes)
    fields.inert(["sliding_window", "max_window_layers"])


def _refuse_window(fields: Fields, sizes: Sizes) -> None:
    """Note a sliding window that hides tokens of the context."""
    window = fields.count("sliding_window", 4096, null=sizes.context)
    if fields.complete and window < sizes.context:
        message = f"Attention reaches {window} tokens back of {sizes.context}; a sliding window is not supported."
        hint = f"for contexts within the window, set `max_position_embeddings` to {window}"
        fields.refuse("sliding_window", message, hint)
