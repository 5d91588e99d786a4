"""Padding: a program whose padded dims leave its results as they are without padding.

Layouts, cost and memory see the padded sizes. Sizes as numbers become the true ones, and what lies
beyond the true size of a dim is masked where it would reach a sum (with zeros), a maximum (with minus
infinity) or a map that fails on it. Codes less zero points are not zero there, so that products of
them take a factor that is. Stored tensors are to hold zeros there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ...ir.dtype import Dtype
from ...ir.expr import Call, Const, Expr, Operand, Rotate, Size
from ...ir.program import Choose, Einsum, Iota, Map, Op, Program, Reduce, Region, Repeat, Sum, TopK, Value
from .pad_signs import Cut, Mask, PadSigns


def mask_padding(program: Program) -> Program:
    """The program with masks for its padded dims, `program.padding`; without such dims, the same."""
    if not program.padding:
        return program
    writer = _Writer(program, PadSigns(program))
    body = writer.region(program.body)
    return replace(program, values=(*program.values, *writer.added), body=body)


@dataclass
class _Scope:
    """A region being written: the iota of each dim, the masked values, and what is 1 at the true places of a dim and
    0 beyond, that it has so far."""

    items: list[Op | Repeat[Op]] = field(default_factory=list)
    iotas: dict[str, str] = field(default_factory=dict)
    masked: dict[Mask, str] = field(default_factory=dict)
    held: dict[str, str] = field(default_factory=dict)


class _Writer:
    """Writes regions anew. `added`: the values that they have more."""

    def __init__(self, program: Program, signs: PadSigns) -> None:
        self.true, self.signs = dict(program.padding), signs
        self.values = program.table()
        self.added: list[Value] = []

    def region(self, region: Region[Op]) -> Region[Op]:
        """The region with masks where padding could be seen."""
        scope = _Scope()
        for item in region.items:
            if isinstance(item, Repeat):
                scope.items.append(replace(item, body=self.region(item.body)))
                continue
            names: dict[str, str] = {}
            for mask in self.signs.masks(item):
                names[mask.value] = self.masked(scope, replace(mask, value=names.get(mask.value, mask.value)))
            made = self.cut(scope, item) if isinstance(item, Einsum) else item
            scope.items.append(_reading(self.mapped(scope, made) if isinstance(made, Map) else made, names))
        return replace(region, items=tuple(scope.items))

    def mapped(self, scope: _Scope, op: Map) -> Map:
        """A map with true sizes, masked where it would fail."""
        expr = _sized(op.expr, self.true)
        for dim in self.signs.failing(op):
            expr = self.within(scope, dim, expr, 0.0, op.result)
        return replace(op, expr=expr)

    def masked(self, scope: _Scope, mask: Mask) -> str:
        """The name of a masked value, made once in a region."""
        if mask not in scope.masked:
            value = self.values[mask.value]
            expr = self.within(scope, mask.dim, Operand(value.name), mask.fill, value.name)
            made = self.new(f"{value.name}.masked", value.dims, value.dtype)
            scope.items.append(Map(made, expr))
            scope.masked[mask] = made
        return scope.masked[mask]

    def cut(self, scope: _Scope, op: Einsum) -> Einsum:
        """An einsum with a factor more for each index beyond which its products are to be dropped."""
        cuts = self.signs.cuts(op)
        held = tuple(self.held(scope, cut, op.result) for cut in cuts)
        indices = tuple((cut.index,) for cut in cuts)
        return replace(op, operands=op.operands + held, indices=op.indices + indices)

    def held(self, scope: _Scope, cut: Cut, base: str) -> str:
        """The name of what is 1 at the true places of a dim and 0 beyond, made once in a region."""
        if cut.dim not in scope.held:
            expr = self.within(scope, cut.dim, Const(1.0), 0.0, base)
            scope.held[cut.dim] = self.new(f"{base}.held", (cut.dim,), Dtype.BF16)
            scope.items.append(Map(scope.held[cut.dim], expr))
        return scope.held[cut.dim]

    def within(self, scope: _Scope, dim: str, expr: Expr, fill: float, base: str) -> Expr:
        """`expr` at the true places along a dim, `fill` beyond."""
        if dim not in scope.iotas:
            scope.iotas[dim] = self.new(f"{base}.place", (dim,), Dtype.I32)
            scope.items.append(Iota(scope.iotas[dim], dim))
        last = Call("subtract", (Size(self.true[dim]), Const(1.0)))
        return Call("where", (Call("less_equal", (Operand(scope.iotas[dim]), last)), expr, Const(fill)))

    def new(self, base: str, dims: Sequence[str], dtype: Dtype) -> str:
        """A value of a name like `base`."""
        name, number = base, 1
        while name in self.values:
            number += 1
            name = f"{base}:{number}"
        self.values[name] = Value(name, tuple(dims), dtype)
        self.added.append(self.values[name])
        return name


def _sized(expr: Expr, true: Mapping[str, str]) -> Expr:
    """The expression with the true sizes of padded dims as numbers."""
    match expr:
        case Size(dim):
            return Size(true.get(dim, dim))
        case Call(function, arguments):
            return Call(function, tuple(_sized(a, true) for a in arguments))
        case Rotate(inner, dim):
            return Rotate(_sized(inner, true), dim)
        case _:
            return expr


def _reading(op: Op, names: Mapping[str, str]) -> Op:
    """The op, reading other values."""
    match op:
        case Einsum(_, read, _, _) | Sum(_, read, _):
            return replace(op, operands=tuple(names.get(n, n) for n in read))
        case Reduce(_, read, _):
            return replace(op, operand=names.get(read, read))
        case TopK(_, keys, _, _, _) | Choose(_, keys, _, _):
            return replace(op, keys=names.get(keys, keys))
        case _:
            return op
