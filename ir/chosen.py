"""Chosen indices: of which values all is zero but the entries that an op `choose` picked, and what that makes of sizes.

A mask is 1 at the entries that are kept, for each token those of its experts, and 0 elsewhere. What is multiplied by it
is chosen too, and so is a pointwise result that is 0 wherever its chosen operands are. Only the kept entries of such a
value are stored, sent and computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

from .expr import Expr
from .folded import folded
from .record import record


@record
class Chosen:
    """That a value is zero but at the entries that the op which makes `mask` picked: `keep` of those along the dims
    `over` for each element along the dims `per`. The value has all of these dims.

    `within`: masks of the keys that were picked from, such as the groups of experts that were chosen first: what it
    keeps, these keep. `capacity`: for how many entries there is room where it runs, of those that are expected; None
    where there is room for all, of which those that are expected count. `skew`: how many times the mean load the chip
    has that has most, where chips share the entries out.

    `groups`: of the dims `over` those along which the one mask of `within` picked first, `kept_groups` of them.
    `merged`: the other dims that the mask picked along and the value has no more, each with its place among all of
    these. An entry of the value then stands for a block of those of the mask, and is kept where one of them is.
    """

    mask: str
    over: tuple[str, ...]
    per: tuple[str, ...]
    keep: int
    within: tuple[str, ...] = ()
    capacity: Fraction | None = None
    skew: Fraction = Fraction(1)
    groups: tuple[str, ...] = ()
    kept_groups: int = 0
    merged: tuple[tuple[int, str], ...] = ()

    @property
    def name(self) -> str:
        """What keeps the entries: the mask, or blocks of it."""
        return "/".join((self.mask, *(str(at) for at, _ in self.merged)))

    def share(self, size: Callable[[str], Any]) -> Any:
        """The share of the entries that is kept, `size` being that of a dim: all, of a mean size that is below `keep`.

        Of blocks of b entries each it is the chance that some of b is among the k that were picked evenly of n, without
        one being picked twice: 1 - C(n - b, k) / C(n, k), the complement of a hypergeometric chance. Where groups were
        picked first, n are the entries of these, and a block's group has to be among them.
        """
        entries = math.prod((size(d) for d in self.over), start=1)
        if not self.merged:
            return _at_most(self.keep / entries)
        block = math.prod((size(d) for _, d in self.merged), start=1)
        groups = math.prod((size(d) for d in self.groups), start=1)
        among = self.kept_groups / groups if self.groups else 1
        pool = entries * block * among
        return among * (1 - _missed(pool, block, self.keep))

    def renamed(self, names: Mapping[str, str]) -> Chosen | None:
        """The same of a value that calls its dims otherwise. Where it lacks some of the dims `over`, its entries are
        blocks of those of the mask; None where it lacks all of them, one of `per`, or one along which groups were
        picked before, so that blocks would be of several, or where it is not known how many of these there were."""
        left = [d for d in self.over if d in names]
        if not left or not names.keys() >= {*self.per, *self.groups}:
            return None
        if len(left) == len(self.over):
            return self._called(names)
        if self.within and not self.groups:
            return None
        gone = {place for place, _ in self.merged}
        places = [n for n in range(len(self.over) + len(gone)) if n not in gone]
        lost = [(n, d) for n, d in zip(places, self.over, strict=True) if d not in names]
        return replace(self, over=tuple(left), merged=tuple(sorted((*self.merged, *lost))))._called(names)

    def _called(self, names: Mapping[str, str]) -> Chosen:
        over, per, groups = (tuple(names[d] for d in dims) for dims in (self.over, self.per, self.groups))
        return replace(self, over=over, per=per, groups=groups)


def _missed(pool: Any, block: Any, keep: int) -> Any:
    """C(pool - block, keep) / C(pool, keep), which is 0 where fewer than `keep` are left without the block."""
    if isinstance(pool, int | float | Fraction) and pool - block < keep:
        return 0
    return math.prod(((pool - block - n) / (pool - n) for n in range(keep)), start=1)


def narrowest(found: Iterable[Chosen]) -> tuple[Chosen, ...]:
    """Each once, without those that keep all that another keeps: of the masks that it picked from, and blocks of it."""
    every = tuple(dict.fromkeys(found))
    wider = {mask for one in every for mask in one.within}
    return tuple(
        one
        for one in every
        if one.mask not in wider
        and not any(one.mask == other.mask and {*other.merged} < {*one.merged} for other in every)
    )


def kept_share(chosen: Collection[Chosen], size: Callable[[str], Any]) -> Any:
    """The share of a value's entries that is kept, of several masks by each as if it were alone."""
    return math.prod((one.share(size) for one in chosen), start=1)


def held_share(chosen: Collection[Chosen], size: Callable[[str], Any]) -> Any:
    """The share of a value's entries for which there is room, which are stored, sent and computed."""
    return math.prod((_room(one.share(size), one.capacity) for one in chosen), start=1)


def _room(share: Any, capacity: Fraction | None) -> Any:
    if capacity is None:
        return share
    return _at_most(share * capacity)


def _at_most(share: Any) -> Any:
    """A share, of numbers 1 at the most; formulas are of sizes where it is no more."""
    return min(share, 1) if isinstance(share, int | float | Fraction) else share


def vanishes(expr: Expr, zeros: Collection[str], others: Mapping[str, float] | None = None) -> bool:
    """Whether an expression is 0 wherever the operands `zeros` are, whatever the others are, if these are finite and
    not 0. `others`: what some of these are where nothing is chosen, which may be the case there or not."""
    noughts = dict.fromkeys(zeros, 0.0)
    return folded(expr, noughts) == 0 and (not others or folded(expr, {**others, **noughts}) == 0)
