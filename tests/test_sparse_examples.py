"""The sparse models of DeepSpeed's table as examples: their sizes, and plans with the published layouts and without.

Aminabadi et al., "DeepSpeed Inference", 2022, table II: sizes, hidden features, GPUs, and the ways of tensors, experts
and slices; rows are called by their sizes here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import pytest

from escc.compiler.plan.compiled import CompiledPhase
from escc.compiler.plan.pipeline import compile_phase, load
from escc.compiler.report.hardware import parameter_count
from escc.cost.hardware import Hardware
from escc.ir.mesh import Mesh
from escc.passes.options import Options

FOLDER = Path(__file__).parents[1] / "examples" / "deepspeed-moe"


@dataclass(frozen=True)
class Row:
    """`billions`: of parameters, as published. `tensor`, `experts`, `slices`: the ways in which the published layout
    splits the heads of attention, the experts, and each of these."""

    billions: float
    layers: int
    hidden: int
    mesh: str
    tensor: int
    experts: int
    slices: int


ROWS = {
    "52b": Row(52, 24, 2048, "node=16,gpu=8", 1, 128, 1),
    "108b": Row(107.7, 16, 3584, "node=16,gpu=8", 1, 128, 1),
    "349b": Row(349, 40, 4096, "n=16,d=2,t=4", 4, 128, 1),
    "1065b": Row(1064.9, 30, 8192, "s=2,n=16,t=8", 8, 128, 2),
    "2024b": Row(2024, 58, 8192, "s=2,n=16,t=8", 8, 128, 2),
}


def planned(name: str, pinned: bool) -> CompiledPhase:
    program = load(FOLDER / f"{name}.esti", pins=[FOLDER / f"{name}.pins"] if pinned else [])
    return compile_phase(program, "decode", Mesh.parse(ROWS[name].mesh), Options(Hardware.load("a100-40")))


def test_each_row_is_an_example() -> None:
    assert {path.stem for path in FOLDER.glob("*.esti")} == {path.stem for path in FOLDER.glob("*.pins")} == set(ROWS)


@pytest.mark.parametrize("name", ROWS)
def test_parameters_are_as_many_as_published(name: str) -> None:
    row = ROWS[name]
    program = load(FOLDER / f"{name}.esti")
    sizes = dict(program.phases[0].sizes)
    # Attention and feed-forward of 12 E^2 a layer, 127 more feed-forwards in every second; scales and routers are less.
    expected = row.layers * 12 * row.hidden**2 + row.layers / 2 * 127 * 8 * row.hidden**2 + sizes["V"] * row.hidden
    assert parameter_count(program) == pytest.approx(expected, rel=1e-3)
    assert parameter_count(program) / 1e9 == pytest.approx(row.billions, rel=0.02)


@pytest.mark.parametrize("name", ["52b", "108b"])  # larger ones take as long again, each
def test_the_published_layout_plans_and_none_pinned_costs_no_more(name: str) -> None:
    row, pinned, free = ROWS[name], planned(name, True), planned(name, False)
    for one in (pinned, free):
        assert one.plan.gap <= 1e-9
        assert one.memory.total_bytes <= one.hardware.hbm_bytes
    values, mesh = pinned.spmd.table(), pinned.spmd.mesh
    attention = values["pair.experts.attention.Wq"].layout.dims
    experts = values["pair.experts.Wi"].layout.dims
    assert [math.prod(mesh.size(a) for a in axes) for axes in attention] == [1, row.tensor, 1]
    assert [math.prod(mesh.size(a) for a in axes) for axes in experts] == [row.experts, 1, row.slices]
    assert mesh.chips == row.experts * row.slices
    assert free.plan.price <= pinned.plan.price
