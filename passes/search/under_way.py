"""What is held of values that are made one of the other, where it is not known which of them are made as a step runs.

Of a chain of values, each made of the one before, of which the first is sure to have been made and the last is sure to
be read later, the last one that has been made is there, wherever it has been moved to. So what is there cuts all
chains, and takes no less than what flows through them where through each value no more flows than it takes at the least
(Ford and Fulkerson, Maximal flow through a network, 1956).

Scores that are made in blocks are not there, but then what they are made of is, until they have been used. A product
that is never there has what is made of it in its place, which takes as much.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property

import numpy as np

from ...ir.record import record
from .graph import Tensor
from .memory_bounds import Demand
from .step_order import StepOrder
from .taken_products import Takings

MOST_STEPS = 400  # of a region: each is compared with each
MOST_CHAINS = 16  # through which something flows


@record
class UnderWay:
    """The values of a phase that ops make, its `tensors` by name without what is stored, and the `order` of its steps.
    `scores`: those that may never be there as values; `takings`: products that may not."""

    order: StepOrder
    tensors: Mapping[str, Tensor]
    scores: Collection[str]
    takings: Takings

    def at(self, now: int, counted: Collection[str]) -> Demand | None:
        """What is there as a node runs, at the least, beside values that are `counted`; None where that may be
        nothing."""
        region = self._regions.get(self.order.repeats[now], ())
        if not region or len(region) > MOST_STEPS:
            return None
        apart = {*counted, *self._touched(now)}
        left = {name: self._least[name] for n in region for name in self._made.get(n, ()) if name not in apart}
        chains, total = list[list[str]](), 0.0
        begun = {n for n in region if n != now and self.order.precedes(n, now)}
        later = {n for n in region if self.order.precedes(now, n)}
        while len(chains) < MOST_CHAINS and (chain := self._widest(region, begun, later, left)):
            width = min(left[name] for name in chain)
            for name in chain:
                left[name] -= width
            chains.append(chain)
            total += width
        if not chains:
            return None
        source = self.tensors[chains[0][-1]].source
        return Demand(chains[0][-1], source.node, np.full(len(source.rows), total), in_any_case=True)

    def _widest(
        self, region: Collection[int], begun: Collection[int], later: Collection[int], left: Mapping[str, float]
    ) -> list[str]:
        """Of all chains from what is made by steps that have `begun` to what steps read that run `later` the one
        through which most flows; none where nothing flows through any."""
        width: dict[str, float] = {}
        before: dict[str, str | None] = {}
        last, most = None, 0.0
        for n in region:
            read = max((name for name in self.order.reads[n] if name in width), key=width.__getitem__, default=None)
            if n in later:
                if read is not None and width[read] > most:
                    last, most = read, width[read]
                continue
            for name in self._made.get(n, ()):
                begins = n in begun and name not in self.scores
                through = float("inf") if begins else 0.0 if read is None else width[read]
                flow = min(through, left.get(name, 0.0))
                if flow > 0:
                    width[name], before[name] = flow, None if begins else read
        chain: list[str] = []
        while last is not None:
            chain.append(last)
            last = before[last]
        return chain[::-1]

    def _touched(self, now: int) -> set[str]:
        """What a node makes and reads, and what that may be written over that is made in the place of a product."""
        made, found = self._made.get(now, ()), {*self.order.reads[now]}
        for name in made:
            taker = self._takers.get(name)
            if taker is not None and taker in self.tensors:
                found |= {taker, *self.order.reads[self.tensors[taker].source.node]}
        return {*made, *found}

    @cached_property
    def _takers(self) -> dict[str, str]:
        """Of products that may never be there what is made in their place."""
        return {product: result for result, products in self.takings.products.items() for product in products}

    @cached_property
    def _least(self) -> dict[str, float]:
        """What each value takes at the least; what is made in the place of a product takes as much."""
        return {name: t.total_bytes / float(t.space.space.shards.max()) for name, t in self.tensors.items()}

    @cached_property
    def _made(self) -> dict[int, list[str]]:
        """What each node makes."""
        found: dict[int, list[str]] = {}
        for name, tensor in self.tensors.items():
            found.setdefault(tensor.source.node, []).append(name)
        return found

    @cached_property
    def _regions(self) -> dict[tuple[str, ...], list[int]]:
        """The ops in each region, in order."""
        found: dict[tuple[str, ...], list[int]] = {}
        for n, around in self.order.repeats.items():
            if self.order.is_step(n):
                found.setdefault(around, []).append(n)
        return found
