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
    if answer.none or is_settled(answer, program.model, 2 * settings.gap):
        return answer
    return _after(answer, solve(reduced.whole(left), settings, NODES))


def ask_whole(left: Model, reduced: Reduced, limits: Limited, settings: Settings) -> Answer:
    """What a solver says of what is `left` of a program: where some collectives run as one, of which HiGHS makes cuts
    for seconds that say little, CP-SAT if that settles it."""
    if not reduced.loads or not limits.combining:
        return solve(reduced.whole(left), settings, NODES)
    model = reduced.in_grains(left)
    answer = solve(model, replace(settings, solver="cp-sat"), FEW_NODES)
    if answer.none or is_settled(answer, model, 2 * settings.gap):
        return answer
    return _after(answer, solve(reduced.whole(left), settings, NODES))


def _after(first: Answer, answer: Answer) -> Answer:
    """An answer for which another was asked first."""
    return replace(answer, seconds=first.seconds + answer.seconds)
