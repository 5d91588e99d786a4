"""The proof: the integer program's answer is the best of all plans, and its bound never exceeds it."""

from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from judge.generator import Case, generate
from judge.optimum import optimum

from escc.cost.hardware import Hardware
from escc.cost.memory import memory
from escc.cost.network import Network
from escc.ir.mesh import Mesh
from escc.passes.choose import choose
from escc.passes.ilp.model import Model
from escc.passes.ilp.solver import Answer, Settings
from escc.passes.layouts.reshard import leaving, price_arcs
from escc.passes.lower.insert import insert
from escc.passes.options import Options
from escc.passes.search import exact
from escc.passes.search import search as searching
from escc.passes.search.dual_ascent import DualAscent
from escc.passes.search.exact import Prover
from escc.passes.search.graph import build_graph
from escc.passes.search.limits import Limited
from escc.passes.search.problem import Candidate, Problem
from escc.passes.search.reduced_program import Reduced
from escc.passes.search.search import search
from escc.passes.search.steiner import Distances

HARDWARE = Hardware.of_paper("tpu-v4")


def case_of(seed: int, *sizes: int) -> Case:
    mesh = Mesh(tuple(zip("xyz", sizes, strict=False)))
    return dataclasses.replace(generate(seed), mesh=mesh, capacity_bytes=None)


def problem_of(case: Case, solver: str = "highs") -> Problem:
    graph = build_graph(case.program, "main", case.mesh, HARDWARE)
    near: list[Distances | None] = []
    for tensor in graph.tensors:
        arcs = leaving(tensor.space.space)
        seconds = tensor.times * price_arcs(
            tensor.space.space, arcs, tensor.total_bytes, Network(HARDWARE, case.mesh).collective_s
        )
        # Free collectives cost a little, so that trees are found by positive prices.
        seconds = np.maximum(seconds, 1e-18)
        near.append(Distances(arcs, seconds) if tensor.uses else None)
    return Problem(graph, [n.seconds for n in graph.nodes], near, Settings(solver=solver))


@pytest.mark.parametrize("seed", [s for s in range(60) if s % 22 != 2])
def test_from_a_poor_start_the_best_is_found(seed: int) -> None:
    """No sweeps, no good plan: all is left to the integer program."""
    case = case_of(seed, 2, 2)
    problem = problem_of(case)
    ascent = DualAscent(problem.graph, problem.prices, problem.distances)
    prover = Prover(problem)
    found = prover.prove(ascent, problem.found(ascent.round()))
    assert found.price == pytest.approx(optimum(case), rel=1e-9, abs=1e-15)
    assert problem.found(found.chosen).price == pytest.approx(found.price, rel=1e-12)
    assert found.price - found.bound <= 1e-9 * found.price
    assert found.bound <= found.price * (1 + 1e-9)


