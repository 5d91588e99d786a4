"""The integer program by levels of bytes: the same optimum as with a row of memory over all choices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from escc.passes.ilp.model import continuous
from escc.passes.ilp.solver import Answer, Settings, solve
from escc.passes.layouts.space import Mask
from escc.passes.search import exact
from escc.passes.search.branch_on_levels import LevelPlans
from escc.passes.search.combinable import Combining
from escc.passes.search.dual_ascent import DualAscent
from escc.passes.search.exact import ByLevels, Prover
from escc.passes.search.integer_program import choice_program
from escc.passes.search.level_program import level_program
from escc.passes.search.memory_bounds import Load, Moved
from escc.passes.search.problem import Candidate, Problem
from escc.passes.search.reduced_program import Reduced, fixed

from .test_images import LINKS, SQUARE, ascent_of, problem_of


@dataclass(frozen=True)
class Rooms:
    """Limits that are nothing but loads."""

    every: tuple[Load, ...]
    combining: Combining = ()

    def fits(self, plan: Candidate) -> bool:
        return all(load.of(plan.chosen) <= load.room * (1 + 1e-9) for load in self.every)

    def loads(self, allowed: Sequence[Mask]) -> list[Load]:
        return list(self.every)


def rooms(problem: Problem, seed: int, moved_bytes: float = 0.0) -> Rooms:
    """Two rooms for made-up bytes, so little that some choices go; each value that is moved takes more of the first."""
    rng = np.random.default_rng(seed)
    nodes = range(len(problem.prices))
    every = []
    for share in (0.2, 0.35):
        sizes = {n: rng.choice([0.0, 1.0, 2.0, 4.0, 9.0], size=len(problem.prices[n])) for n in nodes}
        least, most = (sum(float(f(size)) for size in sizes.values()) for f in (np.min, np.max))
        moved = tuple(
            Moved(use.node, np.full(len(use.rows), moved_bytes), ((tensor.source, use),))
            for tensor in (problem.graph.tensors if moved_bytes and not every else ())
            for use in tensor.uses
        )
        every.append(Load(sizes, least + share * (most - least) + 0.5, moved))
    return Rooms(tuple(every))


def optimum(problem: Problem, limits: Rooms) -> float:
    """That of the program with a row over all choices for each room; infinite where there is no plan."""
    flows = [None if d is None else (d.arcs, d.price * 1e9) for d in problem.distances]
    prices = [price * 1e9 for price in problem.prices]
    answer = solve(choice_program(problem.graph, prices, flows, None, limits.every).model, Settings(gap=1e-7))
    return np.inf if answer.x is None else answer.bound / 1e9


def asked(
    problem: Problem, limits: Rooms, price: float, gap: float | None = None, less: bool = False
) -> tuple[Candidate | None, float]:
    ascent: DualAscent = ascent_of(problem)
    for _ in range(2):
        ascent.sweep()
    known = Candidate(tuple(0 for _ in problem.prices), price, ascent.bound())
    answer = Prover(problem).by_levels(ascent, known, limits, 10**6, gap, less)
    assert answer is not None
    assert answer.relaxed <= max(answer.bound, price) * (1 + 1e-6), "a relaxation is no dearer than what it relaxes"
    return answer.plan, answer.bound


def test_levels_that_differ_in_nothing_are_one_and_fixed_choices_reach_none() -> None:
    problem = problem_of(3, SQUARE, LINKS)
    node = max(range(len(problem.prices)), key=lambda n: len(problem.prices[n]))
    count = len(problem.prices[node])
    size = np.arange(count, dtype=np.float64)
    load, twice = Load({node: size}, count / 2), Load({node: size * 2}, count / 2)
    flows = [None if d is None else (d.arcs, d.price) for d in problem.distances]
    program = choice_program(problem.graph, problem.prices, flows, None, [load, twice])
    first = program.choice[node]
    program.model.upper[first + 5] = 0.0
    made = level_program(program, program.model, [load, twice])
    assert len(made.levels) == count - 2, "one for each size but the least and that of the fixed choice, for both loads"
    assert made.model.integer[: len(program.model.cost)].tolist() == program.model.integer.tolist()
    rows = made.model.row < len(problem.prices) + 2
    memory = rows & (made.model.row >= len(problem.prices))
    assert (made.model.column[memory] >= made.levels[0]).all(), "memory is said in levels alone"
    sums = slice(program.memory.sums.start, program.memory.sums.stop)
    assert (made.model.upper[sums] == 0).all() and (made.model.upper[made.levels] == 1).all()
    assert made.model.coefficient[memory].sum() == pytest.approx(1e3 * (count - 1) / (count / 2) * 3)


@pytest.mark.parametrize("seed", [0, 3, 7, 11])
def test_levels_leave_as_much_room_as_rows_over_all_choices(seed: int) -> None:
    """Whatever these count in."""
    problem = problem_of(seed, SQUARE, LINKS)
    flows = [None if d is None else (d.arcs, d.price * 1e9) for d in problem.distances]
    loads = [replace(load, memory=1.7 * load.room) for load in rooms(problem, seed).every]
    program = choice_program(problem.graph, [price * 1e9 for price in problem.prices], flows, None, loads)
    rows, levels = (
        solve(m, Settings(gap=1e-7)) for m in (program.model, level_program(program, program.model, loads).model)
    )
    assert rows.x is not None and levels.bound == pytest.approx(rows.bound, rel=1e-6)


def test_levels_of_more_bytes_have_higher_ranks() -> None:
    problem = problem_of(3, SQUARE, LINKS)
    node = max(range(len(problem.prices)), key=lambda n: len(problem.prices[n]))
    size = np.arange(len(problem.prices[node]), dtype=np.float64) ** 2
    flows = [None if d is None else (d.arcs, d.price) for d in problem.distances]
    load = Load({node: size}, float(size.max()))
    program = choice_program(problem.graph, problem.prices, flows, None, [load])
    made = level_program(program, program.model, [load])
    assert made.ranks.tolist() == list(range(len(size) - 1)), "each step is larger than the one before"


@pytest.mark.parametrize("seed", [0, 3, 7, 11, 16, 23, 31])
def test_what_is_near_a_relaxation_has_all_that_the_cheapest_plan_takes_and_not_all_that_there_is(seed: int) -> None:
    problem = problem_of(seed, SQUARE, LINKS)
    problem = Problem(problem.graph, problem.prices, problem.distances, problem.settings)
    limits = rooms(problem, seed)
    least, ascent = optimum(problem, limits), ascent_of(problem)
    plan, _ = asked(problem, limits, 1.5 * least)
    assert plan is not None
    left = Prover(problem).near(ascent, replace(plan, price=plan.price * (1 + 1e-6), bound=ascent.bound()), limits)
    assert left is not None and all(mask[c] for mask, c in zip(left.masks, plan.chosen, strict=True))
    taken = problem.trees.bill(plan.chosen, plan.shared).arcs
    assert all(left.arcs[t][list(arcs)].all() for t, arcs in enumerate(taken) if arcs)
    every = [*left.masks, *left.arcs.values()]
    assert sum(int(mask.sum()) for mask in every) < sum(len(mask) for mask in every)
    assert Prover(problem).near(ascent, replace(plan, price=0.5 * least, bound=ascent.bound()), limits) is None


@pytest.mark.parametrize("seed", [0, 3, 7, 11, 16, 23, 31, 42])
def test_near_a_relaxation_is_the_cheapest_plan_within_limits_and_none_without_arcs_to_it(seed: int) -> None:
    problem = problem_of(seed, SQUARE, LINKS)
    problem = Problem(problem.graph, problem.prices, problem.distances, problem.settings)
    limits = rooms(problem, seed)
    least, ascent = optimum(problem, limits), ascent_of(problem)
    known = Candidate(tuple(0 for _ in problem.prices), 1.5 * least, ascent.bound())
    answer = Prover(problem).near_relaxed(ascent, known, limits, 10**6, 1e-9)
    assert answer is not None and answer[1] is None
    plan = answer[0]
    assert plan is not None and limits.fits(plan)
    assert least * (1 - 1e-9) <= plan.price <= least * (1 + 1e-9)
    taken = problem.trees.bill(plan.chosen, plan.shared).arcs
    among = {t: np.zeros(len(d.price), dtype=bool) for t, d in enumerate(problem.distances) if d is not None}
    for t, arcs in enumerate(taken):
        if t in among:
            among[t][list(arcs)] = True
    again = Prover(problem).near_relaxed(ascent, known, limits, 10**6, 1e-9, among)
    assert again is not None and again[0] is not None
    assert again[0].price <= plan.price * (1 + 1e-9), "its own arcs are all that it needs"
    if any(len(arcs) for arcs in taken):
        none = {t: np.zeros_like(mask) for t, mask in among.items()}
        bare = Prover(problem).near_relaxed(ascent, known, limits, 10**6, 1e-9, none)
        assert bare is not None and (bare[0] is None or bare[0].price >= plan.price * (1 - 1e-9))


def test_near_a_relaxation_plans_of_few_columns_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless it is a plan itself. Of as many columns as there are the cheapest is found, of few perhaps none, or where
    some steps from the relaxation lead to one that is dearer."""
    said, led = [], 0
    for seed in [0, 3, 7, 11, 16, 23]:
        problem = problem_of(seed, SQUARE, LINKS)
        problem = Problem(problem.graph, problem.prices, problem.distances, problem.settings)
        limits, ascent = rooms(problem, seed), ascent_of(problem)
        known = Candidate(tuple(0 for _ in problem.prices), 1.5 * optimum(problem, limits), ascent.bound())
        every = Prover(problem).near_relaxed(ascent, known, limits, 10**6, 1e-9)
        with monkeypatch.context() as patched:
            patched.setattr(exact, "MOST_LEFT", 1)
            near = Prover(problem).near_relaxed(ascent, known, limits, 10**6, 1e-9)
            patched.setattr(exact, "MOST_SETTLED", 1)
            few = Prover(problem).near_relaxed(ascent, known, limits, 10**6, 1e-9)
        assert few in ((None, None), every)
        said.append(few == (None, None))
        assert every is not None and every[0] is not None and near is not None
        if near[0] is not None:
            assert limits.fits(near[0]) and every[0].price * (1 - 1e-9) <= near[0].price < known.price
            led += few == (None, None)
    assert any(said) and led


