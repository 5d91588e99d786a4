"""Whichever solver is asked of a program with rows of memory says the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from escc.passes.ilp.solver import Answer, Settings, solve
from escc.passes.search import memory_solvers
from escc.passes.search.integer_program import choice_program
from escc.passes.search.memory_solvers import ask_by_bytes, ask_whole
from escc.passes.search.problem import Problem
from escc.passes.search.reduced_program import Reduced

from .test_combinable import PAIR, PLACES, hardware, problem_of, program
from .test_level_program import Rooms, rooms

UNIT = 1e9  # of prices


def reduced(problem: Problem, limits: Rooms) -> Reduced:
    """All of a problem that combines collectives, within limits."""
    groups = problem.groups
    assert groups is not None
    flows = [None if d is None else (d.arcs, d.price * UNIT) for d in problem.distances]
    groups = replace(groups, latency_s=groups.latency_s * UNIT)
    prices = [price * UNIT for price in problem.prices]
    made = choice_program(problem.graph, prices, flows, groups, limits.every, limits.combining)
    kept = [np.arange(len(price)) for price in prices]
    arcs = {t: np.ones(len(d.price), dtype=bool) for t, d in enumerate(problem.distances) if d is not None}
    return Reduced(made, kept, arcs, limits.every, None)


def watched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The solvers that are asked, in order."""
    asked: list[str] = []

    def watch(model: Any, settings: Settings, *rest: Any, **more: Any) -> Answer:
        asked.append(settings.solver)
        if settings.solver == "cp-sat":
            assert model.integer.all() and (model.coefficient % 1 == 0).all(), "it counts in whole numbers"
        return solve(model, settings, *rest, **more)

    monkeypatch.setattr(memory_solvers, "solve", watch)
    return asked


@pytest.mark.parametrize("ask", [ask_by_bytes, ask_whole])
@pytest.mark.parametrize("place", list(PLACES))
def test_all_solvers_say_the_same(place: str, ask: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_of(program(PAIR.format(b=8, e=16, f=64, **PLACES[place])), hardware(1e-6), "2", monkeypatch)
    asked, refused = watched(monkeypatch), 0
    every = [rooms(problem, seed) for seed in range(4)]
    every.append(Rooms(tuple(replace(one, room=one.room / 4) for one in every[0].every)))
    for some in every:
        for combining in ((), (problem.combining,)):
            limits = replace(some, combining=combining)
            program_of = reduced(problem, limits)
            asked.clear()
            answer = ask(program_of.model, program_of, limits, Settings())
            exact = solve(program_of.whole(program_of.model), Settings())
            assert answer.none == exact.none
            assert answer.none or answer.bound == pytest.approx(exact.bound, rel=1e-7)
            alone = "highs" if ask is ask_whole else "gscip"
            assert asked == (["cp-sat"] if combining else [alone])
            refused += answer.none
    assert 2 <= refused < 10, "some have plans, and some have none"


def test_what_a_solver_leaves_open_is_asked_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_of(program(PAIR.format(b=8, e=16, f=64, **PLACES["free"])), hardware(1e-6), "2", monkeypatch)
    asked = watched(monkeypatch)
    monkeypatch.setattr(memory_solvers, "is_settled", lambda *_: False)
    for combining, first in (((), "gscip"), ((problem.combining,), "cp-sat")):
        limits = replace(rooms(problem, 0), combining=combining)
        program_of = reduced(problem, limits)
        asked.clear()
        answer = ask_by_bytes(program_of.model, program_of, limits, Settings())
        assert asked == [*dict.fromkeys([first, "cp-sat"]), "highs"]
        assert answer.bound == pytest.approx(solve(program_of.whole(program_of.model), Settings()).bound)
    asked.clear()
    monkeypatch.setattr(memory_solvers, "MOST_INTEGER", 10)
    ask_by_bytes(program_of.model, program_of, limits, Settings())
    assert asked == ["highs"], "of a large program little is asked"
