"""What prices are made of beside products and sums, of numbers, arrays of these, or formulas."""

from __future__ import annotations

import sys
from collections.abc import Callable
from fractions import Fraction
from types import ModuleType
from typing import Any

import numpy as np

Larger = Callable[[Any, Any], Any]  # what says of two which is larger


def larger(a: Any, b: Any) -> Any:
    """The larger of two, element by element; of plain numbers one of these, as exact as it is."""
    if _plain(a, b):
        return max(a, b)
    sympy = _sympy_of(a, b)
    return np.maximum(a, b) if sympy is None else sympy.Max(a, b)


def smaller(a: Any, b: Any) -> Any:
    """The smaller of two, element by element; of plain numbers one of these, as exact as it is."""
    if _plain(a, b):
        return min(a, b)
    sympy = _sympy_of(a, b)
    return np.minimum(a, b) if sympy is None else sympy.Min(a, b)


def root_of_squares(a: Any, b: Any) -> Any:
    """The root of the sum of two squares, element by element."""
    sympy = _sympy_of(a, b)
    return np.hypot(a, b) if sympy is None else sympy.sqrt(a**2 + b**2)


def _plain(*operands: Any) -> bool:
    """Whether all are plain numbers."""
    return all(isinstance(each, int | float | Fraction) for each in operands)


def _sympy_of(*operands: Any) -> ModuleType | None:
    """sympy, where an operand is an expression of it.

    Importing it takes longer than most plans, so prices in numbers do without: while nobody has
    imported it there are no expressions.
    """
    sympy = sys.modules.get("sympy")
    return sympy if sympy is not None and any(isinstance(x, sympy.Basic) for x in operands) else None
