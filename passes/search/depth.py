"""Plans of blocks that are written out one after the other, at what a few of them take to plan.

Copies of a block choose alike, but for the first and the last, of which more are told apart until the plan is proven:
the bound splits prices in one way between the nodes and tensors of all copies (see `class_program`), and so is one of
all plans. Its linear program is solved with few columns; others come in where they cost less than nothing by what its
rows are worth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ...ir.record import record
from ..ilp.model import Model, continuous
from ..ilp.solver import Answer, solve
from .branch_and_bound import press
from .class_program import (
    ClassProgram,
    Columns,
    Reduced,
    Weights,
    Worths,
    class_program,
    reduced_costs,
    rows_of,
    worths_of,
)
from .dual_ascent import DualAscent
from .exact import TIE, UNIT, Prover
from .fold import Fold, fold
from .memory_bounds import Load
from .memory_rows import ROOM
from .problem import Candidate, Problem
from .reduced_program import INTEGRAL

Floats = NDArray[np.float64]
APART = (0, 1, 2)  # copies at each end of a pattern that are told from those between, in turn
SWEEPS = 12
NEAR = 0.01  # of what a block costs: columns that cost more above the least are left out at first
MARGIN = 1e-3  # of all blocks: those that come in later
ROUNDS = 20
TURNS = 6  # of charging for memory
ROUNDING = 3e-10  # of the price: how near a bound comes to that of the linear program
ROUGH = 5e-4  # and one within loads, which is as far from any plan
SLACKS = (1e-9, 1e-5, 1e-3)  # of the price: above the bound, where a plan is looked for
MOST_INTEGER = 30_000  # columns of an integer program


def search_copies(prover: Prover) -> Candidate | None:
    """The cheapest plan that is found with copies that choose alike, and a bound of all plans. None where too little
    is written out again and again, or no plan was found."""
    best: Candidate | None = None
    for apart in APART:
        folded = fold(prover.problem, apart)
        if folded is None:
            break
        found = _Search(prover, folded).found()
        if found is not None:
            bound = found.bound if best is None else max(found.bound, best.bound)
            cheapest = found if best is None else min(best, found, key=lambda f: f.price)
            best = replace(cheapest, bound=min(bound, cheapest.price))
            if is_proven(prover.problem, best):
                break
    return best


def is_proven(problem: Problem, plan: Candidate) -> bool:
    """Whether no plan is cheaper, within the gap of the settings."""
    return plan.price - plan.bound <= problem.settings.gap * abs(plan.price)


def bound_within(prover: Prover, folded: Fold, loads: Sequence[Load], plan: Candidate) -> float:
    """A bound of all plans that take no more than `loads` say of the classes of a problem, of which `plan` is one."""
    return _Search(prover, folded, loads).within_loads(plan)


def _keeps(loads: Sequence[Load], plan: Candidate) -> bool:
    return all(load.of(plan.chosen) <= load.room for load in loads)


@record(eq=False)
class _Search:
    """The search of a problem by classes of copies. `loads`: what these take at the most, where it is asked for."""

    prover: Prover
    fold: Fold
    loads: Sequence[Load] = ()

    def found(self) -> Candidate | None:
        """A plan, and the bound of all."""
        ascent = self.ascent()
        unit = UNIT / ascent.about(ascent.bound())
        reduced = self.bounded(self.first(ascent), self.start(ascent, unit), unit)
        plan = None if reduced is None else self.plan(reduced, unit)
        return None if plan is None or reduced is None else replace(plan, bound=min(plan.price, reduced.bound))

    def within_loads(self, plan: Candidate) -> float:
        """A bound of all plans within the loads, by rows for those that an ascent charges for; infinitely low where
        there is none. The first program has the columns of a `plan` within them, so that it has a solution."""
        ascent = self.ascent()
        pressed = press(ascent, self.loads, self.fold.alike.found, partial(_keeps, self.loads), TURNS)
        if pressed is None:
            return -np.inf
        unit = UNIT / ascent.about(pressed.bound)
        some = replace(self, loads=[self.loads[n] for n in pressed.charged])
        rooms = np.array([-charge * unit / ROOM for charge in pressed.charged.values()])
        worths = replace(self.start(pressed.ascent, unit), rooms=rooms)
        near = reduced_costs(self.fold, self.fold.shapes, worths, unit, some.loads)
        reduced = some.bounded(near.within(MARGIN * UNIT).joined(self.of_plan(plan)), worths, unit, ROUGH)
        return max(near.bound, -np.inf if reduced is None else reduced.bound)

    def ascent(self) -> DualAscent:
        """That of the plans in which all copies choose alike."""
        alike = self.fold.alike
        ascent = DualAscent(alike.graph, alike.prices, alike.distances, alike.groups)
        for _ in range(SWEEPS):
            ascent.sweep()
        return ascent

    def bounded(self, columns: Columns, worths: Worths, unit: float, rounding: float = ROUNDING) -> Reduced | None:
        """What all columns cost beside what rows are worth where the bound is highest; None where there is none. It
        begins with some columns, and what rows may be worth."""
        fold, shapes = self.fold, self.fold.shapes
        best: Reduced | None = None
        for _ in range(ROUNDS):
            program = class_program(fold, shapes, columns, Weights(unit), self.loads)
            answer = self.solve(continuous(program.model), rows_of(fold, shapes, columns, program, worths))
            if answer.row_worths is None:
                break
            worths = worths_of(fold, shapes, program, answer.row_worths)
            reduced = reduced_costs(fold, shapes, worths, unit, self.loads)
            best = reduced if best is None or reduced.bound > best.bound else best
            if (answer.bound - reduced.bound * unit) <= rounding * abs(answer.bound):
                break
            columns = columns.joined(reduced.beside(columns, MARGIN * UNIT))
        return best

    def first(self, ascent: DualAscent) -> Columns:
        """The columns of cheap plans: what each of the copies costs more is no more than a share of a block."""
        fold = self.fold
        slack = NEAR * abs(ascent.bound()) / max(fold.copies)
        nodes = []
        for c, copies in enumerate(fold.copies):
            costs = ascent.node_costs(c)
            nodes.append(costs <= costs.min() + copies * slack)
        arcs = [np.zeros(0 if near is None else len(near.price), dtype=bool) for near in fold.window.distances]
        for factor in ascent.factors:
            copies = fold.tensors[factor.tensor].copies
            arcs[factor.tensor] |= factor.arc_marginals() <= factor.minimum() + copies * slack
        return Columns(nodes, [np.any([arcs[t] for t in tensor.members], axis=0) for tensor in fold.shapes])

    def of_plan(self, plan: Candidate) -> Columns:
        """The columns that a plan of all copies takes."""
        fold, problem = self.fold, self.prover.problem
        choices = [np.zeros(len(price), dtype=bool) for price in fold.window.prices]
        for c, choice in zip(fold.node_of, plan.chosen, strict=True):
            choices[c][choice] = True
        near = [fold.window.distances[shape.like] for shape in fold.shapes]
        arcs = [np.zeros(0 if own is None else len(own.price), dtype=bool) for own in near]
        shape_of = {t: s for s, shape in enumerate(fold.shapes) for t in shape.members}
        for t, tree in zip(fold.tensor_of, problem.trees.bill(plan.chosen, plan.shared).arcs, strict=True):
            arcs[shape_of[t]][list(tree)] = True
        return Columns(choices, arcs)

    def start(self, ascent: DualAscent, unit: float) -> Worths:
        """What rows are worth as the ascent has split prices: to each use of a tensor in turn what it takes to get
        there from any layout, of which the next ones need not pay again what it pays for an arc."""
        flows: list[Floats] = []
        groups: list[Floats] = []
        for tensor in self.fold.shapes:
            scale = unit * tensor.copies / self.fold.tensors[tensor.like].copies
            each = []
            for factor in (factor for factor in ascent.factors if factor.tensor == tensor.like):
                arcs, left = factor.distances.arcs, factor.distances.price
                for end in factor.potentials[1:]:
                    way = factor.distances.repriced(left).backward(end[None])[0]
                    way = np.where(np.isfinite(way), way, way[np.isfinite(way)].max(initial=0.0))
                    paid = np.maximum(0.0, way[arcs.source] - way[arcs.target])
                    left = np.maximum(0.0, left - paid)
                    each.append(-scale * way)
            flows.append(np.array(each))
            names = [] if ascent.groups is None else [name for name, _ in tensor.groups]
            shares = [ascent.shares[tensor.like, g] * ascent.groups.latency_s[g] for g in names if ascent.groups]
            groups.append(-scale * np.array(shares, dtype=np.float64))
        return Worths(flows, groups)

    def plan(self, reduced: Reduced, unit: float) -> Candidate | None:
        """The plainest of the plans that cost no more than the bound, or else one that costs little more."""
        for slack in SLACKS:
            columns = self.of_tensors(reduced.within(slack * UNIT))
            program = class_program(self.fold, self.fold.tensors, columns, Weights(unit, TIE))
            answer = self.solve(continuous(program.model))
            plan = self.read(answer, program, columns)
            if plan is None and answer.x is not None and columns.count <= MOST_INTEGER:
                plan = self.read(self.solve(program.model), program, columns)
            if plan is not None:
                return plan
        return None

    def of_tensors(self, columns: Columns) -> Columns:
        """Columns of the program of the bound as those of the program of plans, which tells more tensors apart."""
        arcs = [np.zeros(0, dtype=bool)] * len(self.fold.tensors)
        for tensor, mask in zip(self.fold.shapes, columns.arcs, strict=True):
            for t in tensor.members:
                arcs[t] = mask
        return Columns(columns.choices, arcs)

    def read(self, answer: Answer, program: ClassProgram, columns: Columns) -> Candidate | None:
        """The plan that an answer is; None where it is a mixture."""
        if answer.x is None:
            return None
        chosen = []
        for first, mask in zip(program.choice, columns.choices, strict=True):
            kept = np.flatnonzero(mask)
            share = answer.x[first : first + len(kept)]
            if share.max(initial=0.0) < 1 - INTEGRAL:
                return None
            chosen.append(int(kept[np.argmax(share)]))
        shared = frozenset(g for g, column in enumerate(program.shared) if answer.x[column] > INTEGRAL)
        return self.prover.problem.found(*self.fold.spread(chosen, shared))

    def solve(self, model: Model, rows: Floats | None = None) -> Answer:
        """What the solver says, for a linear program that begins at what its `rows` are worth also what they are."""
        answer = solve(model, self.prover.problem.settings, rows=rows, worths=rows is not None)
        self.prover.solve_s += answer.seconds
        return answer
