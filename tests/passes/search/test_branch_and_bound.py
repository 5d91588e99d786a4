"""Capacities: kept to, and no plan within them is cheaper, by the exact judge."""

from __future__ import annotations

import dataclasses
import itertools
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from judge.generator import Case, generate
from judge.optimum import optimum
from problems import GATED, problem_of

from escc.cost.estimate import estimate
from escc.cost.hardware import Hardware
from escc.ir.diagnostics import InputError, Source
from escc.ir.mesh import Mesh
from escc.ir.program import Kind, Stored, walk
from escc.ir.text.read import parse
from escc.passes.choose import choose
from escc.passes.expansion.expand import expand
from escc.passes.lower.insert import insert
from escc.passes.options import Options
from escc.passes.search import branch_and_bound as boxes
from escc.passes.search import search
from escc.passes.search.dual_ascent import DualAscent
from escc.passes.search.exact import Prover
from escc.passes.search.memory_bounds import Load
from escc.passes.search.problem import Candidate
from escc.passes.search.steiner import Distances

HARDWARE = Hardware.of_paper("tpu-v4")
SQUARE, LARGE = Mesh((("x", 2), ("y", 2))), Mesh((("x", 4), ("y", 4)))


def limit(stored_bytes: float | None) -> Options:
    """So much to store, and any amount beside it."""
    return Options(HARDWARE, capacity_bytes=math.inf, stored_bytes=stored_bytes or math.inf)


def whole_bytes(case: Case) -> float:
    """What all that is stored takes, unsplit."""
    table, sizes = case.program.table(), dict(case.program.phase("main").sizes)
    total = 0.0
    for placed in walk(case.program.body):
        if isinstance(placed.item, Stored) and placed.item.kind is not Kind.INPUT:
            value = table[placed.item.value]
            total += placed.times * math.prod(sizes[d] for d in value.dims) * value.dtype.bits / 8
    return total


def stores(case: Case) -> int:
    kinds = [p.item.kind for p in walk(case.program.body) if isinstance(p.item, Stored)]
    return sum(kind is not Kind.INPUT for kind in kinds)


CASES = [seed for seed in range(200, 260) if 1 <= stores(generate(seed)) <= 4]


@pytest.mark.parametrize("seed", CASES)
def test_every_capacity_gives_the_least_price_within_it(seed: int) -> None:
    mesh = LARGE if seed % 3 else SQUARE
    case = dataclasses.replace(generate(seed), mesh=mesh)
    whole, prices = whole_bytes(case), []
    for share in (0.26, 0.5, 1.0):
        limited = dataclasses.replace(case, capacity_bytes=math.floor(share * whole) + 1.0)
        least = optimum(limited)
        try:
            plan = choose(limited.program, "main", mesh, limit(limited.capacity_bytes))
        except InputError:
            assert least == math.inf
            continue
        cost = estimate(insert(plan)[0], HARDWARE)
        assert sum(stored for _, stored in cost.stored_bytes) <= limited.capacity_bytes
        assert plan.phases[0].price == pytest.approx(least, rel=1e-9, abs=1e-15)
        assert plan.phases[0].gap <= 1e-9
        prices.append(plan.phases[0].price)
    assert all(a >= b * (1 - 1e-9) for a, b in itertools.pairwise(prices))


@pytest.mark.parametrize("columns", [20, 60])
def test_bounds_hold_where_only_plans_near_them_are_given_to_the_solver(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "settle", lambda *_: (None, -math.inf))
    monkeypatch.setattr(boxes, "MOST_COLUMNS", columns)
    asked: list[bool] = []
    within = Prover.within

    def counted(self: Prover, *arguments: Any) -> Any:
        answer = within(self, *arguments)
        asked.append(answer is not None)
        return answer

    monkeypatch.setattr(Prover, "within", counted)
    for seed in (201, 210, 212, 237, 240):
        case = dataclasses.replace(generate(seed), mesh=SQUARE)
        limited = dataclasses.replace(case, capacity_bytes=math.floor(0.5 * whole_bytes(case)) + 1.0)
        least = optimum(limited)
        plan = choose(limited.program, "main", SQUARE, limit(limited.capacity_bytes))
        assert plan.bound <= least * (1 + 1e-9)
        assert plan.price >= least * (1 - 1e-9)
    assert asked and not all(asked)


def test_a_capacity_of_exactly_what_is_needed_is_enough() -> None:
    tried = 0
    for seed in CASES[:20]:
        case = dataclasses.replace(generate(seed), mesh=SQUARE)
        free = choose(case.program, "main", SQUARE, Options(HARDWARE, capacity_bytes=math.inf))
        taken = sum(b for _, b in estimate(insert(free)[0], HARDWARE).stored_bytes)
        again = choose(case.program, "main", SQUARE, limit(taken))
        assert again.phases[0].price == pytest.approx(free.phases[0].price, rel=1e-12)
        tried += 1
    assert tried == 20


def test_the_least_fits_and_one_byte_less_does_not() -> None:
    text = "dim B = 4, E = 64, F = 64\nparam W: bf16[E,F]\nmain(x: bf16[B,E]) {\n  y[B,F] = x[B,E] * W[E,F]\n"
    source = Source("test.esti", text + "  return y\n}")
    program = expand(parse(source), source, {})
    least = 64 * 64 * 2 / 4
    plan = choose(program, "main", SQUARE, limit(least))
    assert estimate(insert(plan)[0], HARDWARE).stored_bytes == (("W", least),)
    with pytest.raises(InputError):
        choose(program, "main", SQUARE, limit(least - 1))


