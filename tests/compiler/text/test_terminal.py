"""Words and figures of a report: what is open never reads as proven."""

import pytest

from escc.compiler.text.terminal import gap_text


@pytest.mark.parametrize("gap, told", [(0.0313, "up to 3.13%"), (1.26e-6, "up to 0.01%"), (2e-9, "up to 0.01%")])
def test_an_open_gap_is_told_by_its_size(gap: float, told: str):
    assert gap_text(gap) == f"the optimum may be {told} lower"


def test_without_a_bound_no_share_is_told():
    assert gap_text(1.0, " on whole axes") == "no bound on whole axes is known"
