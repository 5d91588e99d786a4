"""What chips store and what comes to them with sets of tensors streamed, of all sets and counts of layers at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..ir.mesh import Mesh
from ..ir.program import Kind, Op, Placed, Program, Stored, stored_in
from ..ir.record import record
from ..ir.streams import copies_held, sets_of
from .hardware import Hardware
from .streams import CopyBytes, hosted_s

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
StoredIn = Mapping[Stored, Placed[Op]]  # what is stored, and where


def stored_by_count(programs: Sequence[Program]) -> tuple[StoredIn, ...]:
    """What each of some programs stores, which differ in how many layers of it are streamed."""
    return tuple(stored_in(program.body, Kind.PARAM, Kind.CACHE) for program in programs)


@record
class StreamedSets:
    """A phase of a program of which some tensors may be streamed. `stored`: the bytes that a chip stores with none of
    them streamed. Arrays [counts, tensors], by counts of layers: the bytes that one of them frees where it is streamed,
    and of it what lies with the host for a chip, what comes in a call and goes back."""

    stored: float
    freed: Floats
    hosted: Floats
    into: Floats
    out: Floats

    @classmethod
    def of(
        cls, names: Sequence[str], every: Sequence[StoredIn], copies: Mapping[str, CopyBytes], micro_batches: int
    ) -> StreamedSets:
        """Of tensors called `names`, all of which `every` streams in some count of layers each; `copies`: what is known
        of each stored tensor, `micro_batches`: how many take turns."""
        alone = {
            one.value: copies_held(replace(one, streamed=None), placed.repeats, micro_batches)
            for one, placed in every[0].items()
        }
        freed, hosted, into, out = (np.zeros((len(every), len(names))) for _ in range(4))
        for count, streamed in enumerate(every):
            for one, placed in streamed.items():
                if one.streamed is None or one.value not in names:
                    continue
                at, size, many = (count, names.index(one.value)), copies[one.value], one.streamed.count
                freed[at] = (alone[one.value] - copies_held(one, placed.repeats, micro_batches)) * size.stored
                hosted[at] = many * sets_of(one, micro_batches) * size.hosted
                into[at], out[at] = many * size.into, many * size.out
        return cls(sum(n * copies[name].stored for name, n in alone.items()), freed, hosted, into, out)

    def stored_bytes(self, members: Bools) -> Floats:
        """What a chip stores [sets, counts] with the tensors of each set streamed, `members` [sets, tensors]."""
        return self.stored - members @ self.freed.T

    def fetched_s(self, members: Bools, mesh: Mesh, hardware: Hardware, stages: int = 1) -> Floats:
        """What they take to come to the chips of a mesh and to go back [sets, counts], as `hosted_s` has it."""
        hosted, into, out = (members @ one.T for one in (self.hosted, self.into, self.out))
        return np.asarray(hosted_s(hosted, into, out, mesh, hardware, stages), dtype=np.float64)
