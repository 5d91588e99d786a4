"""What a chip needs to hold at once: stored tensors, and the most that is live beside them.

A value is live from the step that makes it to the last step that reads it, both included. Stored
tensors are held throughout, each repetition's own; a new version of a cache is written into it. Of steps that
run as one all that they read and all that they make is held at once.

Attention counts as it is emitted (cost.attention). What scores are made of stays live until they have been used. An
attention that runs in blocks holds a block of scores while it makes its maximum, its sum and its product, which are
there from then on; one that does not holds its scores whole.

A product that one pointwise op reads right after it is never there: what the op gives is made in its place, over
another value that it alone reads (cost.products): on hardware whose compiler does so, and which gathers nothing ahead.

A table whose rows do not fill the lanes of tiles lies in a TPU's memory by columns, where that takes less room, unless
it is handed over otherwise. Its rows are looked up in a copy of it by rows, padded to whole lanes (libtpu 0.0.42, v4
and v5e: of a table of 262,208 rows of 1,344 each a copy of 738 MB beside its 705). Where padding adds MOST_PADDING at
the most, it is handed over by rows, padded, and not copied; what is stored is said without (the same on v4,
gpt-oss-120b's decode on 2x2x4: 201,088 rows of 2,880 take 1.18 GB for 1.16, and the module 6.29 GB of a chip for 7.17).

A reduce-scatter that goes as rows there (cost.tpu_collectives) holds what it reads once more, laid out as these. A
gather or reduce-scatter in two stages holds what the first one makes.

Rows of chosen entries that are added up, such as what a token's experts make, are added in f32: a narrow sum of them
is there in that type as well while it is made. A matrix of codes that multiplies rows is decoded before it does, one
after the other where there are several. One with a scale for each group of places comes to that in a copy, taken apart
in groups (libtpu 0.0.42, v4 4x4x4: of gpt-oss-120b's prefill 531 MB a matrix, and 133 of its codes).

Stored tensors of which no dim fills the lanes of tiles take the lanes that are begun of the dim of which that is least
(the same: of 18.53 GB, 2,880 wide, 18.94). Of parameters in a repeat that may be the one of its repetitions; and those
that this adds more than MOST_PADDING to, such as scales of blocks, are laid out anew before the first repetition, the
last dim in lanes (libtpu 0.0.42, v5e 8x8: of Kimi K2's [60, 6, 56, 16] scales in f32, 1.3 MB, 2.8 as they are handed
over and 10.3 more). Of what takes less than as many places as a square of lanes that is little, and not counted.

To choose, rows of SORTED_KEYS keys at the most are sorted at a time: beside the keys there are integers in their order,
the sorted keys, and where they stood (libtpu 0.0.42, v4: of 2**26 keys in f32 that are sorted at once three times their
bytes).

Not counted: second buffers for copies that are prefetched. Steps in one loop count as they would one
after the other, with the values that are passed on in blocks held in whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from ..ir.collective import AllGather
from ..ir.dataflow import ops, origins
from ..ir.dtype import Dtype
from ..ir.program import Append, Choose, Einsum, Item, Kind, Region, Repeat, Stored, Take, operand_names, walk
from ..ir.record import record
from ..ir.spmd import Compute, Move, SpmdProgram, Step
from ..ir.streams import copies_held
from ..ir.verify.fused import together
from .attention import Attention
from .blocks import blocks_of, perhaps_in_blocks
from .estimate import concrete_sizes, local_bytes
from .products import Taken, taken
from .scores import chosen_along, local_sizes, queries_of, scores
from .tpu_collectives import Kept

MOST_PADDING = Fraction(1, 8)  # of a table that is handed over by rows, of what it takes without
SORTED_KEYS = 2**22  # as many rows as have so many keys are sorted at a time in JAX modules

# The forms of a matrix of codes that multiplies rows of chosen entries: the numbers, and the codes before that.
DECODING = DECODED, IN_GROUPS = "decoded", "in groups"
CODES = (Dtype.FP8, Dtype.FP4, Dtype.INT8, Dtype.INT4)

Ints = NDArray[np.int64]
At = tuple[str, tuple[str, ...], frozenset[str]]  # a step, the repeats around it, and the names of what is live there
Size = TypeVar("Size", int, Ints, int | Ints)


@record
class Live:
    """A value that is held at a point, and its bytes on a chip. `copy_of`: the parameter or cache that
    it is a moved copy of, such as gathered weights; None for an intermediate value. `form`: `block`, where it is no
    more than a block of the value, `rows`, where it is a second copy of it, laid out by rows, `sorted`, where it is
    what rows of it are sorted in, `decoded`, where it is the numbers that its codes stand for, `in groups`, where it is
    its codes once more before that, `first stage`, where it is what the first of two stages of a collective makes of
    it, `padding`, where it is what fills the lanes of it, or what it takes laid out anew; None for it itself."""

    name: str
    bytes: Fraction
    copy_of: str | None
    form: str | None = None

    @property
    def label(self) -> str:
        """The name, and what of it is held."""
        return f"{self.name} ({self.form})" if self.form else self.name


@record
class Point:
    """What is live while a step runs. `step`: the value that it makes, the first of those that are made
    as one, None for the program's start.
    `repeats`: the repeats around it, outermost first. `live`: by name, without the stored tensors."""

    step: str | None
    repeats: tuple[str, ...]
    live: tuple[Live, ...]

    @property
    def bytes(self) -> Fraction:
        """Bytes on a chip."""
        return sum((value.bytes for value in self.live), start=Fraction(0))

    @property
    def copied_bytes(self) -> Fraction:
        """Those of copies of parameters and caches."""
        return sum((value.bytes for value in self.live if value.copy_of), start=Fraction(0))


@record
class MemoryUse:
    """Memory of one chip. `stored`: parameters and caches in repeats, by name, with the bytes of all
    repetitions that it has room for; `shared`: those outside of repeats. `worst`: the first point with
    most bytes live."""

    stored: tuple[tuple[str, Fraction], ...]
    shared: tuple[tuple[str, Fraction], ...]
    worst: Point

    @property
    def stored_bytes(self) -> Fraction:
        """Parameters and caches, all of them."""
        return sum((size for _, size in (*self.stored, *self.shared)), start=Fraction(0))

    @property
    def total_bytes(self) -> Fraction:
        """The most that a chip ever holds."""
        return self.stored_bytes + self.worst.bytes


def memory(spmd: SpmdProgram, lanes: int = 1, fused: bool = True) -> MemoryUse:
    """What one chip holds of a sharded program, in bytes. `lanes`: how many places of a value's last dim its memory
    has side by side; `fused`: whether products take nothing that are never there."""
    values = spmd.table()
    stored: list[tuple[str, Fraction]] = []
    shared: list[tuple[str, Fraction]] = []
    for placed in walk(spmd.body):
        match placed.item:
            case Stored(name, kind) as one if kind is not Kind.INPUT:
                group = stored if placed.repeats else shared
                held = copies_held(one, placed.repeats, spmd.micro_batches)
                group.append((name, held * local_bytes(values[name], spmd)))
    worst = max(points(spmd, lanes, fused), key=lambda point: point.bytes)  # the first of the largest
    return MemoryUse(tuple(stored), tuple(shared), worst)


def points(spmd: SpmdProgram, lanes: int = 1, fused: bool = True) -> tuple[Point, ...]:
    """Every program point, in order: the start, then each step, those of repeats once."""
    return tuple(_Liveness(spmd, lanes=lanes, fused=fused).program())


def points_without_blocks(spmd: SpmdProgram) -> tuple[Point, ...]:
    """The same points of an unsharded program, with nothing of scores that may be made in blocks, nor of their maxima
    and sums, nor of what keys are sorted in, which may be few: so much is held at the least, in whatever layouts are
    chosen, but for products that are never there where they are not moved, which are among it."""
    return tuple(_Liveness(spmd, whole_scores=False, fused=False).program())


def handed_by_rows(spmd: SpmdProgram, lanes: int) -> dict[str, Fraction]:
    """The stored tables that are handed over by rows, since they would lie by columns otherwise, and be copied; and how
    many times their bytes they take so."""
    stored = {placed.item.value for placed in walk(spmd.body) if isinstance(placed.item, Stored)}
    found: dict[str, Fraction] = {}
    for op in ops(spmd):
        if isinstance(op, Take) and op.table in stored and (sizes := _row_and_column(op, spmd)):
            row = sizes[0]
            if _wants_columns(*sizes, lanes) and not lies_by_columns(*sizes, lanes):
                found[op.table] = Fraction(filled(row, lanes), row)
    return found


def padded(spmd: SpmdProgram, lanes: int) -> dict[str, Fraction]:
    """How many times their bytes stored tensors take, by name, of which some lanes are padding."""
    found, values = handed_by_rows(spmd, lanes), spmd.table()
    for placed in walk(spmd.body):
        if isinstance(placed.item, Stored) and placed.item.value not in found:
            own = local_sizes(values[placed.item.value], spmd).values()
            sizes = [np.array(size) for size in own]
            times = stacks_of(placed.item, placed.repeats)
            if more := int(places_of_padding(sizes, times, lanes)):
                found[placed.item.value] = 1 + Fraction(more, math.prod(own) * math.prod(times))
    return found


def stacks_of(stored: Stored, repeats: Sequence[Repeat[Item]]) -> tuple[int, ...]:
    """How many repetitions, outermost first, of a parameter lie in one array."""
    return tuple(repeat.count for repeat in repeats) if stored.kind is Kind.PARAM else ()


def places_of_padding(sizes: Sequence[Ints], times: Sequence[int], lanes: int) -> Ints:
    """The places that a stored tensor takes beside its own in a TPU's memory, in each layout. `sizes`: of its dims on a
    chip, each [layouts]; `times`: the repetitions that lie in one array with it."""
    if not sizes:
        return np.array(0)
    counts = [np.full_like(sizes[0], n) for n in times]
    every: Ints = np.prod([*sizes, *counts], axis=0)

    def of_lanes(dims: Sequence[Ints]) -> Ints:
        least: Ints = np.min([every // n * (filled(n, lanes) - n) for n in dims], axis=0)
        return least

    more: Ints = of_lanes([*sizes, *counts])
    if counts:
        more = more + np.where(
            more * MOST_PADDING.denominator > every * MOST_PADDING.numerator, every + of_lanes(sizes[-1:]), 0
        )
    much: Ints = np.where(every + more >= lanes**2, more, 0)
    return much


def most_sorted(row: int) -> int:
    """How many keys are sorted at a time at the most, of rows of so many."""
    return max(SORTED_KEYS // row, 1) * row


def bytes_a_key(bits: int) -> Fraction:
    """What each key of so many bits takes that is sorted, with the integer in its order and both where they are sorted
    to."""
    return Fraction(2 * bits + 32, 8)


def bytes_by_rows(op: Take, spmd: SpmdProgram, lanes: int) -> Fraction:
    """What the copy of a stored table takes that its rows are looked up in; nothing where it lies by rows itself."""
    sizes = _row_and_column(op, spmd)
    if sizes is None or not lies_by_columns(*sizes, lanes):
        return Fraction(0)
    return Fraction(filled(sizes[0], lanes), sizes[0]) * local_bytes(spmd.table()[op.table], spmd)


def _row_and_column(op: Take, spmd: SpmdProgram) -> tuple[int, int] | None:
    """How long the rows and the columns of a table are on a chip; None where its rows are numbers."""
    value = spmd.table()[op.table]
    sizes = local_sizes(value, spmd)
    kept = [dim for dim in value.dims if dim not in op.over]
    return (sizes[kept[-1]], sizes[op.over[-1]]) if kept else None


@overload
def lies_by_columns(row: int, column: int, lanes: int) -> bool: ...
@overload
def lies_by_columns(row: Ints, column: Ints, lanes: int) -> NDArray[np.bool_]: ...
def lies_by_columns(row: int | Ints, column: int | Ints, lanes: int) -> bool | NDArray[np.bool_]:
    """Whether a table of rows that are `row` long and columns that are `column` long lies with columns in lanes: that
    takes less room, and to pad rows takes much. Of two numbers, or of two arrays of them, pair by pair."""
    much = filled(row, lanes) * MOST_PADDING.denominator > row * (MOST_PADDING.numerator + MOST_PADDING.denominator)
    return _wants_columns(row, column, lanes) & much


def _wants_columns(row: int | Ints, column: int | Ints, lanes: int) -> bool | NDArray[np.bool_]:
    """Whether columns in lanes take less room than rows in lanes."""
    return filled(row, lanes) * column > filled(column, lanes) * row


def filled(size: Size, lanes: int) -> Size:
    """The places of as many lanes as are begun."""
    return -(-size // lanes) * lanes


@dataclass
class _Liveness:
    """The walk over a program. `held`: stored tensors and cache versions; `copies`: of what a moved
    value is a copy; `made_of`: for each score the values that it is computed from; `sizes`: bytes on a chip, as they
    are asked for; `steps`: the attentions in blocks by what their maximum, sum and product make; `block`: what each,
    and each sum of scores in blocks, holds of scores, by what it makes first; `beside`: what steps hold while they run
    beside what they read and make, by what they make; `padding`: of stored tensors, always;
    `unmade`: scores that are never there as values; `taken`: of the products that are never there what is made in
    their places, by product, and `taking` what the ops read that make that; `early`: what is so made before its own
    step, by where; `whole_scores`: whether those scores count that may be in blocks, and what keys are sorted in;
    `lanes`, `fused`: as `memory` has them."""

    spmd: SpmdProgram
    whole_scores: bool = True
    lanes: int = 1
    fused: bool = True
    held: set[str] = field(default_factory=set)
    copies: dict[str, str] = field(default_factory=dict)
    made_of: dict[str, frozenset[str]] = field(default_factory=dict)
    sizes: dict[str, Fraction] = field(default_factory=dict)
    steps: dict[str, Attention] = field(default_factory=dict)
    block: dict[str, Live] = field(default_factory=dict)
    beside: dict[str, tuple[Live, ...]] = field(default_factory=dict)
    padding: list[Live] = field(default_factory=list)
    taken: dict[str, Taken] = field(default_factory=dict)
    taking: dict[str, frozenset[str]] = field(default_factory=dict)
    early: dict[str, frozenset[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.values, self.scale = self.spmd.table(), concrete_sizes(self.spmd)
        self.contexts, self.first = frozenset(queries_of(self.spmd)), origins(self.spmd)
        self.unmade = frozenset() if self.whole_scores else perhaps_in_blocks(self.spmd)
        never_stored = scores(self.spmd) | self.unmade
        kept = Kept(self.spmd.mesh, self.values, dict(self.spmd.sizes)) if self.lanes > 1 else None
        padding = padded(self.spmd, self.lanes) if self.lanes > 1 else {}
        for placed in walk(self.spmd.body):
            match placed.item:
                case Stored(name, kind) as stored if kind is not Kind.INPUT:
                    self.held.add(name)
                    if name in padding:
                        held = copies_held(stored, placed.repeats, self.spmd.micro_batches) * self.bytes_of(name)
                        self.padding.append(Live(name, held * (padding[name] - 1), None, "padding"))
                case Compute(Append(result, cache)) if cache in self.held:
                    self.held.add(result)
                case Move(result, operand) if operand in self.held or operand in self.copies:
                    self.copies[result] = self.copies.get(operand, operand)
                case Compute(op) if op.result in never_stored:
                    self.made_of[op.result] = self.see_through(operand_names(op))
            if isinstance(placed.item, Compute | Move) and (beside := tuple(self._beside(placed.item, kept))):
                self.beside[placed.item.result] = beside
        self.taken = {one.product: one for one in taken(self.spmd)} if self.fused else {}
        takers = {one.result for one in self.taken.values()}
        self.taking = {op.result: frozenset(operand_names(op)) for op in ops(self.spmd) if op.result in takers}
        for block in blocks_of(self.spmd) if self.whole_scores else ():
            one = block.of
            self.unmade |= one.unmade
            if isinstance(one, Attention):
                self.steps |= dict.fromkeys((one.largest.result, one.sum.result, one.product.result), one)
            self.block[block.step] = Live(block.name, block.bytes, None, "block")

    def _beside(self, step: Step, kept: Kept | None) -> Iterator[Live]:
        """The copy in which the rows of a table are looked up or sums are scattered, first stages, sums of rows, and
        sorted keys."""
        match step:
            case Compute(Choose(_, keys, over)) if self.whole_scores:
                bits, row = self.values[keys].dtype.bits, math.prod(dict(self.spmd.sizes)[d] for d in over)
                together = min(self.bytes_of(keys) * 8 / bits, Fraction(most_sorted(row)))
                yield Live(keys, together * bytes_a_key(bits), None, "sorted")
            case Compute(Einsum() as op):
                yield from self._of_rows(op)
            case Compute(Take(_, table) as op) if table in self.held:
                if size := bytes_by_rows(op, self.spmd, self.lanes):
                    yield Live(table, size, table, "rows")
            case Move(_, operand, collective) if kept:
                held = operand if operand in self.held else self.copies.get(operand)
                for form, times in kept.beside(operand, collective):
                    copy_of = held if isinstance(collective, AllGather) else None
                    yield Live(operand, self.bytes_of(operand) * times, copy_of, form)

    def _of_rows(self, op: Einsum) -> Iterator[Live]:
        """Of an einsum of rows of chosen entries: the sum that it adds them up in, and the matrices that it decodes.
        Scores that are chosen along the context are no rows: a product sums them as any others."""
        value = self.values[op.result]
        every = [self.values[name] for name in op.operands]
        rows = [each for each in every if not chosen_along(each, self.contexts)]
        if not any(set(one.over) & {*each.dims} for each in rows for one in each.chosen):
            return
        if not value.chosen and value.dtype in (Dtype.BF16, Dtype.F16):
            yield Live(op.result, self.bytes_of(op.result) * Fraction(32, value.dtype.bits), None, "in f32")
        sizes, pairs = dict(self.spmd.sizes), list(zip(every, op.indices, strict=True))
        groups = {i for each, own in pairs for i, d in zip(own, each.dims, strict=True) if sizes[d] < sizes.get(i, 0)}
        for each, own in pairs:
            if each.dtype in CODES and (matrix := each.name if each.name in self.held else self.copies.get(each.name)):
                size = self.bytes_of(each.name)
                yield Live(each.name, size * Fraction(value.dtype.bits, each.dtype.bits), matrix, DECODED)
                if groups & {*own[:-1]}:
                    yield Live(each.name, size, matrix, IN_GROUPS)

    def program(self) -> Iterator[Point]:
        """The start, with all inputs, then the body; results stay to the end."""
        yield self.point(None, (), frozenset(s.value for s in self.spmd.body.stored))
        for at in self.region(self.spmd.body, (), frozenset(self.spmd.results)):
            yield self.point(*at)

    def region(self, region: Region[Step], repeats: tuple[str, ...], leave: frozenset[str]) -> Iterator[At]:
        """The points of a region; `leave` is what is live as it ends."""
        runs = together(region.items)
        needed = [leave]  # after the last run, after the one before, ...
        for run in reversed(runs[1:]):
            makes, reads = self.whole(run)
            needed.append(needed[-1] - makes | reads)
        for run, after in zip(runs, reversed(needed), strict=False):
            first, (makes, reads) = run[0], self.whole(run)
            if isinstance(first, Repeat):
                through = after - makes | self.free(first)
                yield from self.repeated(first, (*repeats, first.name), through)
            else:
                found = self.taken_in(run)
                self.early[first.result] = frozenset(one.result for one in found)
                yield first.result, repeats, (after | reads | makes) - {one.over for one in found}

    def taken_in(self, run: Iterable[Step | Repeat[Step]]) -> list[Taken]:
        """The products of steps that run as one that are never there."""
        results = [item.result for item in run if not isinstance(item, Repeat)]
        return [self.taken[name] for name in results if name in self.taken]

    def whole(self, run: Iterable[Step | Repeat[Step]]) -> tuple[frozenset[str], frozenset[str]]:
        """What steps that run as one leave behind, and what they read."""
        makes = frozenset(name for item in run for name in self.makes(item))
        reads = frozenset(name for item in run for name in self.reads(item))
        return makes, reads | (self.also(run) - makes)

    def also(self, run: Iterable[Step | Repeat[Step]]) -> frozenset[str]:
        """What is read beside what products read that are never there: what the ops read that are made in their
        places."""
        return self.see_through(n for one in self.taken_in(run) for n in self.taking[one.result] - {one.product})

    def repeated(self, repeat: Repeat[Step], repeats: tuple[str, ...], through: frozenset[str]) -> Iterator[At]:
        """One repetition, with what is held through all of them. A carry's buffer is never given up:
        it holds `inside` until `next` takes its place."""
        leave = through | {carry.next for carry in repeat.carries}
        waiting = {carry.next: carry.inside for carry in repeat.carries}
        for step, around, names in self.region(repeat.body, repeats, leave):
            for made in (names - self.held) & waiting.keys() - self.early.get(step, frozenset()):
                del waiting[made]
            yield step, around, names | frozenset(waiting.values())

    def makes(self, item: Step | Repeat[Step]) -> frozenset[str]:
        """What an item leaves behind; the maximum of an attention in blocks all that this makes."""
        match item:
            case Repeat(_, _, carries, _):
                return frozenset(carry.result for carry in carries)
            case _ if item.result in self.block and item.result in self.steps:
                one = self.steps[item.result]
                return frozenset([item.result, one.sum.result, one.product.result])
            case _ if item.result in self.taking:
                return frozenset()
            case _ if item.result in self.taken:
                return frozenset([self.taken[item.result].result])
            case _:
                return frozenset([item.result]) - self.unmade

    def reads(self, item: Step | Repeat[Step]) -> frozenset[str]:
        """What an item reads of the values around it, scores seen through."""
        match item:
            case Move(_, operand):
                return self.see_through([operand])
            case Compute(op) if op.result in self.taking:
                return frozenset([op.result])
            case Compute(op):
                names = operand_names(op)
                return self.see_through(names) | (frozenset(names) - self.unmade) | self.begun(op.result)
            case Repeat(_, _, carries, _):
                return self.free(item) | {carry.initial for carry in carries}

    def begun(self, step: str) -> frozenset[str]:
        """What the sum or the product of an attention in blocks finds made with its maximum."""
        one = self.steps.get(step)
        if one is None or step in self.block:
            return frozenset()
        own = frozenset([step, one.sum.result])
        return own | {one.largest.result} if step == one.sum.result else own

    def free(self, repeat: Repeat[Step]) -> frozenset[str]:
        """What every repetition reads of the values around the repeat."""
        inner = {stored.value for stored in repeat.body.stored} | {carry.inside for carry in repeat.carries}
        read = {carry.next for carry in repeat.carries}
        for item in repeat.body.items:
            read |= self.reads(item) | self.also([item])
            inner |= self.makes(item)
        return frozenset(read - inner)

    def see_through(self, names: Iterable[str]) -> frozenset[str]:
        """`names`, with what the scores among them are made of in their place."""
        return frozenset(source for name in names for source in self.made_of.get(name, {name}))

    def point(self, step: str | None, repeats: tuple[str, ...], names: frozenset[str]) -> Point:
        """The point at which `names` are live; those that are stored anyway are left out."""
        live = [Live(name, self.bytes_of(name), self.copies.get(name)) for name in sorted(names - self.held)]
        live += [self.block[step]] if step in self.block else []
        live += self.beside.get(step or "", ())
        live += self.padding
        return Point(step, repeats, tuple(live))

    def bytes_of(self, name: str) -> Fraction:
        """The bytes of a value on a chip."""
        if name not in self.sizes:
            self.sizes[name] = self.scale.local_bytes(self.values[name])
        return self.sizes[name]
