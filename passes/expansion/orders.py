"""Products of three and more factors, contracted in pairs: in which order is chosen for each phase.

A program has such a product as one einsum. Here it becomes several, in one of the orders that take about as few
operations as any does with the sizes of a phase: absorbed latent attention in decode and not in prefill, say, of one
model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ...cost.ops import Indices, flops
from ...ir.choices import with_choices
from ...ir.dataflow import ops, rewritten
from ...ir.dtype import Dtype
from ...ir.program import Einsum, Op, Program, Value, signature
from ...ir.record import record
from .attention_order import in_a_row
from .body import FLOATS
from .contraction import Pair, Sizes, all_orders, contraction, factors, pairs

FEW = 4  # factors of which orders beside the cheapest are given
NEAR = 2  # times the fewest operations, of orders that are given
MOST = 40  # factors of a product that is contracted in pairs
Factor = tuple[str, Indices]  # a value and the indices by which it is read
Tree = Pair | None  # an order; None: all at once


@record
class Product:
    """What products have that are contracted alike in a phase: the indices of their factors and of their result."""

    factors: tuple[Indices, ...]
    output: Indices


@record
class _Units:
    """An einsum, its factors, each with those that are multiplied into it, and masks, which the last product takes."""

    op: Einsum
    units: tuple[tuple[Factor, ...], ...]
    masks: tuple[Factor, ...]

    @property
    def product(self) -> Product:
        """What it has in common with others."""
        return Product(tuple(unit[0][1] for unit in self.units), self.op.output)


class Orders:
    """The orders of all products of a program, and the program in some of them."""

    def __init__(self, program: Program) -> None:
        self.program, self.values = program, program.table()
        self.units: dict[str, _Units] = {}
        self.found: dict[tuple[Product, str], tuple[Tree, ...]] = {}
        self.names: dict[str, dict[int, str]] = {}  # for each product what those of some of its factors are called
        for op in ops(program):
            if isinstance(op, Einsum) and 3 <= len(op.operands) <= MOST:
                units = _units(op, self.values)
                if len(units.units) >= 3:
                    self.units[op.result] = units
        for phase in program.phases:
            self._find(phase.name)
        for result, units in self.units.items():
            self.names[result] = self._named(result, units)

    def choices(self, phase: str) -> dict[Product, int]:
        """For each kind of product of a phase how many orders there are, if it is more than one; the one with the
        fewest operations is the first."""
        return {product: len(trees) for (product, name), trees in self.found.items() if name == phase and trees[1:]}

    def ordered(self, phase: str, picks: Mapping[Product, int] | None = None) -> Program:
        """The program with its products in pairs, as a phase takes them; `picks`: which of its orders, where that is
        not the first."""
        if not self.units:
            return in_a_row(self.program, phase)
        added: dict[str, Value] = {}
        body = rewritten(self.program.body, lambda op: self._written(op, phase, picks or {}, added))
        program = replace(self.program, values=(*self.program.values, *added.values()), body=body)
        return in_a_row(with_choices(program), phase)

    def _find(self, phase: str) -> None:
        """The orders of all products in a phase, fewest operations first."""
        sizes = dict(self.program.phase(phase).sizes)
        for units in self.units.values():
            product = units.product
            if (product, phase) in self.found:
                continue
            trees: list[Tree] = [contraction(product.factors, product.output, sizes)]
            if len(product.factors) <= FEW:
                trees += all_orders(product.factors, product.output, sizes)
            trees = list(dict.fromkeys([*trees, None]))
            work = {tree: self._operations(units, tree, sizes) for tree in trees}
            least = min(trees, key=lambda tree: (work[tree], tree is not None))
            near = [] if least is None else [t for t in trees if t and t != least and work[t] <= NEAR * work[least]]
            self.found[product, phase] = (least, *sorted(near, key=lambda tree: work[tree]))

    def _operations(self, units: _Units, tree: Tree, sizes: Sizes) -> int:
        """Of a product in an order."""
        steps = _steps(units, tree, lambda some: f"{units.op.result}.{some}")
        values = self.values | {step.result: self._part(units, step) for step in steps[:-1]}
        return sum(int(flops(step, signature(step, values), values, sizes.__getitem__)) for step in steps)

    def _named(self, result: str, units: _Units) -> dict[int, str]:
        """Names of the products of some of the factors, by bit masks: each set has one, whatever the phase."""
        names: dict[int, str] = {}
        firsts = [self.found[units.product, phase.name][:1] for phase in self.program.phases]
        others = [self.found[units.product, phase.name][1:] for phase in self.program.phases]
        for trees in (*firsts, *others):
            for tree in trees:
                for pair in () if tree is None else pairs(tree):
                    if pair is not tree and factors(pair) not in names:
                        names[factors(pair)] = self._fresh(f"{result}.part{len(names) + 1}")
        return names

    def _fresh(self, base: str) -> str:
        """`base`, or with a number the first name like it that is free."""
        name, number = base, 1
        while name in self.values:
            number += 1
            name = f"{base}:{number}"
        return name

    def _part(self, units: _Units, step: Einsum) -> Value:
        """What an einsum makes on the way to another: as wide as what that reads and makes."""
        op = units.op
        quantised = [unit[0] for unit in units.units if self.values[unit[0][0]].dtype not in FLOATS]
        scales = [part for unit in units.units if unit[0] in quantised for part in unit[1:]]
        read = [name for name, indices in zip(op.operands, op.indices, strict=True) if (name, indices) not in scales]
        floats = {self.values[name].dtype for name in (*read, op.result)} & set(FLOATS)
        dtype = Dtype.F32 if len(floats) > 1 else floats.pop() if floats else Dtype.BF16
        return Value(step.result, step.output, dtype)

    def _written(self, op: Op, phase: str, picks: Mapping[Product, int], added: dict[str, Value]) -> Sequence[Op]:
        """An op as a phase takes it: a product in pairs, whose values on the way are `added`."""
        units = self.units.get(op.result)
        if units is None:
            return [op]
        tree = self.found[units.product, phase][picks.get(units.product, 0)]
        steps = _steps(units, tree, self.names[op.result].__getitem__)
        added |= {step.result: self._part(units, step) for step in steps[:-1]}
        return steps


def in_order(program: Program, phase: str) -> Program:
    """The program with its products in pairs, in the order that takes the fewest operations in a phase."""
    return Orders(program).ordered(phase)


def _steps(units: _Units, tree: Tree, named: Callable[[int], str]) -> list[Einsum]:
    """The einsums that an order is, the last of which makes the result. `named`: by the factors, a bit mask."""
    if tree is None:
        return [units.op]
    steps = list[Einsum]()
    every = list(zip(units.op.operands, units.op.indices, strict=True))
    less = {every[zero]: every[codes] for codes, zero in units.op.zeros}

    def made(of: int | Pair) -> Sequence[Factor]:
        if isinstance(of, int):
            return units.units[of]
        first, second = made(of.left), made(of.right)
        read = [first[0], second[0], *first[1:], *second[1:], *(units.masks if of is tree else ())]
        name = units.op.result if of is tree else named(factors(of))
        zeros = tuple((read.index(less[part]), n) for n, part in enumerate(read) if part in less)
        steps.append(Einsum(name, tuple(n for n, _ in read), tuple(i for _, i in read), of.indices, zeros))
        return [(name, of.indices)]

    made(tree)
    return steps


def _units(op: Einsum, values: Mapping[str, Value]) -> _Units:
    """The factors of an einsum. One that has no index which another lacks stays beside that, as a scale does; a mask
    all of whose indices the result has goes into the last product, so that only what it keeps is made there."""
    masks, others = list[Factor](), list[list[Factor]]()
    for name, indices in zip(op.operands, op.indices, strict=True):
        own = any(one.mask == name for one in values[name].chosen)
        if own and set(indices) <= set(op.output):
            masks.append((name, indices))
        else:
            others.append([(name, indices)])
    at = 1
    while at < len(others):
        own_indices = set(others[at][0][1])
        before, after = others[:at][::-1], others[at + 1 :]
        host = next((u for u in (*before, *after) if own_indices <= set(u[0][1])), None)
        if host is None:
            at += 1
        else:
            host += others.pop(at)
    return _Units(op, tuple(map(tuple, others)), tuple(masks))
