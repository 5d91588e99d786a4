"""Laws of layouts: text both ways, local shapes, and what divides."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shards import all_layouts, block, chips

from escc.ir.diagnostics import InputError
from escc.ir.layout import Layout, Reduction, format_layout, parse_layout, unsplittable
from escc.ir.mesh import Mesh

CAPITALS = list("ABCDEFGHLMQ")
LETTERS = list("xyzwuv")


@st.composite
def layouts(draw: st.DrawFn, names: st.SearchStrategy[str], axes: st.SearchStrategy[str]) -> tuple[list[str], Layout]:
    """Dim names and a layout over them."""
    dims = draw(st.lists(names, max_size=4, unique=True))
    left = draw(st.lists(axes, max_size=6, unique=True))
    split: list[list[str]] = [[] for _ in dims]
    partial = []
    for axis in left:
        place = draw(st.integers(-1, len(dims) - 1))
        (split[place] if place >= 0 else partial).append(axis)
    reduction = draw(st.sampled_from(Reduction)) if partial else Reduction.SUM
    return dims, Layout(tuple(tuple(s) for s in split), tuple(sorted(partial)), reduction)


SHORT = layouts(st.sampled_from(CAPITALS), st.sampled_from(LETTERS))
LONG = layouts(
    st.from_regex(r"[A-Za-z][A-Za-z0-9_]{0,6}", fullmatch=True),
    st.from_regex(r"[a-z][a-z0-9_]{0,4}", fullmatch=True),
)


@given(SHORT | LONG)
def test_text_reads_back(case: tuple[list[str], Layout]) -> None:
    names, layout = case
    assert parse_layout(format_layout(names, layout)) == (tuple(names), layout)


@given(SHORT)
def test_plain_names_print_in_the_papers_form(case: tuple[list[str], Layout]) -> None:
    names, layout = case
    if names:
        assert re.fullmatch(r"([A-Z](_[a-z]+)?)+( partial(sum|max)-[a-z]+)?", format_layout(names, layout))


@pytest.mark.parametrize(
    ("text", "names", "layout"),
    [
        ("BLE_xyz", "BLE", Layout(((), (), ("x", "y", "z")))),
        ("E_xF_zy", "EF", Layout((("x",), ("z", "y")))),
        ("BLF_zy partialsum-x", "BLF", Layout(((), (), ("z", "y")), ("x",))),
        ("BL partialmax-zx", "BL", Layout(((), ()), ("x", "z"), Reduction.MAX)),
        ("[]", "", Layout(())),
        ("[] partialsum-x.y", "", Layout((), ("x", "y"))),
        ("[batch, d_model/node.x]", ["batch", "d_model"], Layout(((), ("node", "x")))),
        (" [batch,d_model/gpu]  partialmax-node.x ", ["batch", "d_model"],
         Layout(((), ("gpu",)), ("node", "x"), Reduction.MAX)),
    ],
)  # fmt: skip
def test_text_forms(text: str, names: list[str], layout: Layout) -> None:
    assert parse_layout(text) == (tuple(names), layout)
    assert format_layout(names, layout).split() == format_layout(*parse_layout(text)).split()


@pytest.mark.parametrize("text", ["", "b", "B_", "B_X", "BLE_x partial-y", "BLE_x sum-y", "[B", "[B/]", "[B,,C]", "\0"])
def test_what_is_no_layout(text: str) -> None:
    with pytest.raises(InputError, match="is not a layout"):
        parse_layout(text)


@pytest.mark.parametrize("text", ["B_xE_x", "B_xx", "BE_x partialsum-x", "[B/x, E/x]"])
def test_an_axis_stands_once(text: str) -> None:
    with pytest.raises(InputError, match="names the axis `x` twice"):
        parse_layout(text)


@pytest.mark.parametrize(
    "layout", [((("x",), ("x",)),), ((("x",),), ("x",)), (((),), ("y", "x")), (((),), (), Reduction.MAX)]
)
def test_invariants_are_checked(layout: tuple[object, ...]) -> None:
    with pytest.raises(AssertionError):
        Layout(*layout)  # type: ignore[arg-type]


@pytest.mark.parametrize("mesh", ["1", "5", "2x3", "7x1", "2x2x2"])
def test_local_shapes_are_those_of_the_blocks_that_chips_hold(mesh: str) -> None:
    shape, grid = (30, 4, 7), Mesh.parse(mesh)
    for layout in all_layouts(shape, grid):
        local = layout.local_shape(shape, grid)
        count = np.zeros(shape)
        for chip in chips(grid):
            at = block(layout, shape, grid, chip)
            assert count[at].shape == local
            count[at] += 1
        assert np.all(count == grid.chips / grid.size(*layout.split_axes))


@pytest.mark.parametrize("mesh", ["1", "5", "2x3", "7x1", "2x2x2"])
def test_layouts_that_hold_a_value_are_those_that_divide_it(mesh: str) -> None:
    grid, sizes = Mesh.parse(mesh), {"B": 12, "U": 1, "V": 35}
    fit = {x for x in all_layouts((2**5 * 3**5 * 5 * 7,) * 3, grid) if unsplittable("BUV", x, sizes, grid) is None}
    assert fit == set(all_layouts((12, 1, 35), grid))


def test_what_does_not_divide_names_dim_axes_and_sizes_that_would() -> None:
    mesh = Mesh.parse("4x4x4")

    def message(text: str, **sizes: int) -> str | None:
        return unsplittable(*parse_layout(text), sizes, mesh)

    assert message("B_xyE", B=40, E=1) == "dim `B` = 40 does not divide by axes x, y (16 ways); 32 or 48 would"
    assert message("B_xyE", B=3, E=1) == "dim `B` = 3 does not divide by axes x, y (16 ways); 16 would"
    assert message("BL_x", B=3, L=1) == "dim `L` has size 1 and is never split"
    assert message("B_xyzL", B=64, L=1) is None


@given(st.integers(2, 500), st.lists(st.sampled_from("xyz"), min_size=1, max_size=3, unique=True))
def test_the_sizes_that_are_offered_divide(size: int, axes: list[str]) -> None:
    mesh = Mesh.parse("2x3x5")
    layout = Layout((tuple(axes),))
    message = unsplittable(["B"], layout, {"B": size}, mesh)
    ways = math.prod(mesh.size(a) for a in axes)
    assert (message is None) == (size % ways == 0)
    if message:
        offered = [int(n) for n in re.findall(r"\d+", message.split("; ")[1])]
        assert offered
        for other in offered:
            assert abs(other - size) < ways
            assert unsplittable(["B"], layout, {"B": other}, mesh) is None


@given(SHORT)
def test_replacing_and_completing_touch_nothing_else(case: tuple[list[str], Layout]) -> None:
    names, layout = case
    assert layout.with_partial([], layout.reduction).dims == layout.dims
    assert layout.with_partial(layout.partial[::-1], layout.reduction) == layout
    for d in range(len(names)):
        without = layout.replace(d, ())
        assert without.replace(d, layout.dims[d]) == layout
        assert without.split_axes == layout.split_axes - set(layout.dims[d])
