"""Models with latent attention and experts: DeepSeek V2 and V3, and what is built like them."""

from __future__ import annotations

from dataclasses import replace

from .common import Sizes, read_activation, read_kinds
from .description import Experts, FeedForward, Indexer, Latent, Layer, Rope, Router, Stack
from .experts import after_dense, check_counts, corrected, deepseek_moe, read_groups
from .fields import Fields
from .llama import feed_forward, stacked
from .rotary import heated, magnified, rope

SARVAM = {"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts"}
NARROW = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
MOST_MAGNIFIED = 1e6  # by what scores may be made larger
NARROW_EPSILON = 1e-6  # of the norms of the narrow values, whatever that of the others is


def deepseek_v3(fields: Fields) -> Stack:
    """DeepSeek V3 and R1, Kimi-K2: experts chosen in groups by sigmoid scores with a correction."""
    sizes = latent_sizes(fields, 4096)
    latent = read_latent(fields, sizes, 1536, interleaved=fields.flag("rope_interleave", True), mscale=True)
    experts = corrected(fields, (256, 8, 2048), 2.5, (8, 4))
    return after_dense(fields, sizes, [latent] * sizes.layers, experts, 3)


def glm4_moe_lite(fields: Fields) -> Stack:
    """GLM-4.7-Flash: DeepSeek V3 with other sizes."""
    sizes = latent_sizes(fields, 202752)
    interleaved = fields.flag("rope_interleave", True)
    latent = read_latent(fields, sizes, 768, interleaved=interleaved, mscale=True, dims=(192, 256))
    fields.must_be("partial_rotary_factor", [1.0], "rope that turns a part of a head is not known here")
    fields.must_be("first_k_dense_replace", [1], "the first layer alone is dense, or `mlp_layer_types` says which")
    experts = corrected(fields, (64, 4, 1536), 1.8, (1, 1))
    return after_dense(fields, sizes, [latent] * sizes.layers, experts, 1, epsilon=1e-5)


def deepseek_v32(fields: Fields) -> Stack:
    """DeepSeek V3.2: an indexer chooses the tokens that each one sees."""
    sizes = latent_sizes(fields, 163840)
    latent = read_latent(fields, sizes, 1536, interleaved=True, mscale=True)
    latent = replace(latent, indexer=_indexer(fields, sizes, latent.rope, 64, halves=True))
    experts = corrected(fields, (256, 8, 2048), 2.5, (8, 4))
    return after_dense(fields, sizes, [latent] * sizes.layers, experts, 3)


def glm_moe_dsa(fields: Fields) -> Stack:
    """GLM-5: DeepSeek V3.2 with other sizes, every layer of which chooses the tokens that it sees."""
    sizes = latent_sizes(fields, 202752)
    latent = read_latent(fields, sizes, 2048, interleaved=True, mscale=True)
    fields.must_be("rope_interleave", [True], "only pairs that stand side by side are known here")
    fields.must_be("indexer_rope_interleave", [True], "only pairs that stand side by side are known here")
    latent = replace(latent, indexer=_indexer(fields, sizes, latent.rope, 32, halves=False))
    fields.must_be("mlp_bias", [False], "biases of feed-forwards are not known here")
    experts = corrected(fields, (256, 8, 2048), 2.5, (1, 1))
    return after_dense(fields, sizes, [latent] * sizes.layers, experts, 3, epsilon=1e-5)


def sarvam(fields: Fields) -> Stack:
    """Sarvam 105B: DeepSeek V3, whose experts have other names."""
    own = fields.renamed(
        {ours: theirs for ours, theirs in SARVAM.items() if theirs in fields.entries and ours not in fields.entries}
    )
    fields.inert(["q_head_dim"])  # the sum of its parts
    sizes = latent_sizes(own, 4096)
    interleaved = own.flag("rope_interleave", True)
    said = "q_lora_rank" in own.entries
    latent = read_latent(own, sizes, 1536, interleaved=interleaved, mscale=True)
    latent = latent if said else replace(latent, query_rank=None)
    own.must_be("moe_router_enable_expert_bias", [True], "only scores with a correction are known")
    own.must_be("score_function", ["sigmoid"], "only sigmoid scores are known")
    experts = corrected(own, (128, 8, 2048), 2.5, (1, 1))
    return after_dense(own, sizes, [latent] * sizes.layers, experts, 1)


