"""Collectives as JAX text: each by its `lax` function, several that run as one by a helper that packs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ...cost.tpu_collectives import Kept
from ...ir.collective import AllGather, AllReduce, AllToAll, Collective, Embed, Permute, ReduceScatter, Slice, axes_of
from ...ir.inert import literal
from ...ir.layout import Reduction
from ...ir.record import record
from ...ir.spmd import Move, SpmdValue
from .jax_text import axes_text


@record
class Moves:
    """Writes the collectives of a program. `held`: the dims of a value's local array; `kept`: what the TPU's compiler
    keeps, where the program is for one; `boxed`: values are boxes of rows."""

    values: Mapping[str, SpmdValue]
    held: Callable[[str], Sequence[str]]
    kept: Kept | None
    boxed: bool = False

    def axis(self, operand: str, dim: int) -> int:
        """Where dimension `dim` of a value stands in its local array."""
        return self.held(operand).index(self.values[operand].dims[dim])

    def text(self, operand: str, collective: Collective, a: str) -> str:
        """A collective of `operand`, whose text is `a`."""
        before = self.values[operand].layout
        highest = before.reduction is Reduction.MAX
        match collective:
            case AllGather(axes, dim):
                # `invarying`: what is gathered is the same on all these chips, and JAX checks it.
                at, stages = self.axis(operand, dim), self._stages(axes)
                text = f'lax.all_gather({a}, {axes_text(axes)}, axis={at}, tiled=True, to="invarying")'
                if len(stages) > 1:
                    text = f"gather_in_stages({a}, {stages_text(stages)}, {at})"
                if self.kept and not self.boxed and self.kept.as_several(operand):
                    part = f"({a}, {tuple_text(axes)}, {at})"
                    text = f"gather_together([{part}], {tuple_text(axes)}, {stages_text(stages)})[0]"
                once = self.kept is not None and not self.boxed and self.kept.once(operand, axes)
                return f"lax.optimization_barrier({text})" if once else text
            case ReduceScatter(axes, dim):
                at = self.axis(operand, dim)
                if highest:
                    return f"max_scatter({a}, {axes_text(axes)}, {at})"
                stages = self._scatter_stages([operand], axes)
                if self.kept and (self.boxed or self.kept.as_rows(operand, dim, axes)):
                    return f"scatter_rows({a}, {stages_text(stages)}, {at})"
                if len(stages) > 1:
                    return f"scatter_in_stages({a}, {stages_text(stages)}, {at})"
                return f"lax.psum_scatter({a}, {axes_text(axes)}, scatter_dimension={at}, tiled=True)"
            case AllReduce(axes):
                return f"lax.{'pmax' if highest else 'psum'}({a}, {axes_text(axes)})"
            case AllToAll(axes, source, target):
                into, out_of = self.axis(operand, target), self.axis(operand, source)
                text = f"lax.all_to_all({a}, {axes_text(axes)}, split_axis={into}, concat_axis={out_of}, tiled=True)"
                order = before.dims[source][-len(axes) :]
                if order == axes:
                    return text
                return f"reordered({text}, {out_of}, {tuple_text(axes)}, {tuple_text(order)})"
            case Slice(axes, dim):
                return f"own_block({a}, {axes_text(axes)}, {self.axis(operand, dim)})"
            case Permute(after):
                moving = axes_of(collective, before)
                orders = ([x for axes in layout.dims for x in axes if x in moving] for layout in (before, after))
                return f"permute({a}, {', '.join(tuple_text(order) for order in orders)})"
            case Embed(axes, None):
                return f"on_first({a}, {axes_text(axes)})"
            case Embed(axes, int(dim)):
                order = before.dims[dim][-len(axes) :]
                return f"among_zeros({a}, {axes_text(order)}, {self.axis(operand, dim)})"
        raise AssertionError(collective)

    def joined(self, moves: Sequence[Move], texts: Sequence[str]) -> str:
        """Several collectives of one kind over the same axes, whose operands' texts are `texts`, as one."""
        first = moves[0].collective
        before = self.values[moves[0].operand].layout
        highest = before.reduction is Reduction.MAX
        helper = {
            AllGather: "gather_together",
            ReduceScatter: "max_scatter_together" if highest else "scatter_together",
            AllReduce: "max_together" if highest else "reduce_together",
            AllToAll: "exchange_together",
        }[type(first)]
        parts = [self._part(move, text) for move, text in zip(moves, texts, strict=True)]
        axes = axes_of(first, before)
        more = ""
        if self.kept and helper == "gather_together":
            more = f", {stages_text(self._stages(axes))}"
        if self.kept and helper == "scatter_together":
            more = f", {stages_text(self._scatter_stages([move.operand for move in moves], axes))}"
        return f"{helper}([{', '.join(parts)}], {tuple_text(axes)}{more})"

    def _stages(self, axes: Sequence[str]) -> tuple[tuple[str, ...], ...]:
        """The axes of a gather, in as many stages as it goes in, the major ones first."""
        return self.kept.stages(axes) if self.kept else (tuple(axes),)

    def _scatter_stages(self, operands: Sequence[str], axes: Sequence[str]) -> tuple[tuple[str, ...], ...]:
        """Those of a reduce-scatter."""
        return self.kept.scatter_stages(operands, axes) if self.kept else (tuple(axes),)

    def _part(self, move: Move, a: str) -> str:
        """One of the collectives that run as one, as an argument."""
        match move.collective:
            case AllReduce():
                return a
            case AllGather(axes, dim) | ReduceScatter(axes, dim):
                return f"({a}, {tuple_text(axes)}, {self.axis(move.operand, dim)})"
            case AllToAll(axes, source, target):
                order = self.values[move.operand].layout.dims[source][-len(axes) :]
                places = f"{self.axis(move.operand, source)}, {self.axis(move.operand, target)}"
                return f"({a}, {tuple_text(axes)}, {places}, {tuple_text(order)})"
        raise AssertionError(move)


def stages_text(stages: Sequence[Sequence[str]]) -> str:
    """The axes of stages as a list."""
    return f"[{', '.join(map(axes_text, stages))}]"


def tuple_text(axes: Sequence[str]) -> str:
    """Mesh axes as a tuple, of one or none as well."""
    return "(" + ", ".join(map(literal, axes)) + ("," if len(axes) == 1 else "") + ")"
