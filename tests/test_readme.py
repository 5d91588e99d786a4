"""The README shows what the compiler does: its listing is the golden plan's, and its layer compiles."""

from __future__ import annotations

import re
from pathlib import Path

from escc.compiler.plan.pipeline import compile_phases
from escc.cost.hardware import Hardware
from escc.ir.diagnostics import Source
from escc.ir.mesh import Mesh
from escc.ir.text.read import parse
from escc.passes.expansion.expand import expand
from escc.passes.options import Options

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_listing_is_what_the_compiler_prints() -> None:
    shown = README.split("<!-- plan -->\n```\n")[1].split("```\n<!-- /plan -->")[0].splitlines()
    printed = iter((ROOT / "tests/golden/plans/palm-540b.decode.txt").read_text(encoding="utf-8").splitlines())
    missing = [line for line in shown if line.strip() not in ("", "...") and line not in printed]
    assert len(shown) > 30 and not missing, "copy the listing anew from `make demo`"


def test_the_layer_in_the_readme_compiles() -> None:
    (text,) = re.findall(r'```\n(model "feed-forward".*?)```', README, flags=re.DOTALL)
    source = Source("layer.esti", text)
    program = expand(parse(source), source)
    (compiled,) = compile_phases(
        program,
        ["main"],
        Mesh.parse("2x2"),
        Options(Hardware.of_paper("tpu-v4")),
        run=True,
    )
    assert compiled.checked is not None and compiled.checked.equal


def test_how_well_the_figures_of_the_tpu_do_is_what_validation_finds() -> None:
    """Said in three places, of which one is written anew by `make validate`."""
    found = (ROOT / "docs/validation.md").read_text(encoding="utf-8")
    (mean,) = re.findall(r"Mean absolute error over 46 rows: ([\d.]+)%", found)
    ((row, worst),) = re.findall(r"Worst row: (\S+), ([-+][\d.]+)%", found)
    ((left_out, parts),) = re.findall(r"the rows of the one are ([\d.]+)% off (\(table 2 .*?\))", found)
    preset = (ROOT / "cost/presets/tpu-v4-measured.toml").read_text(encoding="utf-8")
    assert f"# mean absolute error {mean}%, worst {row} {worst}%\n" in preset
    assert f"# leaving out one source at a time: {left_out}% {parts}\n" in preset
    mean, left_out, worst = (f"{abs(float(share)):.1f}%" for share in (mean, left_out, worst))
    told = f"Predictions are {mean} off on average, {worst} at worst, and {left_out} for a table that"
    assert told in " ".join(README.split())
