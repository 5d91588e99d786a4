"""A simulator of collectives, link by link: who sends what to whom, hop by hop, and what each link carries.

It prices nothing and knows no formula: it moves blocks over the links of a mesh until every chip has
what the collective promises, and checks that it does. Formulas are judged against it, and a plan's
collectives can be traced with it:

    wires = [Wire("x", 4, Wiring.RING), Wire("y", 4, Wiring.RING)]
    traffic = simulate("all-gather", wires, Fraction(1 << 20))
    for stage in traffic.stages: print(stage.axes, stage.hops, stage.loads)

On rings a block goes the shorter way round; what lies opposite goes half each way. Several axes run
one after the other, or together: the data is cut into as many parts as there are axes, and each part
starts with another axis. Non-goals: contention between collectives, packets.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from itertools import pairwise, product

from ...ir.collective import CollectiveKind
from ...ir.record import record

HALVES = (0, 1)  # each block travels as two halves, which may go opposite ways


class Wiring(StrEnum):
    """How the chips along an axis are joined. Every link is two, one in each direction."""

    RING = "ring"  # each to the next, the last to the first
    LINE = "line"  # each to the next
    SWITCH = "switch"  # each to a switch that is never the bottleneck
    DIRECT = "direct"  # each to every other


@record
class Wire:
    """A mesh axis: its name, how many chips stand along it, how they are joined.

    `stride`: how many links of a ring or line lie from one of these chips to the next. The chips between are of
    groups of their own, which do the same at the same time over the same links.
    """

    name: str
    size: int
    wiring: Wiring
    stride: int = 1


@dataclass(frozen=True, order=True)
class Link:
    """One direction of one link: the `port` of `chip` along `axis`.

    Ports: `+` and `-` to the neighbours of a ring or line (`+2` from the second chip behind one of a group that lie
    apart), `up` and `down` to and from a switch, `to 3` to position 3 of a direct axis. Chips are numbered row by
    row, the last axis fastest.
    """

    axis: str
    chip: int
    port: str


@record
class Stage:
    """What runs between two waits: the axis of each part, hops one after the other, bytes on links."""

    axes: tuple[str, ...]
    hops: int
    loads: tuple[tuple[Link, Fraction], ...]

    @property
    def busiest_bytes(self) -> Fraction:
        """Bytes on the busiest link; 0 when nothing moves."""
        return max((size for _, size in self.loads), default=Fraction(0))


@record
class Traffic:
    """What a collective did. `sent_bytes`: for each chip what it sends, without what only passes through."""

    stages: tuple[Stage, ...]
    sent_bytes: tuple[Fraction, ...]

    @property
    def hops(self) -> int:
        """Hops that wait for each other."""
        return sum(stage.hops for stage in self.stages)

    @property
    def busiest_bytes(self) -> Fraction:
        """Bytes that pass the busiest link, stage after stage: with the link's rate, the time."""
        return sum((stage.busiest_bytes for stage in self.stages), start=Fraction(0))

    def seconds(self, link_bytes_per_s: float, hop_s: float = 0.0) -> float:
        """Time on links of one rate in each direction, with a latency for each hop."""
        return float(self.busiest_bytes) / link_bytes_per_s + self.hops * hop_s


def simulate(kind: CollectiveKind, wires: Sequence[Wire], before_bytes: Fraction, together: bool = False) -> Traffic:
    """Run a collective over all of `wires`; every chip holds `before_bytes` of it at the start.

    `kind`: `all-gather`, `reduce-scatter`, `all-reduce` or `all-to-all`. `together`: all axes at
    once instead of one after the other. Raises KeyError for another kind.
    """
    blocks = math.prod(wire.size for wire in wires)
    split = 1 if kind == CollectiveKind.ALL_GATHER else blocks  # a unit is one chip's block
    orders = _orders(wires, together)
    run = _Run(tuple(wires), Fraction(before_bytes) / split / len(orders) / len(HALVES))
    _RUNS[kind](run, orders)
    return run.traffic()


def simulate_permute(wires: Sequence[Wire], targets: Sequence[int], before_bytes: Fraction) -> Traffic:
    """Send the block of every chip c to chip `targets[c]`, axis by axis in the order of `wires`.

    `targets` is a permutation of the chips, numbered row by row.
    """
    run = _Run(tuple(wires), Fraction(before_bytes) / len(HALVES))
    assert sorted(targets) == list(range(len(run.places))), "every chip gets one block"
    at = list(range(len(targets)))
    for axis, wire in enumerate(wires):
        for chip, target in enumerate(targets):
            line, i = run.line(at[chip], axis)
            j = run.places[target][axis]
            for half in HALVES:
                run.carry(axis, line, _route(wire, i, j, half), 1)
            if at[chip] == chip and i != j:
                run.sent[chip] += len(HALVES)
            at[chip] = line[j]
        run.end_stage([axis])
    assert at == list(targets)
    return run.traffic()


def _orders(wires: Sequence[Wire], together: bool) -> list[list[int]]:
    """For each part of the data the axes in the order in which it takes them; at least one part."""
    axes = list(range(len(wires)))
    return [axes[i:] + axes[:i] for i in axes] if together and axes else [axes]


