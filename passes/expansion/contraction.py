"""Orders of contraction: in which pairs several values are multiplied, by the indices of each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace

from ...cost.ops import Indices
from ...ir.record import record

EXACT = 7  # values of which all orders are compared; of more, the cheapest pair is taken each time
Sizes = Mapping[str, int]


@record
class Pair:
    """Two values multiplied, each one of those given, by its position, or a pair itself; `indices` are left."""

    left: int | Pair
    right: int | Pair
    indices: Indices


@record
class _Problem:
    """What is to be contracted, as `contraction` has it."""

    values: Sequence[Indices]
    output: Indices
    sizes: Sizes
    known: dict[frozenset[str], int] = field(default_factory=dict)

    def kept(self, some: int) -> Indices:
        """The indices of a product of some of the values, a bit mask, that are needed later."""
        others = [v for n, v in enumerate(self.values) if not some >> n & 1]
        needed = set(self.output).union(*others)
        own = (index for n, v in enumerate(self.values) if some >> n & 1 for index in v)
        return tuple(index for index in dict.fromkeys(own) if index in needed)

    def over(self, left: Indices, right: Indices) -> int:
        """How many elements a loop over the indices of two values has."""
        every = frozenset((*left, *right))
        if every not in self.known:
            self.known[every] = math.prod(self.sizes[i] for i in every)
        return self.known[every]


def contraction(values: Sequence[Indices], output: Indices, sizes: Sizes) -> Pair:
    """The cheapest order in which to contract at least two values to `output`; proven so for up to EXACT values.

    `values`: the indices of each. `sizes`: those of all indices.
    """
    problem = _Problem(values, output, sizes)
    return _exact(problem) if len(values) <= EXACT else _greedy(problem)


def _exact(problem: _Problem) -> Pair:
    """By a dynamic program over all sets of values."""
    count = len(problem.values)
    kept = {some: problem.kept(some) for some in range(1, 1 << count)}
    for n, value in enumerate(problem.values):
        kept[1 << n] = value  # as it is; what it alone has is summed in its first product
    best: dict[int, tuple[Pair | int, int]] = {1 << n: (n, 0) for n in range(count)}
    for some in range(1, 1 << count):
        for left, right in _splits(some):
            cost = best[left][1] + best[right][1] + problem.over(kept[left], kept[right])
            if some not in best or cost < best[some][1]:
                best[some] = Pair(best[left][0], best[right][0], kept[some]), cost
    pair, _ = best[(1 << count) - 1]
    assert isinstance(pair, Pair)
    return replace(pair, indices=problem.output)


def _splits(some: int) -> Iterator[tuple[int, int]]:
    """A set in two, each way once, the part with the first value on the left."""
    low = some & -some
    left = (some - 1) & some
    while left:
        if left & low:
            yield left, some ^ left
        left = (left - 1) & some


def _greedy(problem: _Problem) -> Pair:
    """The cheapest pair first, then the cheapest of what is left."""
    trees: dict[int, Pair | int] = {1 << n: n for n in range(len(problem.values))}
    kept = {1 << n: value for n, value in enumerate(problem.values)}
    while len(trees) > 1:
        sets = list(trees)
        ways = [(problem.over(kept[a], kept[b]), a, b) for n, a in enumerate(sets) for b in sets[n + 1 :]]
        _, left, right = min(ways, key=lambda way: way[0])
        kept[left | right] = problem.kept(left | right)
        trees[left | right] = Pair(trees.pop(left), trees.pop(right), kept[left | right])
    [pair] = trees.values()
    assert isinstance(pair, Pair)
    return replace(pair, indices=problem.output)


def all_orders(values: Sequence[Indices], output: Indices, sizes: Sizes) -> list[Pair]:
    """Every order in which to contract at least two values to `output`: of three 3, of four 15, and so on."""
    problem = _Problem(values, output, sizes)
    every = _every(problem, (1 << len(values)) - 1)
    return [replace(tree, indices=output) for tree in every if isinstance(tree, Pair)]


def factors(tree: Pair | int) -> int:
    """The values that an order multiplies, as a bit mask."""
    return 1 << tree if isinstance(tree, int) else factors(tree.left) | factors(tree.right)


def pairs(tree: Pair | int) -> Iterator[Pair]:
    """All pairs of an order, as they are multiplied."""
    if isinstance(tree, Pair):
        yield from pairs(tree.left)
        yield from pairs(tree.right)
        yield tree


def _every(problem: _Problem, some: int) -> Iterator[Pair | int]:
    """All orders of some of the values, a bit mask."""
    if some & (some - 1) == 0:
        yield some.bit_length() - 1
    for a, b in _splits(some):
        for left in _every(problem, a):
            for right in _every(problem, b):
                yield Pair(left, right, problem.kept(some))
