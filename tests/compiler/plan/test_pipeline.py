"""The driver: pins and phases, warnings, and that nothing unsound gets through."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from escc.compiler.plan import pipeline as driver
from escc.compiler.plan.pipeline import compile_phase, compile_phases, idle_axes, load, select_phases
from escc.cost.hardware import Hardware
from escc.ir.diagnostics import InputError, InternalError
from escc.ir.layout import format_layout
from escc.ir.mesh import Mesh
from escc.passes.options import Options
from escc.passes.plan import Objective

EXAMPLES = Path(__file__).parents[3] / "examples"
HARDWARE = Hardware.of_paper("tpu-v4")
MODEL = """
model "small"
dim B, E = 64, F = 256
param Wi: bf16[E,F] @ E_xF
param Wo: bf16[F,E]
main(x: bf16[B,E]) {
  u[B,F] = x[B,E] * Wi[E,F]
  y[B,E] = u[B,F] * Wo[F,E]
  return y
}
phase many { B = 4096 }
phase few { B = 8 }
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "small.esti"
    path.write_text(MODEL)
    return path


def test_every_objective_prices_what_its_program_costs(model: Path) -> None:
    program = load(model)
    found = {
        objective: compile_phase(program, "many", Mesh.parse("2x2"), Options(HARDWARE, objective))
        for objective in Objective
    }
    totals = {objective: compiled.estimate.totals() for objective, compiled in found.items()}
    held = {objective: sum(size for _, size in one.estimate.stored_bytes) for objective, one in found.items()}
    assert min(totals.values(), key=lambda t: t.total_s) == totals[Objective.TIME]
    assert min(t.comm_s for t in totals.values()) == totals[Objective.COMMUNICATION].comm_s
    assert min(held.values()) == held[Objective.MEMORY] == 64 * 256 * 2 * (1 / 2 + 1 / 4)  # Wi is pinned


def test_pins_of_later_files_replace_those_before_and_in_the_model(model: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first.pins", tmp_path / "second.pins"
    first.write_text("stored Wi EF_x\nstored Wo F_yE\n")
    second.write_text("stored Wi EF_y\n")
    for pins, expected in [((), {"Wi": "E_xF"}), ((first,), {"Wi": "EF_x", "Wo": "F_yE"})]:
        stored = _stored(model, pins)
        assert {name: stored[name] for name in expected} == expected
    stored = _stored(model, (first, second))
    assert (stored["Wi"], stored["Wo"]) == ("EF_y", "F_yE")


def _stored(model: Path, pins: tuple[Path, ...]) -> dict[str, str]:
    compiled = compile_phase(load(model, pins=pins), "few", Mesh.parse("2x2"), Options(HARDWARE))
    values = compiled.spmd.table()
    return {name: format_layout(values[name].dims, values[name].layout) for name in ("Wi", "Wo")}


def test_phases_are_all_or_the_one_asked_for(model: Path) -> None:
    program = load(model)
    assert select_phases(program, None) == ("many", "few")
    assert select_phases(program, "few") == ("few",)
    with pytest.raises(InputError, match="did you mean `few`"):
        select_phases(program, "fex")


def test_what_is_wrong_with_some_phases_names_them(tmp_path: Path) -> None:
    path = tmp_path / "odd.esti"
    path.write_text(MODEL.replace("x: bf16[B,E]", "x: bf16[B,E] @ B_xE").replace("B = 8", "B = 9"))
    with pytest.raises(InputError) as somewhere:
        compile_phases(load(path), ("many", "few"), Mesh.parse("2"), Options(HARDWARE))
    [one] = somewhere.value.diagnostics
    assert one.message.startswith("Phase few: The pin `x @ B_xE` cannot hold")
    with pytest.raises(InputError) as everywhere:
        compile_phases(load(path, {"B": 7}), ("many", "few"), Mesh.parse("2"), Options(HARDWARE))
    [one] = everywhere.value.diagnostics
    assert one.message.startswith("The pin `x @ B_xE` cannot hold")


def test_an_axis_that_divides_nothing_is_warned_of(model: Path) -> None:
    program = load(model)
    [warning] = idle_axes(program, "few", Mesh.parse("2x5x1"))
    assert warning.severity == "warning"
    assert "axis `y` (5) can split no dim" in warning.message
    assert warning.hint == "5 divides none of B=8, E=64, F=256"
    assert idle_axes(load(model, {"B": 10}), "few", Mesh.parse("2x5x1")) == ()
    assert compile_phase(program, "few", Mesh.parse("2x5x1"), Options(HARDWARE)).warnings == (warning,)


def test_a_price_that_the_program_does_not_have_is_a_bug(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choose = driver.choose

    def wrong(*args: object) -> object:
        plan = choose(*args)  # type: ignore[arg-type]
        return replace(plan, phases=(replace(plan.phases[0], price=plan.phases[0].price * (1 + 1e-6)),))

    monkeypatch.setattr(driver, "choose", wrong)
    with pytest.raises(InternalError, match="priced at"):
        compile_phase(load(model), "few", Mesh.parse("2"), Options(HARDWARE))


def test_a_program_that_does_not_verify_is_a_bug(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    insert = driver.insert

    def wrong(*args: object) -> object:
        [spmd] = insert(*args)  # type: ignore[arg-type]
        return (replace(spmd, results=("x",)),)

    monkeypatch.setattr(driver, "insert", wrong)
    with pytest.raises(InternalError, match="does not verify"):
        compile_phase(load(model), "few", Mesh.parse("2"), Options(HARDWARE))


def test_a_run_that_disagrees_is_not_sound(model: Path) -> None:
    compiled = compile_phase(load(model), "few", Mesh.parse("2x2"), Options(HARDWARE), run=True)
    assert compiled.checked is not None
    assert compiled.sound
    assert not replace(compiled, checked=replace(compiled.checked, max_error=1e-6)).sound
    moves = tuple(replace(m, counted=m.counted + 1) for m in compiled.checked.moves)
    assert moves
    assert not replace(compiled, checked=replace(compiled.checked, moves=moves)).sound
