"""Where decode attention goes, found with nothing pinned: the findings of Pope et al. 2022, 3.3, and of the
scaling-book on grouped-query attention. PaLM 540B's shapes on 64 chips, context 2048 and more."""

from __future__ import annotations

from pathlib import Path

import pytest

from escc.compiler.plan.pipeline import load
from escc.cost.hardware import Hardware
from escc.ir.collective import AllToAll
from escc.ir.layout import Layout
from escc.ir.mesh import Mesh
from escc.passes.choose import choose
from escc.passes.options import Options
from escc.passes.plan import Plan

PALM = Path(__file__).parents[2] / "examples" / "palm-540b.esti"
B, M = 0, 1  # the dims of a cache


def decoded(model: str, **sizes: int) -> Plan:
    plan = choose(
        load(Path(model), sizes),
        "decode",
        Mesh.parse("4x4x4"),
        Options(Hardware.of_paper("tpu-v4")),
    )
    assert plan.phases[0].gap <= 1e-9
    return plan


def caches(plan: Plan) -> list[Layout]:
    return [layout for name, layout in plan.stored if name in ("layer.keys", "layer.values")]


def ways(layout: Layout, dim: int) -> int:
    return int(4 ** len(layout.dims[dim]))


def exchanges(plan: Plan) -> int:
    """The all-to-alls that queries and outputs take."""
    trees = [t for t in plan.phases[0].trees if t.value in ("layer.q", "layer.o")]
    return sum(isinstance(leg.collective, AllToAll) for tree in trees for leg in tree.legs)


def test_multihead_attention_goes_over_heads() -> None:
    heads = 2
    for layout in caches(decoded("palm-540b-multihead", B=64, M=2048)):
        assert ways(layout, heads) == 64
        assert not layout.dims[B] and not layout.dims[M]


@pytest.mark.parametrize("batch", [64, 128, 512])
def test_multiquery_attention_goes_over_batch_with_two_exchanges(batch: int) -> None:
    plan = decoded(str(PALM), B=batch, M=2048)
    assert [ways(layout, B) for layout in caches(plan)] == [64, 64]
    assert exchanges(plan) == 2


@pytest.mark.parametrize(("batch", "over"), [(4, 4), (8, 4), (16, 16), (32, 16)])
def test_at_smaller_batches_the_length_takes_what_the_batch_cannot(batch: int, over: int) -> None:
    for layout in caches(decoded(str(PALM), B=batch, M=2048)):
        assert ways(layout, B) == over
        assert ways(layout, B) * ways(layout, M) == 64


@pytest.mark.parametrize(("batch", "over"), [(1, 1), (2, 1), (4, 4), (8, 4), (16, 16), (64, 64)])
def test_a_length_that_cannot_be_split_leaves_batch_or_heads(batch: int, over: int) -> None:
    """2049 places split over nothing: from a batch of 4 on attention goes over batch; below, each chip
    has all of the batch, and queries stay where their heads are."""
    plan = decoded(str(PALM), B=batch, M=2049)
    scores = next(op for op in plan.phases[0].ops if op.result == "layer.s")
    assert int(4 ** len(scores.layout.dims[B])) == over
    if over == 1:
        assert scores.layout.dims[2], "over heads"


def test_grouped_query_attention_goes_over_heads_and_batch() -> None:
    for layout in caches(decoded("llama-3-70b", B=64, M=8192)):
        assert ways(layout, 2) == 4 and ways(layout, B) == 16


def test_one_long_sequence_goes_over_its_length() -> None:
    for layout in caches(decoded("llama-3-70b", B=1, M=131072)):
        assert ways(layout, M) >= 16 and not layout.dims[B]
