"""Caches that wrap: how many places they have, of a context that may be longer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .record import record


@record
class Wrap:
    """A reading of a cache that wraps. `slots`: the dim of its places. Each of the entries along `new` sees `reach`
    places of `context` at most, a window or a chunk, its own the last of them; None: all."""

    new: str
    slots: str
    context: str
    reach: int | None

    def fewest(self, sizes: Mapping[str, int]) -> int:
        """The fewest slots that hold all that is seen at such sizes of dims."""
        context = sizes[self.context]
        return context if self.reach is None else min(context, self.reach + sizes[self.new] - 1)

    def usual(self, sizes: Mapping[str, int]) -> int:
        """The slots of a cache that keeps little more: a window, and new entries where a step has several."""
        new = sizes[self.new]
        # One more than the fewest, so that what divides both divides their sum, and chips can split the slots.
        return min(sizes[self.context], self.fewest(sizes) + (new > 1))


def slots_at(wraps: Sequence[Wrap], before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """The slots of a phase that has sizes `before`, by their dims, where its context or its new entries become those of
    `after`. What kept the whole context keeps a window or chunk of a longer one. What kept less keeps as much, or what
    the new entries need. No cache has more slots than the context has places."""
    found: dict[str, int] = {}
    for slots in dict.fromkeys(wrap.slots for wrap in wraps):
        own = [wrap for wrap in wraps if wrap.slots == slots]
        if all(before[dim] == after[dim] for wrap in own for dim in (wrap.context, wrap.new)):
            continue
        if before[slots] < max(before[wrap.context] for wrap in own):
            count = max(before[slots], *(wrap.fewest(after) for wrap in own))
        else:
            count = max(wrap.usual(after) for wrap in own)
        found[slots] = min(count, max(after[wrap.context] for wrap in own))
    return found