@pytest.mark.parametrize(("enough", "asked"), [(1.0, 0), (1.1, 1)])
def test_of_a_box_whose_bound_is_enough_no_plan_is_looked_at(enough: float, asked: int) -> None:
    seen: list[Candidate] = []
    still: Any = SimpleNamespace(sweep=lambda: None, bound=lambda: 1.0, round=lambda: [0], price_of=lambda chosen: 1.0)
    still.combining = lambda some: 0.0
    plan = Candidate((0,), 1.0, 1.0)
    found = boxes.press(still, [], lambda chosen: plan, lambda one: seen.append(one) is None, 3, enough=enough)
    assert found is not None and found.bound == 1.0
    assert len(seen) == asked


@pytest.mark.parametrize(("enough", "sweeps"), [(10.0, 4), (math.inf, boxes.SWEEPS)], ids=["a plan", "no plan"])
def test_no_more_is_swept_than_raises_the_bound(enough: float, sweeps: int) -> None:
    """Twice here: two more are the last ones, where a plan is known that others have to be cheaper than."""
    swept: list[int] = []
    plan = Candidate((0,), 3.0, 3.0)
    rising: Any = SimpleNamespace(sweep=lambda: swept.append(1), bound=lambda: 1.0 + min(len(swept), 2))
    rising.round, rising.price_of, rising.combining = lambda: [0], lambda chosen: 3.0, lambda some: 0.0
    found = boxes.press(rising, [], lambda chosen: plan, lambda one: True, 3, enough=enough)
    assert found is not None and found.bound == 3.0
    assert len(swept) == sweeps


def test_what_is_charged_where_a_plan_without_limits_costs_nothing_is_of_the_size_of_prices() -> None:
    problem = problem_of(GATED, "2x2")
    stored = {n: node.stored_bytes for n, node in enumerate(problem.graph.nodes) if node.stored_bytes is not None}
    load = Load(stored, 1.5 * sum(float(size.min()) for size in stored.values()))

    def bound(unit: float) -> float:
        near = [None if own is None else Distances(own.arcs, own.price * unit) for own in problem.distances]
        sent = replace(problem, prices=[np.zeros(len(each)) for each in problem.prices], distances=near, groups=None)
        ascent = DualAscent(sent.graph, sent.prices, near)
        found = boxes.press(ascent, [load], sent.found, lambda plan: load.of(plan.chosen) <= load.room, boxes.TURNS)
        assert found is not None and found.plan.price == 0
        return found.bound

    assert 16e-6 < bound(1.0) < 19.92e-6  # which a plan takes that stores so little
    assert bound(1e4) == pytest.approx(1e4 * bound(1.0), rel=1e-9)


@pytest.mark.parametrize("small", [True, False])
def test_the_last_few_of_many_sides_are_left_to_what_settles_them(small: bool) -> None:
    """Once no other may have a cheaper plan: boxes of these that get nowhere wait."""
    steps: list[int] = []

    def side(n: int, closes: bool) -> Any:
        made: Any = SimpleNamespace(settles=False, may_settle=small, dives=False, large=False, best=None, read=1)
        made.elsewhere, made.price, made.below, made.bound, made.least, made.in_place = True, 2.0, 2.0, 1.0, float(n), 0
        made.problem = SimpleNamespace(settings=SimpleNamespace(gap=1e-9), columns=1)
        made.open = True

        def step() -> None:
            steps.append(n)
            assert len(steps) < 2 or made.settles == small
            made.open, made.bound = False, 2.0 if closes else 1.0

        made.step = step
        return made

    every = [side(0, True), side(1, False), side(2, False)]
    boxes.branch_and_bound(every)
    assert steps == [0, 1, 2]
    assert [one.settles for one in every] == [False, small, small]
    assert boxes.unsettled(every) == every[1:]


@pytest.mark.parametrize(
    ("by_images", "below", "columns", "closed"),
    [
        (True, 2.0, boxes.AFTER_IMAGES, True),
        (True, 2.0, boxes.AFTER_IMAGES // boxes.FEW_READ, False),
        (False, 2.0, boxes.AFTER_IMAGES, False),
        (True, math.inf, boxes.AFTER_IMAGES, False),
    ],
    ids=["too large", "small enough", "not looked at by images", "no plan is known"],
)
def test_boxes_are_not_begun_where_few_plans_may_be_read_off(
    by_images: bool, below: float, columns: int, closed: bool
) -> None:
    side: Any = boxes.Boxes.__new__(boxes.Boxes)
    side.by_images, side.floor, side.below, side.best, side.large = by_images, 1.0, below, None, True
    side.problem, side.given_up = SimpleNamespace(columns=columns), math.inf
    assert side.is_closed == closed
    if closed:
        boxes.enter([side], 1.5)
        assert side.given_up == 1.5, "what was known of it stays known"


@pytest.mark.parametrize(("price", "most"), [(2.0, 8), (math.inf, 500)], ids=["a plan is known", "none is known"])
def test_after_images_few_plans_are_read_off(price: float, most: int) -> None:
    side: Any = boxes.Boxes.__new__(boxes.Boxes)
    side.best, side.below, side.most = None, math.inf, 500
    side.problem = SimpleNamespace(columns=boxes.AFTER_IMAGES // 8)
    known = None if price == math.inf else Candidate((0,), price, 1.0)
    side.begin(1.0, known, SimpleNamespace())
    assert (side.floor, side.price, side.most) == (1.0, price, most)
