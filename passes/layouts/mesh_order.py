"""Which layouts are looked at: all there are, or where these are too many those whose axes stand in mesh order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

from ...ir.layout import Layout
from ...ir.mesh import Mesh
from ...ir.program import Program, Repeat, Stored, signature, walk
from .partial import partial_axes
from .space import NONE, Order, Orders, count_layouts
from .strategies import count_strategies, live_axes

FEW_AXES = 3  # of which all layouts are looked at, whatever there are
MOST = 75_000  # layouts, over all uses of all values, and strategies, of which all are looked at
MOST_CYCLIC = 65_000  # of those in mesh order from any axis on
MOST_ALIKE = 300_000  # of those where alike axes stand in the order of the dims as well, which leaves far fewer


def mesh_order(
    programs: Mapping[str, Program], mesh: Mesh, alike: Sequence[Sequence[str]], pinned: Iterable[Layout]
) -> Order | None:
    """The order that axes keep to in the layouts that are looked at; None where all layouts are.

    `programs`: what each phase runs. `alike`: groups of axes that can change places in any plan. Axes that `pinned`
    layouts have in another order are loose.
    """
    axes = live_axes(mesh)
    if len(axes) <= FEW_AXES or count(programs, mesh, Orders.ANY) <= MOST:
        return None
    number = {name: n for n, (name, _) in enumerate(axes)}
    loose = {
        after
        for layout in pinned
        for dim in layout.dims
        for before, after in combinations([number[a] for a in dim if a in number], 2)
        if before > after
    }
    every = range(len(axes))
    kept = tuple(a in loose for a in every)
    cyclic = count(programs, mesh, Orders.CYCLIC)
    if cyclic <= MOST_CYCLIC:
        return Order(kept, (NONE,) * len(axes), cyclic=True)
    classes = {number[name]: n for n, group in enumerate(alike) for name in group if len(group) > 1}
    return Order(kept, tuple(classes.get(a, NONE) for a in every), bool(classes) and cyclic <= MOST_ALIKE)


def count(programs: Mapping[str, Program], mesh: Mesh, orders: Orders) -> int:
    """How many layouts all uses of all values of phases have, and all ops strategies, whose axes stand in such orders
    on each dim."""
    return sum(_count(program, phase, mesh, orders) for phase, program in programs.items())


def _count(program: Program, phase: str, mesh: Mesh, orders: Orders) -> int:
    axes, total = live_axes(mesh), 0
    sizes, values = dict(program.phase(phase).sizes), program.table()
    partial = partial_axes(program, sizes, mesh)

    def layouts(value: str) -> int:
        shape = [sizes[d] for d in values[value].dims]
        return count_layouts(shape, axes, partial.sums(value), partial.maxima(value), orders)

    for placed in walk(program.body):
        match placed.item:
            case Stored(value, _):
                total += layouts(value)
            case Repeat(_, _, carries, _):
                total += sum(layouts(carry.inside) for carry in carries)
            case op:
                sig = signature(op, values)
                total += count_strategies(op, values, sizes, mesh, partial.readable(sig), orders)
                total += sum(layouts(use.value) for use in sig.uses)
    return total
