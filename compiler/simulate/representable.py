"""Data that a narrow type holds exactly, so that a run with it and one with wide floats start alike."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...ir.dtype import Dtype
from ...ir.program import Program
from .pointwise import Array

DIGITS = {Dtype.F32: 24, Dtype.BF16: 8, Dtype.F16: 11, Dtype.FP8: 4}  # significant binary digits
LEAST = {Dtype.F32: -126, Dtype.BF16: -126, Dtype.F16: -14, Dtype.FP8: -6}  # the smallest exponent of a normal number
LARGEST_OF = {Dtype.FP8: 448.0, Dtype.F16: 65504.0}
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
    _, exponent = np.frexp(array)
    step = np.maximum(exponent, LEAST[dtype] + 1) - DIGITS[dtype]
    rounded = np.ldexp(np.rint(np.ldexp(array, -step)), step)
    nearest: Array = np.clip(rounded, -LARGEST_OF.get(dtype, np.inf), LARGEST.get(dtype, np.inf))
    return nearest
