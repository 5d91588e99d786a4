"""Collectives that may run as one: which values are ready together, and what combining them saves.

Every value of a region has a level, higher than those of all that it is made from. Values of one
level do not depend on each other, so collectives of one kind over the same axes on them may be one:
their bytes add and the latency is paid once. On chips with measured collectives so is the start of the
protocol for large messages: what runs as one has a group for each of its protocols (`split_sendings`).
Projections of one value are ready as early as they can be, all
together; anything else as late as its readers allow, and so what attention and the feed-forward
project back is ready together as well.

Parameters and caches are left alone: combined, their gathered copies would all be held at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ...cost.network import Network
from ...cost.sendings import Sending
from ...ir.collective import CollectiveKind, sent_as
from ...ir.dataflow import makes, reads
from ...ir.layout import Reduction
from ...ir.program import Einsum, Kind, Op, Program, Region, Repeat
from ...ir.record import record
from ..layouts.reshard import KINDS, Arcs
from ..layouts.space import PARTIAL_MAX, PARTIAL_SUM, Array, Mask, distinct
from .graph import Graph, Handover, Tensor

Floats = NDArray[np.float64]
Knot = tuple[str, int]  # groups of a phase that hang together, by the values that may be in several, with a number
Combining = tuple[frozenset[Knot], ...]  # of each of these sets a group runs several collectives as one
MOVING = (CollectiveKind.ALL_TO_ALL, CollectiveKind.ALL_GATHER)  # that do not reduce
COMBINED = (CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_REDUCE, *MOVING)  # in the order in which they follow
MOVING_KINDS = tuple(map(KINDS.index, MOVING))
ALONE = -1  # the group of an arc that is combined with no other
USES = 5  # collectives of a tensor with more uses are not combined


@record
class Key:
    """What collectives have in common that may be one: where they are ready, their kind, whether
    they take a maximum, their axes (as a bit mask), the type of what they carry; and of those that do not
    reduce, over which axes what they move is still partial (a bit mask). Sorted by it, those that follow
    each other on one value stand in that order: what moves before it is reduced goes first. Were such moves
    one with those of reduced values, one value could wait for the other both ways.
    """

    phase: str
    region: int
    level: int
    kind: int
    maximum: bool
    axes: int
    dtype: str
    partial: int

    @property
    def place(self) -> tuple[str, int, int, int, int, int, int, bool, str]:
        """By what keys are sorted."""
        return (
            self.phase,
            self.region,
            self.level,
            -self.partial.bit_count(),
            self.partial,
            COMBINED.index(KINDS[self.kind]),
            self.axes,
            self.maximum,
            self.dtype,
        )


@record(eq=False)
class Groups:
    """`latency_s[g]`: what a collective of group g takes beside its bytes, over all repetitions.
    `of[t]`: the group of each arc of tensor t, or ALONE; None for a tensor that nothing reads. `knot[g]`: the knot of
    group g; `kept`: those of which there are any. `lead[g]`: the first group of the same collectives, of which there
    is one for each way in which their bytes may go."""

    latency_s: Floats
    of: Sequence[Array | None]
    knot: Sequence[Knot]
    kept: frozenset[Knot]
    lead: Array

    def led(self, of: Array) -> Array:
        """Of arcs with groups the first groups of the same collectives; ALONE where they have none."""
        return np.where(of >= 0, self.lead[of], ALONE) if len(self.lead) else of

    @property
    def phases(self) -> frozenset[str]:
        """The phases in which there are any."""
        return frozenset(phase for phase, _ in self.kept)

    def members(self) -> Floats:
        """1 where a tensor has an arc in a group, else 0. Shape [tensors, groups]."""
        out = np.zeros((len(self.of), len(self.latency_s)))
        for t, of in enumerate(self.of):
            if of is not None:
                out[t, of[of >= 0]] = 1.0
        return out

    def take(self, arcs: Sequence[Array | Mask | None]) -> Groups:
        """The same groups with some of each tensor's arcs."""
        of = [None if o is None or a is None else o[a] for o, a in zip(self.of, arcs, strict=True)]
        return replace(self, of=of)

    def of_knots(self, combining: Combining) -> list[list[int]]:
        """For each of some sets of knots their groups, those that have an arc left."""
        every = sorted({group for of in self.of if of is not None for group in groups_in(of)})
        return [[g for g in every if self.knot[g] in knots] for knots in combining]

    def only(self, knots: frozenset[Knot]) -> Groups | None:
        """Those of some knots alone; None where none are left."""
        if self.kept <= knots:
            return self
        kept = self.kept & knots
        own = np.array([*(knot in kept for knot in self.knot), False])  # the last for ALONE
        of = [o if o is None else np.where(own[o], o, ALONE) for o in self.of]
        return replace(self, of=of, kept=kept) if kept else None


