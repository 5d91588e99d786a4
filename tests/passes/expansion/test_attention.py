"""Masks and sinks of attention, against loops and the formulas; what does not fit is refused."""

from __future__ import annotations

import numpy as np
import pytest

from escc.compiler.simulate.reference import run_reference
from escc.ir.diagnostics import InputError, Source
from escc.ir.program import Einsum, Map, Program, Reduce, Repeat
from escc.ir.text.read import parse
from escc.passes.expansion.expand import expand

L, M = 5, 12
HEAD = f"dim B = 2, K = 2, G = 3, L = {L}, M = {M}, T = L\ndim H = K * G\n"


def program(call: str, inputs: str = "x: f32[B,H,L,M]") -> Program:
    source = Source("a.esti", f"{HEAD}main({inputs}) {{ return {call} }}\n")
    return expand(parse(source), source)


def result(call: str, contexts: dict[str, int] | None = None, **given: np.ndarray) -> np.ndarray:
    """The result of a call, `x` being scores of queries L for keys M, and other arguments having the dims of heads."""
    inputs = ", ".join("x: f32[B,H,L,M]" if name == "x" else f"{name}: f32[H]" for name in given)
    one = program(call, inputs)
    return run_reference(one, dict(one.phases[0].sizes), given, contexts)[one.results[0]]


def scores() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((2, 2, 3, L, M))


def seen(mask: str, filled: int = M) -> np.ndarray:
    """Which keys each query sees, by what the words say, place by place."""
    found = np.zeros((L, M), dtype=bool)
    for query in range(L):
        own = filled - L + query
        for key in range(own + 1):
            found[query, key] = {
                "": True,
                ", window=1": key == own,
                ", window=4": own - key < 4,
                ", window=100": True,
                ", chunk=1": key == own,
                ", chunk=3": own // 3 == key // 3,
                ", chunk=100": True,
                ", window=4, chunk=5": own - key < 4 and own // 5 == key // 5,
            }[mask]
    return found


MASKS = ("", ", window=1", ", window=4", ", window=100", ", chunk=1", ", chunk=3", ", chunk=100", ", window=4, chunk=5")


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("filled", [M, 7])
def test_a_query_sees_its_window_and_its_chunk(mask: str, filled: int) -> None:
    x = scores()
    found = result(f"softmax(x, over=M, mask=causal(L, M{mask}))", {"M": filled}, x=x)
    counts = np.where(seen(mask, filled), np.exp(x), 0)
    np.testing.assert_allclose(found, counts / counts.sum(-1, keepdims=True), rtol=1e-12)


