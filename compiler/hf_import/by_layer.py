"""Models whose config says for each layer what it is like: Step 3.5, and those that were found by search (Nemotron)."""

from __future__ import annotations

from dataclasses import replace

from .common import FULL, MOST_LAYERS, WINDOW, Defaults, Sizes, divided, read_activation, read_sizes
from .description import Attention, Experts, FeedForward, Gate, Layer, Norm, QueryNorm, Rope, Router, Stack
from .experts import check_counts
from .fields import Fields
from .json_text import Node
from .llama import normed, read_window, stacked
from .rotary import rope

OF_STEP = (  # of training, and of how its engine computes
    *("max_seq_len", "need_fp32_gate", "model_dtype", "use_moe", "moe_every_n_layer", "moe_layer_offset"),
    *("share_expert_dims", "use_rope_layers", "yarn_only_types", "zero_centered"),
)


def step3p5(fields: Fields) -> Stack:
    """Step 3.5: three layers of four look through a window, with more heads and a rope of their own; heads are gated,
    and what experts of the last layers make is cut off."""
    sizes = read_sizes(fields.renamed({"num_key_value_heads": "num_attention_groups"}), Defaults(8, 128, 128000), None)
    beyond = fields.whole("num_nextn_predict_layers", 0)  # lists have an entry for each of these, too
    count = sizes.layers + beyond
    words = fields.words("layer_types", (FULL, WINDOW), len(_listed(fields.get("layer_types"))) or count)
    kinds = (words or [FULL] * count)[: sizes.layers]
    fields.inert(OF_STEP)
    for name, alone in (("use_head_wise_attn_gate", True), ("use_qk_norm", True), ("sink", False)):
        fields.must_be(name, [alone], f"only models where it is {str(alone).lower()} are known")
    fields.must_be("att_impl_type", ["GQA"], "only heads that share keys in groups are known")
    fields.must_be("rope_scaling", [], "rope that is scaled is not known here")
    attention = _step_heads(fields, sizes, kinds)
    sparse = _sparse(fields, sizes.layers)
    inner, shared = (_limits(fields, name, sizes.layers) for name in ("swiglu_limits", "swiglu_limits_shared"))
    experts = _step_experts(fields)
    dense = FeedForward(fields.count("intermediate_size"), experts.activation)
    layers = tuple(
        Layer(
            attention[at],
            replace(experts, clamp=inner[at], shared_clamp=shared[at])
            if sparse[at]
            else replace(dense, clamp=shared[at]),
        )
        for at in range(sizes.layers)
    )
    norm = Norm("rmsnorm", fields.number("rms_norm_eps", 1e-5), offset=True)
    return normed(fields, sizes, layers, norm, tied=False)


def _step_heads(fields: Fields, sizes: Sizes, kinds: list[str]) -> list[Attention]:
    """The attention of each layer."""
    bases, shares = (_by_layer(fields, name, d) for name, d in (("rope_theta", 1e4), ("partial_rotary_factors", 1.0)))
    window, heads = read_window(fields, sizes, None), sizes.heads
    other = fields.part("attention_other_setting")
    if other is not None:
        other.must_be("attention_type", [WINDOW], "other heads are known of layers with windows alone")
        heads = other.count("num_attention_heads", heads)
        other.must_be("num_attention_groups", [sizes.kv_heads], "these are not known to be others")
        for name in ("head_dim", "true_head_dim"):
            other.must_be(name, [sizes.head_dim], "these are not known to be others")
        other.refuse_unknown()
    divided(fields, "attention_other_setting", heads, sizes.kv_heads, "kv-heads")
    found = []
    for at, kind in enumerate(kinds):
        turned = int(sizes.head_dim * shares[min(at, len(shares) - 1)])
        if fields.complete and (turned < 2 or turned % 2):
            fields.refuse("partial_rotary_factors", f"Rope turns pairs, and here {turned} of a head's elements.")
        own = Attention(
            heads if kind == WINDOW else sizes.heads,
            sizes.kv_heads,
            sizes.head_dim,
            Rope(bases[min(at, len(bases) - 1)], max(2, turned)),
            query_norm=QueryNorm.HEAD,
            window=window if kind == WINDOW else None,
            gate=Gate.HEAD,
        )
        found.append(own)
    return found


def _step_experts(fields: Fields) -> Experts:
    count, kept = fields.count("moe_num_experts", 288), fields.count("moe_top_k", 8)
    check_counts(fields, ("n_routed_experts", "num_experts"), "moe_top_k", count, kept)
    fields.must_be("moe_router_activation", ["sigmoid"], "only sigmoid scores are known")
    fields.must_be("use_moe_router_bias", [True], "only scores with a correction are known")
    fields.must_be("norm_expert_weight", [True], "weights add to 1 here")
    factor = fields.number("moe_router_scaling_factor", 1.0)
    router = Router("sigmoid", normalised=True, factor=factor, correction=True)
    width, activation = fields.count("moe_intermediate_size", 1280), read_activation(fields, "hidden_act", "silu")
    return Experts(count, kept, width, activation, router, shared=fields.count("share_expert_dim", 1280))


