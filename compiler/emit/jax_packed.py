"""Which chosen values of a sharded program an emitted JAX file holds as packed rows, and how it counts them.

A row stands for one kept entry of a mask: a token at one of its experts. Of static shape, rows come in boxes: the
tokens and the experts are cut into blocks so fine that every chip, and every pair of chips that exchange, has whole
blocks, and a box holds the rows of one block of tokens at one block of experts. So a collective of rows is that of the
boxes, and what a box can hold bounds what is held, sent and computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from ...cost.blocks import in_blocks
from ...ir.chosen import Chosen
from ...ir.collective import AllToAll, Embed, Slice
from ...ir.dataflow import moves
from ...ir.program import Choose, Einsum, Map, Op, Reduce, Region, Repeat, Sum, operand_names, walk
from ...ir.record import record
from ...ir.spmd import Compute, Move, SpmdProgram, Step
from ...ir.verify.fused import walk_loops
from .jax_ops import beside

ROW = " row"  # no dim's name
Key = tuple[tuple[str, ...], ...]  # of each dim of a mask the axes that split it


@record
class Packing:
    """The boxes of one mask, or of blocks of its entries.

    `chosen`: how entries are kept along its dims; `per`, `over`: these, without those of size 1. `blocks`: into how
    many blocks each of these dims is cut, those of `per` first.
    """

    chosen: Chosen
    per: tuple[str, ...]
    over: tuple[str, ...]
    blocks: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """What says which rows there are."""
        return self.chosen.name

    @property
    def among_groups(self) -> bool:
        """Whether a token has blocks in no more than those groups that it chose first, one in each."""
        return bool(self.chosen.merged) and self.chosen.groups == self.chosen.over

    def rows(self, sizes: Mapping[str, int], capacity: Fraction | None) -> int:
        """The rows of a box: `capacity` times those expected, rounded up; all there can be where it is None."""
        tokens, experts = (
            math.prod(sizes[d] // n for d, n in zip((*self.per, *self.over), self.blocks, strict=True) if d in dims)
            for dims in (self.per, self.over)
        )
        keep = min(self.chosen.keep, self.chosen.kept_groups) if self.among_groups else self.chosen.keep
        most = tokens * min(keep, experts)
        if capacity is None:
            return most
        return min(most, math.ceil(capacity * tokens * experts * self._share(sizes)))

    def effective(self, sizes: Mapping[str, int], capacity: Fraction | None) -> Fraction:
        """The rows of a box, of those expected."""
        elements = math.prod(sizes[d] // n for d, n in zip((*self.per, *self.over), self.blocks, strict=True))
        return self.rows(sizes, capacity) / (elements * self._share(sizes))

    def _share(self, sizes: Mapping[str, int]) -> Fraction:
        """The share of entries that is expected."""
        return Fraction(self.chosen.share(lambda d: Fraction(sizes[d])))


@record
class Factor:
    """An operand of a product of rows, and the indices that arrays have. `rows`: it is held as rows; `blocks`: of
    these indices, each for a block of entries, where that is so. `one`: it is the mask, which is 1 at every row."""

    name: str
    indices: tuple[str, ...]
    rows: bool
    one: bool = False
    blocks: tuple[str, ...] | None = None


@record
class RowProduct:
    """An einsum of rows, those of the value `rows`. `entry`: the indices of an entry of the mask; `weights`: the factor
    that has a matrix for each expert, over whose indices `summed` it is contracted; None where there is none. `after`:
    the factors by which what that makes is multiplied, such as a scale of each column. `blocks`: of the result, where
    it is held as rows of blocks of entries, the indices of these."""

    rows: str
    packing: Packing
    entry: tuple[str, ...]
    factors: tuple[Factor, ...]
    weights: Factor | None
    summed: tuple[str, ...]
    output: tuple[str, ...]
    blocks: tuple[str, ...] | None = None
    after: tuple[Factor, ...] = ()


@dataclass
class Packed:
    """What a program holds as rows: the packings by name. `capacity`: how many rows boxes have room for, of those
    expected; None where nothing may overflow. `reasons`: sentences on masks whose values are held whole."""

    spmd: SpmdProgram
    packings: dict[str, Packing]
    capacity: Fraction | None = None
    reasons: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.values, self.sizes = self.spmd.table(), dict(self.spmd.sizes)
        origin: dict[str, str] = {}
        for placed in walk(self.spmd.body):
            match placed.item:
                case Compute(Choose(result)):
                    origin[result] = result
                case Compute(Reduce(result, operand)) if operand in origin and self.values[result].chosen:
                    origin[result] = self.values[result].chosen[0].name  # 1 at a block of which an entry is kept
                case Move(result, operand) if operand in origin:
                    origin[result] = origin[operand]
        # A mask, one of blocks of another, or a moved copy of these that is complete, and what it is one of.
        self.copies = {name: mask for name, mask in origin.items() if not self.values[name].layout.partial}

    @property
    def limited(self) -> bool:
        """Whether there may be no room for a row."""
        return self.capacity is not None and bool(self.packings)

    def kept(self, dims: Iterable[str]) -> list[str]:
        """The dims that local arrays have."""
        return [d for d in dims if self.sizes.get(d, 2) > 1]

    def of(self, name: str) -> Packing | None:
        """How a value is packed when it is sent; None of one that never is."""
        chosen = self.values[name].chosen
        return self.packings.get(chosen[0].name) if len(chosen) == 1 else None

    def entry(self, name: str) -> list[str]:
        """What a value that is packed calls the dims of its mask."""
        [one] = self.values[name].chosen
        return self.kept((*one.per, *one.over))

    def rest(self, name: str) -> list[str]:
        """Its other dims."""
        entry = self.entry(name)
        return [d for d in self.kept(self.values[name].dims) if d not in entry]

    def held(self, name: str) -> bool:
        """Whether a value is held as rows: values with no dims but the mask's are small, and held whole."""
        return self.of(name) is not None and bool(self.rest(name))

    def key(self, name: str) -> Key:
        """How the entries of a value that is packed are split."""
        return tuple(map(self.values[name].axes, self.entry(name)))

    def blocks(self, name: str) -> list[int]:
        """Into how many blocks a chip cuts each dim of the mask of a value."""
        packing = self.of(name)
        assert packing is not None
        return [n // self.spmd.mesh.size(*axes) for n, axes in zip(packing.blocks, self.key(name), strict=True)]

    def boxed(self, name: str) -> list[str]:
        """The dims of a value's local array as collectives have it: of rows in boxes, where it is packed."""
        if self.of(name) is None:
            return self.kept(self.values[name].dims)
        return [*self.entry(name), ROW, *self.rest(name)]

    def sends(self, move: Move) -> bool:
        """Whether a collective has its operand in boxes: it is packed, and held as rows or sent."""
        if self.of(move.operand) is None:
            return False
        return self.held(move.operand) or not isinstance(move.collective, Slice | Embed)

    def exchanges(self, move: Move) -> bool:
        """Whether a collective is an all-to-all of rows that takes axes, in their order, from a dim of their mask to
        another one of it. Rows of one number each are none: a ragged exchange sends whole sublanes of each."""
        if not isinstance(move.collective, AllToAll) or not self.held(move.operand) or self.as_bits(move):
            return False
        axes, source, target = move.collective.axes, move.collective.source, move.collective.target
        value, entry = self.values[move.operand], self.entry(move.operand)
        in_order = value.layout.dims[source][-len(axes) :] == tuple(axes)
        return in_order and value.dims[source] in entry and value.dims[target] in entry

    def as_bits(self, move: Move) -> bool:
        """Whether a collective is one of a mask, whose rows say nothing: what is sent are the bits of its routing."""
        return self.sends(move) and move.result in self.copies

    def product(self, op: Einsum) -> RowProduct | None:
        """An einsum as one of rows; None where it is not to be had so."""
        aside = beside(op, self.values, self.sizes)  # what is made one with codes before
        reads = [read for read in zip(op.operands, op.indices, strict=True) if read[0] not in aside]
        own = [(name, dict(zip(self.values[name].dims, at, strict=True))) for name, at in reads if self.of(name)]
        if not own:
            return None
        rows, at = min(own, key=lambda each: len(self.values[each[0]].chosen[0].merged))
        packing = self.of(rows)
        assert packing is not None
        entry = tuple(at[d] for d in self.entry(rows))
        factors = []
        for name, indices in reads:
            blocks = self._blocks(rows, at, name) if self.of(name) else None
            if self.of(name) and blocks != tuple(dict(own)[name][d] for d in self.entry(name)):
                return None
            held, one = self.held(name), self.copies.get(name) == packing.name
            coarse = blocks if held and blocks != entry else None
            factors.append(Factor(name, tuple(self._indices(name, indices)), held, one, coarse))
        made = self._blocks(rows, at, op.result) if self.held(op.result) else None
        if self.held(op.result) and not (made and set(made) <= set(op.output)):
            return None
        found = _product(rows, packing, entry, factors, tuple(self._indices(op.result, op.output)))
        return found and replace(found, blocks=None if made == entry else made)

    def _blocks(self, rows: str, at: Mapping[str, str], name: str) -> tuple[str, ...] | None:
        """The indices of an entry of another packed value, among those `at` which the rows of one are read; None where
        its entries are neither those nor blocks of them."""
        [one], [other] = self.values[rows].chosen, self.values[name].chosen
        gone, merged = ({place for place, _ in each.merged} for each in (one, other))
        if other.mask != one.mask or not gone <= merged:
            return None
        places = (n for n in range(len(one.over) + len(gone)) if n not in gone)
        left = [d for n, d in zip(places, one.over, strict=False) if n not in merged]
        return tuple(at[d] for d in self.kept((*one.per, *left)))

    def works(self, op: Op) -> bool:
        """Whether an op works on rows: it reads or makes some, or multiplies entries by a matrix of their expert."""
        if any(self.held(name) for name in (op.result, *operand_names(op))):
            return True
        product = self.product(op) if isinstance(op, Einsum) else None
        return product is not None and product.weights is not None

    def _indices(self, name: str, indices: Sequence[str]) -> list[str]:
        """The indices that the local array of a value has."""
        dims = self.values[name].dims
        return [i for i, d in zip(indices, dims, strict=True) if self.sizes[d] > 1]

    def expressed(self, op: Op) -> bool:
        """Whether an op that reads or makes rows can be written on rows."""
        match op:
            case Einsum():
                return self.product(op) is not None
            case Map() | Sum():
                if not self.held(op.result):
                    return False
                entry = self.entry(op.result)
                return all(self.of(n) is None or self.entry(n) == entry for n in operand_names(op))
        return False


def _product(
    rows: str, packing: Packing, entry: tuple[str, ...], factors: Sequence[Factor], output: tuple[str, ...]
) -> RowProduct | None:
    """The einsum of rows of some factors; None where there is none."""
    over = entry[len(packing.per) :]
    if any(len(set(f.indices)) != len(f.indices) for f in factors):
        return None
    if not any((f.rows or set(f.indices) & set(entry)) and not f.one for f in factors):
        factors = [replace(f, one=False) for f in factors]  # nothing else says that there are rows
    matrices = []
    for factor in factors:
        own = set(factor.indices)
        shared = own - set(entry) - set(output)
        if not factor.rows and own & set(entry) == set(over) and shared:
            matrices.append((factor, tuple(i for i in factor.indices if i in shared)))
    if not matrices:
        return RowProduct(rows, packing, entry, tuple(factors), None, (), output)
    [(weights, summed), *more] = matrices
    made = {i for i in weights.indices if i in output} - set(entry)
    after = tuple(f for f in factors if f is not weights and set(f.indices) & made)
    others = tuple(f for f in factors if f is not weights and f not in after)
    read = {i for f in others for i in f.indices} - set(entry)
    if more or not set(summed) <= read or set(output) - set(entry) - made:
        return None
    if any(f.rows or f.one or set(f.indices) - set(entry) - made for f in after):
        return None
    return RowProduct(rows, packing, entry, others, weights, summed, output, after=after)


def packed(spmd: SpmdProgram) -> Packed:
    """What of a sharded program is held as rows: the values of each mask that some product with a matrix for each
    expert is made of, where all that reads or makes them can be written on rows, and none is made in blocks."""
    sizes = dict(spmd.sizes)
    capacity = next((one.capacity for value in spmd.values for one in value.chosen), None)
    found = Packed(spmd, {}, capacity)
    for one in (one for value in spmd.values for one in value.chosen):
        per, over = tuple(found.kept(one.per)), tuple(found.kept(one.over))
        if one.name not in found.packings and (one.merged or one.keep < math.prod(sizes[d] for d in over)):
            found.packings[one.name] = Packing(one, per, over)
    # Blocks of entries first: what is made of single ones does without them, and they not without these.
    found.packings = dict(sorted(found.packings.items(), key=lambda each: -len(each[1].chosen.merged)))
    unmade = {name for one in in_blocks(spmd) for name in one.unmade}
    cut = {one.name: one for name in sorted(unmade) for one in found.values[name].chosen}
    found.packings = {name: packing for name, packing in found.packings.items() if name not in cut}
    reasons: dict[str, str] = {}
    while (refused := next(((n, why) for n in found.packings if (why := _reason(found, n))), None)) is not None:
        reasons |= [refused]
        del found.packings[refused[0]]
    said = (f"Blocks are made of all scores, those that `{name}` does not choose included." for name in cut)
    found.reasons = (*_whole(spmd, reasons), *said)
    for mask, packing in found.packings.items():
        found.packings[mask] = replace(packing, blocks=_blocks(found, mask))
    return found


def _whole(spmd: SpmdProgram, reasons: Mapping[str, str]) -> Iterator[str]:
    """Sentences on chosen values that are held or sent whole."""
    chosen = {one.name: one for value in spmd.values for one in value.chosen}
    every = Packed(spmd, {name: Packing(one, (), ()) for name, one in chosen.items() if name in reasons})
    moved = {move.operand for move in moves(spmd) if every.sends(move)}
    dear = {one.name: one for v in spmd.values if every.held(v.name) or v.name in moved for one in v.chosen}
    for name, why in reasons.items():
        if name in dear:
            one = dear[name]
            what = f"Blocks of what `{one.mask}` chooses are" if one.merged else f"What `{one.mask}` chooses is"
            yield f"{what} held and sent whole: {why}."


def _reason(found: Packed, mask: str) -> str | None:
    """Why the values of a mask are not held as rows; None where they are."""

    def own(name: str) -> bool:
        packing = found.of(name)
        return packing is not None and packing.name == mask

    for value in found.spmd.values:
        if len(value.chosen) > 1 and any(one.name == mask for one in value.chosen):
            return f"`{value.name}` is chosen by others as well"
    looped = {step.result for loop, _ in walk_loops(found.spmd.body) for step in loop.steps}
    matrices = 0
    for placed in walk(found.spmd.body):
        match placed.item:
            case Repeat(carries=carries):
                if crossing := next((c.next for c in carries if own(c.next) or own(c.initial)), None):
                    return f"`{crossing}` goes from one repetition to the next"
            case Move(result, operand) if own(operand) and result in looped:
                return f"`{result}` is made in a loop"
            case Compute(op) if any(map(own, (op.result, *operand_names(op)))) and found.works(op):
                if op.result in looped:
                    return f"`{op.result}` is made in a loop"
                if not found.expressed(op):
                    return f"`{op.result}` is none of what can be made of rows"
                product = found.product(op) if isinstance(op, Einsum) else None
                matrices += product is not None and (product.weights is not None or product.packing.name != mask)
    if returned := next((name for name in found.spmd.results if own(name) and found.held(name)), None):
        return f"`{returned}` is returned"
    if not matrices:
        return "nothing multiplies them by a matrix for each that is chosen"
    unknown = _unrouted(found, found.spmd.body, own, set())
    return None if unknown is None else f"which of `{unknown}` are kept is not known where it lies"


def _unrouted(found: Packed, region: Region[Step], own: Callable[[str], bool], masks: set[Key]) -> str | None:
    """The first value of a mask of which some chip does not know what is kept. `masks`: how the mask lies."""
    known = set[Key]()
    for item in region.items:
        match item:
            case Repeat(_, _, _, body):
                if (inner := _unrouted(found, body, own, set(masks))) is not None:
                    return inner
            case Move(result, operand) if own(operand):
                if found.key(operand) in known | masks:
                    known.add(found.key(result))
                elif found.sends(item):
                    return operand
                if result in found.copies and found.values[operand].layout.partial:
                    return operand
                if result in found.copies:
                    masks.add(found.key(result))
            case Compute(Choose(result) | Reduce(result)) if own(result) and result in found.copies:
                masks.add(found.key(result))
            case Compute(op) if found.works(op):
                for name in filter(own, (op.result, *operand_names(op))):
                    if wider(found.key(name), known | masks) is None:
                        return name
                    known.add(found.key(name))
    return None


def wider(key: Key, known: Iterable[Key]) -> Key | None:
    """Of the ways in which it is known what is kept, the one of which least is to be gathered for another; None where
    none gives that."""
    fits = [k for k in known if all(split[: len(whole)] == whole for split, whole in zip(k, key, strict=True))]
    return min(fits, key=lambda k: (sum(map(len, k)), k), default=None)


def _blocks(found: Packed, mask: str) -> tuple[int, ...]:
    """Into how many blocks each dim of a mask is cut, so that whatever is in boxes has whole ones."""
    boxed = {name for name, origin in found.copies.items() if origin == mask}
    for placed in walk(found.spmd.body):
        match placed.item:
            case Move(result, operand) as move if found.sends(move):
                boxed |= {result, operand}
            case Compute(op) if found.works(op):
                boxed |= {name for name in (op.result, *operand_names(op)) if found.of(name) is not None}
            case Move(result) if result in found.copies:
                boxed.add(result)
    mesh = found.spmd.mesh
    keys = [found.key(name) for name in sorted(boxed) if (p := found.of(name)) is not None and p.name == mask]
    return tuple(math.lcm(*(mesh.size(*axes) for axes in split)) for split in zip(*keys, strict=True))
