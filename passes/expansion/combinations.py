"""Combinations of orders: in which order each kind of product is contracted in each phase.

What saves nothing alone may save a lot together: two projections of one value run as one kernel only where the products
that both belong to begin with them. So orders are changed one by one and several together.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from ...cost.hardware import Hardware
from ...cost.hidden import shown
from ...cost.kernels import Launch
from ...cost.ops import Work, work
from ...ir.mesh import Mesh
from ...ir.program import Kind, Program, Repeat, Stored, operand_names, signature, stored_in, walk
from ...ir.spmd import unsharded
from .once import sent_once
from .orders import Orders, Product

Picks = tuple[int, ...]  # for each choice which order; 0: that of fewest operations
Move = Mapping[int, int]  # of some choices, by their places, other orders


class Combinations:
    """All combinations of the orders that products of some phases may be contracted in. `choices`: the kinds of
    products that have several orders, each in a phase; `count`: how many combinations there are."""

    def __init__(self, program: Program, phases: Sequence[str]) -> None:
        self.phases, self.orders = tuple(phases), Orders(program)
        self.sizes = {name: dict(program.phase(name).sizes) for name in phases}
        found = {(name, p): n for name in phases for p, n in self.orders.choices(name).items()}
        self.choices: tuple[tuple[str, Product], ...] = tuple(found)
        self.counts = tuple(found.values())
        self.count = math.prod(self.counts)
        self._made: dict[tuple[str, Picks], Program] = {}

    @property
    def first(self) -> Picks:
        """All products in the order of fewest operations."""
        return (0,) * len(self.choices)

    def programs(self, picks: Picks) -> dict[str, Program]:
        """What each phase runs: the same objects for the same picks."""
        return {name: self._program(name, picks) for name in self.phases}

    def every(self) -> Iterator[Picks]:
        """All combinations."""
        return itertools.product(*map(range, self.counts))

    def moves(self) -> Iterator[Move]:
        """What to change of a combination, in this order: all choices; those of products that are alike; those of
        products that read one value, and of each two of these; each alone. Some come again."""
        read: dict[Product, list[str]] = {}
        for one in self.orders.units.values():
            read.setdefault(one.product, []).extend(one.op.operands)
        every = range(len(self.choices))
        alike = _groups([[(phase, self._shape(phase, kind))] for phase, kind in self.choices])
        reading = _groups([[(phase, name) for name in dict.fromkeys(read[kind])] for phase, kind in self.choices])
        pairs = (pair for group in reading for pair in itertools.combinations(group, 2))
        for group in itertools.chain([tuple(every)] if every else (), alike, reading, pairs, ((n,) for n in every)):
            for pick in (*range(1, max(self.counts[n] for n in group)), 0):
                yield {n: min(pick, self.counts[n] - 1) for n in group}

    def least_s(self, mesh: Mesh, hardware: Hardware) -> float:
        """What the phases cost together at the least, whatever the orders, in seconds: no op takes less than its share
        of arithmetic and of parameters on each chip, and no product less than it does in the best of its orders. One
        phase alone is called once."""
        calls = {p.name: p.calls if len(self.phases) > 1 else 1 for p in self.orders.program.phases}
        return math.fsum(calls[name] * self._least_of(name, mesh, hardware) for name in self.phases)

    def _program(self, phase: str, picks: Picks) -> Program:
        own = tuple(pick for (name, _), pick in zip(self.choices, picks, strict=True) if name == phase)
        if (phase, own) not in self._made:
            kinds = (kind for name, kind in self.choices if name == phase)
            self._made[phase, own] = self.orders.ordered(phase, dict(zip(kinds, own, strict=True)))
        return self._made[phase, own]

    def _shape(self, phase: str, kind: Product) -> tuple[tuple[tuple[int, int], ...], ...]:
        """What products have in common that differ in the names of their indices alone."""
        number: dict[str, int] = {}
        sizes = self.sizes[phase]
        read = (*kind.factors, kind.output)
        return tuple(tuple((number.setdefault(i, len(number)), sizes[i]) for i in indices) for indices in read)

    def _least_of(self, phase: str, mesh: Mesh, hardware: Hardware) -> float:
        """Of one call of a phase. Each program has all products in their first orders, in their second, and so on:
        each order is in one of them."""
        programs = list[Program]()
        for pick in range(max(self.counts, default=1)):
            one = self._program(phase, tuple(min(pick, count - 1) for count in self.counts))
            programs += [one, *(sent for sent in [sent_once(one, phase)] if sent is not None)]
        costs = [self._costs(one, phase, mesh, hardware) for one in programs]
        return math.fsum(min(cost.get(name, 0.0) for cost in costs) for name in costs[0])

    def _costs(self, program: Program, phase: str, mesh: Mesh, hardware: Hardware) -> dict[str, float]:
        """Seconds at the least of the products of a program, all their pairs together, and of its other ops."""
        products = {part: name for name, parts in self.orders.names.items() for part in parts.values()}
        parameters = {one.value for one in stored_in(program.body, Kind.PARAM)}
        hidden = shown(unsharded(program, phase, mesh))
        values, whole = program.table(), self.sizes[phase].__getitem__
        found: dict[str, float] = {}
        for placed in walk(program.body):
            op = placed.item
            if isinstance(op, Stored | Repeat):
                continue
            launch = Launch(frozenset(operand_names(op)) & parameters, frozenset(), False)
            share = 0 if op.result in hidden else 1  # how much masks hide may be otherwise in other orders
            done = work(op, signature(op, values), values, launch, whole, whole, share)
            name = products.get(op.result, op.result)
            found[name] = found.get(name, 0.0) + placed.times * _at_least(done, mesh, hardware)
        return found


def _groups(keys: Sequence[Iterable[object]]) -> list[tuple[int, ...]]:
    """The places that have a key in common, of each key that several have."""
    found: dict[object, list[int]] = {}
    for n, own in enumerate(keys):
        for key in own:
            found.setdefault(key, []).append(n)
    return sorted({tuple(group) for group in found.values() if len(group) > 1})


def _at_least(done: Work, mesh: Mesh, hardware: Hardware) -> float:
    """Seconds of an op, on any chip, of which all chips together do so much or more."""
    flops, hbm_bytes = float(done.flops) / mesh.chips, float(done.hbm_bytes) / mesh.chips
    return float(hardware.work_s(replace(done, flops=flops, hbm_bytes=hbm_bytes, cache_bytes=0.0)))
