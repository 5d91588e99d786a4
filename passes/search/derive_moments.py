"""Reads off a program what plans hold at each moment, with every copy told apart, as they run and as values are moved.

To what `derive_memory_bounds` knows of points come all copies of values, what these are read for, and the moves right
before each step and at the end. Those before a repeat, and at the end of each of its runs, are not among them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from ...cost.blocks import perhaps_in_blocks
from ...cost.memory import Point, points_without_blocks
from ...cost.scores import scores
from ...ir.mesh import Mesh
from ...ir.program import Carry, Program, Stored, signature
from ...ir.record import record
from ...ir.spmd import unsharded
from .derive_memory_bounds import ORDERED, LiveValues, values_of
from .graph import Graph, Port, Result
from .live_value import Live
from .memory_bounds import Copies, Demand, MovedBytes, Through
from .step_order import END, Joined
from .taken_products import takings


@record
class Moment:
    """A program point with all that is held there besides what is stored, copies included; or the moves of one value,
    `moving`, right before the step that reads it now, with all that is held beside it and its copies. `done`: where
    values have been moved by the end of the step. If none of these moves runs as one with another, that is so too
    where collectives may: steps keep their order up to the first that does. `beside`: matrices that the step decodes
    and keys that it sorts, of which each choice takes what it takes whatever others are made; `looked_up`: tables in
    whose copies by rows it looks, if they are not moved. `inner`: what of that is of
    values of the repeat around it, whose steps keep their order whatever runs as one outside."""

    held: tuple[Copies, ...]
    done: tuple[Port, ...]
    moving: Copies | None = None
    beside: tuple[Demand, ...] = ()
    looked_up: tuple[Demand, ...] = ()
    inner: Moment | None = None


def moments(
    program: Program, phase: str, mesh: Mesh, graph: Graph, joined: Joined, lanes: int = 1, fused: bool = True
) -> tuple[Moment, ...]:
    """What plans of a graph hold, with every copy told apart; the rest as for `needs`."""
    plain, ordered = unsharded(program, phase, mesh), joined == ORDERED
    known = takings(plain, ordered, fused)
    whole, sizes = scores(plain) - perhaps_in_blocks(plain), dict(plain.sizes)
    reader = _Moments(program, graph, joined, known, lanes, sizes, whole)
    found: list[Moment] = []
    for point in points_without_blocks(plain):
        every = reader.moments(point)
        found += reader.with_inner(every, point.repeats) if ordered and point.repeats else every
    return (*found, *reader.at_the_end()) if ordered else tuple(found)


@record
class _Moments(LiveValues):
    """Live values, and the `scores` that attention holds whole, as what they are made of if they are not moved."""

    scores: frozenset[str]

    def seen(self, live: Live, now: int) -> Live:
        """A value with the scores for which it is still there, on the shortest way to one that is read now or later."""
        if live.now or live.after or live.inner or live.still:
            return live
        waiting: list[tuple[str, Port, tuple[tuple[Port, Port], ...]]] = [
            (self.graph.nodes[port.node].name, port, ()) for port in live.before
        ]
        for name, port, before in waiting:
            if name not in self.scores:
                continue
            score = self.tensors[name]
            unmoved = (*before, *((score.source, other) for other in score.uses))
            uses = list(self.uses(score))
            if any(use.when == now or self.precedes(now, use.when) for use in uses):
                return replace(live, through=Through(port, unmoved))
            waiting += [(self.graph.nodes[use.port.node].name, port, unmoved) for use in uses if use.when != END]
        return live

    def moved_scores(self, point: Point, now: int) -> Iterator[Live]:
        """Scores that have been read for others which are used now or later: where they are moved they are still there,
        as all that these are made of is."""
        known = set(values_of(point))
        for name in sorted(self.scores - known):
            live = self.seen(self.live(name, point.repeats, now), now)
            if live.through is not None:
                moved = tuple((live.tensor.source, port) for port in live.tensor.uses)
                yield replace(live, through=replace(live.through, moved=moved))

    def looked_up(self, kept: Iterable[Live], now: int) -> Iterator[Demand]:
        """The copies of stored tables in which an op looks rows up, if it reads them as they are stored."""
        for live in kept:
            rows = self.by_rows(live, now) if live.now and now >= 0 else None
            if rows is not None and rows.any():
                port, source = live.now[0], live.tensor.source
                yield Demand(live.name, port.node, rows, MovedBytes(port, source, np.zeros(len(rows))))

    def moments(self, point: Point) -> Iterator[Moment]:
        """What is held while an op runs, or at the start; and while its operands are moved, right before it."""
        now = -1 if point.step is None else self.times[point.step]
        every = [self.seen(self.live(name, point.repeats, now), now) for name in values_of(point)]
        every += [*self.replaced(point, now), *self.moved_scores(point, now)]
        kept = [self.live(name, point.repeats, now) for name in self.held]
        moved = tuple(self.moved(point.repeats, now))
        others = [live.copies(live.name in self.held) for live in (*every, *kept)]
        beside = (*self.decoded(point, now), *self.sorted_keys(now))
        yield Moment((*self.made(point), *others), moved, None, beside, tuple(self.looked_up(kept, now)))
        if self.ordered:
            yield from self.moving([*(live.unhanded for live in every), *kept], self.operands(now), moved)
        else:
            yield from self.at_some_time([*every, *kept], self.operands(now))

    def with_inner(self, every: Iterable[Moment], repeats: tuple[str, ...]) -> Iterator[Moment]:
        """Moments in some repeats, with what is of values that are made in these."""
        own = {tensor for tensor in self.graph.tensors if self.home(tensor) == repeats}
        ports = {port for tensor in own for port in tensor.uses}
        for one in every:
            held = tuple(copies for copies in one.held if copies.tensor in own)
            inner = replace(one, held=held, done=tuple(port for port in one.done if port in ports))
            yield replace(one, inner=inner) if one.moving is None or one.moving.tensor in own else one

    def at_some_time(self, every: Sequence[Live], ports: Iterable[tuple[str, Port]]) -> Iterator[Moment]:
        """What is sure to be held whenever one of `every` value is moved to one of `ports`: what is made before it and
        read after the port."""
        for name, port in ports:
            own = next((live for live in every if live.name == name and port in live.now), None)
            if own is not None:
                beside = (live.later for live in every if self.outlasts(live, own))
                held = tuple(live.copies(live.name in self.held) for live in beside)
                moving = Copies(own.tensor, (own.tensor.source,), (port,), (), name in self.held)
                yield Moment(held, (), moving)

    def at_the_end(self) -> Iterator[Moment]:
        """What is held while results are moved to where they are handed out, all steps having run."""
        found = [self.tensors[name] for name in self.program.results]
        ports = ((t.value.name, use.port) for t in found for use in self.uses(t) if self.is_result(use.port))
        every = [self.live(name, (), END) for name in dict.fromkeys((*self.program.results, *self.held))]
        yield from self.moving(every, ports, tuple(self.moved((), END)))

    def is_result(self, port: Port) -> bool:
        """Whether it is where a value is handed out."""
        return isinstance(self.graph.nodes[port.node].item, Result)

    def moving(
        self, every: Sequence[Live], ports: Iterable[tuple[str, Port]], moved: tuple[Port, ...]
    ) -> Iterator[Moment]:
        """What is held while of `every` value some are moved to `ports`, one after the other."""
        done: tuple[Port, ...] = ()
        for name, port in ports:
            beside = [live.once(done) for live in every if live.name != name]
            own = next((live.once(done) for live in every if live.name == name), None)
            if own is None or port not in own.after:
                continue  # a score in blocks, stored only where it is moved, or what was moved before the repeat
            own = replace(own, now=(port, *own.now), after=tuple(each for each in own.after if each is not port))
            held = tuple(live.copies(live.name in self.held) for live in beside)
            yield Moment(held, moved, own.copies(name in self.held))
            done = (*done, port)

    def made(self, point: Point) -> Iterator[Copies]:
        """What a step makes, as much as what it is made in takes."""
        replaced = self.replaced_by(point.step)
        freed = None if replaced is None else replaced.turned
        for value in point.live:
            if value.name == point.step:
                tensor = self.tensors[value.name]
                times = float(value.bytes) / tensor.total_bytes
                yield Copies(tensor, (), (tensor.source,), (), False, freed=freed, times=times)

    def moved(self, repeats: tuple[str, ...], now: int) -> Iterator[Port]:
        """Where the values around a point have been moved by then."""
        for name, tensor in self.tensors.items():
            home = self.home(tensor)
            if repeats[: len(home)] == home:
                live = self.live(name, repeats, now)
                yield from (*live.before, *live.now, *live.inner)

    def operands(self, now: int) -> Iterator[tuple[str, Port]]:
        """What an op reads and where, in the order in which copies are made for it; nothing at the start."""
        item = self.graph.nodes[now].item if now >= 0 else None
        if item is None or isinstance(item, Stored | Carry | Result):
            return
        signed = signature(item, self.program.table())
        names = [use.value for k, use in enumerate(signed.uses) if k != signed.tied]
        left = {name: [port for port in self.tensors[name].uses if port.node == now] for name in names}
        yield from ((name, left[name].pop(0)) for name in names)
