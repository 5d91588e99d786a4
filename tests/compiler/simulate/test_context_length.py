"""A context shorter than its cache: `context(M)` in text, densely, on virtual chips and in emitted files."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from exec_cases import CASES
from helpers_exec import Build, call

from escc.compiler.emit.numpy_source import emit_numpy
from escc.compiler.simulate.reference import random_stored, run_reference
from escc.compiler.simulate.spmd_interpreter import ExecutionError, run_spmd
from escc.ir.diagnostics import InputError, Source
from escc.ir.expr import Call, Context, Operand, Rotate, Size, context_dims, counted_dims, linear_operands, sized_dims
from escc.ir.program import Iota, Program
from escc.ir.text.expressions import ExprParser, format_expr
from escc.ir.text.read import parse
from escc.passes.expansion.expand import expand

ATTENTION = """
dim B = 2, L = 3, M = 12, E = 4, V = 16
param places: f32[V,E]
cache keys, values: f32[B,M,E]
main(q: f32[B,L,E], k: f32[B,L,E], v: f32[B,L,E]) {
  rq = rope(q, over=E, at=L into M)
  ks = append(keys, rope(k, over=E, at=L into M), L into M)
  vs = append(values, v + take(places, positions(L into M), over=V), L into M)
  s[B,L,M] = rq[B,L,E] * ks[B,M,E]
  p = softmax(s, over=M, mask=causal(L, M))
  o[B,L,E] = p[B,L,M] * vs[B,M,E]
  return o * log(context(M))
}
"""


def program(text: str) -> Program:
    source = Source("model.esti", text)
    return expand(parse(source), source)


@pytest.mark.parametrize("filled", [3, 7, 11, 12])
def test_a_cache_that_is_filled_in_part_is_as_one_of_that_length(filled: int) -> None:
    made = program(ATTENTION)
    sizes = dict(made.phases[0].sizes)
    stored = random_stored(made, sizes, seed=0)
    short = stored | {name: stored[name][:, :filled] for name in ("keys", "values")}
    found = run_reference(made, sizes, stored, {"M": filled})
    wanted = run_reference(made, {**sizes, "M": filled}, short)
    assert np.allclose(found["return"], wanted["return"], rtol=0, atol=1e-12)
    for cache, version in (("keys", "ks"), ("values", "vs")):
        assert np.allclose(found[version][:, :filled], wanted[version], rtol=0, atol=1e-12)
        assert np.array_equal(found[version][:, filled:], stored[cache][:, filled:])
    if filled < sizes["M"]:
        assert not np.allclose(found["return"], run_reference(made, sizes, stored)["return"], rtol=0, atol=1e-3)


def appended(stored: dict[str, Any], filled: int) -> np.ndarray:
    """The cache of the case `cache append` after a step, by hand: five entries end where `filled` says."""
    cache = stored["keys"].copy()
    cache[:, filled - 5 : filled] = stored["k"]
    return cache


@pytest.mark.parametrize("filled", range(5, 13))
def test_the_owners_of_the_places_write(filled: int) -> None:
    builder, results, _ = CASES["cache append"]()
    stored = random_stored(builder.program(*results), builder.sizes, seed=1)
    run = run_spmd(builder.spmd(*results), stored, {"M": filled})
    assert np.array_equal(run.results["ks"], appended(stored, filled))
    assert np.array_equal(
        run_reference(builder.program(*results), builder.sizes, stored, {"M": filled})["ks"], run.results["ks"]
    )


@pytest.mark.parametrize("filled", [4, 13])
def test_entries_that_do_not_fit_are_an_error(filled: int) -> None:
    builder, results, _ = CASES["cache append"]()
    stored = random_stored(builder.program(*results), builder.sizes, seed=1)
    with pytest.raises(ExecutionError, match=f"`ks`: 5 entries do not fit before place {filled} of 12"):
        run_spmd(builder.spmd(*results), stored, {"M": filled})


def test_an_emitted_file_takes_the_context() -> None:
    builder, results, _ = CASES["cache append"]()
    small: dict[str, Any] = {"__name__": "emitted"}
    text = emit_numpy(builder.program(*results), builder.spmd(*results))
    exec(compile(text, "emitted.py", "exec"), small)
    size, stored = small["size"], small["random_stored"](seed=2)
    new, places = size["L"], size["M"]
    for filled in (new, places - 1, places):
        wanted = stored["keys"].copy()
        wanted[:, filled - new : filled] = stored["k"]
        for function in (small["sharded"], small["dense"]):
            assert np.array_equal(function(stored, {"M": filled})["ks"], wanted)
            if filled == places:
                assert np.array_equal(function(stored)["ks"], wanted)
    builder, results, _ = CASES["rope"]()
    assert "context" not in emit_numpy(builder.program(*results), builder.spmd(*results))


def test_an_emitted_map_reads_the_context() -> None:
    b = Build("2", L=4, M=8)
    b.op(Iota("i", "L"), "L_x", "i32")
    b.map("at", call("add", "i", call("subtract", Context("M"), 3.0)), "L_x", "f32")
    small: dict[str, Any] = {"__name__": "emitted"}
    exec(compile(emit_numpy(b.program("at"), b.spmd("at")), "emitted.py", "exec"), small)
    wanted = np.arange(small["size"]["L"]) + 2.0
    assert np.array_equal(small["sharded"]({}, {"M": 5})["at"], wanted)
    assert np.array_equal(small["dense"]({}, {"M": 5})["at"], wanted)
    assert np.array_equal(run_spmd(b.spmd("at"), {}, {"M": 5}).results["at"], np.arange(4) + 2.0)


def test_watched_values_are_returned_whole() -> None:
    builder, results, _ = CASES["feed-forward"]()
    stored = random_stored(builder.program(*results), builder.sizes, seed=0)
    run = run_spmd(builder.spmd(*results), stored, watch=("u", "h"))
    dense = run_reference(builder.program(*results), builder.sizes, stored, watch=("u", "h"))
    for name in ("u", "h"):  # `u` is a partial sum
        assert np.allclose(run.results[name], dense[name], rtol=0, atol=1e-12)
    assert "u" not in run_spmd(builder.spmd(*results), stored).results


def test_its_text_reads_back() -> None:
    expr = Call("multiply", (Operand("x"), Call("log", (Context("M"),))))
    assert format_expr(expr) == "x * log(context(M))"
    assert ExprParser("x * log(context(M))").expression() == expr
    assert context_dims(Call("add", (expr, Rotate(Context("N"), "Q")))) == {"M", "N"}
    assert sized_dims(expr) == {"M"}
    own = Call("subtract", (Call("add", (Operand("i"), Context("M"))), Call("multiply", (Size("K"), Size("G")))))
    assert counted_dims(Call("divide", (Rotate(own, "Q"), Size("Q")))) == {"M": {"K", "G"}}
    assert linear_operands(expr) == {"x"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("context(E, M)", "`context` takes one dim."),
        ("context(x)", "Dim `x` is not declared."),
        ("context(H)", "`context` takes a dim of its own, and `H` is a product of dims."),
    ],
)
def test_what_has_no_context_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        program(f"dim E = 2, M = 3, H = E * M\nmain(x: f32[E]) {{ return x * {text} }}")
    assert message in "\n".join(d.message for d in error.value.diagnostics)
