"""What the parameters of an imported model are made of, by the names that tensors have in checkpoints.

A matrix of a checkpoint is [to, from] (of GPT-2 [from, to]), with its heads one behind the other, and the two numbers
that rope turns together lie half of what it turns apart; GGUF files of Llama keep them side by side.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .checkpoint_styles import ExpertStyle, Style
from .description import (
    Attention,
    Block,
    Experts,
    FeedForward,
    Gate,
    Indexer,
    Latent,
    Layer,
    Norm,
    Norms,
    QueryNorm,
    Sharing,
    Streams,
    Transformer,
)
from .own_text import SHARED
from .weight_map import COUNTERS, Made, WeightMap
from .write import Model


def weight_map(model: Transformer, style: Style) -> WeightMap:
    """What each parameter is made of, in the order in which the model declares them."""
    made = dict(_ends(model, style))
    written = Model(model)
    for placed in written.placed():
        index = "{}" if (placed.first, placed.strides) == (0, (1,)) else _index(placed.first, placed.strides)
        for name, one in _layer(placed.kind, model.norm, style, len(placed.strides)):
            made[f"{placed.prefix}{name}"] = Made(style.block.replace("{}", index) + one.tensor, one.steps)
        if placed.kind.own:
            part = f"part {_index(placed.first + 1, placed.strides)} of {len(model.layers)}"
            made[f"{placed.prefix}own"] = Made(f"{style.own_table}.weight", (part,))
            made[f"{placed.prefix}Wop"] = Made(f"{style.own_projection}.weight", ("transpose", part))
    return made


def _index(first: int, strides: Sequence[int]) -> str:
    """The number of a layer by the counters of the repeats around it: `{a}`, `{6a+b+3}`, `3`."""
    if not strides:
        return str(first)
    terms = [f"{'' if n == 1 else n}{letter}" for n, letter in zip(strides, COUNTERS, strict=False)]
    return "{" + "+".join([*terms, *([str(first)] if first else [])]) + "}"


def _ends(model: Transformer, style: Style) -> Iterator[tuple[str, Made]]:
    """What stands before and behind the layers."""
    yield "table", Made(f"{style.table}.weight")
    if model.places:
        cut = ("transpose", f"after {style.first_place}", "transpose") if style.first_place else ()
        yield "places", Made(f"{style.places}.weight", cut)
    if model.embedding_norm:
        yield from _norm(model.norm, "0", style.table_norm)
    if not model.tied:
        yield "Wu", Made(f"{style.head}.weight", ("transpose",))
    if model.head_bias:
        yield "bu", Made(f"{style.head}.bias")
    if model.embedding_width:
        yield "We", Made(f"{style.widened}.weight", ("transpose",))
        yield "Wn", Made(f"{style.narrowed}.weight", ("transpose",))
    if model.final_norm:
        yield from _norm(model.norm, "", style.norm)
    if any(layer.streams is not None for layer in model.kinds):
        yield "Wsx", Made("model.altup_projections.{a}.weight", ("transpose",))
        yield "Wsy", Made("model.altup_unembed_projections.{a}.weight", ("transpose",))
    if model.own_vocabulary:
        yield SHARED, Made(f"{style.own_norm}.weight")


def _norm(norm: Norm, number: str, module: str) -> Iterator[tuple[str, Made]]:
    if norm.scaled:
        yield f"scale{number}", Made(f"{module}.weight")
    if norm.bias:
        yield f"bias{number}", Made(f"{module}.bias")


def _layer(layer: Layer, norm: Norm, style: Style, repeats: int) -> Iterator[tuple[str, Made]]:
    """The parameters of a layer, their tensors without what their names begin with. `repeats`: how many are around
    it."""
    same = layer.norms in (Norms.BEFORE, Norms.SUM)
    modules = style.norms if same else style.other_norms[layer.norms]
    if layer.block is Block.PARALLEL_TWO_NORMS and style.two_norms:
        modules = style.two_norms
    for number in layer.scales:
        yield from _norm(norm, number, modules[max(0, int(number or 1) - 1)])
    match layer.attention:
        case Attention() as attention:
            yield from _attention(attention, style, repeats)
        case Latent() as latent:
            yield from ((name, Made(f"{style.latent}{one.tensor}", one.steps)) for name, one in _latent(latent))
    match layer.forward:
        case FeedForward() as forward:
            yield from _feed_forward(forward, style)
        case Experts() as experts:
            yield from _experts(experts, style.experts, repeats)
    if layer.beside is not None:
        yield from _experts(layer.beside, style.experts, repeats, "x")
    if layer.second is not None:
        yield from ((f"{name}_2", _second(one)) for name, one in _layer(layer.second, norm, style, repeats))
    if layer.own:
        yield "Wog", Made("per_layer_input_gate.weight", ("transpose",))
        yield "Wod", Made("per_layer_projection.weight", ("transpose",))
    if layer.streams is not None:
        yield from _streams(layer.streams)
    if layer.scaled:
        yield "factor", Made("layer_scalar")


def _streams(streams: Streams) -> Iterator[tuple[str, Made]]:
    """What a layer predicts and corrects streams by. The matrix by which it predicts lies as one row of numbers for
    each pair, that to which a stream adds first."""
    predicts, corrects = "altup.prediction_coefs.weight", "altup.correction_coefs.weight"
    one, others = f"first {streams.count}", (f"after {streams.count}", f"heads {streams.count - 1}")
    yield "scale_m", Made("altup.router_norm.weight")
    yield "Wm", Made("altup.modality_router.weight", ("transpose",))
    yield "Poo", Made(predicts, ("transpose", one, "first 1"))
    yield "Pof", Made(predicts, ("transpose", one, "after 1"))
    yield "Pfo", Made(predicts, ("transpose", *others, "first 1"))
    yield "Pff", Made(predicts, ("transpose", *others, "after 1"))
    yield "Co", Made(corrects, ("transpose", "first 1"))
    yield "Cf", Made(corrects, ("transpose", "after 1"))
    yield "scale_c", Made("altup.correct_output_scale")
    yield "Wl", Made("laurel.linear_left.weight", ("transpose",))
    yield "Wlr", Made("laurel.linear_right.weight", ("transpose",))
    yield "scale_l", Made("laurel.post_laurel_norm.weight")


def _second(one: Made) -> Made:
    """What is made of the second of two modules of a layer, whose names are those of the first but for their number."""
    return Made(one.tensor.replace(".0.", ".1.", 1), one.steps)


def _attention(a: Attention, style: Style, repeats: int) -> Iterator[tuple[str, Made]]:
    modules = (("q", style.query, a.heads), ("k", style.key, a.kv_heads), ("v", style.value, a.kv_heads))
    own = modules[:1] if a.sharing is Sharing.BORROWED else modules[:2] if a.shared_value else modules
    for letter in ("W", "b") if a.bias else ("W",):
        for at, (name, module, heads) in enumerate(own):
            yield from _projection(a, style, (letter, name), module, heads, at + 1)
    yield from _query_norms(a, style, repeats)
    if a.sinks:
        yield "sinks", Made(f"{style.sinks}")
    matrix: tuple[str, ...] = () if style.from_to else ("transpose",)
    if a.gate is not Gate.NONE:
        yield "Wz", Made(f"{style.attention_gate}.weight", matrix)
    if a.shared_value and _pairs(a, style):  # values lie as keys do
        matrix = (f"heads {a.heads}", *_pairs(a, style), "roll")
    yield "Wo", Made(f"{style.output}.weight", matrix)
    if a.output_bias:
        yield "bo", Made(f"{style.output}.bias")


def _query_norms(a: Attention, style: Style, repeats: int) -> Iterator[tuple[str, Made]]:
    """The scales and shifts by which queries and keys are normed."""
    if a.query_norm in (QueryNorm.NONE, QueryNorm.PLAIN):
        return
    shifts = (("bias", "bias"),) if a.query_norm is QueryNorm.LAYER else ()
    both = (("q", style.query_norm, a.heads), ("k", style.key_norm, a.kv_heads))
    for name, module, heads in both[:1] if a.sharing is Sharing.BORROWED else both:
        steps = (f"heads {heads}",) if a.query_norm is QueryNorm.ALL else ()
        module = module.replace("{}", _head_index(a, heads, repeats))  # where each head has tensors of its own
        for called, kind in (("scale", "weight"), *shifts):
            yield from _split(a, f"{called}_{name}", Made(f"{module}.{kind}", steps), _pairs(a, style))


def _head_index(a: Attention, heads: int, repeats: int) -> str:
    """The number of a head by the counters behind those of the repeats: of heads in groups there are two."""
    first, second = COUNTERS[repeats], COUNTERS[repeats + 1]
    if heads == 1 and a.kv_heads == 1 < a.heads:  # keys that all heads share have no dim of heads
        return "0"
    grouped = heads > a.kv_heads > 1
    return "{" + (f"{a.heads // a.kv_heads}{first}+{second}" if grouped else first) + "}"


def _pairs(a: Attention, style: Style) -> tuple[str, ...]:
    """The step that puts beside each other what rope turns together."""
    return ("pairs",) if style.halves and a.rope is not None and a.rope.halves else ()


def _split(a: Attention, name: str, one: Made, pairs: tuple[str, ...]) -> Iterator[tuple[str, Made]]:
    """What goes along a head, in two where rope turns but some of it."""
    if a.rope is None or a.rope.turned == a.head_dim:
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
    elif style.chips:
        place = {"q": 1, "v": 2, "k": 3}[name]
        each = [*steps, f"heads {style.chips}", f"part {place} of 3", f"heads {heads // style.chips}"]
        tensor = f"{style.fused}.{kind}"
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
    if name == "v" or a.rope is None:
        yield f"{letter}{name}", one
    else:
        yield from _split(a, f"{letter}{name}", one, _pairs(a, style))


def _latent(a: Latent) -> Iterator[tuple[str, Made]]:
    """Latent attention, as DeepSeek keeps it."""
    heads, pairs = f"heads {a.heads}", ("pairs",) if a.rope.halves else ()
    query = "q_proj" if a.query_rank is None else "q_b_proj"
    both = "kv_a_proj_with_mqa.weight"
    if a.query_rank is not None:
        yield "Wa", Made("q_a_proj.weight", ("transpose",))
        yield "scale_a", Made("q_a_layernorm.weight")
    yield "Wq", Made(f"{query}.weight", ("transpose", heads, f"first {a.head_dim}"))
    yield "Wqr", Made(f"{query}.weight", ("transpose", heads, f"after {a.head_dim}", *pairs))
    yield "Wc", Made(both, ("transpose", f"first {a.rank}"))
    yield "Wkr", Made(both, ("transpose", f"after {a.rank}", *pairs))
    yield "scale_c", Made("kv_a_layernorm.weight")
    yield "Wk", Made("kv_b_proj.weight", ("transpose", heads, f"first {a.head_dim}"))
    yield "Wv", Made("kv_b_proj.weight", ("transpose", heads, f"after {a.head_dim}"))
    if a.indexer is not None:
        yield from _indexer(a.indexer)
    yield "Wo", Made("o_proj.weight", ("transpose",))


def _indexer(indexer: Indexer) -> Iterator[tuple[str, Made]]:
    heads, turned = f"heads {indexer.heads}", f"first {indexer.rope.turned}"
    rest, pairs = f"after {indexer.rope.turned}", ("pairs",) if indexer.rope.halves else ()
    module = "indexer"
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
    if forward.activation == "xielu":
        yield from ((name, Made(f"{style.activation}.{name}", ("first 1",))) for name in ("alpha_p", "alpha_n"))


def _experts(experts: Experts, style: ExpertStyle, repeats: int, tag: str = "") -> Iterator[tuple[str, Made]]:
    """Experts: each in tensors of its own, or all in one; `tag` begins the names of their matrices."""
    yield "Wr", Made(f"{style.router}.weight", style.routed)
    if experts.router.bias:
        yield "br", Made(f"{style.router}.bias")
    if experts.router.correction:
        yield "correction", Made(style.correction, style.corrected)
    if experts.router.own_norm:
        yield "scale_r", Made(style.router_scale)
    if experts.router.per_expert:
        yield "scale_x", Made(style.per_expert)
    at = _expert_index(experts, repeats)
    names = {"i": style.up, "g": style.gate, "d": style.down}
    for name in "igd":
        if style.fused:
            yield f"W{tag}{name}", _of_experts(style.fused[f"W{name}"], experts)
        else:
            yield f"W{tag}{name}", Made(f"{style.each.replace('{}', at)}.{names[name]}.weight", ("transpose",))
    if experts.bias:
        yield from ((f"b{name}", style.fused[f"b{name}"]) for name in "igd")
    if experts.shared and "Wsi" in style.fused:
        yield from ((name, style.fused[name]) for name in ("Wsi", "Wsg", "Wsd"))
    elif experts.shared:
        yield "Wsi", Made(f"{style.shared}.up_proj.weight", ("transpose",))
        yield "Wsg", Made(f"{style.shared}.gate_proj.weight", ("transpose",))
        yield "Wsd", Made(f"{style.shared}.down_proj.weight", ("transpose",))
        if experts.shared_gate:
            yield "Ws", Made(f"{style.shared_gate}.weight")


def _of_experts(one: Made, experts: Experts) -> Made:
    """What is made of a tensor of all experts, whose number its steps may ask for."""
    return Made(one.tensor, tuple(step.replace("{experts}", str(experts.count)) for step in one.steps))


def _expert_index(experts: Experts, repeats: int) -> str:
    """The number of an expert by the counters behind those of the repeats: of experts in groups there are two."""
    first, second = COUNTERS[repeats], COUNTERS[repeats + 1]
    groups = experts.router.groups[0]
    return "{" + first + "}" if groups == 1 else "{" + f"{experts.count // groups}{first}+{second}" + "}"
