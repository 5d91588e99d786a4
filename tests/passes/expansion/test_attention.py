"""Masks of attention, against loops over queries and keys; what does not fit is refused."""

from __future__ import annotations

import numpy as np
import pytest

from escc.compiler.simulate.reference import run_reference
from escc.ir.diagnostics import InputError, Source
from escc.ir.program import Map, Program
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
        ("causal(H, M, window=4)", "`causal` takes a dim of its own"),
        ("causal(T, M, window=4)", "The mask is over dim `T`, which the scores do not have."),
        ("sliding(L, M)", "`mask=` takes `causal(L, M)`."),
    ],
)
def test_masks_that_do_not_fit_are_refused(mask: str, said: str) -> None:
    with pytest.raises(InputError) as error:
        program(f"softmax(x, over=M, mask={mask})")
    assert said in str(error.value)
