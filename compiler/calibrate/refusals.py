"""Times that no chip takes, refused before figures are fitted to them or written: most are in other units than their
column says, and what came of them would be a hardware file of no chip.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ...cost.hardware_file import MOST_ERROR
from ...ir.diagnostics import Diagnostic, InputError, Source, Span, fail
from ..text.csv_lines import MOST_FINDINGS

Floats = NDArray[np.float64]

QUICKER = 1.1  # times a datasheet's rate: what is beyond it is no chip that runs a little faster than it should
ALIKE = 0.01  # of a predicted time: two that differ by less are one


class Timed(Protocol):
    """A row: what was measured, and where it stands."""

    @property
    def seconds(self) -> float:
        """What was measured."""

    @property
    def place(self) -> Span:
        """Where it stands."""


def below_least(least_s: float) -> str:
    """What is wrong with a time that no chip can take, in words; `least_s`: as of `rows.least_s`."""
    return f"below {_ms(least_s)}, the least at the datasheet's peaks"


def refuse_impossible(rows: Sequence[Timed], least_s: Sequence[float], source: Source, hint: str) -> None:
    """Raise InputError with all rows that were measured well below their `least_s`."""
    found = [
        Diagnostic(f"This was measured in {_ms(row.seconds)}, {below_least(least)}.", row.place, hint, source)
        for row, least in zip(rows, least_s, strict=True)
        if QUICKER * row.seconds < least
    ]
    if found:
        raise InputError(found[:MOST_FINDINGS])


def refuse_misfit(
    rows: Sequence[Timed], predicted_s: Floats, slowest_s: Floats, error: float, source: Source, hint: str
) -> None:
    """Raise InputError where figures that were fitted to rows are no chip's: as slow as they may be for all rows, or
    with an `error` that no hardware file may have.

    `predicted_s`, `slowest_s`: what the rows take by these figures, and by the slowest that are fitted.
    """
    measured_s = np.array([row.seconds for row in rows])
    if not error <= MOST_ERROR:
        worst = int(np.argmax(np.abs(np.log(predicted_s / measured_s))))
        times = f"measured in {_ms(measured_s[worst])}, and is predicted in {_ms(predicted_s[worst])}"
        raise fail(f"No figures fit: this was {times}.", rows[worst].place, hint, source)
    if np.allclose(predicted_s, slowest_s, rtol=ALIKE, atol=0.0):
        worst = int(np.argmax(measured_s / slowest_s))
        times = f"{measured_s[worst] / slowest_s[worst]:.3g} times what the slowest figures that are fitted give"
        raise fail(f"This was measured in {_ms(measured_s[worst])}, {times}.", rows[worst].place, hint, source)


def _ms(seconds: float) -> str:
    time_ms = 1e3 * seconds
    return f"{time_ms:,.0f} ms" if 1e3 <= time_ms < 1e9 else f"{time_ms:.4g} ms"
