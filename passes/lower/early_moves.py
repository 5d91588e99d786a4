"""What attention in blocks reads is moved before its maximum is made, where all of it runs (cost.attention)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ...cost.attention import waiting
from ...ir.dataflow import defined, makes
from ...ir.program import Region, Repeat
from ...ir.spmd import Move, SpmdProgram, Step


def move_early(spmd: SpmdProgram) -> SpmdProgram:
    """The program with the collectives that attentions would wait for right before their maxima; values, steps and what
    they take stay as they are."""
    late = waiting(spmd)
    if not late:
        return spmd
    body, table = _region(spmd.body, late), spmd.table()
    return replace(spmd, body=body, values=tuple(table[name] for name in defined(body)))


def _region(region: Region[Step], late: Mapping[str, frozenset[str]]) -> Region[Step]:
    items: list[Step | Repeat[Step]] = []
    for item in region.items:
        items.append(replace(item, body=_region(item.body, late)) if isinstance(item, Repeat) else item)
    for largest in (name for item in region.items for name in makes(item) if name in late):
        items = _early(items, largest, late[largest])
    return replace(region, items=tuple(items))


def _early(items: list[Step | Repeat[Step]], largest: str, late: frozenset[str]) -> list[Step | Repeat[Step]]:
    """Items with the moves that make what is `late` before a maximum; as they are where other steps make it."""
    place = {name: n for n, item in enumerate(items) for name in makes(item)}
    now, chain, names = place[largest], set[int](), set(late)
    while names:
        n = place[names.pop()]
        item = items[n]
        if not isinstance(item, Move):
            return items
        chain.add(n)
        if place.get(item.operand, -1) > now:
            names.add(item.operand)
    others = [item for n, item in enumerate(items[now:], now) if n not in chain]
    return [*items[:now], *(items[n] for n in sorted(chain)), *others]
