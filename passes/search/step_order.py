"""Which steps are sure to run before which others, whatever collectives run as one.

A collective that runs as one with others waits for all that these move, and what reads what it gives waits with it; and
as it stands where the first of them would, what reads what another gives follows that. All other steps keep their order
(`lower.combine_collectives`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property

from ...ir.program import Append, Carry, Stored
from ...ir.record import record
from .combinable import Groups, Knot
from .graph import Graph, Port, Result, Tensor

END = 1 << 60  # later than any node
Joined = Mapping[str, frozenset[str]]  # of each value all with which it may have to do in collectives that run as one


def joined(groups: Groups, graph: Graph, phase: str) -> Joined:
    """The values of a phase whose collectives may run as one, be it by those of others, of a graph whose arcs have such
    `groups`."""
    together: dict[Knot, set[str]] = {}
    for tensor, of in zip(graph.tensors, groups.of, strict=True):
        own = [] if of is None or tensor.phase != phase else of[of >= 0].tolist()
        if own:  # all of one knot
            together.setdefault(groups.knot[own[0]], set()).add(tensor.value.name)
    return {name: frozenset(names) for names in together.values() if len(names) > 1 for name in names}


@record
class StepOrder:
    """The order of the nodes of a phase, of which each `reads` some values, inside `repeats`. `joined`: whose
    collectives may run as one; None where steps may run in any order in which each finds what it reads."""

    graph: Graph
    repeats: Mapping[int, tuple[str, ...]]
    reads: Mapping[int, Sequence[str]]
    joined: Joined | None

    @property
    def kept(self) -> bool:
        """Whether all steps keep their order."""
        return self.joined is not None and not self.joined

    def precedes(self, first: int, second: int) -> bool:
        """Whether one node is sure to run before another."""
        if self.kept or END in (first, second) or min(first, second) < 0:
            return first < second
        if self.joined is None or first in self.earlier[second]:
            return first in self.earlier[second]
        if self.repeats[first] != self.repeats[second]:
            return False
        latest = self._latest[first]
        return latest < self._soonest[second] or (latest < second and self._waited_for(first, second))

    def _waited_for(self, first: int, second: int) -> bool:
        """Whether a node that runs before where it stands is sure to do so after another: a collective that runs as one
        with others has brought what it reads, and waited for what one of these moves. Where others read that as well,
        it may be two of it alone that run as one."""
        for name in self.reads[second]:
            others = (self.joined or {}).get(name, frozenset()) - {name}
            if others and len(self._tensors[name].uses) > 1:
                return False
            for maker in map(self._maker, others):
                if maker is None or (maker != first and first not in self.earlier.get(maker, ())):
                    return False
        return True

    def ends(self, first: int, second: int) -> bool:
        """Whether a node has run before anything that stands right before a later one."""
        return self.kept or (self.joined is not None and self._latest[first] < second)

    def unmoved(self, tensor: Tensor, now: int) -> bool:
        """Whether a value is sure not to be moved before a node has run that precedes all that read it."""
        if self.kept:
            return True
        steps = all(self.is_step(port.node) for port in tensor.uses)
        if self.joined is None or tensor.value.name in self.joined or not steps:
            return False
        return now < 0 or self._latest[now] < min(port.node for port in tensor.uses)

    def waits(self, tensor: Tensor, now: int, ports: Sequence[Port]) -> bool:
        """Whether a value is sure not to have been moved to any of some ports in whose region a node has run by then,
        but as far as to others that this precedes."""
        if self.kept:
            return True
        if self.joined is None or now < 0 or tensor.value.name in self.joined:
            return False
        return all(self.repeats[port.node] == self.repeats[now] and self._latest[now] < port.node for port in ports)

    @cached_property
    def earlier(self) -> dict[int, frozenset[int]]:
        """The nodes that each node waits for. What goes round waits for what came in alone."""
        last = {item.result: item.next for item in (node.item for node in self.graph.nodes) if isinstance(item, Carry)}
        found: dict[int, frozenset[int]] = {}
        for node, names in self.reads.items():
            every = (self._maker(n) for name in names for n in (name, last.get(name, name)))
            makers = {maker for maker in every if maker is not None and maker != node}
            found[node] = frozenset(makers).union(*(found[maker] for maker in makers))
        return found

    @cached_property
    def _tensors(self) -> dict[str, Tensor]:
        return {t.value.name: t for t in self.graph.tensors}

    def _maker(self, name: str) -> int | None:
        """The node that makes a value; None of a cache, which is there before what is appended to it."""
        source = self._tensors[name].source.node
        item = self.graph.nodes[source].item
        return None if isinstance(item, Append) and item.cache == name else source

    def is_step(self, node: int) -> bool:
        """Whether a node is an op, which runs when it has its turn."""
        return not isinstance(self.graph.nodes[node].item, Stored | Carry | Result)

    @cached_property
    def _latest(self) -> dict[int, float]:
        """Each node has run before any of its region that stands after this one, and runs no earlier than where it
        stands: it waits for what collectives wait for that run as one."""
        latest = {node: float(node) if self.is_step(node) else math.inf for node in self.reads}
        while True:
            before = dict(latest)
            for node, names in self.reads.items():
                latest[node] = max([latest[node], *(self._there(name, node, latest) for name in names)])
            if latest == before:
                return latest

    def _there(self, name: str, reader: int, latest: Mapping[int, float]) -> float:
        """After which node of its region a value is there that is read, moved or not."""
        there = self._finished(name, reader, latest)
        for other in (self.joined or {}).get(name, ()):
            uses = (port.node if self.is_step(port.node) else math.inf for port in self._tensors[other].uses)
            there = max([there, self._finished(other, reader, latest), *uses])
        return there

    def _finished(self, name: str, reader: int, latest: Mapping[int, float]) -> float:
        """After which node of the region of one that reads it a value is there as it is made."""
        source = self._maker(name)
        if source is None:
            return -math.inf
        item = self.graph.nodes[source].item
        if isinstance(item, Carry) and item.result == name:
            return math.inf  # a repeat waits for all that is read in it
        inside = self.is_step(source) and self.repeats[source] == self.repeats[reader]
        return latest[source] if inside else -math.inf

    @cached_property
    def _soonest(self) -> dict[int, float]:
        """Each node runs after all of its region that are sure to have run by this one."""
        soonest: dict[int, float] = {}
        for node, names in self.reads.items():
            soonest[node] = float(node)
            if not (self.joined or {}).keys().isdisjoint(names):
                soonest[node] = min(float(node), max(self._made(name, node, soonest) for name in names))
        return soonest

    def _made(self, name: str, reader: int, soonest: Mapping[int, float]) -> float:
        """The soonest that what makes a value runs, in the region of one that reads it."""
        source = self._maker(name)
        if source is None:
            return -math.inf
        inside = self.is_step(source) and self.repeats[source] == self.repeats[reader]
        return soonest[source] if inside else -math.inf
