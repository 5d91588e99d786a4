"""Stages that hand values on as the next ones take them, found by branching on how values lie between them.

Stages by themselves bound all pipelines of a division of layers. Where one hands a value on otherwise than the next one
takes it there are three kinds of pipelines: those in which it lies as the one has it, as the other does, and neither
way. Each is planned with that said of both stages; the other stages stay as they are.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from ...ir.diagnostics import Diagnostic
from ..plan import NoPlan, Outcome
from .boundaries import ANY, Boundary, Lies, apart
from .bounds import Split
from .plan_stages import Stages
from .staged_plan import SlowStages, StagedPlan, refusal

MOST_DIVED = 8  # ways for values to lie between stages that are tried for any pipeline, once another is known
MOST_TRIED = 60  # ways for values to lie between stages of which these are planned

Node = tuple[float, int, int, tuple[Boundary, ...], StagedPlan | None]  # its bound, where it comes among equals, ...


class Alignment:
    """The pipelines of a division of layers; `free`: that of stages by themselves. `best`: the quickest that was found.
    `closed`: the least bound of those that are not looked at any more."""

    def __init__(self, stages: Stages, split: Split, free: StagedPlan):
        self.stages, self.split, self.layers = stages, split, free.layers
        self.most = math.inf
        self.best: StagedPlan | None = None
        self.closed = math.inf
        self.refused: list[NoPlan | SlowStages] = []
        self.left: list[Node] = []
        self.tried = 0
        self.enter((ANY,) * (stages.ways - 1), free.bound, free)

    @property
    def bound(self) -> float:
        """What all of them take at the least."""
        return min([self.closed, *(node[0] for node in self.left)])

    @property
    def open(self) -> bool:
        """Whether there may be one that takes less than `most`, and it is worth to be looked for."""
        return bool(self.left) and (self.most == math.inf or self.left[0][0] < self.worth) and self.tried < MOST_TRIED

    @property
    def dives(self) -> bool:
        """Whether any pipeline is of more interest than a better bound."""
        return self.best is None and (self.most == math.inf or self.tried < MOST_DIVED)

    @property
    def worth(self) -> float:
        """What a pipeline that is looked for takes at the most."""
        return min(self.most, math.inf if self.best is None else self.best.price * (1 - self.stages.near))

    def go(self, most: float, until: float) -> None:
        """Look for one that takes less than `most`: first for any, then until all that are left take at least `until`,
        which others do, or others have their turn."""
        self.most = most
        work, ends = self.stages.options.work, self.stages.options.work.read + self.stages.turn
        while self.open and (self.dives or self.left[0][0] <= until) and work.read < ends:
            bound, _, _, boundaries, plan = self.take()
            if plan is None:
                self.look(boundaries, bound)
            else:
                self.branch(boundaries, bound, plan)

    def refuse(self) -> None:
        """Raise what is known where all has been looked at, and none was found: NoPlan, or SlowStages where they take
        as much as was asked for."""
        if self.most < math.inf or not self.refused:
            raise SlowStages(self.bound)
        if isinstance(self.refused[0], SlowStages) or self.left:
            message = "No layouts were found in which all stages hand values on as the next ones take them."
            raise NoPlan([Diagnostic(message)], Outcome.UNPROVEN)
        raise refusal([one for one in self.refused if isinstance(one, NoPlan)])

    def take(self) -> Node:
        """The node of the least bound; while none of these pipelines is known that of which most is said."""
        if self.dives:
            node = min(self.left, key=lambda node: (node[1], node[0], node[2]))
            self.left.remove(node)
            heapq.heapify(self.left)
            return node
        return heapq.heappop(self.left)

    def enter(self, boundaries: tuple[Boundary, ...], bound: float, plan: StagedPlan | None) -> None:
        """Take a pipeline if its stages hand on as the next ones take; else put it on the heap."""
        if plan is not None and self.differs(plan) is None:
            self.closed = min(self.closed, bound)
            if self.best is None or plan.price < self.best.price:
                self.best = plan
                self.stages.something = True
            return
        held = sum(lies.held for boundary in boundaries for lies in boundary)
        heapq.heappush(self.left, (bound, -held, self.tried, boundaries, plan))

    def differs(self, plan: StagedPlan) -> tuple[int, tuple[Lies, Lies]] | None:
        """The first place between stages where what is handed on lies otherwise than it is taken, and how it does."""
        found = ((n, apart(one.handed, other.taken)) for n, (one, other) in enumerate(pairwise(plan.stages)))
        return next(((n, both) for n, both in found if both is not None), None)

    def branch(self, boundaries: tuple[Boundary, ...], bound: float, plan: StagedPlan) -> None:
        """The pipelines in which a value lies as one stage has it, as the next does, and otherwise."""
        differs = self.differs(plan)
        assert differs is not None, "it is on the heap"
        cut, both = differs
        for lies in both:
            self.look(_said(boundaries, cut, [lies]), bound)
        self.tried += 1
        self.enter(_said(boundaries, cut, [replace(lies, held=False) for lies in both]), bound, None)

    def look(self, boundaries: tuple[Boundary, ...], bound: float) -> None:
        """Plan the stages of a node; `bound` is one of it."""
        self.tried += 1
        try:
            found = self.stages.at(self.split, self.layers, boundaries, self.worth)
        except SlowStages as cut:
            self.refused.insert(0, cut)
            self.closed = min(self.closed, max(bound, cut.bound))
        except NoPlan as error:
            self.refused.append(error)
            if error.outcome is Outcome.UNPROVEN:
                self.closed = min(self.closed, bound)
        else:
            self.enter(boundaries, max(bound, found.bound), found)


def _said(boundaries: Sequence[Boundary], cut: int, more: Sequence[Lies]) -> tuple[Boundary, ...]:
    """With more said at one place between stages."""
    return tuple(one | frozenset(more) if n == cut else one for n, one in enumerate(boundaries))
