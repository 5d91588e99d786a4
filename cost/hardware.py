"""Hardware: what a chip can do a second, and the time that work takes on it.

A preset is a TOML file beside this one; a user's own file looks the same. The network of a mesh of
such chips is in `network`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from importlib import resources
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from ..cost import presets as presets_folder
from ..ir.diagnostics import Source, did_you_mean, fail
from ..ir.inert import comment, visible
from ..ir.text.read import read_source
from .hardware_file import FORM, Tables, read_tables


def larger(a: Any, b: Any) -> Any:
    """The larger of two, element by element."""
    sympy = _sympy_of(a, b)
    return np.maximum(a, b) if sympy is None else sympy.Max(a, b)


def root_of_squares(a: Any, b: Any) -> Any:
    """The root of the sum of two squares, element by element."""
    sympy = _sympy_of(a, b)
    return np.hypot(a, b) if sympy is None else sympy.sqrt(a**2 + b**2)


def _sympy_of(*operands: Any) -> ModuleType | None:
    """sympy, where an operand is an expression of it.

    Importing it takes longer than most plans, so prices in numbers do without: while nobody has
    imported it there are no expressions.
    """
    sympy = sys.modules.get("sympy")
    return sympy if sympy is not None and any(isinstance(x, sympy.Basic) for x in operands) else None


MEASURED = "-measured"  # ends the name of hardware whose calibrated figures were fitted to measurements


class Convention(StrEnum):
    """How the network is seen."""

    FLAT = "flat"  # one bandwidth for a chip, no latency: Pope et al. 2022, appendix A.1
    LINKS = "links"  # each axis of the mesh has links of its own, and steps take time


class Wrap(StrEnum):
    """When the axes of a torus close into rings."""

    CUBES = "cubes"  # all of them, when the slice is made of whole cubes of `wrap_axis_chips` a side
    FULL_AXIS = "full-axis"  # an axis of exactly `wrap_axis_chips`
    ALWAYS = "always"
    NEVER = "never"


class Rule(StrEnum):
    """What an op takes, given the seconds of its arithmetic and of its HBM traffic."""

    MAX = "max"
    SUM = "sum"
    ROOT_OF_SQUARES = "root-of-squares"


@dataclass(frozen=True)
class Torus:
    """Chips with links to their neighbours along each of `dimensions` axes.

    `link_bytes_per_s`: one link, one direction.
    """

    dimensions: int
    link_bytes_per_s: float
    wrap: Wrap
    largest_slice_chips: int
    wrap_axis_chips: int = 1


@dataclass(frozen=True)
class Switch:
    """Nodes of `node_chips` chips behind a switch. `link_bytes_per_s`: of a chip, one direction."""

    node_chips: int
    link_bytes_per_s: float


@dataclass(frozen=True)
class Calibrated:
    """What was measured: how the two times of an op combine, the shares of the peaks that are
    reached, and the seconds that a collective takes whatever it carries.

    `hop_latency_s`: of each of its steps from chip to chip, None where the datasheet's figure stands.
    `axes_at_once`: along how many axes of a torus a collective uses the links at once, None for all;
    over more it goes in stages. `error`: the root mean square of log(predicted / measured) over what
    the figures were fitted to, 0 where nothing was.
    """

    op_rule: Rule = Rule.MAX
    compute_efficiency: float = 1.0
    hbm_efficiency: float = 1.0
    network_efficiency: float = 1.0
    collective_latency_s: float = 0.0
    hop_latency_s: float | None = None
    axes_at_once: int | None = None
    error: float = 0.0


@dataclass(frozen=True)
class Hardware:
    """One chip and its network.

    `peak_flops_per_s` is dense bf16. `network_bytes_per_s` is all that a chip can send, the one
    bandwidth of the flat convention. `between_bytes_per_s` is what a chip can send to other nodes or
    slices, None where that is not known. Latencies count in the links convention only.
    """

    name: str
    peak_flops_per_s: float
    hbm_bytes: float
    hbm_bytes_per_s: float
    network_bytes_per_s: float
    fabric: Torus | Switch
    peak_int8_ops_per_s: float | None = None
    peak_fp8_flops_per_s: float | None = None
    dollars_per_chip_hour: float | None = None
    between_bytes_per_s: float | None = None
    hop_latency_s: float = 0.0
    calibrated: Calibrated = field(default_factory=Calibrated)
    convention: Convention = Convention.FLAT

    @classmethod
    def load(cls, name: str, measured: bool = False) -> Hardware:
        """The preset called `name`, or the hardware of the file `name` when that ends in `.toml`. With `measured`
        the figures fitted to measurements, where a preset of such a chip is shipped.

        Raises InputError when there is no such preset or file, or with all that is wrong in the file.
        """
        if measured and name + MEASURED in presets():
            name += MEASURED
        return parse_hardware(read_source(Path(name))) if name.endswith(".toml") else _preset(name)

    def with_network(self, convention: str | None) -> Hardware:
        """The same chip with its network seen by another convention, `flat` or `links`; None leaves its own."""
        return self if convention is None else replace(self, convention=Convention(convention))

    @property
    def chip(self) -> str:
        """The name of the chip, whether its figures are the datasheet's or measured."""
        return self.name.removesuffix(MEASURED)

    @property
    def hop_s(self) -> float:
        """Seconds of a collective's step from chip to chip: as measured, or else the datasheet's."""
        measured = self.calibrated.hop_latency_s
        return self.hop_latency_s if measured is None else measured

    def compute_s(self, flops: Any) -> Any:
        """Seconds of arithmetic."""
        return flops / (self.peak_flops_per_s * self.calibrated.compute_efficiency)

    def memory_s(self, hbm_bytes: Any) -> Any:
        """Seconds of HBM traffic."""
        return hbm_bytes / (self.hbm_bytes_per_s * self.calibrated.hbm_efficiency)

    def op_s(self, flops: Any, hbm_bytes: Any) -> Any:
        """Seconds of an op that does `flops` and moves `hbm_bytes`, per chip; numbers, arrays or symbols."""
        compute, memory = self.compute_s(flops), self.memory_s(hbm_bytes)
        match self.calibrated.op_rule:
            case Rule.MAX:
                return larger(compute, memory)
            case Rule.SUM:
                return compute + memory
            case Rule.ROOT_OF_SQUARES:
                return root_of_squares(compute, memory)


