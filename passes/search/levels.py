"""What solvers say of an integer program by levels of bytes: SCIP of few columns, relaxations of many.

SCIP, told where to branch, settles most programs of few columns in a few nodes. Where it does not, HiGHS is asked of
levels alone: that says as much, if no other choice is mixed. Of many columns what large values take is settled first
(see `branch_on_levels`), and a solver is asked of what is left near that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ..ilp.model import Model
from ..ilp.solver import Answer, Settings, solve
from .branch_on_levels import LevelSearch
from .level_program import LevelProgram, level_program
from .problem import Candidate
from .reduced_program import Reduced, fixed

NODES = 2_000  # of a solver's search among plans that keep to a limit
FEW_NODES = 200  # where what values take is branched on first: with that most programs are settled in fewer
MANY_LIVE = 40_000  # columns of a program; SCIP, told where to branch, is quicker with fewer, relaxations with more
NEAR_LEVELS = (0.002, 0.005)  # above a linear relaxation, where a program is asked of first
NEAR_SETTLED = (1e-4, 5e-4, 2e-3)  # above one in which large values are settled, in turn
ANY = 0.05  # above these a plan is good enough where any is asked for


@dataclass
class Levels:
    """A program that was `reduced`, in which a second counts as a `unit`; `plan`: the plan that an answer is, None
    where it mixes some. `seconds`: spent in solvers."""

    settings: Settings
    reduced: Reduced
    unit: float
    plan: Callable[[Answer], Candidate | None]
    seconds: float = 0.0

    def near(self, relaxed: Answer, price: float, gap: float | None, less: bool) -> tuple[Answer, float]:
        """What a solver says of the program, and a bound in seconds of plans that cost less than a `price` (by the gap
        if `less` is asked for). It is asked for plans near the relaxation first: most often there is one, and few
        columns are left."""
        asked, floor = price * self.unit, relaxed.bound
        none = asked * (1 - (gap if less and gap else 0.0))
        for near in (relaxed.bound * (1 + share) for share in NEAR_LEVELS):
            left = fixed(self.reduced.model, relaxed, near)
            if near >= asked or _is_large(left):
                break
            answer = self.branch(left, near, gap)
            floor = near if answer.none else max(floor, min(near, answer.bound))
            if self._costs(answer) <= (near if less else near * (1 + ANY)):
                return answer, floor / self.unit
        left = fixed(self.reduced.model, relaxed, asked * (1 + 1e-9))
        answer = self.large(relaxed, none, gap) if _is_large(left) else self.branch(left, none if less else None, gap)
        return answer, (none if answer.none else min(none, max(floor, answer.bound))) / self.unit

    def large(self, relaxed: Answer, most: float, gap: float | None) -> Answer:
        """What is said of all that costs less than `most`, with what large values take settled; a plan where there is
        one near that."""
        settings = replace(self.settings, gap=gap or self.settings.gap)
        program = self.reduced.program
        search = LevelSearch(self.reduced.model, settings, most, choice=program.choice, loads=self.reduced.loads)
        search.run(relaxed)
        self.seconds += search.seconds
        answer = replace(search.answer, bound=search.bound)
        if answer.x is None or self.plan(answer) is not None:
            return answer
        for near in (search.bound * (1 + share) for share in NEAR_SETTLED):
            left = fixed(self.reduced.model, relaxed, near)
            if _is_large(left):
                break
            close = self.branch(left, near, gap)
            if close.x is not None:
                return replace(close, bound=search.bound)
        return answer

    def branch(self, left: Model, most: float | None, gap: float | None) -> Answer:
        """What a solver says of what is `left` of the program, of solutions that cost at `most` so much, and within a
        gap if one is given."""
        program = level_program(left, self.reduced.program.choice, self.reduced.loads)
        near = gap or 2 * self.settings.gap
        answer = self._counted(by_scip(program, self.settings, FEW_NODES, most))
        if answer.none or is_settled(answer, program.model, near):
            return answer
        least, beyond = replace(self.settings, gap=gap or self.settings.gap), np.inf if most is None else most
        answer = self._counted(solve(program.of_levels, least, NODES, first=program.levels))
        if answer.none:
            return answer
        if answer.bound >= beyond:
            return replace(answer, x=None, none=True)
        price = self._costs(answer)
        if price <= beyond and price * (1 - near) <= answer.bound:
            return answer
        full = self._counted(by_scip(program, self.settings, NODES, most))
        return full if full.none else replace(full, bound=max(full.bound, answer.bound))

    def _costs(self, answer: Answer) -> float:
        """What an answer costs as a plan, which it need not be."""
        plan = self.plan(answer)
        return np.inf if plan is None else plan.price * self.unit

    def _counted(self, answer: Answer) -> Answer:
        self.seconds += answer.seconds
        return answer


def by_scip(program: LevelProgram, settings: Settings, nodes: int, most: float | None = None) -> Answer:
    """What SCIP says of a program by levels within so many nodes, of what costs at `most` so much."""
    scip = replace(settings, solver="gscip")
    return solve(program.model, scip, nodes, first=program.levels, ranks=program.ranks, most=most)


def is_settled(answer: Answer, model: Model, gap: float) -> bool:
    """Whether there is a solution, and as near to its bound."""
    return answer.x is not None and float(model.cost @ answer.x) * (1 - gap) <= answer.bound


def _is_large(model: Model) -> bool:
    return int(np.count_nonzero(model.upper)) >= MANY_LIVE
