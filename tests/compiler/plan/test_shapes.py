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
from escc.compiler.plan.pipeline import load, parse
from escc.compiler.plan.shapes import (
    compile_shapes,
    mesh_name,
    meshes_of,
    meshes_to_compile,
    ranking,
    ranking_data,
    slice_shapes,
)
from escc.cost.estimate import estimate
from escc.cost.hardware import Hardware, Switch
from escc.cost.topology import Level, place_axes
from escc.ir.diagnostics import InputError
from escc.ir.mesh import Mesh
from escc.passes.lower.insert import spell_handovers
from escc.passes.options import Options
from escc.passes.plan import Objective

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
    shapes = compile_shapes(program, ["main"], slice_shapes(16, 3), Options(Hardware.of_paper("tpu-v4")))
    prices = [shape.price for shape in shapes]
    assert prices == sorted(prices) and len(prices) == 4
    assert prices[0] < prices[-1]
    lines = ranking(shapes).splitlines()
    assert len(lines) == 2 + len(shapes)
    assert "x".join(map(str, shapes[0].mesh.sizes)) in lines[2]


def test_of_shapes_that_send_the_same_the_quickest_comes_first() -> None:
    program = load(EXAMPLES / "feed-forward.esti", {"B": 12, "E": 1020, "F": 4092})
    options = Options(Hardware.of_paper("tpu-v4"), Objective.COMMUNICATION)
    meshes = [Mesh.parse("8"), Mesh.parse("2x4")]  # 8 divides no dim
    for given in (meshes, meshes[::-1]):
        shapes = compile_shapes(program, ["main"], given, options)
        assert [shape.price for shape in shapes] == [0, 0]
        assert [shape.mesh.sizes for shape in shapes] == [(2, 4), (8,)]
        taken_s = [shape.compiled.total_s for shape in shapes if shape.compiled]
        assert taken_s == sorted(set(taken_s))


def test_of_several_phases_that_store_least_the_shape_that_stores_least_comes_first() -> None:
    text = """
dim B, E = 66, F = 50
main(x: bf16[B,E]) { param W: bf16[E,F]
  y[B,F] = x[B,E] * W[E,F]
  return y
}
phase a { B = 64 }
phase b { B = 32, calls = 2 }
"""
    options = Options(Hardware.load("tpu-v4"), Objective.MEMORY)
    meshes = [Mesh.parse("4"), Mesh.parse("2x2")]  # 4 divides no dim of the parameter
    for separate in (False, True):
        best, other = compile_shapes(parse(text), ["a", "b"], meshes, options, separate)
        assert best.mesh == meshes[1] and best.price == 66 * 50 * 2 / 4 and other.price == 66 * 50 * 2
        assert best.compiled is not None and other.compiled is not None
        assert best.compiled.total_s > other.compiled.total_s, "it is not the quickest that is asked for"


def test_a_model_that_fits_no_shape_is_refused() -> None:
    program = load(EXAMPLES / "palm-540b.esti")
    with pytest.raises(InputError, match="GB more than"):
        compile_shapes(
            program,
            ["decode"],
            slice_shapes(4, 3),
            Options(Hardware.of_paper("tpu-v4")),
        )


def test_a_count_is_every_shape_and_a_mesh_is_itself() -> None:
    torus, node = (
        Hardware.of_paper("tpu-v4"),
        Hardware.of_paper("h100"),
    )
    assert len(meshes_of("64", torus, any_shape=True)) == 7
    assert [m.sizes for m in meshes_of("4x4x4", torus)] == [(4, 4, 4)]
    assert [m.sizes for m in meshes_of("8", node)] == [(8,), (2, 4), (2, 2, 2)]
    assert [m.sizes for m in meshes_of("5", torus, any_shape=True)] == [(5,)]
    assert [m.sizes for m in meshes_of("1", torus, any_shape=True)] == [(1,)]
    for mesh in ("4x4", Mesh.parse("64")):
        with pytest.raises(InputError, match="`--any-shape` is of a count of chips"):
            meshes_of(mesh, torus, any_shape=True)


@pytest.mark.parametrize(
    ("chip", "chips", "offered"),
    [
        ("tpu-v4", 8, ["2x2x2"]),
        ("tpu-v4", 64, ["4x4x4"]),
        ("tpu-v4", 256, ["4x4x16", "4x8x8"]),
        ("tpu-v5e", 32, ["4x8"]),
        ("tpu-v5e", 1, ["1"]),
        ("h100", 4, ["4", "2x2"]),
        ("h100", 3, ["3"]),
        ("h100", 6, ["6", "2x3"]),  # of a node any number of chips may be taken
        ("h100", 16, ["node=2,x=8", "node=2,x=2,y=4", "node=2,x=2,y=2,z=2"]),
        ("h100", 32, ["node=4,x=8", "node=4,x=2,y=4", "2x2x8", "node=4,x=2,y=2,z=2", "2x2x2x4"]),
    ],
)
def test_slices_are_those_that_are_offered(chip: str, chips: int, offered: list[str]) -> None:
    assert [mesh_name(mesh) for mesh in meshes_of(str(chips), Hardware.load(chip))] == offered


