"""Fields that several architectures have, and what they must say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...ir.dtype import Dtype
from ...passes.expansion.blocks import MAX_COUNT
from .fields import Fields
from .inert import INERT

DTYPES: Mapping[str, Dtype] = {"bfloat16": Dtype.BF16, "float16": Dtype.F16, "float32": Dtype.F32}
ACTIVATIONS: Mapping[str, str] = {
    "silu": "silu",
    "swish": "silu",
    "relu": "relu",
    "gelu_new": "gelu",
    "gelu_fast": "gelu",
    "gelu_pytorch_tanh": "gelu",
}


@dataclass(frozen=True)
class Sizes:
    """Layers, widths, heads, tokens. `context`: the most positions."""

    layers: int
    model_dim: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    context: int


def check_common(fields: Fields, head: str) -> None:
    """Note what is wrong with the fields that any config may have. `head`: the class of the whole model."""
    fields.inert(INERT)
    node = fields.get("architectures")
    if node is not None:
        named = [item.value for item in node.value] if isinstance(node.value, tuple) else [node.value]
        if head not in named:
            fields.refuse("architectures", f"`architectures` does not name `{head}`, the one that is understood.")
    fields.must_be("quantization_config", [], "quantised weights are not imported")
    fields.must_be("auto_map", [], "the model is computed by code of its own, not by that of `transformers`")
    for name in ("is_encoder_decoder", "add_cross_attention"):
        fields.must_be(name, [False], "only a decoder that stands alone is understood")
    fields.must_be("cross_attention_hidden_size", [], "only a decoder that stands alone is understood")
    fields.must_be("pruned_heads", [{}], "pruned heads are not understood")


def read_dtype(fields: Fields, wanted: Dtype | None) -> Dtype:
    """The type of the weights: the one that is wanted, or what the config names, or else f32."""
    name = "dtype" if fields.get("torch_dtype") is None else "torch_dtype"
    fields.inert(["dtype"])
    named = fields.choice(name, DTYPES, Dtype.F32)
    return named if wanted is None else wanted


def read_activation(fields: Fields, name: str, default: str | None = None) -> str:
    """The nonlinearity of the feed-forward, by the name that the language gives it."""
    node = fields.get(name)
    if node is not None and node.value == "gelu":
        hint = "where the tanh approximation will do, write `gelu_pytorch_tanh`"
        fields.refuse(name, f"`{name}` is the exact gelu, which the language does not have.", hint)
        return "gelu"
    return fields.choice(name, ACTIVATIONS, default)


def read_layers(fields: Fields, name: str) -> int:
    """How many blocks the model has."""
    return fields.count(name, most=MAX_COUNT)


def read_sizes(fields: Fields, kv_heads: int | None, head_dim: int | None, context: int) -> Sizes:
    """The sizes, under the names that most architectures use.

    `kv_heads`, `head_dim`, `context`: what it means that these are missing. None: as many kv-heads as
    heads, and heads as wide as divides the model.
    """
    model_dim, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    groups = fields.count("num_key_value_heads", heads if kv_heads is None else kv_heads)
    if head_dim is None and fields.get("head_dim") is None:
        head_dim = divided(fields, "num_attention_heads", model_dim, heads, "heads")
    else:
        head_dim = fields.count("head_dim", head_dim)
    divided(fields, "num_key_value_heads", heads, groups, "kv-heads")
    return Sizes(
        layers=read_layers(fields, "num_hidden_layers"),
        model_dim=model_dim,
        heads=heads,
        kv_heads=groups,
        head_dim=head_dim,
        vocabulary=fields.count("vocab_size"),
        context=fields.count("max_position_embeddings", context),
    )


def divided(fields: Fields, name: str, whole: int, parts: int, what: str) -> int:
    """`whole` over `parts`; where that leaves a rest, a finding at field `name`."""
    if fields.complete and whole % parts:
        fields.refuse(name, f"{whole} does not divide into {parts} {what}.")
    return max(1, whole // parts)
