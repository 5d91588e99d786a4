"""What one repetition of each repeat takes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod
from typing import TypeVar

from ...cost.estimate import Estimate, MoveCost, OpCost, Totals
from ...cost.loops import LoopCost
from ...ir.program import Repeat, Stored, walk
from ...ir.spmd import SpmdProgram, Step

Cost = TypeVar("Cost", OpCost, MoveCost, LoopCost)


@dataclass(frozen=True)
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
    times = prod(repeat.count for repeat in path)

    def made_in(cost: Cost) -> bool:
        repeats = around[cost.first if isinstance(cost, LoopCost) else cost.result]
        return len(repeats) >= len(path) and all(a is b for a, b in zip(path, repeats, strict=False))

    def inside(costs: Iterable[Cost]) -> tuple[Cost, ...]:
        return tuple(replace(c, times=c.times // times) for c in costs if made_in(c))

    inner = (inside(estimate.ops), inside(estimate.moves), estimate.stored_bytes, inside(estimate.loops))
    return Estimate(*inner).totals()
