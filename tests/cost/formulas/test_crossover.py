"""The published results, derived from the formulas of pinned plans and compared with what is published.

Sources: Pope et al. 2022, sections 3.2 and A.1 to A.2; the torus convention is that of the scaling
book (k axes at once give k W). Sizes in bf16: two bytes for each element.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import sympy
from sympy import Expr, Rational, Symbol, oo, sqrt

from escc.compiler.report.compare import Turn, cheapest, crossovers
from escc.cost.formulas.symbolic import Bandwidth, Form, symbolic
from escc.cost.hardware import Hardware
from escc.cost.network import bytes_sent
from escc.ir.mesh import Mesh
from escc.ir.text.pins import parse_pins
from escc.ir.text.read import parse, read_source
from escc.passes.choose import choose
from escc.passes.expansion.expand import expand
from escc.passes.lower.insert import insert
from escc.passes.options import Options
from escc.passes.plan import Objective

EXAMPLES = Path(__file__).parents[3] / "examples"
B, L, E, F, X, Y, Z, n, N, T, bw, W = sympy.symbols("B L E F X Y Z n N T bw W", positive=True)
ELEMENT = 2  # bytes
SIZES = {E: 16384, F: 65536, X: 4, Y: 4, Z: 4}


@dataclass(frozen=True)
class Minimum:
    """Where a cost is least, and what it is there."""

    at: Expr
    cost: Expr


def regroup(cost: Expr, factors: Sequence[Symbol], product: Symbol) -> Expr:
    """The cost with `product` for that of `factors`; what does not depend on the product alone keeps
    all of them but the last.

    So the axes X, Y, Z become n chips, and B and L a number of tokens.
    """
    *others, last = factors
    return sympy.factor_terms(sympy.cancel(cost.subs(last, product / sympy.Mul(*others))), clear=False)


def minimise(cost: Expr, choice: Symbol) -> Minimum:
    """The least cost over all positive values of `choice`, as if it were continuous.

    Raises ValueError when there is no single stationary point, or when it is not the least.
    """
    slope = sympy.diff(cost, choice)
    points = [p for p in sympy.solve(slope, choice) if p.is_positive]
    if len(points) != 1 or not sympy.simplify(sympy.diff(slope, choice)).is_positive:
        raise ValueError(f"{cost} has no single least value over {choice}")
    at = sympy.simplify(points[0])
    return Minimum(at, sympy.simplify(cost.subs(choice, at)))


def as_square(difference: Expr) -> Expr:
    """The difference in a form that shows that it is never negative: positive factors and squares.

    Raises ValueError when it does not factor so over the square roots of its symbols.
    """
    symbols = sorted(difference.free_symbols, key=str)
    roots = {s: Symbol(f"{s}_root", positive=True) for s in symbols}
    factored = sympy.factor(sympy.powdenest(difference.subs({s: r**2 for s, r in roots.items()}), force=True))
    if not factored.is_nonnegative:
        raise ValueError(f"{difference} is not seen to be nonnegative")
    return factored.subs({r: sympy.sqrt(s) for s, r in roots.items()})


@cache
def cost(pins: str, form: Form = Form.EXACT, bandwidth: Bandwidth = Bandwidth.CHIP) -> Expr:
    """Seconds of communication of the feed-forward layer under published pins."""
    source = read_source(EXAMPLES / "feed-forward.esti")
    layer = expand(parse(source), source, {"B": 4096})
    fixed = parse_pins(read_source(EXAMPLES / "pins" / f"{pins}.pins"), layer)
    hardware = Hardware.of_paper("tpu-v4")
    plan = choose(layer, "main", Mesh.parse("4x4x4"), Options(hardware, Objective.COMMUNICATION, pins=fixed))
    (spmd,) = insert(plan)
    return symbolic(spmd, hardware, form, bandwidth).comm_s


def on_chips(formula: Expr) -> Expr:
    return regroup(formula, (X, Y, Z), n)


def best_2d(form: Form) -> sympy.Expr:
    return minimise(on_chips(cost("ws2d", form)), X)


def equal(derived: Expr, stated: Expr) -> bool:
    return bool(sympy.simplify(derived - stated) == 0)


# A.1


@pytest.mark.parametrize(
    ("kind", "exact", "large"),
    [
        ("all-gather", lambda before, after, k: after / bw * (k - 1) / k, lambda before, after: after / bw),
        ("reduce-scatter", lambda before, after, k: before / bw * (k - 1) / k, lambda before, after: before / bw),
        ("all-reduce", lambda before, after, k: 2 * before / bw * (k - 1) / k, lambda before, after: 2 * before / bw),
    ],
)
def test_a1_one_collective(kind, exact, large) -> None:  # type: ignore[no-untyped-def]
    before, after, k = sympy.symbols("before after K", positive=True)
    time = bytes_sent(kind, before, after, k) / bw
    assert equal(time, exact(before, after, k))
    assert equal(sympy.limit(time, k, oo), large(before, after))


# 3.2 and A.2, the table


def test_1d_weight_stationary() -> None:
    assert equal(cost("ws1d", Form.LARGE), ELEMENT * 2 * B * L * E / bw)


def test_2d_weight_stationary() -> None:
    assert equal(cost("ws2d", Form.LARGE), ELEMENT * 2 * B * L / bw * (E / X + F / (Y * Z)))


@pytest.mark.parametrize(("pins", "ways"), [("wg-x", X), ("wg-xy", X * Y)])
def test_weight_gathered(pins: str, ways: Expr) -> None:
    stated = 2 * E * F * ways / (X * Y * Z * bw) + 2 * B * L * E / (ways * bw)
    assert equal(cost(pins, Form.LARGE), ELEMENT * stated)


def test_weight_gathered_whole() -> None:
    assert equal(cost("wg-xyz", Form.LARGE), ELEMENT * 2 * E * F / bw)


@pytest.mark.parametrize(("pins", "ways"), [("wg-x", X), ("wg-xy", X * Y), ("wg-xyz", X * Y * Z)])
def test_weight_gathered_exactly(pins: str, ways: Expr) -> None:
    chips = X * Y * Z
    rest = chips / ways
    weights = 2 * E * F * ways / chips * (ways - 1) / ways
    activations = 2 * B * L * E / ways * (rest - 1) / rest
    assert equal(cost(pins), ELEMENT * (weights + activations) / bw)


# 2D, choosing X


def test_2d_best_x() -> None:
    best = best_2d(Form.LARGE)
    assert equal(best.at, sqrt(n * E / F))
    assert equal(best.cost, ELEMENT * 4 * B * L * sqrt(E * F) / (sqrt(n) * bw))


def test_2d_best_x_at_f_4e() -> None:
    best = best_2d(Form.LARGE)
    at = best.at.subs(F, 4 * E)
    assert equal(at, sqrt(n) / 2)
    assert equal(n / at, 2 * sqrt(n))
    assert equal(best.cost.subs(F, 4 * E), ELEMENT * 8 * B * L * E / (sqrt(n) * bw))


def test_2d_best_x_is_the_same_with_exact_factors() -> None:
    assert equal(best_2d(Form.EXACT).at, sqrt(n * E / F))


def test_2d_beats_1d_for_many_chips_from_four_f_over_e_on() -> None:
    gain = on_chips(cost("ws1d", Form.LARGE)) - best_2d(Form.LARGE).cost
    (at,) = crossovers(gain, sympy.Integer(0), n)
    assert equal(at, 4 * F / E)
    assert equal(at.subs(F, 4 * E), sympy.Integer(16))
    assert sympy.simplify(gain.subs(n, 4 * at)).is_positive
    assert sympy.simplify(gain.subs(n, at / 4)).is_negative


def test_2d_is_never_worse_than_1d_with_exact_factors() -> None:
    gain = on_chips(cost("ws1d")) - best_2d(Form.EXACT).cost
    shown = as_square(gain)
    assert equal(shown, ELEMENT * 2 * B * L / (n * bw) * (sqrt(n * E) - sqrt(F)) ** 2)
    assert [equal(point, F / E) for point in crossovers(gain, sympy.Integer(0), n)] == [True]


# Weight-gathered, choosing N


@pytest.mark.parametrize(("pins", "over"), [("wg-x", (X,)), ("wg-xy", (X, Y))])
def test_weight_gathered_best_n(pins: str, over: tuple[Symbol, ...]) -> None:
    best = minimise(regroup(on_chips(cost(pins, Form.LARGE)), over, N), N)
    assert equal(best.at, sqrt(B * L * n / F))
    assert equal(best.cost, ELEMENT * 4 * E * sqrt(B * L * F) / (sqrt(n) * bw))


# Crossovers


@pytest.mark.parametrize(
    ("first", "second", "tokens"), [("ws2d", "wg-x", 16_384), ("wg-x", "wg-xy", 65_536), ("wg-xy", "wg-xyz", 1_048_576)]
)
def test_tokens_at_which_the_cheapest_layout_changes(first: str, second: str, tokens: int) -> None:
    (at,) = crossovers(*(regroup(cost(pins), (L, B), T) for pins in (first, second)), T)
    assert at.subs(SIZES) == tokens


def test_regimes() -> None:
    costs = {p: regroup(cost(p), (L, B), T).subs({**SIZES, bw: 1}) for p in ("wg-xyz", "ws1d", "wg-xy", "wg-x", "ws2d")}
    assert cheapest(costs, T) == (
        Turn(0, "ws2d"),
        Turn(16_384, "wg-x"),
        Turn(65_536, "wg-xy"),
        Turn(1_048_576, "wg-xyz"),
    )


# The same where each axis of a torus has its own bandwidth


def torus(pins: str) -> Expr:
    return cost(pins, Form.LARGE, Bandwidth.AXIS)


def test_torus_2d() -> None:
    assert equal(torus("ws2d"), 2 * B * L * E / (X * W) + 4 * B * L * F / (Y * Z * W))


def test_torus_2d_best_x() -> None:
    best = minimise(on_chips(torus("ws2d")), X)
    at, least = (formula.subs(F, 4 * E) for formula in (best.at, best.cost))
    assert equal(at, sqrt(n / 8))
    assert equal(n / at, sqrt(8 * n))
    assert equal(least, sqrt(128) * B * L * E / (sqrt(n) * W))


def test_torus_1d() -> None:
    assert equal(torus("ws1d"), Rational(4, 3) * B * L * E / W)


def test_torus_2d_equals_1d() -> None:
    (at,) = crossovers(minimise(on_chips(torus("ws2d")), X).cost, torus("ws1d"), n)
    assert equal(at, 18 * F / E)
    assert at.subs(F, 4 * E) == 72


def test_only_positive_sizes_count() -> None:
    size = Symbol("size")  # nothing is known of its sign
    assert crossovers(size**2, sympy.Integer(4), size) == (2,)


def test_costs_of_two_protocols_cross_where_the_quicker_ones_do() -> None:
    """Each is the quickest of some, one of these the slower of two more; what is the same for a while crosses where it
    parts."""
    first = sympy.Min(3 * B, B + 4, evaluate=False)
    second = sympy.Min(4 * B, sympy.Max(B + 3, 2 * B, evaluate=False), 2 * B + 5, evaluate=False)
    assert crossovers(first, second, B) == (Rational(3, 2), 4)
    assert cheapest({"a": first, "b": second}, B) == (Turn(0, "a"), Turn(1.5, "b"), Turn(4, "a"))
    assert crossovers(sympy.Min(B, 4), sympy.Min(B, 6), B) == (4,)
    assert cheapest({"a": sympy.Min(B, 6), "b": sympy.Min(B, 4)}, B) == (Turn(0, "a"), Turn(4, "b"))


def test_equal_costs_do_not_cross() -> None:
    assert crossovers(B * E, E * B, B) == ()
    assert cheapest({"a": 2 * B, "b": 2 * B}, B) == (Turn(0, "a"),)
