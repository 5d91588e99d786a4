"""How collectives are written so that the TPU's compiler keeps them, and does not make others of them.

All of it was measured by compiling modules ahead of time (libtpu 0.0.42 and 0.0.52, slices of v4, v5e and v5p), and
nothing of it changes what is sent:

- A gather or reduce-scatter over all chips becomes an all-reduce, of twice the bytes. In two stages it stays what it
  is: a gather along the minor axes, then along the major one, a reduce-scatter the other way round.
- A reduce-scatter of elements of fewer than 32 bits becomes an all-reduce and a slice where what a chip keeps is not
  made of whole tiles as the compiler lays them out: of bf16 16 rows of 128, half of which is enough
  along one axis, and not along two (v4 2x2x2). Tiles lie in the last two dimensions, so that along one before these
  any part is made of whole ones. As rows, 16 for each chip, it is kept where it would not be. That is one more pass
  over the value, and a copy of it that memory counts (Megatron 530B, prefill on v4 4x4x4: 671 MB of a layer's
  sum over 1024 places, which is now scattered as it is).
- A gather of much is made again for each of the steps that read it where memory is short: what is gathered is taken
  for something cheap to make twice (libtpu 0.0.42, PaLM 62B, prefill on v4 2x2x2: 26 GB sent for 7 that are planned).
  Behind a barrier it is made once.
- A ragged all-to-all sends whole sublanes of each row, of 128 lanes of 32 bits (libtpu 0.0.42, v4: of gpt-oss rows of
  2,880 in bf16 as of 3,072).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from ..ir.layout import Reduction
from ..ir.mesh import Mesh
from ..ir.spmd import SpmdValue

WHOLE_ROWS = 16  # of a tile of narrow elements: so many of the first of several dimensions a chip keeps, or a multiple
LANES = 256  # of two tiles: the last dimension is made of whole pairs, before and after
WIDE_BITS = 32
SUBLANE_BYTES = 512  # of 128 lanes
ONCE_BYTES = 2**25  # of what is gathered: less is not made twice


@dataclass(frozen=True)
class Kept:
    """What the compiler keeps, of the collectives on a mesh of a program with these values, of local sizes."""

    mesh: Mesh
    values: Mapping[str, SpmdValue]
    sizes: Mapping[str, int]

    def stages(self, axes: Sequence[str]) -> tuple[tuple[str, ...], ...]:
        """The axes of a gather or reduce-scatter in stages, those of the major one first."""
        return stages_of(axes, self.mesh)

    def once(self, operand: str, axes: Sequence[str]) -> bool:
        """Whether what a gather of a value along some axes gives goes through a barrier."""
        value = self.values[operand]
        shape = value.layout.local_shape([self.sizes[dim] for dim in value.dims], self.mesh)
        return math.prod(shape) * self.mesh.size(*axes) * value.dtype.bits >= ONCE_BYTES * 8

    def as_rows(self, operand: str, dim: int, axes: Sequence[str]) -> bool:
        """Whether a reduce-scatter along dimension `dim` of a value, of dims that are not dropped, goes as rows."""
        value = self.values[operand]
        if value.dtype.bits >= WIDE_BITS or value.layout.reduction is Reduction.MAX:
            return False  # a maximum goes as an all-to-all
        dims = [i for i, name in enumerate(value.dims) if self.sizes[name] > 1]
        local = [self.sizes[value.dims[i]] // self.mesh.size(*value.layout.dims[i]) for i in dims]
        own = local[dims.index(dim)] // self.mesh.size(*axes)
        if len(local) == 1:
            return True
        if dims[-1] == dim:
            return own % LANES != 0 or local[-1] % LANES != 0
        rows = own if dims[-2] == dim or own % WHOLE_ROWS == 0 else local[-2]
        return rows % WHOLE_ROWS != 0 or local[-1] % LANES != 0


def ragged_bytes(row_bytes: Fraction) -> Fraction:
    """What a ragged all-to-all sends of a row."""
    return Fraction(math.ceil(row_bytes / SUBLANE_BYTES) * SUBLANE_BYTES)


def stages_of(axes: Sequence[str], mesh: Mesh) -> tuple[tuple[str, ...], ...]:
    """As `Kept.stages`."""
    own = tuple(axis for axis in axes if mesh.size(axis) > 1)
    if len(own) > 1 and mesh.size(*own) == mesh.chips:
        return own[:1], own[1:]
    return (tuple(axes),)
