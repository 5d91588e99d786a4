"""Sharded programs written by hand, with what each of their collectives must send, by hand too.

Every case is (builder, results, bytes), where bytes[result of a Move] is what the busiest chip sends
in one execution at the *full* sizes of the builder, which are small enough to run as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

from helpers_exec import Build, call

from escc.ir.collective import AllGather, AllReduce, AllToAll, Embed, Permute, ReduceScatter, Slice
from escc.ir.expr import Operand, Rotate, Size
from escc.ir.layout import parse_layout
from escc.ir.program import Append, Carry, Iota, Kind, Reduce, Sum, Take, TopK

Case = tuple[Build, tuple[str, ...], dict[str, Fraction | int]]


def layout(text: str):
    return parse_layout(text)[1]


def feed_forward() -> Case:
    """2D weight-stationary on 2x2x2: gathers, reduce-scatters, an all-reduce on the way out."""
    b = Build("2x2x2", B=8, L=2, E=4, F=16)
    b.stored("x", "B_yzLE_x", Kind.INPUT)
    b.stored("Wi", "E_xF_zy")
    b.stored("Wd", "F_zyE_x")
    b.move("x'", "x", AllGather(("y", "z"), 0), "BLE_x")
    b.einsum("u", "BLE,EF->BLF", "x'", "Wi", layout="BLF_zy partialsum-x")
    b.move("u'", "u", ReduceScatter(("x",), 2), "BLF_zyx")
    b.map("h", call("gelu", "u'"), "BLF_zyx")
    b.move("h'", "h", AllGather(("x",), 2), "BLF_zy")
    b.einsum("d", "BLF,FE->BLE", "h'", "Wd", layout="BLE_x partialsum-yz")
    b.move("d'", "d", ReduceScatter(("z",), 0), "B_zLE_x partialsum-y")
    b.move("d''", "d'", AllReduce(("y",)), "B_zLE_x")
    b.move("d'''", "d''", Slice(("y",), 0), "B_zyLE_x")
    b.move("d''''", "d'''", Permute(layout("B_yzLE_x")), "B_yzLE_x")
    b.op(Sum("o", ("x", "d''''"), (1.0, 1.0)), "B_yzLE_x")
    block = 2 * 2 * 2 * 2  # bytes of a chip's B_yzLE_x
    sent = {"x'": 3 * block, "u'": 64, "h'": 64, "d'": 32, "d''": 32, "d'''": 0, "d''''": block}
    return b, ("o",), sent


def softmax_split() -> Case:
    """Softmax over a split index, causal, with rows that see nothing; statistics in f32."""
    b = Build("2x3", B=2, L=4, H=6, M=12)
    b.stored("s", "B_xLM_y", Kind.INPUT, "f32")
    b.op(Iota("i", "L"), "L", "i32")
    b.op(Iota("j", "M"), "M_y", "i32")
    visible = call("less_equal", call("add", "j", 1.0), "i")  # the first row sees nothing
    b.map("t", call("where", visible, "s", -math.inf), "B_xLM_y", "f32")
    b.op(Reduce("m", "t", ("M",)), "B_xL partialmax-y", "f32")
    b.move("m'", "m", AllReduce(("y",)), "B_xL")
    shift = call("where", call("equal", "m'", -math.inf), 0.0, "m'")
    b.map("e", call("exp", call("subtract", "t", shift)), "B_xLM_y", "f32")
    b.einsum("z", "BLM->BL", "e", layout="B_xL partialsum-y", dtype="f32")
    b.move("z'", "z", AllReduce(("y",)), "B_xL")
    b.map("p", call("divide", "e", call("where", call("equal", "z'", 0.0), 1.0, "z'")), "B_xLM_y", "f32")
    return b, ("p",), {"m'": Fraction(4 * 4 * 2 * 2, 3), "z'": Fraction(4 * 4 * 2 * 2, 3)}


def cache_append() -> Case:
    """A cache split over its length, most of the new entries on the last owner, some on the one before."""
    b = Build("2x2", B=3, L=5, M=12, Q=4)
    b.stored("keys", "BM_yxQ", Kind.CACHE)
    b.stored("k", "BLQ_x", Kind.INPUT)
    b.stored("w", "Q")
    b.move("k'", "k", AllGather(("x",), 2), "BLQ")
    b.op(Append("ks", "keys", "k'", "L", "M"), "BM_yxQ")
    b.einsum("o", "BMQ,Q->BM", "ks", "w", layout="BM_yx")
    return b, ("o",), {"k'": 3 * 5 * 2 * 2}


def rope() -> Case:
    """Pairs turned along a split dim, by angles of global positions."""
    b = Build("2x2", L=4, Q=8)
    b.stored("q", "L_xQ_y", Kind.INPUT)
    b.op(Iota("at", "L"), "L_x", "i32")
    b.op(Iota("i", "Q"), "Q_y", "i32")
    turn = call("power", 10.0, call("divide", call("floor", call("divide", "i", 2.0)), Size("Q")))
    b.map("angle", call("divide", "at", turn), "L_xQ_y", "f32")
    still = call("multiply", "q", call("cos", "angle"))
    b.map("r", call("add", still, call("multiply", Rotate(Operand("q"), "Q"), call("sin", "angle"))), "L_xQ_y")
    return b, ("r",), {}


def lookup() -> Case:
    """A table split over its rows and its columns: a masked lookup, then a reduce-scatter."""
    b = Build("2x3", B=6, L=2, V=12, E=4)
    b.stored("ids", "BL", Kind.INPUT, "i32")
    b.stored("table", "V_yE_x", dtype="int8")
    b.op(Take("t", "table", "ids", ("V",)), "BLE_x partialsum-y")
    b.move("t'", "t", ReduceScatter(("y",), 0), "B_yLE_x")
    return b, ("t'",), {"t'": 2 * (2 * 2 * 2) * 2}


def lookup_in_two_dims() -> Case:
    """Rows counted along two dims, both split, that do not stand side by side."""
    b = Build("2x3", B=5, V=4, E=2, W=6)
    b.stored("ids", "B", Kind.INPUT, "i32")
    b.stored("table", "W_yEV_x")
    b.op(Take("t", "table", "ids", ("V", "W")), "BE partialsum-xy")
    b.move("t'", "t", AllReduce(("x", "y")), "BE")
    return b, ("t'",), {"t'": Fraction(2 * 5 * 2 * 2 * 5, 6)}


def largest_of_parts() -> Case:
    """The largest of each part of a split dim and where they stand; then of those of all parts."""
    b = Build("2x2", B=3, S=4, W=6, K=2)
    b.stored("x", "BS_xW", Kind.INPUT, "f32")
    b.op(Iota("s", "S"), "S_x", "i32")
    b.op(Iota("w", "W"), "W", "i32")
    b.map("place", call("add", call("multiply", "s", Size("W")), "w"), "S_xW", "i32")
    b.op(TopK("v", "x", "x", ("W",), "K"), "BS_xK", "f32")
    b.op(TopK("i", "x", "place", ("W",), "K"), "BS_xK", "i32")
    b.move("v'", "v", AllGather(("x",), 1), "BSK")
    b.move("i'", "i", AllGather(("x",), 1), "BSK")
    b.op(TopK("best", "v'", "v'", ("S", "K"), "K"), "BK", "f32")
    b.op(TopK("where", "v'", "i'", ("S", "K"), "K"), "BK", "i32")
    return b, ("best", "where"), {"v'": 3 * 2 * 2 * 4, "i'": 3 * 2 * 2 * 4}


def repeated() -> Case:
    """A carry that is gathered, multiplied and scattered again, with parameters of its own each time."""
    b = Build("2x2", B=2, L=1, M=4, E=8)
    b.stored("x", "BE_yx", Kind.INPUT)
    b.stored("shared", "E_xy")
    b.move("x'", "x", Permute(layout("BE_xy")), "BE_xy")
    with b.repeat("layer", 3, Carry("x'", "c", "n", "out")):
        b.stored("W", "E_xy")
        b.stored("keys", "BM_xE", Kind.CACHE)
        b.map("a", call("tanh", call("multiply", "c", "W")), "BE_xy")
        b.move("a'", "a", AllGather(("x", "y"), 1), "BE")
        b.map("k", Operand("a'"), "BLE")
        b.op(Append("ks", "keys", "k", "L", "M"), "BM_xE")
        b.einsum("s", "BME->BE", "ks", layout="BE partialsum-x")
        b.move("s'", "s", ReduceScatter(("x",), 1), "BE_x")
        b.move("s''", "s'", Slice(("y",), 1), "BE_xy")
        b.op(Sum("n", ("c", "s''", "shared"), (0.5, -1.0, 2.0)), "BE_xy")
    return b, ("out",), {"x'": 8, "a'": 24, "s'": 16, "s''": 0}


def heads_to_batch() -> Case:
    """Attention reached by all-to-alls over two axes, there and back, in either order."""
    b = Build("2x3", B=6, H=12, Q=2)
    b.stored("q", "BH_xyQ", Kind.INPUT)
    b.stored("w", "B_yx")
    b.move("q'", "q", AllToAll(("y", "x"), 1, 0), "B_yxHQ")
    b.map("o", call("multiply", "q'", "w"), "B_yxHQ")
    b.move("o'", "o", AllToAll(("x", "y"), 0, 1), "BH_xyQ")
    b.move("o''", "o'", AllToAll(("y",), 1, 0), "B_yH_xQ")
    block = 6 * 2 * 2 * 2
    return b, ("o''",), {"q'": Fraction(block * 5, 6), "o'": Fraction(block * 5, 6), "o''": Fraction(block * 2, 3)}


def embedded() -> Case:
    """Complete operands join a partial sum: a replicated one, and one that is split over its axes."""
    b = Build("2x3", B=6, E=12, F=12)
    b.stored("h", "BF_yx", Kind.INPUT)
    b.stored("W", "F_yxE")
    b.stored("r", "BE", Kind.INPUT)
    b.stored("s", "BE_xy", Kind.INPUT)
    b.einsum("d", "BF,FE->BE", "h", "W", layout="BE partialsum-xy")
    b.move("r'", "r", Embed(("x", "y")), "BE partialsum-xy")
    b.move("s'", "s", Embed(("y", "x"), 1), "BE partialsum-xy")
    b.op(Sum("o", ("d", "r'", "s'"), (1.0, 1.0, -2.0)), "BE partialsum-xy")
    b.move("o'", "o", ReduceScatter(("y", "x"), 0), "B_yxE")
    return b, ("o'",), {"r'": 0, "s'": 0, "o'": 72 * 2 * 5 // 6}


def partial_max() -> Case:
    """A maximum over a split dim, completed by a reduce-scatter and by an all-reduce."""
    b = Build("3x2", B=6, L=3, M=12)
    b.stored("s", "BLM_yx", Kind.INPUT, "f32")
    b.op(Reduce("m", "s", ("M", "L")), "B partialmax-xy", "f32")
    b.move("m'", "m", ReduceScatter(("x",), 0), "B_x partialmax-y")
    b.move("m''", "m'", AllReduce(("y",)), "B_x")
    return b, ("m''",), {"m'": 4 * 2 * 2, "m''": 2 * 4}


def scalar() -> Case:
    """A value without dims, reduced over both axes and spread again."""
    b = Build("2x3", B=4, E=6)
    b.stored("x", "B_xE_y", Kind.INPUT)
    b.einsum("s", "BE,BE->", "x", "x", layout="[] partialsum-x.y", dtype="f32")
    b.move("s'", "s", AllReduce(("x", "y")), "[]")
    b.map("n", call("multiply", "x", call("rsqrt", "s'")), "B_xE_y")
    return b, ("n", "s'"), {"s'": Fraction(2 * 4 * 5, 6)}


def one_chip() -> Case:
    """A mesh of one chip; collectives over one chip send nothing."""
    b = Build("1", B=2, E=4)
    b.stored("x", "BE_x", Kind.INPUT)
    b.move("x'", "x", AllGather(("x",), 1), "BE")
    b.einsum("s", "BE->B", "x'", layout="B")
    return b, ("s",), {"x'": 0}


def odd_meshes(mesh: str, dtype: str, bits: int) -> Case:
    """Five chips in a ring, or three by five, at the widths of several dtypes."""
    b = Build(mesh, B=15, E=15, F=3)
    last = b.mesh.names[-1]
    b.stored("x", f"B_{last}E", Kind.INPUT, dtype)
    b.stored("W", f"E_{last}F")
    b.move("x'", "x", AllToAll((last,), 0, 1), f"BE_{last}")
    b.einsum("y", "BE,EF->BF", "x'", "W", layout=f"BF partialsum-{last}", dtype=dtype)
    b.move("y'", "y", AllReduce((last,)), "BF")
    return b, ("y'",), {"x'": Fraction(36 * bits, 8), "y'": Fraction(2 * 45 * 4 * bits, 5 * 8)}


def long_names() -> Case:
    """Dims and axes with names longer than a letter, a transposed broadcast, a name that is a keyword."""
    b = Build("node=2,gpu=3", batch=12, d_model=6)
    b.stored("lambda", "[batch, d_model/gpu.node]", Kind.INPUT)
    b.stored("layer.x", "[d_model, batch]", Kind.INPUT)
    b.move("lambda'", "lambda", AllToAll(("node", "gpu"), 1, 0), "[batch/node.gpu, d_model]")
    b.move("layer.x'", "layer.x", Slice(("node", "gpu"), 1), "[d_model, batch/node.gpu]")
    b.map("I", call("maximum", call("negate", "lambda'"), "layer.x'"), "[batch/node.gpu, d_model]")
    return b, ("I",), {"lambda'": 20, "layer.x'": 0}


CASES: dict[str, Callable[[], Case]] = {
    "feed-forward": feed_forward,
    "softmax over a split index": softmax_split,
    "cache append": cache_append,
    "rope": rope,
    "lookup": lookup,
    "lookup in two dims": lookup_in_two_dims,
    "largest of parts": largest_of_parts,
    "repeated": repeated,
    "heads to batch": heads_to_batch,
    "embedded": embedded,
    "partial max": partial_max,
    "scalar": scalar,
    "one chip": one_chip,
    "five chips, f32": lambda: odd_meshes("5", "f32", 32),
    "three by five, bf16": lambda: odd_meshes("3x5", "bf16", 16),
    "five chips, int4": lambda: odd_meshes("5", "int4", 4),
    "long names": long_names,
}
