"""Collectives on a mesh take their bytes over the bandwidth."""

from __future__ import annotations

from escc.cost.hardware import load_hardware
from escc.cost.network import Network
from escc.ir.mesh import parse_mesh

NETWORK = Network(load_hardware("tpu-v4"), parse_mesh("4x2x2"))


def test_a_collective_takes_its_bytes_over_the_bandwidth() -> None:
    assert NETWORK.collective_s("all-gather", ["x"], 270e9, 4 * 270e9) == 3.0
    assert NETWORK.collective_s("all-reduce", ["y"], 270e9, 270e9) == 1.0
    assert NETWORK.collective_s("all-to-all", ["y", "z"], 270e9, 270e9) == 0.75
    assert NETWORK.collective_s("slice", ["y"], 270e9, 1.0) == 0.0


def test_axes_of_one_size_are_alike() -> None:
    assert NETWORK.axis_class("y") == NETWORK.axis_class("z") != NETWORK.axis_class("x")
