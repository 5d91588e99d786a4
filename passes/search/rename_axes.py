"""Plans on other axes: every layout in them with other names in the place of each axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ...ir.collective import kind
from ...ir.layout import Layout
from ..layouts.reshard import collective
from ..plan import Leg, OpPlan, PhasePlan, Plan, Tree

Names = Callable[[str], tuple[str, ...]]  # what comes in the place of an axis, major to minor


def layout_on(layout: Layout, names: Names) -> Layout:
    """A layout with other axes in the place of each."""
    dims = tuple(tuple(new for axis in dim for new in names(axis)) for dim in layout.dims)
    return Layout(dims, tuple(sorted(new for axis in layout.partial for new in names(axis))), layout.reduction)


def renamed(plan: Plan, names: Names) -> Plan:
    """A plan with other axes in the place of each, on the mesh that it has."""

    def layout(old: Layout) -> Layout:
        return layout_on(old, names)

    def trees(old: Sequence[Tree]) -> tuple[Tree, ...]:
        return tuple(Tree(t.value, layout(t.root), tuple(map(leg, t.legs))) for t in old)

    def leg(old: Leg) -> Leg:
        before, after = layout(old.before), layout(old.after)
        return Leg(before, after, collective(kind(old.collective), before, after), old.group)

    def phase(old: PhasePlan) -> PhasePlan:
        return replace(
            old,
            ops=tuple(OpPlan(o.result, tuple(map(layout, o.uses)), layout(o.layout)) for o in old.ops),
            trees=trees(old.trees),
            carries=tuple((name, layout(one)) for name, one in old.carries),
            results=tuple((name, layout(one)) for name, one in old.results),
        )

    stored = tuple((name, layout(one)) for name, one in plan.stored)
    handovers = tuple(replace(h, trees=trees(h.trees)) for h in plan.handovers)
    return replace(plan, stored=stored, phases=tuple(map(phase, plan.phases)), handovers=handovers)
