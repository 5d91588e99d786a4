"""What the parameters of an imported model are made of, by the names that tensors have in checkpoints.

A matrix of a checkpoint is [to, from] (of GPT-2 [from, to]), with its heads one behind the other, and the two numbers
that rope turns together lie half of what it turns apart; GGUF files of Llama keep them side by side. The names are
those of the library `transformers` (https://github.com/huggingface/transformers) in version 5.23 and of the
specification of GGUF (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from .description import (
    Attention,
    Block,
    Experts,
    FeedForward,
    Indexer,
    Latent,
    Layer,
    Norm,
    Norms,
    QueryNorm,
    Transformer,
)
from .weight_map import COUNTERS, Made, WeightMap
from .write import Model


@dataclass(frozen=True)
class ExpertStyle:
    """How a kind of checkpoint calls the parts of experts: what it chooses them by, what the names of each begin with,
    its matrices; `fused`: what is made of tensors of all experts, where they are in such. `shared`: the one that all
    tokens take, and what it is weighed by."""

    router: str = "mlp.gate"
    correction: str = "mlp.gate.e_score_correction_bias"
    each: str = "mlp.experts.{}"
    up: str = "up_proj"
    gate: str = "gate_proj"
    down: str = "down_proj"
    fused: Mapping[str, Made] = field(default_factory=dict)
    shared: str = "mlp.shared_experts"
    shared_gate: str = "mlp.shared_expert_gate"
    router_scale: str = "router.scale"
    per_expert: str = "router.per_expert_scale"


@dataclass(frozen=True)
class Style:
    """How a kind of checkpoint calls and keeps things. `block`: what the names of a block's tensors begin with.
    `fused`: the one module of queries, keys and values, None where they stand apart, and `by_head` whether it has
    them kv-head by kv-head, its queries, its key and its value; `stacked`: one that has them one behind the other, of
    widths of their own. `gate_up`: the one module of both. `from_to`: whether matrices are [from, to]. `halves`:
    whether what rope turns together lies half of that apart."""

    table: str
    norm: str
    head: str
    block: str
    norms: tuple[str, ...]
    query: str
    key: str
    value: str
    output: str
    up: str
    gate: str
    down: str
    places: str = ""
    query_norm: str = ""
    key_norm: str = ""
    fused: str | None = None
    by_head: bool = False
    two_norms: tuple[str, ...] = ()  # of blocks that stand side by side, where these are others
    stacked: str | None = None
    gate_up: str | None = None
    from_to: bool = False
    halves: bool = True
    other_norms: Mapping[Norms, tuple[str, ...]] = field(default_factory=lambda: OTHER_NORMS)
    sinks: str = "self_attn.sinks"
    experts: ExpertStyle = ExpertStyle()


OTHER_NORMS: Mapping[Norms, tuple[str, ...]] = {
    Norms.AFTER: ("post_attention_layernorm", "post_feedforward_layernorm"),
    Norms.BOTH: (
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
        "post_feedforward_layernorm_1",
        "pre_feedforward_layernorm_2",
        "post_feedforward_layernorm_2",
    ),
}
LLAMA = Style(
    table="model.embed_tokens",
    norm="model.norm",
    head="lm_head",
    block="model.layers.{}.",
    norms=("input_layernorm", "post_attention_layernorm"),
    query="self_attn.q_proj",
    key="self_attn.k_proj",
    value="self_attn.v_proj",
    output="self_attn.o_proj",
    up="mlp.up_proj",
    gate="mlp.gate_proj",
    down="mlp.down_proj",
    query_norm="self_attn.q_norm",
    key_norm="self_attn.k_norm",
)
PHI = replace(
    LLAMA,
    norm="model.final_layernorm",
    norms=("input_layernorm", "input_layernorm"),
    output="self_attn.dense",
    up="mlp.fc1",
    gate="",
    down="mlp.fc2",
)
NEOX = Style(
    table="gpt_neox.embed_in",
    norm="gpt_neox.final_layer_norm",
    head="embed_out",
    block="gpt_neox.layers.{}.",
    norms=("input_layernorm", "post_attention_layernorm"),
    query="",
    key="",
    value="",
    output="attention.dense",
    up="mlp.dense_h_to_4h",
    gate="",
    down="mlp.dense_4h_to_h",
    fused="attention.query_key_value",
    by_head=True,
)
FALCON = replace(
    NEOX,
    table="transformer.word_embeddings",
    norm="transformer.ln_f",
    head="lm_head",
    block="transformer.h.{}.",
    two_norms=("ln_attn", "ln_mlp"),
    output="self_attention.dense",
    fused="self_attention.query_key_value",
)
GPT2 = Style(
    table="transformer.wte",
    norm="transformer.ln_f",
    head="lm_head",
    block="transformer.h.{}.",
    norms=("ln_1", "ln_2"),
    query="",
    key="",
    value="",
    output="attn.c_proj",
    up="mlp.c_fc",
    gate="",
    down="mlp.c_proj",
    places="transformer.wpe",
    fused="attn.c_attn",
    from_to=True,
)
GGUF = Style(
    table="token_embd",
    norm="output_norm",
    head="output",
    block="blk.{}.",
    norms=("attn_norm", "ffn_norm"),
    query="attn_q",
    key="attn_k",
    value="attn_v",
    output="attn_output",
    up="ffn_up",
    gate="ffn_gate",
    down="ffn_down",
    query_norm="attn_q_norm",
    key_norm="attn_k_norm",
)
MIXTRAL = replace(
    LLAMA,
    experts=ExpertStyle(
        router="block_sparse_moe.gate",
        correction="block_sparse_moe.e_score_correction_bias",
        each="block_sparse_moe.experts.{}",
        up="w3",
        gate="w1",
        down="w2",
    ),
)
QWEN2_MOE = replace(LLAMA, experts=ExpertStyle(shared="mlp.shared_expert"))
ERNIE = replace(LLAMA, experts=ExpertStyle(correction="mlp.moe_statics.e_score_correction_bias"))
GPT_OSS = replace(
    LLAMA,
    experts=ExpertStyle(
        router="mlp.router",
        fused={
            "Wi": Made("mlp.experts.gate_up_proj", ("every 2 from 2",)),
            "Wg": Made("mlp.experts.gate_up_proj", ("every 2 from 1",)),
            "Wd": Made("mlp.experts.down_proj"),
            "bi": Made("mlp.experts.gate_up_proj_bias", ("every 2 from 2",)),
            "bg": Made("mlp.experts.gate_up_proj_bias", ("every 2 from 1",)),
            "bd": Made("mlp.experts.down_proj_bias"),
        },
    ),
)
LLAMA4 = replace(
    LLAMA,
    up="feed_forward.up_proj",
    gate="feed_forward.gate_proj",
    down="feed_forward.down_proj",
    experts=ExpertStyle(
        router="feed_forward.router",
        fused={
            "Wi": Made("feed_forward.experts.gate_up_proj", ("part 2 of 2",)),
            "Wg": Made("feed_forward.experts.gate_up_proj", ("part 1 of 2",)),
            "Wd": Made("feed_forward.experts.down_proj"),
        },
        shared="feed_forward.shared_expert",
    ),
)
GEMMA4 = replace(
    LLAMA,
    experts=ExpertStyle(
        router="router.proj",
        fused={
            "Wi": Made("experts.gate_up_proj", ("transpose", "part 2 of 2")),
            "Wg": Made("experts.gate_up_proj", ("transpose", "part 1 of 2")),
            "Wd": Made("experts.down_proj", ("transpose",)),
        },
    ),
)
GLM4_NORMS = ("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm")
STYLES: Mapping[str, Style] = {  # by architecture; all others are as Llama
    "phi": PHI,
    "gpt_neox": NEOX,
    "falcon": FALCON,
    "gpt2": GPT2,
    "mixtral": MIXTRAL,
    "minimax_m2": MIXTRAL,
    "qwen2_moe": QWEN2_MOE,
    "ernie4_5_moe": ERNIE,
    "phi3": replace(LLAMA, stacked="self_attn.qkv_proj", gate_up="mlp.gate_up_proj"),
    "starcoder2": replace(LLAMA, up="mlp.c_fc", gate="", down="mlp.c_proj"),
    "cohere": replace(LLAMA, norms=("input_layernorm",)),
    "cohere2": replace(LLAMA, norms=("input_layernorm",)),
    "glm": replace(LLAMA, gate_up="mlp.gate_up_proj"),
    "glm4": replace(LLAMA, gate_up="mlp.gate_up_proj", other_norms={Norms.BOTH: GLM4_NORMS}),
    "gpt_oss": GPT_OSS,
    "llama4_text": LLAMA4,
    "gemma4_text": GEMMA4,
}


def weight_map(model: Transformer, style: Style) -> WeightMap:
    """What each parameter is made of, in the order in which the model declares them."""
    made = dict(_ends(model, style))
    written = Model(model)
    for placed in written.placed():
        index = _index(placed.first, placed.strides)
        for name, one in _layer(placed.kind, model.norm, style, len(placed.strides)):
            made[f"{placed.prefix}{name}"] = Made(style.block.replace("{}", index) + one.tensor, one.steps)
    return made


def _index(first: int, strides: Sequence[int]) -> str:
    """The number of a layer by the counters of the repeats around it: `{}`, `{6a+b+3}`, `3`."""
    if not strides:
        return str(first)
    if tuple(strides) == (1,) and first == 0:
        return "{}"
    terms = [f"{'' if n == 1 else n}{letter}" for n, letter in zip(strides, COUNTERS, strict=False)]
    return "{" + "+".join([*terms, *([str(first)] if first else [])]) + "}"


def _ends(model: Transformer, style: Style) -> Iterator[tuple[str, Made]]:
    """What stands before and behind the layers."""
    yield "table", Made(f"{style.table}.weight")
    if model.places:
        yield "places", Made(f"{style.places}.weight")
    if not model.tied:
        yield "Wu", Made(f"{style.head}.weight", ("transpose",))
    if model.head_bias:
        yield "bu", Made(f"{style.head}.bias")
    yield from _norm(model.norm, "", style.norm)


def _norm(norm: Norm, number: str, module: str) -> Iterator[tuple[str, Made]]:
    yield f"scale{number}", Made(f"{module}.weight")
    if norm.bias:
        yield f"bias{number}", Made(f"{module}.bias")


def _layer(layer: Layer, norm: Norm, style: Style, repeats: int) -> Iterator[tuple[str, Made]]:
    """The parameters of a layer, their tensors without what their names begin with. `repeats`: how many are around
    it."""
    modules = style.norms if layer.norms is Norms.BEFORE else style.other_norms[layer.norms]
    if layer.block is Block.PARALLEL_TWO_NORMS and style.two_norms:
        modules = style.two_norms
    for number, module in zip(layer.scales, modules, strict=False):
        yield from _norm(norm, number, module)
    match layer.attention:
        case Attention() as attention:
            yield from _attention(attention, style)
        case Latent() as latent:
            yield from _latent(latent)
    match layer.forward:
        case FeedForward() as forward:
            yield from _feed_forward(forward, style)
        case Experts() as experts:
            yield from _experts(experts, style.experts, repeats)
    if layer.beside is not None:
        yield from _experts(layer.beside, style.experts, repeats, "x")
    if layer.scaled:
        yield "factor", Made("layer_scalar")


def _attention(a: Attention, style: Style) -> Iterator[tuple[str, Made]]:
    modules = (("q", style.query, a.heads), ("k", style.key, a.kv_heads), ("v", style.value, a.kv_heads))
    for letter in ("W", "b") if a.bias else ("W",):
        for at, (name, module, heads) in enumerate(modules[:2] if a.shared_value else modules):
            yield from _projection(a, style, (letter, name), module, heads, at + 1)
    pairs = ("pairs",) if style.halves and a.rope is not None and a.rope.halves else ()
    for name, module, heads in (("q", style.query_norm, a.heads), ("k", style.key_norm, a.kv_heads)):
        if a.query_norm is QueryNorm.HEAD:
            whole = a.rope is None or a.rope.turned == a.head_dim
            yield from _split(a, f"scale_{name}", Made(f"{module}.weight"), pairs, whole)
        elif a.query_norm is QueryNorm.ALL:
            one = Made(f"{module}.weight", (f"heads {heads}",))
            yield from _split(a, f"scale_{name}", one, pairs, a.rope is None or a.rope.turned == a.head_dim)
    if a.sinks:
        yield "sinks", Made(f"{style.sinks}")
    matrix: tuple[str, ...] = () if style.from_to else ("transpose",)
    if a.shared_value and pairs:  # values lie as keys do
        matrix = (f"heads {a.heads}", *pairs, "roll")
    yield "Wo", Made(f"{style.output}.weight", matrix)
    if a.output_bias:
        yield "bo", Made(f"{style.output}.bias")


def _split(a: Attention, name: str, one: Made, pairs: tuple[str, ...], whole: bool) -> Iterator[tuple[str, Made]]:
    """What goes along a head, in two where rope turns but some of it."""
    if whole or a.rope is None:
        yield name, Made(one.tensor, (*one.steps, *pairs))
    else:
        yield f"{name}r", Made(one.tensor, (*one.steps, f"first {a.rope.turned}", *pairs))
        yield f"{name}n", Made(one.tensor, (*one.steps, f"after {a.rope.turned}"))


def _projection(
    a: Attention, style: Style, called: tuple[str, str], module: str, heads: int, part: int
) -> Iterator[tuple[str, Made]]:
    """Queries, keys or values, the `part` of a fused module; what rope turns and the rest apart."""
    letter, name = called
    kind = "weight" if letter == "W" else "bias"
    steps = ["transpose"] if letter == "W" and not style.from_to else []
    if style.stacked is not None:
        before = (0, a.heads, a.heads + a.kv_heads)[part - 1] * a.head_dim
        cut = [*([f"after {before}"] if before else []), *([f"first {heads * a.head_dim}"] if name != "v" else [])]
        tensor, each = f"{style.stacked}.{kind}", [*steps, *cut, f"heads {heads}"]
    elif style.fused is None:
        tensor, each = f"{module}.{kind}", [*steps, f"heads {heads}"]
    elif style.by_head and a.kv_heads < a.heads:
        group = a.heads // a.kv_heads
        before, own = (0, group, group + 1)[part - 1] * a.head_dim, (group if part == 1 else 1) * a.head_dim
        cut = [*([f"after {before}"] if before else []), *([f"first {own}"] if name != "v" else [])]
        tensor = f"{style.fused}.{kind}"
        each = [*steps, f"heads {a.kv_heads}", *cut, *([f"heads {group}"] if part == 1 else [])]
    elif style.by_head:
        tensor, each = f"{style.fused}.{kind}", [*steps, f"heads {heads}", f"part {part} of 3"]
    else:
        tensor, each = f"{style.fused}.{kind}", [*steps, f"part {part} of 3", f"heads {heads}"]
    one = Made(tensor, tuple(each))
    pairs = ("pairs",) if style.halves and a.rope is not None and a.rope.halves else ()
    if name == "v" or a.rope is None:
        yield f"{letter}{name}", one
    else:
        yield from _split(a, f"{letter}{name}", one, pairs, a.rope.turned == a.head_dim)


def _latent(a: Latent) -> Iterator[tuple[str, Made]]:
    """Latent attention, as DeepSeek keeps it."""
    heads, pairs = f"heads {a.heads}", ("pairs",) if a.rope.halves else ()
    query = "self_attn.q_proj" if a.query_rank is None else "self_attn.q_b_proj"
    both = "self_attn.kv_a_proj_with_mqa.weight"
    if a.query_rank is not None:
        yield "Wa", Made("self_attn.q_a_proj.weight", ("transpose",))
        yield "scale_a", Made("self_attn.q_a_layernorm.weight")
    yield "Wq", Made(f"{query}.weight", ("transpose", heads, f"first {a.head_dim}"))
    yield "Wqr", Made(f"{query}.weight", ("transpose", heads, f"after {a.head_dim}", *pairs))
    yield "Wc", Made(both, ("transpose", f"first {a.rank}"))
    yield "Wkr", Made(both, ("transpose", f"after {a.rank}", *pairs))
    yield "scale_c", Made("self_attn.kv_a_layernorm.weight")
    yield "Wk", Made("self_attn.kv_b_proj.weight", ("transpose", heads, f"first {a.head_dim}"))
    yield "Wv", Made("self_attn.kv_b_proj.weight", ("transpose", heads, f"after {a.head_dim}"))
    if a.indexer is not None:
        yield from _indexer(a.indexer)
    yield "Wo", Made("self_attn.o_proj.weight", ("transpose",))


def _indexer(indexer: Indexer) -> Iterator[tuple[str, Made]]:
    heads, turned = f"heads {indexer.heads}", f"first {indexer.rope.turned}"
    rest, pairs = f"after {indexer.rope.turned}", ("pairs",) if indexer.rope.halves else ()
    module = "self_attn.indexer"
    yield "Wiqr", Made(f"{module}.wq_b.weight", ("transpose", heads, turned, *pairs))
    yield "Wiqn", Made(f"{module}.wq_b.weight", ("transpose", heads, rest))
    yield "Wikr", Made(f"{module}.wk.weight", ("transpose", turned, *pairs))
    yield "Wikn", Made(f"{module}.wk.weight", ("transpose", rest))
    for name, kind in (("scale", "weight"), ("bias", "bias")):
        yield f"{name}_ikr", Made(f"{module}.k_norm.{kind}", (turned, *pairs))
        yield f"{name}_ikn", Made(f"{module}.k_norm.{kind}", (rest,))
    yield "Wiw", Made(f"{module}.weights_proj.weight", ("transpose",))


def _feed_forward(forward: FeedForward, style: Style) -> Iterator[tuple[str, Made]]:
    matrix = () if style.from_to else ("transpose",)
    if style.gate_up is not None:
        yield "Wi", Made(f"{style.gate_up}.weight", ("transpose", "part 2 of 2"))
        yield "Wg", Made(f"{style.gate_up}.weight", ("transpose", "part 1 of 2"))
        yield "Wd", Made(f"{style.down}.weight", ("transpose",))
        return
    names = {"i": style.up, "g": style.gate, "d": style.down}
    for letter in ("W", "b") if forward.bias else ("W",):
        for name in ("i", "g", "d") if forward.gated else ("i", "d"):
            if letter == "W":
                yield f"W{name}", Made(f"{names[name]}.weight", matrix)
            else:
                yield f"b{name}", Made(f"{names[name]}.bias")


def _experts(experts: Experts, style: ExpertStyle, repeats: int, tag: str = "") -> Iterator[tuple[str, Made]]:
    """Experts: each in tensors of its own, or all in one; `tag` begins the names of their matrices."""
    yield "Wr", Made(f"{style.router}.weight", ("transpose",))
    if experts.router.bias:
        yield "br", Made(f"{style.router}.bias")
    if experts.router.correction:
        yield "correction", Made(style.correction)
    if experts.router.own_norm:
        yield "scale_r", Made(style.router_scale)
    if experts.router.per_expert:
        yield "scale_x", Made(style.per_expert)
    at = _expert_index(experts, repeats)
    names = {"i": style.up, "g": style.gate, "d": style.down}
    for name in "igd":
        if style.fused:
            yield f"W{tag}{name}", style.fused[f"W{name}"]
        else:
            yield f"W{tag}{name}", Made(f"{style.each.replace('{}', at)}.{names[name]}.weight", ("transpose",))
    if experts.bias:
        yield from ((f"b{name}", style.fused[f"b{name}"]) for name in "igd")
    if experts.shared:
        yield "Wsi", Made(f"{style.shared}.up_proj.weight", ("transpose",))
        yield "Wsg", Made(f"{style.shared}.gate_proj.weight", ("transpose",))
        yield "Wsd", Made(f"{style.shared}.down_proj.weight", ("transpose",))
        if experts.shared_gate:
            yield "Ws", Made(f"{style.shared_gate}.weight")


def _expert_index(experts: Experts, repeats: int) -> str:
    """The number of an expert by the counters behind those of the repeats: of experts in groups there are two."""
    first, second = COUNTERS[repeats], COUNTERS[repeats + 1]
    groups = experts.router.groups[0]
    return "{" + first + "}" if groups == 1 else "{" + f"{experts.count // groups}{first}+{second}" + "}"


def style_of(model: Transformer) -> Style:
    """How folders of safetensors files keep a model."""
    return STYLES.get(model.architecture, LLAMA)
