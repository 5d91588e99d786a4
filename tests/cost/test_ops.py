"""The work of each kind of op, by hand."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import permutations

import numpy as np
import pytest
import sympy

from escc.compiler.plan.pipeline import parse
from escc.cost.kernels import Launch
from escc.cost.ops import Work, flops, model_flops, work
from escc.ir.chosen import Chosen
from escc.ir.dtype import Dtype
from escc.ir.expr import Call, Operand
from escc.ir.program import Append, Einsum, Iota, Map, Op, Reduce, Sum, Take, TopK, Value, signature

SIZES = {"B": 8, "E": 10, "F": 12, "L": 2, "M": 20, "V": 100}
VALUES = {
    v.name: v
    for v in [
        Value("x", ("B", "E"), Dtype.BF16),
        Value("z", ("B", "E"), Dtype.BF16),
        Value("w", ("E", "F"), Dtype.BF16),
        Value("w8", ("E", "F"), Dtype.INT8),
        Value("w4", ("E", "F"), Dtype.INT4),
        Value("u", ("B", "F"), Dtype.BF16),
        Value("cache", ("B", "M", "F"), Dtype.INT8),
        Value("after", ("B", "M", "F"), Dtype.INT8),
        Value("new", ("B", "L", "F"), Dtype.BF16),
        Value("table", ("V", "E"), Dtype.BF16),
        Value("ids", ("B",), Dtype.I32),
        Value("y", ("B", "E"), Dtype.BF16),
        Value("b", ("B",), Dtype.F32),
        Value("i", ("M",), Dtype.I32),
    ]
}


def launch(*reads: str, writes: bool = False, caches: frozenset[str] = frozenset()) -> Launch:
    return Launch(frozenset(reads), caches, writes)


def done(op: Op, *reads: str, writes: bool = False, values: Mapping[str, Value] = VALUES, **more: int) -> Work:
    local = (SIZES | more).__getitem__
    return work(op, signature(op, values), values, launch(*reads, writes=writes), local, local)


def matmul(weights: str) -> Einsum:
    return Einsum("u", ("x", weights), (("B", "E"), ("E", "F")), ("B", "F"))


@pytest.mark.parametrize(("weights", "size"), [("w", 240), ("w8", 120), ("w4", 60)])
def test_a_matmul_multiplies_and_adds_and_reads_its_weights(weights: str, size: int) -> None:
    assert done(matmul(weights), weights) == Work(2 * 8 * 10 * 12, size)
    assert done(matmul(weights)) == Work(2 * 8 * 10 * 12, 0)


def test_what_comes_from_other_kernels_is_read_and_what_others_read_is_written() -> None:
    assert done(matmul("w"), "x").hbm_bytes == 8 * 10 * 2
    assert done(matmul("w"), writes=True).hbm_bytes == 8 * 12 * 2
    assert done(matmul("w8"), "x", "w8", writes=True).hbm_bytes == 160 + 120 + 192
    assert done(Reduce("b", "x", ("E",)), "x", writes=True) == Work(80, 160 + 8 * 4)  # its result is f32


def test_what_attention_reads_from_caches_is_counted_apart_as_well() -> None:
    scores = Einsum("s", ("u", "after"), (("B", "F"), ("B", "M", "F")), ("B", "M"))
    values = VALUES | {"s": Value("s", ("B", "M"), Dtype.BF16)}
    read = launch("u", "after", writes=True, caches=frozenset({"after"}))
    found = work(scores, signature(scores, values), values, read, SIZES.__getitem__, SIZES.__getitem__)
    cache = 8 * 20 * 12
    assert found == Work(2 * 8 * 20 * 12, cache + 8 * 12 * 2 + 8 * 20 * 2, cache)


def test_of_what_masks_hide_no_more_is_read_than_is_shown_where_that_is_of_every_query_and_key() -> None:
    """What has the context alone is read whole, by those of the queries that see it."""
    read, values = launch("after", "k"), VALUES | {"k": Value("k", ("B", "M"), Dtype.F32)}
    op = Einsum("u", ("k", "after"), (("B", "M"), ("B", "M", "F")), ("B", "F"))
    local, half = SIZES.__getitem__, 0.5

    def hbm_bytes(*cut: str) -> float:
        done = work(op, signature(op, values), values, read, local, local, half, frozenset(cut))
        assert done.flops == half * 2 * 8 * 20 * 12
        return float(done.hbm_bytes)

    whole, small = 8 * 20 * 12, 8 * 20 * 4
    assert hbm_bytes() == whole + small
    assert hbm_bytes("B", "M") == half * (whole + small)
    assert hbm_bytes("M", "F") == half * whole + small
    assert hbm_bytes("M", "L") == whole + small


def test_kernels_layers_and_steps_are_those_of_the_launch() -> None:
    started = Launch(frozenset(), frozenset(), False, kernels=1, layers=1, steps=0.25)
    op = matmul("w")
    found = work(op, signature(op, VALUES), VALUES, started, SIZES.__getitem__, SIZES.__getitem__)
    assert (found.kernels, found.layers, found.steps) == (1, 1, 0.25)


def test_other_einsums() -> None:
    assert done(Einsum("b", ("x",), (("B", "E"),), ("B",))).flops == 80
    three = Einsum("u", ("x", "w", "z"), (("B", "E"), ("E", "F"), ("B", "E")), ("B", "F"))
    assert done(three).flops == 2 * 960 + 80  # z is multiplied into x
    scaled = Einsum("u", ("x", "w8", "s"), (("B", "E"), ("E", "F"), ("F",)), ("B", "F"))
    values = VALUES | {"s": Value("s", ("F",), Dtype.F32)}
    # One matmul and a scale for each element of the result; the weights are read as they are stored.
    assert done(scaled, "w8", "s", values=values) == Work(2 * 960 + 96, 120 + 48)
    values |= {"s": Value("s", ("E",), Dtype.F32), "v": Value("v", ("F", "E2"), Dtype.BF16)}
    inner = Einsum("u", ("x", "w8", "s"), (("B", "E"), ("E", "F"), ("E",)), ("B", "F"))  # x is the smaller
    assert done(inner, values=values).flops == 2 * 960 + 80
    chain = Einsum("u", ("x", "w8", "v"), (("B", "E"), ("E", "F"), ("F", "E2")), ("B", "E2"))
    assert done(chain, values=values, E2=3).flops == 3 * 960 * 3
    # Read twice under other indices, a parameter is read twice; under the same, once.
    values = VALUES | {"s": Value("s", ("E", "E"), Dtype.BF16), "o": Value("o", ("B", "B2"), Dtype.BF16)}
    twice = Einsum("o", ("x", "x"), (("B", "E"), ("B2", "E")), ("B", "B2"))
    assert done(twice, "x", values=values, B2=8).hbm_bytes == 2 * 160
    square = Einsum("b", ("x", "x"), (("B", "E"), ("B", "E")), ("B",))
    assert done(square, "x", values=values) == Work(160, 160)


PRODUCTS = {  # factors, the result, and the arithmetic of F columns, by hand
    "a scale of what is summed": (("BE", "EF", "E"), "BF", {2: 320 + 20, 12: 1920 + 80}),
    "a scale of columns": (("BE", "EF", "F"), "BF", {2: 320 + 16, 12: 1920 + 96}),
    "a scale of all": (("BE", "EF", "F", "B"), "BF", {2: 320 + 16 + 16, 12: 1920 + 96 + 80}),
    "a scale of a scale": (("BE", "EF", "F", "BF"), "BF", {2: 320 + 16 + 16}),
    "a factor that others hold": (("B", "F", "BE"), "BEF", {12: 1920 + 80}),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_what_scales_a_product_is_multiplied_into_the_smallest_whatever_the_order(name: str) -> None:
    factors, output, expected = PRODUCTS[name]
    symbols = {index: sympy.Symbol(index, positive=True) for index in "BEF"}
    for order in permutations(factors):
        names = tuple(f"{each}{n}" for n, each in enumerate(order))
        values = {each: Value(each, tuple(own), Dtype.BF16) for each, own in zip(names, order, strict=True)}
        values["made"] = Value("made", tuple(output), Dtype.BF16)
        op = Einsum("made", names, tuple(map(tuple, order)), tuple(output))
        formula = flops(op, signature(op, values), values, symbols.__getitem__)
        for size, total in expected.items():
            sizes = SIZES | {"F": size}
            assert flops(op, signature(op, values), values, sizes.__getitem__) == total
            several = {i: np.array([n, n]) for i, n in sizes.items()}
            assert list(flops(op, signature(op, values), values, several.__getitem__)) == [total, total]
            assert formula.subs({symbol: sizes[i] for i, symbol in symbols.items()}) == total


def test_what_scales_rows_of_chosen_entries_scales_no_matrix_of_experts() -> None:
    every = (("x", "BXE"), ("w", "XEF"), ("s", "XF"))
    sizes = {"B": 100, "X": 4, "E": 10, "F": 3}
    chosen = (Chosen("m", ("B",), ("X",), 1),)
    for rows, scaled in (((), 120), (chosen, 1200)):
        values = {n: Value(n, tuple(d), Dtype.BF16, rows if n in "xu" else ()) for n, d in (*every, ("u", "BXF"))}
        for order in permutations(every):
            op = Einsum("u", tuple(n for n, _ in order), tuple(tuple(i) for _, i in order), tuple("BXF"))
            assert flops(op, signature(op, values), values, sizes.__getitem__) == 2 * 12000 + scaled


def test_pointwise_ops_count_their_calls() -> None:
    one = Map("y", Call("exp", (Operand("x"),)))
    two = Map("y", Call("add", (Call("exp", (Operand("x"),)), Operand("z"))))
    assert done(one) == Work(80, 0)
    assert done(two, "z") == Work(160, 160)
    assert done(two, "x", "z", writes=True) == Work(160, 3 * 160)


def test_sums_reductions_lookups() -> None:
    assert done(Sum("y", ("x", "z"), (1.0, -1.0))) == Work(160, 0)
    assert done(Reduce("b", "x", ("E",))) == Work(80, 0)
    assert done(Iota("i", "M")) == Work(0, 0)
    # A lookup reads the rows that it touches, not the table, and its numbers where they are not its own.
    assert done(Take("y", "table", "ids", ("V",)), "table") == Work(0, 8 * 10 * 2)
    assert done(Take("y", "table", "ids", ("V",)), "table", "ids") == Work(0, 8 * 10 * 2 + 8 * 4)
    assert done(Take("y", "table", "ids", ("V",))) == Work(0, 0)
    # Of a small table rows that are taken again come from a cache.
    near, take = Launch(frozenset({"table"}), frozenset(), False, near=True), Take("y", "table", "ids", ("V",))
    for rows, read in ((8, 8), (100, 100), (1000, 100)):
        local = (SIZES | {"B": rows}).__getitem__
        assert work(take, signature(take, VALUES), VALUES, near, local, local) == Work(0, read * 10 * 2)
    # Choosing the largest compares every key once.
    values = VALUES | {"k": Value("k", ("B", "M"), Dtype.BF16), "i": Value("i", ("E",), Dtype.I32)}
    assert done(TopK("k", "x", "i", ("E",), "M"), "x", values=values) == Work(80, 160)


def test_an_append_writes_what_is_new_in_the_type_of_the_cache() -> None:
    append = Append("after", "cache", "new", "L", "M")
    assert done(append, "cache") == Work(0, 8 * 2 * 12)
    # What another kernel made is read in its own type; that others read the cache after it writes no more.
    assert done(append, "cache", "new") == Work(0, 8 * 2 * 12 + 8 * 2 * 12 * 2)


def test_a_chip_appends_no_more_entries_than_it_has_places_for() -> None:
    """Of a context that is split, or of a cache that wraps: L = 16 entries, of which it keeps 5 of 20 places."""
    sizes = SIZES | {"L": 16}
    entry = 8 * 12  # of the cache in INT8, twice that of what is new
    for context, places, kept in ((None, 20, 16), (None, 5, 5), ("C", 20, 16), ("C", 5, 5)):
        append = Append("after", "cache", "new", "L", "M", context)
        whole = (sizes | {"M": 20 if context is None else places}).__getitem__
        local = (sizes | {"M": places}).__getitem__
        of = signature(append, VALUES)
        found = work(append, of, VALUES, launch("cache", "new"), local, whole)
        assert found == Work(0, kept * entry * 3)
        several = sizes | {"M": np.array([places, 20])}
        every = work(append, of, VALUES, launch("cache", "new"), several.__getitem__, whole)
        assert np.broadcast_to(every.hbm_bytes, 2).tolist() == [kept * entry * 3, 16 * entry * 3]


def test_symbols_do_as_numbers_do() -> None:
    symbols = {name: sympy.Symbol(name, positive=True) for name in SIZES}
    op = matmul("w")
    local = symbols.__getitem__
    found = work(op, signature(op, VALUES), VALUES, launch("w", "x", writes=True), local, local)
    assert sympy.simplify(found.flops - 2 * symbols["B"] * symbols["E"] * symbols["F"]) == 0
    rows, wide, out = (symbols[name] for name in "BEF")
    assert sympy.simplify(found.hbm_bytes - 2 * (wide * out + rows * wide + rows * out)) == 0


@pytest.mark.parametrize(
    "made",
    [
        "W2 = W * sigmoid(W)",
        "W1 = W * gate\n  W2 = exp(W1)",
        "at: f32 = positions(E into F)\n  W2: bf16 = W * at",
        "D[E,F] = A[E,S] * C[S,F]\n  W2 = W + D",
    ],
)
def test_model_flops_count_matrices_that_are_made_of_parameters(made: str) -> None:
    program = parse(f"""model "made"
dim B = 8, E = 16, F = 32, S = 2
main(x: bf16[B,E]) {{
  param W, gate: bf16[E,F]
  param A: bf16[E,S]
  param C: bf16[S,F]
  {made}
  y[B,F] = x[B,E] * W2[E,F]
  z[B] = y[B,F] * y[B,F]
  return z
}}""")
    merged = 2 * 16 * 2 * 32 if "D" in made else 0
    assert model_flops(program, "main") == 2 * 8 * 16 * 32 + merged
