"""Ops and collectives on packed rows as JAX text: see `jax_packed` for what is held so.

Each layout of a mask has a routing, which says what its rows stand for: made of the mask where a chip has that, or
moved beside the first rows that go there, as bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from ...cost.tpu_collectives import Kept
from ...ir.chosen import Chosen
from ...ir.collective import AllGather, AllToAll, Embed, Permute, ReduceScatter, Slice
from ...ir.dtype import Dtype
from ...ir.inert import literal
from ...ir.program import Choose, Einsum, Map, Op, Reduce, Sum, operand_names
from ...ir.record import record
from ...ir.spmd import Move, SpmdValue
from .jax_kernels import experts_in_kernel
from .jax_lines import Lines, Scope
from .jax_moves import Moves, tuple_text
from .jax_ops import Ops, einsum_text, sum_of, working_type
from .jax_packed import ROW, Factor, Key, Packed, Packing, RowProduct, wider
from .jax_text import ExprText, align_text, axes_text, dtype_text
from .jax_tree import Names


@record
class Rows:
    """Writes what is packed. `base`: the name of a value within its repeat. `kernels`: for GPUs, where experts are
    kernels if they can."""

    packed: Packed
    values: Mapping[str, SpmdValue]
    names: Names
    ops: Ops
    lines: Lines
    base: Callable[[str], str]
    kept: Kept | None
    kernels: bool = False

    @property
    def moves(self) -> Moves:
        """Writes collectives of boxes."""
        return Moves(self.values, self.packed.boxed, self.kept, boxed=True)

    # Routings

    def _mask(self, packing: Packing, blocks: Sequence[int]) -> str:
        """What is said of a mask to the helpers that take one."""
        keep = f"cfg.{self.names.keeps[packing.chosen.mask]}"
        if packing.among_groups:
            keep = f"min({keep}, cfg.{self.names.keeps[packing.chosen.within[0]]})"
        room = f"cfg.capacity * {self._share(packing.chosen)}" if self.packed.limited else "math.inf"
        return f"{len(packing.per)}, {tuple(blocks)}, {keep}, {room}"

    def _share(self, one: Chosen) -> str:
        """Which share of its entries is expected to be kept: see `Chosen.share`."""
        keep = f"cfg.{self.names.keeps[one.mask]}"

        def product(dims: Iterable[str]) -> str:
            return " * ".join(self.ops.size_text(d) for d in dims if d in self.packed.kept([d])) or "1"

        if not one.merged:
            return " / ".join([keep, *product(one.over).split(" * ")])
        block = [d for _, d in one.merged]
        among, rest = "", product((*one.over, *block))
        ways = f"math.comb({rest}, {keep})"
        if one.groups:
            groups = f"cfg.{self.names.keeps[one.within[0]]}"
            rest = f"{groups} * {product((*(d for d in one.over if d not in one.groups), *block))}"
            among = " / ".join([groups, *product(one.groups).split(" * ")]) + " * "
            ways = f"max(math.comb({rest}, {keep}), 1)"  # groups may have fewer entries than are to be kept
        return f"{among}(1 - math.comb({rest} - {product(block)}, {keep}) / {ways})"

    def routing(self, name: str, scope: Scope) -> str:
        """The routing of the rows of a value; written here where it is made of the mask."""
        packing = self.packed.of(name)
        assert packing is not None
        key = (packing.name, self.packed.key(name))
        if key not in scope.routings:
            copies = [c for c, mask in self.packed.copies.items() if mask == packing.name and c in scope.texts]
            mask = next((c for c in copies if self.packed.key(c) == key[1]), None)
            if mask is None and key in scope.comes:
                return self._route(scope.comes[key], scope)
            if mask is None:
                return self._gathered(packing, key[1], scope)
            text = self._canonical(mask, scope.texts[mask])
            found = scope.new(f"{self._rows_name(packing)}")
            self.lines.line(f"{found} = routing({text}, {self._mask(packing, self.packed.blocks(mask))})")
            scope.routings[key] = found
        return scope.routings[key]

    def _gathered(self, packing: Packing, key: Key, scope: Scope) -> str:
        """The routing of rows of which each chip has had a part: its bits are gathered."""
        known = [each for name, each in scope.routings if name == packing.name]
        now = wider(key, known)
        assert now is not None, "of what is not known nothing is held as rows"
        before = scope.routings[packing.name, now]
        name = next(n for n in self.values if self.packed.of(n) == packing and self.packed.key(n) == now)
        text = f"bits({before})"
        for own, split, whole in zip(self.packed.entry(name), now, key, strict=True):
            if len(split) > len(whole):
                dim = self.values[name].dims.index(own)
                text = self.moves.text(name, AllGather(split[len(whole) :], dim), text)
        found = scope.new(self._rows_name(packing))
        self.lines.line(f"{found} = arrived({text}, {before})")
        scope.routings[packing.name, key] = found
        return found

    def _rows_name(self, packing: Packing) -> str:
        """What the routings of rows are called: after their mask, those of blocks of its entries by that, too."""
        return f"{self.base(packing.chosen.mask)}_{'blocks' if packing.chosen.merged else 'rows'}"

    def _canonical(self, name: str, text: str) -> str:
        """A value whose dims are those of its mask, in the order of these."""
        return align_text(text, self.packed.kept(self.values[name].dims), self.packed.entry(name))

    def limit(self, op: Choose | Reduce, scope: Scope) -> None:
        """Write that a mask keeps no more than its boxes have room for, and note what counts what it lost."""
        packing = self.packed.of(op.result)
        if packing is None or self.packed.copies.get(op.result) != packing.name:
            return
        dims, entry = self.packed.kept(self.values[op.result].dims), self.packed.entry(op.result)
        mask = scope.texts[op.result]
        split = {axis for axes in self.packed.key(op.result) for axis in axes}
        mesh = self.packed.spmd.mesh
        copies = [axis for axis in mesh.names if axis not in split and mesh.size(axis) > 1]
        says = f"{self._mask(packing, self.packed.blocks(op.result))}, {tuple_text(copies)}"
        lost = scope.new(f"{self.base(op.result)}_lost")
        self.lines.line(f"{mask}, {lost} = limited({align_text(mask, dims, entry)}, {says})")
        if dims != entry:
            self.lines.line(f"{mask} = {align_text(mask, entry, dims)}")
        scope.lost.append(lost)

    def _route(self, move: Move, scope: Scope) -> str:
        """The routing of what a collective makes; its bits are sent where no chip knows it yet."""
        packing, before = self.packed.of(move.operand), self.routing(move.operand, scope)
        assert packing is not None
        key = (packing.name, self.packed.key(move.result))
        known = key in scope.routings or any(
            mask == packing.name and copy in scope.texts and self.packed.key(copy) == key[1]
            for copy, mask in self.packed.copies.items()
        )
        if known:
            return self.routing(move.result, scope)
        found = scope.new(f"{self._rows_name(packing)}")
        self.lines.line(f"{found} = arrived({self._sent_bits(move, f'bits({before})')}, {before})")
        scope.routings[key] = found
        return found

    def note(self, move: Move, scope: Scope) -> None:
        """Note in `scope` that a packed value comes where a collective takes it that sends nothing."""
        packing = self.packed.of(move.operand)
        if packing is not None:
            scope.comes.setdefault((packing.name, self.packed.key(move.result)), move)

    def _sent_bits(self, move: Move, a: str) -> str:
        """The bits of a routing as they get where a collective takes its rows."""
        value, moves = self.values[move.operand], self.moves
        entry = self.packed.entry(move.operand)

        def gathered(dim: int, axes: Sequence[str]) -> str:
            order = value.layout.dims[dim][-len(axes) :]
            return moves.text(move.operand, AllGather(order, dim), a)

        match move.collective:
            case AllToAll(axes, source, target) as exchange:
                if value.dims[source] not in entry:
                    return moves.text(move.operand, Slice(axes, target), a)
                if value.dims[target] not in entry:
                    return gathered(source, axes)
                return moves.text(move.operand, exchange, a)
            case ReduceScatter(axes, dim) | Slice(axes, dim):
                return moves.text(move.operand, Slice(axes, dim), a)
            case Embed(axes, int(dim)):
                return gathered(dim, axes)
            case AllGather() | Permute() as collective:
                return moves.text(move.operand, collective, a)
        raise AssertionError(move)

    # Collectives

    def moved(self, move: Move, scope: Scope) -> str:
        """A packed value after a collective: a mask by the bits of its routing, others by rows in boxes."""
        if self.packed.as_bits(move):
            entry, dims = self.packed.entry(move.result), self.packed.kept(self.values[move.result].dims)
            dtype = dtype_text(self.values[move.result].dtype)
            return align_text(f"mask_of({self._route(move, scope)}, {dtype})", entry, dims)
        boxes = self.boxed(move, scope)
        match move.collective:
            case AllToAll(axes, source, target) if self.packed.exchanges(move):
                before, after = self.routing(move.operand, scope), self._route(move, scope)
                places = [self.moves.axis(move.operand, dim) for dim in (target, source)]
                sent = f"exchanged({boxes}, {before}, {after}, {axes_text(axes)}, {places[0]}, {places[1]})"
            case collective:
                sent = self.moves.text(move.operand, collective, boxes)
        return self.unboxed(move, sent, scope)

    def boxed(self, move: Move, scope: Scope) -> str:
        """The operand of a collective in boxes; as it is, where it is not packed."""
        text = scope.texts[move.operand]
        if not self.packed.sends(move):
            return text
        at = self.routing(move.operand, scope)
        return f"boxed({self._as_rows(move.operand, text, at)}, {at})"

    def unboxed(self, move: Move, boxes: str, scope: Scope) -> str:
        """What a collective makes, out of its boxes."""
        if not self.packed.sends(move):
            return boxes
        at = self._route(move, scope)
        rows = f"unboxed({boxes}, {at})"
        if self.packed.held(move.result):
            return rows
        entry, dims = self.packed.entry(move.result), self.packed.kept(self.values[move.result].dims)
        return align_text(f"summed({rows}, {at}, {tuple(range(len(entry)))})", entry, dims)

    def _as_rows(self, name: str, text: str, at: str) -> str:
        """A packed value as rows: picked from it, where it is held whole."""
        if self.packed.held(name):
            return text
        entry = self.packed.entry(name)
        return f"picked({self._canonical(name, text)}, {at}, {tuple(range(len(entry)))})"

    # Ops

    def text(self, op: Op, scope: Scope) -> str:
        """The text of the result of an op that works on rows."""
        rows = next(name for name in (op.result, *operand_names(op)) if self.packed.of(name) is not None)
        product = self.packed.product(op) if isinstance(op, Einsum) else None
        at = self.routing(product.rows if product else rows, scope)
        result = self.values[op.result]
        target = working_type(op, result.dtype)
        read = {name: self.ops.unpacked(name, target, scope.texts) for name in operand_names(op)}
        if isinstance(op, Einsum):
            assert product is not None
            return self._product(op, product, self.ops.scaled(op, scope.texts, read)[0], at, scope)
        entry, dims = self.packed.entry(rows), [ROW, *self.packed.rest(op.result)]
        held, texts = {}, {}
        for name, (text, _) in read.items():
            own = self.packed.kept(self.values[name].dims)
            factor = Factor(name, tuple(own), self.packed.held(name))
            texts[name], held[name] = self._rows(factor, text, entry, at, scope)
        dtypes = {name: dtype for name, (_, dtype) in read.items()}

        def aligned(name: str) -> str:
            return align_text(texts[name], held[name], dims)

        lengths = [self.ops.length(result, d) for d in dims[1:]]
        shape = f"({', '.join([f'{at}.slot.size', *lengths])})"
        if isinstance(op, Map):
            writer = ExprText(dims, aligned, dtypes, held, self.ops.size_text, self.ops.context_text, shape)
            return writer.write(op.expr, result.dtype)
        assert isinstance(op, Sum)
        return sum_of(op, aligned, dtypes, result.dtype)

    def _rows(self, factor: Factor, text: str, entry: Sequence[str], at: str, scope: Scope) -> tuple[str, list[str]]:
        """The rows of an operand with some of the dims of the mask, and their dims; as it is, if it has none."""
        own = [d for d in factor.indices if d in entry]
        rest = [d for d in factor.indices if d not in entry]
        if factor.blocks is not None:
            places = tuple(entry.index(d) for d in factor.blocks)
            text = f"of_blocks({text}, {self.routing(factor.name, scope)}, {at}, {places})"
        if factor.rows:
            return text, [ROW, *rest]
        if not own:
            return text, rest
        first = [d for d in entry if d in own]
        places = tuple(entry.index(d) for d in first)
        return f"picked({align_text(text, factor.indices, [*first, *rest])}, {at}, {places})", [ROW, *rest]

    def _product(
        self, op: Einsum, product: RowProduct, read: Mapping[str, tuple[str, Dtype]], at: str, scope: Scope
    ) -> str:
        """The text of an einsum of rows."""
        dtype, entry = self.values[op.result].dtype, product.entry
        terms: list[tuple[str, Dtype, Sequence[str]]] = []
        for factor in product.factors:
            if not factor.one:
                text, own = read[factor.name]
                rows, dims = self._rows(factor, text, entry, at, scope)
                terms.append((rows, own, dims))
        rest = [i for i in product.output if i not in entry]
        if product.weights is None:
            made = einsum_text(terms, [ROW, *rest], dtype)
        else:
            made, columns = self._of_experts(op, product, product.weights, terms, read, at, scope)
            made = align_text(made, [ROW, *columns], [ROW, *rest])
        if product.blocks is not None:
            places = tuple(entry.index(i) for i in product.blocks)
            return f"block_sums({made}, {at}, {self.routing(op.result, scope)}, {places})"
        if self.packed.held(op.result):
            return made
        kept = [i for i in entry if i in product.output]
        places = tuple(entry.index(i) for i in kept)
        return align_text(f"summed({made}, {at}, {places})", [*kept, *rest], product.output)

    def _of_experts(
        self,
        op: Einsum,
        product: RowProduct,
        weights: Factor,
        terms: Sequence[tuple[str, Dtype, Sequence[str]]],
        read: Mapping[str, tuple[str, Dtype]],
        at: str,
        scope: Scope,
    ) -> tuple[str, list[str]]:
        """The text of rows, the product of `terms`, times the matrix of their expert and what comes after, and the
        indices that it has beside the row's."""
        dtype, entry = self.values[op.result].dtype, product.entry
        columns = [i for i in weights.indices if i not in entry and i not in product.summed]
        order = [*(i for i in entry if i in weights.indices), *product.summed, *columns]
        text, own = read[weights.name]
        wide = dtype if len(terms) == 1 else Dtype.F32
        narrow = wide if len(terms) > 1 else terms[0][1]
        left, right = einsum_text(terms, [ROW, *product.summed], narrow), align_text(text, weights.indices, order)
        stack = self._stack(weights, entry, right, scope) if own is narrow else None
        first = Dtype.F32 if product.after else dtype
        given = [left, right, at, dtype_text(first), *([stack] if stack else [])]
        made = f"expert_dot({', '.join(given)})"
        if self.kernels and narrow is Dtype.BF16 and experts_in_kernel(op, weights.name, entry, self.packed.spmd):
            stored = [scope.texts[weights.name], *self.ops.beside_texts(op, scope.texts)[0].get(weights.name, [])]
            codes, *scales = (align_text(text, weights.indices, order) for text in stored)
            made = f"expert_dot_in_kernel({', '.join([left, codes, at, dtype_text(first), *scales])})"
        for factor in product.after:
            rows, dims = self._rows(factor, read[factor.name][0], entry, at, scope)
            made += f" * {align_text(rows, dims, [ROW, *columns])}"
        return (f"({made}).astype({dtype_text(dtype)})" if product.after else made), columns

    def _stack(self, weights: Factor, entry: Sequence[str], text: str, scope: Scope) -> str | None:
        """The matrices of experts of all repetitions, and which of these a body has as `text`; None where they are not
        stored as they are multiplied, where a chip has those of one expert, or where the program is for no TPU."""
        leaf = next((one for one in self.names.leaves if one.value == weights.name), None)
        if leaf is None or self.kept is None or scope.place or len(scope.index) != len(leaf.repeats):
            return None
        split = zip(weights.indices, leaf.dims, leaf.layout.dims, strict=True)
        mesh = self.packed.spmd.mesh
        experts = [self.packed.sizes[dim] // mesh.size(*axes) for index, dim, axes in split if index in entry]
        if not scope.index or text != f"{scope.weights}[{literal(leaf.path[-1])}]" or math.prod(experts) == 1:
            return None
        place = scope.index[0]
        for repeat, index in zip(leaf.repeats[1:], scope.index[1:], strict=True):
            before = f"({place})" if " " in place else place
            place = f"{before} * cfg.{self.names.fields[repeat]} + {index}"
        return f"({self.names.access(leaf)}, {place})"
