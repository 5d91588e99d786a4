"""Sharded programs with loops, written by hand or drawn at random, for the tests of the JAX backend."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from helpers_exec import Build

from escc.ir.collective import AllGather, AllReduce, Embed, ReduceScatter
from escc.ir.layout import Layout, Reduction, format_layout
from escc.ir.program import Append, Carry, Kind, Program, Region, Repeat, Sum
from escc.ir.spmd import Compute, Move, SpmdProgram, Step

Case = tuple[Program, SpmdProgram]


def looped(builder: Build, results: Sequence[str], *names: str, joined: Sequence[str] = ()) -> Case:
    """What was built, with these steps in one loop with those before them."""

    def marked(region: Region[Step]) -> Region[Step]:
        items: list[Compute | Move | Repeat[Step]] = []
        for item in region.items:
            if isinstance(item, Repeat):
                items.append(replace(item, body=marked(item.body)))
            else:
                items.append(replace(item, looped=item.result in names, joined=item.result in joined))
        return replace(region, items=tuple(items))

    spmd = builder.spmd(*results)
    return builder.program(*results), replace(spmd, body=marked(spmd.body))


def summed_on_an_odd_ring() -> Case:
    """Each block of a weight meets the part of its operand that it is multiplied with."""
    b = Build("5", A=20, B=60, C=30)
    b.stored("x", "A_xB", Kind.INPUT)
    b.stored("w", "B_xC")
    b.move("w'", "w", AllGather(("x",), 0), "BC")
    b.einsum("u", "AB,BC->AC", "x", "w'", layout="A_xC")
    return looped(b, ["u"], "u")


def kept_and_joined() -> Case:
    """Projections of one value, block by block of its rows, weights side by side; one of them transposed."""
    b = Build("2x3", B=36, L=1, E=32, F=24, G=48)
    b.stored("x", "B_yxLE", Kind.INPUT)
    for name, dims in {"v": "EF_x", "w": "EG_x"}.items():
        b.stored(name, dims)
    b.move("x'", "x", AllGather(("x",), 0), "B_yLE")
    b.einsum("f", "BLE,EF->BLF", "x'", "v", layout="B_yLF_x")
    b.einsum("g", "BLE,EG->GBL", "x'", "w", layout="G_xB_yL")
    return looped(b, ["f", "g"], "f", "g", joined=["g"])


def both_dims_of_one_value() -> Case:
    """Blocks of two dims: one einsum keeps the first, another the second, a third sums over both; a sum alone."""
    b = Build("2x3x2", A=24, B=36, C=48, D=12)
    b.stored("x", "A_zyB_x", Kind.INPUT)
    for name, dims in {"v": "BC_xyz", "w": "AC_zxy", "s": "ABC_yxz", "t": "D_xyz"}.items():
        b.stored(name, dims)
    b.move("x'", "x", AllGather(("x",), 1), "A_zyB")
    b.move("x''", "x'", AllGather(("z", "y"), 0), "AB")
    b.einsum("f", "AB,BC->AC", "x''", "v", layout="AC_xyz")
    b.einsum("g", "AB,AC->CB", "x''", "w", layout="C_zxyB")
    b.einsum("h", "AB,ABC->C", "x''", "s", layout="C_yxz")
    b.einsum("k", "AB,D->BD", "x''", "t", layout="BD_xyz")
    return looped(b, ["f", "g", "h", "k"], "x''", "f", "g", "h", "k")


def three_gathers_of_one_dim() -> Case:
    """Blocks that three axes count, in an order that is not the mesh's; what is left of the dim stays split."""
    b = Build("2x2x3x2", A=96, B=24, C=72)
    b.stored("x", "A_wyzxB", Kind.INPUT)
    b.stored("w", "A_wC_xyz")
    b.move("x'", "x", AllGather(("x",), 0), "A_wyzB")
    b.move("x''", "x'", AllGather(("y", "z"), 0), "A_wB")
    b.einsum("u", "AB,AC->BC", "x''", "w", layout="BC_xyz partialsum-w")
    b.move("u'", "u", AllReduce(("w",)), "BC_xyz")
    return looped(b, ["u'"], "x''", "u")


