"""An indexed left side: a product of indexed values as an einsum, or where that is less work as several."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...cost.ops import Indices, flops
from ...ir.dtype import Dtype
from ...ir.program import Einsum, Value, signature
from ...ir.text.surface import Binary, Expr, Ident, Indexed, Name
from .body import FLOATS, Body
from .report import Refused, plural

EXACT = 7  # values of which all orders are compared; of more, the cheapest pair is taken each time


@dataclass(frozen=True)
class Pair:
    """Two values multiplied, each one of those given, by its position, or a pair itself; `indices` are left."""

    left: int | Pair
    right: int | Pair
    indices: Indices


@dataclass(frozen=True)
class _Problem:
    """What is to be contracted, as `contraction` has it."""

    values: Sequence[Indices]
    output: Indices
    sizes: Sequence[tuple[Mapping[str, int], int]]
    known: dict[frozenset[str], int] = field(default_factory=dict)

    def kept(self, some: int) -> Indices:
        """The indices of a product of some of the values, a bit mask, that are needed later."""
        others = [v for n, v in enumerate(self.values) if not some >> n & 1]
        needed = set(self.output).union(*others)
        own = (index for n, v in enumerate(self.values) if some >> n & 1 for index in v)
        return tuple(index for index in dict.fromkeys(own) if index in needed)

    def over(self, left: Indices, right: Indices) -> int:
        """How many elements a loop over the indices of two values has, in all calls of all phases."""
        every = frozenset((*left, *right))
        if every not in self.known:
            self.known[every] = sum(calls * math.prod(sizes[i] for i in every) for sizes, calls in self.sizes)
        return self.known[every]


def contraction(values: Sequence[Indices], output: Indices, sizes: Sequence[tuple[Mapping[str, int], int]]) -> Pair:
    """The cheapest order in which to contract at least two values to `output`; proven so for up to EXACT values.

    `values`: the indices of each. `sizes`: for each phase those of all indices, and how often it is called.
    """
    problem = _Problem(values, output, sizes)
    return _exact(problem) if len(values) <= EXACT else _greedy(problem)


def _exact(problem: _Problem) -> Pair:
    """By a dynamic program over all sets of values."""
    count = len(problem.values)
    kept = {some: problem.kept(some) for some in range(1, 1 << count)}
    for n, value in enumerate(problem.values):
        kept[1 << n] = value  # as it is; what it alone has is summed in its first product
    best: dict[int, tuple[Pair | int, int]] = {1 << n: (n, 0) for n in range(count)}
    for some in range(1, 1 << count):
        low = some & -some
        left = (some - 1) & some
        while left:
            if left & low:  # each split once, the set with the first value on the left
                right = some ^ left
                cost = best[left][1] + best[right][1] + problem.over(kept[left], kept[right])
                if some not in best or cost < best[some][1]:
                    best[some] = Pair(best[left][0], best[right][0], kept[some]), cost
            left = (left - 1) & some
    pair, _ = best[(1 << count) - 1]
    assert isinstance(pair, Pair)
    return Pair(pair.left, pair.right, problem.output)


def _greedy(problem: _Problem) -> Pair:
    """The cheapest pair first, then the cheapest of what is left."""
    trees: dict[int, Pair | int] = {1 << n: n for n in range(len(problem.values))}
    kept = {1 << n: value for n, value in enumerate(problem.values)}
    while len(trees) > 1:
        sets = list(trees)
        ways = [(problem.over(kept[a], kept[b]), a, b) for n, a in enumerate(sets) for b in sets[n + 1 :]]
        _, left, right = min(ways, key=lambda way: way[0])
        kept[left | right] = problem.kept(left | right)
        trees[left | right] = Pair(trees.pop(left), trees.pop(right), kept[left | right])
    [pair] = trees.values()
    assert isinstance(pair, Pair)
    return Pair(pair.left, pair.right, problem.output)


MOST = 40  # factors of a product that is contracted in pairs
Factor = tuple[str, Indices]  # a value and the indices by which it is read


def einsum(body: Body, node: Expr, target: str, output: Sequence[Ident], dtype: Dtype | None) -> str:
    """Multiply the operands, sum over the indices that `output` lacks; returns the result's name.

    Raises Refused for what is no product of indexed values, an index that an operand's dim is not,
    one that stands twice in a list, and one of the result that no operand has.
    """
    read = [_factor(body, factor) for factor in _factors(node)]
    units = [_with_scale(body, *factor) for factor in read]
    found = [part for unit in units for part in unit]
    left = body.context.dims.distinct(output)
    every = {index for _, indices in found for index in indices}
    for ident in output:
        for index in body.context.dims.expand([ident.name]):
            if index not in every:
                raise Refused(f"Index `{index}` of the result is in no operand.", ident.span)
    names, indices = tuple(n for n, _ in found), tuple(i for _, i in found)
    inferred = body.floating(names)
    whole = Einsum(target, names, indices, left)
    wide = inferred if dtype in (None, inferred) or dtype not in FLOATS else Dtype.F32
    for step in _contracted(body, whole, units, wide):
        body.emit(step, step.output, (dtype or inferred) if step.result == target else wide)
    return target


def _contracted(body: Body, whole: Einsum, units: Sequence[Sequence[Factor]], wide: Dtype) -> list[Einsum]:
    """A product in pairs, where that takes fewer operations over all calls of all phases; else as it is.

    `units`: its factors, each with its scale. One that has no index which another lacks stays beside that, as a
    scale does. `wide`: the type of what is made on the way.
    """
    phases = body.context.phases
    if not 3 <= len(units) <= MOST or not phases:
        return [whole]
    masks, units = _masks(body, whole, units)
    units = _beside(units)
    if len(units) < 3:
        return [whole]
    sizes = [(dict(phase.sizes), phase.calls) for phase in phases]
    tree = contraction([unit[0][1] for unit in units], whole.output, sizes)
    steps: list[Einsum] = []

    def made(of: int | Pair, name: str) -> Sequence[Factor]:
        if isinstance(of, int):
            return units[of]
        free = [made(part, "") for part in (of.left, of.right)]
        first, second = (list(part) for part in free)
        factors = [first[0], second[0], *first[1:], *second[1:]]
        name = name or body.fresh(f"{whole.result}.part{len(steps) + 1}")
        factors += masks if name == whole.result else []
        steps.append(Einsum(name, tuple(n for n, _ in factors), tuple(i for _, i in factors), of.indices))
        return [(name, of.indices)]

    made(tree, whole.result)
    values = {name: body.value(name) for name in whole.operands}
    values |= {step.result: Value(step.result, step.output, wide) for step in steps}

    def operations(ops: Sequence[Einsum]) -> int:
        return sum(
            calls * int(flops(op, signature(op, values), bound.__getitem__)) for bound, calls in sizes for op in ops
        )

    return steps if operations(steps) < operations([whole]) else [whole]


def _masks(body: Body, whole: Einsum, units: Sequence[Sequence[Factor]]) -> tuple[list[Factor], list[Sequence[Factor]]]:
    """The factors that are masks all of whose indices the result has, and the others. A mask goes into the last
    product, so that only what it keeps is made there."""
    masks, others = list[Factor](), list[Sequence[Factor]]()
    for unit in units:
        (name, indices), *scales = unit
        own = any(one.mask == name for one in body.value(name).chosen)
        if own and not scales and set(indices) <= set(whole.output):
            masks.append((name, indices))
        else:
            others.append(unit)
    return masks, others


def _beside(units: Sequence[Sequence[Factor]]) -> list[list[Factor]]:
    """Units, each with those whose indices are all its own; the first one stands for itself."""
    left = [list(unit) for unit in units]
    at = 1
    while at < len(left):
        own = set(left[at][0][1])
        host = next((u for u in left if u is not left[at] and own <= set(u[0][1])), None)
        if host is None:
            at += 1
        else:
            host += left.pop(at)
    return left


def _with_scale(body: Body, name: str, indices: Indices) -> list[Factor]:
    """A factor, and beside it the scale of a quantised one: a factor of its own, read by the same indices."""
    scale = body.scale(name)
    if scale is None:
        return [(name, indices)]
    at = dict(zip(body.value(name).dims, indices, strict=True))
    return [(name, indices), (scale, tuple(at[d] for d in body.value(scale).dims))]


def _factors(node: Expr) -> list[Indexed]:
    """The operands of a product, in order."""
    match node:
        case Indexed():
            return [node]
        case Binary("*", left, right):
            return _factors(left) + _factors(right)
        case Name(name, span):
            raise Refused(f"`{name}` needs its indices under an indexed left side.", span, f"write `{name}[...]`")
        case _:
            hint = "give other expressions a name, on a line of their own without indices on the left"
            raise Refused("An indexed left side takes a product of indexed values.", node.span, hint)


def _factor(body: Body, factor: Indexed) -> Factor:
    """An operand's value and its indices, each of which is the value's dim there, or an alias."""
    name = body.lookup(factor.value.name)
    assert name is not None, "names are checked first"
    dims, table = body.value(name).dims, body.context.dims
    indices = table.distinct(factor.indices)
    has = f"its dims are `[{','.join(dims)}]`"
    if len(indices) != len(dims):
        count = plural(len(dims), "dim")
        message = f"`{factor.value.name}` has {count}, and {len(indices)} stand in its index list."
        raise Refused(message, factor.span, has)
    written = [ident for ident in factor.indices for _ in table.expand([ident.name])]
    for index, dim, ident in zip(indices, dims, written, strict=True):
        if table.root(index) != table.root(dim):
            message = f"`{factor.value.name}` has dim `{dim}` where index `{index}` stands."
            raise Refused(message, ident.span, has)
    return name, indices
