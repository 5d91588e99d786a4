"""Tensors of checkpoints, read where they are asked for: of folders of safetensors files, and of GGUF files.

Each function stands alone but for those that it calls, and is copied into emitted modules; so nothing here raises
more than ValueError and OSError, and nothing is imported from the compiler. The format of safetensors is that of
https://github.com/huggingface/safetensors: a length, a header in JSON, the data.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np


def header_of(path: Path) -> dict[str, tuple[str, tuple[int, ...], int]]:
    """The type, shape and place in the file of each tensor of a safetensors file. Raises ValueError where the
    header does not say what the file has."""
    bytes_of = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
    bytes_of["F8_E4M3"] = 1
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, 100_000_000):
            raise ValueError(f"{path.name} ends before its header does")
        try:
            header = json.loads(file.read(length))
            found, end = {}, 0
            for name, entry in header.items():
                if name == "__metadata__":
                    continue
                shape, (begin, stop) = tuple(entry["shape"]), entry["data_offsets"]
                if not all(type(n) is int and n >= 0 for n in (*shape, begin, stop)):
                    raise ValueError(f"{path.name} has a size of `{name[:80]}` that is none")
                wide = bytes_of.get(entry["dtype"])
                if wide is not None and stop - begin != math.prod(shape) * wide:
                    raise ValueError(
                        f"{path.name} has {stop - begin} bytes for `{name[:80]}`, and its shape takes others"
                    )
                found[name], end = (str(entry["dtype"]), shape, 8 + length + begin), max(end, stop)
        except (KeyError, TypeError, AttributeError, RecursionError, json.JSONDecodeError, UnicodeDecodeError):
            raise ValueError(f"{path.name} has a header that is none of safetensors") from None
    if 8 + length + end > size:
        raise ValueError(f"{path.name} has {size} bytes, and its header tells of {8 + length + end}")
    return found


def files_of(folder: Path) -> list[Path]:
    """The safetensors files of a folder: those that its index names, or all. Raises ValueError where the index
    names files elsewhere."""
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return sorted(folder.glob("*.safetensors"))
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        wrong = [name for name in names if Path(name).name != name or not name.endswith(".safetensors")]
    except (KeyError, TypeError, AttributeError, RecursionError, ValueError):
        raise ValueError(f"{index.name} is no index of safetensors files") from None
    if wrong:
        raise ValueError(f"{index.name} names `{wrong[0][:80]}`, which is no safetensors file of the folder")
    return [folder / name for name in names]


def checkpoint_tensors(path: str | Path) -> dict[str, tuple[tuple[int, ...], str, Any]]:
    """Every tensor of a folder of safetensors files, or of a GGUF file: its shape, its type, and a function that
    gives it as an array. Those of safetensors are mapped, not read; those of GGUF are made of their blocks then."""
    path = Path(path)
    if path.suffix == ".gguf":
        return gguf_tensors(path)
    numpy_type = {"F64": "f8", "I64": "i8", "F32": "f4", "I32": "i4", "F16": "f2", "I16": "i2", "I8": "i1", "U8": "u1"}
    found: dict[str, tuple[tuple[int, ...], str, Any]] = {}
    for file in files_of(path):
        for name, (kind, shape, begin) in header_of(file).items():

            def mapped(
                file: Path = file, name: str = name, kind: str = kind, shape: Any = shape, begin: int = begin
            ) -> Any:
                if kind == "BF16":
                    narrow = import_module("ml_dtypes").bfloat16  # comes with JAX
                    return np.memmap(file, np.uint16, "r", begin, shape).view(narrow)
                if kind == "F8_E4M3":
                    byte = import_module("ml_dtypes").float8_e4m3fn
                    return np.memmap(file, np.uint8, "r", begin, shape).view(byte)
                if kind not in numpy_type:
                    raise ValueError(f"`{name}` is of type {kind}, which is not read here")
                return np.memmap(file, numpy_type[kind], "r", begin, shape)

            if name in found:
                raise ValueError(f"`{name[:80]}` is in two files")
            found[name] = shape, kind, mapped
    return whole_tensors(found, path)


def whole_tensors(found: dict[str, tuple[tuple[int, ...], str, Any]], folder: Path) -> dict[str, Any]:
    """The same with one tensor in place of those that keep it as codes and scales: of GPTQ and AWQ, of groups of
    compressed-tensors, in int8 with scales, and in blocks of fp4. It is made of them when it is asked for. Raises
    ValueError where they do not go together."""
    out = dict(found)

    def put(name: str, of: dict[str, str], shape: tuple[int, ...], kind: str, numbers: Any) -> None:
        names = {part: one for part, one in of.items() if one in found}
        for one in names.values():
            out.pop(one, None)
        out[name] = shape, kind, lambda: numbers({part: found[one][2]() for part, one in names.items()})

    for name, (shape, kind, _) in found.items():
        stem, last = name.rpartition(".")[0], name.rpartition(".")[2]
        own = {part: f"{stem}.{part}" for part in ("weight", "scales", "qweight", "qzeros", "g_idx", "SCB")}
        own |= {part: f"{stem}.weight_{part}" for part in ("packed", "scale", "zero_point", "shape")}
        own |= {"group": f"{stem}.weight_g_idx", "format": f"{stem}.weight_format"}
        own |= {"second": f"{stem}.weight_scale_2", "global": f"{stem}.weight_global_scale"}
        sizes = {part: found[one][0] for part, one in own.items() if one in found}
        whole = f"{stem}.weight"
        if last == "qweight" and {"qzeros", "scales"} <= sizes.keys() and len(shape) == 2:
            outputs, zeros = sizes["scales"][-1], sizes["qzeros"][-1]
            bits, by_output = 32 * zeros // max(outputs, 1), shape[1] == outputs
            inputs = shape[0] * 32 // max(bits, 1) if by_output else shape[0]
            if bits not in (2, 4, 8) or shape[1] not in (outputs, zeros) or sizes["qzeros"][0] != sizes["scales"][0]:
                raise ValueError(f"`{name[:80]}` and its scales and zeros are not those of one matrix")
            offset = gptq_offset(folder) if by_output else 0
            kind = f"int{bits} of {'GPTQ' if by_output else 'AWQ'}"
            put(whole, own, (outputs, inputs), kind, lambda p, b=bits, o=offset: gptq_numbers(p, b, o))
        elif last == "weight_packed" and kind == "I32" and {"scale", "shape"} <= sizes.keys():
            outputs, inputs = (int(n) for n in np.asarray(found[own["shape"]][2]()).reshape(-1))
            bits = next((b for b in (4, 8, 2) if shape == (outputs, -(-inputs * b // 32))), 0)
            if not bits or sizes["scale"][0] not in (1, outputs):
                raise ValueError(f"`{name[:80]}` and its scales are not those of a matrix of {outputs}x{inputs}")
            size = (outputs, inputs)
            put(whole, own, size, f"int{bits} with scales", lambda p, b=bits, s=size: group_numbers(p, b, s))
        elif last in ("weight_packed", "weight") and kind == "U8" and {"scale"} <= sizes.keys() and len(shape) == 2:
            if sizes["scale"] != (shape[0], shape[1] // 8):
                raise ValueError(f"`{name[:80]}` and its scales are not those of one matrix")
            put(whole, own, (shape[0], 2 * shape[1]), "fp4 with scales", lambda p: fp4_numbers(p))
        elif name.endswith("_blocks") and kind == "U8" and len(shape) == 4:
            scales = name.removesuffix("_blocks") + "_scales"
            if found.get(scales, ((),))[0] != shape[:3]:
                raise ValueError(f"`{name[:80]}` has no scales of its blocks")
            parts, turned = {"blocks": name, "exponents": scales}, (shape[0], shape[2] * shape[3] * 2, shape[1])
            put(name.removesuffix("_blocks"), parts, turned, "fp4 with scales", lambda p: fp4_numbers(p))
        elif last == "weight" and kind == "I8" and len(shape) == 2 and {"scale", "SCB"} & sizes.keys():
            listed = sizes.get("scale") or sizes["SCB"]
            if len(listed) > 2 or (listed and listed[0] not in (1, shape[0])):
                raise ValueError(f"`{name[:80]}` and its scales are not those of one matrix")
            kind = f"int8 with scales{' of rows' if math.prod(listed) == shape[0] > 1 else ''}"
            put(whole, own, shape, kind, lambda p, s=shape: group_numbers(p, 8, s))
    return out


def gptq_offset(folder: Path) -> int:
    """What zero points of GPTQ are more than they are stored as: 1 but for those of its second format."""
    for name in ("config.json", "quantize_config.json"):
        try:
            said = json.loads((folder / name).read_text(encoding="utf-8"))
            if str(said.get("quantization_config", said).get("checkpoint_format")) == "gptq_v2":
                return 0
        except (OSError, ValueError, AttributeError, RecursionError):
            continue
    return 1


def unpacked_numbers(words: Any, bits: int, axis: int) -> Any:
    """Numbers of so many bits each, which lie in words of 32 bits along an axis, the lowest first."""
    words = np.moveaxis(np.asarray(words).view(np.uint32), axis, -1)
    each = (words[..., None] >> np.arange(0, 32, bits, dtype=np.uint32)) & np.uint32((1 << bits) - 1)
    return np.moveaxis(each.reshape(*words.shape[:-1], -1).astype(np.float32), -1, axis)


def gptq_numbers(parts: Mapping[str, Any], bits: int, offset: int) -> Any:
    """A matrix [to, from] of GPTQ, whose codes are packed along `from` (https://github.com/AutoGPTQ/AutoGPTQ), or of
    AWQ, whose are along `to`, even ones first (https://github.com/casper-hansen/AutoAWQ)."""
    scales, zeros = np.asarray(parts["scales"]).astype(np.float32), unpacked_numbers(parts["qzeros"], bits, 1)
    if parts["qweight"].shape[1] == scales.shape[1]:
        codes = unpacked_numbers(parts["qweight"], bits, 0)
    else:
        lanes = 32 // bits
        order = np.arange(lanes).reshape(2, -1).T.reshape(-1)  # place 1 of a word is behind all that are even
        codes = unpacked_numbers(parts["qweight"], bits, 1)
        codes, zeros = (a.reshape(len(a), -1, lanes)[:, :, order].reshape(len(a), -1) for a in (codes, zeros))
    inputs, groups = len(codes), len(scales)
    group = np.asarray(parts["g_idx"]) if "g_idx" in parts else np.arange(inputs) // -(-inputs // groups)
    return (scales[group] * (codes - (zeros + offset)[group])).T


def group_numbers(parts: Mapping[str, Any], bits: int, shape: tuple[int, ...]) -> Any:
    """A matrix [to, from] in int8, or packed along `from` as compressed-tensors does
    (https://github.com/neuralmagic/compressed-tensors), each group of a row times its scale; of bitsandbytes each row
    times its largest magnitude over 127."""
    if "packed" in parts:
        middle = 1 << (bits - 1)
        codes = unpacked_numbers(parts["packed"], bits, 1)[:, : shape[1]] - middle
        zero = unpacked_numbers(parts["zero_point"], bits, 0)[: shape[0]] - middle if "zero_point" in parts else 0.0
    else:
        codes = np.asarray(parts["weight"]).astype(np.float32)
        zero = np.asarray(parts["zero_point"]).astype(np.float32) if "zero_point" in parts else 0.0
    scale = np.asarray(parts["scale"] if "scale" in parts else parts["SCB"]).astype(np.float32)
    scale = (scale if "scale" in parts else scale / np.float32(127)).reshape(len(scale) if scale.ndim else 1, -1)
    groups = scale.shape[1]
    group = np.asarray(parts["group"]) if "group" in parts else np.arange(shape[1]) // -(-shape[1] // groups)
    wide = np.broadcast_to(zero if np.ndim(zero) == 2 else np.reshape(zero, (-1, 1)), scale.shape)
    return (codes - wide[:, group]) * scale[:, group]


def fp4_numbers(parts: Mapping[str, Any]) -> Any:
    """Numbers of 1 sign, 2 exponent and 1 mantissa bits, two in a byte, the first in its low half, times the scale of
    their block (Open Compute Project, Microscaling Formats 1.0, section 5.3.3): of experts [each, to, block, 16] with
    exponents as scales, which become [each, from, to]; of matrices [to, from] with scales in fp8, and one for all."""
    table = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
    stored = np.asarray(next(parts[name] for name in ("blocks", "packed", "weight") if name in parts))
    numbers = table[np.stack([stored & 15, stored >> 4], -1).reshape(*stored.shape[:-1], -1)]
    if "blocks" in parts:
        numbers = np.ldexp(numbers, np.asarray(parts["exponents"]).astype(np.int32)[..., None] - 127)
        return np.swapaxes(numbers.reshape(*numbers.shape[:2], -1), -1, -2)
    scale = np.repeat(np.asarray(parts["scale"]).astype(np.float32), 16, -1)
    own = np.asarray(parts.get("second", 1)).astype(np.float32) / np.asarray(parts.get("global", 1)).astype(np.float32)
    return numbers * scale * own.reshape(-1)[0]


def gguf_tensors(path: Path) -> dict[str, tuple[tuple[int, ...], str, Any]]:
    """Every tensor of a GGUF file, as `checkpoint_tensors` gives it. Takes the package gguf."""
    gguf = import_module("gguf")
    found: dict[str, tuple[tuple[int, ...], str, Any]] = {}
    for tensor in gguf.GGUFReader(path).tensors:
        shape = tuple(int(n) for n in tensor.shape)[::-1]

        def made(tensor: Any = tensor, shape: Any = shape) -> Any:
            return gguf.dequantize(tensor.data, tensor.tensor_type).reshape(shape)

        found[tensor.name] = shape, tensor.tensor_type.name, made
    return found
