"""Hardware: what a chip can do a second, and the time that work takes on it.

A preset is a TOML file beside this one. The network of a mesh of such chips is in `network`.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np

from ..ir.diagnostics import did_you_mean, fail


@dataclass(frozen=True)
class Hardware:
    """One chip and its network, by datasheet.

    An op takes the longer of its arithmetic and its HBM traffic (roofline).
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
