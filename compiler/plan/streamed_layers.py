"""Programs of which some layers come from the host, and the count of them that is quickest.

Of every count of layers, and of all kinds of tensors, it is known what they take at the least: to compute, with as much
room as they leave or more, and for what has to come. The one with the least is planned next, from which more is known
of others, until none may be quicker than the quickest that was found, but for so little that is not worth a plan.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Generic, NoReturn, TypeVar

from ...cost.streams import HostFull
from ...ir.diagnostics import EsccError, InputError
from ...ir.program import Kind, Op, Place, Program, Region, Repeat, Streamed
from ...ir.record import record
from ...passes.options import Options
from ...passes.plan import Cutoff, NoPlan, Outcome
from ...passes.stages.divide import layers_of
from ...passes.stages.plan_stages import MOST_IN_VAIN, MOST_WORK

Found = TypeVar("Found")  # what is planned with some layers streamed: a compilation, or a pipeline
WORTH = 1e-3  # of the time: less is not worth another plan
MOST_TRIED = 4  # counts of layers, of any kinds of tensors, that are planned in turn with nothing quicker found


def streaming(program: Program, what: Set[str], layers: int, ahead: int) -> Program:
    """The program with `layers` of its layers streamed, spread evenly over its repeats: `what` is stored in them, by
    kind or by name, or has its place with the host, but nothing that has it on the chips. Repeats in a repeat are parts
    of its layers."""
    every, before = layers_of(program), 0
    names = frozenset(streamed_names(program, what))
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


def streamed_names(program: Program, what: Set[str]) -> Iterator[str]:
    """What is stored in repeats and streamed: of some kinds or names, but for what has a place of its own."""
    places = dict(program.places)
    regions = [item.body for item in program.body.items if isinstance(item, Repeat)]
    while regions:
        region = regions.pop()
        for one in region.stored:
            meant = one.kind in what or one.value in what
            if places.get(one.value) is Place.HOST or (meant and one.value not in places):
                yield one.value
        regions += [item.body for item in region.items if isinstance(item, Repeat)]


@record
class Quickest(Generic[Found]):
    """The quickest that was found with tensors of some `kinds` in `streamed` layers from the host, or with `tensors` of
    these by name. `price`: seconds with waiting, of all calls; `bound`: what all that were gone over take at the
    least."""

    found: Found
    kinds: frozenset[Kind]
    streamed: int
    price: float
    bound: float
    tensors: tuple[str, ...] = ()

    @property
    def what(self) -> frozenset[str]:
        """What is streamed of these layers, by kind or name."""
        return self.kinds.union(self.tensors)


@dataclass
class Family(ABC, Generic[Found]):
    """What a program is planned as with tensors of some `kinds` in some of its layers streamed, `ahead` layers before
    they are needed. `tried`: by kinds and count, what was planned, or why nothing was; all families share it, and what
    streams none is of no kinds. More layers, or kinds, leave at least as much room."""

    program: Program
    kinds: frozenset[Kind]
    ahead: int
    tried: dict[tuple[frozenset[Kind], int], Found | EsccError] = field(repr=False)

    def __post_init__(self) -> None:
        self.layers = layers_of(self.program)

    @property
    @abstractmethod
    def fewest(self) -> int:
        """So many layers have to be streamed at the least, as far as that is known before any are planned."""

    @abstractmethod
    def least_s(self, streamed: int) -> float:
        """What all with so many layers streamed take at the least, by all that has been found; infinite where it was
        shown that none fits."""

    def expected_s(self, streamed: int) -> float:
        """As `least_s`, if there is no quicker plan of what was tried than the one that was found."""
        return self.least_s(streamed)

    @abstractmethod
    def rank(self, streamed: int) -> float:
        """Of counts that take as little at the least that with the lowest is planned first."""

    @abstractmethod
    def planned(self, streamed: int, below: float) -> Found:
        """What is planned with so many layers streamed, if that takes less than `below`. Raises InputError where there
        is nothing, Cutoff where bounds show that it takes no less."""

    @abstractmethod
    def price(self, found: Found) -> float:
        """Seconds with waiting of what was planned."""

    def streaming(self, streamed: int) -> Program:
        """The program with so many layers streamed."""
        return streaming(self.program, self.kinds, streamed, self.ahead)

    def key(self, streamed: int) -> tuple[frozenset[Kind], int]:
        """As `tried` has it."""
        return (self.kinds if streamed else frozenset(), streamed)

    def freer(self, streamed: int) -> Iterator[Found | EsccError]:
        """What was tried with so many layers streamed, or with more layers or kinds."""
        kinds, count = self.key(streamed)
        return (one for (others, k), one in self.tried.items() if kinds <= others and count <= k)

    def full(self, streamed: int) -> bool:
        """Whether hosts were full with no more streamed."""
        kinds, count = self.key(streamed)
        fewer = (one for (others, k), one in self.tried.items() if others <= kinds and k <= count)
        return any(isinstance(one, HostFull) for one in fewer)

    def left(self) -> list[int]:
        """Counts of layers that may be planned: none was refused with more room."""
        return [
            k
            for k in range(self.fewest, self.layers + 1)
            if self.key(k) not in self.tried
            and not self.full(k)
            and not any(isinstance(one, NoPlan) for one in self.freer(k))
        ]

    def next(self, most: float, tired: bool) -> tuple[float, float, int] | None:
        """What the best count takes at the least that may take less than `most`, its rank, and which to plan to know
        more of it. `tired`: too few have been looked at for long, in vain.

        Too few layers do not fit: they are looked for from below, in growing steps and then by halves, for that too
        few do not fit is mostly said sooner than a plan is found that just does. Where some fit and more may be
        quicker it is the most that may be: what it computes bounds all others. So it is where others were in vain: with
        most room a plan is found soonest.
        """
        worth = [k for k in self.left() if self.expected_s(k) * (1 + WORTH) < most]
        if not worth:
            return None
        least_s, rank, best = min((self.expected_s(k), self.rank(k), k) for k in worth)
        own = {k: one for (kinds, k), one in self.tried.items() if k and kinds == self.kinds}
        refused = [k for k, one in own.items() if isinstance(one, NoPlan)]
        above = [k for k in own if k > best and k not in refused]
        if refused and above:
            best = (best + min(above)) // 2
        elif refused and not tired:
            best = min(best + 2 ** (len(refused) - 1) - 1, worth[-1])
        elif not above and (own or tired):
            best = worth[-1]
        return least_s, rank, min(worth, key=lambda k: abs(k - best))

    def plan(self, streamed: int, below: float) -> Found | EsccError:
        """What came of planning with so many layers streamed. Raises what is wrong whatever is streamed."""
        key = self.key(streamed)
        if key not in self.tried:
            self.tried[key] = self._planned(streamed, below)
        return self.tried[key]

    def _planned(self, streamed: int, below: float) -> Found | EsccError:
        try:
            return self.planned(streamed, below)
        except Cutoff as cut:  # without a bound it says that none fits, but not why
            return cut if cut.bound < math.inf else self._planned(streamed, math.inf)
        except (NoPlan, HostFull) as error:
            return error


def is_infeasible(tried: object) -> bool:
    """Whether it was shown that nothing fits."""
    return isinstance(tried, NoPlan) and tried.outcome is Outcome.INFEASIBLE


def layers_least_s(families: Sequence[Family[Found]]) -> float:
    """What all take at the least that stream whole layers."""
    return min(one.least_s(k) for one in families for k in range(one.fewest, one.layers + 1))


def of_layers(families: Sequence[Family[Found]], options: Options, below: float) -> Quickest[Found] | None:
    """The quickest of all families, of equals that with the fewest layers streamed; of those that are found before
    searches with such `options` have taken MOST_WORK since there was one, or MOST_TRIED in turn have found nothing
    quicker. While none is known, and after MOST_IN_VAIN, those with most room are planned. None where none is found
    that takes less than `below`."""
    best: Quickest[Found] | None = None
    work, effort, begun, vain = options.work, options.settings.effort, options.work.read, 0
    while vain < MOST_TRIED:
        most = below if best is None else min(below, best.price)
        tired = work.beyond(MOST_WORK * effort if most < math.inf else MOST_IN_VAIN, begun)
        every = [(*turn, n) for n, one in enumerate(families) if (turn := one.next(most, tired)) is not None]
        if not every or (tired and most < math.inf):
            break
        *_, count, n = min(every)
        found = families[n].plan(count, most)
        vain += best is not None
        if not isinstance(found, EsccError):
            price = families[n].price(found)
            begun = work.read if most == math.inf else begun  # what was in vain leaves the others as much as ever
            if best is None or (price, count) < (best.price, best.streamed):
                best, vain = Quickest(found, families[n].kinds, count, price, 0.0), 0
    return best


def refuse(family: Family[Found], bound: float, below: float) -> NoReturn:
    """Raises why nothing was found: Cutoff with the `bound` of all where they are known to have a plan and others take
    `below`, or the InputError of a family, with as much room as may be."""
    if bound < math.inf and below < math.inf:
        raise Cutoff(bound)
    every_tried = [family.tried.get(family.key(k)) for k in reversed(range(family.layers + 1))]
    refusals = [one for one in every_tried if isinstance(one, InputError)]
    refused = refusals[0] if refusals else family.plan(family.layers, math.inf)
    assert isinstance(refused, InputError), "what may be planned was planned"
    raise refused