def quantised(dtype: str) -> Case:
    """Weights of a narrow type go round as they are stored, and become wider on the chip that reads them."""
    b = Build("4", A=16, B=24, C=40)
    b.stored("x", "A_xB", Kind.INPUT)
    b.stored("w", "B_xC", dtype=dtype)
    b.stored("v", "BC", dtype=dtype)
    b.move("w'", "w", AllGather(("x",), 0), "BC")
    b.einsum("u", "AB,BC,BC->A", "x", "w'", "v", layout="A_x")
    return looped(b, ["u"], "u")


def sums_in_a_repeat() -> Case:
    """A gather, a sum of two einsums and of what is carried, and a cache beside them, again and again."""
    b = Build("2x3x2", B=12, L=1, E=48, F=72, M=10)
    b.stored("x", "B_yLE_xz", Kind.INPUT)
    with b.repeat("layer", 3, Carry("x", "layer.x", "layer.y''", "y")):
        b.stored("layer.keys", "B_yME_xz", Kind.CACHE)
        for name, layout in {"v": "E_xF_zy", "w": "F_zyE_x", "s": "F_zyE_x"}.items():
            b.stored(f"layer.{name}", layout)
        b.op(Append("layer.ks", "layer.keys", "layer.x", "L", "M"), "B_yME_xz")
        b.move("layer.x'", "layer.x", AllGather(("y",), 0), "BLE_xz")
        b.move("layer.x''", "layer.x'", AllGather(("z",), 2), "BLE_x")
        b.einsum("layer.u", "BLE,EF->BLF", "layer.x''", "layer.v", layout="BLF_zy partialsum-x")
        b.move("layer.u'", "layer.u", AllReduce(("x",)), "BLF_zy")
        b.move("layer.e", "layer.x", Embed(("y",), 0), "BLE_xz partialsum-y")
        b.move("layer.e'", "layer.e", Embed(("z",), 2), "BLE_x partialsum-yz")
        b.einsum("layer.a", "BLF,FE->BLE", "layer.u'", "layer.w", layout="BLE_x partialsum-zy")
        b.einsum("layer.d", "BLF,FE->BLE", "layer.u'", "layer.s", layout="BLE_x partialsum-zy")
        terms = ("layer.e'", "layer.a", "layer.d")
        b.op(Sum("layer.y", terms, (0.5, 1.0, -2.0)), "BLE_x partialsum-yz")
        b.move("layer.y'", "layer.y", ReduceScatter(("z",), 2), "BLE_xz partialsum-y")
        b.move("layer.y''", "layer.y'", ReduceScatter(("y",), 0), "B_yLE_xz")
    steps = ["x''", "u", "d", "y", "y'", "y''"]
    return looped(b, ["y"], *(f"layer.{name}" for name in steps))


def terms_of_fewer_dims() -> Case:
    """A sum, in wider floats, some of whose terms lack a dim that is scattered, or stand transposed."""
    b = Build("3x2", A=24, B=36, C=30)
    b.stored("p", "AC_xy", Kind.INPUT)
    b.stored("q", "C_xyB")
    b.stored("r", "BC_xy")
    b.einsum("f", "AC->A", "p", layout="A partialsum-xy")
    b.einsum("h", "AC,BC->BA", "p", "r", layout="BA partialsum-xy")
    b.einsum("g", "AC,CB->AB", "p", "q", layout="AB partialsum-xy")
    b.op(Sum("s", ("f", "h", "g"), (1.0, 1.0, 1.0)), "AB partialsum-xy", "f32")
    b.move("s'", "s", ReduceScatter(("x",), 1), "AB_x partialsum-y")
    b.move("s''", "s'", ReduceScatter(("y",), 1), "AB_xy")
    return looped(b, ["s''"], "g", "s", "s'", "s''")


