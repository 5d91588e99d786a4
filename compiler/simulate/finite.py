"""Where the numbers of a run stop being numbers: the op whose result is infinite or NaN while all that it reads is not.

What a model makes of data is its own affair: a check compares NaN with NaN, and says where it comes from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...ir.expr import Call, Const, Expr, Rotate
from ...ir.program import Map, Op
from .pointwise import Array

LARGEST = float(np.finfo(np.float64).max)
LARGEST_F32 = float(np.finfo(np.float32).max)
LARGEST_F16 = float(np.finfo(np.float16).max)


@dataclass(frozen=True)
class NotFinite:
    """An op that makes what is no finite number. `chip`: the first chip that holds some, by mesh axis; without
    axes where there is one chip."""

    value: str
    nan: bool
    chip: tuple[tuple[str, int], ...] = ()

    @property
    def what(self) -> str:
        """What it makes, in words."""
        return "NaN" if self.nan else "infinite"

    @property
    def sentence(self) -> str:
        """Where it happens, in words."""
        chip = " ".join(f"{axis}={place}" for axis, place in self.chip)
        return f"`{self.value}` is {self.what}" + (f" on chip {chip}" if chip else "")


@dataclass
class Watch:
    """Looks at what ops make, in the order in which they run. `first`: the first that makes NaN, or what is infinite
    of what is finite, other than by a constant that is infinite itself, such as a mask.

    `axes`: the mesh axes in front of every array. `largest`: by the name of a value, above what it counts as infinite.
    """

    axes: Sequence[str] = ()
    largest: Mapping[str, float] = field(default_factory=dict)
    first: NotFinite | None = None

    def see(self, op: Op, result: Array, read: Mapping[str, Array]) -> None:
        """Note the result of an op that reads these values."""
        if self.first is not None or not (beyond := self._beyond(op.result, result)).any():
            return
        nan = bool(np.isnan(result).any())
        masks = isinstance(op, Map) and _infinite(op.expr)
        if not nan and (masks or any(self._beyond(name, a).any() for name, a in read.items())):
            return
        where = [int(n) for n in np.argwhere(np.isnan(result) if nan else beyond)[0]]
        self.first = NotFinite(op.result, nan, tuple(zip(self.axes, where, strict=False)))

    def _beyond(self, name: str, array: Array) -> Array:
        """Where an array is no finite number."""
        beyond: Array = ~(np.abs(array) <= self.largest.get(name, LARGEST))
        return beyond


def _infinite(expr: Expr) -> bool:
    match expr:
        case Const(value):
            return math.isinf(value)
        case Call(_, arguments):
            return any(_infinite(a) for a in arguments)
        case Rotate(inner, _):
            return _infinite(inner)
        case _:
            return False
