"""Weights in another element type: the matrices of a program stored narrower than they are computed with."""

from __future__ import annotations

from dataclasses import replace

from ...ir.dtype import Dtype
from ...ir.program import Kind, Program, Stored, walk


def with_weights(program: Program, dtype: Dtype) -> Program:
    """The program with its bf16 parameters of two dims or more stored as `dtype`; others, such as norms, as they are.

    They are loaded and gathered as `dtype`; the arithmetic is what it was.
    """
    stored = (placed.item for placed in walk(program.body) if isinstance(placed.item, Stored))
    weights = {item.value for item in stored if item.kind is Kind.PARAM}
    values = tuple(
        replace(value, dtype=dtype)
        if value.name in weights and len(value.dims) > 1 and value.dtype is Dtype.BF16
        else value
        for value in program.values
    )
    return replace(program, values=values)