def _listed(node: Node | None) -> tuple[Node, ...]:
    return node.value if node is not None and isinstance(node.value, tuple) else ()


def _by_layer(fields: Fields, name: str, default: float) -> list[float]:
    """A number above 0 for each layer, or one for all."""
    return fields.numbers(name) if _listed(fields.get(name)) else [fields.number(name, default)]


def _sparse(fields: Fields, layers: int) -> list[bool]:
    """Which layers have experts: those whose numbers a text lists."""
    node = fields.get("moe_layers_enum")
    if node is None:
        return [at >= 3 for at in range(layers)]
    words = node.value.split(",") if isinstance(node.value, str) else [str(one.value) for one in _listed(node)]
    if not all(word.strip().isdecimal() for word in words):
        fields.refuse("moe_layers_enum", "`moe_layers_enum` must list numbers of layers.")
        return [False] * layers
    numbers = {int(word) for word in words}
    return [at in numbers for at in range(layers)]


def _limits(fields: Fields, name: str, layers: int) -> list[float | None]:
    """Between what and its negative gates and what they gate are cut off in each layer; 0 and null say nothing."""
    listed = [one.value for one in _listed(fields.get(name))]
    if any(isinstance(one, bool) or not (one is None or isinstance(one, int | float)) for one in listed):
        fields.refuse(name, f"`{name}` must be a list of numbers.")
        return [None] * layers
    limits = [float(one) if isinstance(one, int | float) and one > 0 else None for one in listed]
    return [*limits, *[None] * layers][:layers]


def nemotron_nas(fields: Fields) -> Stack:
    """Nemotron Super and Ultra: Llama whose layers were found by search. Each may lack attention or feed-forward, and
    has kv-heads and a width of its own (Puzzle, arXiv:2411.19146)."""
    layers = fields.count("num_hidden_layers", most=MOST_LAYERS)
    fields.inert(["num_key_value_heads", "intermediate_size"])  # which are null
    found = fields.objects("block_configs")
    if fields.complete and len(found) != layers:
        fields.refuse("block_configs", f"`block_configs` has {len(found):,} layers, and there are {layers:,}.")
    heads = fields.count("num_attention_heads")
    sizes = read_sizes(
        replace(fields, entries={k: v for k, v in fields.entries.items() if k != "num_key_value_heads"}),
        Defaults(kv_heads=heads, head_dim=None, context=131072),
    )
    fields.must_be("mlp_bias", [False], "biases of feed-forwards are not known here")
    bias, activation = fields.flag("attention_bias", False), read_activation(fields, "hidden_act", "silu")
    plain = Attention(heads, heads, sizes.head_dim, rope(fields, sizes), bias=bias, output_bias=bias)
    made = tuple(_searched(fields, one, plain, sizes.model_dim, activation) for one in found)
    return stacked(fields, sizes, made)


def _searched(fields: Fields, block: Fields, plain: Attention, model_dim: int, activation: str) -> Layer:
    """One layer, by what its object says."""
    attention, forward = block.part("attention"), block.part("ffn")
    block.inert(["parallel_blocks"])
    block.refuse_unknown()
    own: Attention | None = plain
    if attention is not None:
        attention.inert(["no_op"])
        for name in ("replace_with_linear", "sparsify", "unshifted_sink", "use_prefill_window_in_sink_attention"):
            attention.must_be(name, [False], "layers with that are not known here")
        for name in ("num_sink_tokens", "window_length", "mamba", "moe", "llama4"):
            attention.must_be(name, [], "layers with that are not known here")
        if attention.flag("no_op", False):
            attention.inert(["n_heads_in_group"])
            own = None
        else:
            group = attention.count("n_heads_in_group", 1)
            divided(fields, "block_configs", plain.heads, group, "groups")
            own = replace(plain, kv_heads=max(1, plain.heads // group))
        attention.refuse_unknown()
    if forward is None:
        fields.refuse("block_configs", "`block_configs` has a layer without `ffn`.")
        return Layer(own, None)
    for name in ("replace_with_linear", "sparsify"):
        forward.must_be(name, [False], "layers with that are not known here")
    forward.must_be("moe", [], "layers with experts are not known here")
    forward.inert(["gated", "hidden_act", "intermediate_size"])
    if forward.flag("no_op", False):
        forward.inert(["ffn_mult"])
        forward.refuse_unknown()
        return Layer(own, None)
    if forward.get("intermediate_size") is not None:
        width = forward.count("intermediate_size")
        forward.inert(["ffn_mult"])
    else:
        width = int(2 * forward.number("ffn_mult", 1.0) * model_dim / 3)
        width = -(-width // 256) * 256
    forward.refuse_unknown()
    return Layer(own, FeedForward(max(1, width), activation))
