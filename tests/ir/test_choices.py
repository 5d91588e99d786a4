"""What is chosen, op by op, and that what is said to vanish does."""

from __future__ import annotations

import itertools
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from escc.compiler.plan.pipeline import parse
from escc.compiler.simulate.pointwise import Frame, evaluate
from escc.ir.choices import chosen_of, spread
from escc.ir.chosen import Chosen, kept_share, vanishes
from escc.ir.diagnostics import InputError
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
    among = Chosen("r", ("N", "X"), ("B",), 3, ("g",), groups=("N",), kept_groups=1)
    assert chosen(Choose("r", "q", ("N", "X"), 3), "B", "N", "X") == (among,)


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


def test_what_is_left_of_blocks_is_chosen_where_one_of_their_entries_is() -> None:
    free, two = Chosen("m", ("N", "X", "Y"), ("B",), 3), {"m": tuple("BNXY"), "t": tuple("BNXYE")}
    known = {"m": (free,), "t": (free,)}
    blocks = replace(free, over=("N", "Y"), merged=((1, "X"),))
    assert chosen_of(Reduce("r", "m", ("X",)), known, two | {"r": tuple("BNY")}) == (blocks,)
    assert chosen_of(product("bnxye->bnye", "t"), known, two | {"r": ("B", "O", "P", "E")}) == (
        replace(blocks, over=("O", "P")),
    )
    again = chosen_of(Reduce("s", "r", ("N",)), {"r": (blocks,)}, {"r": tuple("BNY"), "s": tuple("BY")})
    assert again == (replace(free, over=("Y",), merged=((0, "N"), (1, "X"))),)
    dims = two | {"c": tuple("BNYE"), "r": tuple("BNXYE")}
    assert chosen_of(product("BNXY,BNYE->BNXYE", "m", "c"), known | {"c": (blocks,)}, dims) == (free,)
    assert spread(Map("r", call("add", "c", 1.0)), {"c": (blocks,)}) is None
    # What was picked among groups lies in these, so that blocks of several groups are not told apart.
    grouped = replace(WITHIN, groups=("N",), kept_groups=1)
    for one, left, kept in ((grouped, "BN", True), (grouped, "BX", False), (WITHIN, "BN", False)):
        found = chosen_of(product(f"BNX->{left}", "m"), {"m": (one,)}, {"m": tuple("BNX"), "r": tuple(left)})
        assert bool(found) == kept


def test_what_is_picked_among_groups_is_known_to_lie_in_these() -> None:
    text = """
    dim B = 4, N = 4, Y = 3
    main(s: f32[B,N,Y]) {
      best = max(s, over=Y)
      g = choose(best, over=N, keep=2)
      m = choose(s, among=g, over=[N,Y], keep=3)
      c = max(m, over=Y)
      return c
    }
    """
    values = parse(text).table()
    inner = Chosen("m", ("N", "Y"), ("B",), 3, ("g",), groups=("N",), kept_groups=2)
    assert values["m"].chosen == (inner,)
    assert values["c"].chosen == (replace(inner, over=("N",), merged=((1, "Y"),)),)


PICKED = [(1, (3, 2), 0), (2, (2, 3), 0), (3, (4, 2), 2), (4, (3, 3), 2), (3, (2, 2), 0)]


@pytest.mark.parametrize(("keep", "sizes", "first"), PICKED)
def test_the_share_of_blocks_is_that_of_all_ways_to_pick(keep: int, sizes: tuple[int, int], first: int) -> None:
    one = Chosen("m", ("N",), ("B",), keep, groups=("N",) * bool(first), kept_groups=first, merged=((1, "X"),))
    picked = list(itertools.combinations(range(sizes[0]), first or sizes[0]))
    met = ways = 0
    for groups in picked:
        for entries in itertools.combinations(itertools.product(groups, range(sizes[1])), keep):
            met, ways = met + len({group for group, _ in entries}), ways + sizes[0]
    assert one.share(lambda d: Fraction(sizes["NX".index(d)])) == Fraction(met, ways)
    assert one.share(lambda d: sizes["NX".index(d)]) == pytest.approx(met / ways)


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
        (call("power", call("relu", "e"), 2), True),
        (call("power", "e", 0), False),
        (call("power", "e", -1), False),
        (call("log", call("add", 1, call("abs", "e"))), True),
        (call("subtract", call("cos", "e"), 1), True),
        (call("divide", "e", call("abs", "e")), False),
        (call("divide", "e", call("maximum", call("abs", "f"), 1e-6)), True),
        (call("multiply", "e", call("log", "e")), False),
        (call("multiply", "s", call("multiply", "e", call("rsqrt", "f"))), False),
        (call("multiply", "e", call("rsqrt", call("add", call("multiply", "f", "b"), 1e-6))), True),
        (call("multiply", "e", call("power", call("multiply", "f", "s"), -0.5)), False),
        (call("multiply", "e", call("exp", call("negate", call("log", call("abs", "e"))))), False),
        (call("where", "e", "b", 0.0), True),
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


