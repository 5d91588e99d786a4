"""The rules of ops against simulation: what they accept is right, and what is right they accept."""

from __future__ import annotations

from dataclasses import replace

import pytest
from op_cases import CASES, IDS, SIZES, TRIALS, Case, judged, left_out, right
from shards import Combination, uses_of

from escc.ir.collective import LayoutError
from escc.ir.dtype import Dtype
from escc.ir.expr import Call, Context, Operand, Rotate, Size
from escc.ir.layout import parse_layout
from escc.ir.mesh import Mesh
from escc.ir.program import Append, Choose, Einsum, Iota, Map, Op, Reduce, Sum, Take, TopK
from escc.ir.spmd import SpmdValue
from escc.ir.verify.rules import check_op

MESH = Mesh.parse("2x2")


def as_spmd(case: Case, combination: Combination) -> tuple[Op, dict[str, SpmdValue]]:
    """The op on values that lie so; a value that is read in two layouts is two values."""
    op, uses = case.op, uses_of(case.op, case.values)
    names = [name for name, _ in uses]
    if isinstance(op, Einsum) and len(set(names)) < len(names):
        names = [f"{name}{k}" for k, name in enumerate(names)]
        again = dict(zip(uses, names, strict=True))
        op = replace(op, operands=tuple(again[u] for u in zip(op.operands, op.indices, strict=True)))
    table = dict(zip([*names, op.result], combination, strict=True))
    dims = {name: case.values[use].dims for name, (use, _) in zip(names, uses, strict=True)}
    dims[op.result] = case.values[op.result].dims
    return op, {n: SpmdValue(n, dims[n], Dtype.F32, layout) for n, layout in table.items()}


def accepts(case: Case, combination: Combination, mesh: Mesh) -> bool:
    op, values = as_spmd(case, combination)
    try:
        check_op(op, values, SIZES, mesh)
    except LayoutError:
        return False
    return True


@pytest.mark.parametrize(("case", "mesh"), TRIALS, ids=IDS)
def test_rules_accept_what_simulation_finds(case: Case, mesh: str) -> None:
    axes = Mesh.parse(mesh)
    accepted = {x for x, _ in judged(case, mesh) if accepts(case, x, axes)}
    true = right(case, mesh)
    assert not accepted - true, "wrong layouts accepted"
    refused = {x for x in true - accepted if not (isinstance(case.op, Append) and left_out(case, x))}
    assert not refused, "right layouts refused"


def refusal(op: Op, *described: str) -> str:
    """Why `op` is refused on values given as `name LAYOUT`."""
    values = {}
    for text in described:
        name, layout = text.split(" ", 1)
        dims, parsed = parse_layout(layout)
        values[name] = SpmdValue(name, dims, Dtype.F32, parsed)
    with pytest.raises(LayoutError) as error:
        check_op(op, values, SIZES, MESH)
    return str(error.value)


MATMUL = Einsum("r", ("a", "b"), (("B", "E"), ("E", "F")), ("B", "F"))
SUM = Sum("r", ("a", "b"), (1.0, 1.0))
APPEND = Append("r", "a", "b", "L", "M")


