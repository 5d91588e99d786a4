"""What each op may do with the mesh, and what it costs, by the judge's own reading of the rules."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

from escc.cost.kernels import Launch
from escc.ir.expr import count_calls, linear_operands, operands, rotated_dims
from escc.ir.program import Append, Choose, Einsum, Iota, Map, Op, Reduce, Sum, Take, TopK, Value

from .chosen import Masks, met, share, terms
from .layouts import Order, Place, arrangements, ways

FLOPS = 275e12  # a second, each chip
HBM = 1.2e12  # bytes a second, each chip
LINK = 270e9  # bytes a second, each chip


@dataclass(frozen=True)
class Strategy:
    """One way to run an op: the layout of every use, the result's, and the seconds of one run."""

    uses: tuple[Place, ...]
    result: Place
    seconds: float


@dataclass(frozen=True)
class _Facts:
    """An op as sharding sees it: `uses` are (value, indices); `flops` takes local index sizes."""

    uses: tuple[tuple[str, tuple[str, ...]], ...]
    result: tuple[str, ...]
    flops: Callable[[Mapping[str, int]], float]
    linear: tuple[int, ...] = ()
    together: bool = False
    whole: frozenset[str] = frozenset()
    even: frozenset[str] = frozenset()
    top: bool = False


def uses(op: Op, values: Mapping[str, Value]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """What `op` reads: each (value, indices) once."""
    return _facts(op, values).uses


def _facts(op: Op, values: Mapping[str, Value], rows: Collection[str] = ()) -> _Facts:
    """`rows`: the values of which only chosen entries are there."""

    def whole(name: str) -> tuple[str, tuple[str, ...]]:
        return name, values[name].dims

    result = values[op.result].dims

    def elements(local: Mapping[str, int]) -> int:
        return math.prod(local[i] for i in result)

    match op:
        case Einsum():
            read = list(dict.fromkeys(zip(op.operands, op.indices, strict=True)))
            apart = {op.operands[at] for pair in op.zeros for at in pair}  # a difference is not linear in these
            alone = [op.operands.count(name) == 1 and name not in apart for name, _ in read]
            once = tuple(i for i, free in enumerate(alone) if free)
            return _Facts(tuple(read), op.output, _einsum_flops(op, rows), once)
        case Map():
            names, calls = operands(op.expr), count_calls(op.expr)
            once = tuple(i for i, name in enumerate(names) if name in linear_operands(op.expr))
            turned = frozenset(rotated_dims(op.expr))
            return _Facts(tuple(map(whole, names)), result, lambda n: calls * elements(n), once, even=turned)
        case Sum():
            terms = len(op.operands)
            return _Facts(tuple(map(whole, op.operands)), result, lambda n: terms * elements(n), together=True)
        case Reduce():
            return _Facts((whole(op.operand),), result, lambda n: math.prod(n.values()), (0,), top=True)
        case Take():
            return _Facts((whole(op.table), whole(op.ids)), result, lambda n: 0, (0,))
        case TopK():
            read = tuple(dict.fromkeys((whole(op.keys), whole(op.picked))))
            compared = values[op.keys].dims
            fixed = frozenset({*op.over, op.keep})
            return _Facts(read, result, lambda n: math.prod(n[d] for d in compared), whole=fixed)
        case Choose():
            return _Facts((whole(op.keys),), result, elements, whole=frozenset(op.over))
        case Iota():
            return _Facts((), result, lambda n: 0)
        case Append():
            return _Facts((whole(op.cache), whole(op.new)), result, lambda n: 0, whole=frozenset({op.source}))


Factor = tuple[frozenset[str], bool]  # its indices, and whether it is rows of chosen entries


def _einsum_flops(op: Einsum, rows: Collection[str]) -> Callable[[Mapping[str, int]], int]:
    """One multiplication or addition for every term and each factor; but of three factors and more, those that only
    scale the result, or another factor, take one for every element of that. The least of all ways to do so: what
    scales some of `rows`, which are few, scales no matrix. A zero point is taken off its codes."""
    zeros = dict(op.zeros)
    factors = [(frozenset(i), name in rows) for name, i in zip(op.operands, op.indices, strict=True)]
    plain = [factor for n, factor in enumerate(factors) if n not in zeros.values()]
    every = list(_scalings(plain, (frozenset(op.output), op.result in rows)))

    def flops(local: Mapping[str, int]) -> int:
        def size(indices: frozenset[str]) -> int:
            return math.prod(local[i] for i in indices)

        ways = (left * math.prod(local.values()) + sum(min(map(size, into)) for into in once) for left, once in every)
        return min(ways) + sum(size(factors[codes][0]) for codes in zeros)

    return flops


def _scalings(factors: list[Factor], result: Factor) -> Iterator[tuple[int, list[list[frozenset[str]]]]]:
    """All ways to take factors out: how many are left, and what each of the others may scale."""
    taken = False
    for n, (own, _) in enumerate(factors if len(factors) > 2 else []):
        rest = factors[:n] + factors[n + 1 :]
        scaled = [each for each in (*rest, result) if own <= each[0]]
        few = [indices for indices, is_rows in scaled if is_rows] or [indices for indices, _ in scaled]
        for left, once in _scalings(rest, result) if few else ():
            taken = True
            yield left, [few, *once]
    if not taken:
        yield len(factors), []


def _index_sizes(facts: _Facts, op: Op, values: Mapping[str, Value], sizes: Mapping[str, int]) -> dict[str, int]:
    found = {i: sizes[d] for i, d in zip(facts.result, values[op.result].dims, strict=True)}
    for name, indices in facts.uses:
        for i, d in zip(indices, values[name].dims, strict=True):
            found[i] = max(found.get(i, 0), sizes[d])  # a scale has fewer elements than there are places
    return found


def _bytes(
    op: Op,
    facts: _Facts,
    values: Mapping[str, Value],
    launch: Launch,
    sizes: Mapping[str, int],
    masks: Mapping[str, Masks],
) -> Callable[[Mapping[str, int]], float]:
    """What the op reads from and writes to HBM, by how large its indices are on a chip."""
    every, whole = terms(op, masks), _index_sizes(facts, op, values, sizes)
    kept = {name: share(masks.get(name, frozenset()), sizes) for name in (op.result, *(name for name, _ in facts.uses))}
    few = [  # of a scale there are fewer elements than places
        float(
            math.prod(
                (Fraction(sizes[d], whole[i]) for i, d in zip(own, values[name].dims, strict=True)), start=Fraction(1)
            )
        )
        for name, own in facts.uses
    ]

    def size(name: str, indices: tuple[str, ...], local: Mapping[str, int]) -> float:
        elements = 1
        for i in indices:
            elements *= local[i]
        own = masks.get(name, frozenset())
        reached = met(every, own, indices, local, sizes) if every and name != op.result else 1.0
        return elements * values[name].dtype.bits / 8 * (kept[name] * reached)

    def total(local: Mapping[str, int]) -> float:
        found = size(op.result, facts.result, local) if launch.writes else 0.0
        for (name, indices), share_read in zip(facts.uses, few, strict=True):
            if isinstance(op, Append):
                # The axes of the target dim hold copies of the new entries: each chip keeps those that it has places
                # for, as many as all of these at the most.
                kept_here = min(local[op.target], local[op.source]) / local[op.source]
                if name == op.cache:
                    new = math.prod(local[i] for i in values[op.new].dims)
                    found += kept_here * new * values[op.cache].dtype.bits / 8
                elif name in launch.reads:
                    found += kept_here * size(name, indices, local) * share_read
            elif name in launch.reads:
                if isinstance(op, Take) and name == op.table:
                    rows, every_row = size(name, facts.result, local), size(name, indices, local)
                    found += min(rows, every_row) if launch.near else rows
                else:
                    found += size(name, indices, local) * share_read
        return found

    return total


def strategies(
    op: Op,
    values: Mapping[str, Value],
    sizes: Mapping[str, int],
    mesh: tuple[int, ...],
    launch: Launch,
    masks: Mapping[str, Masks],
) -> list[Strategy]:
    """All ways to run `op`, the cheapest of those that look alike from outside."""
    facts = _facts(op, values, [name for name, own in masks.items() if own])
    whole = _index_sizes(facts, op, values, sizes)
    names = list(whole)
    # Bin 0: the axis repeats the work. Then one bin for each operand that may be partial, or one for all.
    extra = [set(range(len(facts.uses)))] if facts.together else [{i} for i in facts.linear]
    contracted = {i for i in names if i not in facts.result}
    if isinstance(op, Append):
        contracted = set()
    worked, moved_bytes = share(terms(op, masks), sizes), _bytes(op, facts, values, launch, sizes, masks)
    best: dict[tuple[tuple[Place, ...], Place], float] = {}
    for orders, bins in arrangements(mesh, len(names), 1 + len(extra)):
        on: dict[str, Order] = dict(zip(names, orders, strict=True))
        if any(whole[i] % ways(on[i], mesh) for i in names) or any(on[i] for i in facts.whole):
            continue
        dims = [(i, d) for name, own in facts.uses for i, d in zip(own, values[name].dims, strict=True)]
        if any(sizes[d] % ways(on[i], mesh) for i, d in dims):
            continue  # a part of a group
        local = {i: whole[i] // ways(on[i], mesh) for i in names}
        if any(local[i] % 2 for i in facts.even):
            continue

        def placed(indices: tuple[str, ...], partial: frozenset[int], on: dict[str, Order] = on) -> Place:
            return Place(tuple(on[i] for i in indices), partial, facts.top and bool(partial))

        read = tuple(
            placed(indices, frozenset(a for a, b in enumerate(bins) if b > 0 and u in extra[b - 1]))
            for u, (_, indices) in enumerate(facts.uses)
        )
        open_axes = {a for i in contracted for a in on[i]} | {a for a, b in enumerate(bins) if b > 0}
        key = (read, placed(facts.result, frozenset(open_axes)))
        seconds = max(facts.flops(local) * worked / FLOPS, moved_bytes(local) / HBM)
        best[key] = min(best.get(key, math.inf), seconds)
    return [Strategy(read, result, seconds) for (read, result), seconds in best.items()]
