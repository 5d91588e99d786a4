"""One or more ops of every kind, small enough to try every combination of layouts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from shards import Array, Combination, combinations, uses_of

from escc.ir.dtype import Dtype
from escc.ir.expr import Call, Const, Expr, Operand, Rotate, Size
from escc.ir.layout import Layout, Reduction
from escc.ir.mesh import Mesh
from escc.ir.program import Append, Choose, Einsum, Iota, Map, Op, Reduce, Sum, Take, TopK, Value

SIZES = {"B": 4, "E": 6, "F": 12, "G": 12, "H": 12, "L": 2, "M": 4, "Q": 4, "U": 1, "V": 6, "T": 3}
SMALL = ("2", "2x2")
ALL = ("2", "2x2", "2x3", "1x2")


@dataclass(frozen=True)
class Case:
    """An op, the dims of what it reads and makes (one letter each), and the meshes to try it on."""

    name: str
    op: Op
    dims: tuple[tuple[str, str], ...]
    meshes: tuple[str, ...] = ALL
    reductions: tuple[Reduction, ...] = (Reduction.SUM,)

    @cached_property
    def values(self) -> dict[str, Value]:
        """Operands and result by name."""
        return {n: Value(n, tuple(dims), Dtype.F32) for n, dims in self.dims}

    def truths(self) -> dict[str, Array]:
        """Operands without symmetry, nowhere zero, of either sign; `ids` picks every row."""
        rng = np.random.default_rng(11)
        truths = {}
        for name, dims in self.dims:
            shape = tuple(SIZES[d] for d in dims)
            truths[name] = rng.uniform(0.3, 2.0, shape) * rng.choice([-1, 1], shape)
        if isinstance(self.op, Take):
            shape = truths["ids"].shape
            rows = math.prod(SIZES[d] for d in self.op.over)
            truths["ids"] = (rng.permutation(truths["ids"].size) % rows).reshape(shape).astype(float)
        return truths


def _einsum(name: str, text: str, meshes: tuple[str, ...] = ALL) -> Case:
    """`ab:BE,EF->BF`: the operands' names, their indices, the result's."""
    names, spec = text.split(":")
    reads, output = spec.split("->")
    indices = reads.split(",")
    dims = dict(zip(names, indices, strict=True))  # a value that is read twice has the dims of its last reading
    op = Einsum("r", tuple(names), tuple(tuple(i) for i in indices), tuple(output))
    return Case(name, op, (*dims.items(), ("r", output)), meshes)


def _map(name: str, expr: Expr, meshes: tuple[str, ...] = ALL, **dims: str) -> Case:
    return Case(name, Map("r", expr), tuple(dims.items()), meshes)


def _sum(name: str, coefficients: tuple[float, ...], meshes: tuple[str, ...] = ALL, **dims: str) -> Case:
    names = tuple(n for n in dims if n != "r")
    return Case(name, Sum("r", names, coefficients), tuple(dims.items()), meshes)


a, b, c = Operand("a"), Operand("b"), Operand("c")
BOTH = (Reduction.SUM, Reduction.MAX)

CASES = [
    _einsum("matmul", "ab:BE,EF->BF"),
    _einsum("matmul with batch", "ab:BEL,BEQ->BLQ", SMALL),
    _einsum("elementwise product and sum", "ab:BF,BF->B"),
    _einsum("index that one operand alone sums", "ab:BE,BF->BF"),
    _einsum("sum", "a:BF->B"),
    _einsum("sum to a scalar", "a:F->"),
    _einsum("transpose", "a:BF->FB"),
    _einsum("outer product", "ab:B,F->BF"),
    _einsum("three factors", "abc:BE,EF,F->B", SMALL),
    _einsum("square", "aa:BF,BF->B"),
    _einsum("product with itself, transposed", "aa:FG,GH->FH"),
    _einsum("dims of size 1 and 3", "ab:UT,TF->UF"),
    _map("linear", Call("negate", (Call("divide", (Call("multiply", (a, b)), Size("E"))),)), a="BF", b="F", r="BF"),
    _map("quotient", Call("divide", (a, b)), a="BF", b="B", r="BF"),
    _map("nonlinear", Call("exp", (a,)), a="BF", r="BF"),
    _map("relu", Call("relu", (a,)), a="F", r="F"),
    _map("plus a constant", Call("add", (a, Const(1.5))), a="F", r="F"),
    _map("twice", Call("add", (a, Call("multiply", (Const(2.0), a)))), a="F", r="F"),
    _map("square", Call("multiply", (a, a)), a="F", r="F"),
    _map("choice", Call("where", (Call("less_equal", (b, Const(0.0))), a, Const(0.0))), a="BF", b="BF", r="BF"),
    _map("choice by a partial", Call("where", (Call("less_equal", (a, b)), b, c)), ("2",), a="F", b="F", c="B", r="BF"),
    _map("difference", Call("subtract", (a, b)), a="BF", b="BF", r="BF"),
    _map("rotation", Call("multiply", (Rotate(a, "Q"), b)), a="BQ", b="Q", r="BQ"),
    _map("rotation of 6", Rotate(a, "E"), a="BE", r="BE"),
    _map("broadcast", Call("multiply", (a, Const(3.0))), a="B", r="BF"),
    _map("nothing but a number", Const(3.0), r="BF"),
    _sum("sum of one", (1.0,), a="BF", r="BF"),
    _sum("sum of two", (1.0, -0.5), a="BF", b="BF", r="BF"),
    _sum("sum with a broadcast term", (1.0, 2.0), a="BF", b="F", r="BF"),
    _sum("sum of three", (1.0, 1.0, 1.0), ("2",), a="BF", b="FB", c="B", r="BF"),
    Case("maximum", Reduce("r", "a", ("F",)), (("a", "BF"), ("r", "B")), reductions=BOTH),
    Case("maximum over two dims", Reduce("r", "a", ("B", "F")), (("a", "BFE"), ("r", "E")), reductions=BOTH),
    Case("take", Take("r", "table", "ids", ("V",)), (("table", "VQ"), ("ids", "F"), ("r", "FQ"))),
    Case("take along the last dim", Take("r", "t", "ids", ("V",)), (("t", "QV"), ("ids", "BL"), ("r", "BLQ")), SMALL),
    Case("take along two dims", Take("r", "t", "ids", ("V", "M")), (("t", "VQM"), ("ids", "B"), ("r", "BQ")), SMALL),
    Case("the largest", TopK("r", "a", "a", ("M",), "T"), (("a", "BMQ"), ("r", "BQT"))),
    Case("places of the largest", TopK("r", "a", "b", ("M",), "T"), (("a", "MF"), ("b", "M"), ("r", "FT"))),
    Case("picked by others", TopK("r", "a", "b", ("M",), "L"), (("a", "FM"), ("b", "MF"), ("r", "FL"))),
    Case("the largest of two dims", TopK("r", "a", "b", ("M", "T"), "T"), (("a", "MBT"), ("b", "TM"), ("r", "BT"))),
    Case("chosen", Choose("r", "a", ("M",), 2), (("a", "BMQ"), ("r", "BMQ")), SMALL),
    Case("chosen of two dims", Choose("r", "a", ("M", "T"), 3), (("a", "MFT"), ("r", "MFT"))),
    Case("iota", Iota("r", "F"), (("r", "F"),)),
    Case("append", Append("r", "a", "b", "L", "M"), (("a", "BMQ"), ("b", "BLQ"), ("r", "BMQ")), SMALL),
    Case("append of one", Append("r", "a", "b", "U", "M"), (("a", "MF"), ("b", "UF"), ("r", "MF"))),
    Case("append of a transposed", Append("r", "a", "b", "L", "M"), (("a", "MF"), ("b", "FL"), ("r", "MF"))),
]

TRIALS = [(case, mesh) for case in CASES for mesh in case.meshes]
IDS = [f"{type(case.op).__name__}: {case.name} on {mesh}" for case, mesh in TRIALS]


@cache
def judged(case: Case, mesh: str) -> tuple[tuple[Combination, bool], ...]:
    """Every combination of layouts of the uses and the result, and whether it is right."""
    return tuple(combinations(case.op, case.values, SIZES, Mesh.parse(mesh), case.reductions, case.truths()))


def right(case: Case, mesh: str) -> set[Combination]:
    """The combinations that are right, and do not call a result partial that is complete.

    A complete value is its own partial maximum, so a maximum can always be said to be partial too.
    """
    true = {combination for combination, holds in judged(case, mesh) if holds}
    return {x for x in true if not any((*x[:-1], less) in true for less in _less_partial(x[-1]))}


def _less_partial(layout: Layout) -> list[Layout]:
    return [layout.with_partial([p for p in layout.partial if p != a], layout.reduction) for a in layout.partial]


def left_out(case: Case, combination: Combination) -> str | None:
    """Why a combination that is right is no strategy, on purpose; None when it has to be one."""
    op, reads = case.op, combination[:-1]
    partial = [axis for layout in reads for axis in layout.partial]
    match op:
        case Append(_, _, new, source, _):
            if partial:
                return "a cache is stored complete, so nothing partial is appended"
            if reads[1].dims[case.values[new].dims.index(source)]:
                return "entries are written at a run-time position, which no split of them can know"
        case TopK() if partial:
            return "what is picked is places, or the keys themselves: neither is a part of a sum"
        case Map() if len(set(partial)) < len(partial):
            return "values that are added while partial make an n-ary sum"
        case Einsum(_, names, _, _):
            uses = uses_of(op, case.values)
            if any(layout.partial and names.count(n) > 1 for layout, (n, _) in zip(reads, uses, strict=True)):
                return "a value that is multiplied by itself is needed complete anyway"
    return None
