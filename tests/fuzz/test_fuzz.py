"""Broken inputs of every kind: an answer or a diagnostic, never a traceback, a bug's exit code or a stray file.

`--fuzz 20000` tries more of them. Each depends on its number alone, which is what a failure names.
"""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest
from fuzz.harness import run
from fuzz.kinds import KINDS, SMALL, cases
from fuzz.mutations import MUTATIONS, mutated

DEAR = ("compiled", "results", "lengths")  # most of these are planned


@pytest.mark.parametrize("kind", KINDS)
def test_no_broken_input_does_more_than_to_be_refused(
    kind: str, fuzz: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    codes = set()
    for number, case in cases(kind, tmp_path, range(fuzz // 3 if kind in DEAR else fuzz)):
        outcome = case.run()
        assert outcome.wrong is None, f"{kind} {number}, {case.arguments}: {outcome.wrong}\n\n{case.made[:5000]}"
        codes.add(outcome.code)
    assert 1 in codes


def test_the_same_number_makes_the_same_input(tmp_path: Path) -> None:
    for kind in KINDS:
        made = [[case.made for _, case in cases(kind, tmp_path, range(3))] for _ in range(2)]
        assert made[0] == made[1]


def test_every_mutation_breaks_something() -> None:
    for mutation in MUTATIONS:
        made = {mutated(random.Random(seed), SMALL, [SMALL], 1, [mutation]) for seed in range(20)}
        assert len(made - {SMALL}) > 5


def test_what_is_wrong_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The harness itself, on what it must not let pass."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "m.esti"
    file.write_text(SMALL)
    compiling = ("compile", str(file), "--chips", "2", "--emit", "numpy", "-o", str(tmp_path / "out"))
    assert "writes to" in (run(compiling, tmp_path / "elsewhere").wrong or "")
    assert run((*compiling, "--force"), tmp_path / "out").wrong is None
    assert sorted(os.listdir(tmp_path)) == ["m.esti", "out"]
    monkeypatch.setattr("escc.compiler.commands.check.load", lambda *_, **__: 1 / 0)
    assert "ZeroDivisionError" in (run(("check", str(file))).wrong or "")
    early = [lambda: os.kill(os.getpid(), signal.SIGPROF)]  # a signal that is not about the CPU
    monkeypatch.setattr("escc.compiler.commands.check.load", lambda *_, **__: early.pop()() or 1 / 0)
    assert "ZeroDivisionError" in (run(("check", str(file))).wrong or "") and not early
    assert signal.getsignal(signal.SIGPROF) is signal.SIG_IGN, "a late one ends no test run"
    os.kill(os.getpid(), signal.SIGPROF)
    monkeypatch.setattr("escc.compiler.commands.check.load", lambda *_, **__: os._exit if sum(range(10**8)) else None)
    monkeypatch.setattr("fuzz.harness.MOST_CPU_S", 0.05)
    assert "takes more than" in (run(("check", str(file))).wrong or "")