@pytest.mark.parametrize(
    ("chip", "chips"), [("tpu-v4", 2), ("tpu-v4", 24), ("tpu-v5e", 12), ("h100", 20), ("h100", 12)]
)
def test_a_count_of_which_nothing_is_offered(chip: str, chips: int) -> None:
    hardware = Hardware.load(chip)
    behind = isinstance(hardware.fabric, Switch)
    said = (
        f"{chips} chips of h100 fill no whole nodes, which have 8."
        if behind
        else f"No slice of {chips} chips of {chip}"
    )
    with pytest.raises(InputError, match=said):
        meshes_of(str(chips), hardware)
    every = meshes_of(str(chips), hardware, any_shape=True)
    assert every and {mesh.chips for mesh in every} == {chips}
    found, [warning] = meshes_to_compile(str(chips), hardware)
    assert found == every and warning.severity == "warning"
    assert ("nobody can rent" in (warning.hint or "")) != behind


@pytest.mark.parametrize("chips", [3, 8, 12, 16, 30])
def test_nodes_of_any_shape_give_as_many_chips_each_as_divide_them(chips: int) -> None:
    """Heads that 4 chips divide and 6 do not are quicker on more nodes."""
    h100, found = Hardware.load("h100"), set[tuple[int, int]]()
    for mesh in meshes_of(str(chips), h100, any_shape=True):
        placed = place_axes(mesh, h100).values()
        near = math.prod(axis.size for axis in placed if axis.level is Level.SWITCH)
        far = math.prod(axis.size for axis in placed if axis.level is Level.BETWEEN)
        found.add((far, near))
    assert found == {(chips // near, near) for near in range(1, 9) if chips % near == 0}


def test_chips_that_no_network_joins_between_nodes_are_looked_at_in_one() -> None:
    v100 = Hardware.load("v100-pcie")
    assert meshes_of("4", v100, any_shape=True) == meshes_of("4", v100)
    assert {mesh.names[0] for mesh in meshes_of("12", v100, any_shape=True)} == {"node"}  # told that there is none


def test_shapes_in_nodes_filled_in_part_are_planned_and_the_quickest_is_found() -> None:
    """Of heads, of which there are 8, a node has some."""
    named = {
        nodes: compile_count("12" if nodes is None else f"node={nodes},gpu={12 // nodes}")
        for nodes in (None, 2, 3, 4, 6)
    }
    assert named[None] == min(named.values()) == named[3] < named[2]


def compile_count(chips: str) -> float:
    """The price of a decode of LLaMA-3-8B for 12 sequences on H100s."""
    model, options = load("llama-3-8b", {"B": 12}), Options(Hardware.load("h100"))
    shapes = compile_shapes(model, ["decode"], meshes_to_compile(chips, options.hardware)[0], options)
    return shapes[0].price


def test_axes_of_nodes_lie_between_nodes_and_the_others_in_one() -> None:
    h100 = Hardware.load("h100")
    for mesh in meshes_of("32", h100):
        placed = place_axes(mesh, h100)
        near = math.prod(axis.size for axis in placed.values() if axis.level is Level.SWITCH)
        assert near == 8 and math.prod(axis.size for axis in placed.values()) == 32


def compiled_on_a_count(*arguments: str) -> Result:
    result = CliRunner().invoke(
        app, ["compile", str(EXAMPLES / "feed-forward.esti"), "--chips", "16", "--any-shape", *arguments]
    )
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


def test_what_all_calls_of_several_phases_take_is_what_is_compared() -> None:
    options = Options(Hardware.load("tpu-v4"))
    program = load(EXAMPLES / "experts.esti", {"B": 16, "E": 512, "F": 512})
    phases = ["prefill", "decode"]
    first, second = shapes = compile_shapes(program, phases, [Mesh.parse("4"), Mesh.parse("2x2")], options)
    best, other = ranking_data(shapes)
    assert first.compiled is not None and [one.calls for one in first.compiled] == [1, 64]
    assert best["total_s"] == pytest.approx(first.price) and other["total_s"] == pytest.approx(second.price)
    once, each = (one.estimate.totals() for one in first.compiled)
    [handed] = (estimate(spmd, options.hardware).totals() for spmd in spell_handovers(first.compiled.plans[0]))
    assert best["total_s"] == pytest.approx(once.total_s + 64 * each.total_s + handed.comm_s)
    assert best["bytes_sent_per_chip"] == pytest.approx(once.bytes_sent + 64 * each.bytes_sent + handed.bytes_sent)
    assert handed.bytes_sent > 0
    assert "all calls" in ranking(shapes).splitlines()[1]


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
    options = Options(Hardware.load("tpu-v4", datasheet=True).with_network("links"))
    meshes = [Mesh.parse("2x2"), Mesh.parse("2x2x2x2")]
    best, refused = ranking_data(compile_shapes(program, ["main"], meshes, options))
    assert best["beside_best"] == 1.0 and best["reason"] is None
    assert (refused["objective"], refused["beside_best"], refused["total_s"]) == (None, None, None)
    assert "4 axes" in str(refused["reason"])
