"""The most tokens a second that batches may give on a slice, by what plans of smaller ones take at the least.

Layouts that serve a batch serve a smaller one that as many axes divide: each step takes no longer there, and fewer
prompts come in, of which each takes what a prompt takes at the least. So a batch takes at least what one below it does,
and the prompts between. Memory is the same: a batch that does not fit rules out those above it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...passes.plan import PROVEN


class RateBounds:
    """Of the batches up to `most`, of a stream with `output` tokens for each request.

    `splits`: in how many parts axes may split a batch. `token_s`: the longest time of a token that will do, infinite
    for any. `sound`: whether all that was added is proven; without that bounds only say where to look first.
    """

    def __init__(self, splits: Sequence[int], output: int, most: int, token_s: float) -> None:
        self.whole = math.lcm(*splits)
        self.sound = True
        self._longest_s = output * token_s
        self._batches = np.arange(1, most + 1)
        self._tokens = output * self._batches
        self._divided = np.array([[batch % ways == 0 for ways in splits] for batch in range(1, most + 1)])
        self._least_s: np.ndarray = np.zeros(most)  # of all calls that a batch needs
        self._left = np.ones(most, dtype=bool)  # not added yet
        self._prompt_s = 0.0

    def set_prompt(self, prompt_s: float) -> None:
        """What a prompt takes at the least; before any batch is added."""
        self._prompt_s = prompt_s
        self._least_s = self._batches * prompt_s

    def add(self, batch: int, least_s: float, proven: bool) -> None:
        """What all calls of a batch take at the least, infinite where it has no plan."""
        self.sound &= proven
        if batch <= len(self._left):
            self._left[batch - 1] = False
            above = self._batches >= batch
            above &= ~(self._divided & ~self._divided[batch - 1]).any(axis=1)
            taken = least_s + (self._batches - batch) * self._prompt_s
            self._least_s = np.where(above, np.maximum(self._least_s, taken), self._least_s)

    @property
    def rates(self) -> np.ndarray:
        """The most tokens a second of each batch, 0 of one that has no plan, or none that is quick enough."""
        slow = self._least_s > self._longest_s * (1 + PROVEN)
        with np.errstate(divide="ignore"):
            return np.where(slow, 0.0, self._tokens / self._least_s)

    @property
    def most(self) -> float:
        """The most that any batch gives, as far as that is proven."""
        return float(self.rates.max()) if self.sound else math.inf

    @property
    def promised(self) -> float:
        """The most that a batch may give that was not added."""
        return float(np.where(self._left, self.rates, 0.0).max())

    def next(self) -> int:
        """The batch to plan next: between the one that promises most and the largest below it that was added, one that
        all axes divide, so that it bounds all above; above all that were added at most twice as large. Where there is
        none, the one that promises most."""
        best = int(np.where(self._left, self.rates, -1.0).argmax())
        added = np.flatnonzero(~self._left[:best])
        below = int(self._batches[added[-1]]) if len(added) else 0
        first, last = below // self.whole + 1, (best + 1) // self.whole
        if first > last:
            return best + 1
        middle = (first + last) // 2
        return self.whole * (
            middle if not self._left[best:].all() else max(first, min(middle, 2 * below // self.whole))
        )
