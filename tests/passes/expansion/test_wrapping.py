"""Caches that wrap keep the last entries alone: what looks back a window sees what it saw of a whole cache."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from escc.compiler.emit.numpy_source import emit_numpy
from escc.compiler.plan.batch_times import batch_times
from escc.compiler.plan.pipeline import compile_phases, parse, program_of, with_pins
from escc.compiler.plan.serving import Stream, of_batches, of_stream
from escc.compiler.simulate.reference import random_stored, run_reference
from escc.cost.hardware import Hardware
from escc.ir.diagnostics import InputError, Source
from escc.ir.dtype import Dtype
from escc.ir.mesh import Mesh
from escc.ir.program import Append, Program, walk
from escc.ir.spmd import unsharded
from escc.ir.text.read_spmd import parse_spmd
from escc.ir.text.write_spmd import print_spmd
from escc.passes.options import Options

WINDOW = """
dim B = 4, L, M, W, H = 4, Q = 4, E = 16
block layer(x: bf16[B,L,E]) -> bf16[B,L,E] {
  param Wq, Wk, Wv: bf16[E,H,Q]
  param Wo: bf16[H,Q,E]
  cache keys, values: bf16[B,W,H,Q]
  q[B,L,H,Q] = x[B,L,E] * Wq[E,H,Q]
  k[B,L,H,Q] = x[B,L,E] * Wk[E,H,Q]
  v[B,L,H,Q] = x[B,L,E] * Wv[E,H,Q]
  ks = append(keys, rope(k, over=Q, at=L into M), L into W, of=M)
  vs = append(values, v, L into W, of=M)
  rq = rope(q, over=Q, at=L into M)
  s[B,L,H,W] = rq[B,L,H,Q] * ks[B,W,H,Q]
  p = softmax(s, over=W, mask=causal(L, W, window=8, of=M))
  o[B,L,H,Q] = p[B,L,H,W] * vs[B,W,H,Q]
  a[B,L,E] = o[B,L,H,Q] * Wo[H,Q,E]
  return x + a
}
main(x: bf16[B,L,E]) -> bf16[B,L,E] { return repeat 2 layer(x) }
"""
PHASES = "phase prefill { L = 32, M = 32, W = 32 }\nphase decode { L = 1, M = 32, W = 8, calls = 32 }"
SHORT = "phase prefill { L = 4, M = 4, W = 4 }\nphase decode { L = 1, M = 4, W = 4, calls = 32 }"  # than the window
OPTIONS = Options(Hardware.of_paper("tpu-v4"))
STEPS = 21


def decoded(text: str, slots: int, new: int, context: int = 32, steps: int = STEPS) -> list[np.ndarray]:
    """What a model gives at so many places, `new` of them in each step, its caches empty at first."""
    return run_steps(parse(text + f"phase decode {{ L = {new}, M = {context}, W = {slots} }}"), new, steps)


def run_steps(program: Program, new: int, steps: int) -> list[np.ndarray]:
    sizes = dict(program.phase("decode").sizes)
    stored = random_stored(program, sizes, 0)
    every = np.random.default_rng(1).standard_normal((4, STEPS, 16))
    versions = {p.item.cache: p.item.result for p in walk(program.body) if isinstance(p.item, Append)}
    stored |= {cache: np.zeros_like(stored[cache]) for cache in versions}
    out = []
    for end in range(new, steps + 1, new):
        stored["x"] = every[:, end - new : end]
        made = run_reference(program, sizes, stored, {"M": end} if program.wraps else {"M": end, "W": end})
        stored |= {cache: made[result] for cache, result in versions.items()}
        out.append(made[program.results[0]])
    return out


@pytest.mark.parametrize("seen", ["window=8", "chunk=8", "window=8, chunk=11"])
@pytest.mark.parametrize(("slots", "new"), [(8, 1), (10, 1), (16, 3), (10, 3), (32, 7)])
def test_steps_give_what_they_give_with_a_whole_cache(slots: int, new: int, seen: str) -> None:
    wraps = WINDOW.replace("window=8", seen)
    whole = wraps.replace(", of=M", "")
    for mine, expected in zip(decoded(wraps, slots, new), decoded(whole, 32, new), strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("pins", "caches"),
    [
        ("", None),
        ("stored layer.keys BW_xHQ\nstored layer.values BW_xyHQ", None),
        ("stored layer.keys BW_xHQ\nstored layer.values BW_xyHQ", Dtype.INT8),
    ],
)
def test_plans_keep_what_wraps(pins: str, caches: Dtype | None) -> None:
    """Whole and split along its slots, in bf16 and as codes with scales, on virtual chips and as emitted."""
    wrapping = program_of(Source("wraps.esti", WINDOW + PHASES), caches=caches)
    program = with_pins(wrapping, Source("a.pins", pins))
    prefill, decode = compile_phases(program, ("prefill", "decode"), Mesh.parse("2x2"), OPTIONS, run=True)
    for one in (prefill, decode):
        assert one.checked is not None and one.checked.max_error < 1e-12 and one.checked.equal
        small = dict(one.checked.sizes)
        assert small["W"] < small["M"], "the run wraps"
        module: dict[str, Any] = {"__name__": "emitted"}
        exec(compile(emit_numpy(program, one.spmd), one.phase, "exec"), module)
        stored = module["random_stored"](seed=0)
        dense, sharded = module["dense"](stored), module["sharded"](stored)
        for name, whole in dense.items():
            np.testing.assert_allclose(sharded[name], whole, rtol=1e-9, atol=1e-9)
    held = dict(decode.estimate.stored_bytes)
    splits = 4 if pins else decode.spmd.mesh.size(*decode.spmd.table()["layer.values"].layout.split_axes)
    assert held["layer.values"] == 2 * 4 * 8 * 4 * 4 * (1 if caches else 2) / splits  # 8 slots, and not 32 places
    if caches:
        own = decode.spmd.mesh.size(*decode.spmd.table()["layer.values.scale"].layout.split_axes)
        assert held["layer.values.scale"] == 2 * 4 * 8 * 4 * 4 / own  # in f32, of each slot and head


@pytest.mark.parametrize("seen", ["window=8", "chunk=8"])
@pytest.mark.parametrize(("context", "new", "slots"), [(7, 1, 7), (8, 1, 8), (9, 1, 8), (24, 1, 8), (24, 3, 11)])
def test_what_kept_a_short_context_keeps_what_is_seen_of_a_longer_one(
    context: int, new: int, slots: int, seen: str
) -> None:
    """Below the window, at it, just above it and far above it, with one new place and with several."""
    wraps = WINDOW.replace("window=8", seen)
    program = parse(wraps + SHORT.partition("\n")[2], {"M": context, "L": new})
    assert dict(program.phase("decode").sizes)["W"] == slots
    steps, whole = min(context, STEPS), wraps.replace(", of=M", "")
    expected = decoded(whole, context, new, context, steps)
    for few in (run_steps(program, new, steps), decoded(wraps, slots - (new > 1), new, context, steps)):
        for mine, one in zip(few, expected, strict=True):
            np.testing.assert_allclose(mine, one, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("phases", "settings", "slots"),
    [
        (PHASES, {}, (32, 8)),
        (PHASES, {"B": 2}, (32, 8)),
        (PHASES, {"M": 64}, (40, 8)),  # with the 32 new places of prefill
        (PHASES, {"L": 6}, (14, 13)),
        (PHASES, {"L": 3, "M": 6}, (6, 6)),
        (PHASES.replace("W = 8", "W = 10"), {"M": 64}, (40, 10)),  # as many as the file says
        (PHASES.replace("W = 8", "W = 32"), {"M": 64}, (40, 8)),
        (PHASES, {"M": 64, "W": 50}, (50, 50)),
        (SHORT, {"M": 6}, (6, 6)),
        (SHORT, {"M": 64}, (12, 8)),
        (SHORT, {"M": 64, "L": 64}, (64, 64)),
    ],
)
def test_slots_follow_the_sizes_that_are_set(phases: str, settings: dict[str, int], slots: tuple[int, int]) -> None:
    program = parse(WINDOW + phases, settings)
    assert tuple(dict(phase.sizes)["W"] for phase in program.phases) == slots


def test_a_longer_context_is_seen_whole_without_a_window() -> None:
    program = parse((WINDOW + SHORT).replace("window=8, of=M", "of=M").replace("W, H", "W, W2 = W, H"), {"M": 64})
    assert all(dict(phase.sizes)["W"] == dict(phase.sizes)["W2"] == 64 for phase in program.phases)


@pytest.mark.parametrize("phases", [PHASES, SHORT])
def test_slots_follow_the_context_of_streams_and_batches(phases: str) -> None:
    program = parse(WINDOW + phases)

    def sizes(sized: Program) -> list[tuple[int, int, int]]:
        return [(at["L"], at["M"], at["W"]) for at in (dict(phase.sizes) for phase in sized.phases)]

    assert sizes(of_stream(program, Stream(100, 20, 2))) == [(100, 100, 100), (1, 120, 8)]
    assert sizes(of_stream(program, Stream(100, 20, 2, chunk=30))) == [(30, 100, 38), (1, 120, 8)]
    _, short = of_stream(program, Stream(2, 4, 2)).phases
    assert (dict(short.sizes)["M"], dict(short.sizes)["W"], dict(short.mean)) == (6, 6, {"M": 4, "W": 4})
    assert sizes(of_batches(program, 2, 16, 64)) == [(16, 64, 24)]


def test_batches_are_timed_with_what_they_keep_of_their_contexts() -> None:
    found = batch_times(parse(WINDOW + PHASES), Mesh.parse("2"), 1, Hardware.of_paper("tpu-v4"), 64)
    contexts = np.array([6.0, 12.0, 100.0, 200.0])
    short, near, *far = found.flops(np.full(4, 3.0), np.full(4, 6.0), contexts)
    assert short < near < far[0] == far[1], "14 places are kept of a context of more"


def test_what_is_cached_beside_a_batch_keeps_a_window() -> None:
    found = batch_times(parse(WINDOW + PHASES), Mesh.parse("2"), 1, Hardware.of_paper("tpu-v4"), 64)
    cached = np.array([3.0, 7.0, 8.0, 100.0])
    short, window, *longer = found.held_bytes(np.full(4, 2.0), np.full(4, 3.0), np.full(4, 10.0), cached, 1)
    assert short < window and longer == [window, window], "the next token sees 7 before it"


def test_what_wraps_is_printed_and_read_back() -> None:
    spmd = unsharded(parse(WINDOW + PHASES), "decode", Mesh.parse("2"))
    text = print_spmd(spmd)
    assert "append(layer.values, layer.v, L into W, of=M)" in text
    assert print_spmd(parse_spmd(Source("printed.spmd", text))) == text


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("W = 8", "W = 7", "a window of 8 is longer than the cache: W = 7 of M = 32 places are kept, for L = 1 new"),
        ("L = 1,", "L = 2,", "a window of 8 is longer than the cache: W = 8 of M = 32 places are kept, for L = 2 new"),
        ("window=8, of=M", "of=M", "a mask without a window is longer than the cache: W = 8 of M = 32"),
        (
            "window=8,",
            "chunk=9,",
            "a window of 9 is longer than the cache: W = 8 of M = 32 places are kept, for L = 1",
        ),
        ("L into W, of=M)\n  rq", "L into W, of=W)\n  rq", "`of=W` is a dim of what is appended"),
        ("window=8, of=M", "window=8, of=M, of=M", "The keyword `of` is given twice"),
        ("window=8, of=M", "window=8, of=4", "`of=` takes a dim"),
        ("window=8, of=M", "window=8", "Along `W` are slots of a cache that wraps, not places of a context."),
        ("over=Q, at=L into M)\n  s", "over=Q, at=L into W)\n  s", "Along `W` are slots of a cache that wraps"),
        ("L into W, of=M)\n  rq", "L into W)\n  rq", "Along `W` are slots of a cache that wraps"),
        ("return x + a", "return x + a * context(W)", "Along `W` are slots of a cache that wraps"),
    ],
)
def test_a_cache_that_does_not_hold_what_is_seen_or_counts_no_context_is_refused(
    before: str, after: str, message: str
) -> None:
    assert before in WINDOW + PHASES
    with pytest.raises(InputError) as error:
        parse((WINDOW + PHASES).replace(before, after))
    assert message in str(error.value)
