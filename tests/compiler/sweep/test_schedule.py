"""The schedule of requests: by the step that takes least, among those that keep to what is given and fit."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from escc.compiler.plan.pipeline import program_of
from escc.compiler.report.schedule import schedule_text, split_remarks, step_remarks
from escc.compiler.sweep.schedule import BY_SHARED_TOKENS, Job, Step, ladder, schedule
from escc.cost.hardware import Hardware
from escc.ir.diagnostics import Source
from escc.ir.mesh import Mesh
from escc.passes.batches.batches import Requests

MODEL = """\
model "small"
dim B, L, M
dim E = 256, F = 512, H = 4, Q = 64
block layer(x: bf16[B,L,E]) -> bf16[B,L,E] {
  param Wq, Wk: bf16[E,H,Q]
  param Wo: bf16[H,Q,E]
  cache keys: bf16[B,M,H,Q]
  q[B,L,H,Q] = x[B,L,E] * Wq[E,H,Q]
  k[B,L,H,Q] = x[B,L,E] * Wk[E,H,Q]
  ks = append(keys, k, L into M)
  s[B,L,H,M] = q[B,L,H,Q] * ks[B,M,H,Q]
  p = softmax(s, over=M, mask=causal(L, M))
  o[B,L,H,Q] = p[B,L,H,M] * ks[B,M,H,Q]
  a[B,L,E] = o[B,L,H,Q] * Wo[H,Q,E]
  return x + a
}
main(x: bf16[B,L,E]) { return repeat 4 layer(x) }
phase prefill { B = 4, L = 128, M = 128 }
"""
PROGRAM, CHIP = program_of(Source("small.esti", MODEL)), Hardware.load("tpu-v4")


def requests(contexts: int, endings: int, longest: int) -> Requests:
    draw = random.Random(contexts)
    lengths = tuple(draw.randint(20, longest) for _ in range(contexts))
    return Requests(lengths, tuple((n % contexts, draw.randint(2, longest)) for n in range(endings)))


FEW_SHARED, SHORT, LONG = requests(200, 201, 40), requests(400, 1600, 120), requests(300, 1200, 900)


@pytest.mark.parametrize(
    ("asked", "mesh", "stages", "step"),
    [
        (FEW_SHARED, "1", 1, Step.BY_LENGTH),
        (FEW_SHARED, "4", 2, Step.BY_LENGTH),
        (LONG, "1", 1, Step.SHARED),
        (LONG, "4", 4, Step.SHARED),
        (SHORT, "1", 1, Step.MINI),
        (SHORT, "4", 4, Step.SHARED),
        (requests(40, 40, 90), "1", 1, Step.BY_LENGTH),
    ],
)
def test_no_step_that_fits_takes_less_than_the_schedule(asked: Requests, mesh: str, stages: int, step: Step) -> None:
    found = schedule(Job(asked, PROGRAM, CHIP, Mesh.parse(mesh), stages))
    own = ladder(found)[stages > 1 :]
    assert bool(list(split_remarks(found))) == (mesh == "4" and stages < 4)
    assert all(rung.fits for rung in own) and len(own) == (6 if asked.shared else 2)
    assert found.best.total_s == min(rung.scheduled.total_s for rung in own) and found.step is step
    assert next(rung.name for rung in own if rung.scheduled is found.best).endswith(step)


def test_thresholds_that_are_given_are_kept_and_what_would_be_quicker_is_said() -> None:
    job = Job(FEW_SHARED, PROGRAM, CHIP, Mesh.parse("1"), context_threshold=10**20)
    found = schedule(job)
    rungs = ladder(found)
    assert found.step in BY_SHARED_TOKENS and found.padding_saved < 0
    assert list(step_remarks(found, rungs)) == [
        "Quicker without the thresholds or stages that are given: batches by length."
    ]
    assert schedule(replace(job, threshold=500)).step is Step.ENDINGS_BY_LENGTH  # no stage waits for mini-batches
    alone = schedule(replace(job, context_threshold=None, threshold=8000))
    assert {batch.part for batch in alone.best.batches} == {None}
    assert min(batch.tokens for batch in alone.best.batches) >= 8000
    assert "contexts   with each of their endings: none is cached" in schedule_text(alone, ())


def test_padding_that_is_more_than_in_the_order_of_the_file_is_not_called_saved() -> None:
    found = schedule(Job(FEW_SHARED, PROGRAM, CHIP, Mesh.parse("1")))
    more, plain = found.best.padding - found.plain.padding, found.plain
    assert more > 0
    text = schedule_text(found, ladder(found))
    assert "split" not in text  # of one chip
    assert f"  That is {more:,} more than 32 requests at a time, in the order of the file, have:" in text
    assert f"have: {plain.padding:,} of {plain.tokens:,}." in text and "saved" not in text
    assert "  The schedule is that of: batches by length.\n" in text


def test_steps_without_room_are_not_taken() -> None:
    job = Job(LONG, PROGRAM, CHIP, Mesh.parse("1"))
    taken = schedule(job).best.held_bytes
    less = replace(job, hardware=replace(CHIP, hbm_bytes=CHIP.hbm_bytes * 0.7 * taken / CHIP.room_bytes))
    found = schedule(less)
    own = ladder(found)
    assert found.best.held_bytes <= less.hardware.room_bytes < max(rung.scheduled.held_bytes for rung in own)
    assert found.best.total_s == min(rung.scheduled.total_s for rung in own if rung.fits)
    assert "shared contexts, no room" in schedule_text(found, own)
