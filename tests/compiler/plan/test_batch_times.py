"""The plans by which batches of any size are timed: for a batch that fits into the chips, split over as many of them
as is asked for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from programs import TINY_DECODER

from escc.compiler.plan import batch_times as module
from escc.compiler.plan.batch_times import BatchTimes, batch_times, splits
from escc.compiler.plan.pipeline import compile_phase, parse
from escc.compiler.plan.serving import of_batches
from escc.cost.hardware import Hardware
from escc.ir.diagnostics import InputError
from escc.ir.mesh import Mesh
from escc.ir.program import Program
from escc.passes.options import Options
from escc.passes.plan import NoPlan

PROGRAM = parse(TINY_DECODER)
CHIP = Hardware.of_paper("tpu-v4")


def timed(hbm_bytes: float, chips: str = "2x2", program: Program = PROGRAM, ways: int = 1) -> BatchTimes:
    chip = replace(CHIP, hbm_bytes=hbm_bytes)
    return batch_times(program, Mesh.parse(chips), 1, chip, 64, ways)


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


def compiled_s(sequences: int, new: int, context: int, chips: str) -> float:
    """What compiling for a size says."""
    sized = of_batches(PROGRAM, sequences, new, context)
    return compile_phase(sized, "prefill", Mesh.parse(chips), Options(CHIP)).estimate.totals().total_s


@pytest.mark.parametrize(("chips", "ways"), [("2x2", 4), ("2x2", 2), ("3", 3)])
def test_batches_that_chips_split_take_what_compiling_for_their_size_says(chips: str, ways: int) -> None:
    split, whole = timed(1e9, chips, ways=ways), timed(1e9, chips)
    assert (split.ways, whole.ways) == (ways, 1)
    batch, new, context = np.array([[5.0, 17.0, 101.0], [65.0, 65.0, 95.0], [65.0, 95.0, 119.0]])
    [found], [others] = split.seconds(ways * batch, new, context), whole.seconds(ways * batch, new, context)
    assert found == pytest.approx(
        [compiled_s(*map(int, sizes), chips) for sizes in zip(ways * batch, new, context, strict=True)]
    )
    assert (found < others).all()


def test_a_batch_may_be_split_over_the_axes_of_a_stage() -> None:
    mesh = Mesh.parse("4x2x3")
    assert splits(mesh, 1) == (1, 2, 3, 4, 6, 8, 12, 24)
    assert splits(mesh, 4) == (1, 2, 3, 6)
    with pytest.raises(InputError, match="3 stages do not divide axis"):
        splits(mesh, 3)


def test_a_split_batch_leaves_room_for_more_sequences() -> None:
    """Where weights are copied to all chips for a small batch, none is left for a larger one."""
    whole = timed(1e9, ways=4)
    taken = float(whole.compiled.memory.total_bytes)
    found = timed(0.6 * taken, ways=4)
    assert float(found.compiled.memory.total_bytes) <= found.hardware.room_bytes
    assert found.ways == 4 and sequences(whole) > sequences(found) > 4


def test_what_is_held_is_what_compiling_says() -> None:
    found = timed(1e9, ways=4)
    planned, layers = sequences(found), 5
    sizes = (np.array([float(n)]) for n in (planned, 65, 0, 0))
    assert float(found.held_bytes(*sizes, layers)[0]) == pytest.approx(float(found.compiled.memory.total_bytes))
