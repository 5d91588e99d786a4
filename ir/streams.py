"""How what is streamed lies in the memory of the chips' host, and what comes to a chip, stays there, and goes back.

Each chip has a part of its own there: of a tensor that several chips hold alike these split a dim further, as far as
dims divide, and gather what they fetched. A chip sends back the entries of a cache among which its new ones are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from .dataflow import appends
from .layout import Layout, most_ways
from .program import Append, Item, Kind, Placed, Program, Region, Repeat, Stored, Streamed, stored_in
from .record import record
from .spmd import SpmdProgram, SpmdValue, Step

AnyProgram = TypeVar("AnyProgram", Program, SpmdProgram)


@record
class HostTensor:
    """A stored tensor that is streamed, in a repeat.

    `times`: its repetitions, `streamed` of them and so many ahead; `repeats`: what stands around it, outermost first,
    of which repetitions of the first come as wholes, each with `inner` of the tensor. `parts`: its layout in the host's
    memory, of which that on the chips is gathered; `most`: how many parts of one size axes could divide it into.
    `append`: what writes it, of a cache.
    """

    value: SpmdValue
    times: int
    repeats: tuple[str, ...]
    inner: int
    streamed: Streamed
    parts: Layout
    most: int
    append: Append | None
    kind: Kind

    @property
    def layers(self) -> int:
        """How many repetitions of the outermost repeat are streamed."""
        return self.streamed.count // self.inner

    @property
    def gathers(self) -> Iterator[tuple[int, tuple[str, ...]]]:
        """The dims that chips gather once their parts are there, and over which axes."""
        for dim, (own, parts) in enumerate(zip(self.value.layout.dims, self.parts.dims, strict=True)):
            if len(parts) > len(own):
                yield dim, parts[len(own) :]

    @property
    def gathered_axes(self) -> tuple[str, ...]:
        """The axes of all of these."""
        return tuple(axis for _, axes in self.gathers for axis in axes)


def host_tensors(spmd: SpmdProgram) -> dict[str, HostTensor]:
    """What is streamed, by name, in program order."""
    values, appended = spmd.table(), appends(spmd)
    found = {}
    for one, placed in stored_in(spmd.body).items():
        if one.streamed is not None:
            found[one.value] = host_tensor(spmd, one, placed, values[one.value], appended.get(one.value))
    return found


def host_tensor(
    spmd: SpmdProgram, stored: Stored, placed: Placed[Step], value: SpmdValue, append: Append | None
) -> HostTensor:
    """A tensor that is streamed, with the layout that `value` has."""
    assert stored.streamed is not None, "it is streamed"
    parts = _parts(spmd, value, {*stored.whole, *([append.target] if append else [])}, stored)
    around = tuple(repeat.name for repeat in placed.repeats)
    inner = math.prod(repeat.count for repeat in placed.repeats[1:])
    most = most_ways(stored.shape(value.dims, dict(spmd.sizes)), spmd.mesh)
    return HostTensor(value, placed.times, around, inner, stored.streamed, parts, most, append, stored.kind)


def _parts(spmd: SpmdProgram, value: SpmdValue, whole: set[str], stored: Stored) -> Layout:
    """The layout of what each chip fetches: along each axis that splits nothing a dim is split, the one of which a
    chip holds most, of those that divide; of groups a part has whole ones."""
    sizes, mesh, layout = dict(spmd.sizes), spmd.mesh, value.layout
    for axis, ways in mesh.axes:
        local = layout.local_shape([sizes[d] for d in value.dims], mesh)
        divided = layout.local_shape(stored.shape(value.dims, sizes), mesh)
        free = [n for n, d in enumerate(value.dims) if d not in whole and divided[n] % ways == 0]
        if ways > 1 and axis not in layout.split_axes and free:
            dim = max(free, key=lambda n: local[n])
            layout = layout.replace(dim, (*layout.dims[dim], axis))
    return layout


def is_filled_anew(append: Append, sizes: Mapping[str, int]) -> bool:
    """Whether a call writes all of a cache, so that nothing of it is read before."""
    return sizes[append.source] >= sizes[append.target]


def wraps(append: Append, spmd: SpmdProgram) -> bool:
    """Whether new entries may begin at the last places of a cache and end at its first ones."""
    return append.context is not None and dict(spmd.sizes)[append.source] > 1


def places_sent_back(append: Append, value: SpmdValue, spmd: SpmdProgram) -> tuple[int, int]:
    """How many places of a cache a chip sends back after a call, and how many it has: as many as are new, if it has as
    many; all of those that may come round to the first."""
    sizes = dict(spmd.sizes)
    held = sizes[append.target] // spmd.mesh.size(*value.axes(append.target))
    return held if wraps(append, spmd) else min(sizes[append.source], held), held


def unstreamed(spmd: SpmdProgram) -> SpmdProgram:
    """The program with all that is stored on the chips."""
    return restreamed(spmd, {})


def restreamed(program: AnyProgram, streamed: Mapping[str, Streamed]) -> AnyProgram:
    """The program with those tensors streamed that are named, as is said of each, and all others on the chips."""
    return replace(program, body=_restreamed(program.body, streamed))


def _restreamed(region: Region[Any], streamed: Mapping[str, Streamed]) -> Region[Any]:
    items = (replace(i, body=_restreamed(i.body, streamed)) if isinstance(i, Repeat) else i for i in region.items)
    return Region(tuple(replace(one, streamed=streamed.get(one.value)) for one in region.stored), tuple(items))


def copies_held(stored: Stored, repeats: Sequence[Repeat[Item]], micro_batches: int) -> int:
    """How many copies of a stored tensor in `repeats`, outermost first, a chip has room for: one for each repetition
    that is not streamed, of a cache one for each of the batches that take turns; and of those that are streamed, which
    come by repetitions of the outermost repeat, those of one and of as many as are ahead."""
    counts = [repeat.count for repeat in repeats]
    sets = sets_of(stored, micro_batches)
    if stored.streamed is None:
        return math.prod(counts) * sets
    count = stored.streamed.count
    return (math.prod(counts) - count) * sets + min(count, most_there(stored.streamed, math.prod(counts[1:])))


def most_there(streamed: Streamed, inner: int) -> int:
    """How many of what is streamed are there at once at the most, each repetition with `inner` of it: those of one, and
    of as many as are ahead."""
    return (1 + streamed.ahead) * inner


def sets_of(stored: Stored, micro_batches: int) -> int:
    """How many there are of one repetition of a stored tensor: of a cache one for each batch that takes turns."""
    return micro_batches if stored.kind is Kind.CACHE else 1
