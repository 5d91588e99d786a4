"""Layouts as rows of arrays: none is missing, none is there twice, and all translate back."""

from __future__ import annotations

import numpy as np
import pytest
from shards import all_layouts

from escc.ir.layout import Layout, Reduction
from escc.ir.mesh import Mesh
from escc.passes.layouts.reshard import leaving, price_arcs
from escc.passes.layouts.space import TENSOR_MODES, TensorSpace, distinct, fits, tensor_space

CASES = [
    ("1", (4, 4)),
    ("2", ()),
    ("4", (8,)),
    ("2x2", (4, 4)),
    ("2x3", (6, 1, 4)),
    ("4x1x2", (8, 2, 3)),
    ("2x3x5", (30, 10)),
    ("4x4x4", (64, 16)),
    ("2x2x2x2", (4, 16)),
    ("7x2", (13, 5)),
]


def live(mesh: Mesh) -> list[tuple[str, int]]:
    return [(name, size) for name, size in mesh.axes if size > 1]


def full(mesh: str, shape: tuple[int, ...], sums: str = "xyzw", maxima: str = "xyzw") -> TensorSpace:
    return tensor_space(shape, live(Mesh.parse(mesh)), frozenset(sums), frozenset(maxima))


@pytest.mark.parametrize(("mesh", "shape"), CASES)
def test_every_layout_is_there_once(mesh: str, shape: tuple[int, ...]) -> None:
    space = full(mesh, shape)
    found = [space.layout(row) for row in range(len(space))]
    expected = set(all_layouts(shape, Mesh.parse(mesh), [Reduction.SUM, Reduction.MAX]))
    assert len(found) == len(expected)
    assert set(found) == expected


@pytest.mark.parametrize(("mesh", "shape"), CASES)
def test_rows_and_layouts_translate_both_ways(mesh: str, shape: tuple[int, ...]) -> None:
    space, sizes = full(mesh, shape), dict(Mesh.parse(mesh).axes)
    for row in range(len(space)):
        layout = space.layout(row)
        assert space.index(layout) == row
        assert bool(space.space.complete[row]) == (not layout.partial)
        assert space.space.shards[row] == np.prod([sizes[a] for a in layout.split_axes], dtype=int)
    assert (np.diff(space.space.codes) > 0).all()


def test_only_the_axes_allowed_are_partial() -> None:
    space = full("2x2", (4,), sums="x", maxima="y")
    partial = {(layout.partial, layout.reduction) for layout in map(space.layout, range(len(space))) if layout.partial}
    assert partial == {(("x",), Reduction.SUM), (("y",), Reduction.MAX)}
    assert space.index(Layout(((),), ("y",))) is None
    assert space.index(Layout(((),), ("x",), Reduction.MAX)) is None


def test_what_cannot_be_split_so_has_no_row() -> None:
    space = full("2x3x1", (4, 1))
    assert space.index(Layout((("y",), ()))) is None
    assert space.index(Layout(((), ("x",)))) is None
    # An axis of one chip splits nothing and does not count.
    assert space.index(Layout((("z",), ()))) == space.index(Layout(((), ())))


def test_axes_may_split_a_dim_together_or_not() -> None:
    assert fits(4, [2, 2, 4]).tolist() == [True, True, True, True, True, False, False, False]
    assert fits(4, [2, 2, 4], even=True).tolist() == [True, True, True] + [False] * 5
    assert fits(1, [2]).tolist() == [True, False]


def test_plain_rows_have_no_inversions() -> None:
    space = full("2x2x2", (8, 8))
    names = {}
    for row, inversions in enumerate(space.space.rows.inversions().tolist()):
        names[space.layout(row)] = inversions
    assert names[Layout((("x",), ("y", "z")))] == 0
    assert names[Layout((("z",), ("y", "x")))] == 3
    assert names[Layout((("y",), ("x",)), ("z",))] == 1
    assert min(names.values()) == 0


def test_rows_of_another_space_are_found_by_meaning() -> None:
    small, large = full("2x2", (4, 2), sums="", maxima=""), full("2x2", (4, 2))
    rows = large.space.find(small.space.rows)
    assert [large.layout(int(row)) for row in rows] == [small.layout(row) for row in range(len(small))]
    back = small.space.find(large.space.rows)
    assert (back >= 0).sum() == len(small)
    assert (large.space.rows.place[back < 0] < TENSOR_MODES).any(axis=1).all()


@pytest.mark.parametrize("most", [1, 2, 9, 2**40])
@pytest.mark.parametrize("shape", [(3, 50), (1, 7), (4, 1), (2, 0)])
def test_distinct_columns_are_those_of_numpy(shape: tuple[int, int], most: int) -> None:
    """Also where they do not fit into one number, and where there are none."""
    table = np.random.default_rng(0).integers(-3, most - 2, shape)
    columns, number = distinct(table)
    expected, at = np.unique(table, axis=1, return_inverse=True)
    assert columns.tolist() == expected.tolist() and number.tolist() == at.reshape(-1).tolist()


def test_columns_of_small_numbers_are_sorted_as_one_number_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prices of arcs ask for them, in every problem many times."""
    space = tensor_space((16, 16), (("x", 4), ("y", 2)), frozenset(), frozenset()).space
    asked = []
    whole = np.unique
    monkeypatch.setattr(np, "unique", lambda *args, **options: asked.append(options) or whole(*args, **options))
    price_arcs(space, leaving(space), 8.0, lambda *_: 1.0)
    assert asked and not any("axis" in options for options in asked)
