"""The layers of a program, between which a stage may end: repetitions, and calls of blocks one after the other.

A repetition is a layer, unless it holds several: blocks that follow each other and hand on what the repetitions do, and
nothing beside that. Blocks that are called outside of repeats are layers, too, where they hand on what repeats do. A
block that multiplies nothing is no layer by itself; such a one, and what stands between blocks, goes with the layer
before it, or with the first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from ...ir.dataflow import makes, reads
from ...ir.program import Einsum, Kind, Op, Program, Region, Repeat, Value, operand_names
from ...ir.record import record

Item = Op | Repeat[Op]
Types = tuple[tuple[tuple[str, ...], str], ...]  # dims and dtypes of some values, sorted
Label = tuple[tuple[int, ...], bool]  # a place: the segment before it, and whether that ends there


@record
class Segment:
    """Items of a region from `start` up to `end`: one layer, or where one of them is a `repeat` its repetitions, each
    of the layers `inside` if it has several. The layer itself goes from `first` up to `last`; what is around these no
    repeat runs."""

    start: int
    end: int
    first: int
    last: int
    repeat: Repeat[Op] | None = None
    inside: tuple[Segment, ...] = ()

    @property
    def each(self) -> int:
        """The layers of a repetition."""
        return max(1, sum(one.layers for one in self.inside))

    @property
    def layers(self) -> int:
        """How many layers it has."""
        return 1 if self.repeat is None else self.repeat.count * self.each


def segments_of(program: Program) -> tuple[Segment, ...]:
    """The layers of a program, in order. Each repeat that stands in no other is a segment."""
    finder = _Finder(program.table(), frozenset(program.blocks))
    return finder.outside(program, {finder.types(makes(item)) for item in repeats_of(program)})


def whole_repetitions(program: Program) -> Program:
    """The program with its repetitions as its layers, whatever is in them."""
    return replace(program, blocks=())


def dividing(program: Program, parts: int) -> str:
    """What stages end between, if they divide a program in so many `parts`: its layers, or repetitions of several."""
    if parts == layer_count(program):
        return "layers"
    names = [f"`{one.repeat.name}`" for one in segments_of(program) if one.repeat is not None and one.each > 1]
    return " of ".join(["repetitions", *([" and ".join(names)] if names else [])])


def layer_count(program: Program) -> int:
    """How many layers a program has, between which a stage may end."""
    return sum(one.layers for one in segments_of(program))


def repeats_of(program: Program) -> tuple[Repeat[Op], ...]:
    """The repeats that stand in no other."""
    return tuple(item for item in program.body.items if isinstance(item, Repeat))


def of_inputs(program: Program) -> frozenset[str]:
    """Values that ops outside of repeats make of inputs alone."""
    known = {one.value for one in program.body.stored if one.kind is Kind.INPUT}
    inputs = set(known)
    for item in program.body.items:
        if not isinstance(item, Repeat) and known.issuperset(operand_names(item)):
            known.add(item.result)
    return frozenset(known - inputs)


def stored_by_one(program: Program) -> frozenset[str]:
    """What is stored for one layer alone that is no repetition: nothing else reads it."""
    return frozenset(_stored_by_one(program.body, segments_of(program)))


def _stored_by_one(region: Region[Op], segments: Sequence[Segment]) -> Iterator[str]:
    own = [range(one.first, one.last) for one in segments if one.repeat is None]
    others = set(range(len(region.items))).difference(*own)
    groups = [{name for n in some for name in reads(region.items[n])} for some in (*own, others)]
    every = Counter(name for names in groups for name in names)
    stored = {one.value for one in region.stored if one.kind is not Kind.INPUT}
    yield from (name for names in groups[:-1] for name in names if every[name] == 1 and name in stored)
    for one in segments:
        if one.repeat is not None:
            yield from _stored_by_one(one.repeat.body, one.inside)


def place_kinds(segments: Sequence[Segment]) -> list[int]:
    """Where each place before, between and after layers lies: 0 before all, then numbers in the order in which kinds
    of places come first. Those are alike that stand behind as much of a repetition, with more of them to come."""
    number: dict[Label | None, int] = {None: 0}
    return [0, *(number.setdefault(label, len(number)) for label in _labels(segments, ()))]


def _labels(segments: Sequence[Segment], path: tuple[int, ...]) -> Iterator[Label]:
    for n, one in enumerate(segments):
        own = (*path, n)
        within = list(_labels(one.inside, own))[:-1]
        count = 1 if one.repeat is None else one.repeat.count
        for at in range(count):
            yield from within
            yield own, at + 1 == count


@record
class _Finder:
    """Finds the layers of regions. `blocks`: the calls, by the prefixes of their values' names."""

    table: Mapping[str, Value]
    blocks: frozenset[str]

    def outside(self, program: Program, alike: set[Types]) -> tuple[Segment, ...]:
        """The layers of what stands in no repeat; `alike`: the types of what repeats hand on."""
        items, around = program.body.items, [*map(self.around, program.body.items)]
        works = [isinstance(item, Repeat) or (bool(around[n]) and works_alone(item)) for n, item in enumerate(items)]
        begins, handed = _begins(items, around), _Handed(items, program.results, (), of_inputs(program))
        if not alike:
            usual = Counter(types for n in begins if (types := self.types(handed.at(n))))
            alike = {types for types, _ in usual.most_common(1)}
        places = [0]
        for n in begins:
            if any(works[places[-1] : n]) and any(works[n:]):
                after = isinstance(items[n], Repeat) and any(isinstance(i, Repeat) for i in items[places[-1] : n])
                if after or self.types(handed.at(n)) in alike:
                    places.append(n)
        found = []
        for start, end in pairwise((*places, len(items)) if any(works) else ()):
            repeat = next((n for n in range(start, end) if isinstance(items[n], Repeat)), None)
            own = [n for n in range(start, end) if around[n]] if repeat is None else [repeat]
            found.append(self.segment(items, (start, end), (own[0], own[-1] + 1), repeat))
        return tuple(found)

    def inside(self, repeat: Repeat[Op]) -> tuple[Segment, ...]:
        """The layers of a repetition; none where it is one by itself."""
        if not any(name.startswith(f"{repeat.name}.") for name in self.blocks):
            return ()
        items, around = repeat.body.items, [*map(self.around, repeat.body.items)]
        common = around[0].intersection(*around)
        works = [isinstance(item, Repeat) or (around[n] > common and works_alone(item)) for n, item in enumerate(items)]
        handed = _Handed(items, [c.next for c in repeat.carries], [c.inside for c in repeat.carries], frozenset())
        alike, places = self.types(makes(repeat)), [0]
        for n in _begins(items, around):
            if any(works[places[-1] : n]) and any(works[n:]) and self.types(handed.at(n)) == alike:
                places.append(n)
        found = []
        for start, end in pairwise((*places, len(items))):
            working = [n for n in range(start, end) if works_alone(items[n])]
            alone = len(working) == 1 and self.goes_round(items[working[0]], handed.at(working[0] + 1), alike)
            found.append(self.segment(items, (start, end), (start, end), working[0] if alone else None))
        return tuple(found) if sum(one.layers for one in found) > 1 else ()

    def goes_round(self, item: Item, after: Sequence[str], alike: Types) -> bool:
        """Whether an item is a repeat, which hands on as much as that in which it stands, and nothing goes past it."""
        return isinstance(item, Repeat) and set(after) <= set(makes(item)) and self.types(after) == alike

    def segment(self, items: Sequence[Item], every: tuple[int, int], own: tuple[int, int], at: int | None) -> Segment:
        """The segment of such items, of which that `at` a place repeats layers."""
        repeat = None if at is None else items[at]
        if not isinstance(repeat, Repeat):
            return Segment(*every, *own)
        return Segment(*every, *own, repeat, self.inside(repeat))

    def around(self, item: Item) -> frozenset[str]:
        """The calls that an item is of."""
        words = (item.name if isinstance(item, Repeat) else item.result).split(".")
        return self.blocks.intersection(".".join(words[: n + 1]) for n in range(len(words)))

    def types(self, names: Sequence[str]) -> Types:
        """The types of some values."""
        return tuple(sorted((self.table[name].dims, str(self.table[name].dtype)) for name in names))


