"""Keeping to the memory of a chip: branch and bound over the bytes that values take.

A box says which choices each node may take. A plan that holds too much at some point is kept out by two boxes: in one
of them a value that is held there takes less, in the other at least as much, which leaves less for all others. A tensor
that is split less serves at no higher price, so what matters is which values are given the memory that there is; those
ways are few. Each box is bounded by the dual ascent, with memory charged for (see `press`), which also finds plans;
where it is small enough, by the integer program with a row for each point.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from ...ir.record import record
from ..layouts.space import Mask
from .combinable import Combining
from .dual_ascent import DualAscent, Floats
from .exact import Prover
from .graph import Port, Tensor
from .less_room import whole
from .memory_bounds import Load, local_bytes
from .problem import Candidate
from .settle import least_sent, settle_unsent
from .side import MANY_ARCS, Side

SWEEPS = 5  # at the most, for each charge
FIRST, GROWTH = 0.02, 4.0  # of the bound, what all room at a point is charged first (if 0, a usual price); times then
NEAR = 1.3  # between a price that is too low and one that is enough


@record(eq=False)
class Pressed:
    """An ascent with charges, what is `charged` of each load, the best bound that this gave, and the plan that was read
    off before any were made."""

    ascent: DualAscent
    bound: float
    plan: Candidate
    charged: Mapping[int, float]


def press(
    ascent: DualAscent,
    loads: Sequence[Load],
    read: Callable[[Sequence[int]], Candidate],
    fits: Callable[[Candidate], bool],
    turns: int,
    combining: Combining = (),
    enough: float = math.inf,
) -> Pressed | None:
    """Charge for the memory of `loads` until the plan that is read off keeps to the limits, and bring the charge
    near the least that does. `fits` is asked of every plan on the way. `combining`: the bound is one of plans that
    run some collectives as one, of each of these sets of knots those of one; with `enough` of it no more is looked at.
    None where no plan was read off."""
    best: Pressed | None = None
    failed: dict[int, float] = {}  # of each load the highest charge with which too much was taken
    plenty: dict[int, float] = {}  # and the lowest with which the plan kept to the limits
    charged: dict[int, float] = {}
    for turn in range(turns + 1):
        _sweep(ascent, enough)
        bound, chosen = ascent.bound() + ascent.combining(combining), tuple(ascent.round())
        if not np.isfinite(ascent.price_of(chosen)):
            return best
        if bound >= enough:
            return Pressed(ascent, bound, read(chosen) if best is None else best.plan, dict(charged))
        plan = read(chosen)
        kept = fits(plan)
        if best is None or bound > best.bound:
            best = Pressed(ascent, bound, plan if best is None else best.plan, dict(charged))
        if turn == turns or not loads or (kept and not charged):
            return best
        taken = [load.of(chosen) / load.room for load in loads]
        if kept:
            plenty |= {n: min(charged[n], plenty.get(n, np.inf)) for n in charged}
            n = max(charged, key=lambda n: charged[n])
        else:
            n = int(np.argmax(taken))
            failed[n] = max(charged.get(n, 0.0), failed.get(n, 0.0))
            plenty = {m: most for m, most in plenty.items() if most > charged.get(m, 0.0)}
        low, high = failed.get(n, 0.0), plenty.get(n, np.inf)
        if low * NEAR >= high:
            return best
        first = FIRST * max(bound, plan.price) or ascent.usual
        now = max(low * GROWTH, first) if high == np.inf else float(np.sqrt(max(low, first * 1e-2) * high))
        ascent = ascent.copy()
        more = now - charged.get(n, 0.0)
        ascent.charge({m: size * (more / loads[n].room) for m, size in loads[n].bytes.items()}, more)
        charged[n] = now
    return best


def _sweep(ascent: DualAscent, enough: float) -> None:
    """Sweep until two do not raise the bound any more: of most boxes none does, where their ascent had settled before
    what they leave out. While no plan is known, and so none is `enough`, plans read off get better."""
    bound, in_vain = ascent.bound(), 0
    for _ in range(SWEEPS):
        ascent.sweep()
        before, bound = bound, ascent.bound()
        in_vain = 0 if bound > before + MOVED * abs(before) else in_vain + 1
        if in_vain == 2 and enough < math.inf:
            return


FIRST_TURNS, TURNS = 16, 2  # of charging for memory: in a box while no plan is known, and afterwards
MOST_READ = 500  # plans read off in all boxes; then the best so far is returned, with the bound of what is left
MOST_WORK = 20_000_000  # arcs swept over for them: what large problems may take
FEW_READ, ARCS_A_READ = 10, 5  # plans read off of one with more, and arcs for which one more is
SETTLED_READ, SETTLED_ARCS = 14, 150  # the same of one with fewer, which is settled then
NEAR_BOUND = (0.05, 0.02, 0.01, 0.005, 0.002)  # above its bound, of a box with too many plans that may be cheaper
MOST_IN_VAIN = 3  # of a side, boxes that had no plan near their bound; of others that is not asked any more
NEARLY = 2e-3  # a gap that is small enough where steps take long
MOST_IN_PLACE, PATIENCE = 6, 24  # steps that change nothing, and plans that have been read off, after which it is
FEW_IN_PLACE = 3  # the same of steps where what boxes leave open is settled copy by copy
AFTER_WORK = 2_000_000  # columns of all plans that are read off of a side all of which a solver has been asked of
AFTER_IMAGES = 2_000_000  # and of one whose images have been looked at
FEW_SIDES = 2  # where more are told apart there is not the time to settle each, copy by copy, if a plan is known
TOLD_WORK = 4_000_000  # as AFTER_WORK, of all of so many sides of a small problem together, once a plan is known
MOVED = 1e-5  # what a bound or a price changes by at the least
MANY_COLUMNS = 20_000  # of a large side
FEW_COLUMNS, CLOSE = 1_500, 0.01  # of a side whose steps are quick; a gap of others that as many steps do not close
MIDDLING = 10_000  # columns of a side of which half as many steps are made, each of which takes long
MOST_CUTS = 4  # in turn by what the dual ascent says alone
MOST_WAYS, EACH_WAYS, FEW_WAYS = 1_000, 100, 10  # to make copies: in all, in a box of one plan, and while none is known
MOST_COLUMNS = 95_000  # of a program for the solver; the proof of one box in many is not worth more


@record(eq=False)
class _Box:
    """`allowed[n]`: the choices that node n may take; `free` has settled on them, `ascent` as well with charges
    for memory, and `plan` is what `free` says, its bound that of the box. `cuts`: how many lie between it and a
    box that was proven."""

    allowed: list[Mask]
    free: DualAscent
    ascent: DualAscent
    plan: Candidate
    cuts: int


@record
class _Cut:
    """A node whose choices are told apart by what they are `worth`: less than `at`, or not."""

    node: int
    worth: Floats
    at: float


class Boxes:
    """Of one side the boxes that are left, the best plan so far, and the bound of what was given up. `below`: what a
    plan must cost less than, and `elsewhere` whether another side has one that costs as much, or one was known before.
    `floor`: a bound of all of its plans, and whether its images have been looked at (`by_images`). `settles`: whether
    what boxes leave open is settled copy by copy, and if it may be, once few sides are left; so many steps that change
    nothing (`most_in_place`) leave it to that."""

    def __init__(self, side: Side, prover: Prover, below: float):
        self.side = side
        self.problem, self.limits, self.detours = side.problem, side.limits, side.detours
        self.prover, self.below, self.elsewhere = prover, below, below < math.inf
        self.floor, self.by_images = -math.inf, False
        self.large = side.problem.columns >= MANY_COLUMNS
        self.in_place, self.before = 0, (0.0, math.inf)  # steps since bound and price were others
        self.winner: DualAscent | None = None  # that of the box in which the best plan was found
        self.best: Candidate | None = None
        self.heap: list[tuple[float, int, _Box]] = []
        self.given_up, self.entered, self.read, self.tried, self.in_vain = np.inf, 0, 0, 0, 0
        self.settles, self.may_settle, self.most_in_place = False, False, MOST_IN_PLACE
        self.asked = False  # whether the solver has been asked of all plans at once
        every = self.problem.arcs_read
        few, a_read = (SETTLED_READ, SETTLED_ARCS) if every <= MANY_ARCS else (FEW_READ, ARCS_A_READ)
        self.most = min(MOST_READ, MOST_WORK // max(1, every), few + every // a_read)

    @cached_property
    def ascent(self) -> DualAscent:
        """One that has settled on the side without limits."""
        return self.problem.settled.copy()

    @property
    def price(self) -> float:
        """That of the best plan so far, or what a plan must cost less than."""
        return min(self.below, math.inf if self.best is None else self.best.price)

    @property
    def dives(self) -> bool:
        """Whether any plan is of more interest than a better bound: while none is known."""
        return self.best is None and not self.elsewhere

    @property
    def enough(self) -> float:
        """So many plans are read off: of most as many as there is effort for, once one is known."""
        return self.most if self.dives else self.most * self.problem.settings.effort

    @property
    def least(self) -> float:
        """The least bound of the boxes that are left."""
        return max(self.heap[0][0], self.floor) if self.heap else np.inf

    @property
    def bound(self) -> float:
        """The bound of all plans of the side, or the price of a known one."""
        return min(self.price, max(self.floor, min(self.given_up, self.least)))

    @property
    def hesitates(self) -> bool:
        """Whether a small gap is good enough: many steps have been made, or changed nothing, and each takes long."""
        return self.large and (self.in_place >= MOST_IN_PLACE or self.read >= PATIENCE)

    @property
    def settled(self) -> bool:
        """Whether a large side has no plan that is much cheaper than the best."""
        return self.large and self.bound >= self.price * (1 - NEARLY)

    @property
    def open(self) -> bool:
        """Whether there is anything left to do."""
        if self.hesitates and self.least >= self.price * (1 - NEARLY):
            return False
        if self.settles and self.asked and not self.dives and self.is_stuck:
            return False
        patience = PATIENCE // 2 if self.problem.columns >= MIDDLING else PATIENCE
        if self.asked and self.in_place >= patience and self.problem.columns >= FEW_COLUMNS:
            return self.least < self.price * (1 - CLOSE) and self.read < self.enough
        return self.least < self.price * (1 - self.problem.settings.gap) and self.read < self.enough

    @property
    def is_stuck(self) -> bool:
        """Whether boxes have not changed anything for some steps, or have given one up whose bound is the least of all:
        then a cheaper plan is all that they may still find."""
        return self.in_place >= self.most_in_place or self.given_up <= self.least

    @property
    def is_closed(self) -> bool:
        """Whether so little may be looked at after images that it is not worth to begin."""
        known = self.by_images and self.price < math.inf
        return known and AFTER_IMAGES // self.problem.columns < FEW_READ

    def reading(self, chosen: Sequence[int]) -> Candidate:
        """A plan that was read off."""
        self.read += 1
        return self.problem.found(chosen)

    def offered(self, plan: Candidate) -> bool:
        """Take a plan if it keeps to the limits and is cheaper; whether it keeps to them."""
        if not self.limits.fits(plan):
            return False
        if plan.price < self.price:
            self.best = plan
        return True

    def begin(self, floor: float, known: Candidate | None, winner: DualAscent) -> None:
        """Go on from a bound of all plans of the side and one that keeps to the limits, by an ascent that knows of
        it."""
        self.floor, self.by_images = floor, True
        if known is not None and known.price < self.price:
            self.best, self.winner = known, winner
        if self.price < math.inf:  # what images leave open is seldom closed
            self.most = min(self.most, AFTER_IMAGES // self.problem.columns)

    def enter(self, allowed: Sequence[Mask], parent: DualAscent, least: float, cuts: int = 0) -> None:
        """Put a box on the heap, unless no plan in it can keep to the limits or be cheaper. `least` is
        a bound of it, `cuts` as it has."""
        if least >= self.price * (1 - self.problem.settings.gap):
            return
        tight = self.limits.tightened(allowed)
        if tight is None:
            return
        self.entered += 1
        ascent = parent.copy()
        for n, mask in enumerate(tight):
            ascent.allow(n, mask)
        turns = FIRST_TURNS if self.dives else TURNS
        known = self.best
        loads = self.limits.loads(tight)
        enough = self.price * (1 - self.problem.settings.gap)
        pressed = press(ascent, loads, self.reading, self.offered, turns, self.limits.combining, enough)
        if pressed is not None and self.best is not known:
            self.winner = pressed.ascent
        bound = least if pressed is None else max(least, pressed.bound)
        if bound >= self.price * (1 - self.problem.settings.gap):
            return
        if pressed is None:
            self.given_up = min(self.given_up, bound)
            return
        box = _Box(tight, ascent, pressed.ascent, replace(pressed.plan, bound=bound), cuts)
        heapq.heappush(self.heap, (bound, self.entered, box))

    def step(self) -> None:
        """Take the box of the least bound, prove its cheapest plan or split it."""
        gap = self.problem.settings.gap
        bound, box = self.take()
        rose, fell = bound > self.before[0] * (1 + MOVED), self.price < self.before[1] * (1 - MOVED)
        self.in_place = 0 if rose or fell else self.in_place + 1
        self.before = (bound if rose else self.before[0], self.price if fell else self.before[1])
        if self.in_place >= self.most_in_place and not self.asked:
            self.ask_whole(bound)
            bound = max(bound, self.floor)
            if bound >= self.price * (1 - gap):
                self.heap.clear()
                return
        if self.limits.fits(box.plan) or not box.cuts or box.cuts >= MOST_CUTS:
            found, wrong, most = self.ask(box)
            bound = max(bound, found.bound)
            if found.price < min(most, self.price) and self.offered(found):
                self.winner = box.ascent
            if bound >= self.price * (1 - gap):
                return
            self.in_vain += most < self.price and bound >= most * (1 - gap)
            box = replace(box, plan=replace(wrong or box.plan, bound=bound), cuts=0)
        if self.dives:
            self.detour(box.plan, FEW_WAYS)
        self.split(box)

    def ask(self, box: _Box) -> tuple[Candidate, Candidate | None, float]:
        """What the solver says of the plans of a box that cost less than the best; where these are too many, of those
        near its bound: as `Prover.within`, and below which price plans were looked for."""
        bound = box.plan.bound
        for most in (self.price, *(bound + share * abs(bound) for share in NEAR_BOUND)):
            if most > self.price:
                continue
            if most < self.price and self.in_vain == MOST_IN_VAIN:
                break
            known = self.best if self.best is not None and most == self.price else replace(box.plan, price=most)
            answer = self.prover.within(box.ascent, known.at_most(most), self.limits, MOST_COLUMNS)
            if answer is not None:
                return *answer, most
        return box.plan, None, math.inf

    def ask_whole(self, least: float) -> None:
        """Boxes do not close: ask the solver of all plans at once, of which `least` is a bound."""
        self.asked = True
        self.ask_unsent(least)
        least = max(least, self.floor)
        if least >= self.price * (1 - (NEARLY if self.large else self.problem.settings.gap)):
            return
        by_levels = not self.by_images  # of which a better bound is known than any relaxation of these is
        said = whole(self.prover, self.limits, self.ascent, least, self.price, by_levels)
        if said.found is not None and self.offered(said.found):
            self.winner = self.ascent
        self.floor = max(self.floor, said.bound)
        self.most = min(self.most, self.read + AFTER_WORK // self.problem.columns)

    def ask_unsent(self, least: float) -> None:
        """Where the next price above all plans that send nothing is above a bound of all plans, the `least`: ask
        whether one of them keeps to the limits."""
        sent = least_sent(self.side)
        if min(sent, self.price) <= least * (1 + NEARLY):
            return
        found, bound = settle_unsent(self.side, self.prover, self.price, sent)
        if found is not None and self.offered(found):
            self.winner = self.ascent
        self.floor = max(self.floor, bound)

    def plainest(self) -> Candidate:
        """Of the plans of the price of the best of the side, the plainest."""
        assert self.best is not None, "a plan has been found"
        found = replace(self.best, bound=self.bound)
        plain = self.prover.plainest(self.winner or self.ascent, found, MOST_COLUMNS, self.limits)
        return plain if self.limits.fits(plain) else found

    def detour(self, plan: Candidate, most: int) -> float:
        """Try other ways to make the copies of a plan; a bound of those that were not tried."""
        most = min(most, MOST_WAYS - self.tried)
        found, left, tried = self.detours.around(plan, self.limits, self.price, most)
        self.tried += tried
        if found is not None:
            self.offered(found)
        return left

    def take(self) -> tuple[float, _Box]:
        """The box of the least bound, and its bound; while no plan is known the last one entered, in
        which most is less than it was."""
        if self.dives:
            last = max(self.heap, key=lambda entry: entry[1])
            self.heap.remove(last)
            heapq.heapify(self.heap)
            return last[0], last[2]
        bound, _, box = heapq.heappop(self.heap)
        return bound, box

    def split(self, box: _Box) -> None:
        """Two boxes without the plan of this one, which does not keep to the limits."""
        cut = self.cut(box)
        if cut is None:
            # All is settled, but for the ways over which copies are made.
            self.given_up = min(self.given_up, max(box.plan.bound, self.detour(box.plan, EACH_WAYS)))
            return
        for less in (False, True):
            allowed = list(box.allowed)
            allowed[cut.node] = allowed[cut.node] & ((cut.worth < cut.at) == less)
            self.enter(allowed, box.free, box.plan.bound, box.cuts + 1)

    def cut(self, box: _Box) -> _Cut | None:
        """Where to split: at what takes the most above the least that it may, a choice first that says
        what is needed at the worst point; else at any layout of what is held, else anywhere. None when
        all is settled."""
        held = list(self.held(box.plan))
        stored = [(term.node, term.bytes) for term in self.limits.stored_terms]
        sizes = [(port.node, local_bytes(tensor, port)) for tensor, ports in held for port in ports]
        deciding = self.limits.deciding(box.plan)
        cut = _largest([*stored, *(s for s in sizes if s[0] in deciding)], box) or _largest(sizes, box)
        if cut is not None:
            return cut
        for tensor, ports in held:
            for port in dict.fromkeys([*ports, tensor.source, *tensor.uses]):
                other = (port.rows != port.rows[box.plan.chosen[port.node]]).astype(np.float64)
                if other[box.allowed[port.node]].any():
                    return _Cut(port.node, other, 1.0)
        for node, allowed in enumerate(box.allowed):
            if allowed.sum() > 1:
                return _Cut(node, (np.arange(len(allowed)) != box.plan.chosen[node]).astype(np.float64), 1.0)
        return None

    def held(self, plan: Candidate) -> Iterator[tuple[Tensor, list[Port]]]:
        """What a plan holds at its worst point besides what is stored, and the ports at which it lies
        in that layout: all of its ports, if it lies so on its way only."""
        tensors = {(t.phase, t.value.name): t for t in self.problem.graph.tensors}
        for held in self.limits.held(plan):
            tensor = tensors[held.phase, held.value]
            row = tensor.space.index(held.layout)
            every = [tensor.source, *tensor.uses]
            yield tensor, [port for port in every if port.rows[plan.chosen[port.node]] == row] or every


def _largest(sizes: Sequence[tuple[int, Floats]], box: _Box) -> _Cut | None:
    """Of the bytes that nodes give something, where the plan takes most above the least of the box;
    None where it takes the least everywhere."""
    best, most = None, 0.0
    for node, size in sorted(sizes, key=lambda s: s[0]):
        taken = float(size[box.plan.chosen[node]])
        above = taken - float(size[box.allowed[node]].min())
        if above > most:
            best, most = _Cut(node, size, taken), above
    return best


def enter(sides: Sequence[Boxes], least: float) -> None:
    """Begin with a box of all plans of each side; `least` is a bound of them."""
    for side in sides:
        if side.by_images and not side.is_closed:
            side.ask_unsent(max(least, side.floor))
        problem, bound = side.problem, max(least, side.floor)
        if side.large and (side.floor >= side.price * (1 - NEARLY) or side.is_closed):
            side.given_up = min(side.given_up, bound)
            continue
        if side.limits.combining:
            bound = max(bound, least_sent(side.side))  # something is sent
        allowed = [np.ones(len(node.seconds), dtype=bool) for node in problem.graph.nodes]
        if problem.representatives is not None:
            node, mask = problem.representatives  # from here on boxes may tell alike axes apart
            allowed[node] = mask
        side.enter(allowed, side.ascent, bound)
        share(sides)


def branch_and_bound(sides: Sequence[Boxes]) -> None:
    """Take turns at all plans, the `sides`, until nothing is left that may hold a cheaper one. The side of the least
    bound is next: a plan that is found in one closes the boxes of all."""
    while waiting := [side for side in sides if side.open]:
        stuck = min((side.bound for side in sides if side.large and not side.open), default=math.inf)
        if all(side.best is not None or side.elsewhere for side in sides) and stuck <= min(s.bound for s in waiting):
            break  # a better bound of these would be none of all plans
        if _is_spent(sides):
            break
        now = waiting[0] if waiting[0].dives else min(waiting, key=_turn)
        now.step()
        share(sides)
        left = unsettled(sides)
        for side in left if len(left) <= FEW_SIDES else ():
            side.settles = side.may_settle


def unsettled(sides: Sequence[Boxes]) -> list[Boxes]:
    """The sides that may still have a cheaper plan."""
    return [side for side in sides if side.bound < side.price * (1 - side.problem.settings.gap)]


def _is_spent(sides: Sequence[Boxes]) -> bool:
    """Whether many sides of a small problem have taken together what there is for them."""
    few = len(sides) <= FEW_SIDES or any(side.dives or side.large for side in sides)
    return not few and sum(side.read for side in sides) * sides[0].problem.columns >= TOLD_WORK


def _turn(side: Boxes) -> tuple[int, float]:
    """Of sides that get nowhere others are looked at first."""
    return (side.in_place // MOST_IN_PLACE if side.large else 0, side.least)


def share(sides: Sequence[Boxes]) -> None:
    """Tell all sides what the best plan of any costs."""
    for found in sides:
        if found.price < found.below:
            for side in sides:
                if side is not found:
                    side.below, side.elsewhere = min(side.below, found.price), True
