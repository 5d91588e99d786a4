"""Which chosen values of a sharded program an emitted JAX file holds as packed rows, and how it counts them.

A row stands for one kept entry of a mask: a token at one of its experts. Of static shape, rows come in boxes: the
tokens and the experts are cut into blocks so fine that every chip, and every pair of chips that exchange, has whole
blocks, and a box holds the rows of one block of tokens at one block of experts. So a collective of rows is that of the
boxes, and what a box can hold bounds what is held, sent and computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from ...ir.collective import Embed, Slice
from ...ir.program import Choose, Einsum, Map, Op, Region, Repeat, Sum, operand_names, walk
from ...ir.spmd import Compute, Move, SpmdProgram, Step
from ...ir.verify.fused import walk_loops
from .jax_ops import beside

ROW = " row"  # no dim's name
Key = tuple[tuple[str, ...], ...]  # of each dim of a mask the axes that split it


@dataclass(frozen=True)
class Packing:
    """The boxes of one mask, which keeps `keep` of `entries` along dims `over` for each element along dims `per`.

    `blocks`: into how many blocks each of these dims is cut, those of `per` first. Dims of size 1 are left out.
    """

    mask: str
    per: tuple[str, ...]
    over: tuple[str, ...]
    keep: int
    entries: int
    blocks: tuple[int, ...]

    def rows(self, sizes: Mapping[str, int], capacity: Fraction | None) -> int:
        """The rows of a box: `capacity` times those expected, rounded up; all there can be where it is None."""
        tokens, experts = (
            math.prod(sizes[d] // n for d, n in zip((*self.per, *self.over), self.blocks, strict=True) if d in dims)
            for dims in (self.per, self.over)
        )
        most = tokens * min(self.keep, experts)
        if capacity is None:
            return most
        return min(most, math.ceil(capacity * Fraction(tokens * experts * self.keep, self.entries)))

    def effective(self, sizes: Mapping[str, int], capacity: Fraction | None) -> Fraction:
        """The rows of a box, of those expected."""
        elements = math.prod(sizes[d] // n for d, n in zip((*self.per, *self.over), self.blocks, strict=True))
        return self.rows(sizes, capacity) / Fraction(elements * self.keep, self.entries)


@dataclass(frozen=True)
class Factor:
    """An operand of a product of rows, and the indices that arrays have. `rows`: it is held as rows. `one`: it is the
    mask, which is 1 at every row."""

    name: str
    indices: tuple[str, ...]
    rows: bool
    one: bool = False


@dataclass(frozen=True)
class RowProduct:
    """An einsum of rows. `entry`: the indices of an entry of the mask; `weights`: the factor that has a matrix for each
    expert, over whose indices `summed` it is contracted; None where there is none."""

    packing: Packing
    entry: tuple[str, ...]
    factors: tuple[Factor, ...]
    weights: Factor | None
    summed: tuple[str, ...]
    output: tuple[str, ...]


@dataclass
class Packed:
    """What a program holds as rows: the packings by mask. `capacity`: how many rows boxes have room for, of those
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
                case Move(result, operand) if operand in origin:
                    origin[result] = origin[operand]
        # A mask, or a moved copy of it that is complete, and the mask.
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
        return self.packings.get(chosen[0].mask) if len(chosen) == 1 else None

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
        value = self.values[name]
        return tuple(value.layout.dims[value.dims.index(d)] for d in self.entry(name))

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

    def as_bits(self, move: Move) -> bool:
        """Whether a collective is one of a mask, whose rows say nothing: what is sent are the bits of its routing."""
        return self.sends(move) and move.result in self.copies

    def product(self, op: Einsum) -> RowProduct | None:
        """An einsum as one of rows; None where it is not to be had so."""
        entries, packings = set[tuple[str, ...]](), set[Packing]()
        for name, indices in zip(op.operands, op.indices, strict=True):
            if (packing := self.of(name)) is not None:
                at = dict(zip(self.values[name].dims, indices, strict=True))
                entries.add(tuple(at[d] for d in self.entry(name)))
                packings.add(packing)
        if len(entries) != 1 or len(packings) != 1:
            return None
        [entry], [packing] = entries, packings
        aside = beside(op, self.values, self.sizes)  # what is made one with codes before
        factors = [
            Factor(name, tuple(self._indices(name, indices)), self.held(name), self.copies.get(name) == packing.mask)
            for name, indices in zip(op.operands, op.indices, strict=True)
            if name not in aside
        ]
        return _product(packing, entry, factors, tuple(self._indices(op.result, op.output)))

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
                found = self.product(op)
                return found is not None and (not self.held(op.result) or set(found.entry) <= set(found.output))
            case Map() | Sum():
                if not self.held(op.result):
                    return False
                entry = self.entry(op.result)
                return all(self.of(n) is None or self.entry(n) == entry for n in operand_names(op))
        return False


