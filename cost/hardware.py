"""Hardware: what a chip can do a second, and the time that work takes on it.

A preset is a TOML file beside this one. The passes know only the methods of `Hardware`.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np

from ..ir.diagnostics import did_you_mean, fail
from . import collectives


@dataclass(frozen=True)
class Hardware:
    """One chip and its network, by datasheet.

    An op takes the longer of its arithmetic and its HBM traffic (roofline); a collective takes its
    bytes over the chip's whole interconnect bandwidth (Pope et al. 2022, appendix A.1).
    """

    name: str
    peak_flops_per_s: float
    hbm_bytes: float
    hbm_bytes_per_s: float
    network_bytes_per_s: float

    def compute_s(self, flops: Any) -> Any:
        """Seconds of arithmetic."""
        return flops / self.peak_flops_per_s

    def memory_s(self, hbm_bytes: Any) -> Any:
        """Seconds of HBM traffic."""
        return hbm_bytes / self.hbm_bytes_per_s

    def op_s(self, flops: Any, hbm_bytes: Any) -> Any:
        """Seconds of an op that does `flops` and moves `hbm_bytes`, per chip; arrays or numbers."""
        return np.maximum(self.compute_s(flops), self.memory_s(hbm_bytes))

    def collective_s(self, kind: str, before_bytes: Any, after_bytes: Any, ways: Any) -> Any:
        """Seconds of a collective of `kind` over `ways` chips; local bytes before and after it."""
        return collectives.bytes_sent(kind, before_bytes, after_bytes, ways) / self.network_bytes_per_s


def presets() -> tuple[str, ...]:
    """The names of the shipped hardware files, sorted."""
    names = (entry.name for entry in resources.files(__package__).iterdir())
    return tuple(sorted(n.removesuffix(".toml") for n in names if n.endswith(".toml")))


def load_hardware(name: str) -> Hardware:
    """The preset called `name`. Raises InputError when there is none."""
    if name not in presets():
        known = ", ".join(presets())
        hint = did_you_mean(name, presets()) or f"known: {known}"
        raise fail(f"There is no hardware preset `{name[:60]}`.", hint=hint)
    text = resources.files(__package__).joinpath(f"{name}.toml").read_text(encoding="utf-8")
    return Hardware(**tomllib.loads(text))
