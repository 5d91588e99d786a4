"""The network of a mesh: what a collective over some of its axes takes.

Two conventions, chosen by the hardware. `flat` is that of Pope et al. 2022, appendix A.1: one
bandwidth for each chip, whatever the axes, and no latency. `links` puts each axis of the mesh on a
level of the network (see `topology`) and counts the bytes on the busiest link and the steps. The
passes know only the methods of `Network`. Behind a switch whose collectives were measured, what they take
is read off their protocols instead, stage by stage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, cached_property
from itertools import chain, combinations, groupby
from math import prod
from typing import Any

from ..ir.collective import CollectiveKind
from ..ir.diagnostics import InputError
from ..ir.mesh import Mesh, part_of
from ..ir.record import record
from .elementwise import smaller
from .hardware import Convention, Hardware, Protocols, Torus
from .sendings import Sending, StageSending, sendings_of
from .topology import Axis, Level, place_axes


def bytes_sent(kind: CollectiveKind, before_bytes: Any, after_bytes: Any, ways: Any, many: bool = False) -> Any:
    """Bytes that each chip sends in a collective over `ways` chips.

    `before_bytes` and `after_bytes` are what a chip holds before and after. Numbers, fractions,
    arrays and symbols all do. In a permute the whole block leaves a chip. With `many` the form
    for many chips (K >> 1), which drops the factor (K - 1) / K.
    Raises KeyError for a kind that is not a collective.
    """
    all_of_it = _ALL_OF_IT[kind](before_bytes, after_bytes)
    return all_of_it if many or kind not in KEEPS_ONE_PART else all_of_it * (ways - 1) / ways


KEEPS_ONE_PART = frozenset(
    {CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_TO_ALL}
)
FREE = frozenset({CollectiveKind.SLICE, CollectiveKind.EMBED})  # kinds that send nothing

_ALL_OF_IT = {
    CollectiveKind.ALL_GATHER: lambda before, after: after,
    CollectiveKind.REDUCE_SCATTER: lambda before, after: before,
    CollectiveKind.ALL_REDUCE: lambda before, after: 2 * before,
    CollectiveKind.ALL_TO_ALL: lambda before, after: before,
    CollectiveKind.PERMUTE: lambda before, after: before,
    CollectiveKind.SLICE: lambda before, after: 0 * before,
    CollectiveKind.EMBED: lambda before, after: 0 * before,
}


Run = tuple[str, ...]  # an axis, or neighbouring parts of one that are used as one
Stage = list[Run]  # what is used at once


@record
class Terms:
    """What a network's prices are made of: figures, or symbols in their place.

    `size` of an axis: its chips; `rate`: the bytes/s that a chip can take in along it, where it has
    least links. `bandwidth`: all that a chip can send, bytes/s. `start_s` and `hop_s`: the latencies
    of a collective and of a hop, 0 where the hardware has none. `many`: without the factors
    (K - 1)/K, as for K >> 1.
    """

    size: Callable[[str], Any]
    rate: Callable[[str], Any]
    bandwidth: Any
    start_s: Any
    hop_s: Any
    many: bool = False

    def ways(self, axes: Sequence[str]) -> Any:
        """Over how many chips `axes` go."""
        return prod((self.size(name) for name in axes), start=1)

    def others(self, ways: Any) -> Any:
        """All of some chips but one."""
        return ways if self.many else ways - 1


@record
class Network:
    """The interconnect of chips of one kind, laid out as a mesh.

    Prices are numbers, or formulas where `symbols` are given; which formula holds (what the busiest
    links are, whether a ring is even) is decided by the figures of the hardware and the mesh either
    way. In the links convention the methods raise InputError when the mesh does not fit the hardware.
    """

    hardware: Hardware
    mesh: Mesh
    symbols: Terms | None = None

    def collective_s(
        self,
        kind: CollectiveKind,
        axes: Sequence[str],
        before_bytes: Any,
        after_bytes: Any,
        ahead: tuple[Any, Any] | None = None,
    ) -> Any:
        """Seconds of a collective of `kind` over `axes`; local bytes before and after it.

        Bytes may be numbers, arrays or symbols. `ahead`: the bytes, before and after, that a collective carries
        already that it is part of; then what it adds to that. The latency is paid once, and so is the start of a
        protocol for large messages: what runs as one takes what one collective of all its bytes does.
        """
        if ahead is None:
            return self.latency_s(kind, axes) + self._transfer_s(kind, axes, before_bytes, after_bytes)
        if not self.is_measured(kind, axes):
            return self._transfer_s(kind, axes, before_bytes, after_bytes)  # they add
        whole_s = self._transfer_s(kind, axes, ahead[0] + before_bytes, ahead[1] + after_bytes)
        return whole_s - self._transfer_s(kind, axes, *ahead)

    def least_added_s(self, kind: CollectiveKind, axes: Sequence[str], before_bytes: Any, after_bytes: Any) -> Any:
        """The least that bytes add to a collective that they are part of, whatever else that carries: at the quicker
        rate of what was measured, without the start that all of it pays once."""
        sendings = self.sendings(kind, axes)
        if sendings:
            return before_bytes * sendings[-1].s_per_byte
        return self._transfer_s(kind, axes, before_bytes, after_bytes)

    def sendings(self, kind: CollectiveKind, axes: Sequence[str]) -> tuple[Sending, ...]:
        """The ways in which the bytes of a measured collective may go, in numbers, as `sendings_of` has them: it takes
        its latency and the quickest of them. None where it was not measured or nothing is sent."""
        return self._known_sendings(kind, tuple(axes))

    @cached_property
    def _known_sendings(self) -> Callable[[CollectiveKind, tuple[str, ...]], tuple[Sending, ...]]:
        return cache(self._sendings)

    def _sendings(self, kind: CollectiveKind, axes: tuple[str, ...]) -> tuple[Sending, ...]:
        if not self.is_measured(kind, axes) or self.mesh.size(*axes) == 1:
            return ()
        protocols = self._protocols(kind, axes)
        assert protocols is not None, "it is measured"
        return sendings_of(self._stage_sendings(kind, axes, 1.0, protocols, self._figures))

    def handing_on(self, axis: str) -> tuple[Sending, ...]:
        """The ways to hand a value on to the chip at the same place of the next stage, `axis` being that of stages."""
        once_s, ways = float(self.start_s), self.passing_on(axis, both_ways=False)
        return tuple(replace(way, start_s=once_s + way.start_s) for way in ways)

    def passing_on(self, axis: str, both_ways: bool) -> tuple[Sending, ...]:
        """The ways to pass a block on from chip to chip along `axis`, in numbers: each is a permute, with its hop and
        the start of its protocol, whatever else is under way. What starts a loop of them is left out.

        `both_ways`: a half of each block goes round the one way, the other half the other.
        """
        hop_s = float(self.hop_s(axis))
        measured = self.sendings(CollectiveKind.PERMUTE, (axis,))
        ways = measured or (Sending(0.0, 1 / self._passing_bytes_per_s(axis, both_ways)),)
        return tuple(replace(way, start_s=hop_s + way.start_s) for way in ways)

    def latency_s(self, kind: CollectiveKind, axes: Sequence[str]) -> Any:
        """What a collective takes whatever it carries: the start, and each step's way to the next chip.

        Every step pays the latency of its hop and the time of what it carries, so both add (Hockney's
        model). The larger of the two, as the scaling-book has it, is at least half of that; it would
        not let bytes add where collectives are combined.
        """
        return self._known_latency_s(kind, tuple(axes))

    @cached_property
    def _known_latency_s(self) -> Callable[[CollectiveKind, tuple[str, ...]], Any]:
        """`latency_s`, once of each: a search asks the same of few axes for many values."""
        return cache(self._latency_s)

    def _latency_s(self, kind: CollectiveKind, axes: tuple[str, ...]) -> Any:
        if self.hardware.convention is Convention.FLAT or kind in FREE or self.mesh.size(*axes) == 1:
            return 0.0
        protocols = self._protocols(kind, axes)
        if protocols is not None:
            return sum(self._wait_s(kind, stage, protocols) for stage in self.stages(axes))
        return self._terms.start_s + self._steps(kind, axes, self._terms) * self._terms.hop_s

    def _wait_s(self, kind: CollectiveKind, stage: Stage, protocols: Protocols) -> Any:
        """What each chip waits in a stage of a measured collective; in a permute for one other."""
        others = 1 if kind == CollectiveKind.PERMUTE else self._terms.others(self._terms.ways(_names(stage)))
        return protocols.start_s + protocols.member_s * others

    def is_measured(self, kind: CollectiveKind, axes: Sequence[str]) -> bool:
        """Whether what a collective of a kind takes over `axes` is read off protocols that were measured, if only of
        one node."""
        return self.hardware.convention is Convention.LINKS and self._protocols(kind, axes) is not None

    def _protocols(self, kind: CollectiveKind, axes: Sequence[str]) -> Protocols | None:
        """What was measured of collectives of a kind; a permute goes as an all-to-all does. All stages of one go by
        the protocols of one library: none by those that an engine has in a node where it goes over nodes as well."""
        return self._known_protocols(kind, tuple(axes))

    @cached_property
    def _known_protocols(self) -> Callable[[CollectiveKind, tuple[str, ...]], Protocols | None]:
        return cache(self._protocols_of)

    def _protocols_of(self, kind: CollectiveKind, axes: tuple[str, ...]) -> Protocols | None:
        alike = CollectiveKind.ALL_TO_ALL if kind == CollectiveKind.PERMUTE else kind
        return self.hardware.protocols_over(self.crosses_nodes(axes)).get(alike)

    def _transfer_s(self, kind: CollectiveKind, axes: Sequence[str], before_bytes: Any, after_bytes: Any) -> Any:
        """Seconds for the bytes alone; of what was measured with the start of its protocol for large messages."""
        sent = bytes_sent(kind, before_bytes, after_bytes, self._terms.ways(axes), self._terms.many)
        if self.hardware.convention is Convention.FLAT:
            return sent / self._terms.bandwidth
        if kind in FREE or self.mesh.size(*axes) == 1:
            return 0 * sent
        protocols = self._protocols(kind, axes)
        if protocols is not None:
            return self._measured_s(kind, axes, before_bytes, protocols)
        match kind:
            case CollectiveKind.ALL_TO_ALL:
                return before_bytes * self._known_exchange_s_per_byte(tuple(axes), False)
            case CollectiveKind.PERMUTE:
                return before_bytes * self._known_exchange_s_per_byte(tuple(axes), True)
            case _:
                return sent / self.gather_bytes_per_s(axes)

    def _measured_s(self, kind: CollectiveKind, axes: Sequence[str], before_bytes: Any, protocols: Protocols) -> Any:
        """Seconds for the bytes of a measured collective."""
        seconds = 0
        for stage in self._stage_sendings(kind, axes, before_bytes, protocols, self._terms):
            if protocols.bulk_share is None:
                seconds = seconds + stage.sent_s
            else:
                seconds = seconds + smaller(stage.sent_s, stage.bulk_start_s + stage.bulk_s)
        return seconds

    def _stage_sendings(
        self, kind: CollectiveKind, axes: Sequence[str], before_bytes: Any, protocols: Protocols, terms: Terms
    ) -> Iterator[StageSending]:
        """How each stage of a measured collective may go, for so many bytes. Where it goes over nodes as well it goes
        in stages, of which that between the nodes carries what is left, or there so far, of the bytes."""
        held = before_bytes if kind == CollectiveKind.ALL_GATHER else before_bytes / terms.ways(axes)
        for stage in self.gather_stages(axes):
            ways = terms.ways(_names(stage))
            match kind:
                case CollectiveKind.PERMUTE:
                    sent = before_bytes
                case CollectiveKind.ALL_TO_ALL:
                    sent = before_bytes * terms.others(ways) / ways
                case _:
                    sent = held * terms.others(ways) * (2 if kind == CollectiveKind.ALL_REDUCE else 1)
            held = held * ways
            rate, bulk_share = terms.rate(stage[0][0]), protocols.bulk_share or protocols.share
            starts_s = protocols.bulk_start_s or 0.0
            yield StageSending(sent / (rate * protocols.share), starts_s, sent / (rate * bulk_share))

    def axis_class(self, axis: str) -> object:
        """What sets an axis apart: axes of one class can change places in any plan at no cost."""
        if self.hardware.convention is Convention.FLAT:
            return self.mesh.size(axis)
        on_torus = self.level(axis) in (Level.RING, Level.LINE)
        return axis if on_torus and part_of(axis) != axis else self._axes[axis]

    def gather_bytes_per_s(self, axes: Sequence[str]) -> Any:
        """The rate at which a chip takes in what an all-gather over `axes` brings it.

        A reduce-scatter is its mirror image.
        """
        return self._known_gather_bytes_per_s(tuple(axes))

    @cached_property
    def _known_gather_bytes_per_s(self) -> Callable[[tuple[str, ...]], Any]:
        return cache(self._gather_bytes_per_s)

    def _gather_bytes_per_s(self, axes: tuple[str, ...]) -> Any:
        terms = self._terms
        seconds, gathered = 0, 1  # for one byte on each chip at the start
        for stage in self.gather_stages(axes):
            seconds += gathered * self._spread_s_per_byte(stage, terms)
            gathered *= terms.ways(_names(stage))
        return terms.others(gathered) / seconds

    def hops(self, kind: CollectiveKind, axes: Sequence[str]) -> int:
        """The steps, one after the other, from chip to chip, of a collective of `kind` over `axes`."""
        return int(self._steps(kind, axes, self._figures))

    @cached_property
    def rings(self) -> frozenset[str]:
        """The axes that close into rings. In the flat convention the mesh need not fit the hardware; no
        axis of one that does not is known to close."""
        try:
            return frozenset(name for name, axis in self._axes.items() if axis.level is Level.RING)
        except InputError:
            if self.hardware.convention is Convention.LINKS:
                raise
            return frozenset()

    @property
    def start_s(self) -> Any:
        """What starting a loop of permutes takes; where these were measured each has a start of its own."""
        flat = self.hardware.convention is Convention.FLAT
        return 0.0 if flat or self._protocols(CollectiveKind.PERMUTE, ()) else self._terms.start_s

    def hop_s(self, axis: str) -> Any:
        """What each step from chip to chip along an axis takes, whatever it carries."""
        if self.hardware.convention is Convention.FLAT:
            return 0.0
        protocols = self._protocols(CollectiveKind.PERMUTE, (axis,))
        if protocols is not None:
            return protocols.start_s + protocols.member_s
        return self._terms.hop_s * self._axes[axis].stride

    def _passing_bytes_per_s(self, axis: str, both_ways: bool) -> float:
        """The rate at which a chip takes in blocks that are passed on along an axis, where that was not measured.

        Passed one way, blocks use half of what the links of a ring carry. On a line the block that goes back to its
        start uses those of the other direction, so both directions carry all there is either way.
        """
        if self.hardware.convention is Convention.FLAT:
            return float(self._figures.bandwidth)
        one_way = self.level(axis) is Level.RING and not both_ways
        return self.axis_bytes_per_s(axis) / (2 if one_way else 1)

    def crosses_nodes(self, axes: Sequence[str]) -> bool:
        """Whether some of `axes` join nodes or slices. In the flat convention the mesh need not fit the hardware: what
        joins the chips of one that does not is not known, and may do so."""
        live = [name for name in axes if self.mesh.size(name) > 1]
        try:
            return any(self.level(name) is Level.BETWEEN for name in live)
        except InputError:
            if self.hardware.convention is Convention.LINKS:
                raise
            return bool(live)

    def level(self, axis: str) -> Level:
        """What the chips along an axis are linked by; along neighbouring parts of one, that of the outermost."""
        return self._axes[axis].level

    def stride(self, axis: str) -> int:
        """How many links lie from one chip to the next along an axis; along parts of one, that of the innermost."""
        return self._axes[axis].stride

    def joins(self, outer: str, inner: str) -> bool:
        """Whether neighbouring parts of an axis, used together, cost what one axis in their place would."""
        if self.hardware.convention is Convention.FLAT or isinstance(self.hardware.fabric, Torus):
            return True
        return self.level(outer) is self.level(inner)

    def axis_bytes_per_s(self, axis: str) -> float:
        """What a chip can take in along an axis, where it has least links, all groups that share them at work."""
        return self.link_bytes_per_s(axis) * (2 if self.level(axis) is Level.RING else 1) / self.stride(axis)

    def link_bytes_per_s(self, axis: str) -> float:
        """What one link along an axis carries in one direction."""
        if self.level(axis) is Level.BETWEEN:
            assert self.hardware.between_bytes_per_s is not None, "place_axes refuses it"
            return self._reached(self.hardware.between_bytes_per_s)
        return self._reached(self.hardware.fabric.link_bytes_per_s)

    def stages(self, axes: Sequence[str]) -> list[Stage]:
        """The axes that are used at once, stage by stage; axes of one chip left out. On a torus neighbouring parts of
        an axis are one run of chips; runs of one axis that are no neighbours share its links, and take turns."""
        live = [name for name in axes if self.mesh.size(name) > 1]
        far = [name for name in live if self.level(name) is Level.BETWEEN]
        near = [name for name in live if name not in far]
        if not isinstance(self.hardware.fabric, Torus):
            return [[(name,) for name in stage] for stage in (near, far) if stage]
        first: dict[str, Run] = {}
        turns: list[Stage] = []
        for run in self._runs(near):
            if part_of(run[0]) in first:
                turns.append([run])
            first.setdefault(part_of(run[0]), run)
        runs = list(first.values())
        most = self.hardware.calibrated.axes_at_once
        if most is not None and most < len(
            runs
        ):  # the longest together: what is left for an axis by itself is least then
            runs.sort(key=lambda run: self.mesh.size(*run), reverse=True)
        most = most or len(runs) or 1
        together = [runs[n : n + most] for n in range(0, len(runs), most)]
        between: Stage = [(name,) for name in far]
        return [stage for stage in (*together, *turns, between) if stage]

    def _runs(self, axes: Sequence[str]) -> list[Run]:
        """Axes, those that are neighbouring parts of one as one run, outer ones first."""
        parts = {part_of(name): [a for a in self.mesh.parts(part_of(name)) if self.mesh.size(a) > 1] for name in axes}
        runs: list[Run] = []
        for every in parts.values():
            own = [name for name in every if name in axes]
            runs += [
                tuple(name for _, name in group)
                for _, group in groupby(enumerate(own), key=lambda at: every.index(at[1]) - at[0])
            ]
        return runs

    def gather_stages(self, axes: Sequence[str]) -> list[Stage]:
        """The stages in the order of an all-gather: the slowest first, while blocks are small."""
        return list(self._known_gather_stages(tuple(axes)))

    @cached_property
    def _known_gather_stages(self) -> Callable[[tuple[str, ...]], tuple[Stage, ...]]:
        return cache(lambda axes: tuple(sorted(self.stages(axes), key=self._stage_bytes_per_s)))

    @cached_property
    def _axes(self) -> dict[str, Axis]:
        return place_axes(self.mesh, self.hardware)

    @cached_property
    def _figures(self) -> Terms:
        hardware = self.hardware
        bandwidth = self._reached(hardware.network_bytes_per_s)
        start_s, hop_s = hardware.calibrated.collective_latency_s, hardware.hop_s
        return Terms(self.mesh.size, self.axis_bytes_per_s, bandwidth, start_s, hop_s)

    @property
    def _terms(self) -> Terms:
        return self.symbols or self._figures

    def _reached(self, peak_bytes_per_s: float) -> float:
        return peak_bytes_per_s * self.hardware.calibrated.network_efficiency

    def _steps(self, kind: CollectiveKind, axes: Sequence[str], terms: Terms) -> Any:
        steps = sum(self._stage_steps(stage, terms) for stage in self.stages(axes))
        return 2 * steps if kind == CollectiveKind.ALL_REDUCE else steps

    def _stage_steps(self, stage: Stage, terms: Terms) -> Any:
        if not self._is_torus(stage):
            return 1
        return sum(self._run_steps(run, terms.ways(run)) * self.stride(run[-1]) for run in stage)

    def _run_steps(self, run: Run, ways: Any) -> Any:
        return ways // 2 if self.level(run[0]) is Level.RING else ways - 1

    def _is_torus(self, stage: Stage) -> bool:
        return self.level(stage[0][0]) in (Level.RING, Level.LINE)

    def _stage_bytes_per_s(self, stage: Stage) -> float:
        """The rate of an all-gather over axes used at once."""
        return float((self.mesh.size(*_names(stage)) - 1) / self._spread_s_per_byte(stage, self._figures))

    def _rate(self, run: Run, terms: Terms) -> Any:
        """The bytes/s that a chip can take in along a run: twice that of its innermost part where parts that are
        lines close into a ring together."""
        closes = self.level(run[0]) is Level.RING and self.level(run[-1]) is Level.LINE
        return terms.rate(run[-1]) * (2 if closes else 1)

    def _spread_s_per_byte(self, stage: Stage, terms: Terms) -> Any:
        """Seconds of an all-gather over axes used at once, for each byte on a chip at the start.

        On a torus each part of the data may take the axes in another order. Whatever the orders, the
        links along some of the axes carry at least what a gather over those alone would bring; with
        the best orders no more than the worst such set asks for.
        """
        if not self._is_torus(stage):
            return terms.others(terms.ways(_names(stage))) / terms.rate(stage[0][0])

        def through(some: Sequence[Run], terms: Terms) -> Any:
            return terms.others(terms.ways(_names(some))) / sum(self._rate(run, terms) for run in some)

        sets = chain.from_iterable(combinations(stage, n) for n in range(len(stage), 0, -1))
        return through(max(sets, key=lambda some: through(some, self._figures)), terms)

    @cached_property
    def _known_exchange_s_per_byte(self) -> Callable[[tuple[str, ...], bool], Any]:
        return cache(self._exchange_s_per_byte)

    def _exchange_s_per_byte(self, axes: tuple[str, ...], permute: bool) -> Any:
        """Seconds of an all-to-all, or of a permute, for each byte that a chip holds.

        Which chip sends to which in a permute is not looked at. On a torus any permute can go as two
        all-to-alls, which spread each block over the chips and bring it together elsewhere, and an
        exchange of opposite chips on an even ring takes no less.
        """
        terms, total = self._terms, 0
        for stage in self.stages(axes):
            if self._is_torus(stage):
                busiest = max(stage, key=lambda run: self._across_s_per_byte(run, self._figures))
                total += (2 if permute else 1) * self._across_s_per_byte(busiest, terms)
            else:
                ways = terms.ways(_names(stage))
                total += (1 if permute else terms.others(ways) / ways) / terms.rate(stage[0][0])
        return total

    def _across_s_per_byte(self, run: Run, terms: Terms) -> Any:
        """Seconds of an all-to-all along a ring or line, both directions in use, for each byte on a chip.

        On a ring of many chips a quarter of what an all-gather of the same total takes. A line has
        twice the bytes on its busiest link, as a ring has twice the rate.
        """
        ways = terms.ways(run)
        even = self.mesh.size(*run) % 2 == 0 or terms.many
        on_busiest_link = ways / 8 if even else (ways**2 - 1) / (8 * ways)
        return 2 * on_busiest_link / self._rate(run, terms)


def _names(runs: Sequence[Run]) -> list[str]:
    """The axes of some runs."""
    return [name for run in runs for name in run]
