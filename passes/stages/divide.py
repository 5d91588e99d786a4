"""The layers of a program divided over stages: each stage a program of its own.

What repeats is divided between its layers; what stands before these is the first stage's, what stands after them the
last one's, and what stands between two goes with the layer before it. A stage gets as inputs what earlier ones have
made and it reads, or hands on to later ones; what is made of inputs alone, such as the angles of a rope, it makes
again. Parameters outside of repeats that several stages read, each of them stores.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import accumulate, count

from ...ir.dataflow import defined, makes, reads
from ...ir.program import (
    Kind,
    Op,
    Phase,
    Pin,
    PinKind,
    Program,
    Region,
    Repeat,
    Stored,
    Value,
    operand_names,
    stored_in,
)
from ...ir.record import record
from .layers import Segment, of_inputs, repeats_of, segments_of, works_alone
from .opened import MARK, Opened, Origin, Part, named, renamed_region, repeat_names, with_streams

Items = tuple[Op | Repeat[Op], ...]  # that run one after the other


@record
class Stage:
    """A part of a program. `received`: those of its inputs that the stage before hands on; `passed`: its results that
    the next stage gets, in the order of what that receives.

    `of`: of which repetitions its values are that repeats of the whole program hold; `inside`: what ops of layers make
    that it runs by themselves; `copies`: for each repetition that is written out, how it calls what the program does.
    """

    program: Program
    layers: int
    received: tuple[str, ...]
    passed: tuple[str, ...]
    of: Mapping[str, Origin] = field(default_factory=dict, compare=False)
    inside: frozenset[str] = field(default=frozenset(), compare=False)
    copies: tuple[Mapping[str, str], ...] = field(default=(), compare=False)

    def pins(self, pins: Iterable[Pin]) -> tuple[Pin, ...]:
        """The pins that are about it, or about what it has a copy of."""
        there, entering = set(defined(self.program.body)), set(self.received)
        found = [pin for pin in pins if _holds(pin, there)]
        for pin in (_of_copy(pin, names) for pin in pins for names in self.copies):
            if _holds(pin, there) and (pin.kind is PinKind.USE or pin.value not in entering):
                found.append(pin)
        return tuple(dict.fromkeys(found))


def layers_of(program: Program) -> int:
    """How many repetitions a program has, of repeats that stand in no other."""
    return sum(item.count for item in repeats_of(program))


def divide(program: Program, layers: Sequence[int], segments: Sequence[Segment] | None = None) -> tuple[Stage, ...]:
    """The stages of a program, of which each has so many `layers`, at least one; `segments`: what `segments_of` has
    found, if that is known.

    A carry that goes from one stage to the next is `NAME.passed` in the one and `NAME.received` in the other, so that
    stages which do the same are equal; and so is what one layer of a repetition hands to the next. Of what a stage has
    several copies of, one is called as in the program, others `NAME.2` and so on.
    """
    segments = segments_of(program) if segments is None else segments
    assert all(n > 0 for n in layers) and sum(layers) == sum(one.layers for one in segments), "each is in one stage"
    opened, alike = Opened(program, segments, [*accumulate(layers)]), of_inputs(program)
    makers = {name: item for part in opened.parts for item in part.items for name in makes(item)}
    needed: tuple[str, ...] = ()  # by the stage after
    found: list[Stage] = []
    for part, own_layers in zip(reversed(opened.parts), reversed(layers), strict=True):
        items = _with_makers(tuple(part.items), makers, alike)
        made = [name for item in items for name in makes(item)]
        own = tuple(name for name in program.results if name in made and name not in needed)
        wanted = tuple(dict.fromkeys([*_reads(items), *(name for name in needed if name not in made)]))
        received = tuple(name for name in wanted if name not in opened.stored)
        inputs = tuple(Stored(name, Kind.INPUT) for name in received)
        stored = (one for name, one in opened.stored.items() if name in wanted)
        body: Region[Op] = Region((*inputs, *stored), items)
        stage = Stage(replace(program, body=body, results=(*needed, *own)), own_layers, received, needed)
        found.append(_under_own_names(stage, program, opened, part))
        needed = received
    assert not needed, "the first stage reads what is stored alone"
    return tuple(reversed(found))


def _under_own_names(stage: Stage, program: Program, opened: Opened, part: Part) -> Stage:
    """A stage with names that say nothing of where in the program it lies."""
    body = stage.program.body
    names = _own_names(stage, opened)

    def new(name: str) -> str:
        return names.get(name, name)

    there = defined(body)
    table = opened.table | {new(name): named(opened.table[name], new(name), names) for name in there if name in names}
    of = {new(name): opened.of[name] for name in there if name in opened.of}
    of |= {new(name): origin for name, origin in part.of.items()}
    tags = {_tag(name) for name in there if name in opened.of}
    copies = tuple({n: new(copy) for n, copy in own.items()} for tag, own in opened.copies.items() if tag in tags)
    received, passed, results = (
        tuple(map(new, some)) for some in (stage.received, stage.passed, stage.program.results)
    )
    inside = frozenset(map(new, part.layers))
    own = Stage(program, stage.layers, received, passed, of, inside, copies)
    made = _program(program, renamed_region(body, names), results, table)
    own = replace(own, program=made)
    return replace(own, program=replace(made, pins=own.pins(program.pins))) if copies else own


def _own_names(stage: Stage, opened: Opened) -> dict[str, str]:
    """What a stage calls what is called by the number of a repetition."""
    body, received, passed = stage.program.body, set(stage.received), set(stage.passed)
    every = (*defined(body), *repeat_names(body))
    taken = {name for name in every if MARK not in name}
    groups: dict[str, list[str]] = {}
    names = {}
    for name in every:
        if name in received and MARK in name:
            names[name] = f"{opened.entering.get(name, _base(name))}.received"
        elif name in passed and MARK in name:
            names[name] = f"{_base(name)}.passed"
        elif MARK in name:
            groups.setdefault(_tag(name), []).append(name)
    for group in groups.values():
        bases = [opened.entering.get(name, _base(name)) for name in group]
        endings = ("" if n == 1 else f".{n}" for n in count(1))
        ending = next(one for one in endings if taken.isdisjoint(base + one for base in bases))
        names |= {name: base + ending for name, base in zip(group, bases, strict=True)}
        taken |= {base + ending for base in bases}
    return names


def _base(name: str) -> str:
    return name.partition(MARK)[0]


def _tag(name: str) -> str:
    return "".join(name.partition(MARK)[1:])


def _reads(items: Iterable[Op | Repeat[Op]]) -> Iterator[str]:
    """What items read that none of them makes or stores."""
    region: Region[Op] = Region((), tuple(items))
    own = set(defined(region))
    return (name for item in items for name in reads(item) if name not in own)


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
    """Each repeat as a program of one of its repetitions, which reads what is around it and streams nothing, with the
    count of them."""
    stored = {one.value: one for one in program.body.stored}
    return tuple((item.count, _repetition(program, item, stored)) for item in repeats_of(program))


def layer_parts(program: Program) -> tuple[tuple[int, Program], ...]:
    """As `layer_programs`, of the layers of a program in order, between which stages may end.

    What is before the products of a layer that is no repetition, or after them, may run as one with what is around it,
    and what it hands on may be summed there: it is left out.
    """
    return tuple(_layer_parts(program, program.body, segments_of(program), {}))


def _layer_parts(
    program: Program,
    region: Region[Op],
    segments: Sequence[Segment],
    around: Mapping[str, Stored],
) -> Iterator[tuple[int, Program]]:
    """`around`: what is stored around the region."""
    stored = {**around, **{one.value: one for one in region.stored}}
    for one in segments:
        if one.repeat is None:
            works = [n for n in range(one.first, one.last) if works_alone(region.items[n])]
            yield 1, _alone(program, region.items[works[0] : works[-1] + 1], (), stored)
        elif one.inside:
            inner = [*_layer_parts(program, one.repeat.body, one.inside, stored)]
            for _ in range(one.repeat.count):
                yield from inner
        else:
            yield one.repeat.count, _repetition(program, one.repeat, stored)


def _repetition(program: Program, item: Repeat[Op], stored: Mapping[str, Stored]) -> Program:
    layer = replace(item, count=1, body=with_streams(item.body, 0, 0, item.count))
    return _alone(program, (layer,), makes(item), stored)


def _alone(program: Program, items: Items, results: Sequence[str], stored: Mapping[str, Stored]) -> Program:
    """A program of some items, which reads what is around them. Pins say how what it stores and hands out lies, and not
    what it reads of others, or hands out by them."""
    read = dict.fromkeys(_reads(items))
    body: Region[Op] = Region(tuple(stored.get(name, Stored(name, Kind.INPUT)) for name in read), items)
    alone = _program(program, body, tuple(results), program.table())
    kept = {*results, *(one.value for one in stored_in(program.body))}
    return replace(alone, pins=tuple(pin for pin in alone.pins if pin.kind is not PinKind.STORED or pin.value in kept))


def numbered(program: Program) -> Program:
    """A layer with numbers for names, by which those are equal that do the same."""
    body, table = program.body, program.table()
    names = {name: str(n) for n, name in enumerate(dict.fromkeys((*defined(body), *repeat_names(body))))}
    values = tuple(named(table[name], names[name], names) for name in defined(body))
    results = tuple(names[name] for name in program.results)
    return replace(program, values=values, body=renamed_region(body, names), results=results, pins=())


def inside_layers(program: Program) -> frozenset[str]:
    """What ops of layers make that stand in no repeat."""
    own = (one for one in segments_of(program) if one.repeat is None)
    return frozenset(name for one in own for item in program.body.items[one.first : one.last] for name in makes(item))


def without_layers(program: Program, inside: Collection[str] = (), fused: bool = False) -> Program | None:
    """What a program runs outside of repeats, which reads what they make, but for what makes values `inside` of layers;
    None where that is nothing. `fused`: products alone, of what may run as one with such layers."""
    items = tuple(i for i in program.body.items if not isinstance(i, Repeat) and i.result not in inside)
    layers = (i for i in program.body.items if isinstance(i, Repeat) or i.result in inside)
    stored = {one.value: one for one in program.body.stored}
    made = [name for item in items for name in makes(item)]
    wanted = {*program.results, *_reads(layers)}
    if fused:
        items, wanted = tuple(filter(works_alone, items)), set()
    return _alone(program, items, [name for name in made if name in wanted], stored) if items else None


def _program(program: Program, body: Region[Op], results: tuple[str, ...], table: Mapping[str, Value]) -> Program:
    """The program of a stage, with the pins that are about it."""
    there = set(defined(body))
    values = tuple(table[name] for name in defined(body))
    pins = tuple(pin for pin in program.pins if _holds(pin, there))
    return replace(program, values=values, body=body, results=results, pins=pins)


def _of_copy(pin: Pin, names: Mapping[str, str]) -> Pin:
    op = None if pin.op is None else names.get(pin.op, pin.op)
    return replace(pin, value=names.get(pin.value, pin.value), op=op)


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
