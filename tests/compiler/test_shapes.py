"""A count of chips: every shape of slice once, compiled and ranked."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest

from escc.compiler.driver import load
from escc.compiler.shapes import compile_shapes, meshes_of, ranking, slice_shapes
from escc.cost.hardware import load_hardware
from escc.ir.diagnostics import InputError
from escc.passes.choose import Options

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("chips", [1, 2, 5, 12, 16, 64, 96])
def test_shapes_are_all_factorisations(chips: int, axes: int) -> None:
    divisors = [d for d in range(2, chips + 1) if chips % d == 0]
    expected = {
        shape
        for n in range(1, axes + 1)
        for shape in itertools.combinations_with_replacement(divisors, n)
        if math.prod(shape) == chips
    } or {(1,)}
    found = [mesh.sizes for mesh in slice_shapes(chips, axes)]
    assert set(found) == expected
    assert len(found) == len(expected)


def test_the_cheapest_shape_comes_first_and_each_is_shown() -> None:
    program = load(EXAMPLES / "feed-forward.esti")
    shapes = compile_shapes(program, ["main"], slice_shapes(16, 3), Options(load_hardware("tpu-v4")))
    prices = [shape.price for shape in shapes]
    assert prices == sorted(prices) and len(prices) == 4
    assert prices[0] < prices[-1]
    lines = ranking(shapes).splitlines()
    assert len(lines) == 2 + len(shapes)
    assert "x".join(map(str, shapes[0].mesh.sizes)) in lines[2]


def test_a_model_that_fits_no_shape_is_refused() -> None:
    program = load(EXAMPLES / "palm-540b.esti")
    with pytest.raises(InputError, match="GB more than"):
        compile_shapes(program, ["decode"], slice_shapes(4, 3), Options(load_hardware("tpu-v4")))


def test_a_count_is_every_shape_and_a_mesh_is_itself() -> None:
    torus, node = load_hardware("tpu-v4"), load_hardware("h100")
    assert len(meshes_of("64", torus)) == 7
    assert [m.sizes for m in meshes_of("4x4x4", torus)] == [(4, 4, 4)]
    assert [m.sizes for m in meshes_of("8", node)] == [(8,)]
    assert [m.sizes for m in meshes_of("5", torus)] == [(5,)]
    assert [m.sizes for m in meshes_of("1", torus)] == [(1,)]
