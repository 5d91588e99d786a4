"""Times that no chip takes: what is refused, where, and what is not yet."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from escc.compiler.calibrate.refusals import refuse_impossible, refuse_misfit
from escc.cost.hardware_file import MOST_ERROR
from escc.ir.diagnostics import InputError, Source, Span

SOURCE = Source("t.csv", "us\n1\n2\n3\n")


@dataclass(frozen=True)
class Row:
    seconds: float
    place: Span


ROWS = [Row(seconds, Span(line, 1)) for line, seconds in enumerate((1.0, 2.0, 4.0), start=2)]
MEASURED_S = np.array([1.0, 2.0, 4.0])


def test_all_rows_below_the_least_are_named() -> None:
    refuse_impossible(ROWS, [1.05, 2.05, 0.1], SOURCE, "hint")  # a chip may run a little faster than it should
    with pytest.raises(InputError) as error:
        refuse_impossible(ROWS, [1.2, 2.05, 4.8], SOURCE, "times are in us")
    assert [(d.span, d.hint) for d in error.value.diagnostics] == [
        (Span(2, 1), "times are in us"),
        (Span(4, 1), "times are in us"),
    ]
    assert error.value.diagnostics[0].message == (
        "This was measured in 1,000 ms, below 1,200 ms, the least at the datasheet's peaks."
    )


def test_figures_as_slow_as_they_may_be_are_refused_at_the_row_that_is_furthest_beyond() -> None:
    slowest_s = np.array([0.1, 0.05, 0.2])
    with pytest.raises(InputError) as error:
        refuse_misfit(ROWS, slowest_s * 1.001, slowest_s, 3.0, SOURCE, "hint")
    [found] = error.value.diagnostics
    assert found.span == Span(3, 1)
    assert found.message == "This was measured in 2,000 ms, 40 times what the slowest figures that are fitted give."
    refuse_misfit(ROWS, np.array([0.1, 0.04, 0.2]), slowest_s, 3.0, SOURCE, "hint")  # of one row they are quicker


@pytest.mark.parametrize("error", [MOST_ERROR * 1.01, float("inf"), float("nan")])
def test_errors_that_no_hardware_file_may_have_are_refused(error: float) -> None:
    refuse_misfit(ROWS, MEASURED_S, 20 * MEASURED_S, MOST_ERROR, SOURCE, "hint")
    with pytest.raises(InputError, match="this was measured in 4,000 ms, and is predicted in") as found:
        refuse_misfit(ROWS, np.array([1.0, 20.0, 4e-5]), 20 * MEASURED_S, error, SOURCE, "hint")
    assert found.value.diagnostics[0].span == Span(4, 1)