def presets() -> tuple[str, ...]:
    """The names of the shipped hardware files, sorted."""
    names = (entry.name for entry in resources.files(presets_folder).iterdir())
    return tuple(sorted(n.removesuffix(".toml") for n in names if n.endswith(".toml")))


@lru_cache(maxsize=64)
def _preset(name: str) -> Hardware:
    if name not in presets():
        known = ", ".join(presets())
        hint = did_you_mean(name, presets()) or f"known: {known}; or a file of your own, `NAME.toml`"
        raise fail(f"There is no hardware preset `{name[:60]}`.", hint=hint)
    text = resources.files(presets_folder).joinpath(f"{name}.toml").read_text(encoding="utf-8")
    return parse_hardware(Source(f"{name}.toml", text))


def parse_hardware(source: Source) -> Hardware:
    """The hardware that a TOML text describes. Raises InputError with all that is wrong in it."""
    tables: Tables = read_tables(source)
    calibrated = dict(tables.get("calibrated", {}))
    if "op_rule" in calibrated:
        calibrated["op_rule"] = Rule(calibrated["op_rule"])
    fabric: Torus | Switch
    if "torus" in tables:
        torus = tables["torus"]
        fabric = Torus(**torus | {"wrap": Wrap(torus["wrap"])})
    else:
        fabric = Switch(**tables["switch"])
    network = dict(tables["network"])
    if "convention" in network:
        network["convention"] = Convention(network["convention"])
    return Hardware(**tables[""], **tables["datasheet"], **network, fabric=fabric, calibrated=Calibrated(**calibrated))


LARGE = 1e6  # figures from here on are written as 4.5e10


def hardware_toml(hardware: Hardware, comments: Sequence[str], calibrated: Sequence[str]) -> str:
    """The text of a hardware file: `comments` at the top, `calibrated` above the figures that are."""
    lines = _comments(comments)
    fabric = "torus" if isinstance(hardware.fabric, Torus) else "switch"
    parts: dict[str, Hardware | Torus | Switch | Calibrated] = {
        "": hardware,
        "datasheet": hardware,
        "network": hardware,
        fabric: hardware.fabric,
        "calibrated": hardware.calibrated,
    }
    for table, part in parts.items():
        if table:
            lines += ["", f"[{table}]"]
        if table == "calibrated":
            lines += _comments(calibrated)
        found = {name: getattr(part, name) for name in FORM[table]}
        lines += [f"{name} = {_value(value)}" for name, value in found.items() if value is not None]
    return "\n".join(lines) + "\n"


def _comments(texts: Sequence[str]) -> list[str]:
    """Texts as comments, a line each, whatever they hold."""
    return [comment(text) for text in texts]


def _value(value: str | float) -> str:
    """A value as TOML has it."""
    if isinstance(value, str):
        return '"' + visible(value).replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, int) or abs(value) < LARGE:
        return repr(value)
    digits, exponent = f"{value:.15e}".split("e")
    return f"{digits.rstrip('0').rstrip('.')}e{int(exponent)}"
