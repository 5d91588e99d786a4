"""What is chosen, op by op, and that what is said to vanish does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from escc.compiler.simulate.pointwise import Frame, evaluate
from escc.ir.choices import chosen_of, spread
from escc.ir.chosen import Chosen, kept_share, vanishes
from escc.ir.expr import FUNCTIONS, Call, Const, Context, Expr, Operand, Rotate, Size
from escc.ir.program import Append, Choose, Einsum, Iota, Map, Op, Reduce, Sum, Take, TopK

MASK = Chosen("m", ("X",), ("B",), 2)
GROUPS = Chosen("g", ("N",), ("B",), 1)
WITHIN = Chosen("m", ("N", "X"), ("B",), 2, ("g",))
DIMS = {
    "m": ("B", "X"),
    "s": ("B", "X"),
    "x": ("B", "E"),
    "e": ("B", "X", "E"),
    "f": ("B", "X", "E"),
    "b": ("X", "E"),
    "g": ("B", "N"),
    "q": ("B", "N", "X"),
    "W": ("X", "E", "F"),
    "ids": ("B",),
    "other": ("B", "X"),
}
KNOWN = {"m": (MASK,), "e": (MASK,), "f": (MASK,), "g": (GROUPS,), "q": (GROUPS,)}


def chosen(op: Op, *dims: str) -> tuple[Chosen, ...]:
    return chosen_of(op, KNOWN, DIMS | {op.result: dims})


def product(text: str, *names: str) -> Einsum:
    reads, output = text.split("->")
    return Einsum("r", names, tuple(tuple(each) for each in reads.split(",")), tuple(output))


def call(function: str, *arguments: str | float | Expr) -> Call:
    made = {str: Operand, int: Const, float: Const}
    return Call(function, tuple(made.get(type(a), lambda expr: expr)(a) for a in arguments))


def test_what_chooses_makes_a_mask_of_its_keys() -> None:
    assert chosen(Choose("r", "s", ("X",), 3), "B", "X") == (Chosen("r", ("X",), ("B",), 3),)
    assert chosen(Choose("r", "s", ("B", "X"), 3), "B", "X") == (Chosen("r", ("B", "X"), (), 3),)
    assert chosen(Choose("r", "q", ("N", "X"), 3), "B", "N", "X") == (Chosen("r", ("N", "X"), ("B",), 3, ("g",)),)


def test_a_product_with_a_chosen_factor_is_chosen() -> None:
    assert chosen(product("BX,BE->BXE", "m", "x"), *"BXE") == (MASK,)
    assert chosen(product("BXE,XEF->XFB", "e", "W"), *"XFB") == (MASK,)
    assert chosen(product("BX,BXE->BXE", "m", "e"), *"BXE") == (MASK,)


def test_the_dims_of_a_product_may_have_other_names() -> None:
    assert chosen(product("bx,be->xbe", "m", "x"), "Y", "T", "E") == (Chosen("m", ("Y",), ("T",), 2),)


@pytest.mark.parametrize("output", ["BE", "XE", "E", ""])
def test_a_sum_along_a_dim_of_the_mask_ends_it(output: str) -> None:
    assert chosen(product(f"BXE->{output}", "e"), *output) == ()


def test_what_the_inner_mask_keeps_the_outer_keeps_too() -> None:
    known = {"m": (WITHIN,), "g": (GROUPS,)}
    dims = {"m": tuple("BNX"), "g": tuple("BN"), "r": tuple("BNX")}
    assert chosen_of(product("BNX,BN->BNX", "m", "g"), known, dims) == (WITHIN,)
    assert chosen_of(product("BNX,BN->BN", "m", "g"), known, dims | {"r": tuple("BN")}) == (GROUPS,)
    deeper = Chosen("h", ("X",), ("B", "N"), 1)
    both = chosen_of(product("BNX,BN->BNX", "h", "g"), known | {"h": (deeper,)}, dims | {"h": tuple("BNX")})
    assert both == (deeper, GROUPS)
    assert kept_share(both, {"X": 4, "N": 5}.__getitem__) == pytest.approx(1 / 4 / 5)


@pytest.mark.parametrize(
    ("expr", "stays"),
    [
        (call("multiply", "m", "s"), True),
        (call("divide", "m", "s"), True),
        (call("divide", "s", "m"), False),
        (call("silu", call("negate", "e")), True),
        (call("multiply", call("exp", "e"), "f"), True),
        (call("add", "e", "f"), True),
        (call("add", "e", "b"), False),
        (call("add", "e", 0.0), True),
        (call("subtract", "e", 1), False),
        (call("exp", "e"), False),
        (call("sigmoid", "e"), False),
        (call("power", "e", 2), False),
        (call("maximum", "e", call("relu", "f")), True),
        (call("where", call("less_equal", "s", 0.5), "e", "f"), True),
        (call("where", "e", "f", "b"), False),
        (Rotate(Operand("e"), "E"), True),
    ],
)
def test_pointwise_it_stays_where_nought_stays_nought(expr: Expr, stays: bool) -> None:
    op = Map("r", expr)
    assert chosen(op, *"BXE") == ((MASK,) if stays else ())
    assert (spread(op, KNOWN) is None) == stays


def test_terms_of_a_sum_are_chosen_together_or_not_at_all() -> None:
    assert chosen(Sum("r", ("e", "f"), (1.0, -2.0)), *"BXE") == (MASK,)
    assert chosen(Sum("r", ("e", "b"), (1.0, 1.0)), *"BXE") == ()
    assert spread(Sum("r", ("e", "f"), (1.0, -2.0)), KNOWN) is None
    assert spread(Sum("r", ("b", "e"), (1.0, 1.0)), KNOWN) == ("e", "m")
    other = KNOWN | {"f": (Chosen("n", ("X",), ("B",), 2),)}
    assert chosen_of(Sum("r", ("e", "f"), (1.0, 1.0)), other, DIMS | {"r": tuple("BXE")}) == ()


@pytest.mark.parametrize(
    "op",
    [
        Reduce("r", "e", ("E",)),
        Take("r", "e", "ids", ("X",)),
        TopK("r", "e", "e", ("E",), "F"),
        Iota("r", "X"),
        Append("r", "e", "f", "B", "X"),
    ],
)
def test_other_ops_end_it(op: Op) -> None:
    assert chosen(op, *"BX") == ()
    assert spread(op, KNOWN) is None


# What is said to vanish does

ZEROS, FREE = ("z", "zz"), ("a", "c")
LEAVES = st.sampled_from([*map(Operand, ZEROS + FREE), Size("D"), Context("D")]) | st.sampled_from(
    [Const(n) for n in (0.0, 1.0, -2.0, 0.5)]
)


def grown(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    def made(function: str) -> st.SearchStrategy[Expr]:
        return st.tuples(*[inner] * FUNCTIONS[function]).map(lambda arguments: Call(function, arguments))

    names = sorted({*FUNCTIONS, "add", "subtract", "multiply", "divide", "negate"} - {"rotate"})
    return st.sampled_from(names).flatmap(made) | st.builds(Rotate, inner, st.just("D"))


@settings(max_examples=400, deadline=None)
@given(st.recursive(LEAVES, grown, max_leaves=8), st.integers(0, 2**32))
def test_what_vanishes_is_nought_whatever_the_others_are(expr: Expr, seed: int) -> None:
    if not vanishes(expr, ZEROS):
        return
    rng = np.random.default_rng(seed)
    operands = {name: np.zeros(6) for name in ZEROS} | {name: rng.normal(size=6) * 3 for name in FREE}
    found = evaluate(expr, operands, Frame(("D",), (6,), {"D": 6}))
    assert np.all((found == 0) | ~np.isfinite(found))
