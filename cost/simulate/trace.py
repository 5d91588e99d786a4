"""Collectives of a plan on the link simulator: what the busiest link carries, beside the formula's seconds.

The simulator (`links`) moves blocks and knows no formula; here the axes of a mesh become its wires,
stage by stage as `network` orders them. Only chips that exchange data are simulated, and fractions
of one byte, so sizes of tensors do not matter. Non-goals: collectives at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import cache
from itertools import product
from math import isclose

from ...ir.collective import CollectiveKind, Permute
from ...ir.layout import Layout
from ...ir.mesh import Mesh
from ...ir.program import walk
from ...ir.record import record
from ...ir.spmd import Move, SpmdProgram
from ..estimate import Transfer, concrete_sizes, step_costs
from ..hardware import Hardware
from ..network import Network, Run
from ..topology import Level
from .links import Stage, Wire, Wiring, simulate, simulate_permute

MOST_CHIPS = 512  # of one collective
LONGEST_RING = 64  # or line: an exchange on one of 256 chips takes seconds to simulate
TOLERANCE = 1e-9  # relative, between an exact formula and the simulation

WIRING = {Level.RING: Wiring.RING, Level.LINE: Wiring.LINE, Level.SWITCH: Wiring.SWITCH, Level.BETWEEN: Wiring.SWITCH}


@record
class Simulated:
    """What was simulated: bytes over the busiest link, stage after stage; hops that wait for each other; seconds."""

    busiest_bytes: Fraction
    hops: int
    seconds: float


@record
class Trace:
    """One collective, once. `results`: the values that it makes, several where some run as one.

    `exact`: whether the formula claims to be what a run takes; else it is a bound, or has been `measured`: what a
    protocol reaches of the links is no matter of theirs. `run` is None where the collective is too large to simulate.
    """

    results: tuple[str, ...]
    kind: CollectiveKind
    axes: tuple[str, ...]
    chips: int
    formula_s: float
    exact: bool
    run: Simulated | None
    measured: bool = False

    @property
    def agrees(self) -> bool | None:
        """Whether an exact formula is what was simulated; None where it is none, or nothing was."""
        if self.run is None or not self.exact:
            return None
        return isclose(self.run.seconds, self.formula_s, rel_tol=TOLERANCE)


def traces(spmd: SpmdProgram, hardware: Hardware) -> tuple[Trace, ...]:
    """Every collective of a sharded program that sends something, in order.

    `hardware` is in the links convention. Raises InputError when the mesh does not fit it.
    """
    network = Network(hardware, spmd.mesh)
    sent = {step.result: step for step in step_costs(spmd, concrete_sizes(spmd)) if isinstance(step, Transfer)}
    groups: list[list[Move]] = []
    for placed in walk(spmd.body):
        match placed.item:
            case Move(result, _, _, joined) if joined:
                groups[-1].append(placed.item)
            case Move(result) if sent[result].bytes_sent:
                groups.append([placed.item])
    values = spmd.table()
    return tuple(
        _trace([sent[move.result] for move in group], group[0], values[group[0].operand].layout, network)
        for group in groups
    )


def _trace(steps: Sequence[Transfer], move: Move, before: Layout, network: Network) -> Trace:
    first = steps[0]
    held = sum((Fraction(step.before_bytes) for step in steps), start=Fraction(0))
    after = sum((Fraction(step.after_bytes) for step in steps), start=Fraction(0))
    formula_s = float(network.collective_s(first.kind, first.axes, float(held), float(after)))
    run: Simulated | None = None
    if isinstance(move.collective, Permute):
        axes = [axis for axis in network.mesh.names if axis in before.split_axes]
        if _small(axes, network):
            run = _timed(_permuted(network, axes, before, move.collective.layout), held, network)
    elif _small(first.axes, network):
        run = _timed(_collective(network, first.kind, first.axes), held, network)
    results = tuple(step.result for step in steps)
    measured = network.is_measured(first.kind, first.axes)
    exact = not measured and not isinstance(move.collective, Permute) and _claims(first.kind, first.axes, network)
    return Trace(results, first.kind, first.axes, network.mesh.size(*first.axes), formula_s, exact, run, measured)


def _small(axes: Sequence[str], network: Network) -> bool:
    runs = [run for stage in network.stages(axes) for run in stage]
    along = [network.mesh.size(*run) for run in runs if WIRING[network.level(run[0])] is not Wiring.SWITCH]
    return network.mesh.size(*axes) <= MOST_CHIPS and max(along, default=1) <= LONGEST_RING


def _claims(kind: CollectiveKind, axes: Sequence[str], network: Network) -> bool:
    """Whether the formula of a collective is exact.

    A gather over unlike axes at once has its price from the best mixture of orders, and the simulator
    knows only those in which every part of the data starts with another axis.
    """
    stages = network.stages(axes)
    alike = [len({(w.size, w.wiring, w.stride) for w in _wires(stage, network)}) == 1 for stage in stages]
    return kind == CollectiveKind.ALL_TO_ALL or all(
        same or _is_switch(stage, network) for same, stage in zip(alike, stages, strict=True)
    )


def _is_switch(stage: Sequence[Run], network: Network) -> bool:
    return WIRING[network.level(stage[0][0])] is Wiring.SWITCH


def _timed(stages: Sequence[Stage], held: Fraction, network: Network) -> Simulated:
    """Stages of a run with one byte on each chip at the start, as one with `held` bytes."""
    busiest = [stage.busiest_bytes * held for stage in stages]
    hops = sum(stage.hops for stage in stages)
    carried_s = sum(float(b) / network.link_bytes_per_s(s.axes[0]) for b, s in zip(busiest, stages, strict=True))
    start_s, hop_s = network.hardware.calibrated.collective_latency_s, network.hardware.hop_s
    return Simulated(sum(busiest, start=Fraction(0)), hops, start_s + hops * hop_s + carried_s)


def _collective(network: Network, kind: CollectiveKind, axes: Sequence[str]) -> list[Stage]:
    """The stages of a collective with one byte on each chip at the start."""
    order = network.gather_stages(axes)
    match kind:
        case CollectiveKind.ALL_GATHER:
            return list(_gathered(network, order, Fraction(1)))
        case CollectiveKind.REDUCE_SCATTER:
            return list(_scattered(network, order))
        case CollectiveKind.ALL_REDUCE:
            return [*_scattered(network, order), *_gathered(network, order, Fraction(1, network.mesh.size(*axes)))]
        case _:
            return [one for stage in order for one in _simulated(kind, _wires(stage, network))]


def _gathered(network: Network, order: Sequence[Sequence[Run]], held: Fraction) -> Iterator[Stage]:
    for stage in order:
        yield from (_times(one, held) for one in _simulated(CollectiveKind.ALL_GATHER, _wires(stage, network)))
        held *= _chips(stage, network)


def _scattered(network: Network, order: Sequence[Sequence[Run]]) -> Iterator[Stage]:
    held = Fraction(1)
    for stage in reversed(order):
        yield from (_times(one, held) for one in _simulated(CollectiveKind.REDUCE_SCATTER, _wires(stage, network)))
        held /= _chips(stage, network)


@cache
def _simulated(kind: CollectiveKind, wires: tuple[Wire, ...]) -> tuple[Stage, ...]:
    return simulate(kind, wires, Fraction(1), together=True).stages


def _times(stage: Stage, factor: Fraction) -> Stage:
    return Stage(stage.axes, stage.hops, tuple((link, load * factor) for link, load in stage.loads))


def _chips(stage: Sequence[Run], network: Network) -> int:
    return network.mesh.size(*(axis for run in stage for axis in run))


def _wires(stage: Sequence[Run], network: Network) -> tuple[Wire, ...]:
    """What is used at once as wires, each by the name of its last axis. What joins chips behind a switch is one."""
    if _is_switch(stage, network):
        return (Wire(stage[0][-1], _chips(stage, network), Wiring.SWITCH),)
    return tuple(
        Wire(run[-1], network.mesh.size(*run), WIRING[network.level(run[0])], network.stride(run[-1])) for run in stage
    )


def _permuted(network: Network, axes: Sequence[str], before: Layout, after: Layout) -> list[Stage]:
    """The stages of a permute that sends every block straight to its chip, axis by axis."""
    stages = network.stages(axes)
    order = [axis for stage in stages for run in stage for axis in run]
    wires = [wire for stage in stages for wire in _wires(stage, network)]
    return list(simulate_permute(wires, _targets(order, before, after, network.mesh), Fraction(1)).stages)


def _targets(order: Sequence[str], before: Layout, after: Layout, mesh: Mesh) -> list[int]:
    """For each chip of the axes in `order`, row by row, the chip that holds its block after a permute."""
    places = [dict(zip(order, place, strict=True)) for place in product(*(range(mesh.size(a)) for a in order))]
    holders = {_block(after, place, mesh): chip for chip, place in enumerate(places)}
    return [holders[_block(before, place, mesh)] for place in places]


def _block(layout: Layout, place: dict[str, int], mesh: Mesh) -> tuple[int, ...]:
    """Which part of each dim a chip holds."""
    parts = []
    for axes in layout.dims:
        part = 0
        for axis in axes:
            part = part * mesh.size(axis) + place.get(axis, 0)
        parts.append(part)
    return tuple(parts)
