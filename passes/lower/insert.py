"""Insertion: a plan spelled out as a sharded program, with every collective in its place.

A collective runs where its value is defined, right before the first step that needs what it gives.
A copy of `n` in another layout is called `n'`, the next `n''`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from ...ir.dataflow import defined
from ...ir.layout import Layout
from ...ir.program import Carry, Einsum, Op, Program, Region, Repeat, Stored, Value, signature, with_operands
from ...ir.spmd import Compute, Move, SpmdProgram, SpmdValue, Step
from ..plan import OpPlan, Plan, Tree
from .combine_collectives import join_steps
from .early_moves import move_early


@dataclass
class _Region:
    """A region in the making."""

    items: list[Step | Repeat[Step]] = field(default_factory=list)


@dataclass
class _Inserter:
    program: Program
    ops: Mapping[str, OpPlan]
    trees: Mapping[str, Tree]
    carries: Mapping[str, Layout]
    made: dict[str, SpmdValue] = field(default_factory=dict)
    home: dict[str, _Region] = field(default_factory=dict)  # where a value is defined, and so moved
    copies: dict[tuple[str, Layout], str] = field(default_factory=dict)
    groups: dict[str, int] = field(default_factory=dict)  # of the moves that are combined

    @cached_property
    def values(self) -> Mapping[str, Value]:
        """The values of the program by name."""
        return self.program.table()

    def define(self, name: str, layout: Layout, region: _Region) -> None:
        """Note a value of the program, in the layout in which it is made or stored, and where that is."""
        value = self.values[name]
        self.made[name] = SpmdValue(name, value.dims, value.dtype, layout, value.chosen)
        self.home[name] = region
        self.copies[name, layout] = name

    def copy(self, name: str, layout: Layout) -> str:
        """The name of the copy of a value in `layout`, made now if there is none yet."""
        known = self.copies.get((name, layout))
        if known is not None:
            return known
        leg = next(leg for leg in self.trees[name].legs if leg.after == layout)
        operand = self.copy(name, leg.before)
        fresh = name
        while fresh in self.made:
            fresh += "'"
        self.home[name].items.append(Move(fresh, operand, leg.collective))
        self.made[fresh] = replace(self.made[name], name=fresh, layout=layout)
        self.copies[name, layout] = fresh
        if leg.group is not None:
            self.groups[fresh] = leg.group
        return fresh

    def region(self, region: Region[Op], enter: tuple[Carry, ...] = ()) -> Region[Step]:
        """The region on copies, with collectives; `enter` are the carries that come into it."""
        out = _Region()
        for stored in region.stored:
            self.define(stored.value, self.trees[stored.value].root, out)
        for carry in enter:
            self.define(carry.inside, self.carries[carry.inside], out)
        for item in region.items:
            if isinstance(item, Repeat):
                initial = [self.copy(c.initial, self.carries[c.inside]) for c in item.carries]
                body = self.region(item.body, item.carries)
                carries = tuple(
                    replace(c, initial=i, next=self.copies[c.next, self.carries[c.inside]])
                    for c, i in zip(item.carries, initial, strict=True)
                )
                out.items.append(Repeat(item.name, item.count, carries, body))
                for c in item.carries:
                    self.define(c.result, self.carries[c.inside], out)
            else:
                out.items.append(Compute(self.op(item)))
                self.define(item.result, self.ops[item.result].layout, out)
        for carry in enter:
            self.copy(carry.next, self.carries[carry.inside])
        return Region(region.stored, tuple(out.items))

    def op(self, op: Op) -> Op:
        """The op on the copies that the plan has it read."""
        uses = signature(op, self.values).uses
        wanted = zip(uses, self.ops[op.result].uses, strict=True)
        names = {(use.value, use.indices): self.copy(use.value, layout) for use, layout in wanted}
        if isinstance(op, Einsum):  # it may read two copies of one value
            read = tuple(names[o, i] for o, i in zip(op.operands, op.indices, strict=True))
            return replace(op, operands=read)
        return with_operands(op, {value: name for (value, _), name in names.items()})


def insert(plan: Plan) -> tuple[SpmdProgram, ...]:
    """The sharded program of each phase of a plan."""
    out = []
    for phase in plan.phases:
        program = phase.program
        inserter = _Inserter(
            program, {o.result: o for o in phase.ops}, {t.value: t for t in phase.trees}, dict(phase.carries)
        )
        main = inserter.region(program.body)
        extra = _Region()
        for name in {name for name, _ in phase.results}:
            inserter.home[name] = extra
        handed = dict(phase.results)
        results = tuple(inserter.copy(name, handed[name]) for name in program.results)
        body = replace(main, items=(*main.items, *extra.items))
        values = tuple(inserter.made[name] for name in defined(body))
        bound = program.phase(phase.phase)
        beside = bound.micro_batches, bound.mean
        whole = SpmdProgram(program.name, phase.phase, plan.mesh, bound.sizes, values, body, results, *beside)
        out.append(join_steps(move_early(whole), inserter.groups, phase.apart))
    return tuple(out)


def spell_handovers(plan: Plan) -> tuple[SpmdProgram, ...]:
    """The sharded program of each handover of a plan."""
    out = []
    program = plan.phases[0].program  # caches are the same in all phases
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
        made[value.name] = SpmdValue(value.name, value.dims, value.dtype, tree.root, value.chosen)
        for leg in tree.legs:
            fresh = names[leg.before] + "'"
            while fresh in made:
                fresh += "'"
            names[leg.after] = fresh
            made[fresh] = SpmdValue(fresh, value.dims, value.dtype, leg.after, value.chosen)
            items.append(Move(fresh, names[leg.before], leg.collective))
    for item in region.items:
        if isinstance(item, Repeat):
            body = _region(program, item.body, trees, made)
            if body.stored:
                items.append(Repeat(item.name, item.count, (), body))
    return Region(tuple(stored), tuple(items))
