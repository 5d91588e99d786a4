"""One phase of a program as a graph of choices: nodes that choose, tensors that connect them.

A node is an op (it chooses a strategy), a stored tensor (it chooses a stored layout), a carry of a
repeat (it chooses the layout in which the value goes round) or a result (it chooses the layout in
which it is handed out). Every choice fixes the layouts of the tensors that the node touches, and a
tensor pays for the collectives between the layout in which it is made and those in which it is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ...cost.hardware import Hardware
from ...cost.hidden import Shown, run_share, shown
from ...cost.kernels import Launch, launches
from ...cost.ops import work
from ...cost.stages import NO_PASSING, Passing
from ...ir.chosen import held_share
from ...ir.dataflow import appends
from ...ir.mesh import Mesh
from ...ir.program import Append, Carry, Kind, Op, Program, Repeat, Stored, Value, signature, stored_in, walk
from ...ir.record import record
from ...ir.spmd import unsharded
from ...ir.streams import copies_held
from ..layouts.partial import PartialAxes, partial_axes
from ..layouts.space import Array, Mask, Order, TensorSpace, tensor_space, too_large
from ..layouts.strategies import StrategyTable, dim_ranks, live_axes, strategies

Floats = NDArray[np.float64]
MAX_LAYOUTS = 200_000  # over all uses of all tensors of a phase, each told apart
MAX_OF_COPIES = 600_000  # where blocks are written out again and again, which are searched as few of them
MAX_OF_MANY_AXES = 100_000  # of those in mesh order, which on many axes take minutes


@record(eq=False)
class Port:
    """Where a node touches a tensor: `rows[c]` is the tensor's layout under choice c of the node."""

    node: int
    rows: Array


@record
class Result:
    """A value that the program hands out."""

    value: str


@record(eq=False)
class Node:
    """Something that chooses.

    `seconds[c]` is what choice c costs over all repetitions; `rank[c]` in [0, 1] orders choices that
    cost the same, plain ones first, or where collectives alone have a price counts what they compute
    beside that. `stored_bytes[c]` is what a stored tensor takes on a chip, all
    repetitions together; None for what counts towards no capacity. A cache that is appended to has
    no node of its own: the append chooses for it. `phase`: whose it is, None if several phases' (see
    `join_phases`).
    """

    item: Op | Stored | Carry | Result
    seconds: Floats
    rank: Floats
    stored: str | None = None
    stored_bytes: Floats | None = None
    table: StrategyTable | None = None
    phase: str | None = None

    @property
    def name(self) -> str:
        """How messages call it."""
        match self.item:
            case Stored(value, _) | Result(value):
                return value
            case Carry():
                return self.item.inside
            case op:
                return op.result

    def take(self, rows: Array | Mask) -> Node:
        """The node with some of its choices."""
        kept = None if self.stored_bytes is None else self.stored_bytes[rows]
        table = None if self.table is None else self.table.take(np.arange(len(self.seconds))[rows])
        return replace(self, seconds=self.seconds[rows], rank=self.rank[rows], stored_bytes=kept, table=table)


@record
class Handover:
    """From one phase to another."""

    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.before} to {self.after}"


@record(eq=False)
class Tensor:
    """A value: made at `source`, read at `uses`. Its collectives run `times` times. `joins`: whether
    whole copies of it may be embedded, to join a partial sum. `phase`: that in which it is moved, or
    from one of which to another."""

    value: Value
    space: TensorSpace
    total_bytes: float
    times: int
    joins: bool
    source: Port
    uses: tuple[Port, ...]
    phase: str | Handover | None = None

    def ends(self, chosen: Sequence[int]) -> tuple[int, tuple[int, ...]]:
        """The layout in which a plan makes it, and those in which it reads it."""
        return int(self.source.rows[chosen[self.source.node]]), tuple(int(u.rows[chosen[u.node]]) for u in self.uses)


@record(eq=False)
class Graph:
    """All that is to be chosen in one phase."""

    nodes: tuple[Node, ...]
    tensors: tuple[Tensor, ...]

    @property
    def layouts(self) -> int:
        """How many layouts tensors have, at each of their uses."""
        return sum(len(t.space) * len(t.uses) for t in self.tensors)


