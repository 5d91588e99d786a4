"""`escc explain`: formulas beside figures, rival layouts, and what it says to wrong input."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from escc.compiler.cli import app

ROOT = Path(__file__).parents[2] / "examples"
FEED_FORWARD = str(ROOT / "feed-forward.esti")
PINS = {path.stem: str(path) for path in sorted((ROOT / "pins").glob("*.pins"))}
LAYOUTS = [part for name, path in PINS.items() for part in ("--against", f"{name}={path}")]


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["explain", *arguments])


def phases(*arguments: str) -> list[dict[str, Any]]:
    result = invoke(*arguments, "--format", "json")
    assert result.exit_code == 0, result.output
    found: list[dict[str, Any]] = json.loads(result.stdout)["phases"]
    return found


def test_text() -> None:
    result = invoke(FEED_FORWARD, "--chips", "4x4x4", "--pin", PINS["ws2d"])
    assert result.exit_code == 0, result.output
    assert result.stdout == (
        'Formulas of "feed-forward", phase main, in seconds\n'
        "  form   exact: with the factor (K-1)/K of a collective over K chips\n"
        "  sizes  B=512 L=1 E=16384 F=65536 X=4 Y=4 Z=4\n"
        "  rates  bw=2.7e+11 bytes/s, peak=2.75e+14 flop/s, hbm=1.2e+12 bytes/s\n"
        "\n"
        "Collectives, each once\n"
        "                           formula                             here        plan  times\n"
        "  x': all-gather(z y)      2 B E L (Y Z - 1)/(X Y Z bw)  14.5636 us  14.5636 us      1\n"
        "  u': reduce-scatter(x)    2 B F L (X - 1)/(X Y Z bw)    11.6508 us  11.6508 us      1\n"
        "  h': all-gather(x)        2 B F L (X - 1)/(X Y Z bw)    11.6508 us  11.6508 us      1\n"
        "  y': reduce-scatter(z y)  2 B E L (Y Z - 1)/(X Y Z bw)  14.5636 us  14.5636 us      1\n"
        "\n"
        "Whole program\n"
        "                 formula                                           here        plan\n"
        "  communication  4 B L (E (Y Z - 1) + F (X - 1))/(X Y Z bw)  52.4288 us  52.4288 us\n"
        "  compute        B F L (4 E + 1)/(X Y Z peak)                124.946 us  124.946 us\n"
        "  memory         4 E F/(X Y Z hbm)                           55.9241 us  55.9241 us\n"
    )


def test_many_chips() -> None:
    result = invoke(FEED_FORWARD, "--chips", "4x4x4", "--pin", PINS["ws2d"], "--form", "large")
    assert "  communication  4 B L (E/X + F/(Y Z))/bw " in result.stdout


def test_dims_of_size_one_are_left_out() -> None:
    arguments = (FEED_FORWARD, "--chips", "4x4x4", "--pin", PINS["ws1d"], "--form", "large", "--drop-ones")
    (phase,) = phases(*arguments, "--set", "B=1", "--against", f"only={PINS['ws1d']}", "--over", "B")
    assert phase["totals"][0]["formula"] == "4*E/bw"
    assert "L" not in phase["sizes"]
    assert [turn["from"] for turn in phase["regimes"]["turns"]] == [0.0]


def test_latex() -> None:
    result = invoke(FEED_FORWARD, "--chips", "4x4x4", "--pin", PINS["ws1d"], "--format", "latex", "--form", "large")
    assert result.stdout.startswith("% feed-forward, phase main, K >> 1")
    assert r"  T_{\text{communication}} &= \frac{4 B E L}{\mathrm{bw}} \\" + "\n" in result.stdout
    assert result.stdout.endswith("\\end{align*}\n")


@pytest.mark.parametrize("file", sorted(path.name for path in ROOT.glob("*.esti")))
def test_the_values_are_the_plan_s_figures(file: str) -> None:
    for phase in phases(str(ROOT / file), "--chips", "8x8"):
        assert [line["what"] for line in phase["totals"]] == ["communication", "compute", "memory"]
        for line in phase["collectives"] + phase["totals"]:
            assert line["value_s"] == pytest.approx(line["plan_s"], rel=1e-12)
        total = sum(line["times"] * line["plan_s"] for line in phase["collectives"])
        assert total == pytest.approx(phase["totals"][0]["plan_s"], rel=1e-12)


def test_the_plan_s_figures_may_count_links() -> None:
    (phase,) = phases(FEED_FORWARD, "--chips", "2x2", "--network", "links")
    assert phase["network"] == "links"
    assert phase["totals"][0]["plan_s"] > 2 * phase["totals"][0]["value_s"]
    assert "its figures count the links" in invoke(FEED_FORWARD, "--chips", "2x2", "--network", "links").stdout


def test_regimes() -> None:
    (phase,) = phases(FEED_FORWARD, "--chips", "4x4x4", *LAYOUTS, "--over", "B")
    assert {line["what"] for line in phase["against"]} == set(PINS)
    assert phase["regimes"] == {
        "over": "B",
        "turns": [
            {"from": 0.0, "cheapest": "ws2d"},
            {"from": 16384.0, "cheapest": "wg-x"},
            {"from": 65536.0, "cheapest": "wg-xy"},
            {"from": 1048576.0, "cheapest": "wg-xyz"},
        ],
    }
    text = invoke(FEED_FORWARD, "--chips", "4x4x4", *LAYOUTS, "--over", "B").stdout
    assert text.endswith(
        "As B grows\n"
        "  from B =   least communication\n"
        "  0          ws2d\n"
        "  16,384     wg-x\n"
        "  65,536     wg-xy\n"
        "  1,048,576  wg-xyz\n"
    )


def test_layouts_without_a_dim_that_grows() -> None:
    (phase,) = phases(FEED_FORWARD, "--chips", "4x4x4", *LAYOUTS)
    assert len(phase["against"]) == len(PINS)
    assert "regimes" not in phase


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--over", "B"), "there are none"),
        (("--against", "a", "--against", "=b"), "`--against =b` names no layout"),
        (("--against", f"a={PINS['ws1d']}", "--against", f"a={PINS['ws2d']}"), "names `a` twice"),
        (("--against", "a=nowhere.pins"), "`nowhere.pins` does not exist"),
        (("--against", f"a={PINS['ws1d']}", "--over", "Q"), "no dim `Q`"),
        (("--pin", "nowhere.pins"), "`nowhere.pins` does not exist"),
        (("--phase", "decode"), "no phase `decode`"),
        (("--hardware", "abacus"), "no hardware preset `abacus`"),
    ],
)
def test_wrong_input_is_said(arguments: tuple[str, ...], said: str) -> None:
    result = invoke(FEED_FORWARD, "--chips", "4x4x4", *arguments)
    assert result.exit_code == 1, result.output
    assert isinstance(result.exception, SystemExit)
    assert said in result.stderr
    assert result.stdout == ""


def test_wrong_usage() -> None:
    assert invoke(FEED_FORWARD, "--chips", "4x4x4", "--form", "rough").exit_code == 2
    assert invoke().exit_code == 2


def test_no_other_command_waits_for_sympy() -> None:
    script = (
        "import sys; from escc.compiler.cli import app\n"
        f"app(['compile', {FEED_FORWARD!r}, '--chips', '2'], standalone_mode=False)\n"
        "sys.exit('sympy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False, cwd="/")
    assert done.returncode == 0, done.stderr


def test_help_lists_it() -> None:
    result = CliRunner().invoke(app, ["--help"])
    assert "explain" in result.stdout