KNOWN_LEAVES = st.sampled_from([*map(Operand, ZEROS), *map(Const, (0.0, 1.0, -2.0, 0.5, 3.0))])


NOUGHT = Operand("z")
NAN = Call("divide", (NOUGHT, NOUGHT))


@example(Call("equal", (NOUGHT, NAN)))  # which is 0, as nothing equals NaN
@example(Call("equal", (Const(1.0), Call("power", (NAN, NOUGHT)))))
@example(Call("less_equal", (NAN, NOUGHT)))
@example(Call("where", (Call("add", (Const(1.0), Rotate(Const(1.0), "D"))), NOUGHT, Const(1.0))))
@example(Call("exp", (Call("divide", (Const(-2.0), Rotate(NOUGHT, "D"))),)))
@example(Call("multiply", (NOUGHT, Call("log", (Rotate(Const(1.0), "D"),)))))
@settings(max_examples=60, deadline=None)
@given(st.recursive(KNOWN_LEAVES, grown, max_leaves=6))
def test_what_is_made_of_noughts_and_numbers_alone_vanishes_where_it_is_nought(expr: Expr) -> None:
    with np.errstate(all="ignore"):
        found = evaluate(expr, {name: np.zeros(2) for name in ZEROS}, Frame(("D",), (2,), {"D": 2}))
    rotated = any(isinstance(each, Rotate) for each in parts(expr))
    if not rotated or vanishes(expr, ZEROS):
        assert vanishes(expr, ZEROS) == bool(np.all(found == 0))


def parts(expr: Expr) -> list[Expr]:
    """An expression and all that it is made of."""
    inner = expr.arguments if isinstance(expr, Call) else (expr.operand,) if isinstance(expr, Rotate) else ()
    return [expr, *(part for each in inner for part in parts(each))]


EMPTY = """
dim B = 4, X = 8, E = 16
main(s: f32[B,X], x: f32[B,E], g: f32[E]) {
  m = choose(s, over=X, keep=2)
  e[B,X,E] = m[B,X] * x[B,E]
  LINES
  return h
}
"""


@pytest.mark.parametrize(
    ("lines", "refused"),
    [
        ("h = e / max(e, over=B)", True),
        ("c[X] = m[B,X]\n h = m / c", True),
        ("c[X] = m[B,X]\n i = 1 / c\n h[B,X] = m[B,X] * i[X]", True),
        ("c[X] = m[B,X]\n i = rsqrt(abs(c))\n j = i * 2\n h = m * j", True),
        ("c[X] = m[B,X]\n h = m / (c + 1)", False),
        ("c[X] = m[B,X]\n h = m / maximum(c, 1)", False),
        ("c[X] = m[B,X]\n h = m / exp(c)", False),
        ("w = m * s\n h = w / sum(w, over=X)", False),
        ("q = max(abs(e), over=E)\n h = e / q", True),
        ("q = maximum(max(abs(e), over=E), 1e-6)\n h = e / q", False),
        ("h = rmsnorm(e, g, over=E)", False),
        ("h = e / sqrt(size(E))", False),
    ],
)
def test_what_divides_where_nothing_is_chosen_is_refused_where_it_is_nought(lines: str, refused: bool) -> None:
    text = EMPTY.replace("LINES", lines)
    if refused:
        with pytest.raises(InputError, match=r"`h` is not finite where the chosen `[em]` is 0\."):
            parse(text)
    else:
        assert parse(text).table()["h"].chosen
