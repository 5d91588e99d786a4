"""The arithmetic of a program's products, whole and on no chips in particular, at many sizes of its dims at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..ir.chosen import kept_share
from ..ir.program import Einsum, Program, signature, walk
from .ops import chosen_of, flops


def product_flops(program: Program, sizes: Mapping[str, Any]) -> Any:
    """Floating-point operations of all einsums of several values; `sizes` of dims may be numbers or arrays.

    Of a LLaMA of L blocks with hidden dim H, feed-forward dim D and a vocabulary of V, for B sequences of S new tokens
    in a context of C, all of whose scores are wanted, these are

        L (8 B S H^2 + 4 B S C H + 6 B S H D) + 2 B S H V

    (the report on batch schedules for the evaluation of LLaMA: H. Kim and J. Ryu, Samsung Computer Engineering
    Challenge 2023). Products with what is zero by a mask of attention count as others do.
    """
    values, total = program.table(), 0
    for placed in walk(program.body):
        match placed.item:
            case Einsum(_, names, _, _) as op if len(set(names)) > 1:
                done = flops(op, signature(op, values), values, sizes.__getitem__)
                total = total + placed.times * done * float(kept_share(chosen_of(op, values), sizes.__getitem__))
    return total
