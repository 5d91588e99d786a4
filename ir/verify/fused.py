"""Steps that run as one, marked by `+`, and those in one loop, marked by `~`: what may stand side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ..collective import AllGather, AllReduce, AllToAll, ReduceScatter, axes_of, kind
from ..layout import Reduction
from ..program import Einsum, Op, Region, Repeat, Sum, operand_names
from ..record import record
from ..spmd import Compute, Move, SpmdValue, Step

COMBINED = (AllGather, ReduceScatter, AllReduce, AllToAll)  # the collectives that may be part of one


def together(items: Sequence[Step | Repeat[Step]]) -> list[list[Step | Repeat[Step]]]:
    """The items of a region in order, those that run as one in one list."""
    out: list[list[Step | Repeat[Step]]] = []
    for item in items:
        if isinstance(item, Compute | Move) and item.joined and out:
            out[-1].append(item)
        else:
            out.append([item])
    return out


def mark_objection(item: Step, run: Sequence[Step | Repeat[Step]], values: Mapping[str, SpmdValue]) -> str | None:
    """Why `item` cannot run as one with the steps of `run`, None if it can.

    All of them read and make values of `values`.
    """
    made = {step.result for step in run if not isinstance(step, Repeat)}
    match run[:1], item:
        case [Move(_, first, one)], Move(_, operand, other):
            before, after = values[first], values[operand]
            if not isinstance(one, COMBINED) or type(one) is not type(other):
                return "only gathers, scatters, reductions or exchanges, all of one kind, run as one collective"
            if set(axes_of(one, before.layout)) != set(axes_of(other, after.layout)):
                return "collectives that run as one go over the same axes"
            if before.dtype != after.dtype or before.layout.reduction != after.layout.reduction:
                return "collectives that run as one are of one dtype, and reduce alike"
            return f"`{operand}` is made by the collective itself" if operand in made else None
        case [Compute(Einsum() as one)], Compute(Einsum() as other):
            if projection(one) is None or projection(one) != projection(other):
                return "einsums that run as one read one value and sum over the same indices of it"
            return "it reads what is made with it" if made & set(operand_names(other)) else None
    return f"{_what(item)} does not run as one with what stands before it"


def projection(op: Einsum) -> tuple[str, tuple[str, ...], frozenset[str]] | None:
    """A matmul as (what is projected, its indices, those summed over); None for any other einsum.

    The projected value is the first operand. The second shares with it the summed indices alone.
    """
    if len(op.operands) != 2:
        return None
    (name, _), (read, weight) = op.operands, op.indices
    summed = frozenset(set(read) & set(weight))
    if not summed or summed & set(op.output) or set(op.output) != set(read) ^ set(weight):
        return None
    return name, read, summed


def _what(item: Step) -> str:
    return f"the {kind(item.collective)}" if isinstance(item, Move) else "the op"


@record
class Stage:
    """One ring of a loop: blocks of `dim`, by number, go round along `axis`."""

    axis: str
    dim: int


@record
class CollectiveMatmul:
    """A loop: `gathers` one after the other and the `ops` that read the last, or `ops` and the
    `scatters` of what the last of them makes. One of `gathers` and `scatters` is empty."""

    gathers: tuple[Move, ...]
    ops: tuple[Compute, ...]
    scatters: tuple[Move, ...]

    @property
    def moves(self) -> tuple[Move, ...]:
        """Its collectives."""
        return self.gathers or self.scatters

    @property
    def steps(self) -> tuple[Step, ...]:
        """All that runs in it, in order."""
        return (*self.gathers, *self.ops, *self.scatters)

    @property
    def block(self) -> str:
        """The value of which a chip holds one block: what the first gather takes, or the last scatter leaves."""
        return self.gathers[0].operand if self.gathers else self.scatters[-1].result

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Its rings, the outermost first: for each block that comes round in one, the next goes round once.

        In this order, too, a block's place along a dim is counted: the first ring counts single
        blocks, the next of the same dim as many blocks as the first has chips.
        """
        out: list[Stage] = []
        for move in self.moves:
            match move.collective:
                case AllGather(axes, dim):
                    out += [Stage(axis, dim) for axis in reversed(axes)]
                case ReduceScatter(axes, dim):
                    out += [Stage(axis, dim) for axis in axes]
        return tuple(out if self.gathers else reversed(out))


def runs(items: Sequence[Step | Repeat[Step]]) -> list[list[Step | Repeat[Step]]]:
    """The items of a region in order, those that run in one loop in one list."""
    out: list[list[Step | Repeat[Step]]] = []
    for item in items:
        if isinstance(item, Compute | Move) and item.looped and out:
            out[-1].append(item)
        else:
            out.append([item])
    return out


def loop_of(run: Sequence[Step | Repeat[Step]]) -> CollectiveMatmul | None:
    """The loop that a run of several steps is; None where its steps are not in the order of one."""
    kinds = "".join("o" if isinstance(item, Compute) else "m" if isinstance(item, Move) else "r" for item in run)
    ops = tuple(item for item in run if isinstance(item, Compute))
    moves = tuple(item for item in run if isinstance(item, Move))
    gathering = kinds == "m" * len(moves) + "o" * len(ops)
    if not ops or not moves or not (gathering or kinds == "o" * len(ops) + "m" * len(moves)):
        return None
    return CollectiveMatmul(moves if gathering else (), ops, () if gathering else moves)


