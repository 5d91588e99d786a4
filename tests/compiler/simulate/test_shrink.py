"""Shrunken dims: every property that they are to have, on programs written by hand."""

from __future__ import annotations

import math

import pytest
from exec_cases import CASES
from helpers_exec import Build, call

from escc.compiler.plan.pipeline import compile_phase, parse, run_check, with_pins
from escc.compiler.simulate import shrink as module
from escc.compiler.simulate.shrink import Shrunken, shrink
from escc.cost.hardware import Hardware
from escc.ir.dataflow import ops
from escc.ir.diagnostics import Source
from escc.ir.expr import Context, Operand, Rotate, Size
from escc.ir.mesh import Mesh
from escc.ir.program import Append, Carry, Choose, Iota, Kind, Repeat, Take, walk
from escc.ir.spmd import SpmdProgram
from escc.passes.options import Options


def sizes_of(builder: Build, *results: str) -> dict[str, int]:
    shrunken = shrink(builder.program(*results), [builder.spmd(*results)])
    return dict(shrunken.spmds[0].sizes)


def split_ways(spmd: SpmdProgram) -> dict[str, set[int]]:
    """For each dim the numbers of blocks into which some value splits it."""
    ways: dict[str, set[int]] = {d: {1} for d, _ in spmd.sizes}
    for value in spmd.values:
        for dim, axes in zip(value.dims, value.layout.dims, strict=True):
            ways[dim].add(spmd.mesh.size(*axes))
    return ways


