"""Pairs of blocks that run, counted by ranges: beside every pair of places, and for contexts of any size."""

from __future__ import annotations

import random
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from escc.cost import shown_blocks
from escc.cost.shown_blocks import runs
from escc.ir.expr import Call, Const, Context, Expr, Operand, Size

FUNCTIONS = {"add": lambda a, b: a + b, "subtract": lambda a, b: a - b, "multiply": lambda a, b: a * b}
FUNCTIONS |= {"divide": lambda a, b: a / b, "floor": np.floor, "negate": lambda a: -a}
FUNCTIONS |= {"maximum": np.maximum, "minimum": np.minimum}


def side(rng: random.Random, dim: str, depth: int = 2) -> Expr:
    """Something of a place, and of sizes."""
    if depth == 0:
        return Operand(dim)
    inner, known = side(rng, dim, depth - 1), rng.choice([Const(rng.choice([-3.0, 2.0, 5.0])), Size(dim), Context("M")])
    function = rng.choice([*FUNCTIONS])
    if function in ("floor", "negate"):
        return Call(function, (inner,))
    if function == "subtract" and rng.random() < 0.3:  # the place in a cache that wraps
        return Call(function, (inner, Call("multiply", (known, Call("floor", (Call("divide", (inner, known)),))))))
    return Call(function, (inner, known) if function == "divide" or rng.random() < 0.5 else (known, inner))


def value(expr: Expr, sizes: dict[str, int], place: int) -> float:
    match expr:
        case Const(number):
            return number
        case Size(dim) | Context(dim):
            return float(sizes[dim])
        case Operand():
            return float(place)
        case Call(function, arguments):
            return float(FUNCTIONS[function](*(value(each, sizes, place) for each in arguments)))
    raise AssertionError(expr)


@pytest.mark.parametrize("seed", range(150))
def test_pairs_that_run_are_those_of_which_all_limits_may_show_a_place(seed: int) -> None:
    rng = random.Random(seed)
    sizes = {"L": rng.choice([1, 6, 9]), "M": rng.choice([8, 13, 24])}
    local = tuple(-(-size // rng.choice([1, 2])) for size in sizes.values())
    block = tuple(min(rng.choice([1, 2, 3, 4]), own) for own in local)
    sides = [(side(rng, "L"), side(rng, "M")) for _ in range(rng.choice([1, 2]))]
    limits = tuple(each if rng.random() < 0.5 else each[::-1] for each in sides)
    begins = [[min(a, own - n) for a in range(0, own, n)] for own, n in zip(local, block, strict=True)]
    most = 0
    for chip in product(*(range(0, size, own) for size, own in zip(sizes.values(), local, strict=True))):
        count = 0
        for query in begins[0]:
            shown = 0
            for key in begins[1]:
                at = {
                    dim: [min(first + start + n, sizes[dim] - 1) for n in range(length)]
                    for dim, first, start, length in zip("LM", chip, (query, key), block, strict=True)
                }

                def edge(expr: Expr, pick: object, at: dict[str, list[int]] = at) -> float:
                    dim = "L" if "Operand(name='L')" in repr(expr) else "M"
                    return pick(value(expr, sizes, place) for place in at[dim])  # type: ignore[operator]

                shown += all(edge(lower, min) <= edge(upper, max) for lower, upper in limits)
            count += max(shown, 1)
        most = max(most, count)
    expected = Fraction(most, len(begins[0]) * len(begins[1]))
    assert runs(limits, ("L", "M"), local, block, tuple(sizes.items())) == expected


def test_some_of_these_are_counted_by_ranges_and_some_pair_by_pair() -> None:
    ways = [shown_blocks._rises(side(random.Random(seed), "M"), {"M": 8}) for seed in range(60)]
    assert {1, -1, None} <= {*ways}


@pytest.mark.parametrize("context", [2**20, 2**30, 2**40])
def test_contexts_of_any_size_are_counted(context: int) -> None:
    place, key = Operand("L"), Operand("M")
    causal = (key, Call("add", (place, Call("subtract", (Context("M"), Size("L"))))))
    window = (Call("subtract", (causal[1], Const(float(context // 4)))), key)
    sizes = (("L", context), ("M", context))
    for limits, expected in (((causal,), 0.5), ((causal, window), 0.25 - 0.25**2 / 2)):
        share = runs(limits, ("L", "M"), (context, context), (512, 512), sizes)
        assert float(share) == pytest.approx(expected, rel=2e-3)
    decode = runs((causal, window), (None, "M"), (1, context // 4), (1, 512), (("L", 1), ("M", context)))
    assert decode == 1
    half = Const(context / 2)
    wraps = Call("subtract", (key, Call("multiply", (half, Call("floor", (Call("divide", (key, half)),))))))
    share = runs(((wraps, Const(context / 8 - 1)),), (None, "M"), (1, context), (1, 512), sizes)
    assert share == (1 if context > shown_blocks.MOST_PLACES else Fraction(1, 4))
