"""The names in one function of an emitted JAX file."""

from __future__ import annotations

from dataclasses import dataclass

from .jax_text import identifier


@dataclass
class Scope:
    """One Python function: the text of each value that it can read, and the identifiers in use.

    `stacked`: the text of each cache, whole. `index`: the variables of the repeats around it.
    `weights`: what holds the parameters of the repeats in it.
    """

    texts: dict[str, str]
    stacked: dict[str, str]
    used: set[str]
    index: tuple[str, ...] = ()
    weights: str = "params"

    def new(self, name: str) -> str:
        """An identifier for something called `name`."""
        found = identifier(name, self.used)
        self.used.add(found)
        return found
