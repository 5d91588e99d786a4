"""Mixtures of experts with attention as Llama has it: Mixtral, OLMoE, Qwen, GLM-4, MiniMax-M2, gpt-oss, Llama 4."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .common import CHUNK, FULL, WINDOW, Defaults, Sizes, kinds_of, read_activation, read_kinds, read_sizes
from .description import Attention, Experts, FeedForward, Heat, Latent, Layer, Norm, Norms, QueryNorm, Router, Stack
from .fields import Fields
from .kin import multiplied
from .llama import biased_heads, by_kind, heads_of, normed, read_window, stacked
from .rotary import rope

TRAINING = ("router_jitter_noise", "router_aux_loss_coef", "output_router_logits", "aux_loss_alpha", "seq_aux")
# What MiniMax-M2 has from the model before it, and does not read.
FORMER = (
    *("layernorm_full_attention_beta", "layernorm_linear_attention_beta", "layernorm_mlp_beta"),
    *("mlp_intermediate_size", "shared_moe_mode", "max_model_len"),
)


def check_counts(fields: Fields, names: Sequence[str], chosen: str, count: int, kept: int) -> None:
    """Note more experts of a token than there are, and names of one number that differ. `names`: of their count."""
    fields.inert((*TRAINING, "ep_size"))
    for name in names:
        if fields.get(name) is not None and fields.count(name) != count:
            fields.refuse(name, f"`{name}` is another count of experts than {count:,}.")
    if fields.complete and kept > count:
        fields.refuse(chosen, f"A token takes {kept:,} experts, and there are {count:,}.")


def mixtral(fields: Fields) -> Stack:
    """Mixtral: softmax over all experts, the weights of those chosen add to 1."""
    sizes = read_sizes(fields, Defaults(kv_heads=8, head_dim=None, context=131072))
    turned = rope(fields, sizes, default_base=1e6)
    window = read_window(fields, sizes, None)
    attention = Attention(sizes.heads, sizes.kv_heads, sizes.head_dim, turned, window=window)
    count, kept = fields.count("num_local_experts", 8), fields.count("num_experts_per_tok", 2)
    check_counts(fields, ("num_experts",), "num_experts_per_tok", count, kept)
    width, activation = fields.count("intermediate_size"), read_activation(fields, "hidden_act", "silu")
    experts = Experts(count, kept, width, activation, Router("softmax", normalised=True))
    return stacked(fields, sizes, Layer(attention, experts), epsilon=1e-5)


def phimoe(fields: Fields) -> Stack:
    """Phi-3.5-MoE: layernorm, and two experts, each weighed among those whose scores are near its own."""
    sizes = read_sizes(fields, Defaults(kv_heads=8, head_dim=None, context=131072))
    turned = rope(fields, sizes, default_base=1e6, magnitudes=("short_mscale", "long_mscale"))
    if turned.scaling is not None and not turned.scaling.startswith("longrope"):
        fields.refuse("rope_scaling", "Only rope as it is, or by longrope, is known here.")
    fields.inert(["original_max_position_embeddings", "input_jitter_noise"])  # it stands with the scaling; of training
    bias, window = fields.flag("attention_bias", False), read_window(fields, sizes, None)
    attention = Attention(sizes.heads, sizes.kv_heads, sizes.head_dim, turned, bias, bias, window=window)
    count, kept = fields.count("num_local_experts", 16), fields.count("num_experts_per_tok", 2)
    near = 2 * fields.number("router_jitter_noise", 0.01)
    check_counts(fields, ("num_experts",), "num_experts_per_tok", count, kept)
    if kept != 2:
        fields.refuse("num_experts_per_tok", f"Two experts of a token are known here, and there are to be {kept}.")
    width, activation = fields.count("intermediate_size"), read_activation(fields, "hidden_act", "silu")
    experts = Experts(count, kept, width, activation, Router("softmax", normalised=False, near=near))
    norm = Norm("layernorm", fields.number("rms_norm_eps", 1e-5), bias=True)
    model = normed(fields, sizes, (Layer(attention, experts),) * sizes.layers, norm, tied=False)
    return replace(model, head_bias=fields.flag("lm_head_bias", False))


def granitemoe(fields: Fields) -> Stack:
    """Granite with experts: softmax over those that are chosen, whose weights so add to 1."""
    count, kept = fields.count("num_local_experts", 8), fields.count("num_experts_per_tok", 2)
    check_counts(fields, ("num_experts",), "num_experts_per_tok", count, kept)
    width, activation = fields.count("intermediate_size"), read_activation(fields, "hidden_act", "silu")
    experts = Experts(count, kept, width, activation, Router("softmax", normalised=True))
    return multiplied(fields, experts)


def minimax_m2(fields: Fields) -> Stack:
    """MiniMax-M2: sigmoid scores with a correction, norms over all heads, rope on a part of each head."""
    sizes = read_sizes(fields, Defaults(kv_heads=8, head_dim=128, context=196608))
    fields.must_be("use_qk_norm", [True], "only models with norms on queries and keys are known")
    fields.must_be("qk_norm_type", ["per_layer"], "only norms over all heads of a layer are known")
    fields.must_be("scoring_func", ["sigmoid"], "only sigmoid scores are known")
    fields.must_be("use_routing_bias", [True], "only scores with a correction are known")
    fields.must_be("shared_intermediate_size", [0], "no expert that all tokens take is known here")
    if not all(fields.flags("attn_type_list", sizes.layers) or [True]):
        fields.refuse("attn_type_list", "`attn_type_list` names layers of linear attention, which are not understood.")
    fields.inert((*FORMER, "sliding_window"))  # which it does not read
    node = fields.get("rotary_dim")
    share = 1.0 if node is None else fields.count("rotary_dim") / sizes.head_dim
    turned = rope(fields, sizes, share=("partial_rotary_factor", share), default_base=5e6)
    attention = Attention(sizes.heads, sizes.kv_heads, sizes.head_dim, turned, query_norm=QueryNorm.ALL)
    count, kept = fields.count("num_local_experts", 256), fields.count("num_experts_per_tok", 8)
    check_counts(fields, ("num_experts",), "num_experts_per_tok", count, kept)
    width, activation = fields.count("intermediate_size"), read_activation(fields, "hidden_act", "silu")
    experts = Experts(count, kept, width, activation, Router("sigmoid", normalised=True, correction=True))
    return stacked(fields, sizes, Layer(attention, experts))


def olmoe(fields: Fields) -> Stack:
    """OLMoE: norms over all heads of queries and keys."""
    sizes, layer = _olmoe_layer(fields, 64, 8, 2048)
    return stacked(fields, sizes, layer, epsilon=1e-5)


def flex_olmo(fields: Fields) -> Stack:
    """FlexOlmo: the same with norms behind attention and experts."""
    sizes, layer = _olmoe_layer(fields, 7, 5, 11008, base=5e5)
    return stacked(fields, sizes, replace(layer, norms=Norms.AFTER))


def _olmoe_layer(fields: Fields, count: int, kept: int, width: int, base: float = 10000.0) -> tuple[Sizes, Layer]:
    """Sizes, and a layer of experts, where the config does not say so many, of that width, with rope of that base."""
    sizes = read_sizes(fields, Defaults(kv_heads=None, head_dim=None, context=4096))
    fields.must_be("clip_qkv", [], "queries, keys and values that are cut off are not known")
    bias, turned = fields.flag("attention_bias", False), rope(fields, sizes, default_base=base)
    plain = Attention(sizes.heads, sizes.kv_heads, sizes.head_dim, turned, bias=bias, output_bias=bias)
    attention = replace(plain, query_norm=QueryNorm.ALL)
    name = "num_experts" if "num_experts" in fields.entries else "num_local_experts"
    count, kept = fields.count(name, count), fields.count("num_experts_per_tok", kept)
    check_counts(fields, ("num_local_experts",), "num_experts_per_tok", count, kept)
    width, activation = fields.count("intermediate_size", width), read_activation(fields, "hidden_act", "silu")
    router = Router("softmax", normalised=fields.flag("norm_topk_prob", False))
    return sizes, Layer(attention, Experts(count, kept, width, activation, router))


def qwen2_moe(fields: Fields) -> Stack:
    """Qwen 2 MoE: an expert that all tokens take, weighed by a sigmoid."""
    sizes = read_sizes(fields, Defaults(kv_heads=16, head_dim=None, context=32768))
    attention = replace(heads_of(fields, sizes), bias=fields.flag("qkv_bias", True))
    shared = fields.count("shared_expert_intermediate_size", 5632)
    experts = replace(_qwen_experts(fields, 60, 4, 1408), shared=shared, shared_gate=True)
    return _sparse(fields, sizes, attention, experts)


def qwen3_moe(fields: Fields) -> Stack:
    """Qwen 3 MoE: norms on queries and keys."""
    sizes = read_sizes(fields, Defaults(kv_heads=4, head_dim=None, context=32768))
    attention = biased_heads(fields, sizes, QueryNorm.HEAD)
    return _sparse(fields, sizes, attention, _qwen_experts(fields, 128, 8, 768))


def qwen3_omni_moe(fields: Fields) -> Stack:
    """The text of Qwen 3 Omni: Qwen 3 MoE, whose weights add to 1 where the config does not say."""
    return _qwen3_text(fields, Defaults(kv_heads=4, head_dim=None, context=32768), 1e6, (128, 8, 768))


def qwen3_vl_moe(fields: Fields) -> Stack:
    """The text of Qwen 3 VL: Qwen 3 MoE, whose weights add to 1 whatever the config says."""
    return _qwen3_text(fields, Defaults(kv_heads=16, head_dim=None, context=128000), 5e5, (60, 4, 1408), always=True)


def _qwen3_text(
    fields: Fields, defaults: Defaults, base: float, experts: tuple[int, int, int], always: bool = False
) -> Stack:
    """Where the config does not say: rope of that `base`, and so many `experts`, of which a token takes so many, of
    that width, by weights that add to 1; `always`: that they do where it says otherwise, too."""
    sizes = read_sizes(fields, defaults)
    attention = replace(biased_heads(fields, sizes, QueryNorm.HEAD), rope=rope(fields, sizes, default_base=base))
    found = _qwen_experts(fields, *experts, normalised=True)
    router = replace(found.router, normalised=found.router.normalised or always)
    return _sparse(fields, sizes, attention, replace(found, router=router))


def _qwen_experts(fields: Fields, count: int, kept: int, width: int, normalised: bool = False) -> Experts:
    """Experts weighed by their softmax; where the config does not say, so many, of that width, with weights that are
    made to add to 1 or not."""
    fields.must_be("use_sliding_window", [False], "windows are not known here")
    fields.inert(["sliding_window", "max_window_layers"])
    fields.must_be("use_qk_norm", [True], "only models with norms on queries and keys are known here")
    name = "num_experts" if "num_experts" in fields.entries else "num_local_experts"
    count, kept = fields.count(name, count), fields.count("num_experts_per_tok", kept)
    check_counts(fields, ("num_local_experts",), "num_experts_per_tok", count, kept)
    activation = read_activation(fields, "hidden_act", "silu")
    router = Router("softmax", normalised=fields.flag("norm_topk_prob", normalised))
    return Experts(count, kept, fields.count("moe_intermediate_size", width), activation, router)


def _sparse(fields: Fields, sizes: Sizes, attention: Attention, experts: Experts) -> Stack:
    """A model whose layers have experts, but for those that are said to have none."""
    step, dense = fields.count("decoder_sparse_step", 1), fields.places("mlp_only_layers", sizes.layers) or set()
    sparse = [at not in dense and (at + 1) % step == 0 for at in range(sizes.layers)]
    fields.inert(["intermediate_size"])
    forward = None if all(sparse) else FeedForward(fields.count("intermediate_size"), experts.activation)
    layers = tuple(Layer(attention, experts if one or forward is None else forward) for one in sparse)
    return stacked(fields, sizes, layers)


def glm4_moe(fields: Fields) -> Stack:
    """GLM-4 MoE: the first layers are dense; sigmoid scores with a correction, rope on half of each head."""
    sizes = read_sizes(fields, Defaults(kv_heads=8, head_dim=None, context=131072))
    turned = rope(fields, sizes, share=("partial_rotary_factor", 0.5))
    norm = QueryNorm.HEAD if fields.flag("use_qk_norm", False) else QueryNorm.NONE
    bias = fields.flag("attention_bias", False)
    attention = Attention(sizes.heads, sizes.kv_heads, sizes.head_dim, turned, bias=bias, query_norm=norm)
    experts = corrected(fields, (128, 8, 1408), 1.0, (1, 1))
    return after_dense(fields, sizes, [attention] * sizes.layers, experts, 1, epsilon=1e-5)


def glm4v_moe(fields: Fields) -> Stack:
    """The text of GLM-4.5V: GLM-4.5 Air with biases, where the config does not say, and without norms of heads."""
    sizes = read_sizes(fields, Defaults(kv_heads=8, head_dim=None, context=65536))
    turned = rope(fields, sizes, share=("partial_rotary_factor", 0.5))
    fields.inert(["use_qk_norm"])  # which it does not read
    attention = Attention(sizes.heads, sizes.kv_heads, sizes.head_dim, turned, bias=fields.flag("attention_bias", True))
    experts = corrected(fields, (128, 8, 1408), 1.0, (1, 1))
    return after_dense(fields, sizes, [attention] * sizes.layers, experts, 1, epsilon=1e-5)


def solar_open(fields: Fields) -> Stack:
    """Solar Open: GLM-4 MoE without dense layers and norms of heads."""
    sizes = read_sizes(fields, Defaults(kv_heads=8, head_dim=128, context=131072))
    bias, turned = fields.flag("attention_bias", False), rope(fields, sizes, default_base=1e6)
    attention = Attention(sizes.heads, sizes.kv_heads, sizes.head_dim, turned, bias=bias)
    fields.must_be("partial_rotary_factor", [1.0], "rope that turns a part of a head is not known here")
    fields.inert(["intermediate_size", "first_k_dense_replace", "use_qk_norm"])  # which it does not read
    return stacked(fields, sizes, Layer(attention, corrected(fields, (128, 8, 1280), 1.0, (1, 1))), epsilon=1e-5)


def dots1(fields: Fields) -> Stack:
    """dots.llm1: attention as Qwen 3 has it, maybe with windows on the last layers, and experts as DeepSeek-V3."""
    sizes = read_sizes(fields, Defaults(kv_heads=32, head_dim=None, context=2048), kinds=None)
    kinds, first = read_kinds(fields, sizes.layers, (FULL, WINDOW)), fields.whole("max_window_layers", 62)
    kinds = kinds or [FULL if at < first else WINDOW for at in range(sizes.layers)]
    window = read_window(fields, sizes, 4096)
    attention = biased_heads(fields, sizes, QueryNorm.HEAD)
    fields.must_be("scoring_func", ["sigmoid", "noaux_tc"], "only sigmoid scores are known")  # which is not read there
    experts = corrected(fields, (None, None, 1408), 1.0, (1, 1), normalised=False, shared=None)
    near = [replace(attention, window=window if kind == WINDOW else None) for kind in kinds]
    return after_dense(fields, sizes, near, experts, 0)


def ernie4_5_moe(fields: Fields) -> Stack:
    """ERNIE 4.5 with experts: the first layers are dense; softmax with a correction, rope that turns neighbours."""
    sizes = read_sizes(fields, Defaults(kv_heads=4, head_dim=None, context=131072))
    fields.must_be("use_bias", [False], "biases are not known here")
    fields.must_be("moe_gate", ["topk"], "only the best experts of a token are known")
    fields.must_be("moe_norm_min", [1e-12], "only weights that add to 1 are known")
    fields.inert(["moe_capacity", "moe_use_aux_free"])  # of training
    turned = replace(rope(fields, sizes, default_base=5e5), halves=False)
    count, kept = fields.count("moe_num_experts", 64), fields.count("moe_k", 6)
    check_counts(fields, ("num_experts", "num_local_experts"), "moe_k", count, kept)
    if fields.get("num_experts_per_tok") is not None and fields.count("num_experts_per_tok") != kept:
        fields.refuse("num_experts_per_tok", f"`num_experts_per_tok` is not {kept}, as `moe_k` is.")
    width, activation = fields.count("moe_intermediate_size", 1536), read_activation(fields, "hidden_act", "silu")
    shared = width * fields.whole("moe_num_shared_experts", 2)
    experts = Experts(count, kept, width, activation, Router("softmax", True, correction=True), shared=shared)
    first, step = fields.whole("moe_layer_start_index", 1), fields.count("moe_layer_interval", 1)
    node = fields.get("moe_layer_end_index")
    last = sizes.layers - 1 if node is None or node.value == -1 else fields.whole("moe_layer_end_index", 0)
    dense = FeedForward(fields.count("intermediate_size"), activation)
    attention = Attention(sizes.heads, sizes.kv_heads, sizes.head_dim, turned)
    words = fields.words("mlp_layer_types", ("dense", "sparse"), sizes.layers)
    sparse = [first <= at <= last and (at + 1) % step == 0 for at in range(sizes.layers)]
    sparse = [word == "sparse" for word in words] if words else sparse
    layers = tuple(Layer(attention, experts if one else dense) for one in sparse)
    return stacked(fields, sizes, layers, tied=True, epsilon=1e-5)


OF_ERNIE_VL = (  # what it has beside the text, and of training
    *("freq_allocation", "im_patch_id", "spatial_conv_size", "temporal_conv_size", "pixel_hidden_size", "rope_3d"),
    *("moe_multimodal_dispatch_use_allgather", "moe_use_hard_gate", "moe_group", "moe_aux_loss_lambda"),
    *("moe_orthogonal_loss_lambda", "moe_z_loss_lambda", "modality_detach", "compression_ratio", "vision_config"),
)


def ernie4_5_vl_moe(fields: Fields) -> Stack:
    """The text of ERNIE 4.5 VL: of the experts those that text takes, which lists name first."""
    fields.inert(OF_ERNIE_VL)
    names = ("moe_num_experts", "moe_intermediate_size", "moe_layer_start_index", "moe_layer_end_index")
    return ernie4_5_moe(fields.first_of(names))


def corrected(
    fields: Fields,
    sizes: tuple[int | None, int | None, int],
    factor: float,
    groups: tuple[int, int],
    normalised: bool = True,
    shared: int | None = 1,
) -> Experts:
    """Experts chosen by sigmoid scores with a correction, in groups. `sizes`: their count, how many a token takes,
    and their width; `factor`, `groups`, `normalised`, `shared`: where the config does not say."""
    if "scoring_func" not in fields.known:
        fields.must_be("scoring_func", ["sigmoid"], "only sigmoid scores are known")
    fields.must_be("topk_method", ["noaux_tc"], "only scores with a correction are known")
    if "moe_layer_freq" not in fields.known:
        fields.must_be("moe_layer_freq", [1], "only experts in each layer after the first dense ones are known")
    count, kept = fields.count("n_routed_experts", sizes[0]), fields.count("num_experts_per_tok", sizes[1])
    check_counts(fields, ("num_local_experts", "num_experts"), "num_experts_per_tok", count, kept)
    activation = read_activation(fields, "hidden_act", "silu")
    width = fields.count("moe_intermediate_size", sizes[2])
    router = Router(
        "sigmoid",
        normalised=fields.flag("norm_topk_prob", normalised),
        factor=fields.optional("routed_scaling_factor", factor) or 1.0,
        correction=True,
        groups=read_groups(fields, count, kept, groups),
    )
    beside = width * (fields.count("n_shared_experts") if shared is None else fields.whole("n_shared_experts", shared))
    return Experts(count, kept, width, activation, router, shared=beside)


def read_groups(fields: Fields, count: int, kept: int, default: tuple[int, int]) -> tuple[int, int]:
    """Into how many groups experts go, and of how many the experts of a token are."""
    groups, chosen = fields.count("n_group", default[0], null=1), fields.count("topk_group", default[1], null=1)
    if fields.complete and count % groups:
        fields.refuse("n_group", f"{count:,} experts do not go into {groups:,} groups.")
    elif fields.complete and (chosen > groups or chosen * (count // groups) < kept):
        message = f"{chosen:,} of {groups:,} groups do not hold the {kept:,} experts of a token."
        fields.refuse("topk_group", message)
    elif fields.complete and groups > 1 and count // groups < 2:
        fields.refuse("n_group", "A group is chosen by its two best experts, and has fewer.")
    return groups, chosen


def after_dense(
    fields: Fields,
    sizes: Sizes,
    attention: Sequence[Attention | Latent],
    experts: Experts,
    first: int,
    epsilon: float = 1e-6,
) -> Stack:
    """A model whose first layers are dense, as many as the config says, or `first`. `attention`: of each.
    `epsilon`: where the config does not say."""
    dense = fields.whole("first_k_dense_replace", first)
    words = fields.words("mlp_layer_types", ("dense", "sparse"), sizes.layers)
    sparse = [word == "sparse" for word in words] if words else [at >= dense for at in range(sizes.layers)]
    fields.inert(["intermediate_size"])
    forward = None if all(sparse) else FeedForward(fields.count("intermediate_size"), experts.activation)
    layers = tuple(
        Layer(own, experts if one or forward is None else forward) for own, one in zip(attention, sparse, strict=True)
    )
    return stacked(fields, sizes, layers, epsilon=epsilon)


def gpt_oss(fields: Fields) -> Stack:
    """gpt-oss: every other layer looks through a window, sinks, biases, gates that are limited."""
    sizes = read_sizes(fields, Defaults(kv_heads=8, head_dim=64, context=131072), kinds=None)
    kinds = kinds_of(fields, sizes.layers, 2)
    fields.must_be("hidden_act", ["silu"], "its experts have an activation of their own")
    bias = fields.flag("attention_bias", True)
    attention = Attention(
        sizes.heads,
        sizes.kv_heads,
        sizes.head_dim,
        rope(fields, sizes, default_base=150000.0, default_scaling="yarn(32, 32, 1, 4096, exact)"),
        bias=bias,
        output_bias=bias,
        sinks=True,
    )
    fields.inert(["initial_context_length"])  # an older name of what the scaling of rope says
    count, kept = fields.count("num_local_experts", 128), fields.count("num_experts_per_tok", 4)
    check_counts(fields, ("num_experts",), "num_experts_per_tok", count, kept)
    if fields.get("experts_per_token") is not None and fields.count("experts_per_token") != kept:
        fields.refuse("experts_per_token", f"`experts_per_token` is not {kept}, as `num_experts_per_tok` is.")
    experts = Experts(
        count,
        kept,
        fields.count("intermediate_size"),
        "silu",
        Router("softmax", normalised=True, bias=True),
        bias=True,
        limit=fields.number("swiglu_limit", 7.0),
        alpha=fields.number("swiglu_alpha", 1.702),
    )
    window = read_window(fields, sizes, 128)
    layers = by_kind(attention, experts, kinds, window)
    return stacked(fields, sizes, layers, epsilon=1e-5)


def llama4(fields: Fields) -> Stack:
    """The text of Llama 4: three layers of four see pieces of the context, the others all of it and no positions."""
    sizes = read_sizes(fields, Defaults(kv_heads=8, head_dim=128, context=131072), kinds=None)
    interval = fields.count("no_rope_layer_interval", 4)
    ropes = fields.flags("no_rope_layers", sizes.layers) or [
        (at + 1) % interval != 0 for at in range(sizes.layers)
    ]  # 1 where a layer has rope, for all its name
    kinds = read_kinds(fields, sizes.layers, (FULL, CHUNK)) or [CHUNK if one else FULL for one in ropes]
    bias = fields.flag("attention_bias", False)
    grows = fields.flag("attn_temperature_tuning", True)
    heated = Heat(fields.number("attn_scale", 0.1), fields.number("floor_scale", 8192.0), first=1)
    norm = QueryNorm.PLAIN if fields.flag("use_qk_norm", True) else QueryNorm.NONE
    turned = replace(rope(fields, sizes, default_base=500000.0), halves=False)
    chunk = fields.count("attention_chunk_size", 8192, null=sizes.context)
    plain = Attention(sizes.heads, sizes.kv_heads, sizes.head_dim, bias=bias, output_bias=bias)

    def attention(at: int) -> Attention:
        reach = chunk if kinds[at] == CHUNK and chunk < sizes.context else None
        if ropes[at]:
            return replace(plain, rope=turned, query_norm=norm, chunk=reach)
        return replace(plain, chunk=reach, heated=heated if grows else None)

    step = fields.count("interleave_moe_layer_step", 1)
    named = fields.places("moe_layers", sizes.layers)  # an empty list names none
    sparse = set(range(step - 1, sizes.layers, step)) if named is None else named
    count, kept = fields.count("num_local_experts", 16), fields.count("num_experts_per_tok", 1)
    check_counts(fields, (), "num_experts_per_tok", count, kept)
    width, activation = fields.count("intermediate_size", 8192), read_activation(fields, "hidden_act", "silu")
    router = Router("sigmoid", normalised=False)
    experts = Experts(count, kept, width, activation, router, before=True, shared=width)
    dense = FeedForward(fields.count("intermediate_size_mlp", 16384), activation)
    layers = tuple(Layer(attention(at), experts if at in sparse else dense) for at in range(sizes.layers))
    return stacked(fields, sizes, layers, epsilon=1e-5)


def deepseek_moe(fields: Fields) -> Stack:
    """DeepSeekMoE 16B: attention as of Llama, experts weighed by their softmax, and some that all tokens take."""
    sizes = read_sizes(fields, Defaults(kv_heads=None, head_dim=None, context=2048))
    fields.must_be("scoring_func", ["softmax"], "only softmax scores are known")
    fields.must_be("moe_layer_freq", [1], "only experts in each layer after the first dense ones are known")
    count, kept = fields.count("n_routed_experts"), fields.count("num_experts_per_tok")
    check_counts(fields, ("num_local_experts", "num_experts"), "num_experts_per_tok", count, kept)
    width, activation = fields.count("moe_intermediate_size", 1407), read_activation(fields, "hidden_act", "silu")
    router = Router("softmax", normalised=fields.flag("norm_topk_prob", False))
    shared = width * fields.whole("n_shared_experts", 0)
    experts = Experts(count, kept, width, activation, router, shared=shared)
    return after_dense(fields, sizes, [heads_of(fields, sizes)] * sizes.layers, experts, 0)
