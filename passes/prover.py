"""What is to be minimised, and the proof: the integer program on the choices that the bounds leave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .bounds import DualAscent
from .graph import Graph, restrict
from .model import Model, build_model
from .solver import Answer, solve
from .space import Array
from .trees import Distances, cheapest_tree

Floats = NDArray[np.float64]
UNIT = 1e6  # the price of a known plan in the solver's unit, far above its tolerances of 1e-7
TIE = 1e-4  # what the least plain choice, or one collective more, counts in that unit


@dataclass(frozen=True, eq=False)
class Problem:
    """What is to be minimised: `prices[n][c]` for choice c of node n, and the arcs of each tensor.

    `distances[t]` is None for a tensor that nothing reads.
    """

    graph: Graph
    prices: Sequence[Floats]
    distances: Sequence[Distances | None]

    def price_of(self, chosen: Sequence[int]) -> float:
        """What a plan costs."""
        total = sum(float(p[c]) for p, c in zip(self.prices, chosen, strict=True))
        for tensor, near in zip(self.graph.tensors, self.distances, strict=True):
            if near is not None:
                root, targets = tensor.ends(chosen)
                total += float(near.price[cheapest_tree(near, root, targets)].sum())
        return total

    def stored_bytes(self, chosen: Sequence[int]) -> float:
        """What the stored tensors of a plan take on a chip."""
        nodes = zip(self.graph.nodes, chosen, strict=True)
        return sum(float(n.stored_bytes[c]) for n, c in nodes if n.stored_bytes is not None)


@dataclass(frozen=True)
class Settings:
    """How to search: the solver by name, the relative gap that counts as proven, a time limit."""

    solver: str = "highs"
    gap: float = 1e-9
    time_limit_s: float = 120.0


@dataclass(frozen=True)
class Found:
    """A plan as one choice for each node, its price, and the proven bound of all plans."""

    chosen: tuple[int, ...]
    price: float
    bound: float


class DoesNotFit(Exception):
    """No plan keeps to the capacity. `needed_bytes` is what a chip must at least hold."""

    def __init__(self, needed_bytes: float):
        super().__init__(needed_bytes)
        self.needed_bytes = needed_bytes


@dataclass(frozen=True, eq=False)
class _Reduced:
    """The integer program of what is left, and which choices its columns stand for."""

    model: Model
    kept: list[Array]


@dataclass
class Prover:
    """Solves what the bounds leave. `solve_s` adds up the time spent in the solver."""

    problem: Problem
    settings: Settings
    solve_s: float = 0.0

    def prove(self, ascent: DualAscent, known: Found, capacity: float | None = None) -> Found:
        """The cheapest plan of those that `ascent` allows, or `known` if none is cheaper; its bound.

        The linear relaxation comes first: where its optimum is the price of a plan, that is the
        proof. Else the integer program decides. With a `capacity` plans keep to it. Of plans of one
        price the one with fewer collectives and plainer names is taken.
        """
        reduced = self._reduce(ascent, known, capacity, ties=False)
        best = known
        for candidate in (_relaxed(reduced.model), reduced.model):
            answer = self._solve(candidate)
            found = self._read(answer, reduced, capacity)
            if found is not None and found.price < best.price:
                best = found
            bound = answer.bound / _unit(known.price)
            best = replace(best, bound=min(best.price, bound))
            if best.price - best.bound <= self.settings.gap * abs(best.price):
                break
        return self._plainest(ascent, best, capacity)

    def _plainest(self, ascent: DualAscent, best: Found, capacity: float | None) -> Found:
        """A plan of the same price that looks plainer, where the relaxation gives one."""
        reduced = self._reduce(ascent, best, capacity, ties=True)
        found = self._read(self._solve(_relaxed(reduced.model)), reduced, capacity)
        if found is not None and found.price <= best.price * (1 + 1e-3 * self.settings.gap):
            return replace(found, bound=min(best.bound, found.price))
        return best

    def _reduce(self, ascent: DualAscent, known: Found, capacity: float | None, ties: bool) -> _Reduced:
        slack = known.price - ascent.bound() + 1e-9 * abs(known.price)
        alive, arcs = ascent.alive(slack)
        for n, choice in enumerate(known.chosen):
            alive[n][choice] |= bool(np.isfinite(ascent.prices[n][choice]))  # whatever rounding says
        unit, tie = _unit(known.price), TIE if ties else 0.0
        graph = restrict(self.problem.graph, alive)
        prices = [
            p[k] * unit + tie * node.rank for p, k, node in zip(self.problem.prices, alive, graph.nodes, strict=True)
        ]
        flows = [
            None if d is None else (d.arcs.take(arcs[t]), d.price[arcs[t]] * unit + tie * np.where(d.price[arcs[t]] > 0, 1.0, 0.1))
            for t, d in enumerate(self.problem.distances)
        ]
        return _Reduced(build_model(graph, prices, flows, capacity), [np.flatnonzero(k) for k in alive])

    def _solve(self, model: Model) -> Answer:
        answer = solve(model, self.settings.solver, self.settings.gap, self.settings.time_limit_s)
        self.solve_s += answer.seconds
        return answer

    def _read(self, answer: Answer, reduced: _Reduced, capacity: float | None) -> Found | None:
        """The plan nearest to an answer, at its own price; None where it does not keep to capacity."""
        if answer.x is None:
            return None
        first = reduced.model.choice
        chosen = tuple(
            int(kept[np.argmax(answer.x[first[n] : first[n] + len(kept)])]) for n, kept in enumerate(reduced.kept)
        )
        if capacity is not None and self.problem.stored_bytes(chosen) > capacity:
            return None
        return Found(chosen, self.problem.price_of(chosen), -np.inf)


def _unit(price: float) -> float:
    return UNIT / (abs(price) or 1.0)


def _relaxed(model: Model) -> Model:
    return replace(model, integer=np.zeros_like(model.integer))
