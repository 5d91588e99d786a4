"""Maxima are scattered as they are emitted, by an exchange: in prices, in what runs as one, and in what is reported."""

from __future__ import annotations

import pytest

from escc.compiler.plan.pipeline import compile_phase, parse
from escc.cost.hardware import Hardware
from escc.cost.network import Network
from escc.ir.collective import CollectiveKind, ReduceScatter, kind, sent_as
from escc.ir.layout import Reduction
from escc.ir.mesh import Mesh
from escc.ir.spmd import Compute, Move
from escc.passes.options import Options

LAYER = """
dim B = 512, F = 16, G = 4096
main(x: bf16[B,F,G] @ BFG_x, y: bf16[B,F,G] @ BFG_x) {
  m = max(x, over=G)
  o = max(y, over=G)
  return m, o
}
"""


@pytest.mark.parametrize(("chip", "chips"), [("h100", "x=4"), ("tpu-v5e", "16x1"), ("tpu-v4", "x=2")])
def test_two_maxima_that_run_as_one_take_what_one_exchange_of_both_does(chip: str, chips: str) -> None:
    mesh, hardware = Mesh.parse(chips), Hardware.load(chip)
    one = compile_phase(parse(LAYER), "main", mesh, Options(hardware))  # which prices what it has planned once more
    run = [item for item in one.spmd.body.items if isinstance(item, Move)]
    assert [kind(move.collective) for move in run] == [CollectiveKind.REDUCE_SCATTER] * 2 and run[1].joined
    assert [move.kind for move in one.estimate.moves] == [CollectiveKind.ALL_TO_ALL] * 2
    held = 2 * 512 * 16 * 2
    wanted = Network(hardware, mesh).collective_s(CollectiveKind.ALL_TO_ALL, ("x",), held, held)
    assert sum(move.seconds for move in one.estimate.moves) == pytest.approx(wanted, rel=1e-12)


def test_on_a_long_ring_a_large_maximum_is_not_scattered() -> None:
    """Each block goes to one chip over many links: an all-reduce, of twice the bytes, takes less."""
    mesh, hardware = Mesh.parse("x=16"), Hardware.load("tpu-v5e")
    text = LAYER.replace("B = 512", "B = 65536").replace("G = 4096", "G = 64")
    one = compile_phase(parse(text), "main", mesh, Options(hardware))
    made = {item.op.result for item in one.spmd.body.items if isinstance(item, Compute)}
    run = [item for item in one.spmd.body.items if isinstance(item, Move) and item.operand in made]
    assert {move.kind for move in one.estimate.moves if move.bytes_sent} == {CollectiveKind.ALL_REDUCE}
    assert not any(isinstance(move.collective, ReduceScatter) for move in run)


def test_nothing_else_is_sent_otherwise() -> None:
    for each in CollectiveKind:
        scattered = each == CollectiveKind.REDUCE_SCATTER
        assert sent_as(each, Reduction.SUM) == each
        assert sent_as(each, Reduction.MAX) == (CollectiveKind.ALL_TO_ALL if scattered else each)
