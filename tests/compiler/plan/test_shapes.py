"""A count of chips: every shape of slice once, compiled and ranked."""

from __future__ import annotations

import itertools
import json
import math
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from escc.compiler.commands.main import app
from escc.compiler.plan.pipeline import load
from escc.compiler.plan.shapes import compile_shapes, meshes_of, ranking, ranking_data, slice_shapes
from escc.cost.hardware import Hardware
from escc.ir.diagnostics import InputError
from escc.ir.mesh import Mesh
from escc.passes.choose import Options

EXAMPLES = Path(__file__).parents[3] / "examples"


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
    shapes = compile_shapes(program, ["main"], slice_shapes(16, 3), Options(Hardware.load("tpu-v4")))
    prices = [shape.price for shape in shapes]
    assert prices == sorted(prices) and len(prices) == 4
    assert prices[0] < prices[-1]
    lines = ranking(shapes).splitlines()
    assert len(lines) == 2 + len(shapes)
    assert "x".join(map(str, shapes[0].mesh.sizes)) in lines[2]


def test_a_model_that_fits_no_shape_is_refused() -> None:
    program = load(EXAMPLES / "palm-540b.esti")
    with pytest.raises(InputError, match="GB more than"):
        compile_shapes(program, ["decode"], slice_shapes(4, 3), Options(Hardware.load("tpu-v4")))


def test_a_count_is_every_shape_and_a_mesh_is_itself() -> None:
    torus, node = Hardware.load("tpu-v4"), Hardware.load("h100")
    assert len(meshes_of("64", torus)) == 7
    assert [m.sizes for m in meshes_of("4x4x4", torus)] == [(4, 4, 4)]
    assert [m.sizes for m in meshes_of("8", node)] == [(8,)]
    assert [m.sizes for m in meshes_of("5", torus)] == [(5,)]
    assert [m.sizes for m in meshes_of("1", torus)] == [(1,)]


def compiled_on_a_count(*arguments: str) -> Result:
    result = CliRunner().invoke(app, ["compile", str(EXAMPLES / "feed-forward.esti"), "--chips", "16", *arguments])
    assert result.exit_code == 0, result.output
    return result


def test_the_ranking_stands_above_the_plan_of_the_best() -> None:
    result = compiled_on_a_count()
    table, plan = result.stdout.split("\n\n", maxsplit=1)
    assert table.startswith("Slice shapes, cheapest first\n") and len(table.splitlines()) == 6
    assert "Slice shapes" not in result.stderr
    assert plan.startswith('Plan of "feed-forward"')
    best = table.splitlines()[2].split()[0]
    assert "x".join(re.findall(r"[xyz]=(\d+)", plan.splitlines()[1])) == best


def test_the_ranking_is_in_json() -> None:
    result = compiled_on_a_count("--emit", "json", "--objective", "communication")
    found = json.loads(result.stdout)
    assert "Slice shapes" in result.stderr
    shapes = found["slice_shapes"]
    assert len(shapes) == 4
    assert {math.prod(shape["mesh"].values()) for shape in shapes} == {16}
    assert shapes[0]["mesh"] == found["mesh"]
    assert shapes[0]["objective"] == found["objective_s"]
    assert shapes[0]["total_s"] == pytest.approx(found["totals"]["total_s"])
    assert shapes[0]["bytes_sent_per_chip"] == found["totals"]["bytes_sent_per_chip"]
    assert [shape["objective"] for shape in shapes] == sorted(shape["objective"] for shape in shapes)


def test_one_mesh_has_no_ranking() -> None:
    mesh = ["compile", str(EXAMPLES / "feed-forward.esti"), "--chips", "4x4", "--emit", "json"]
    assert "slice_shapes" not in json.loads(CliRunner().invoke(app, mesh).stdout)


def test_the_ranking_does_not_stand_in_a_program() -> None:
    result = compiled_on_a_count("--emit", "numpy")
    assert "Slice shapes" in result.stderr and "Slice shapes" not in result.stdout
    compile(result.stdout, "<emitted>", "exec")


def test_with_files_the_ranking_is_on_standard_output(tmp_path: Path) -> None:
    result = compiled_on_a_count("--emit", "json", "-o", str(tmp_path))
    assert result.stdout.startswith("Slice shapes") and "\nwrote " in result.stdout
    (file,) = tmp_path.iterdir()
    assert len(json.loads(file.read_text())["slice_shapes"]) == 4


def test_a_shape_without_a_plan_has_its_reason() -> None:
    program = load(EXAMPLES / "feed-forward.esti", {"E": 24, "F": 24, "B": 24})
    options = Options(Hardware.load("tpu-v4").with_network("links"))
    meshes = [Mesh.parse("2x2"), Mesh.parse("2x2x2x2")]
    best, refused = ranking_data(compile_shapes(program, ["main"], meshes, options))
    assert best["beside_best"] == 1.0 and best["reason"] is None
    assert (refused["objective"], refused["beside_best"], refused["total_s"]) == (None, None, None)
    assert "4 axes" in str(refused["reason"])
