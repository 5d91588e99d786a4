"""All plans of a side at once: the cheapest within limits, by trying everything, and a bound where there is none."""

from __future__ import annotations

import math
from typing import Any

import pytest
from judge.generator import generate
from judge.holding import known
from problems import planned_within

from escc.cost.hardware import Hardware
from escc.ir.diagnostics import InputError
from escc.ir.mesh import Mesh
from escc.passes.search import branch_and_bound as boxes
from escc.passes.search import less_room
from escc.passes.search import search as searching
from escc.passes.search.dual_ascent import DualAscent
from escc.passes.search.exact import Prover
from escc.passes.search.less_room import Whole, whole

HARDWARE = Hardware.of_paper("tpu-v4")
FAR = 4.0  # times a bound: what few plans cost


@pytest.mark.parametrize(
    ("few", "work"),
    [(less_room.FEW_COLUMNS, 0), (0, less_room.MOST_WORK), (0, 0)],
    ids=["by the solver", "by levels", "by a relaxation or two"],
)
def test_asked_at_once_it_finds_the_least_price_within_every_capacity(
    few: int, work: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(less_room, "FEW_COLUMNS", few)
    monkeypatch.setattr(less_room, "MOST_WORK", work)
    for module, most in ((boxes, "MOST_IN_PLACE"), (searching, "MOST_IN_PLACE"), (searching, "FEW_IN_PLACE")):
        monkeypatch.setattr(module, most, 0)
    monkeypatch.setattr(boxes, "FIRST_TURNS", 0)  # memory is not charged for
    asked: list[Whole] = []
    levels: list[bool] = []

    def counting(prover: Prover, limits: Any, ascent: DualAscent, least: float, price: float, by_levels: bool) -> Whole:
        for below in (FAR * ascent.bound(), price):  # as if a plan of that price were known
            asked.append(whole(prover, limits, ascent, least, below, by_levels))
            found = asked[-1].found
            assert found is None or limits.fits(found)
        return asked[-1]

    inner = less_room._is_by_levels
    monkeypatch.setattr(less_room, "_is_by_levels", lambda *given: levels.append(inner(*given)) or levels[-1])
    monkeypatch.setattr(boxes, "whole", counting)
    mesh = Mesh((("x", 3),))
    for seed in range(260, 310):
        program = generate(seed).program
        for capacity, least in known(seed, mesh):
            before = len(asked)
            plan = planned_within(program, mesh, HARDWARE, capacity)
            if isinstance(plan, InputError):
                assert least == math.inf, (seed, capacity)
                continue
            assert plan.price == pytest.approx(least, rel=1e-9), (seed, capacity)
            for said in asked[before:]:
                assert said.found is None or said.found.price >= least * (1 - 1e-9), (seed, capacity)
                assert said.bound <= least * (1 + 1e-9), (seed, capacity)
    assert any(levels) == (few == 0)
    assert len(asked) >= 10 and any(said.found is not None for said in asked)
