"""Collectives that may run as one, told apart by the way in which their bytes go: an arc for each that may be quickest.

A measured collective takes the quickest of a few protocols, each with a start and a rate. What joins takes what one
collective of all its bytes does, which is no sum over its parts. By one protocol it is: a group that pays the start
with its latency, and arcs that pay for their bytes at its rate. So each group becomes one for each protocol, and each
arc one for each that may be the quickest for what it may be part of. A cheapest plan has the same protocol for all
that joins: two collectives in its place would pay two latencies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ...cost.sendings import Sending, from_bytes
from ...ir.record import record
from ..layouts.reshard import QUICKEST, Arcs
from ..layouts.space import Array
from .combinable import ALONE, Groups, groups_in

Floats = NDArray[np.float64]


@record(eq=False)
class _Ways:
    """The ways of each group, from how many bytes on and until how many each is the quickest. Of shape [groups, ways];
    those that a group does not have are so for no bytes."""

    start_s: Floats
    s_per_byte: Floats
    begin: Floats
    end: Floats
    several: NDArray[np.bool_]  # of each group


def split_sendings(
    arcs: Sequence[Arcs | None],
    seconds: Sequence[Floats],
    held_bytes: Sequence[Floats],
    groups: Groups,
    sendings: Sequence[tuple[Sending, ...]],
) -> tuple[list[Arcs | None], list[Floats], Groups]:
    """Arcs of each tensor with their seconds when they run alone, and their groups, told apart by the ways `sendings`
    of each group. `held_bytes`: what a chip holds before each arc.

    What joins has at most the bytes that all tensors of its group have in their largest arcs: a way that is not the
    quickest for any number of bytes from those of an arc to these has no arc.
    """
    ways = _ways_of(sendings)
    if not ways.several.any():
        return list(arcs), list(seconds), groups
    largest = [None if of is None else _largest(of, held) for of, held in zip(groups.of, held_bytes, strict=True)]
    total = np.zeros(len(groups.latency_s))
    for own in largest:
        if own is not None:
            total[own[0]] += own[1]
    count = ways.start_s.shape[1]
    latency_s = groups.latency_s[:, None] + ways.start_s
    known: dict[tuple[int, bytes], Arcs] = {}
    new_arcs: list[Arcs | None] = []
    new_seconds: list[Floats] = []
    of_ways: list[Array | None] = []
    for one, price, held, of, own in zip(arcs, seconds, held_bytes, groups.of, largest, strict=True):
        if one is None or of is None or own is None or not ways.several[own[0]].any():
            new_arcs.append(one)
            new_seconds.append(price)
            of_ways.append(None if of is None else np.where(of >= 0, of * count, ALONE))
            continue
        most = held.copy()
        joins = of >= 0
        others = total[own[0]] - own[1]
        most[joins] += others[np.searchsorted(own[0], of[joins])]
        keep = (ways.begin[of] <= most[:, None]) & (held[:, None] < ways.end[of])
        keep[~joins] = np.arange(count) == 0
        arc, way = np.nonzero(keep)
        told = joins[arc] & ways.several[of[arc]]
        sending = np.where(told, way, QUICKEST)
        key = id(one), np.stack([arc, sending]).tobytes()
        if key not in known:
            known[key] = one.take(arc).sent(sending)
        own_of, own_held = of[arc], held[arc]
        alone = latency_s[own_of, way] + ways.s_per_byte[own_of, way] * own_held
        is_quickest = (ways.begin[own_of, way] <= own_held) & (own_held < ways.end[own_of, way])
        new_arcs.append(known[key])
        new_seconds.append(np.where(told & ~is_quickest, alone, price[arc]))
        of_ways.append(np.where(joins[arc], own_of * count + way, ALONE))
    return new_arcs, new_seconds, _numbered(groups, of_ways, latency_s)


def _ways_of(sendings: Sequence[tuple[Sending, ...]]) -> _Ways:
    """The ways of groups; of one that was not measured one, which starts with nothing."""
    shape = len(sendings), max((len(some) for some in sendings), default=1) or 1
    start_s, s_per_byte = np.zeros(shape), np.zeros(shape)
    begin = np.full((shape[0], shape[1] + 1), np.inf)
    begin[:, 0] = 0.0
    for g, some in enumerate(sendings):
        start_s[g, : len(some)] = [each.start_s for each in some]
        s_per_byte[g, : len(some)] = [each.s_per_byte for each in some]
        begin[g, : len(some)] = from_bytes(some)[: len(some)]
    several = np.array([len(some) > 1 for some in sendings], dtype=bool)
    return _Ways(start_s, s_per_byte, begin[:, :-1], begin[:, 1:], several)


def _largest(of: Array, held: Floats) -> tuple[Array, Floats]:
    """The groups of a tensor's arcs, and the bytes of its largest arc in each."""
    joins = of >= 0
    own, number = np.unique(of[joins], return_inverse=True)
    most = np.zeros(len(own))
    np.maximum.at(most, number.reshape(-1), held[joins])
    return own, most


def _numbered(groups: Groups, of_ways: Sequence[Array | None], latency_s: Floats) -> Groups:
    """Groups by those that arcs have, each a group and a way; there is none for a way that costs nothing to start."""
    count = latency_s.shape[1]
    every = np.concatenate([np.zeros(0, dtype=np.int64), *(own for own in of_ways if own is not None)])
    used = np.array(groups_in(every), dtype=np.int64)
    used = used[latency_s.reshape(-1)[used] > 0]
    number = np.full(latency_s.size + 1, ALONE)  # the last for ALONE
    number[used] = np.arange(len(used))
    of = [None if own is None else number[own] for own in of_ways]
    first = np.searchsorted(used // count, used // count)
    knot = [groups.knot[g] for g in (used // count).tolist()]
    return replace(groups, latency_s=latency_s.reshape(-1)[used], of=of, knot=knot, kept=frozenset(knot), lead=first)