def mistral4(fields: Fields) -> Stack:
    """Mistral Small 4: DeepSeek V3 with softmax scores, and queries that grow with their place."""
    sizes = latent_sizes(fields, 1048576)
    whole = fields.count("qk_nope_head_dim", 64) + sizes.head_dim
    latent = read_latent(
        fields,
        sizes,
        1024,
        interleaved=fields.flag("rope_interleave", True),
        mscale=True,
        dims=(64, 128),
        rank=256,
        share_of=whole,
    )
    for name in ("n_group", "topk_group"):
        fields.must_be(name, [1], "groups of experts are not known here")
    count, kept = fields.count("n_routed_experts", 128), fields.count("num_experts_per_tok", 4)
    check_counts(fields, ("num_local_experts", "num_experts"), "num_experts_per_tok", count, kept)
    activation, width = read_activation(fields, "hidden_act", "silu"), fields.count("moe_intermediate_size", 2048)
    factor = fields.optional("routed_scaling_factor", 1.0) or 1.0
    router = Router("softmax", normalised=fields.flag("norm_topk_prob", True), factor=factor)
    shared = width * fields.whole("n_shared_experts", 1)
    experts = Experts(count, kept, width, activation, router, shared=shared)
    latent = replace(latent, heated=heated(fields))
    return after_dense(fields, sizes, [latent] * sizes.layers, experts, 0)


def longcat(fields: Fields) -> Stack:
    """LongCat-Flash: layers of two, beside the first of which experts add to what the second makes; some that a token
    may choose leave it as it is (arXiv:2509.01322, sections 2.1 and 2.2). Plans take all that are chosen for experts
    that do something, and so are an upper bound."""
    own = fields.renamed({"num_hidden_layers": "num_layers"} if "num_layers" in fields.entries else {})
    sizes = latent_sizes(own, 131072)
    fields.must_be("attention_method", ["MLA"], "only latent attention is known here")
    for name in ("mla_scale_q_lora", "mla_scale_kv_lora"):
        fields.must_be(name, [True], "narrow values are always scaled")
    fields.must_be("zero_expert_type", ["identity"], "only experts that leave a token as it is are known")
    latent = read_latent(own, sizes, 1536, interleaved=True, mscale=True, base=1e7)
    rank = latent.query_rank or sizes.model_dim
    latent = replace(latent, grown=((sizes.model_dim / rank) ** 0.5, (sizes.model_dim / latent.rank) ** 0.5))
    count, kept = fields.count("n_routed_experts", 512), fields.count("moe_topk", 12)
    check_counts(fields, ("num_local_experts", "num_experts"), "moe_topk", count, kept)
    fields.must_be("num_experts_per_tok", [kept], f"`moe_topk` is {kept}")
    activation, width = read_activation(fields, "hidden_act", "silu"), fields.count("expert_ffn_hidden_size", 2048)
    fields.must_be("router_bias", [False], "scores with a bias are not known here")
    router = Router("softmax", False, factor=fields.number("routed_scaling_factor", 6.0), correction=True)
    experts = Experts(count, kept, width, activation, router, idle=fields.whole("zero_expert_num", 256))
    dense = FeedForward(fields.count("ffn_hidden_size", 12288), activation)
    layer = Layer(latent, dense, beside=experts, second=Layer(latent, dense))
    return stacked(own, sizes, layer, epsilon=1e-5)


def youtu(fields: Fields) -> Stack:
    """Youtu: latent attention without experts."""
    sizes = latent_sizes(fields, 131072)
    interleaved = fields.flag("rope_interleave", True)
    latent = read_latent(fields, sizes, 1536, interleaved=interleaved, mscale=True)
    fields.inert(["embedding_initializer_range"])
    fields.must_be("mlp_bias", [False], "biases of feed-forwards are not known here")
    return stacked(fields, sizes, Layer(latent, feed_forward(fields)), tied=True)


def _indexer(fields: Fields, sizes: Sizes, turned: Rope, heads: int, halves: bool) -> Indexer:
    """What chooses the tokens. `heads`: where the config does not say. `halves`: as of rope."""
    layers, context = sizes.layers, sizes.context
    for name in ("index_topk_freq", "index_skip_topk_offset"):
        fields.must_be(name, [1] if name == "index_topk_freq" else [2], "layers that share a choice are not known")
    fields.must_be("index_topk_pattern", [], "layers that share a choice are not known")
    fields.words("indexer_types", ("full",), layers)
    keep = min(fields.count("index_topk", 2048), context)  # of fewer tokens all are seen
    own, width = replace(turned, halves=halves), fields.count("index_head_dim", 128)
    if fields.complete and width <= turned.turned:
        fields.refuse("index_head_dim", f"`index_head_dim` is {width:,}, and rope turns {turned.turned:,} of that.")
    return Indexer(fields.count("index_n_heads", heads), width, keep, own)


