"""The dense reference, op by op, against loops and the mathematics written out."""

from __future__ import annotations

import math

import numpy as np
import pytest
from helpers_exec import Build, call

from escc.compiler.simulate.pointwise import APPLY
from escc.compiler.simulate.reference import random_stored, run_reference
from escc.ir.expr import FUNCTIONS, Expr, Operand, Rotate, Size
from escc.ir.program import Append, Carry, Iota, Kind, Map, Op, Reduce, Sum, Take, TopK

SIZES = {"B": 2, "L": 3, "M": 5, "E": 4, "V": 7}


def result_of(op: Op, layout: str, **stored: str) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The dense result of one op on random tensors of the given dims, and these."""
    b = Build("1", **SIZES)
    for name, dims in stored.items():
        b.stored(name, dims, Kind.INPUT, "i32" if name == "ids" else "f32")
    b.op(op, layout)
    program = b.program(op.result)
    data = random_stored(program, SIZES, seed=1)
    return run_reference(program, SIZES, data)[op.result], data


def result_of_map(expr: Expr, layout: str, **stored: str) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The same of a pointwise expression."""
    return result_of(Map("y", expr), layout, **stored)


X = np.array([-2.5, -1.0, -0.0, 0.3, 1.0, 4.0])
Y = np.array([1.5, -1.0, 2.0, 0.3, 0.5, -3.0])
TRUTH = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b,
    "negate": lambda a: -a,
    "exp": math.exp,
    "log": lambda a: math.log(a) if a > 0 else None,
    "sqrt": lambda a: math.sqrt(a) if a >= 0 else None,
    "rsqrt": lambda a: a**-0.5 if a > 0 else None,
    "tanh": math.tanh,
    "erf": math.erf,
    "sigmoid": lambda a: 1 / (1 + math.exp(-a)),
    "silu": lambda a: a / (1 + math.exp(-a)),
    "gelu": lambda a: a / 2 * (1 + math.tanh((2 / math.pi) ** 0.5 * (a + 0.044715 * a**3))),
    "gelu_exact": lambda a: a / 2 * math.erfc(-a / math.sqrt(2)),
    "relu": lambda a: max(a, 0),
    "abs": abs,
    "sin": math.sin,
    "cos": math.cos,
    "floor": math.floor,
    "maximum": max,
    "minimum": min,
    "power": lambda a, b: a**b if a > 0 else None,
    "less_equal": lambda a, b: float(a <= b),
    "equal": lambda a, b: float(a == b),
    "where": lambda c, a, b: a if c else b,
}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_function_is_what_its_name_says(function: str) -> None:
    arguments = (X, Y, X * Y)[: FUNCTIONS[function]]
    with np.errstate(all="ignore"):
        actual = APPLY[function](*arguments)
    for i, here in enumerate(zip(*arguments, strict=True)):
        expected = TRUTH[function](*(float(a) for a in here))
        if expected is not None:
            assert actual[i] == pytest.approx(expected, rel=1e-14, abs=1e-15)


def test_the_exact_gelu_keeps_its_digits_far_below_zero() -> None:
    x = -12.0
    tail = math.exp(-x * x / 2) / math.sqrt(2 * math.pi)  # of the normal distribution, by its asymptotic series
    phi = tail / -x * sum((-1) ** n * math.prod(range(1, 2 * n, 2)) / x ** (2 * n) for n in range(16))
    assert APPLY["gelu_exact"](np.array([x]))[0] == pytest.approx(x * phi, rel=1e-13)
    assert APPLY["gelu_exact"](np.zeros((0, 3))).shape == (0, 3)


def test_the_error_function_of_any_shape() -> None:
    x = np.array([[-np.inf, -1e-300, 0.0], [1e-9, 0.5, np.inf]])
    expected = [[-1.0, -2e-300 / math.sqrt(math.pi), 0.0], [2e-9 / math.sqrt(math.pi), 0.5204998778130465, 1.0]]
    np.testing.assert_allclose(APPLY["erf"](x), expected, rtol=1e-15)
    assert np.isnan(APPLY["erf"](np.array(np.nan))) and APPLY["erf"](np.zeros((2, 0))).shape == (2, 0)


def test_the_logistic_does_not_overflow() -> None:
    with np.errstate(over="raise"):
        assert APPLY["sigmoid"](np.array([-1e4, 1e4])) == pytest.approx([0.0, 1.0])


def test_map_broadcasts_by_name_and_knows_sizes() -> None:
    expr = call("add", call("multiply", "a", "b"), call("divide", Size("M"), "c"))
    y, d = result_of_map(expr, "BLE", a="EB", b="L", c="BLE")
    for b, i, e in np.ndindex(2, 3, 4):
        assert y[b, i, e] == pytest.approx(d["a"][e, b] * d["b"][i] + 5 / d["c"][b, i, e], rel=1e-14)


def test_map_may_spread_over_dims_that_no_operand_has() -> None:
    y, d = result_of_map(Operand("a"), "BLE", a="E")
    assert y.shape == (2, 3, 4) and np.array_equal(y[1, 2], d["a"])


def test_rotate_turns_pairs_along_its_dim() -> None:
    y, d = result_of_map(Rotate(Operand("a"), "E"), "EB", a="EB")
    a = d["a"]
    assert np.array_equal(y, np.stack([-a[1], a[0], -a[3], a[2]]))


