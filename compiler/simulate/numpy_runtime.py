"""Chips as leading array axes: collectives and shards in plain NumPy. Emitted files carry this code.

Needs nothing but NumPy and stands alone, because its text is pasted into what is emitted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Axes = Sequence[str]  # mesh axes, major to minor: "yz", or ("node", "gpu")


class Mesh:
    """Virtual chips. Every array has the mesh's axes in front: a[i, j, k] is what one chip holds.

    `dim` counts the dimensions of what a chip holds, from 0. A layout gives for each of them the
    axes that split it, major to minor. Wrong shapes raise ValueError.
    """

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = dict(sizes)
        self.names = list(sizes)
        self.shape = tuple(sizes.values())

    def at(self, axes: Axes) -> list[int]:
        """Where mesh axes stand among an array's axes."""
        return [self.names.index(axis) for axis in axes]

    def ways(self, axes: Axes) -> int:
        """How many blocks `axes` make."""
        return math.prod(self.sizes[axis] for axis in axes)

    def block(self, axes: Axes, rank: int = 0) -> np.ndarray:
        """The number of each chip's block, as an array that broadcasts over `rank` dimensions."""
        number = np.zeros(self.shape, dtype=np.int64)
        for axis, place in zip(axes, self.at(axes), strict=True):
            shape = [-1 if i == place else 1 for i in range(len(self.shape))]
            number = number * self.sizes[axis] + np.arange(self.sizes[axis]).reshape(shape)
        return number.reshape(self.shape + (1,) * rank)

    def _order(self, layout: Sequence[Axes]) -> tuple[list[int], list[int]]:
        """The mesh axes that `layout` leaves alone, and array axes such that its blocks lie in order."""
        used = {axis for axes in layout for axis in axes}
        rest = [i for i, name in enumerate(self.names) if name not in used]
        first = len(self.names)
        return rest, rest + [i for dim, axes in enumerate(layout) for i in (*self.at(axes), first + dim)]

    def join(self, a: np.ndarray, layout: Sequence[Axes]) -> np.ndarray:
        """Put the blocks of `layout` together; the mesh axes that it names disappear."""
        rest, order = self._order(layout)
        local = a.shape[len(self.names) :]
        whole = [n * self.ways(axes) for n, axes in zip(local, layout, strict=True)]
        return a.transpose(order).reshape([self.shape[i] for i in rest] + whole)

    def cut(self, whole: np.ndarray, layout: Sequence[Axes]) -> np.ndarray:
        """The inverse of join: every chip gets its block."""
        rest, order = self._order(layout)
        shape = list(whole.shape[: len(rest)])
        for n, axes in zip(whole.shape[len(rest) :], layout, strict=True):
            if n % self.ways(axes):
                raise ValueError(f"{n} elements do not make {self.ways(axes)} equal blocks")
            shape += [self.sizes[axis] for axis in axes] + [n // self.ways(axes)]
        return np.ascontiguousarray(whole.reshape(shape).transpose(np.argsort(order)))

    def everywhere(self, a: np.ndarray, axes: Axes) -> np.ndarray:
        """A copy for each chip along mesh axes that `a` lacks."""
        wide = np.expand_dims(a, sorted(self.at(axes)))
        return np.broadcast_to(wide, self.shape + wide.shape[len(self.shape) :]).copy()

    def shard(self, whole: np.ndarray, layout: Sequence[Axes]) -> np.ndarray:
        """What every chip holds of a tensor."""
        rest, _ = self._order(layout)
        return self.cut(np.broadcast_to(whole, [self.shape[i] for i in rest] + list(whole.shape)), layout)

    def unshard(self, a: np.ndarray, layout: Sequence[Axes]) -> np.ndarray:
        """The tensor, from complete shards. Copies that differ raise ValueError."""
        joined = self.join(a, layout)
        copies = joined.reshape((-1, *joined.shape[joined.ndim - len(layout) :]))
        whole: np.ndarray = copies[0]
        if not (copies[1:] == whole).all():  # mostly they are the same, to the last bit
            scale = np.abs(whole[np.isfinite(whole)]).max(initial=0)
            same = np.isclose(copies, whole, rtol=0, atol=1e-9 * scale, equal_nan=True)
            if not ((copies == whole) | same).all():
                raise ValueError("the copies of a value differ from chip to chip")
        return whole

    def one_dim(self, a: np.ndarray, dim: int, axes: Axes) -> list[Axes]:
        """The layout of `a` in which `axes` split `dim` and nothing else is split."""
        return [axes if i == dim else () for i in range(a.ndim - len(self.names))]

    def all_gather(self, a: np.ndarray, axes: Axes, dim: int) -> np.ndarray:
        """Every chip gets the blocks of its group along `axes`, joined."""
        return self.everywhere(self.join(a, self.one_dim(a, dim, axes)), axes)

    def all_reduce(self, a: np.ndarray, axes: Axes, reduce: np.ufunc = np.add) -> np.ndarray:
        """Every chip gets the sum (or the maximum) over its group."""
        return self.everywhere(reduce.reduce(a, axis=tuple(self.at(axes))), axes)

    def reduce_scatter(self, a: np.ndarray, axes: Axes, dim: int, reduce: np.ufunc = np.add) -> np.ndarray:
        """Every chip gets its block of the sum (or the maximum) over its group."""
        return self.cut(reduce.reduce(a, axis=tuple(self.at(axes))), self.one_dim(a, dim, axes))

    def all_to_all(self, a: np.ndarray, axes: Axes, source: int, target: int, order: Axes) -> np.ndarray:
        """Axes that split `source`, there in `order`, split `target` instead, there as in `axes`."""
        return self.cut(self.join(a, self.one_dim(a, source, order)), self.one_dim(a, target, axes))

    def permute(self, a: np.ndarray, before: Sequence[Axes], after: Sequence[Axes]) -> np.ndarray:
        """Blocks change chips: `before` and `after` name the same axes in other places."""
        return self.cut(self.join(a, before), after)

    def together(self, kind: str, axes: Axes, parts: Sequence[Sequence[Any]]) -> list[np.ndarray]:
        """Several collectives of one kind over the same axes as one, on what they carry end to end.

        Each part has the arguments that it would have alone; it may name the axes in an order of its
        own. What goes to, or comes from, each chip of a group lies in a block of its own.
        """
        sends = [self._packed(kind, axes, *part) for part in parts]
        sizes = [send.shape[-1] for send in sends]
        buffer = np.concatenate(sends, axis=-1)
        match kind:
            case "all_gather":
                received = self.all_gather(buffer[..., None, :], axes, 0)
            case "reduce_scatter":
                received = self.reduce_scatter(buffer, axes, 0, *parts[0][3:])
            case "all_reduce":
                received = self.all_reduce(buffer, axes, *parts[0][2:])
            case _:
                blocks = self.join(buffer, [(), axes])  # what each chip of a group sends to each of them
                shape = (*blocks.shape[:-1], self.ways(axes), -1)
                received = self.cut(blocks.reshape(shape), [axes, (), ()])[..., 0, :, :]
        pieces = np.split(received, np.cumsum(sizes)[:-1], axis=-1)
        return [self._unpacked(kind, axes, piece, *part) for piece, part in zip(pieces, parts, strict=True)]

    def _packed(self, kind: str, axes: Axes, a: np.ndarray, own: Axes, *rest: Any) -> np.ndarray:
        """What a part sends: [elements], or [chips of the group, elements]."""
        first = len(self.names)
        if kind in ("all_gather", "all_reduce"):
            return a.reshape(*self.shape, -1)
        split = rest[1] if kind == "all_to_all" else rest[0]
        local = a.shape[first + split] // self.ways(own)
        blocks = a.reshape(
            *a.shape[: first + split], *(self.sizes[x] for x in own), local, *a.shape[first + split + 1 :]
        )
        at = [first + split + list(own).index(x) for x in axes]
        return np.moveaxis(blocks, at, range(first, first + len(axes))).reshape(*self.shape, self.ways(axes), -1)

    def _unpacked(self, kind: str, axes: Axes, piece: np.ndarray, a: np.ndarray, own: Axes, *rest: Any) -> np.ndarray:
        """What a part makes of what it received."""
        first, local = len(self.names), list(a.shape[len(self.names) :])
        if kind == "all_reduce":
            return piece.reshape(a.shape)
        if kind == "reduce_scatter":
            local[rest[0]] //= self.ways(own)
            return piece.reshape(*self.shape, *local)
        order, split = own, rest[0]
        if kind == "all_to_all":
            local[rest[1]] //= self.ways(own)
            order = rest[2]
        blocks = piece.reshape(*self.shape, *(self.sizes[x] for x in axes), *local)
        at = [first + list(axes).index(x) for x in order]
        blocks = np.moveaxis(blocks, at, range(first + split, first + split + len(axes)))
        local[split] *= self.ways(axes)
        return blocks.reshape(*self.shape, *local)

    def slice(self, a: np.ndarray, axes: Axes, dim: int) -> np.ndarray:
        """Every chip keeps its own part of `dim`."""
        split = len(self.names) + dim
        if a.shape[split] % self.ways(axes):
            raise ValueError(f"{a.shape[split]} elements do not make {self.ways(axes)} equal blocks")
        parts = a.reshape(*a.shape[:split], self.ways(axes), -1, *a.shape[split + 1 :])
        own = self.block(axes, rank=parts.ndim - len(self.names))
        return np.take_along_axis(parts, own, axis=split).squeeze(split)

    def embed(self, a: np.ndarray, axes: Axes) -> np.ndarray:
        """A complete value becomes a partial sum: the first chip of each group has it, others zeros."""
        return np.where(self.block(axes, rank=a.ndim - len(self.names)) == 0, a, 0.0)

    def embed_block(self, a: np.ndarray, axes: Axes, dim: int) -> np.ndarray:
        """Blocks of `dim` become a partial sum: each chip has its own block among zeros."""
        split = len(self.names) + dim
        parts = np.arange(self.ways(axes)).reshape((-1, *(1,) * (a.ndim - split)))
        own = self.block(axes, rank=a.ndim + 1 - len(self.names)) == parts
        spread = np.where(own, np.expand_dims(a, split), 0.0)
        return spread.reshape(*a.shape[:split], -1, *a.shape[split + 1 :])

    def iota(self, size: int, axes: Axes) -> np.ndarray:
        """0, 1, 2, ... up to `size`, split by `axes`: global positions."""
        return self.shard(np.arange(size, dtype=float), [axes])

    def take(self, table: np.ndarray, ids: np.ndarray, dims: Sequence[int], axes: Sequence[Axes]) -> np.ndarray:
        """Rows of `table`, each of whose `dims` is split by its `axes`: zeros for rows that lie on other chips.

        Of several dims a row is counted in row-major order.
        """
        first = len(self.names)
        rows = np.moveaxis(table, [first + dim for dim in dims], range(first, first + len(dims)))
        row, here, places = ids.astype(np.int64), np.True_, []
        for local, split in reversed(list(zip(rows.shape[first:], axes, strict=False))):
            row, place = np.divmod(row, local * self.ways(split))
            place = place - self.block(split, rank=ids.ndim - first) * local
            here = here & (place >= 0) & (place < local)
            places.append(place)
        here = here & (row == 0)
        chips = [
            rows[chip][tuple(np.where(here, place, 0)[chip] for place in reversed(places))]
            for chip in np.ndindex(self.shape)
        ]
        taken = np.stack(chips).reshape(self.shape + chips[0].shape)
        return np.where(here.reshape(here.shape + (1,) * (taken.ndim - here.ndim)), taken, 0.0)

    def append(
        self, cache: np.ndarray, new: np.ndarray, dim: int, axes: Axes, end: int, wraps: bool = False
    ) -> np.ndarray:
        """`new` takes the places before `end` of the cache along `dim`, split by `axes`: the owners write. A cache that
        `wraps` has place p in the slot p modulo its slots."""
        first, split = len(self.names), len(self.names) + dim
        local, entries = cache.shape[split], new.shape[split]
        position = self.block(axes, rank=1) * local + np.arange(local)
        slots = local * self.ways(axes)
        if entries > (slots if wraps else end) or (end > slots and not wraps):
            raise ValueError(f"{entries} entries do not fit before place {end} of {slots}")
        entry = position - (end - entries)
        if wraps:
            entry %= slots
        entry = entry.reshape(self.shape + (1,) * dim + (local,) + (1,) * (cache.ndim - split - 1))
        picked = np.take_along_axis(new, np.clip(entry, 0, entries - 1), axis=first + dim)
        return np.where((entry >= 0) & (entry < entries), picked, cache)


class Streamed:
    """A tensor of a loop of which chips keep some repetitions, and have the others from the memory of their host.

    `host` is the whole tensor, stacked; it stays there. Of the repetitions that come, `streamed` of them and spread
    evenly, each chip fetches a part, laid out as `parts` says, and gathers what `layout` says that it holds. Chips hold
    the one that runs and the next `ahead` of these, and no more.
    """

    def __init__(
        self, mesh: Mesh, host: np.ndarray, layout: Sequence[Axes], parts: Sequence[Axes], streamed: int, ahead: int
    ) -> None:
        self.mesh, self.host, self.ahead = mesh, host, ahead
        inner: list[Axes] = [()] * (host.ndim - 1 - len(layout))  # repetitions of loops in the loop come together
        self.layout, self.parts = inner + list(layout), inner + list(parts)
        count = len(host)
        self.coming = [i for i in range(count) if (i + 1) * streamed // count > i * streamed // count]
        self.kept = {i: mesh.shard(host[i], self.layout) for i in range(count) if i not in self.coming}
        self.held: dict[int, np.ndarray] = {}

    def at(self, i: int, *inner: int) -> np.ndarray:
        """What every chip has of repetition `i`, which runs now, and of `inner` ones in it."""
        due = [n for n in self.coming if n > i][: self.ahead] + [n for n in self.coming if n == i]
        self.held = {n: self.held[n] if n in self.held else self.fetch(n) for n in due}
        found = self.held[i] if i in self.held else self.kept[i]
        return found[(slice(None),) * len(self.mesh.shape) + inner]

    def fetch(self, i: int) -> np.ndarray:
        """Repetition `i`, of which each chip has fetched its part."""
        a = self.mesh.shard(self.host[i], self.parts)
        for dim, (own, part) in enumerate(zip(self.layout, self.parts, strict=True)):
            if len(part) > len(own):
                a = self.mesh.all_gather(a, part[len(own) :], dim)
        return a


def append_wrapping(cache: np.ndarray, new: np.ndarray, axis: int, end: int) -> np.ndarray:
    """`new` takes the places before `end`, place p the slot p modulo those along `axis`."""
    slots, entries = cache.shape[axis], new.shape[axis]
    entry = (np.arange(slots) - (end - entries)) % slots
    taken = np.take(new, np.clip(entry, 0, entries - 1), axis=axis)
    mine = (entry < entries).reshape([slots if i == axis else 1 for i in range(cache.ndim)])
    return np.where(mine, taken, cache)


def project(a: np.ndarray, read: str, parts: Sequence[tuple[np.ndarray, str, str]]) -> list[np.ndarray]:
    """Several einsums that read `a` and sum over the same of its letters, as one matmul.

    A part: the weights, their letters, those of the result. Axes in front of all letters are batches.
    """
    summed = [x for x in read if x in parts[0][1]]
    kept = [x for x in read if x not in summed]
    rows = _ordered(a, read, kept + summed)
    size = dict(zip(read, a.shape[a.ndim - len(read) :], strict=True))
    front, depth = a.shape[: a.ndim - len(read)], math.prod(size[x] for x in summed)
    columns, shapes = [], []
    for weight, letters, _ in parts:
        wide = _ordered(weight, letters, summed + [x for x in letters if x not in summed])
        shapes.append(wide.shape[len(front) + len(summed) :])
        columns.append(wide.reshape(*front, depth, -1))
    product = rows.reshape(*front, -1, depth) @ np.concatenate(columns, axis=-1)
    ends = np.cumsum([column.shape[-1] for column in columns])[:-1]
    results = []
    for piece, shape, (_, letters, result) in zip(np.split(product, ends, axis=-1), shapes, parts, strict=True):
        made = kept + [x for x in letters if x not in summed]
        results.append(_ordered(piece.reshape(*front, *(size[x] for x in kept), *shape), made, result))
    return results


def _ordered(a: np.ndarray, letters: Sequence[str], order: Sequence[str]) -> np.ndarray:
    """The last axes of `a`, called by `letters`, in another order."""
    front = a.ndim - len(letters)
    return a.transpose(*range(front), *(front + list(letters).index(x) for x in order))


def rotate(a: np.ndarray, axis: int) -> np.ndarray:
    """Pairs along `axis` turned by a right angle: (a, b) becomes (-b, a)."""
    pairs = np.moveaxis(a, axis, -1).reshape(*np.moveaxis(a, axis, -1).shape[:-1], -1, 2)
    turned = np.stack([-pairs[..., 1], pairs[..., 0]], axis=-1)
    return np.moveaxis(turned.reshape(*turned.shape[:-2], -1), -1, axis)


def top_k(keys: np.ndarray, picked: np.ndarray, rank: int, count: int) -> np.ndarray:
    """Entries of `picked` at the `count` largest of `keys` over the last `rank` axes, the largest first.

    `picked` broadcasts to `keys`. Of equal keys the first comes first.
    """
    rest = keys.shape[: keys.ndim - rank]
    order = np.argsort(-keys.reshape(*rest, -1), axis=-1, kind="stable")[..., :count]
    return np.take_along_axis(np.broadcast_to(picked, keys.shape).reshape(*rest, -1), order, axis=-1)


def choose(keys: np.ndarray, rank: int, count: int) -> np.ndarray:
    """1 at the `count` largest of `keys` over the last `rank` axes, 0 elsewhere. Of equal keys the first is kept, and
    none of minus infinity, of which there may be so many that fewer are kept."""
    rest = keys.shape[: keys.ndim - rank]
    flat = keys.reshape(*rest, -1)
    kept = np.zeros(flat.shape)
    np.put_along_axis(kept, np.argsort(-flat, axis=-1, kind="stable")[..., :count], 1.0, axis=-1)
    return np.where(keys == -np.inf, 0.0, kept.reshape(keys.shape))


def erf(a: np.ndarray) -> np.ndarray:
    """The error function, element by element: NumPy has none of its own."""
    result: np.ndarray = np.vectorize(math.erf, otypes=[float])(a)
    return result


def sigmoid(a: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-a)), without overflow."""
    return 0.5 * (1.0 + np.tanh(0.5 * a))


def silu(a: np.ndarray) -> np.ndarray:
    """a * sigmoid(a)."""
    result: np.ndarray = a * sigmoid(a)
    return result


def gelu(a: np.ndarray) -> np.ndarray:
    """The Gaussian error linear unit in its tanh approximation."""
    inner = math.sqrt(2.0 / math.pi) * (a + 0.044715 * a * a * a)
    result: np.ndarray = 0.5 * a * (1.0 + np.tanh(inner))
    return result


def gelu_exact(a: np.ndarray) -> np.ndarray:
    """The Gaussian error linear unit; 1 + erf(x) is taken as erfc(-x), which keeps its digits far below zero."""
    result: np.ndarray = 0.5 * a * np.vectorize(math.erfc, otypes=[float])(a * -math.sqrt(0.5))
    return result


def difference(actual: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference, relative to the largest finite element expected.

    NaN is equal to NaN and infinity to itself; to anything else the difference is infinite.
    """
    alike = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
    apart = np.where(alike, 0.0, np.abs(actual - expected))
    scale = np.abs(expected[np.isfinite(expected)]).max(initial=0.0)
    return float(np.where(np.isnan(apart), np.inf, apart).max(initial=0.0) / (scale or 1.0))
