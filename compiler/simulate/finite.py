"""Numbers: where they stop being finite, and which of them a type can hold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...ir.dtype import Dtype
from ...ir.expr import Call, Const, Expr, Rotate
from ...ir.program import Map, Op, Program
from ...ir.record import record
from .pointwise import Array

LARGEST = float(np.finfo(np.float64).max)
LARGEST_F32 = float(np.finfo(np.float32).max)
LARGEST_F16 = float(np.finfo(np.float16).max)


@record
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


DIGITS = {Dtype.F32: 24, Dtype.BF16: 8, Dtype.F16: 11, Dtype.FP8: 4, Dtype.FP4: 2}  # significant binary digits
# The smallest exponent of a normal number.
LEAST = {Dtype.F32: -126, Dtype.BF16: -126, Dtype.F16: -14, Dtype.FP8: -6, Dtype.FP4: 0}
LARGEST_OF = {Dtype.FP8: 448.0, Dtype.FP4: 6.0, Dtype.F16: 65504.0}
INTEGERS = {Dtype.INT8: 127, Dtype.INT4: 7}
SPREAD = 3  # standard deviations that the integers of a type hold


def representable(program: Program, stored: Mapping[str, Array]) -> dict[str, Array]:
    """Stored tensors by name, each of numbers that its type holds.

    Small integers are spread over their range, and the scale that they are times, where there is one,
    is as much smaller, so that their products are of the size of `stored`.
    """
    values, data = program.table(), dict(stored)
    for name in stored:
        dtype, scale = values[name].dtype, f"{name}.scale"
        if dtype in INTEGERS and scale in stored:
            data[scale] = data[scale] * SPREAD / INTEGERS[dtype]
    return {name: _nearest(array, values[name].dtype) for name, array in data.items()}


def _nearest(array: Array, dtype: Dtype) -> Array:
    """The numbers of `dtype` nearest to those of `array`, which is stretched to the range of small integers."""
    if dtype is Dtype.I32:
        return array
    if dtype in INTEGERS:
        return np.clip(np.rint(array * INTEGERS[dtype] / SPREAD), -INTEGERS[dtype], INTEGERS[dtype])
    if dtype is Dtype.E8M0:
        return np.exp2(np.rint(np.log2(np.maximum(np.abs(array), 2.0**-127))))
    _, exponent = np.frexp(array)
    step = np.maximum(exponent, LEAST[dtype] + 1) - DIGITS[dtype]
    rounded = np.ldexp(np.rint(np.ldexp(array, -step)), step)
    nearest: Array = np.clip(rounded, -LARGEST_OF.get(dtype, np.inf), LARGEST_OF.get(dtype, np.inf))
    return nearest