def test_einsum_sums_what_the_output_lacks() -> None:
    b = Build("1", **SIZES)
    b.stored("a", "BE", Kind.INPUT)
    b.stored("w", "EM", Kind.INPUT)
    b.einsum("y", "BE,EM,BE->M", "a", "w", "a", layout="M")
    data = random_stored(b.program("y"), SIZES, 0)
    y = run_reference(b.program("y"), SIZES, data)["y"]
    for m in range(5):
        expected = sum(data["a"][i, e] ** 2 * data["w"][e, m] for i in range(2) for e in range(4))
        assert y[m] == pytest.approx(expected, rel=1e-13)


def test_sum_reduce_take_iota_append() -> None:
    y, d = result_of(Sum("y", ("a", "b"), (2.0, -1.0)), "BL", a="BL", b="L")
    assert np.allclose(y, 2 * d["a"] - d["b"][None, :], rtol=1e-15)
    y, d = result_of(Reduce("y", "a", ("B", "M")), "L", a="BLM")
    assert y.tolist() == [max(d["a"][b, i, m] for b in range(2) for m in range(5)) for i in range(3)]
    y, d = result_of(Take("y", "table", "ids", ("V",)), "BLE", table="EV", ids="BL")
    assert all(np.array_equal(y[b, i], d["table"][:, d["ids"][b, i]]) for b, i in np.ndindex(2, 3))
    y, d = result_of(Take("y", "table", "ids", ("V", "L")), "ME", table="EVL", ids="M")
    assert all(np.array_equal(y[m], d["table"][:, row // 3, row % 3]) for m, row in enumerate(d["ids"]))
    assert d["ids"].max() > 7
    y, d = result_of(TopK("y", "a", "b", ("V", "M"), "L"), "EL", a="VEM", b="MV")
    for e in range(4):
        pairs = sorted(((d["a"][v, e, m], d["b"][m, v]) for v in range(7) for m in range(5)), reverse=True)
        assert y[e].tolist() == [picked for _, picked in pairs[:3]]
    y, _ = result_of(Iota("y", "M"), "M", a="B")
    assert y.tolist() == [0, 1, 2, 3, 4]
    y, d = result_of(Append("y", "cache", "new", "L", "M"), "BME", cache="BME", new="LEB")
    assert np.array_equal(y[:, :2], d["cache"][:, :2])
    assert all(np.array_equal(y[b, 2 + i], d["new"][i, :, b]) for b, i in np.ndindex(2, 3))


def test_repeats_hand_over_carries_and_use_stored_tensors_of_their_own() -> None:
    b = Build("1", **SIZES)
    b.stored("x", "E", Kind.INPUT)
    b.stored("y", "E", Kind.INPUT)
    with b.repeat("outer", 2, Carry("x", "c", "c2", "rx"), Carry("y", "d", "c", "ry")):
        with b.repeat("inner", 3, Carry("c", "i", "n", "c1")):
            b.stored("w", "E")
            b.map("n", call("add", call("multiply", "i", "w"), "y"), "E")
        b.map("c2", call("add", "c1", "d"), "E")
    program = b.program("rx", "ry")
    data = random_stored(program, SIZES, 0)
    assert data["w"].shape == (2, 3, 4)
    x, c, d = data["x"], data["x"], data["y"]
    for outer in range(2):
        inner = c
        for i in range(3):
            inner = inner * data["w"][outer, i] + data["y"]
        c, d = inner + d, c
    results = run_reference(program, SIZES, data)
    assert np.allclose(results["rx"], c, rtol=1e-14) and np.allclose(results["ry"], d, rtol=1e-14)
    assert not np.allclose(c, x)


def test_random_data_is_seeded_scaled_in_range_and_without_symmetry() -> None:
    b = Build("1", B=8, E=400, F=300, V=3)
    b.stored("ids", "B", Kind.INPUT, "i32")
    b.stored("table", "VE")
    b.stored("W", "EF")
    b.op(Take("t", "table", "ids", ("V",)), "BE")
    b.einsum("y", "BE,EF->BF", "t", "W", layout="BF")
    program = b.program("y")
    one, same, other = (random_stored(program, b.sizes, seed) for seed in (0, 0, 1))
    assert all(np.array_equal(one[n], same[n]) for n in one)
    assert not np.array_equal(one["W"], other["W"])
    assert set(one["ids"].tolist()) == {0, 1, 2}
    assert one["W"].std() == pytest.approx(1 / 20, rel=0.05)
    assert run_reference(program, b.sizes, one)["y"].std() == pytest.approx(1, rel=0.3)
    assert len(np.unique(one["W"])) == one["W"].size


def test_counts_override_how_often_a_repeat_runs() -> None:
    builder, results = Build("1", E=4), ("out",)
    builder.stored("x", "E", Kind.INPUT)
    with builder.repeat("layer", 118, Carry("x", "c", "n", "out")):
        builder.stored("w", "E")
        builder.map("n", call("multiply", "c", "w"), "E")
    assert random_stored(builder.program(*results), builder.sizes, 0, {"layer": 2})["w"].shape == (2, 4)
