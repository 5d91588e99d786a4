"""Matrices that checkpoints keep as codes and scales in several tensors: each as one, and how it is kept.

How many codes share a scale is read of the config beside the files. Each function stands alone but for those that it
calls, and is copied into emitted modules, as those of `checkpoint_files.py` are.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np


def whole_tensors(found: dict[str, tuple[tuple[int, ...], str, Any]], folder: Path) -> dict[str, Any]:
    """The same with one tensor in place of those that keep it as codes and scales: of GPTQ and AWQ, of groups of
    compressed-tensors, in int8 with scales, and in blocks of fp4. It is made of them when it is asked for. Where these
    are codes around 0 in blocks of one scale each, there are codes and scales under `NAME|kept`, too, whose type is
    like `int4 f16 1x128`: that of both, and of how many places along each dim a block is; a fourth word is the type of
    zero points, which come third. Raises ValueError where they do not go together, or not with the folder's config."""
    out, said, offset = dict(found), said_blocks(folder), gptq_offset(folder)
    for name, (shape, kind, _) in found.items():
        stem, last = name.rpartition(".")[0], name.rpartition(".")[2]
        own = {part: f"{stem}.{part}" for part in ("weight", "scales", "qweight", "qzeros", "g_idx", "SCB")}
        own |= {part: f"{stem}.weight_{part}" for part in ("packed", "scale", "zero_point", "shape")}
        own |= {"group": f"{stem}.weight_g_idx", "format": f"{stem}.weight_format"}
        own |= {"second": f"{stem}.weight_scale_2", "global": f"{stem}.weight_global_scale"}
        own |= {"inverse": f"{stem}.weight_scale_inv"}
        own, whole, made = {part: one for part, one in own.items() if one in found}, f"{stem}.weight", None
        if last == "qweight" and {"qzeros", "scales"} <= own.keys() and len(shape) == 2:
            made = gptq_tensor(found, own, said, offset)
        elif last == "weight_packed" and kind == "I32" and {"scale", "shape"} <= own.keys():
            made = packed_tensor(found, own, said)
        elif last in ("weight_packed", "weight") and kind == "U8" and {"scale"} <= own.keys() and len(shape) == 2:
            if found[own["scale"]][0] != (shape[0], shape[1] // 8):
                raise ValueError(f"`{name[:80]}` and its scales are not those of one matrix")
            group_blocks(found, own, "scale", "", (shape[0], 2 * shape[1]), found[own["scale"]][0], said, 4)
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
            made = rows_tensor(found, own, said)
        elif kind == "F8_E4M3":
            out |= narrow_parts(found, name, said)
        if made is not None:
            size, said_type, numbers, codes = made
            for one in own.values():
                out.pop(one, None)
            for called, what, make in ((whole, said_type, numbers), *([(f"{whole}|kept", *codes)] if codes else [])):
                out[called] = size, what, lambda own=own, f=make: f({n: found[t][2]() for n, t in own.items()})
    return out


def narrow_parts(found: Mapping[str, Any], name: str, said: Sequence[tuple[int | None, ...]]) -> dict[str, Any]:
    """What there is besides of a tensor in fp8, which stays as it is: under `SCALES|blocks` of how many places along
    each dim the blocks are that each have one of its scales, and under `NAME|kept` how a matrix is kept."""
    out: dict[str, Any] = {}
    shape, _, codes = found[name]
    for scale in (name + end for end in ("_scale", "_scale_inv")):
        counts, kind, made = found.get(scale, ((), "", None))
        if made is None or len(counts) > len(shape):
            continue
        counts = (*counts, *(1 for _ in shape))[: len(shape)] if math.prod(counts) != 1 else tuple(1 for _ in shape)
        blocks = scale_blocks(shape, counts, said, 8)
        if blocks is not None:
            out[f"{scale}|blocks"] = counts, "x".join(map(str, blocks)), made
        if len(shape) == 2 and name.endswith(".weight") and (known := kept_as("fp8", kind, blocks)):
            out[f"{name}|kept"] = shape, known, lambda made=made, n=counts: (codes(), np.asarray(made()).reshape(n))
    return out


def kept_as(code: str, scale: str, blocks: tuple[int, ...] | None) -> str | None:
    """What codes are kept as whose scales are of a type of safetensors, one for each of such blocks; None where there
    are no blocks, and where that type is none of scales."""
    wide = {"F32": "f32", "F16": "f16", "BF16": "bf16"}.get(scale)
    return f"{code} {wide} {'x'.join(map(str, blocks))}" if wide and blocks else None


def gptq_tensor(
    found: Mapping[str, Any], own: Mapping[str, str], said: Sequence[tuple[int | None, ...]], offset: int
) -> Any:
    """A matrix of GPTQ or AWQ: its shape, its type, what makes its numbers, and what it is kept as. `said`: by a config
    of blocks (`said_blocks`); `offset`: what zero points of GPTQ are more than they are stored as."""
    (rows, columns), (groups, outputs), (several, zeros) = (
        found[own[part]][0] for part in ("qweight", "scales", "qzeros")
    )
    bits, by_output = 32 * zeros // max(outputs, 1), columns == outputs
    inputs = rows * 32 // max(bits, 1) if by_output else rows
    words = {found[own[part]][1] for part in ("qweight", "qzeros")} == {"I32"} and rows
    if bits not in (2, 4, 8) or columns not in (outputs, zeros) or several != groups or not words:
        raise ValueError(f"`{own['qweight'][:80]}` and its scales and zeros are not those of one matrix")
    check_part(found, own, "g_idx", [(inputs,)], groups)
    offset, shape = offset if by_output else 0, (outputs, inputs)
    blocks = group_blocks(found, own, "scales", "g_idx", shape, (outputs, groups), said, bits)
    known, kept = kept_as(f"int{bits}", found[own["scales"]][1], blocks), None
    less = unpacked_numbers(found[own["qzeros"]][2](), bits, 1) + (offset - (1 << (bits - 1)))
    if known and bits > 2 and less.max() < 1 << (bits - 1):
        known += f" int{bits}" if less.any() else ""
        kept = known, lambda p: gptq_codes(p, bits, offset)
    kind = f"int{bits} of {'GPTQ' if by_output else 'AWQ'}"
    return shape, kind, lambda p: gptq_numbers(p, bits, offset, blocks), kept


def packed_tensor(found: Mapping[str, Any], own: Mapping[str, str], said: Sequence[tuple[int | None, ...]]) -> Any:
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
    blocks = group_blocks(found, own, "scale", "group", shape, (scaled, groups), said, bits)
    known, kept = kept_as(f"int{bits}", found[own["scale"]][1], blocks), None
    if known and bits > 2:
        kept = known + (f" int{bits}" if "zero_point" in own else ""), lambda p: group_codes(p, bits, shape)
    return shape, f"int{bits} with scales", lambda p: group_numbers(p, bits, shape, blocks), kept


def rows_tensor(found: Mapping[str, Any], own: Mapping[str, str], said: Sequence[tuple[int | None, ...]]) -> Any:
    """The same of a matrix in int8 whose rows, or groups in them, have scales."""
    part = "scale" if "scale" in own else "SCB"
    shape, scales = found[own["weight"]][0], found[own[part]]
    scaled, groups = (*scales[0], 1, 1)[:2]
    if len(scales[0]) > 2 or scaled not in (1, shape[0]) or not 0 < groups <= shape[1]:
        raise ValueError(f"`{own['weight'][:80]}` and its scales are not those of one matrix")
    check_part(found, own, "zero_point", [scales[0], (scaled, groups), (scaled,)])
    kind = f"int8 with scales{' of rows' if math.prod(scales[0]) == shape[0] > 1 else ''}"
    blocks = group_blocks(found, own, part, "", shape, (scaled, groups), said, None)
    known = kept_as("int8", scales[1], blocks)
    kept = (known + (" int8" if "zero_point" in own else ""), lambda p: group_codes(p, 8, shape)) if known else None
    return shape, kind, lambda p: group_numbers(p, 8, shape, blocks), kept


def group_blocks(
    found: Mapping[str, Any],
    own: Mapping[str, str],
    scales: str,
    index: str,
    shape: tuple[int, ...],
    counts: tuple[int, ...],
    said: Sequence[tuple[int | None, ...]],
    bits: int | None,
) -> tuple[int, ...] | None:
    """How many outputs by how many inputs of a matrix have one of its scales, of which there are `counts` along each;
    None where `index`, the part that gives each input its group, has these out of order. Raises ValueError where they
    are not those that a config has `said`, and where they could be several and neither says which."""
    blocks = scale_blocks(shape, counts, said, bits)
    if index in own:
        group = np.asarray(found[own[index]][2]()).reshape(-1)
        each, known = int((group == 0).sum()) or 1, [n for own_bits, _, n in said if own_bits in (None, bits)]
        fits = not said or any(n is None or -(-shape[1] // (n or shape[1])) == counts[1] for n in known)
        blocks = (-(-shape[0] // counts[0]), each) if np.array_equal(group, np.arange(len(group)) // each) else None
    else:
        fits = blocks is not None
    if not fits:
        have, of = ("x".join(map(str, n)) for n in (counts, shape))
        name, codes = own[scales][:80], f"{of} codes" + ("" if bits is None else f" of {bits} bits")
        if any(n is not None for one in said for n in one):
            raise ValueError(f"the scales `{name}`, {have} for {codes}, are not those of blocks as its config says")
        raise ValueError(f"the scales `{name}`, {have} for {codes}, fit no blocks or several, and no config says which")
    return blocks


def scale_blocks(
    shape: Sequence[int],
    counts: Sequence[int],
    said: Sequence[tuple[int | None, ...]] = (),
    bits: int | None = None,
) -> tuple[int, ...] | None:
    """How many places along each dim of codes of so many bits share a scale, of which there are `counts` along each:
    those of the one kind of codes that a config has `said` (`said_blocks`) with which they go. None where they go with
    none, or with several in different ways."""
    fitting, leading = set(), [None for _ in shape[2:]]
    for own, *each in said or [(None, None, None)]:
        asked = [*leading, *each] if len(shape) > 1 else [None for _ in shape]
        blocks = tuple(block_along(*one) for one in zip(shape, counts, asked, strict=True))
        if None not in blocks and (bits is None or own in (None, bits)):
            fitting.add(tuple(n or 1 for n in blocks))
    return fitting.pop() if len(fitting) == 1 else None


def block_along(size: int, count: int, said: int | None) -> int | None:
    """How many of `size` places share each of `count` scales: as many as is `said`, where 0 means all. Where nothing is
    said, as many as divide them, or a power of two, if that leaves one answer. None where there is none."""
    fits = {n for n in (said or size,) if size and -(-size // n) == count}
    if said is None and count > 1:
        fits = {1 << n for n in range(size.bit_length()) if -(-size // (1 << n)) == count}
        fits |= {size // count} if size % count == 0 else set()
    return min(size, *fits) if size and len(fits) == 1 else None


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


def said_codes(folder: Path) -> list[list[dict[str, Any]]]:
    """The objects in which the files of a folder say how its codes are stored, file by file."""
    names, files = ("quantization_config", "quantization", "compression_config"), []
    for name in ("config.json", "quantize_config.json", "quant_config.json", "hf_quant_config.json"):
        found: list[dict[str, Any]] = []
        path = folder / name
        if not path.is_file():  # of a pipe nothing may ever come
            continue
        try:
            whole = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            continue
        waiting = [whole]
        while waiting:
            one = waiting.pop()
            if isinstance(one, dict):
                found += [one[key] for key in names if isinstance(one.get(key), dict) and one[key]]
                waiting += [value for key, value in one.items() if key not in names]
        own = [whole] if isinstance(whole, dict) and name != "config.json" and not found else []
        files.append(found + own)
    return files


def said_blocks(folder: Path) -> list[tuple[int | None, ...]]:
    """What the first file of a folder that says anything of codes does say, kind by kind: their bits, and how many
    outputs by how many inputs share a scale, 0 for all; None where that is not said."""
    found = list[tuple[int | None, ...]]()
    for whole in next(filter(None, said_codes(folder)), []):
        groups, every = whole.get("config_groups"), whole.get("global_quant_config")
        inner = list(groups.values()) if isinstance(groups, dict) else []
        inner = [one.get("weights") for one in inner if isinstance(one, dict)]
        inner += [every.get("weight")] if isinstance(every, dict) else []
        for one in [one for one in inner if isinstance(one, dict)] or [whole]:
            sizes, group = one.get("weight_block_size") or one.get("block_structure"), one.get("group_size")
            group = one.get("q_group_size") if group is None else group
            several = isinstance(sizes, list) and len(sizes) == 2
            each: Any = sizes if several else [None, 0 if group == -1 else group]
            bits = next((one[name] for name in ("bits", "num_bits", "w_bit") if name in one), None)
            said = (bits if bits and type(bits) is int else None, *each)
            found.append(tuple(n if type(n) is int and n >= 0 else None for n in said))
            if whole.get("quant_method") == "fp8" and "weight_block_size" not in whole:
                found.append((8, 128, 128))  # which transformers takes it to mean
    return found


def gptq_offset(folder: Path) -> int:
    """What zero points of GPTQ are more than they are stored as: 1 but for those of its second format, and what
    AutoRound packs in its own or in that of GPTQModel."""
    for one in [one for found in said_codes(folder) for one in found]:
        exact = "gptq_v2" in (one.get("checkpoint_format"), one.get("format"))
        if exact or one.get("packing_format") in ("auto_round", "auto_round:gptqmodel"):
            return 0
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


def gptq_numbers(parts: Mapping[str, Any], bits: int, offset: int, blocks: tuple[int, ...] | None) -> Any:
    """A matrix [to, from] of GPTQ or AWQ, which has a scale for each of such blocks; None: as it says itself."""
    codes, zeros = gptq_lanes(parts, bits)
    scales = np.asarray(parts["scales"]).astype(np.float32)
    group = np.asarray(parts["g_idx"]) if blocks is None else np.arange(len(codes)) // blocks[1]
    return (scales[group] * (codes - (zeros + offset)[group])).T


def group_numbers(parts: Mapping[str, Any], bits: int, shape: tuple[int, ...], blocks: tuple[int, ...] | None) -> Any:
    """A matrix [to, from] in int8, or packed along `from` as compressed-tensors does
    (https://github.com/neuralmagic/compressed-tensors), each group of a row times its scale, one for each of
    `blocks` (None: as it says itself); of bitsandbytes each row times its largest magnitude over 127."""
    if "packed" in parts:
        middle = 1 << (bits - 1)
        codes = unpacked_numbers(parts["packed"], bits, 1)[:, : shape[1]] - middle
        zero = unpacked_numbers(parts["zero_point"], bits, 0)[: shape[0]] - middle if "zero_point" in parts else 0.0
    else:
        codes = np.asarray(parts["weight"]).astype(np.float32)
        zero = np.asarray(parts["zero_point"]).astype(np.float32) if "zero_point" in parts else 0.0
    scale = np.asarray(parts["scale"] if "scale" in parts else parts["SCB"]).astype(np.float32)
    scale = (scale if "scale" in parts else scale / np.float32(127)).reshape(len(scale) if scale.ndim else 1, -1)
    group = np.asarray(parts["group"]) if blocks is None else np.arange(shape[1]) // blocks[1]
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
