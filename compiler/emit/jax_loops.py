"""Loops as JAX text: einsums made of the blocks of a gather as they come round, or whose sums a reduce-scatter
passes on as their blocks are made.

Each is one call of a helper that unrolls it when it is traced. No einsum there waits for a block that it
does not read, so a compiler may run arithmetic and transfer at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ...ir.program import Einsum, Sum
from ...ir.record import record
from ...ir.spmd import Compute, Move, SpmdValue
from ...ir.verify.fused import CollectiveMatmul
from .jax_lines import Lines, Scope
from .jax_moves import Moves
from .jax_ops import Ops
from .jax_text import dtype_text, number_text, subscripts


@record
class Loops:
    """Writes the loops of a program. `base`: the name of a value within its repeat; `note`: what is said beside
    a value; `both_ways`: the first results of the loops that send half of each block up and half down."""

    values: Mapping[str, SpmdValue]
    ops: Ops
    moves: Moves
    lines: Lines
    base: Callable[[str], str]
    note: Callable[[str], str]
    both_ways: frozenset[str]

    def write(self, loop: CollectiveMatmul, scope: Scope) -> None:
        """Write a loop, and note in `scope` what it makes."""
        if loop.gathers:
            made = [step.result for step in loop.ops]
            function, given = "gathered_einsums", scope.texts[loop.gathers[0].operand]
            parts = [(self._product(step, loop.gathers[-1], scope), self.note(step.result)) for step in loop.ops]
        else:
            made = [loop.scatters[-1].result]
            block = self.values[made[0]]
            function, given = "scattered_einsums", f"{dtype_text(block.dtype)}, {self.ops.shape(block)}"
            parts = self._terms(loop.ops, scope)
        for name in made:
            scope.texts[name] = scope.new(self.base(name))
        names = ", ".join(scope.texts[name] for name in made)
        *before, last = loop.moves
        for value in [*([loop.ops[-1].result] if loop.scatters else []), *(move.result for move in before)]:
            self.lines.comment(self.note(value))
        ways = [("both_ways=True", "")] if loop.steps[0].result in self.both_ways else []
        arguments = [(f"{given}, {self._stages(loop)}", self.note(last.result)), *parts, *ways]
        self.lines.call(f"{f'[{names}]' if loop.gathers and len(made) == 1 else names} = {function}", arguments)

    def _stages(self, loop: CollectiveMatmul) -> str:
        """The rings of a loop: their axes, and the dimension of which each passes blocks."""
        operand = loop.moves[0].operand
        stages = [f'("{stage.axis}", {self.moves.axis(operand, stage.dim)})' for stage in loop.stages]
        return f"[{', '.join(stages)}]"

    def _product(self, step: Compute, gather: Move, scope: Scope) -> str:
        """An einsum of what is gathered: subscripts that start with its own, the type, and the other operands."""
        op = step.op
        assert isinstance(op, Einsum)
        pairs = list(zip(op.operands, op.indices, strict=True))
        [own] = [indices for name, indices in pairs if name == gather.result]
        others = [(name, indices) for name, indices in pairs if name != gather.result]
        read = [self.ops.indices(gather.result, own), *(self.ops.indices(name, i) for name, i in others)]
        text = subscripts(read, self.ops.kept(op.output))
        dtype = dtype_text(self.values[op.result].dtype)
        return _tuple([f'"{text}"', dtype, *(self.ops.ungrouped(name, i, scope.texts[name]) for name, i in others)])

    def _terms(self, ops: Sequence[Compute], scope: Scope) -> list[tuple[str, str]]:
        """What is summed, each with the comment beside it: subscripts and operands."""
        *parts, last = ops
        if isinstance(last.op, Einsum):
            return [(self._term(last.op, last.op, 1.0, scope), "")]
        assert isinstance(last.op, Sum)
        made = {step.result: step.op for step in parts}
        terms = []
        for name, coefficient in zip(last.op.operands, last.op.coefficients, strict=True):
            op = made.get(name)
            if op is None:  # made before the loop: taken as it is
                dims = self.values[name].dims
                op = Einsum(name, (name,), (dims,), dims)
            assert isinstance(op, Einsum)
            terms.append((self._term(op, last.op, coefficient, scope), self.note(name) if name in made else ""))
        return terms

    def _term(self, op: Einsum, whole: Einsum | Sum, coefficient: float, scope: Scope) -> str:
        """One of the einsums whose sum `whole` is, with all its dims in its order: times ones where it lacks one."""
        value, own = self.values[whole.result], dict(zip(self.values[op.result].dims, op.output, strict=True))
        pairs = list(zip(op.operands, op.indices, strict=True))
        indices = [self.ops.indices(name, each) for name, each in pairs]
        texts = [self.ops.ungrouped(name, each, scope.texts[name]) for name, each in pairs]
        dims, dtype = self.ops.kept(value.dims), dtype_text(value.dtype)
        for dim in dims:
            if dim not in own:
                own[dim] = f"all {dim}"  # the einsum may sum over an index of that name
                indices.append([own[dim]])
                texts.append(f"jnp.ones({self.ops.length(value, dim)}, {dtype})")
        if coefficient != 1.0:
            indices.append([])
            texts.append(f"{dtype}({number_text(coefficient)})")
        return _tuple([f'"{subscripts(indices, [own[dim] for dim in dims])}"', *texts])


def _tuple(texts: Sequence[str]) -> str:
    return f"({', '.join(texts)})"
