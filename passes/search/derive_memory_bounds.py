"""Reads off a program what any plan of it holds at each point, whatever it moves.

The points and what is live at each are those of `cost.memory`, for the program without a single
move, and without the scores that may be made in blocks. With moves a plan holds at least as much: an
op holds the copies that it reads and what it makes, and a value that is needed later lies somewhere, at
first in the layout in which it is made. Moves run where a value is defined, right before the
first step that needs what they give: before a repeat, if that step is in it. A move holds what it reads
and what it makes. What goes round gives up its place to what is made last, in the layout in which that goes round: as
that is made in another one, what came in is there as well.

What pointwise ops read is there no more where the last product among it is not moved: they are made in its place, and
over another value that they read (`cost.products`). Where steps may run in any order it may be any of these products.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from ...cost.blocks import perhaps_in_blocks
from ...cost.memory import (
    DECODING,
    Point,
    bytes_a_key,
    filled,
    lies_by_columns,
    most_sorted,
    places_of_padding,
    points_without_blocks,
    stacks_of,
)
from ...cost.scores import scores
from ...ir.dataflow import appends
from ...ir.mesh import Mesh
from ...ir.program import Carry, Choose, Kind, Program, Repeat, Stored, Take, operand_names, stored_in, walk
from ...ir.record import record
from ...ir.spmd import unsharded
from ..layouts.space import Array
from .graph import Graph, Port, Result, Tensor
from .live_value import Live, Use
from .memory_bounds import (
    Demand,
    Floats,
    Freed,
    MemoryBounds,
    Pair,
    PointBound,
    local_bytes,
)
from .step_order import END, Joined, StepOrder
from .taken_products import Takings, takings
from .under_way import UnderWay

ORDERED: Joined = {}  # no collective runs as one with another


def needs(
    program: Program,
    phase: str,
    mesh: Mesh,
    graph: Graph,
    joined: Joined | None = ORDERED,
    lanes: int = 1,
    fused: bool = True,
) -> MemoryBounds:
    """What all plans of a graph hold at the least. `graph` is that of `program` in `phase`. `joined`: whose collectives
    may run as one, as `StepOrder` has it. `lanes`, `fused`: as `cost.memory` has them.
    """
    plain = unsharded(program, phase, mesh)
    known = takings(plain, joined == ORDERED, fused)
    reader = LiveValues(program, graph, joined, known, lanes, dict(plain.sizes))
    made = {name: tensor for name, tensor in reader.tensors.items() if name not in reader.held}
    under_way = UnderWay(reader.order, made, scores(plain) | perhaps_in_blocks(plain), known)
    found = []
    for point in points_without_blocks(plain):
        need = reader.need(point)
        if point.step is not None and not reader.ordered:
            more = under_way.at(reader.times[point.step], {term.value for term in need.terms})
            need = need if more is None else replace(need, terms=(*need.terms, more))
        found.append(need)
        found += reader.moves(point)
    return MemoryBounds(stored_terms(graph), tuple(found), reader.padding)


def stored_terms(graph: Graph) -> tuple[Demand, ...]:
    """The parameters and caches, and what each takes."""
    nodes = enumerate(graph.nodes)
    return tuple(Demand(n.stored or "", i, n.stored_bytes) for i, n in nodes if n.stored_bytes is not None)


def values_of(point: Point) -> list[str]:
    """What is live beside what a step makes and what it decodes."""
    return [live.name for live in point.live if live.name != point.step and live.form not in DECODING]


@record
class LiveValues:
    """A program and its graph. A node's index is its time, as far as steps keep their order. `joined`: whose
    collectives may run as one. `lanes`: those of the memory; `sizes`: of the dims."""

    program: Program
    graph: Graph
    joined: Joined | None
    takings: Takings
    lanes: int
    sizes: Mapping[str, int]

    @cached_property
    def repeats(self) -> dict[int, tuple[str, ...]]:
        """The repeats around each node, a carry being in its repeat."""
        inside: dict[object, tuple[str, ...]] = {}
        for placed in walk(self.program.body):
            around = tuple(repeat.name for repeat in placed.repeats)
            if isinstance(placed.item, Repeat):
                inside |= dict.fromkeys(placed.item.carries, (*around, placed.item.name))
            else:
                inside[placed.item] = around
        return {n: inside.get(node.item, ()) for n, node in enumerate(self.graph.nodes)}

    @cached_property
    def times(self) -> dict[str, int]:
        """When each op runs, by its result."""
        kinds = Stored | Carry | Result
        return {node.name: n for n, node in enumerate(self.graph.nodes) if not isinstance(node.item, kinds)}

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors by name."""
        return {t.value.name: t for t in self.graph.tensors}

    @cached_property
    def read_once(self) -> dict[int, list[Tensor]]:
        """What each node reads and nothing else does."""
        found: dict[int, list[Tensor]] = {}
        for tensor in self.graph.tensors:
            if len(tensor.uses) == 1:
                found.setdefault(tensor.uses[0].node, []).append(tensor)
        return found

    @cached_property
    def held(self) -> dict[str, Tensor]:
        """Parameters, caches and their versions."""
        found = {one.value for one in stored_in(self.program.body, Kind.PARAM, Kind.CACHE)}
        found |= {op.result for cache, op in appends(self.program).items() if cache in found}
        return {t.value.name: t for t in self.graph.tensors if t.value.name in found}

    @cached_property
    def held_by(self) -> dict[int, tuple[str, ...]]:
        """Of these what each node reads."""
        found: dict[int, dict[str, None]] = {}
        for name, tensor in self.held.items():
            for port in tensor.uses:
                found.setdefault(port.node, {})[name] = None
        return {node: tuple(names) for node, names in found.items()}

    @cached_property
    def carries(self) -> dict[str, Carry]:
        """The carries by their names inside."""
        items = (node.item for node in self.graph.nodes)
        return {item.inside: item for item in items if isinstance(item, Carry)}

    @cached_property
    def order(self) -> StepOrder:
        """Which steps run before which others."""
        reads: dict[int, list[str]] = {n: [] for n in range(len(self.graph.nodes))}
        for tensor in self.graph.tensors:
            for use in self.uses(tensor):
                if use.when != END:
                    reads[use.port.node].append(tensor.value.name)
        return StepOrder(self.graph, self.repeats, reads, self.joined)

    @property
    def ordered(self) -> bool:
        """Whether all steps keep their order."""
        return self.order.kept

    def precedes(self, first: int, second: int) -> bool:
        """Whether one node is sure to run before another."""
        return self.order.precedes(first, second)

    def home(self, tensor: Tensor) -> tuple[str, ...]:
        """The repeats around a value."""
        around = self.repeats[tensor.source.node]
        item = self.graph.nodes[tensor.source.node].item
        return around[:-1] if isinstance(item, Carry) and item.result == tensor.value.name else around

    def uses(self, tensor: Tensor) -> Iterator[Use]:
        """Who reads a value: results at the end, what goes round at the end of its repeat."""
        for port in tensor.uses:
            around = self.repeats[port.node]
            match self.graph.nodes[port.node].item:
                case Carry(initial=name) if name == tensor.value.name:
                    yield Use(port, port.node, around[:-1])
                case Carry() | Result():
                    yield Use(port, END, around)
                case _:
                    yield Use(port, port.node, around)

    def live(self, name: str, repeats: tuple[str, ...], now: int) -> Live:
        """A value at a point in `repeats`."""
        tensor = self.tensors[name]
        uses = list(self.uses(tensor))
        depth = len(self.home(tensor)) + 1
        around = repeats[:depth]
        inner = [u for u in uses if len(around) == depth and u.repeats[:depth] == around]
        before = tuple(u.port for u in uses if u not in inner and self.precedes(u.when, now))
        at = tuple(u.port for u in uses if u not in inner and u.when == now)
        after = tuple(u.port for u in uses if u not in inner and self.precedes(now, u.when))
        if now >= 0 and not self.precedes(tensor.source.node, now):
            after = ()  # it may not be there yet
        carry = self.carries.get(name)
        waiting = carry is not None and self.precedes(now, self.tensors[carry.next].source.node)
        fresh = now < 0 and not uses  # an input that nothing reads
        fresh |= bool(after) and len(after) == len(uses) and self.order.unmoved(tensor, now)
        handed = None if carry is None else self.handed(carry, now)
        sure = len(before) + len(at) + len(after) + len(inner) == len(uses) and self.home(tensor) == repeats
        waits = bool(after) and sure and self.order.waits(tensor, now, after)
        freed = self.freed(now) if at else None
        if freed and (after or handed or len(at) > 1):  # of which is known what is so in any case
            before, at, freed = (*before, *at), (), None
        still = waiting or fresh
        return Live(tensor, before, at, after, tuple(u.port for u in inner), still, handed, freed=freed, waits=waits)

    def freed(self, now: int) -> Freed | None:
        """The products in whose place an op may be made, each where it is made and where the op reads it: those after
        which none of the others is sure to be made."""
        names = self.takings.products.get(self.graph.nodes[now].name, ()) if 0 <= now < END else ()
        every = [self.tensors[name] for name in names]
        nodes = [tensor.source.node for tensor in every]
        last = [t for t in every if not any(self.precedes(t.source.node, node) for node in nodes)]
        products = tuple((tensor.source, port) for tensor in last for port in tensor.uses if port.node == now)
        return Freed(products, tuple(self.between(now, last))) if products else None

    def between(self, now: int, products: Sequence[Tensor]) -> Iterator[Pair]:
        """What else an op reads, and it alone, in its own region: moved, it is so right before, after the products."""
        sources = {product.source.node for product in products}
        if all(self.order.ends(node, now) for node in sources):
            for tensor in self.read_once.get(now, ()):
                inside = self.home(tensor) == self.repeats[now]
                if inside and tensor.source.node not in sources and self.order.unmoved(tensor, now - 1):
                    yield tensor.source, tensor.uses[0]

    def replaced_by(self, product: str | None) -> Freed | None:
        """Of a product that is never there, where nothing else comes in its place, where it is read and made."""
        result = self.takings.over.get(product or "")
        freed = None if result is None else self.freed(self.times[result])
        if freed is None or product is None:
            return None
        own = tuple(pair for pair in freed.products if pair[0] is self.tensors[product].source)
        return replace(freed, products=own).turned if own else None

    def handed(self, carry: Carry, now: int) -> tuple[Port, Port] | None:
        """Where what takes the place of a value that goes round is made and how it goes on, if that is made now."""
        following, inside = self.tensors[carry.next], self.tensors[carry.inside]
        taken = [port for port in following.uses if port.node == inside.source.node]
        return (following.source, taken[0]) if following.source.node == now and len(taken) == 1 else None

    def replaced(self, point: Point, now: int) -> Iterator[Live]:
        """What goes round and is not read any more, but gives up its place now."""
        known = set(values_of(point))
        for name, carry in self.carries.items():
            if name not in known and self.tensors[carry.next].source.node == now:
                yield self.live(name, point.repeats, now)

    def need(self, point: Point) -> PointBound:
        """What is held while an op runs, or at the start."""
        now = -1 if point.step is None else self.times[point.step]
        every = [self.live(name, point.repeats, now) for name in values_of(point)]
        every += self.replaced(point, now)
        terms = [live.term() for live in every]
        terms += [*self.decoded(point, now), *self.sorted_keys(now)]
        for value in point.live:
            if value.name == point.step:  # it, and what it is made in beside
                live = self.live(value.name, point.repeats, now)
                made = live.made(float(value.bytes) / live.tensor.total_bytes)
                terms.append(replace(made, freed=self.replaced_by(point.step)))
        stored = (self.live(name, point.repeats, now) for name in self.held_by.get(now, ()))
        gathered = [live.gathered(self.by_rows(live, now)) for live in stored if live.now]
        return PointBound(point.step, tuple(term for term in (*terms, *gathered) if term is not None))

    @cached_property
    def padding(self) -> tuple[Demand, ...]:
        """What fills the lanes of stored tensors, as `cost.memory` has it; of tables nothing, which have lanes of their
        own."""
        placed = list(walk(self.program.body))
        tables = {one.item.table for one in placed if isinstance(one.item, Take)}
        times = {one.item.value: stacks_of(one.item, one.repeats) for one in placed if isinstance(one.item, Stored)}
        found: dict[int, Demand] = {}  # by node: a cache and its version lie as one
        for tensor in self.graph.tensors if self.lanes > 1 else ():
            n, rows = tensor.source.node, tensor.source.rows
            stored_bytes, name = self.graph.nodes[n].stored_bytes, self.graph.nodes[n].stored
            if stored_bytes is not None and name is not None and tensor.value.dims and name not in tables:
                sizes = [self.local_sizes(tensor, dim)[rows] for dim in tensor.value.dims]
                own = np.prod(sizes, axis=0) * math.prod(times[name])
                more = stored_bytes * places_of_padding(sizes, times[name], self.lanes) / own
                if more.any():
                    found[n] = Demand(name, n, more)
        return tuple(found.values())

    def decoded(self, point: Point, now: int) -> Iterator[Demand]:
        """The matrices that are decoded while an op runs, by the ops that multiply them, and their codes in groups. Of
        one that several do it is known of the op that runs alone."""
        for value in point.live:
            if value.form in DECODING:
                tensor = self.tensors[value.name]
                ports = tensor.uses if len(tensor.uses) == 1 else [use for use in tensor.uses if use.node == now]
                for port in ports[:1]:
                    times = float(value.bytes) / tensor.total_bytes
                    yield Demand(value.name, port.node, times * local_bytes(tensor, port))

    def sorted_keys(self, now: int) -> Iterator[Demand]:
        """What the keys are sorted in by which an op chooses."""
        match self.graph.nodes[now].item if now >= 0 else None:
            case Choose(_, keys, over):
                tensor, bits = self.tensors[keys], self.tensors[keys].value.dtype.bits
                port = next(port for port in tensor.uses if port.node == now)
                together = np.minimum(
                    local_bytes(tensor, port) * 8 / bits, most_sorted(math.prod(self.sizes[d] for d in over))
                )
                yield Demand(keys, now, together * float(bytes_a_key(bits)))

    def local_sizes(self, tensor: Tensor, dim: str) -> Array:
        """How much of a dim a chip has in each layout."""
        whole, at = self.sizes[dim], tensor.value.dims.index(dim)
        slots, ways = tensor.space.dims, tensor.space.space.ways
        return whole // ways[:, slots.index(at)] if at in slots else np.full(len(ways), whole)

    def by_rows(self, live: Live, now: int) -> Floats | None:
        """What the copy of a stored table takes in which an op looks its rows up, under each of its choices, nothing
        where it lies by rows; None where that is no such table."""
        match self.graph.nodes[now].item:
            case Take(_, table, _, over) if table == live.name:
                tensor, dims = live.tensor, live.tensor.value.dims
                kept = [dim for dim in dims if dim not in over]
                if self.lanes == 1 or not kept:
                    return None
                port = live.now[0]
                row, column = (self.local_sizes(tensor, dim)[port.rows] for dim in (kept[-1], over[-1]))
                whole = filled(row, self.lanes) / row * local_bytes(tensor, port)
                return np.where(lies_by_columns(row, column, self.lanes), whole, 0.0)
        return None

    def moves(self, point: Point) -> Iterator[PointBound]:
        """What is held while the operands of an op are moved, right before it; where steps may run in any order, at the
        latest."""
        if point.step is None:
            return
        now = self.times[point.step]
        every = [self.live(name, point.repeats, now).unhanded for name in values_of(point)]
        every += [live.unhanded for live in self.replaced(point, now)]
        item = self.graph.nodes[now].item
        assert not isinstance(item, Stored | Carry | Result)
        order = {name: n for n, name in enumerate(operand_names(item))}
        for live in every:
            if len(live.now) != 1 or live.before:
                continue
            live = live if self.ordered else replace(live, freed=None)  # at the latest as it is read for the op
            others: list[Demand | None] = []
            for other in every:
                if not self.ordered:
                    others.append(other.term() if self.outlasts(other, live) else None)
                elif other.now and order[other.name] > order[live.name]:
                    others.append(other.unmoved())
                elif other is not live:
                    others.append(other.term())
            beside = tuple(term for term in others if term is not None)
            for term in live.moving():
                yield PointBound(point.step, (term, *beside), moving=not self.ordered)

    def outlasts(self, other: Live, live: Live) -> bool:
        """Whether a value that is read after a point is there from when another is made that is read at the point."""
        there, source = not other.now and not other.inner, other.tensor.source.node
        begins = isinstance(self.graph.nodes[source].item, Stored)
        return there and (begins or self.precedes(source, live.tensor.source.node))