@record
class _Path:
    """Positions along an axis, one after the other, all in one direction (0: there are none)."""

    positions: tuple[int, ...]
    way: int

    @property
    def back(self) -> _Path:
        """The same path from its end."""
        return _Path(self.positions[::-1], -self.way)


def _walk(wire: Wire, start: int, hops: int, way: int) -> _Path:
    return _Path(tuple((start + way * n) % wire.size for n in range(hops + 1)), way)


def _spread(wire: Wire, root: int, half: int) -> tuple[_Path, ...]:
    """Paths from `root` that reach every other position once."""
    longer, shorter = wire.size // 2, (wire.size - 1) // 2
    match wire.wiring:
        case Wiring.RING:
            up, down = (longer, shorter) if half == 0 else (shorter, longer)
        case Wiring.LINE:
            up, down = wire.size - 1 - root, root
        case Wiring.SWITCH | Wiring.DIRECT:
            return tuple(_Path((root, to), 0) for to in range(wire.size) if to != root)
    return _walk(wire, root, up, 1), _walk(wire, root, down, -1)


def _route(wire: Wire, source: int, target: int, half: int) -> _Path:
    """The shortest path; where both ways round are, the halves part."""
    match wire.wiring:
        case Wiring.RING:
            up, down = (target - source) % wire.size, (source - target) % wire.size
            upwards = up < down or (up == down and half == 0)
            return _walk(wire, source, up, 1) if upwards else _walk(wire, source, down, -1)
        case Wiring.LINE:
            return _walk(wire, source, abs(target - source), 1 if target > source else -1)
        case Wiring.SWITCH | Wiring.DIRECT:
            return _Path((source,) if source == target else (source, target), 0)


def _passed(wire: Wire, start: int, way: int) -> Iterator[tuple[int, str]]:
    """The links that are passed on the way from a chip to its neighbour in the group, and on those of the groups
    between: each from a place at or behind a chip of the group, by its port."""
    sign, chips = "+" if way > 0 else "-", wire.size * wire.stride
    for group in range(wire.stride):
        for hop in range(wire.stride):
            place, behind = divmod((start * wire.stride + group + way * hop) % chips, wire.stride)
            yield place, f"{sign}{behind or ''}"


@dataclass
class _Run:
    """Chips, their lines along each axis, and what has been carried so far, in units of `unit` bytes."""

    wires: tuple[Wire, ...]
    unit: Fraction
    stages: list[Stage] = field(default_factory=list)
    loads: dict[Link, int] = field(default_factory=dict)
    hops: int = 0

    def __post_init__(self) -> None:
        self.places = list(product(*(range(wire.size) for wire in self.wires)))
        self.number = {place: chip for chip, place in enumerate(self.places)}
        self.sent = [0] * len(self.places)

    @property
    def everyone(self) -> int:
        """All chips, as a set of bits."""
        return (1 << len(self.places)) - 1

    def line(self, chip: int, axis: int) -> tuple[list[int], int]:
        """The chips of the line along `axis` through `chip`, and its position there."""
        place = self.places[chip]
        beside = [(*place[:axis], i, *place[axis + 1 :]) for i in range(self.wires[axis].size)]
        return [self.number[p] for p in beside], place[axis]

    def lines(self, axis: int) -> list[list[int]]:
        """Every line along `axis`."""
        return [self.line(chip, axis)[0] for chip, place in enumerate(self.places) if place[axis] == 0]

    def slab(self, axis: int, position: int) -> int:
        """The chips at a position of an axis, as a set of bits."""
        return sum(1 << chip for chip, place in enumerate(self.places) if place[axis] == position)

    def carry(self, axis: int, line: Sequence[int], path: _Path, units: int) -> None:
        """Count units on every link of a path."""
        wire = self.wires[axis]
        for a, b in pairwise(path.positions):
            match wire.wiring:
                case Wiring.RING | Wiring.LINE:
                    ports = list(_passed(wire, a, path.way))
                case Wiring.SWITCH:
                    ports = [(a, "up"), (b, "down")]
                case Wiring.DIRECT:
                    ports = [(a, f"to {b}")]
            for position, port in ports:
                link = Link(wire.name, line[position], port)
                self.loads[link] = self.loads.get(link, 0) + units
        self.hops = max(self.hops, (len(path.positions) - 1) * wire.stride)

    def end_stage(self, axes: Sequence[int]) -> None:
        """Close the stage in which part i went along `axes[i]`."""
        loads = tuple((link, units * self.unit) for link, units in sorted(self.loads.items()) if units)
        self.stages.append(Stage(tuple(self.wires[a].name for a in axes), self.hops, loads))
        self.loads, self.hops = {}, 0

    def traffic(self) -> Traffic:
        """What was carried in all."""
        return Traffic(tuple(self.stages), tuple(units * self.unit for units in self.sent))


