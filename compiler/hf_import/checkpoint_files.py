"""Tensors of checkpoints, read where they are asked for: of folders of safetensors files, and of GGUF files.

Each function stands alone but for those that it calls by name, and is copied into emitted modules; so nothing here
raises more than ValueError and OSError, and nothing is imported from the compiler. The format of safetensors is that of
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


def check_file(path: Path) -> None:
    """Raise OSError where there is no regular file: of a pipe nothing may ever come."""
    path.stat()
    if not path.is_file():
        raise OSError(22, "It is no regular file", str(path))


def header_of(path: Path) -> dict[str, tuple[str, tuple[int, ...], int]]:
    """The type, shape and place in the file of each tensor of a safetensors file. Raises ValueError where the
    header does not say what the file has, every byte of it once."""
    bytes_of = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
    bytes_of["F8_E4M3"] = 1
    check_file(path)
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, 100_000_000):
            raise ValueError(f"{path.name} ends before its header does")
        try:
            header = json.loads(file.read(length))
            found, places = {}, list[tuple[int, int, str]]()
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
                found[name] = str(entry["dtype"]), shape, 8 + length + begin
                places.append((begin, stop, name))
        except (KeyError, TypeError, AttributeError, RecursionError, json.JSONDecodeError, UnicodeDecodeError):
            raise ValueError(f"{path.name} has a header that is none of safetensors") from None
    end = 0
    for begin, stop, name in sorted(places):
        if begin != end or stop < begin:
            raise ValueError(f"{path.name} has `{name[:80]}` at {begin} to {stop}, and what lies before ends at {end}")
        end = stop
    if 8 + length + end != size:
        raise ValueError(f"{path.name} has {size} bytes, and its header tells of {8 + length + end}")
    return found


def files_of(folder: Path) -> list[Path]:
    """The safetensors files of a folder, as transformers takes them: the one that is called `model.safetensors`, those
    that the index names, or else all. Raises ValueError where the index names files elsewhere, and OSError where there
    is no folder."""
    folder.stat()
    whole, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if whole.is_file():
        return [whole]
    if not index.exists():
        return sorted(folder.glob("*.safetensors"))
    check_file(index)
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
    compressed-tensors, in int8 with scales, and in blocks of fp4. It is made of them when it is asked for. Where these
    are codes around 0 in blocks of one scale each, there are codes and scales under `NAME|kept`, too, whose type is
    like `int4 f16 1x128`: that of both, and of how many places along each dim a block is; a fourth word is the type of
    zero points, which come third. Raises ValueError where they do not go together."""
    out = dict(found)
    for name, (shape, kind, _) in found.items():
        stem, last = name.rpartition(".")[0], name.rpartition(".")[2]
        own = {part: f"{stem}.{part}" for part in ("weight", "scales", "qweight", "qzeros", "g_idx", "SCB")}
        own |= {part: f"{stem}.weight_{part}" for part in ("packed", "scale", "zero_point", "shape")}
        own |= {"group": f"{stem}.weight_g_idx", "format": f"{stem}.weight_format"}
        own |= {"second": f"{stem}.weight_scale_2", "global": f"{stem}.weight_global_scale"}
        own |= {"inverse": f"{stem}.weight_scale_inv"}
        own, whole, made = {part: one for part, one in own.items() if one in found}, f"{stem}.weight", None
        if last == "qweight" and {"qzeros", "scales"} <= own.keys() and len(shape) == 2:
            made = gptq_tensor(found, own, folder)
        elif last == "weight_packed" and kind == "I32" and {"scale", "shape"} <= own.keys():
            made = packed_tensor(found, own)
        elif last in ("weight_packed", "weight") and kind == "U8" and {"scale"} <= own.keys() and len(shape) == 2:
            if found[own["scale"]][0] != (shape[0], shape[1] // 8):
                raise ValueError(f"`{name[:80]}` and its scales are not those of one matrix")
            for one in ("second", "global"):
                check_part(found, own, one, [(), (1,), (1, 1)])
            made = (shape[0], 2 * shape[1]), "fp4 with scales", lambda p: fp4_numbers(p), None
        elif name.endswith("_blocks") and kind == "U8" and len(shape) == 4:
            whole, scales = name.removesuffix("_blocks"), name.removesuffix("_blocks") + "_scales"
            if found.get(scales, ((),))[0] != shape[:3]:
                raise ValueError(f"`{name[:80]}` has no scales of its blocks")
            own, turned = {"blocks": name, "exponents": scales}, (shape[0], shape[2] * shape[3] * 2, shape[1])
            kept = "fp4 e8m0 1x32x1", lambda p: fp4_codes(p)
            made = turned, "fp4 with scales", lambda p: fp4_numbers(p), kept
        elif last == "weight" and kind == "I8" and len(shape) == 2 and {"scale", "SCB"} & own.keys():
            made = rows_tensor(found, own)
        elif last == "weight" and kind == "F8_E4M3" and len(shape) == 2 and {"scale", "inverse"} & own.keys():
            known = kept_as("fp8", found[own.get("inverse") or own["scale"]], shape)
            if known is not None:
                out[f"{name}|kept"] = (
                    shape,
                    known,
                    lambda own=own: fp8_codes({n: found[t][2]() for n, t in own.items()}),
                )
        if made is not None:
            size, said, numbers, codes = made
            for one in own.values():
                out.pop(one, None)
            for called, what, make in ((whole, said, numbers), *([(f"{whole}|kept", *codes)] if codes else [])):
                out[called] = size, what, lambda own=own, f=make: f({n: found[t][2]() for n, t in own.items()})
    return out


def kept_as(code: str, scales: Any, shape: tuple[int, ...]) -> str | None:
    """What codes of a matrix with such a tensor of scales are kept as; None where blocks are not of one size."""
    if len(scales[0]) > len(shape) or 0 in scales[0]:
        return None
    counts, wide = tuple(scales[0]), {"F32": "f32", "F16": "f16", "BF16": "bf16"}.get(scales[1])
    counts = (*counts, 1, 1)[: len(shape)] if math.prod(counts) > 1 else (1,) * len(shape)
    blocks = []
    for size, count in zip(shape, counts, strict=True):
        block = 128 if code == "fp8" and -(-size // 128) == count > 1 else -(-size // max(count, 1))
        blocks += [block] if block and -(-size // block) == count else []
    fits = wide and len(blocks) == len(shape)
    return f"{code} {wide} {'x'.join(map(str, blocks))}" if fits else None


def gptq_tensor(found: Mapping[str, Any], own: Mapping[str, str], folder: Path) -> Any:
    """A matrix of GPTQ or AWQ: its shape, its type, what makes its numbers, and what it is kept as."""
    (rows, columns), (groups, outputs), (several, zeros) = (
        found[own[part]][0] for part in ("qweight", "scales", "qzeros")
    )
    bits, by_output = 32 * zeros // max(outputs, 1), columns == outputs
    inputs = rows * 32 // max(bits, 1) if by_output else rows
    words = {found[own[part]][1] for part in ("qweight", "qzeros")} == {"I32"} and rows
    if bits not in (2, 4, 8) or columns not in (outputs, zeros) or several != groups or not words:
        raise ValueError(f"`{own['qweight'][:80]}` and its scales and zeros are not those of one matrix")
    check_part(found, own, "g_idx", [(inputs,)], groups)
    offset, shape = gptq_offset(folder) if by_output else 0, (outputs, inputs)
    said, kept = kept_as(f"int{bits}", ((outputs, groups), found[own["scales"]][1]), shape), None
    less = unpacked_numbers(found[own["qzeros"]][2](), bits, 1) + (offset - (1 << (bits - 1)))
    if said and bits > 2 and in_order(found, own.get("g_idx")) and less.max() < 1 << (bits - 1):
        said += f" int{bits}" if less.any() else ""
        kept = said, lambda p: gptq_codes(p, bits, offset)
    return shape, f"int{bits} of {'GPTQ' if by_output else 'AWQ'}", lambda p: gptq_numbers(p, bits, offset), kept


def packed_tensor(found: Mapping[str, Any], own: Mapping[str, str]) -> Any:
    """The same of a matrix that compressed-tensors packed."""
    rows, words = found[own["packed"]][0]
    outputs, inputs = shape = tuple(int(n) for n in np.asarray(found[own["shape"]][2]()).reshape(-1))
    bits = next((b for b in (4, 8, 2) if (rows, words) == (outputs, -(-inputs * b // 32))), 0)
    scaled, groups = (*found[own["scale"]][0], 1, 1)[:2]
    if not bits or scaled not in (1, outputs) or not 0 < groups <= inputs:
        raise ValueError(f"`{own['packed'][:80]}` and its scales are not those of a matrix of {outputs}x{inputs}")
    check_part(found, own, "group", [(inputs,)], groups)
    check_part(found, own, "zero_point", [(-(-scaled * bits // 32), groups)])
    if "zero_point" in own and found[own["zero_point"]][1] != "I32":
        raise ValueError(f"`{own['zero_point'][:80]}` is not packed as its matrix is")
    said, kept = kept_as(f"int{bits}", found[own["scale"]], shape), None
    if said and bits > 2 and in_order(found, own.get("group")):
        kept = said + (f" int{bits}" if "zero_point" in own else ""), lambda p: group_codes(p, bits, shape)
    return shape, f"int{bits} with scales", lambda p: group_numbers(p, bits, shape), kept


def rows_tensor(found: Mapping[str, Any], own: Mapping[str, str]) -> Any:
    """The same of a matrix in int8 whose rows, or groups in them, have scales."""
    shape, scales = found[own["weight"]][0], found[own.get("scale") or own["SCB"]]
    scaled, groups = (*scales[0], 1, 1)[:2]
    if len(scales[0]) > 2 or scaled not in (1, shape[0]) or not 0 < groups <= shape[1]:
        raise ValueError(f"`{own['weight'][:80]}` and its scales are not those of one matrix")
    check_part(found, own, "zero_point", [scales[0], (scaled, groups), (scaled,)])
    kind = f"int8 with scales{' of rows' if math.prod(scales[0]) == shape[0] > 1 else ''}"
    said = kept_as("int8", scales, shape)
    kept = (said + (" int8" if "zero_point" in own else ""), lambda p: group_codes(p, 8, shape)) if said else None
    return shape, kind, lambda p: group_numbers(p, 8, shape), kept


def check_part(
    found: Mapping[str, Any], own: Mapping[str, str], part: str, shapes: list[tuple[int, ...]], groups: int = 0
) -> None:
    """Raise ValueError where a matrix has a part that is not of one of these shapes, or, where there are `groups`, one
    that is not the number of a group for each place."""
    if part not in own:
        return
    (shape, kind, made), name = found[own[part]], own[part]
    if shape not in shapes:
        raise ValueError(f"`{name[:80]}` is not of shape {'x'.join(map(str, shapes[0]))}, as the rest of its matrix is")
    if groups and not (kind in ("I32", "I64") and 0 <= made().min() <= made().max() < groups):
        raise ValueError(f"`{name[:80]}` names groups that its matrix does not have")


def in_order(found: Mapping[str, Any], name: str | None) -> bool:
    """Whether groups of codes lie one after the other, as a tensor says that gives each place its group."""
    if name is None:
        return True
    group = np.asarray(found[name][2]()).reshape(-1)
    return np.array_equal(group, np.arange(len(group)) // -(-len(group) // (int(group.max()) + 1)))


def gptq_offset(folder: Path) -> int:
    """What zero points of GPTQ are more than they are stored as: 1 but for those of its second format."""
    for path in (folder / "config.json", folder / "quantize_config.json"):
        try:
            check_file(path)
            said = json.loads(path.read_text(encoding="utf-8"))
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


def gptq_lanes(parts: Mapping[str, Any], bits: int) -> tuple[Any, Any]:
    """The codes [from, to] and zeros [group, to] of GPTQ, whose codes are packed along `from`
    (https://github.com/AutoGPTQ/AutoGPTQ), or of AWQ, whose are along `to`, even ones first
    (https://github.com/casper-hansen/AutoAWQ), as they are stored."""
    zeros = unpacked_numbers(parts["qzeros"], bits, 1)
    if parts["qweight"].shape[1] == parts["scales"].shape[1]:
        return unpacked_numbers(parts["qweight"], bits, 0), zeros
    lanes = 32 // bits
    order = np.arange(lanes).reshape(2, -1).T.reshape(-1)  # place 1 of a word is behind all that are even
    codes = unpacked_numbers(parts["qweight"], bits, 1)
    codes, zeros = (a.reshape(len(a), -1, lanes)[:, :, order].reshape(len(a), -1) for a in (codes, zeros))
    return codes, zeros


def gptq_codes(parts: Mapping[str, Any], bits: int, offset: int) -> tuple[Any, Any, Any]:
    """The codes [to, from] of such a matrix around its middle, its scales [to, group], and its zero points."""
    codes, zeros = gptq_lanes(parts, bits)
    middle = 1 << (bits - 1)
    less = (zeros + (offset - middle)).astype(np.int8).T
    return (codes - middle).astype(np.int8).T, np.asarray(parts["scales"]).T, less


def gptq_numbers(parts: Mapping[str, Any], bits: int, offset: int) -> Any:
    """A matrix [to, from] of GPTQ or AWQ."""
    codes, zeros = gptq_lanes(parts, bits)
    scales = np.asarray(parts["scales"]).astype(np.float32)
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


def group_codes(parts: Mapping[str, Any], bits: int, shape: tuple[int, ...]) -> tuple[Any, Any, Any]:
    """The codes of such a matrix around its middle, its scales [row, group], and its zero points."""
    if "packed" in parts:
        codes = (unpacked_numbers(parts["packed"], bits, 1)[:, : shape[1]] - (1 << (bits - 1))).astype(np.int8)
    else:
        codes = np.asarray(parts["weight"])
    scale = np.asarray(parts["scale"]) if "scale" in parts else np.asarray(parts["SCB"]) / np.float32(127)
    scale = scale.reshape(len(scale) if scale.ndim else 1, -1)
    zero = np.asarray(parts["zero_point"]) if "zero_point" in parts else np.zeros((1, 1), np.int8)
    if "packed" in parts and "zero_point" in parts:
        zero = (unpacked_numbers(zero, bits, 0)[: len(scale)] - (1 << (bits - 1))).astype(np.int8)
    return codes, scale, np.broadcast_to(zero.reshape(-1, 1) if zero.ndim < 2 else zero, scale.shape)


def fp8_codes(parts: Mapping[str, Any]) -> tuple[Any, Any]:
    """The codes of a matrix in fp8, and the scales of its blocks."""
    scale = np.asarray(parts["inverse"] if "inverse" in parts else parts["scale"])
    return parts["weight"], scale.reshape((*scale.shape, 1, 1)[:2] if scale.size > 1 else (1, 1))


def fp4_codes(parts: Mapping[str, Any]) -> tuple[Any, Any]:
    """The numbers [each, from, to] that experts in blocks of fp4 have before their scales, and these."""
    ones = dict(parts) | {"exponents": np.full_like(np.asarray(parts["exponents"]), 127)}
    scales = np.ldexp(np.float32(1), np.asarray(parts["exponents"]).astype(np.int32) - 127)
    return fp4_numbers(ones), np.swapaxes(scales, -1, -2)


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


def gguf_reader(path: Path) -> Any:
    """A GGUF file as the package gguf reads it, which raises whatever a wrong file leads it to."""
    library = import_module("gguf")
    check_file(path)
    try:
        return library.GGUFReader(path)
    except OSError:
        raise
    except Exception as error:
        raise ValueError(str(error)[:200] or type(error).__name__) from error


def gguf_numbers(blocks: Any, kind: Any) -> Any:
    """The numbers of blocks of GGUF. Raises ValueError where the package makes none of theirs, for which it raises
    whatever its reader of that type does."""
    library = import_module("gguf")
    try:
        return library.dequantize(blocks, kind)
    except Exception as error:
        raise ValueError(f"no numbers can be made of {kind.name}: {str(error)[:200]}") from error


def gguf_tensors(path: Path) -> dict[str, tuple[tuple[int, ...], str, Any]]:
    """Every tensor of a GGUF file, as `checkpoint_tensors` gives it. Takes the package gguf."""
    found: dict[str, tuple[tuple[int, ...], str, Any]] = {}
    for tensor in gguf_reader(path).tensors:
        shape = tuple(int(n) for n in tensor.shape)[::-1]

        def made(tensor: Any = tensor, shape: Any = shape) -> Any:
            return gguf_numbers(tensor.data, tensor.tensor_type).reshape(shape)

        found[tensor.name] = shape, tensor.tensor_type.name, made
        if said := gguf_codes(tensor.tensor_type.name):

            def kept(tensor: Any = tensor, shape: Any = shape) -> Any:
                return GgufBlocks(tensor.data, shape, tensor.tensor_type)

            code, scale, group, *zero = said.split()
            blocks = "x".join(["1"] * (len(shape) - 1) + [group])
            found[f"{tensor.name}|kept"] = shape, " ".join([code, scale, blocks, *zero]), kept
    return found


def gguf_codes(kind: str) -> str:
    """What the numbers of a type of blocks of GGUF are kept as: the types of codes and scales, how many places share a
    scale, and the type of zero points. Nothing for other types."""
    return {
        "Q4_0": "int4 f16 32",
        "Q4_1": "int4 f16 32 f32",
        "Q5_0": "int8 f16 32",
        "Q5_1": "int8 f16 32 f32",
        "Q8_0": "int8 f16 32",
        "Q4_K": "int4 f32 32 f32",
        "Q5_K": "int8 f32 32 f32",
        "Q6_K": "int8 f32 16",
    }.get(kind, "")


class GgufBlocks:
    """The codes of a tensor in blocks of GGUF, those of 4 bits around their middle; its scales; its zero points: each
    is made where it is asked for. A number is `scale * code + least` (https://github.com/ggml-org/ggml, ggml-common.h),
    which has the zero point `-least / scale`. A scale of 0 beside a least number leaves that: it is then the scale of
    codes of 0 with a zero point of -1."""

    def __init__(self, data: Any, shape: tuple[int, ...], kind: Any) -> None:
        gguf = import_module("gguf")
        self.blocks = np.asarray(data).reshape(-1, gguf.GGML_QUANT_SIZES[kind][1])
        self.shape, self.kind = shape, kind
        self.code, scale, group, *self.zero = gguf_codes(kind.name).split()
        self.middle = 8 if self.code == "int4" and self.zero else 0
        self.scale, self.group = np.dtype(np.float16 if scale == "f16" else np.float32), int(group)

    def __getitem__(self, which: int) -> Any:
        scales, least = self.scales()
        flat = scales == 0
        if which == 0:
            codes = self.codes().astype(np.int8) - np.int8(self.middle)
            if flat.any():
                codes[np.repeat(flat, self.group, -1)] = 0
            return codes
        if which == 1:
            return np.where(flat, least, scales).astype(self.scale)
        return np.where(flat, -1, -least / np.where(flat, 1, scales) - self.middle).astype(np.float32)

    def codes(self) -> Any:
        """The codes as the library reads them out of blocks in which scales are 1 and least numbers 0."""
        one, six_bits = b"\x00\x3c", b"\x01" * 4 + b"\x00" * 4 + b"\x01" * 4  # 1 in f16; eight scales and least numbers
        head = one + (b"\x00\x00" if self.zero else b"") + (six_bits if self.kind.name in ("Q4_K", "Q5_K") else b"")
        start, those = (192, b"\x01" * 16 + one) if self.kind.name == "Q6_K" else (0, head)
        own = self.blocks.copy()
        own[:, start : start + len(those)] = np.frombuffer(those, np.uint8)
        return gguf_numbers(own, self.kind).reshape(self.shape)

    def scales(self) -> tuple[Any, Any]:
        """The scales and the least numbers of all groups."""
        blocks, halves = self.blocks, self.blocks.view(np.float16)
        each, least = halves[:, :1].astype(np.float32), np.zeros((1, 1), np.float32)
        if self.kind.name == "Q6_K":
            each = halves[:, 104:].astype(np.float32) * blocks[:, 192:208].view(np.int8)
        elif self.zero:
            least = halves[:, 1:2].astype(np.float32)
        if self.kind.name in ("Q4_K", "Q5_K"):
            low, lower, high = (blocks[:, start : start + 4] for start in (4, 8, 12))
            each = each * np.concatenate([low & 63, (high & 15) | ((low >> 2) & 48)], -1)
            least = -least * np.concatenate([lower & 63, (high >> 4) | ((lower >> 2) & 48)], -1)
        groups = (*self.shape[:-1], self.shape[-1] // self.group)
        return each.reshape(groups), np.broadcast_to(least, each.shape).reshape(groups)
