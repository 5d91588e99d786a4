"""The cost of a sharded program, by hand from its text."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from escc.cost.estimate import estimate, local_bytes, predict
from escc.cost.hardware import Engine, Hardware
from escc.ir.collective import AllGather, AllReduce, Permute, ReduceScatter, Slice
from escc.ir.dtype import Dtype
from escc.ir.layout import parse_layout
from escc.ir.mesh import Mesh
from escc.ir.program import Append, Carry, Einsum, Kind, Region, Repeat, Stored
from escc.ir.spmd import Compute, Move, SpmdProgram, SpmdValue

V4 = Hardware.of_paper("tpu-v4")
MESH = Mesh((("x", 2), ("y", 4)))
SIZES = (("B", 8), ("E", 64), ("F", 128), ("L", 2), ("M", 16))


def value(name: str, layout: str, dtype: Dtype = Dtype.BF16) -> SpmdValue:
    dims, parsed = parse_layout(layout)
    return SpmdValue(name, dims, dtype, parsed)


VALUES = (
    value("x", "B_xE_y"),
    value("W", "E_yF", Dtype.INT8),
    value("W'", "EF", Dtype.INT8),
    value("in", "B_xE_y"),
    value("in'", "B_xE"),
    value("V", "EF_y"),
    value("u", "B_xF_y"),
    value("v", "B_xE partialsum-y"),
    value("v'", "B_xE_y"),
    value("out", "B_xE_y"),
    value("t", "B_xF"),
    value("s", "F partialsum-x", Dtype.F32),
    value("s'", "F", Dtype.F32),
    value("s''", "F_xy", Dtype.F32),
    value("s'''", "F_yx", Dtype.F32),
)


def einsum(result: str, a: str, b: str, spec: str) -> Compute:
    left, right, output = spec.split()
    return Compute(Einsum(result, (a, b), (tuple(left), tuple(right)), tuple(output)))


BODY = Region(
    (Stored("V", Kind.PARAM),),
    (
        Move("in'", "in", AllGather(("y",), 1)),
        einsum("u", "in'", "V", "BE EF BF"),
        einsum("v", "u", "V", "BF EF BE"),
        Move("v'", "v", ReduceScatter(("y",), 1)),
    ),
)
SPMD = SpmdProgram(
    "by hand",
    "main",
    MESH,
    SIZES,
    VALUES,
    Region(
        (Stored("x", Kind.INPUT), Stored("W", Kind.PARAM)),
        (
            Move("W'", "W", AllGather(("y",), 0)),
            Repeat("again", 3, (Carry("x", "in", "v'", "out"),), BODY),
            einsum("t", "in'", "W'", "BE EF BF"),
            Compute(Einsum("s", ("t",), (("B", "F"),), ("F",))),
            Move("s'", "s", AllReduce(("x",))),
            Move("s''", "s'", Slice(("x", "y"), 0)),
            Move("s'''", "s''", Permute(parse_layout("F_yx")[1])),
        ),
    ),
    ("out", "s'''"),
)


def test_bytes_of_a_chip() -> None:
    assert [local_bytes(v, SPMD) for v in VALUES[:4]] == [4 * 16 * 2, 16 * 128, 64 * 128, 4 * 16 * 2]
    small = SpmdProgram("m", "main", MESH, (("F", 8),), (value("q", "F_xy", Dtype.INT4),), Region((), ()), ())
    assert local_bytes(small.values[0], small) == Fraction(1, 2)


@pytest.mark.parametrize("dtype", Dtype)
def test_bytes_of_a_scalar_are_exact(dtype: Dtype) -> None:
    mesh = Mesh((("x", 3),))
    values = (value("s", "[] partialsum-x", dtype), value("t", "[]", dtype))
    body = Region((), (Move("t", "s", AllReduce(("x",))),))
    [sent] = predict(SpmdProgram("m", "main", mesh, (), values, body, ("t",)))
    assert isinstance(sent, Fraction) and sent == Fraction(2 * 2 * dtype.bits, 3 * 8)


def test_moves() -> None:
    sent = {m.result: (m.times, m.kind, m.bytes_sent) for m in estimate(SPMD, V4).moves}
    assert sent == {
        "W'": (1, "all-gather", 64 * 128 * 3 / 4),
        "in'": (3, "all-gather", 4 * 64 * 2 * 3 / 4),
        "v'": (3, "reduce-scatter", 4 * 64 * 2 * 3 / 4),
        "s'": (1, "all-reduce", 2 * 128 * 4 / 2),
        "s''": (1, "slice", 0),
        "s'''": (1, "permute", 128 / 8 * 4),
    }
    assert predict(SPMD) == tuple(Fraction(b) for _, _, b in sent.values())
    for move in estimate(SPMD, V4).moves:
        assert move.seconds == pytest.approx(move.bytes_sent / 270e9)


def test_ops() -> None:
    found = {op.result: (op.times, op.flops, op.hbm_bytes) for op in estimate(SPMD, V4).ops}
    # Each is a kernel: it reads what it multiplies, as gathered, and writes what the next one reads.
    assert found == {
        "u": (3, 2 * 4 * 64 * 32, 4 * 64 * 2 + 64 * 32 * 2 + 4 * 32 * 2),
        "v": (3, 2 * 4 * 64 * 32, 4 * 32 * 2 + 64 * 32 * 2 + 4 * 64 * 2),
        "t": (1, 2 * 4 * 64 * 128, 4 * 64 * 2 + 64 * 128 + 4 * 128 * 2),  # a gathered parameter is read whole
        "s": (1, 4 * 128, 4 * 128 * 2 + 128 * 4),
    }
    for op in estimate(SPMD, V4).ops:
        assert op.seconds == max(op.compute_s, op.memory_s) == max(op.flops / 275e12, op.hbm_bytes / 1.2e12)


def test_an_op_pays_for_the_kernel_and_for_what_the_engine_takes() -> None:
    served = replace(V4, calibrated=replace(V4.calibrated, kernel_s=1e-6)).with_engine(Engine("e", 1e-3, 1e-5))
    plain = {op.result: op for op in estimate(SPMD, V4).ops}
    found = {op.result: op for op in estimate(SPMD, served).ops}
    # Each op is a kernel, the first of the body begins a layer, and the first that runs once begins a step.
    assert {name: pytest.approx(op.launch_s) for name, op in found.items()} == {
        "u": 1e-6 + 1e-5,
        "v": 1e-6,
        "t": 1e-6 + 1e-3,
        "s": 1e-6,
    }
    assert all(op.seconds == pytest.approx(plain[name].seconds + op.launch_s) for name, op in found.items())


def test_stored() -> None:
    assert dict(estimate(SPMD, V4).stored_bytes) == {"W": 16 * 128, "V": 3 * 64 * 32 * 2}


def test_totals_count_repetitions_and_once_does_not() -> None:
    cost = estimate(SPMD, V4)
    gathered, weights, rest = 4 * 64 * 2 * 3 / 4, 64 * 128 * 3 / 4, 2 * 128 * 4 / 2 + 64
    totals, once = cost.totals(), cost.totals(once=True)
    assert totals.bytes_sent == 3 * 2 * gathered + weights + rest
    assert once.bytes_sent == 2 * gathered + weights + rest
    assert (totals.collectives, once.collectives) == (9, 5)
    assert totals.comm_s == pytest.approx(totals.bytes_sent / 270e9)
    flops = 3 * 2 * 2 * 4 * 64 * 32 + 2 * 4 * 64 * 128 + 4 * 128
    assert totals.compute_s == pytest.approx(flops / 275e12)
    weights, values = 3 * 2 * 64 * 32 * 2 + 64 * 128, 3 * 2 * (4 * 64 + 4 * 32) * 2 + 4 * 64 * 2 + 2 * 4 * 128 * 2
    assert totals.memory_s == pytest.approx((weights + values + 128 * 4) / 1.2e12)
    assert totals.total_s == totals.op_s + totals.comm_s
    assert totals.op_s >= max(totals.compute_s, totals.memory_s)


def test_a_cache_is_read_in_its_new_version() -> None:
    values = (
        value("c", "B_xME"),
        value("n", "B_xLE"),
        value("k", "B_xME"),
        value("x", "B_xE"),
        value("s", "B_xM"),
    )
    items = (Compute(Append("k", "c", "n", "L", "M")), einsum("s", "x", "k", "BE BME BM"))
    stored = (Stored("c", Kind.CACHE), Stored("n", Kind.INPUT), Stored("x", Kind.INPUT))
    spmd = SpmdProgram("cache", "main", MESH, SIZES, values, Region(stored, items), ("s",))
    append, attend = estimate(spmd, V4).ops
    slow = replace(V4, calibrated=replace(V4.calibrated, attention_efficiency=0.5))
    cache_s, rest_s = 4 * 16 * 64 * 2 / 1.2e12, (4 * 64 * 2 + 4 * 16 * 2) / 1.2e12
    assert estimate(spmd, slow).ops[1].memory_s == pytest.approx(2 * cache_s + rest_s)
    # The new entries come from outside, and are read and written.
    assert (append.flops, append.hbm_bytes) == (0, 2 * 4 * 2 * 64 * 2)
    assert attend.hbm_bytes == 4 * 16 * 64 * 2 + 4 * 64 * 2 + 4 * 16 * 2
    assert dict(estimate(spmd, V4).stored_bytes) == {"c": 4 * 16 * 64 * 2}
