"""Hardware as the text of a file that reads as the same hardware."""

from __future__ import annotations

from collections.abc import Sequence

from ..ir.inert import comment, visible
from .hardware import Calibrated, Hardware, Switch, Torus
from .hardware_file import FORM

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