class Merged:
    """Numbers of which some are one."""

    def __init__(self, count: int):
        self.lead = list(range(count))

    def find(self, a: int) -> int:
        """The least of those that are one with a number."""
        while self.lead[a] != a:
            self.lead[a] = self.lead[self.lead[a]]
            a = self.lead[a]
        return a

    def join(self, a: int, b: int) -> None:
        """Let two numbers be one."""
        a, b = self.find(a), self.find(b)
        self.lead[max(a, b)] = min(a, b)

    def numbers(self) -> Array:
        """For each the number of those that are one with it."""
        leads = np.array([self.find(a) for a in range(len(self.lead))], dtype=np.int64)
        return np.asarray(np.unique(leads, return_inverse=True)[1].reshape(-1)) if len(leads) else leads


def find_groups(
    programs: Mapping[str, Program], graph: Graph, arcs: Sequence[Arcs | None], network: Network
) -> tuple[Groups, list[tuple[Sending, ...]]]:
    """The groups of all arcs: those of at least two tensors, whose latency, or the start of a way in which their bytes
    may go, is more than nothing; and these ways of each, over all repetitions. `programs`: what each phase runs."""
    ready = {phase: levels(program) for phase, program in programs.items()}
    keys: list[tuple[list[Key | None], Array] | None] = []
    members: dict[Key, set[int]] = {}
    kinds: dict[int, tuple[list[list[int]], Array]] = {}
    for t, (tensor, own) in enumerate(zip(graph.tensors, arcs, strict=True)):
        moving = isinstance(tensor.phase, Handover)
        level = None if moving else ready[str(tensor.phase)].get(tensor.value.name)
        if own is None or level is None or len(tensor.uses) > USES:
            keys.append(None)
            continue
        if id(own) not in kinds:
            kinds[id(own)] = _kinds(tensor, own)
        different, index = kinds[id(own)]
        found = _keys(tensor, different, *level)
        keys.append((found, index))
        for key in found:
            if key is not None:
                members.setdefault(key, set()).add(t)
    shared = sorted((key for key, some in members.items() if len(some) > 1), key=lambda key: key.place)
    latency_s = cache(network.latency_s)
    latency: dict[Key, float] = {}
    sendings: dict[Key, tuple[Sending, ...]] = {}
    for key in shared:
        tensor = graph.tensors[min(members[key])]
        names = tuple(n for a, n in enumerate(tensor.space.space.axis_names) if key.axes >> a & 1)
        kind = sent_as(KINDS[key.kind], Reduction.MAX if key.maximum else Reduction.SUM)
        ways = tuple(each.times(tensor.times) for each in network.sendings(kind, names))
        once_s = tensor.times * latency_s(kind, names)
        if once_s > 0 or any(each.start_s > 0 for each in ways):
            latency[key], sendings[key] = once_s, ways
    number = {key: g for g, key in enumerate(latency)}
    of: list[Array | None] = []
    for own, keyed in zip(arcs, keys, strict=True):
        if own is None:
            of.append(None)
        elif keyed is None:
            of.append(np.full(len(own), ALONE))
        else:
            found, index = keyed
            numbers = [ALONE if key is None else number.get(key, ALONE) for key in found]
            of.append(np.array(numbers, dtype=np.int64)[index])
    knot = find_knots([key.phase for key in number], of)
    once = np.array(list(latency.values()), dtype=np.float64)
    return Groups(once, of, knot, frozenset(knot), np.arange(len(knot))), list(sendings.values())


