"""The items of each stage: repeats cut between their repetitions, and written out where a stage ends inside of one.

What goes on in another stage is called otherwise there. So is everything in a repetition that is written out: by the
number of that, and of the one in which it stands if that is in another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ...ir.dataflow import defined, makes
from ...ir.program import (
    Carry,
    Kind,
    Op,
    Placed,
    Program,
    Region,
    Repeat,
    Stored,
    Value,
    operand_names,
    stored_in,
    walk,
    with_operands,
)
from ...ir.streams import most_there, restreamed
from .layers import Item, Segment

Index = tuple[int | tuple[int, int], ...]  # of repeats, outermost first: a repetition, or from one up to another
Origin = tuple[str, Index]  # what the whole program calls a value, and of which repetitions it is
Names = Mapping[str, str]
MARK = "@"  # before the number of a repetition; no name that is written has it


@dataclass
class Part:
    """What a stage runs. `of`: of what its repeats hold; `layers`: what ops of layers make that it runs by
    themselves."""

    items: list[Item] = field(default_factory=list)
    of: dict[str, Origin] = field(default_factory=dict)
    layers: set[str] = field(default_factory=set)


class Opened:
    """The parts of a program of such layers, whose stages end after so many of them in all, with names that are no
    stage's own yet.

    `table`, `stored`: all values, and what is stored outside of repeats, with those of repetitions that are written
    out; `of`: what these are of; `copies`: for each of them, by what its names end in, how it calls what the program
    does. `entering`: what a repetition calls what the one before hands on.
    """

    def __init__(self, program: Program, segments: Sequence[Segment], ends: Sequence[int]):
        self.ends = ends
        self.parts = [Part() for _ in ends]
        self.table = program.table()
        self.stored = {one.value: one for one in program.body.stored}
        self.of: dict[str, Origin] = {}
        self.copies: dict[str, Names] = {}
        self.entering: dict[str, str] = {}
        self._place(program.body.items, segments, 0, {}, "", ())

    def _place(
        self, items: Sequence[Item], segments: Sequence[Segment], at: int, names: Names, tag: str, index: Index
    ) -> None:
        """Give stages the items of a region, before which `at` layers are; `names` and `tag`: how they are called in
        the repetition that is written out, `index`."""
        for one in segments:
            before, last, cut = at if index else max(at - 1, 0), at + one.layers - 1, False
            for n in range(one.start, one.end):
                item = items[n]
                if isinstance(item, Repeat) and item is one.repeat:
                    self._cut(item, one, at, names, tag, index)
                    cut = True
                    continue
                part = self.parts[self._stage(before if n < one.first else last if cut else at)]
                part.items.append(renamed(item, names))
                if one.first <= n < one.last:
                    part.layers.update(names.get(name, name) for name in makes(item))
            at += one.layers

    def _cut(self, item: Repeat[Op], one: Segment, at: int, names: Names, tag: str, index: Index) -> None:
        """Give stages the repetitions of a repeat, before which `at` layers are: whole, or written out."""
        entering = [names.get(c.initial, c.initial) for c in item.carries]
        done = 0
        while done < item.count:
            stage, start = self._stage(at + done * one.each), done
            done = max(start + 1, min(item.count, (self.ends[stage] - at) // one.each))
            whole = at + done * one.each <= self.ends[stage]
            leaving = [names.get(c.result, c.result) for c in item.carries]
            if done < item.count:
                leaving = [self._handed_on(c, f"{tag}{MARK}{done - 1}") for c in item.carries]
            if whole:
                self._repeat(self.parts[stage], item, (start, done), (entering, leaving), names, index)
            else:
                self._write_out(item, one, at + start * one.each, (entering, leaving), names, tag, (*index, start))
            entering = leaving

    def _handed_on(self, carry: Carry, tag: str) -> str:
        """The name of what a repeat hands on after some repetitions."""
        name = carry.result + tag
        self.table[name] = replace(self.table[carry.result], name=name)
        self.entering[name] = carry.inside
        return name

    def _repeat(
        self,
        part: Part,
        item: Repeat[Op],
        of: tuple[int, int],
        ends: tuple[Sequence[str], Sequence[str]],
        names: Names,
        index: Index,
    ) -> None:
        """Give a stage repetitions from one up to another, with what enters and what is left."""
        start, done = of
        copy = renamed(replace(item, body=with_streams(item.body, start, done, item.count)), names)
        assert isinstance(copy, Repeat), "as the one that it is a copy of"
        carries = zip(copy.carries, *ends, strict=True)
        copy = replace(copy, count=done - start, carries=tuple(replace(c, initial=a, result=b) for c, a, b in carries))
        part.items.append(copy)
        for name in (*(c.inside for c in item.carries), *defined(item.body)):
            part.of[names.get(name, name)] = name, (*index, of)

    def _write_out(
        self,
        item: Repeat[Op],
        one: Segment,
        at: int,
        ends: tuple[Sequence[str], Sequence[str]],
        names: Names,
        tag: str,
        index: Index,
    ) -> None:
        """Give stages the layers of a repetition, the last number of `index`."""
        tag = f"{tag}{MARK}{index[-1]}"
        own = {name: name + tag for name in (*defined(item.body), *repeat_names(item.body))}
        self.of |= {new: (name, index) for name, new in own.items()}
        entering, leaving = ends
        own |= {c.inside: new for c, new in zip(item.carries, entering, strict=True)}
        own |= {c.next: new for c, new in zip(item.carries, leaving, strict=True)}
        inner = {**names, **own}
        for name, new in own.items():
            if name + tag == new and name in self.table:
                self.table[new] = named(self.table[name], new, inner)
        self.copies[tag] = inner
        for stored in item.body.stored:
            self.stored[inner[stored.value]] = replace(stored, value=inner[stored.value])
        self._place(item.body.items, one.inside, at, inner, tag, index)

    def _stage(self, layer: int) -> int:
        return next(n for n, end in enumerate(self.ends) if layer < end)


def named(value: Value, name: str, names: Names) -> Value:
    """A value under another name, chosen by masks under others."""
    chosen = (
        replace(one, mask=names.get(one.mask, one.mask), within=tuple(names.get(mask, mask) for mask in one.within))
        for one in value.chosen
    )
    return replace(value, name=name, chosen=tuple(chosen))


def renamed(item: Item, names: Names) -> Item:
    """A copy of an item under other names."""
    if not isinstance(item, Repeat):
        if names.keys().isdisjoint((item.result, *operand_names(item))):
            return item
        return replace(with_operands(item, names), result=names.get(item.result, item.result))

    def new(name: str) -> str:
        return names.get(name, name)

    carries = tuple(Carry(*map(new, (c.initial, c.inside, c.next, c.result))) for c in item.carries)
    return Repeat(new(item.name), item.count, carries, renamed_region(item.body, names))


def renamed_region(region: Region[Op], names: Names) -> Region[Op]:
    """A region under other names."""
    stored = tuple(replace(one, value=names.get(one.value, one.value)) for one in region.stored)
    return Region(stored, tuple(renamed(item, names) for item in region.items))


def repeat_names(region: Region[Op]) -> list[str]:
    """The names of the repeats in a region and below it."""
    return [placed.item.name for placed in walk(region) if isinstance(placed.item, Repeat)]


def with_streams(region: Region[Op], start: int, end: int, count: int, inner: int = 1) -> Region[Op]:
    """What repeats, of which some repetitions are another stage's: of those that are streamed, spread evenly over all
    of `count`, a stage has its part, or none where that would be in vain. `inner`: how often the region runs in each
    repetition."""

    def own(stored: Stored) -> Stored:
        if stored.streamed is None:
            return stored
        layers = stored.streamed.count // inner
        part = (layers * end // count - layers * start // count) * inner
        in_vain = part <= _most_in_vain(stored, inner)
        return replace(stored, streamed=None if in_vain else replace(stored.streamed, count=part))

    items = (
        replace(item, body=with_streams(item.body, start, end, count, inner * item.count))
        if isinstance(item, Repeat)
        else item
        for item in region.items
    )
    return Region(tuple(map(own, region.stored)), tuple(items))


def with_least_streams(program: Program, stages: int) -> Program:
    """The program with as much streamed as so many stages do together at the least: each has its part, or none."""
    ways = stages - 1 if has_mean_streamed(program, stages) else stages
    return _recounted(program, lambda one, inner: max(0, _count(one) - ways * _most_in_vain(one, inner)))


def with_mean_streams(program: Program, stages: int) -> Program:
    """The program with as much streamed as one of so many stages at the least, where one streams the mean."""
    return _recounted(program, lambda one, inner: -(-_count(one) // (inner * stages)) * inner)


def has_mean_streamed(program: Program, stages: int) -> bool:
    """Whether of all divisions over so many stages one streams as much as each of even ones would: where all that
    comes is of one repeat, and a stage with the mean of it does not stream in vain."""
    every = _streamed(program)
    first = {placed.repeats[0].name for _, placed, _ in every}
    return len(first) == 1 and all(_count(one) > stages * _most_in_vain(one, inner) for one, _, inner in every)


def _recounted(program: Program, count: Callable[[Stored, int], int]) -> Program:
    """The program with other counts of what is streamed, of which a repetition of the outermost repeat has so many."""
    found = {}
    for one, _, inner in _streamed(program):
        assert one.streamed is not None, "it is streamed"
        if n := count(one, inner):
            found[one.value] = replace(one.streamed, count=n)
    return restreamed(program, found)


def _streamed(program: Program) -> list[tuple[Stored, Placed[Op], int]]:
    """What is streamed, where it stands, and how much of it a repetition of the outermost repeat has."""
    every = stored_in(program.body).items()
    return [(one, at, math.prod(repeat.count for repeat in at.repeats[1:])) for one, at in every if one.streamed]


def _count(stored: Stored) -> int:
    assert stored.streamed is not None, "it is streamed"
    return stored.streamed.count


def _most_in_vain(stored: Stored, inner: int) -> int:
    """How much of what is streamed a stage streams in vain, at the most: parameters that would all be there as they
    come need not come."""
    assert stored.streamed is not None, "it is streamed"
    return most_there(stored.streamed, inner) if stored.kind is Kind.PARAM else 0
