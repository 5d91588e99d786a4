"""Strategies against simulation: none is wrong, none is missing, for every kind of op."""

from __future__ import annotations

import itertools
import math

import pytest
from op_cases import CASES, IDS, SIZES, TRIALS, Case, judged, left_out, right
from shards import Combination, uses_of

from escc.ir.mesh import Mesh
from escc.passes.layouts.strategies import StrategyTable, strategies


def listed(case: Case, table: StrategyTable) -> list[Combination]:
    """What the table says, row by row: the layouts of the uses, then the result's."""
    uses = uses_of(case.op, case.values)
    assert [(use.value, use.indices) for use in table.signature.uses] == uses
    return [(*(table.use_layout(i, k) for k in range(len(uses))), table.result_layout(i)) for i in range(len(table))]


@pytest.mark.parametrize(("case", "mesh"), TRIALS, ids=IDS)
def test_strategies_are_what_simulation_finds(case: Case, mesh: str) -> None:
    found = listed(case, strategies(case.op, case.values, SIZES, Mesh.parse(mesh)))
    true = right(case, mesh)
    needed = {x for x in true if not left_out(case, x)}
    assert not set(found) - true, "wrong strategies"
    assert not needed - set(found), "missing strategies"
    assert len(set(found)) == len(found), "listed twice"


def test_the_judge_rejects_most_and_accepts_some() -> None:
    for case, mesh in TRIALS:
        holds = [h for _, h in judged(case, mesh)]
        assert any(holds)
        assert not all(holds)


def test_what_is_left_out_on_purpose_is_right_by_meaning() -> None:
    reasons = {left_out(case, x): (case, mesh, x) for case, mesh in TRIALS for x in right(case, mesh)}
    reasons.pop(None)
    assert len(reasons) == 5
    for case, mesh, combination in reasons.values():
        assert combination not in listed(case, strategies(case.op, case.values, SIZES, Mesh.parse(mesh)))


def arrangements(slots: int, axes: int) -> int:
    """In how many ways axes go to ordered places in slots, or to none."""
    return sum(
        math.prod(math.factorial(places.count(s)) for s in range(slots))
        for places in itertools.product(range(slots + 1), repeat=axes)
    )


@pytest.mark.parametrize("mesh", ["4", "4x4", "4x4x4", "2x3x5x2"])
def test_a_matmul_has_the_full_product_where_everything_divides(mesh: str) -> None:
    matmul = next(c for c in CASES if c.name == "matmul")
    sizes = {"B": 960, "E": 1920, "F": 3840}
    table = strategies(matmul.op, matmul.values, sizes, Mesh.parse(mesh), partial_allowed={})
    assert len(table) == arrangements(3, len(Mesh.parse(mesh).axes))


@pytest.mark.parametrize(
    "allowed", [{}, {"a": {"x"}}, {"a": {"x"}, "b": {"x", "y"}}, {"a": {"x", "y"}, "b": {"x", "y"}}]
)
@pytest.mark.parametrize("name", ["matmul", "sum of two", "linear", "maximum", "take"])
def test_partial_operands_are_held_to_the_axes_that_are_allowed(name: str, allowed: dict[str, set[str]]) -> None:
    case, mesh = next(c for c in CASES if c.name == name), Mesh.parse("2x2")
    names = [n for n, _ in uses_of(case.op, case.values)]
    every = listed(case, strategies(case.op, case.values, SIZES, mesh))
    frozen = {n: frozenset(axes) for n, axes in allowed.items()}
    some = listed(case, strategies(case.op, case.values, SIZES, mesh, frozen))
    kept = [x for x in every if all(set(y.partial) <= allowed.get(n, set()) for n, y in zip(names, x, strict=False))]
    assert sorted(some, key=repr) == sorted(kept, key=repr)


def test_strategies_come_in_one_order() -> None:
    for case in CASES:
        tables = [strategies(case.op, case.values, SIZES, Mesh.parse("2x3")) for _ in range(2)]
        assert listed(case, tables[0]) == listed(case, tables[1])
