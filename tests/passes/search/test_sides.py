"""However plans are told apart the cheapest of all is found; and what is looked at of many sides."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
from judge.generator import generate

from escc.cost.hardware import Hardware
from escc.cost.memory import memory
from escc.ir.diagnostics import InputError
from escc.ir.mesh import Mesh
from escc.passes import reader
from escc.passes.choose import choose
from escc.passes.lower.insert import insert
from escc.passes.options import Options
from escc.passes.search import branch_and_bound as boxes
from escc.passes.search import search
from escc.passes.search.problem import Candidate
from escc.passes.search.side import MANY_ARCS


def side(price: float, prover: Any, least: float) -> Any:
    """A side that is done, with a plan of that price; `least`: the price of the best of all sides."""
    best = Candidate((0,), price, price)
    problem = SimpleNamespace(settings=SimpleNamespace(gap=1e-9), groups=None)
    return SimpleNamespace(
        read=1,
        best=best,
        bound=1.0,
        plainest=lambda: best,
        prover=prover,
        side=None,
        ascent=None,
        problem=problem,
        price=least,
        below=least,
    )


@pytest.mark.parametrize("prices", [(1.0, 2.0), (2.0, 1.0), (3.0, 1.0, 2.0)])
def test_the_cheapest_of_all_sides_is_taken(prices: tuple[float, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    prover: Any = SimpleNamespace(solve_s=0.0, read=0, problem=SimpleNamespace(settings=SimpleNamespace(gap=1e-9)))
    monkeypatch.setattr(search, "branch_and_bound", lambda sides: None)
    monkeypatch.setattr(search, "is_looked_at", lambda side: False)
    found = search._sides([side(price, prover, min(prices)) for price in prices], prover, 0.0, math.inf)
    assert found.price == min(prices) and found.bound == 1.0
    assert prover.read == len(prices), "all that was read off counts"


@pytest.mark.parametrize(
    ("count", "known", "asked"), [(2, True, True), (3, True, False), (3, False, True)], ids=["two", "many", "no plan"]
)
def test_copies_of_many_sides_are_looked_at_where_no_plan_is_known(
    count: int, known: bool, asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[float] = []

    def settle(side: object, prover: object, price: float) -> tuple[Candidate | None, float]:
        seen.append(price)
        return (None if known else Candidate((0,), 2.0, 2.0)), price

    prover: Any = SimpleNamespace(solve_s=0.0, read=0, problem=SimpleNamespace(settings=SimpleNamespace(gap=1e-9)))
    monkeypatch.setattr(search, "branch_and_bound", lambda sides: None)
    monkeypatch.setattr(search, "is_looked_at", lambda side: False)
    monkeypatch.setattr(search, "settle", settle)
    sides = [side(2.0, prover, 2.0 if known else math.inf) for _ in range(count)]
    for one in sides:
        one.best = one.best if known else None
    found = search._sides(sides, prover, 0.0, math.inf)
    assert bool(seen) == asked
    assert found.price == 2.0 and found.bound == (1.0 if not asked or not known else 2.0)


def test_of_many_sides_the_one_in_which_nothing_runs_as_one_is_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for a gap of less than a hundredth, nor if it is large; boxes go on with what is left of it."""
    prover: Any = SimpleNamespace(solve_s=0.0, read=0, problem=SimpleNamespace(settings=SimpleNamespace(gap=1e-9)))
    asked, entered = list[float](), list[list[float]]()

    def settle(one: Any, prover: object, price: float) -> tuple[Candidate | None, float]:
        asked.append(one)
        return None, 1.7 if one == 1.1 else price

    monkeypatch.setattr(search, "branch_and_bound", lambda sides: entered.append([one.bound for one in sides]))
    monkeypatch.setattr(search, "is_looked_at", lambda one: one != 1.4)
    monkeypatch.setattr(search, "settle", settle)
    for bound, settled, left, least in (
        (1.0, [1.0], [], 1.8),
        (1.1, [1.1], [1.1], 1.7),
        (1.4, [], [], 1.4),
        (1.995, [], [1.995], 1.8),
    ):
        sides = [side(2.0, prover, 2.0) for _ in range(3)]
        for one, own in zip(sides, (bound, 1.8, 1.9), strict=True):
            one.bound = one.side = own
            one.problem.groups = None if own == bound else object()
        asked.clear()
        entered.clear()
        found = search._sides(sides, prover, 0.0, math.inf)
        assert asked == settled and entered == [[bound, 1.8, 1.9], left]
        assert found.price == 2.0 and found.bound == least


