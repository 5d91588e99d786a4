"""What an op on local shards does to layouts: the judge of every Compute step.

Each kind of op is derived from its meaning, and nothing here is shared with the rules that the
search draws strategies from. An op runs on what every chip holds, and no chip looks at another, so

- an index is split alike, in the same order of axes, in every operand that has it;
- an operand that lacks a split index is replicated over its axes: complete, and split by none;
- a value that is partial over an axis passes only where the op is linear in it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from ..collective import LayoutError
from ..expr import FUNCTIONS, Call, Const, Context, Expr, Operand, Rotate, Size, operands, rotated_dims
from ..layout import Layout, Reduction, format_layout
from ..mesh import Mesh
from ..program import Append, Choose, Einsum, Iota, Map, Op, Reduce, Sum, Take, TopK
from ..record import record
from ..spmd import SpmdValue


def check_op(op: Op, values: Mapping[str, SpmdValue], sizes: Mapping[str, int], mesh: Mesh) -> None:
    """Raise LayoutError unless `op`, run on local shards, leaves its result in the layout it declares.

    `values` holds the operands and the result, `sizes` every dim. Layouts must fit their values.
    """
    check_dims(op, values, sizes)
    result = values[op.result]
    derived = result_layout(op, values, sizes, mesh)
    if derived != result.layout:
        left, said = (format_layout(result.dims, layout) for layout in (derived, result.layout))
        raise LayoutError(f"it leaves its result in {left}, not in {said}")


def result_layout(op: Op, values: Mapping[str, SpmdValue], sizes: Mapping[str, int], mesh: Mesh) -> Layout:
    """The layout in which `op` leaves its result when its operands lie as they do.

    A dim of the result that no operand has (an iota's, a broadcast one) lies as the result declares:
    every chip can make any part of it. Raises LayoutError when the op cannot run on such shards.
    """
    declared = values[op.result]
    match op:
        case Einsum(_, names, indices, output):
            reads = [_Read(n, i, values[n].layout) for n, i in zip(names, indices, strict=True)]
            splits = _splits(reads)
            partial = _of_one_factor(reads)
            for at in (at for pair in op.zeros for at in pair):
                _check_complete(reads[at], "a difference is not linear in it")
            partial |= {a for i, axes in splits.items() if i not in output for a in axes}
            return _laid_out(output, splits, partial, Reduction.SUM, declared.layout)
        case Map(_, expr):
            reads = _reads(values, operands(expr))
            splits = _splits(reads)
            _check_pairs(expr, values, sizes, mesh)
            return _laid_out(declared.dims, splits, _through_map(expr, reads), Reduction.SUM, declared.layout)
        case Sum(_, names, _):
            reads = _reads(values, names)
            splits = _splits(reads)
            return _laid_out(declared.dims, splits, _of_every_term(reads), Reduction.SUM, declared.layout)
        case Reduce(_, name, over):
            (read,) = reads = _reads(values, (name,))
            splits = _splits(reads)
            _check_reduction(read, Reduction.MAX)
            partial = set(read.layout.partial) | {a for d in over for a in splits[d]}
            return _laid_out(declared.dims, splits, partial, Reduction.MAX, declared.layout)
        case Take(_, table, ids, over):
            reads = _reads(values, (table, ids))
            splits = _splits(reads)
            _check_complete(reads[1], "rows cannot be looked up by it")
            _check_reduction(reads[0], Reduction.SUM)
            partial = {*reads[0].layout.partial, *(a for d in over for a in splits[d])}
            return _laid_out(declared.dims, splits, partial, Reduction.SUM, declared.layout)
        case TopK(_, keys, picked, over, keep):
            reads = _reads(values, (keys, picked))
            splits = _splits(reads)
            _check_ordered(reads[0], splits, over)
            _check_reduction(reads[1], Reduction.SUM)
            if declared.layout.dims[-1]:
                raise LayoutError(f"every chip makes all of `{keep}`")
            rest = {d: axes for d, axes in splits.items() if d not in over}
            return _laid_out(declared.dims, rest | {keep: ()}, reads[1].layout.partial, Reduction.SUM, declared.layout)
        case Choose(_, keys, over, _):
            (read,) = reads = _reads(values, (keys,))
            splits = _splits(reads)
            _check_ordered(read, splits, over)
            return _laid_out(declared.dims, splits, set(), Reduction.SUM, declared.layout)
        case Iota(_, dim):
            return _laid_out((dim,), {}, set(), Reduction.SUM, declared.layout)
        case Append(_, cache, new, source, _):
            reads = _reads(values, (cache, new))
            splits = _splits(reads)
            for read in reads:
                _check_complete(read, "a cache holds complete values")
            if splits[source]:
                raise LayoutError(f"`{new}` is split over `{source}`, and every owner of the places needs its entries")
            return _laid_out(values[cache].dims, splits, set(), Reduction.SUM, declared.layout)


@record
class _Read:
    """One reading of a value: its dims as indices of the op, and how it lies."""

    name: str
    indices: tuple[str, ...]
    layout: Layout


def _reads(values: Mapping[str, SpmdValue], names: Iterable[str]) -> list[_Read]:
    """Readings of values by their own dims."""
    return [_Read(name, values[name].dims, values[name].layout) for name in names]


def _splits(reads: Sequence[_Read]) -> dict[str, tuple[str, ...]]:
    """For each index that is read, the axes that split it. Raises where readings do not fit together."""
    splits: dict[str, tuple[str, ...]] = {}
    place: dict[str, str] = {}
    for read in reads:
        for index, axes in zip(read.indices, read.layout.dims, strict=True):
            if splits.setdefault(index, axes) != axes:
                raise LayoutError(
                    f"index `{index}` is split by {_axes(splits[index])} in one operand and by {_axes(axes)} in another"
                )
            for axis in axes:
                if place.setdefault(axis, index) != index:
                    raise LayoutError(f"axis `{axis}` splits `{place[axis]}` in one operand and `{index}` in another")
    for read in reads:
        for axis in read.layout.partial:
            if axis in place:
                raise LayoutError(f"`{read.name}` is partial over `{axis}`, by which `{place[axis]}` is split")
    return splits


def _laid_out(
    indices: Sequence[str],
    splits: Mapping[str, tuple[str, ...]],
    partial: Iterable[str],
    reduction: Reduction,
    declared: Layout,
) -> Layout:
    """The result's layout; an index that nothing reads lies as it is declared."""
    used = {*partial, *(a for axes in splits.values() for a in axes)}
    for index, axes in zip(indices, declared.dims, strict=True):
        for axis in axes:
            if index not in splits and axis in used:
                raise LayoutError(f"axis `{axis}` splits `{index}` in the result and something else in an operand")
    dims = tuple(splits.get(i, axes) for i, axes in zip(indices, declared.dims, strict=True))
    return Layout(dims).with_partial(list(partial), reduction)


def _of_one_factor(reads: Sequence[_Read]) -> set[str]:
    """The axes over which a product is a partial sum because one factor is."""
    partial: dict[str, str] = {}
    for read in reads:
        _check_reduction(read, Reduction.SUM)
        for axis in read.layout.partial:
            if axis in partial:
                raise LayoutError(f"two factors are partial over `{axis}`: `{partial[axis]}` and `{read.name}`")
            partial[axis] = read.name
    return set(partial)


def _of_every_term(reads: Sequence[_Read]) -> set[str]:
    """The axes over which a sum is partial because every term is."""
    for read in reads:
        _check_reduction(read, Reduction.SUM)
    partial = {a for read in reads for a in read.layout.partial}
    for axis in sorted(partial):
        for read in reads:
            if axis not in read.layout.partial:
                raise LayoutError(f"`{read.name}` is complete over `{axis}`, and would be added once for each part")
    return partial


def _through_map(expr: Expr, reads: Sequence[_Read]) -> set[str]:
    """The axes over which the expression's value is a partial sum."""
    for read in reads:
        _check_reduction(read, Reduction.SUM)
    partial = {a for read in reads for a in read.layout.partial}
    for axis in sorted(partial):
        _is_partial(expr, frozenset(r.name for r in reads if axis in r.layout.partial), axis)
    return partial


def _is_partial(expr: Expr, names: frozenset[str], axis: str) -> bool:
    """Whether a subexpression is a partial sum, `names` being so. Raises where partial values do not pass."""
    match expr:
        case Const() | Size() | Context():
            return False
        case Operand(name):
            return name in names
        case Rotate(inner, _):
            return _is_partial(inner, names, axis)
        case Call(function, arguments):
            partial = [_is_partial(a, names, axis) for a in arguments]
            # A branch that is zero may stand for a partial value that is zero everywhere.
            alike = [p or a == Const(0.0) for p, a in zip(partial, arguments, strict=True)]
            match function, partial:
                case _ if not any(partial):
                    return False
                case ("negate", [True]) | ("multiply", [True, False] | [False, True]) | ("divide", [True, False]):
                    return True
                case (("add" | "subtract"), _) if all(alike):
                    return True
                case "where", [False, _, _] if all(alike[1:]):
                    return True
            raise LayoutError(f"`{function}` is not linear in what is partial over `{axis}`")


def _check_pairs(expr: Expr, values: Mapping[str, SpmdValue], sizes: Mapping[str, int], mesh: Mesh) -> None:
    for dim in sorted(rotated_dims(expr)):
        for name in operands(expr):
            value = values[name]
            ways = mesh.size(*value.layout.dims[value.dims.index(dim)]) if dim in value.dims else 1
            if sizes[dim] // ways % 2:
                raise LayoutError(f"a split of `{dim}` = {sizes[dim]} in {ways} ways tears the pairs of a rotation")


def _check_reduction(read: _Read, reduction: Reduction) -> None:
    if read.layout.partial and read.layout.reduction is not reduction:
        raise LayoutError(f"`{read.name}` is a partial {read.layout.reduction}, where a partial {reduction} could pass")


def _check_complete(read: _Read, why: str) -> None:
    if read.layout.partial:
        raise LayoutError(f"`{read.name}` is partial over {_axes(read.layout.partial)}, and {why}")


def _check_ordered(keys: _Read, splits: Mapping[str, tuple[str, ...]], over: Sequence[str]) -> None:
    """Raise LayoutError unless every chip sees in which order all keys along `over` stand."""
    for dim in over:
        if splits[dim]:
            raise LayoutError(f"`{dim}` is split, and the largest of a part are not those of the whole")
    _check_complete(keys, "parts of a sum are not ordered as the sum is")


def _axes(axes: Sequence[str]) -> str:
    return ", ".join(axes) if axes else "nothing"


def check_dims(op: Op, values: Mapping[str, SpmdValue], sizes: Mapping[str, int]) -> None:
    """Raise LayoutError unless the dims of operands and result are ones that `op` can have."""
    result = values[op.result].dims
    match op:
        case Einsum():
            _check_einsum(op, values, sizes)
        case Map(_, expr):
            _check_expr(expr, sizes)
            _check_covered(operands(expr), values, result)
            for dim in rotated_dims(expr):
                if dim not in result:
                    raise LayoutError(f"it rotates along `{dim}`, a dim that its result lacks")
        case Sum(_, names, coefficients):
            _check_covered(names, values, result)
            if len(coefficients) != len(names) or len(set(names)) != len(names) or not names:
                raise LayoutError("a sum takes different operands, and a coefficient for each")
        case Reduce(_, name, over):
            dims = values[name].dims
            if not over or not set(over) <= set(dims) or result != tuple(d for d in dims if d not in over):
                raise LayoutError(f"the maximum over {_axes(over)} of dims {_axes(dims)} has not dims {_axes(result)}")
        case Take(_, table, ids, over):
            others = tuple(d for d in values[table].dims if d not in over)
            known = over and len(set(over)) == len(over) and set(over) <= set(values[table].dims)
            if not known or result != (*values[ids].dims, *others):
                raise LayoutError(f"rows along {_axes(over)} have the dims of the ids, then the table's others")
        case TopK(_, keys, picked, over, keep):
            _check_top_k(values[keys].dims, values[picked].dims, over, keep, result)
            if sizes[keep] > math.prod(sizes[d] for d in over):
                raise LayoutError(f"there are fewer elements over {_axes(over)} than `{keep}` = {sizes[keep]}")
        case Choose(_, keys, over, keep):
            dims = values[keys].dims
            if result != dims or not over or len(set(over)) != len(over) or not set(over) <= set(dims):
                raise LayoutError(
                    f"what is chosen over {_axes(over)} of dims {_axes(dims)} has not dims {_axes(result)}"
                )
            if not 1 <= keep <= math.prod(sizes[d] for d in over):
                raise LayoutError(f"{keep} cannot be chosen over {_axes(over)}")
        case Iota(_, dim):
            if result != (dim,):
                raise LayoutError(f"an iota along `{dim}` has that dim alone")
        case Append(_, cache, new, source, target, context):
            old, added = values[cache].dims, values[new].dims
            same = set(old) - {target} == set(added) - {source} and target in old and source in added
            if result != old or not same:
                raise LayoutError(f"`{new}` has not the dims of `{cache}` with `{source}` in the place of `{target}`")
            if sizes[source] > sizes[target]:
                raise LayoutError(f"`{source}` = {sizes[source]} entries do not fit in `{target}` = {sizes[target]}")
            if context in old or context == source:
                raise LayoutError(f"`{context}` counts places, and is a dim of what is appended")


def _check_top_k(
    keys: Sequence[str], picked: Sequence[str], over: Sequence[str], keep: str, result: Sequence[str]
) -> None:
    for dim in picked:
        if dim not in keys:
            raise LayoutError(f"the keys lack the dim `{dim}` of what is picked")
    rest = tuple(d for d in keys if d not in over)
    if not over or len(set(over)) != len(over) or not set(over) <= set(keys) or keep in rest:
        raise LayoutError(f"`{keep}` elements cannot be picked over {_axes(over)} of dims {_axes(keys)}")
    if tuple(result) != (*rest, keep):
        raise LayoutError(f"what is picked over {_axes(over)} of dims {_axes(keys)} has not dims {_axes(result)}")


def _check_einsum(op: Einsum, values: Mapping[str, SpmdValue], sizes: Mapping[str, int]) -> None:
    if not op.operands or len(op.operands) != len(op.indices):
        raise LayoutError("an einsum takes at least one operand, and a list of indices for each")
    have: dict[str, int] = {}
    for name, indices in [*zip(op.operands, op.indices, strict=True), (op.result, op.output)]:
        dims = values[name].dims
        if len(indices) != len(dims):
            raise LayoutError(f"`{name}` has {len(dims)} dims, and {len(indices)} indices here")
        for index, dim in zip(indices, dims, strict=True):
            if name == op.result and index not in have:
                raise LayoutError(f"no operand has the index `{index}` of the result")
            groups = name != op.result and index in sizes and index not in dims and sizes[index] % sizes[dim] == 0
            size = sizes[index] if groups else sizes[dim]
            if have.setdefault(index, size) != size:
                raise LayoutError(f"index `{index}` stands for sizes {have[index]} and {size}")
    if len(set(op.output)) != len(op.output):
        raise LayoutError("the result names an index twice")
    second = [zero for _, zero in op.zeros]
    for codes, zero in op.zeros:
        known = 0 <= codes < len(op.operands) and 0 <= zero < len(op.operands) and codes not in second
        if not known or not set(op.indices[zero]) <= set(op.indices[codes]):
            raise LayoutError("what is subtracted has indices of what it is subtracted from alone")


def _check_covered(names: Sequence[str], values: Mapping[str, SpmdValue], result: Sequence[str]) -> None:
    for name in names:
        for dim in values[name].dims:
            if dim not in result:
                raise LayoutError(f"the result lacks the dim `{dim}` of `{name}`")


def _check_expr(expr: Expr, sizes: Mapping[str, int]) -> None:
    match expr:
        case Call(function, arguments):
            if FUNCTIONS.get(function) != len(arguments):
                raise LayoutError(f"there is no function `{function}` of {len(arguments)} arguments")
            for argument in arguments:
                _check_expr(argument, sizes)
        case Rotate(inner, dim):
            if dim not in sizes or sizes[dim] % 2:
                raise LayoutError(f"`{dim}` does not consist of pairs to rotate")
            _check_expr(inner, sizes)
        case Size(dim) | Context(dim) if dim not in sizes:
            raise LayoutError(f"there is no dim `{dim}`")
        case _:
            pass
