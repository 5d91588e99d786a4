"""Tensors of checkpoints, read where they are asked for: of folders of safetensors files, and of GGUF files.

Each function stands alone but for those that it calls by name, and is copied into emitted modules; so nothing here
raises more than ValueError and OSError, and nothing is imported but from `packed_tensors.py`, which is copied too. The
format of safetensors is that of https://github.com/huggingface/safetensors: a length, a header in JSON, the data.
"""

from __future__ import annotations

import json
import math
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from .packed_tensors import whole_tensors


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
