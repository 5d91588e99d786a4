"""The Transformer that configs describe, and the fields that several architectures have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from ...ir.dtype import Dtype
from ...passes.expansion.blocks import MAX_COUNT
from .fields import NEVER, Fields, Never
from .inert import AT_REST, INERT

DTYPES: Mapping[str, Dtype] = {"bfloat16": Dtype.BF16, "float16": Dtype.F16, "float32": Dtype.F32}
ACTIVATIONS: Mapping[str, str] = {
    "silu": "silu",
    "swish": "silu",
    "relu": "relu",
    "gelu": "gelu_exact",
    "gelu_python": "gelu_exact",
    "gelu_new": "gelu",
    "gelu_fast": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "gelu_python_tanh": "gelu",
    "gelu_accurate": "gelu",
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
        if named and head not in named:
            fields.refuse("architectures", f"`architectures` does not name `{head}`, the one that is understood.")
    for name in ("quantization_config", "quantization", "compression_config"):
        fields.must_be(name, [{}], "quantised weights are not imported")
    fields.must_be("auto_map", [], "the model is computed by code of its own, not by that of `transformers`")
    for name in ("is_encoder_decoder", "add_cross_attention"):
        fields.must_be(name, [False], "only a decoder that stands alone is understood")
    fields.must_be("cross_attention_hidden_size", [], "only a decoder that stands alone is understood")
    if "is_causal" in fields.entries:  # null counts as false
        fields.flag("is_causal", True)
        fields.must_be("is_causal", [True], "only models in which a token sees none after it are understood")
    fields.must_be("pruned_heads", [{}], "pruned heads are not understood")


def check_at_rest(fields: Fields) -> None:
    """Note the switches of other architectures that are set, once an architecture has read its own."""
    for name, rest in AT_REST.items():
        if name not in fields.known:
            fields.must_be(name, rest, f"that is no part of this architecture, so it can only be {rest[0]!r}".lower())


def read_dtype(fields: Fields, wanted: Dtype | None) -> Dtype:
    """The type of the weights: the one that is wanted, or what the config names, or else f32."""
    name = "torch_dtype" if fields.get("dtype") is None else "dtype"  # the older one counts where it stands alone
    fields.inert(["torch_dtype"])
    return wanted or fields.choice(name, DTYPES, Dtype.F32, null=Dtype.F32)


def read_activation(fields: Fields, name: str, default: str | None = None, exact_gelu: bool = True) -> str:
    """The nonlinearity of the feed-forward, by the name that the language gives it.

    `exact_gelu`: whether `gelu` is the exact one, and not the tanh approximation.
    """
    return fields.choice(name, ACTIVATIONS if exact_gelu else {**ACTIVATIONS, "gelu": "gelu"}, default)


def read_layers(fields: Fields, name: str) -> int:
    """How many blocks the model has, each of which attends to all earlier tokens."""
    layers = fields.count(name, most=MAX_COUNT)
    node = fields.get("layer_types")
    if node is not None:
        kinds = [item.value for item in node.value] if isinstance(node.value, tuple) else [node.value]
        if any(kind != "full_attention" for kind in kinds):
            fields.refuse("layer_types", "`layer_types` names layers that are not `full_attention`.")
        elif fields.complete and len(kinds) != layers:
            fields.refuse("layer_types", f"`layer_types` has {len(kinds):,} layers, and `{name}` says {layers:,}.")
    return layers


@dataclass(frozen=True)
class Defaults:
    """What it means that `num_key_value_heads`, `head_dim` or `max_position_embeddings` is missing.

    None: as many kv-heads as heads, and heads as wide as divides the model. Null always means that,
    unless `strict`.
    """

    kv_heads: int | None
    head_dim: int | None
    context: int
    strict: bool = False


def read_sizes(fields: Fields, defaults: Defaults) -> Sizes:
    """The sizes, under the names that most architectures use."""
    model_dim, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    null: int | Never = NEVER if defaults.strict else heads
    groups = fields.count("num_key_value_heads", defaults.kv_heads or heads, null)
    entry = fields.entries.get("head_dim")
    if defaults.head_dim is None and (entry is None or entry.node.value is None):
        fields.inert(["head_dim"])
        head_dim = divided(fields, "num_attention_heads", model_dim, heads, "heads")
    else:
        head_dim = fields.count("head_dim", defaults.head_dim)
    divided(fields, "num_key_value_heads", heads, groups, "kv-heads")
    return Sizes(
        layers=read_layers(fields, "num_hidden_layers"),
        model_dim=model_dim,
        heads=heads,
        kv_heads=groups,
        head_dim=head_dim,
        vocabulary=fields.count("vocab_size"),
        context=fields.count("max_position_embeddings", defaults.context),
    )


def divided(fields: Fields, name: str, whole: int, parts: int, what: str) -> int:
    """`whole` over `parts`; where that leaves a rest, a finding at field `name`."""
    if fields.complete and whole % parts:
        fields.refuse(name, f"{whole} does not divide into {parts} {what}.")
    return max(1, whole // parts)


class Block(Enum):
    """How attention and feed-forward stand to each other."""

    SERIAL = "serial"  # one after the other, each with a norm
    PARALLEL = "parallel"  # side by side, with one norm
    PARALLEL_TWO_NORMS = "parallel, two norms"  # side by side, each with a norm


@dataclass(frozen=True)
class Norm:
    """`function`: rmsnorm or layernorm. `bias`: whether it adds one. `offset`: its scale is stored less 1."""

    function: str
    epsilon: float
    bias: bool = False
    offset: bool = False


@dataclass(frozen=True)
class Rope:
    """`turned`: how many elements of a head, an even number. `scaling`: as the language writes it."""

    base: float
    turned: int
    scaling: str | None = None


@dataclass(frozen=True)
class Biases:
    """Which of the matrices have one."""

    qkv: bool = False
    output: bool = False
    feed_forward: bool = False
    head: bool = False


@dataclass(frozen=True)
class Transformer:
    """A model. `model_dim`, `ff_dim`, `head_dim`: widths. `kv_heads` divides `heads`. `places`: how many
    positions are learned, 0 for none. `context`: the most tokens that it was made for. `gated`: whether
    the feed-forward has a gate. `qk_norm`: whether queries and keys are normed head by head.
    `scaled_scores`: whether scores are divided by the root of `head_dim`. `scaled_embedding`: whether
    embeddings are multiplied by that of `model_dim`. `tied`: one table embeds and scores."""

    architecture: str
    dtype: Dtype
    layers: int
    model_dim: int
    ff_dim: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    context: int
    norm: Norm
    block: Block
    activation: str
    gated: bool
    tied: bool
    biases: Biases = Biases()
    rope: Rope | None = None
    places: int = 0
    qk_norm: bool = False
    scaled_scores: bool = True
    scaled_embedding: bool = False

    @property
    def grouped(self) -> bool:
        """Whether several heads share keys and values, but not all of them."""
        return 1 < self.kv_heads < self.heads

    @property
    def norms(self) -> int:
        """How many norms a block has."""
        return 1 if self.block is Block.PARALLEL else 2