def deepseek_v2(fields: Fields) -> Stack:
    """DeepSeek V2: experts weighed by their softmax, those of the best groups or all; in DeepSeek-OCR and the smallest
    VL2 with attention as of Llama."""
    plain = fields.get("use_mla")
    if plain is not None and plain.value is False:
        fields.inert([*NARROW, "lm_head", "rm_head", "use_mla", "topk_method", "n_group", "topk_group"])
        return deepseek_moe(fields)
    sizes = latent_sizes(fields, 2048)
    for name, alone in (("use_mla", True), ("lm_head", True), ("rm_head", False)):  # of DeepSeek-VL2
        fields.must_be(name, [alone], f"only models where it is {str(alone).lower()} are known")
    latent = read_latent(fields, sizes, 1536, interleaved=True, mscale=False)
    fields.must_be("scoring_func", ["softmax"], "only softmax scores are known")
    fields.must_be("norm_topk_prob", [False], "here weights are not made to add to 1")
    fields.must_be("moe_layer_freq", [1], "only experts in each layer after the first dense ones are known")
    count, kept = fields.count("n_routed_experts", 64), fields.count("num_experts_per_tok", 6)
    check_counts(fields, ("num_local_experts", "num_experts"), "num_experts_per_tok", count, kept)
    method = fields.choice("topk_method", {"greedy": False, "group_limited_greedy": True}, False)
    groups = read_groups(fields, count, kept, (1, 1)) if method else (1, 1)
    fields.inert(["n_group", "topk_group"])
    activation = read_activation(fields, "hidden_act", "silu")
    width = fields.count("moe_intermediate_size", 1407)
    router = Router("softmax", False, factor=fields.number("routed_scaling_factor", 1.0), groups=groups)
    shared = width * fields.count("n_shared_experts", 2)
    experts = Experts(count, kept, width, activation, router, shared=shared)
    return after_dense(fields, sizes, [latent] * sizes.layers, experts, 0)


def latent_sizes(fields: Fields, context: int, turned: int = 64) -> Sizes:
    """The sizes; `head_dim`: of what rope turns, as these models have it, `turned` where the config does not say."""
    heads, turned = fields.count("num_attention_heads"), fields.count("qk_rope_head_dim", turned)
    fields.inert(["num_key_value_heads", "head_dim", "qk_head_dim"])  # all heads have keys of their own
    layers = fields.count("num_hidden_layers", most=2**20)
    read_kinds(fields, layers, ("full_attention", "indexed_attention"))
    return Sizes(
        layers=layers,
        model_dim=fields.count("hidden_size"),
        heads=heads,
        kv_heads=heads,
        head_dim=turned,
        vocabulary=fields.count("vocab_size"),
        context=fields.count("max_position_embeddings", context),
    )


def read_latent(
    fields: Fields,
    sizes: Sizes,
    query_rank: int,
    interleaved: bool,
    mscale: bool,
    dims: tuple[int, int] = (128, 128),
    rank: int = 512,
    share_of: int | None = None,
    base: float = 10000.0,
) -> Latent:
    """Latent attention. `interleaved`: whether rope turns neighbours in the checkpoint; `mscale`: whether a scaled
    rope also scales the scores; `dims`: of a head, without rope and of values, `rank`: of what keys and values are made
    of, and `base`: of rope, where the config does not say. `share_of`: how wide the whole head is of which the config
    says the share that rope turns."""
    fields.must_be("attention_bias", [False], "biases of latent attention are not known")
    share = None if share_of is None else ("partial_rotary_factor", sizes.head_dim / share_of)
    turned = rope(fields, sizes, share=share, share_of=share_of, default_base=base)
    head_dim, rank = fields.count("qk_nope_head_dim", dims[0]), fields.count("kv_lora_rank", rank)
    scale = (head_dim + sizes.head_dim) ** -0.5
    return Latent(
        heads=sizes.heads,
        query_rank=None if _none(fields, "q_lora_rank") else fields.count("q_lora_rank", query_rank),
        rank=rank,
        head_dim=head_dim,
        value_dim=fields.count("v_head_dim", dims[1]),
        rope=replace(turned, halves=not interleaved),
        scale=scale * _magnified(fields) ** 2 if mscale else scale,
        epsilon=NARROW_EPSILON,
    )


def _none(fields: Fields, name: str) -> bool:
    return name in fields.entries and fields.get(name) is None


def _magnified(fields: Fields) -> float:
    """By what yarn makes queries and keys larger, where the config says `mscale_all_dim`."""
    for name in ("rope_parameters", "rope_scaling"):
        node = fields.get(name)
        if node is not None and isinstance(node.value, dict):
            said = {key: entry.node.value for key, entry in node.value.items()}
            all_dims, factor = said.get("mscale_all_dim"), said.get("factor")
            kind = said.get("rope_type") or said.get("type") or "default"
            if kind != "default" and isinstance(all_dims, int | float) and isinstance(factor, int | float) and all_dims:
                found = magnified(float(factor), float(all_dims))
                if 0 < found < MOST_MAGNIFIED:
                    return found
                fields.refuse(name, "`mscale_all_dim` makes scores larger than numbers can be.")
    return 1.0
