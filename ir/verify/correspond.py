"""Is a sharded program the program that it is said to be, once moves are looked through?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from ..diagnostics import listed
from ..program import Op, Program, Region, Repeat, with_operands
from ..spmd import Compute, Move, SpmdProgram, Step


def differences(spmd: SpmdProgram, program: Program, origins: Mapping[str, str]) -> Iterator[str]:
    """A sentence for each place where `spmd` is not `program`.

    `origins` names for each value of `spmd` what it is a moved copy of: a value of the program. Dims,
    dtypes, stored tensors, ops, repeats and results are compared, in order, and the phase's sizes.
    """
    if spmd.name != program.name:
        yield f"The sharded program is called `{spmd.name}`, the program `{program.name}`."
    phases = {p.name: p for p in program.phases}
    if spmd.phase not in phases:
        yield f"The program has no phase `{spmd.phase}`."
    elif dict(phases[spmd.phase].sizes) != dict(spmd.sizes):
        yield f"The sizes are not those of the phase `{spmd.phase}`."
    elif phases[spmd.phase].micro_batches != spmd.micro_batches:
        yield f"The micro-batches are not those of the phase `{spmd.phase}`."
    elif dict(phases[spmd.phase].mean) != dict(spmd.mean):
        yield f"The mean sizes are not those of the phase `{spmd.phase}`."
    values = spmd.table()
    for value in program.values:
        if value.name in values and values[value.name].value != value:
            yield f"`{value.name}` has not the dims and dtype that it has in the program."
    yield from _regions("The program", spmd.body, program.body, origins)
    results = tuple(origins[name] for name in spmd.results)
    if results != program.results:
        yield f"The results are {listed(results)}, not {listed(program.results)}."


def _regions(where: str, spmd: Region[Step], region: Region[Op], origins: Mapping[str, str]) -> Iterator[str]:
    """Compare what is stored, then what runs but for moves, in order."""
    if spmd.stored != region.stored:
        yield f"{where} stores other tensors than it should."
    for ours, its in _paired(spmd, region):
        match ours, its:
            case Repeat(), Repeat():
                yield from _repeats(ours, its, origins)
            case Compute(op), other if other is not None and not isinstance(other, Repeat):
                if op.result != other.result:
                    yield f"{where} makes `{op.result}` in the place of `{other.result}`."
                elif with_operands(op, origins) != other:
                    yield f"{where} makes `{op.result}` by another op, or of other operands, than it should."
            case _ if ours is None and its is not None:
                yield f"{where} lacks {_title(its)}."
            case _ if ours is not None and its is None:
                yield f"{where} has {_title(ours)}, which the program lacks."
            case _ if ours is not None and its is not None:
                yield f"{where} has {_title(ours)} in the place of {_title(its)}."


def _paired(
    spmd: Region[Step], region: Region[Op]
) -> Iterator[tuple[Compute | Repeat[Step] | None, Op | Repeat[Op] | None]]:
    """What runs, but for moves, beside what should, by name. Steps that run as one may stand earlier
    or later than in the program: that all is made before it is read is checked elsewhere."""
    items = [item for item in spmd.items if not isinstance(item, Move)]
    ours = {_name(item): item for item in items}
    named = {_name(item) for item in region.items}
    strangers = iter([item for item in items if _name(item) not in named])
    for its in region.items:
        yield ours.get(_name(its)) or next(strangers, None), its
    for item in strangers:
        yield item, None


def _name(item: Compute | Repeat[Step] | Op | Repeat[Op]) -> tuple[bool, str]:
    if isinstance(item, Repeat | Repeat):
        return True, item.name
    return False, item.result


def _repeats(ours: Repeat[Step], its: Repeat[Op], origins: Mapping[str, str]) -> Iterator[str]:
    """Compare two repeats: name, count, carries, body."""
    carries = tuple(replace(c, initial=origins[c.initial], next=origins[c.next]) for c in ours.carries)
    if (ours.name, ours.count) != (its.name, its.count):
        yield f"`{ours.name}` runs {ours.count} times in the place of `{its.name}`, which runs {its.count} times."
    if carries != its.carries:
        yield f"The repeat `{ours.name}` carries other values than it should."
    yield from _regions(f"The repeat `{ours.name}`", ours.body, its.body, origins)


def _title(item: Compute | Repeat[Step] | Op | Repeat[Op] | Move) -> str:
    if isinstance(item, Repeat | Repeat):
        return f"the repeat `{item.name}`"
    return f"the op that makes `{item.result}`"
