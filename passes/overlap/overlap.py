"""Overlap: steps put into loops, so that arithmetic hides what is sent, or what is sent hides the arithmetic.

Layouts stay what they were chosen to be, and so do collectives, but that an all-reduce becomes its two
halves where loops of these save a good deal. Of all loops that the steps can make, the
ones that hide the most time together are found by an integer program: a step is in one loop at most,
and no loops wait for each other. The steps of a loop are put side by side; where that would take more
memory than there is, only those that stand so already make loops.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from ...cost.estimate import estimate, steps_alone
from ...cost.hardware import Hardware
from ...cost.loops import loop_cost
from ...cost.memory import memory
from ...cost.network import Network
from ...cost.scores import scores
from ...ir.dataflow import defined, makes, readers, reads, regions
from ...ir.program import Region, Repeat, operand_names
from ...ir.record import record
from ...ir.spmd import SpmdProgram, Step
from ...ir.verify.fused import CollectiveMatmul, together
from ..ilp.model import Model
from ..ilp.solver import Settings, solve
from ..lower.combine_collectives import Item
from .candidates import candidates, reduces, split

LEAST = 1e-9  # of what its steps take, that a loop hides; less is rounding
WORTH = 1e-3  # of the time of the whole program, that splitting an all-reduce saves; less is not worth a step more
EQUAL = 1e-12  # relative, between two loops that hide the same
UNIT = 1e6  # what all loops hide, in the solver's unit, far above its tolerances
SETTINGS = Settings()


@record
class LoopCandidate:
    """A loop that could be made, and what it hides, seconds, in all its executions.

    `items`: those of its region. `in_place`: whether its steps stand side by side there, in their order.
    """

    loop: CollectiveMatmul
    hidden_s: float
    items: tuple[Item, ...]
    makes: frozenset[str]
    in_place: bool


def overlap(
    spmd: SpmdProgram, hardware: Hardware, capacity_bytes: float = math.inf, settings: Settings = SETTINGS
) -> SpmdProgram:
    """The program, which has no loops yet, with the loops that hide the most time together.

    All-reduces are split one after the other, each over the dim by which most is saved. A chip may hold
    `capacity_bytes`, or what it holds anyway. `settings` are those of the solver.
    """
    room = max(capacity_bytes, float(memory(spmd, hardware.lanes, hardware.fuses_products).total_bytes))
    kept, looped = spmd, _best_loops(spmd, hardware, room, settings)
    taken_s = whole_s = estimate(looped, hardware).totals().total_s
    for move in reduces(spmd):
        most_s = taken_s - WORTH * whole_s
        for halved in list(split(kept, move)):
            tried = _best_loops(halved, hardware, room, settings)
            tried_s = estimate(tried, hardware).totals().total_s
            if tried_s < most_s:
                kept, looped, taken_s, most_s = halved, tried, tried_s, tried_s
    return looped


def _best_loops(spmd: SpmdProgram, hardware: Hardware, room_bytes: float, settings: Settings) -> SpmdProgram:
    """The program with the loops that hide the most time together, its collectives as they are."""
    found = useful(spmd, hardware)
    chosen = best(found, settings)
    whole = _with_loops(spmd, chosen)
    if all(one.in_place for one in chosen):
        return whole
    if memory(whole, hardware.lanes, hardware.fuses_products).total_bytes <= room_bytes:
        return whole
    return _with_loops(spmd, best([one for one in found if one.in_place], settings))


def useful(spmd: SpmdProgram, hardware: Hardware) -> list[LoopCandidate]:
    """Every loop that hides something, region by region.

    One that makes or reads scores is none: attention is fused, and block by block they would be stored.
    """
    network, values, read, unstored = Network(hardware, spmd.mesh), spmd.table(), readers(spmd), scores(spmd)
    alone = steps_alone(estimate(spmd, hardware), spmd)
    found = []
    for region, times in regions(spmd.body):
        place = {name: n for n, item in enumerate(region.items) for name in makes(item)}
        for loop in candidates(region, values, read):
            cost = loop_cost(loop, times, spmd, network, alone)
            touched = set(cost.results).union(*(operand_names(step.op) for step in loop.ops))
            if cost.hidden_s > LEAST * cost.apart_s and not touched & unstored:
                at = [place[name] for name in cost.results]
                in_place = at == list(range(at[0], at[0] + len(at)))
                found.append(
                    LoopCandidate(loop, times * cost.hidden_s, region.items, frozenset(cost.results), in_place)
                )
    return found


def best(found: Sequence[LoopCandidate], settings: Settings = SETTINGS) -> list[LoopCandidate]:
    """Those that hide the most together: no step in two of them, and none that wait for each other.

    A loop that hides no more than another of some of its steps is not among them.
    """
    known = [one for one in found if not any(_no_worse(other, one) for other in found)]
    if not known:
        return []
    names = {name for one in known for name in one.makes}
    sharing = sorted({tuple(n for n, one in enumerate(known) if name in one.makes) for name in names})
    limits = [(group, 1) for group in sharing]
    while True:
        chosen = _packed([one.hidden_s for one in known], limits, settings)
        knots = list(_knots(known, chosen))
        if not knots:
            return [known[n] for n in chosen]
        limits += [(knot, len(knot) - 1) for knot in knots]


def _no_worse(one: LoopCandidate, other: LoopCandidate) -> bool:
    """Whether a loop hides as much as another that has all of its steps and more."""
    return one.makes < other.makes and one.hidden_s >= other.hidden_s * (1 - EQUAL)


def _packed(worth: Sequence[float], limits: Sequence[tuple[Sequence[int], int]], settings: Settings) -> list[int]:
    """Which to take to have most worth, of each group of `limits` so many at most."""
    count, rows = len(worth), len(limits)
    column = np.array([n for group, _ in limits for n in group])
    model = Model(
        cost=np.array(worth) * (-UNIT / sum(worth)),
        upper=np.ones(count),
        integer=np.ones(count, dtype=np.bool_),
        row=np.repeat(np.arange(rows), [len(group) for group, _ in limits]),
        column=column,
        coefficient=np.ones(len(column)),
        low=np.full(rows, -np.inf),
        high=np.array([most for _, most in limits], dtype=np.float64),
    )
    x = solve(model, settings).x
    assert x is not None, "to take none is a solution"
    return [n for n in range(count) if x[n] > 0.5]


def _knots(known: Sequence[LoopCandidate], chosen: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Chosen loops that wait for each other, one circle of them in each region that has any."""
    for items in {id(known[n].items): known[n].items for n in chosen}.values():
        own = [n for n in chosen if known[n].items is items]
        _, circle = _in_order(_units(items, [known[n].loop for n in own]))
        waiting = {name for unit in circle for item in unit.items for name in makes(item)}
        if waiting:
            yield tuple(n for n in own if known[n].makes <= waiting)


