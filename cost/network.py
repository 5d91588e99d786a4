"""The network of a mesh: what a collective over some of its axes takes.

The convention of Pope et al. 2022, appendix A.1: one bandwidth for each chip, whatever the axes, and
no latency. The passes know only the methods of `Network`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..ir.mesh import Mesh
from .collectives import bytes_sent
from .hardware import Hardware


@dataclass(frozen=True)
class Network:
    """The interconnect of chips of one kind, laid out as a mesh."""

    hardware: Hardware
    mesh: Mesh

    def collective_s(self, kind: str, axes: Sequence[str], before_bytes: Any, after_bytes: Any) -> Any:
        """Seconds of a collective of `kind` over `axes`; local bytes before and after it."""
        sent = bytes_sent(kind, before_bytes, after_bytes, self.mesh.size(*axes))
        return sent / self.hardware.network_bytes_per_s

    def axis_class(self, axis: str) -> object:
        """What sets an axis apart: axes of one class can change places in any plan at no cost."""
        return self.mesh.size(axis)
