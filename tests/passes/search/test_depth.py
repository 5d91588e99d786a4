"""Blocks written out: the same optimum as of all plans, never dearer than the repeat, and bounds of all plans."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from problems import problem_of
from written_out import SIZES, repeated, written_out

from escc.compiler.plan.pipeline import compile_phase, parse
from escc.cost.hardware import Hardware
from escc.ir.mesh import Mesh
from escc.ir.program import Program
from escc.passes.choose import choose
from escc.passes.options import Options
from escc.passes.plan import Outcome, Plan
from escc.passes.search import depth
from escc.passes.search import search as search_module
from escc.passes.search.class_program import Worths, reduced_costs
from escc.passes.search.depth import is_proven, search_copies
from escc.passes.search.exact import Prover
from escc.passes.search.fold import fold
from escc.passes.search.problem import Candidate

V5E = Hardware.load("tpu-v5e")
MEASURED = Hardware.load("tpu-v4-measured")
STACKS = {
    "forward": ["forward"] * 7,
    "normed": ["normed"] * 7,
    "linear": ["linear"] * 8,
    "tied": ["tied"] * 7,
    "attention": ["attention"] * 6,
    "local and global": ["attention", "forward"] * 5,
    "dense and experts": ["forward"] * 3 + ["normed"] * 6,
    "many": ["linear", *["forward", "normed"] * 5, "linear", "attention"],
}


def plan_of(program: Program, chips: str, hardware: Hardware = MEASURED, **options: float) -> Plan:
    names = tuple(phase.name for phase in program.phases)
    return choose(program, names, Mesh.parse(chips), replace(Options(hardware), **options))


def without_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_module, "search_copies", lambda prover: None)


@pytest.mark.parametrize("sizes", [SIZES, SIZES | {"B": 256, "F": 2048}], ids=["small", "large"])
@pytest.mark.parametrize("stack", STACKS)
def test_the_optimum_is_that_of_all_plans(stack: str, sizes: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    program = parse(written_out(STACKS[stack], sizes))
    chips, hardware = "2x2" if "attention" in STACKS[stack] else "4x2", V5E if stack == "tied" else MEASURED
    found = plan_of(program, chips, hardware)
    assert found.outcome is Outcome.OPTIMAL
    without_copies(monkeypatch)
    assert found.price == pytest.approx(plan_of(program, chips, hardware).price, rel=1e-9)


@pytest.mark.parametrize(
    ("block", "chips"), [("forward", "2x2"), ("normed", "2x2x2"), ("attention", "2x2"), ("forward", "2x2x2")]
)
def test_what_is_written_out_costs_no_more_than_the_repeat(
    block: str, chips: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Candidate | None] = []
    monkeypatch.setattr(search_module, "search_copies", lambda prover: found.append(search_copies(prover)) or found[-1])
    price = plan_of(parse(written_out([block] * 9)), chips).price
    assert found[0] is not None and found[0].price == pytest.approx(price, rel=1e-12), "copies decide"
    assert price <= plan_of(parse(repeated(block, 9)), chips).price * (1 + 1e-12)


def test_two_blocks_between_the_ends_are_copies() -> None:
    """As few leave a program of all plans open on larger meshes, whose mixtures no plan is."""
    problem = problem_of(written_out(["attention"] * 4), "2x2")
    found = search_copies(Prover(problem))
    assert found is not None and is_proven(problem, found)
    every = search_module._among_all(Prover(problem), None, np.inf, tuple)
    assert found.price == pytest.approx(every.price, rel=1e-9)


def test_a_plan_of_copies_runs_as_the_model_does() -> None:
    program = parse(written_out(["attention", "forward"] * 6))
    compiled = compile_phase(program, "main", Mesh.parse("2x2"), Options(MEASURED), run=True)
    assert compiled.checked is not None and compiled.checked.equal


@pytest.mark.parametrize("apart", [0, 1, 2])
@pytest.mark.parametrize("stack", ["linear", "tied", "dense and experts"])
def test_bounds_hold_for_all_plans_however_few_copies_are_told_apart(
    stack: str, apart: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = STACKS[stack] + [STACKS[stack][-1]] * 6
    problem = problem_of(written_out(blocks), "2x2")
    monkeypatch.setattr(depth, "APART", (apart,))
    found = search_copies(Prover(problem))
    assert found is not None
    without_copies(monkeypatch)
    optimum = search_module.search(problem, None, Prover(problem))
    assert found.bound <= optimum.price * (1 + 1e-12) <= found.price * (1 + 1e-9)
    assert problem.found(found.chosen, found.shared).price == pytest.approx(found.price, rel=1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_whatever_rows_are_worth_the_bound_holds(seed: int) -> None:
    problem = problem_of(written_out(list(STACKS.values())[seed] * 2), "4")
    folded = fold(problem, 0)
    assert folded is not None
    rng = np.random.default_rng(seed)
    optimum = search_module.search(problem, None, Prover(problem)).price
    for scale in (0.0, 1e-3, 1e-1):
        flows, groups = [], []
        for tensor in folded.shapes:
            own = folded.window.graph.tensors[tensor.like]
            flows.append(rng.normal(scale=scale, size=(len(own.uses), len(own.space))))
            groups.append(-np.abs(rng.normal(scale=scale, size=len(tensor.groups))))
        bound = reduced_costs(folded, folded.shapes, Worths(flows, groups), 1 / optimum).bound
        assert bound <= optimum * (1 + 1e-12)


@pytest.mark.parametrize("share", [0.3, 0.6])
def test_where_memory_binds_all_plans_are_looked_at(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    program = parse(written_out(["linear"] * 6, SIZES | {"B": 256, "F": 2048}))
    stored = share * 6 * 2 * 64 * 2048 * 2
    assert plan_of(program, "4").price < plan_of(program, "4", stored_bytes=stored).price
    found = plan_of(program, "4", stored_bytes=stored)
    without_copies(monkeypatch)
    assert found.price == pytest.approx(plan_of(program, "4", stored_bytes=stored).price, rel=1e-9)


def test_phases_that_share_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {name: size for name, size in SIZES.items() if name not in "BLM"}
    phases = "phase prefill { B = 8, L = 8, M = 8 }\nphase decode { B = 8, L = 1, M = 8, calls = 8 }"
    program = parse(written_out(["attention"] * 6, sizes, phases))
    found = plan_of(program, "4")
    without_copies(monkeypatch)
    assert found.price == pytest.approx(plan_of(program, "4").price, rel=1e-9)