def _all_gather(run: _Run, orders: Sequence[Sequence[int]]) -> None:
    """Every bundle of blocks spreads along its line."""
    chips = range(len(run.places))
    held = {(part, half): [1 << chip for chip in chips] for part in range(len(orders)) for half in HALVES}
    for axes in zip(*orders, strict=True):
        for part, half in held:
            held[part, half] = _gathered(run, axes[part], half, held[part, half])
        run.end_stage(axes)
    assert all(have == run.everyone for holds in held.values() for have in holds), "a block is missing"


def _gathered(run: _Run, axis: int, half: int, held: list[int]) -> list[int]:
    after = list(held)
    for line in run.lines(axis):
        for root, chip in enumerate(line):
            bundle = held[chip]
            for path in _spread(run.wires[axis], root, half):
                run.carry(axis, line, path, bundle.bit_count())
                for a, b in pairwise(path.positions):
                    assert after[line[a]] & bundle == bundle, "a chip sends what it does not have"
                    after[line[b]] |= bundle
                    run.sent[line[a]] += bundle.bit_count()
    return after


def _reduce_scatter(run: _Run, orders: Sequence[Sequence[int]]) -> None:
    """Terms of every block flow to its owner, each chip on the way adding its own.

    A chip holds terms of the blocks `owners`, summed over the chips `terms`; each counts once.
    """
    everyone = run.everyone
    owners = {(part, half): [everyone] * len(run.places) for part in range(len(orders)) for half in HALVES}
    terms = {key: [1 << chip for chip in range(len(run.places))] for key in owners}
    for axes in zip(*orders, strict=True):
        for part, half in owners:
            owned, summed = owners[part, half], terms[part, half]
            owners[part, half], terms[part, half] = _scattered(run, axes[part], half, owned, summed)
        run.end_stage(axes)
    for key, owned in owners.items():
        assert owned == [1 << chip for chip in range(len(run.places))], "a block is at the wrong chip"
        assert all(have == everyone for have in terms[key]), "a term is missing"


def _scattered(run: _Run, axis: int, half: int, owned: list[int], terms: list[int]) -> tuple[list[int], list[int]]:
    kept, summed = list(owned), list(terms)
    slabs = [run.slab(axis, i) for i in range(run.wires[axis].size)]
    for line in run.lines(axis):
        for root, chip in enumerate(line):
            kept[chip] = owned[chip] & slabs[root]
            for path in _spread(run.wires[axis], root, half):
                run.carry(axis, line, path.back, kept[chip].bit_count())
                flowing = 0
                for a in path.back.positions[:-1]:
                    assert owned[line[a]] & slabs[root] == kept[chip], "a chip has no term of a block"
                    assert flowing & terms[line[a]] == 0, "a term is added twice"
                    flowing |= terms[line[a]]
                    run.sent[line[a]] += kept[chip].bit_count()
                assert summed[chip] & flowing == 0, "a term is added twice"
                summed[chip] |= flowing
    return kept, summed


def _all_reduce(run: _Run, orders: Sequence[Sequence[int]]) -> None:
    _reduce_scatter(run, [list(reversed(order)) for order in orders])
    _all_gather(run, orders)


def _all_to_all(run: _Run, orders: Sequence[Sequence[int]]) -> None:
    """Every chip has a block for every chip; along an axis goes what must change its place there.

    A chip holds the blocks from `sources` for `targets`, each with each.
    """
    chips = range(len(run.places))
    sources = {(part, half): [1 << chip for chip in chips] for part in range(len(orders)) for half in HALVES}
    targets = {key: [run.everyone for _ in chips] for key in sources}
    for axes in zip(*orders, strict=True):
        for part, half in sources:
            have, wanted = sources[part, half], targets[part, half]
            sources[part, half], targets[part, half] = _exchanged(run, axes[part], half, have, wanted)
        run.end_stage(axes)
    for key, have in sources.items():
        assert all(held == run.everyone for held in have), "a block is missing"
        assert targets[key] == [1 << chip for chip in chips], "a block is at the wrong chip"


def _exchanged(run: _Run, axis: int, half: int, sources: list[int], targets: list[int]) -> tuple[list[int], list[int]]:
    have, wanted = list(sources), list(targets)
    slabs = [run.slab(axis, i) for i in range(run.wires[axis].size)]
    for line in run.lines(axis):
        for j, receiver in enumerate(line):
            wanted[receiver] = targets[receiver] & slabs[j]
            for i, sender in enumerate(line):
                leaving = targets[sender] & slabs[j]
                assert leaving == wanted[receiver], "blocks of two senders do not match"
                have[receiver] |= sources[sender]
                units = sources[sender].bit_count() * leaving.bit_count()
                run.carry(axis, line, _route(run.wires[axis], i, j, half), units)
                own = (sources[sender] >> sender & 1) * (i != j)  # what others sent only passes through
                run.sent[sender] += own * leaving.bit_count()
    return have, wanted


_RUNS = {
    CollectiveKind.ALL_GATHER: _all_gather,
    CollectiveKind.REDUCE_SCATTER: _reduce_scatter,
    CollectiveKind.ALL_REDUCE: _all_reduce,
    CollectiveKind.ALL_TO_ALL: _all_to_all,
}
