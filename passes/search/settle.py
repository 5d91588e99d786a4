"""Small problems settled: the cheapest plan within the limits with its way of every copy, or the proof that none is.

The integer program of `copies_program` is solved, of plans that cost less than is known, and its answer spelled out
over the very arcs that it took. If that holds more than there is, what is held there is kept out by a row, and the
program is solved again. Where the solver is not done the linear relaxation has a bound, and its answer is looked at
while no plan is known.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ...ir.dataflow import makes, origins
from ...ir.program import Append, Repeat, Stored, walk
from ..ilp.model import Model, cheaper, continuous, inner
from ..ilp.solver import Answer, solve
from ..layouts.reshard import Arcs
from ..layouts.space import Array
from .column_images import KeptOut, column_images
from .combinable import Groups
from .copies_program import CopiesProgram
from .exact import Prover
from .limits import JointLimits
from .problem import Candidate
from .reach import Reach, reach
from .reduced_program import INTEGRAL
from .side import MANY_ARCS, Side

Floats = NDArray[np.float64]

UNIT = 1e6  # the price of a known plan in the solver's unit, as in `exact`
MOST_ARCS = 10_000  # over all readers of all values, of a problem that is looked at
MOST_OPEN, MOST_REACHED = 3_500, 40_000  # of one with more: those that cheaper plans may go over, and of all for that
MOST_UNSENT = 10_000  # of those over which nothing is sent
NODES = 1_200  # of the solver's search, of which each program gets half of what is left
UNKNOWN_NODES = 600  # while no plan is known that others have to be cheaper than
FEW_NODES = 400  # for one with MANY_ARCS, which is seldom settled, however long it is looked at
LEAST_NODES = 100  # for each program
ROUNDS = 40  # programs that are solved
MOST_ROWS = 60_000  # of all these programs: large ones take seconds each, and a row more seldom moves their bound
UNKNOWN_ROWS = 2  # times that while no plan is known: one that holds too much says what to leave out next
MOST_RELAXED = 20_000  # rows of a linear relaxation, which takes half a minute with thrice as many
SOLVER = "cp-sat"  # all columns are 0 or 1 in plans, and rows of bytes leave a weak relaxation
SURE = 1e-12  # relative: what is summed in another order may be so much less
SLACK = 1e-6  # relative: a bound that close is that of the answer
Tree = tuple[int, ...]


def settle(side: Side, prover: Prover, below: float) -> tuple[Candidate | None, float]:
    """The cheapest plan of a side, None where none was found that costs less than `below`, and a bound of those that
    do: `below` where there is none."""
    effort = side.problem.settings.effort if below < math.inf else 1.0
    every = arcs_of(side)
    if every > (MOST_REACHED if below < math.inf else MOST_ARCS) * effort:
        return None, -math.inf
    among = reach(side, below)
    if among is None:
        return None, below  # nothing is left that is cheaper
    if every > MOST_ARCS * effort and among.open_arcs(side) > MOST_OPEN * effort:
        return None, -math.inf
    return _Settling(side, prover, below).run(among)


def least_sent(side: Side) -> float:
    """What every plan of a side costs at the least that keeps to its limits and sends something for which there is a
    price: the cheapest choice of each node, and the cheapest collective. Those that run as one pay their latency once,
    and so no less than each of them alone."""
    tight = side.limits.tightened([np.ones(len(each), dtype=bool) for each in side.problem.prices])
    if tight is None:
        return math.inf
    every = sum(float(price[mask].min()) for price, mask in zip(side.problem.prices, tight, strict=True))
    sent = [seconds[seconds > 0] for seconds in side.detours.moves.seconds if seconds is not None]
    least = min((float(each.min()) for each in sent if len(each)), default=math.inf)
    return (every + least) * (1 - SURE)


def settle_unsent(side: Side, prover: Prover, below: float, sent: float) -> tuple[Candidate | None, float]:
    """As `settle`, of the plans of a side that send nothing, where all others cost no less than `sent`. The bound is
    one of all plans."""
    most = min(below, sent)
    if side.limits.combining:
        return None, most  # of some collectives that run as one
    among = reach(side, most)
    if among is None:
        return None, most
    unsent = {t: seconds == 0 for t, seconds in enumerate(side.detours.moves.seconds) if seconds is not None}
    free = Reach(among.choices, {t: mask & unsent[t] for t, mask in among.arcs.items()})
    if free.open_arcs(side) > MOST_UNSENT:
        return None, -math.inf
    return _Settling(side, prover, most).run(free)


def is_looked_at(side: Side) -> bool:
    """Whether a side is small enough to be settled, however little is known of it."""
    return arcs_of(side) <= MOST_ARCS * side.problem.settings.effort


def arcs_of(side: Side) -> int:
    """How large a problem is."""
    tensors = zip(side.problem.graph.tensors, side.detours.moves.arcs, strict=True)
    return sum(len(arcs) * len(tensor.uses) for tensor, arcs in tensors if arcs is not None)


class _Settling:
    """The search for the cheapest plan of a side that costs less than `price`."""

    def __init__(self, side: Side, prover: Prover, price: float):
        self.side, self.prover, self.price = side, prover, price
        self.ascent = side.problem.settled.copy()

    def program(self, among: Reach, unit: float) -> CopiesProgram:
        """The program of the side."""
        limits, moves = self.side.limits, self.side.detours.moves
        program = CopiesProgram(self.side.problem, moves, among.choices, unit, limits.combining, among.arcs)
        for part in limits.parts if isinstance(limits, JointLimits) else (limits,):
            program.limit(part)
        return program

    def run(self, among: Reach) -> tuple[Candidate | None, float]:
        """Solve, spell out, forbid, until a plan keeps to the limits or there is none. `among`: what plans are made
        of."""
        settings = self.side.problem.settings
        unit = UNIT / self.ascent.about(self.price if self.price < math.inf else self.ascent.bound())
        program = self.program(among, unit)
        most = NODES if self.price < math.inf else UNKNOWN_NODES
        nodes = most if arcs_of(self.side) <= MANY_ARCS else FEW_NODES
        found, images = None, None
        bound = -math.inf
        model = program.model()
        for n in range(ROUNDS):
            if n * len(model.low) > MOST_ROWS * (1 if self.price < math.inf else UNKNOWN_ROWS):
                break
            nodes //= 2
            answer = self.solve(model, unit, max(nodes, LEAST_NODES), program.choices)
            if answer.none:
                return found and self.plainest(found), self.price  # nothing is left that is cheaper
            bound = max(bound, answer.bound / unit)
            if answer.x is None or bound >= self.price * (1 - settings.gap):
                break
            plan, rounds = self.read(program, answer.x)
            fits, least = self.side.limits.fits(plan), inner(model.cost, answer.x)
            nearer = fits and plan.price < self.price
            if nearer:
                self.price, found = plan.price, plan
                if bound >= self.price * (1 - settings.gap):
                    break
            wrong = [KeptOut(cycle) for cycle in rounds] or [self.alike(program, plan, answer.x, fits)]
            if self.price < math.inf and not nearer and least - answer.bound > SLACK * abs(least):
                break  # the solver was not done
            images = column_images(program) if images is None else images
            for one in wrong:
                for each in one.with_images(images):
                    program.forbid(each.columns, each.others)
            model = program.model()
        if bound < self.price * (1 - settings.gap) and len(model.low) <= MOST_RELAXED:
            relaxed = solve(continuous(model), settings)
            self.prover.solve_s += relaxed.seconds
            bound = self.price if relaxed.none else max(bound, relaxed.bound / unit)
        return found and self.plainest(found), min(bound, self.price)

    def solve(self, model: Model, unit: float, nodes: int, choices: Sequence[Array]) -> Answer:
        """What the solver says of the plans that cost less than is known. `choices`: the columns of each node's."""
        settings = replace(self.side.problem.settings, solver=SOLVER)
        if not 0 < self.price < math.inf:
            answer = solve(model, settings, nodes)
        else:
            answer = solve(cheaper(model, self.price * unit * (1 - settings.gap), choices), settings, nodes)
        self.prover.solve_s += answer.seconds
        return answer if answer.x is None else replace(answer, x=answer.x[: len(model.cost)])

    def read(self, program: CopiesProgram, x: Floats) -> tuple[Candidate, list[list[int]]]:
        """The plan that an answer is, over the arcs that it pays for, and the columns of those that go round and
        lead nowhere."""
        masks = zip(program.choice, program.allowed, strict=True)
        chosen = [int(np.argmax(x[first : first + len(mask)])) for first, mask in masks]
        trees: dict[int, Tree] = {}
        rounds: list[list[int]] = []
        for t, paid in program.paid.items():
            tensor, arcs = self.side.problem.graph.tensors[t], self.side.detours.moves.arcs[t]
            assert arcs is not None
            root, targets = tensor.ends(chosen)
            used = np.flatnonzero(x[paid : paid + len(arcs)] > 0.5).tolist()
            tree = _tree(arcs, used, root, targets)
            if tree:
                trees[t] = tree
            rounds += [[paid + arc for arc in cycle] for cycle in _cycles(arcs, set(used) - set(tree))]
        shared = frozenset(g for g, column in program.shared.items() if x[column] > INTEGRAL)
        return self.side.detours.over(self.side.problem.found(chosen, shared), trees), rounds

    def plainest(self, plan: Candidate) -> Candidate:
        """The plainest plan of the price of one that keeps to the limits, as far as one is found: rows of choices alone
        would not tell it from cheaper ones that do not."""
        plain = (self.prover.polished(plan, self.ascent), self.side.problem.found(plan.chosen, plan.shared))
        return next((p for p in plain if p.price <= plan.price * (1 + 1e-12) and self.side.limits.fits(p)), plan)

    def alike(self, program: CopiesProgram, plan: Candidate, x: Floats, fits: bool) -> KeptOut:
        """Columns of which every plan that has all of them holds as much at the worst point of this one, or is this
        one."""
        taken = {group for group, column in program.shared.items() if x[column] > INTEGRAL}
        if fits or taken != plan.shared:  # or what runs as one was taken otherwise than plans have it
            return KeptOut(self.exactly(program, x))
        return self.too_much(program, plan)

    def too_much(self, program: CopiesProgram, plan: Candidate) -> KeptOut:
        """What says that a plan holds too much, as far as it is known: in a phase that is what is chosen in it."""
        graph, limits, groups = self.side.problem.graph, self.side.limits.tightest(plan), program.groups
        tensors = every = {t for t, tensor in enumerate(graph.tensors) if tensor.phase == limits.phase}
        others: list[int] = []
        if groups is not None:
            joined = self.joined(plan, limits.phase, groups)
            tensors = self.around(plan, limits.phase, joined)
            others = [program.paid[t] + arc for t in sorted(every - tensors) for arc in _in(groups, t, joined)]
            [own] = groups.of_knots((frozenset(knot for knot in groups.kept if knot[0] == limits.phase),))
            others += [program.several[group] for group in own if int(groups.lead[group]) not in joined]
        elif not any(isinstance(node.item, Append) for node in graph.nodes):  # no score may come to be stored
            tensors = {self.side.detours.numbers[name] for name in limits.worst(plan)}
        nodes = {term.node for term in limits.stored_terms}
        nodes |= {port.node for t in tensors for port in (graph.tensors[t].source, *graph.tensors[t].uses)}
        columns = [program.choice[n] + plan.chosen[n] for n in nodes]
        columns += [program.paid[t] + arc for t, tree in plan.detours if t in tensors for arc in tree]
        return KeptOut(sorted(columns), others)

    def joined(self, plan: Candidate, phase: str, groups: Groups) -> dict[int, set[int]]:
        """The groups of which several collectives run in a phase, the first of each as of `Groups.lead`, and whose
        these are."""
        found: dict[int, set[int]] = {}
        for t, tree in plan.detours:
            of = groups.of[t]
            if of is not None and self.side.problem.graph.tensors[t].phase == phase:
                for group in groups.led(of[list(tree)]).tolist():
                    found.setdefault(group, set()).add(t)
        return {group: some for group, some in found.items() if group >= 0 and len(some) > 1}

    def around(self, plan: Candidate, phase: str, joined: Mapping[int, set[int]]) -> set[int]:
        """The tensors of a phase whose layouts and ways say what a plan holds at its worst point, if the same
        collectives are `joined` and no others: what it holds there, all that is made in that repeat, and what says in
        which order steps run."""
        graph, limits, numbers = self.side.problem.graph, self.side.limits, self.side.detours.numbers
        use, spmd = limits.tightest(plan).spelled(plan)
        first, names = origins(spmd), set[str]()
        for placed in walk(spmd.body):
            around = tuple(repeat.name for repeat in placed.repeats)
            if isinstance(placed.item, Repeat) and (*around, placed.item.name) == use.worst.repeats:
                names |= {carry.inside for carry in placed.item.carries}
            if around == use.worst.repeats:
                made = (placed.item.value,) if isinstance(placed.item, Stored) else makes(placed.item)
                names |= {first.get(name, name) for name in made}
        found = {numbers[name] for name in limits.worst(plan)}
        readers = {port.node for some in joined.values() for t in some for port in graph.tensors[t].uses}
        found |= {numbers[phase, name] for name in names if (phase, name) in numbers}
        own = ((t, tensor) for t, tensor in enumerate(graph.tensors) if tensor.phase == phase)
        return found | {t for t, tensor in own if any(port.node in readers for port in tensor.uses)}

    def exactly(self, program: CopiesProgram, x: Floats) -> list[int]:
        """The columns of what an answer chooses and moves, which say what runs as one."""
        every = self.side.detours.moves.arcs
        arcs = [paid + np.arange(len(own)) for t, paid in program.paid.items() if (own := every[t]) is not None]
        columns = np.concatenate([*program.choices, *arcs])
        return [int(column) for column in columns if x[column] > 0.5]


