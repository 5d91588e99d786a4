"""What a stage of the compiler gives, as text: the expanded program, the choice, the steps that spell it out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from enum import StrEnum

from ...ir.collective import describe
from ...ir.layout import format_layout
from ...ir.mesh import Mesh
from ...ir.program import Program
from ...ir.spmd import unsharded
from ...ir.text.write_spmd import print_spmd
from ...passes.choose import choose
from ...passes.expansion.orders import in_order
from ...passes.lower.insert import insert
from ...passes.options import Options
from ...passes.plan import Plan, Tree


class Stage(StrEnum):
    """The stages that compiling can be stopped after."""

    EXPAND = "expand"
    CHOOSE = "choose"
    INSERT = "insert"


def stage_text(stage: Stage, program: Program, phases: Sequence[str], mesh: Mesh, options: Options) -> str:
    """What a stage gives of each phase. Raises InputError when no plan fits."""
    if stage is Stage.EXPAND:
        return "\n".join(print_spmd(unsharded(in_order(program, phase), phase, mesh)) for phase in phases)
    plan = choose(program, phases, mesh, options)
    if stage is Stage.INSERT:
        return "\n".join(map(print_spmd, insert(plan)))
    return "\n".join(_choice(plan))


def _choice(plan: Plan) -> Iterator[str]:
    """A plan: where everything lies, in which layouts ops run, and over which collectives their results move."""
    dims = {value.name: value.dims for phase in plan.phases for value in phase.program.values}
    name = plan.phases[0].program.name
    yield f"choice {json.dumps(name)} on {plan.mesh}, least {plan.objective}: {plan.price!r}, {plan.outcome}"
    for name, layout in plan.stored:
        yield f"stored {name}: {format_layout(dims[name], layout)}"
    for phase in plan.phases:
        yield f"phase {phase.phase}"
        trees = {tree.value: tree for tree in phase.trees}
        for name, layout in phase.carries:
            yield f"  carry {name}: {format_layout(dims[name], layout)}"
        made = {op.result: op.layout for op in phase.ops}
        for name in dict.fromkeys([*trees, *made]):
            if name in made:
                yield f"  op {name}: {format_layout(dims[name], made[name])}"
            yield from _moves(trees[name], dims[name], "  ") if name in trees else ()
        for name, layout in phase.results:
            yield f"  result {name}: {format_layout(dims[name], layout)}"
    for handover in plan.handovers:
        yield f"handover {handover.before} to {handover.after}: {handover.price!r} s a call"
        for tree in handover.trees:
            yield from _moves(tree, dims[tree.value], "  ")
    yield ""


def _moves(tree: Tree, dims: Sequence[str], indent: str) -> Iterator[str]:
    """The collectives of a value."""
    for leg in tree.legs:
        before, after = (format_layout(dims, layout) for layout in (leg.before, leg.after))
        yield f"{indent}move {tree.value}: {before} to {after}, {describe(leg.collective, dims)}"
