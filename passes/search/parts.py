"""Axes in parts: the meshes whose axes are split up to be searched, and plans with the parts that they do not use put
together again.

Split further, a mesh has all the plans that it had: whatever an axis did its parts do together. So the plan of a mesh
in parts says which parts it takes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import isqrt

from ...cost.network import Network
from ...ir.collective import CollectiveKind, kind
from ...ir.layout import Layout
from ...ir.mesh import Mesh, part_of
from ...ir.program import Op, Pin, Program, Region, Repeat, signature
from ..layouts.mesh_order import count
from ..layouts.reshard import collective
from ..layouts.space import Orders
from ..plan import HandoverPlan, Leg, PhasePlan, Plan, Tree
from .rename_axes import layout_on, renamed

FINE = 4  # chips along a part, of which smaller parts are worth looking at only where there are few axes
FEW, MANY = 4, 6  # axes
MOST = 200_000  # layouts and strategies, see `count`: some ten seconds
KINDS_IN_STEPS = (CollectiveKind.SLICE, CollectiveKind.EMBED)  # free, and planned axis by axis


def in_parts(programs: Mapping[str, Program], mesh: Mesh) -> Mesh:
    """The mesh with its axes in as many parts as can be searched in time, the longest split first, each as evenly as
    its size allows, the smaller part outside. Axes that have parts keep these. `programs`: what each phase runs."""
    given = {part_of(name) for name in mesh.names if part_of(name) != name}
    while True:
        finer = _finer(mesh, given)
        if finer is None or count(programs, finer, Orders.MESH) > MOST:
            return mesh
        mesh = finer


def _finer(mesh: Mesh, given: Collection[str]) -> Mesh | None:
    """The mesh with its longest part in two, of those of the axis with the fewest parts; None where none is long, or
    there are many. Axes that are `given` stay."""
    live = sum(size > 1 for size in mesh.sizes)
    if live >= MANY:
        return None
    best: tuple[int, int, str, int] | None = None
    for name, size in mesh.axes:
        outer = max((k for k in range(2, isqrt(size) + 1) if size % k == 0), default=1)
        if outer > 1 and part_of(name) not in given and (size > FINE or live < FEW):
            key = (-size, len(mesh.parts(part_of(name))), name, outer)
            best = key if best is None else min(best, key)
    if best is None:
        return None
    _, _, name, outer = best
    axis = part_of(name)
    sizes = [k for part in mesh.parts(axis) for k in _halves(part, mesh.size(part), name, outer)]
    return mesh.in_parts(axis, sizes)


def _halves(part: str, size: int, split: str, outer: int) -> list[int]:
    return [outer, size // outer] if part == split else [size]


def pins_in_parts(pins: Sequence[Pin], mesh: Mesh) -> tuple[Pin, ...]:
    """Pins whose whole axes are those of the mesh, in its parts."""
    return tuple(replace(pin, layout=layout_on(pin.layout, lambda axis: mesh.parts(axis) or (axis,))) for pin in pins)


def with_whole_axes(plan: Plan, network: Network) -> Plan:
    """A plan with neighbouring parts put together that nothing in it tells apart. `network`: that of its mesh."""
    plan = _in_long_steps(plan)
    layouts = list(_layouts(plan))
    runs: list[list[str]] = []
    for name in plan.mesh.names:
        before = runs[-1][-1] if runs else None
        if before is not None and part_of(before) == part_of(name) and _as_one(before, name, layouts, network):
            runs[-1].append(name)
        else:
            runs.append([name])
    mesh, names = plan.mesh, dict[str, str]()
    for axis in dict.fromkeys(map(part_of, mesh.names)):
        own = [run for run in runs if part_of(run[0]) == axis]
        mesh = mesh.in_parts(axis, [plan.mesh.size(*run) for run in own])
        names |= {run[0]: new for run, new in zip(own, mesh.parts(axis), strict=True)}
    return replace(renamed(plan, lambda axis: (names[axis],) if axis in names else ()), mesh=mesh)


def _as_one(first: str, second: str, layouts: Sequence[Layout], network: Network) -> bool:
    """Whether two neighbouring parts are used as one by all layouts, and cost what one would."""
    if not network.joins(first, second):
        return False
    for layout in layouts:
        side_by_side = any((first, second) in pairwise(dim) for dim in layout.dims)
        both = {first, second} & {*layout.partial, *layout.split_axes}
        if both and not side_by_side and not {first, second} <= set(layout.partial):
            return False
    return True


def _layouts(plan: Plan) -> Iterator[Layout]:
    """Every layout that a plan has anything in."""
    yield from (layout for _, layout in plan.stored)
    for phase in plan.phases:
        yield from (layout for op in phase.ops for layout in (*op.uses, op.layout))
        yield from (layout for _, layout in (*phase.carries, *phase.results))
    moved: tuple[PhasePlan | HandoverPlan, ...] = (*plan.phases, *plan.handovers)
    for tree in (tree for part in moved for tree in part.trees):
        yield tree.root
        yield from (leg.after for leg in tree.legs)


def _in_long_steps(plan: Plan) -> Plan:
    """A plan whose free steps take several axes at once where nothing reads what is between them."""

    def phase(old: PhasePlan) -> PhasePlan:
        read = _read(old)
        return replace(old, trees=tuple(_long_steps(tree, read.get(tree.value, set())) for tree in old.trees))

    def handover(old: HandoverPlan) -> HandoverPlan:
        ends = {tree.value: {leg.after for leg in tree.legs} - {leg.before for leg in tree.legs} for tree in old.trees}
        return replace(old, trees=tuple(_long_steps(tree, ends[tree.value]) for tree in old.trees))

    return replace(plan, phases=tuple(map(phase, plan.phases)), handovers=tuple(map(handover, plan.handovers)))


def _long_steps(tree: Tree, read: Collection[Layout]) -> Tree:
    legs = list(tree.legs)
    for first, second in ((a, b) for b in tree.legs for a in tree.legs if a.after == b.before):
        first = next((leg for leg in legs if leg.after == first.after), first)
        same = kind(first.collective) is kind(second.collective) and kind(first.collective) in KINDS_IN_STEPS
        onward = [leg for leg in legs if leg.before == first.after]
        if same and onward == [second] and first.after not in read and _on_one_dim(first.before, second.after):
            joined = collective(kind(first.collective), first.before, second.after)
            legs[legs.index(second)] = Leg(first.before, second.after, joined)
            legs.remove(first)
    return Tree(tree.value, tree.root, tuple(legs))


def _on_one_dim(before: Layout, after: Layout) -> bool:
    """Whether at most one dim is split otherwise, and if so by more axes or by fewer at its minor end."""
    changed = [(a, b) for a, b in zip(before.dims, after.dims, strict=True) if a != b]
    return len(changed) <= 1 and all(a[: len(b)] == b[: len(a)] for a, b in changed)


def _read(phase: PhasePlan) -> dict[str, set[Layout]]:
    """The layouts in which the values of a phase are read."""
    out: dict[str, set[Layout]] = {}
    for name, layout in phase.results:
        out.setdefault(name, set()).add(layout)
    carried, ops, table = dict(phase.carries), {op.result: op for op in phase.ops}, phase.program.table()

    def region(body: Region[Op]) -> None:
        for item in body.items:
            if isinstance(item, Repeat):
                for carry in item.carries:
                    for name in (carry.initial, carry.next):
                        out.setdefault(name, set()).add(carried[carry.inside])
                region(item.body)
            else:
                for use, layout in zip(signature(item, table).uses, ops[item.result].uses, strict=True):
                    out.setdefault(use.value, set()).add(layout)

    region(phase.program.body)
    return out
