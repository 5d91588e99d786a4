"""The plan by which batches of any size are timed: for a batch that fits into the chips, and divides over none."""

from __future__ import annotations

from dataclasses import replace

import pytest
from programs import TINY_DECODER

from escc.compiler.plan import batch_times as module
from escc.compiler.plan.batch_times import BatchTimes, batch_times
from escc.compiler.plan.pipeline import parse
from escc.cost.hardware import Hardware
from escc.ir.mesh import Mesh
from escc.ir.program import Program
from escc.passes.plan import NoPlan

PROGRAM = parse(TINY_DECODER)
CHIP = Hardware.of_paper("tpu-v4")


def timed(hbm_bytes: float, chips: str = "2x2", program: Program = PROGRAM) -> BatchTimes:
    chip = replace(CHIP, hbm_bytes=hbm_bytes)
    return batch_times(program, Mesh.parse(chips), 1, chip, 64)


def sequences(found: BatchTimes) -> int:
    return dict(found.compiled.spmd.sizes)["B"]


def test_it_is_planned_for_a_smaller_batch_where_a_large_one_does_not_fit() -> None:
    whole = timed(1e9)
    most = sequences(whole)
    assert most == module.PLANNED_TOKENS // 64 + 1
    found = [timed(share * float(whole.compiled.memory.total_bytes)) for share in (0.8, 0.5, 0.4)]
    counts = [sequences(one) for one in found]
    assert most > counts[0] > counts[1] > counts[2] > 1
    for one in found:
        assert float(one.compiled.memory.total_bytes) <= one.hardware.room_bytes
        assert sequences(one) == most // 2 + 1 or one.planned_bytes(2 * sequences(one)) > one.hardware.room_bytes


def test_it_is_refused_where_one_sequence_does_not_fit() -> None:
    with pytest.raises(NoPlan, match="parameters and caches take at least"):
        timed(30e3)


def test_no_layout_counts_on_a_batch_that_chips_divide() -> None:
    for chips in ("3", "5", "2x3"):
        found = timed(1e9, chips)
        size, mesh = dict(found.compiled.spmd.sizes), found.compiled.spmd.mesh
        assert all(size[dim] % ways for dim in "BLM" for _, ways in mesh.axes)
