"""Execution on virtual chips: numbers against the dense reference, bytes against counts by hand."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from exec_cases import CASES, Case, embedded, feed_forward, heads_to_batch, layout, softmax_split
from helpers_exec import Build, relayout

from escc.compiler.simulate.reference import random_stored, run_reference
from escc.compiler.simulate.spmd_interpreter import Execution, ExecutionError, run_spmd
from escc.compiler.simulate.traffic import elements_sent
from escc.ir.collective import AllGather, AllReduce, AllToAll, Permute, ReduceScatter
from escc.ir.layout import Layout
from escc.ir.mesh import Mesh
from escc.ir.program import Kind, Sum
from escc.ir.spmd import Move, SpmdProgram


def dense_and_data(case: Case) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The dense results of a case at its full sizes, under the sharded program's names, and the data."""
    builder, results, _ = case
    program = builder.program(*results)
    stored = random_stored(program, builder.sizes, seed=3)
    whole = run_reference(program, builder.sizes, stored)
    renamed = dict(zip(program.results, results, strict=True))
    return {renamed.get(name, name): array for name, array in whole.items()}, stored


def largest_error(expected: Mapping[str, np.ndarray], run: Execution) -> float:
    """The largest difference, relative to the largest element of a result."""
    assert set(expected) == set(run.results)
    return max(float(np.abs(run.results[n] - a).max() / np.abs(a).max()) for n, a in expected.items())


def is_caught(case: Case, spmd: SpmdProgram) -> bool:
    """Whether a broken program raises, or gives results that are plainly wrong."""
    expected, stored = dense_and_data(case)
    try:
        return largest_error(expected, run_spmd(spmd, stored)) > 1e-3
    except ExecutionError:
        return True


@pytest.mark.parametrize("name", CASES)
def test_sharded_programs_agree_with_the_reference_and_send_what_was_counted_by_hand(name: str) -> None:
    case = CASES[name]()
    builder, results, sent = case
    expected, stored = dense_and_data(case)
    assert all(np.abs(whole).max() > 0.01 for whole in expected.values())
    run = run_spmd(builder.spmd(*results), stored)
    assert largest_error(expected, run) < 1e-12
    assert {m.result: m.bytes_sent for m in run.moves} == sent


def test_moves_come_in_program_order_with_the_times_they_ran() -> None:
    builder, results, _ = CASES["repeated"]()
    _, stored = dense_and_data((builder, results, {}))
    moves = run_spmd(builder.spmd(*results), stored).moves
    assert [(m.result, m.times) for m in moves] == [("x'", 1), ("a'", 3), ("s'", 3), ("s''", 3)]


