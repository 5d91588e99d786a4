"""Keywords of norms and rope: the epsilon, the base, and the scaling of frequencies."""

from __future__ import annotations

import math

import numpy as np
import pytest

from escc.compiler.simulate.reference import run_reference
from escc.ir.diagnostics import InputError, Source
from escc.ir.program import Program
from escc.ir.text.read import parse
from escc.passes.expansion.expand import expand


def program(call: str) -> Program:
    text = f"dim L = 5, M = 9, E = 8\nparam w: f32[E]\nmain(x: f32[L,E]) {{ return {call} }}\n"
    source = Source("a.esti", text)
    return expand(parse(source), source)


def angles(call: str) -> np.ndarray:
    """By how much rope turns each pair at each position."""
    x = np.zeros((5, 8))
    x[:, 0::2] = 1.0
    one = program(call)
    (result,) = one.results
    turned = run_reference(one, dict(one.phases[0].sizes), {"x": x, "w": np.ones(8)})[result]
    return np.arctan2(turned[:, 1::2], turned[:, 0::2])


POSITIONS = np.arange(4, 9)[:, None]
PLAIN = 7.0 ** -(np.arange(4) / 4)  # turns 1 to 0.23 a position, at base 7


def wrapped(angle: np.ndarray) -> np.ndarray:
    return np.asarray((angle + math.pi) % (2 * math.pi) - math.pi)


@pytest.mark.parametrize(
    ("scaling", "factors"),
    [
        ("", [1, 1, 1, 1]),
        (", scaling=linear(4)", [1 / 4] * 4),
        (", scaling=llama3(8, 100, 200, 10)", [1 / 8] * 4),
        (", scaling=llama3(8, 0.001, 0.01, 10)", [1, 1, 1, 1]),
        # Within 10 positions the pairs turn 1.59, 0.98, 0.60 and 0.37 times.
        (", scaling=llama3(8, 0.5, 1.5, 10)", [1, 0.8750 * 0.4785 + 0.125, 0.8750 * 0.1016 + 0.125, 1 / 8]),
    ],
)
def test_frequencies_are_scaled(scaling: str, factors: list[float]) -> None:
    found = angles(f"rope(x, over=E, at=L into M, base=7{scaling})")
    np.testing.assert_allclose(found, wrapped(POSITIONS * PLAIN * factors), atol=2e-3)


def test_the_epsilon_of_a_norm_can_be_chosen() -> None:
    x = np.arange(40.0).reshape(5, 8)
    for call, expected in [
        ("rmsnorm(x, w, over=E, eps=2)", x / np.sqrt((x**2).mean(-1, keepdims=True) + 2)),
        ("rmsnorm(x, w, over=E)", x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)),
        ("layernorm(x, w, over=E, eps=0.5)", (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 0.5)),
    ]:
        one = program(call)
        (result,) = one.results
        found = run_reference(one, dict(one.phases[0].sizes), {"x": x, "w": np.ones(8)})[result]
        np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("rmsnorm(x, w, over=E, eps=0)", "`eps=` takes a number above 0."),
        ("rope(x, over=E, at=L into M, base=0)", "`base=` takes a number above 0."),
        (
            "rope(x, over=E, at=L into M, scaling=4)",
            "`scaling=` takes `linear`, `first`, `llama3`, `yarn` or `longrope`.",
        ),
        (
            "rope(x, over=E, at=L into M, scaling=ntk(4))",
            "`scaling=` takes `linear`, `first`, `llama3`, `yarn` or `longrope`.",
        ),
        ("rope(x, over=E, at=L into M, scaling=linear(E))", "`linear` takes numbers above 0: `factor`."),
        ("rope(x, over=E, at=L into M, scaling=linear())", "`linear` takes numbers above 0: `factor`."),
        ("rope(x, over=E, at=L into M, scaling=linear(0))", "`linear` takes numbers above 0: `factor`."),
        ("rope(x, over=E, at=L into M, scaling=llama3(8, 1, 4))", "`factor`, `low`, `high`, `original`."),
        ("rope(x, over=E, at=L into M, scaling=llama3(8, 4, 4, 10))", "is below the high one."),
        ("rmsnorm(x, w, over=E, scaling=linear(4))", "`rmsnorm` has no keyword `scaling`."),
    ],
)
def test_what_does_not_fit_is_refused(call: str, said: str) -> None:
    with pytest.raises(InputError) as error:
        program(call)
    assert said in str(error.value)
