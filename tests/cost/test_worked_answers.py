"""Published worked answers, each from the public functions, within the tolerance that its row names."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sympy

from escc.cost.hardware import Hardware, Torus, Wrap
from escc.cost.network import Network, bytes_sent
from escc.cost.roofline import Decoder, compute_bound_tokens, decode_step_s
from escc.ir.mesh import Mesh

with (Path(__file__).parents[1] / "data" / "worked-answers.csv").open(encoding="utf-8", newline="") as file:
    ROWS = {row["id"]: row for row in csv.DictReader(file)}

V5E, V4, H100 = (Hardware.load(name, datasheet=True).with_network("links") for name in ("tpu-v5e", "tpu-v4", "h100"))
LLAMA_2_13B = Decoder(40, 5120, 13824, heads=40, kv_heads=40, head_dim=128, vocabulary=32000)
LLAMA_3_70B = Decoder(80, 8192, 28672, heads=64, kv_heads=8, head_dim=128, vocabulary=128256)
EXERCISE = Decoder(64, 4096, 16384, heads=32, kv_heads=8, head_dim=256, vocabulary=32128, tied=True)
CUBE = Network(V4, Mesh.parse("4x4x4"))


def llama_2_step_s(batch: int) -> float:
    return float(decode_step_s(V5E, 8, 13e9, 26e9, 6.7e9, batch))


def llama_3_step_s() -> float:
    cache = LLAMA_3_70B.cache_bytes(8192, element_bytes=1)
    return float(decode_step_s(V5E, 8, 70e9, 70e9, cache, 32))


def gather_s(network: Network, axes: str, after_bytes: float) -> float:
    """An all-gather in the K >> 1 form."""
    return float(bytes_sent("all-gather", None, after_bytes, None, many=True) / network.gather_bytes_per_s(axes))


def equal_at() -> sympy.Expr:
    """The chips at which 2D weight-stationary at its best X costs what 1D on three axes costs."""
    batch, d, n, x, link = sympy.symbols("B D n X W", positive=True)
    f = 4 * d
    yz = n / x

    def seconds(kind: str, local_bytes: sympy.Expr, axes: int) -> sympy.Expr:
        return bytes_sent(kind, local_bytes, local_bytes, None, many=True) / (axes * link)

    gather = seconds("all-gather", 2 * batch * d / x, 2) + seconds("reduce-scatter", 2 * batch * d / x, 2)
    two = gather + seconds("all-reduce", 2 * batch * f / yz, 1)
    one = seconds("all-gather", 2 * batch * d, 3) + seconds("reduce-scatter", 2 * batch * d, 3)
    [best] = sympy.solve(sympy.diff(two, x), x)
    [chips] = sympy.solve(sympy.Eq(two.subs(x, best), one), n)
    return chips


def without_rings_s() -> float:
    """TPU v5e X8 Y4: an axis of 4 is a line."""
    network, whole = Network(V5E, Mesh.parse("8x4")), 2 * 2048 * 8192
    assert network.hops("all-gather", ["y"]) == 3
    return float(network.collective_s("all-gather", ["y"], whole / 4, whole))


def with_rings_s() -> float:
    """The same with every axis a ring, in the K >> 1 form."""
    assert isinstance(V5E.fabric, Torus)
    rings = replace(V5E, fabric=replace(V5E.fabric, wrap=Wrap.ALWAYS))
    return gather_s(Network(rings, Mesh.parse("8x4")), "y", 2 * 2048 * 8192)


def nvlink_s() -> float:
    whole = 2 * 4096 * 65536
    return float(Network(H100, Mesh.parse("gpu=8")).collective_s("all-gather", ["gpu"], whole / 8, whole))


def all_reduce_s() -> float:
    sent = bytes_sent("all-reduce", 2 * 1024 * 4096 / 16, None, None, many=True)
    return float(sent / CUBE.gather_bytes_per_s("z"))


ANSWERS: dict[str, Callable[[], Any]] = {
    **{f"I2-{batch}": lambda batch=batch: 1e3 * llama_2_step_s(batch) for batch in (1, 8, 16, 32, 64, 240)},
    "I2-240t": lambda: 240 / llama_2_step_s(240),
    "I4": lambda: LLAMA_2_13B.parameters,
    "I4k": lambda: LLAMA_2_13B.cache_bytes(8192, element_bytes=2),
    "I7": lambda: EXERCISE.parameters,
    "I11": equal_at,
    "R1": lambda: compute_bound_tokens(V5E, 2),
    "R3": lambda: compute_bound_tokens(V5E, 1),
    "S2": lambda: 1e6 * with_rings_s(),
    "S2n": lambda: 1e6 * without_rings_s(),
    "S5": lambda: 1e6 * gather_s(CUBE, "x", 2 * 1024 * 4096 / 4),
    "S5xy": lambda: 1e6 * gather_s(CUBE, "xy", 2 * 1024 * 4096),
    "S5z": lambda: 1e6 * all_reduce_s(),
    "A4": lambda: 1e3 * llama_3_step_s(),
    "A4t": lambda: 32 / llama_3_step_s() / 8,
    "G3": lambda: 1e3 * nvlink_s(),
}


@pytest.mark.parametrize("row", ROWS)
def test_a_published_answer(row: str) -> None:
    stated, tolerance = float(ROWS[row]["answer"]), ROWS[row]["tolerance"]
    found = ANSWERS[row]()
    if tolerance == "exact":
        assert float(found) == stated
    else:
        assert found == pytest.approx(stated, rel=float(tolerance.removesuffix("%")) / 100, abs=0)


def test_every_answer_has_its_row_and_its_source() -> None:
    assert set(ANSWERS) == set(ROWS)
    assert all(row["source"] for row in ROWS.values())


def test_the_parts_of_the_parameters_add_up_to_the_published_ones() -> None:
    assert LLAMA_2_13B.feed_forward_parameters == pytest.approx(8.5e9, rel=0.01)
    assert LLAMA_2_13B.attention_parameters == pytest.approx(4.2e9, rel=0.01)
    assert LLAMA_2_13B.vocabulary_parameters == pytest.approx(0.3e9, rel=0.1)
