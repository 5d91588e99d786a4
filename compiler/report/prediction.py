"""A phase's prediction for people and as data: latency, tokens and money, and what the time goes to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import TypeVar

from ...cost.estimate import Estimate, MoveCost, OpCost, Totals
from ...cost.loops import LoopCost
from ...ir.program import Repeat, Stored, walk
from ...ir.spmd import SpmdProgram, Step
from ..plan.compiled import CompiledPhase
from ..text.terminal import count_text, time_text

Data = dict[str, object]


def prediction_lines(compiled: CompiledPhase) -> Iterator[str]:
    """The prediction as a few lines of the report; nothing of a phase that takes no time."""
    found = compiled.prediction
    if found.tokens_per_s is None:
        return
    bar = ""
    if found.low_s is not None and found.high_s is not None:
        bar = f" ({time_text(found.low_s)} to {time_text(found.high_s)} in 95% of cases)"
    rate = f"{found.tokens:,} token{'' if found.tokens == 1 else 's'}, {count_text(found.tokens_per_s)} a second"
    yield f"  A step takes {time_text(found.seconds)}{bar} and processes {rate}."
    dollars = found.dollars_per_million
    money = "" if dollars is None else f", {count_text(dollars)} dollars"
    yield f"  A million tokens take {count_text(found.chip_s_per_million)} chip-seconds{money}."
    spent = ", ".join(f"{resource} {seconds / found.seconds:.0%}" for resource, seconds in found.shares)
    yield f"  Most of the time goes to {found.binds}: {spent}."


def prediction_data(compiled: CompiledPhase) -> Data:
    """The prediction as an object. Times are seconds, sizes bytes."""
    found = compiled.prediction
    return {
        "latency_s": found.seconds,
        "low_s": found.low_s,
        "high_s": found.high_s,
        "tokens": found.tokens,
        "tokens_per_s": found.tokens_per_s,
        "mfu": found.mfu,
        "hbm_bytes_per_chip": found.hbm_bytes,
        "chip_s_per_million_tokens": found.chip_s_per_million,
        "dollars_per_million_tokens": found.dollars_per_million,
        "binds": found.binds.value,
        "spent_s": {resource.value: seconds for resource, seconds in found.shares},
        "parts": [
            {"result": part.result, "what": part.what, "times": part.times, "seconds": part.seconds}
            for part in found.parts
        ],
    }


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
