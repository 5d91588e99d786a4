"""The proof: the integer program on the choices that the bounds leave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ..ilp.model import Model, continuous
from ..ilp.solver import Answer, solve
from ..ilp.thinned import thinned
from ..layouts.space import Mask
from .branch_on_axes import AxisProgram, AxisSearch
from .branch_on_levels import Among, ByLevels, LevelPlans
from .counted_sends import counted
from .dual_ascent import DualAscent
from .graph import restrict
from .integer_program import choice_program
from .limits import Limited
from .memory_bounds import taken_by
from .memory_solvers import MOST_INTEGER, ask_by_bytes, ask_whole
from .near_known import improved
from .problem import Candidate, Problem, tie_of
from .reduced_program import INTEGRAL, Left, Reduced, fixed, least_columns, left_of
from .row_worths import row_worths
from .symmetry import Standing, of_layers

Floats = NDArray[np.float64]
UNIT = 1e6  # the price of a known plan in the solver's unit, far above its tolerances of 1e-7
MORE_SWEEPS = 6  # on the choices that a relaxation mixes
NEAR = (0.05, 0.15)  # above the ascent's bound, where most plans are
FAR = 1e30  # seconds: more than the difference of any two plans
MANY_MIXED = 30_000  # columns of a program that the solver has no end with where axes are alike
MANY_NEAR = 150_000  # columns of a relaxation that takes so long that a nearer plan is looked for before
MANY_ALIKE = 100_000  # columns where axes are told apart by what layers hand on, which keeps plain names less well
MOST_LEFT = 80_000  # columns of a program whose plans are looked for one by one: with more each takes a second
MOST_SETTLED = 120_000  # and of one in which some steps are made from its relaxation, to any plan
MOST_COMBINING = 5_000  # and where collectives run as one, of which its cuts know little, of a problem that is
SMALL = 12_000  # no larger: of others its plans are worth the time
ROUNDED = 1e-3  # of a gap
WIDE = 0.002  # a gap that is worth a look at what a relaxation mixes
MOST_TIED = 10_000  # columns of an integer program that only tells plans of one price apart
MANY_TIES, TIED_NODES = 5_000, 500  # columns of which HiGHS may make cuts for a quarter of a minute, and SCIP does not
MOST_TIED_WITHIN = 2_500  # and keep to limits, of which the solver may take four seconds for one node
MANY_TIED = 60_000  # and of its relaxation, which takes seconds then and says little
TIE = 1e-4  # what the least plain choice, or one collective more, counts in that unit


@dataclass
class Prover:
    """Solves what the bounds leave. `solve_s` adds up the time spent in the solver, `read` the plans that boxes read
    off beside it."""

    problem: Problem
    solve_s: float = 0.0
    read: int = 0
    _left: Left | None = None

    def prove(self, ascent: DualAscent, known: Candidate, most_columns: int | None = None) -> Candidate:
        """The cheapest plan of those that `ascent` allows, or `known` if none is cheaper; its bound.

        A program of more than `most_columns` is not given to the solver; then the ascent's bound stands.
        """
        best = replace(known, bound=min(known.price, ascent.bound()))
        least = best.bound
        for near in (least * (1 + share) for share in NEAR):
            if not 0 < near < best.price:
                break
            # As if a plan of that price were known, which leaves far less to decide; most often there is a cheaper one.
            found = self._decide(ascent, best.at_most(near), most_columns)
            if found.price < near:
                return found
            best = replace(best, bound=found.bound)
        return best if self._is_proven(best) else self._decide(ascent, best, most_columns)

    def _decide(self, ascent: DualAscent, best: Candidate, most_columns: int | None) -> Candidate:
        """The cheapest plan of those that `ascent` allows, or `best` if none costs less than that; and a bound.

        The linear relaxation comes first: where its optimum is the price of a plan, that is the proof. Else the
        integer program decides among what its reduced costs leave, or where that is much which axes split what.
        """
        standing = self.problem.representatives
        alive, arcs = self._alive(ascent, best)
        if all(mask.any() for mask in alive) and least_columns(self.problem.graph, alive, arcs) > MANY_ALIKE:
            standing = of_layers(self.problem.graph, self.problem.alike) or standing
            alive, arcs = self._alive(ascent, best, standing)
        reduced = self._reduce(ascent, best, ties=False, masks=(alive, arcs), standing=standing)
        if not reduced.possible:
            return replace(best, bound=best.price)  # nothing here is as cheap as the plan that is known
        if most_columns is not None and len(reduced.model.cost) > most_columns:
            return best
        unit = _unit_of(best, ascent)
        relaxed = self._relax(reduced, ascent, unit)
        if relaxed.none:  # that nothing is as cheap is a proof, for which it is asked once more, from the start
            relaxed = self._solve(continuous(reduced.model))
            if relaxed.none:
                return replace(best, bound=best.price)
        plan = self._plan(relaxed, reduced, ascent)
        best = min(best, plan, key=lambda f: f.price) if plan else best
        best = replace(best, bound=min(best.price, max(best.bound, relaxed.bound / unit)))
        if plan is not None and not self._is_proven(best):
            best = self._plainer(left_of(ascent, best.bound, reduced, relaxed, unit), best)
        if not self._is_proven(best):
            some = np.count_nonzero(fixed(reduced.model, relaxed, best.price * unit).upper)
            if plan is None and relaxed.x is not None and relaxed.reduced_costs is not None and some > MANY_MIXED:
                best = self._by_axes(relaxed, reduced, ascent, best, unit)
            else:
                best = self._by_solver(relaxed, reduced, ascent, best, unit)
        self._left = left_of(ascent, best.price, reduced, relaxed, unit)
        return best

    def _plainer(self, near: Left | None, best: Candidate) -> Candidate:
        """A plan that costs what a relaxation does, where one is found: of what is left `near` its price that with the
        fewest collectives. Of more some may run out of their order, which as a plan they do alone, for more."""
        if near is None:
            return best
        tied = self._reduce(near.ascent, best.at_most(near.price), ties=True, among=near)
        unit = _unit(near.price, near.ascent)
        plan = self._plan(self._relax(tied, near.ascent, unit), tied) if tied.possible else None
        return best if plan is None or plan.price >= best.price else replace(plan, bound=min(plan.price, best.bound))

    def _by_solver(
        self, relaxed: Answer, reduced: Reduced, ascent: DualAscent, best: Candidate, unit: float
    ) -> Candidate:
        """As `_decide`, by the integer program."""
        plan = None if relaxed.x is None else self._round(relaxed, reduced, ascent, best)
        best = replace(plan, bound=min(plan.price, best.bound)) if plan and plan.price < best.price else best
        if self._is_proven(best):
            return best
        answer = self._solve(fixed(reduced.model, relaxed, best.price * unit * (1 + 1e-9)))
        plan = self._plan(answer, reduced, ascent)
        bound = max(best.bound, answer.bound / unit)
        best = min(best, plan, key=lambda f: f.price) if plan else best
        return replace(best, bound=min(best.price, bound))

    def _by_axes(
        self, relaxed: Answer, reduced: Reduced, ascent: DualAscent, best: Candidate, unit: float
    ) -> Candidate:
        """As `_decide`, by which axes split what."""
        if np.isfinite(best.price) and np.count_nonzero(fixed(reduced.model, relaxed, UNIT).upper) > MANY_NEAR:
            near = improved(self.problem.found(best.chosen), ascent, self._cheaper)
            best = replace(near, bound=min(near.price, best.bound)) if near.price < best.price else best
        plan = partial(self._plan, reduced=reduced, ascent=ascent)
        standing, price = reduced.standing, best.price * unit
        first = None if standing is None or standing is self.problem.representatives else standing[0]
        columns = reduced.program.choice
        program = AxisProgram(self.problem.graph, reduced.model, columns, reduced.kept, plan, unit, first)
        search = AxisSearch(program, self.problem.settings, price, known=price if self._is_plan(best) else np.inf)
        search.run(relaxed)
        self.solve_s += search.seconds
        found = search.best or best
        found = replace(found, bound=min(found.price, max(best.bound, search.bound / unit)))
        if search.best is None and found.price * (1 - WIDE) > found.bound:
            rounded = self._round(relaxed, reduced, ascent, best)
            if rounded and rounded.price < best.price:
                return replace(rounded, bound=min(rounded.price, found.bound))
        return found

    def _cheaper(self, ascent: DualAscent, known: Candidate) -> Candidate | None:
        """The plan that a relaxation of those that `ascent` allows is, if one may be cheaper than a known one."""
        every = 0, np.ones(len(ascent.prices[0]), dtype=bool)  # no image stands for what is settled
        reduced = self._reduce(ascent, known, ties=False, standing=every)
        unit = _unit(known.price, ascent)
        return self._plan(self._relax(reduced, ascent, unit), reduced) if reduced.possible else None

    def _is_plan(self, known: Candidate) -> bool:
        """Whether a candidate costs what it says, and is no more than a price below which plans are looked for."""
        return self.problem.found(known.chosen, known.shared).price <= known.price * (1 + 1e-12)

    def _is_proven(self, plan: Candidate) -> bool:
        return plan.price - plan.bound <= self.problem.settings.gap * abs(plan.price)

    def within(
        self, ascent: DualAscent, known: Candidate, limits: Limited, most_columns: int, most_left: int = MOST_INTEGER
    ) -> tuple[Candidate, Candidate | None] | None:
        """As `prove`, of the plans that keep to `limits`, which `known` does if it is a plan (or its price is
        all that matters of it); and a plan that the integer program took for one of these, if it is none. None where
        the program has more than `most_columns`; where its relaxation leaves more than `most_left` that stands."""
        known = replace(known, bound=min(known.price, ascent.bound()))
        alive, arcs = self._alive(ascent, known)
        if all(mask.any() for mask in alive) and least_columns(self.problem.graph, alive, arcs) > most_columns:
            return None
        reduced = self._reduce(ascent, known, ties=False, limits=limits, masks=(alive, arcs))
        if not reduced.possible:
            return replace(known, bound=known.price), None
        if len(reduced.model.cost) > most_columns:
            return None
        unit = _unit_of(known, ascent)
        best, left = known, reduced.model
        if limits.combining and self.problem.columns <= SMALL:
            most_left = min(most_left, MOST_COMBINING)
        wrong: Candidate | None = None
        for relaxed in (True, False):
            if relaxed:
                answer = self._relax(reduced, ascent, unit)
                answer, left = counted(reduced, answer, best.price * unit * (1 + 1e-9), self.problem.settings)
            else:
                answer = ask_by_bytes(left, reduced, limits, self.problem.settings)
            self.solve_s += answer.seconds
            if answer.none:
                return replace(best, bound=best.price), None
            bound = max(best.bound, answer.bound / unit)
            best = replace(best, bound=min(best.price, bound))
            plan = self._plan(answer, reduced)
            if plan is not None:
                polished = self._plan(answer, reduced, ascent)
                fitting = [p for p in (polished, plan) if p is not None and limits.fits(p)]
                wrong = None if fitting else plan
                best = min([best, *fitting], key=lambda f: f.price)
                best = replace(best, bound=min(best.price, bound))
            elif relaxed and best.price * (1 - WIDE) > best.bound:
                mixed = self._mixed(answer, reduced, ascent, best, limits)
                best = best if mixed is None else replace(mixed, bound=min(best.bound, mixed.price))
            if plan is not None or self._is_proven(best):
                break
            if np.isfinite(best.price):
                left = fixed(left, answer, best.price * unit * (1 + 1e-9))
            if np.count_nonzero(left.upper) > most_left:
                break  # boxes settle it sooner
        return best, wrong

    def near_relaxed(
        self,
        ascent: DualAscent,
        known: Candidate,
        limits: Limited,
        most_columns: int,
        gap: float,
        among: Mapping[int, Mask] | None = None,
        standing: Standing | None = None,
    ) -> tuple[Candidate | None, Candidate | None] | None:
        """The cheapest plan within a `gap` that keeps to `limits` and costs less than `known`, which need be no plan,
        of those near a linear relaxation, which may have `MOST_LEFT` columns; where there is none, any that some steps
        from it lead to. And one that does not keep to them, where that was found instead. No arcs of tensors but those
        `among` are looked at; `standing`: as in `_alive`. None where the program has more than `most_columns`."""
        alive, arcs = self._alive(ascent, known, standing)
        if among is not None:
            arcs = {t: mask & among[t] for t, mask in arcs.items()}
        if not all(mask.any() for mask in alive):
            return None, None
        if least_columns(self.problem.graph, alive, arcs) > most_columns:
            return None
        reduced = self._reduce(ascent, known, ties=False, limits=limits, masks=(alive, arcs), standing=standing)
        unit = _unit(known.price, ascent)
        relaxed = self._relax(reduced, ascent, unit)
        if relaxed.none or relaxed.bound >= known.price * unit:
            return None, None
        plan = self._plan(relaxed, reduced)
        if plan is None:
            plans = self._by_level(reduced, relaxed, unit)
            few, most = plans.price(MOST_LEFT), known.price * unit
            plan, _ = plans.cheaper(min(most, few), gap)
            if plan is None and few < most:
                plan = plans.settled(min(most, plans.price(MOST_SETTLED)))
            self.solve_s += plans.solve_s
        if plan is None or plan.price >= known.price:
            return None, None
        polished = self.polished(plan, ascent)
        fitting = [p for p in (polished, plan) if limits.fits(p)]
        return min(fitting, key=lambda p: p.price, default=None), None if fitting else plan

    def near(self, ascent: DualAscent, known: Candidate, limits: Limited) -> Left | None:
        """The choices that plans which keep to `limits` and cost no more than `known` may have, by the reduced costs of
        a linear relaxation; None where that shows that there is none."""
        alive, arcs = self._alive(ascent, known)
        if not all(mask.any() for mask in alive):
            return None
        reduced = self._reduce(ascent, known, ties=False, limits=limits, masks=(alive, arcs))
        unit = _unit(known.price, ascent)
        relaxed = self._relax(reduced, ascent, unit)
        return None if relaxed.none else left_of(ascent, known.price, reduced, relaxed, unit)

    def by_levels(
        self,
        ascent: DualAscent,
        known: Candidate,
        limits: Limited,
        most_columns: int,
        gap: float | None = None,
        less: bool = False,
        begun: ByLevels | None = None,
        most_relaxed: int | None = None,
        apart: bool = False,
    ) -> ByLevels | None:
        """The cheapest plan, within a `gap` if one is given, of those that take no more than the `loads` of limits, if
        one costs less than `known`, which need be no plan; and a bound of all of these. A plan that costs more may be
        found as well, unless plans that cost `less` by that gap are asked for. None where the program has more than
        `most_columns`. `begun`: what was said of plans that keep to these limits, if some may cost as much.
        `most_relaxed`, `apart`: as `LevelPlans` has them."""
        if begun is None or begun.plans is None or begun.most < known.price:
            begun = self.begun(ascent, known, limits, most_columns)
        if begun is None or begun.plans is None:
            return begun
        if begun.relaxed >= known.price * (1 + 1e-9):
            return replace(begun, plan=None, bound=known.price)
        plans = replace(begun.plans, most_relaxed=most_relaxed, apart=apart)
        price = known.price * plans.program.unit
        before_s, near_enough = plans.solve_s, gap or self.problem.settings.gap
        if less:
            # A bound that is just as near must not be further for being rounded.
            found, bound = plans.cheaper(price * (1 - near_enough * (1 - ROUNDED)), near_enough)
        else:
            found, bound = plans.any(price, near_enough)
        self.solve_s += plans.solve_s - before_s
        return replace(begun, plan=found, bound=min(known.price, bound / plans.program.unit))

    def begun(self, ascent: DualAscent, known: Candidate, limits: Limited, most_columns: int) -> ByLevels | None:
        """The plans that cost less than `known`, relaxed, for `by_levels`."""
        alive, arcs = self._alive(ascent, known)
        if not all(mask.any() for mask in alive):
            return ByLevels(None, known.price, known.price)
        if least_columns(self.problem.graph, alive, arcs) > most_columns:
            return None
        reduced = self._reduce(ascent, known, ties=False, limits=limits, masks=(alive, arcs))
        unit = _unit(known.price, ascent)
        relaxed = self._relax(reduced, ascent, unit)
        if relaxed.none:
            return ByLevels(None, known.price, known.price)

        def among(answer: Answer, price: float) -> Candidate | None:
            return self._mixed(answer, reduced, ascent, replace(known, price=price), limits)

        bound, plans = relaxed.bound / unit, self._by_level(reduced, relaxed, unit, among)
        return ByLevels(None, bound, bound, plans, known.price)

    def _by_level(self, reduced: Reduced, relaxed: Answer, unit: float, among: Among | None = None) -> LevelPlans:
        """The plans of what is reduced, looked for by levels."""
        plan = partial(self._plan, reduced=reduced)
        program = AxisProgram(self.problem.graph, reduced.model, reduced.program.choice, reduced.kept, plan, unit)
        return LevelPlans(program, reduced, relaxed, self.problem.settings, among)

    def plainest(
        self, ascent: DualAscent, best: Candidate, most_columns: int | None = None, limits: Limited | None = None
    ) -> Candidate:
        """Of the plans of the price of `best`, if one is found, the one with the fewest collectives, the
        least memory and the plainest names; `best` where finding it would take long. `most_columns` as in `prove`,
        `limits` as in `within`."""
        left = self._left if limits is None else None
        known = left is not None and left.ascent is ascent and best.price <= left.price * (1 + 1e-12)
        among = left if known else None
        reduced = self._reduce(ascent, best, ties=True, limits=limits, among=among)
        columns = len(reduced.model.cost)
        if not reduced.possible or columns > (MANY_TIED if most_columns is None else min(MANY_TIED, most_columns)):
            return best
        answer = self._relax(reduced, ascent, _unit(best.price, ascent))
        plan = self._plan(answer, reduced)
        if plan is None:
            limit = UNIT * (1 + 1e-12) + TIE * self.problem.ties_of(best)
            near = fixed(reduced.model, answer, limit)
            undecided = np.count_nonzero(near.upper)
            if undecided > (MOST_TIED if limits is None else MOST_TIED_WITHIN):
                return best
            wanted = (TIED_NODES, None, "gscip") if undecided > MANY_TIES else ()
            plan = self._plan(self._solve(reduced.whole(near), *wanted), reduced)
        if plan is None or plan.price > best.price * (1 + 1e-3 * self.problem.settings.gap):
            return best
        return replace(plan, bound=min(best.bound, plan.price))

    def _reduce(
        self,
        ascent: DualAscent,
        known: Candidate,
        ties: bool,
        limits: Limited | None = None,
        among: Left | None = None,
        masks: tuple[list[Mask], dict[int, Mask]] | None = None,
        standing: Standing | None = None,
    ) -> Reduced:
        """The program of what is left, of the choices of one node those that are `standing` for their images."""
        standing = standing or (self.problem.representatives if among is None else among.standing)
        alive, arcs = self._alive(ascent, known, standing) if masks is None else masks
        if among is not None:
            alive = [own & mask for own, mask in zip(alive, among.masks, strict=True)]
            arcs = {t: own & among.arcs.get(t, own) for t, own in arcs.items()}
        unit, tie = _unit_of(known, ascent), TIE if ties else 0.0
        graph = restrict(self.problem.graph, alive)
        prices = [
            p[k] * unit + tie * node.rank for p, k, node in zip(self.problem.prices, alive, graph.nodes, strict=True)
        ]
        flows = [
            None if d is None else (d.arcs.take(arcs[t]), d.price[arcs[t]] * unit + tie * tie_of(d.price[arcs[t]]))
            for t, d in enumerate(self.problem.distances)
        ]
        groups = self.problem.groups
        if groups is not None:
            left = groups.take([arcs.get(t) for t in range(len(flows))])
            groups = replace(left, latency_s=left.latency_s * unit)
        possible = all(mask.any() for mask in alive)
        loads = taken_by(limits.loads(alive), alive) if limits is not None and possible else []
        combining = () if limits is None or ties else limits.combining  # a plainer plan may run all alone
        program = choice_program(graph, prices, flows, groups, loads, combining)
        return Reduced(program, [np.flatnonzero(k) for k in alive], arcs, loads, standing)

    def _alive(
        self, ascent: DualAscent, known: Candidate, standing: Standing | None = None
    ) -> tuple[list[Mask], dict[int, Mask]]:
        """The choices of each node and the arcs of each tensor that plans no dearer than `known` may have. `standing`:
        those of one node that stand for their images, if not those of the problem."""
        slack = min(known.price - ascent.bound() + 1e-9 * abs(known.price), FAR)
        alive, arcs = ascent.alive(slack)
        standing = standing or self.problem.representatives
        if standing is not None:
            node, mask = standing
            alive[node] &= mask
        return alive, arcs

    def _relax(self, reduced: Reduced, ascent: DualAscent, unit: float) -> Answer:
        """The linear relaxation of what is left, from where the ascent has come."""
        rows, thin = row_worths(reduced.program, ascent, reduced.arcs, unit), thinned(continuous(reduced.model))
        answer = thin.whole(solve(thin.model, self.problem.settings, rows=rows[thin.rows], worths=True))
        self.solve_s += answer.seconds
        return answer

    def _solve(
        self, model: Model, nodes: int | None = None, gap: float | None = None, solver: str | None = None
    ) -> Answer:
        own = self.problem.settings
        answer = solve(model, replace(own, gap=own.gap if gap is None else gap, solver=solver or own.solver), nodes)
        self.solve_s += answer.seconds
        return answer

    def _plan(self, answer: Answer, reduced: Reduced, ascent: DualAscent | None = None) -> Candidate | None:
        """The plan that an answer is, polished by an `ascent`; None where it is a mixture of plans.

        The solver knows nothing of ranks: polishing gives back the memory that it took for nothing."""
        shares = reduced.shares(answer)
        if not shares or any(share.max() < 1 - INTEGRAL for share in shares):
            return None
        chosen = [int(kept[np.argmax(share)]) for kept, share in zip(reduced.kept, shares, strict=True)]
        plan = self.problem.found(chosen, reduced.shared(answer))
        return plan if ascent is None else self.polished(plan, ascent)

    def polished(self, plan: Candidate, ascent: DualAscent) -> Candidate:
        """A plan improved by an ascent, or as it is."""
        for nodes in (None, self.problem.stored_nodes):  # what is stored is in no group, so priced exactly there
            polished = self.problem.found(ascent.polish(plan.chosen, nodes), plan.shared)
            if polished.price <= plan.price * (1 + 1e-12):
                return polished
        return plan

    def _mixed(
        self, answer: Answer, reduced: Reduced, ascent: DualAscent, known: Candidate, limits: Limited
    ) -> Candidate | None:
        """A plan within limits, cheaper than `known`, of the choices that an answer mixes, if there is one."""
        if answer.x is None:
            return None
        mixed = self._among(answer, reduced, ascent)
        if not mixed.bound() < known.price:
            return None
        inside = self._reduce(mixed, known, ties=False, limits=limits)
        if not inside.possible or len(inside.model.cost) > MOST_INTEGER:
            return None
        answer = ask_whole(inside.model, inside, limits, self.problem.settings)
        self.solve_s += answer.seconds
        plan = self._plan(answer, inside)
        return plan if plan is not None and plan.price < known.price and limits.fits(plan) else None

    def _among(self, answer: Answer, reduced: Reduced, ascent: DualAscent) -> DualAscent:
        """An ascent that has settled on the choices that an answer mixes."""
        mixed = ascent.copy()
        for n, (kept, share) in enumerate(zip(reduced.kept, reduced.shares(answer), strict=True)):
            some = np.zeros(len(ascent.prices[n]), dtype=bool)
            some[kept[share > INTEGRAL]] = True
            mixed.allow(n, some)
        for _ in range(MORE_SWEEPS):
            mixed.sweep()
        return mixed

    def _round(self, answer: Answer, reduced: Reduced, ascent: DualAscent, best: Candidate) -> Candidate | None:
        """A good plan among the choices that an answer mixes: by ascent, then by the integer program
        on those choices alone."""
        mixed = self._among(answer, reduced, ascent)
        best = min(best, self.problem.found(ascent.polish(mixed.round())), key=lambda f: f.price)
        inside = self._reduce(mixed, best, ties=False, standing=reduced.standing)
        exact = self._plan(self._solve(inside.model), inside, ascent) if inside.possible else None
        return min(best, exact, key=lambda f: f.price) if exact else best


def _unit_of(known: Candidate, ascent: DualAscent) -> float:
    """That of what costs no more than `known`, or where no plan is known about as much as `ascent` says."""
    return _unit(known.price if np.isfinite(known.price) else max(ascent.bound(), 0.0), ascent)


def _unit(price: float, ascent: DualAscent) -> float:
    return UNIT / ascent.about(price)
