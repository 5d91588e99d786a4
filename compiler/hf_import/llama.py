"""Llama and its kin: serial blocks, rmsnorm, rope, a gated feed-forward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .common import FULL, WINDOW, Defaults, Sizes, read_activation, read_kinds, read_sizes
from .description import Attention, Experts, FeedForward, Layer, Norm, QueryNorm, Stack
from .fields import Fields
from .rotary import rope


def llama(fields: Fields) -> Stack:
    """Llama 2 and 3, and what is built like them."""
    sizes = read_sizes(fields, Defaults(kv_heads=None, head_dim=None, context=2048))
    attention = biased_heads(fields, sizes)
    fields.must_be("activation", ["swiglu"], "its feed-forward has a gate")  # as Falcon 3 says beside `hidden_act`
    forward = replace(feed_forward(fields), bias=fields.flag("mlp_bias", False))
    return stacked(fields, sizes, Layer(attention, forward))


def arcee(fields: Fields) -> Stack:
    """Arcee: Llama with a plain feed-forward, by the square of relu."""
    sizes = read_sizes(fields, Defaults(kv_heads=None, head_dim=None, context=4096))
    attention = biased_heads(fields, sizes)
    forward = replace(feed_forward(fields, "relu2"), gated=False, bias=fields.flag("mlp_bias", False))
    return stacked(fields, sizes, Layer(attention, forward), epsilon=1e-5)


def mistral(fields: Fields) -> Stack:
    """Mistral, with a window on every layer or on none."""
    sizes = read_sizes(fields, Defaults(kv_heads=8, head_dim=None, context=131072))
    attention = replace(heads_of(fields, sizes), window=read_window(fields, sizes, 4096))
    return stacked(fields, sizes, Layer(attention, feed_forward(fields)))


def qwen2(fields: Fields) -> Stack:
    """Qwen 2 and 2.5: biases on queries, keys and values."""
    sizes = read_sizes(fields, Defaults(kv_heads=32, head_dim=None, context=32768), kinds=None)
    fields.inert(["attention_bias"])  # which it does not read: these always have biases
    attention = replace(heads_of(fields, sizes), bias=True)
    return windowed(fields, sizes, attention)


def qwen3(fields: Fields) -> Stack:
    """Qwen 3: norms on queries and keys."""
    sizes = read_sizes(fields, Defaults(kv_heads=32, head_dim=128, context=32768), kinds=None)
    attention = biased_heads(fields, sizes, QueryNorm.HEAD)
    return windowed(fields, sizes, attention)


def heads_of(fields: Fields, sizes: Sizes) -> Attention:
    """Attention with rope on all of each head."""
    return Attention(sizes.heads, sizes.kv_heads, sizes.head_dim, rope(fields, sizes))


def biased_heads(fields: Fields, sizes: Sizes, query_norm: QueryNorm = QueryNorm.NONE) -> Attention:
    """The same with biases where the config says so."""
    bias = fields.flag("attention_bias", False)
    return replace(heads_of(fields, sizes), bias=bias, output_bias=bias, query_norm=query_norm)


def feed_forward(fields: Fields, activation: str = "silu", exact_gelu: bool = True) -> FeedForward:
    """A gated feed-forward. `activation`: where the config does not say. `exact_gelu`: whether `gelu` means that."""
    return FeedForward(fields.count("intermediate_size"), read_activation(fields, "hidden_act", activation, exact_gelu))


def plain_forward(
    fields: Fields, activation: str | None, bias: bool, width: str = "intermediate_size", name: str = "hidden_act"
) -> FeedForward:
    """A feed-forward without a gate, by the fields that say its `width` and the `name` of its activation."""
    return FeedForward(fields.count(width), read_activation(fields, name, activation), gated=False, bias=bias)


def stacked(
    fields: Fields, sizes: Sizes, layers: Layer | tuple[Layer, ...], tied: bool = False, epsilon: float = 1e-6
) -> Stack:
    """A model with rmsnorm, as `normed` makes it. `tied`, `epsilon`: where the config does not say."""
    return normed(fields, sizes, layers, Norm("rmsnorm", fields.number("rms_norm_eps", epsilon)), tied)


def normed(fields: Fields, sizes: Sizes, layers: Layer | tuple[Layer, ...], norm: Norm, tied: bool) -> Stack:
    """A model of layers, or of so many that are all as one, with any norm. `tied`: where the config does not say."""
    every = (layers,) * sizes.layers if isinstance(layers, Layer) else layers
    whole = fields.flag("tie_word_embeddings", tied)
    return Stack(sizes.model_dim, sizes.vocabulary, sizes.context, norm, every, whole)


def windowed(fields: Fields, sizes: Sizes, attention: Attention) -> Stack:
    """A model whose layers from `max_window_layers` on look through a window, where it is switched on, or those that
    `layer_types` names."""
    forward = feed_forward(fields)
    kinds = read_kinds(fields, sizes.layers, (FULL, WINDOW))
    used, window = fields.flag("use_sliding_window", False), None
    if used or (kinds is not None and WINDOW in kinds):
        window = read_window(fields, sizes, 4096)
    first = sizes.layers
    node = fields.get("max_window_layers")
    if used:
        zero = node is not None and node.value == 0 and not isinstance(node.value, bool)
        first = 0 if zero else fields.count("max_window_layers", 28)
    fields.inert(["sliding_window", "max_window_layers"])
    if kinds is None:
        kinds = [WINDOW if used and at >= first else FULL for at in range(sizes.layers)]
    return stacked(fields, sizes, by_kind(attention, forward, kinds, window))


def by_kind(
    attention: Attention, forward: FeedForward | Experts, kinds: Sequence[str], window: int | None
) -> tuple[Layer, ...]:
    """Layers that are alike, but that some of them look through a window."""
    return tuple(Layer(replace(attention, window=window if k == WINDOW else None), forward) for k in kinds)


def read_window(fields: Fields, sizes: Sizes, default: int | None) -> int | None:
    """How many tokens back a query sees; None for all. `default`: where the config does not say."""
    if default is None and "sliding_window" not in fields.entries:
        fields.inert(["sliding_window"])
        return None
    window = fields.count("sliding_window", default, null=sizes.context)
    return window if fields.complete and window < sizes.context else None
