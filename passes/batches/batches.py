"""Requests as batches: each request a context and an ending, contexts shared by several endings where there are any.

What is scored is the ending, so that a request is run once over all of its tokens. Where contexts are shared, those of
similar length form a part: as many of their tokens as the shortest has are run once for each, and stay as a cache;
what is left of a context is run with each of its endings.

Where chips split a batch, each of its shares has as many rows as the largest, some of them empty: a share of any size
would divide over no chips. An ending is run by the share that has cached its context, so that no cache is moved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import accumulate, chain, pairwise
from typing import Any

from ...ir.record import record
from .divide import Division, divide_by_longest, divide_by_shortest


@record
class Requests:
    """`contexts`: the lengths of the contexts. `endings`: of each request, its context by number, and the length of its
    ending."""

    contexts: tuple[int, ...]
    endings: tuple[tuple[int, int], ...]

    @property
    def lengths(self) -> list[int]:
        """The full length of each request."""
        return [self.contexts[context] + ending for context, ending in self.endings]

    @property
    def shared(self) -> bool:
        """Whether some context has several endings."""
        return len(self.contexts) < len(self.endings)


class Runs(StrEnum):
    """What a batch runs: whole requests, the shared tokens of contexts, or what is left of requests after these."""

    REQUESTS = "requests"
    CONTEXTS = "contexts"
    ENDINGS = "endings"


@record
class Batch:
    """`shares`: requests by number, or contexts, of each of the shares into which chips split the batch, in the order
    of its rows. Each member takes `new` tokens, padded, after `cached` ones that are there already. `own`: the tokens
    without padding. `part`: which contexts it belongs to, None where none are shared. `short`: it stays below its
    threshold."""

    runs: Runs
    shares: tuple[tuple[int, ...], ...]
    cached: int
    new: int
    own: int
    part: int | None = None
    short: bool = False

    @property
    def members(self) -> tuple[int, ...]:
        """Those of all shares."""
        return tuple(chain.from_iterable(self.shares))

    @property
    def rows(self) -> int:
        """The sequences that are run: of each share as many as the largest has, the rest of them empty."""
        return len(self.shares) * max(map(len, self.shares))

    @property
    def tokens(self) -> int:
        """The tokens that are run, padding and empty rows included."""
        return self.rows * self.new

    @property
    def empty(self) -> int:
        """The tokens of empty rows among these."""
        return (self.rows - len(self.members)) * self.new


Divide = Callable[[Sequence[int]], Division]
Lanes = Sequence[Sequence[int]]  # the numbers of each share, sorted by length


def rows_of(count: Any, ways: int) -> Any:
    """The rows that so many sequences take, numbers or arrays, where chips split them into `ways` shares."""
    return -(-count // ways) * ways


def by_count(size: int, ways: int = 1) -> Divide:
    """A division into batches of about `size`, in order, of lengths that stand for `ways` sequences each; what is left
    over at the end is one more."""
    step = max(1, size // ways)

    def divide(lengths: Sequence[int]) -> Division:
        ends = tuple(range(step, len(lengths), step)) + ((len(lengths),) if lengths else ())
        return Division(ends, 0)

    return divide


def by_longest(threshold: int, ways: int = 1) -> Divide:
    """A division with the least padding, into batches of at least `threshold` tokens, of lengths that stand for `ways`
    sequences each."""
    return lambda lengths: divide_by_longest(lengths, -(-threshold // ways))


def by_shortest(threshold: int) -> Divide:
    """A division that shares most, into parts of at least `threshold` shared tokens."""
    return lambda lengths: divide_by_shortest(lengths, threshold)


def in_file_order(requests: Requests, size: int, ways: int = 1) -> tuple[Batch, ...]:
    """Whole requests, `size` at a time as they come, each batch padded to its longest."""
    lengths = requests.lengths
    batches = []
    for first, last in by_count(size)(lengths).ranges:
        each = -(-(last - first) // ways)
        starts = (min(first + n * each, last) for n in range(ways + 1))
        batches.append(_requests([range(a, b) for a, b in pairwise(starts)], lengths, False))
    return tuple(batches)


def whole_requests(requests: Requests, divide: Divide, ways: int = 1) -> tuple[Batch, ...]:
    """Whole requests sorted by their length, each batch padded to its longest.

    Of batches that are split into `ways` shares only the one with the shortest requests has empty rows: any other could
    take in the next shorter requests, and run no more tokens for it.
    """
    lengths = requests.lengths
    longest_first = sorted(range(len(lengths)), key=lengths.__getitem__)[::-1]
    lanes = [longest_first[n::ways][::-1] for n in range(ways)]
    division, shares = _ranked(lanes, lengths, divide)
    return tuple(_requests(each, lengths, division.short) for each in shares)


def _ranked(lanes: Lanes, lengths: Sequence[int] | Mapping[int, int], divide: Divide) -> tuple[Division, list[Lanes]]:
    """Lanes divided together, as many rows of each: how, and the shares of each batch. The longest of all lanes stand
    beside each other, and so on down; shorter lanes have nothing beside the shortest of others."""
    count = max(map(len, lanes))
    longest = [max(lengths[lane[at]] for lane in lanes if len(lane) >= -at) for at in range(-count, 0)]
    division = divide(longest)

    def share(lane: Sequence[int], first: int, last: int) -> Sequence[int]:
        missing = count - len(lane)
        return lane[max(0, first - missing) : max(0, last - missing)]

    return division, [[share(lane, *ends) for lane in lanes] for ends in division.ranges]


def _requests(shares: Lanes, lengths: Sequence[int], short: bool) -> Batch:
    own = [lengths[n] for share in shares for n in share]
    return Batch(Runs.REQUESTS, tuple(map(tuple, shares)), 0, max(own), sum(own), short=short)


def shared_contexts(
    requests: Requests, divide_contexts: Divide, divide_endings: Divide, mini_tokens: int | None = None, ways: int = 1
) -> Iterator[tuple[Batch, ...]]:
    """The batches of one part of the contexts after the other: those of its shared tokens, then those of its endings.

    The shared tokens run as one batch, or in mini-batches of equal size, as many as have `mini_tokens` each on average.
    """
    contexts = requests.contexts
    readers: list[list[int]] = [[] for _ in contexts]
    for number, (context, _) in enumerate(requests.endings):
        readers[context].append(number)
    order = sorted(range(len(contexts)), key=contexts.__getitem__)
    division = divide_contexts([contexts[n] for n in order])
    for part, (first, last) in enumerate(division.ranges):
        lanes = _dealt(order[first:last], readers, ways)
        cached = contexts[order[first]]
        short = division.short and part == 0
        count = max(map(len, lanes))
        sizes = _even(count, count * ways * cached // mini_tokens if mini_tokens else 1)
        batches = []
        for start, end in pairwise(accumulate(sizes, initial=0)):
            some = tuple(tuple(lane[start:end]) for lane in lanes)
            batches.append(Batch(Runs.CONTEXTS, some, 0, cached, sum(map(len, some)) * cached, part, short))
        numbers = [[n for m in lane for n in readers[m]] for lane in lanes]
        batches += _endings(requests, numbers, cached, part, divide_endings)
        yield tuple(batches)


def _dealt(members: Sequence[int], readers: Sequence[Sequence[int]], ways: int) -> Lanes:
    """The contexts of a part as the lanes that cache them: as many in each, and about as many of their endings. In each
    round the context with most endings goes to the lane that has fewest."""
    rank = {member: n for n, member in enumerate(members)}
    by_endings = sorted(members, key=lambda member: -len(readers[member]))
    lanes: list[list[int]] = [[] for _ in range(ways)]
    endings = [0] * ways
    for first in range(0, len(members), ways):
        fewest = sorted(range(ways), key=endings.__getitem__)
        for lane, member in zip(fewest, by_endings[first : first + ways], strict=False):
            lanes[lane].append(member)
            endings[lane] += len(readers[member])
    return [sorted(lane, key=rank.__getitem__) for lane in lanes]


def _endings(requests: Requests, lanes: Lanes, cached: int, part: int, divide: Divide) -> Iterator[Batch]:
    """What is left of requests, sorted by its length, in batches that are padded to their longest."""
    own = requests.endings
    left = {n: requests.contexts[own[n][0]] + own[n][1] - cached for lane in lanes for n in lane}
    division, batches = _ranked([sorted(lane, key=left.__getitem__) for lane in lanes], left, divide)
    for shares in batches:
        tokens = [left[n] for share in shares for n in share]
        yield Batch(Runs.ENDINGS, tuple(map(tuple, shares)), cached, max(tokens), sum(tokens), part, division.short)


def _even(count: int, ways: int) -> list[int]:
    """A count in so many parts, at least one, that differ by one at most."""
    each, more = divmod(count, max(1, min(ways, count)))
    return [each + (k < more) for k in range(max(1, min(ways, count)))]
