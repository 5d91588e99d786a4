"""Over which axes each value can be left partial, so that no layout is considered in vain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...ir.dataflow import ops
from ...ir.layout import Reduction
from ...ir.mesh import Mesh
from ...ir.program import Program, Signature, signature
from ...ir.record import record
from .space import fits
from .strategies import live_axes

NONE: frozenset[str] = frozenset()


@record
class PartialAxes:
    """`arise[r][v]`: the axes over which value v can be partial with reduction r, by name: those over
    which an op leaves it so, and over which its blocks may stand among zeros.
    `join[v]`: those over which it may be wanted as a partial sum, to join one in a Sum."""

    arise: Mapping[Reduction, Mapping[str, frozenset[str]]]
    join: Mapping[str, frozenset[str]]

    def sums(self, value: str) -> frozenset[str]:
        """The axes over which a layout of the value may be a partial sum."""
        return self.arise[Reduction.SUM].get(value, NONE) | self.join.get(value, NONE)

    def maxima(self, value: str) -> frozenset[str]:
        """The axes over which a layout of the value may be a partial maximum."""
        return self.arise[Reduction.MAX].get(value, NONE)

    def readable(self, sig: Signature) -> dict[str, frozenset[str]]:
        """For each operand of an op, the axes over which it can be read partial."""
        if sig.together:
            return {use.value: self.sums(use.value) for use in sig.uses}
        return {use.value: self.arise[sig.reduction].get(use.value, NONE) for use in sig.uses}


def partial_axes(program: Program, sizes: Mapping[str, int], mesh: Mesh) -> PartialAxes:
    """What can be partial in a phase whose dims have `sizes`, in one pass over the program."""
    values = program.table()
    sums = {v.name: axes for v in program.values if (axes := _embeddable([sizes[d] for d in v.dims], mesh))}
    arise: dict[Reduction, dict[str, frozenset[str]]] = {Reduction.SUM: sums, Reduction.MAX: {}}
    join: dict[str, frozenset[str]] = {}
    for op in ops(program):
        sig = signature(op, values)
        found = arise[sig.reduction]
        axes = _contracting(sig, sizes, mesh)
        passing = range(len(sig.uses)) if sig.together else sig.linear
        axes |= frozenset().union(*(found.get(sig.uses[k].value, NONE) for k in passing))
        _allow(found, op.result, axes)
        if sig.together:
            for use in sig.uses:
                _allow(join, use.value, axes)
    return PartialAxes(arise, join)


def _allow(axes: dict[str, frozenset[str]], value: str, more: frozenset[str]) -> None:
    if more:
        axes[value] = axes.get(value, NONE) | more


def _embeddable(shape: Sequence[int], mesh: Mesh) -> frozenset[str]:
    """The axes over which blocks of a value of this shape may be worth standing among zeros: those that can split it.

    An all-reduce of such blocks is what an all-gather is of them. It sends more, but pays no start of its own where it
    runs as one with another, and of small values some libraries make it the quicker of the two.
    """
    return frozenset(name for name, ways in live_axes(mesh) for size in shape if size % ways == 0)


def _contracting(sig: Signature, sizes: Mapping[str, int], mesh: Mesh) -> frozenset[str]:
    live = live_axes(mesh)
    masks = [fits(sizes[i], [size for _, size in live], i in sig.even) for i in sig.contracted if i not in sig.whole]
    return frozenset(name for a, (name, _) in enumerate(live) if any(mask[1 << a] for mask in masks))
