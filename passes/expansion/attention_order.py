"""Attention in a row: what its product reads is made before its maximum, and what has nothing to do with it afterwards.

Where scores are many, attention runs in blocks, all of it where its maximum is made (cost.attention): the values that
its scores weigh have to be there by then. Latent attention that is multiplied out makes them of what it caches, and a
model may name them after its scores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ...cost.attention import Attention, perhaps
from ...ir.dataflow import makes, reads
from ...ir.mesh import Mesh
from ...ir.program import Append, Op, Program, Region, Repeat
from ...ir.spmd import unsharded

Item = Op | Repeat[Op]


def in_a_row(program: Program, phase: str) -> Program:
    """The program with each attention that may run in blocks in a row; the program itself where all are."""
    found = {one.largest.result: one for one in perhaps(unsharded(program, phase, Mesh((("x", 1),))))}
    body = _region(program.body, found)
    return program if body is program.body else replace(program, body=body)


def _region(region: Region[Op], found: Mapping[str, Attention]) -> Region[Op]:
    items: list[Item] = []
    for item in region.items:
        if isinstance(item, Repeat) and (body := _region(item.body, found)) is not item.body:
            item = replace(item, body=body)
        items.append(item)
    for one in (found[name] for item in region.items for name in makes(item) if name in found):
        items = _row(items, one)
    same = all(new is old for new, old in zip(items, region.items, strict=True))
    return region if same else replace(region, items=tuple(items))


def _row(items: list[Item], one: Attention) -> list[Item]:
    """Items with an attention in a row, or as they are where that would read a cache as it is no more."""
    place = {name: n for n, item in enumerate(items) for name in makes(item)}
    first, last = place[one.largest.result], place[one.product.result]
    needed, waits = {last}, {first}
    for n in range(last, first - 1, -1):
        if n in needed:
            needed |= {place[name] for name in reads(items[n]) if place.get(name, -1) >= first}
    for n in range(first, last + 1):
        if any(place.get(name) in waits for name in reads(items[n])):
            waits.add(n)
    if _overwrites(items[first : last + 1]):
        return items
    own = sorted(needed & waits)
    early = sorted(needed - waits)
    late = [n for n in range(first, last) if n not in needed]
    return [*items[:first], *(items[n] for n in (*early, *own, *late)), *items[last + 1 :]]


def _overwrites(items: Sequence[Item]) -> bool:
    """Whether some of the items write a cache that another reads as it was."""
    written = {item.cache for item in items if isinstance(item, Append)}
    return any(written & set(reads(item)) for item in items if not isinstance(item, Append))
