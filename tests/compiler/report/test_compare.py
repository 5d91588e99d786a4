"""Named layouts and a search beside them: which sizes are asked about, and what is said of the answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from escc.compiler.plan.compiled import CompiledPhase
from escc.compiler.plan.pipeline import compile_phase, load
from escc.compiler.report.compare import Finding, Sending, Weight, compare
from escc.compiler.report.explain_text import sentence
from escc.cost.formulas.symbolic import Form
from escc.cost.hardware import Hardware
from escc.ir.diagnostics import fail
from escc.ir.mesh import Mesh
from escc.ir.program import Pin, PinKind
from escc.passes.options import Options
from escc.passes.plan import Objective

ROOT = Path(__file__).parents[3] / "examples"
MESH = Mesh.parse("4x4x4")


def compiled(pins: str, size: int = 512) -> CompiledPhase:
    program = load(ROOT / "feed-forward.esti", {"B": size}, [ROOT / "pins" / f"{pins}.pins"])
    return compile_phase(
        program,
        "main",
        MESH,
        Options(Hardware.of_paper("tpu-v4"), Objective.COMMUNICATION),
    )


@pytest.fixture(scope="module")
def rivals() -> dict[str, CompiledPhase]:
    return {name: compiled(name) for name in ("ws2d", "wg-x")}


@pytest.mark.parametrize("form", Form)
def test_the_search_is_asked_where_the_dim_is_and_where_the_best_changes(
    rivals: dict[str, CompiledPhase], form: Form
) -> None:
    asked: list[tuple[int, tuple[str, ...]]] = []

    def search(at: int, pins: Sequence[Pin]) -> CompiledPhase:
        asked.append((at, tuple(f"{pin.value} {pin.text}" for pin in pins)))
        assert all(pin.kind is PinKind.STORED for pin in pins)
        return rivals["ws2d"]

    compare(rivals, form, "B", search=search)
    weights = ("Wi E_xF_zy", "Wo F_zyE_x")
    assert [at for at, _ in asked] == [512, 512, 16384, 16384]
    assert asked[0][1] == asked[2][1] == ()
    assert set(asked[1][1]) == {*weights, "x BLE_xzy", "y BLE_xzy"}
    assert set(asked[3][1]) == {*weights, "x B_xLE_zy", "y B_xLE_zy"}


def test_without_a_plan_the_reason_is_kept(rivals: dict[str, CompiledPhase]) -> None:
    def search(at: int, pins: Sequence[Pin]) -> CompiledPhase:
        raise fail("Nothing fits.")

    for finding in compare(rivals, Form.EXACT, "B", search=search).findings:
        assert (finding.found, finding.reason, finding.gain) == (None, "Nothing fits.", 0.0)
        assert sentence(finding, "B").endswith(": no plan. Nothing fits.")


def test_what_is_found_is_the_plan_s(rivals: dict[str, CompiledPhase]) -> None:
    """At 512 tokens a plan that is given 64 times as many sends more, and that is said."""
    worse = compiled("ws2d", 64 * 512)
    first, *_ = compare(rivals, Form.EXACT, "B", search=lambda at, pins: worse).findings
    assert first.found == Sending(worse.estimate.totals().comm_s, worse.estimate.totals().bytes_sent)
    assert first.gain == pytest.approx(-63)
    assert first.weights == (Weight("Wi", "E_xF_zy", "E_xF_zy"), Weight("Wo", "F_zyE_x", "F_zyE_x"))
    assert "more than ws2d's" in sentence(first, "B")


def test_gains() -> None:
    finding = Finding(8, None, "a", Sending(2.0, 4e6), Sending(0.5, 1e6))
    assert finding.gain == 0.75
    assert (
        sentence(finding, "B")
        == "At B = 8, nothing pinned: 1.00 MB in 500000 us, 75.0% less than a's 4.00 MB in 2e+06 us."
    )
    assert replace(finding, found=Sending(2.0 * (1 - 1e-12), 4e6)).gain == 0.0
    nothing = replace(finding, named=Sending(0.0, 0.0), found=Sending(0.0, 0.0))
    assert nothing.gain == 0.0
    assert "nothing sent, as much as a's nothing sent" in sentence(nothing, "B")
