"""In which layouts values lie as one stage hands them to the next, and in which they are said to lie."""

from __future__ import annotations

from collections.abc import Sequence

from ...ir.layout import Layout, format_layout
from ...ir.program import Pin, PinKind, Program
from ...ir.record import record

Ends = tuple[tuple[str, tuple[Layout, ...]], ...]  # for each phase the layouts of what is handed on


@record
class Lies:
    """The value of a `place` among those that are handed on lies in a layout in a phase; in any other one where it is
    not `held` there."""

    phase: str
    place: int
    layout: Layout
    held: bool

    def true_of(self, ends: Ends) -> bool:
        """Whether values lie so."""
        return (dict(ends)[self.phase][self.place] == self.layout) == self.held

    def pin(self, program: Program, names: Sequence[str]) -> Pin:
        """The layout of the value, of those that a stage calls by `names`, as a pin."""
        name = names[self.place]
        text = f"{name}: {format_layout(program.table()[name].dims, self.layout)}"
        return Pin(PinKind.STORED, name, None, self.layout, text, self.phase)


Boundary = frozenset[Lies]  # what is said of the values between two stages
ANY: Boundary = frozenset()


def pins(boundary: Boundary, program: Program, names: Sequence[str], held: bool) -> tuple[Pin, ...]:
    """What is said of values that a stage calls by `names`: where they are held, or where they are not to lie."""
    found = (one.pin(program, names) for one in boundary if one.held == held)
    return tuple(sorted(found, key=lambda pin: (str(pin.phase), pin.text)))


def apart(handed: Ends, taken: Ends) -> tuple[Lies, Lies] | None:
    """The first value that a stage hands on otherwise than the next one takes it: how it does, and how that does."""
    for (phase, ours), (_, theirs) in zip(handed, taken, strict=True):
        for place, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            if one != other:
                return Lies(phase, place, one, True), Lies(phase, place, other, True)
    return None