@pytest.mark.parametrize(
    ("op", "values", "reason"),
    [
        (MATMUL, ["a BE_x", "b EF", "r BF"], "index `E` is split by x in one operand and by nothing in another"),
        (MATMUL, ["a B_xE", "b EF_x", "r BF"], "axis `x` splits `B` in one operand and `F` in another"),
        (MATMUL, ["a B_xE", "b EF partialsum-x", "r BF"], "`b` is partial over `x`, by which `B` is split"),
        (MATMUL, ["a BE_x", "b E_xF", "r BF"], "it leaves its result in BF partialsum-x, not in BF"),
        (MATMUL, ["a BE partialsum-x", "b EF partialsum-x", "r BF"], "two factors are partial over `x`: `a` and `b`"),
        (MATMUL, ["a BE partialmax-x", "b EF", "r BF"], "`a` is a partial max, where a partial sum could pass"),
        (SUM, ["a BF partialsum-x", "b BF", "r BF"], "`b` is complete over `x`, and would be added once for each part"),
        (SUM, ["a BF_xy", "b BF_yx", "r BF_xy"], "index `F` is split by x, y in one operand and by y, x in another"),
        (Map("r", Call("exp", (Operand("a"),))), ["a F partialsum-x", "r F"], "`exp` is not linear in what is partial"),
        (Map("r", Rotate(Operand("a"), "E")), ["a E_x", "r E_x"], "tears the pairs of a rotation"),
        (
            Reduce("r", "a", ("F",)),
            ["a BF partialsum-x", "r B"],
            "`a` is a partial sum, where a partial max could pass",
        ),
        (Take("r", "a", "b", ("V",)), ["a VQ partialmax-x", "b B", "r BQ partialsum-x"], "`a` is a partial max"),
        (Sum("r", ("a",), (1.0,)), ["a B partialmax-x", "r B partialsum-x"], "`a` is a partial max"),
        (Map("r", Operand("a")), ["a B partialmax-x", "r B partialsum-x"], "`a` is a partial max"),
        (Take("r", "a", "b", ("V",)), ["a VQ", "b B partialsum-x", "r BQ"], "rows cannot be looked up by it"),
        (Take("r", "a", "b", ("V",)), ["a V_xQ", "b B_x", "r B_xQ"], "axis `x` splits `V` in one operand and `B`"),
        (TopK("r", "a", "b", ("M",), "T"), ["a M_xF", "b M_x", "r FT"], "`M` is split, and the largest of a part"),
        (TopK("r", "a", "b", ("M",), "T"), ["a MF partialsum-x", "b M", "r FT"], "parts of a sum are not ordered"),
        (TopK("r", "a", "b", ("M",), "T"), ["a MF", "b M partialmax-x", "r FT"], "`b` is a partial max"),
        (TopK("r", "a", "b", ("F",), "Q"), ["a MF", "b M", "r MQ_x"], "every chip makes all of `Q`"),
        (Choose("r", "a", ("M",), 2), ["a BM_x", "r BM_x"], "`M` is split, and the largest of a part are not those"),
        (Choose("r", "a", ("M", "Q"), 2), ["a MQ_x", "r MQ_x"], "`Q` is split, and the largest of a part"),
        (Choose("r", "a", ("M",), 2), ["a BM partialsum-x", "r BM"], "parts of a sum are not ordered"),
        (Choose("r", "a", ("M",), 2), ["a BM partialmax-x", "r BM"], "parts of a sum are not ordered"),
        (Choose("r", "a", ("M",), 2), ["a BM", "r BM_x"], "it leaves its result in BM, not in BM_x"),
        (Iota("r", "F"), ["r F partialsum-x"], "it leaves its result in F, not in F partialsum-x"),
        (APPEND, ["a BMQ_x", "b BLQ", "r BMQ_x"], "index `Q` is split by x in one operand and by nothing in another"),
        (APPEND, ["a BM_xQ", "b BL_xQ", "r BM_xQ"], "axis `x` splits `M` in one operand and `L` in another"),
        (APPEND, ["a BMQ", "b BL_xQ", "r BMQ"], "`b` is split over `L`"),
        (APPEND, ["a BMQ", "b BLQ partialsum-x", "r BMQ"], "a cache holds complete values"),
        (APPEND, ["a BMQ", "b BLQ", "r B_xMQ"], "it leaves its result in BMQ, not in B_xMQ"),
    ],
)
def test_refusals_say_why(op: Op, values: list[str], reason: str) -> None:
    assert reason in refusal(op, *values)


def test_a_result_dim_that_nothing_reads_is_free_but_for_axes_in_use() -> None:
    broadcast = Map("r", Operand("a"))
    assert "splits `F` in the result and something else" in refusal(broadcast, "a B_x", "r BF_x")
    assert "splits `F` in the result and something else" in refusal(broadcast, "a B partialsum-x", "r BF_x")


