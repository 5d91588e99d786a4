"""Plain names: of the plans that differ only by the names of axes that are alike, the one that reads best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import permutations, product

from ...ir.collective import kind
from ...ir.layout import Layout
from ..layouts.reshard import collective
from ..plan import Leg, OpPlan, PhasePlan, Plan, Tree


def with_plainest_axes(plan: Plan, alike: Sequence[Sequence[str]]) -> Plan:
    """The image of a plan under renamings of the axes in each group of `alike` whose layouts have
    their axes most nearly in mesh order: `E_xF_yz` before `E_zF_yx`. Stored layouts count first."""
    images = [_renamed(plan, mapping) for mapping in _mappings(alike)]
    return min(images, key=_key)


def _mappings(alike: Sequence[Sequence[str]]) -> list[dict[str, str]]:
    choices = product(*(permutations(group) for group in alike))
    return [
        {a: b for group, image in zip(alike, images, strict=True) for a, b in zip(group, image, strict=True)}
        for images in choices
    ]


def _key(plan: Plan) -> tuple[int, int, tuple[tuple[tuple[str, ...], ...], ...]]:
    order = {name: i for i, name in enumerate(plan.mesh.names)}
    ops = [op.layout for phase in plan.phases for op in phase.ops]
    stored = [layout for _, layout in plan.stored]
    text = tuple(layout.dims for layout in stored + ops)
    return sum(_inversions(s, order) for s in stored), sum(_inversions(o, order) for o in ops), text


def _inversions(layout: Layout, order: Mapping[str, int]) -> int:
    places = [order[a] for axes in layout.dims for a in axes]
    return sum(a > b for i, a in enumerate(places) for b in places[i + 1 :])


def _renamed(plan: Plan, names: Mapping[str, str]) -> Plan:
    def layout(old: Layout) -> Layout:
        dims = tuple(tuple(names.get(a, a) for a in axes) for axes in old.dims)
        return Layout(dims, tuple(sorted(names.get(a, a) for a in old.partial)), old.reduction)

    def leg(old: Leg) -> Leg:
        before, after = layout(old.before), layout(old.after)
        return Leg(before, after, collective(kind(old.collective), before, after), old.group)

    def phase(old: PhasePlan) -> PhasePlan:
        return replace(
            old,
            ops=tuple(OpPlan(o.result, tuple(map(layout, o.uses)), layout(o.layout)) for o in old.ops),
            trees=trees(old.trees),
            carries=tuple((name, layout(old_layout)) for name, old_layout in old.carries),
            results=tuple((name, layout(old_layout)) for name, old_layout in old.results),
        )

    def trees(old: Sequence[Tree]) -> tuple[Tree, ...]:
        return tuple(Tree(t.value, layout(t.root), tuple(map(leg, t.legs))) for t in old)

    stored = tuple((name, layout(old_layout)) for name, old_layout in plan.stored)
    handovers = tuple(replace(h, trees=trees(h.trees)) for h in plan.handovers)
    return replace(plan, stored=stored, phases=tuple(map(phase, plan.phases)), handovers=handovers)