def test_cache_versions_of_a_repeat_are_stacked() -> None:
    case = CASES["repeated"]()
    expected, stored = dense_and_data(case)
    run = run_spmd(case[0].spmd(*case[1]), stored)
    assert run.results["ks"].shape == (3, 2, 4, 8)
    assert np.array_equal(run.results["ks"][:, :, :3], stored["keys"][:, :, :3])
    assert np.allclose(run.results["ks"], expected["ks"], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_a_swapped_axis_order_is_caught(name: str) -> None:
    case = CASES[name]()
    spmd = case[0].spmd(*case[1])
    told = {m.result for r in _regions(spmd) for m in r.items if isinstance(m, Move)}
    for value in spmd.values:
        if value.name not in told | set(spmd.results):
            continue  # a stored tensor may lie in another order; of other ops' results nothing reads the claim
        for dim, axes in enumerate(value.layout.dims):
            if len(axes) > 1:
                wrong = relayout(spmd, value.name, value.layout.replace(dim, axes[::-1]))
                assert is_caught(case, wrong), (value.name, axes)


def test_weights_stored_in_another_order_than_the_ops_expect_are_caught() -> None:
    case = feed_forward()
    for name, wrong in (("Wi", "E_xF_yz"), ("Wd", "F_yzE_x"), ("x", "B_zyLE_x")):
        assert is_caught(case, relayout(case[0].spmd("o"), name, wrong))


def _regions(spmd: SpmdProgram) -> list:
    regions = [spmd.body]
    for region in regions:
        regions += [item.body for item in region.items if hasattr(item, "body")]
    return regions


def replace_move(spmd: SpmdProgram, result: str, **changes: object) -> SpmdProgram:
    """The program with one top-level Move changed."""
    items = tuple(replace(i, **changes) if isinstance(i, Move) and i.result == result else i for i in spmd.body.items)
    return replace(spmd, body=replace(spmd.body, items=items))


def skip_move(spmd: SpmdProgram, move: str) -> SpmdProgram:
    """The program in which a Move does nothing: its operand takes its name, and its claimed layout."""
    operand = next(i.operand for i in spmd.body.items if isinstance(i, Move) and i.result == move)
    claimed = spmd.table()[move].layout
    items = [i for i in spmd.body.items if not (isinstance(i, Move) and i.result == move)]
    rewired = []
    for item in items:
        if isinstance(item, Move) and item.operand == move:
            item = replace(item, operand=operand)
        elif not isinstance(item, Move) and isinstance(item.op, Sum):
            item = replace(
                item, op=replace(item.op, operands=tuple(operand if n == move else n for n in item.op.operands))
            )
        rewired.append(item)
    return relayout(replace(spmd, body=replace(spmd.body, items=tuple(rewired))), operand, claimed)


def test_a_missing_reduction_is_caught() -> None:
    case = feed_forward()
    spmd = case[0].spmd("o")
    assert is_caught(case, skip_move(spmd, "d''"))
    case = softmax_split()
    broken = case[0]
    for partial, complete in (("m", "m'"), ("z", "z'")):
        spmd = replace_move(broken.spmd("p"), complete, collective=AllGather(("y",), 1))
        assert is_caught(case, spmd)
        spmd = relayout(broken.spmd("p"), partial, "B_xL")
        assert is_caught(case, spmd)


def test_a_partial_result_is_refused() -> None:
    b = Build("2", B=4, E=4)
    b.stored("x", "BE_x", Kind.INPUT)
    b.einsum("s", "BE->B", "x", layout="B partialsum-x")
    stored = random_stored(b.program("s"), b.sizes, 0)
    with pytest.raises(ExecutionError, match="`s` is returned before it is reduced"):
        run_spmd(b.spmd("s"), stored)
    with pytest.raises(ExecutionError, match="`s`: the copies of a value differ"):
        run_spmd(relayout(b.spmd("s"), "s", "B"), stored)


def test_a_reduction_by_the_wrong_operation_is_caught() -> None:
    case = CASES["partial max"]()
    spmd = case[0].spmd(*case[1])
    for name in ("m", "m'"):
        wrong = spmd.table()[name].layout
        assert is_caught(case, relayout(spmd, name, Layout(wrong.dims, wrong.partial)))


def test_a_complete_operand_may_not_join_a_partial_sum_as_it_is() -> None:
    case = embedded()
    spmd = case[0].spmd("o'")
    assert is_caught(case, skip_move(spmd, "r'"))


@pytest.mark.parametrize(
    ("result", "collective"),
    [
        ("q'", AllToAll(("x", "y"), 1, 0)),  # declared B_yx
        ("q'", AllToAll(("y",), 1, 0)),
        ("o'", AllToAll(("x", "y"), 0, 2)),
        ("o''", AllToAll(("x",), 1, 0)),  # x is not at the minor end
        ("o''", AllGather(("y",), 1)),
        ("q'", Permute(layout("B_xyHQ"))),
    ],
)
def test_a_collective_that_does_not_lead_to_the_declared_layout_is_caught(result: str, collective: object) -> None:
    case = heads_to_batch()
    assert is_caught(case, replace_move(case[0].spmd("o''"), result, collective=collective))


def test_gathering_an_axis_that_is_not_minor_is_caught() -> None:
    b = Build("2x3", E=12)
    b.stored("x", "E_xy", Kind.INPUT)
    b.move("x'", "x", AllGather(("x",), 0), "E_y")
    stored = random_stored(b.program("x'"), b.sizes, 0)
    with pytest.raises(ExecutionError, match=r"all-gather\(x\) E does not leave what the layout says"):
        run_spmd(b.spmd("x'"), stored)


def test_blocks_that_do_not_divide_and_data_of_another_shape_are_refused() -> None:
    b = Build("2x3", E=10)
    b.stored("x", "E_y", Kind.INPUT)
    with pytest.raises(ExecutionError, match="10 elements do not make 3 equal blocks"):
        run_spmd(b.spmd("x"), {"x": np.zeros(10)})
    with pytest.raises(ExecutionError, match=r"has the shape \(4,\), not \(10,\)"):
        run_spmd(b.spmd("x"), {"x": np.zeros(4)})


def test_operands_that_lie_differently_are_refused_though_numpy_would_broadcast() -> None:
    b = Build("4", B=2, E=4)
    b.stored("x", "BE_x", Kind.INPUT)  # one element of E on a chip
    b.stored("w", "E")
    b.op(Sum("y", ("x", "w"), (1.0, 1.0)), "BE")
    with pytest.raises(ExecutionError, match="index `E` has 1 local elements here and 4 there"):
        run_spmd(b.spmd("y"), random_stored(b.program("y"), b.sizes, 0))


MESH = Mesh((("x", 2), ("y", 3), ("z", 2)))
SHAPE = (12, 24)


def blocks(at: Layout) -> list[set[tuple[int, int]]]:
    """The elements that each chip of MESH holds, one by one, chips in row-major order."""
    held = []
    for chip in itertools.product(*(range(n) for n in MESH.sizes)):
        ranges = []
        for size, axes in zip(SHAPE, at.dims, strict=True):
            number = 0
            for axis in axes:
                number = number * MESH.size(axis) + chip[MESH.names.index(axis)]
            length = size // MESH.size(*axes)
            ranges.append(range(number * length, (number + 1) * length))
        held.append(set(itertools.product(*ranges)))
    return held


@pytest.mark.parametrize(
    ("collective", "before", "after"),
    [
        (AllGather(("z",), 0), "B_xzF_y", "B_xF_y"),
        (AllGather(("x", "z"), 0), "B_xzF_y", "BF_y"),
        (AllGather(("y", "x"), 1), "BF_yx", "BF"),
        (AllToAll(("z",), 0, 1), "B_xzF_y", "B_xF_yz"),
        (AllToAll(("z", "x"), 0, 1), "B_xzF_y", "BF_yzx"),
        (AllToAll(("y",), 1, 0), "BF_y", "B_yF"),
    ],
)
def test_every_missing_element_is_received_once(collective: AllGather | AllToAll, before: str, after: str) -> None:
    old, new = blocks(layout(before)), blocks(layout(after))
    missing = [len(n - o) for o, n in zip(old, new, strict=True)]
    sent = elements_sent(MESH, SHAPE, collective, layout(before), layout(after))
    assert sent == Fraction(sum(missing), len(missing))


@pytest.mark.parametrize(
    ("before", "after"),
    [("BF_xz", "BF_zx"), ("BF_xy", "BF_yx"), ("B_xF_z", "B_zF_x"), ("B_yF_xz", "B_yF_zx"), ("BF_xyz", "BF_xyz")],
)
def test_a_permute_sends_a_block_where_a_chip_keeps_another(before: str, after: str) -> None:
    old, new = blocks(layout(before)), blocks(layout(after))
    leaves = max(len(o) if o != n else 0 for o, n in zip(old, new, strict=True))
    assert elements_sent(MESH, SHAPE, Permute(layout(after)), layout(before), layout(after)) == leaves


def test_reductions_send_contributions_and_finished_shares() -> None:
    before = layout("BF_x partialsum-yz")
    local = 12 * 12
    scattered = elements_sent(MESH, SHAPE, ReduceScatter(("z", "y"), 0), before, layout("B_zyF_x"))
    assert scattered == Fraction(local * 5, 6)
    assert elements_sent(MESH, SHAPE, AllReduce(("y",)), before, layout("BF_x partialsum-z")) == 2 * local * Fraction(
        2, 3
    )
    assert elements_sent(MESH, (7, 2), AllReduce(("y", "z")), before, layout("BF_x")) == 2 * 7 * Fraction(5, 6)
