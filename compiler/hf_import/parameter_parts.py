"""Parameters of a model made of the tensors of a checkpoint, as lines of its weight map say: any part of any of them.

Each function stands alone but for those that it calls, and is copied into emitted modules, as those of
`checkpoint_files.py` are.
"""

from __future__ import annotations

import itertools
import math
import mmap
import os
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np


def scaled_tensor(tensor: Any, scale: Any, blocks: str) -> Any:
    """A tensor of few bits as plain numbers: each block of it times its own scale. `blocks`: of how many places along
    each dim they are, like `128x128`."""
    wide, each = np.asarray(tensor).astype(np.float32), [int(n) for n in blocks.split("x") if n]
    counts = [-(-size // n) for size, n in zip(wide.shape, each, strict=True)]
    scale = np.asarray(scale).astype(np.float32).reshape(counts)
    for axis, (size, block) in enumerate(zip(wide.shape, each, strict=True)):
        scale = np.repeat(scale, block, axis)[tuple(slice(0, size if i == axis else None) for i in range(wide.ndim))]
    return wide * scale


def counters_of(name: str) -> int:
    """How many counters a name or a line of a weight map has: a `{}` for each, or letters from `a` on."""
    letters = [ord(c) - ord("a") + 1 for place in re.findall(r"\{(.*?)\}", name) for c in place if c.isalpha()]
    return max([name.count("{}"), *letters])


def tensor_called(name: str, places: Sequence[int]) -> str:
    """A name or a step where its counters stand at `places`: in `{6a+b+3}` the first is `a`."""
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


def blocks_of(part: Any, view: Any) -> list[tuple[Any, Any]]:
    """An array and the view of a tensor that is to be copied into it, as pairs of blocks of both, each as much as lies
    within 4 MB of its file."""
    if 0 in view.shape:
        return []
    steps = [abs(step) if size > 1 else 0 for step, size in zip(view.strides, view.shape, strict=True)]
    if not steps:
        return [(part, view)]
    far = steps.index(max(steps))
    some = max(1, (4 << 20) // max(steps[far], 1))
    every = ((*(slice(None) for _ in steps[:far]), slice(n, n + some), ...) for n in range(0, view.shape[far], some))
    return [(part[at], view[at]) for at in every]


def copy_blocks(blocks: Sequence[tuple[Any, Any]], pool: Any) -> None:
    """Copy the second of each pair into the first; the threads of a pool share the work. Pages of a mapped file are let
    go again: else all that was ever looked at would count as memory of the process."""

    def copied(pair: tuple[Any, Any]) -> None:
        copy_block(*pair)
        mapped = getattr(pair[1], "_mmap", None)
        if mapped is not None and hasattr(mmap, "MADV_DONTNEED"):
            mapped.madvise(mmap.MADV_DONTNEED)

    for _ in pool.map(copied, blocks) if len(blocks) > 1 else map(copied, blocks):
        pass


def copy_block(part: Any, view: Any) -> None:
    """Copy a view into an array. What lies side by side in the one lies far apart in the other where it is transposed,
    so that is done by way of tiles that a cache holds. Rows of a tile lie apart by no power of two, as those of a
    tensor often do, which then share few lines of a cache. Types that NumPy has from elsewhere are copied as their
    bits, since it copies them one by one, and holds up all other threads meanwhile."""
    if view.dtype == part.dtype and view.dtype.isbuiltin != 1:
        bits = np.dtype(f"u{view.itemsize}")
        part, view = part.view(bits), view.view(bits)
    near = [axis for axis, step in enumerate(view.strides) if step == view.itemsize and view.shape[axis] > 1]
    steps = [float(abs(step)) if size > 1 else math.inf for step, size in zip(part.strides, part.shape, strict=True)]
    into = steps.index(min(steps)) if steps else 0
    if not near or near[-1] == into:
        part[...] = view
        return
    both, side = (near[-1], into), 256
    other = [range(1) if axis in both else range(n) for axis, n in enumerate(view.shape)]
    if math.prod(map(len, other)) > 4096:
        part[...] = view
        return
    tile = np.empty((side, side + 32), view.dtype)
    for place in itertools.product(*other):
        for corner in itertools.product(*(range(0, view.shape[axis], side) for axis in both)):
            at: list[Any] = list(place)
            for axis, first in zip(both, corner, strict=True):
                at[axis] = slice(first, first + side)
            read, written = view[tuple(at)], part[tuple(at)]
            if both[0] < both[1]:  # what is near in the file comes last
                read, written = read.T, written.T
            rows, columns = read.shape
            tile[:rows, :columns] = read
            written[...] = tile[:rows, :columns]


def aligned(shape: Sequence[int], dtype: Any) -> Any:
    """An array that begins at a multiple of 64 bytes, so that JAX's CPU devices take it as it is, without a copy."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.empty(size + 64, np.uint8)
    begin = -memory.ctypes.data % 64
    return memory[begin : begin + size].view(dtype).reshape(shape)


def read_together(tensors: Mapping[str, Any], line: str, places: Sequence[Any]) -> list[list[Any]]:
    """The places of a parameter in the groups that `parameter_parts` is to make at once: each alone where tensors are
    mapped, so that there is one part at a time; all where each tensor is made of codes, which is done once."""
    name, *steps = [part.strip() for part in line.split("|")]
    plain = tensors[tensor_called(name, [0] * 6)][1] in ("F64", "F32", "F16", "BF16")
    made = any(step.startswith(("scaled ", "codes ", "scales ", "kept")) for step in steps)
    return [[at] for at in places] if plain and not made else [list(places)]


def parameter_parts(
    tensors: Mapping[str, Any], line: str, shape: tuple[int, ...], dtype: Any, places: Sequence[Any]
) -> list[Any]:
    """Of a parameter of `shape`, made as a line of a weight map says, what lies at each of `places`, tuples of slices,
    as arrays; each tensor is made once for all. The first dims are those that the counters in the tensor's name
    count."""
    steps = [part.strip() for part in line.split("|")[1:]]
    if steps and steps[-1].startswith("order "):
        return ordered_parts(tensors, line, shape, dtype, places)
    if steps and steps[-1].startswith("padded "):
        return padded_parts(tensors, line, shape, dtype, places)
    if steps and steps[-1].startswith(("codes ", "scales ")):
        return quantised_parts(tensors, line, shape, dtype, places)
    parts = [aligned([len(range(n)[part]) for n, part in zip(shape, at, strict=True)], dtype) for at in places]
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        fill_parts(tensors, line, shape, places, parts, pool)
    return parts


def repetition_parts(
    tensors: Mapping[str, Any], line: str, shape: tuple[int, ...], dtype: Any, rows: Any, places: Sequence[Any]
) -> list[Any]:
    """As `parameter_parts`, of some repetitions of a stacked parameter, given by number, one after the other; None: of
    all."""
    if rows is None:
        return parameter_parts(tensors, line, shape, dtype, places)
    sizes = [[len(rows), *(len(range(n)[part]) for n, part in zip(shape[1:], at[1:], strict=True))] for at in places]
    parts = [aligned(size, dtype) for size in sizes]
    for n, row in enumerate(rows):
        own = [(slice(row, row + 1), *at[1:]) for at in places]
        for whole, one in zip(parts, parameter_parts(tensors, line, shape, dtype, own), strict=True):
            whole[n : n + 1] = one
    return parts


def fill_parts(
    tensors: Mapping[str, Any], line: str, shape: tuple[int, ...], places: Sequence[Any], parts: list[Any], pool: Any
) -> None:
    """Fill the arrays that `parameter_parts` makes, one tensor after the other."""
    name, *said = [part.strip() for part in line.split("|")]
    counts, blocks = shape[: counters_of(line)], list[tuple[Any, Any]]()
    for repetition in itertools.product(*map(range, counts)):
        within = [
            n
            for n, at in enumerate(places)
            if all(one in range(count)[part] for one, count, part in zip(repetition, counts, at, strict=False))
        ]
        if not within:
            continue
        called, steps = tensor_called(name, repetition), [tensor_called(step, repetition) for step in said]
        if steps and steps[-1].startswith(("blocks ", "zeros ")):
            tensor, order = kept_scales(tensors[called + "|kept"], steps), None
        else:
            whole = tensors[called + "|kept"][2]()[0] if steps[:1] == ["kept"] else tensors[called][2]()
            if steps[:1] and steps[0].startswith("scaled "):
                scale = called + steps[0].split()[1]
                if f"{scale}|blocks" not in tensors:
                    raise ValueError(f"the scales `{scale[:80]}` are not those of blocks of `{called[:80]}`")
                whole = scaled_tensor(whole, tensors[scale][2](), tensors[f"{scale}|blocks"][1])
            tensor, order = tensor_view(whole, [step for step in steps if not step.startswith(("scaled ", "kept"))])
        tensor = tensor.reshape(shape[len(counts) :])
        for n in within:
            slot = tuple(
                range(count)[part].index(one) for one, count, part in zip(repetition, counts, places[n], strict=False)
            )
            blocks += ordered_blocks(parts[n][(*slot, ...)], tensor, order, places[n][len(counts) :])
        if getattr(tensor, "_mmap", None) is None:  # it was made, and goes before the next one is
            copy_blocks(blocks, pool)
            blocks = []
    copy_blocks(blocks, pool)


def kept_scales(kept: Any, steps: list[str]) -> Any:
    """The scales of a tensor that is kept as codes, one for each block of a parameter: `blocks 1x64 of 2048x128` says
    how many places a block has along each of its dims, and how many there are; `zeros 1x64 of 2048x128`: its zero
    points."""
    shape, said, made = kept
    word, sizes, _, whole = steps[-1].split()
    each, of = ([int(n) for n in part.split("x")] for part in (sizes, whole))
    places = []
    for number, order in block_numbers(shape, said, [step for step in steps[:-1] if step != "kept"], of):
        first: list[Any] = [slice(None, None, block) for block in each]
        if order is not None:
            first[order[1]] = order[0][first[order[1]]]
        places.append(number[tuple(first)])
    return np.asarray(made()[1 if word == "blocks" else 2])[tuple(places)]


def block_numbers(shape: tuple[int, ...], said: str, steps: list[str], of: Sequence[int]) -> list[tuple[Any, Any]]:
    """For each dim of a tensor in which block of it the places of a parameter lie, whose shape is `of`, and in which
    order a dim is to be; views, of which nothing is made in full. `said`: what the tensor is kept as."""
    found = []
    for axis, (size, block) in enumerate(zip(shape, said.split()[2].split("x"), strict=True)):
        line = (np.arange(size) // int(block)).reshape(-1, *(1 for _ in shape[axis + 1 :]))
        view, order = tensor_view(np.broadcast_to(line, shape), steps)
        found.append((view.reshape(of), order))
    return found


def ordered_blocks(part: Any, tensor: Any, order: Any, place: Any) -> list[tuple[Any, Any]]:
    """`blocks_of` what lies at a place of a tensor, whose entries along one dim are put in an order. These are taken
    run by run of one step, so that each run is a view: picked one by one, all would be copied once more."""
    if order is None:
        return blocks_of(part, tensor[tuple(place)])
    wanted, axis = order
    axis += tensor.ndim
    picked, found = wanted[place[axis]], list[tuple[Any, Any]]()
    for first in (0, 1):  # of pairs those from the first half, then those from the second
        runs = picked[first::2]
        run = slice(int(runs[0]), int(runs[-1]) + 1) if len(runs) else slice(0, 0)
        every = [run if i == axis else part for i, part in enumerate(place)]
        into = tuple(slice(first, None, 2) if i == axis else slice(None) for i in range(tensor.ndim))
        found += blocks_of(part[into], tensor[tuple(every)])
    return found


def ordered_parts(
    tensors: Mapping[str, Any], line: str, shape: tuple[int, ...], dtype: Any, places: Sequence[Any]
) -> list[Any]:
    """As `parameter_parts`, of a parameter whose last dims stand in another order: `order 1 2 0` has the first of three
    last."""
    plain, _, step = line.rpartition(" | ")
    own = [int(n) for n in step.split()[1:]]
    order = [*range(len(shape) - len(own)), *(len(shape) - len(own) + n for n in own)]
    before = sorted(range(len(order)), key=order.__getitem__)  # where each dim stood before the others changed places
    parts = [aligned([len(range(n)[part]) for n, part in zip(shape, at, strict=True)], dtype) for at in places]
    views = [part.transpose(before) for part in parts]
    declared, at = tuple(shape[i] for i in before), [tuple(place[i] for i in before) for place in places]
    if plain.rpartition(" | ")[2].startswith(("padded ", "codes ", "scales ")):
        for view, made in zip(views, parameter_parts(tensors, plain, declared, dtype, at), strict=True):
            view[...] = made
        return parts
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        fill_parts(tensors, plain, declared, at, views, pool)
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
    first = min([counters_of(plain), *axes])
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
