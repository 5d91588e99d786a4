"""What ops do: arithmetic, HBM traffic and kernels, from the local sizes of their indices.

An op's HBM traffic is its parameters and caches in the layout in which it reads them, the cache entries
that it writes, and the values that go from one kernel to another (see `kernels`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from fractions import Fraction
from functools import reduce
from typing import Any

import numpy as np

from ..ir.chosen import Chosen, held_share, kept_share, narrowest
from ..ir.program import (
    Append,
    Choose,
    Einsum,
    Kind,
    Op,
    Program,
    Repeat,
    Signature,
    Stored,
    Take,
    Use,
    Value,
    operand_names,
    signature,
    walk,
)
from ..ir.record import record
from .arithmetic import Arithmetic, arithmetic, factors
from .elementwise import smaller
from .kernels import Launch

Indices = tuple[str, ...]
Local = Callable[[str], Any]  # the local size of an index: a number, an array or a symbol


@record
class Work:
    """What one chip does for an op: `flops` in some `arithmetic`, and `hbm_bytes` read or written, `cache_bytes` of
    them read from caches by attention. `kernels`, `layers`, `steps`: see `Launch`, of one whose operands are brought to
    no other type."""

    flops: Any
    hbm_bytes: Any
    cache_bytes: Any = 0
    arithmetic: Arithmetic = Arithmetic()
    kernels: int = 0
    layers: int = 0
    steps: float = 0.0


FP8_KERNELS = 2  # of a matmul whose operand is brought to fp8, or to fp4: one before it does that


def work(
    op: Op,
    signature: Signature,
    values: Mapping[str, Value],
    launch: Launch,
    local: Local,
    whole: Local,
    shown: Any = 1,
    cut: Set[str] = frozenset(),
) -> Work:
    """The work of `op` on one chip, of chosen entries on the busiest; `whole` gives the size of a dim on all chips
    together. `shown`: the share of its scores that no mask hides from it; of chosen ones those that are kept lie among
    them, so that the fewer count. `cut`: the indices along which blocks are left out of what they hide; of an operand
    that has all of them no more is read."""
    chosen = chosen_of(op, values)
    load = busiest(chosen, local, whole)
    share = held_share(chosen, whole)
    share = share * shown if not chosen or isinstance(shown, int) else smaller(share, shown)
    done = flops(op, signature, values, local) * share * load
    read = {
        u: _bytes(u.indices, values[u.value], local, whole)
        * _groups(u, values[u.value], whole)
        * _met(u, op, values, local, whole)
        * (shown if cut and cut <= {*u.indices} else 1)
        for u in signature.uses
        if u.value in launch.reads
    }
    caches = sum((size for use, size in read.items() if use.value in launch.caches), start=0 * done)
    written = _bytes(signature.result, values[op.result], local, whole) if launch.writes else 0 * done
    match op:
        case Take(_, table, _, _):  # only the rows touched, not the table, which is read again where it is not near
            rows = _bytes(signature.result, values[table], local, whole)
            tables = {use: size for use, size in read.items() if use.value == table}
            read |= {use: smaller(rows, size) if launch.near else rows for use, size in tables.items()}
        case Append(_, cache, _, _, _):
            part = _part_written(op, local, whole)
            read = {use: size * part for use, size in read.items() if use.value != cache}
            written = _bytes(signature.uses[1].indices, values[cache], local, whole) * part
    read = {use: size * load if values[use.value].chosen else size for use, size in read.items()}
    moved = sum(read.values(), start=written * load if values[op.result].chosen else written)
    return Work(done, moved, caches, arithmetic(op, values), launch.kernels, launch.layers, launch.steps)


def _bytes(indices: Indices, value: Value, local: Local, whole: Local) -> Any:
    return _size(indices, local) * value.dtype.bits / 8 * held_share(value.chosen, whole)


def _part_written(op: Append, local: Local, whole: Local) -> Any:
    """Which part of the new entries a chip writes at the most: as many as it has places for."""
    entries, places = local(op.source), local(op.target)
    if op.context is None and np.all(places == whole(op.target)):
        return 1
    return smaller(entries, places) / entries


def _groups(use: Use, value: Value, whole: Local) -> Any:
    """How many elements a value has for each place of the indices by which it is read: 1 but where a dim counts groups
    of places."""
    share: Any = 1
    for index, dim in zip(use.indices, value.dims, strict=True):
        if index != dim and whole(index) != whole(dim):
            share = share * whole(dim) / whole(index)
    return share


def chosen_of(op: Op, values: Mapping[str, Value]) -> tuple[Chosen, ...]:
    """By which masks the terms of an op are chosen: those of its result, of a product those of its factors, and of
    an op that chooses those of its keys, all of which it compares."""
    if isinstance(op, Choose):
        return values[op.keys].chosen
    if not isinstance(op, Einsum):
        return values[op.result].chosen
    return narrowest(one for name in op.operands for one in values[name].chosen)


def _met(use: Use, op: Op, values: Mapping[str, Value], local: Local, whole: Local) -> Any:
    """Which part of an operand of a product is read: of weights of experts, those that some token on the chip chose.

    `T` tokens that each choose `k` of `X` evenly meet the share 1 - (1 - k/X)^T of all.
    """
    found: Any = 1
    for one in chosen_of(op, values):
        if one not in values[use.value].chosen and set(one.over) <= set(use.indices):
            tokens = math.prod((local(d) for d in one.per if d not in use.indices), start=1)
            missed = 1 - one.share(whole)
            found = found * (1 - (float(missed) if isinstance(missed, Fraction) else missed) ** tokens)
    return found


def busiest(chosen: Sequence[Chosen], local: Local, whole: Local) -> Any:
    """How many times the mean load of chosen entries the chip has that has most, where chips share them out: not more
    than there are chips that do, each of which could have all of them."""
    found: Any = 1
    for one in chosen:
        if one.skew != 1:
            ways = math.prod((whole(d) for d in one.over), start=1) / math.prod((local(d) for d in one.over), start=1)
            found = found * smaller(float(one.skew), ways)
    return found


def flops(op: Op, signature: Signature, values: Mapping[str, Value], local: Local) -> Any:
    """Floating-point operations: a multiplication and an addition for each term of an einsum of two."""
    none = 0 * _size(signature.result, local)
    if isinstance(op, Einsum):
        every, beside = factors(op, values)
        extra = sum((_least_size(among, local) for among in beside), start=none)
        return len(every) * _size(signature.indices, local) + extra
    return sum((times * _size(among, local) for times, among in signature.counted), start=none)


def _least_size(among: Sequence[frozenset[str]], local: Local) -> Any:
    """The smallest of the sizes of several lists of indices: of those that all have, times the least of the others."""
    shared = frozenset.intersection(*among)
    others = {each - shared for each in among}
    fewest = [sorted(each) for each in others if not any(other < each for other in others)]
    return _size(sorted(shared), local) * reduce(smaller, (_size(each, local) for each in sorted(fewest)))


def _size(indices: Sequence[str], local: Local) -> Any:
    return math.prod((local(i) for i in indices), start=1)


def model_flops(program: Program, phase: str) -> int:
    """Floating-point operations of the einsums that read a parameter, or what is made of parameters and of no input or
    cache, as a matrix that a gate or a merged adapter was added to, in one run of a phase, unpadded.

    For a Transformer these are 2 N for each token, N being its parameters without its tables: what is
    looked up counts no arithmetic, and attention to earlier tokens is not counted.
    """
    return sum(model_flops_by_type(program, phase).values())


def model_flops_by_type(program: Program, phase: str) -> dict[Arithmetic, int]:
    """The same by the types in which they are done."""
    values = program.table()
    sizes = program.true_sizes(dict(program.phase(phase).sizes))
    parameters, constants = set[str](), set[str]()  # with what is made of them
    found: dict[Arithmetic, int] = {}
    for placed in walk(program.body):
        match placed.item:
            case Stored(name, Kind.PARAM):
                parameters.add(name)
            case Stored() | Repeat():
                pass
            case op:
                read = {*operand_names(op)}
                if isinstance(op, Einsum) and parameters & read:
                    done = flops(op, signature(op, values), values, sizes.__getitem__)
                    once = int(done * kept_share(chosen_of(op, values), lambda d: Fraction(sizes[d])))
                    done_in = arithmetic(op, values)
                    found[done_in] = found.get(done_in, 0) + placed.times * once
                if read <= parameters | constants:
                    (parameters if read & parameters else constants).add(op.result)
    return found