def groups_in(of: Array) -> list[int]:
    """The groups that some arcs are in, in order. Not by `np.unique`, which imports NumPy's masked arrays where it is
    first called, a hundredth of a second."""
    return [int(group) for group in np.flatnonzero(np.bincount(of[of >= 0]))]


def find_knots(phases: Sequence[str], of: Sequence[Array | None]) -> list[Knot]:
    """The knot of each group, of which the `phases` are given, and which the arcs `of` each tensor are in."""
    one = Merged(len(phases))
    for own in of:
        if own is not None:
            for a, b in pairwise(groups_in(own)):
                one.join(a, b)
    return list(zip(phases, one.numbers().tolist(), strict=True))


def _kinds(tensor: Tensor, arcs: Arcs) -> tuple[list[list[int]], Array]:
    """What the arcs of a tensor differ in: kind, axes, whether they take a maximum, what is partial; and which of
    these each arc has."""
    place = tensor.space.space.rows.place
    maximum = (place == PARTIAL_MAX).any(axis=1)[arcs.source]
    waiting = ((place == PARTIAL_SUM) | (place == PARTIAL_MAX)) @ (1 << np.arange(place.shape[1]))
    partial = np.where(np.isin(arcs.kind, MOVING_KINDS), waiting[arcs.source], 0)
    table = np.stack([arcs.kind, arcs.axes, maximum, partial])
    different, index = distinct(table)
    return different.T.tolist(), index


def _keys(tensor: Tensor, kinds: Sequence[Sequence[int]], region: int, level: int) -> list[Key | None]:
    """The key of each of the kinds of arcs that a tensor has."""
    keys: list[Key | None] = []
    for kind, axes, most, waits in kinds:
        key = Key(str(tensor.phase), region, level, kind, bool(most), axes, str(tensor.value.dtype), waits)
        keys.append(key if KINDS[kind] in COMBINED else None)
    return keys


def levels(program: Program) -> dict[str, tuple[int, int]]:
    """For every value whose collectives may be combined the region that it is made in and its level there."""
    out: dict[str, tuple[int, int]] = {}
    regions: list[tuple[Region[Op], tuple[str, ...]]] = [(program.body, ())]
    for number, (region, enter) in enumerate(regions):
        for name, level in _levels(region, enter).items():
            out[name] = number, level
        for item in region.items:
            if isinstance(item, Repeat):
                regions.append((item.body, tuple(c.inside for c in item.carries)))
    return out


def _levels(region: Region[Op], enter: Sequence[str]) -> dict[str, int]:
    inputs = [s.value for s in region.stored if s.kind is Kind.INPUT]
    level = dict.fromkeys((*enter, *inputs), 0)
    for item in region.items:
        at = 1 + max((level.get(name, 0) for name in reads(item)), default=0)
        level |= dict.fromkeys(makes(item), at)
    projected = Counter(n for i in region.items if isinstance(i, Einsum) for n in reads(i) & level.keys())
    end = 1 + max(level.values(), default=0)
    latest = dict.fromkeys(level, end)
    read: set[str] = set()
    for item in reversed(region.items):
        early = isinstance(item, Einsum) and any(projected[n] > 1 for n in reads(item))
        for name in makes(item):
            # What nothing here reads is handed out: it stays where it is.
            if not early and name in read:
                level[name] = latest[name] - 1
        for name in reads(item):
            if name in level:
                latest[name] = min(latest[name], *(level[made] for made in makes(item)), end)
                read.add(name)
    for name in inputs:
        if name in read:
            level[name] = latest[name] - 1
    return level
