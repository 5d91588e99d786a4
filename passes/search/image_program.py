"""The cheapest plan among images where much memory is asked for, and what it is spelled out.

The program among images is small enough to settle, with what values take of the memory branched on first (see
`branch_on_levels`). Its optimum is a bound of all plans. A plan of it says of each value how many ways its dims are
split; which axes these are is said by a second program, of the images of what the plan takes alone, and a third of all
plans that store the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ...ir.record import record
from ..layouts.space import Mask
from .branch_and_bound import NEARLY, press
from .branch_on_levels import ByLevels
from .dual_ascent import DualAscent
from .exact import Prover
from .images import ImageLimits, Images, images, most_often, over_arcs
from .less_room import LessRoom
from .limits import JointLimits, Limited, Limits
from .problem import Candidate
from .reduced_program import Left

SETTLED = 6  # sweeps that bring a bound within some hundredths
TURNS = 6  # of charging for memory
NEAR_BOUND = (0.05, 0.01, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)  # above it, where plans among images are looked for in turn
ABOVE = (2e-3, 0.01, 0.03, 0.1, 0.3, 1.0)  # what the cheapest within less room may cost more than the cheapest of all
JUMP = 0.03  # what a step may begin above the end of the one before
MANY_IMAGES, ROUGH = 60_000, 1e-3  # columns, and the gap that is small enough where there are so many
FEW = 16  # relaxations that are looked at for a smaller one
FAR = 0.3  # above a bound: a price below which plans are many
NEAR_PLAN = (0.05, 0.02, 0.01, 2e-3)  # above the price of a plan among images, what it may cost spelled out
NEAR_STORED = (2e-3, 0.01, 0.02)  # and one that stores as much
FINE = 0.2  # of that, how near to the cheapest is near enough
SWEEPS = 3  # of the ascent among the images of a plan
MOST_AMONG = 250_000  # columns of a program among images; larger ones take minutes
MOST_STORED = 800_000  # columns of the program of plans that store what one stores, whose relaxation is easy
MOST_SPELLED, MOST_ARCS = 40_000, 150_000  # columns of the programs that spell a plan out: over its arcs, and all
TIGHTER = (0.5, 1.1, 1.1, 2.0)  # how much less room there is said to be, by what is taken too much spelled out, in turn
ROOMY = 4e-4  # a gap that is near enough where less room is asked for than there is
UNKNOWN = 0.02  # taken too much by a plan none of whose images keeps to the limits
SOME = 5e-4  # taken too much by any that does not: plans that were asked for less by less are seldom others
MOST_IMPROVED = 8  # times that a part of a plan is settled beside the rest
MORE_TIGHTLY = (1.1, 3.0)  # as TIGHTER, of plans that are repaired
MOST_REPAIRED, REPAIRED = 0.05, 0.02  # taken too much by a plan that is repaired, and what that may cost more
MOST_APART = 60_000  # columns of a program in which axes are told apart, of which some dozens of relaxations are needed
APART_WORK = 2_000_000  # columns of all of these
ABOVE_IMAGES = 0.005  # the bound of images, what is looked for where axes are told apart
OPENED = 1e-3  # below it, what levels are told apart for before
MOST_IN_PART = 8  # relaxations of what is looked at so, each a second
LITTLE = 1e-6  # and less than that plan takes at the least, so that another is found


@record(eq=False)
class Among:
    """A `bound` of all plans within limits, the cheapest that was `found`, and an `ascent` of the whole problem that
    has settled near it."""

    bound: float
    found: Candidate | None
    ascent: DualAscent


@dataclass(eq=False)
class ImageSearch:
    """The problem of a `prover` looked at by images, for plans that keep to `limits`. `ascent` has settled on it.
    `closer`: limits of which more is known, for some of these plans."""

    prover: Prover
    limits: Limits | JointLimits
    images: Images
    ascent: DualAscent
    closer: Limits | JointLimits

    def run(self, least: float, below: float) -> Among:
        """Of plans that cost less than `below` the cheapest; `least` is a bound of all."""
        limits = ImageLimits(self.images, self.limits)
        settled = self._settled(limits, below)
        if settled is None:
            return Among(math.inf, None, self.ascent)
        ascent, low = settled
        small = _Small(Prover(self.images.problem), ascent)
        cheapest, bound = small.cheapest(limits, max(least, low), below)
        whole, found = self.images.whole(self.ascent, ascent), None
        if cheapest is not None:
            cheapest, limits = self._known_closer(cheapest, small, limits, bound, below)
            found = self._nearest(cheapest, small, limits, bound, whole, below)
            near_enough = ROUGH if self.images.problem.columns < MANY_IMAGES else NEARLY
            enough = bound / (1 - near_enough)
            if self.images.problem.columns >= MANY_IMAGES:
                told, bound = self._told_in_part(small, found, bound, below)
                if told is not found:  # by that bound it is known how near it is
                    found, enough = told, bound / (1 - near_enough)
            found = self._improved(found, whole, enough)
            price = below if found is None else found.price
            if bound < price * (1 - NEARLY):  # seldom is there none that is much nearer
                nearer = self._nearest_as_stored(cheapest, small, limits, bound, whole, price)
                found = self._improved(nearer, whole, bound / (1 - near_enough)) or found
            price = below if found is None else found.price
            if max(bound, cheapest.price) < price * (1 - NEARLY):
                found, bound = self._told_apart(found, whole, bound, price)
        self.prover.solve_s += small.prover.solve_s
        return Among(bound, found, whole)

    def _told_apart(
        self, found: Candidate | None, whole: DualAscent, bound: float, price: float
    ) -> tuple[Candidate | None, float]:
        """What was `found` below a `price`, or a cheaper plan, and a bound of all, of which images left more open than
        how much each value takes: of a program with few columns, in which alike axes are told apart."""
        columns = self.prover.problem.columns
        if columns > MOST_APART or price == math.inf:
            return found, bound
        own = whole.copy()
        for n, mask in enumerate(self.limits.tightened([np.ones(len(each), dtype=bool) for each in own.prices]) or ()):
            own.allow(n, mask)
        for _ in range(SETTLED):
            own.sweep()
        known, gap = _at_most(price, own), self.prover.problem.settings.gap
        most = APART_WORK // columns
        answer = self.prover.by_levels(
            own, known, self.limits, MOST_APART, gap, less=True, most_relaxed=most, apart=True
        )
        if answer is None:
            return found, bound
        plan = answer.plan if answer.plan is not None and answer.plan.price < price else None
        if plan is not None and not self.limits.fits(plan):
            plan = self._repaired(plan, whole, price)
        return plan or found, max(bound, answer.bound)

    def _told_in_part(
        self, small: _Small, found: Candidate | None, bound: float, below: float
    ) -> tuple[Candidate | None, float]:
        """As `_told_apart`, of a program of many columns: axes are told apart where programs run most often alone, in
        each box of levels that images leave open, among what plans near their bound may have there."""
        price = below if found is None else found.price
        most = min(price * (1 - ROUGH), bound * (1 + ABOVE_IMAGES))
        near, limits = _at_most(most, small.ascent), ImageLimits(self.images, self.limits)
        begun = small.prover.begun(small.ascent, near, limits, MOST_AMONG) if bound < price * (1 - NEARLY) else None
        if begun is None:
            return found, bound
        least = most
        for left in begun.left(small.ascent, most, bound * (1 - OPENED)):
            part = self._part(left)
            plan, shown = (None, bound) if part is None else part._among_part(bound, most)
            least = min(least, shown)
            if part is not None:
                self.prover.solve_s += part.prover.solve_s
            if plan is not None:
                plan = self.prover.problem.found(plan.chosen, plan.shared)
                found = min(plan, found or plan, key=lambda p: p.price)
                most = min(most, found.price)
        return found, max(bound, least)

    def _part(self, left: Left) -> ImageSearch | None:
        """What is `left` of images, to be looked at with axes told apart where programs run most often."""
        every = self.prover.problem
        problem = over_arcs(every, self.images.between(every, left.arcs))
        apart = images(problem, most_often(problem.graph))
        if apart is None:
            return None
        none = DualAscent(problem.graph, problem.prices, problem.distances, problem.groups)
        ascent = self.images.whole(none, left.ascent)
        for n, mask in enumerate(self.images.all(left.masks)):
            ascent.allow(n, mask)
        return ImageSearch(Prover(problem), self.limits, apart, ascent, self.closer)

    def _among_part(self, least: float, below: float) -> tuple[Candidate | None, float]:
        """A plan that costs less than `below`, if one is found, by the cheapest one among images of which some are told
        apart; and a bound of all that do, of which `least` is one."""
        limits, own = ImageLimits(self.images, self.limits), self.images.here(self.ascent)
        prover, known = Prover(self.images.problem), _at_most(below, own)
        begun = prover.begun(own, known, limits, MOST_AMONG)
        if begun is None or begun.relaxed < least:  # what is open is not how axes stand to each other here
            self.prover.solve_s += prover.solve_s
            return None, least
        answer = prover.by_levels(
            own, known, limits, MOST_AMONG, ROUGH, less=True, begun=begun, most_relaxed=MOST_IN_PART, apart=True
        )
        assert answer is not None, "it has begun"
        self.prover.solve_s += prover.solve_s
        found = None
        if answer.plan is not None:
            whole = self.images.whole(self.ascent, own)
            found, wrong = self._spelled(answer.plan, whole, math.inf)
            found = found or self._repaired(wrong, whole, math.inf)
        # Of what is a little cheaper than is asked for the relaxation may say more than boxes.
        return found, max(least, answer.bound, min(answer.relaxed, below))

    def _known_closer(
        self, plan: Candidate, small: _Small, limits: ImageLimits, low: float, below: float
    ) -> tuple[Candidate, ImageLimits]:
        """A plan among images, and the limits that it keeps to: those of which more is known, if there is one."""
        closer = ImageLimits(self.images, self.closer)
        if not closer.fits(plan):
            other = small.above(closer, low, below, ROOMY)
            if other is not None:
                return other, closer
        return plan, limits

    def _nearest(
        self, plan: Candidate, small: _Small, limits: ImageLimits, low: float, whole: DualAscent, below: float
    ) -> Candidate | None:
        """A plan that costs less than `below`, of the images of all that a plan among images takes; where none keeps to
        the limits, of one that takes less. `low`: a bound of all plans."""
        for beyond in (*TIGHTER, None):
            found, wrong = self._spelled(plan, whole, below)
            found = found or self._repaired(wrong, whole, below)
            if found is not None or beyond is None:
                return found
            if wrong is None and below < math.inf:  # what is known is near enough to what is looked for
                return None
            limits = self._with_less_room(limits, plan, wrong, beyond)
            less = small.above(limits, low, below, ROOMY)
            if less is None:
                break
            plan = less
        return None

    def _nearest_as_stored(
        self, plan: Candidate, small: _Small, limits: ImageLimits, low: float, whole: DualAscent, below: float
    ) -> Candidate | None:
        """As `_nearest`, of the images of what a plan among images stores, as long as some are near it."""
        for beyond in (*TIGHTER, None):
            found, wrong = self._as_stored(plan, small, limits, below)
            found = found or self._repaired(wrong, whole, below)
            if found is not None or wrong is None or beyond is None:
                return found
            limits = self._with_less_room(limits, plan, wrong, beyond)
            less = small.above(limits, low, below, ROUGH)
            if less is None:
                break
            plan = less
        return None

    def _with_less_room(
        self, limits: ImageLimits, plan: Candidate, wrong: Candidate | None, beyond: float
    ) -> ImageLimits:
        """Limits that a plan among images does not keep to, by so much `beyond` what it takes too much as it is spelled
        out `wrong`; None where none of its images is a plan. They leave out what is held as values are moved, which is
        known well in some points alone: with less room there as well none may be left."""
        limits = replace(limits, limits=self.closer.standing)
        excess = UNKNOWN if wrong is None else max(self.limits.excess(wrong), SOME)
        less = limits.share * (1 - beyond * excess)
        return replace(limits, share=min(less, limits.taken(plan) * (1 - LITTLE)))

    def _settled(self, limits: ImageLimits, below: float) -> tuple[DualAscent, float] | None:
        """An ascent among images that has settled on charges for memory, or, where plans `below` a price are asked for,
        before any; and a bound. None where no plan keeps to the limits."""
        problem = self.images.problem
        tight = limits.tightened([np.ones(len(first), dtype=bool) for first in self.images.first])
        if tight is None:
            return None
        start = DualAscent(problem.graph, problem.prices, problem.distances, problem.groups)
        for n, mask in enumerate(tight):
            start.allow(n, mask)
        for _ in range(SETTLED):
            start.sweep()
        if below < math.inf:
            return start, start.bound()
        pressed = press(start, limits.loads(tight), problem.found, limits.fits, TURNS, limits.combining)
        if pressed is None:
            return start, start.bound()
        return pressed.ascent, pressed.bound

    def _spelled(self, plan: Candidate, whole: DualAscent, below: float) -> tuple[Candidate | None, Candidate | None]:
        """The cheapest plan among the images of what a plan takes that costs less than `below` and keeps to the limits,
        or one that does not keep to them. Over the arcs of that plan first, then, below what was found, over all."""
        own = self._images_of(plan, whole)
        arcs = self.images.arcs(self.prover.problem, plan)
        some = _at_most(math.inf, own)
        few = self.images.problem.columns < MANY_IMAGES
        near_enough = self.prover.problem.settings.gap if few else NEARLY
        found: Candidate | None = None
        wrong: Candidate | None = None
        for among, most_columns in ((arcs, MOST_SPELLED), (None, MOST_ARCS)):
            for share in NEAR_PLAN:
                known = some.at_most(min(below if found is None else found.price, plan.price * (1 + share)))
                answer = self.prover.near_relaxed(own, known, self.limits, most_columns, near_enough, among)
                if answer is not None:
                    found, wrong = answer[0] or found, wrong or answer[1]
                    break
            if found is not None and found.price <= plan.price * (1 + ROUGH):
                break
        return found, None if found is not None else wrong

    def _images_of(self, plan: Candidate, whole: DualAscent) -> DualAscent:
        """An ascent that has settled on the images of what a plan among images takes."""
        own = whole.copy()
        charged = 0.0  # for memory; as much in all images
        for n, (of, choice) in enumerate(zip(self.images.of, plan.chosen, strict=True)):
            own.allow(n, of == choice)
            first = self.images.first[n][choice]
            charged += float(whole.prices[n][first] - self.prover.problem.prices[n][first])
        own.refund = charged
        for _ in range(SWEEPS):
            own.sweep()
        return own

    def _as_stored(
        self, plan: Candidate, small: _Small, limits: ImageLimits, below: float
    ) -> tuple[Candidate | None, Candidate | None]:
        """As `_spelled`, of plans that store images of what a plan among images stores. A linear program among images
        says which choices those near it may have."""
        near = small.ascent.copy()
        for n, node in enumerate(self.images.problem.graph.nodes):
            if node.stored is not None:
                near.allow(n, np.arange(len(near.prices[n])) == plan.chosen[n])
        for _ in range(SETTLED):
            near.sweep()
        for share in NEAR_STORED:
            price = min(below, plan.price * (1 + share))
            left = small.prover.near(near, replace(plan, price=price, bound=near.bound()), limits)
            if left is None:
                continue
            own = self.images.whole(self.ascent, near)
            for n, mask in enumerate(self.images.all(left.masks)):
                own.allow(n, mask)
            known = _at_most(price, own)
            among = self.images.between(self.prover.problem, left.arcs)
            answer = self.prover.near_relaxed(own, known, self.limits, MOST_ARCS, share * FINE, among)
            if answer is None or answer != (None, None):
                return answer or (None, None)
            if price == below:
                break
        return None, None

    def _improved(self, plan: Candidate | None, whole: DualAscent, enough: float) -> Candidate | None:
        """A plan with what it stores and with all else settled in turn, as long as that makes it cheaper by something
        and it costs more than is `enough`."""
        for turn in range(MOST_IMPROVED):
            if plan is None or plan.price <= enough:
                break
            other = self._alike(plan, whole, stored=turn % 2 == 0)
            if other is None and turn > 0:
                break
            plan = other or plan
        return plan

    def _alike(self, plan: Candidate, whole: DualAscent, stored: bool) -> Candidate | None:
        """A cheaper plan that stores what a plan stores, one phase after the other, which nothing else connects: with
        that settled, much of how axes stand to each other is. Or one that does all else as it does."""
        price, nodes = plan.price, self.prover.problem.graph.nodes
        for phase in dict.fromkeys(node.phase for node in nodes if node.stored is None) if stored else (None,):
            answer = self._near_fixed(plan, self._fixed(plan, whole, stored, phase), plan.price, self.limits)
            plan = plan if answer is None else answer[0] or plan
        return plan if plan.price < price else None

    def _repaired(self, wrong: Candidate | None, whole: DualAscent, below: float) -> Candidate | None:
        """A plan that stores something else than one that is a little beyond the limits, does all else as it does, and
        keeps to them; None where none is found that costs less than `below`. Rows do not know of all that a plan holds,
        so that less room is asked for than there is."""
        if wrong is None or self.limits.excess(wrong) > MOST_REPAIRED:
            return None
        own, price, share = self._fixed(wrong, whole, stored=False), min(below, wrong.price * (1 + REPAIRED)), 1.0
        for beyond in MORE_TIGHTLY:
            share *= 1 - beyond * max(self.limits.excess(wrong), LITTLE)
            answer = self._near_fixed(wrong, own, price, LessRoom(self.limits, share=share))
            if answer is None or answer[1] is None:
                return None if answer is None else answer[0]
            wrong = answer[1]
        return None

    def _near_fixed(
        self, plan: Candidate, own: DualAscent, below: float, limits: Limited
    ) -> tuple[Candidate | None, Candidate | None] | None:
        """As `Prover.near_relaxed`, of plans that cost less than `below` and that an ascent allows, of which much is as
        in a plan. A value all of whose ends are settled moves as it does there."""
        known = replace(plan, price=below, bound=own.bound())
        if known.bound >= below:
            return None
        settled = [np.count_nonzero(np.isfinite(prices)) == 1 for prices in own.prices]
        bill, among = self.prover.problem.trees.bill(plan.chosen, plan.shared), dict[int, Mask]()
        moves = zip(self.prover.problem.graph.tensors, self.prover.problem.distances, strict=True)
        for t, (tensor, near) in enumerate(moves):
            if near is not None:
                among[t] = np.ones(len(near.price), dtype=bool)
                if all(settled[port.node] for port in (tensor.source, *tensor.uses)):
                    among[t][:] = False
                    among[t][list(bill.arcs[t])] = True
        every = 0, np.ones(len(own.prices[0]), dtype=bool)  # no image stands for what is settled
        return self.prover.near_relaxed(own, known, limits, MOST_STORED, ROUGH, among, every)

    def _fixed(self, plan: Candidate, whole: DualAscent, stored: bool, phase: str | None = None) -> DualAscent:
        """An ascent that has settled on plans that store what a plan stores, or that do all else as it does. Of other
        phases than one, if that is given, all is settled."""
        own = whole.copy()
        for n, node in enumerate(self.prover.problem.graph.nodes):
            if (node.stored is not None) == stored or phase not in (None, node.phase):
                own.allow(n, np.arange(len(own.prices[n])) == plan.chosen[n])
        for _ in range(SWEEPS):
            own.sweep()
        return own


@record(eq=False)
class _Small:
    """The problem of images, and an `ascent` that has settled on charges for memory."""

    prover: Prover
    ascent: DualAscent

    def cheapest(self, limits: ImageLimits, bound: float, below: float) -> tuple[Candidate | None, float]:
        """The cheapest plan within limits, if one costs less than `below`, and the bound that was shown."""
        best, answer = None, None
        if below > bound * (1 + FAR):
            best, bound, answer = self.any(limits, bound, below, self._gap)
            if best is None:
                return None, bound
        price, gap = below if best is None else best.price, self.prover.problem.settings.gap
        while bound < price * (1 - gap):
            known, near = _at_most(price, self.ascent), bound >= price * (1 - self._gap)
            answer = self.prover.by_levels(
                self.ascent, known, limits, MOST_AMONG, gap, less=True, begun=answer, most_relaxed=FEW if near else None
            )
            if answer is None:
                break
            bound = max(bound, answer.bound)
            if answer.plan is None or answer.plan.price >= price:
                break
            best, price = answer.plan, answer.plan.price
        return best, bound

    def any(
        self, limits: ImageLimits, bound: float, below: float, gap: float | None = None
    ) -> tuple[Candidate | None, float, ByLevels | None]:
        """A good plan within limits, if one costs less than `below`: the cheapest of few choices, within a `gap` if one
        is given. And a bound, and what was said last."""
        near = bound
        for share in NEAR_BOUND:
            most = min(below, near * (1 + share))
            answer = self.prover.by_levels(self.ascent, _at_most(most, self.ascent), limits, MOST_AMONG, gap)
            if answer is None and share == NEAR_BOUND[0]:  # few of so many may be needed
                continue
            if answer is None:
                break
            # A relaxation of the choices that are near may be far above that of all.
            bound, near = max(bound, answer.bound), max(near, answer.bound, min(answer.relaxed, most * (1 + JUMP)))
            plan = answer.plan if answer.plan is not None and answer.plan.price < below else None
            if plan is not None or most == below:
                return plan, bound, answer
        return None, bound, None

    def above(self, limits: ImageLimits, bound: float, below: float, gap: float) -> Candidate | None:
        """The cheapest plan within limits, within a gap, if one costs less than `below`: near a bound of all plans, as
        where somewhat less room is asked for than there is."""
        near, gap = bound, max(gap, self.prover.problem.settings.gap)
        for share in ABOVE:
            most = min(below, near * (1 + share))
            answer = self.prover.by_levels(self.ascent, _at_most(most, self.ascent), limits, MOST_AMONG, gap, less=True)
            if answer is None or answer.plan is not None or most == below:
                return None if answer is None else answer.plan
            near = max(near, answer.bound)
        return None

    @property
    def _gap(self) -> float:
        """The gap that is small enough."""
        problem = self.prover.problem
        return problem.settings.gap if problem.columns < MANY_IMAGES else ROUGH


def _at_most(price: float, ascent: DualAscent) -> Candidate:
    """No plan, but a price below which those that an ascent allows are looked for, with its bound."""
    return Candidate((), price, ascent.bound())
