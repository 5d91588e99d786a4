"""Words in a drawing."""

from __future__ import annotations

from dataclasses import dataclass

CHARACTER = 6.5  # the width of a character, and a little more


@dataclass(frozen=True)
class Text:
    """A word and where it stands, in pixels; `anchor` is SVG's. `turned`: it is read from below."""

    words: str
    x: float
    y: float
    anchor: str = "start"
    turned: bool = False
