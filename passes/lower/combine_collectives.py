"""Steps that run as one, put side by side: collectives that were priced as one, projections of one value.

Projections that read one value, in the layout in which they all read it, share how it is split, so
the work of each is to its bytes as that of all: as one matmul they cost what they cost apart, by
every rule of a roofline, and the value that they read counts once either way. That is why they are joined here and
need no price of their own. Projections
by gathered weights are left apart: all the copies would have to be held at once.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

from ...ir.dataflow import defined, makes, reads
from ...ir.program import Einsum, Kind, Region, Repeat, stored_in
from ...ir.spmd import Compute, Move, SpmdProgram, Step
from ...ir.verify.fused import projection

Item = Step | Repeat[Step]


def join_steps(spmd: SpmdProgram, groups: Mapping[str, int], apart: bool = False) -> SpmdProgram:
    """The program with steps that run as one side by side, each region in an order near to what it was.

    `groups` numbers the collectives that were priced as part of one, by their results. `apart`: no
    two projections are joined.
    """
    table = spmd.table()
    projected = () if apart else stored_in(spmd.body, Kind.PARAM)
    body = _region(spmd.body, groups, {one.value: str(table[one.value].dtype) for one in projected})
    return replace(spmd, body=body, values=tuple(table[name] for name in defined(body)))


def _region(region: Region[Step], groups: Mapping[str, int], weights: Mapping[str, str]) -> Region[Step]:
    runs: dict[Hashable, list[Item]] = {}
    for number, item in enumerate(region.items):
        if isinstance(item, Repeat):
            item = replace(item, body=_region(item.body, groups, weights))
        runs.setdefault(_together(item, groups, weights) or number, []).append(item)
    items: list[Item] = []
    before = {_key(item): n for n, item in enumerate(region.items)}
    for run in _in_order(list(runs.values()), before):
        items.append(run[0])
        items += [replace(item, joined=True) for item in run[1:] if not isinstance(item, Repeat)]
    return Region(region.stored, tuple(items))


def _together(item: Item, groups: Mapping[str, int], weights: Mapping[str, str]) -> Hashable | None:
    """What an item has in common with those that it runs as one with; None for one that runs alone."""
    match item:
        case Move(result) if result in groups:
            return "collective", groups[result]
        case Compute(Einsum(_, (_, weight)) as op) if weight in weights and (read := projection(op)):
            return "matmul", read, weights[weight]
    return None


def _in_order(runs: Sequence[Sequence[Item]], number: Mapping[str, int]) -> list[Sequence[Item]]:
    """The runs, each after those that it reads from; of those that could be next, the one that was
    first. What reads a value that is made earlier than it was, as one of a run, follows it as early as it can, for what
    waits to be read has to be held; what is made of that in turn stays where it was. `number` counts the items by what
    they make, as they stood."""
    makers = {name: n for n, run in enumerate(runs) for item in run for name in makes(item)}
    needed = [{name for item in run for name in reads(item) if name in makers} for run in runs]
    after: list[list[int]] = [[] for _ in runs]
    waits = []
    for n, names in enumerate(needed):
        before = {makers[name] for name in names} - {n}
        waits.append(len(before))
        for m in before:
            after[m].append(n)
    first = [number[_key(run[0])] for run in runs]
    place, early = list(first), [len(run) > 1 for run in runs]
    ready = [(first[n], first[n], n) for n, count in enumerate(waits) if not count]
    heapq.heapify(ready)
    out = []
    while ready:
        n = heapq.heappop(ready)[2]
        out.append(runs[n])
        for m in after[n]:
            waits[m] -= 1
            if not waits[m]:
                if any(early[makers[name]] and place[makers[name]] < number.get(name, 0) for name in needed[m]):
                    place[m] = min(first[m], max(place[makers[name]] for name in needed[m]))
                    early[m] = early[m] or isinstance(runs[m][0], Move)
                heapq.heappush(ready, (place[m], first[m], m))
    assert len(out) == len(runs), "steps that run as one do not wait for each other"
    return out


def _key(item: Item) -> str:
    return f"repeat {item.name}" if isinstance(item, Repeat) else item.result
