"""What the parameters of an imported model are made of, by the names that tensors have in checkpoints.

A matrix of a checkpoint is [to, from] (of GPT-2 [from, to]), with its heads one behind the other, and the two numbers
that rope turns together lie half of what it turns apart; GGUF files of Llama keep them side by side. The names are
those of the library `transformers` (https://github.com/huggingface/transformers) in version 5.23 and of the
specification of GGUF (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from .common import Transformer
from .weight_map import Made, WeightMap


@dataclass(frozen=True)
class Style:
    """How a kind of checkpoint calls and keeps things. `block`: what the names of a block's tensors begin with.
    `fused`: the one module of queries, keys and values, None where they stand apart, and `by_head` whether it has
    them head by head. `from_to`: whether matrices are [from, to]. `halves`: whether what rope turns together lies half
    of that apart."""

    table: str
    norm: str
    head: str
    block: str
    norms: tuple[str, str]
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
    from_to: bool = False
    halves: bool = True


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
STYLES: Mapping[str, Style] = {"phi": PHI, "gpt_neox": NEOX, "gpt2": GPT2}  # by architecture; all others are as Llama


def weight_map(model: Transformer, style: Style) -> WeightMap:
    """What each parameter is made of, in the order in which the model declares them."""
    made = dict(_ends(model, style))
    made |= {f"layer.{name}": Made(f"{style.block}{one.tensor}", one.steps) for name, one in _block(model, style)}
    return made


def _ends(model: Transformer, style: Style) -> Iterator[tuple[str, Made]]:
    """What stands before and behind the blocks."""
    yield "table", Made(f"{style.table}.weight")
    if model.places:
        yield "places", Made(f"{style.places}.weight")
    if not model.tied:
        yield "Wu", Made(f"{style.head}.weight", ("transpose",))
    if model.biases.head:
        yield "bu", Made(f"{style.head}.bias")
    yield from _norm(model, "", style.norm)


def _norm(model: Transformer, number: str, module: str) -> Iterator[tuple[str, Made]]:
    yield f"scale{number}", Made(f"{module}.weight")
    if model.norm.bias:
        yield f"bias{number}", Made(f"{module}.bias")


def _block(model: Transformer, style: Style) -> Iterator[tuple[str, Made]]:
    """The parameters of a block, their tensors without what their names begin with."""
    for number, module in zip(("1", "2") if model.norms == 2 else ("",), style.norms, strict=False):
        yield from _norm(model, number, module)
    for letter in ("W", "b") if model.biases.qkv else ("W",):
        for at, (name, module, heads) in enumerate(
            (("q", style.query, model.heads), ("k", style.key, model.kv_heads), ("v", style.value, model.kv_heads))
        ):
            yield from _projection(model, style, (letter, name), module, heads, at + 1)
    if model.qk_norm:
        pairs = ("pairs",) if style.halves and model.rope is not None else ()
        yield "scale_q", Made(f"{style.query_norm}.weight", pairs)
        yield "scale_k", Made(f"{style.key_norm}.weight", pairs)
    matrix = () if style.from_to else ("transpose",)
    yield "Wo", Made(f"{style.output}.weight", matrix)
    if model.biases.output:
        yield "bo", Made(f"{style.output}.bias")
    names = {"i": style.up, "g": style.gate, "d": style.down}
    for name in ("i", "g", "d") if model.gated else ("i", "d"):
        yield f"W{name}", Made(f"{names[name]}.weight", matrix)
        if model.biases.feed_forward:
            yield f"b{name}", Made(f"{names[name]}.bias")


def _projection(
    model: Transformer, style: Style, called: tuple[str, str], module: str, heads: int, part: int
) -> Iterator[tuple[str, Made]]:
    """Queries, keys or values, the `part` of a fused module; what rope turns and the rest apart."""
    letter, name = called
    kind = "weight" if letter == "W" else "bias"
    steps = ["transpose"] if letter == "W" and not style.from_to else []
    if style.fused is None:
        tensor, each = f"{module}.{kind}", [*steps, f"heads {heads}"]
    elif style.by_head:
        tensor, each = f"{style.fused}.{kind}", [*steps, f"heads {heads}", f"part {part} of 3"]
    else:
        tensor, each = f"{style.fused}.{kind}", [*steps, f"part {part} of 3", f"heads {heads}"]
    pairs = ["pairs"] if style.halves else []
    if name == "v" or model.rope is None:
        yield f"{letter}{name}", Made(tensor, tuple(each))
    elif model.rope.turned == model.head_dim:
        yield f"{letter}{name}", Made(tensor, (*each, *pairs))
    else:
        yield f"{letter}{name}r", Made(tensor, (*each, f"first {model.rope.turned}", *pairs))
        yield f"{letter}{name}n", Made(tensor, (*each, f"after {model.rope.turned}"))


def style_of(model: Transformer) -> Style:
    """How folders of safetensors files keep a model."""
    return STYLES.get(model.architecture, LLAMA)
