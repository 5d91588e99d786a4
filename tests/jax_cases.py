"""Sharded programs by hand for the tests of the JAX backend, beside those of exec_cases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from helpers_exec import Build, call

from escc.ir.collective import AllGather, AllReduce, AllToAll, Permute, ReduceScatter, Slice
from escc.ir.layout import parse_layout
from escc.ir.program import Append, Carry, Choose, Kind, Program, Reduce, Sum, Take
from escc.ir.spmd import Move, SpmdProgram


def joined(spmd: SpmdProgram, *names: str) -> SpmdProgram:
    """The same program with these collectives as part of those before them."""
    items = tuple(
        replace(item, joined=True) if isinstance(item, Move) and item.result in names else item
        for item in spmd.body.items
    )
    return replace(spmd, body=replace(spmd.body, items=items))


def gathered_together() -> tuple[Program, SpmdProgram]:
    """Gathers along different dims, with axes in different orders, as one; then exchanges as one."""
    b = Build("2x3", A=12, C=24, D=36)
    b.stored("p", "A_xyC", Kind.INPUT)
    b.stored("q", "CD_yx", Kind.INPUT)
    b.move("p'", "p", AllGather(("x", "y"), 0), "AC")
    b.move("q'", "q", AllGather(("y", "x"), 1), "CD")
    b.stored("r", "A_xyD", Kind.INPUT)
    b.stored("s", "C_yxA", Kind.INPUT)
    b.move("r'", "r", AllToAll(("y", "x"), 0, 1), "AD_yx")
    b.move("s'", "s", AllToAll(("x", "y"), 0, 1), "CA_xy")
    results = ("p'", "q'", "r'", "s'")
    return b.program(*results), joined(b.spmd(*results), "q'", "s'")


def reduced_together() -> tuple[Program, SpmdProgram]:
    """Sums and maxima, scattered and not, each kind as one."""
    b = Build("2x3", A=12, C=24, D=36)
    b.stored("p", "A_xC_y", Kind.INPUT, "f32")
    b.stored("q", "D_yA_x", Kind.INPUT, "f32")
    b.einsum("u", "AC->A", "p", layout="A_x partialsum-y", dtype="f32")
    b.einsum("v", "DA->A", "q", layout="A_x partialsum-y", dtype="f32")
    b.move("u'", "u", AllReduce(("y",)), "A_x")
    b.move("v'", "v", AllReduce(("y",)), "A_x")
    b.einsum("w", "AC->C", "p", layout="C_y partialsum-x", dtype="f32")
    b.einsum("t", "DA->D", "q", layout="D_y partialsum-x", dtype="f32")
    b.move("w'", "w", ReduceScatter(("x",), 0), "C_yx")
    b.move("t'", "t", ReduceScatter(("x",), 0), "D_yx")
    b.op(Reduce("m", "p", ("A",)), "C_y partialmax-x", "f32")
    b.op(Reduce("n", "q", ("A",)), "D_y partialmax-x", "f32")
    b.move("m'", "m", ReduceScatter(("x",), 0), "C_yx")
    b.move("n'", "n", ReduceScatter(("x",), 0), "D_yx")
    b.op(Reduce("h", "p", ("C",)), "A_x partialmax-y", "f32")
    b.op(Reduce("k", "q", ("D",)), "A_x partialmax-y", "f32")
    b.move("h'", "h", AllReduce(("y",)), "A_x")
    b.move("k'", "k", AllReduce(("y",)), "A_x")
    results = ("u'", "v'", "w'", "t'", "m'", "n'", "h'", "k'")
    return b.program(*results), joined(b.spmd(*results), "v'", "t'", "n'", "k'")


def permuted_and_cut() -> tuple[Program, SpmdProgram]:
    """A permute of blocks, slices, and an exchange whose axes stand in another order at the source."""
    b = Build("2x3x2", A=12, C=24)
    b.stored("p", "A_xyC", Kind.INPUT)
    b.move("p'", "p", Permute(parse_layout("A_yxC")[1]), "A_yxC")
    b.move("p''", "p'", Slice(("z",), 1), "A_yxC_z")
    b.move("p'''", "p''", AllToAll(("x", "y"), 0, 1), "AC_zxy")
    b.map("t", call("multiply", "p'''", 2), "AC_zxy")
    return b.program("t"), b.spmd("t")


def nested() -> tuple[Program, SpmdProgram]:
    """A repeat within a repeat, each with parameters of its own, and a dim of size 1."""
    b = Build("2x2", B=4, L=1, E=8)
    b.stored("x", "B_xLE_y", Kind.INPUT)
    with b.repeat("outer", 3, Carry("x", "outer.x", "outer.n", "y")):
        b.stored("outer.scale", "LE_y")
        with b.repeat("inner", 2, Carry("outer.x", "inner.x", "inner.n", "outer.y")):
            b.stored("inner.bias", "E_y")
            b.op(Sum("inner.n", ("inner.x", "inner.bias"), (0.5, 1.0)), "B_xLE_y")
        b.map("outer.n", call("multiply", "outer.y", "outer.scale"), "B_xLE_y")
    return b.program("y"), b.spmd("y")


def one_row() -> tuple[Program, SpmdProgram]:
    """Lookups in tables of one row: of the dims of the ids, split and not, whatever the table has."""
    b = Build("2x2", V=1, W=1, G=4, L=6, E=8)
    b.stored("ids", "GL", Kind.INPUT, "i32")
    b.stored("parted", "G_xL", Kind.INPUT, "i32")
    b.stored("w", "V", dtype="f32")
    b.stored("u", "VE_yW")
    b.op(Take("p", "w", "ids", ("V",)), "GL", "f32")
    b.op(Take("q", "u", "parted", ("W", "V")), "G_xLE_y")
    b.op(Take("r", "u", "ids", ("V", "W")), "GLE_y", "f32")
    b.move("q'", "q", AllGather(("y",), 2), "G_xLE")
    b.move("q''", "q'", AllGather(("x",), 0), "GLE")
    b.einsum("s", "GL->", "p", layout="[]", dtype="f32")
    return b.program("p", "q''", "r", "s"), b.spmd("p", "q''", "r", "s")


def caches_of_one_dim() -> tuple[Program, SpmdProgram]:
    """Caches of one dim, read as they were after they have grown, and cut into parts."""
    b = Build("2x2", L=2, M=8)
    b.stored("c", "M", Kind.CACHE, "f32")
    b.stored("d", "M_yx", Kind.CACHE, "f32")
    b.stored("x", "L", Kind.INPUT, "f32")
    b.op(Append("cs", "c", "x", "L", "M"), "M", "f32")
    b.op(Append("ds", "d", "x", "L", "M"), "M_yx", "f32")
    b.map("old", call("subtract", "cs", "c"), "M", "f32")
    b.map("older", call("multiply", "d", 3), "M_yx", "f32")
    b.move("cs'", "cs", Slice(("x",), 0), "M_x")
    b.map("both", call("add", "cs'", 1), "M_x", "f32")
    return b.program("old", "older", "both"), b.spmd("old", "older", "both")


def experts() -> tuple[Program, SpmdProgram]:
    """Tokens that go to their experts and come back, by exchanges."""
    b = Build("2x2", B=8, L=1, X=6, E=4, F=10)
    b.stored("x", "B_xyLE", Kind.INPUT)
    b.stored("Wr", "EX")
    b.stored("Wi", "X_xEF_y")
    b.stored("Wd", "X_xF_yE")
    b.einsum("s", "BLE,EX->BLX", "x", "Wr", layout="B_xyLX", dtype="f32")
    b.op(Choose("m", "s", ("X",), 2), "B_xyLX", "f32")
    b.map("w", call("multiply", "m", "s"), "B_xyLX", "f32")
    b.einsum("e", "BLX,BLE->BLXE", "m", "x", layout="B_xyLXE")
    b.move("e'", "e", AllGather(("y",), 0), "B_xLXE")
    b.move("e''", "e'", AllToAll(("x",), 0, 2), "BLX_xE")
    b.einsum("u", "BLXE,XEF->BLXF", "e''", "Wi", layout="BLX_xF_y")
    b.map("h", call("gelu", "u"), "BLX_xF_y")
    b.einsum("d", "BLXF,XFE->BLXE", "h", "Wd", layout="BLX_xE partialsum-y")
    b.move("d'", "d", AllToAll(("x",), 2, 0), "B_xLXE partialsum-y")
    b.move("d''", "d'", ReduceScatter(("y",), 0), "B_xyLXE")
    b.einsum("z", "BLX,BLXE->BLE", "w", "d''", layout="B_xyLE")
    return b.program("z", "m"), b.spmd("z", "m")


def experts_in_groups() -> tuple[Program, SpmdProgram]:
    """Groups chosen first and experts among them, of tokens that all chips have; the sums are completed."""
    b = Build("2x2", B=6, N=4, Y=2, E=3)
    b.stored("x", "BE", Kind.INPUT)
    b.stored("s", "B_xNY_y", Kind.INPUT, "f32")
    b.stored("W", "N_xY_yE")
    b.op(Reduce("best", "s", ("Y",)), "B_xN partialmax-y", "f32")
    b.move("best'", "best", AllReduce(("y",)), "B_xN")
    b.op(Choose("g", "best'", ("N",), 2), "B_xN", "f32")
    b.map("q", call("multiply", "g", call("exp", "s")), "B_xNY_y", "f32")
    b.move("q'", "q", AllGather(("y",), 2), "B_xNY")
    b.op(Choose("m", "q'", ("Y", "N"), 3), "B_xNY", "f32")
    b.move("all", "m", AllGather(("x",), 0), "BNY")
    b.move("some", "all", Slice(("x",), 1), "BN_xY")
    b.move("own", "some", Slice(("y",), 2), "BN_xY_y")
    b.einsum("z", "BNY,BE,NYE->BE", "own", "x", "W", layout="BE partialsum-xy")
    b.move("z'", "z", AllReduce(("x", "y")), "BE")
    return b.program("z'", "g"), b.spmd("z'", "g")


OTHERS: dict[str, Callable[[], tuple[Program, SpmdProgram]]] = {
    "one row": one_row,
    "caches of one dim": caches_of_one_dim,
    "gathered together": gathered_together,
    "reduced together": reduced_together,
    "permuted and cut": permuted_and_cut,
    "nested": nested,
    "experts": experts,
    "experts in groups": experts_in_groups,
}
