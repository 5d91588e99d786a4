"""Chosen indices: of which values all is zero but the entries that an op `choose` picked, and what that makes of sizes.

A mask is 1 at the entries that are kept, for each token those of its experts, and 0 elsewhere. What is multiplied by it
is chosen too, and so is a pointwise result that is 0 wherever its chosen operands are. Only the kept entries of such a
value are stored, sent and computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from .expr import Call, Const, Context, Expr, Operand, Rotate, Size


@dataclass(frozen=True)
class Chosen:
    """That a value is zero but at the entries that the op which makes `mask` picked: `keep` of those along the dims
    `over` for each element along the dims `per`. The value has all of these dims.

    `within`: masks of the keys that were picked from, such as the groups of experts that were chosen first: what it
    keeps, these keep. `capacity`: for how many entries there is room where it runs, of those that are expected; None
    where there is room for all, of which those that are expected count. `skew`: how many times the mean load the chip
    has that has most, where chips share the entries out.
    """

    mask: str
    over: tuple[str, ...]
    per: tuple[str, ...]
    keep: int
    within: tuple[str, ...] = ()
    capacity: Fraction | None = None
    skew: Fraction = Fraction(1)

    def share(self, size: Callable[[str], Any]) -> Any:
        """The share of the entries that is kept, `size` being that of a dim."""
        return self.keep / math.prod((size(d) for d in self.over), start=1)

    def renamed(self, names: Mapping[str, str]) -> Chosen | None:
        """The same of a value that calls its dims otherwise; None where it lacks one of them."""
        if not names.keys() >= {*self.over, *self.per}:
            return None
        return replace(self, over=tuple(names[d] for d in self.over), per=tuple(names[d] for d in self.per))


def kept_share(chosen: Collection[Chosen], size: Callable[[str], Any]) -> Any:
    """The share of a value's entries that is kept, of several masks by each as if it were alone."""
    return math.prod((one.share(size) for one in chosen), start=1)


def held_share(chosen: Collection[Chosen], size: Callable[[str], Any]) -> Any:
    """The share of a value's entries for which there is room, which are stored, sent and computed."""
    return math.prod((_room(one.share(size), one.capacity) for one in chosen), start=1)


def _room(share: Any, capacity: Fraction | None) -> Any:
    if capacity is None:
        return share
    return min(share * capacity, 1) if isinstance(share, int | float | Fraction) else share * capacity


KEEP_ZERO = {"negate", "abs", "sqrt", "tanh", "erf", "relu", "silu", "gelu", "gelu_exact", "sin", "floor"}


def vanishes(expr: Expr, zeros: Collection[str]) -> bool:
    """Whether an expression is 0 wherever the operands `zeros` are, whatever the others are, if these are finite."""
    match expr:
        case Const(value):
            return value == 0
        case Operand(name):
            return name in zeros
        case Rotate(inner, _):
            return vanishes(inner, zeros)
        case Call("multiply", arguments):
            return any(vanishes(a, zeros) for a in arguments)
        case Call("divide", (above, _)):
            return vanishes(above, zeros)
        case Call("where", (_, *branches)):
            return all(vanishes(b, zeros) for b in branches)
        case Call("add" | "subtract", arguments):
            return all(vanishes(a, zeros) for a in arguments)
        case Call("maximum" | "minimum" as which, arguments):
            bounds = [_number(a) for a in arguments if not vanishes(a, zeros)]
            within = all(n is not None and (n <= 0 if which == "maximum" else n >= 0) for n in bounds)
            return within and len(bounds) < len(arguments)
        case Call(function, (inner,)) if function in KEEP_ZERO:
            return vanishes(inner, zeros)
        case Call() | Size() | Context():
            return False


def _number(expr: Expr) -> float | None:
    """The value of a number, with its sign; None of anything else."""
    match expr:
        case Const(value):
            return value
        case Call("negate", (inner,)):
            found = _number(inner)
            return None if found is None else -found
    return None
