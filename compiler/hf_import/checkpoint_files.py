"""Tensors of checkpoints, read where they are asked for: of folders of safetensors files, and of GGUF files.

Each function stands alone but for those that it calls, and is copied into emitted modules; so nothing here raises
more than ValueError and OSError, and nothing is imported from the compiler. The format of safetensors is that of
https://github.com/huggingface/safetensors: a length, a header in JSON, the data.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
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
    return found


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


def scaled_tensor(tensor: Any, scale: Any) -> Any:
    """A tensor of few bits as plain numbers: each block of it times its own scale. Blocks are of 128 places along a dim
    where that gives as many as there are scales, else of as many as divide it."""
    wide = np.asarray(tensor).astype(np.float32)
    scale = (
        np.asarray(scale).astype(np.float32).reshape(*np.shape(scale), *(1 for _ in range(wide.ndim - np.ndim(scale))))
    )
    for axis, (size, count) in enumerate(zip(wide.shape, scale.shape, strict=True)):
        block = 128 if -(-size // 128) == count else -(-size // count)
        scale = np.repeat(scale, block, axis)[tuple(slice(0, size if i == axis else None) for i in range(wide.ndim))]
    return wide * scale


def counters_of(name: str) -> int:
    """How many counters the name of a tensor has: a `{}` for each, or letters from `a` on."""
    letters = [ord(c) - ord("a") + 1 for place in re.findall(r"\{(.*?)\}", name) for c in place if c.isalpha()]
    return max([name.count("{}"), *letters])


def tensor_called(name: str, places: Sequence[int]) -> str:
    """The name of a tensor where its counters stand at `places`: in `{6a+b+3}` the first is `a`."""
    plain = iter(places)

    def number(match: re.Match[str]) -> str:
        if not match[1]:
            return str(next(plain))
        total = 0
        for term in match[1].split("+"):
            digits = term.rstrip("abcdef")
            total += int(digits or 1) * (places[ord(term[-1]) - ord("a")] if term[-1].isalpha() else 1)
        return str(total)

    return re.sub(r"\{(.*?)\}", number, name)


def tensor_view(tensor: Any, steps: list[str]) -> tuple[Any, Any]:
    """A tensor after the steps of a weight map, nothing of it read, and in which order a dim of it is to be: that, and
    which one, counted from the last, which is -1."""
    order, axis = None, -1
    for step in steps:
        match step.split():
            case ["transpose"]:
                tensor = np.swapaxes(tensor, -1, -2)
            case ["heads", count]:
                tensor = tensor.reshape(*tensor.shape[:-1], int(count), -1)
            case ["part", which, "of", count]:
                size = tensor.shape[-1] // int(count)
                tensor = tensor[..., (int(which) - 1) * size : int(which) * size]
            case ["first", count]:
                tensor = tensor[..., : int(count)]
            case ["after", count]:
                tensor = tensor[..., int(count) :]
            case ["every", count, "from", first]:
                tensor = tensor[..., int(first) - 1 :: int(count)]
            case ["roll"]:
                tensor, axis = np.moveaxis(tensor, 0, -1), axis - 1
            case ["pairs"]:
                order = np.arange(tensor.shape[-1]).reshape(2, -1).T.reshape(-1)
            case _:
                raise ValueError(f"there is no step `{step}`")
    return tensor, None if order is None else (order, axis)


def copy_part(part: Any, view: Any) -> None:
    """Copy a view of a tensor into an array. What lies side by side in the one lies far apart in the other where it is
    transposed, so that is done in blocks that a cache holds."""
    near = [axis for axis, step in enumerate(view.strides) if step == view.itemsize and view.shape[axis] > 1]
    if view.ndim < 2 or not near or near[-1] == view.ndim - 1:
        part[...] = view
        return
    other = [range(1) if axis in (near[0], view.ndim - 1) else range(n) for axis, n in enumerate(view.shape)]
    if math.prod(map(len, other)) > 4096:
        part[...] = view
        return
    block = 64
    for place in itertools.product(*other):
        at = [slice(None) if axis == near[0] else place[axis] for axis in range(view.ndim - 1)]
        for first in range(0, view.shape[-1], block):
            some = (*at, slice(first, first + block))
            part[some] = view[some]


def parameter_parts(
    tensors: Mapping[str, Any], line: str, shape: tuple[int, ...], dtype: Any, places: Sequence[Any]
) -> list[Any]:
    """Of a parameter of `shape`, made as a line of a weight map says, what lies at each of `places`, tuples of slices,
    as arrays; each tensor is made once for all. The first dims are those that the counters in the tensor's name
    count."""
    name, *steps = [part.strip() for part in line.split("|")]
    if steps and steps[-1].startswith("padded "):
        return padded_parts(tensors, line, shape, dtype, places)
    if steps and steps[-1].startswith(("codes ", "scales ")):
        return quantised_parts(tensors, line, shape, dtype, places)
    parts = [np.empty([len(range(n)[part]) for n, part in zip(shape, at, strict=True)], dtype) for at in places]
    counts = shape[: counters_of(name)]
    for repetition in itertools.product(*map(range, counts)):
        within = [
            n
            for n, at in enumerate(places)
            if all(one in range(count)[part] for one, count, part in zip(repetition, counts, at, strict=False))
        ]
        if not within:
            continue
        called = tensor_called(name, repetition)
        whole = tensors[called][2]()
        if steps[:1] and steps[0].startswith("scaled "):
            whole = scaled_tensor(whole, tensors[called + steps[0].split()[1]][2]())
        tensor, order = tensor_view(whole, [step for step in steps if not step.startswith("scaled ")])
        tensor = tensor.reshape(shape[len(counts) :])
        for n in within:
            at = places[n][len(counts) :]
            index = list(at)
            if order is not None:
                index[order[1]] = order[0][at[order[1]]]
            view = tensor[tuple(index)]
            slot = tuple(
                range(count)[part].index(one) for one, count, part in zip(repetition, counts, places[n], strict=False)
            )
            copy_part(parts[n][(*slot, ...)], view)
    return parts


def padded_parts(
    tensors: Mapping[str, Any], line: str, shape: tuple[int, ...], dtype: Any, places: Sequence[Any]
) -> list[Any]:
    """As `parameter_parts`, of a parameter that has more places than its tensors: `padded from 48x128` says how many
    these fill of the last dims. The others are 0."""
    plain, _, step = line.rpartition(" | ")
    own = [int(n) for n in step.split()[-1].split("x")]
    true = (*shape[: len(shape) - len(own)], *own)
    ends = [[at.indices(n)[:2] for n, at in zip(shape, place, strict=True)] for place in places]
    filled = [tuple(slice(min(a, n), min(b, n)) for (a, b), n in zip(e, true, strict=True)) for e in ends]
    parts = [np.zeros([b - a for a, b in e], dtype) for e in ends]
    for part, at, made in zip(parts, filled, parameter_parts(tensors, plain, true, dtype, filled), strict=True):
        part[tuple(slice(0, max(0, one.stop - one.start)) for one in at)] = made
    return parts


def quantised_parts(
    tensors: Mapping[str, Any], line: str, shape: tuple[int, ...], dtype: Any, places: Sequence[Any]
) -> list[Any]:
    """As `parameter_parts`, of the codes of a matrix, or of their scales. `codes int8 to 127 over -3:4096`: those that
    share a scale are the 4096 along the third dim from the last, and the largest of them has the code 127. One
    repetition is worked out after the other."""
    plain, _, step = line.rpartition(" | ")
    word, kind, _, largest, _, *listed = step.split()
    over = {int(axis): int(size) for axis, size in (text.split(":") for text in listed)}
    whole = list(shape)
    rank = len(shape) + (len(over) if word == "scales" else 0)
    axes = sorted(rank + axis for axis in over)
    for axis in axes if word == "scales" else ():
        whole.insert(axis, over[axis - rank])
    wide = []
    for place in places:
        every = list(place)
        for axis in axes:
            every[axis : axis + (word == "codes")] = [slice(None)]
        wide.append(every)
    parts = [np.empty([len(range(n)[at]) for n, at in zip(shape, place, strict=True)], dtype) for place in places]
    first = min([counters_of(plain.split("|")[0]), *axes])
    for one in itertools.product(*map(range, whole[:first])):
        within = [
            n for n, at in enumerate(places) if all(i in range(s)[p] for i, s, p in zip(one, shape, at, strict=False))
        ]
        found = {str(wide[n][first:]): (*(slice(i, i + 1) for i in one), *wide[n][first:]) for n in within}
        numbers = parameter_parts(tensors, plain, tuple(whole), np.float32, list(found.values()))
        for at, made in zip(found, numbers, strict=True):
            top = np.abs(made).max(axis=tuple(axes), keepdims=True)
            scale = np.where(top == 0, 1, top / np.float32(largest))
            codes = np.floor(made / scale + np.float32(0.5)) if kind.startswith("int") else made / scale
            for n in (n for n in within if str(wide[n][first:]) == at):
                slot = tuple(range(s)[p].index(i) for i, s, p in zip(one, shape, places[n], strict=False))
                if word == "scales":
                    parts[n][slot] = scale.squeeze(tuple(axes))[(0,) * first]
                else:
                    cut = [places[n][axis] if axis in axes else slice(None) for axis in range(first, rank)]
                    parts[n][slot] = codes[(*(0 for _ in one), *cut)].astype(dtype)
    return parts
