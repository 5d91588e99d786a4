"""Handovers spelled out: caches on their way from one phase to the next, as sharded programs.

A handover stores what the phase before it leaves, in that phase's sizes, and moves it to where the
phase after it goes on. A dim that is longer there is whole on every chip in the end: its owners write
what is new to them.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...ir.program import Op, Program, Region, Repeat, Stored
from ...ir.spmd import Move, SpmdProgram, SpmdValue, Step
from ..plan import Plan, Tree
from .combine_collectives import defined


def spell_handovers(program: Program, plan: Plan) -> tuple[SpmdProgram, ...]:
    """The sharded program of each handover of a plan."""
    out = []
    for handover in plan.handovers:
        trees = {tree.value: tree for tree in handover.trees}
        made: dict[str, SpmdValue] = {}
        body = _region(program, program.body, trees, made)
        values = tuple(made[name] for name in defined(body))
        sizes = program.phase(handover.before).sizes
        name = f"{handover.before} to {handover.after}"
        out.append(SpmdProgram(program.name, name, plan.mesh, sizes, values, body, ()))
    return tuple(out)


def _region(
    program: Program, region: Region[Op], trees: Mapping[str, Tree], made: dict[str, SpmdValue]
) -> Region[Step]:
    table = program.table()
    stored: list[Stored] = []
    items: list[Step | Repeat[Step]] = []
    for cache in (s for s in region.stored if s.value in trees):
        tree, value = trees[cache.value], table[cache.value]
        stored.append(cache)
        names = {tree.root: value.name}
        made[value.name] = SpmdValue(value.name, value.dims, value.dtype, tree.root)
        for leg in tree.legs:
            fresh = names[leg.before] + "'"
            while fresh in made:
                fresh += "'"
            names[leg.after] = fresh
            made[fresh] = SpmdValue(fresh, value.dims, value.dtype, leg.after)
            items.append(Move(fresh, names[leg.before], leg.collective))
    for item in region.items:
        if isinstance(item, Repeat):
            body = _region(program, item.body, trees, made)
            if body.stored:
                items.append(Repeat(item.name, item.count, (), body))
    return Region(tuple(stored), tuple(items))
