"""A sharded program as a JAX function of what one chip holds: a line for each step, its plan beside it.

Dims of size 1 are dropped from the arrays that a chip holds, and repeats become scans. A program on
no chips in particular, without collectives, is written by the same rules.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from ...cost.blocks import InBlocks
from ...cost.tpu_collectives import Kept
from ...ir.dataflow import ops_in
from ...ir.dtype import INTEGERS
from ...ir.expr import context_dims, equated, operands
from ...ir.inert import literal
from ...ir.layout import Layout, format_layout
from ...ir.program import Append, Choose, Einsum, Kind, Map, Reduce, Region, Repeat, Sum, Take, walk
from ...ir.spmd import Compute, Move, SpmdProgram, Step
from ...ir.verify.fused import loop_of, runs, together
from .jax_attention import ScoreBlocks
from .jax_lines import Lines, Scope
from .jax_loops import Loops
from .jax_moves import Moves
from .jax_ops import Ops
from .jax_packed import Packed
from .jax_rows import Rows
from .jax_streams import Streams
from .jax_text import axes_text, block_text, dtype_text, places_text
from .jax_tree import TREES, Leaf, Names

INDICES = "ijkmn"  # of repeats, outermost first


@dataclass
class FunctionText:
    """Writes the body of a function whose arguments are `cfg`, `params`, `caches`, the inputs and the contexts.

    `notes`: what the comment on a value says beside its layout, none where there are no comments.
    `both_ways`: the first results of the loops that pass halves of blocks both ways. `packed`: what is held as rows.
    `tpu`: collectives are written so that the TPU's compiler keeps them. `in_blocks`: what runs in blocks of scores.
    `unrolls`: where the module is told so, repetitions come one after another, and of stacks there are tuples of parts.
    `kernels`: attention and experts run as kernels of GPUs, where they can.
    """

    spmd: SpmdProgram
    names: Names
    notes: Mapping[str, str] | None
    packed: Packed
    both_ways: frozenset[str] = frozenset()
    tpu: bool = False
    in_blocks: Sequence[InBlocks] = ()
    unrolls: bool = False
    kernels: bool = False

    def __post_init__(self) -> None:
        self.values, self.sizes = self.spmd.table(), dict(self.spmd.sizes)
        self.lines = Lines(self.notes is not None)
        self.ops = Ops(self.values, self.sizes, self.names, self.spmd.mesh, self._beyond(), self.tpu)
        kept = Kept(self.spmd.mesh, self.values, self.sizes) if self.tpu else None
        self.moves = Moves(self.values, lambda name: self.ops.kept(self.values[name].dims), kept)
        base, note = self.names.base, self._note
        self.rows = Rows(self.packed, self.values, self.names, self.ops, self.lines, base, kept, self.kernels)
        self.loops = Loops(self.values, self.ops, self.moves, self.lines, base, note, self.both_ways)
        self.blocks = ScoreBlocks(
            self.in_blocks, self.spmd, self.values, self.names, self.ops, self.lines, note, self.kernels
        )
        self.caches = {leaf.value: leaf for leaf in self.names.leaves if leaf.kind is Kind.CACHE}
        self.streams = Streams(self.spmd, self.names)
        self.once = _compared(self.spmd)

    def write(self) -> list[str]:
        """The lines of the body, comments aligned."""
        scope = Scope({}, {}, {*self.names.reserved, *self.names.inputs.values()})
        for leaf in self.names.leaves:
            self._load(leaf, scope)
        self._region(self.spmd.body, scope, self.names.inputs, self.spmd.results)
        results = [self._with_units(scope.texts[name], self.values[name].dims) for name in self.spmd.results]
        beside = []
        if self.caches:
            tree = self.names.tree(
                Kind.CACHE,
                lambda leaf: (
                    scope.stacked[leaf.value]
                    if leaf in self.streams
                    else self._with_units(scope.stacked[leaf.value], leaf.dims, leaf)
                ),
            )
            beside.append(tree)
        if self.packed.limited:
            beside.append(f"jnp.reshape({' + '.join(scope.lost)}, (1, 2))")
        returned = ", ".join(results)
        if len(results) > 1 and beside:
            returned = f"({returned})"
        self.lines.line(f"return {', '.join([returned, *beside])}")
        return list(self.lines.text())

    def _beyond(self) -> frozenset[str]:
        """The results of lookups whose ids may name rows that their table does not have: those of a longer one."""
        takes = [op for op in ops_in(self.spmd.body) if isinstance(op, Take)]
        moved = {m.item.result: m.item.operand for m in walk(self.spmd.body) if isinstance(m.item, Move)}
        rows = {take.result: math.prod(self.sizes[d] for d in take.over) for take in takes}
        ids, longest = {}, dict[str, int]()
        for take in takes:
            ids[take.result] = take.ids
            while ids[take.result] in moved:
                ids[take.result] = moved[ids[take.result]]
            longest[ids[take.result]] = max(rows[take.result], longest.get(ids[take.result], 0))
        return frozenset(result for result, name in ids.items() if rows[result] < longest[name])

    # Stored tensors

    def _load(self, leaf: Leaf, scope: Scope) -> None:
        """Make a stored tensor known, before anything runs; in a repeat those that are not caches come later."""
        units = [i + len(leaf.repeats) for i, d in enumerate(leaf.dims) if self.sizes[d] == 1]
        squeezed = f".squeeze({places_text(units)})" if units else ""
        if leaf.kind is Kind.CACHE:
            text = scope.new(leaf.path[-1])
            squeezed = "" if leaf in self.streams else squeezed
            whole = f"{self.names.access(leaf)}{squeezed}"
            if squeezed and leaf.repeats and self.unrolls:
                units = [i - len(leaf.dims) for i, d in enumerate(leaf.dims) if self.sizes[d] == 1]
                whole = f"jax.tree.map(lambda a: a.squeeze({places_text(units)}), {self.names.access(leaf)})"
            self.lines.line(f"{text} = {whole}")
            scope.stacked[leaf.value] = text
            if not leaf.repeats:
                scope.texts[leaf.value] = text
        elif leaf.kind is Kind.INPUT:
            text = self.names.inputs[leaf.value]
            if squeezed:
                self.lines.line(
                    f"{text} = {text}{squeezed}", f"dropped: {', '.join(d for d in leaf.dims if self.sizes[d] == 1)}"
                )
            scope.texts[leaf.value] = text
        elif not leaf.repeats:
            scope.texts[leaf.value] = self.names.access(leaf) + squeezed

    def _with_units(self, text: str, dims: Sequence[str], leaf: Leaf | None = None) -> str:
        """`text` with the dims of size 1 that a chip does without."""
        lead = len(leaf.repeats) if leaf else 0
        units = [i + lead for i, d in enumerate(dims) if self.sizes[d] == 1]
        if units and lead and self.unrolls:
            units = [i - lead - len(dims) for i in units]
            return f"jax.tree.map(lambda a: jnp.expand_dims(a, {places_text(units)}), {text})"
        return f"jnp.expand_dims({text}, {places_text(units)})" if units else text

    # Regions

    def _region(self, region: Region[Step], scope: Scope, given: Iterable[str], wanted: Sequence[str]) -> None:
        """Write a region; `given` are the values that its function takes, `wanted` those that are read after it."""
        items: Sequence[Step | Repeat[Step]] = self._live(region.items, wanted)
        last = {name: i for i, item in enumerate(items) for name in self._reads(item)}
        last |= dict.fromkeys(wanted, len(items))
        own = {item.result for item in items if isinstance(item, Compute | Move)} | set(given)
        at = 0
        for run in _grouped(items):
            if len(run) == 1 and isinstance(run[0], Repeat):
                self._repeat(run[0], scope)
            elif loop := loop_of(run):
                self.loops.write(loop, scope)
            else:
                steps = [item for item in run if not isinstance(item, Repeat)]
                masks = [step for step in steps if isinstance(step, Move) and self.packed.as_bits(step)]
                for mask in masks:
                    self._run([mask], scope, own, last, at)
                self._run([step for step in steps if step not in masks], scope, own, last, at)
            at += len(run)

    def _run(self, run: Sequence[Step], scope: Scope, own: set[str], last: Mapping[str, int], at: int) -> None:
        """Write one step, or several that run as one. `own`: what its function has; `last`: who reads it last."""
        moves = [step for step in run if isinstance(step, Move)]
        if len(moves) > 1:
            texts = [self.rows.boxed(move, scope) for move in moves]
            call = self.rows.moves.joined(moves, texts)
            names = [self._moved(move, scope, own, last, at + i) for i, move in enumerate(moves)]
            for name, move in zip(names, moves, strict=True):
                self.lines.comment(f"{name}: {self._note(move.result)}")
            self.lines.line(f"{', '.join(names)} = {call}")
            for name, move in zip(names, moves, strict=True):
                if self.packed.sends(move):
                    self.lines.line(f"{name} = {self.rows.unboxed(move, name, scope)}")
            return
        if len(run) > 1 and self.notes is not None:
            self.lines.comment(f"{len(run)} projections of one value: one matmul, weights side by side.")
        for i, step in enumerate(run):
            match step:
                case Move(result, operand, collective):
                    if self.packed.sends(step):
                        text = self.rows.moved(step, scope)
                    else:
                        self.rows.note(step, scope)
                        text = self.moves.text(operand, collective, scope.texts[operand])
                    name = self._moved(step, scope, own, last, at + i)
                    self.lines.line(f"{name} = {text}", self._note(result))
                case Compute(Append() as op):
                    self._append(op, scope, last.get(op.cache, -1) > at + i)
                case Compute(op) if op.result in self.blocks.steps:
                    self.blocks.write(op, scope)
                case Compute(op):
                    text = self.rows.text(op, scope) if self.packed.works(op) else self.ops.text(op, scope.texts)
                    text = f"lax.optimization_barrier({text})" if op.result in self.once else text
                    name = scope.texts[op.result] = scope.new(self.names.base(op.result))
                    self.lines.line(f"{name} = {text}", self._note(op.result))
                    if isinstance(op, Choose | Reduce) and self.packed.limited:
                        self.rows.limit(op, scope)

    def _moved(self, move: Move, scope: Scope, own: set[str], last: Mapping[str, int], at: int) -> str:
        """The name of what a collective makes: that of its operand, where nothing else reads that.

        A version of a cache is handed on, whatever reads it; of a mask rows may be told later.
        """
        before = scope.texts[move.operand]
        dead = move.operand in own and last[move.operand] <= at and before.isidentifier()
        dead = dead and before not in scope.stacked.values() and move.operand not in self.packed.copies
        name = before if dead else scope.new(self.names.base(move.result))
        scope.texts[move.result] = name
        return name

    def _repeat(self, repeat: Repeat[Step], scope: Scope) -> None:
        """Write a repeat as a scan over its stacked parameters, its caches carried whole and written in place."""
        leaves = [leaf for leaf in self.names.leaves if repeat.name in leaf.repeats]
        appended = {op.cache for op in ops_in(repeat.body) if isinstance(op, Append)}
        streaming = not scope.index and any(leaf in self.streams for leaf in leaves)
        caches = [leaf for leaf in leaves if streaming and leaf.kind is Kind.CACHE and leaf in self.streams]
        carried = [leaf.value for leaf in leaves if leaf.value in appended and leaf not in caches]
        carried += [leaf.value for leaf in caches]
        read = self._read_inside(repeat) | set(self.packed.copies)
        taken = {*self.names.reserved, *scope.index, scope.place}
        inner = Scope(dict(scope.texts), dict(scope.stacked), taken, scope.index, scope.place)
        inner.used |= {re.split(r"\W", scope.texts[name])[0] for name in read if name in scope.texts}
        function = inner.new(repeat.name)
        scope.used.add(function)
        over, stored = self._streamed(leaves, inner) if streaming else self._scanned(repeat, leaves, scope, inner)
        inside = []
        for carry in repeat.carries:
            inner.texts[carry.inside] = inner.new(self.names.base(carry.inside))
            inside.append(inner.texts[carry.inside])
        for value in carried:
            inner.stacked[value] = inner.new(self.caches[value].path[-1])
            inside.append(inner.stacked[value])

        self.lines.blank()
        state = inside[0] if len(inside) == 1 and not streaming else "carry"
        elements = stored[0] if len(stored) == 1 else "stored" if stored else "_"
        self.lines.line(f"def {function}({state}, {elements}):")
        self.lines.depth += 1
        if state == "carry":
            state = ", ".join(inside) if len(inside) > 1 else _group(inside)
            self.lines.line(f"{state} = carry", ", ".join(self._note(c.inside) for c in repeat.carries))
        if len(stored) > 1:
            self.lines.line(f"{', '.join(stored)} = stored")
        if not streaming and inner.weights not in (*stored, Scope.weights):
            every, one = self._stack(repeat, leaves), f"a[{', '.join(inner.index)}]"
            one = f"laid_out({one})" if self.tpu else one
            self.lines.line(f"{inner.weights} = jax.tree.map(lambda a: {one}, {every})")
        elif not streaming and inner.weights in stored and self.tpu and self.in_blocks:
            self.lines.line(f"{inner.weights} = jax.tree.map(laid_out, {inner.weights})")
        self._squeeze(caches, inner)
        for leaf in leaves:
            if leaf.repeats[-1] == repeat.name:
                self._load_repeated(leaf, inner)
        self._region(repeat.body, inner, [c.inside for c in repeat.carries], [c.next for c in repeat.carries])
        after = [inner.texts[c.next] for c in repeat.carries]
        after += [inner.stacked[v] for v in carried if self.caches[v] not in caches]
        after += [self._with_units(inner.stacked[leaf.value], leaf.dims, leaf) for leaf in caches]
        returned = _group(after) if streaming else _together(after)
        self.lines.line(f"return {returned}, {' + '.join(inner.lost) or None}")
        self.lines.depth -= 1
        self.lines.blank()

        before = [scope.texts[c.initial] for c in repeat.carries] + [scope.stacked[value] for value in carried]
        for carry in repeat.carries:
            scope.texts[carry.result] = scope.new(self.names.base(carry.result))
        results = [scope.texts[c.result] for c in repeat.carries] + [scope.stacked[value] for value in carried]
        call = f"lax.scan({function}, {_together(before)}, {over})"
        if stored and self.unrolls:
            call = f"repeated(cfg.unrolled, {function}, {_together(before)}, cfg.{self.names.fields[repeat.name]})"
        if streaming:
            apart, weights = len(before) - len(caches), over or None
            call = self.streams.call(function, repeat.name, before[:apart], caches, weights, scope.stacked)
            results = [_group(results[:apart]), _group(results[apart:])]
        lost = scope.new(f"{repeat.name}_lost") if inner.lost else "_"
        summed = lost if streaming else f"{lost}.sum(0)"  # what streams has summed already
        scope.lost += [summed] if inner.lost else []
        made = ", ".join(results) if streaming else _together(results)
        self.lines.line(f"{made}, {lost} = {call}", f"{repeat.count} times")

    def _scanned(
        self, repeat: Repeat[Step], leaves: Sequence[Leaf], scope: Scope, inner: Scope
    ) -> tuple[str, list[str]]:
        """What a scan goes over, as text, and the names of an element's parts within the body.

        Within another repeat parameters are taken out of their stack by the indices of both: a slice that the outer
        scan hands to the inner one would be there for itself, with the parameters of all repetitions of the inner one.
        """
        count = f"cfg.{self.names.fields[repeat.name]}"
        over, stored = [], []
        params = [leaf for leaf in leaves if leaf.kind is Kind.PARAM and not self.unrolls]
        own = any(leaf.repeats[-1] == repeat.name for leaf in params)
        whole = own and params[0].repeats[0] != repeat.name and not scope.place
        deeper = any(leaf.repeats[-1] != repeat.name for leaf in params)
        if whole or deeper or any(leaf.kind is Kind.CACHE or self.unrolls for leaf in leaves):
            inner.index = (*scope.index, inner.new(INDICES[len(scope.index) % len(INDICES)]))
            over.append(f"jnp.arange({count})")
            stored.append(inner.index[-1])
        if own or (deeper and scope.place):
            inner.weights = inner.new("w")
        if inner.weights != Scope.weights and not whole:
            over.append(f"{scope.weights}[{literal(self.names.keys[repeat.name])}]")
            stored.append(inner.weights)
        return _together(over) if over else f"None, length={count}", stored

    def _stack(self, repeat: Repeat[Step], leaves: Sequence[Leaf]) -> str:
        """The text of the parameters of a repeat, those of all repetitions stacked."""
        path = next(leaf.path for leaf in leaves if leaf.kind is Kind.PARAM and leaf.repeats[-1] == repeat.name)[:-1]
        return TREES[Kind.PARAM] + "".join(f"[{literal(key)}]" for key in path)

    def _streamed(self, leaves: Sequence[Leaf], inner: Scope) -> tuple[str, list[str]]:
        """Of a repeat that streams: what has its parameters, nothing where there are none, and the names of an
        element's parts within the body."""
        cached = {leaf in self.streams for leaf in leaves if leaf.kind is Kind.CACHE}
        weights = "params" if any(leaf.kind is Kind.PARAM for leaf in leaves) else ""
        inner.index = (inner.new(INDICES[0]),)
        inner.place = inner.new("at")
        inner.weights = inner.new("w")
        wanted = [(inner.index[0], False in cached), (inner.place, True in cached), (inner.weights, bool(weights))]
        return weights, [name if wanted_ else "_" for name, wanted_ in wanted]

    def _squeeze(self, caches: Sequence[Leaf], scope: Scope) -> None:
        """Drop dims of size 1 from what a chip holds of caches that are streamed."""
        for leaf in caches:
            units = [i + len(leaf.repeats) for i, d in enumerate(leaf.dims) if self.sizes[d] == 1]
            if units:
                name = scope.stacked[leaf.value]
                self.lines.line(f"{name} = {name}.squeeze({places_text(units)})")

    def _index(self, leaf: Leaf, scope: Scope) -> tuple[str, ...]:
        """Where a repetition stands in what a chip holds of a cache."""
        return (scope.place, *scope.index[1:]) if scope.index and leaf in self.streams else scope.index

    def _load_repeated(self, leaf: Leaf, scope: Scope) -> None:
        """Make a stored tensor known in the body of its repeat."""
        if leaf.kind is Kind.CACHE:
            index = self._index(leaf, scope)
            at = _at(index) if self.unrolls else f"[{', '.join(index)}]"
            scope.texts[leaf.value] = f"{scope.stacked[leaf.value]}{at}"
            return
        units = [i for i, d in enumerate(leaf.dims) if self.sizes[d] == 1]
        squeezed = f".squeeze({places_text(units)})" if units else ""
        scope.texts[leaf.value] = f"{scope.weights}[{literal(leaf.path[-1])}]{squeezed}"
        if self.unrolls:
            scope.texts[leaf.value] = f"{self.names.access(leaf)}{_at(scope.index)}{squeezed}"

    # Ops

    def _append(self, op: Append, scope: Scope, kept: bool) -> None:
        """Write an append; `kept`: the cache is read afterwards as it was before."""
        value, new = self.values[op.cache], self.values[op.new]
        whole, dims = scope.stacked[op.cache], self.ops.kept(value.dims)
        index = self._index(self.caches[op.cache], scope)
        axes = value.axes(op.target)
        renamed = [op.target if d == op.source else d for d in self.ops.kept(new.dims)]
        end, entries = self.names.contexts[op.counted], f"cfg.{self.names.fields[op.source]}"
        text = scope.texts[op.new]
        if new.dtype is not value.dtype:
            text += f".astype({dtype_text(value.dtype)})"
        parts = bool(index) and self.unrolls  # of a tuple of them, or of a stack
        if axes or op.context:
            block, at = block_text(text, renamed, dims, 0), f", ({', '.join(index)},)" if index else ""
            helper = "append_wrapping" if op.context else "append"
            given = f"{block}, {end}, {axes_text(axes)}, {dims.index(op.target)}"
            call = f"{helper}({whole}, {given}{at})"
            if parts:
                call = f"written({whole}, {_group(index)}, {helper}, {given})"
        elif parts:
            corner = _group([f"{end} - {entries}" if d == op.target else "0" for d in dims])
            block = block_text(text, renamed, dims, 0)
            call = f"written({whole}, {_group(index)}, put, {block}, {corner})"
        else:
            block = block_text(text, renamed, dims, len(index))
            places = [*index, *(f"{end} - {entries}" if d == op.target else "0" for d in dims)]
            corner = f"({', '.join(places)}{',' if len(places) == 1 else ''})"
            call = f"lax.dynamic_update_slice({whole}, {block}, {corner})"
        call = f"laid_out({call})" if self.tpu else call
        grown = scope.new(self.caches[op.cache].path[-1]) if kept else whole
        self.lines.line(f"{grown} = {call}", self._note(op.result))
        scope.stacked[op.cache] = scope.stacked[op.result] = grown
        at = _at(index) if self.unrolls or not index else f"[{', '.join(index)}]"
        scope.texts[op.result] = f"{grown}{at}"

    def _note(self, name: str) -> str:
        """What is said beside a value: how it lies, what it costs."""
        if self.notes is None:
            return ""
        value = self.values[name]
        layout = [axes for d, axes in zip(value.dims, value.layout.dims, strict=True) if self.sizes[d] > 1]
        local = Layout(tuple(layout), value.layout.partial, value.layout.reduction)
        text = format_layout(self.ops.kept(value.dims), local)
        return f"{text}  {self.notes.get(name, '')}".rstrip()

    def _live(self, items: Sequence[Step | Repeat[Step]], wanted: Sequence[str]) -> list[Step | Repeat[Step]]:
        """The items without ops that nothing reads once dims of size 1 are dropped."""
        read, live = set(wanted), []
        for item in reversed(items):
            match item:
                case Compute(op, joined=False, looped=False) if not isinstance(op, Append) and op.result not in read:
                    continue
            live.append(item)
            read |= self._reads(item)
        return live[::-1]

    def _reads(self, item: Step | Repeat[Step]) -> set[str]:
        """What an item reads."""
        match item:
            case Move(_, operand, _):
                return {operand}
            case Compute(op):
                return self.blocks.reads(op) or self.ops.reads(op)
            case Repeat():
                return {c.initial for c in item.carries} | self._read_inside(item)
        raise AssertionError(item)

    def _read_inside(self, repeat: Repeat[Step]) -> set[str]:
        """What is read by the body of a repeat, or carried on from its end."""
        after = [c.next for c in repeat.carries]
        return set(after).union(*(self._reads(item) for item in self._live(repeat.body.items, after)))


