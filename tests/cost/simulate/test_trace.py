"""Collectives of small programs on the simulated links, by hand, and every kind beside its formula."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import permutations

import pytest

from escc.cost.hardware import Calibrated, Hardware
from escc.cost.simulate.trace import Simulated, Trace, traces
from escc.ir.collective import AllGather, AllReduce, AllToAll, Collective, Permute, ReduceScatter, Slice
from escc.ir.dtype import Dtype
from escc.ir.layout import parse_layout
from escc.ir.mesh import Mesh
from escc.ir.program import Kind, Region, Stored
from escc.ir.spmd import Move, SpmdProgram, SpmdValue

V4 = Hardware.load("tpu-v4", datasheet=True).with_network("links")
PLAIN = replace(V4, hop_latency_s=0.0, calibrated=Calibrated())  # no latency: seconds are bytes over 45 GB/s
SIZES = (("E", 4096), ("F", 4096))


def moved(mesh: str, before: str, after: str, collective: Collective, hardware: Hardware = PLAIN) -> Trace:
    """The trace of one collective on a bf16 value."""
    values = []
    for name, text in (("a", before), ("b", after)):
        dims, layout = parse_layout(text)
        values.append(SpmdValue(name, dims, Dtype.BF16, layout))
    body = Region((Stored("a", Kind.PARAM),), (Move("b", "a", collective),))
    program = SpmdProgram("by hand", "main", Mesh.parse(mesh), SIZES, tuple(values), body, ("b",))
    (found,) = traces(program, hardware)
    return found


WHOLE = 2 * 4096 * 4096  # bytes


def test_a_gather_along_a_ring_by_hand() -> None:
    found = moved("4x4x4", "E_xF", "EF", AllGather(("x",), 0), V4)
    assert found.run == Simulated(Fraction(WHOLE * 3, 4 * 2), 2, 17e-6 + 2e-6 + WHOLE * 3 / 8 / 45e9)
    assert (found.results, found.kind, found.axes, found.chips) == (("b",), "all-gather", ("x",), 4)
    assert found.exact and found.agrees


def test_a_line_has_twice_as_much_on_its_busiest_link() -> None:
    ring, line = (moved(m, "E_xF", "EF", AllGather(("x",), 0)) for m in ("4x4x4", "4x4"))
    assert ring.run is not None and line.run is not None
    assert line.run.busiest_bytes == 2 * ring.run.busiest_bytes
    assert (ring.run.hops, line.run.hops) == (2, 3)


CASES = {
    "all-gather": ("E_{0}F", "EF", lambda axes: AllGather(axes, 0)),
    "reduce-scatter": ("EF partialsum-{0}", "E_{0}F", lambda axes: ReduceScatter(axes, 0)),
    "all-reduce": ("EF partialsum-{0}", "EF", AllReduce),
    "all-to-all": ("E_{0}F", "EF_{0}", lambda axes: AllToAll(axes, 0, 1)),
}


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("axes", ["x", "xy", "xyz"])
@pytest.mark.parametrize(
    ("name", "mesh"), [("tpu-v4", "4x4x4"), ("tpu-v4", "2x2x2"), ("h100", "2x2x2"), ("h100", "2x2x4")]
)
def test_formulas_agree_where_they_claim_to_be_exact(kind: str, axes: str, name: str, mesh: str) -> None:
    before, after, make = CASES[kind]
    hardware = Hardware.load(name, datasheet=True).with_network("links")
    found = moved(mesh, before.format(axes), after.format(axes), make(tuple(axes)), hardware)
    assert found.kind == kind and found.exact and found.agrees
    assert found.run is not None and found.run.seconds == pytest.approx(found.formula_s, rel=1e-12)


def test_nodes_come_after_each_other_with_links_of_their_own() -> None:
    found = moved(
        "node=2,gpu=8",
        "[E/node.gpu, F]",
        "EF",
        AllGather(("node", "gpu"), 0),
        Hardware.load("h100", datasheet=True).with_network("links"),
    )
    # Over the slower nodes go single blocks, behind the switch pairs of them.
    block = WHOLE / 16
    assert found.run is not None
    assert found.run.busiest_bytes == block * 1 + 2 * block * 7
    assert found.run.seconds == pytest.approx(block / 50e9 + 14 * block / 450e9, rel=1e-12)
    assert found.agrees


def test_unlike_axes_at_once_are_bounded_by_the_formula() -> None:
    found = moved("2x8", "E_xyF", "EF", AllGather(("x", "y"), 0))
    assert not found.exact and found.agrees is None
    assert found.run is not None and found.run.seconds > found.formula_s


def test_an_exchange_over_unlike_axes_is_exact() -> None:
    assert moved("2x8", "E_xyF", "EF_xy", AllToAll(("x", "y"), 0, 1)).agrees


def test_a_permute_goes_straight_to_where_its_blocks_belong() -> None:
    _, after = parse_layout("E_yF_x")
    found = moved("2x2", "E_xF_y", "E_yF_x", Permute(after))
    # Of four chips on a square, two change places: over two links, one after the other.
    assert found.run is not None and not found.exact and found.agrees is None
    assert (found.run.busiest_bytes, found.run.hops) == (2 * WHOLE // 4, 2)


@pytest.mark.parametrize(("before", "after"), [*permutations(("E_xyF_z", "E_yzF_x", "E_zxF_y", "E_yxF_z"), 2)])
def test_any_permute_brings_every_block_to_a_chip_of_its_own(before: str, after: str) -> None:
    found = moved("2x2x2", before, after, Permute(parse_layout(after)[1]))
    assert found.run is not None and 0 < found.run.busiest_bytes <= 3 * 8 * WHOLE // 8


def test_what_is_too_large_is_not_simulated() -> None:
    for mesh, axes in (("16x16x16", "xyz"), ("128", "x")):
        found = moved(mesh, f"E_{axes}F", "EF", AllGather(tuple(axes), 0))
        assert found.run is None and found.agrees is None
        assert found.formula_s > 0


def test_what_sends_nothing_is_left_out() -> None:
    values = tuple(
        SpmdValue(n, *(lambda d, lay: (d, Dtype.BF16, lay))(*parse_layout(t))) for n, t in (("a", "EF"), ("b", "E_xF"))
    )
    body = Region((Stored("a", Kind.PARAM),), (Move("b", "a", Slice(("x",), 0)),))
    program = SpmdProgram("by hand", "main", Mesh.parse("2x2"), SIZES, values, body, ("b",))
    assert traces(program, V4) == ()


def test_a_formula_that_is_off_is_told() -> None:
    run = Simulated(Fraction(1), 1, 1.0)
    wrong, right = (Trace(("b",), "all-gather", ("x",), 4, seconds, True, run) for seconds in (1.001, 1.0))
    assert wrong.agrees is False and right.agrees is True


def test_collectives_that_run_as_one_are_traced_as_one() -> None:
    layouts = {name: parse_layout(text) for name, text in (("a", "E_xF"), ("b", "EF"), ("c", "EF_x"), ("d", "EF"))}
    values = tuple(SpmdValue(name, dims, Dtype.BF16, layout) for name, (dims, layout) in layouts.items())
    steps = (Move("b", "a", AllGather(("x",), 0)), Move("d", "c", AllGather(("x",), 1), joined=True))
    body = Region((Stored("a", Kind.PARAM), Stored("c", Kind.PARAM)), steps)
    (both,) = traces(SpmdProgram("by hand", "main", Mesh.parse("4x4x4"), SIZES, values, body, ("b", "d")), V4)
    one = moved("4x4x4", "E_xF", "EF", AllGather(("x",), 0), V4)
    assert both.results == ("b", "d") and both.agrees
    assert both.run is not None and one.run is not None
    assert (both.run.busiest_bytes, both.run.hops) == (2 * one.run.busiest_bytes, one.run.hops)
    assert both.run.seconds - 19e-6 == pytest.approx(2 * (one.run.seconds - 19e-6))


IN_PARTS = {
    "all-gather": ("[E/{0}, F]", "[E, F]", lambda axes: AllGather(axes, 0)),
    "reduce-scatter": ("[E, F] partialsum-{0}", "[E/{0}, F]", lambda axes: ReduceScatter(axes, 0)),
    "all-reduce": ("[E, F] partialsum-{0}", "[E, F]", AllReduce),
    "all-to-all": ("[E/{0}, F]", "[E, F/{0}]", lambda axes: AllToAll(axes, 0, 1)),
}


def in_parts(kind: str, mesh: str, *axes: str) -> Trace:
    before, after, make = IN_PARTS[kind]
    named = ".".join(axes)
    return moved(mesh, before.format(named), after.format(named), make(axes), V4)


@pytest.mark.parametrize("kind", IN_PARTS)
@pytest.mark.parametrize("mesh", ["x=4x4,y=4,z=4", "x=2x2x4,y=4,z=4", "x=2x4,y=2", "x=3x2x2,y=4"])
def test_parts_of_an_axis_take_what_is_simulated(kind: str, mesh: str) -> None:
    parts = Mesh.parse(mesh).parts("x")
    whole = f"x={Mesh.parse(mesh).size(*parts)}," + mesh.split(",", 1)[1]
    for first in range(len(parts)):
        for last in range(first + 1, len(parts) + 1):
            assert in_parts(kind, mesh, *parts[first:last]).agrees
    together, one = in_parts(kind, mesh, *parts), in_parts(kind, whole, "x")
    assert together.run == one.run and together.formula_s == pytest.approx(one.formula_s, rel=1e-12)


def test_chips_that_lie_apart_share_their_links() -> None:
    outer, inner = (in_parts("all-gather", "x=4x4,y=4,z=4", axis) for axis in ("x:1", "x:2"))
    assert outer.run is not None and inner.run is not None
    assert outer.run.busiest_bytes == 4 * Fraction(WHOLE * 3, 4 * 2)  # four rings over the same links
    assert inner.run.busiest_bytes == Fraction(WHOLE * 3, 4)  # a line of neighbours
    assert (outer.run.hops, inner.run.hops) == (4 * 2, 3)


def test_parts_that_are_no_neighbours_take_turns() -> None:
    found = in_parts("all-gather", "x=2x2x4,y=4,z=4", "x:1", "x:3")
    turns = [in_parts("all-gather", "x=2x2x4,y=4,z=4", axis) for axis in ("x:1", "x:3")]
    assert found.agrees and found.run is not None
    assert found.run.hops == sum(one.run.hops for one in turns if one.run is not None)