class _Handed:
    """What items hand on to those after them: what they make, or enters, and is read after, or is `left`, but for what
    is made `again` wherever it is read."""

    def __init__(self, items: Sequence[Item], left: Sequence[str], entering: Sequence[str], again: frozenset[str]):
        made = dict.fromkeys(entering, -1) | {name: n for n, item in enumerate(items) for name in makes(item)}
        self.made = {name: n for name, n in made.items() if name not in again}
        self.read = {name: n for n, item in enumerate(items) for name in reads(item)} | dict.fromkeys(left, len(items))

    def at(self, place: int) -> list[str]:
        """The values that are handed on before an item."""
        return [name for name, n in self.made.items() if n < place <= self.read.get(name, -1)]


def _begins(items: Sequence[Item], around: Sequence[frozenset[str]]) -> list[int]:
    """Where repeats and calls of blocks begin, but for the first item."""
    return [n for n in range(1, len(items)) if isinstance(items[n], Repeat) or around[n] - around[n - 1]]


def works_alone(item: Item) -> bool:
    """Whether an item runs by itself, whatever is around it: a repeat, or a product that is summed."""
    if isinstance(item, Repeat):
        return True
    return isinstance(item, Einsum) and len(item.operands) > 1 and not {*sum(item.indices, ())} <= {*item.output}
