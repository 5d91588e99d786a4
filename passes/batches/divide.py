"""Sorted lengths divided into batches with the least padding, each of a threshold of tokens at least; exactly.

The recurrences are eq. 3 and 4 of the report on batch schedules for the evaluation of LLaMA (team H, H. Kim and
J. Ryu, Samsung Computer Engineering Challenge 2023). Over all pairs they take n^2 steps. Here eq. 3 takes n: what a
batch may begin with grows with its end, and its cost is a line in the longest length, so that the least is read off a
hull whose lines come by falling slope while the points grow. Eq. 4 takes n log n: its lines, in the batch's end, become
allowed in another order than that of their slopes, and go into a Li Chao tree when they do. Numbers are whole, so no
rounding decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from ...ir.record import record
from .lines import Hull, LiChao


@record
class Division:
    """Lengths in order, divided: `ends`, where each batch ends, the last one at their number. `cost`: the tokens of
    padding, or of contexts that are not shared. `short`: whether the first batch stays below the threshold."""

    ends: tuple[int, ...]
    cost: int
    short: bool = False

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """Where each batch begins and ends."""
        return tuple(zip((0, *self.ends), self.ends, strict=False))


def divide_by_longest(lengths: Sequence[int], threshold: int) -> Division:
    """Rising lengths l_1 to l_n as batches in which each is padded to the longest, with the least padding:

        D[i] = min over j < i with l_i (i - j) >= threshold of D[j] + l_i (i - j) - (l_(j+1) + ... + l_i)

    Where all of them together stay below the threshold they are one batch, and `short`. Of divisions that cost the
    same the one whose last batch is smallest is taken, then whose last but one is. O(n).
    """
    count, sums = len(lengths), [0, *accumulate(lengths)]
    if not count:
        return Division((), 0)
    whole = lengths[-1] * count
    if whole < threshold:
        return Division((count,), whole - sums[-1], short=True)
    costs: list[int | None] = [0, *[None] * count]  # None: no division keeps to the threshold
    before = [0] * (count + 1)
    hull, allowed = Hull(), 0
    for end in range(1, count + 1):
        longest = lengths[end - 1]
        latest = end - -(-threshold // longest) if threshold > 0 else end - 1
        while allowed <= min(latest, end - 1):
            cost = costs[allowed]
            if cost is not None:
                hull.add(-allowed, cost + sums[allowed], allowed)
            allowed += 1
        found = hull.least(longest)
        if found is not None:
            costs[end], before[end] = found[0] + longest * end - sums[end], found[1]
    return _division(costs, before)


def divide_by_shortest(lengths: Sequence[int], threshold: int) -> Division:
    """Rising lengths l_1 to l_n as batches each of which shares as much as its shortest has, with the least left over:

        D[i] = min over j < i with l_(j+1) (i - j) >= threshold of D[j] + (l_(j+1) + ... + l_i) - l_(j+1) (i - j)

    Lengths so short that no batch with them reaches the threshold are a first batch of their own, as few as can be,
    and `short`; the recurrence is of the others. Ties are broken as by `divide_by_longest`. O(n log n).
    """
    count = len(lengths)
    left_out = next((k for k in range(count) if lengths[k] * (count - k) >= threshold), count)
    if left_out:
        rest = divide_by_shortest(lengths[left_out:], threshold) if left_out < count else Division((), 0)
        unshared = sum(lengths[:left_out]) - lengths[0] * left_out
        return Division((left_out, *(left_out + end for end in rest.ends)), unshared + rest.cost, short=True)
    if not count:
        return Division((), 0)
    sums = [0, *accumulate(lengths)]
    waiting: list[list[int]] = [[] for _ in range(count + 1)]  # starts, by the first end that they allow
    for start, shortest in enumerate(lengths):
        first = start + max(1, -(-threshold // shortest))
        if first <= count:
            waiting[first].append(start)
    costs: list[int | None] = [0, *[None] * count]
    before = [0] * (count + 1)
    lines = LiChao(count)
    for end in range(1, count + 1):
        for start in waiting[end]:
            cost = costs[start]
            if cost is not None:
                lines.add(-lengths[start], cost - sums[start] + lengths[start] * start, start)
        found = lines.least(end)
        if found is not None:
            costs[end], before[end] = found[0] + sums[end], found[1]
    return _division(costs, before)


def _division(costs: Sequence[int | None], before: Sequence[int]) -> Division:
    """The division that ends last, read back from where each batch begins."""
    ends, cost = [len(costs) - 1], costs[-1]
    assert cost is not None, "all of them together reach the threshold"
    while before[ends[-1]]:
        ends.append(before[ends[-1]])
    return Division(tuple(reversed(ends)), cost)
