"""Requests as batches: each request a context and an ending, contexts shared by several endings where there are any.

What is scored is the ending, so that a request is run once over all of its tokens. Where contexts are shared, those of
similar length form a part: as many of their tokens as the shortest has are run once for each, and stay as a cache;
what is left of a context is run with each of its endings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from .divide import Division, divide_by_longest, divide_by_shortest


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class Batch:
    """`members`: requests by number, or contexts. Each takes `new` tokens, padded, after `cached` ones that are there
    already. `own`: the tokens without padding. `part`: which contexts it belongs to, None where none are shared.
    `short`: it stays below its threshold."""

    runs: Runs
    members: tuple[int, ...]
    cached: int
    new: int
    own: int
    part: int | None = None
    short: bool = False

    @property
    def tokens(self) -> int:
        """The tokens that are run, padding included."""
        return len(self.members) * self.new


Divide = Callable[[Sequence[int]], Division]


def by_count(size: int) -> Divide:
    """A division into batches of `size`, in order; what is left over at the end is one more."""

    def divide(lengths: Sequence[int]) -> Division:
        ends = tuple(range(size, len(lengths), size)) + ((len(lengths),) if lengths else ())
        return Division(ends, 0)

    return divide


def by_longest(threshold: int) -> Divide:
    """A division with the least padding, into batches of at least `threshold` tokens."""
    return lambda lengths: divide_by_longest(lengths, threshold)


def by_shortest(threshold: int) -> Divide:
    """A division that shares most, into parts of at least `threshold` shared tokens."""
    return lambda lengths: divide_by_shortest(lengths, threshold)


def in_file_order(requests: Requests, size: int) -> tuple[Batch, ...]:
    """Whole requests, `size` at a time as they come, each batch padded to its longest."""
    lengths = requests.lengths
    return tuple(_requests(range(a, b), lengths, False) for a, b in by_count(size)(lengths).ranges)


def whole_requests(requests: Requests, divide: Divide) -> tuple[Batch, ...]:
    """Whole requests sorted by their length, each batch padded to its longest."""
    lengths = requests.lengths
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    division = divide([lengths[n] for n in order])
    return tuple(_requests(order[a:b], lengths, division.short) for a, b in division.ranges)


def _requests(members: Sequence[int], lengths: Sequence[int], short: bool) -> Batch:
    own = [lengths[n] for n in members]
    return Batch(Runs.REQUESTS, tuple(members), 0, max(own), sum(own), short=short)


def shared_contexts(
    requests: Requests, divide_contexts: Divide, divide_endings: Divide, mini_tokens: int | None = None
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
        members = order[first:last]
        cached = contexts[members[0]]
        short = division.short and part == 0
        sizes = _even(len(members), len(members) * cached // mini_tokens if mini_tokens else 1)
        batches, at = [], 0
        for size in sizes:
            some = tuple(members[at : at + size])
            batches.append(Batch(Runs.CONTEXTS, some, 0, cached, size * cached, part, short))
            at += size
        batches += _endings(requests, [n for m in members for n in readers[m]], cached, part, divide_endings)
        yield tuple(batches)


def _endings(requests: Requests, numbers: Sequence[int], cached: int, part: int, divide: Divide) -> Iterator[Batch]:
    """What is left of requests, sorted by its length, in batches that are padded to their longest."""
    left = {n: requests.contexts[requests.endings[n][0]] + requests.endings[n][1] - cached for n in numbers}
    order = sorted(numbers, key=left.__getitem__)
    division = divide([left[n] for n in order])
    for first, last in division.ranges:
        own = [left[n] for n in order[first:last]]
        yield Batch(Runs.ENDINGS, tuple(order[first:last]), cached, own[-1], sum(own), part, division.short)


def _even(count: int, ways: int) -> list[int]:
    """A count in so many parts, at least one, that differ by one at most."""
    each, more = divmod(count, max(1, min(ways, count)))
    return [each + (k < more) for k in range(max(1, min(ways, count)))]
