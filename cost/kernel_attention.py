"""Which ops are one attention, or one sum of scores, and so run as one kernel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set

from ..ir.expr import functions
from ..ir.program import Choose, Einsum, Map, Op, Reduce, Role
from .kernel_ops import KernelOps


def attentions(ops: KernelOps) -> Iterator[set[int]]:
    """Matmuls without weights, each with the one before it where a reduction stands between them, or where it only
    weighs and sums what that makes, and such sums of scores by weights; and what stands between, from where nothing
    else reads scores of it."""
    finder, joined = _Finder(ops), set[int]()
    for n, node in enumerate(ops.nodes):
        if not (own := finder.attention(n, joined)):
            continue
        shared = finder.shared(n, own)
        rest = own - shared
        if not shared or _only_sums(node.op) or finder.reduces(rest):
            joined |= rest
            yield rest


class _Finder:
    def __init__(self, ops: KernelOps) -> None:
        self.ops = ops

    def attention(self, n: int, joined: Set[int]) -> set[int]:
        """The ops of an attention that ends with op `n`, or of a sum of scores; none where this is another. `joined`:
        those of attentions before."""
        found: set[int] = set()
        sums, weighs = _only_sums(self.ops.nodes[n].op), self.ops.weighs(n)
        if self.ops.nodes[n].role is not Role.MATMUL or (weighs and not sums):
            return found
        between, scores = self._between(n)
        for m in scores:
            after = {m}
            for k in sorted(between):
                if after & set(self.ops.makers(k)):
                    after.add(k)
            if weighs:
                joins = m not in joined and self._for_pairs(n, m, after)
            elif self.ops.weighs(m):
                joins = self.ops.projections.get(m) == [m] and self._softmax(n, after)
            else:
                joins = sums or self.reduces(after)
            if joins:
                found |= after | {n}
        return found | self._outer(n, between - found, found)

    def _softmax(self, n: int, after: Set[int]) -> bool:
        """Whether scores are weights for what op `n` sums: of those that a weight makes, such as learned queries, the
        ones with a softmax over what it sums, for each of what its result alone has. A normalised projection has no
        softmax, and the shares of experts, of which each row has its own, no such dims."""
        summed, free = self._pairs(n, after)
        ops = [self.ops.nodes[k].op for k in after]
        largest = any(isinstance(op, Reduce) and {*op.over} & summed for op in ops)
        return largest and bool(free) and any(isinstance(op, Map) and "exp" in functions(op.expr) for op in ops)

    def _for_pairs(self, n: int, m: int, after: Set[int]) -> bool:
        """Whether op `n`, which weighs by a weight and sums what matmul `m` makes, leaves numbers for pairs of what `m`
        multiplies, as a sum of scores over heads does; a projection leaves none of a dim."""
        factors, kept = self.ops.nodes[m].signature, set[str]()
        for use in self.ops.nodes[n].signature.uses:
            if self.ops.maker.get(use.value) in after:
                own = zip(use.indices, self.ops.dims[use.value], strict=True)
                kept |= {dim for index, dim in own if index in self.ops.nodes[n].signature.result}
        dims = dict(zip(factors.result, self.ops.dims[self.ops.nodes[m].op.result], strict=True))
        left = 0
        for use in factors.uses:
            others = {index for other in factors.uses if other != use for index in other.indices}
            left += any(dims.get(index) in kept for index in use.indices if index not in others)
        return left > 1 and not self.ops.weighs(m)

    def _outer(self, n: int, some: Set[int], own: Set[int]) -> set[int]:
        """Of some ops before op `n` those that make numbers for pairs of a query and a key out of fewer, or of such,
        as a bias that is a product of the two: they are made where they are read."""
        found: set[int] = set()
        summed, free = self._pairs(n, own)
        for k in sorted(some):
            dims, made = {*self.ops.dims[self.ops.nodes[k].op.result]}, found | self.ops.constant
            largest = [name for name in self.ops.nodes[k].reads if {*self.ops.dims[name]} >= dims]
            if dims & summed and dims & free and all(self.ops.maker.get(name) in made for name in largest):
                found.add(k)
        return found

    def _pairs(self, n: int, own: Set[int]) -> tuple[set[str], set[str]]:
        """Of what the ops `own` make for op `n` the dims that this sums, and those that its result has of it alone."""
        uses, summed, free = self.ops.nodes[n].signature.uses, set[str](), set[str]()
        for use in uses:
            if self.ops.maker.get(use.value) in own:
                others = {index for other in uses if other != use for index in other.indices}
                for index, dim in zip(use.indices, self.ops.dims[use.value], strict=True):
                    if index in self.ops.nodes[n].signature.contracted:
                        summed.add(dim)
                    elif index not in others:
                        free.add(dim)
        return summed, free

    def reduces(self, some: Iterable[int]) -> bool:
        """Whether there is a reduction among some ops."""
        return any(self.ops.nodes[k].role is Role.REDUCTION for k in some)

    def shared(self, n: int, own: Set[int]) -> set[int]:
        """Of the ops `own` of an attention those that make scores which something else reads too, as another attention
        or another product of this one, and what makes these: such scores are held whole, and attention reads them as
        anything else does. Scores have a dim that the product sums; maxima and sums have none."""
        wide, _ = self._pairs(n, own)
        waiting = []
        for k in sorted(own - {n}):
            result = self.ops.nodes[k].op.result
            others = any(m not in own for m in self.ops.readers.get(result, ())) or result in self.ops.handed_on
            if wide & {*self.ops.dims[result]} and others:
                waiting.append(k)
        found: set[int] = set()
        while waiting:
            k = waiting.pop()
            if k not in found:
                found.add(k)
                waiting += [m for m in self.ops.makers(k) if m in own]
        return found

    def _between(self, n: int) -> tuple[set[int], list[int]]:
        """The ops between a matmul and the matmuls before it, and these. What is chosen is known when all keys are, and
        so comes from elsewhere."""
        between: set[int] = set()
        ends: set[int] = set()
        waiting = self.ops.makers(n)
        while waiting:
            m = waiting.pop()
            if self.ops.nodes[m].role is Role.MATMUL:
                ends.add(m)
            elif m not in between and not isinstance(self.ops.nodes[m].op, Choose):
                between.add(m)
                waiting += self.ops.makers(m)
        return between, sorted(ends)


def _only_sums(op: Op) -> bool:
    """Whether a product weighs and sums something: it makes nothing larger than what it reads, of which one operand has
    all of its indices and another is what that is weighed with. A sum of squares, as a norm's, is none."""
    every = {index for each in op.indices for index in each} if isinstance(op, Einsum) else set()
    return isinstance(op, Einsum) and len({*op.operands}) > 1 and any({*own} >= every for own in op.indices)
