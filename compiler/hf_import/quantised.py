"""How the weights of a config are stored in few bits: in which type, which of them, and how many share a scale."""

from __future__ import annotations

from collections.abc import Mapping

from ...ir.dtype import Dtype
from ...ir.record import record
from .fields import Fields
from .json_text import Node, Value
from .quantised_fields import EXCLUSIONS, check_fields, overrides

NAMES = ("quantization_config", "quantization", "compression_config")
BITS: Mapping[tuple[str, int], Dtype] = {
    ("float", 8): Dtype.FP8,
    ("float", 4): Dtype.FP4,
    ("int", 8): Dtype.INT8,
    ("int", 4): Dtype.INT4,
}
ALGORITHMS: Mapping[str, Dtype] = {  # of ModelOpt
    "FP8": Dtype.FP8,
    "FP8_PB_WO": Dtype.FP8,
    "NVFP4": Dtype.FP4,
    "W4A8_AWQ": Dtype.INT4,
    "W4A16_AWQ": Dtype.INT4,
    "INT4_AWQ": Dtype.INT4,
    "INT8_SQ": Dtype.INT8,
    "W8A16": Dtype.INT8,
}
QUARK: Mapping[str, Dtype] = {  # by AMD's names of types
    "fp8_e4m3": Dtype.FP8,
    "int8": Dtype.INT8,
    "int4": Dtype.INT4,
    "uint4": Dtype.INT4,
    "fp4": Dtype.FP4,
}
TORCHAO: Mapping[str, Dtype] = {  # by what the names of torchao's configs begin with
    "int4": Dtype.INT4,
    "int8": Dtype.INT8,
    "float8": Dtype.FP8,
}
CACHES: Mapping[str, Dtype] = {dtype.value.upper(): dtype for dtype in (Dtype.FP8, Dtype.INT8)}  # by ModelOpt's names
METHODS = (
    "fp8",
    "fbgemm_fp8",
    "mxfp4",
    "gptq",
    "awq",
    "auto-round",
    "compressed-tensors",
    "modelopt",
    "bitsandbytes",
    "quark",
    "torchao",
)


@record
class Quantised:
    """`dtype`: of the matrices of all layers, but for routers; `attention`, `forward`: whether those of attention, and
    of feed-forwards and experts, are among them. `blocks`: for how many outputs by how many inputs there is a scale, 0
    for all; `scale`: its type. `zeros`: whether there are zero points, of the type of codes."""

    dtype: Dtype
    attention: bool = True
    forward: bool = True
    blocks: tuple[int, int] = (0, 0)
    scale: Dtype = Dtype.F32
    zeros: bool = False


def read_quantised(fields: Fields) -> Quantised | None:
    """How weights are stored; None where they are not in few bits."""
    found: Quantised | None = None
    for name in NAMES:
        part = fields.part(name)
        if part is not None and part.entries:
            before, found = found, _quantised(fields, name, part)
            if None not in (before, found) and before != found:
                fields.refuse(name, f"`{name}` says otherwise than another field how weights are stored.")
    return found


def read_caches(fields: Fields) -> Dtype | None:
    """The type in which the keys and values of tokens are kept; None where that is the model's own. How many share a
    scale is left to the text: of its caches each token and head has one, which holds what coarser scales do."""
    found: Dtype | None = None
    objects = [name for name in NAMES if (node := fields.get(name)) is not None and isinstance(node.value, Mapping)]
    for part in filter(None, map(fields.part, objects)):
        scheme, algorithm = part.part("kv_cache_scheme"), part.get("kv_cache_quant_algo")
        for name, said, dtype in (
            ("kv_cache_scheme", scheme, None if scheme is None else _of_bits(scheme)),
            ("kv_cache_quant_algo", algorithm, None if algorithm is None else CACHES.get(str(algorithm.value))),
        ):
            if said is not None and dtype not in CACHES.values():
                part.refuse(name, f"`{name}` says no type that caches can have.", "known are fp8 and int8")
            found = found or dtype
    return found


