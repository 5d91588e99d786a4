"""What `--stop-after` prints: programs that read back, and a choice that names all that was chosen."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

import escc
from escc.compiler.commands.main import app
from escc.compiler.plan.pipeline import load, parse
from escc.compiler.report.stages import Stage, stage_text
from escc.compiler.report.text import HEADING
from escc.compiler.text.terminal import time_text
from escc.cost.estimate import estimate
from escc.cost.hardware import Hardware
from escc.ir.diagnostics import Source
from escc.ir.mesh import Mesh
from escc.ir.program import Stored, walk
from escc.ir.spmd import unsharded
from escc.ir.text.read_spmd import parse_spmd
from escc.ir.verify.verify import verify
from escc.passes.choose import choose
from escc.passes.lower.insert import insert
from escc.passes.options import Options

EXAMPLE = Path(__file__).parents[3] / "examples" / "palm-540b.esti"
PROGRAM, MESH, OPTIONS = (
    load(EXAMPLE),
    Mesh.parse("4x4x4"),
    Options(Hardware.of_paper("tpu-v4")),
)


def stage(name: Stage) -> str:
    return stage_text(name, PROGRAM, ["decode"], MESH, OPTIONS)


def test_the_expanded_program_reads_back() -> None:
    assert parse_spmd(Source("expanded", stage(Stage.EXPAND))) == unsharded(PROGRAM, "decode", MESH)


def test_the_inserted_program_reads_back_and_verifies() -> None:
    found = parse_spmd(Source("inserted", stage(Stage.INSERT)))
    [spmd] = insert(choose(PROGRAM, ["decode"], MESH, OPTIONS))
    assert found == spmd
    verify(found, PROGRAM)


def test_the_choice_names_what_is_stored_made_and_moved() -> None:
    lines = stage(Stage.CHOOSE).splitlines()
    plan = choose(PROGRAM, ["decode"], MESH, OPTIONS)
    stored = [placed.item.value for placed in walk(PROGRAM.body) if isinstance(placed.item, Stored)]
    assert {line.split()[1].rstrip(":") for line in lines if line.startswith("stored ")} == set(stored)
    assert sum(line.startswith("  op ") for line in lines) == len(plan.phases[0].ops)
    assert sum(line.startswith("  move ") for line in lines) == sum(len(tree.legs) for tree in plan.phases[0].trees)


@pytest.mark.parametrize("name", Stage)
def test_the_command_stops(name: str) -> None:
    done = CliRunner().invoke(
        app, ["compile", str(EXAMPLE), "--chips", "2x2x2", "--hbm-fraction", "1", "--stop-after", name]
    )
    assert done.exit_code == (1 if name != "expand" else 0), done.output


def test_steps_that_were_written_anew_are_checked(tmp_path: Path) -> None:
    text = stage(Stage.INSERT)

    def checked(text: str, *options: str) -> Result:
        (tmp_path / "steps.txt").write_text(f"# as they were printed\n{text}")
        return CliRunner().invoke(app, ["check", str(tmp_path / "steps.txt"), *options])

    done = checked(text, "--datasheet", "--network", "flat")
    [spmd] = insert(choose(PROGRAM, ["decode"], MESH, OPTIONS))
    took = time_text(estimate(spmd, OPTIONS.hardware).totals().total_s)
    assert done.exit_code == 0 and "22 ops, 18 collectives" in done.output and took in done.output, done.output
    broken = checked(text.replace("= all-gather(", "= reduce-scatter(", 1))
    assert broken.exit_code == 1 and "cannot be made from" in broken.output
    assert "There is no dtype `bf15`" in checked(text.replace("bf16", "bf15", 1)).output
    refused = checked(text, "--weights", "int8")
    assert refused.exit_code == 1 and "`--weights` is of a model, and the text is a sharded program" in refused.output
    assert "has its mesh" in checked(text, "--chips", "2x2", "--backend", "gpu").output


TWO = """
model "two"
dim B, L, M
dim E = 16, H = 8
param W: bf16[E,H]
main(x: bf16[B,L,E]) {
  cache keys: bf16[B,M,H]
  k[B,L,H] = x[B,L,E] * W[E,H]
  ks = append(keys, k, L into M)
  s[B,L,M] = k[B,L,H] * ks[B,M,H]
  return s
}
phase prefill { B = 2, L = 16, M = 16, calls = 4 }
phase decode { B = 8, L = 1, M = 16 }
"""


def test_both_phases_are_shown() -> None:
    text = stage_text(Stage.CHOOSE, parse(TWO), ["prefill", "decode"], Mesh.parse("2x2"), OPTIONS)
    assert "phase prefill\n" in text and "phase decode\n" in text and "handover prefill to decode" in text


def test_what_compile_prints_is_checked(tmp_path: Path) -> None:
    """Each of its programs, on the lines where it stands."""
    printed, file = str(escc.compile(parse(TWO), "2").report("verbose")), tmp_path / "printed.txt"

    def checked(text: str) -> Result:
        file.write_text(text)
        return CliRunner().invoke(app, ["check", str(file)])

    done = checked(printed)
    assert done.exit_code == 0, done.output
    assert [line.split(",")[1] for line in done.output.splitlines()] == [" phase prefill", " phase decode"]
    assert checked(printed.split(HEADING)[1]).exit_code == 1, "a printout without its heading is none"
    before, last = printed.rsplit("bf16", 1)
    assert f"{file}:{before.count(chr(10)) + 1}:" in checked(f"{before}bf15{last}").output
    assert checked(printed[: printed.rindex("return")]).exit_code == 1
