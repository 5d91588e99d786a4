"""Signs of expressions, against NumPy: what an expression is worth is one of the signs that it is said to have."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

import numpy as np
import pytest

from escc.compiler.simulate.pointwise import Frame, evaluate
from escc.ir.expr import FUNCTIONS, Call, Const, Expr, Operand, Rotate, Size
from escc.passes.expansion.signs import BAD, LOW, NEGATIVE, NUMBER, POSITIVE, ZERO, Sign
from escc.passes.expansion.signs import evaluate as signs_of

SAMPLES = {
    ZERO: (0.0,),
    POSITIVE: (0.3, 1.0, 2.5),
    NEGATIVE: (-0.3, -1.0, -2.5),
    LOW: (-np.inf,),
}
A, B, C = (Operand(name) for name in "abc")


def signs(expr: Expr, **known: Sign) -> Sign:
    def part(inner: Expr) -> Sign:
        return known[inner.name] if isinstance(inner, Operand) else signs_of(inner, part)

    return part(expr)


def sign(value: float) -> Sign:
    if np.isnan(value) or value == np.inf:
        return BAD
    return LOW if value == -np.inf else ZERO if value == 0 else POSITIVE if value > 0 else NEGATIVE


def worth(expr: Expr, **values: float) -> float:
    frame = Frame((), (), {"E": 3})
    return float(evaluate(expr, {name: np.array(value) for name, value in values.items()}, frame))


def combinations(names: str) -> Iterable[tuple[dict[str, Sign], dict[str, float]]]:
    for chosen in product(SAMPLES, repeat=len(names)):
        for values in product(*(SAMPLES[s] for s in chosen)):
            yield dict(zip(names, chosen, strict=True)), dict(zip(names, values, strict=True))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_function_gives_only_what_it_is_said_to_give(function: str) -> None:
    names = "abc"[: FUNCTIONS[function]]
    expr = Call(function, tuple(map(Operand, names)))
    for known, values in combinations(names):
        said = signs(expr, **known)
        assert BAD in said or sign(worth(expr, **values)) in said, (known, values)


@pytest.mark.parametrize("function", ["exp", "sigmoid", "silu", "gelu"])
def test_what_is_far_below_zero_may_vanish(function: str) -> None:
    assert ZERO in signs(Call(function, (A,)), a=NEGATIVE)
    assert worth(Call(function, (A,)), a=-800.0) == 0


@pytest.mark.parametrize("function", sorted(set(FUNCTIONS) - {"where", "equal", "less_equal"}))
def test_a_function_is_not_said_to_give_what_it_never_does(function: str) -> None:
    """Of zeros and numbers above zero, so that a table that says everything is seen."""
    names = "abc"[: FUNCTIONS[function]]
    expr = Call(function, tuple(map(Operand, names)))
    for chosen in product((ZERO, POSITIVE), repeat=len(names)):
        samples = [np.linspace(0.05, 20, 90) if s == POSITIVE else [0.0] for s in chosen]
        found = Sign(0)
        for values in product(*samples):
            found |= sign(worth(expr, **dict(zip(names, values, strict=True))))
        said = signs(expr, **dict(zip(names, chosen, strict=True)))
        assert said in (found, found | ZERO)  # that two numbers are equal is not sampled


def test_a_choice_takes_out_what_it_tests_for() -> None:
    safe = Call("where", (Call("equal", (A, Const(0.0))), Const(1.0), A))
    assert signs(safe, a=ZERO | POSITIVE) == POSITIVE
    assert signs(Call("divide", (B, safe)), a=ZERO | POSITIVE, b=NUMBER) == NUMBER
    top = Call("where", (Call("equal", (A, Const(-np.inf))), Const(0.0), A))
    assert signs(top, a=LOW | NEGATIVE) == ZERO | NEGATIVE
    other = Call("where", (Call("equal", (A, Const(0.0))), Const(1.0), B))
    assert signs(other, a=ZERO, b=ZERO) == ZERO | POSITIVE
    one = Call("where", (Call("equal", (A, Const(1.0))), Const(0.0), A))
    assert signs(one, a=POSITIVE) == ZERO | POSITIVE


def test_sizes_are_above_zero_and_rotations_turn_signs() -> None:
    assert signs(Call("divide", (A, Size("E"))), a=ZERO) == ZERO
    assert signs(Rotate(A, "E"), a=POSITIVE) == POSITIVE | NEGATIVE
    assert signs(Rotate(A, "E"), a=ZERO) == ZERO
    assert signs(Const(float("nan"))) == signs(Const(np.inf)) == BAD


def test_the_soft_maximum_of_scores_is_a_number_even_where_all_are_masked() -> None:
    shifted = Call("subtract", (A, Call("where", (Call("equal", (B, Const(-np.inf))), Const(0.0), B))))
    assert signs(Call("exp", (shifted,)), a=NUMBER | LOW, b=NUMBER | LOW) == ZERO | POSITIVE