def drawn(seed: int) -> Case:
    """A gather loop, then a scatter loop, over random axes in random orders."""
    draw = random.Random(seed)
    mesh = draw.choice(["2x3x2", "3x4", "4x2x2", "2x5", "8"])
    b = Build(mesh, A=240, B=480, C=720, D=960)
    axes = draw.sample(b.mesh.names, len(b.mesh.names))
    cut = draw.randint(0, len(axes))
    dims = {"A": tuple(axes[:cut]), "B": tuple(axes[cut:])}
    x = b.stored("x", _text("AB", dims), Kind.INPUT)
    gathered: list[str] = []
    names = []
    while not gathered or (dims["A"] + dims["B"] and draw.random() < 0.7):
        dim = draw.choice([d for d in "AB" if dims[d]])
        keep = draw.randint(0, len(dims[dim]) - 1)
        minor, dims[dim] = dims[dim][keep:], dims[dim][:keep]
        x = b.move(f"{x}'", x, AllGather(minor, "AB".index(dim)), _text("AB", dims))
        gathered += minor
        names.append(x)
    draw.shuffle(gathered)
    dims["C"] = tuple(gathered)
    summed = draw.choice(["A", "B", "AB"])
    kept = [d for d in "AB" if d not in summed]
    own = draw.sample([*summed, "C"], len(summed) + 1)
    b.stored("w", _text(own, dims))
    order = draw.sample([*kept, "C"], len(kept) + 1)
    left = tuple(axis for d in summed for axis in dims[d])
    text = f"AB,{''.join(own)}->{''.join(order)}"
    u = b.einsum("u", text, x, "w", layout=_text(order, dims, left))
    if left:
        u = b.move("u'", "u", AllReduce(left), _text(order, dims))
    return looped(b, _scattered(b, draw, u, order, dims, names), *names[1:], "u")


def _scattered(
    b: Build, draw: random.Random, u: str, order: Sequence[str], dims: dict[str, tuple[str, ...]], names: list[str]
) -> list[str]:
    """An einsum that sums over C, which splits `u`, then scatters of that; `names` gets what they make."""
    free = [d for d in "AB" if d not in order]
    b.stored("v", _text(["C", "D", *free], dims))
    result = draw.sample([*(d for d in order if d != "C"), "D", *free], len(order) + len(free))
    left = list(dims["C"])
    text = f"{''.join(order)},CD{''.join(free)}->{''.join(result)}"
    y = b.einsum("y", text, u, "v", layout=_text(result, dims, left))
    while left and (y == "y" or draw.random() < 0.8):
        draw.shuffle(left)
        some = draw.randint(1, len(left))
        now, left = tuple(left[:some]), left[some:]
        dim = draw.choice(result)
        dims[dim] = (*dims.get(dim, ()), *now)
        y = b.move(f"{y}'", y, ReduceScatter(now, result.index(dim)), _text(result, dims, left))
        names.append(y)
    if left:
        y = b.move("z", y, AllReduce(tuple(left)), _text(result, dims))
    return [y]


def _text(names: Sequence[str], dims: dict[str, tuple[str, ...]], partial: Sequence[str] = ()) -> str:
    layout = Layout(tuple(dims.get(d, ()) for d in names), tuple(sorted(partial)), Reduction.SUM)
    return format_layout(tuple(names), layout)


LOOPS: dict[str, Callable[[], Case]] = {
    "summed on an odd ring": summed_on_an_odd_ring,
    "kept and joined": kept_and_joined,
    "both dims of one value": both_dims_of_one_value,
    "three gathers of one dim": three_gathers_of_one_dim,
    "int8": lambda: quantised("int8"),
    "int4": lambda: quantised("int4"),
    "sums in a repeat": sums_in_a_repeat,
    "terms of fewer dims": terms_of_fewer_dims,
    **{f"drawn {seed}": lambda seed=seed: drawn(seed) for seed in range(6)},
}
