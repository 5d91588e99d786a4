"""The host of virtual chips: what these hold of streamed tensors comes from it, part by part, and is counted.

Parts are cut from whole arrays and gathered again, and what a chip then has must be what its layout says.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from ...ir.spmd import SpmdProgram
from ...ir.streams import HostTensor, host_tensors
from .numpy_runtime import Mesh
from .pointwise import Array


@dataclass
class Host:
    """Streams what it has, and counts. `in_bytes`, `out_bytes`: what has come to the busiest chip, and gone back."""

    spmd: SpmdProgram
    mesh: Mesh

    def __post_init__(self) -> None:
        self.tensors = host_tensors(self.spmd)
        self.sizes = dict(self.spmd.sizes)
        self.repetition: dict[str, int] = {}
        self.in_bytes = self.out_bytes = Fraction(0)

    def load(self, name: str, whole: Array) -> Array | None:
        """What chips have of the next repetition of a tensor once it has come; None where they hold it."""
        if name not in self.tensors:
            return None
        tensor = self.tensors[name]
        at = self.repetition[name] = self.repetition.get(name, -1) + 1
        if not _comes(tensor, at):
            return None
        parts = self.mesh.shard(whole, tensor.parts.dims)
        if not self._overwritten(tensor):
            self.in_bytes += self._size(tensor, parts)
        for dim, axes in tensor.gathers:
            parts = self.mesh.all_gather(parts, axes, dim)
        return parts

    def send_back(self, name: str, after: Array) -> None:
        """Count what chips send back of this repetition of a cache, which they hold as it is `after` its append: the
        places in which a chip can have something new."""
        if name not in self.tensors or not _comes(self.tensors[name], self.repetition[name]):
            return
        tensor = self.tensors[name]
        assert tensor.append is not None
        axis = tensor.value.dims.index(tensor.append.target)
        new, local = self.sizes[tensor.append.source], after.shape[len(self.mesh.shape) + axis]
        some = new if tensor.append.context is None or new == 1 else local
        parts = self.mesh.shard(np.zeros([self.sizes[d] for d in tensor.value.dims]), tensor.parts.dims)
        self.out_bytes += self._size(tensor, parts) * min(some, local) / local

    def _overwritten(self, tensor: HostTensor) -> bool:
        append = tensor.append
        return append is not None and self.sizes[append.source] == self.sizes[append.target]

    def _size(self, tensor: HostTensor, shards: Array) -> Fraction:
        """The bytes of one shard."""
        elements = int(np.prod(shards.shape[len(self.mesh.shape) :]))
        return Fraction(elements * tensor.value.dtype.bits, 8)


def _comes(tensor: HostTensor, at: int) -> bool:
    """Whether a repetition is one of those that are streamed, which stand evenly among the others."""
    streamed, times = tensor.streamed.count, tensor.times
    return (at + 1) * streamed // times > at * streamed // times
