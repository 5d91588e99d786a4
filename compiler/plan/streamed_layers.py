"""Programs of which some layers come from the host, and the count of them that is quickest."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from ...ir.diagnostics import InputError
from ...ir.program import Kind, Op, Place, Program, Region, Repeat, Streamed
from ...passes.plan import PROVEN, NoPlan, Outcome
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
    they are needed; each count of layers is planned once. `unstreamed`: that with none, which all kinds share."""

    program: Program
    kinds: frozenset[Kind]
    ahead: int
    unstreamed: dict[int, Found | InputError]
    some: dict[int, Found | InputError] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.layers = layers_of(self.program)

    @property
    @abstractmethod
    def computing_s(self) -> float:
        """What all of the family, or with fewer kinds, take at the least if nothing waits. Raises InputError where none
        fits."""

    @abstractmethod
    def best(self) -> Quickest[Found]:
        """The quickest of a few counts of streamed layers. Raises InputError where even all are too few."""

    @abstractmethod
    def planned(self, program: Program) -> Found:
        """What a program that streams is planned as. Raises InputError where it cannot be."""

    @abstractmethod
    def most_room(self) -> Iterable[CompiledPhase]:
        """The phases of what has most room on the chips."""

    @property
    def fewest(self) -> int:
        """So many layers have to be streamed at the least, before any are planned."""
        return 0

    @property
    def floor_s(self) -> float:
        """What all of the family take at the least, before any are planned."""
        return 0.0

    def at(self, streamed: int) -> Found:
        """What is planned with so many layers streamed. Raises InputError where there is nothing."""
        known = self._known(streamed)
        if streamed not in known:
            try:
                known[streamed] = self.planned(streaming(self.program, self.kinds, streamed, self.ahead))
            except InputError as error:
                known[streamed] = error
        found = known[streamed]
        if isinstance(found, InputError):
            raise found
        return found

    def fits(self, streamed: int) -> bool:
        """Whether there is a plan with so many layers streamed."""
        if streamed < self.fewest:
            return False
        try:
            self.at(streamed)
        except NoPlan:
            return False
        return True

    def too_few(self, streamed: int) -> bool:
        """Whether it was shown that no plan fits with so many layers streamed."""
        refused = self._known(streamed).get(streamed)
        shown = isinstance(refused, NoPlan) and refused.outcome is Outcome.INFEASIBLE
        return shown or streamed < self.fewest

    def least(self) -> int:
        """The fewest layers to stream so that a plan fits; all of them do. Looked for from below, in growing steps and
        then by halves: that too few do not fit is mostly said sooner than a plan is found that just does."""
        low, high, step = self.fewest - 1, self.fewest, 1
        while high < self.layers and not self.fits(high):
            low, high, step = high, min(self.layers, high + step), 2 * step
        while high - low > 1:
            count = (low + high) // 2
            low, high = (low, count) if self.fits(count) else (count, high)
        return high

    def hidden(self) -> int:
        """About the most layers that come while the others compute."""
        every = (each for one in self.most_room() for each in one.estimate.fetches)
        spare = [each.step_s / each.fetch.seconds for each in every if each.fetch.seconds]
        return min(self.layers, int(self.layers * min(spare, default=1.0))) if self.ahead else 0

    def _known(self, streamed: int) -> dict[int, Found | InputError]:
        return self.some if streamed else self.unstreamed


def quickest(families: Sequence[Family[Found]]) -> Quickest[Found]:
    """The quickest of all families, those first that may be quickest, of equals those that are given first. A family
    that is known to be no quicker than what was found is not planned, nor are any more where one takes no longer than
    it computes and leaves most room. Raises the InputError of the first where none has a plan."""
    found: list[Quickest[Found]] = []
    refused: list[InputError] = []
    bounds: list[float] = []
    left = sorted(families, key=lambda family: family.floor_s)
    while left:
        family = left.pop(0)
        if found and family.floor_s >= min(one.price for one in found):
            bounds.append(family.floor_s)
            continue
        try:
            found.append(family.best())
        except InputError as error:
            refused.append(error)
            continue
        bounds.append(found[-1].bound)
        if found[-1].price <= family.computing_s * (1 + PROVEN) and all(one.kinds <= family.kinds for one in left):
            break
    if not found:
        raise refused[0]
    best = min(found, key=lambda one: (one.price, one.streamed))
    return replace(best, bound=min(bounds))
