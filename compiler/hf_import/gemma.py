"""Gemma: scaled embeddings, norms whose scale is stored less 1, and later windows, and norms on both sides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .common import FULL, WINDOW, Defaults, Sizes, divided, kinds_of, read_activation, read_sizes
from .description import Attention, Experts, FeedForward, Layer, Norms, QueryNorm, Rope, Router, Sharing, Stack
from .experts import check_counts
from .fields import Fields
from .llama import biased_heads, feed_forward, stacked
from .rotary import rope, ropes_by_kind

SCALED = "sqrt(size(E))"
TANH = "gelu"  # their activation where the config does not say, as the language calls the tanh gelu


def gemma(fields: Fields) -> Stack:
    """Gemma, the first."""
    sizes = read_sizes(fields, Defaults(kv_heads=16, head_dim=256, context=8192, strict=True))
    # Versions 4.39 to 4.47 read `hidden_activation` instead. `gelu` is what the first configs call the tanh gelu.
    fields.inert(["hidden_activation"])
    attention = biased_heads(fields, sizes)
    forward = feed_forward(fields, "gelu", exact_gelu=False)
    return _scaled(stacked(fields, sizes, Layer(attention, forward), tied=True))


def gemma2(fields: Fields) -> Stack:
    """Gemma 2: every other layer looks through a window, scores are capped."""
    sizes = read_sizes(fields, Defaults(kv_heads=4, head_dim=256, context=8192, strict=True), kinds=None)
    turned, cap = rope(fields, sizes), fields.optional("attn_logit_softcapping", 50.0)
    return _sandwiched(fields, sizes, {FULL: turned, WINDOW: turned}, 2, QueryNorm.NONE, 30.0, cap)


def vaultgemma(fields: Fields) -> Stack:
    """VaultGemma: Gemma 2 without norms behind attention and feed-forward."""
    model = gemma2(fields)
    return replace(model, layers=tuple(replace(layer, norms=Norms.BEFORE) for layer in model.layers))


def gemma3(fields: Fields) -> Stack:
    """The text of Gemma 3: norms on queries and keys, five layers of six look through a window with a rope of their
    own."""
    sizes = read_sizes(fields, Defaults(kv_heads=4, head_dim=256, context=131072, strict=True), kinds=None)
    turned = ropes_by_kind(fields, sizes, {FULL: ("rope_theta", 1e6), WINDOW: ("rope_local_base_freq", 1e4)}, FULL)
    every = fields.count("sliding_window_pattern", 6)
    fields.inert(["attn_logit_softcapping"])  # which it does not read: scores of attention are not capped
    return _sandwiched(fields, sizes, turned, every, QueryNorm.HEAD, None)


def gemma4(fields: Fields) -> Stack:
    """The text of Gemma 4: layers that see all tokens have wider heads, fewer kv-heads, values that are keys without
    their norm, and rope on the first pairs; experts may stand beside the feed-forward. In small models layers have
    embeddings of their own, and the later ones see keys and values of earlier ones."""
    sizes = read_sizes(fields, Defaults(kv_heads=4, head_dim=256, context=131072, strict=True), kinds=None)
    _refuse_unread(fields)
    kinds = kinds_of(fields, sizes.layers, 6)
    kinds[-1] = FULL
    bias, shared = fields.flag("attention_bias", False), fields.flag("attention_k_eq_v", False)
    window = fields.count("sliding_window", 512, null=sizes.context)
    wide, few = _wide_heads(fields, sizes, {str(at) for at, kind in enumerate(kinds) if kind == FULL})
    near, far = _ropes(fields, sizes, wide)
    common = Attention(
        sizes.heads, sizes.kv_heads, sizes.head_dim, near, bias, bias, QueryNorm.HEAD, scale=1.0, value_norm=True
    )
    heads = few if shared else sizes.kv_heads
    divided(fields, "num_global_key_value_heads", sizes.heads, heads, "kv-heads")
    attention = {
        WINDOW: replace(common, window=window if window < sizes.context else None),
        FULL: replace(common, kv_heads=heads, head_dim=wide, rope=far, shared_value=shared),
    }
    activation = read_activation(fields, "hidden_activation", TANH)
    forward = FeedForward(fields.count("intermediate_size", 9216), activation)
    experts = _experts_beside(fields, activation) if fields.flag("enable_moe_block", False) else None
    fields.inert(["num_experts", "top_k_experts", "moe_intermediate_size"])
    own, wider = fields.whole("hidden_size_per_layer_input", 256), fields.flag("use_double_wide_mlp", False)
    sharing = read_sharing(fields, kinds, fields.whole("num_kv_shared_layers", 0))
    layers = tuple(
        Layer(
            shared_attention(attention[kind], kind, shared),
            replace(forward, width=forward.width * 2) if wider and shared is Sharing.BORROWED else forward,
            norms=Norms.BOTH,
            beside=experts,
            own=own,
            scaled=True,
        )
        for kind, shared in zip(kinds, sharing, strict=True)
    )
    model = stacked(fields, sizes, layers, tied=True)
    vocabulary = fields.count("vocab_size_per_layer_input", 262144)
    if own and fields.complete and vocabulary < sizes.vocabulary:
        message = f"`vocab_size_per_layer_input` is less than `vocab_size`, {sizes.vocabulary:,}."
        fields.refuse("vocab_size_per_layer_input", message)
    model = replace(model, own_vocabulary=vocabulary if own else 0)
    return replace(model, embedding=SCALED, logit_cap=fields.optional("final_logit_softcapping"))


def shared_attention(attention: Attention, kind: str, sharing: Sharing) -> Attention:
    """The same where layers of a kind share keys and values."""
    name = "" if sharing is Sharing.NONE else {FULL: "full", WINDOW: "window"}[kind]
    return replace(attention, sharing=sharing, shared_as=name)


def read_sharing(fields: Fields, kinds: Sequence[str], shared: int) -> list[Sharing]:
    """Whose keys and values each layer sees, where the last `shared` ones see those of the last layers of their kinds
    before them."""
    own = len(kinds) - shared
    if not shared:
        return [Sharing.NONE] * len(kinds)
    if not fields.complete:
        return [Sharing.NONE] * len(kinds)
    missing = sorted(set(kinds[max(0, own) :]) - set(kinds[: max(0, own)]))
    if missing:
        message = f"Of the layers that have keys and values of their own none is of kind `{missing[0]}`."
        fields.refuse("num_kv_shared_layers", message)
        return [Sharing.NONE] * len(kinds)
    lent = {own - 1 - kinds[own - 1 :: -1].index(kind) for kind in set(kinds[own:])}
    return [Sharing.BORROWED if at >= own else Sharing.LENT if at in lent else Sharing.NONE for at in range(len(kinds))]


def _wide_heads(fields: Fields, sizes: Sizes, full: set[str]) -> tuple[int, int]:
    """The width of a head, and the number of kv-heads, of the layers that see all tokens, `full` by their numbers. A
    config says it for all of them, or for each."""
    part = fields.part("per_layer_config")
    if part is None or not part.entries:
        wide = fields.count("global_head_dim", sizes.head_dim if part is not None else 512)
        return wide, fields.count("num_global_key_value_heads", sizes.kv_heads, null=sizes.kv_heads)
    fields.inert(["global_head_dim", "num_global_key_value_heads"])
    found = set[tuple[int, int]]()
    for number in part.entries:
        own = part.part(number)
        if own is not None:
            found.add((own.count("head_dim", sizes.head_dim), own.count("num_key_value_heads", sizes.kv_heads)))
            own.refuse_unknown()
    if part.entries.keys() != full or len(found) != 1:
        fields.refuse("per_layer_config", "`per_layer_config` is not the same for all layers that see all tokens.")
    return max(found, default=(sizes.head_dim, sizes.kv_heads))


def _refuse_unread(fields: Fields) -> None:
    """Note the parts of Gemma 4 that are not known."""
    fields.must_be("use_bidirectional_attention", ["vision"], "only texts whose tokens see none after them are known")


def _ropes(fields: Fields, sizes: Sizes, wide: int) -> tuple[Rope, Rope]:
    """The rotary positions of layers with a window, and of those that see all tokens."""
    part = fields.part("rope_parameters")
    near = far = None
    share, bases = 0.25, {WINDOW: 1e4, FULL: 1e6}
    if part is not None:
        near, far = part.part(WINDOW), part.part(FULL)
        part.refuse_unknown()
    for kind, own in ((WINDOW, near), (FULL, far)):
        if own is None:
            continue
        own.must_be("rope_type", ["default" if kind == WINDOW else "proportional"], "that scaling is not known here")
        bases[kind] = own.number("rope_theta", bases[kind])
        if kind == FULL:
            share = own.number("partial_rotary_factor", 1.0)
        own.refuse_unknown()
    for size, name in ((sizes.head_dim, "head_dim"), (wide, "global_head_dim")):
        if fields.complete and size % 2:
            fields.refuse(name, f"Rope turns pairs, and here heads have {size:,} elements.")
    pairs = int(share * wide // 2)
    if fields.complete and not 0 < pairs <= wide // 2:
        fields.refuse("rope_parameters", f"Rope turns pairs, and here {pairs:,} of the {wide // 2:,} of a head.")
    scaling = None if pairs == wide // 2 else f"first({pairs})"
    return Rope(bases[WINDOW], sizes.head_dim), Rope(bases[FULL], wide, scaling)


def _experts_beside(fields: Fields, activation: str) -> Experts:
    count, kept = fields.count("num_experts"), fields.count("top_k_experts")
    check_counts(fields, (), "top_k_experts", count, kept)
    router = Router("softmax", normalised=True, own_norm=True, per_expert=True)
    return Experts(count, kept, fields.count("moe_intermediate_size"), activation, router)


def _sandwiched(
    fields: Fields,
    sizes: Sizes,
    turned: dict[str, Rope],
    every: int,
    query_norm: QueryNorm,
    token_cap: float | None,
    cap: float | None = None,
) -> Stack:
    """A model with norms before and behind attention and feed-forward; every so many-th layer sees all tokens.
    `token_cap`: of scores of tokens, where the config does not say; `cap`: of those of attention."""
    bias = fields.flag("attention_bias", False)
    fields.must_be("use_bidirectional_attention", [False], "only models in which a token sees none after it are known")
    kinds = kinds_of(fields, sizes.layers, every)
    window = fields.count("sliding_window", 4096, null=sizes.context)
    attention = Attention(
        sizes.heads,
        sizes.kv_heads,
        sizes.head_dim,
        bias=bias,
        output_bias=bias,
        query_norm=query_norm,
        scale=fields.number("query_pre_attn_scalar", 256.0) ** -0.5,
        cap=cap,
    )
    fields.inert(["cache_implementation", "_sliding_window_pattern"])  # the latter is what `layer_types` came from
    if fields.get("sliding_window_size") is not None and fields.count("sliding_window_size") != window:
        fields.refuse("sliding_window_size", f"`sliding_window_size` is not {window:,}, as `sliding_window` is.")
    fields.inert(["hidden_act"])  # that of Gemma, which published configs have as well; `hidden_activation` is read
    activation = read_activation(fields, "hidden_activation", TANH)
    forward = FeedForward(fields.count("intermediate_size"), activation)
    reach = {FULL: None, WINDOW: window if window < sizes.context else None}
    layers = tuple(
        Layer(replace(attention, rope=turned[kind], window=reach[kind]), forward, norms=Norms.BOTH) for kind in kinds
    )
    model = stacked(fields, sizes, layers, tied=True)
    return replace(_scaled(model), logit_cap=fields.optional("final_logit_softcapping", token_cap))


def _scaled(model: Stack) -> Stack:
    return replace(model, norm=replace(model.norm, offset=True), embedding=SCALED)
