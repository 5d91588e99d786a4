"""Words and figures of a report: what is open never reads as proven."""

import io
import sys

import pytest

from escc.compiler.text.terminal import complain, gap_text, say
from escc.ir.diagnostics import Diagnostic


@pytest.mark.parametrize("gap, told", [(0.0313, "up to 3.13%"), (1.26e-6, "up to 0.01%"), (2e-9, "up to 0.01%")])
def test_an_open_gap_is_told_by_its_size(gap: float, told: str):
    assert gap_text(gap) == f"the optimum may be {told} lower"


def test_without_a_bound_no_share_is_told():
    assert gap_text(1.0, " on whole axes") == "no bound on whole axes is known"


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("colours", [True, False])
def test_a_terminal_has_colours_and_a_pipe_has_none(colours: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    out, err = (Terminal(), Terminal()) if colours else (io.StringIO(), io.StringIO())
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    say("Costs  # of all\n")
    complain([Diagnostic("No.", hint="yes")])
    if colours:
        assert out.getvalue() == "\x1b[1mCosts  \x1b[0m\x1b[1;2m# of all\x1b[0m\n"
        assert err.getvalue().startswith("\x1b[1;31merror:\x1b[0m No.") and "\x1b[36mhint:" in err.getvalue()
    else:
        assert (out.getvalue(), err.getvalue()) == ("Costs  # of all\n", "error: No.\n  hint: yes\n")