@pytest.mark.parametrize("name", CASES)
def test_dims_differ_divide_and_leave_no_shard_of_one(name: str) -> None:
    builder, results, _ = CASES[name]()
    sizes = sizes_of(builder, *results)
    assert set(sizes) == set(builder.sizes)
    large = [n for n in sizes.values() if n > 1]
    assert len(set(large)) == len(large)
    for dim, ways in split_ways(builder.spmd(*results)).items():
        assert (sizes[dim] == 1) == (builder.sizes[dim] == 1)
        if sizes[dim] > 1:
            assert all(sizes[dim] % n == 0 and sizes[dim] // n >= 2 for n in ways)


def test_sizes_are_the_least_common_multiple_of_all_splits() -> None:
    b = Build("4x3x2", B=4096, E=8192, F=16384, L=1)
    b.stored("x", "B_xLE", Kind.INPUT)
    b.stored("W", "E_yF_zx")
    b.stored("V", "E_zF")
    assert sizes_of(b) == {"B": 8, "L": 1, "E": 12, "F": 16}


def test_the_largest_op_gets_the_smallest_sizes() -> None:
    b = Build("2", B=64, E=64, F=64, Q=64)
    b.stored("x", "B_xE", Kind.INPUT)
    b.stored("small", "Q", Kind.INPUT)
    b.stored("W", "EF_x")
    b.einsum("y", "BE,EF->BF", "x", "W", layout="BF_x")
    assert sizes_of(b, "y") == {"B": 4, "F": 6, "E": 2, "Q": 3}


def normed(over: str, divided: bool = True) -> dict[str, int]:
    """The sizes of a program that sums squares over some dims, and then divides by the root of the mean, or by none."""
    b = Build("2", B=64, E=64, K=64, Q=64)
    b.stored("x", "BEKQ", Kind.INPUT)
    rest = "".join(d for d in "BEKQ" if d not in over)
    b.einsum("squares", f"BEKQ,BEKQ->{rest}", "x", "x", layout=rest)
    b.map("mean", call("divide", "squares", Size(over[0])), rest)
    b.map("y", call("multiply", "x", call("rsqrt", "mean") if divided else "mean"), "BEKQ")
    return sizes_of(b, "y")


def test_a_sum_that_is_divided_by_has_eight_terms() -> None:
    assert normed("E") == {"B": 2, "E": 8, "K": 3, "Q": 4}
    assert normed("E", divided=False) == {"B": 2, "E": 3, "K": 4, "Q": 5}


def test_a_sum_over_two_dims_has_eight_terms_of_both() -> None:
    assert normed("EK") == {"B": 2, "E": 3, "K": 4, "Q": 5}
    assert normed("EKQ") == {"B": 2, "E": 3, "K": 4, "Q": 5}


@pytest.mark.parametrize("between", [False, True])
def test_products_that_are_normed_have_sixteen_terms(between: bool) -> None:
    """Of fewer, of which an activation takes half, all are near 0 for some token, and so is all that is normed."""
    b = Build("2", B=64, E=64, F=64, G=64)
    b.stored("x", "BF", Kind.INPUT)
    b.stored("W", "FE")
    b.stored("V", "BG", Kind.INPUT)
    b.einsum("d", "BF,FE->BE", "x", "W", layout="BE")
    b.map("t", call("tanh", "d"), "BE")
    normed = "t" if between else "d"
    b.einsum("squares", "BE,BE->B", normed, normed, layout="B")
    b.map("y", call("multiply", normed, call("rsqrt", "squares")), "BE")
    assert sizes_of(b, "y") == {"B": 2, "E": 8, "F": 16, "G": 3}


NORMED = """
dim B, E = 6 pad 8
main(x: bf16[B,E]) {
  param scale: bf16[E]
  return rmsnorm(x, scale, over=E)
}
phase run { B = 8 }
"""


def test_a_padded_dim_has_eight_true_terms() -> None:
    pins = with_pins(parse(NORMED), Source("p", "stored x BE_x\n"))
    one = compile_phase(pins, "run", Mesh.parse("4"), Options(Hardware.load("h100")))
    [cut] = shrink(one.program, [one.spmd]).spmds
    sizes = dict(cut.sizes)
    assert sizes["E"] % 4 == 0 and sizes["E"] > one.program.true_sizes(sizes)["E"] >= 8


def test_pairs_stay_together() -> None:
    b = Build("3x2", Q=48, E=64)
    b.stored("q", "Q_xE", Kind.INPUT)
    b.stored("p", "QE", Kind.INPUT)
    b.map("r", call("add", Rotate(Operand("q"), "Q"), Rotate(Operand("p"), "E")), "Q_xE")
    sizes = sizes_of(b, "r")
    assert sizes["Q"] // 3 % 2 == 0 and sizes["E"] % 2 == 0
    assert sorted(sizes.values()) == [2, 6]


@pytest.mark.parametrize("source", [1, 64])
def test_an_appends_target_is_longer_than_its_source(source: int) -> None:
    b = Build("4", B=8, L=source, M=64)
    b.stored("keys", "BM", Kind.CACHE)
    b.stored("k", "BL", Kind.INPUT)
    b.stored("n", "BL" if source == 1 else "BL_x", Kind.INPUT)
    b.op(Append("ks", "keys", "k", "L", "M"), "BM")
    sizes = sizes_of(b, "ks")
    assert sizes["L"] == (1 if source == 1 else 8)
    assert sizes["M"] > sizes["L"]


def test_dims_that_an_einsum_identifies_get_one_size() -> None:
    b = Build("2x2", B=16, E=32, D=32, G=32)
    b.stored("x", "BE_x", Kind.INPUT)
    b.stored("W", "D_yG")
    b.einsum("y", "BE,EG->BG", "x", "W", layout="BG partialsum-x")
    sizes = sizes_of(b, "y")
    assert sizes["E"] == sizes["D"] and len({sizes["B"], sizes["E"], sizes["G"]}) == 3


def test_repeats_run_twice_at_most_in_both_programs() -> None:
    b = Build("2", E=4)
    b.stored("x", "E_x", Kind.INPUT)
    with b.repeat("outer", 118, Carry("x", "c", "r", "out")), b.repeat("inner", 1, Carry("c", "d", "n", "r")):
        b.map("n", call("tanh", "d"), "E_x")
    shrunken = shrink(b.program("out"), [b.spmd("out")])
    outer = shrunken.program.body.items[0]
    assert isinstance(outer, Repeat) and isinstance(outer.body.items[0], Repeat)
    assert (outer.count, outer.body.items[0].count) == (2, 1)
    assert [p.times for p in walk(shrunken.spmds[0].body)][-1] == 2
    assert shrunken.program.phase("run").sizes == shrunken.spmds[0].sizes


def test_phases_share_the_sizes_of_dims_that_are_not_one() -> None:
    def build(length: int, layout: str) -> Build:
        b = Build("2x3", B=12, L=length, E=12)
        b.stored("x", layout, Kind.INPUT)
        return b

    decode, prefill = build(1, "B_xLE_y"), build(64, "BL_xyE")
    cut: Shrunken = shrink(decode.program(), [decode.spmd(), prefill.spmd()])
    one, two = (dict(s.sizes) for s in cut.spmds)
    assert (one["B"], one["E"]) == (two["B"], two["E"])
    assert one["L"] == 1 and two["L"] == 12


def test_a_context_exceeds_the_entries_whose_places_are_counted() -> None:
    b = Build("3", L=15, M=15, P=15)
    b.stored("w", "P")
    b.op(Iota("index", "L"), "L_x", "i32")
    b.map("at", call("add", "index", call("subtract", Context("M"), Size("L"))), "L_x", "i32")
    b.op(Take("t", "w", "at", ("P",)), "L_x")
    sizes = sizes_of(b, "t")
    assert sizes["L"] < sizes["M"] < sizes["P"]


def test_a_context_need_not_exceed_a_size_that_scales() -> None:
    """Positions over a power with the size of a head in it, as of rope, count no entries of a head."""
    b = Build("8", L=1, M=64, Q=64)
    b.op(Iota("index", "L"), "L", "f32")
    b.op(Iota("i", "Q"), "Q_x", "f32")
    place = call("add", "index", call("subtract", Context("M"), Size("L")))
    turn = call("multiply", place, call("power", 10.0, call("divide", "i", Size("Q"))))
    b.map("angle", turn, "LQ_x", "f32")
    sizes = sizes_of(b, "angle")
    assert sizes["Q"] == 16 and sizes["M"] < 16


def test_the_same_input_gives_the_same_sizes() -> None:
    builder, results, _ = CASES["feed-forward"]()
    assert len({tuple(sizes_of(builder, *results).items()) for _ in range(5)}) == 1


CHOOSING = """
dim B, L, E = 32, X = 64
main(x: bf16[B,L,E]) {
  param Wr: bf16[E,X]
  s[B,L,X] = x[B,L,E] * Wr[E,X]
  m = choose(s, over=X, keep=2)
  y[B,L,E] = m[B,L,X] * x[B,L,E]
  return y
}
phase prefill { B = 8, L = 8 }
phase decode { B = 8, L = 1 }
"""


def test_one_dim_is_enough_for_all_entries_to_be_chosen_as_often() -> None:
    program, mesh = parse(CHOOSING), Mesh.parse("2x4")
    pins = with_pins(program, Source("p", "stored x B_xL_yE\nuse s.Wr EX_y\n"))
    one = compile_phase(pins, "prefill", mesh, Options(Hardware.load("h100")))
    [cut] = shrink(one.program, [one.spmd]).spmds
    sizes = dict(cut.sizes)
    even = sizes["X"] // 2  # tokens that choose all entries as often
    assert sizes["B"] % (2 * even) == 0 and sizes["L"] < 4 * even
    report = run_check(one.program, one.spmd)
    assert report.equal and report.max_error < 1e-9


EXPERTS = """
DIM
dim B = 8, E = 8, F = 8
main(x: f32[B,E]) {
  param Wr: f32[E,X]
  param Wi: f32[X,E,F]
  s[B,X] = x[B,E] * Wr[E,X]
  CHOOSE
  e[B,X,E] = m[B,X] * x[B,E]
  u[B,X,F] = e[B,X,E] * Wi[X,E,F]
  y[B,F] = m[B,X] * u[B,X,F]
  return y
}
"""
AMONG = "best = choose(max(s, over=Y), over=N, keep=FIRST)\n  m = choose(s, over=X, keep=2, among=best)"


@pytest.mark.parametrize("first", [None, 1, 2, 4])
def test_of_what_is_chosen_from_as_much_is_left_as_is_kept(first: int | None) -> None:
    """Where all is kept, nothing shows whether it was chosen: of single dims, of groups, and within these."""
    alone = EXPERTS.replace("DIM", "dim X = 8").replace("CHOOSE", "m = choose(s, over=X, keep=2)")
    grouped = EXPERTS.replace("DIM", "dim Y = 8, N = 8, X = N * Y").replace("CHOOSE", AMONG)
    program = parse(grouped.replace("FIRST", str(first)) if first else alone)
    one = compile_phase(program, "main", Mesh.parse("1"), Options(Hardware.load("h100")))
    [cut] = shrink(one.program, [one.spmd]).spmds
    sizes, kept = dict(cut.sizes), {op.result: op.keep for op in ops(cut) if isinstance(op, Choose)}
    assert (sizes["Y"] * kept["best"] if first else sizes["X"]) >= 2 * kept["m"] == 4
    assert not first or sizes["N"] >= 2 * kept["best"]


FROM_CONTEXT = """dim B, L, M, H = 4, Q = 8
main(q: bf16[B,L,H,Q], k: bf16[B,L,Q], v: bf16[B,L,Q], i: bf16[B,L,M]) {
  cache keys, values: bf16[B,M,Q]
  ks = append(keys, k, L into M)
  vs = append(values, v, L into M)
  m = choose(i, over=M, keep=4, mask=causal(L, M))
  s[B,L,H,M] = m[B,L,M] * q[B,L,H,Q] * ks[B,M,Q]
  p = softmax(s / sqrt(size(Q)), over=M, mask=causal(L, M), among=m)
  o[B,L,H,Q] = p[B,L,H,M] * vs[B,M,Q]
  return o
}
phase several { B = 6, L = 12, M = 12 }
phase one { B = 1, L = 12, M = 12 }
"""


@pytest.mark.parametrize(("phase", "mesh", "result"), [("several", "2x3", "B_yLH_xQ"), ("one", "2", "BLH_xQ")])
def test_a_context_that_is_chosen_from_is_longer_than_its_entries(phase: str, mesh: str, result: str) -> None:
    """Entries of a context that choose from it cannot be a multiple of it: sequences are, where there are several."""
    source = Source("p", f"result p.masked BLHM_x\nresult o {result}\nstored keys BM_xQ\n")
    program = with_pins(parse(FROM_CONTEXT), source)
    one = compile_phase(program, phase, Mesh.parse(mesh), Options(Hardware.load("h100")))
    [cut] = shrink(one.program, [one.spmd]).spmds
    sizes = dict(cut.sizes)
    assert sizes["L"] < sizes["M"]
    assert sizes["B"] == 1 or sizes["B"] % (sizes["M"] // 2) == 0
    report = run_check(one.program, one.spmd)
    assert report.equal and report.max_error < 1e-9


def test_small_sizes_are_not_larger_than_the_model_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is chosen by few tokens is not chosen as often: these were many thousands where experts are split much."""
    few = CHOOSING.replace("{ B = 8, L = 8 }", "{ B = 4, L = 8 }")
    program = with_pins(parse(few), Source("p", "stored x B_xL_yE\nuse s.Wr EX_y\n"))
    one = compile_phase(program, "prefill", Mesh.parse("2x4"), Options(Hardware.load("h100")))
    [as_often] = shrink(one.program, [one.spmd]).spmds
    monkeypatch.setattr(module, "MOST_GROWN", 0)
    [cut] = shrink(one.program, [one.spmd]).spmds
    sizes = dict(cut.sizes)
    assert sizes["B"] == 4 < dict(as_often.sizes)["B"]
    assert math.prod(sizes.values()) <= math.prod(dict(one.spmd.sizes).values())
    assert len(set(sizes.values())) == len(sizes)
    report = run_check(one.program, one.spmd)
    assert report.equal and report.max_error < 1e-9


def test_sizes_that_cannot_be_smaller_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    b = Build("4", B=4, E=4, F=4, L=1)
    b.stored("x", "B_xLE", Kind.INPUT)
    b.stored("W", "E_xF")
    b.stored("V", "EF_x")
    monkeypatch.setattr(module, "MOST_GROWN", 0)
    assert sizes_of(b) == b.sizes
    monkeypatch.undo()
    assert sorted(sizes_of(b).values()) == [1, 8, 12, 16]
