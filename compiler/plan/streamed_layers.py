"""Programs of which some layers come from the host, and the count of them that is quickest."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from ...ir.diagnostics import InputError
from ...ir.program import Kind, Op, Place, Program, Region, Repeat, Streamed
from ...passes.plan import PROVEN, Cutoff, NoPlan, Outcome
from ...passes.stages.divide import layers_of
from .compiled import CompiledPhase

Found = TypeVar("Found")  # what is planned with some layers streamed: a compilation, or a pipeline


def streaming(program: Program, kinds: Set[Kind], layers: int, ahead: int) -> Program:
    """The program with `layers` of its layers streamed, spread evenly over its repeats: what is stored in them of
    such kinds, or has its place with the host, but nothing that has it on the chips. Repeats in a repeat are parts of
    its layers."""
    every, before = layers_of(program), 0
    names = frozenset(streamed_names(program, kinds))
    items: list[Op | Repeat[Op]] = []
    for item in program.body.items:
        if isinstance(item, Repeat):
            count = (before + item.count) * layers // every - before * layers // every
            before += item.count
            item = replace(item, body=_streamed(item.body, names, count, ahead))
        items.append(item)
    return replace(program, body=Region(program.body.stored, tuple(items)))


def _streamed(region: Region[Op], names: Set[str], count: int, ahead: int) -> Region[Op]:
    how = Streamed(count, ahead) if count else None
    stored = tuple(replace(one, streamed=how) if one.value in names else one for one in region.stored)
    items = (
        replace(item, body=_streamed(item.body, names, count * item.count, ahead)) if isinstance(item, Repeat) else item
        for item in region.items
    )
    return Region(stored, tuple(items))


def streamed_names(program: Program, kinds: Set[Kind]) -> Iterator[str]:
    """What is stored in repeats and streamed: of some kinds, but for what has a place of its own."""
    places = dict(program.places)
    regions = [item.body for item in program.body.items if isinstance(item, Repeat)]
    while regions:
        region = regions.pop()
        for one in region.stored:
            if places.get(one.value) is Place.HOST or (one.kind in kinds and one.value not in places):
                yield one.value
        regions += [item.body for item in region.items if isinstance(item, Repeat)]


@dataclass(frozen=True)
class Quickest(Generic[Found]):
    """The quickest that was found with tensors of some `kinds` in `streamed` layers from the host. `price`: seconds
    with waiting, of all calls; `bound`: what all that stream any of these tensors take at the least."""

    found: Found
    kinds: frozenset[Kind]
    streamed: int
    price: float
    bound: float


@dataclass
class Family(ABC, Generic[Found]):
    """What a program is planned as with tensors of some `kinds` in some of its layers streamed, `ahead` layers before
    they are needed; each count of layers is planned once. `unstreamed`: that with none, which all kinds share.

    The fewest that fit are looked for from below, in growing steps and then by halves: that too few do not fit is
    mostly said sooner than a plan is found that just does. `low` are known not to, of `high` there is a plan.
    `known_s`: what the family, or one with fewer kinds, takes at the least if nothing waits, once that is known.
    """

    program: Program
    kinds: frozenset[Kind]
    ahead: int
    unstreamed: dict[int, Found | InputError]
    some: dict[int, Found | InputError] = field(default_factory=dict, init=False)
    low: int = field(default=0, init=False)
    high: int | None = field(default=None, init=False)
    step: int = field(default=1, init=False)
    known_s: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self.layers = layers_of(self.program)

    @property
    @abstractmethod
    def fewest(self) -> int:
        """So many layers have to be streamed at the least, as far as that is known before any are planned."""

    @property
    @abstractmethod
    def computing_s(self) -> float:
        """What all of the family, or with fewer kinds, take at the least if nothing waits. Raises InputError where none
        fits."""

    @abstractmethod
    def least_s(self, streamed: int) -> float:
        """What so many layers, or more, take at the least, by what is known before they are planned."""

    @abstractmethod
    def best(self) -> Quickest[Found]:
        """The quickest of a few counts of streamed layers, once the fewest that fit are known."""

    @abstractmethod
    def planned(self, program: Program) -> Found:
        """What a program that streams is planned as. Raises InputError where it cannot be."""

    @abstractmethod
    def price(self, streamed: int) -> float:
        """Seconds with waiting of what is planned with so many layers streamed."""

    @abstractmethod
    def bound(self, streamed: int) -> float:
        """What all with so many layers streamed take at the least to compute, by what was planned."""

    @abstractmethod
    def most_room(self) -> Iterable[CompiledPhase]:
        """The phases of what has most room on the chips."""

    @property
    def shown(self) -> int:
        """So many layers have to be streamed at the least, as was shown by now."""
        known = {**self.unstreamed, **self.some}
        refused = [k for k, one in known.items() if isinstance(one, NoPlan) and one.outcome is Outcome.INFEASIBLE]
        return max([1, self.fewest, *(k + 1 for k in refused)])

    @property
    def settled(self) -> bool:
        """Whether the fewest that fit are known."""
        return self.high is not None and self.high - self.low <= 1

    def settle(self) -> None:
        """Plan one more count, to know more of the fewest that fit. Raises InputError where all layers are too few."""
        self.low = max(self.low, min(self.shown, self.layers) - 1)
        if self.high is None:
            count = min(self.low + self.step, self.layers)
            self.step *= 2
        else:
            count = (self.low + self.high) // 2
        try:
            self.at(count)
        except NoPlan:
            if count == self.layers:
                raise
            self.low = count
        else:
            self.high = count

    def at(self, streamed: int) -> Found:
        """What is planned with so many layers streamed. Raises InputError where there is nothing."""
        known = self.some if streamed else self.unstreamed
        if streamed not in known:
            try:
                known[streamed] = self.planned(streaming(self.program, self.kinds, streamed, self.ahead))
            except InputError as error:
                known[streamed] = error
        found = known[streamed]
        if isinstance(found, InputError):
            raise found
        return found

    def hidden(self) -> int:
        """About the most layers that come while the others compute."""
        every = (each for one in self.most_room() for each in one.estimate.fetches)
        spare = [each.step_s / each.fetch.seconds for each in every if each.fetch.seconds]
        return min(self.layers, int(self.layers * min(spare, default=1.0))) if self.ahead else 0


def quickest(families: Sequence[Family[Found]], below: float = math.inf) -> Quickest[Found]:
    """The quickest of all families: with nothing streamed, which all share, or with the fewest layers that fit or more.

    Of the family that may be quickest, by what it takes at the least, more is planned, as long as it may be quicker
    than what was found; of equals of the one that is given first, which should leave most room. Raises the InputError
    of the first where none has a plan, or Cutoff where bounds show that all take `below` at the least.
    """
    found: list[Quickest[Found]] = []
    refused: list[InputError] = []
    bounds: list[float] = []
    if families[0].fewest == 0:
        least_s = families[0].least_s(0)
        if least_s >= below:
            bounds.append(least_s)
        else:
            _add_unstreamed(families[0], found, refused, bounds)

    def floor_s(family: Family[Found]) -> float:
        computing_s = (one.known_s for one in families if family.kinds <= one.kinds)
        return max(family.least_s(min(family.layers, family.shown)), *computing_s)

    left = list(families)
    while left:
        family = min(left, key=floor_s)
        if floor_s(family) * (1 + PROVEN) >= min([below, *(one.price for one in found)]):
            bounds += map(floor_s, left)
            break
        try:
            if not family.settled:
                family.settle()
                continue
            found.append(family.best())
            bounds.append(found[-1].bound)
        except InputError as error:
            refused.append(error)
        left.remove(family)
    if not found:
        raise refused[0] if refused and not left else Cutoff(min(bounds))
    best = min(found, key=lambda one: (one.price, one.streamed))
    return replace(best, bound=min([best.price, *bounds]))


def _add_unstreamed(
    family: Family[Found], found: list[Quickest[Found]], refused: list[InputError], bounds: list[float]
) -> None:
    """Add what there is with nothing streamed."""
    try:
        family.at(0)
    except Cutoff as cut:
        bounds.append(cut.bound)
        return
    except NoPlan as error:
        refused.append(error)
        if error.outcome is Outcome.UNPROVEN:
            bounds.append(0.0)
        return
    bounds.append(family.bound(0))
    found.append(Quickest(family.at(0), family.kinds, 0, family.price(0), bounds[0]))
