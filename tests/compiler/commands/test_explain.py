"""`escc explain` and `escc check` look at the plan that `escc compile` finds by the same options."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from escc.compiler.commands.main import app

ROOT = Path(__file__).resolve().parents[3]
FEED_FORWARD = str(ROOT / "examples" / "feed-forward.esti")
H100 = ("--hardware", "h100", "--chips")


def invoke(command: str, *arguments: str) -> Result:
    return CliRunner().invoke(app, [command, FEED_FORWARD, *arguments])


@pytest.mark.parametrize(
    "options",
    [
        ("--chips", "64"),
        ("--chips", "6", "--any-shape"),
        (*H100, "gpu=8", "--parts"),
        (*H100, "gpu=8", "--weights", "int8", "--pad", "F=65664"),
        (*H100, "2x4", "--hbm-fraction", "0.01"),
    ],
    ids=" ".join,
)
def test_what_is_explained_is_what_is_compiled(options: tuple[str, ...]) -> None:
    compiled = invoke("compile", *options, "--emit", "json")
    explained = invoke("explain", *options, "--format", "json")
    assert compiled.exit_code == explained.exit_code == 0, explained.output
    plan, [formulas] = json.loads(compiled.stdout), json.loads(explained.stdout)["phases"]
    sizes = {axis: size for axis, size in plan["mesh"].items() if size > 1}
    assert sizes.items() <= {name.lower(): size for name, size in formulas["sizes"].items()}.items()
    totals = {line["what"]: line["plan_s"] for line in formulas["totals"]}
    assert totals["communication"] == pytest.approx(plan["totals"]["comm_s"])


def test_slice_shapes_are_ranked() -> None:
    assert invoke("explain", "--chips", "64").stdout.startswith("Formulas")  # one shape is offered
    ranked = invoke("explain", "--chips", "6", "--any-shape")
    assert ranked.stdout.startswith("Slice shapes, cheapest first") and 'Formulas of "feed-forward"' in ranked.stdout
    apart = invoke("explain", "--chips", "6", "--any-shape", "--format", "json")
    assert "Slice shapes" in apart.stderr and json.loads(apart.stdout)


@pytest.mark.parametrize("command", ["explain", "check"])
def test_no_axes_are_split_in_parts_in_stages(command: str) -> None:
    more = ("--backend", "jax") if command == "check" else ()
    found = invoke(command, "--chips", "2x2", "--parts", "--stages", "2", *more)
    assert found.exit_code == 1 and "Axes are not split in parts in stages." in found.stderr


@pytest.mark.parametrize("option", [("--parts",), ("--any-shape",), ("--hbm-fraction", "0.5"), ("--skew", "2")])
def test_options_of_plans_are_refused_where_none_is_checked(option: tuple[str, ...]) -> None:
    found = invoke("check", *option)
    assert found.exit_code == 1 and f"`{option[0]}` is of a plan." in found.stderr


def test_a_plan_is_checked_within_the_memory_that_it_may_take() -> None:
    found = invoke("check", *H100, "2x4", "--hbm-fraction", "0.004", "--backend", "jax")
    assert found.exit_code == 1 and "216.9 MB more than the 320 MB" in found.stderr