@pytest.mark.parametrize("chunk", [3, 7, 41, 49, 8191, 8192, 65535])
def test_the_first_place_of_a_chunk_is_exact_in_32_bits(chunk: int) -> None:
    places = np.unique(np.clip(np.arange(1, 2**20, chunk)[:, None] + np.arange(-2, 2), 0, None))
    middle = places.astype(np.float32) + np.float32(0.5)
    reciprocal = np.float32(1) / np.float32(chunk)  # what compilers make of a division by a constant
    for quotient in (middle * reciprocal, middle / np.float32(chunk)):
        assert quotient.dtype == np.float32
        np.testing.assert_array_equal(np.floor(quotient), places // chunk)


def with_sink(x: np.ndarray, sink: np.ndarray) -> np.ndarray:
    """The softmax over the keys and the sink, which has x's dims but the last, less the sink's share."""
    every = np.concatenate([x, np.broadcast_to(sink[..., None], (*x.shape[:-1], 1))], axis=-1)
    counts = np.exp(every - every.max(-1, keepdims=True))
    return np.asarray(counts / counts.sum(-1, keepdims=True))[..., :-1]


@pytest.mark.parametrize("offset", [0.0, 800.0, -800.0])
def test_a_sink_takes_its_share_whatever_is_largest(offset: float) -> None:
    x, z = scores(), np.random.default_rng(1).standard_normal((2, 3)) + offset
    wide = np.broadcast_to(z[:, :, None], (2, 2, 3, L))
    found = result("softmax(x, over=M, sink=z)", x=x, z=z)
    np.testing.assert_allclose(found, with_sink(x, wide), rtol=1e-12)
    masked = np.where(seen(", window=4"), x, -np.inf)
    found = result("softmax(x, over=M, mask=causal(L, M, window=4), sink=z)", x=x, z=z)
    np.testing.assert_allclose(found, with_sink(masked, wide), rtol=1e-12)
    found = result("softmax(x, over=M, sink=z * 2 - 1)", x=x, z=z)
    np.testing.assert_allclose(found, with_sink(x, wide * 2 - 1), rtol=1e-12)


def test_a_sink_may_be_a_number() -> None:
    x = scores()
    found = result("softmax(x, over=M, sink=0)", x=x)  # 1 joins the sum
    np.testing.assert_allclose(found, np.exp(x) / (1 + np.exp(x).sum(-1, keepdims=True)), rtol=1e-12)
    found = result("softmax(x, over=M, sink=-2.5)", x=x)
    np.testing.assert_allclose(found, with_sink(x, np.full((2, 2, 3, L), -2.5)), rtol=1e-12)


def test_a_fully_masked_row_gives_zeros() -> None:
    """Of 5 queries at the end of 2 places the first three stand before every key."""
    found = result("softmax(x, over=M, mask=causal(L, M))", {"M": 2}, x=scores())
    assert not found[..., : L - 2, :].any()
    np.testing.assert_allclose(found[..., L - 2 :, :].sum(axis=-1), 1)


def test_a_row_that_sees_nothing_but_its_sink_gives_zeros() -> None:
    source = Source(
        "a.esti", f"{HEAD}main(x: f32[M,L], z: f32[L]) {{\nreturn softmax(x, over=M, mask=causal(L, M), sink=z) }}\n"
    )
    one = expand(parse(source), source)
    given, filled = {"x": np.ones((M, L)), "z": np.zeros(L)}, 3
    found = run_reference(one, dict(one.phases[0].sizes), given, {"M": filled})[one.results[0]]
    assert not found[:, : L - filled].any() and np.isfinite(found).all()
    np.testing.assert_allclose(found[:filled, -1], np.e / (1 + filled * np.e))


def test_a_sink_joins_what_is_complete() -> None:
    one = program("softmax(x, over=M, sink=z)", "x: f32[B,H,L,M], z: f32[H]")
    kinds = {op.result.split(".")[-1]: type(op) for op in one.body.items if not isinstance(op, Repeat)}
    assert (kinds["max"], kinds["top"], kinds["sum"], kinds["total"]) == (Reduce, Map, Einsum, Map)
    dims = {value.name.split(".")[-1]: value.dims for value in one.values}
    assert dims["top"] == dims["total"] == ("B", "K", "G", "L")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("softmax(x, over=M, sink=m)", "The sink has dim `M`, which the sums do not have."),
        ("softmax(x, over=M, sink=m)", "their dims are `B`, `K`, `G`, `L`"),
        ("softmax(x, over=M, sink=t)", "The sink has dim `T`"),
        ("softmax(x, over=M, sink=i)", "`i` holds i32 indices"),
        ("softmax(x, over=M, sink=H)", "Value `H` is not declared."),
        ("softmax(x, over=M, sink=zz)", "Value `zz` is not declared."),
        ("softmax(x, over=M, sink=[H])", "`sink=` takes a value, or a number."),
        ("softmax(x, over=M, sink=L into M)", "`sink=` takes a value, or a number."),
        ("softmax(x, over=M, sink=t, sink=t)", "The keyword `sink` is given twice."),
        ("max(x, over=M, sink=t)", "`max` has no keyword `sink`."),
    ],
)
def test_sinks_that_do_not_fit_are_refused(call: str, said: str) -> None:
    with pytest.raises(InputError) as error:
        program(call, "x: f32[B,H,L,M], m: f32[M], t: f32[T], i: i32[H]")
    assert said in str(error.value)


def test_what_a_query_sees_first_is_worked_out_once_for_a_query() -> None:
    one = program("softmax(x, over=M, mask=causal(L, M, window=4, chunk=5))")
    dims = {value.name: value.dims for value in one.values}
    (first,) = [op.result for op in one.body.items if isinstance(op, Map) and op.result.endswith(".first")]
    assert dims[first] == ("L",)
    plain = program("softmax(x, over=M, mask=causal(L, M))")
    assert not any(value.name.endswith(".first") for value in plain.values)


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        ("causal(L, M, window=0)", "`window=` takes a whole number from 1 on."),
        ("causal(L, M, window=2.5)", "write `window=128`"),
        ("causal(L, M, window=-4)", "`window=` takes a whole number from 1 on."),
        ("causal(L, M, window=M)", "`window=` takes a whole number from 1 on."),
        ("causal(L, M, chunk=0)", "write `chunk=8192`"),
        ("causal(L, M, chunk=1e30)", "`chunk=` takes a whole number from 1 on."),
        ("causal(L, M, chunk=2, chunk=3)", "The keyword `chunk` is given twice."),
        ("causal(L, M, size=2)", "`causal` has no keyword `size`."),
        ("causal(L, M, size=2)", "it takes `window=`, `chunk=`"),
        ("causal(L, M, 4)", "`causal` takes 2 dims."),
        ("causal(L, window=4)", "`causal` takes 2 dims."),
        ("causal(M, L)", "In phase `main`, M = 12 is more than L = 5."),
        ("causal(H, M, window=4)", "`causal` takes a dim of its own"),
        ("causal(T, M, window=4)", "The mask is over dim `T`, which the scores do not have."),
        ("sliding(L, M)", "`mask=` takes `causal(L, M)`."),
    ],
)
def test_masks_that_do_not_fit_are_refused(mask: str, said: str) -> None:
    with pytest.raises(InputError) as error:
        program(f"softmax(x, over=M, mask={mask})")
    assert said in str(error.value)