def _grouped(items: Sequence[Step | Repeat[Step]]) -> Iterator[list[Step | Repeat[Step]]]:
    """The items in order: the steps of a loop in one list, those that run as one without a loop in one."""
    alone: list[Step | Repeat[Step]] = []
    for run in runs(items):
        if len(run) == 1:
            alone += run
        else:
            yield from together(alone)
            yield run
            alone = []
    yield from together(alone)


def _compared(spmd: SpmdProgram) -> frozenset[str]:
    """The floats that some step compares for equality, as argmax does with their maximum, and that are made element by
    element. Without a barrier XLA makes these anew in the kernel that compares, there from what is rounded to bf16 for
    others, or itself unrounded; nothing is as large as the maximum then. On CPU, where barriers end early, each kernel
    makes them alike: none has the product before a sum for something else too, so that all round it, or none."""
    values = spmd.table()
    made = {step.item.op.result: step.item.op for step in walk(spmd.body) if isinstance(step.item, Compute)}
    moved = {step.item.result: step.item.operand for step in walk(spmd.body) if isinstance(step.item, Move)}
    found = set[str]()
    for name in (name for op in made.values() if isinstance(op, Map) for name in equated(op.expr)):
        while name in moved:
            name = moved[name]
        match made.get(name):
            case Einsum(_, _, indices, output) if not {*chain(*indices)} <= {*output}:
                pass  # a sum of products is not made again
            case Einsum() | Map() | Sum() if values[name].dtype not in INTEGERS:
                found.add(name)
    return frozenset(found)


def _together(names: Sequence[str]) -> str:
    """Several names as a tuple, one as itself."""
    return names[0] if len(names) == 1 else f"({', '.join(names)})"


def _at(index: Sequence[str]) -> str:
    """Indices that a stack and a tuple of tuples take alike."""
    return "".join(f"[{i}]" for i in index)


def _group(names: Sequence[str]) -> str:
    """Several names, one or none as a tuple to unpack; `_` for none."""
    return f"({', '.join(names)}{',' if len(names) == 1 else ''})" if names else "_"


def contexts_of(spmd: SpmdProgram) -> list[str]:
    """The dims of which some step reads how much is filled."""
    found: list[str] = []
    for op in ops_in(spmd.body):
        match op:
            case Append():
                found.append(op.counted)
            case Map(_, expr) if operands(expr) or context_dims(expr):
                found += sorted(context_dims(expr))
    return list(dict.fromkeys(found))
