"""What makes and what reads values, in programs and in sharded programs. The verifier finds out for itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from .program import Append, Item, Op, Program, Region, Repeat, operand_names, walk
from .spmd import Compute, Move, SpmdProgram, Step


def ops(program: Program | SpmdProgram) -> Iterator[Op]:
    """Every op of a program, in and outside of repeats."""
    return ops_in(program.body)


def ops_in(region: Region[Any]) -> Iterator[Op]:
    """Every op of a region, of a program or a sharded program, and below it."""
    for placed in walk(region):
        item = placed.item.op if isinstance(placed.item, Compute) else placed.item
        if isinstance(item, Op):
            yield item


def regions(region: Region[Item], times: int = 1) -> Iterator[tuple[Region[Item], int]]:
    """A region and those of the repeats in it, each with how often it runs."""
    yield region, times
    for item in region.items:
        if isinstance(item, Repeat):
            yield from regions(item.body, times * item.count)


def rewritten(region: Region[Item], write: Callable[[Item], Iterable[Item]]) -> Region[Item]:
    """A region with what `write` gives in place of each of its items, in order, and of each in its repeats."""
    items: list[Item | Repeat[Item]] = []
    for item in region.items:
        if isinstance(item, Repeat):
            items.append(replace(item, body=rewritten(item.body, write)))
        else:
            items += write(item)
    return replace(region, items=tuple(items))


def moves(spmd: SpmdProgram) -> list[Move]:
    """Every collective of a program, in and outside of repeats."""
    return [placed.item for placed in walk(spmd.body) if isinstance(placed.item, Move)]


def repeat_counts(program: Program | SpmdProgram) -> dict[str, int]:
    """How often each repeat runs where it stands, by its name."""
    body: Region[Any] = program.body
    return {placed.item.name: placed.item.count for placed in walk(body) if isinstance(placed.item, Repeat)}


def appends(program: Program | SpmdProgram) -> dict[str, Append]:
    """What is appended to each cache, by the cache's name."""
    return {op.cache: op for op in ops(program) if isinstance(op, Append)}


def makes(item: Op | Step | Repeat[Op] | Repeat[Step]) -> tuple[str, ...]:
    """The values that an item leaves to those after it."""
    return tuple(c.result for c in item.carries) if isinstance(item, Repeat) else (item.result,)


def reads(item: Op | Step | Repeat[Op] | Repeat[Step]) -> tuple[str, ...]:
    """The values that an item reads, each once; of a repeat also those of its own, without what goes round."""
    match item:
        case Repeat(_, _, carries, body):
            inner = (name for each in body.items for name in reads(each))
            return tuple(dict.fromkeys([*(c.initial for c in carries), *inner]))
        case Move(_, operand):
            return (operand,)
        case Compute(op):
            return operand_names(op)
        case op:
            return operand_names(op)


def defined(region: Region[Op] | Region[Step]) -> list[str]:
    """The values of a region in the order in which they are defined."""
    names = [stored.value for stored in region.stored]
    for item in region.items:
        if isinstance(item, Repeat):
            names += [*(c.inside for c in item.carries), *defined(item.body)]
        names += makes(item)
    return names


def readers(spmd: SpmdProgram) -> Counter[str]:
    """How many steps, carries and results read each value; a carry reads what enters and what is handed on."""
    count: Counter[str] = Counter(spmd.results)
    for placed in walk(spmd.body):
        match placed.item:
            case Compute() | Move() as step:
                count.update(reads(step))
            case Repeat(_, _, carries, _):
                count.update(name for carry in carries for name in (carry.initial, carry.next))
    return count


def origins(spmd: SpmdProgram) -> dict[str, str]:
    """For each moved copy, the value that it is a copy of."""
    found: dict[str, str] = {}
    for move in moves(spmd):
        found[move.result] = found.get(move.operand, move.operand)
    return found
