"""What the parts of a sharded program take, at many sizes of its dims at once: each repeat, and what stands between.

The layouts stay, so these are the times of one plan. Where a size does not divide as the plan's own did, the parts of
its blocks count as they are: nothing is said of what padding them would take.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import truediv
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..ir.program import Repeat, walk
from ..ir.record import record
from ..ir.spmd import Compute, Move, SpmdProgram, Step
from .estimate import OpWork, Scale, StoredBytes, Transfer, step_costs
from .hardware import Hardware
from .network import Network

Floats = NDArray[np.float64]


@record
class Unit:
    """A repeat, or what stands before, between or after the repeats (`name` None), which runs once. `seconds`: of one
    repetition, for each of the sizes. `handed_bytes`: what a chip holds of the values that it hands on."""

    name: str | None
    seconds: Floats
    handed_bytes: Floats


def unit_times(spmd: SpmdProgram, hardware: Hardware, sizes: Mapping[str, Floats]) -> tuple[Unit, ...]:
    """The units of a program in order; `sizes`: of some dims, all arrays of one length. Others keep theirs."""
    scale = float_scale(spmd, sizes)
    network, count = Network(hardware, spmd.mesh), len(next(iter(sizes.values())))
    repeats = _units(spmd)
    unit_of = {name: n for n, (_, names) in enumerate(repeats) for name in names}
    seconds = [np.zeros(count) for _ in repeats]
    for step in step_costs(spmd, scale):
        match step:
            case OpWork(result, times, done):
                taken = hardware.work_s(done)
            case Transfer(result, _, times):
                taken = step.seconds(network, lambda held: _array(held, count))
            case StoredBytes():
                continue
        unit = unit_of[result]
        repeat = repeats[unit][0]
        seconds[unit] += _array(taken, count) * (times // (repeat.count if repeat else 1))
    handed = _handed([repeat for repeat, _ in repeats], spmd, scale, count)
    names = [repeat.name if repeat else None for repeat, _ in repeats]
    return tuple(Unit(*each) for each in zip(names, seconds, handed, strict=True))


def float_scale(spmd: SpmdProgram, sizes: Mapping[str, Floats]) -> Scale:
    """Sizes as floats: of some dims `sizes`, arrays of one length, of others those of a program."""
    own = {dim: float(size) for dim, size in spmd.sizes} | dict(sizes)
    axes = {axis: float(size) for axis, size in spmd.mesh.axes}
    return Scale(own.__getitem__, axes.__getitem__, ratio=truediv)


def _array(numbers: Any, count: int) -> Floats:
    """Numbers of any kind, one or many, as floats."""
    return np.broadcast_to(np.asarray(numbers, dtype=np.float64), count)


def _units(spmd: SpmdProgram) -> list[tuple[Repeat[Step] | None, list[str]]]:
    """Each unit, with the values that its steps make."""
    found: list[tuple[Repeat[Step] | None, list[str]]] = []
    for placed in walk(spmd.body):
        outer = placed.repeats[0] if placed.repeats else None
        match placed.item:
            case Repeat() as repeat if outer is None:
                found.append((repeat, []))
            case Compute() | Move() as step:
                if not found or found[-1][0] is not outer:
                    found.append((outer, []))
                found[-1][1].append(step.result)
    return found


def _handed(repeats: list[Repeat[Step] | None], spmd: SpmdProgram, scale: Scale, count: int) -> list[Floats]:
    """What each unit hands on: a repeat its carries, what stands before one those that it begins with."""
    values, found, following = spmd.table(), list[Floats](), np.zeros(count)
    for repeat in reversed(repeats):
        if repeat is not None:
            sizes = [_array(scale.local_bytes(values[carry.inside]), count) for carry in repeat.carries]
            following = np.sum(sizes, axis=0) if sizes else np.zeros(count)
        found.append(following)
    return found[::-1]