def _in(groups: Groups, t: int, some: Collection[int]) -> list[int]:
    """The arcs of a tensor that are in `some` groups, or others of the same collectives."""
    of = groups.of[t]
    return [] if of is None else np.flatnonzero(np.isin(groups.led(of), list(some))).tolist()


def _tree(arcs: Arcs, used: Sequence[int], root: int, targets: Sequence[int]) -> Tree:
    """Of the arcs used those that lead from the root to what is wanted, nearest first."""
    into = {int(arcs.target[arc]): arc for arc in used}
    needed: set[int] = set()
    for target in targets:
        while target != root and into[target] not in needed:
            needed.add(into[target])
            target = int(arcs.source[into[target]])
    reached, tree = [root], list[int]()
    for here in reached:
        leaving = [arc for arc in sorted(needed) if arcs.source[arc] == here]
        tree += leaving
        reached += [int(arcs.target[arc]) for arc in leaving]
    return tuple(tree)


def _cycles(arcs: Arcs, left: Collection[int]) -> Iterator[list[int]]:
    """The rounds that arcs make of which each leads to another layout."""
    into = {int(arcs.target[arc]): arc for arc in sorted(left)}
    while into:
        at, way = next(iter(into)), list[int]()
        while at in into:
            way.append(into.pop(at))
            at = int(arcs.source[way[-1]])
        if at == arcs.target[way[0]]:
            yield way
