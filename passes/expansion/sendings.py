"""Ways of sending tokens: what a phase may run in place of a program, each mask in a way of its own."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import cached_property

from ...ir.program import Program
from .once import Way, Ways, sent_once, ways_of


class Sendings:
    """What a phase may run in place of a program that sends tokens to each expert: the same object for the same ways.
    `masks`: those that may send otherwise, each with its ways."""

    def __init__(self, program: Program, phase: str) -> None:
        self.plain, self.phase = program, phase
        self.masks = ways_of(program, phase)
        self._written: dict[tuple[Way, ...], Program] = {(Way.EACH,) * len(self.masks): program}

    @cached_property
    def most(self) -> Program:
        """The program in which all that may is sent once."""
        return self.program({mask: own[-1] for mask, own in self.masks.items()})

    @property
    def count(self) -> int:
        """Of how many sets of masks tokens may go once to groups."""
        return math.prod(2 for _ in self.masks)

    def program(self, ways: Ways) -> Program:
        """The program in which masks send so, as far as they may; those that are left out to each expert."""
        picks = tuple(ways[m] if ways.get(m) in own else Way.EACH for m, own in self.masks.items())
        if picks not in self._written:
            once = sent_once(self.plain, self.phase, dict(zip(self.masks, picks, strict=True)))
            assert once is not None, "something goes to groups"
            self._written[picks] = once
        return self._written[picks]

    def ways(self, program: Program) -> Ways | None:
        """How masks send in one of its programs; None of another program."""
        found = (picks for picks, written in self._written.items() if written is program)
        return next((dict(zip(self.masks, picks, strict=True)) for picks in found), None)

    def sets(self) -> Iterator[Program]:
        """For each set of masks the program in which these send once all that may be: that of none comes first."""
        each = ((Way.EACH, own[-1]) for own in self.masks.values())
        for picks in itertools.product(*each):
            yield self.program(dict(zip(self.masks, picks, strict=True)))

    def moves(self, program: Program, finer: bool) -> Iterator[Program]:
        """Those in which one mask sends in another way; without `finer` to each, or once all that may be."""
        ways = self.ways(program) or {}
        for mask, own in self.masks.items():
            some = own if finer else (own[0], own[-1])
            yield from (self.program({**ways, mask: way}) for way in some if way is not ways[mask])

    def finer(self, program: Program) -> list[Program]:
        """Of a program that sums by groups, itself and those in which of some masks nothing is: that of all is last."""
        ways = self.ways(program) or {}
        each = ((way, Way.THERE) if way is Way.BOTH else (way,) for way in ways.values())
        return [self.program(dict(zip(ways, picks, strict=True))) for picks in itertools.product(*each)]
