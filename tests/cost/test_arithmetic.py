"""The type in which products are done: that of what meets, without what is multiplied into a factor."""

from __future__ import annotations

from itertools import permutations

import pytest

from escc.cost.arithmetic import Arithmetic, arithmetic
from escc.ir.dtype import Dtype
from escc.ir.expr import Call, Operand
from escc.ir.program import Einsum, Map, Value

BF16, F32, F16, FP8, FP4, INT8 = Dtype.BF16, Dtype.F32, Dtype.F16, Dtype.FP8, Dtype.FP4, Dtype.INT8


def matmul(x: Dtype, w: Dtype, scale: Dtype | None = None) -> Arithmetic:
    """That of a product of x and w, and perhaps of a scale of the columns of w."""
    values = {"x": Value("x", ("B", "E"), x), "w": Value("w", ("E", "F"), w), "u": Value("u", ("B", "F"), BF16)}
    names, indices = ("x", "w"), (("B", "E"), ("E", "F"))
    if scale is not None:
        values["s"] = Value("s", ("F",), scale)
        names, indices = (*names, "s"), (*indices, ("F",))
    return arithmetic(Einsum("u", names, indices, ("B", "F")), values)


@pytest.mark.parametrize(
    ("x", "w", "done"),
    [
        (BF16, BF16, Arithmetic(BF16)),
        (BF16, FP8, Arithmetic(BF16, FP8)),
        (FP8, BF16, Arithmetic(BF16, FP8)),
        (BF16, FP4, Arithmetic(BF16, FP4)),
        (F32, FP8, Arithmetic(F32, FP8)),
        (FP8, FP8, Arithmetic(FP8)),
        (FP4, FP4, Arithmetic(FP4)),
        (FP8, FP4, Arithmetic(BF16, FP4)),  # among themselves in bf16
        (FP8, INT8, Arithmetic(BF16, FP8)),
        (INT8, INT8, Arithmetic(BF16)),  # whole numbers are only stored
        (BF16, F32, Arithmetic(F32)),
        (F16, F16, Arithmetic(BF16)),  # at its rate
        (BF16, F16, Arithmetic(F32)),
    ],
)
def test_products_are_done_in_the_widest_type_that_meets(x: Dtype, w: Dtype, done: Arithmetic) -> None:
    assert matmul(x, w) == done
    assert matmul(x, w, F32) == matmul(x, w, FP8) == done, "a scale is multiplied into what is made"


@pytest.mark.parametrize(("codes", "scale"), [(FP8, F32), (FP4, FP8), (FP4, Dtype.E8M0), (INT8, F32)])
@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_scales_of_groups_go_into_their_codes(codes: Dtype, scale: Dtype, order: tuple[int, ...]) -> None:
    """Read along the same indices, each place by that of its group; in whatever order factors stand."""
    values = {
        "x": Value("x", ("B", "E"), BF16),
        "w": Value("w", ("E", "F"), codes),
        "s": Value("s", ("G", "F"), scale),
        "u": Value("u", ("B", "F"), BF16),
    }
    names, indices = ("x", "w", "s"), (("B", "E"), ("E", "F"), ("E", "F"))
    op = Einsum("u", tuple(names[n] for n in order), tuple(indices[n] for n in order), ("B", "F"))
    assert arithmetic(op, values) == Arithmetic(BF16, codes if codes is not INT8 else None)


def test_what_is_no_product_of_several_is_done_in_bf16() -> None:
    values = {"x": Value("x", ("B", "E"), FP8), "y": Value("y", ("B", "E"), BF16), "b": Value("b", ("B",), BF16)}
    assert arithmetic(Einsum("b", ("x",), (("B", "E"),), ("B",)), values) == Arithmetic()
    assert arithmetic(Map("y", Call("exp", (Operand("x"),))), values) == Arithmetic()
