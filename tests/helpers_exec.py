"""Sharded programs written by hand, line by line, for the tests of execution.

A builder notes ops and collectives with the layouts that their author claims; the dense program is
the same text with the collectives erased.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from escc.ir.choices import with_choices, with_sharded_choices
from escc.ir.collective import Collective
from escc.ir.dtype import Dtype
from escc.ir.expr import Call, Const, Expr, Operand, rename
from escc.ir.layout import Layout, parse_layout
from escc.ir.mesh import Mesh
from escc.ir.program import (
    Append,
    Carry,
    Choose,
    Einsum,
    Kind,
    Map,
    Op,
    Phase,
    Program,
    Reduce,
    Region,
    Repeat,
    Stored,
    Sum,
    Take,
    TopK,
)
from escc.ir.spmd import Compute, Move, SpmdProgram, SpmdValue, Step


def call(function: str, *arguments: Expr | str | float) -> Expr:
    """A call; strings are operands and numbers are constants."""
    return Call(function, tuple(_expr(a) for a in arguments))


def _expr(argument: Expr | str | float) -> Expr:
    match argument:
        case str(name):
            return Operand(name)
        case int(number) | float(number):
            return Const(float(number))
    return argument


class Build:
    """A sharded program in the making, on `mesh` (as `2x2`), with dims of full `sizes`."""

    def __init__(self, mesh: str, **sizes: int) -> None:
        self.mesh = Mesh.parse(mesh)
        self.sizes = sizes
        self.values: dict[str, SpmdValue] = {}
        self.origin: dict[str, str] = {}  # a moved copy -> what it is a copy of
        self.regions: list[tuple[list, list]] = [([], [])]

    def _value(self, name: str, layout: str, dtype: str) -> str:
        dims, parsed = parse_layout(layout)
        self.values[name] = SpmdValue(name, dims, Dtype(dtype), parsed)
        return name

    def stored(self, name: str, layout: str, kind: Kind = Kind.PARAM, dtype: str = "bf16") -> str:
        self.regions[-1][0].append(Stored(name, kind))
        return self._value(name, layout, dtype)

    def op(self, op: Op, layout: str, dtype: str = "bf16") -> str:
        self.regions[-1][1].append(Compute(op))
        return self._value(op.result, layout, dtype)

    def einsum(self, result: str, text: str, *operands: str, layout: str, dtype: str = "bf16") -> str:
        """`text` as `BLE,EF->BLF`."""
        inputs, output = text.split("->")
        indices = tuple(tuple(i) for i in inputs.split(","))
        return self.op(Einsum(result, operands, indices, tuple(output)), layout, dtype)

    def map(self, result: str, expr: Expr, layout: str, dtype: str = "bf16") -> str:
        return self.op(Map(result, expr), layout, dtype)

    def move(self, result: str, operand: str, collective: Collective, layout: str) -> str:
        self.regions[-1][1].append(Move(result, operand, collective))
        self.origin[result] = self.origin.get(operand, operand)
        return self._value(result, layout, self.values[operand].dtype)

    @contextmanager
    def repeat(self, name: str, count: int, *carries: Carry) -> Iterator[None]:
        """What is built inside is the body. A carry's results get the layout of what enters."""
        for carry in carries:
            self.values[carry.inside] = replace(self.values[carry.initial], name=carry.inside)
            self.values[carry.result] = replace(self.values[carry.initial], name=carry.result)
        self.regions.append(([], []))
        yield
        stored, items = self.regions.pop()
        body = Region(tuple(stored), tuple(items))
        self.regions[-1][1].append(Repeat(name, count, carries, body))

    def spmd(self, *results: str) -> SpmdProgram:
        stored, items = self.regions[0]
        body = Region(tuple(stored), tuple(items))
        values = tuple(self.values.values())
        spmd = SpmdProgram("case", "run", self.mesh, tuple(self.sizes.items()), values, body, results)
        return with_sharded_choices(spmd)

    def program(self, *results: str) -> Program:
        """The dense program: the collectives erased."""
        values = tuple(v.value for v in self.values.values() if v.name not in self.origin)
        names = tuple(self.origin.get(r, r) for r in results)
        phases = (Phase("run", tuple(self.sizes.items())),)
        return with_choices(Program("case", values, self._dense(self.spmd(*results).body), names, phases))

    def _dense(self, region: Region[Step]) -> Region[Op]:
        items: list[Op | Repeat[Op]] = []
        for item in region.items:
            match item:
                case Compute(op):
                    items.append(self._renamed(op))
                case Repeat(name, count, carries, body):
                    dense = tuple(
                        Carry(
                            self.origin.get(c.initial, c.initial), c.inside, self.origin.get(c.next, c.next), c.result
                        )
                        for c in carries
                    )
                    items.append(Repeat(name, count, dense, self._dense(body)))
        return Region(region.stored, tuple(items))

    def _old(self, name: str) -> str:
        return self.origin.get(name, name)

    def _renamed(self, op: Op) -> Op:
        old = self._old
        match op:
            case Einsum() | Sum():
                return replace(op, operands=tuple(old(n) for n in op.operands))
            case Map(_, expr):
                return replace(op, expr=rename(expr, self.origin))
            case Reduce():
                return replace(op, operand=old(op.operand))
            case Take():
                return replace(op, table=old(op.table), ids=old(op.ids))
            case Choose():
                return replace(op, keys=old(op.keys))
            case TopK():
                return replace(op, keys=old(op.keys), picked=old(op.picked))
            case Append():
                return replace(op, cache=old(op.cache), new=old(op.new))
        return op


def relayout(spmd: SpmdProgram, name: str, layout: str | Layout) -> SpmdProgram:
    """The same program with another layout claimed for one value."""
    claimed = parse_layout(layout)[1] if isinstance(layout, str) else layout
    values = tuple(replace(v, layout=claimed) if v.name == name else v for v in spmd.values)
    return replace(spmd, values=values)
