"""Batches of requests: every request is run once, after its own context, and none with less room than it needs."""

from __future__ import annotations

import random

import pytest

from escc.passes.batches.batches import (
    Batch,
    Requests,
    Runs,
    by_count,
    by_longest,
    by_shortest,
    in_file_order,
    shared_contexts,
    whole_requests,
)


def made(seed: int, contexts: int = 60, endings: int = 4) -> Requests:
    draw = random.Random(seed)
    lengths = tuple(draw.randint(3, 40) for _ in range(contexts))
    numbers = [n for n in range(contexts) for _ in range(draw.randint(1, endings))]
    draw.shuffle(numbers)
    return Requests(lengths, tuple((n, draw.randint(1, 30)) for n in numbers))


def endings_of(batches: list[Batch]) -> list[int]:
    return sorted(n for batch in batches if batch.runs is not Runs.CONTEXTS for n in batch.members)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("mini_tokens", [None, 100])
def test_shared_contexts_are_cached_before_their_endings(seed: int, mini_tokens: int | None) -> None:
    requests = made(seed)
    parts = list(shared_contexts(requests, by_shortest(500), by_longest(100), mini_tokens))
    batches = [batch for part in parts for batch in part]
    assert endings_of(batches) == list(range(len(requests.endings)))
    cached: dict[int, int] = {}
    for batch in batches:
        if batch.runs is Runs.CONTEXTS:
            assert all(batch.new <= requests.contexts[n] and n not in cached for n in batch.members)
            cached |= dict.fromkeys(batch.members, batch.new)
            assert not mini_tokens or batch.short or batch.tokens > mini_tokens - batch.new
            continue
        for n in batch.members:
            context, ending = requests.endings[n]
            assert cached[context] == batch.cached and batch.cached + batch.new >= requests.contexts[context] + ending
        assert batch.short or batch.tokens >= 100
    assert sorted(cached) == list(range(len(requests.contexts)))
    run = sum(batch.own for batch in batches)
    shared = sum(cached[context] for context, _ in requests.endings) - sum(cached.values())
    assert run == sum(requests.lengths) - shared


@pytest.mark.parametrize("seed", range(3))
def test_mini_batches_differ_by_one_at_most_and_run_the_same(seed: int) -> None:
    requests = made(seed, 200)
    whole, cut = (
        [b for part in shared_contexts(requests, by_shortest(900), by_longest(50), tokens) for b in part]
        for tokens in (None, 200)
    )
    assert [b for b in whole if b.runs is Runs.ENDINGS] == [b for b in cut if b.runs is Runs.ENDINGS]
    for batch in (b for b in whole if b.runs is Runs.CONTEXTS):
        pieces = [b for b in cut if b.runs is Runs.CONTEXTS and b.part == batch.part]
        assert tuple(n for b in pieces for n in b.members) == batch.members
        assert len({len(b.members) for b in pieces}) <= 2 and len(pieces) == max(1, batch.tokens // 200)


def test_whole_requests_are_padded_to_the_longest() -> None:
    requests = made(1)
    for batches in (in_file_order(requests, 7), whole_requests(requests, by_longest(200))):
        assert endings_of(list(batches)) == list(range(len(requests.endings)))
        assert all(batch.new == max(requests.lengths[n] for n in batch.members) for batch in batches)
        assert sum(batch.own for batch in batches) == sum(requests.lengths)
    assert [n for batch in in_file_order(requests, 7) for n in batch.members] == list(range(len(requests.endings)))
    padded, sorted_padded = (
        sum(batch.tokens for batch in batches)
        for batches in (in_file_order(requests, 7), whole_requests(requests, by_count(7)))
    )
    assert sorted_padded < padded


def test_what_stays_below_its_threshold_says_so() -> None:
    requests = Requests((10, 10), ((0, 1), (1, 2)))
    assert [batch.short for batch in whole_requests(requests, by_longest(100))] == [True]
    assert [batch.short for part in shared_contexts(requests, by_shortest(100), by_longest(5)) for batch in part] == [
        True,
        True,
    ]
