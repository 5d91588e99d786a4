"""Hardware presets and files, and the times that they give."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import sympy

from escc.cost.hardware import (
    Calibrated,
    Convention,
    Hardware,
    Rule,
    Switch,
    Torus,
    hardware_toml,
    parse_hardware,
    presets,
)
from escc.cost.hardware_file import FORM
from escc.ir.diagnostics import InputError, Source

V4 = Hardware.load("tpu-v4")
GOOD = """name = "mine"
[datasheet]
peak_flops_per_s = 1e15
hbm_bytes = 80_000_000_000
hbm_bytes_per_s = 3e12
[network]
network_bytes_per_s = 4.5e11
[switch]
node_chips = 8
link_bytes_per_s = 4.5e11
"""

# name: bf16 FLOP/s, int8, fp8, HBM bytes, HBM B/s, link B/s, between B/s; 0 where there is none
DATASHEETS = {
    "tpu-v4": (2.75e14, 2.75e14, 0, 32 * 2**30, 1.2e12, 4.5e10, 0),
    "tpu-v4-measured": (2.75e14, 2.75e14, 0, 32 * 2**30, 1.2e12, 4.5e10, 0),
    "tpu-v5e": (1.97e14, 3.94e14, 0, 16e9, 8.2e11, 4.5e10, 3.1e9),
    "tpu-v5p": (4.59e14, 9.18e14, 4.59e14, 96e9, 2.8e12, 9e10, 6.25e9),
    "tpu-v6e": (9.18e14, 1.836e15, 9.18e14, 32e9, 1.6e12, 9e10, 1.25e10),
    "tpu-7x": (2.307e15, 0, 4.614e15, 192e9, 7.38e12, 9e10, 1.25e10),
    "v100": (1.25e14, 0, 0, 32e9, 9e11, 1.5e11, 0),
    "a6000": (1.548e14, 3.1e14, 0, 48e9, 7.68e11, 5.6e10, 3.2e10),
    "a100-40": (3.12e14, 6.24e14, 0, 40e9, 1.555e12, 3e11, 2.5e10),
    "a100-80": (3.12e14, 6.24e14, 0, 80e9, 2.039e12, 3e11, 2.5e10),
    "h100": (9.89e14, 1.979e15, 1.979e15, 80e9, 3.35e12, 4.5e11, 5e10),
    "h200": (9.89e14, 1.979e15, 1.979e15, 141e9, 4.8e12, 4.5e11, 5e10),
    "b200": (2.25e15, 4.5e15, 4.5e15, 180e9, 8e12, 9e11, 5e10),
    "gb200-nvl72": (2.5e15, 5e15, 5e15, 186e9, 8e12, 9e11, 0),
}


def refused(text: str) -> InputError:
    with pytest.raises(InputError) as caught:
        parse_hardware(Source("mine.toml", text))
    return caught.value


@pytest.mark.parametrize("name", DATASHEETS)
def test_the_datasheet(name: str) -> None:
    chip = Hardware.load(name)
    found = (chip.peak_flops_per_s, chip.peak_int8_ops_per_s or 0, chip.peak_fp8_flops_per_s or 0, chip.hbm_bytes)
    flows = (chip.hbm_bytes_per_s, chip.fabric.link_bytes_per_s, chip.between_bytes_per_s or 0)
    assert (*found, *flows) == DATASHEETS[name]
    match chip.fabric:
        case Torus(dimensions, link):
            assert chip.network_bytes_per_s == 2 * dimensions * link
        case Switch(_, link):
            assert chip.network_bytes_per_s == link


def test_every_preset_loads_and_names_its_source() -> None:
    assert set(presets()) == set(DATASHEETS)
    assert list(presets()) == sorted(presets())
    for name in presets():
        seen = Convention.LINKS if name.endswith("-measured") else Convention.FLAT
        assert (Hardware.load(name).name, Hardware.load(name).convention) == (name, seen)
        first = resources.files("escc.cost.presets").joinpath(f"{name}.toml").read_text().split("\n")[0]
        assert first.startswith("# ") and "Sources: " in first


def test_prices() -> None:
    assert [Hardware.load(n).dollars_per_chip_hour for n in ("h100", "tpu-v5p", "tpu-v5e", "v100")] == [
        10.8,
        4.2,
        1.2,
        None,
    ]


def test_measured_figures_stand_for_a_chip_where_there_are_some() -> None:
    assert (
        Hardware.load("tpu-v4", measured=True)
        == Hardware.load("tpu-v4-measured", measured=True)
        == Hardware.load("tpu-v4-measured")
    )
    assert Hardware.load("h100", measured=True) == Hardware.load("h100")
    assert Hardware.load("tpu-v4", measured=True).chip == Hardware.load("tpu-v4").chip == "tpu-v4"
    with pytest.raises(InputError, match="no hardware preset `tpu-v9`"):
        Hardware.load("tpu-v9", measured=True)
    bare = {"name": "tpu-v4", "calibrated": V4.calibrated, "convention": V4.convention}
    assert replace(Hardware.load("tpu-v4", measured=True), **bare) == V4


def test_a_convention_that_is_asked_for_wins() -> None:
    measured = Hardware.load("tpu-v4", measured=True)
    assert measured.with_network(None) is measured
    assert measured.with_network("flat").convention is Convention.FLAT
    assert V4.with_network(None).convention is Convention.FLAT
    assert parse_hardware(Source("m.toml", GOOD.replace("[switch]", 'convention = "links"\n[switch]'))).convention == (
        Convention.LINKS
    )


def test_a_measured_hop_replaces_that_of_the_datasheet() -> None:
    assert (V4.hop_s, Hardware.load("tpu-v4", measured=True).hop_latency_s) == (1e-6, 1e-6)
    assert (
        Hardware.load("tpu-v4", measured=True).hop_s
        == Hardware.load("tpu-v4", measured=True).calibrated.hop_latency_s
        != 1e-6
    )
    assert replace(V4, calibrated=Calibrated(hop_latency_s=0.0)).hop_s == 0.0


@pytest.mark.parametrize("name", DATASHEETS)
def test_written_out_a_file_reads_as_the_same_hardware(name: str) -> None:
    chip = Hardware.load(name)
    text = hardware_toml(chip, ["any [thing] = 3", 'a "line"\nand another'], ["as \x00 was\tfitted"])
    assert parse_hardware(Source("again.toml", text)) == chip
    assert text.split("\n")[:2] == ["# any [thing] = 3", '# a "line"\\nand another']
    assert text.count("#") == 3


def test_a_name_of_any_characters_can_be_written() -> None:
    named = replace(V4, name='a "b" \\ c', between_bytes_per_s=1 / 3 * 1e9, peak_flops_per_s=123456789.125)
    assert parse_hardware(Source("again.toml", hardware_toml(named, [], []))) == named


def test_fields_say_their_unit() -> None:
    unit = re.compile(r"_(per_s|bytes|s|chips|hour|efficiency)$")
    unitless = {"name", "wrap", "axes_at_once", "op_rule", "dimensions", "convention", "error"}
    assert [n for form in FORM.values() for n in form if not unit.search(n) and n not in unitless] == []
    assert set(FORM["calibrated"]) == {field.name for field in fields(Calibrated)}


def test_an_op_takes_the_longer_of_the_two() -> None:
    assert V4.op_s(275e12, 1.2e12 / 2) == 1.0
    assert V4.op_s(275e12 / 2, 1.2e12) == 1.0
    assert V4.op_s(np.array([275e12, 0.0]), np.array([0.0, 2.4e12])).tolist() == [1.0, 2.0]


@pytest.mark.parametrize(("rule", "stated"), [(Rule.MAX, 4.0), (Rule.SUM, 7.0), (Rule.ROOT_OF_SQUARES, 5.0)])
def test_the_rules_that_combine(rule: Rule, stated: float) -> None:
    chip = replace(V4, calibrated=Calibrated(rule, compute_efficiency=0.5, hbm_efficiency=0.25))
    flops, hbm_bytes = 1.5 * 275e12, 1.2e12
    assert (chip.compute_s(flops), chip.memory_s(hbm_bytes)) == (3.0, 4.0)
    assert chip.op_s(flops, hbm_bytes) == stated
    assert chip.op_s(np.array([flops]), np.array([hbm_bytes])).tolist() == [stated]
    f, b = sympy.symbols("f b", positive=True)
    assert float(chip.op_s(f, b).subs({f: flops, b: hbm_bytes})) == pytest.approx(stated, rel=1e-12)


def test_an_unknown_preset_is_refused_with_a_guess() -> None:
    with pytest.raises(InputError) as caught:
        Hardware.load("tpu-v5x" * 100)
    assert "There is no hardware preset `tpu-v5x" in caught.value.diagnostics[0].message
    assert len(caught.value.diagnostics[0].message) < 120
    with pytest.raises(InputError) as caught:
        Hardware.load("tpu_v4")
    assert caught.value.diagnostics[0].hint is not None and "tpu-v4" in caught.value.diagnostics[0].hint
    with pytest.raises(InputError):
        Hardware.load("../presets/tpu-v4")


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GOOD + '[calibrated]\nop_rule = "sum"\ncollective_latency_s = 0\n')
    chip = Hardware.load(str(path))
    assert (chip.name, chip.hbm_bytes, chip.fabric) == ("mine", 80e9, Switch(8, 4.5e11))
    assert chip.calibrated == Calibrated(Rule.SUM)
    with pytest.raises(InputError, match="does not exist"):
        Hardware.load(str(tmp_path / "yours.toml"))
    path.write_bytes(b"#" * 1_000_001)
    with pytest.raises(InputError, match="larger than 1 MB"):
        Hardware.load(str(path))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("hbm_bytes =", "hbm_byte =", "mine.toml:4:1: error: There is no field `hbm_byte` in `[datasheet]`"),
        ("hbm_bytes =", "hbm_byte =", "hint: did you mean `hbm_bytes`?"),
        ("hbm_bytes =", "hbm_byte =", "mine.toml:2:2: error: The field `hbm_bytes` is missing from `[datasheet]`"),
        ('name = "mine"\n', "", "The field `name` is missing from the top of the file"),
        ("1e15", '"fast"', "mine.toml:3:1: error: `peak_flops_per_s` must be a number above 0"),
        ("1e15", "true", "`peak_flops_per_s` must be a number above 0"),
        ("1e15", "0", "`peak_flops_per_s` must be a number above 0"),
        ("1e15", "-1e15", "`peak_flops_per_s` must be a number above 0"),
        ("1e15", "nan", "`peak_flops_per_s` must be a number above 0"),
        ("1e15", "inf", "`peak_flops_per_s` must be a number above 0"),
        ("1e15", "1" + "0" * 400, "`peak_flops_per_s` must be a number above 0"),
        ("1e15", "1" + "0" * 9000, "mine.toml:3:1: error: The line has more than 2,000 characters"),
        ("1e15", "[\n" * 40_000, "nested too deeply"),
        ('name = "mine"', "a." * 50_000 + "a = 1", "mine.toml:1:1: error: The line has more than 2,000 characters"),
        ("1e15", "", "mine.toml:3:20: error: The file is not TOML: Invalid value"),
        ("chips = 8", "chips = 8.0", "`node_chips` must be a whole number from 1 to 1,048,576"),
        ("chips = 8", "chips = 8\nwrap = 1", "There is no field `wrap` in `[switch]`"),
        ("chips = 8", "chips = 8\nwrap = 1", "hint: it belongs in [torus]"),
        ("[switch]", "[swich]", "hint: did you mean `switch`?"),
        ("[switch]", "[swich]", "neither of the tables"),
        ("[network]", "[datasheet.network]", "The table `[network]` is missing"),
        ('name = "mine"', "name = 3\ntorus = 4", "`torus` is a table"),
        ('name = "mine"', 'name = "mine"\nname = "yours"', "is not TOML: Cannot overwrite a value"),
        ('"mine"', '"mi\\u001bne"', "`name` must be a name of 1 to 60 printable characters"),
        ("[switch]", "[torus]\n[switch]", "both of the tables"),
        ("[switch]", "[calibrated]\nhbm_efficiency = 1.2\n[switch]", "a number above 0 and at most 1"),
        ("[switch]", '[calibrated]\nop_rule = "min"\n[switch]', 'one of "max", "sum", "root-of-squares"'),
        ("[switch]", "[calibrated]\ncollective_latency_s = -1\n[switch]", "a number, 0 or more and at most 1"),
        ("[switch]", "[calibrated]\naxes_at_once = 0\n[switch]", "`axes_at_once` must be a whole number from 1 to 8"),
        ("[switch]", "[calibrated]\nhop_latency_s = 2\n[switch]", "`hop_latency_s` must be a number, 0 or more"),
        ("[switch]", "[calibrated]\nerror = -0.1\n[switch]", "`error` must be a number, 0 or more and at most 10"),
        ("[switch]", 'convention = "ring"\n[switch]', '`convention` must be one of "flat", "links"'),
        ("[switch]\nnode_chips = 8", '[torus]\nwrap = "cubes"', "`wrap_axis_chips` is missing from `[torus]`"),
        ("chips = 8", 'chips = 8\nwrap = "cubes"', "There is no field `wrap` in `[switch]`"),
        ("chips = 8", "chips = 1000000007", "`node_chips` must be a whole number from 1 to 1,048,576"),
        ("[switch]", "[torus]\ndimensions = 9", "`dimensions` must be a whole number from 1 to 8"),
        (
            "[switch]",
            "[torus]\nlargest_slice_chips = 1" + "0" * 50,
            "`largest_slice_chips` must be a whole number from",
        ),
        ("[switch]", "[torus]\nwrap_axis_chips = 99999999", "`wrap_axis_chips` must be a whole number from 1 to"),
        ("[switch]", "[calibrated]\naxes_at_once = 1000000007\n[switch]", "`axes_at_once` must be a whole number"),
        (GOOD, "", "The table `[datasheet]` is missing"),
    ],
)
def test_what_is_wrong_in_a_file_is_said(old: str, new: str, said: str) -> None:
    assert old in GOOD
    assert said in str(refused(GOOD.replace(old, new, 1)))


def test_all_that_is_wrong_is_said_at_once_in_source_order() -> None:
    text = GOOD.replace("1e15", "-1").replace("hbm_bytes_per_s", "hbm_bytes_per_ms").replace("chips = 8", "chips = 0")
    lines = [d.span.line for d in refused(text).diagnostics if d.span]
    assert lines == sorted(lines) == [2, 3, 5, 9]
