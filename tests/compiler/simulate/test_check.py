"""The check of a sharded program: agreement with the reference and with predicted bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from math import prod

import pytest
from exec_cases import CASES, feed_forward
from helpers_exec import Build, relayout

from escc.compiler.simulate.check import check
from escc.compiler.simulate.spmd_interpreter import ExecutionError
from escc.ir.collective import AllGather, AllReduce, AllToAll, Permute, ReduceScatter
from escc.ir.diagnostics import InputError
from escc.ir.program import Kind, Program, Repeat, Sum, walk
from escc.ir.spmd import Move, SpmdProgram


def textbook(spmd: SpmdProgram) -> tuple[Fraction, ...]:
    """Bytes sent per chip by each Move, by the usual formulas."""
    values, sizes = spmd.table(), dict(spmd.sizes)

    def local(name: str) -> Fraction:
        value = values[name]
        shape = value.layout.local_shape([sizes[d] for d in value.dims], spmd.mesh)
        return Fraction(prod(shape) * value.dtype.bits, 8)

    sent = []
    for placed in walk(spmd.body):
        match placed.item:
            case Move(_, operand, Permute()):
                sent.append(local(operand))
            case Move(result, operand, AllGather() | AllToAll() | ReduceScatter() | AllReduce() as step):
                k = spmd.mesh.size(*step.axes)
                largest = max(local(result), local(operand))
                sent.append(largest * Fraction(k - 1, k) * (2 if isinstance(step, AllReduce) else 1))
            case Move():
                sent.append(Fraction(0))
    return tuple(sent)


@pytest.mark.parametrize("name", CASES)
def test_programs_that_are_right_pass(name: str) -> None:
    builder, results, _ = CASES[name]()
    report = check(builder.program(*results), builder.spmd(*results), textbook)
    assert report.max_error < 1e-12
    assert report.equal
    assert report.chips == builder.mesh.chips
    assert report.counted_bytes == report.predicted_bytes
    assert len({n for _, n in report.sizes if n > 1}) == sum(n > 1 for _, n in report.sizes)


def test_the_report_counts_repetitions() -> None:
    builder, results, _ = CASES["repeated"]()
    report = check(builder.program(*results), builder.spmd(*results), textbook)
    assert report.repeats == (("layer", 2),)
    assert [m.times for m in report.moves] == [1, 2, 2, 2]
    assert report.counted_bytes == sum(m.times * m.counted for m in report.moves)


def test_a_wrong_prediction_is_reported_even_where_the_total_agrees() -> None:
    builder, results, _ = feed_forward()

    def shifted(spmd: SpmdProgram) -> tuple[Fraction, ...]:
        first, second, *rest = textbook(spmd)
        return (first + 1, second - 1, *rest)

    report = check(builder.program(*results), builder.spmd(*results), shifted)
    assert report.counted_bytes == report.predicted_bytes
    assert not report.equal


def changed(program: Program, change: Callable[[Sum], Sum]) -> Program:
    """The dense program with its sums changed."""

    def within(items: tuple) -> tuple:
        return tuple(
            change(i)
            if isinstance(i, Sum)
            else replace(i, body=replace(i.body, items=within(i.body.items)))
            if isinstance(i, Repeat)
            else i
            for i in items
        )

    return replace(program, body=replace(program.body, items=within(program.body.items)))


@pytest.mark.parametrize("name", ["feed-forward", "repeated"])
def test_a_program_that_computes_something_else_is_seen(name: str) -> None:
    builder, results, _ = CASES[name]()
    other = changed(builder.program(*results), lambda s: replace(s, coefficients=(0.9, *s.coefficients[1:])))
    assert check(other, builder.spmd(*results), textbook).max_error > 1e-3


def test_a_cache_version_that_is_wrong_is_seen_though_no_result_reads_it() -> None:
    builder, _, _ = CASES["cache append"]()
    builder.stored("other", "B", Kind.INPUT)
    program, right = builder.program("other"), builder.spmd("other")
    assert check(program, right, textbook).max_error == 0
    assert check(program, relayout(right, "ks", "BM_xyQ"), textbook).max_error > 1e-3
    with pytest.raises(ExecutionError, match="`ks`: a chip holds"):
        check(program, relayout(right, "ks", "BM_xQ"), textbook)


def test_what_is_too_large_to_run_is_refused() -> None:
    b = Build("512x512", E=1 << 20, F=1 << 20)
    b.stored("x", "E_xF_y", Kind.INPUT)
    b.move("x'", "x", AllGather(("x",), 0), "EF_y")
    with pytest.raises(InputError, match="`x'` is too large to run on 262144 virtual chips"):
        check(b.program("x'"), b.spmd("x'"), textbook)


def test_the_seed_changes_the_data() -> None:
    builder, results, _ = feed_forward()
    errors = {check(builder.program(*results), builder.spmd(*results), textbook, seed).max_error for seed in range(4)}
    assert len(errors) > 1
