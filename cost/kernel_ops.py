"""The ops of a program as kernels see them: who makes and who reads what, what comes from weights or caches alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from ..ir.dtype import Dtype
from ..ir.program import Append, Kind, Op, Role, Signature, operand_names
from ..ir.record import record


@record
class Node:
    """An op that reads originals; `region`: the repeats around it; `times`: how often it runs; `size`: the places of
    all its dims; `fewer`: the type that an engine may bring its operands to (see `Arithmetic`)."""

    op: Op
    signature: Signature
    region: tuple[tuple[str, ...], ...]
    times: int
    size: int
    fewer: Dtype | None

    @property
    def role(self) -> Role:
        """That of its signature."""
        return self.signature.role

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """The values that it reads, each once."""
        return operand_names(self.op)


class KernelOps:
    """Ops, numbered in an order in which makers come before readers. `stored`: what of the values is; `handed_on`: the
    results, and what goes round; `dims`: of each value."""

    def __init__(
        self,
        nodes: Sequence[Node],
        stored: Mapping[str, Kind],
        handed_on: frozenset[str],
        dims: Mapping[str, Sequence[str]],
    ) -> None:
        self.stored = stored
        self.dims = dims
        self.handed_on = handed_on
        self.nodes = nodes
        self.maker = {node.op.result: n for n, node in enumerate(self.nodes)}
        self.readers: dict[str, list[int]] = {}
        for n, node in enumerate(self.nodes):
            for name in node.reads:
                self.readers.setdefault(name, []).append(n)
        self.weights = self._made_of(Kind.PARAM)
        self.caches = self._made_of(Kind.CACHE)
        self.constant = self._constant()

    def _made_of(self, kind: Kind) -> set[str]:
        """The stored tensors of a kind, and what is made of them alone."""
        found = {name for name, one in self.stored.items() if one is kind}
        for node in self.nodes:
            names = (node.op.cache,) if isinstance(node.op, Append) else node.reads
            pointwise = node.role is Role.POINTWISE and (kind is Kind.PARAM or isinstance(node.op, Append))
            if pointwise and names and all(name in found for name in names):
                found.add(node.op.result)
        return found

    def _constant(self) -> set[int]:
        """The ops that no tensor enters into."""
        found: set[int] = set()
        for n, node in enumerate(self.nodes):
            if all(self.maker.get(name) in found for name in node.reads):
                found.add(n)
        return found

    def makers(self, n: int) -> list[int]:
        """The ops of the same region that make what op `n` reads, without constants; in order."""
        found = {self.maker[name] for name in self.nodes[n].reads if name in self.maker}
        return sorted(m for m in found - self.constant if self.nodes[m].region == self.nodes[n].region)

    def weighs(self, n: int) -> bool:
        """Whether a matmul sums over a dim of a weight, as projections do; a factor of each head is none of these."""
        sig = self.nodes[n].signature
        return any(use.value in self.weights and {*use.indices} & {*sig.contracted} for use in sig.uses)

    @cached_property
    def projections(self) -> dict[int, list[int]]:
        """For each matmul by weights all those of the same value."""
        groups: dict[tuple[object, ...], list[int]] = {}
        for n, node in enumerate(self.nodes):
            others = tuple(sorted(name for name in node.reads if name not in self.weights))
            if node.role is Role.MATMUL and self.weighs(n) and others:
                groups.setdefault((node.region, others), []).append(n)
        return {n: group for group in groups.values() for n in group}
