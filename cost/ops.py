"""What ops do: arithmetic and HBM traffic, from the local sizes of their indices.

Attention counts as fused and intermediate values as kept near the arithmetic: an op's HBM traffic
is its parameters and caches in the layout in which it reads them, and the cache entries it writes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from ..ir.expr import count_calls
from ..ir.program import (
    Append,
    Einsum,
    Iota,
    Kind,
    Map,
    Op,
    Program,
    Reduce,
    Signature,
    Stored,
    Sum,
    Take,
    TopK,
    Value,
    signature,
    walk,
)

Indices = tuple[str, ...]
Local = Callable[[str], Any]  # the local size of an index: a number, an array or a symbol


@dataclass(frozen=True)
class Work:
    """What one chip does for an op: `flops`, and `hbm_bytes` read or written."""

    flops: Any
    hbm_bytes: Any


def work(op: Op, signature: Signature, values: Mapping[str, Value], resident: Set[str], local: Local) -> Work:
    """The work of `op` on one chip.

    `resident` names the values that lie in HBM: parameters, caches, and versions of caches.
    """
    return Work(flops(op, signature, local), hbm_bytes(op, signature, values, resident, local))


def flops(op: Op, signature: Signature, local: Local) -> Any:
    """Floating-point operations: a multiplication and an addition for each term of an einsum of two."""
    result = _size(signature.result, local)
    match op:
        case Einsum(_, names, indices, output):
            factors, beside = _beside(indices, output)
            extra = sum((_size(among, local) for among in beside), start=0 * result)
            return len(factors) * _size(signature.indices, local) + extra
        case Map(_, expr):
            return count_calls(expr) * result
        case Sum(_, names, _):
            return len(names) * result
        case Reduce():
            return _size(signature.indices, local)
        case TopK():
            return _size(signature.uses[0].indices, local)  # one comparison for each key
        case Take() | Iota() | Append():
            return 0 * result


def _beside(indices: Sequence[Indices], output: Indices) -> tuple[list[Indices], list[Indices]]:
    """The factors that every term of an einsum is made of, and what the others are multiplied into.

    From a third factor on, one all of whose indices the result has, or another factor, is multiplied
    into that, once for each of its elements: so is a scale. The indices of these elements are given.
    """
    factors, beside = list(indices), list[Indices]()
    at = 1
    while at < len(factors):
        among = [g for g in (output, *factors[:at], *factors[at + 1 :]) if set(factors[at]) <= set(g)]
        if among and len(factors) > 2:
            beside.append(among[0])
            del factors[at]
        else:
            at += 1
    return factors, beside


def hbm_bytes(op: Op, signature: Signature, values: Mapping[str, Value], resident: Set[str], local: Local) -> Any:
    """Bytes of parameters and caches read, and of cache entries written."""
    match op:
        case Take(_, table, _, _):
            rows = _size(signature.result, local)  # only the rows touched, not the table
            return rows * values[table].dtype.bits / 8 if table in resident else 0 * rows
        case Append(_, cache, _, _, _):
            return _size(signature.uses[1].indices, local) * values[cache].dtype.bits / 8
        case _:
            read = [u for u in signature.uses if u.value in resident]
            nothing = 0 * _size(signature.result, local)
            return sum((_size(u.indices, local) * values[u.value].dtype.bits / 8 for u in read), start=nothing)


def _size(indices: tuple[str, ...], local: Local) -> Any:
    return math.prod((local(i) for i in indices), start=1)


def model_flops(program: Program, phase: str) -> int:
    """Floating-point operations of the einsums that read a parameter, in one run of a phase, unpadded.

    For a Transformer these are 2 N for each token, N being its parameters without its tables: what is
    looked up counts no arithmetic, and attention to earlier tokens is not counted.
    """
    values = program.table()
    sizes = program.true_sizes(dict(program.phase(phase).sizes))
    parameters: set[str] = set()
    total = 0
    for placed in walk(program.body):
        match placed.item:
            case Stored(name, Kind.PARAM):
                parameters.add(name)
            case Einsum(_, names, _, _) as op if parameters & set(names):
                total += placed.times * int(flops(op, signature(op, values), sizes.__getitem__))
    return total
