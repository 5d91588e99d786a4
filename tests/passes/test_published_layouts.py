"""The feed-forward layouts that the literature derives by hand, and that none beats the search."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import pytest

from escc.compiler.simulate.check import check
from escc.cost.estimate import estimate, predict
from escc.cost.hardware import Hardware
from escc.ir.collective import kind
from escc.ir.layout import format_layout
from escc.ir.mesh import Mesh
from escc.ir.program import Program, operand_names, walk
from escc.ir.spmd import Compute, Move, SpmdProgram
from escc.ir.text.pins import parse_pins
from escc.ir.text.read import parse, read_source
from escc.ir.verify.verify import verify
from escc.passes.choose import choose
from escc.passes.expansion.expand import expand
from escc.passes.lower.insert import insert
from escc.passes.options import Options
from escc.passes.plan import Objective, Plan

EXAMPLES = Path(__file__).parents[2] / "examples"
MESH = Mesh.parse("4x4x4")
ALL = [1 << k for k in range(9, 23)]

E, F, X, Y, Z, BYTES, BANDWIDTH = 16384, 65536, 4, 4, 4, 2, 270e9


def share(chips: int) -> float:
    """What of a chip's result comes from others."""
    return (chips - 1) / chips


def one_dimensional(b: int) -> float:
    return 2 * b * E * share(X * Y * Z)


def two_dimensional(b: int) -> float:
    return 2 * b * (E / X * share(Y * Z) + F / (Y * Z) * share(X))


def gathered_over(ways: int) -> float:
    """The elements of both matrices that reach a chip."""
    return 2 * E * F * ways / (X * Y * Z) * share(ways)


def gathered_x(b: int) -> float:
    return gathered_over(X) + 2 * b * E / X * share(Y * Z)


def gathered_xy(b: int) -> float:
    return gathered_over(X * Y) + 2 * b * E / (X * Y) * share(Z)


def gathered_xyz(b: int) -> float:
    return gathered_over(X * Y * Z)


# Elements that each chip sends; layouts of the matrices at their uses; the collectives, of which one
# gathers one dim.
PUBLISHED = {
    "ws1d": (one_dimensional, ("EF_xyz", "F_xyzE"), ["all-gather", "reduce-scatter"]),
    "ws2d": (two_dimensional, ("E_xF_zy", "F_zyE_x"), ["all-gather", "reduce-scatter"] * 2),
    "wg-x": (gathered_x, ("EF_zy", "F_zyE"), ["all-gather"] * 3 + ["reduce-scatter"]),
    "wg-xy": (gathered_xy, ("EF_z", "F_zE"), ["all-gather"] * 5 + ["reduce-scatter"]),
    "wg-xyz": (gathered_xyz, ("EF", "FE"), ["all-gather"] * 4),
}


def seconds(name: str, b: int) -> float:
    return PUBLISHED[name][0](b) * BYTES / BANDWIDTH


@cache
def program(b: int) -> Program:
    source = read_source(EXAMPLES / "feed-forward.esti")
    return expand(parse(source), source, {"B": b})


@cache
def planned(b: int, pins: str | None) -> tuple[Plan, SpmdProgram]:
    layer = program(b)
    fixed = parse_pins(read_source(EXAMPLES / "pins" / f"{pins}.pins"), layer) if pins else ()
    options = Options(
        Hardware.of_paper("tpu-v4"),
        Objective.COMMUNICATION,
        capacity_bytes=math.inf,
        pins=fixed,
    )
    plan = choose(layer, layer.phases[0].name, MESH, options)
    (spmd,) = insert(plan)
    verify(spmd, layer)
    return plan, spmd


def read(spmd: SpmdProgram, stored: str) -> str:
    """The layout in which the einsum that reads a copy of `stored` does so."""
    values, copies = spmd.table(), {stored}
    for placed in walk(spmd.body):
        match placed.item:
            case Move(result, operand, _) if operand in copies:
                copies.add(result)
            case Compute(op) if found := copies & set(operand_names(op)):
                value = values[found.pop()]
                return format_layout(value.dims, value.layout)
    raise AssertionError(f"nothing reads {stored}")


@pytest.mark.parametrize("b", ALL)
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_pinned_layout_costs_what_its_formula_says(name: str, b: int) -> None:
    plan, spmd = planned(b, name)
    totals = estimate(spmd, Hardware.of_paper("tpu-v4")).totals()
    assert totals.comm_s == pytest.approx(seconds(name, b), rel=1e-12)
    assert plan.phases[0].price == pytest.approx(seconds(name, b), rel=1e-12)
    assert plan.phases[0].gap <= 1e-9
    _, uses, kinds = PUBLISHED[name]
    assert (read(spmd, "Wi"), read(spmd, "Wo")) == uses
    moves = [placed.item for placed in walk(spmd.body) if isinstance(placed.item, Move)]
    assert sorted(k for m in moves if (k := kind(m.collective)) not in ("slice", "embed")) == sorted(kinds)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_pinned_layout_runs(name: str) -> None:
    _, spmd = planned(4096, name)
    report = check(program(4096), spmd, predict)
    assert report.max_error <= 1e-9
    assert report.equal


@pytest.mark.parametrize("b", ALL)
def test_what_is_free_is_never_worse_than_the_best_of_them(b: int) -> None:
    plan, spmd = planned(b, None)
    best = min(seconds(name, b) for name in PUBLISHED)
    assert plan.phases[0].gap <= 1e-9
    assert plan.phases[0].price <= best * (1 + 1e-12)
    assert estimate(spmd, Hardware.of_paper("tpu-v4")).totals().comm_s == pytest.approx(plan.phases[0].price, rel=1e-9)


def test_the_formulas_cross_where_the_reference_says() -> None:
    best = [min(PUBLISHED, key=lambda name: seconds(name, b)) for b in ALL]
    firsts = {name: ALL[best.index(name)] for name in dict.fromkeys(best)}
    assert firsts == {"ws2d": 512, "wg-x": 32768, "wg-xy": 131072, "wg-xyz": 1 << 21}