def restrict(graph: Graph, kept: Sequence[Mask]) -> Graph:
    """The graph with some choices of each node only."""
    return Graph(
        tuple(node.take(rows) for node, rows in zip(graph.nodes, kept, strict=True)),
        tuple(
            replace(t, source=_take(t.source, kept), uses=tuple(_take(u, kept) for u in t.uses)) for t in graph.tensors
        ),
    )


def _take(port: Port, kept: Sequence[Mask]) -> Port:
    return Port(port.node, port.rows[kept[port.node]])


@dataclass
class _Builder:
    """`mean`: the sizes at which ops are timed; `copies`: of what is stored those that a chip has room for."""

    program: Program
    sizes: Mapping[str, int]
    mean: Mapping[str, int]
    mesh: Mesh
    hardware: Hardware
    values: Mapping[str, Value]
    partial: PartialAxes
    stored: Mapping[str, Stored]
    launches: Mapping[str, Launch]
    shown: Mapping[str, Shown]
    copies: Mapping[str, int]
    passing: Passing
    order: Order | None
    nodes: list[Node] = field(default_factory=list)
    sources: dict[str, Port] = field(default_factory=dict)
    uses: dict[str, list[Port]] = field(default_factory=dict)
    times: dict[str, int] = field(default_factory=dict)

    def space(self, value: str) -> TensorSpace:
        """All layouts that a value may have."""
        dims, stored = self.values[value].dims, self.stored.get(value)
        shape = [self.sizes[d] for d in dims] if stored is None else stored.shape(dims, self.sizes)
        partial, ranks = (
            (self.partial.sums(value), self.partial.maxima(value)),
            dim_ranks(self.values[value].dims, self.sizes),
        )
        return tensor_space(shape, live_axes(self.mesh), *partial, self.order, ranks)

    def total_bytes(self, value: str) -> float:
        """Bytes of a value on all chips together, one copy; of chosen entries the share that is held."""
        v = self.values[value]
        whole = float(np.prod([float(self.sizes[d]) for d in v.dims])) * v.dtype.bits / 8
        return whole * float(held_share(v.chosen, self.sizes.__getitem__))

    def add_source(self, value: str, rows: Array, times: int) -> None:
        """Let the node that is added next make a value, `times` times: choice c in layout `rows[c]`."""
        assert value not in self.sources, f"`{value}` is made twice"
        self.sources[value] = Port(len(self.nodes), rows)
        self.times[value] = times

    def add_use(self, value: str, rows: Array) -> None:
        """Let the node that is added next read a value: choice c in layout `rows[c]`."""
        self.uses.setdefault(value, []).append(Port(len(self.nodes), rows))

    def add_free_choice(self, item: Stored | Carry | Result, made: dict[str, int], read: list[str]) -> None:
        """A node that chooses one complete layout for all the values that it touches.

        `made` gives the times of the values that it makes; `read` the values that it reads.
        """
        first = self.space(next(iter([*made, *read])))
        choices = np.flatnonzero(first.space.complete)
        rows = first.space.rows.take(choices)
        for value, times in made.items():
            self.add_source(value, self.space(value).space.find(rows), times)
        for value in read:
            self.add_use(value, self.space(value).space.find(rows))
        shards = first.space.shards[choices]
        stored, stored_bytes = None, None
        if isinstance(item, Stored):
            stored = item.value
            if item.kind is not Kind.INPUT:
                stored_bytes = self.copies[item.value] * self.total_bytes(item.value) / shards
        seconds = np.zeros(len(choices))
        if isinstance(item, Result) and item.value in self.passing.values:
            seconds = np.asarray(self.passing.seconds(self.total_bytes(item.value) / shards))
        # Of layouts that serve alike the one that holds least is taken, then the plainest.
        rank = 0.9 * (1 - _share(np.log2(shards))) + 0.1 * _share(rows.inversions())
        self.nodes.append(Node(item, seconds, rank, stored, stored_bytes))

    def add_op(self, op: Op, times: int) -> None:
        """A node for an op that runs `times` times."""
        sig = signature(op, self.values)
        table = strategies(op, self.values, self.sizes, self.mesh, self.partial.readable(sig), self.order)
        reads = [table.use_rows(k, self.space(use.value)) for k, use in enumerate(sig.uses)]
        makes = table.result_rows(self.space(op.result))
        keep = np.flatnonzero(np.stack([*reads, makes]).min(axis=0) >= 0)
        table = table.take(keep)
        shown, launch = self.shown.get(op.result), self.launches[op.result]
        seconds = times * seconds_of(op, table, self.values, self.mean, launch, self.hardware, shown)
        stored, stored_bytes = None, None
        for k, use in enumerate(sig.uses):
            if k == sig.tied:
                # The append's choice is the cache's stored layout.
                assert isinstance(op, Append)
                self.add_source(use.value, reads[k][keep], times)
                shards = self.space(use.value).space.shards[reads[k][keep]]
                stored, stored_bytes = use.value, self.copies[use.value] * self.total_bytes(use.value) / shards
            else:
                self.add_use(use.value, reads[k][keep])
        self.add_source(op.result, makes[keep], times)
        rank = 0.9 * _share(table.rows.inversions()) + 0.1 * np.arange(len(table)) / max(len(table), 1)
        if stored_bytes is not None:
            rank = 0.9 * _share(np.log2(stored_bytes / stored_bytes.min())) + 0.1 * rank
        self.nodes.append(Node(op, seconds, rank, stored, stored_bytes, table))


