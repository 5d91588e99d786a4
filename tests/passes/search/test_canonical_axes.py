"""Plain names: the image of a plan that reads best, and an image it is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from judge.generator import generate

from escc.cost.estimate import estimate
from escc.cost.hardware import Hardware
from escc.ir.layout import Layout, format_layout, parse_layout
from escc.ir.mesh import Mesh
from escc.ir.program import Program, Region
from escc.ir.verify.verify import verify
from escc.passes.choose import choose
from escc.passes.lower.insert import insert
from escc.passes.options import Options
from escc.passes.plan import Objective, OpPlan, PhasePlan, Plan, Timing, Tree
from escc.passes.search.symmetry import with_plainest_axes

HARDWARE = Hardware.of_paper("tpu-v4")


def layout(text: str) -> Layout:
    return parse_layout(text)[1]


def stored(text: str) -> Plan:
    root = layout(text)
    phase = PhasePlan(
        "main",
        Program("p", (), Region((), ()), (), ()),
        (OpPlan("u", (root,), root),),
        (Tree("W", root, ()),),
        (),
        (),
        1.0,
        1.0,
    )
    return Plan(Mesh.parse("4x4x4"), Objective.TIME, (("W", root),), (phase,), Timing(0.0, 0.0))


@pytest.mark.parametrize(
    ("given", "expected"),
    [("E_zF_yx", "E_xF_yz"), ("E_yF_zx", "E_xF_yz"), ("EF_z", "EF_x"), ("E_zF partialsum-yx", "E_xF partialsum-yz")],
)
def test_axes_come_in_the_order_of_the_mesh(given: str, expected: str) -> None:
    plan = with_plainest_axes(stored(given), [["x", "y", "z"]])
    assert format_layout("EF", plan.stored[0][1]) == expected
    assert plan.phases[0].ops[0].uses == (plan.stored[0][1],)
    assert plan.phases[0].trees[0].root == plan.stored[0][1]


def test_only_alike_axes_change_places() -> None:
    assert format_layout("EF", with_plainest_axes(stored("E_zF_yx"), [["x"], ["y", "z"]]).stored[0][1]) == "E_yF_zx"
    assert with_plainest_axes(stored("E_zF_yx"), []) == stored("E_zF_yx")


@pytest.mark.parametrize("seed", [*range(22), 53, 75])
def test_a_chosen_plan_has_the_plainest_names_and_its_price(seed: int) -> None:
    case = replace(generate(seed), mesh=Mesh((("x", 2), ("y", 2), ("z", 2) if seed % 2 else ("z", 1))))
    plan = choose(case.program, "main", case.mesh, Options(HARDWARE, capacity_bytes=float("inf")))
    alike = [a for a in case.mesh.names if case.mesh.size(a) == 2]
    assert with_plainest_axes(plan, [alike]) == plan
    (spmd,) = insert(plan)
    verify(spmd, case.program)
    assert estimate(spmd, HARDWARE).totals().total_s == pytest.approx(plan.phases[0].price, rel=1e-9)
