"""What values hold beyond the true sizes of padded dims, as signs, and what must be masked there.

Stored tensors hold zeros there; in e8m0, which has no zero, any number. What ops make of these is
followed through the program, so that a mask stands only where something might reach a sum, or a
maximum, that changes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, reduce
from operator import or_

from ...ir.dtype import Dtype
from ...ir.expr import Expr, Operand, operands
from ...ir.program import Choose, Einsum, Iota, Map, Op, Program, Reduce, Region, Repeat, Sum, Take, Value, signature
from ...ir.record import record
from .signs import BAD, LOW, NONE, NUMBER, POSITIVE, ZERO, Sign, added, evaluate, multiplied, negated, of_constant

LOWEST = float("-inf")
LOWEST_INDEX = -(2.0**31)  # among integers


@record
class Mask:
    """`value` is to be read as `fill` beyond the true size of `dim`."""

    value: str
    dim: str
    fill: float


@record
class Cut:
    """The products of an einsum are to be dropped at places of `index` beyond the true size of `dim`."""

    index: str
    dim: str


@dataclass
class PadSigns:
    """The signs of a program's values. `true`: at true places. `beyond`: beyond the true size of a padded
    dim, whatever the place along the others.

    At true places nothing is infinite but what masks make so: a program that fails there fails
    without padding as well.
    """

    program: Program
    true: dict[str, Sign] = field(default_factory=dict)
    beyond: dict[tuple[str, str], Sign] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.values: Mapping[str, Value] = self.program.table()
        self.padded = dict(self.program.padding)
        self._region(self.program.body)

    def failing(self, op: Map) -> tuple[str, ...]:
        """The dims beyond which the arithmetic of a map is infinite or no number."""
        return tuple(d for d in self._padded(op.result) if self._expr(op.expr, d) & BAD)

    def masks(self, op: Op) -> tuple[Mask, ...]:
        """What the op must not read as it is."""
        match op:
            case Einsum():
                return tuple(dict.fromkeys(self._product_masks(op)))
            case Sum(result, names, coefficients):
                bad = {d for d in self._padded(result) if self._sum(names, coefficients, d, ()) & BAD}
                read = [(n, d) for n in names for d in self._padded(n) if d in bad]
                return tuple(Mask(n, d, 0.0) for n, d in read if self._read(n, d) & LOW)
        compared = signature(op, self.values).compared
        if compared is None:
            return ()
        name, over = compared
        fill = LOWEST_INDEX if self.values[name].dtype is Dtype.I32 else LOWEST
        return tuple(Mask(name, d, fill) for d in over if d in self.padded and self._read(name, d) != LOW)

    def cuts(self, op: Op) -> tuple[Cut, ...]:
        """Where an einsum sums what no mask of an operand makes zero: codes less a zero point that lacks the dim."""
        if not isinstance(op, Einsum):
            return ()
        found = [(index, self._padded_at(op, index)) for index in _indices(op)]
        return tuple(
            Cut(index, readers[0][1])
            for index, readers in found
            if self._reaches(op, index, readers) and not self._factors(op, readers)
        )

    def _padded(self, name: str) -> list[str]:
        return [d for d in self.values[name].dims if d in self.padded]

    def _product_masks(self, op: Einsum) -> Iterable[Mask]:
        """Nothing infinite is multiplied; beyond a dim that is summed every product is zero."""
        for index in _indices(op):
            readers = self._padded_at(op, index)
            yield from (Mask(name, dim, 0.0) for name, dim in readers if self._read(name, dim) & LOW)
            if self._reaches(op, index, readers) and (factors := self._factors(op, readers)):
                name, dim = min(factors, key=lambda reader: len(self.values[reader[0]].dims))
                yield Mask(name, dim, 0.0)

    def _factors(self, op: Einsum, readers: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        """Of operands those that zeros can stand in, as factors by themselves: of codes less zero points neither is,
        and e8m0 has no zero."""
        differences = {op.operands[at] for pair in op.zeros for at in pair}
        zeroless = {name for name, _ in readers if self.values[name].dtype is Dtype.E8M0}
        return [reader for reader in readers if reader[0] not in differences | zeroless]

    def _reaches(self, op: Einsum, index: str, readers: Sequence[tuple[str, str]]) -> bool:
        """Whether something reaches a sum from beyond an index, which `readers` have, though nothing infinite is
        read there."""
        summed = bool(readers) and index not in op.output
        finite = not any(self._read(name, dim) & LOW for name, dim in readers)
        return summed and finite and self._product(op, index, ()) != ZERO

    def _padded_at(self, op: Einsum, index: str) -> list[tuple[str, str]]:
        """The operands that have an index, and the dim that each has there, of those that are padded."""
        pairs = zip(op.operands, op.indices, strict=True)
        found = [(name, self.values[name].dims[at.index(index)]) for name, at in pairs if index in at]
        return [(name, dim) for name, dim in found if dim in self.padded]

    def _product(self, op: Einsum, index: str, masks: Sequence[Mask]) -> Sign:
        """The signs of an einsum's products beyond an index, once masked."""

        def factor(name: str, indices: tuple[str, ...]) -> Sign:
            if index in indices:
                return self._read(name, self.values[name].dims[indices.index(index)], masks)
            return self._anywhere(name) & ~LOW

        return _multiplied(op, factor)

    def _sum(self, names: Sequence[str], coefficients: Sequence[float], dim: str, masks: Sequence[Mask]) -> Sign:
        terms = zip(names, coefficients, strict=True)
        return reduce(added, (multiplied(of_constant(c), self._read(n, dim, masks)) for n, c in terms))

    def _read(self, name: str, dim: str, masks: Sequence[Mask] = ()) -> Sign:
        """The signs of a value beyond a dim, once masked; anywhere, if it lacks the dim."""
        own = [m for m in masks if m.value == name]
        found = self.beyond[name, dim] if dim in self.values[name].dims else self._anywhere(name)
        if any(m.dim == dim for m in own):
            found = NONE
        return reduce(or_, (of_constant(m.fill) for m in own), found)

    def _anywhere(self, name: str) -> Sign:
        return reduce(or_, (self.beyond[name, d] for d in self._padded(name)), self.true[name])

    def _expr(self, expr: Expr, at: str | None) -> Sign:
        """The signs of an expression beyond a dim; with None, at true places."""

        @cache
        def signs(part: Expr, dim: str | None) -> Sign:
            if dim is None:
                found = self.true[part.name] if isinstance(part, Operand) else evaluate(part, lambda p: signs(p, None))
                return found & ~BAD or NUMBER
            padded = {d for name in operands(part) for d in self._padded(name)}
            if dim not in padded:  # it has there what it has elsewhere
                return reduce(or_, (signs(part, other) for other in sorted(padded)), signs(part, None))
            return self.beyond[part.name, dim] if isinstance(part, Operand) else evaluate(part, lambda p: signs(p, dim))

        return signs(expr, at)

    def _region(self, region: Region[Op]) -> None:
        for stored in region.stored:
            self._stored(stored.value)
        for item in region.items:
            if isinstance(item, Repeat):
                self._repeat(item)
            else:
                self._op(item)

    def _stored(self, name: str) -> None:
        held = ZERO | POSITIVE if self.values[name].dtype is Dtype.E8M0 else ZERO
        self._set(name, NUMBER, lambda _: held)

    def _set(self, name: str, true: Sign, beyond: Callable[[str], Sign]) -> None:
        self.true[name] = true
        self.beyond |= {(name, dim): beyond(dim) for dim in self._padded(name)}

    def _repeat(self, repeat: Repeat[Op]) -> None:
        """Follow the body until a repetition hands on nothing that those before did not."""
        for carry in repeat.carries:
            self._copy(carry.inside, [carry.initial])
        settled = False
        while not settled:
            self._region(repeat.body)
            settled = True
            for carry in repeat.carries:
                before = self._state(carry.inside)
                self._copy(carry.inside, [carry.inside, carry.next])
                settled &= self._state(carry.inside) == before
        for carry in repeat.carries:
            self._copy(carry.result, [carry.next])

    def _copy(self, name: str, sources: Sequence[str]) -> None:
        """Let a value be what any of others of its dims is."""
        true = reduce(or_, (self.true[s] for s in sources))
        self._set(name, true, lambda dim: reduce(or_, (self.beyond[s, dim] for s in sources)))

    def _state(self, name: str) -> tuple[Sign, ...]:
        return (self.true[name], *(self.beyond[name, d] for d in self._padded(name)))

    def _op(self, op: Op) -> None:
        """The signs of what an op makes, its masks in place."""
        masks = self.masks(op)
        match op:
            case Einsum(result, _, _, output):
                summed = signature(op, self.values).sums
                index = dict(zip(self.values[result].dims, output, strict=True))
                true = _multiplied(op, lambda name, _: self.true[name]) & ~BAD or NUMBER
                self._set(result, _total(true, summed), lambda d: _total(self._product(op, index[d], masks), summed))
            case Map(result, expr):
                failing = self.failing(op)
                filled = ZERO if failing else NONE
                self._set(
                    result, self._expr(expr, None), lambda d: ZERO if d in failing else self._expr(expr, d) | filled
                )
            case Sum(result, names, coefficients):
                terms = zip(names, coefficients, strict=True)
                true = reduce(added, (multiplied(of_constant(c), self.true[n]) for n, c in terms)) & ~BAD or NUMBER
                self._set(result, true, lambda d: self._sum(names, coefficients, d, masks))
            case Choose(result, _, over, _):  # what is masked is never among the largest
                self._set(result, ZERO | POSITIVE, lambda d: ZERO if d in over else ZERO | POSITIVE)
            case Iota(result, _):
                self._set(result, ZERO | POSITIVE, lambda _: POSITIVE)
            case Reduce(result, name, _):
                self._set(result, self.true[name], lambda d: self._read(name, d, masks))
            case _:
                self._entries(op)

    def _entries(self, op: Op) -> None:
        """The signs of what has entries of what is read, or sums of them; zero where none is looked up."""
        own = signature(op, self.values)
        true, beside = reduce(or_, (self.true[name] for name in own.holds)), ZERO if isinstance(op, Take) else NONE

        def beyond(dim: str) -> Sign:
            entries = reduce(or_, (self._read(name, dim) for name in own.holds), beside)
            return _total(entries | true if dim in own.whole else entries, own.sums)

        self._set(op.result, _total(true, own.sums), beyond)


def _indices(op: Einsum) -> tuple[str, ...]:
    """The indices of what an einsum reads, each once."""
    return tuple(dict.fromkeys(i for indices in op.indices for i in indices))


def _multiplied(op: Einsum, sign: Callable[[str, tuple[str, ...]], Sign]) -> Sign:
    """The signs of the products of an einsum, of operands of such signs; codes less their zero points are one factor,
    and what is multiplied by itself is below zero nowhere."""
    read = list(zip(op.operands, op.indices, strict=True))
    less = {codes: read[zero] for codes, zero in op.zeros}
    subtracted = {zero for _, zero in op.zeros}
    found = POSITIVE
    for (one, zero), times in Counter((r, less.get(n)) for n, r in enumerate(read) if n not in subtracted).items():
        factor = sign(*one) if zero is None else added(sign(*one), negated(sign(*zero)))
        powers = (reduce(multiplied, [each] * times) for each in factor)
        found = multiplied(found, reduce(or_, powers, NONE))
    return found


def _total(terms: Sign, summed: bool) -> Sign:
    """The signs of a sum of terms; of a single one, where nothing is summed."""
    return added(terms, terms) | terms if summed else terms
