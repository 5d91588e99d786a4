"""`escc explain`: formulas beside figures, rival layouts, and what it says to wrong input."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from escc.compiler.commands.main import LATE, app
from escc.cost.hardware import Hardware, hardware_toml

pytestmark = pytest.mark.usefixtures("known_plans")

ROOT = Path(__file__).parents[3] / "examples"
FEED_FORWARD = str(ROOT / "feed-forward.esti")
PINS = {path.stem: str(path) for path in sorted((ROOT / "pins").glob("*.pins"))}
LAYOUTS = [part for name, path in PINS.items() for part in ("--against", f"{name}={path}")]


def invoke(*arguments: str) -> Result:
    """With the figures of the datasheet, and in the flat convention unless another is asked for."""
    network = () if "--network" in arguments else ("--network", "flat")
    return CliRunner().invoke(app, ["explain", *arguments, "--datasheet", *network])


def phases(*arguments: str) -> list[dict[str, Any]]:
    result = invoke(*arguments, "--format", "json")
    assert result.exit_code == 0, result.output
    found: list[dict[str, Any]] = json.loads(result.stdout)["phases"]
    return found


def test_text() -> None:
    # Memory: x' and h' are read, h and y written, two bytes an element, beside the two matrices.
    assert (
        pytest.approx(67.2836e-6, rel=1e-5)
        == 2 * (2 * 512 * 16384 / 4 + 512 * 65536 / 64 + 512 * 65536 / 16 + 2 * 2**30 / 64) / 1.2e12
    )
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
        "                 formula"
        "                                                                                  here        plan\n"
        "  communication  4 B L (E (Y Z - 1) + F (X - 1))/(X Y Z bw)"
        "                                         52.4288 us  52.4288 us\n"
        "  compute        B F L (4 E + 1)/(X Y Z peak)"
        "                                                       124.946 us  124.946 us\n"
        "  memory         2 (B E L/X + B F L/(Y Z) + B F L/(X Y Z) + E F/(X Y Z) + E (B L + F/(Y Z))/X)/hbm"
        "  67.2836 us  67.2836 us\n"
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


@pytest.mark.parametrize(
    "network",
    [
        ("--chips", "8x8"),
        ("--chips", "8x8", "--network", "links"),
        ("--chips", "4x4x4", "--network", "links"),
        ("--chips", "8x16", "--network", "links", "--hardware", "tpu-v6e"),
        ("--chips", "node=2,gpu=8", "--network", "links", "--hardware", "h100"),
    ],
)
@pytest.mark.parametrize("file", ["feed-forward.esti", "palm-540b.esti", "megatron-530b.esti"])
def test_the_values_are_the_plan_s_figures(file: str, network: tuple[str, ...]) -> None:
    phase = ["--phase", "decode"] if file != "feed-forward.esti" else []
    (found,) = phases(str(ROOT / file), *network, "--set", "B=16", *phase)
    assert found["network"] == ("links" if "links" in network else "flat")
    assert [line["what"] for line in found["totals"]] == ["communication", "compute", "memory"]
    for line in found["collectives"] + found["totals"]:
        assert line["value_s"] == pytest.approx(line["plan_s"], rel=1e-12)
    total = sum(line["times"] * line["plan_s"] for line in found["collectives"])
    assert total == pytest.approx(found["totals"][0]["plan_s"], rel=1e-12)


def test_on_links_the_rates_are_of_axes_and_latencies_count() -> None:
    arguments = (FEED_FORWARD, "--chips", "4x4x4", "--network", "links", "--pin", PINS["ws1d"])
    text = invoke(*arguments).stdout
    assert "  rates  W=9e+10 bytes/s, latency=1.7e-05 s, hop=1e-06 s, peak=" in text
    formula = "4 B E L (X Y Z - 1)/(3 W X Y Z) + hop (floor(X/2) + floor(Y/2) + floor(Z/2)) + latency"
    assert f"  x': all-gather(x y z)      {formula.replace('4 B', '2 B')} " in text
    (phase,) = phases(*arguments)
    gathered = 2 * 512 * 16384 * 63 / 64
    assert phase["collectives"][0]["value_s"] == pytest.approx(gathered / 270e9 + 6e-6 + 17e-6, rel=1e-12)


def test_a_mesh_that_no_slice_has_is_refused_on_links() -> None:
    result = invoke(FEED_FORWARD, "--chips", "2x2x2x2", "--network", "links")
    assert result.exit_code == 1 and "4 axes" in result.stderr


def test_trace() -> None:
    arguments = (FEED_FORWARD, "--chips", "4x4x4", "--pin", PINS["ws2d"], "--trace")
    (phase,) = phases(*arguments, "--network", "links")
    assert [one["results"] for one in phase["trace"]] == [["x'"], ["u'"], ["h'"], ["y'"]]
    for one, line in zip(phase["trace"], phase["collectives"], strict=True):
        assert one["formula_s"] == pytest.approx(line["plan_s"], rel=1e-12)
        assert one["simulated_s"] == pytest.approx(line["plan_s"], rel=1e-9)
        assert one["formula_is_exact"] and one["agree"]
    # x is gathered over a 4 by 4 torus, both ways along both axes: four links bring 15/16 of it.
    arriving = 2 * 512 * 16384 / 4 * 15 / 16
    assert phase["trace"][0]["busiest_link_bytes"] == arriving / 4
    assert [one["hops"] for one in phase["trace"]] == [4, 2, 2, 4]
    text = invoke(*arguments, "--network", "links").stdout.split("Simulated on the links, each once\n")[1]
    assert text.splitlines()[1].split()[-6:] == ["4", "42.8453", "us", "42.8453", "us", "agree"]


def test_formulas_of_measured_protocols_are_not_told_to_differ_from_links() -> None:
    base = ["explain", "llama-3-8b", "--chips", "4", "--phase", "decode", "--trace", "--hardware", "h100"]
    for more, measured in (((), True), (("--datasheet", "--network", "links"), False)):
        text = CliRunner().invoke(app, [*base, *more]).stdout
        (phase,) = json.loads(CliRunner().invoke(app, [*base, *more, "--format", "json"]).stdout)["phases"]
        assert phase["trace"]
        assert all(one["formula_is_measured"] == measured for one in phase["trace"])
        assert {one["agree"] for one in phase["trace"]} == {None if measured else True}
        assert ("formula is measured" in text) == measured and "DIFFER" not in text


def test_formulas_of_what_was_not_measured_beside_what_was_have_their_latency(tmp_path: Path) -> None:
    measured = Hardware.load("h100-measured")
    some = tuple((kind, one) for kind, one in measured.protocols if kind == "all-to-all")
    mixed = replace(measured, name="mixed", protocols=some, hop_latency_s=1e-6)
    chip, file = tmp_path / "mixed.toml", tmp_path / "sum.esti"
    chip.write_text(hardware_toml(mixed.with_figures(collective_latency_s=5e-6), [], []))
    file.write_text(
        "dim B = 64, E = 4096, F = 4096\n"
        "main(x: bf16[B,E] @ BE_x) {\n  param W: bf16[E,F] @ E_xF\n  y[B,F] @ BF = x[B,E] * W[E,F]\n  return y\n}\n"
    )
    shown = CliRunner().invoke(
        app, ["explain", str(file), "--chips", "x=2", "--hardware", str(chip), "--format", "json"]
    )
    (phase,) = json.loads(shown.stdout)["phases"]
    assert phase["collectives"]
    for line in phase["collectives"]:
        assert line["value_s"] == pytest.approx(line["plan_s"], rel=1e-12) and "latency" in line["formula"]


def test_one_chip_has_nothing_to_trace() -> None:
    (phase,) = phases(FEED_FORWARD, "--chips", "1", "--network", "links", "--trace")
    assert phase["collectives"] == [] and phase["trace"] == []
    assert phase["totals"][0]["formula"] == "0"


def test_trace_of_a_flat_network_says_why_there_is_none() -> None:
    arguments = (FEED_FORWARD, "--chips", "2x2", "--trace")
    (phase,) = phases(*arguments)
    assert "trace" not in phase and "add `--network links`" in phase["trace_note"]
    assert phase["trace_note"] in invoke(*arguments).stdout


def test_trace_says_what_is_a_bound_and_what_is_too_large() -> None:
    base = (FEED_FORWARD, "--network", "links", "--trace", "--set", "B=8192", "--pin", PINS["ws1d"])
    (phase,) = phases(*base, "--chips", "4x4x16")
    unlike = phase["trace"][0]
    assert (unlike["formula_is_exact"], unlike["agree"]) == (False, None)
    assert unlike["simulated_s"] > unlike["formula_s"]
    assert "formula is a bound" in invoke(*base, "--chips", "4x4x16").stdout
    assert "not simulated: 1,024 chips, over 512" in invoke(*base, "--chips", "8x8x16").stdout


TURNS = [(0.0, "ws2d"), (16384.0, "wg-x"), (65536.0, "wg-xy"), (1048576.0, "wg-xyz")]


def test_regimes() -> None:
    arguments = (FEED_FORWARD, "--chips", "4x4x4", *LAYOUTS, "--over", "B", "--no-search")
    (phase,) = phases(*arguments)
    assert {line["what"] for line in phase["against"]} == set(PINS)
    assert [(turn["from"], turn["cheapest"]) for turn in phase["regimes"]["turns"]] == TURNS
    assert phase["regimes"]["over"] == "B" and phase["regimes"]["search"] == []
    assert invoke(*arguments).stdout.endswith(
        "As B grows, each in the layouts that are planned at B = 512\n"
        "  from B =   least communication\n"
        "  0          ws2d\n"
        "  16,384     wg-x\n"
        "  65,536     wg-xy\n"
        "  1,048,576  wg-xyz\n"
    )


def test_at_each_turn_the_search_is_never_worse_than_the_best_named_layout() -> None:
    (phase,) = phases(FEED_FORWARD, "--chips", "4x4x4", *LAYOUTS, "--over", "B")
    found = phase["regimes"]["search"]
    best = [(512, "ws2d"), *((int(start), name) for start, name in TURNS[1:])]
    kept = [(one["at"], one["best_named"]["name"], one["stored_as"]) for one in found]
    assert kept == [(at, name, stored) for at, name in best for stored in (None, name)]
    for one in found:
        assert one["found"]["seconds"] <= one["best_named"]["seconds"] * (1 + 1e-9)
    for one in found[::2]:  # with HBM to spare, whole copies of the weights, and nothing is sent
        assert one["found"] == {"seconds": 0.0, "bytes_sent": 0.0} and one["gain"] == 1.0
        # Where tokens are few reading weights takes longest, and chips that have the same tokens share Wo.
        last, ways = ("FE_yz", 16) if one["at"] == 512 else ("FE", 1)
        assert [(w["name"], w["stored"], w["used"]) for w in one["weights"]] == [("Wi", "EF", "EF"), ("Wo", last, last)]
        assert one["stored_bytes"] == 2 * 16384 * 65536 * (1 + 1 / ways)
    for one in found[1::2]:  # as they are stored, the published layouts send least
        assert one["gain"] == 0.0
        assert one["found"]["bytes_sent"] == pytest.approx(one["best_named"]["bytes_sent"], rel=1e-12)
    # At 16,384 tokens, X weight-gathered: 2 E F X/n of weights with their factor 3/4, activations 15/16.
    gathered, activations = 4 * 16384 * 65536 / 16 * 3 / 4, 4 * 16384 * 16384 / 4 * 15 / 16
    assert found[2]["best_named"]["bytes_sent"] == pytest.approx(gathered + activations, rel=1e-12)
    assert {"name": "Wi", "stored": "E_xF_zy", "used": "EF_zy"} in found[3]["weights"]


def test_what_the_search_finds_is_said() -> None:
    arguments = (FEED_FORWARD, "--chips", "4x4x4", "--against", f"wg={PINS['wg-x']}", "--over", "B", "--set", "B=16384")
    assert invoke(*arguments).stdout.endswith(
        "What a search for the least communication finds\n"
        "  At B = 16,384, nothing pinned: nothing sent, 100.0% less than wg's 452.98 MB in 1677.72 us; "
        "weights are read as Wi EF, Wo FE; 4.295 GB stored on a chip.\n"
        "  At B = 16,384, all that is stored as in wg: 452.98 MB in 1677.72 us, as much as wg's 452.98 MB in "
        "1677.72 us; weights are read as Wi EF_zy (stored E_xF_zy), Wo F_zyE (stored F_zyE_x); "
        "0.067 GB stored on a chip.\n"
    )


def test_pins_hold_for_the_search_as_well() -> None:
    arguments = ("--pin", PINS["ws1d"], "--against", f"ws1d={PINS['ws1d']}", "--over", "B")
    (phase,) = phases(FEED_FORWARD, "--chips", "2x2x2", *arguments)
    assert [one["gain"] for one in phase["regimes"]["search"]] == [0.0, 0.0]


def test_layouts_without_a_dim_that_grows() -> None:
    (phase,) = phases(FEED_FORWARD, "--chips", "4x4x4", *LAYOUTS)
    assert len(phase["against"]) == len(PINS)
    assert "regimes" not in phase


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--over", "B"), "there are none"),
        (("--trace", "--format", "latex"), "LaTeX is for formulas"),
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


UNUSED = ("compiler.simulate.check", "compiler.plan.offload", "compiler.hf_import", "passes.stages", "passes.overlap")


def test_a_plain_plan_waits_for_nothing_that_it_does_not_use() -> None:
    """Sympy is what explains, rich what colours terminals, masked arrays are what `np.unique` looks for; the others run
    plans, stream, have stages and loops, and read checkpoints."""
    names = {"sympy", "rich", "numpy.ma", *(f"escc.{name}" for name in UNUSED)}
    assert all(find_spec(name) for name in names)
    script = (
        "import sys; from escc.compiler.commands.main import app\n"
        f"app(['compile', {FEED_FORWARD!r}, '--chips', '2'], standalone_mode=False)\n"
        f"print(sorted({names!r} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd="/")
    assert done.stdout.endswith("\n[]\n"), done.stdout + done.stderr


def test_help_lists_all_commands_and_waits_for_none() -> None:
    listing = "import sys; from escc.compiler.commands.main import app\napp(['--help'], standalone_mode=False)\n"
    script = listing + "print({'numpy', 'lark', 'ortools'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd="/")
    assert done.stdout.endswith("set()\n"), done.stdout + done.stderr
    assert all(f"\n  {name} " in done.stdout for name in LATE)
    assert "..." not in done.stdout.split("Commands:")[1]
    assert all(CliRunner().invoke(app, [name, "--help"]).exit_code == 0 for name in LATE)


def test_layouts_are_compared_whether_they_fit_or_not() -> None:
    """At the last crossover the 1D layout holds 36 GB; what it would take is asked all the same."""
    result = invoke(FEED_FORWARD, "--chips", "4x4x4", "--set", "B=1048576", *LAYOUTS, "--over", "B", "--no-search")
    assert result.exit_code == 0, result.output
    for turn in ("16,384", "65,536", "1,048,576"):
        assert turn in result.output
