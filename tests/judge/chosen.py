"""Which share of each value of a program is kept, by the judge's own reading of what is chosen.

Dims of the judge's programs have one name everywhere. Whether a pointwise result is zero beside what is kept is not
read from its expression but tried, with numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from shards import evaluate

from escc.ir.expr import operands
from escc.ir.program import Choose, Einsum, Map, Op, Program, Reduce, Repeat, Stored, Sum, walk


class Mask(NamedTuple):
    """The result of an op that keeps `keep` entries along `over`; `dims` are all of its dims. `inside`: the masks
    that its keys were multiplied by; `first`: the only one of these, where there is one. `left`: the dims of which
    only is known whether anything is kept there."""

    name: str
    dims: frozenset[str]
    over: frozenset[str]
    keep: int
    inside: frozenset[str] = frozenset()
    first: Mask | None = None
    left: frozenset[str] = frozenset()

    def along(self, dims: Iterable[str]) -> Mask | None:
        """What is left of it where something is summed, or the largest taken, along all but `dims`."""
        left = (self.left or self.dims) & set(dims)
        told = not self.inside or (self.first is not None and self.first.over <= left)
        if not self.dims - self.over <= left or not self.over & left:
            return None
        return self if left == (self.left or self.dims) else self._replace(left=left) if told else None


Masks = frozenset[Mask]


def followed(program: Program) -> dict[str, Masks]:
    """The masks beside which each value is zero; of values that nothing is known of none."""
    dims = {value.name: frozenset(value.dims) for value in program.values}
    found: dict[str, Masks] = {}
    for placed in walk(program.body):
        if not isinstance(placed.item, Stored | Repeat):
            found[placed.item.result] = _of(placed.item, found, dims)
    return found


def _of(op: Op, found: Mapping[str, Masks], dims: Mapping[str, frozenset[str]]) -> Masks:
    def of(name: str) -> Masks:
        return found.get(name, frozenset())

    match op:
        case Choose(result, keys, over, keep):
            inside = {name for mask in of(keys) for name in (mask.name, *mask.inside)}
            [first] = of(keys) if len(of(keys)) == 1 else [None]
            if first is not None and (first.inside or first.left or not first.over < set(over)):
                first = None
            return frozenset({Mask(result, dims[keys], frozenset(over), keep, frozenset(inside), first)})
        case Einsum(_, names, _, output):
            return innermost(left for name in names for mask in of(name) if (left := mask.along(output)))
        case Reduce(_, name, over):
            rest = dims[name] - set(over)
            found_here = (mask.along(rest) for mask in of(name) if set(over) < mask.over)
            return innermost(mask for mask in found_here if mask)
        case Map(result, expr):
            read = operands(expr)
            masks = {mask for name in read for mask in of(name)}
            rng, at = np.random.default_rng(5), sorted(dims[result])

            def value(name: str, mask: Mask) -> np.ndarray:
                zero = mask in of(name)
                return np.full((1,) * len(at), 0.0 if zero else rng.uniform(0.5, 2.0))

            sizes = dict.fromkeys(dims[result], 7)
            return innermost(m for m in masks if not evaluate(expr, {n: value(n, m) for n in read}, sizes, at).any())
        case Sum(_, names, _):
            return frozenset.intersection(*(of(name) for name in names))
        case _:
            return frozenset()


def innermost(masks: Iterable[Mask]) -> Masks:
    """Without those that others are inside of."""
    every = set(masks)
    around = {name for mask in every for name in mask.inside}

    def coarser(mask: Mask) -> bool:
        return any(m.name == mask.name and (m.left or m.dims) > (mask.left or mask.dims) for m in every)

    return frozenset(mask for mask in every if mask.name not in around and not coarser(mask))


def share(masks: Iterable[Mask], sizes: Mapping[str, int]) -> float:
    """The share of the entries that all of `masks` keep, each by itself."""
    return float(math.prod((_kept(mask, sizes) for mask in masks), start=Fraction(1)))


def _kept(mask: Mask, sizes: Mapping[str, int]) -> Fraction:
    """The share that one keeps, of all ways in which entries can be picked."""
    entries = math.prod(sizes[d] for d in mask.over)
    if not mask.left:
        return Fraction(mask.keep, entries)
    among = Fraction(1)
    if mask.first is not None:
        among = Fraction(mask.first.keep, math.prod(sizes[d] for d in mask.first.over))
        entries = int(entries * among)
    block = math.prod(sizes[d] for d in mask.over - mask.left)
    return among * (1 - Fraction(math.comb(entries - block, mask.keep), math.comb(entries, mask.keep)))


def terms(op: Op, found: Mapping[str, Masks]) -> Masks:
    """The masks of what an op works out: of a product those of every factor. What chooses compares all its keys."""
    if isinstance(op, Choose):
        return found.get(op.keys, frozenset())
    if isinstance(op, Einsum):
        return innermost(mask for name in op.operands for mask in found.get(name, frozenset()))
    return found.get(op.result, frozenset())


def met(masks: Masks, own: Masks, dims: Iterable[str], local: Mapping[str, int], sizes: Mapping[str, int]) -> float:
    """Which part of a factor of dims `dims`, with masks `own`, some element on the chip has chosen.

    Worked out as the chance that not all of the elements, each for itself, pass an entry by.
    """
    part = 1.0
    for mask in masks - own:
        if mask.over & (mask.left or mask.over) <= set(dims):
            passed, missed = 1.0, 1.0 - share([mask], sizes)
            for _ in range(min(100_000, math.prod(local[d] for d in mask.dims - mask.over - set(dims)))):
                passed *= missed
            part *= 1.0 - passed
    return part
