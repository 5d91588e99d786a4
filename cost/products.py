"""Which products are never there as values: those that the one pointwise op that reads them is fused with.

XLA makes what a pointwise op gives where the last of the products that it reads is made. That product is never stored,
and where another operand is as large and nobody else reads it, the result is written over that one (libtpu 0.0.42, v4:
of `silu(x * Wg) * (x * Wi)` on 65,536 rows of 4,096 one buffer of 537 MB, in whatever order g and u are made; two where
g or u is read once more; one of `gelu(x * Wi)`; PaLM 8B, prefill on 2x2x2: one of g, u and h, of 4.29 GB each). It does
so with products by matrices of each expert as well, and not with rows of chosen entries, whose products are calls of
their own.

Where a compiler gathers ahead, the matrix that is gathered next is there as the product is made: there products count
as if they were, which is about as much (libtpu 0.0.42, v5e 8x8: LLaMA-3-70B's prefill is planned at 16.86 GB without,
and refused for 17.01 of the 16.91 that there are). Of GPUs nothing was measured, and they count as well.

A product that a collective moves, or completes, is stored, and so is one between which and the pointwise op something
else runs: the compiler may well wait for that, and then holds what the product is made of for longer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from ..ir.dataflow import origins, regions
from ..ir.expr import rotated_dims
from ..ir.program import Einsum, Map, Repeat, Role, Sum, operand_names, signature, walk
from ..ir.record import record
from ..ir.spmd import Compute, SpmdProgram, SpmdValue
from ..ir.verify.fused import together
from .scores import queries_of


@record
class Taker:
    """A pointwise op, by what it makes, and what it alone reads, made in its own region, of as many bytes as its result
    in every layout: `products`, in whose place it may be made, and all of them, `over` which it may be written."""

    result: str
    products: tuple[str, ...]
    over: tuple[str, ...]


@record
class Taken:
    """A product that is never there: `result` is made in its place, over the value `over`, if there is such a one."""

    product: str
    result: str
    over: str | None


def takers(spmd: SpmdProgram) -> tuple[Taker, ...]:
    """The pointwise ops that may be made in the place of a product that they read, whatever is moved; moved copies are
    called as what they are copies of."""
    return tuple(_Products(spmd).takers())


def taken(spmd: SpmdProgram) -> tuple[Taken, ...]:
    """The products that are never there, as the program has its steps."""
    products = _Products(spmd)
    by_result = {taker.result: taker for taker in products.takers()}
    found = []
    for region, _ in regions(spmd.body):
        runs = together(region.items)
        for before, (item, *_) in pairwise(runs):
            if isinstance(item, Compute) and (taker := by_result.get(item.result)):
                read = operand_names(item.op)
                made = [step.result for step in before if isinstance(step, Compute)]
                last = next((name for name in reversed(made) if name in taker.products and name in read), None)
                if last is not None:
                    others = (name for name in read if name != last and products.first.get(name, name) in taker.over)
                    found.append(Taken(last, item.result, next(others, None)))
    return tuple(found)


class _Products:
    """What ops make and read in a program; `first`: of each moved copy what it is a copy of."""

    def __init__(self, spmd: SpmdProgram) -> None:
        self.spmd, self.values, self.first = spmd, spmd.table(), origins(spmd)
        self.pairs = [{*pair} for pair in queries_of(spmd).items()]
        self.readers = self._readers()

    def takers(self) -> Iterator[Taker]:
        """The pointwise ops, in order."""
        for region, _ in regions(self.spmd.body):
            steps = [item for item in region.items if isinstance(item, Compute)]
            made = {step.result: step for step in steps}
            for step in steps:
                if isinstance(step.op, Map | Sum) and self._plain(self.values[step.result]):
                    names = [self.first.get(name, name) for name in operand_names(step.op)]
                    over = [name for name in names if name in made and self._alike(name, step)]
                    products = tuple(name for name in over if self._is_product(made[name]))
                    if products:
                        yield Taker(step.result, products, tuple(over))

    def _readers(self) -> Counter[str]:
        """How many ops, carries and results read each value, in whatever layout."""
        count: Counter[str] = Counter(self.first.get(name, name) for name in self.spmd.results)
        for placed in walk(self.spmd.body):
            match placed.item:
                case Compute(op):
                    count.update(self.first.get(name, name) for name in operand_names(op))
                case Repeat(_, _, carries, _):
                    names = (name for carry in carries for name in (carry.initial, carry.next))
                    count.update(self.first.get(name, name) for name in names)
        return count

    def _alike(self, name: str, step: Compute) -> bool:
        """Whether an op alone reads a value, element by element, and it takes as much as what is made of it."""
        value, result = self.values[name], self.values[step.result]
        turned = rotated_dims(step.op.expr) if isinstance(step.op, Map) else frozenset[str]()
        same = value.dims == result.dims and value.dtype.bits == result.dtype.bits
        return same and not turned and self.readers[name] == 1 and self._plain(value)

    def _is_product(self, step: Compute) -> bool:
        """Whether it is a matmul that is a step of its own: no rows of chosen entries, nothing of attention."""
        plain = all(self._plain(self.values[name]) for name in operand_names(step.op))
        values = {name: self.values[name].value for name in (*operand_names(step.op), step.result)}
        return isinstance(step.op, Einsum) and plain and signature(step.op, values).role is Role.MATMUL

    def _plain(self, value: SpmdValue) -> bool:
        """Whether a value is no score, and nothing of it is chosen."""
        return not value.chosen and not any(pair <= {*value.dims} for pair in self.pairs)