@record
class _Unit:
    """Items that stay side by side, and the place that is theirs where nothing else decides."""

    place: int
    items: tuple[Item, ...]


def _units(items: Sequence[Item], loops: Sequence[CollectiveMatmul]) -> list[_Unit]:
    """The steps of each loop, marked, and of what is in none those that run as one.

    A loop of gathers has the place of the first op that reads what they bring, one of scatters that of
    the op whose result they take.
    """
    within = {step.result for loop in loops for step in loop.steps}
    units = []
    place: dict[str, int] = {}
    at = 0
    for run in together(items):
        if isinstance(run[0], Repeat) or run[0].result not in within:
            units.append(_Unit(at, tuple(run)))
        place |= {name: at + n for n, item in enumerate(run) for name in makes(item)}
        at += len(run)
    for loop in loops:
        first, *others = loop.steps
        marked = (first, *(replace(step, looped=True) for step in others))
        units.append(_Unit(place[loop.ops[0 if loop.gathers else -1].result], marked))
    return units


def _in_order(units: Sequence[_Unit]) -> tuple[list[_Unit], list[_Unit]]:
    """The units by their places, what one reads right before it; and units that wait for each other in a
    circle, where there are such."""
    makers = {name: n for n, unit in enumerate(units) for item in unit.items for name in makes(item)}
    read = ({makers[name] for item in unit.items for name in reads(item) if name in makers} for unit in units)
    before = [sorted(some - {n}, key=lambda m: units[m].place) for n, some in enumerate(read)]
    done: dict[int, None] = {}
    for start in sorted(range(len(units)), key=lambda n: units[n].place):
        path = [start] if start not in done else []
        while path:
            waits = next((n for n in before[path[-1]] if n not in done), None)
            if waits is None:
                done[path.pop()] = None
            elif waits in path:
                return [], [units[n] for n in path[path.index(waits) :]]
            else:
                path.append(waits)
    return [units[n] for n in done], []


def _with_loops(spmd: SpmdProgram, chosen: Sequence[LoopCandidate]) -> SpmdProgram:
    """The program with loops, each region in an order near to what it was."""
    body, table = _looped(spmd.body, [one.loop for one in chosen]), spmd.table()
    return replace(spmd, body=body, values=tuple(table[name] for name in defined(body)))


def _looped(region: Region[Step], loops: Sequence[CollectiveMatmul]) -> Region[Step]:
    items = [replace(i, body=_looped(i.body, loops)) if isinstance(i, Repeat) else i for i in region.items]
    own = {name for item in items for name in makes(item)}
    units, _ = _in_order(_units(items, [loop for loop in loops if loop.steps[0].result in own]))
    return Region(region.stored, tuple(item for unit in units for item in unit.items))
