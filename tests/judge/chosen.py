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
from escc.ir.program import Choose, Einsum, Map, Op, Program, Repeat, Stored, Sum, walk


class Mask(NamedTuple):
    """The result of an op that keeps `keep` entries along `over`; `dims` are all of its dims. `inside`: the masks
    that its keys were multiplied by."""

    name: str
    dims: frozenset[str]
    over: frozenset[str]
    keep: int
    inside: frozenset[str] = frozenset()


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
            return frozenset({Mask(result, dims[keys], frozenset(over), keep, frozenset(inside))})
        case Einsum(_, names, _, output):
            return innermost(mask for name in names for mask in of(name) if mask.dims <= set(output))
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
    return frozenset(mask for mask in every if mask.name not in around)


def share(masks: Iterable[Mask], sizes: Mapping[str, int]) -> float:
    """The share of the entries that all of `masks` keep, each by itself."""
    kept = math.prod((Fraction(m.keep, math.prod(sizes[d] for d in m.over)) for m in masks), start=Fraction(1))
    return float(kept)


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
        if mask.over <= set(dims):
            passed = 1.0
            for _ in range(min(100_000, math.prod(local[d] for d in mask.dims - mask.over - set(dims)))):
                passed *= 1.0 - share([mask], sizes)
            part *= 1.0 - passed
    return part
