"""Blocks written out where memory binds: plans in which copies choose alike keep to it, and bounds hold for all."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from problems import drawn, problem_of
from written_out import SIZES, repeated, written_out

from escc.compiler.plan.pipeline import compile_phase, parse
from escc.cost.hardware import Hardware
from escc.cost.memory import memory
from escc.ir.mesh import Mesh
from escc.passes import task as tasks
from escc.passes.choose import choose
from escc.passes.lower.insert import insert
from escc.passes.options import Options
from escc.passes.plan import Plan
from escc.passes.search import depth
from escc.passes.search import search as search_module
from escc.passes.search.alike_copies import ClassLimits, search_alike
from escc.passes.search.class_program import Reduced, Worths, reduced_costs
from escc.passes.search.exact import Prover
from escc.passes.search.fold import Fold, fold
from escc.passes.search.graph import Tensor
from escc.passes.search.limits import JointLimits, Limits
from escc.passes.search.memory_bounds import Load
from escc.passes.search.memory_rows import ROOM
from escc.passes.search.problem import Candidate, Problem

TPU = Hardware.load("tpu-v4-measured")
LARGE = SIZES | {"B": 256, "F": 2048}
STACKS = {
    "forward": ["forward"] * 6,
    "normed": ["normed"] * 7,
    "linear": ["linear"] * 6,
    "local and global": ["attention", "forward"] * 4,
    "dense and experts": ["forward"] * 3 + ["normed"] * 6,
}


def free_bytes(text: str, chips: str) -> float:
    """What the cheapest plan holds where there is room for any."""
    plan = choose(parse(text), "main", Mesh.parse(chips), replace(Options(TPU), capacity_bytes=1e18))
    [spmd] = insert(plan)
    return float(memory(spmd, TPU.lanes, TPU.fuses_products).total_bytes)


def both(
    text: str, chips: str, room: float, monkeypatch: pytest.MonkeyPatch
) -> tuple[Plan, Candidate | None, Limits | JointLimits]:
    """The cheapest plan of all within some room, that in which copies choose alike, and the limits of both."""
    seen: list[tuple[Candidate | None, Limits | JointLimits]] = []

    def watched(problem: Problem, limits: Any, prover: Any, below: float, sides: Any) -> Candidate:
        alike = search_alike(Prover(problem), limits, next(iter(sides())).limits, math.inf)
        seen.append((alike, limits))
        return search_module.search(problem, limits, prover, below, sides)

    with monkeypatch.context() as patched:
        patched.setattr(tasks, "search", watched)
        plan = choose(parse(text), "main", Mesh.parse(chips), replace(Options(TPU), capacity_bytes=room))
    return plan, *seen[0]


@pytest.mark.parametrize(
    ("stack", "chips", "share"),
    [
        ("forward", "2x2", 0.7),
        ("linear", "4", 0.6),
        ("linear", "2x2", 0.55),
        ("local and global", "4", 0.9),
        ("dense and experts", "2x2", 0.9),
    ],
)
def test_they_keep_to_the_limits_and_no_plan_costs_less_than_the_bound(
    stack: str, chips: str, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`share`: the room, of what the cheapest plan of all holds."""
    text = written_out(STACKS[stack], LARGE)
    plan, alike, limits = both(text, chips, share * free_bytes(text, chips), monkeypatch)
    assert alike is not None and limits.fits(alike)
    assert alike.bound <= plan.price * (1 + 1e-9) and plan.price <= alike.price * (1 + 1e-9)
    assert 0.8 * plan.price <= alike.bound <= alike.price <= 1.25 * plan.price, "few copies have most of alternating"


def test_large_models_have_such_plans_which_run_as_the_model_does(monkeypatch: pytest.MonkeyPatch) -> None:
    text = written_out(STACKS["forward"], LARGE)
    room = 0.7 * free_bytes(text, "2x2")
    monkeypatch.setattr(search_module, "MOST_COLUMNS", 0)
    monkeypatch.setattr(search_module, "_begun", None)  # all plans are not looked at
    compiled = compile_phase(
        parse(text), "main", Mesh.parse("2x2"), replace(Options(TPU), capacity_bytes=room), run=True
    )
    assert compiled.checked is not None and compiled.checked.equal
    assert compiled.memory.total_bytes <= room
    assert 0 < compiled.plan.bound <= compiled.plan.price


def test_where_axes_are_alike_and_collectives_may_be_one_they_cost_less_than_a_repeat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That has its ends as all blocks are, and holds what goes round."""
    text, mesh = written_out(["gated"] * 6, LARGE), Mesh.parse("2x2")
    options = replace(Options(TPU), capacity_bytes=0.6 * free_bytes(text, "2x2"))
    again = choose(parse(repeated("gated", 6, LARGE)), "main", mesh, options)
    monkeypatch.setattr(search_module, "MOST_COLUMNS", 0)
    monkeypatch.setattr(search_module, "_begun", None)  # all plans are not looked at
    plan = choose(parse(text), "main", mesh, options)
    [spmd] = insert(plan)
    assert memory(spmd, TPU.lanes, TPU.fuses_products).total_bytes <= options.capacity_bytes
    assert 0.9 * plan.price <= plan.bound <= plan.price < again.price


def test_a_bound_begins_with_the_columns_of_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that its first program has a solution, though no columns are near what rows are worth."""
    text, inner = written_out(STACKS["forward"], LARGE), depth._Search.bounded
    room = 0.7 * free_bytes(text, "2x2")
    found: list[Reduced | None] = []

    def watched(search: Any, *given: Any) -> Reduced | None:
        bounded = inner(search, *given)
        found.extend([bounded] if search.loads else [])
        return bounded

    monkeypatch.setattr(depth, "MARGIN", -1.0)
    monkeypatch.setattr(depth, "ROUNDS", 1)
    monkeypatch.setattr(depth._Search, "bounded", watched)
    plan, _, _ = both(text, "2x2", room, monkeypatch)
    assert found and all(one is not None and one.bound <= plan.price * (1 + 1e-9) for one in found)