def test_where_a_relaxation_costs_more_as_a_plan_the_plainest_of_its_price_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its collectives may be out of their order. No integer program is needed then."""
    problem, plan_of = problem_of(case_of(1, 2, 2)), Prover._plan
    least = search(problem, None, Prover(problem)).price
    ascent, read = DualAscent(problem.graph, problem.prices, problem.distances), []

    def dearer(prover: Prover, answer: Answer, reduced: Reduced, ascent: DualAscent | None = None) -> Candidate | None:
        plan = plan_of(prover, answer, reduced, ascent)
        read.append(plan)
        return plan if plan is None or len(read) > 1 else dataclasses.replace(plan, price=1.01 * plan.price)

    monkeypatch.setattr(Prover, "_plan", dearer)
    monkeypatch.setattr(Prover, "_solve", None)
    found = Prover(problem).prove(ascent, dataclasses.replace(problem.found(ascent.round()), price=1.1 * least))
    assert read[0] is not None and len(read) == 2
    assert found.price == pytest.approx(least, rel=1e-9) and found.bound == pytest.approx(least, rel=1e-9)


def test_what_a_plan_costs_and_stores() -> None:
    case = case_of(0, 2)
    problem = problem_of(case)
    for seed in range(5):
        rng = np.random.default_rng(seed)
        plan = [int(rng.integers(len(n.seconds))) for n in problem.graph.nodes]
        choices = zip(problem.graph.nodes, plan, strict=True)
        sizes = [float(n.stored_bytes[c]) for n, c in choices if n.stored_bytes is not None]
        assert problem.stored_bytes(plan) == sum(sizes)
        assert problem.found(plan).price >= sum(float(p[c]) for p, c in zip(problem.prices, plan, strict=True))


@pytest.mark.parametrize("solver", ["highs", "gscip"])
def test_solvers_agree(solver: str) -> None:
    for seed in (0, 3, 7, 11):
        case = case_of(seed, 2, 2)
        problem = problem_of(case, solver)
        found = search(problem, None, Prover(problem))
        assert found is not None
        assert found.price == pytest.approx(optimum(case), rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("seed", [0, 3, 7, 11])
def test_a_program_that_is_too_large_is_not_even_built(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_of(case_of(seed, 2, 2))
    ascent = DualAscent(problem.graph, problem.prices, problem.distances)
    known, prover = problem.found(ascent.round()), Prover(problem)
    limits = SimpleNamespace(combining=(), fits=lambda plan: True, loads=lambda allowed: [])
    columns = len(prover._reduce(ascent, known, ties=False, limits=limits).model.cost)
    assert prover.within(ascent, known, limits, columns) is not None

    def refused(*_: object, **__: object) -> None:
        pytest.fail("a program is built")

    monkeypatch.setattr(Prover, "_reduce", refused)
    assert prover.within(ascent, known, limits, columns - 1) is None


@pytest.mark.parametrize("seed", [5006, 5012])
def test_programs_of_what_runs_as_one_are_left_to_boxes_where_they_are_large(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a small problem; the plan is as cheap, and its bound holds."""
    program, mesh, hardware = generate(seed).program, Mesh.parse("2x2"), Hardware.load("h100")
    free = choose(program, "main", mesh, Options(hardware, capacity_bytes=math.inf))
    options = Options(hardware, capacity_bytes=0.6 * float(memory(insert(free)[0]).total_bytes))
    least = choose(program, "main", mesh, options).phases[0]
    assert least.gap <= 1e-9
    asked, by_bytes = list[int](), exact.ask_by_bytes

    def counted(left: Model, reduced: Reduced, limits: Limited, settings: Settings) -> Answer:
        asked.extend([len(left.cost)] if limits.combining else [])
        return by_bytes(left, reduced, limits, settings)

    monkeypatch.setattr(exact, "ask_by_bytes", counted)
    monkeypatch.setattr(searching, "settle", lambda *_: (None, -math.inf))
    for most, small, some in ((exact.MOST_COMBINING, exact.SMALL, True), (0, exact.SMALL, False), (0, 0, True)):
        monkeypatch.setattr(exact, "MOST_COMBINING", most)
        monkeypatch.setattr(exact, "SMALL", small)
        asked.clear()
        plan = choose(program, "main", mesh, options).phases[0]
        assert bool(asked) == some
        assert plan.bound * (1 - 1e-9) <= least.price <= plan.price * (1 + 1e-9)


def test_plans_of_one_price_that_another_solver_tells_apart_are_as_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, inner = list[str](), exact.solve

    def solving(model: Model, settings: Settings, *given: Any, **named: Any) -> Answer:
        answer = inner(model, settings, *given, **named)
        if model.integer.any() or answer.x is None:
            asked.append(settings.solver)
            return answer
        return dataclasses.replace(
            answer, x=0.9 * answer.x
        )  # as if it mixed plans, so that programs of integers follow

    monkeypatch.setattr(exact, "solve", solving)
    for seed in range(12):
        case, prices = case_of(seed, 2, 2), list[float]()
        for many in (exact.MANY_TIES, 0):
            with monkeypatch.context() as patched:
                patched.setattr(exact, "MANY_TIES", many)
                plan = choose(case.program, "main", case.mesh, Options(HARDWARE, capacity_bytes=1e18))
            assert plan.gap <= 1e-9
            prices.append(plan.price)
        assert prices[1] == pytest.approx(prices[0], rel=1e-9)
    assert "gscip" in asked


@pytest.mark.parametrize("seed", range(8))
def test_a_relaxation_that_is_said_to_have_no_solution_proves_nothing_until_that_is_said_again(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, inner, wrong = problem_of(case_of(seed, 2, 2)), exact.solve, list[Answer]()
    ascent = DualAscent(problem.graph, problem.prices, problem.distances)
    poor = problem.found([int(np.argmax(price)) for price in problem.prices])
    least = Prover(problem).prove(ascent, poor)

    def solving(model: Model, *given: Any, rows: object = None, **named: Any) -> Answer:
        answer = inner(model, *given, rows=rows, **named)
        if rows is not None:
            wrong.append(answer)
            return Answer(None, -math.inf, None, 0.0, none=True)
        return answer

    monkeypatch.setattr(exact, "solve", solving)
    found = Prover(problem).prove(ascent, poor)
    assert wrong and found.bound <= least.price * (1 + 1e-9)
    assert found.price == pytest.approx(least.price, rel=1e-9) and least.price < poor.price
