"""What a run on virtual chips showed, without what it takes to run: reports speak of it, and few plans are run."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from ...ir.record import record

if TYPE_CHECKING:
    from .finite import NotFinite

ERROR_TOLERANCE = 1e-9  # relative, between a sharded program and its reference, in float64


@record
class MoveCheck:
    """One Move: how often it ran, and the bytes that a chip sends each time. `even`: whether no chip can have more of
    what is chosen than another."""

    result: str
    times: int
    counted: Fraction
    predicted: Fraction
    even: bool = True

    @property
    def equal(self) -> bool:
        """Whether what was predicted was sent, as far as that can be told."""
        return self.counted == self.predicted or not self.even


@record
class HostCheck:
    """The bytes that came to a chip from its host in the whole program, and that went back."""

    counted: tuple[Fraction, Fraction]
    predicted: tuple[Fraction, Fraction]

    @property
    def equal(self) -> bool:
        """Whether what was predicted came and went."""
        return self.counted == self.predicted


@record
class CheckReport:
    """What a run on virtual chips showed.

    `max_error`: the largest difference from the reference, relative to the largest finite element of the
    result it occurs in; NaN is equal to NaN, and infinity to itself. `sizes`, `repeats`: the shrunken
    dims and counts, by name. Bytes are sent per chip by the whole shrunken program, at declared
    dtypes; `host`: those that came from the host and went back. `equal`: every Move sends what was predicted, and so
    does the host. `not_finite`: where numbers stop being finite,
    None where all results are.
    """

    max_error: float
    chips: int
    sizes: tuple[tuple[str, int], ...]
    repeats: tuple[tuple[str, int], ...]
    moves: tuple[MoveCheck, ...]
    host: HostCheck
    not_finite: NotFinite | None = None

    @property
    def counted_bytes(self) -> Fraction:
        """Bytes that a chip sent."""
        return sum((m.times * m.counted for m in self.moves), Fraction(0))

    @property
    def predicted_bytes(self) -> Fraction:
        """Bytes that the formula says."""
        return sum((m.times * m.predicted for m in self.moves), Fraction(0))

    @property
    def equal(self) -> bool:
        """Whether counted and predicted bytes are equal, Move by Move, and those of the host."""
        return self.host.equal and all(m.equal for m in self.moves)