def test_a_price_leaves_so_many_columns_at_most() -> None:
    problem = problem_of(3, SQUARE, LINKS)
    flows = [None if d is None else (d.arcs, d.price * 1e9) for d in problem.distances]
    program = choice_program(problem.graph, [price * 1e9 for price in problem.prices], flows)
    relaxed = solve(continuous(program.model), Settings(), worths=True)
    reduced = Reduced(program, [np.arange(len(p)) for p in problem.prices], {}, [], None)
    plans = LevelPlans(None, reduced, relaxed, Settings(), None)  # type: ignore[arg-type]
    every = len(program.model.cost)
    assert plans.price(every) == np.inf
    asked = (every - 1, every * 3 // 4, every // 2, every // 3)
    left = [np.count_nonzero(fixed(program.model, relaxed, plans.price(most)).upper) for most in asked]
    assert all(count <= most for count, most in zip(left, asked, strict=True))
    assert left[0] > every / 2, "as many as there are but for those that are just as dear"


@pytest.mark.parametrize("seed", [0, 3, 7, 11, 16, 23, 31])
def test_cheaper_plans_are_looked_for_in_what_was_relaxed_for_dearer_ones(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = problem_of(seed, SQUARE, LINKS)
    problem = Problem(problem.graph, problem.prices, problem.distances, problem.settings)  # each collective alone
    limits, ascent = rooms(problem, seed), ascent_of(problem)
    least, relaxed = optimum(problem, limits), list[float]()
    once = Prover._relax

    def relax(self: Prover, *args: Any) -> Answer:
        relaxed.append(1)
        return once(self, *args)

    monkeypatch.setattr(Prover, "_relax", relax)
    prover, none = Prover(problem), tuple(0 for _ in problem.prices)

    def by_levels(price: float, begun: ByLevels | None) -> ByLevels:
        known = Candidate(none, price, ascent.bound())
        answer = prover.by_levels(ascent, known, limits, 10**6, 1e-7, less=True, begun=begun)
        assert answer is not None
        return answer

    first = by_levels(1.5 * least, None)
    assert first.plan is not None and first.plan.price == pytest.approx(least, rel=1e-6) and len(relaxed) == 1
    below = by_levels(least * (1 - 1e-5), first)
    assert below.plan is None and below.bound == pytest.approx(least * (1 - 1e-5)) and len(relaxed) == 1
    again = by_levels(1.2 * least, below)
    assert again.plan is not None and again.plan.price == pytest.approx(least, rel=1e-6) and len(relaxed) == 1
    none_so_cheap = by_levels(again.relaxed / 2, again)
    assert (none_so_cheap.plan, none_so_cheap.bound, len(relaxed)) == (None, again.relaxed / 2, 1)
    by_levels(1.6 * least, again)
    assert len(relaxed) == 2, "some may cost more than what was relaxed"
