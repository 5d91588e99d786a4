"""Layouts whose axes stand in mesh order: those that are meant, once; plans of them run, and cost little more."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from judge.generator import Case, generate
from judge.optimum import optimum
from shards import all_layouts

from escc.compiler.plan.pipeline import compile_phase, load, parse
from escc.cost.hardware import Hardware
from escc.ir.diagnostics import Source
from escc.ir.layout import Layout, Reduction
from escc.ir.mesh import Mesh
from escc.ir.text.pins import parse_pins
from escc.ir.verify.verify import verify
from escc.passes.choose import choose
from escc.passes.expansion.combinations import Combinations
from escc.passes.layouts import mesh_order
from escc.passes.layouts.space import NONE, Order, Orders, count_layouts, tensor_space
from escc.passes.lower.insert import insert
from escc.passes.options import Options
from escc.passes.plan import Cutoff, Outcome

PAPER = Hardware.of_paper("tpu-v4")
CASES = [("2x2x2", (4, 16)), ("2x3x2", (12, 1, 24)), ("2x2x2x2", (16, 4)), ("3x2x2x2", (6, 8, 24))]


def descents(numbers: list[int]) -> int:
    return sum(a > b for a, b in pairwise(numbers))


def kept(layout: Layout, names: str, order: Order, ranks: list[int]) -> bool:
    """Whether a layout keeps to an order, by what that says, all its axes being in order."""
    dims = [[names.index(axis) for axis in dim] for dim in layout.dims]
    for dim in dims:
        if descents(dim) and not (order.cyclic and descents([*dim, dim[0]]) == 1):
            return False
    read = [axis for _, dim in sorted(zip(ranks, dims, strict=True)) for axis in sorted(dim)]
    groups = {c: [a for a in read if order.classes[a] == c] for c in order.classes if c != NONE}
    return not any(descents(group) for group in groups.values())


@pytest.mark.parametrize(("mesh", "shape"), CASES)
@pytest.mark.parametrize("cyclic", [False, True])
@pytest.mark.parametrize("alike", [False, True])
def test_layouts_that_keep_to_an_order_are_there_once(
    mesh: str, shape: tuple[int, ...], cyclic: bool, alike: bool
) -> None:
    axes = Mesh.parse(mesh).axes
    names = "".join(name for name, _ in axes)
    classes = tuple(size if alike else NONE for _, size in axes)
    order, ranks = Order((False,) * len(axes), classes, cyclic), [5, 3, 7][: len(shape)]
    space = tensor_space(shape, axes, frozenset(names), frozenset(names), order, ranks)
    found = [space.layout(row) for row in range(len(space))]
    every = all_layouts(shape, Mesh.parse(mesh), [Reduction.SUM, Reduction.MAX])
    assert len(found) == len(set(found))
    assert set(found) == {layout for layout in every if kept(layout, names, order, ranks)}


@pytest.mark.parametrize(("mesh", "shape"), CASES)
@pytest.mark.parametrize("orders", Orders)
def test_layouts_are_counted_without_listing_them(mesh: str, shape: tuple[int, ...], orders: Orders) -> None:
    axes, some = Mesh.parse(mesh).axes, frozenset("xz")
    order = Order((False,) * len(axes), (NONE,) * len(axes), orders is Orders.CYCLIC)
    space = tensor_space(shape, axes, some, frozenset(), None if orders is Orders.ANY else order, range(len(shape)))
    assert count_layouts(shape, axes, some, frozenset(), orders) == len(space)


def test_a_loose_axis_stands_anywhere() -> None:
    axes = Mesh.parse("2x2x2x2").axes
    order = Order((False, True, False, False), (NONE,) * 4)
    space = tensor_space((16,), axes, order=order, ranks=[0])
    found = {"".join(space.layout(row).dims[0]) for row in range(len(space))}
    assert {"zy", "zyw", "yx", "xzwy", "yxzw"} <= found
    assert not {"zx", "wz", "wyz", "wyx"} & found


def everything_ordered(monkeypatch: pytest.MonkeyPatch, cyclic: bool = True, alike: bool = False) -> None:
    monkeypatch.setattr(mesh_order, "FEW_AXES", 1)
    monkeypatch.setattr(mesh_order, "MOST", 0)
    monkeypatch.setattr(mesh_order, "MOST_CYCLIC", math.inf if cyclic and not alike else 0)
    monkeypatch.setattr(mesh_order, "MOST_ALIKE", math.inf if cyclic else 0)


def three_axes(seeds: range) -> list[tuple[Case, float]]:
    cases = [generate(seed) for seed in seeds]
    large = [case for case in cases if sum(size > 1 for size in case.mesh.sizes) == 3 and case.capacity_bytes is None]
    return [(case, least) for case in large if (least := optimum(case)) < math.inf]


def test_plans_in_mesh_order_run_and_are_seldom_dearer(monkeypatch: pytest.MonkeyPatch) -> None:
    cases, as_cheap = three_axes(range(90)), dict.fromkeys(("cyclic", "mesh", "alike"), 0)
    for name in as_cheap:
        everything_ordered(monkeypatch, name != "mesh", name == "alike")
        for case, least in cases:
            plan = choose(case.program, "main", case.mesh, Options(PAPER, capacity_bytes=math.inf))
            assert plan.in_mesh_order and plan.outcome is Outcome.FEASIBLE and plan.gap <= 1e-9
            assert plan.price >= least * (1 - 1e-9)
            [spmd] = insert(plan)
            verify(spmd, case.program)
            as_cheap[name] += plan.price <= least * (1 + 1e-9)
    assert len(cases) >= 6
    assert as_cheap["cyclic"] >= as_cheap["mesh"] and as_cheap["cyclic"] >= 0.9 * len(cases)
    assert as_cheap["alike"] >= 0.5 * len(cases)


def test_few_axes_keep_to_no_order() -> None:
    program = load("examples/feed-forward.esti")
    plan = compile_phase(program, "main", Mesh.parse("4x4x4"), Options(PAPER)).plan
    assert not plan.in_mesh_order and plan.outcome is Outcome.OPTIMAL


def test_what_was_looked_at_in_mesh_order_alone_is_proven_of_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one order of a product all layouts are few enough, of the other they are not."""
    text = """dim B = 64, E = 64, R = 64, S = 16, F = 64
main(x: bf16[B,E]) {
  param P: bf16[E,R,S]
  param Q: bf16[R,S,F]
  z[B,F] = x[B,E] * P[E,R,S] * Q[R,S,F]
  return z
}
"""
    program, mesh = parse(text), Mesh.parse("2x2x2x2")
    orders = Combinations(program, ["main"])
    counts = [mesh_order.count(orders.programs(picks), mesh, Orders.ANY) for picks in orders.every()]
    assert len(set(counts)) > 1
    monkeypatch.setattr(mesh_order, "MOST", min(counts))
    plan = choose(program, "main", mesh, Options(PAPER))
    assert plan.in_mesh_order and plan.outcome is Outcome.FEASIBLE


def test_pins_in_another_order_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    everything_ordered(monkeypatch, alike=True)
    program = load("examples/feed-forward.esti")
    pins = parse_pins(Source("test.pins", "stored Wi E_xF_zy"), program)
    plan = choose(program, "main", Mesh.parse("4x4x4"), Options(PAPER, pins=pins))
    assert dict(plan.stored)["Wi"] == Layout((("x",), ("z", "y"))) and plan.in_mesh_order


def test_nothing_is_said_of_plans_in_other_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    everything_ordered(monkeypatch, alike=True)
    program, mesh = load("examples/feed-forward.esti"), Mesh.parse("4x4x4")
    plan = choose(program, "main", mesh, Options(PAPER))
    assert plan.least == 0.0 < plan.bound
    with pytest.raises(Cutoff) as beaten:
        choose(program, "main", mesh, Options(PAPER, below=plan.price / 2))
    assert beaten.value.bound == 0.0
