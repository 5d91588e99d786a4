"""How the weights of a config are stored in few bits: in which type, and which of them.

Only the type counts here. Scales of blocks and groups are left out of the model: of 128 x 128 weights of 8 bits they
are 1/4096 of the bytes, of 32 weights of 4 bits 1/16.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...ir.dtype import Dtype
from .fields import Fields
from .json_text import Node, Value

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
EXCLUSIONS = ("modules_to_not_convert", "ignore", "exclude_modules", "ignored_layers", "llm_int8_skip_modules")


@dataclass(frozen=True)
class Quantised:
    """`dtype`: of the matrices of all layers, but for routers; `attention`, `forward`: whether those of attention, and
    of feed-forwards and experts, are among them."""

    dtype: Dtype
    attention: bool = True
    forward: bool = True


def read_quantised(fields: Fields) -> Quantised | None:
    """How weights are stored; None where they are not in few bits."""
    found: Quantised | None = None
    for name in NAMES:
        part = fields.part(name)
        if part is not None and part.entries:
            found = _quantised(fields, name, part)
    return found


def _quantised(fields: Fields, name: str, part: Fields) -> Quantised | None:
    """What one object says."""
    node = part.get("quant_method") or part.get("quant_algo")
    method = node.value if node is not None else None
    dtype = _dtype(part, method)
    if dtype is None:
        shown = f"`{method[:40]}`" if isinstance(method, str) else "of this kind"
        known = "fp8, fbgemm_fp8, mxfp4, gptq, awq, compressed-tensors, modelopt, bitsandbytes"
        fields.refuse(name, f"`{name}` is {shown}, which is not understood.", f"known are {known}")
        return None
    left_out = [text for one in EXCLUSIONS for text in _texts(part.get(one))]
    attention = not any("self_attn" in text or text.endswith("attn") for text in left_out)
    forward = not any(text.rstrip(".*").endswith((".mlp", ".experts")) for text in left_out)
    return Quantised(dtype, attention and method != "mxfp4", forward)


def _dtype(part: Fields, method: Value) -> Dtype | None:
    """The type in which weights are stored."""
    match method:
        case "fp8" | "fbgemm_fp8":
            return Dtype.FP8
        case "mxfp4":
            return Dtype.FP4
        case "gptq" | "awq":
            bits = part.get("bits") or part.get("w_bit")
            return BITS.get(("int", bits.value)) if bits is not None and isinstance(bits.value, int) else None
        case "compressed-tensors":
            return _of_groups(part)
        case "bitsandbytes":
            four = part.get("load_in_4bit")
            return Dtype.INT4 if four is not None and four.value is True else Dtype.INT8
    algorithm = part.get("quant_algo")
    return ALGORITHMS.get(str(algorithm.value)) if algorithm is not None else None


def _of_groups(part: Fields) -> Dtype | None:
    """The one type of all groups of `config_groups`."""
    groups = part.part("config_groups")
    found: set[Dtype | None] = set()
    for name in groups.entries if groups is not None else ():
        own = groups.part(name) if groups is not None else None
        weights = own.part("weights") if own is not None else None
        kind, bits = (weights.get(n) if weights is not None else None for n in ("type", "num_bits"))
        known = kind is not None and bits is not None and isinstance(bits.value, int)
        found.add(BITS.get((str(kind.value), bits.value)) if known and kind and isinstance(bits.value, int) else None)  # type: ignore[union-attr]
    return found.pop() if len(found) == 1 else None


def _texts(node: Node | None) -> list[str]:
    if node is None:
        return []
    values = [item.value for item in node.value] if isinstance(node.value, tuple) else [node.value]
    return [value for value in values if isinstance(value, str)]
