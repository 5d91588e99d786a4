"""How collectives are written so that the TPU's compiler keeps them, and does not make others of them.

All of it was measured by compiling modules ahead of time (libtpu 0.0.42 and 0.0.52, slices of v4, v5e and v5p), and
nothing of it changes what is sent, but for a few elements with which rows are filled up:

- A gather or reduce-scatter over all chips becomes an all-reduce, of twice the bytes. In two stages it stays what it
  is: a gather along the minor axes, then along the major one, a reduce-scatter the other way round.
- A reduce-scatter becomes an all-reduce and a slice where what a chip keeps is not made of whole tiles as the compiler
  lays them out: of bf16 16 rows of 128, half of which is enough along one axis, and not along two (v4 2x2x2); of 32
  bits 16 rows of any width. Of the last dimension whole lanes are kept, and nothing of fewer than 8 rows, whose tiles
  are smaller (Kimi K2, decode on v4 4x4x8). Tiles lie in the last two dimensions, so that along one before these any
  part is made of whole ones. As rows, 16 for each chip, it is kept where it would not be; where 16 do not divide what
  a chip keeps, it is filled up (GPT-3, whose vocabulary is 50,257). What is large is cut in three along one axis, in
  four along two (v4: of 2 MB for each chip, and not of 1; the logits of Gemma 3 27B), in five where a chip keeps 8 MB
  (those of its prefill on 2x4x4), and goes as 192, or as 480 where it is filled up. That is one more pass over the
  value, and a copy of it that memory counts (Megatron 530B, prefill on v4 4x4x4: 671 MB of a layer's sum over 1024
  places, which is now scattered as it is).
- A reduce-scatter over a square of four chips, one that is not the whole slice, becomes an all-reduce where what a chip
  keeps is not made of four times 1,024 elements (v4 and v5p 2x2x2, v4 2x2x4: Gemma 3 27B). One axis after the other it
  is kept.
- A gather of a single row becomes an all-reduce where the row is not made of whole lanes: of several that go as one
  (DeepSeek-V3), and of the logits of a sequence for each chip (LLaMA 3 70B, prefill of 16 on v4 4x4x4). As several rows
  it is kept.
- A gather of much is made again for each of the steps that read it where memory is short: what is gathered is taken
  for something cheap to make twice (libtpu 0.0.42, PaLM 62B, prefill on v4 2x2x2: 26 GB sent for 7 that are planned).
  Behind a barrier it is made once.
- A ragged all-to-all sends whole sublanes of each row, of 128 lanes of 32 bits (libtpu 0.0.42, v4: of gpt-oss rows of
  2,880 in bf16 as of 3,072).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

from ..ir.collective import AllGather, Collective, ReduceScatter
from ..ir.layout import Reduction
from ..ir.mesh import Mesh
from ..ir.record import record
from ..ir.spmd import SpmdValue

WHOLE_ROWS = 16  # of a tile of narrow elements: so many of the first of several dimensions a chip keeps, or a multiple
LARGE_BYTES = 2**20  # that a chip keeps: more goes in parts, of whole tiles each
MANY_ROWS = 192  # two, three or four parts of whole tiles each
FILLED_ROWS = 480  # two, three or five parts
LEAST_ROWS = 8  # of a tile: of fewer the compiler makes tiles of these
LANES = 256  # of two tiles: the last dimension is made of whole pairs, before and after
ROW_LANES = 128  # a single row that is gathered is made of whole ones
SQUARE_ELEMENTS = 4096  # of which a chip of a square of four keeps whole multiples
WIDE_BITS = 32
SUBLANE_BYTES = 512  # of 128 lanes
ONCE_BYTES = 2**25  # of what is gathered: less is not made twice


@record
class Kept:
    """What the compiler keeps, of the collectives on a mesh of a program with these values, of local sizes."""

    mesh: Mesh
    values: Mapping[str, SpmdValue]
    sizes: Mapping[str, int]

    def stages(self, axes: Sequence[str]) -> tuple[tuple[str, ...], ...]:
        """The axes of a gather or reduce-scatter in stages, those of the major one first."""
        return stages_of(axes, self.mesh)

    def scatter_stages(self, operands: Sequence[str], axes: Sequence[str]) -> tuple[tuple[str, ...], ...]:
        """The axes of a reduce-scatter of values, which go as one, in stages, those of the major one first. Of maxima,
        which go as an all-to-all, there is one; of chosen values nothing is known of what a chip keeps."""
        values = [self.values[name] for name in operands]
        if values[0].layout.reduction is Reduction.MAX:
            return (tuple(axes),)
        stages = self.stages(axes)
        if any(value.chosen for value in values) or self.kept_elements(operands, axes) % SQUARE_ELEMENTS == 0:
            return stages
        return tuple(part for stage in stages for part in _one_by_one(stage, self.mesh))

    def beside(self, operand: str, collective: Collective) -> Iterator[tuple[str, Fraction]]:
        """What a collective of a value holds beside what it reads and makes, in the order in which it does: sums laid
        out as rows, and first stages; and how many times what it reads that takes."""
        match collective:
            case ReduceScatter(axes, dim):
                if self.as_rows(operand, dim, axes):
                    yield "rows", Fraction(1)
                first, *later = self.scatter_stages([operand], axes)
                if later:
                    yield "first stage", Fraction(1, self.mesh.size(*first))
            case AllGather(axes) if len(stages := self.stages(axes)) > 1:
                yield "first stage", Fraction(self.mesh.size(*stages[-1]))

    def kept_elements(self, operands: Sequence[str], axes: Sequence[str]) -> int:
        """What each chip keeps of the sums of values that are reduce-scattered as one."""
        shapes = (self._local_shape(name) for name in operands)
        return sum(math.prod(shape) for shape in shapes) // self.mesh.size(*axes)

    def _local_shape(self, name: str) -> tuple[int, ...]:
        value = self.values[name]
        return value.layout.local_shape([self.sizes[dim] for dim in value.dims], self.mesh)

    def as_several(self, operand: str) -> bool:
        """Whether a gather of a value goes as several rows: it is a single one, which is not made of whole lanes."""
        elements = math.prod(shape := self._local_shape(operand))
        return elements == max(shape, default=0) and elements % ROW_LANES != 0 and elements % 2 == 0

    def once(self, operand: str, axes: Sequence[str]) -> bool:
        """Whether what a gather of a value along some axes gives goes through a barrier."""
        elements = math.prod(self._local_shape(operand)) * self.mesh.size(*axes)
        return elements * self.values[operand].dtype.bits >= ONCE_BYTES * 8

    def as_rows(self, operand: str, dim: int, axes: Sequence[str]) -> bool:
        """Whether a reduce-scatter along dimension `dim` of a value, of dims that are not dropped, goes as rows."""
        value = self.values[operand]
        if value.layout.reduction is Reduction.MAX:
            return False  # which goes as an all-to-all
        wide = value.dtype.bits >= WIDE_BITS
        dims = [i for i, name in enumerate(value.dims) if self.sizes[name] > 1]
        local = [self.sizes[value.dims[i]] // self.mesh.size(*value.layout.dims[i]) for i in dims]
        own = local[dims.index(dim)] // self.mesh.size(*axes)
        if len(local) == 1:
            return True
        if dims[-1] == dim:
            lanes = LANES // 2 if wide else LANES
            return own % lanes != 0 or local[-1] % lanes != 0 or local[-2] < LEAST_ROWS
        rows = own if dims[-2] == dim or own % WHOLE_ROWS == 0 else local[-2]
        return rows % WHOLE_ROWS != 0 or (not wide and local[-1] % LANES != 0)


def filled(elements: int, bits: int) -> int:
    """How many elements of so many bits a reduce-scatter as rows sends where a chip keeps so many."""
    many = FILLED_ROWS if elements % MANY_ROWS else MANY_ROWS
    rows = WHOLE_ROWS if elements * bits <= LARGE_BYTES * 8 else many
    return -(-elements // rows) * rows


def _one_by_one(axes: Sequence[str], mesh: Mesh) -> tuple[tuple[str, ...], ...]:
    """The axes of a square of four chips, each by itself; others as they are."""
    own = tuple(axis for axis in axes if mesh.size(axis) > 1)
    square = [mesh.size(axis) for axis in own] == [2, 2]
    return tuple((axis,) for axis in own) if square else (tuple(axes),)


def ragged_bytes(row_bytes: Fraction) -> Fraction:
    """What a ragged all-to-all sends of a row."""
    return Fraction(math.ceil(row_bytes / SUBLANE_BYTES) * SUBLANE_BYTES)


def stages_of(axes: Sequence[str], mesh: Mesh) -> tuple[tuple[str, ...], ...]:
    """As `Kept.stages`."""
    own = tuple(axis for axis in axes if mesh.size(axis) > 1)
    if len(own) > 1 and mesh.size(*own) == mesh.chips:
        return own[:1], own[1:]
    return (tuple(axes),)
