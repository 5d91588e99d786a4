"""The examples: compiled, run and compared; what the PaLM block must reach; the plans as golden text."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from escc.compiler.plan.compiled import Compilation, CompiledPhase
from escc.compiler.plan.pipeline import compile_phase, load
from escc.compiler.report.explain import explain_phase
from escc.compiler.report.explain_text import Explained, as_text
from escc.compiler.report.targets import Emit, in_one
from escc.compiler.report.text import Detail, report
from escc.cost.formulas.symbolic import Form
from escc.cost.hardware import Hardware
from escc.ir.diagnostics import Source
from escc.ir.mesh import Mesh
from escc.ir.text.read_spmd import parse_spmd
from escc.passes.options import Options

ROOT = Path(__file__).parents[1]
GOLDEN = Path(__file__).with_name("golden") / "plans"
WRITTEN = Path(__file__).with_name("golden") / "written"
DECODES = [
    ("feed-forward", "main"),
    ("palm-540b", "decode"),
    ("palm-540b-plain", "decode"),
    ("megatron-530b", "decode"),
    ("experts", "decode"),
]
NO_LIMIT = 1e18  # bytes a chip: odd meshes are too small for the whole models


@cache
def compiled(
    name: str, phase: str, mesh: str = "4x4x4", capacity: float | None = None, paper: bool = False
) -> CompiledPhase:
    """An example on the chip as it was measured, or in the convention of the paper."""
    program = load(ROOT / "examples" / f"{name}.esti")
    options = Options((Hardware.of_paper if paper else Hardware.load)("tpu-v4"), capacity_bytes=capacity)
    return compile_phase(program, phase, Mesh.parse(mesh), options, run=True)


def assert_right(one: CompiledPhase) -> None:
    assert one.checked is not None
    assert one.checked.max_error <= 1e-9
    assert one.checked.equal
    assert one.plan.phases[0].gap <= 1e-9


def test_every_example_is_tested() -> None:
    assert {path.stem for path in (ROOT / "examples").glob("*.esti")} == {name for name, _ in DECODES}


@pytest.mark.parametrize(("name", "phase"), DECODES)
def test_an_example_is_proven_runs_and_sends_what_was_predicted(name: str, phase: str) -> None:
    one = compiled(name, phase)
    assert_right(one)
    assert one.checked is not None
    assert one.checked.chips == 64
    assert one.warnings == ()


@pytest.mark.parametrize("mesh", ["1", "5", "2x3", "7x1", "2x2"])
@pytest.mark.parametrize(("name", "phase"), DECODES)
def test_an_example_runs_on_odd_meshes(name: str, phase: str, mesh: str) -> None:
    one = compiled(name, phase, mesh, NO_LIMIT)
    assert_right(one)
    sizes = [size for _, size in one.spmd.sizes]
    idle = [n for n in Mesh.parse(mesh).sizes if n > 1 and all(size % n or size == 1 for size in sizes)]
    assert [f"({n}) can split no dim" in w.message for n, w in zip(idle, one.warnings, strict=True)] == [True] * len(
        idle
    )


@pytest.mark.parametrize(("name", "most_bytes"), [("palm-540b", 21.6e6), ("palm-540b-plain", 18.1e6)])
def test_the_palm_block_in_decode_sends_no_more_than_a_careful_hand_would(name: str, most_bytes: float) -> None:
    one = compiled(name, "decode", paper=True)
    assert one.estimate.totals(once=True).bytes_sent <= most_bytes
    values, mesh = one.spmd.table(), one.spmd.mesh

    def ways(value: str) -> dict[str, int]:
        found = values[value]
        return {dim: mesh.size(*axes) for dim, axes in zip(found.dims, found.layout.dims, strict=True)}

    for weight in ("layer.Wi", "layer.Wg", "layer.Wd"):
        if weight in values:
            assert ways(weight) == {"E": 4, "F": 16}
    assert ways("layer.keys") == ways("layer.values") == {"B": 64, "M": 1, "Q": 1}
    total = sum(size for _, size in one.estimate.stored_bytes)
    assert total <= one.hardware.hbm_bytes


def test_the_palm_step_takes_what_was_measured() -> None:
    """Within 10% of what the step took, 6.0 s of decoding 64 tokens: Pope et al. 2022, table 2."""
    assert compiled("palm-540b", "decode").estimate.totals().total_s == pytest.approx(6.0 / 64, rel=0.10)


@pytest.mark.parametrize(("name", "phase"), DECODES)
def test_the_plan_reads_as_it_did(name: str, phase: str, update_golden: bool) -> None:
    one, path = compiled(name, phase), GOLDEN / f"{name}.{phase}.txt"
    text = report(replace(one, checked=None))  # rounding errors differ between machines
    if update_golden:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def explained(one: CompiledPhase) -> str:
    return as_text(Explained(explain_phase(one, Form.EXACT), None, None, None))


def emitted(one: CompiledPhase, emit: Emit) -> str:
    """What is written, but for how long the plan took, and for rounding errors, which differ between machines."""
    text = in_one(Compilation((one,)), emit, ())
    if emit is not Emit.JSON:
        return text
    data = json.loads(text, parse_float=lambda number: float(f"{float(number):.9g}"))
    return json.dumps({**data, "build_s": 0, "solve_s": 0, "gap": 0}, indent=2) + "\n"


@pytest.mark.parametrize(("name", "phase"), DECODES)
@pytest.mark.parametrize("kind", ["numpy", "jax", "specs", "json", "explain"])
def test_what_is_written_reads_as_it_did(kind: str, name: str, phase: str, update_golden: bool) -> None:
    one, path = replace(compiled(name, phase), checked=None), WRITTEN / f"{name}.{phase}.{kind}.txt"
    text = explained(one) if kind == "explain" else emitted(one, Emit(kind))
    if update_golden:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize(("name", "phase"), DECODES)
def test_the_sharded_program_in_a_plan_parses_back(name: str, phase: str) -> None:
    one = compiled(name, phase)
    lines = report(one, Detail.VERBOSE).split("\n")
    first = next(i for i, line in enumerate(lines) if line.startswith("sharded "))
    last = next(i for i, line in enumerate(lines) if line.startswith("return"))
    assert parse_spmd(Source("plan", "\n".join(lines[first : last + 1]) + "\n")) == one.spmd
    assert max(map(len, lines)) <= 100