def _product(
    packing: Packing, entry: tuple[str, ...], factors: Sequence[Factor], output: tuple[str, ...]
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
        return RowProduct(packing, entry, tuple(factors), None, (), output)
    [(weights, summed), *more] = matrices
    others = tuple(f for f in factors if f is not weights)
    read = {i for f in others for i in f.indices} - set(entry)
    made = {i for i in weights.indices if i in output} - set(entry)
    if more or not set(summed) <= read or read & made or set(output) - set(entry) - made:
        return None
    return RowProduct(packing, entry, others, weights, summed, output)


def packed(spmd: SpmdProgram) -> Packed:
    """What of a sharded program is held as rows: the values of each mask that some product with a matrix for each
    expert is made of, where all that reads or makes them can be written on rows."""
    values, sizes = spmd.table(), dict(spmd.sizes)
    capacity = next((one.capacity for value in spmd.values for one in value.chosen), None)
    found = Packed(spmd, {}, capacity)
    for placed in walk(spmd.body):
        match placed.item:
            case Compute(Choose(result, _, _, keep)):
                own = next(one for one in values[result].chosen if one.mask == result)
                per, over = tuple(found.kept(own.per)), tuple(found.kept(own.over))
                entries = math.prod(sizes[d] for d in over)
                if keep < entries:
                    found.packings[result] = Packing(result, per, over, keep, entries, ())
    reasons = {mask: reason for mask in found.packings if (reason := _reason(found, mask))}
    moved = {p.item.operand for p in walk(spmd.body) if isinstance(p.item, Move) and found.sends(p.item)}
    dear = {one.mask for v in spmd.values if found.held(v.name) or v.name in moved for one in v.chosen}
    found.reasons = tuple(
        f"What `{m}` chooses is held and sent whole: {why}." for m, why in reasons.items() if m in dear
    )
    for mask in reasons:
        del found.packings[mask]
    for mask, packing in found.packings.items():
        found.packings[mask] = replace(packing, blocks=_blocks(found, mask))
    return found


def _reason(found: Packed, mask: str) -> str | None:
    """Why the values of a mask are not held as rows; None where they are."""

    def own(name: str) -> bool:
        packing = found.of(name)
        return packing is not None and packing.mask == mask

    for value in found.spmd.values:
        if len(value.chosen) > 1 and any(one.mask == mask for one in value.chosen):
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
                matrices += product is not None and product.weights is not None
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
                if result in found.copies:
                    masks.add(found.key(result))
            case Compute(Choose(result)) if own(result):
                masks.add(found.key(result))
            case Compute(op) if found.works(op):
                read = next((name for name in (op.result, *operand_names(op)) if own(name)), None)
                if read is not None and found.key(read) not in known | masks:
                    return read
    return None


def _blocks(found: Packed, mask: str) -> tuple[int, ...]:
    """Into how many blocks each dim of a mask is cut, so that whatever is in boxes has whole ones."""
    boxed = {mask}
    for placed in walk(found.spmd.body):
        match placed.item:
            case Move(result, operand) as move if found.sends(move):
                boxed |= {result, operand}
            case Compute(op) if found.works(op):
                boxed |= {name for name in (op.result, *operand_names(op)) if found.of(name) is not None}
            case Move(result) if result in found.copies:
                boxed.add(result)
    mesh = found.spmd.mesh
    keys = [found.key(name) for name in sorted(boxed) if (p := found.of(name)) is not None and p.mask == mask]
    return tuple(math.lcm(*(mesh.size(*axes) for axes in split)) for split in zip(*keys, strict=True))
