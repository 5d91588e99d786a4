"""Times of the parts of a program at many sizes: at its own those of its estimate, elsewhere of a plan resized."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from escc.compiler.plan.pipeline import compile_phase, load
from escc.cost.estimate import estimate
from escc.cost.flops import product_flops
from escc.cost.hardware import Hardware
from escc.cost.unit_times import unit_times
from escc.ir.mesh import Mesh
from escc.ir.program import Repeat
from escc.passes.options import Options

SCORES = Path(__file__).parents[2] / "examples" / "schedule" / "llama-33b.esti"


@pytest.mark.parametrize(("model", "mesh"), [(SCORES, "2x2"), (Path("palm-8b"), "4")])
def test_units_add_up_to_the_estimate_at_every_size(model: Path, mesh: str) -> None:
    program = load(model)
    compiled = compile_phase(program, "prefill", Mesh.parse(mesh), Options(Hardware.load("h100")))
    spmd = compiled.spmd
    counts = {item.name: item.count for item in program.body.items if isinstance(item, Repeat)}
    batch, new = np.array([32.0, 64.0, 4.0]), np.array([128.0, 96.0, 8.0])
    sizes = {"B": batch, "L": new, "M": 2 * new}
    units = unit_times(spmd, compiled.hardware, sizes)
    assert [unit.name for unit in units] == [None, *counts, None]
    whole = sum((counts[unit.name] if unit.name else 1) * unit.seconds for unit in units)
    for n in range(len(batch)):
        own = {dim: int(size[n]) for dim, size in sizes.items()}
        resized = replace(spmd, sizes=tuple((dim, own.get(dim, size)) for dim, size in spmd.sizes))
        assert whole[n] == pytest.approx(estimate(resized, compiled.hardware).totals().total_s)
    repeat = next(item for item in spmd.body.items if isinstance(item, Repeat))
    [carry] = repeat.carries
    [split] = [layout for v in spmd.values if v.name == carry.inside for layout in [v.layout]]
    ways = spmd.mesh.size(*(axis for axes in split.dims for axis in axes))
    width = dict(spmd.sizes)["E"]
    assert units[0].handed_bytes == pytest.approx(2 * batch * new * width / ways)
    assert units[1].handed_bytes == pytest.approx(units[0].handed_bytes)


def test_products_of_a_llama_are_as_in_the_reports_formula() -> None:
    program = load(SCORES)
    b, s, c = np.array([1, 32, 7]), np.array([1, 100, 33]), np.array([1, 100, 120])
    hidden, wide, words, blocks = 6656, 17920, 32000, 60
    expected = blocks * (8 * b * s * hidden**2 + 4 * b * s * c * hidden + 6 * b * s * hidden * wide)
    expected += 2 * b * s * hidden * words
    sizes = dict(program.phases[0].sizes) | {"B": b, "L": s, "M": c}
    assert (product_flops(program, sizes) == expected).all()
