"""The fields that several architectures have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...ir.dtype import Dtype
from ...ir.record import record
from .fields import NEVER, Fields, Never
from .inert import AT_REST, INERT

DTYPES: Mapping[str, Dtype] = {"bfloat16": Dtype.BF16, "float16": Dtype.F16, "float32": Dtype.F32}
ACTIVATIONS: Mapping[str, str] = {
    "silu": "silu",
    "swish": "silu",
    "relu": "relu",
    "relu2": "relu2",
    "gelu": "gelu_exact",
    "gelu_python": "gelu_exact",
    "gelu_new": "gelu",
    "gelu_fast": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "gelu_python_tanh": "gelu",
    "gelu_accurate": "gelu",
}


MOST_LAYERS = 4096  # patterns of more take long to be found, and no model has a quarter of them
EARLIER = {  # classes as they were called before `transformers` had them, or beside the class that generates
    "PhiMoEForCausalLM": "PhimoeForCausalLM",
    "MPTForCausalLM": "MptForCausalLM",
    "ExaoneMoEForCausalLM": "ExaoneMoeForCausalLM",
    "BaiChuanForCausalLM": "BaichuanForCausalLM",
    "ChatGLMModel": "ChatGLMForConditionalGeneration",
    "ChatGLMForCausalLM": "ChatGLMForConditionalGeneration",
}


@record
class Sizes:
    """Layers, widths, heads, tokens. `context`: the most positions."""

    layers: int
    model_dim: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    context: int


def check_common(fields: Fields, head: str | None) -> None:
    """Note what is wrong with the fields that any config may have. `head`: the class of the whole model; None of a
    part of one."""
    fields.inert(INERT)
    node = fields.get("architectures")
    if node is not None and head is not None:
        named = [item.value for item in node.value] if isinstance(node.value, tuple) else [node.value]
        if named and head not in [EARLIER.get(str(name), name) for name in named]:
            fields.refuse("architectures", f"`architectures` does not name `{head}`, the one that is understood.")
    if head is not None:
        _check_code(fields, head)
    for name in ("is_encoder_decoder", "add_cross_attention"):
        fields.must_be(name, [False], "only a decoder that stands alone is understood")
    fields.must_be("cross_attention_hidden_size", [], "only a decoder that stands alone is understood")
    if "is_causal" in fields.entries:  # null counts as false
        fields.flag("is_causal", True)
        fields.must_be("is_causal", [True], "only models in which a token sees none after it are understood")
    fields.must_be("pruned_heads", [{}], "pruned heads are not understood")


def nested(fields: Fields, name: str) -> Fields:
    """The object in a field that is a config of its own, of a part of the model; an empty one where there is none."""
    found = fields.part(name) or Fields(fields.source, {}, fields.place, fields.findings)
    found.inert((*INERT, "model_type", "dtype", "torch_dtype", "tie_word_embeddings", "architectures", "pruned_heads"))
    for other in ("is_encoder_decoder", "add_cross_attention"):
        found.must_be(other, [False], "only a decoder that stands alone is understood")
    return found


def _check_code(fields: Fields, head: str) -> None:
    """Code that comes with a checkpoint is not looked at; so the class that it has must be one of `transformers`."""
    code = fields.part("auto_map")
    if code is None:
        return
    node = code.get("AutoModelForCausalLM")
    name = node.value.split(".")[-1] if node is not None and isinstance(node.value, str) else ""
    if EARLIER.get(name, name) != head:
        fields.refuse("auto_map", "`auto_map` is set: the model is computed by code of its own, not by `transformers`.")


def check_at_rest(fields: Fields) -> None:
    """Note the switches of other architectures that are set, once an architecture has read its own."""
    for name, rest in AT_REST.items():
        if name not in fields.known:
            fields.must_be(name, rest, f"that is no part of this architecture, so it can only be {rest[0]!r}".lower())


def read_dtype(fields: Fields, wanted: Dtype | None, default: Dtype) -> Dtype:
    """The type of the weights: the one that is wanted, or what the config names, or else `default`."""
    name = "torch_dtype" if fields.get("dtype") is None else "dtype"  # the older one counts where it stands alone
    fields.inert(["torch_dtype"])
    return wanted or fields.choice(name, DTYPES, default, null=default)


def read_activation(fields: Fields, name: str, default: str | None = None, exact_gelu: bool = True) -> str:
    """The nonlinearity of the feed-forward, by the name that the language gives it.

    `exact_gelu`: whether `gelu` is the exact one, and not the tanh approximation.
    """
    return fields.choice(name, ACTIVATIONS if exact_gelu else {**ACTIVATIONS, "gelu": "gelu"}, default)


FULL, WINDOW, CHUNK = "full_attention", "sliding_attention", "chunked_attention"


def read_layers(fields: Fields, name: str) -> int:
    """How many blocks the model has, each of which attends to all earlier tokens."""
    layers = fields.count(name, most=MOST_LAYERS)
    read_kinds(fields, layers, (FULL,), name)
    return layers


def read_kinds(fields: Fields, layers: int, known: Sequence[str], name: str = "num_hidden_layers") -> list[str] | None:
    """What attention each layer has, of the kinds that are `known`; None where the config does not say."""
    node = fields.get("layer_types")
    if node is None:
        return None
    kinds = [item.value for item in node.value] if isinstance(node.value, tuple) else [node.value]
    if any(kind not in known for kind in kinds):
        listed = " or ".join(f"`{kind}`" for kind in known)
        fields.refuse("layer_types", f"`layer_types` names layers that are not {listed}.")
    elif len(kinds) == layers:
        return [str(kind) for kind in kinds]
    elif fields.complete:
        fields.refuse("layer_types", f"`layer_types` has {len(kinds):,} layers, and `{name}` says {layers:,}.")
    return None


def kinds_of(fields: Fields, layers: int, every: int) -> list[str]:
    """What attention each layer has, of windows and of all tokens; where the config does not say, every so many-th has
    the latter."""
    found = read_kinds(fields, layers, (FULL, WINDOW))
    return found or [FULL if (at + 1) % every == 0 else WINDOW for at in range(layers)]


@record
class Defaults:
    """What it means that `num_key_value_heads`, `head_dim` or `max_position_embeddings` is missing.

    None: as many kv-heads as heads, and heads as wide as divides the model. Null always means that,
    unless `strict`.
    """

    kv_heads: int | None
    head_dim: int | None
    context: int
    strict: bool = False


def read_sizes(fields: Fields, defaults: Defaults, kinds: Sequence[str] | None = (FULL,)) -> Sizes:
    """The sizes, under the names that most architectures use. `kinds`: of layers that `layer_types` may name; None
    where the architecture reads it."""
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
    layers = fields.count("num_hidden_layers", most=MOST_LAYERS)
    if kinds is not None:
        read_kinds(fields, layers, kinds)
    return Sizes(
        layers=layers,
        model_dim=model_dim,
        heads=heads,
        kv_heads=groups,
        head_dim=head_dim,
        vocabulary=fields.count("vocab_size"),
        context=fields.count("max_position_embeddings", defaults.context),
    )


def even_sizes(fields: Fields, context: int) -> Sizes:
    """The sizes of a model whose heads are as wide as divides it, each with keys of its own. `context`: where the
    config does not say."""
    model_dim, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    return Sizes(
        layers=read_layers(fields, "num_hidden_layers"),
        model_dim=model_dim,
        heads=heads,
        kv_heads=heads,
        head_dim=divided(fields, "num_attention_heads", model_dim, heads, "heads"),
        vocabulary=fields.count("vocab_size"),
        context=fields.count("max_position_embeddings", context),
    )


def divided(fields: Fields, name: str, whole: int, parts: int, what: str) -> int:
    """`whole` over `parts`; where that leaves a rest, a finding at field `name`."""
    if fields.complete and whole % parts:
        fields.refuse(name, f"{whole} does not divide into {parts} {what}.")
    return max(1, whole // parts)