def _share(numbers: Array | Floats) -> Floats:
    return np.asarray(numbers / max(1, numbers.max(initial=0)), dtype=np.float64)


def seconds_of(
    op: Op,
    table: StrategyTable,
    values: Mapping[str, Value],
    mean: Mapping[str, int],
    launch: Launch,
    hardware: Hardware,
    seen: Shown | None = None,
) -> Floats:
    """What an op takes in each strategy of a table, which splits all indices of the op, once, in seconds. `mean`: the
    sizes at which ops are timed; `seen`: what masks show of it. Shape [rows of the table]."""
    local = {i: mean[i] / table.ways[:, s] for s, i in enumerate(table.signature.indices)}
    whole = mean.__getitem__
    share, cut = run_share(seen, local.__getitem__, whole), seen.cut if seen else frozenset()
    done = work(op, signature(op, values), values, launch, local.__getitem__, whole, share, cut)
    return np.broadcast_to(np.asarray(hardware.work_s(done), dtype=np.float64), len(table))


def build_graph(
    program: Program,
    phase: str,
    mesh: Mesh,
    hardware: Hardware,
    passing: Passing = NO_PASSING,
    order: Order | None = None,
) -> Graph:
    """The graph of `phase`, without pins. `passing`: what results cost that a stage hands to the next one. With an
    `order` only of layouts that keep to it.

    Raises InputError when the mesh has more axes than can be searched, KeyError when the program has
    no such phase.
    """
    bound = program.phase(phase)
    sizes = dict(bound.sizes)
    held = stored_in(program.body)
    stored = {one.value: one for one in held}
    partial = partial_axes(program, sizes, mesh)
    launched, values = launches(program, sizes), program.table()
    hidden = shown(unsharded(program, phase, mesh))
    copies = {one.value: copies_held(one, placed.repeats, bound.micro_batches) for one, placed in held.items()}
    mean = sizes | dict(bound.mean)
    builder = _Builder(
        program, sizes, mean, mesh, hardware, values, partial, stored, launched, hidden, copies, passing, order
    )
    appended = appends(program)
    for placed in walk(program.body):
        match placed.item:
            case Stored(value, _):
                if value not in appended:
                    builder.add_free_choice(placed.item, {value: placed.times}, [])
            case Repeat(_, count, carries, _):
                for c in carries:
                    made = {c.inside: placed.times * count, c.result: placed.times}
                    builder.add_free_choice(c, made, [c.initial, c.next])
            case op:
                builder.add_op(op, placed.times)
    for value in dict.fromkeys(program.results):
        builder.add_free_choice(Result(value), {}, [value])
    tensors = tuple(
        Tensor(
            builder.values[name],
            builder.space(name),
            builder.total_bytes(name),
            builder.times[name],
            bool(builder.partial.join.get(name)),
            source,
            tuple(builder.uses.get(name, ())),
        )
        for name, source in builder.sources.items()
    )
    graph = Graph(tuple(builder.nodes), tensors)
    if graph.layouts > (MAX_OF_MANY_AXES if order else MAX_OF_COPIES):
        raise too_large()
    return graph
