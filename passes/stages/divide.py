"""The layers of a program divided over stages: each stage a program of its own.

What repeats is divided, repetition by repetition; what stands before is the first stage's, what stands after the
last one's, and what stands between two repeats goes with the repetition before it. A stage gets as inputs what
earlier ones have made and it reads, or hands on to later ones; what is made of inputs alone, such as the angles of a
rope, it makes again. Parameters outside of repeats that several stages read, each of them stores.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ...ir.dataflow import defined, makes, reads
from ...ir.program import Kind, Op, Phase, Pin, Program, Region, Repeat, Stored, Value, operand_names

Items = tuple[Op | Repeat[Op], ...]


@dataclass(frozen=True)
class Stage:
    """A part of a program. `received`: those of its inputs that the stage before hands on; `passed`: its results that
    the next stage gets, in the order of what that receives."""

    program: Program
    layers: int
    received: tuple[str, ...]
    passed: tuple[str, ...]


def layers_of(program: Program) -> int:
    """How many layers a program has: repetitions of repeats that stand in no other."""
    return sum(item.count for item in program.body.items if isinstance(item, Repeat))


def divide(program: Program, layers: Sequence[int]) -> tuple[Stage, ...]:
    """The stages of a program, of which each has so many `layers`, at least one.

    A carry that goes from one stage to the next is `NAME.passed` in the one and `NAME.received` in the other, so that
    stages which do the same are equal.
    """
    assert all(n > 0 for n in layers) and sum(layers) == layers_of(program), "every layer is in one stage"
    parts, passed_as, table = _parts(program, layers)
    makers = {name: item for item in program.body.items for name in makes(item)}
    stored = {one.value: one for one in program.body.stored}
    alike = _of_inputs(program)
    needed: tuple[str, ...] = ()  # by the stage after
    found: list[Stage] = []
    for n in reversed(range(len(parts))):
        items = _with_makers(parts[n], makers, alike)
        made = [name for item in items for name in makes(item)]
        passed = tuple(passed_as.get(name, name) for name in needed)
        own = tuple(name for name in program.results if name in made and name not in passed)
        wanted = tuple(dict.fromkeys([*_reads(items), *(name for name in passed if name not in made)]))
        received = tuple(name for name in wanted if name not in stored)
        inputs = tuple(Stored(name, Kind.INPUT) for name in received)
        body: Region[Op] = Region((*inputs, *(one for name, one in stored.items() if name in wanted)), items)
        found.append(Stage(_program(program, body, (*passed, *own), table), layers[n], received, passed))
        needed = received
    assert not needed, "the first stage reads what is stored alone"
    return tuple(reversed(found))


def _parts(program: Program, layers: Sequence[int]) -> tuple[list[Items], dict[str, str], dict[str, Value]]:
    """The items of each stage, repeats cut in parts; what a value that is received is called by who passes it; all
    values, new ones among them."""
    parts: list[list[Op | Repeat[Op]]] = [[] for _ in layers]
    ends = [sum(layers[: n + 1]) for n in range(len(layers))]
    table, passed_as, before = program.table(), dict[str, str](), 0
    for item in program.body.items:
        if not isinstance(item, Repeat):
            parts[_stage_of(max(before - 1, 0), ends)].append(item)
            continue
        at, last = before, before + item.count
        while at < last:
            stage = _stage_of(at, ends)
            upto = min(ends[stage], last)
            carries = []
            for c in item.carries:
                begins, stays = f"{c.inside}.received", f"{c.result}.passed"
                passed_as[begins] = stays
                table |= {name: replace(table[c.result], name=name) for name in (begins, stays)}
                initial, result = c.initial if at == before else begins, c.result if upto == last else stays
                carries.append(replace(c, initial=initial, result=result))
            body = _with_streams(item.body, at - before, upto - before, item.count)
            parts[stage].append(replace(item, count=upto - at, carries=tuple(carries), body=body))
            at = upto
        before = last
    return [tuple(items) for items in parts], passed_as, table


def _with_streams(region: Region[Op], start: int, end: int, count: int, inner: int = 1) -> Region[Op]:
    """What repeats, of which some repetitions are another stage's: of those that are streamed, spread evenly over all
    of `count`, a stage has its part. `inner`: how often the region runs in each repetition."""

    def part(stored: Stored) -> Stored:
        if stored.streamed is None:
            return stored
        layers = stored.streamed.count // inner
        own = (layers * end // count - layers * start // count) * inner
        return replace(stored, streamed=replace(stored.streamed, count=own) if own else None)

    items = (
        replace(item, body=_with_streams(item.body, start, end, count, inner * item.count))
        if isinstance(item, Repeat)
        else item
        for item in region.items
    )
    return Region(tuple(map(part, region.stored)), tuple(items))


def _stage_of(layer: int, ends: Sequence[int]) -> int:
    return next(n for n, end in enumerate(ends) if layer < end)


def _reads(items: Iterable[Op | Repeat[Op]]) -> Iterator[str]:
    """What items read that none of them makes or stores."""
    region: Region[Op] = Region((), tuple(items))
    own = set(defined(region))
    return (name for item in items for name in reads(item) if name not in own)


def _of_inputs(program: Program) -> frozenset[str]:
    """Values that ops outside of repeats make of inputs alone."""
    known = {one.value for one in program.body.stored if one.kind is Kind.INPUT}
    inputs = set(known)
    for item in program.body.items:
        if not isinstance(item, Repeat) and known.issuperset(operand_names(item)):
            known.add(item.result)
    return frozenset(known - inputs)


def _with_makers(items: Items, makers: Mapping[str, Op | Repeat[Op]], alike: Collection[str]) -> Items:
    """Items, after the ops that make again what they read and what is made of inputs alone."""
    made = {name for item in items for name in makes(item)}
    before: dict[str, Op | Repeat[Op]] = {}

    def add(name: str) -> None:
        if name in alike and name not in made and name not in before:
            op = makers[name]
            assert not isinstance(op, Repeat)
            for read in operand_names(op):
                add(read)
            before[name] = op

    for name in list(_reads(items)):
        add(name)
    return (*before.values(), *items)


def layer_programs(program: Program) -> tuple[tuple[int, Program], ...]:
    """Each repeat as a program of one of its layers, which reads what is around it and streams nothing, with the count
    of them."""
    found = []
    table = program.table()
    stored = {one.value: one for one in program.body.stored}
    for item in program.body.items:
        if isinstance(item, Repeat):
            read = tuple(dict.fromkeys(_reads((item,))))
            inputs = tuple(stored.get(name, Stored(name, Kind.INPUT)) for name in read)
            layer = replace(item, count=1, body=_with_streams(item.body, 0, 0, item.count))
            body: Region[Op] = Region(inputs, (layer,))
            found.append((item.count, _program(program, body, makes(item), table)))
    return tuple(found)


def without_layers(program: Program) -> Program | None:
    """What a program runs outside of repeats, which reads what they make; None where that is nothing."""
    items: Items = tuple(item for item in program.body.items if not isinstance(item, Repeat))
    layers = (item for item in program.body.items if isinstance(item, Repeat))
    stored = {one.value: one for one in program.body.stored}
    inputs = tuple(stored.get(name, Stored(name, Kind.INPUT)) for name in dict.fromkeys(_reads(items)))
    made = [name for item in items for name in makes(item)]
    wanted = {*program.results, *_reads(layers)}
    body: Region[Op] = Region(inputs, items)
    return _program(program, body, tuple(name for name in made if name in wanted), program.table()) if items else None


def _program(program: Program, body: Region[Op], results: tuple[str, ...], table: Mapping[str, Value]) -> Program:
    """The program of a stage, with the pins that are about it."""
    there = set(defined(body))
    values = tuple(table[name] for name in defined(body))
    pins = tuple(pin for pin in program.pins if _holds(pin, there))
    return replace(program, values=values, body=body, results=results, pins=pins)


def _holds(pin: Pin, there: Collection[str]) -> bool:
    return pin.value in there and (pin.op is None or pin.op in there)


def turns(program: Program, batch: str, phases: Mapping[str, tuple[int, int]]) -> Program:
    """The program with phases whose batches take turns: for each phase the micro-batches that its batch, of the dim
    `batch`, is divided into, and how often it counts. Phases that are not named are left out. A batch that is divided
    already is divided anew, not once more."""

    def bound(phase: Phase) -> Phase:
        parts, calls = phases[phase.name]
        whole = ((dim, size * phase.micro_batches if dim == batch else size) for dim, size in phase.sizes)
        sizes = tuple((dim, size // parts if dim == batch else size) for dim, size in whole)
        return replace(phase, sizes=sizes, calls=calls, micro_batches=parts)

    return replace(program, phases=tuple(bound(phase) for phase in program.phases if phase.name in phases))