@pytest.mark.parametrize(
    ("op", "values", "reason"),
    [
        (MATMUL, ["a BFE", "b EF", "r BF"], "`a` has 3 dims, and 2 indices here"),
        (MATMUL, ["a BF", "b EF", "r BF"], "index `E` stands for sizes 12 and 6"),
        (Einsum("r", ("a",), (("B",),), ("E",)), ["a B", "r B"], "no operand has the index `E`"),
        (Einsum("r", ("a",), (("B",),), ("B", "B")), ["a B", "r [B, B]"], "the result names an index twice"),
        (Einsum("r", (), (), ()), ["r []"], "an einsum takes at least one operand"),
        (Map("r", Operand("a")), ["a BF", "r B"], "the result lacks the dim `F` of `a`"),
        (Map("r", Call("exp", (Operand("a"), Operand("a")))), ["a B", "r B"], "no function `exp` of 2 arguments"),
        (Map("r", Rotate(Operand("a"), "T")), ["a T", "r T"], "`T` does not consist of pairs to rotate"),
        (Map("r", Rotate(Operand("a"), "Q")), ["a B", "r B"], "it rotates along `Q`, a dim that its result lacks"),
        (Map("r", Size("Z")), ["r B"], "there is no dim `Z`"),
        (Map("r", Context("Z")), ["r B"], "there is no dim `Z`"),
        (Sum("r", ("a", "a"), (1.0, 1.0)), ["a B", "r B"], "different operands"),
        (Sum("r", ("a",), (1.0, 1.0)), ["a B", "r B"], "a coefficient for each"),
        (Reduce("r", "a", ("F",)), ["a BF", "r F"], "the maximum over F of dims B, F has not dims F"),
        (Take("r", "a", "b", ("V",)), ["a VQ", "b B", "r QB"], "rows along V have the dims of the ids"),
        (Take("r", "a", "b", ("V", "V")), ["a VQ", "b B", "r BQ"], "rows along V, V have the dims of the ids"),
        (TopK("r", "a", "b", ("M",), "T"), ["a MF", "b MQ", "r FT"], "the keys lack the dim `Q` of what is picked"),
        (TopK("r", "a", "a", ("Q",), "T"), ["a MF", "r MFT"], "`T` elements cannot be picked over Q of dims M, F"),
        (TopK("r", "a", "a", ("M",), "F"), ["a MF", "r FF"], "`F` elements cannot be picked over M of dims M, F"),
        (TopK("r", "a", "a", ("M",), "T"), ["a MF", "r TF"], "what is picked over M of dims M, F has not dims T, F"),
        (TopK("r", "a", "a", ("M",), "E"), ["a MF", "r FE"], "there are fewer elements over M than `E` = 6"),
        (Choose("r", "a", ("M",), 2), ["a BM", "r MB"], "what is chosen over M of dims B, M has not dims M, B"),
        (Choose("r", "a", ("F",), 2), ["a BM", "r BM"], "what is chosen over F of dims B, M has not dims B, M"),
        (Choose("r", "a", (), 1), ["a BM", "r BM"], "of dims B, M has not dims B, M"),
        (Choose("r", "a", ("M", "M"), 2), ["a BM", "r BM"], "what is chosen over M, M of dims B, M"),
        (Choose("r", "a", ("M",), 5), ["a BM", "r BM"], "5 cannot be chosen over M"),
        (Choose("r", "a", ("M",), 0), ["a BM", "r BM"], "0 cannot be chosen over M"),
        (Iota("r", "F"), ["r BF"], "an iota along `F` has that dim alone"),
        (APPEND, ["a BMQ", "b BLH", "r BMQ"], "has not the dims of `a` with `L` in the place of `M`"),
        (Append("r", "a", "b", "F", "M"), ["a M", "b F", "r M"], "`F` = 12 entries do not fit in `M` = 4"),
    ],
)
def test_dims_that_do_not_fit_are_refused(op: Op, values: list[str], reason: str) -> None:
    assert reason in refusal(op, *values)


def test_a_rotation_may_be_split_between_pairs() -> None:
    case = next(c for c in CASES if c.name == "rotation")
    assert accepts(case, tuple(parse_layout(t)[1] for t in ("BQ_x", "Q_x", "BQ_x")), MESH)
