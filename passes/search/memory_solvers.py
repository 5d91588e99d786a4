"""Which solver is asked of integer programs with rows of memory, and for how long."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..ilp.model import Model
from ..ilp.solver import Answer, Settings, solve
from .level_program import level_program
from .limits import Limited
from .reduced_program import Reduced, is_settled

NODES = 2_000  # of the solver's search among plans that keep to a limit
FEW_NODES = 200  # where what values take is branched on first, or columns are all whole numbers: most are settled so
MOST_INTEGER = 10_000  # columns of a program for that search
ROOT_NODES, ROUGH = 20, 0.01  # of that search in a larger one, and the gap that is small enough there


def ask_by_bytes(left: Model, reduced: Reduced, limits: Limited, settings: Settings) -> Answer:
    """What a solver says of what is `left` of a program: where collectives run alone SCIP needs few nodes, with the
    bytes that values take branched on first."""
    if np.count_nonzero(left.upper) > MOST_INTEGER:
        return solve(reduced.whole(left), replace(settings, gap=ROUGH), ROOT_NODES)
    if not reduced.loads or limits.combining:
        return ask_whole(left, reduced, limits, settings)
    program = level_program(reduced.program, left, reduced.loads)
    scip = replace(settings, solver="gscip")
    answer = solve(program.model, scip, FEW_NODES, first=program.levels, ranks=program.ranks)
    settled = answer.none or is_settled(answer, program.model, 2 * settings.gap)
    return answer if settled else _after(answer, _ask_in_grains(left, reduced, settings))


def ask_whole(left: Model, reduced: Reduced, limits: Limited, settings: Settings) -> Answer:
    """What a solver says of what is `left` of a program, all of it at once."""
    if reduced.loads and limits.combining:
        return _ask_in_grains(left, reduced, settings)
    return solve(reduced.whole(left), settings, NODES)


def _ask_in_grains(left: Model, reduced: Reduced, settings: Settings) -> Answer:
    """What CP-SAT says if that settles it: where some collectives run as one, and where branching alone does not do,
    HiGHS makes cuts for seconds that say little."""
    model = reduced.in_grains(left)
    answer = solve(model, replace(settings, solver="cp-sat"), FEW_NODES)
    settled = answer.none or is_settled(answer, model, 2 * settings.gap)
    return answer if settled else _after(answer, solve(reduced.whole(left), settings, NODES))


def _after(first: Answer, answer: Answer) -> Answer:
    """An answer for which another was asked first."""
    return replace(answer, seconds=first.seconds + answer.seconds)
