"""Gemma 3n: several streams, embeddings that layers have for themselves, and layers that see the keys of others."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist

from .common import FULL, WINDOW, Defaults, kinds_of, read_activation, read_sizes
from .description import Attention, FeedForward, Layer, Norms, QueryNorm, Sharing, Stack, Streams
from .fields import Fields
from .gemma import SCALED, TANH, read_sharing, shared_attention
from .llama import stacked
from .rotary import ropes_by_kind

SPARSE, SPARSE_LAYERS = 0.95, 10  # how much of a feed-forward is left out, and in how many layers, where no list says


def gemma3n(fields: Fields) -> Stack:
    """The text of Gemma 3n: a feed-forward of which only what stands out counts in the first layers, four layers of
    five that look through a window."""
    sizes = read_sizes(fields, Defaults(kv_heads=2, head_dim=256, context=32768, strict=True), kinds=None)
    if fields.complete and sizes.model_dim % sizes.heads:
        fields.refuse("hidden_size", f"`hidden_size` does not divide into {sizes.heads:,} heads.")
    turned = ropes_by_kind(fields, sizes, {FULL: ("rope_theta", 1e6), WINDOW: ("rope_local_base_freq", 1e4)}, FULL)
    kinds = kinds_of(fields, sizes.layers, 5)
    bias, window = fields.flag("attention_bias", False), fields.count("sliding_window", 512)
    reach = {FULL: None, WINDOW: window if window < sizes.context else None}
    common = Attention(sizes.heads, sizes.kv_heads, sizes.head_dim, bias=bias, output_bias=bias, scale=1.0)
    common = replace(common, query_norm=QueryNorm.HEAD, value_norm=True)
    layers = tuple(
        Layer(
            shared_attention(replace(common, rope=turned[kind], window=reach[kind]), kind, shared),
            forward,
            norms=Norms.BOTH,
            own=own,
            streams=streams,
        )
        for own, streams in [(fields.count("hidden_size_per_layer_input", 256), _streams(fields))]
        for kind, shared, forward in zip(kinds, _sharing(fields, kinds), _forwards(fields, sizes.layers), strict=True)
    )
    model = stacked(fields, sizes, layers, tied=True)
    model = replace(model, own_vocabulary=fields.count("vocab_size_per_layer_input", 262144), embedding=SCALED)
    return replace(model, logit_cap=fields.optional("final_logit_softcapping", 30.0))


def _sharing(fields: Fields, kinds: list[str]) -> list[Sharing]:
    return read_sharing(fields, kinds, fields.whole("num_kv_shared_layers", 15))


def _streams(fields: Fields) -> Streams:
    fields.must_be("altup_active_idx", [0], "only layers that work on the first stream are known here")
    fields.must_be("altup_correct_scale", [True], "only streams that are scaled once they are corrected are known here")
    fields.inert(["altup_coef_clip", "altup_lr_multiplier"])  # which training wants
    fields.inert(["query_pre_attn_scalar"])  # which it does not read: scores are not scaled
    count = fields.count("altup_num_inputs", 4)
    if fields.complete and count < 2:
        fields.refuse("altup_num_inputs", "Only models of two streams and more are known here.")
    return Streams(max(2, count), fields.count("laurel_rank", 64))


def _forwards(fields: Fields, layers: int) -> list[FeedForward]:
    """The feed-forward of each layer."""
    activation = read_activation(fields, "hidden_activation", TANH)
    widths = fields.each("intermediate_size", layers, 16384)
    sparse = min(SPARSE_LAYERS, layers) if layers > SPARSE_LAYERS else 0
    shares = _shares(fields, [SPARSE] * sparse + [0.0] * (layers - sparse))
    above = [NormalDist().inv_cdf(share) if share else None for share in shares]
    return [FeedForward(width, activation, above=one) for width, one in zip(widths, above, strict=True)]


def _shares(fields: Fields, default: list[float]) -> list[float]:
    """How much of the feed-forward of each layer is left out. `default`: where the config does not say."""
    node = fields.get("activation_sparsity_pattern")
    if node is None:
        return default
    values = [item.value for item in node.value] if isinstance(node.value, tuple) else []
    found = [float(v) for v in values if isinstance(v, (int, float)) and not isinstance(v, bool) and 0 <= v < 1]
    if len(found) == len(values) == len(default) and all(map(math.isfinite, found)):
        return found
    if fields.complete:
        listed = f"list a number from 0 to 1 for each of the {len(default):,} layers"
        fields.refuse("activation_sparsity_pattern", f"`activation_sparsity_pattern` must {listed}.")
    return default
