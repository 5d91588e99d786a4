"""Every collective that a plan might use, priced, and those that no cheapest plan needs left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ...cost.network import Network
from ...cost.ops import busiest
from ...ir.collective import CollectiveKind
from ...ir.program import Program
from ...ir.record import record
from ..ilp.solver import Settings
from ..layouts.reshard import KINDS, Arcs, held_bytes, needed, price_arcs, worthwhile
from ..layouts.space import Array
from .combinable import ALONE, Groups, find_groups
from .graph import Graph, Tensor
from .split_sendings import split_sendings
from .steiner import Distances
from .tree_costs import TreeCosts, Trees

Floats = NDArray[np.float64]


@record(eq=False)
class Moves:
    """Every collective of each tensor as arcs, with its seconds over all repetitions when it runs
    alone; None for a tensor that nothing reads. `groups`: those that may run as one, None where that
    saves nothing."""

    arcs: Sequence[Arcs | None]
    seconds: Sequence[Floats]
    groups: Groups | None

    def trees(self, graph: Graph, settings: Settings, lean: bool = False) -> Trees:
        """The cheapest trees over every collective there is; of those of one price, the fewest steps, or
        if `lean` those that hold little at once."""

        def near(t: int) -> Distances | None:
            arcs, space = self.arcs[t], graph.tensors[t].space.space
            if arcs is None:
                return None
            held = 1 / space.shards[arcs.source] + 1 / space.shards[arcs.target]
            return Distances(arcs, _tied(self.seconds[t], (held / 2) ** 4 if lean else None))

        return Trees(graph.tensors, near, self.groups, settings)

    @property
    def silent(self) -> Moves:
        """Those that send nothing."""
        free = [np.flatnonzero(seconds == 0) for seconds in self.seconds]
        arcs = [None if own is None else own.take(some) for own, some in zip(self.arcs, free, strict=True)]
        return Moves(arcs, [np.zeros(len(some)) for some in free], None)

    def prices(self, paid: TreeCosts) -> list[float]:
        """What each tensor's collectives cost, the latency of a group at the first that is in it."""
        out: list[float] = []
        seen: set[int] = set()
        for seconds, arcs, groups in zip(self.seconds, paid.arcs, paid.groups, strict=True):
            price = float(seconds[list(arcs)].sum())
            if self.groups is not None:
                price -= sum(float(self.groups.latency_s[g]) for g in groups if g in seen)
            seen |= {g for g in groups if g != ALONE}
            out.append(price)
        return out

    def needed(self, graph: Graph) -> list[Array | None]:
        """For each tensor the arcs that a cheapest plan may need."""
        out: list[Array | None] = []
        alike: dict[tuple[int, bytes, bytes, bytes], Array] = {}
        for t, (tensor, arcs, seconds) in enumerate(zip(graph.tensors, self.arcs, self.seconds, strict=True)):
            if arcs is None:
                out.append(None)
                continue
            space = tensor.space.space
            of = None if self.groups is None else self.groups.of[t]
            saved = None if self.groups is None or of is None else np.where(of >= 0, self.groups.latency_s[of], 0.0)
            key = (
                id(arcs),
                seconds.tobytes(),
                b"" if of is None else _numbered(of),
                b"" if saved is None else saved.tobytes(),
            )
            if key not in alike:
                alike[key] = np.flatnonzero(needed(space, arcs, _in_turn(arcs, _tied(seconds)), of, saved))
            out.append(alike[key])
        return out


def all_moves(programs: Mapping[str, Program], graph: Graph, network: Network) -> Moves:
    """Every collective of every tensor of `graph`, priced. `programs`: what each of its phases runs."""
    arcs: list[Arcs | None] = []
    seconds: list[Floats] = []
    held: list[Floats] = []
    alike: dict[object, tuple[Arcs, Floats, Floats]] = {}
    for tensor in graph.tensors:
        if not tensor.uses:
            arcs.append(None)
            seconds.append(np.zeros(0))
            held.append(np.zeros(0))
            continue
        space = tensor.space.space
        loads = _loads(tensor)
        key = id(space), tensor.joins, tensor.total_bytes, None if loads is None else loads.tobytes()
        if key not in alike:
            own = worthwhile(space, tensor.joins)
            price = price_arcs(space, own, tensor.total_bytes, network.collective_s, loads)
            alike[key] = own, price, held_bytes(space, own, tensor.total_bytes, loads)[0]
        own, price, before = alike[key]
        arcs.append(own)
        seconds.append(tensor.times * price)
        held.append(before)
    arcs, seconds, groups = split_sendings(arcs, seconds, held, *find_groups(programs, graph, arcs, network))
    return Moves(arcs, seconds, groups if len(groups.latency_s) else None)


def _loads(tensor: Tensor) -> Floats | None:
    """In each layout of a chosen value how many times the mean of its entries the chip has that has most; None where
    all chips have as many."""
    if not any(one.skew != 1 for one in tensor.value.chosen):
        return None
    ways = {tensor.value.dims[dim]: tensor.space.space.ways[:, slot] for slot, dim in enumerate(tensor.space.dims)}
    share = {dim: 1 / into for dim, into in ways.items()}
    found = busiest(tensor.value.chosen, lambda dim: share.get(dim, 1.0), lambda _: 1.0)
    return np.broadcast_to(np.asarray(found, dtype=np.float64), (len(tensor.space),))


def _numbered(of: Array) -> bytes:
    """Which arcs are of one group, whatever the groups are called: alike for all written-out copies of a block."""
    number = of - ALONE
    first = np.full(
        int(number.max(initial=0)) + 1, len(of)
    )  # where each group comes first; of what is written last stays
    first[number[::-1]] = np.arange(len(of))[::-1]
    place = np.empty(len(first), dtype=np.int64)
    place[np.argsort(first, kind="stable")] = np.arange(len(first))
    return np.where(of == ALONE, ALONE, place[number]).tobytes()


def _in_turn(arcs: Arcs, tied: Floats) -> Floats:
    """Prices by which slices of one axis in turn win against one over all of them, which is as free: it holds less, and
    is taken for that, but adds no price that a plan may have."""
    slices = arcs.kind == KINDS.index(CollectiveKind.SLICE)
    return np.where(slices, tied * (2 * np.bitwise_count(arcs.axes) - 1), tied)


def _tied(seconds: Floats, weight: Floats | None = None) -> Floats:
    """Prices by which fewer collectives win among equal ones, or those of less `weight` (at most 1):
    a step counts far less than the difference of any two prices."""
    least = float(seconds[seconds > 0].min(initial=np.inf))
    step = np.where(seconds > 0, 1e-7, 1e-9) * (1.0 if weight is None else weight + 1e-3)
    return seconds + (least if np.isfinite(least) else 1.0) * step
