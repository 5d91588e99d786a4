"""Division into batches: by brute force over all divisions, and by the recurrences written out over all pairs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from escc.passes.batches.divide import Division, divide_by_longest, divide_by_shortest

LENGTHS = st.lists(st.integers(1, 12), min_size=1, max_size=8).map(sorted)


def divisions(count: int) -> Iterator[list[tuple[int, int]]]:
    """All ways to divide so many into batches in order."""
    for cuts in range(1 << (count - 1)):
        ends = [0, *(k + 1 for k in range(count - 1) if cuts >> k & 1), count]
        yield list(pairwise(ends))


def longest(batch: list[int], threshold: int) -> int | None:
    """The padding of a batch, None where it stays below the threshold."""
    held = max(batch) * len(batch)
    return held - sum(batch) if held >= threshold else None


def shortest(batch: list[int], threshold: int) -> int | None:
    """What a batch does not share, None where what it shares stays below the threshold."""
    held = min(batch) * len(batch)
    return sum(batch) - held if held >= threshold else None


def least(lengths: list[int], threshold: int, cost: Callable[[list[int], int], int | None]) -> int | None:
    """The least cost of all divisions whose batches reach the threshold, None where there is none."""
    found = []
    for ranges in divisions(len(lengths)):
        costs = [cost(lengths[a:b], threshold) for a, b in ranges]
        if None not in costs:
            found.append(sum(c for c in costs if c is not None))
    return min(found, default=None)


def recurrence(lengths: list[int], threshold: int, cost: Callable[[list[int], int], int | None]) -> list[int | None]:
    """D of the two equations as they stand, over all pairs."""
    found: list[int | None] = [0]
    for i in range(1, len(lengths) + 1):
        own = [(found[j], cost(lengths[j:i], threshold)) for j in range(i)]
        found.append(min((a + b for a, b in own if a is not None and b is not None), default=None))
    return found


def cost_of(division: Division, lengths: list[int], cost: Callable[[list[int], int], int | None]) -> int:
    return sum(cost(lengths[a:b], 0) or 0 for a, b in division.ranges)


@settings(max_examples=400, deadline=None)
@given(LENGTHS, st.integers(0, 60))
def test_padding_is_the_least_of_all_divisions(lengths: list[int], threshold: int) -> None:
    found, best = divide_by_longest(lengths, threshold), least(lengths, threshold, longest)
    assert found.short == (best is None)
    assert found.cost == cost_of(found, lengths, longest)
    if best is None:
        assert found.ends == (len(lengths),)
    else:
        assert found.cost == best
        assert all(longest(lengths[a:b], threshold) is not None for a, b in found.ranges)


@settings(max_examples=400, deadline=None)
@given(LENGTHS, st.integers(0, 60))
def test_what_is_not_shared_is_the_least_of_all_divisions(lengths: list[int], threshold: int) -> None:
    found, best = divide_by_shortest(lengths, threshold), least(lengths, threshold, shortest)
    assert found.short == (best is None)
    assert found.cost == cost_of(found, lengths, shortest)
    if best is not None:
        assert found.cost == best
        assert all(shortest(lengths[a:b], threshold) is not None for a, b in found.ranges)
        return
    left_out = found.ends[0]  # as few as can be: with one less there is no division of the others
    assert all(least(lengths[k:], threshold, shortest) is None for k in range(left_out))
    rest = least(lengths[left_out:], threshold, shortest) if left_out < len(lengths) else 0
    assert rest is not None and found.cost == rest + (shortest(lengths[:left_out], 0) or 0)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("threshold", [1, 300, 2048])
def test_long_lists_are_as_in_the_recurrences(seed: int, threshold: int) -> None:
    draw = random.Random(seed)
    lengths = sorted(draw.choice((draw.randint(10, 170), draw.randint(1, 9))) for _ in range(150))
    assert divide_by_longest(lengths, threshold).cost == recurrence(lengths, threshold, longest)[-1]
    found = divide_by_shortest(lengths, threshold)
    left_out = found.ends[0] if found.short else 0
    rest = recurrence(lengths[left_out:], threshold, shortest)[-1]
    assert rest is not None and found.cost == rest + (shortest(lengths[:left_out], 0) if left_out else 0)


def test_equal_lengths_make_small_batches() -> None:
    for divide in (divide_by_longest, divide_by_shortest):
        sizes = [b - a for a, b in divide([100] * 1000, 2048).ranges]
        assert min(sizes) == 21 and max(sizes) < 42


def test_nothing_and_one() -> None:
    assert divide_by_longest([], 5) == divide_by_shortest([], 5) == Division((), 0)
    assert divide_by_longest([7], 8) == divide_by_shortest([7], 8) == Division((1,), 0, short=True)
    assert divide_by_longest([7], 7) == divide_by_shortest([7], 7) == Division((1,), 0)
