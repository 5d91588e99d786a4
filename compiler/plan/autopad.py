"""Padded sizes by trial: dims that mesh axes do not divide are padded where a whole plan then costs less.

One dim is changed at a time, until no change makes the plan cheaper: the cheapest of all combinations
may be another. Non-goals: dims whose size differs from phase to phase.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

from ...ir.diagnostics import InputError
from ...ir.mesh import Mesh
from ...ir.program import Program
from ...ir.record import record
from ...passes.options import Options
from ..text.terminal import table
from .compiled import Compilation
from .pipeline import compile_phases
from .shapes import Shape, ranked

MOST_GROWTH = 1.5  # a padded size over the true one
MOST_TRIALS = 30  # whole plans, beside the one without padding
LEAST_GAIN = 1e-6  # of the objective, for which a dim is padded

Pads = Mapping[str, int]
PadItems = tuple[tuple[str, int], ...]


@record
class Trial:
    """Dims padded beyond what the file says, and the objective of the whole plan; or why there is none."""

    pads: PadItems
    price: float = math.inf
    reason: str | None = None


@record
class AutoPadding:
    """The program of the cheapest trial, and what was compiled of it. `trials`: in order, the first without padding.
    `left`: how many were not tried, being too many."""

    program: Program
    compiled: Compilation
    best: Trial
    trials: tuple[Trial, ...]
    left: int


def pad_auto(
    load: Callable[[Pads], Program], phases: Sequence[str], mesh: Mesh, options: Options, separate: bool = False
) -> AutoPadding:
    """Try padded sizes, at most half as large again, for every dim that some of the mesh's axes do not divide.

    `load` gives the program with dims padded beyond what it pads anyway. Raises InputError, with what
    is said of the program as it is, when no trial has a plan.
    """

    def planned(program: Program) -> Compilation:
        return compile_phases(program, phases, mesh, options, separate=separate)

    search = _Search(load, planned, padded_sizes(load({}), mesh))
    best = search.run()
    compiled = search.compiled or planned(load({}))  # which raises
    return AutoPadding(load(dict(best.pads)), compiled, best, tuple(search.trials.values()), len(search.left))


def pad_shapes(
    load: Callable[[Pads], Program],
    phases: Sequence[str],
    meshes: Sequence[Mesh],
    options: Options,
    separate: bool = False,
) -> tuple[tuple[Shape, ...], AutoPadding]:
    """Several meshes, each with the padding that `pad_auto` finds for it, as `ranked` has them; of one mesh no shapes.
    And the padding of the first. Raises InputError, with what the first mesh says, when none has a plan."""
    found: dict[Mesh, AutoPadding] = {}

    def made(mesh: Mesh) -> Compilation:
        found[mesh] = pad_auto(load, phases, mesh, options, separate)
        return found[mesh].compiled

    shapes = ranked(meshes, made, options)
    return shapes if len(meshes) > 1 else (), found[shapes[0].mesh]


class _Search:
    """Changes of one dim at a time. `trials`: by the pads; `left`: those not tried; `fixed`: dims that the
    program does not let be padded; `compiled`: what came of the cheapest so far, None where none has a plan."""

    def __init__(
        self,
        load: Callable[[Pads], Program],
        planned: Callable[[Program], Compilation],
        sizes: Mapping[str, Sequence[int]],
    ) -> None:
        self.load, self.planned, self.sizes = load, planned, sizes
        self.trials: dict[PadItems, Trial] = {}
        self.left: set[PadItems] = set()
        self.fixed: set[str] = set()
        self.compiled: Compilation | None = None

    def run(self) -> Trial:
        """The cheapest trial, beside which no change of one dim is cheaper."""
        before = None
        best, self.compiled = self.tried((), None)
        while best is not before:
            before = best
            for dim in self.sizes:
                for pads in self.changes(best.pads, dim):
                    if dim in self.fixed or pads in self.trials:
                        continue
                    if len(self.trials) > MOST_TRIALS:
                        self.left.add(pads)
                        continue
                    trial, compiled = self.tried(pads, dim)
                    if trial.price < best.price * (1 - LEAST_GAIN):
                        best, self.compiled = trial, compiled
        return best

    def changes(self, pads: PadItems, dim: str) -> list[PadItems]:
        """Pads with another size of one dim, or none; in the order of the dims."""
        chosen = dict(pads)
        every = [chosen | {dim: size} for size in (*self.sizes[dim], 0)]
        return [tuple((d, each[d]) for d in self.sizes if each.get(d)) for each in every]

    def tried(self, pads: PadItems, dim: str | None) -> tuple[Trial, Compilation | None]:
        """A whole plan with these pads, of which that of `dim` is new, and what was compiled."""
        trial, compiled = Trial(pads), None
        try:
            program = self.load(dict(pads))
        except InputError as error:
            trial = replace(trial, reason=error.diagnostics[0].message)
            self.fixed |= {dim} if dim else set()
        else:
            try:
                compiled = self.planned(program)
                trial = replace(trial, price=compiled.price)
            except InputError as error:
                trial = replace(trial, reason=error.diagnostics[0].message)
        self.trials[pads] = trial
        return trial, compiled


def padded_sizes(program: Program, mesh: Mesh) -> dict[str, tuple[int, ...]]:
    """For each dim that is not padded the sizes, smallest first, at which more of the mesh's axes divide it."""
    ways = {math.prod(some) for n in range(1, len(mesh.sizes) + 1) for some in combinations(mesh.sizes, n)}
    fixed = {dim for pair in program.padding for dim in pair}
    out: dict[str, tuple[int, ...]] = {}
    for dim, size in program.phases[0].sizes:
        if dim in fixed or size == 1 or any(dict(phase.sizes)[dim] != size for phase in program.phases):
            continue
        grown = {-(-size // n) * n for n in ways if size % n}
        if found := tuple(sorted(n for n in grown if n <= MOST_GROWTH * size)):
            out[dim] = found
    return out


def padding_text(auto: AutoPadding) -> str:
    """What was tried, as a table, and what was chosen."""
    least = auto.best.price
    rows = [("padded", "beside the best")]
    for trial in auto.trials:
        rows.append((_named(trial), f"{trial.price / least:.4f}" if least and not trial.reason else "-"))
    said = ["", *(trial.reason or ("chosen" if trial is auto.best else "") for trial in auto.trials)]
    lines = ["Padding, each trial a whole plan"]
    lines += [f"{row}  {what}".rstrip() for row, what in zip(table(rows, 1), said, strict=True)]
    if auto.left:
        lines.append(f"  {auto.left} more padded sizes were not tried.")
    lines.append("  One dim is changed at a time: that no other combination is cheaper is not proven.")
    return "\n".join(lines) + "\n"


def _named(trial: Trial) -> str:
    return ", ".join(f"{dim} to {size}" for dim, size in trial.pads) or "nothing"