def _quantised(fields: Fields, name: str, part: Fields) -> Quantised | None:
    """What one object says."""
    node = part.get("quant_method") or part.get("quant_algo")
    method = node.value if node is not None else None
    dtype = _dtype(part, method)
    if dtype is None:
        shown = f"`{method[:40]}`" if isinstance(method, str) else "of this kind"
        if method in METHODS:
            message = f"`{name}` is {shown} with codes of a type that is not understood, or not said."
            fields.refuse(name, message, "known are int4, int8, fp8 and fp4, for all layers the same")
        else:
            fields.refuse(name, f"`{name}` is {shown}, which is not understood.", f"known are {', '.join(METHODS)}")
        return None
    inner = (*_schemes(part), _quark_weight(part), _torchao(part)[1], part.part("weights"))
    for one in (part, *inner):
        if one is not None:
            _check_groups(one)
    check_fields(part, str(method), inner)
    left_out = [text for one in EXCLUSIONS for text in _texts(part.get(one))] + overrides(part)[0]
    attention = not any("self_attn" in text or text.endswith("attn") for text in left_out)
    forward = not any(text.rstrip(".*").endswith((".mlp", ".experts")) for text in left_out)
    blocks, scale = _blocks(part, method, dtype)
    return Quantised(dtype, attention and method != "mxfp4", forward, blocks, scale, _zeros(part, method))


def _check_groups(part: Fields) -> None:
    """How many weights share a scale must be said as the libraries say it, wherever it is."""
    for name in ("group_size", "q_group_size"):
        node = part.get(name)
        if node is not None and node.value not in (None, -1) and _count(node) is None:
            part.refuse(name, f"`{name}` must be a whole number above 0, or -1 for all inputs.")
    for name in ("weight_block_size", "block_structure"):
        node = part.get(name)
        if node is not None and node.value is not None:
            sizes = node.value if isinstance(node.value, tuple) else ()
            if len(sizes) != 2 or any(_count(size) is None for size in sizes):
                part.refuse(name, f"`{name}` must be two whole numbers above 0, of outputs and of inputs.")


def _zeros(part: Fields, method: Value) -> bool:
    """Whether codes have zero points: those of AWQ unless it is said, of others if it is."""
    if method == "awq":
        said = part.get("zero_point")
        return said is None or said.value is True
    if method == "compressed-tensors":
        weights = _weights(part)
        part = part if weights is None else weights
    said = part.get("sym") or part.get("symmetric")
    return said is not None and said.value is False


def _blocks(part: Fields, method: Value, dtype: Dtype) -> tuple[tuple[int, int], Dtype]:
    """How many outputs by inputs share a scale, and the type of these: what the libraries that write them do."""
    listed = part.get("weight_block_size")
    group, four = _count(part.get("group_size") or part.get("q_group_size")), dtype in (Dtype.INT4, Dtype.FP4)
    match method:
        case "fp8" if listed is not None and isinstance(listed.value, tuple) and len(listed.value) == 2:
            rows, columns = (_count(node) or 0 for node in listed.value)
            return (rows, columns), Dtype.F32
        case "fbgemm_fp8":
            return (1, 0), Dtype.F32
        case "mxfp4":
            return (1, 32), Dtype.E8M0
        case "gptq" | "awq" | "auto-round" | "intel/auto-round":
            return (1, group or 0), Dtype.F16
        case "quark":
            return _quark_blocks(part, dtype)
        case "torchao":
            inner = _torchao(part)[1]
            size = _count(inner.get("group_size")) if inner is not None else None
            return (1, size or (128 if dtype is Dtype.INT4 else 0)), Dtype.BF16
        case "compressed-tensors":
            return _group_blocks(part, dtype)
        case "bitsandbytes":
            return ((1, 64) if four else (1, 0)), Dtype.F32
    algorithm = part.get("quant_algo")
    match str(algorithm.value) if algorithm is not None else None:
        case "FP8_PB_WO":
            return (128, 128), Dtype.F32
        case "NVFP4":
            return (1, group or 16), Dtype.FP8
        case "W4A8_AWQ" | "W4A16_AWQ" | "INT4_AWQ":
            return (1, group or 128), Dtype.BF16
        case "INT8_SQ" | "W8A16":
            return (1, 0), Dtype.F32
    return (0, 0), Dtype.F32


def _quark_weight(part: Fields) -> Fields | None:
    """What Quark says of the weights of all layers."""
    every = part.part("global_quant_config")
    return every.part("weight") if every is not None else None


