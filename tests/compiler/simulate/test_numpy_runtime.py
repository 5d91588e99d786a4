"""The NumPy runtime: what runs as one gives what its parts give apart."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest

from escc.compiler.simulate.numpy_runtime import Mesh, Streamed, project
from escc.ir import program
from escc.ir.program import Kind, Region, Repeat, Stored
from escc.ir.streams import copies_held

MESH = Mesh({"x": 2, "y": 3, "z": 2})


def shards(rng: np.random.Generator, *local: int) -> np.ndarray:
    return rng.standard_normal((*MESH.shape, *local))


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_reduce", "all_to_all"])
@pytest.mark.parametrize("axes", ["x", "xy", "zy", "xyz"])
def test_combined_collectives_give_what_each_gives(kind: str, axes: str) -> None:
    rng = np.random.default_rng(0)
    orders = ["".join(order) for order in permutations(axes)]
    parts: list[tuple[Any, ...]] = []
    for n, order in enumerate(orders):
        a = shards(rng, 12, 24, 2 + n)
        match kind:
            case "all_gather":
                parts.append((a, order, n % 3))
            case "reduce_scatter":
                parts.append((a, order, n % 2))
            case "all_reduce":
                parts.append((a, order))
            case _:
                parts.append((a, order, 1 - n % 2, n % 2, orders[-1 - n]))
    together = MESH.together(kind, axes, parts)
    for part, found in zip(parts, together, strict=True):
        np.testing.assert_allclose(found, getattr(MESH, kind)(*part), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["reduce_scatter", "all_reduce"])
def test_combined_maxima(kind: str) -> None:
    rng = np.random.default_rng(1)
    dim = (0,) if kind == "reduce_scatter" else ()
    parts = [(shards(rng, 4, n), "xz", *dim, np.maximum) for n in (1, 3)]
    for part, found in zip(parts, MESH.together(kind, "xz", parts), strict=True):
        np.testing.assert_array_equal(found, getattr(MESH, kind)(*part))


def test_projections_as_one_matmul() -> None:
    rng = np.random.default_rng(2)
    a = shards(rng, 3, 4, 5, 2)
    parts = [
        (shards(rng, 5, 2, 7), "EDF", "BLF"),
        (shards(rng, 2, 3, 5, 2), "DHEQ", "QBHL"),
        (shards(rng, 2, 5), "DE", "LB"),
    ]
    for (weight, letters, result), found in zip(parts, project(a, "BLED", parts), strict=True):
        expected = np.einsum(f"...BLED,...{letters}->...{result}", a, weight)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("count", "streamed", "ahead"), [(7, 3, 1), (4, 4, 2), (5, 2, 0), (3, 1, 2)])
def test_chips_hold_what_stays_what_runs_and_what_is_ahead(count: int, streamed: int, ahead: int) -> None:
    whole = np.random.default_rng(1).standard_normal((count, 2, 4, 6))  # two repetitions in each
    layers = Streamed(MESH, whole, ["x", ""], ["x", "yz"], streamed, ahead)
    most = 0
    for i in range(count):
        for inner in range(2):
            np.testing.assert_array_equal(layers.at(i, inner), MESH.shard(whole[i, inner], ["x", ""]))
        most = max(most, len(layers.held) + len(layers.kept))
    repeats = [Repeat(name, n, (), Region((), ())) for name, n in (("outer", count), ("inner", 2))]
    stored = Stored("w", Kind.PARAM, streamed=program.Streamed(2 * streamed, ahead))
    assert 2 * most == copies_held(stored, repeats, micro_batches=1)
