"""Batches of requests: every request is run once, after its own context, and none with less room than it needs."""

from __future__ import annotations

import random
from itertools import combinations, pairwise

import pytest

from escc.passes.batches.batches import (
    Batch,
    Requests,
    Runs,
    by_count,
    by_longest,
    by_shortest,
    in_file_order,
    rows_of,
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


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("ways", [2, 3, 8])
@pytest.mark.parametrize("mini_tokens", [None, 100])
def test_an_ending_is_run_by_the_share_that_has_cached_its_context(
    seed: int, ways: int, mini_tokens: int | None
) -> None:
    requests = made(seed)
    parts = shared_contexts(requests, by_shortest(500), by_longest(100, ways), mini_tokens, ways)
    batches = [batch for part in parts for batch in part]
    assert endings_of(batches) == list(range(len(requests.endings)))
    cached: dict[int, tuple[int, int]] = {}
    for batch in batches:
        assert len(batch.shares) == ways and batch.rows == ways * max(map(len, batch.shares))
        assert batch.short or batch.runs is Runs.CONTEXTS or batch.tokens >= 100
        for share, members in enumerate(batch.shares):
            for n in members:
                if batch.runs is Runs.CONTEXTS:
                    assert n not in cached and batch.new <= requests.contexts[n]
                    cached[n] = share, batch.new
                else:
                    context, ending = requests.endings[n]
                    assert cached[context] == (share, batch.cached)
                    assert batch.cached + batch.new >= requests.contexts[context] + ending
    for part in range(1 + max(batch.part or 0 for batch in batches)):
        own = [b for b in batches if b.part == part and b.runs is Runs.CONTEXTS]
        counts = [sum(len(b.shares[share]) for b in own) for share in range(ways)]
        assert max(counts) - min(counts) <= 1


def test_shares_have_about_as_many_endings() -> None:
    """In each round the context with most endings goes to the share that has fewest."""
    endings = [n for n, count in enumerate((1, 5, 2, 4)) for _ in range(count)]
    requests = Requests((9, 9, 9, 9), tuple((n, 3) for n in endings))
    [batches] = shared_contexts(requests, by_count(4), by_count(99), ways=2)
    assert [batch.shares for batch in batches[:1]] == [((0, 1), (2, 3))]
    assert [len(share) for batch in batches[1:] for share in batch.shares] == [6, 6]


@pytest.mark.parametrize("ways", [1, 2, 3, 4])
def test_batches_of_full_rows_have_the_least_padding_of_all(ways: int) -> None:
    for seed in range(20):
        lengths = sorted(random.Random(seed).randint(1, 30) for _ in range(9))
        requests = Requests(tuple(lengths), tuple((n, 0) for n in range(9)))
        least = min(
            sum(lengths[b - 1] * rows_of(b - a, ways) for a, b in pairwise((0, *cuts, 9)))
            for count in range(9)
            for cuts in combinations(range(1, 9), count)
        )
        batches = whole_requests(requests, by_longest(0, ways), ways)
        assert endings_of(list(batches)) == list(range(9)) and sum(batch.tokens for batch in batches) == least
        assert all(batch.empty == 0 for batch in batches[1:]) and batches[0].rows - len(batches[0].members) < ways
        assert all(batch.short or batch.tokens >= 60 for batch in whole_requests(requests, by_longest(60, ways), ways))


def test_requests_in_the_order_of_the_file_are_split_as_evenly_as_rows_are_full() -> None:
    requests = Requests((5, 7, 3, 4, 6), tuple((n, 1) for n in range(5)))
    [first, last] = in_file_order(requests, 4, 4)
    assert first.shares == ((0,), (1,), (2,), (3,)) and last.shares == ((4,), (), (), ())
    assert (last.tokens, last.own, last.empty) == (28, 7, 21)
    assert [batch.shares for batch in in_file_order(requests, 5, 2)] == [((0, 1, 2), (3, 4))]


def test_what_stays_below_its_threshold_says_so() -> None:
    requests = Requests((10, 10), ((0, 1), (1, 2)))
    assert [batch.short for batch in whole_requests(requests, by_longest(100))] == [True]
    assert [batch.short for part in shared_contexts(requests, by_shortest(100), by_longest(5)) for batch in part] == [
        True,
        True,
    ]
