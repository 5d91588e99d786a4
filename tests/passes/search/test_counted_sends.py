"""A whole number of collectives: bounds and reduced costs hold for every plan, and say more than a relaxation."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from escc.compiler.plan.pipeline import parse
from escc.cost.hardware import Hardware
from escc.ir.mesh import Mesh
from escc.passes.choose import choose
from escc.passes.ilp.model import Assembly, Model, continuous, inner
from escc.passes.ilp.solver import Answer, Settings, solve
from escc.passes.options import Options
from escc.passes.search import counted_sends, exact
from escc.passes.search.counted_sends import _either, counted
from escc.passes.search.reduced_program import Reduced

COLUMNS, SENDS = 9, 5


def drawn(seed: int) -> Model:
    """A program of some columns of which the last cost a latency each, and save what others take of a few rooms."""
    rng = np.random.default_rng(seed)
    a = Assembly()
    free = COLUMNS - SENDS
    a.add_columns(np.concatenate([rng.random(free), 10 + rng.random(SENDS)]), 1.0, True)
    row = a.add_rows(3, 1.0, np.inf)
    for n in range(3):
        a.add_entries(row + n, np.arange(COLUMNS), np.where(np.arange(COLUMNS) < free, 0.25, 1.2) * rng.random(COLUMNS))
    return a.model()


def keeps(model: Model, x: tuple[int, ...]) -> bool:
    """Whether this is a solution."""
    rows = np.bincount(model.row, model.coefficient * np.array(x, dtype=float)[model.column], len(model.low))
    return bool((rows >= model.low).all())


def plans(model: Model) -> list[tuple[float, tuple[int, ...]]]:
    """All solutions, with what they cost."""
    every = itertools.product((0, 1), repeat=COLUMNS)
    return [(inner(model.cost, np.array(x, dtype=float)), x) for x in every if keeps(model, x)]


def of(model: Model) -> Reduced:
    sends: Any = SimpleNamespace(model=model, sends=np.arange(COLUMNS - SENDS, COLUMNS))
    return Reduced(sends, [], {}, [], None)


def said(model: Model, price: float) -> tuple[Answer, Answer]:
    """The relaxation, and what is said of plans that cost no more than a price."""
    relaxed = solve(continuous(model), Settings(), rows=np.zeros(len(model.low)), worths=True)
    return relaxed, counted(of(model), relaxed, price, Settings())[0]


def test_what_is_said_holds_for_every_plan_and_is_more() -> None:
    more = none = left_out = rows = 0
    for seed in range(40):
        model = drawn(seed)
        every = plans(model)
        if not every:
            continue
        least = min(every)[0]
        for price in (least * 1.2, least * (1 + 1e-9), least * 0.9):
            relaxed, answer = said(model, price)
            some = [(cost, x) for cost, x in every if cost <= price]
            none += answer.none
            if answer.none:
                assert not some
                continue
            assert answer.bound >= relaxed.bound - 1e-9 and answer.reduced_costs is not None
            more += answer.bound > relaxed.bound * 1.1
            for cost, x in some:
                taken = np.array(x, dtype=bool)
                assert (answer.bound + answer.reduced_costs[taken] <= cost * (1 + 1e-9)).all(), (seed, price)
            _, left = counted(of(model), relaxed, price, Settings())
            assert all(keeps(left, x) for _, x in some), "no row cuts off a plan"
            rows += len(left.low) > len(model.low)
            left_out += int(np.isinf(answer.reduced_costs).sum())
    assert more >= 50 and none >= 3 and left_out >= 100 and rows >= 20


def test_a_column_costs_the_less_of_what_it_does_with_fewer_collectives_and_with_more() -> None:
    left = SimpleNamespace(upper=np.array([1.0, 1.0, 0.0]))
    fewer = Answer(np.ones(3), 10.0, np.array([0.0, 5.0, 1.0]), 0.0)
    more = Answer(np.zeros(3), 12.0, np.array([0.0, 0.0, 9.0]), 0.0)
    for both in ((fewer, more), (more, fewer)):
        answer = _either(*both, left)  # type: ignore[arg-type]
        assert answer.bound == 10.0 and answer.x is fewer.x and answer.reduced_costs is not None
        assert answer.reduced_costs.tolist() == [0.0, 2.0, math.inf]


@pytest.mark.parametrize("given", ["no price", "nothing is sent", "large", "open", "far from a price", "whole"])
def test_what_promises_little_is_as_it_was(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, asked = drawn(0), list[int]()
    relaxed, _ = said(model, 100.0)
    reduced, price = of(model), relaxed.bound + 5.0
    if given == "no price":
        price = math.inf
    elif given == "nothing is sent":
        reduced = Reduced(SimpleNamespace(model=model, sends=np.zeros(0, dtype=np.int64)), [], {}, [], None)  # type: ignore[arg-type]
    elif given == "large":
        monkeypatch.setattr(counted_sends, "MOST_COLUMNS", 0)
    elif given == "open":
        monkeypatch.setattr(counted_sends, "MOST_OPEN", 0)
    elif given == "far from a price":
        price = relaxed.bound + 1e3
    else:
        relaxed = Answer(np.ones(COLUMNS), relaxed.bound, relaxed.reduced_costs, 0.0)
    monkeypatch.setattr(counted_sends, "solve", lambda *_, **__: asked.append(1))
    answer, left = counted(reduced, relaxed, price, Settings())
    assert not asked and answer.bound == relaxed.bound and answer.x is relaxed.x and left is model


def test_a_solver_that_gives_up_leaves_the_relaxation(monkeypatch: pytest.MonkeyPatch) -> None:
    model = drawn(0)
    relaxed = solve(continuous(model), Settings(), rows=np.zeros(len(model.low)), worths=True)
    gave_up = Answer(None, -math.inf, None, 0.5)
    monkeypatch.setattr(counted_sends, "solve", lambda *_, **__: gave_up)
    answer, _ = counted(of(model), relaxed, relaxed.bound + 5.0, Settings())
    assert answer.bound == relaxed.bound and answer.x is relaxed.x and answer.seconds == 1.0


DECODE = """
dim B = 32, L = 1, M = 128, E = 128, Q = 8
dim K = 2, G = 1
dim H = K * G
block layer(x: bf16[B,L,E]) -> bf16[B,L,E] {
  param scale: bf16[E]
  param Wq: bf16[E,H,Q]
  param Wk, Wv: bf16[E,K,Q]
  param Wo: bf16[H,Q,E]
  cache keys, values: bf16[B,M,K,Q]
  n = rmsnorm(x, scale, over=E)
  q[B,L,H,Q] = n[B,L,E] * Wq[E,H,Q]
  k[B,L,K,Q] = n[B,L,E] * Wk[E,K,Q]
  v[B,L,K,Q] = n[B,L,E] * Wv[E,K,Q]
  ks = append(keys, k, L into M)
  vs = append(values, v, L into M)
  s[B,L,H,M] = q[B,L,H,Q] * ks[B,M,K,Q]
  p = softmax(s / sqrt(size(Q)), over=M, mask=causal(L, M))
  o[B,L,H,Q] = p[B,L,H,M] * vs[B,M,K,Q]
  a[B,L,E] = o[B,L,H,Q] * Wo[H,Q,E]
  return x + a
}
main(x: bf16[B,L,E]) {
  y = repeat 1 layer(x)
  return y
}
"""


def test_where_a_latency_is_most_of_a_price_the_solver_is_left_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan sends once: half as many columns are left as where a relaxation takes a part of that."""
    inner_solve, left = exact.solve, list[int]()

    def counting(model: Model, *given: Any, **named: Any) -> Answer:
        if model.integer.any():
            left.append(int(np.count_nonzero(model.upper)))
        return inner_solve(model, *given, **named)

    monkeypatch.setattr(exact, "solve", counting)
    options = Options(Hardware.load("a100-80"), capacity_bytes=54_476)
    plan = choose(parse(DECODE), "main", Mesh.parse("4x2"), options)
    assert plan.gap <= 1e-9 and plan.price == pytest.approx(19.912999e-6)
    assert sum(left) < 8_000
