"""How rope's frequencies are slowed down for contexts longer than the model was first trained on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ...ir.expr import Call, Const, Expr


@dataclass(frozen=True)
class Linear:
    """All frequencies are divided by `factor`."""

    factor: float

    def slowed(self, frequency: Expr) -> Expr:
        """The frequencies, radians per position, after scaling."""
        return Call("divide", (frequency, Const(self.factor)))


@dataclass(frozen=True)
class Llama3:
    """Frequencies that turn less than `low` times within `original` positions are divided by `factor`.

    Those that turn more than `high` times stay; between, the share that stays grows linearly. `low`
    is below `high`.
    """

    factor: float
    low: float
    high: float
    original: float

    def slowed(self, frequency: Expr) -> Expr:
        """The frequencies, radians per position, after scaling."""
        turns = Call("multiply", (frequency, Const(self.original / math.tau)))
        ramp = Call("divide", (Call("subtract", (turns, Const(self.low))), Const(self.high - self.low)))
        kept = Call("maximum", (Const(0.0), Call("minimum", (Const(1.0), ramp))))
        divided = Call("divide", (Call("subtract", (Const(1.0), kept)), Const(self.factor)))
        return Call("multiply", (frequency, Call("add", (kept, divided))))


Scaling = Linear | Llama3

SCALINGS: Mapping[str, type[Linear] | type[Llama3]] = {"linear": Linear, "llama3": Llama3}
