"""Gemma: scaled embeddings, norms whose scale is stored less 1, and later windows, and norms on both sides."""

from __future__ import annotations

from dataclasses import replace

from ...ir.dtype import Dtype
from .common import FULL, WINDOW, Defaults, Sizes, read_activation, read_kinds, read_sizes
from .description import Attention, FeedForward, Layer, Norms, QueryNorm, Rope, Transformer
from .fields import Fields
from .llama import feed_forward, heads_of, stacked, uniform
from .rotary import rope, ropes_by_kind

SCALED = "sqrt(size(E))"


def gemma(fields: Fields, dtype: Dtype) -> Transformer:
    """Gemma, the first."""
    sizes = read_sizes(fields, Defaults(kv_heads=16, head_dim=256, context=8192, strict=True))
    bias = fields.flag("attention_bias", False)
    # Versions 4.39 to 4.47 read `hidden_activation` instead. `gelu` is what the first configs call the tanh gelu.
    fields.inert(["hidden_activation"])
    attention = replace(heads_of(fields, sizes), bias=bias, output_bias=bias)
    forward = feed_forward(fields, "gelu", exact_gelu=False)
    return _scaled(uniform(fields, "gemma", dtype, sizes, attention, forward, tied=True))


def gemma2(fields: Fields, dtype: Dtype) -> Transformer:
    """Gemma 2: every other layer looks through a window, scores are capped."""
    sizes = read_sizes(fields, Defaults(kv_heads=4, head_dim=256, context=8192, strict=True), kinds=None)
    turned = rope(fields, sizes)
    return _sandwiched(fields, "gemma2", dtype, sizes, {FULL: turned, WINDOW: turned}, 2, QueryNorm.NONE, (50.0, 30.0))


def gemma3(fields: Fields, dtype: Dtype) -> Transformer:
    """The text of Gemma 3: norms on queries and keys, five layers of six look through a window with a rope of their
    own."""
    sizes = read_sizes(fields, Defaults(kv_heads=4, head_dim=256, context=131072, strict=True), kinds=None)
    turned = ropes_by_kind(fields, sizes, {FULL: ("rope_theta", 1e6), WINDOW: ("rope_local_base_freq", 1e4)}, FULL)
    every = fields.count("sliding_window_pattern", 6)
    return _sandwiched(fields, "gemma3_text", dtype, sizes, turned, every, QueryNorm.HEAD, (None, None))


def _sandwiched(
    fields: Fields,
    architecture: str,
    dtype: Dtype,
    sizes: Sizes,
    turned: dict[str, Rope],
    every: int,
    query_norm: QueryNorm,
    caps: tuple[float | None, float | None],
) -> Transformer:
    """A model with norms before and behind attention and feed-forward; every so many-th layer sees all tokens.
    `caps`: of scores of attention and of tokens, where the config does not say."""
    bias = fields.flag("attention_bias", False)
    fields.must_be("use_bidirectional_attention", [False], "only models in which a token sees none after it are known")
    kinds = read_kinds(fields, sizes.layers, (FULL, WINDOW))
    kinds = kinds or [FULL if (at + 1) % every == 0 else WINDOW for at in range(sizes.layers)]
    window = fields.count("sliding_window", 4096, null=sizes.context)
    attention = Attention(
        sizes.heads,
        sizes.kv_heads,
        sizes.head_dim,
        bias=bias,
        output_bias=bias,
        query_norm=query_norm,
        scale=fields.number("query_pre_attn_scalar", 256.0) ** -0.5,
        cap=fields.optional("attn_logit_softcapping", caps[0]),
    )
    fields.inert(["cache_implementation", "_sliding_window_pattern"])  # the latter is what `layer_types` came from
    activation = read_activation(fields, "hidden_activation", "gelu", exact_gelu=False)
    forward = FeedForward(fields.count("intermediate_size"), activation)
    reach = {FULL: None, WINDOW: window if window < sizes.context else None}
    layers = tuple(
        Layer(replace(attention, rope=turned[kind], window=reach[kind]), forward, norms=Norms.BOTH) for kind in kinds
    )
    model = stacked(fields, architecture, dtype, sizes, layers, tied=True)
    return replace(_scaled(model), logit_cap=fields.optional("final_logit_softcapping", caps[1]))


def _scaled(model: Transformer) -> Transformer:
    return replace(model, norm=replace(model.norm, offset=True), embedding=SCALED)
