"""Over which axes each value can be left partial, so that no layout is considered in vain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..ir.layout import Reduction
from ..ir.mesh import Mesh
from ..ir.program import Program, Repeat, Signature, Stored, signature, walk
from .space import fits
from .strategies import live_axes

NONE: frozenset[str] = frozenset()


@dataclass(frozen=True)
class PartialAxes:
    """`arise[r][v]`: the axes over which value v can be left partial with reduction r, by name.
    `embed[v]`: those over which it may be wanted as a partial sum, to join one in a Sum."""

    arise: Mapping[Reduction, Mapping[str, frozenset[str]]]
    embed: Mapping[str, frozenset[str]]

    def sums(self, value: str) -> frozenset[str]:
        """The axes over which a layout of the value may be a partial sum."""
        return self.arise[Reduction.SUM].get(value, NONE) | self.embed.get(value, NONE)

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
    arise: dict[Reduction, dict[str, frozenset[str]]] = {Reduction.SUM: {}, Reduction.MAX: {}}
    embed: dict[str, frozenset[str]] = {}
    for placed in walk(program.body):
        op = placed.item
        if isinstance(op, Stored | Repeat):
            continue
        sig = signature(op, values)
        found = arise[sig.reduction]
        axes = _contracting(sig, sizes, mesh)
        passing = range(len(sig.uses)) if sig.together else sig.linear
        axes |= frozenset().union(*(found.get(sig.uses[k].value, NONE) for k in passing))
        if axes:
            found[op.result] = axes
        if sig.together and axes:
            for use in sig.uses:
                embed[use.value] = embed.get(use.value, NONE) | axes
    return PartialAxes(arise, embed)


def _contracting(sig: Signature, sizes: Mapping[str, int], mesh: Mesh) -> frozenset[str]:
    live = live_axes(mesh)
    masks = [fits(sizes[i], [size for _, size in live], i in sig.even) for i in sig.contracted if i not in sig.whole]
    return frozenset(name for a, (name, _) in enumerate(live) if any(mask[1 << a] for mask in masks))
