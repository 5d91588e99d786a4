"""The integer program of what bounds leave, and what a linear relaxation of it leaves in turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ...ir.record import record
from ..ilp.model import Model, inner
from ..ilp.solver import Answer
from ..layouts.space import Array, Mask
from .dual_ascent import DualAscent
from .graph import Graph
from .integer_program import ChoiceProgram
from .memory_bounds import Load
from .memory_rows import in_grains, written_out
from .symmetry import Standing

Floats = NDArray[np.float64]
INTEGRAL = 1e-6  # a share below this is none, one that lacks less of 1 is all


@record(eq=False)
class Reduced:
    """The integer program of what is left, which choices and arcs its columns stand for, what its rows of memory
    say, and at which node choices are left out whose images are in it."""

    program: ChoiceProgram
    kept: list[Array]
    arcs: Mapping[int, Mask]
    loads: Sequence[Load]
    standing: Standing | None

    @property
    def model(self) -> Model:
        """Its arrays."""
        return self.program.model

    @property
    def possible(self) -> bool:
        """Whether every node has a choice left."""
        return all(len(kept) for kept in self.kept)

    def whole(self, left: Model) -> Model:
        """What is `left` of it as a solver with branching and cuts knows it best."""
        return written_out(left, self.program.choice, self.program.memory, self.loads) if self.loads else left

    def in_grains(self, left: Model) -> Model:
        """What is `left` of it as a solver knows it best that counts in whole numbers."""
        first = self.program.memory.rows.start
        return in_grains(self.whole(left), slice(first, first + len(self.loads)))

    def shares(self, answer: Answer) -> list[Floats]:
        """How much of each choice an answer takes, node by node; empty when there is none."""
        if answer.x is None:
            return []
        return [answer.x[f : f + len(k)] for f, k in zip(self.program.choice, self.kept, strict=True)]

    def shared(self, answer: Answer) -> frozenset[int]:
        """The groups of collectives that an answer runs as one."""
        assert answer.x is not None
        return frozenset(g for g, column in self.program.shared if answer.x[column] > INTEGRAL)


@record(eq=False)
class Left:
    """The choices of each node, and the arcs of each tensor, that a plan of at most `price` may have, by the reduced
    costs of a linear relaxation of what `ascent` allows; of one node those that are `standing` for their images."""

    ascent: DualAscent
    price: float
    masks: Sequence[Mask]
    arcs: Mapping[int, Mask]
    standing: Standing | None


def least_columns(graph: Graph, alive: Sequence[Mask], arcs: Mapping[int, Mask]) -> int:
    """How many columns the program of what is alive has at the least: those of choices and of flows."""
    uses = {t: len(graph.tensors[t].uses) for t in arcs}
    flows = sum(int(mask.sum()) * (uses[t] + (uses[t] > 1)) for t, mask in arcs.items())
    return flows + sum(int(mask.sum()) for mask in alive)


def is_settled(answer: Answer, model: Model, gap: float) -> bool:
    """Whether there is a solution, and as near to its bound."""
    return answer.x is not None and inner(model.cost, answer.x) * (1 - gap) <= answer.bound


def left_of(ascent: DualAscent, price: float, reduced: Reduced, relaxed: Answer, unit: float) -> Left | None:
    """What a linear relaxation leaves of the choices of plans of at most `price`; None where it says nothing."""
    if relaxed.reduced_costs is None:
        return None
    return left_in(ascent, price, reduced, relaxed.bound + relaxed.reduced_costs <= price * unit * (1 + 1e-9))


def left_in(ascent: DualAscent, price: float, reduced: Reduced, cheap: Mask) -> Left:
    """As `left_of`, of plans that have no columns but those that are `cheap`."""
    masks = []
    for n, (first, kept) in enumerate(zip(reduced.program.choice, reduced.kept, strict=True)):
        mask = np.zeros(len(ascent.prices[n]), dtype=bool)
        mask[kept[cheap[first : first + len(kept)]]] = True
        masks.append(mask)
    arcs = {}
    for t, own in reduced.arcs.items():
        flows, some = reduced.program.flows[t], np.flatnonzero(own)
        assert flows is not None, "what has arcs flows"
        columns = [cheap[first : first + len(some)] for first in flows.columns]
        left = columns[0] & np.any(columns[1:], axis=0) if len(columns) > 1 else columns[0]
        arcs[t] = np.zeros(len(own), dtype=bool)
        arcs[t][some[left]] = True
    return Left(ascent, price, masks, arcs, reduced.standing)


def fixed(model: Model, relaxed: Answer, limit: float) -> Model:
    """The integer program without the columns that by their reduced cost no plan below `limit` has."""
    if relaxed.reduced_costs is None:
        return model
    dear = relaxed.bound + relaxed.reduced_costs > limit
    return replace(model, upper=np.where(dear, 0.0, model.upper))
