"""The check of a sharded program: it runs, it agrees with the dense reference, it sends what was predicted."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction

import numpy as np

from ...ir.choices import with_room
from ...ir.dataflow import moves, repeat_counts
from ...ir.diagnostics import InputError, fail
from ...ir.program import Program
from ...ir.spmd import SpmdProgram
from .check_report import ERROR_TOLERANCE, CheckReport, HostCheck, MoveCheck
from .finite import NotFinite, Watch
from .numpy_runtime import difference
from .pointwise import Array
from .reference import random_stored, run_reference
from .routing import even_share
from .shrink import shrink, true_part, zero_padded
from .spmd_interpreter import ExecutionError, MoveCount, run_spmd

MOST_ELEMENTS = 1 << 27  # of one value on all virtual chips together: 1 GiB in float64


def check(
    program: Program,
    spmd: SpmdProgram,
    predict: Callable[[SpmdProgram], tuple[Fraction, ...]],
    seed: int = 0,
    predict_host: Callable[[SpmdProgram], tuple[Fraction, Fraction]] = lambda _: (Fraction(0), Fraction(0)),
) -> CheckReport:
    """Run `spmd` and `program` on shrunken dims with random data of `seed`, and compare.

    The program runs without padding; of the sharded one what lies beyond the true sizes is left out.
    `predict` gives, for a sharded program, the bytes that a chip sends in one execution of each
    Move, in program order, `predict_host` those that come from its host and that go back. Raises ExecutionError when
    the sharded program does not hold together, and InputError when even the shrunken dims are too large to run, or
    when the model's own numbers do not stay finite and the results differ.
    """
    shrunken = shrink(program, [spmd])
    small, [local] = shrunken.program, shrunken.spmds
    refuse_large(local)
    sizes = dict(local.sizes)
    true = small.true_sizes(sizes)
    stored = random_stored(small, true, seed)
    whole, chips = Watch(), Watch(local.mesh.names)
    expected = run_reference(small, true, stored, finite=whole)
    try:
        run = run_spmd(local, zero_padded(small, sizes, stored), finite=chips)
    except ExecutionError:
        if whole.first is not None:
            raise incomparable(spmd.phase, chips.first or whole.first) from None
        raise
    names = dict(zip(program.results, spmd.results, strict=True))
    if missing := [n for n in expected if names.get(n, n) not in run.results]:
        raise ExecutionError(f"the sharded program does not make `{missing[0]}`")
    actual = {n: true_part(small, sizes, n, run.results[names.get(n, n)]) for n in expected}
    error = max((largest_difference(actual[n], array) for n, array in expected.items()), default=0.0)
    if error > ERROR_TOLERANCE and whole.first is not None:
        raise incomparable(spmd.phase, chips.first or whole.first)
    counted = run.moves
    if any(value.chosen for value in local.values):  # in what is sent, chips differ as their tokens choose
        counted = run_spmd(local, zero_padded(small, sizes, stored), evenly=True).moves
    repeats = tuple(repeat_counts(local).items())
    odd = None if all(np.isfinite(a).all() for a in expected.values()) else chips.first or whole.first
    sent = _compare(counted, predict(_as_even(local)), local)
    host = HostCheck((run.in_bytes, run.out_bytes), predict_host(local))
    return CheckReport(error, spmd.mesh.chips, local.sizes, repeats, sent, host, odd)


def incomparable(phase: str, odd: NotFinite) -> InputError:
    """What is said where the numbers of a model are not finite, and so depend on the order of its sums."""
    return fail(
        f"On random data the numbers of phase `{phase}` do not stay finite, and results cannot be compared: "
        f"{odd.sentence}.",
        hint="this is the model's arithmetic, whatever the plan; check it without, or bound what it takes",
    )


def _compare(
    counted: tuple[MoveCount, ...], predicted: tuple[Fraction, ...], spmd: SpmdProgram
) -> tuple[MoveCheck, ...]:
    operands = {move.result: move.operand for move in moves(spmd)}
    return tuple(
        MoveCheck(m.result, m.times, m.bytes_sent, p, all(_even(n, spmd) for n in (m.result, operands[m.result])))
        for m, p in zip(counted, predicted, strict=True)
    )


def _as_even(spmd: SpmdProgram) -> SpmdProgram:
    """The sharded program with room for as many blocks of entries as masks keep that are even, where others keep those
    that are expected."""
    values, sizes = spmd.table(), dict(spmd.sizes)
    room: dict[str, Fraction] = {}
    for one in (one for value in spmd.values for one in value.chosen):
        room[one.name] = Fraction(1)
        if one.merged:
            whole = next(other for other in values[one.mask].chosen if other.name == one.mask)
            room[one.name] = even_share(one, whole, sizes) / one.share(lambda d: Fraction(sizes[d]))
    return with_room(spmd, room)


def _even(name: str, spmd: SpmdProgram) -> bool:
    """Whether each chip keeps as many entries of a value as any other when all are chosen as often: along one dim
    at least it has whole rounds of them, and what a token keeps does not lie over the end of a block."""
    value, sizes = spmd.table()[name], dict(spmd.sizes)
    local = dict(zip(value.dims, value.layout.local_shape([sizes[d] for d in value.dims], spmd.mesh), strict=True))
    for one in value.chosen:
        entries = math.prod(sizes[d] for d in (*one.over, *(d for _, d in one.merged)))
        if one.merged and sizes[one.merged[-1][1]] % one.keep:
            return False
        if entries % one.keep or not any(local[d] % (entries // one.keep) == 0 for d in one.per):
            return False
    return True


def largest_difference(actual: Array, expected: Array) -> float:
    """The largest difference, relative to the largest finite element expected; infinite where shapes differ."""
    if actual.shape != expected.shape:
        return math.inf
    with np.errstate(all="ignore"):
        return difference(actual, expected)


def refuse_large(spmd: SpmdProgram) -> None:
    """Raise InputError where a value takes more memory than a run on virtual chips should."""
    sizes: Mapping[str, int] = dict(spmd.sizes)
    for value in spmd.values:
        local = value.layout.local_shape([sizes[d] for d in value.dims], spmd.mesh)
        if math.prod(local) * spmd.mesh.chips > MOST_ELEMENTS:
            raise fail(
                f"`{value.name}` is too large to run on {spmd.mesh.chips} virtual chips, even on shrunken dims.",
                hint="check the program on a smaller mesh",
            )
