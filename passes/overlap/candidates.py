"""Every loop that steps of a region could run in: gathers in a chain with the einsums that read what the
last brings, and einsums with a chain of reduce-scatters of what they make.

Steps that run as one stay together: all of them are in a loop, or none is. Of a sum that many einsums
make terms of, all of those are in a loop; of one of few also any part of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, pairwise

from ...ir.collective import AllGather, AllReduce, LayoutError, ReduceScatter, apply
from ...ir.dataflow import defined, reads, rewritten
from ...ir.layout import Reduction, unsplittable
from ...ir.program import Einsum, Region, Repeat, Sum, walk
from ...ir.spmd import Compute, Move, SpmdProgram, SpmdValue, Step
from ...ir.verify.fused import CollectiveMatmul, objection, together

MOST_PARTS = 6  # of a sum; a part more doubles the loops


def candidates(
    region: Region[Step], values: Mapping[str, SpmdValue], readers: Mapping[str, int]
) -> list[CollectiveMatmul]:
    """The loops of a region, without those of the repeats in it; `readers` as in `objection`."""
    found = _Region(region.items, readers)
    loops = [*found.of_gathers(), *found.of_scatters()]
    return [loop for loop in loops if objection(loop, values, readers) is None]


class _Region:
    """The steps of a region. `makers`: by what they make; `reading`: by what they read; `runs`: those that
    run as one with a step, by what it makes."""

    def __init__(self, items: Sequence[Step | Repeat[Step]], readers: Mapping[str, int]) -> None:
        self.readers = readers
        self.makers: dict[str, Step] = {}
        self.reading: dict[str, list[Step]] = {}
        self.runs: dict[str, list[Step]] = {}
        for run in together(items):
            steps = [item for item in run if not isinstance(item, Repeat)]
            for step in steps:
                self.makers[step.result] = step
                self.runs[step.result] = steps
                for name in reads(step):
                    self.reading.setdefault(name, []).append(step)

    def of_gathers(self) -> Iterator[CollectiveMatmul]:
        """For each gathered value that only ops of this region read: these, with one gather, two, ..."""
        for move in self.makers.values():
            if not isinstance(move, Move) or not self.collective(move, AllGather):
                continue
            reading = self.reading.get(move.result, [])
            ops = tuple(step for step in reading if isinstance(step, Compute))
            whole = all(one in ops for op in ops for one in self.runs[op.result])
            if not ops or len(ops) != self.readers[move.result] or not whole:
                continue
            chain: tuple[Move, ...] = ()
            before: Step | None = move
            while isinstance(before, Move) and self.collective(before, AllGather):
                chain = (before, *chain)
                yield CollectiveMatmul(chain, ops, ())
                before = self.makers.get(before.operand) if self.readers[before.operand] == 1 else None

    def of_scatters(self) -> Iterator[CollectiveMatmul]:
        """For each result that is only reduce-scattered: what makes it, with one scatter, two, ..."""
        for step in self.makers.values():
            if not isinstance(step, Compute) or not self.alone(step):
                continue
            chain: tuple[Move, ...] = ()
            following = self.only_reader(step)
            while isinstance(following, Move) and self.collective(following, ReduceScatter):
                chain = (*chain, following)
                for parts in self.parts(step):
                    yield CollectiveMatmul((), (*parts, step), chain)
                following = self.only_reader(following)

    def parts(self, step: Compute) -> Iterator[tuple[Compute, ...]]:
        """What else may be in a loop with the op that makes what is scattered: terms of a sum."""
        match step.op:
            case Einsum():
                yield ()
            case Sum(_, terms, _):
                makers = (self.makers.get(name) for name in terms)
                known = {maker.result for maker in makers if maker and self.only_reader(maker) is step}
                parts = [
                    maker
                    for maker in self.makers.values()
                    if isinstance(maker, Compute) and maker.result in known and isinstance(maker.op, Einsum)
                ]
                least = 1 if len(parts) <= MOST_PARTS else len(parts)
                for count in range(len(parts), least - 1, -1):
                    yield from combinations(parts, count)

    def only_reader(self, step: Step) -> Step | None:
        """The step of this region that alone reads what a step makes."""
        reading = self.reading.get(step.result, [])
        return reading[0] if len(reading) == 1 and self.readers[step.result] == 1 else None

    def collective(self, move: Move, kind: type) -> bool:
        """Whether a move is of a kind, and runs as one with no other."""
        return isinstance(move.collective, kind) and self.alone(move)

    def alone(self, step: Step) -> bool:
        """Whether a step runs as one with no other."""
        return len(self.runs[step.result]) == 1


Item = Compute | Move | Repeat[Step]


def reduces(spmd: SpmdProgram) -> list[Move]:
    """The all-reduces of sums that an einsum or a sum of terms makes, in order, but for those in a joined one."""
    steps = [placed.item for placed in walk(spmd.body) if not isinstance(placed.item, Repeat)]
    makers = {step.result for step in steps if isinstance(step, Compute) and isinstance(step.op, Einsum | Sum)}
    values = spmd.table()
    joined = {
        step.result
        for before, after in pairwise(steps)
        if isinstance(after, Move) and after.joined
        for step in (before, after)
        if isinstance(step, Move)
    }
    return [
        step
        for step in steps
        if isinstance(step, Move)
        and isinstance(step.collective, AllReduce)
        and step.operand in makers
        and step.result not in joined
        and values[step.operand].layout.reduction is Reduction.SUM
    ]


def split(spmd: SpmdProgram, move: Move) -> Iterator[SpmdProgram]:
    """The program with one all-reduce in its two halves, for every dim that can be scattered."""
    assert isinstance(move.collective, AllReduce), "reduces() gives all-reduces"
    table, axes = spmd.table(), move.collective.axes
    before = table[move.operand]
    name = _free(move.result, set(table))
    for dim in range(len(before.dims)):
        scatter = ReduceScatter(axes, dim)
        try:
            layout = apply(scatter, before.layout)
        except LayoutError:
            continue
        if unsplittable(before.dims, layout, dict(spmd.sizes), spmd.mesh) is not None:
            continue
        value = replace(before, name=name, layout=layout)
        halves = (Move(name, move.operand, scatter), Move(move.result, name, AllGather(axes, dim)))
        yield _with(spmd, move.result, halves, value)


def _free(name: str, used: set[str]) -> str:
    """A name for what is scattered, like that of what is gathered of it."""
    while name in used:
        name += "'"
    return name


def _with(spmd: SpmdProgram, result: str, halves: tuple[Move, Move], value: SpmdValue) -> SpmdProgram:
    body = rewritten(spmd.body, lambda step: halves if step.result == result else (step,))
    table = spmd.table() | {value.name: value}
    return replace(spmd, body=body, values=tuple(table[name] for name in defined(body)))
