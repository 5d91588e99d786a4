"""Large programs: branch and bound over linear relaxations, by which axes split which dims of a node.

Where axes are alike a relaxation takes halves of two images of a choice. That a node takes one choice of hundreds, or
does not, says little of the others. So what the layers of a repeat hand on is settled first, of choices that are images
of one another one alone: all else in a layer hangs together with it, and its axes are told apart. Then whether an axis
splits a dim parts the choices of a node evenly. A few dozen relaxations settle so what the solver's own search has no
end with, each begun from what the rows were worth in the one before. Work is counted in relaxations, not in time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..ilp.model import Model
from ..ilp.solver import Answer
from ..layouts.space import Array, Mask
from .graph import Graph, Port, Tensor
from .problem import Candidate
from .relaxed_boxes import INTEGRAL, Box, RelaxedBoxes

Floats = NDArray[np.float64]
PATIENCE = 12  # of them, after which a small gap is good enough for a plan
NEARLY = 2e-3  # that gap


@dataclass(frozen=True, eq=False)
class AxisProgram:
    """The integer program of a graph, of which node n has the choices `kept[n]`, their columns from `choice[n]` on.
    `plan`: the plan that an answer is, None where it mixes some; `unit`: what a second counts in the program; `first`:
    a node to settle before all others, of choices none of which is an image of another."""

    graph: Graph
    model: Model
    choice: Sequence[int]
    kept: Sequence[Array]
    plan: Callable[[Answer], Candidate | None]
    unit: float
    first: int | None = None

    @cached_property
    def ports(self) -> list[list[tuple[Tensor, Port]]]:
        """Where each node touches tensors."""
        out: list[list[tuple[Tensor, Port]]] = [[] for _ in self.graph.nodes]
        for tensor in self.graph.tensors:
            for port in (tensor.source, *tensor.uses):
                out[port.node].append((tensor, port))
        return out

    def times(self, node: int) -> int:
        """How often a node runs: what it touches most often does."""
        return max((tensor.times for tensor, _ in self.ports[node]), default=0)

    def places(self, node: int) -> Array | None:
        """Where each axis is in the choices of a node: a mode, or the index or dim that it splits. Shape [choices,
        axes]; None for one that touches nothing."""
        table = self.graph.nodes[node].table
        if table is not None:
            return table.rows.place
        for tensor, port in self.ports[node]:
            return np.asarray(tensor.space.space.rows.place[port.rows])
        return None


@dataclass(eq=False)
class AxisSearch(RelaxedBoxes):
    """Branch and bound of a `program`. `best`: the cheapest plan that was found, if any."""

    program: AxisProgram = field(kw_only=True)
    best: Candidate | None = None

    @property
    def found(self) -> bool:
        """Whether a plan was."""
        return self.best is not None

    @property
    def gap(self) -> float:
        """A small one, for a plan, once so many relaxations were looked at."""
        return self.settings.gap if self.best is None or self.relaxed < PATIENCE else NEARLY

    def enter(self, box: Box) -> None:
        """Take the plan that a relaxation is, or put the box on the heap to be split."""
        plan = self.program.plan(box.answer)
        if plan is None:
            self.push(box)
            return
        if plan.price * self.program.unit < self.price:
            self.best, self.price = plan, plan.price * self.program.unit
        if box.bound < self.price * (1 - self.settings.gap):  # what its collectives cost is bounded as that of mixtures
            self.given_up = min(self.given_up, box.bound)

    def split(self, box: Box) -> None:
        """By each choice of the node to settle first, or which axes split what in another."""
        first = self.program.first
        if first is not None:
            own = self.program.choice[first] + np.arange(len(self.program.kept[first]))
            if np.count_nonzero(box.upper[own]) > 1:
                return self._settle(box, own)
        return self.halve(box, *self._cut(box))

    def _settle(self, box: Box, columns: Array) -> None:
        """A box for each of the `columns` of a node that plans below the price may have, that of which the relaxation
        takes most looked at first; and one of those that are too dear."""
        assert box.answer.x is not None and box.answer.reduced_costs is not None, "linear programs have both"
        least = box.answer.bound + box.answer.reduced_costs[columns]
        dear = box.cheap[columns] == 0
        rest = box.upper.copy()
        rest[columns[~dear]] = 0.0
        if rest[columns].any():
            self.closed.append(replace(box, upper=rest, bound=self.price, relaxed=False))
        order = np.lexsort((-least, box.answer.x[columns]))
        for one in order[~dear[order]]:
            upper, left = box.upper.copy(), box.cheap.copy()
            others = np.delete(columns, one)
            upper[others] = left[others] = 0.0
            self.push(replace(box, upper=upper, cheap=left, bound=max(box.bound, float(least[one])), relaxed=False))

    def _cut(self, box: Box) -> tuple[Array, Mask]:
        """Columns of the choices of a node, and on which side of a cut each is: that of which the relaxation takes
        more. By the axis and place of which it takes most nearly a half, at the node that runs most often and has most
        choices; where only the order of axes is left open, by a choice."""
        assert box.answer.x is not None, "relaxations that are entered have a solution"
        best = (-1.0, 0, 0, 0)
        cut: tuple[Array, Mask] | None = None
        for n, (first, kept) in enumerate(zip(self.program.choice, self.program.kept, strict=True)):
            share = box.answer.x[first : first + len(kept)]
            if share.max() >= 1 - INTEGRAL:
                continue
            for side in self._sides(n, kept, share):
                part = float(share[side].sum())
                key = round(min(part, 1 - part), 1), self.program.times(n), len(kept), -n
                if key > best:
                    best, cut = key, (first + np.arange(len(kept)), side if part >= 0.5 else ~side)
        assert cut is not None, "what is no plan is mixed somewhere"
        return cut

    def _sides(self, node: int, kept: Array, share: Floats) -> list[Mask]:
        """Ways to part the choices of a node, each side with a share in what the relaxation takes."""
        places = self.program.places(node)
        out = []
        for place in () if places is None else places[kept].T:
            for slot in np.unique(place[share > INTEGRAL]):
                side = place == slot
                if INTEGRAL < share[side].sum() < 1 - INTEGRAL:
                    out.append(side)
        return out or [np.arange(len(kept)) == np.argmax(share)]