@pytest.mark.parametrize(
    ("read", "changed", "spent"),
    [
        ([3, 3, 4], {}, True),
        ([3, 3, 3], {}, False),
        ([9, 9], {}, False),
        ([3, 3, 4], {"dives": True}, False),
        ([3, 3, 4], {"large": True}, False),
    ],
    ids=["as much as there is", "less", "two sides", "no plan is known", "a large problem"],
)
def test_many_sides_share_what_is_looked_at(read: list[int], changed: dict[str, bool], spent: bool) -> None:
    columns = boxes.TOLD_WORK // 10
    each = {"problem": SimpleNamespace(columns=columns), "dives": False, "large": False} | changed
    sides: Any = [SimpleNamespace(read=count, **each) for count in read]
    assert boxes._is_spent(sides) == spent


def test_boxes_of_many_sides_end_with_what_there_is_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with the bound that it has come to."""

    def step(self: Any) -> None:
        self.read += 1
        self.open = self.read < 9

    monkeypatch.setattr(boxes, "_turn", lambda side: (side.read, 0.0))
    monkeypatch.setattr(boxes, "share", lambda sides: None)
    problem = SimpleNamespace(columns=boxes.TOLD_WORK // 10, settings=SimpleNamespace(gap=1e-9))
    own = {"read": 0, "bound": 1.0, "price": 2.0, "best": object()}
    made: Any = [SimpleNamespace(problem=problem, dives=False, large=False, open=True, **own) for _ in range(3)]
    for one in made:
        one.step = step.__get__(one)
    boxes.branch_and_bound(made)
    assert sorted(one.read for one in made) == [3, 3, 4]


@pytest.mark.parametrize(("seed", "share"), [(5002, 0.45), (5006, 0.6), (5018, 0.6), (5022, 0.6), (5030, 0.6)])
def test_told_apart_by_knots_the_cheapest_plan_is_the_same(
    seed: int, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by whether any collectives run as one; or as sure is none that fits."""
    program, mesh, hardware = generate(seed).program, Mesh.parse("2x2"), Hardware.load("h100")
    free = choose(program, "main", mesh, Options(hardware, capacity_bytes=math.inf))
    options = Options(hardware, capacity_bytes=share * float(memory(insert(free)[0]).total_bytes))
    counts, answers, told = list[int](), list[str | float](), search._sides

    def counted(every: Any, *others: Any) -> Candidate:
        counts.append(len(every))
        return told(every, *others)

    monkeypatch.setattr(search, "_sides", counted)
    for arcs in (MANY_ARCS, 0):
        monkeypatch.setattr(reader, "MANY_OF_ONE", arcs)
        try:
            plan = choose(program, "main", mesh, options).phases[0]
            assert plan.gap is not None and plan.gap <= 1e-9
            answers.append(plan.price)
        except InputError as error:
            answers.append(error.diagnostics[0].message)
    assert counts[0] == 2 and counts[1] > 2, "the program has several knots"
    first, second = answers
    assert second == (first if isinstance(first, str) else pytest.approx(first, rel=2e-9))


@pytest.mark.parametrize(
    ("fitting", "taken"), [((0, 1), 1), ((0,), 0), ((1,), 1), ((), None)], ids=["both", "found", "plain", "neither"]
)
def test_a_plainer_plan_is_taken_where_it_keeps_to_the_limits(fitting: tuple[int, ...], taken: int | None) -> None:
    found, plain = Candidate((0,), 1.0, 1.0), Candidate((1,), 1.0, 1.0)
    prover: Any = SimpleNamespace(prove=lambda *_: found, plainest=lambda *_: plain)
    limits: Any = SimpleNamespace(fits=lambda plan: plan.chosen[0] in fitting, stores=lambda _: True)
    ascent: Any = None
    proven = search._proven(prover, ascent, found, limits, math.inf)
    assert proven.fits == (taken is not None) and proven.plan is (plain if taken == 1 else found)


def test_no_plainer_plan_is_looked_for_where_what_is_stored_is_too_much() -> None:
    found = Candidate((0,), 1.0, 1.0)
    prover: Any = SimpleNamespace(prove=lambda *_: found)  # asked for more it would raise
    limits: Any = SimpleNamespace(stores=lambda chosen: chosen != found.chosen)
    ascent: Any = None
    proven = search._proven(prover, ascent, found, limits, math.inf)
    assert not proven.fits and proven.plan is found
