"""The sharded program: what every chip runs, with collectives explicit and a layout for every value.

A type of its own, not a Program with layouts added: no reshard is left abstract here, and nothing
here is chosen any more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .collective import Collective
from .dtype import Dtype
from .layout import Layout
from .mesh import Mesh
from .program import Carry, Op, Stored, Value


@dataclass(frozen=True)
class SpmdValue:
    """A value and the layout in which the chips hold it."""

    name: str
    dims: tuple[str, ...]
    dtype: Dtype
    layout: Layout

    @property
    def value(self) -> Value:
        """The value without its layout."""
        return Value(self.name, self.dims, self.dtype)


@dataclass(frozen=True)
class Compute:
    """An op on local shards. Its operands and result are values of the sharded program.

    `joined`: it runs as one with the step before it. Einsums so joined read one value and contract
    the same indices: one matmul, of weights side by side. `looped`: it runs in one loop with the step
    before it (ir.looped).
    """

    op: Op
    joined: bool = False
    looped: bool = False

    @property
    def result(self) -> str:
        """The value that it makes."""
        return self.op.result


@dataclass(frozen=True)
class Move:
    """`result` is `operand` after one collective.

    `joined`: it is part of the collective before it, which is of the same kind and over the same
    axes: their bytes add, and the latency is paid once. `looped`: it runs in one loop with the step
    before it (ir.looped).
    """

    result: str
    operand: str
    collective: Collective
    joined: bool = False
    looped: bool = False


Step = Compute | Move


@dataclass(frozen=True)
class SpmdRegion:
    """What is stored, then what runs, in order."""

    stored: tuple[Stored, ...]
    items: tuple[Step | SpmdRepeat, ...]


@dataclass(frozen=True)
class SpmdRepeat:
    """A region applied `count` times. A carry enters and leaves in one layout."""

    name: str
    count: int
    carries: tuple[Carry, ...]
    body: SpmdRegion


@dataclass(frozen=True)
class SpmdProgram:
    """One phase of a program on one mesh.

    `sizes` binds every dim. Invariants: see passes in ir.verify, which checks them all.
    """

    name: str
    phase: str
    mesh: Mesh
    sizes: tuple[tuple[str, int], ...]
    values: tuple[SpmdValue, ...]
    body: SpmdRegion
    results: tuple[str, ...]

    def table(self) -> dict[str, SpmdValue]:
        """The values by name."""
        return {v.name: v for v in self.values}


@dataclass(frozen=True)
class PlacedStep:
    """A step or stored tensor and the repeats around it, outermost first."""

    item: Step | SpmdRepeat | Stored
    repeats: tuple[SpmdRepeat, ...]

    @property
    def times(self) -> int:
        """How often it runs."""
        times = 1
        for repeat in self.repeats:
            times *= repeat.count
        return times


def walk_spmd(region: SpmdRegion, repeats: tuple[SpmdRepeat, ...] = ()) -> Iterator[PlacedStep]:
    """Everything in a region and below it, in order; a repeat comes before what is in it."""
    for stored in region.stored:
        yield PlacedStep(stored, repeats)
    for item in region.items:
        yield PlacedStep(item, repeats)
        if isinstance(item, SpmdRepeat):
            yield from walk_spmd(item.body, (*repeats, item))