def _quark_blocks(part: Fields, dtype: Dtype) -> tuple[tuple[int, int], Dtype]:
    """How many outputs by inputs share a scale, and its type."""
    weight = _quark_weight(part)
    scheme = weight.get("qscheme") if weight is not None else None
    group = _count(weight.get("group_size")) if weight is not None else None
    match scheme.value if scheme is not None else None:
        case "per_group":
            return (1, group or 32), Dtype.E8M0 if dtype is Dtype.FP4 else Dtype.F32
        case "per_channel":
            return (1, 0), Dtype.F32
    return (0, 0), Dtype.F32


def _torchao(part: Fields) -> tuple[Dtype | None, Fields | None]:
    """The type that torchao stores weights in, and what else it says of it: older configs name a function, newer ones
    have an object with the name of a class."""
    node, inner = part.get("quant_type"), part.part("quant_type_kwargs")
    name = node.value if node is not None and isinstance(node.value, str) else ""
    if not name and node is not None:
        whole = part.part("quant_type")
        default = whole.part("default") if whole is not None else None
        kind = default.get("_type") if default is not None else None
        name = kind.value if kind is not None and isinstance(kind.value, str) else ""
        inner = default.part("_data") if default is not None else None
    return next((dtype for start, dtype in TORCHAO.items() if name.lower().startswith(start)), None), inner


def _group_blocks(part: Fields, dtype: Dtype) -> tuple[tuple[int, int], Dtype]:
    """The same of `config_groups`, by the first."""
    weights = _weights(part)
    if weights is None:
        return (0, 0), Dtype.BF16
    group, structure = _count(weights.get("group_size")), weights.get("block_structure")
    strategy = weights.get("strategy")
    if structure is not None and isinstance(structure.value, tuple) and len(structure.value) == 2:
        rows, columns = (_count(node) or 0 for node in structure.value)
        return (rows, columns), Dtype.BF16
    if group:
        return (1, group), Dtype.FP8 if dtype is Dtype.FP4 else Dtype.BF16
    return ((1, 0) if strategy is not None and strategy.value == "channel" else (0, 0)), Dtype.BF16


def _weights(part: Fields) -> Fields | None:
    """What the first of `config_groups` says of weights."""
    return next(iter(_schemes(part)), None)


def _schemes(part: Fields) -> list[Fields | None]:
    """What each of `config_groups` says of weights."""
    groups = part.part("config_groups")
    own = [groups.part(name) for name in groups.entries] if groups is not None else []
    return [None if one is None else one.part("weights") for one in own]


def _count(node: Node | None) -> int | None:
    """A whole number above 0; None for all else."""
    return node.value if node is not None and type(node.value) is int and node.value > 0 else None


def _dtype(part: Fields, method: Value) -> Dtype | None:
    """The type in which weights are stored."""
    match method:
        case "fp8" | "fbgemm_fp8":
            return Dtype.FP8
        case "mxfp4":
            return Dtype.FP4
        case "gptq" | "awq" | "auto-round" | "intel/auto-round":
            bits = part.get("bits") or part.get("w_bit")
            return BITS.get(("int", bits.value)) if bits is not None and isinstance(bits.value, int) else None
        case "compressed-tensors":
            return _of_groups(part)
        case "quark":
            weight = _quark_weight(part)
            named = weight.get("dtype") if weight is not None else None
            return QUARK.get(str(named.value)) if named is not None else None
        case "torchao":
            return _torchao(part)[0]
        case "bitsandbytes":
            four = part.get("load_in_4bit")
            return Dtype.INT4 if four is not None and four.value is True else Dtype.INT8
    algorithm = part.get("quant_algo")
    return ALGORITHMS.get(str(algorithm.value)) if algorithm is not None else None


def _of_groups(part: Fields) -> Dtype | None:
    """The one type of all groups of `config_groups`."""
    found = {None if weights is None else _of_bits(weights) for weights in _schemes(part)}
    return found.pop() if len(found) == 1 else None


def _of_bits(scheme: Fields) -> Dtype | None:
    """The type that compressed-tensors says by its kind and bits."""
    kind, bits = scheme.get("type"), scheme.get("num_bits")
    return BITS.get((str(kind.value), bits.value)) if kind and bits and isinstance(bits.value, int) else None


def _texts(node: Node | None) -> list[str]:
    if node is None:
        return []
    values = [item.value for item in node.value] if isinstance(node.value, tuple) else [node.value]
    return [value for value in values if isinstance(value, str)]
