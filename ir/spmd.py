"""The sharded program: what every chip runs, with collectives explicit and a layout for every value.

A type of its own, not a Program with layouts added: no reshard is left abstract here, and nothing
here is chosen any more.
"""

from __future__ import annotations

from .chosen import Chosen
from .collective import Collective
from .dtype import Dtype
from .layout import Layout
from .mesh import Mesh
from .program import Op, Program, Region, Repeat, Value
from .record import record


@record
class SpmdValue:
    """A value and the layout in which the chips hold it."""

    name: str
    dims: tuple[str, ...]
    dtype: Dtype
    layout: Layout
    chosen: tuple[Chosen, ...] = ()

    @property
    def value(self) -> Value:
        """The value without its layout."""
        return Value(self.name, self.dims, self.dtype, self.chosen)

    def axes(self, dim: str) -> tuple[str, ...]:
        """The axes that split one of its dims."""
        return self.layout.dims[self.dims.index(dim)]


@record
class Compute:
    """An op on local shards. Its operands and result are values of the sharded program.

    `joined`: it runs as one with the step before it. Einsums so joined read one value and contract
    the same indices: one matmul, of weights side by side. `looped`: it runs in one loop with the step
    before it (ir.verify.fused).
    """

    op: Op
    joined: bool = False
    looped: bool = False

    @property
    def result(self) -> str:
        """The value that it makes."""
        return self.op.result


@record
class Move:
    """`result` is `operand` after one collective.

    `joined`: it is part of the collective before it, which is of the same kind and over the same
    axes: their bytes add, and the latency is paid once (see Network.collective_s). `looped`: it runs in
    one loop with the step before it (ir.verify.fused).
    """

    result: str
    operand: str
    collective: Collective
    joined: bool = False
    looped: bool = False


Step = Compute | Move


@record
class SpmdProgram:
    """One phase of a program on one mesh.

    `sizes` binds every dim. `micro_batches`, `mean`: as of a phase. Invariants: see passes in ir.verify, which checks
    them all.
    """

    name: str
    phase: str
    mesh: Mesh
    sizes: tuple[tuple[str, int], ...]
    values: tuple[SpmdValue, ...]
    body: Region[Step]
    results: tuple[str, ...]
    micro_batches: int = 1
    mean: tuple[tuple[str, int], ...] = ()

    def table(self) -> dict[str, SpmdValue]:
        """The values by name."""
        return {v.name: v for v in self.values}


def as_steps(region: Region[Op]) -> Region[Step]:
    """The ops of a region as steps that run one by one."""
    items = (
        Repeat(i.name, i.count, i.carries, as_steps(i.body)) if isinstance(i, Repeat) else Compute(i)
        for i in region.items
    )
    return Region(region.stored, tuple(items))


def unsharded(program: Program, phase: str, mesh: Mesh) -> SpmdProgram:
    """A program with every value whole on every chip, so that nothing ever moves."""
    values = tuple(SpmdValue(v.name, v.dims, v.dtype, Layout(((),) * len(v.dims)), v.chosen) for v in program.values)
    bound, body = program.phase(phase), as_steps(program.body)
    beside = bound.micro_batches, bound.mean
    return SpmdProgram(program.name, phase, mesh, bound.sizes, values, body, program.results, *beside)
