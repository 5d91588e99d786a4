"""What the terms of a product are made of, and the type in which they are multiplied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..ir.dtype import Dtype
from ..ir.program import Einsum, Op, Value, walk
from ..ir.record import record
from ..ir.spmd import Compute, SpmdProgram

FLOATS = {Dtype.F32, Dtype.BF16, Dtype.F16}  # in which modules compute; in all others values are only stored
NARROW = (Dtype.FP4, Dtype.FP8)  # types in which some chips multiply, from the fewest bits up


@record
class Arithmetic:
    """In which type an op is done.

    `dtype`: in a module, which multiplies in the widest type that meets; f16 counts as bf16, whose rate it has.
    `fewer`: the narrower type of some factor, in which kernels do it that bring the other factors to that on the way;
    None where there is none.
    """

    dtype: Dtype = Dtype.BF16
    fewer: Dtype | None = None


def arithmetic(op: Op, values: Mapping[str, Value]) -> Arithmetic:
    """In which type an op is done, where the chip has it: of products by the types of their factors, without what is
    multiplied into another, as scales are. Values in few bits are computed with in the type of what they meet, and two
    of fp8, or of fp4, in that, as XLA does it with both widened beside the product."""
    types = [one.dtype for one in factors(op, values)[0]] if isinstance(op, Einsum) else []
    if len(types) < 2:
        return Arithmetic()
    met, narrow = FLOATS & {*types}, next((dtype for dtype in NARROW if dtype in types), None)
    if narrow is not None and {*types} == {narrow}:
        return Arithmetic(narrow)
    wide = Dtype.F32 if Dtype.F32 in met or len(met) > 1 else Dtype.BF16  # bf16 with f16 gives f32
    return Arithmetic(wide, narrow)


def arithmetics(spmd: SpmdProgram) -> set[Arithmetic]:
    """In which types the ops of a sharded program are done."""
    values = {value.name: value.value for value in spmd.values}
    return {arithmetic(placed.item.op, values) for placed in walk(spmd.body) if isinstance(placed.item, Compute)}


def multiplied(spmd: SpmdProgram) -> set[Dtype]:
    """The types of what the products of a sharded program multiply."""
    values = {value.name: value.value for value in spmd.values}
    ops = (placed.item.op for placed in walk(spmd.body) if isinstance(placed.item, Compute))
    products = (factors(op, values)[0] for op in ops if isinstance(op, Einsum))
    return {one.dtype for found in products if len(found) > 1 for one in found}


@record
class Factor:
    """What an einsum reads or makes, by its indices, and its type; `chosen`: rows, of chosen entries alone; `grouped`:
    read along some index by another dim, as scales are that count groups of places."""

    indices: frozenset[str]
    chosen: bool
    dtype: Dtype
    grouped: bool


def factors(op: Einsum, values: Mapping[str, Value]) -> tuple[list[Factor], list[list[frozenset[str]]]]:
    """The factors that every term of an einsum is made of, and of each other one the indices of what it may be
    multiplied into.

    Of three and more factors one all of whose indices the result has, or another factor, is multiplied into the
    smallest of these, once for each of its elements: so is a scale. XLA takes the cheapest order, too, whatever the
    order in which factors are given, of which nothing here depends either. Zero points go into their codes, and what
    is multiplied into rows is so where these are, not into the matrices of all experts.
    """
    zeros = dict(op.zeros)
    read = [(n, name, i) for n, (name, i) in enumerate(zip(op.operands, op.indices, strict=True))]
    left = [_factor(i, values[name]) for n, name, i in read if n not in zeros.values()]
    result = _factor(op.output, values[op.result])
    beside = [[frozenset(op.indices[codes])] for codes in zeros]
    while len(left) > 2:
        ways = []
        for n, one in enumerate(left):
            others = [other for other in left[:n] + left[n + 1 :] if one.indices <= other.indices]
            into = [*others, result] if one.indices <= result.indices else others
            if into:  # few indices first: what these are multiplied into may itself go into another
                scales = one.grouped, one.dtype in FLOATS  # of two with the same indices the scale goes into the codes
                first = len(one.indices), not others, one.chosen, sorted(one.indices), [not each for each in scales]
                ways.append((first, n, [each for each in into if each.chosen] or into))
        if not ways:
            break
        _, at, into = min(ways, key=lambda way: way[0])
        beside.append([each.indices for each in into])
        del left[at]
    return left, beside


def _factor(indices: Sequence[str], value: Value) -> Factor:
    return Factor(frozenset(indices), bool(value.chosen), value.dtype, tuple(indices) != value.dims)
