"""What a sharded program costs, read off the program itself, step by step.

Nothing here knows how the program was chosen: the figures are recomputed from its layouts. `step_costs`
is the one place that reads them; what stands for a size there may be a number or a symbol, so the
formulas of `cost.formulas.symbolic` are those of the figures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, TypeVar

from ..ir.chosen import held_share
from ..ir.collective import CollectiveKind, axes_of, kind, sent_as
from ..ir.mesh import Mesh
from ..ir.program import Kind, Repeat, Signature, Stored, signature, walk
from ..ir.record import record
from ..ir.spmd import Compute, Move, SpmdProgram, SpmdValue, Step
from ..ir.streams import copies_held
from ..ir.verify.fused import walk_loops
from .hardware import Hardware
from .hidden import run_share, shown
from .kernels import launches
from .loops import Alone, LoopCost, loop_cost
from .network import Network, bytes_sent
from .ops import Work, busiest, work
from .streams import FetchCost, fetch_costs, host_traffic


@record
class OpCost:
    """One op on one chip, once: its work and its seconds, `launch_s` of them beside its work. `times`: how often
    it runs."""

    result: str
    times: int
    flops: float
    hbm_bytes: float
    compute_s: float
    memory_s: float
    launch_s: float
    seconds: float


@record
class MoveCost:
    """One collective, once: the bytes that each chip sends and its seconds. `times`: how often it runs.

    `joined`: it is part of the collective before it, and its seconds are what it adds to it.
    """

    result: str
    times: int
    kind: CollectiveKind
    axes: tuple[str, ...]
    bytes_sent: float
    seconds: float
    joined: bool = False


@record
class Totals:
    """What a run takes on a chip. `compute_s` and `memory_s` are what arithmetic and HBM alone would
    take; `op_s` what the ops take by the hardware's rule; `hidden_s` what loops save of that and of the
    communication; `waiting_s` how long it waits for what comes from the host."""

    compute_s: float
    memory_s: float
    op_s: float
    comm_s: float
    bytes_sent: float
    collectives: int
    hidden_s: float = 0.0
    waiting_s: float = 0.0

    @property
    def apart_s(self) -> float:
        """Seconds of all steps one after the other."""
        return self.op_s + self.comm_s

    @property
    def total_s(self) -> float:
        """Seconds in all."""
        return self.apart_s - self.hidden_s + self.waiting_s


@record
class Estimate:
    """The steps of a program in order, what is stored on a chip (bytes, all repetitions), and the loops
    that some of the steps run in. `fetches`: what comes from the host."""

    ops: tuple[OpCost, ...]
    moves: tuple[MoveCost, ...]
    stored_bytes: tuple[tuple[str, float], ...]
    loops: tuple[LoopCost, ...] = ()
    fetches: tuple[FetchCost, ...] = ()

    def totals(self, once: bool = False) -> Totals:
        """The sum over all steps; `once`: of each step once, whatever the repeats around it, all there."""

        def times(cost: OpCost | MoveCost | LoopCost) -> int:
            return 1 if once else cost.times

        return Totals(
            math.fsum(times(c) * c.compute_s for c in self.ops),
            math.fsum(times(c) * c.memory_s for c in self.ops),
            math.fsum(times(c) * c.seconds for c in self.ops),
            math.fsum(times(c) * c.seconds for c in self.moves),
            math.fsum(times(c) * c.bytes_sent for c in self.moves),
            sum(times(c) for c in self.moves if c.bytes_sent and not c.joined),
            math.fsum(times(c) * c.hidden_s for c in self.loops),
            0.0 if once else math.fsum(c.waiting_s for c in self.fetches),
        )


@record
class Scale:
    """What stands for the size of a dim and for that of an axis: fractions, or symbols. `numbers`: the same as numbers,
    where these are symbols. `mean`: what stands for the size of a dim where ops are timed, None where that is `dim`.
    `ratio`: what stands for one of two whole numbers; a float where sizes are arrays of floats, which a fraction would
    be multiplied with one by one."""

    dim: Callable[[str], Any]
    axis: Callable[[str], Any]
    numbers: Scale | None = None
    mean: Callable[[str], Any] | None = None
    ratio: Callable[[int, int], Any] = Fraction

    @property
    def timed(self) -> Scale:
        """The same for what ops do."""
        return replace(self, dim=self.mean or self.dim, mean=None)

    def local(self, dim: str, axes: tuple[str, ...]) -> Any:
        """The size on a chip of a dim that `axes` split."""
        return self.dim(dim) / self.ways(axes)

    def ways(self, axes: tuple[str, ...]) -> Any:
        """Over how many chips `axes` go."""
        return math.prod((self.axis(a) for a in axes), start=1)

    def local_bytes(self, value: SpmdValue) -> Any:
        """The bytes that a chip holds of a value, exactly; of a chosen one what is kept."""
        sizes = (self.local(d, axes) for d, axes in zip(value.dims, value.layout.dims, strict=True))
        return math.prod(sizes, start=self.ratio(value.dtype.bits, 8)) * held_share(value.chosen, self.dim)

    def load(self, layouts: Sequence[SpmdValue], mesh: Mesh) -> Any:
        """How many times the mean of its chosen entries the chip has that has most of a value, in that of some layouts
        which shares them out most."""
        if not any(one.skew != 1 for one in layouts[0].chosen):
            return 1
        split = [dict(zip(value.dims, value.layout.dims, strict=True)) for value in layouts]
        over = [d for one in layouts[0].chosen for d in one.over]
        finest = max(split, key=lambda axes: math.prod(mesh.size(*axes[d]) for d in over))
        return busiest(layouts[0].chosen, lambda d: self.local(d, finest[d]), self.dim)


@record
class StoredBytes:
    """A stored tensor: the bytes on a chip, of one repetition. `times`: how many of them there are."""

    value: str
    times: int
    kind: Kind
    bytes: Any


@record
class OpWork:
    """An op: its work on a chip, once."""

    result: str
    times: int
    work: Work


@record
class Transfer:
    """A collective, once: what a chip holds before and after it (bytes), and over how many chips it goes.
    `ahead`: where it is part of the collective before it, what that carries already, of the bytes that say how long it
    takes. `load`: how many times these bytes the chip has that has most, where entries are chosen unevenly: its links
    are the busiest, and others wait for it."""

    result: str
    operand: str
    times: int
    kind: CollectiveKind
    axes: tuple[str, ...]
    before_bytes: Any
    after_bytes: Any
    ways: Any
    ahead: tuple[Any, Any] | None = None
    load: Any = 1

    @property
    def joined(self) -> bool:
        """Whether it is part of the collective before it."""
        return self.ahead is not None

    @property
    def busiest_bytes(self) -> tuple[Any, Any]:
        """What the chip that has most holds before and after it."""
        return self.before_bytes * self.load, self.after_bytes * self.load

    @property
    def carried_bytes(self) -> tuple[Any, Any]:
        """The same of all that the collective carries that it is part of, as far as this."""
        (before, after), (first, second) = self.busiest_bytes, self.ahead or (0, 0)
        return first + before, second + after

    def seconds(self, network: Network, number: Callable[[Any], Any] = lambda held: held) -> Any:
        """Seconds, or what it adds to the collective before it. `number`: what bytes are taken as, as floats."""
        before, after = map(number, self.busiest_bytes)
        ahead = None if self.ahead is None else (number(self.ahead[0]), number(self.ahead[1]))
        return network.collective_s(self.kind, self.axes, before, after, ahead)

    @property
    def bytes_sent(self) -> Any:
        """The bytes that each chip sends, on average."""
        return bytes_sent(self.kind, self.before_bytes, self.after_bytes, self.ways)


def concrete_sizes(spmd: SpmdProgram) -> Scale:
    """The sizes of a program, exactly."""
    sizes = {dim: Fraction(size) for dim, size in spmd.sizes}
    mean = sizes | {dim: Fraction(size) for dim, size in spmd.mean}
    return Scale(sizes.__getitem__, dict(spmd.mesh.axes).__getitem__, mean=mean.__getitem__)


def in_floats(work: Work) -> Work:
    """Work in floating-point numbers, as the search counts it."""
    figures = float(work.flops), float(work.hbm_bytes), float(work.cache_bytes)
    return replace(work, flops=figures[0], hbm_bytes=figures[1], cache_bytes=figures[2])


def step_costs(spmd: SpmdProgram, scale: Scale) -> Iterator[StoredBytes | OpWork | Transfer]:
    """What every step of a program does, in program order, in the terms of `scale`."""
    values = spmd.table()
    plain = {name: value.value for name, value in values.items()}
    launched, hidden = launches(spmd, dict(spmd.sizes)), shown(spmd)
    timed, sized = scale.timed, (scale.numbers or scale).timed
    last: Transfer | None = None
    for placed in walk(spmd.body):
        match placed.item:
            case Stored(name, which) as stored:
                held = copies_held(stored, placed.repeats, spmd.micro_batches)
                yield StoredBytes(name, held, which, scale.local_bytes(values[name]))
            case Compute(op):
                sig = signature(op, plain)
                splits = _splits(sig, op.result, values, spmd.mesh)
                local, numbers = ({i: each.local(i, axes) for i, axes in splits.items()} for each in (timed, sized))
                seen = hidden.get(op.result)
                share, cut = run_share(seen, numbers.__getitem__, sized.dim), seen.cut if seen else frozenset()
                done = work(op, sig, plain, launched[op.result], local.__getitem__, timed.dim, share, cut)
                yield OpWork(op.result, placed.times, done)
            case Move(result, operand, collective, joined):
                axes = axes_of(collective, values[operand].layout)
                before, after = (scale.local_bytes(values[n]) for n in (operand, result))
                moved, layouts = (before, after, scale.ways(axes)), [values[operand], values[result]]
                load = scale.load(layouts, spmd.mesh)
                assert last is not None or not joined, "it is part of one before it"
                ahead = last.carried_bytes if last is not None and joined else None
                sent = sent_as(kind(collective), values[operand].layout.reduction)
                last = Transfer(result, operand, placed.times, sent, axes, *moved, ahead, load)
                yield last


def estimate(spmd: SpmdProgram, hardware: Hardware) -> Estimate:
    """The cost of every step of a sharded program on `hardware`, by itself, and of every loop."""
    network = Network(hardware, spmd.mesh)
    ops: list[OpCost] = []
    moves: list[MoveCost] = []
    stored: list[tuple[str, float]] = []
    for step in step_costs(spmd, concrete_sizes(spmd)):
        match step:
            case StoredBytes(name, times, which, size):
                if which is not Kind.INPUT:
                    stored.append((name, times * float(size)))
            case OpWork(result, times, done):
                done = in_floats(done)
                compute_s = hardware.compute_s(done.flops, hardware.done_in(done.arithmetic))
                work_s = compute_s, hardware.memory_s(done.hbm_bytes, done.cache_bytes)
                beside_s, seconds = hardware.launch_s(done), float(hardware.work_s(done))
                ops.append(OpCost(result, times, done.flops, done.hbm_bytes, *work_s, beside_s, seconds))
            case Transfer(result, _, times, name, axes):
                taken = float(step.seconds(network, float))
                moves.append(MoveCost(result, times, name, axes, float(step.bytes_sent), taken, step.joined))
    found = Estimate(tuple(ops), tuple(moves), tuple(stored))
    if loops := tuple(walk_loops(spmd.body)):
        alone = steps_alone(found, spmd)
        found = replace(found, loops=tuple(loop_cost(loop, times, spmd, network, alone) for loop, times in loops))
    repetitions = {scope.name: scope.once.total_s for scope in scopes(spmd, found)}
    return replace(
        found, fetches=fetch_costs(spmd, hardware, repetitions, lambda value: float(local_bytes(value, spmd)))
    )


def steps_alone(costs: Estimate, spmd: SpmdProgram) -> Alone:
    """What the steps of a program do by themselves, of its estimate."""
    seconds = {op.result: op.seconds for op in costs.ops} | {move.result: move.seconds for move in costs.moves}
    works = {
        step.result: in_floats(step.work) for step in step_costs(spmd, concrete_sizes(spmd)) if isinstance(step, OpWork)
    }
    launched = launches(spmd, dict(spmd.sizes))
    return Alone(seconds, works, {result: launch.reads for result, launch in launched.items()})


def predict(spmd: SpmdProgram) -> tuple[Fraction, ...]:
    """The bytes that each chip sends in each collective of a program, in program order, exactly."""
    return tuple(Fraction(s.bytes_sent) for s in step_costs(spmd, concrete_sizes(spmd)) if isinstance(s, Transfer))


def predict_host(spmd: SpmdProgram) -> tuple[Fraction, Fraction]:
    """The bytes that come to each chip from its host in a whole program, and that go back, exactly."""
    into, out = host_traffic(spmd, lambda value: local_bytes(value, spmd))
    return Fraction(into), Fraction(out)


def local_bytes(value: SpmdValue, spmd: SpmdProgram) -> Fraction:
    """The bytes that a chip holds of a value."""
    return Fraction(concrete_sizes(spmd).local_bytes(value))


def _splits(sig: Signature, result: str, values: Mapping[str, SpmdValue], mesh: Mesh) -> dict[str, tuple[str, ...]]:
    """The axes that split each index of an op: what splits an index shows at some operand or the result."""
    splits: dict[str, tuple[str, ...]] = dict.fromkeys(sig.indices, ())
    for name, indices in [(use.value, use.indices) for use in sig.uses] + [(result, sig.result)]:
        for index, axes in zip(indices, values[name].layout.dims, strict=True):
            splits[index] = max(splits[index], axes, key=lambda a: mesh.size(*a))
    return splits


Cost = TypeVar("Cost", OpCost, MoveCost, LoopCost)


@record
class Scope:
    """A repeat: its name, its count each time it is reached, and what one repetition takes on a chip."""

    name: str
    count: int
    once: Totals


def scopes(spmd: SpmdProgram, estimate: Estimate) -> tuple[Scope, ...]:
    """The repeats of a program, an outer one before those in it."""
    around: dict[str, tuple[Repeat[Step], ...]] = {}
    found: list[tuple[Repeat[Step], ...]] = []
    for placed in walk(spmd.body):
        match placed.item:
            case Repeat():
                found.append((*placed.repeats, placed.item))
            case Stored():
                pass
            case step:
                around[step.result] = placed.repeats
    return tuple(Scope(path[-1].name, path[-1].count, _once(path, around, estimate)) for path in found)


def _once(path: tuple[Repeat[Step], ...], around: dict[str, tuple[Repeat[Step], ...]], estimate: Estimate) -> Totals:
    times = math.prod(repeat.count for repeat in path)

    def made_in(cost: Cost) -> bool:
        repeats = around[cost.first if isinstance(cost, LoopCost) else cost.result]
        return len(repeats) >= len(path) and all(a is b for a, b in zip(path, repeats, strict=False))

    def inside(costs: Iterable[Cost]) -> tuple[Cost, ...]:
        return tuple(replace(c, times=c.times // times) for c in costs if made_in(c))

    inner = (inside(estimate.ops), inside(estimate.moves), estimate.stored_bytes, inside(estimate.loops))
    return Estimate(*inner).totals()
