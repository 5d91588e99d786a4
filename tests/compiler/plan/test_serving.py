"""Streams of requests: the longest times beside requests that come one by one."""

from __future__ import annotations

import pytest

from escc.compiler.plan.serving import Stream


def longest_s(stream: Stream, step_s: float, prefill_s: float, offset: float) -> float:
    """The longest time to a first token of 300 requests that come evenly, the first so many spaces after a step has
    begun. After each step chunks are taken in, first come first served, until as many are as may be, or none waits."""
    space_s = step_s * stream.output_tokens / stream.batch + prefill_s
    waiting: list[list[float]] = []
    now_s, longest, come, left = 0.0, 0.0, 0, 300
    while left > 0:
        now_s += step_s
        for _ in range(stream.chunks_beside):
            while (came_s := (come + offset) * space_s) <= now_s * (1 + 1e-12):
                waiting.append([came_s, stream.chunks])
                come += 1
            if not waiting:
                break
            now_s += prefill_s / stream.chunks
            waiting[0][1] -= 1
            if not waiting[0][1]:
                longest = max(longest, now_s - waiting.pop(0)[0])
                left -= 1
    return longest


@pytest.mark.parametrize(
    ("chunks", "batch", "output", "first_token_s"),
    [
        (1, 500, 500, 15.0),  # its prompt alone beside the step
        (1, 8, 16, 15.0),
        (1, 64, 8, 15.0),  # others are spaced by their prompts, too
        (4, 5, 4, 21.0),  # five chunks of prompts of four: the fourth prompt is beside steps two to four
        (4, 6, 5, None),
        (4, 300, 256, None),
        (3, 5, 4, None),
        (7, 1, 5, None),
        (7, 13, 10, None),
        (8, 7, 3, None),
    ],
)
@pytest.mark.parametrize(("step_s", "prefill_s"), [(10.0, 5.0), (10.0, 100.0)])
def test_the_first_token_is_the_longest_of_all_that_come_evenly(
    chunks: int, batch: int, output: int, first_token_s: float | None, step_s: float, prefill_s: float
) -> None:
    stream = Stream(chunks, output, batch, chunk=1)
    found = stream.first_token_s(step_s, prefill_s)
    assert first_token_s is None or prefill_s != 5.0 or found == pytest.approx(first_token_s)
    right_behind = longest_s(stream, step_s, prefill_s, 1e-9)
    assert found == pytest.approx(right_behind, rel=1e-6)
    later = [longest_s(stream, step_s, prefill_s, part / 7) for part in range(8)]
    assert max(later) <= found * (1 + 1e-9)


def test_the_first_token_of_many_short_chunks_is_known_at_once() -> None:
    stream = Stream(2**30, 2**20 - 1, 2**20, chunk=1)
    assert 6.0 < stream.first_token_s(5.0, 1.0) < 11.0
