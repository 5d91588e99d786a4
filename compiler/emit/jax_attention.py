"""Scores in blocks as JAX text: a function that makes a block of them, and a call that goes over all blocks.

Sums of scores are made where they stand. The call of attention stands where a chip's maximum is made, and gives the
chip's maximum, its sum and its weighted values. Where these are brought to a maximum and a sum of all chips, or to
those with a sink, that is written where they are made. What hides scores is said beside them, so that blocks of which
it hides all do not run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property

from ...cost.attention import Attention
from ...cost.blocks import Block, InBlocks, cut, places_at_a_time
from ...cost.hidden import limits
from ...cost.scores import Part, local_sizes
from ...cost.summed_scores import SummedScores
from ...ir.dtype import Dtype
from ...ir.expr import Expr, operands
from ...ir.program import Einsum, Op
from ...ir.record import record
from ...ir.spmd import SpmdProgram, SpmdValue
from .jax_kernels import KernelScores, kernel_scores
from .jax_lines import Lines, Scope
from .jax_ops import Ops
from .jax_text import ExprText, align_text, dtype_text
from .jax_tree import Names
from .python_text import letters

Parts = Sequence[tuple[Sequence[str], str]]  # of what blocks are cut from the labels and the text


def _parts_text(parts: Parts, letter: Mapping[str, str]) -> str:
    """What blocks are cut from, with a letter for each label."""
    return "[" + ", ".join(f'("{"".join(letter[label] for label in labels)}", {text})' for labels, text in parts) + "]"


def _limits_text(sides: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """The argument of a call that has these limits, none where there are none."""
    every = [f"({lower}, {upper})" for lower, upper in sides]
    return [(f"[{', '.join(every)}]", "")] if every else []


@record
class ScoreBlocks:
    """Writes what of a program runs in blocks of scores, `found`. `kernels`: for GPUs, where attention runs as one
    kernel if it can. `made`: the text of each product, as a chip makes it."""

    found: Sequence[InBlocks]
    spmd: SpmdProgram
    values: Mapping[str, SpmdValue]
    names: Names
    ops: Ops
    lines: Lines
    note: Callable[[str], str]
    kernels: bool = False
    made: dict[str, str] = field(default_factory=dict)

    @cached_property
    def steps(self) -> dict[str, InBlocks]:
        """What an op is a step of, by what it makes: the maximum, the sum and the product of an attention."""
        return {name: one for one in self.found for name in one.ends}

    def reads(self, op: Op) -> set[str] | None:
        """What is read where a step is written; None for other ops."""
        one = self.steps.get(op.result)
        if one is None:
            return None
        if isinstance(one, SummedScores) or op is one.largest:
            return set(one.reads)
        if op is one.sum:
            return {one.largest.result, one.top}
        return {one.sum.result, one.total, *one.factors}

    def write(self, op: Op, scope: Scope) -> None:
        """Write a step, and note in `scope` what it makes."""
        one = self.steps[op.result]
        if isinstance(one, SummedScores):
            self._summed(one, scope)
        elif op is one.largest:
            self._call(one, scope)
        elif op is one.sum:
            self._sum(one, scope)
        else:
            self._product(one, scope)

    def _call(self, one: Attention, scope: Scope) -> None:
        kernel = kernel_scores(one, self.spmd) if self.kernels else None
        function, parts = self._function(one.shares, [*one.scores], one.parts, scope, kernel)
        results = (one.product.result, one.largest.result, one.sum.result)
        made, largest, total = (scope.new(self.names.base(name)) for name in results)
        scope.texts[one.largest.result], scope.texts[one.sum.result] = largest, total
        self.made[one.product.result] = made
        scaled = self._scaled(one, scope) if one.scales else None
        self.lines.call(
            f"{made}, {largest}, {total} = attention_in_{'kernel' if kernel else 'blocks'}",
            self._arguments(one, (function, parts), scaled, scope),
        )

    def _summed(self, one: SummedScores, scope: Scope) -> None:
        """A sum of scores, made a block at a time."""
        result = one.sum.result
        function, parts = self._function(result, [*one.scores, one.sum], one.parts, scope)
        output = self._kept(self.values[result].dims, self.values[result].dims)
        letter = letters(label for each in (output, *(labels for labels, _ in parts)) for label in each)
        scope.texts[result] = scope.new(self.names.base(result))
        out, note = "".join(letter[dim] for dim in output), self.note(result)
        arguments = [
            (f"{function}, {_parts_text(parts, letter)}", ""),
            (f'"{out}", {self._blocks(one, letter)}', self.note(one.widest)),
            *self._limits_of_sum(one, letter),
        ]
        self.lines.comment(f"{scope.texts[result]}: {note}")
        self.lines.call(f"{scope.texts[result]} = made_in_blocks", arguments)

    def _scaled(self, one: Attention, scope: Scope) -> tuple[str, Parts]:
        """Write the function that makes a block of values of what is stored and its scales: what it is called, and the
        labels and the text of each scale."""
        read = (one.values, *one.scales)
        inner = Scope({}, scope.stacked, set(scope.used), scope.index, scope.place)
        function = scope.new(f"{self.names.base(one.product.result)} values")
        inner.used.add(function)
        for name in read:
            inner.texts[name] = inner.new(self.names.base(name))
        indices, held = tuple(map(one.indices, read)), one.indices(one.values)
        at = {one.product.operands.index(name): n for n, name in enumerate(read)}
        zeros = tuple((at[codes], at[zero]) for codes, zero in one.product.zeros)
        made = replace(self.values[one.values], name=function, dtype=self.values[one.shares].dtype)
        writer = replace(self.ops, values={**self.values, function: made})
        self.lines.definition(function, [inner.texts[name] for name in read])
        self.lines.depth += 1
        self.lines.line(f"return {writer.text(Einsum(function, read, indices, held, zeros), inner.texts)}")
        self.lines.depth -= 1
        self.lines.blank()
        return function, [(self._kept_of(one, name), scope.texts[name]) for name in one.scales]

    def _function(
        self, name: str, ops: Sequence[Op], cut_from: Sequence[Part], scope: Scope, kernel: KernelScores | None = None
    ) -> tuple[str, Parts]:
        """Write the function that makes a block, of which the last of some ops makes the result, in a `kernel` or in
        none: what it is called, and the labels and the text of each part that it takes."""
        inner = Scope(dict(scope.texts), scope.stacked, set(scope.used), scope.index, scope.place)
        function = scope.new(f"{self.names.base(name)} scores")
        inner.used.add(function)
        taken, parts = list[str](), list[tuple[Sequence[str], str]]()
        for part in kernel.parts if kernel else cut_from:
            text = scope.texts[part.value]
            own = text if text.isidentifier() and text not in taken else inner.new(self.names.base(part.value))
            inner.texts[part.value] = own
            taken.append(own)
            parts.append((self._kept(part.labels, self.values[part.value].dims), text))
        writer = self.ops
        if kernel:
            filled = [self.names.contexts[dim] for dim in kernel.contexts]
            taken, parts, ops = [*taken, *filled], [*parts, *(((), text) for text in filled)], kernel.ops
            sizes = {**self.ops.sizes, **dict.fromkeys(kernel.rows, 1)}
            writer = replace(self.ops, values=kernel.values, sizes=sizes)
            inner.texts |= {part: f"{inner.texts[part]}.astype(jnp.float32)" for part in kernel.widened}
        self.lines.blank()
        self.lines.definition(function, taken)
        self.lines.depth += 1
        for op in ops:
            text, note = writer.text(op, inner.texts), self.note(op.result)
            if op is ops[-1]:
                self.lines.line(f"return {text}", note)
                continue
            made = inner.texts[op.result] = inner.new(self.names.base(op.result))
            self.lines.line(f"{made} = {text}", note)
        self.lines.depth -= 1
        self.lines.blank()
        return function, parts

    def _blocks(self, one: InBlocks, letter: Mapping[str, str]) -> str:
        """How many places a block has, by the letter of each dim."""
        places = places_at_a_time(one, self.spmd).items()
        return "{" + ", ".join(f'"{letter[dim]}": cfg.{self.names.blocks[dim, n]}' for dim, n in places) + "}"

    def _arguments(
        self, one: Attention, made: tuple[str, Parts], scaled: tuple[str, Parts] | None, scope: Scope
    ) -> list[tuple[str, str]]:
        """What the call is given, each with the comment beside it: with the functions that make scores and values, of
        these parts."""
        product, (function, parts), scales = one.product, made, scaled[1] if scaled else ()
        terms = [self._kept_of(one, name) for name in (one.shares, one.values)]
        output = self._kept(product.output, self.values[product.result].dims)
        named = [labels for labels, _ in (*parts, *scales)]
        letter = letters(label for each in (*terms, output, *named) for label in each)
        word = {labels: "".join(letter[label] for label in labels) for labels in map(tuple, [*terms, output])}
        einsum = f'"{word[tuple(terms[0])]},{word[tuple(terms[1])]}->{word[tuple(output)]}"'
        types = ", ".join(dtype_text(self.values[name].dtype) for name in (one.shares, product.result))
        return [
            (f"{function}, {_parts_text(parts, letter)}", self.note(one.exps)),
            (f"{einsum}, {scope.texts[one.values]}", "" if one.rescaled or one.factors else self.note(product.result)),
            (f"{self._blocks(one, letter)}, {types}", self.note(one.shares)),
            *self._limits(one, letter, scope),
            *([(f"scaled={scaled[0]}, scales={_parts_text(scales, letter)}", "")] if scaled else []),
        ]

    def _limits(self, one: Attention, letter: Mapping[str, str], scope: Scope) -> list[tuple[str, str]]:
        """The argument that says which blocks are hidden, none where nothing hides scores."""

        def side(expr: Expr) -> str:
            held = {name: self.ops.kept(self.values[name].dims) for name in operands(expr)}
            dtypes = {name: self.values[name].dtype for name in held}
            return self._side(expr, letter, scope.texts.__getitem__, held, dtypes)

        return _limits_text((side(limit.lower), side(limit.upper)) for limit in limits(one, self.spmd))

    def _limits_of_sum(self, one: SummedScores, letter: Mapping[str, str]) -> list[tuple[str, str]]:
        """The same of a sum of scores, where nothing that counts places needs to have been made yet."""
        made = replace(self.values[one.sum.result], dtype=Dtype.F32)

        def side(expr: Expr) -> str:
            held = {dim: self.ops.kept([dim]) for dim in operands(expr)}
            return self._side(
                expr, letter, lambda dim: self.ops.positions(dim, made), held, dict.fromkeys(held, made.dtype)
            )

        return _limits_text((side(limit.lowest), side(limit.highest)) for limit in limits(one, self.spmd))

    def _side(
        self,
        expr: Expr,
        letter: Mapping[str, str],
        operand: Callable[[str], str],
        held: Mapping[str, Sequence[str]],
        dtypes: Mapping[str, Dtype],
    ) -> str:
        """A side of a limit: the letters of its dims, and its text."""
        dims = list(dict.fromkeys(dim for each in held.values() for dim in each))
        text = ExprText(dims, operand, dtypes, held, self.ops.size_text, self.ops.context_text, "()")
        return f'"{"".join(letter[dim] for dim in dims)}", {text.write(expr, Dtype.F32)}'

    def _sum(self, one: Attention, scope: Scope) -> None:
        """A chip's sum, brought to the maximum that is taken from scores."""
        if one.top == one.largest.result:
            return
        own, top, total = (scope.texts[name] for name in (one.largest.result, one.top, one.sum.result))
        text = f"{total} * jnp.exp({own} - jnp.where({top} == -jnp.inf, 0, {top}))"
        self.lines.line(f"{total} = {text}", self.note(one.sum.result))

    def _product(self, one: Attention, scope: Scope) -> None:
        """A chip's weighted values, of which it made a mean, as its share of the mean over all, times what the product
        multiplies them by."""
        made = scope.texts[one.product.result] = self.made[one.product.result]
        result = self.values[one.product.result]
        names = dict(zip(one.product.output, result.dims, strict=True))
        by = list[tuple[str, Sequence[str]]]()  # with their indices
        if one.rescaled:
            total, whole = scope.texts[one.sum.result], scope.texts[one.total]
            share = f"({total} / jnp.where({whole} == 0, 1, {whole}))"
            by.append((share, self.ops.kept(self.values[one.sum.result].dims)))
        by += [(self.ops.unpacked(n, Dtype.F32, scope.texts)[0], self._kept_of(one, n)) for n in one.factors]
        if by:
            own, _ = self.ops.unpacked(result.name, Dtype.F32, scope.texts)
            beside = [align_text(text, [names[i] for i in each], self.ops.kept(result.dims)) for text, each in by]
            text = f"({' * '.join([own, *beside])}).astype({dtype_text(result.dtype)})"
            self.lines.line(f"{made} = {text}", self.note(result.name))

    def _kept_of(self, one: Attention, name: str) -> tuple[str, ...]:
        """The labels that the local array has of something that the product of an attention reads."""
        return self._kept(one.indices(name), self.values[name].dims)

    def _kept(self, labels: Sequence[str], dims: Sequence[str]) -> tuple[str, ...]:
        """The labels of dims that local arrays have."""
        return tuple(label for label, dim in zip(labels, dims, strict=True) if self.ops.sizes[dim] > 1)


def small_blocks(found: Sequence[Block], small: SpmdProgram) -> dict[tuple[str, int], int]:
    """How many places are a block at the sizes at which a module is compared, of each dim and number of places of which
    it is one otherwise: not all, and not a divisor where that can be."""
    fewest: dict[tuple[str, int], int] = {}
    for block in found:
        local = local_sizes(small.table()[cut(block.of)], small)
        for dim, places in block.places:
            own = max(local[dim] * 2 // 3, 1)
            fewest[dim, places] = min(own, fewest.get((dim, places), own))
    return fewest
