"""Puts small programs together, op by op, and names what they make."""

from __future__ import annotations

import random
from collections.abc import Sequence

from escc.ir.choices import with_choices
from escc.ir.dtype import Dtype
from escc.ir.expr import Call, Const, Expr, Operand, operands
from escc.ir.program import (
    Append,
    Carry,
    Choose,
    Einsum,
    Iota,
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
    Value,
)
from escc.passes.expansion.orders import in_order


class Builder:
    """A program in the making. Dims are single letters; every method returns a value's name."""

    def __init__(self, rng: random.Random, sizes: dict[str, int]) -> None:
        self.rng = rng
        self.sizes = sizes
        self.values: dict[str, Value] = {}
        self._regions: list[tuple[list[Stored], list[Op | Repeat[Op]]]] = [([], [])]

    def dims(self, name: str) -> str:
        """The dims of a value as one word."""
        return "".join(self.values[name].dims)

    def _value(self, prefix: str, dims: Sequence[str], dtype: Dtype) -> str:
        name = f"{prefix}{len(self.values)}"
        self.values[name] = Value(name, tuple(dims), dtype)
        return name

    def _stored(self, prefix: str, dims: str, kind: Kind, dtype: Dtype) -> str:
        name = self._value(prefix, dims, dtype)
        self._regions[-1][0].append(Stored(name, kind))
        return name

    def param(self, dims: str) -> str:
        """A parameter, in the region that is open."""
        dtype = self.rng.choice([Dtype.BF16, Dtype.BF16, Dtype.BF16, Dtype.INT8, Dtype.F32])
        return self._stored("w", dims, Kind.PARAM, dtype)

    def codes(self, dims: str, scales: str, groups: dict[str, str], zeros: bool) -> tuple[str, ...]:
        """Codes of few bits, zero points, and their scales, whose dims count groups of those of the codes."""
        name = self._value("w", dims, self.rng.choice([Dtype.INT4, Dtype.INT8]))
        self._regions[-1][0].append(Stored(name, Kind.PARAM, groups=tuple(groups.items())))
        beside = [self._stored("w", scales, Kind.PARAM, Dtype.INT4)] if zeros else []
        return name, *beside, self._stored("w", scales, Kind.PARAM, Dtype.F16)

    def cache(self, dims: str) -> str:
        """A cache, in the region that is open."""
        return self._stored("cache", dims, Kind.CACHE, self.rng.choice([Dtype.BF16, Dtype.INT8]))

    def input(self, dims: str, dtype: Dtype = Dtype.BF16) -> str:
        """An input of the program."""
        return self._stored("x", dims, Kind.INPUT, dtype)

    def _op(self, op: Op) -> str:
        self._regions[-1][1].append(op)
        return op.result

    def einsum(
        self, output: str, *names: str, indices: Sequence[str] = (), zeros: tuple[tuple[int, int], ...] = ()
    ) -> str:
        """The product of `names`, summed to `output`; `indices` where they are not the dims. `zeros` as of an op."""
        result = self._value("e", output, self._dtype())
        read = tuple(tuple(i) for i in (indices or [self.dims(n) for n in names]))
        return self._op(Einsum(result, names, read, tuple(output), zeros))

    def map(self, expr: Expr, dims: str = "") -> str:
        """A pointwise expression; its dims are those of its operands unless given."""
        union = "".join(dict.fromkeys(d for n in operands(expr) for d in self.dims(n)))
        return self._op(Map(self._value("m", dims or union, self._dtype()), expr))

    def sum(self, *names: str) -> str:
        """The operands added up, some with a coefficient."""
        union = "".join(dict.fromkeys(d for n in names for d in self.dims(n)))
        coefficients = tuple(self.rng.choice([1.0, 1.0, -1.0, 0.5]) for _ in names)
        return self._op(Sum(self._value("s", union, self._dtype()), names, coefficients))

    def reduce(self, name: str, over: str) -> str:
        """The maximum over the dims `over`."""
        dims = [d for d in self.dims(name) if d not in over]
        return self._op(Reduce(self._value("r", dims, self._dtype()), name, tuple(over)))

    def take(self, table: str, ids: str, dim: str) -> str:
        """Rows of a table."""
        dims = self.dims(ids) + self.dims(table).replace(dim, "")
        return self._op(Take(self._value("t", dims, self._dtype()), table, ids, (dim,)))

    def top_k(self, keys: str, picked: str, over: str, keep: str) -> str:
        """Entries of `picked` at the largest of `keys`."""
        dims = [*(d for d in self.dims(keys) if d not in over), keep]
        return self._op(TopK(self._value("k", dims, self.values[picked].dtype), keys, picked, tuple(over), keep))

    def choose(self, keys: str, over: str, keep: int) -> str:
        """1 at the largest of `keys`, 0 elsewhere."""
        return self._op(Choose(self._value("o", self.dims(keys), self._dtype()), keys, tuple(over), keep))

    def iota(self, dim: str) -> str:
        """Positions along a dim."""
        return self._op(Iota(self._value("i", dim, Dtype.I32), dim))

    def append(self, cache: str, new: str, source: str, target: str) -> str:
        """A new version of a cache."""
        value = self.values[cache]
        return self._op(Append(self._value("c", value.dims, value.dtype), cache, new, source, target))

    def open_repeat(self, *initial: str) -> list[str]:
        """Begins a repeat's body that carries these values; their names inside."""
        self._regions.append(([], []))
        return [self._value("in", self.values[n].dims, self.values[n].dtype) for n in initial]

    def close_repeat(
        self, count: int, initial: Sequence[str], inside: Sequence[str], following: Sequence[str]
    ) -> list[str]:
        """Ends the body; the names of what leaves it."""
        stored, items = self._regions.pop()
        carries = []
        for first, own, following_name in zip(initial, inside, following, strict=True):
            value = self.values[first]
            assert self.values[following_name].dims == value.dims
            self.values[following_name] = Value(following_name, value.dims, value.dtype)
            carries.append(Carry(first, own, following_name, self._value("out", value.dims, value.dtype)))
        body = Region(tuple(stored), tuple(items))
        self._regions[-1][1].append(Repeat(f"again{len(self.values)}", count, tuple(carries), body))
        return [c.result for c in carries]

    def program(self, results: Sequence[str]) -> Program:
        """The finished program, with one phase `main`, and its products in an order: another is no other layout."""
        ((stored, items),) = self._regions
        phase = Phase("main", tuple(self.sizes.items()))
        body = Region(tuple(stored), tuple(items))
        whole = Program("generated", tuple(self.values.values()), body, tuple(results), (phase,))
        return in_order(with_choices(whole), "main")

    def _dtype(self) -> Dtype:
        return self.rng.choice([Dtype.BF16, Dtype.BF16, Dtype.BF16, Dtype.F32])


def call(function: str, *arguments: Expr | str | float) -> Call:
    """A call whose arguments may be names of values or numbers."""

    def expr(argument: Expr | str | float) -> Expr:
        match argument:
            case str():
                return Operand(argument)
            case int() | float():
                return Const(float(argument))
            case _:
                return argument

    return Call(function, tuple(expr(a) for a in arguments))
