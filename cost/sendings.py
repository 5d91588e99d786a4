"""The ways in which the bytes of a collective may go: by which protocol, of which one starts late and is quick."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from itertools import pairwise
from typing import Any

from ..ir.record import record
from .elementwise import smaller


@record
class Sending:
    """Of a collective, or of what is handed on: `start_s`, and `s_per_byte` of what a chip holds before it."""

    start_s: float
    s_per_byte: float

    def seconds(self, held_bytes: Any) -> Any:
        """Seconds for bytes on a chip, which may be an array."""
        return self.start_s + held_bytes * self.s_per_byte

    def times(self, count: float) -> Sending:
        """The same, so many times."""
        return Sending(count * self.start_s, count * self.s_per_byte)


@record
class StageSending:
    """How the bytes of one stage of a collective may go: in `sent_s`, or in `bulk_s` after `bulk_start_s`. Numbers,
    arrays or symbols; of a collective of one byte on a chip they are the seconds of each byte."""

    sent_s: Any
    bulk_start_s: float
    bulk_s: Any


def quickest_s(sendings: Sequence[Sending], held_bytes: Any) -> Any:
    """Seconds of the quickest of some ways, for bytes on a chip, which may be an array."""
    return reduce(smaller, (sending.seconds(held_bytes) for sending in sendings))


def sendings_of(stages: Iterable[StageSending]) -> tuple[Sending, ...]:
    """The ways of a collective of which one byte on a chip goes in such `stages`, each by the quicker protocol: that of
    the fewest bytes first, each followed by that which is quickest for more. With more bytes one stage after the other
    goes in bulk."""
    some = tuple(stages)
    worth = [stage for stage in some if stage.bulk_s < stage.sent_s]
    turns = sorted((stage.bulk_start_s / (stage.sent_s - stage.bulk_s), n) for n, stage in enumerate(worth))
    start_s, s_per_byte = 0.0, sum(stage.sent_s for stage in some)
    found = [(0.0, Sending(start_s, s_per_byte))]
    for turn_bytes, n in turns:
        start_s += worth[n].bulk_start_s
        s_per_byte += worth[n].bulk_s - worth[n].sent_s
        if turn_bytes <= found[-1][0]:
            found.pop()  # what is quickest for no bytes
        found.append((turn_bytes, Sending(start_s, s_per_byte)))
    return tuple(sending for _, sending in found)


def from_bytes(sendings: Sequence[Sending]) -> list[float]:
    """From how many bytes on a chip on each of the ways of `sendings_of` is the quickest; the first from none on."""
    pairs = pairwise(sendings)
    return [0.0, *((b.start_s - a.start_s) / (a.s_per_byte - b.s_per_byte) for a, b in pairs)]
