"""The network of a mesh: what a collective over some of its axes takes.

Two conventions, chosen by the hardware. `flat` is that of Pope et al. 2022, appendix A.1: one
bandwidth for each chip, whatever the axes, and no latency. `links` puts each axis of the mesh on a
level of the network (see `topology`) and counts the bytes on the busiest link and the steps. The
passes know only the methods of `Network`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, combinations
from math import prod
from typing import Any

from ..ir.mesh import Mesh
from .collectives import FREE, bytes_sent
from .hardware import Convention, Hardware, Torus
from .topology import Axis, Level, place_axes


@dataclass(frozen=True)
class Network:
    """The interconnect of chips of one kind, laid out as a mesh.

    In the links convention the methods raise InputError when the mesh does not fit the hardware.
    """

    hardware: Hardware
    mesh: Mesh

    def collective_s(
        self, kind: str, axes: Sequence[str], before_bytes: Any, after_bytes: Any, joined: bool = False
    ) -> Any:
        """Seconds of a collective of `kind` over `axes`; local bytes before and after it.

        Bytes may be numbers, arrays or symbols. `joined`: what it adds to a collective that it is
        part of; its bytes alone, as they add and the latency is paid once.
        """
        fixed_s = 0.0 if joined else self.latency_s(kind, axes)
        return fixed_s + self._transfer_s(kind, axes, before_bytes, after_bytes)

    def latency_s(self, kind: str, axes: Sequence[str]) -> float:
        """What a collective takes whatever it carries: the start, and each step's way to the next chip.

        Every step pays the latency of its hop and the time of what it carries, so both add (Hockney's
        model). The larger of the two, as the scaling-book has it, is at least half of that; it would
        not let bytes add where collectives are combined.
        """
        if self.hardware.convention is Convention.FLAT or kind in FREE or self.mesh.size(*axes) == 1:
            return 0.0
        hops_s = self.hops(kind, axes) * self.hardware.hop_latency_s
        return self.hardware.calibrated.collective_latency_s + hops_s

    def _transfer_s(self, kind: str, axes: Sequence[str], before_bytes: Any, after_bytes: Any) -> Any:
        """Seconds for the bytes alone."""
        ways = self.mesh.size(*axes)
        sent = bytes_sent(kind, before_bytes, after_bytes, ways)
        if self.hardware.convention is Convention.FLAT:
            return sent / self._reached(self.hardware.network_bytes_per_s)
        if kind in FREE or ways == 1:
            return 0 * sent
        match kind:
            case "all-to-all":
                return before_bytes * self._exchange_s_per_byte(axes)
            case "permute":
                return before_bytes * self._exchange_s_per_byte(axes, permute=True)
            case _:
                return sent / self.gather_bytes_per_s(axes)

    def axis_class(self, axis: str) -> object:
        """What sets an axis apart: axes of one class can change places in any plan at no cost."""
        if self.hardware.convention is Convention.FLAT:
            return self.mesh.size(axis)
        return self._axes[axis]

    def gather_bytes_per_s(self, axes: Sequence[str]) -> float:
        """The rate at which a chip takes in what an all-gather over `axes` brings it.

        A reduce-scatter is its mirror image. One level goes after the other, the slowest first,
        while blocks are small.
        """
        stages = sorted(self._stages(axes), key=lambda stage: self._stage_bytes_per_s(stage))
        seconds, gathered = 0.0, 1  # for one byte on each chip at the start
        for stage in stages:
            ways = prod(axis.size for axis in stage)
            seconds += gathered * (ways - 1) / self._stage_bytes_per_s(stage)
            gathered *= ways
        return (gathered - 1) / seconds

    def hops(self, kind: str, axes: Sequence[str]) -> int:
        """The steps, one after the other, from chip to chip, of a collective of `kind` over `axes`."""
        steps = sum(_hops(stage) for stage in self._stages(axes))
        return 2 * steps if kind == "all-reduce" else steps

    @cached_property
    def _axes(self) -> dict[str, Axis]:
        return place_axes(self.mesh, self.hardware)

    def _reached(self, peak_bytes_per_s: float) -> float:
        return peak_bytes_per_s * self.hardware.calibrated.network_efficiency

    def _axis_bytes_per_s(self, axis: Axis) -> float:
        """What a chip can take in along an axis, where it has least links."""
        if axis.level is Level.BETWEEN:
            assert self.hardware.between_bytes_per_s is not None, "place_axes refuses it"
            return self._reached(self.hardware.between_bytes_per_s)
        return self._reached(self.hardware.fabric.link_bytes_per_s) * (2 if axis.level is Level.RING else 1)

    def _stages(self, axes: Sequence[str]) -> list[list[Axis]]:
        """The axes that are used at once, stage by stage; axes of one chip left out."""
        fabric = self.hardware.fabric
        at_once = not isinstance(fabric, Torus) or fabric.axes_together
        near: list[list[Axis]] = []
        far: list[Axis] = []
        for axis in (self._axes[name] for name in axes if self.mesh.size(name) > 1):
            if axis.level is Level.BETWEEN:
                far.append(axis)
            elif at_once and near:
                near[0].append(axis)
            else:
                near.append([axis])
        return [*near, far] if far else near

    def _stage_bytes_per_s(self, stage: Sequence[Axis]) -> float:
        """The rate of an all-gather over axes used at once.

        On a torus each part of the data may take the axes in another order. Whatever the orders, the
        links along some of the axes carry at least what a gather over those alone would bring; with
        the best orders no more than the worst such set asks for.
        """
        if not _is_torus(stage):
            return self._axis_bytes_per_s(stage[0])
        busiest = max(
            (prod(axis.size for axis in some) - 1) / sum(self._axis_bytes_per_s(axis) for axis in some)
            for some in chain.from_iterable(combinations(stage, n) for n in range(1, len(stage) + 1))
        )
        return (prod(axis.size for axis in stage) - 1) / busiest

    def _exchange_s_per_byte(self, axes: Sequence[str], permute: bool = False) -> float:
        """Seconds of an all-to-all, or of a permute, for each byte that a chip holds.

        Which chip sends to which in a permute is not looked at. On a torus any permute can go as two
        all-to-alls, which spread each block over the chips and bring it together elsewhere, and an
        exchange of opposite chips on an even ring takes no less.
        """
        total = 0.0
        for stage in self._stages(axes):
            if _is_torus(stage):
                link = self._reached(self.hardware.fabric.link_bytes_per_s)
                busiest = max(exchange_bytes(1, axis.size, axis.level is Level.RING) for axis in stage)
                total += (2 if permute else 1) * busiest / link
            else:
                ways = prod(axis.size for axis in stage)
                total += (1 if permute else (ways - 1) / ways) / self._axis_bytes_per_s(stage[0])
        return total


def exchange_bytes(local_bytes: Any, ways: int, wrapped: bool) -> Any:
    """Bytes on the busiest link, in one direction, of an all-to-all of `local_bytes` a chip.

    Along a ring (`wrapped`) or a line of `ways` chips, both directions in use. On a ring of many a
    quarter of what an all-gather of the same total takes.
    """
    along_ring = local_bytes * ways / 8 if ways % 2 == 0 else local_bytes * (ways**2 - 1) / (8 * ways)
    return along_ring if wrapped else 2 * along_ring


def _is_torus(stage: Sequence[Axis]) -> bool:
    return stage[0].level in (Level.RING, Level.LINE)


def _hops(stage: Sequence[Axis]) -> int:
    if not _is_torus(stage):
        return 1
    return sum(axis.size // 2 if axis.level is Level.RING else axis.size - 1 for axis in stage)