def test_such_a_plan_is_known_where_all_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """These are asked for one that costs less, which there is of this stack with less room."""
    seen: list[float] = []
    inner = search_module._among_all

    def watched(prover: Any, limits: Any, below: float, sides: Any) -> Candidate:
        seen.append(below)
        return inner(prover, limits, below, sides)

    monkeypatch.setattr(search_module, "_among_all", watched)
    for share, nearer in ((0.9, False), (0.7, True)):
        text = written_out(STACKS["forward"], LARGE)
        plan, alike, _ = both(text, "2x2", share * free_bytes(text, "2x2"), monkeypatch)
        assert alike is not None and alike.price in seen
        assert (plan.price < alike.price * (1 - 1e-3)) == nearer and plan.gap <= 1e-9
        if not nearer:
            assert plan.price == alike.price


def test_where_there_are_too_many_layouts_such_a_plan_is_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    text = written_out(STACKS["forward"], LARGE)
    room = 0.7 * free_bytes(text, "2x2")
    monkeypatch.setattr(search_module, "MAX_LAYOUTS", 0)
    plan = choose(parse(text), "main", Mesh.parse("2x2"), replace(Options(TPU), capacity_bytes=room))
    [spmd] = insert(plan)
    assert memory(spmd, TPU.lanes, TPU.fuses_products).total_bytes <= room
    assert 0.9 * plan.price <= plan.bound < plan.price


def test_where_copies_that_choose_alike_do_not_fit_all_plans_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    text = written_out(STACKS["forward"], LARGE)
    room = 0.7 * free_bytes(text, "4")
    plan, _, _ = both(text, "4", room, monkeypatch)
    monkeypatch.setattr(search_module, "MOST_COLUMNS", 0)
    monkeypatch.setattr(search_module, "search_alike", lambda *arguments: None)
    again = choose(parse(text), "main", Mesh.parse("4"), replace(Options(TPU), capacity_bytes=room))
    assert again.price == pytest.approx(plan.price, rel=1e-9)


@pytest.mark.parametrize("apart", [0, 1])
@pytest.mark.parametrize("stack", ["forward", "linear", "local and global"])
def test_the_average_copy_takes_no_more_than_is_held_somewhere(
    stack: str, apart: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever all copies choose, each by itself."""
    seen: list[tuple[Problem, Limits]] = []
    monkeypatch.setattr(tasks, "search", lambda problem, limits, *others: seen.append((problem, limits)) or _stop())
    with pytest.raises(InterruptedError):
        choose(parse(written_out(STACKS[stack] * 2, LARGE)), "main", Mesh.parse("2x2"), Options(TPU))
    [(problem, limits)] = seen
    folded = fold(problem, apart)
    assert folded is not None
    loads = ClassLimits(folded, problem).loads(replace(limits, capacity=1.0, stored=1.0))
    assert len(loads) > 3
    for draw in range(20):
        plan = drawn(problem, draw)
        alone = [np.arange(len(p)) == c for p, c in zip(problem.prices, plan, strict=True)]
        held = limits.needs.stored_bytes(alone) + limits.needs.worst(alone)[1]
        for load in loads:
            taken = sum(
                float(load.bytes[c][choice]) / folded.copies[c]
                for c, choice in zip(folded.node_of, plan, strict=True)
                if c in load.bytes
            )
            assert taken <= held * (1 + 1e-9)


def _stop() -> Candidate:
    raise InterruptedError


@pytest.mark.parametrize("seed", range(4))
def test_whatever_rooms_are_worth_the_bound_holds_for_plans_that_keep_to_them(seed: int) -> None:
    problem = problem_of(written_out(list(STACKS.values())[seed]), "4")
    folded = fold(problem, 0)
    assert folded is not None
    rng = np.random.default_rng(seed)
    optimum = search_module.search(problem, None, Prover(problem))
    sizes = {n: rng.uniform(size=len(node.seconds)) for n, node in enumerate(folded.window.graph.nodes)}
    chosen = {folded.node_of[n]: choice for n, choice in enumerate(optimum.chosen)}
    load = Load(sizes, sum(float(sizes[n][c]) for n, c in chosen.items()))
    flows = [np.zeros((len(own.uses), len(own.space))) for own in _like(folded)]
    groups = [np.zeros(len(tensor.groups)) for tensor in folded.shapes]
    bounds = []
    for scale in (0.0, 1e-2, 1.0):
        worths = Worths(flows, groups, -np.abs(rng.normal(scale=scale, size=1)))
        bounds.append(reduced_costs(folded, folded.shapes, worths, ROOM / optimum.price, [load]).bound)
    assert all(bound <= optimum.price * (1 + 1e-12) for bound in bounds)


def _like(folded: Fold) -> list[Tensor]:
    return [folded.window.graph.tensors[tensor.like] for tensor in folded.shapes]
