"""Several phases on the command line: together, apart, in files, for a count of chips."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from escc.compiler.commands.main import app

MODEL = """
model "two"
dim B, L, M
dim E = 16, Q = 8
param W: bf16[E,Q]
param U: bf16[Q,E]
cache keys: bf16[B,M,Q]
main(x: bf16[B,L,E]) {
  k[B,L,Q] = x[B,L,E] * W[E,Q]
  ks = append(keys, k, L into M)
  s[B,L,M] = k[B,L,Q] * ks[B,M,Q]
  o[B,L,Q] = s[B,L,M] * ks[B,M,Q]
  y[B,L,E] = o[B,L,Q] * U[Q,E]
  return y
}
phase prefill { B = 2, L = 8, M = 8, calls = 4 }
phase decode { B = 8, L = 1, M = 16, calls = 32 }
"""


def invoke(*arguments: str) -> Result:
    result = CliRunner().invoke(app, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    return result


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "two.esti"
    path.write_text(MODEL)
    return str(path)


def test_phases_are_planned_together_and_what_is_proven_is_said_of_all(model: str) -> None:
    result = invoke("compile", model, "--chips", "2x2", "--check")
    assert result.exit_code == 0, result.output
    assert result.stdout.count("status     optimal") == 1
    assert "Phases together: each parameter stored once, caches handed on" in result.stdout
    found = json.loads(invoke("compile", model, "--chips", "2x2", "--emit", "json").stdout)
    together = found["together"]
    handed = sum(h["seconds"] * together["calls"][h["before"]] for h in together["handovers"])
    whole = handed + sum(together["calls"][p["phase"]] * p["totals"]["total_s"] for p in found["phases"])
    assert together["price_s"] == pytest.approx(whole, rel=1e-9)
    weights = [{name: p["stored"][name] for name in ("W", "U")} for p in found["phases"]]
    assert weights[0] == weights[1]
    # Nothing is proven of one phase: planned alone it may well be quicker.
    own = [p[key] for p in found["phases"] for key in ("bound_s", "gap", "status")]
    assert own == [None] * 6 and together["status"] == "optimal" and together["gap"] <= 1e-9
    apart = json.loads(invoke("compile", model, "--chips", "2x2", "--separate", "--emit", "json").stdout)["phases"]
    assert [p["status"] for p in apart] == ["optimal"] * 2
    pairs = list(zip(apart, found["phases"], strict=True))
    assert all(one["bound_s"] <= other["objective_s"] * (1 + 1e-9) for one, other in pairs)


def test_every_file_says_what_is_proven(model: str, tmp_path: Path) -> None:
    assert invoke("compile", model, "--chips", "2", "-o", str(tmp_path / "out")).exit_code == 0
    for phase in ("prefill", "decode"):
        assert "status     optimal" in (tmp_path / "out" / f"two_{phase}.txt").read_text()


@pytest.mark.parametrize("objective", ["time", "communication", "memory"])
def test_phases_apart_show_what_sharing_costs(model: str, objective: str) -> None:
    result = invoke("compile", model, "--chips", "2x2", "--separate", "--objective", objective)
    assert result.exit_code == 0, result.output
    assert result.stdout.count("status     optimal") == 2
    assert "What sharing the stored parameters costs" in result.stdout


def test_a_count_of_chips_ranks_by_all_calls(model: str) -> None:
    ranked = {}
    for apart in ((), ("--separate",)):
        found = json.loads(invoke("compile", model, "--chips", "4", "--any-shape", "--emit", "json", *apart).stdout)
        ranked[apart] = {str(shape["mesh"]): shape["objective"] for shape in found["slice_shapes"]}
    assert ranked[()].keys() == ranked["--separate",].keys()
    assert all(alone <= ranked[()][mesh] * (1 + 1e-9) for mesh, alone in ranked["--separate",].items())


def test_calls_that_do_not_fill_the_caches_are_warned_of(model: str, tmp_path: Path) -> None:
    few = tmp_path / "few.esti"
    few.write_text(MODEL.replace("calls = 4", "calls = 3"))
    assert "Phase `prefill` has 3 of the 4 calls" in invoke("compile", str(few), "--chips", "2").stderr
    odd = tmp_path / "odd.esti"
    odd.write_text(MODEL.replace("B = 8, L = 1", "B = 3, L = 1"))
    assert "no even part" in invoke("compile", str(odd), "--chips", "2").stderr
    assert "warning" not in invoke("compile", model, "--chips", "x=2").stderr


@pytest.mark.parametrize(
    "command",
    [
        ("compile", "--chips", "2"),
        ("compile", "--chips", "2", "--pad", "auto"),
        ("explain", "--chips", "2", "--over", "B", "--against", "a=PINS"),
        ("check",),
        ("sweep", "--chips", "4", "--batch", "4", "--jobs", "1"),
    ],
)
def test_sizes_that_another_phase_could_not_have_are_no_matter(
    command: tuple[str, ...], model: str, tmp_path: Path
) -> None:
    pins = tmp_path / "a.pins"
    pins.write_text("stored W E_xQ\n")
    # Prefill takes 8 new tokens, more than the context.
    given = [part.replace("PINS", str(pins)) for part in (command[0], model, *command[1:], "--set", "M=4")]
    refused = invoke(*given)
    assert refused.exit_code == 1 and "In phase `prefill`, L = 8 is more than M = 4" in refused.output
    alone = invoke(*given, "--phase", "decode")
    assert alone.exit_code == 0 and "prefill" not in alone.output, alone.output
    unknown = invoke(*given[:-2], "--phase", "train")
    assert unknown.exit_code == 1 and "no phase `train`" in unknown.output