def walk_loops(region: Region[Step], times: int = 1) -> Iterator[tuple[CollectiveMatmul, int]]:
    """The loops of a region and of the repeats in it, in order, each with how often it runs."""
    for run in runs(region.items):
        loop = loop_of(run) if len(run) > 1 else None
        if loop is not None:
            yield loop, times
        for item in run:
            if isinstance(item, Repeat):
                yield from walk_loops(item.body, times * item.count)


def misfits(
    items: Sequence[Step | Repeat[Step]], values: Mapping[str, SpmdValue], readers: Mapping[str, int]
) -> Iterator[tuple[str, str]]:
    """The steps of a region that are marked and make no loop, by what they make, each with why.

    All that they read and make is in `values`; `readers` as in `objection`.
    """
    before: list[Step | Repeat[Step]] = []
    for run in runs(items):
        first, last = run[0], run[-1]
        if isinstance(first, Compute | Move):
            if first.looped:
                yield first.result, "nothing stands before it"
            elif first.joined and len(before) + len(run) > 2:
                yield first.result, "it runs as one with what is in another loop, or in none"
        if len(run) > 1 and isinstance(last, Compute | Move):
            loop, order = loop_of(run), "a loop is gathers and then ops, or ops and then scatters"
            why = objection(loop, values, readers) if loop else order
            if why:
                yield last.result, why
        before = run


def objection(loop: CollectiveMatmul, values: Mapping[str, SpmdValue], readers: Mapping[str, int]) -> str | None:
    """Why these steps cannot run in one loop, None if they can.

    They read and make values of `values`; `readers` counts for each value the steps, carries and
    results that read it.
    """
    expected = AllGather if loop.gathers else ReduceScatter
    if not all(isinstance(move.collective, expected) for move in loop.moves):
        return "only gathers that an einsum reads, or reduce-scatters of what one makes, run in a loop"
    if any(move.joined for move in loop.moves):
        return "a collective that runs as one with another does not run in a loop"
    if any(a.result != b.operand or readers[a.result] != 1 for a, b in zip(loop.moves, loop.moves[1:], strict=False)):
        return "the collectives of a loop each take what the one before made, and nothing else reads it"
    axes = {stage.axis for stage in loop.stages}
    return _of_gather(loop, axes, values, readers) if loop.gathers else _of_scatter(loop, values, readers)


def _of_gather(
    loop: CollectiveMatmul, axes: set[str], values: Mapping[str, SpmdValue], readers: Mapping[str, int]
) -> str | None:
    gathered = loop.gathers[-1].result
    if readers[gathered] != len(loop.ops):
        return f"`{gathered}` is read by steps that are not in the loop"
    made = {step.result for step in loop.ops}
    for step in loop.ops:
        op = step.op
        if not isinstance(op, Einsum) or op.operands.count(gathered) != 1:
            return f"the op that makes `{op.result}` is no einsum that reads `{gathered}` once"
        if made & set(op.operands):
            return f"the einsum that makes `{op.result}` reads what is made in the loop"
        if not _plain(op):
            return f"the einsum that makes `{op.result}` names an index twice in one operand"
        layout = values[op.result].layout
        if not axes <= {*layout.split_axes, *layout.partial}:
            return f"all chips along an axis of the loop would do the same for `{op.result}`"
    return None


def _of_scatter(loop: CollectiveMatmul, values: Mapping[str, SpmdValue], readers: Mapping[str, int]) -> str | None:
    *parts, last = loop.ops
    if last.result != loop.scatters[0].operand or readers[last.result] != 1:
        return f"the loop does not reduce `{last.result}`, or something else reads it"
    if values[last.result].layout.reduction is not Reduction.SUM:
        return "only sums are reduced in a loop"
    if any(step.joined for step in loop.ops):
        return "an einsum that runs as one with another is not made block by block"
    einsums: list[Op] = [step.op for step in parts]
    if isinstance(last.op, Sum):
        terms = operand_names(last.op)
        if any(readers[op.result] != 1 or op.result not in terms for op in einsums):
            return f"what is made in the loop is a term of `{last.result}` and nothing else reads it"
        if not einsums:
            return f"no einsum makes a term of `{last.result}` in the loop"
    elif einsums:
        return f"`{last.result}` is no sum of what is made before it"
    else:
        einsums = [last.op]
    total = values[last.result].dims
    scattered = {total[stage.dim] for stage in loop.stages}
    for op in einsums:
        whole = not scattered <= set(values[op.result].dims)
        if whole or not isinstance(op, Einsum) or not _plain(op):
            return f"the op that makes `{op.result}` is no einsum that can be made block by block"
    return None


def _plain(op: Einsum) -> bool:
    """Whether no operand has an index twice, and none is subtracted."""
    return not op.zeros and all(len(set(indices)) == len(indices) for indices in op.indices)
