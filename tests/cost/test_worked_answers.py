"""Published worked answers, each from the public functions, within the tolerance that its row names."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import pytest
import sympy

from escc.compiler.plan.pipeline import model_source, parse
from escc.compiler.report.hardware import parameter_count
from escc.cost.hardware import Hardware, Torus, Wrap
from escc.cost.network import Network, bytes_sent
from escc.ir.mesh import Mesh
from escc.ir.program import Kind, Program, Stored, walk

with (Path(__file__).parents[1] / "data" / "worked-answers.csv").open(encoding="utf-8", newline="") as file:
    ROWS = {row["id"]: row for row in csv.DictReader(file)}

V5E, V4, H100 = (Hardware.load(name, datasheet=True).with_network("links") for name in ("tpu-v5e", "tpu-v4", "h100"))
CUBE = Network(V4, Mesh.parse("4x4x4"))


def shipped(name: str, *changes: tuple[str, str]) -> Program:
    """A shipped model, with some of its text changed."""
    text = model_source(name).text
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return parse(text)


def exercise() -> Program:
    """A model of the same make at other sizes, whose table scores as well."""
    sizes = "F = 14336, Q = 128, V = 128256", "F = 16384, Q = 256, V = 32128"
    tied = ("param Wu: bf16[E,V]\n", ""), ("Wu[E,V]", "table[V,E]")
    return shipped("llama-3-8b", sizes, ("repeat 32", "repeat 64"), *tied)


def stored(program: Program, kind: Kind, *dims: str, **sizes: int) -> int:
    """How many elements parameters or caches with any of some dims have; `sizes` of dims are others."""
    values, known = program.table(), dict(program.phases[-1].sizes) | sizes
    return sum(
        placed.times * prod(known[dim] for dim in values[placed.item.value].dims)
        for placed in walk(program.body)
        if isinstance(placed.item, Stored) and placed.item.kind is kind and {*dims} & {*values[placed.item.value].dims}
    )


def decode_step_s(parameters: float, parameter_bytes: float, sequence_cache_bytes: float, batch: int) -> float:
    """A step on 8 chips that share all evenly and talk for free: caches are read, and matmuls take the longer of
    their arithmetic and their weights' reading."""
    attention_s = V5E.memory_s(batch * sequence_cache_bytes)
    return float(attention_s + max(V5E.compute_s(2 * batch * parameters), V5E.memory_s(parameter_bytes))) / 8


def llama_2_step_s(batch: int) -> float:
    return decode_step_s(13e9, 26e9, 6.7e9, batch)


def llama_3_step_s() -> float:
    cache = stored(shipped("llama-3-70b"), Kind.CACHE, "M", B=1, M=8192)
    return decode_step_s(70e9, 70e9, cache, 32)


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
    "I4": lambda: parameter_count(shipped("llama-2-13b")),
    "I4k": lambda: 2 * stored(shipped("llama-2-13b"), Kind.CACHE, "M", B=1, M=8192),
    "I7": lambda: parameter_count(exercise()),
    "I11": equal_at,
    "R1": lambda: V5E.compute_bound_tokens(2),
    "R3": lambda: V5E.compute_bound_tokens(1),
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
    model = shipped("llama-2-13b")
    assert stored(model, Kind.PARAM, "F") == pytest.approx(8.5e9, rel=0.01)
    assert stored(model, Kind.PARAM, "H") == pytest.approx(4.2e9, rel=0.01)
    assert stored(model, Kind.PARAM, "V") == pytest.approx(0.3e9, rel=0.1)
