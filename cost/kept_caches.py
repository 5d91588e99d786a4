"""Caches that are read as they were, beside being appended to: XLA copies those, and nothing here counts it.

An append writes its entries into the cache that a program is handed, if nothing has to read it as it was from then on.
XLA knows that of what the new entries are made of alone: of all else that reads the cache it does not know whether it
runs before, in whatever order it is written, and so it copies the cache (JAX 0.10.2 on CPUs: of a cache of 16.8 MB,
that a product reads before its append, 16.8 MB more in temporaries; none where the entries are made of the product).
In a loop over repetitions it copies the caches of all of them, in each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from ..ir.dataflow import makes, reads, regions
from ..ir.program import Append, Repeat, Stored, walk
from ..ir.spmd import Compute, SpmdProgram, Step
from ..ir.streams import copies_held
from .estimate import local_bytes


def kept_bytes(spmd: SpmdProgram) -> dict[str, Fraction]:
    """The caches that are copied, since something reads them as they were, by name; and what a copy of one takes on a
    chip, of all repetitions, in bytes."""
    kept = {name for region, _ in regions(spmd.body) for name in _kept(region.items)}
    values = spmd.table()
    return {
        placed.item.value: copies_held(placed.item, placed.repeats, spmd.micro_batches)
        * local_bytes(values[placed.item.value], spmd)
        for placed in walk(spmd.body)
        if isinstance(placed.item, Stored) and placed.item.value in kept
    }


def _kept(items: Sequence[Step | Repeat[Step]]) -> set[str]:
    """The caches that some of these items append to and others read that nothing appended is made of."""
    place = {name: n for n, item in enumerate(items) for name in makes(item)}
    found: set[str] = set()
    for n, item in enumerate(items):
        if isinstance(item, Compute) and isinstance(item.op, Append):
            before = _before(n, items, place)
            if any(m not in before and item.op.cache in reads(other) for m, other in enumerate(items)):
                found.add(item.op.cache)
    return found


def _before(n: int, items: Sequence[Step | Repeat[Step]], place: Mapping[str, int]) -> set[int]:
    """An item, and those that what it reads is made of."""
    found: set[int] = set()
    waiting = [n]
    while waiting:
        m = waiting.pop()
        if m not in found:
            found.add(m)
            waiting += [place[name] for name in reads(items[m]) if name in place]
    return found
