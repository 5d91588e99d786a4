"""Hardware presets and files, and the times that they give."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import sympy

from escc.cost.arithmetic import Arithmetic
from escc.cost.engine_file import engine_toml, engines, load_engine
from escc.cost.hardware import (
    Calibrated,
    Convention,
    Engine,
    Hardware,
    Protocols,
    Rule,
    Switch,
    Torus,
    hardware_toml,
    parse_hardware,
    presets,
)
from escc.cost.hardware_file import ENGINE, HARDWARE, MEASURED_KINDS, PROTOCOLS
from escc.cost.ops import Work
from escc.ir.collective import CollectiveKind
from escc.ir.diagnostics import InputError, Source
from escc.ir.dtype import Dtype
from escc.passes.options import Options

V4 = Hardware.of_paper("tpu-v4")
FP8 = Dtype.FP8
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
    "tpu-v5e": (1.97e14, 3.94e14, 0, 16 * 2**30, 8.2e11, 4.5e10, 3.1e9),
    "tpu-v5p": (4.59e14, 9.18e14, 4.59e14, 96 * 2**30, 2.8e12, 9e10, 6.25e9),
    "tpu-v6e": (9.18e14, 1.836e15, 9.18e14, 32 * 2**30, 1.6e12, 9e10, 1.25e10),
    "tpu-7x": (2.307e15, 0, 4.614e15, 192e9, 7.38e12, 9e10, 1.25e10),
    "v100": (1.25e14, 0, 0, 32e9, 9e11, 1.5e11, 0),
    "v100-pcie": (1.12e14, 0, 0, 32e9, 9e11, 1.575e10, 0),
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


@pytest.mark.parametrize("name", presets())
def test_the_datasheet(name: str) -> None:
    chip = Hardware.of_paper(name)
    found = (chip.peak_flops_per_s, chip.peak_int8_ops_per_s or 0, chip.peak_fp8_flops_per_s or 0, chip.hbm_bytes)
    flows = (chip.hbm_bytes_per_s, chip.fabric.link_bytes_per_s, chip.between_bytes_per_s or 0)
    assert (*found, *flows) == DATASHEETS[chip.chip]
    match chip.fabric:
        case Torus(dimensions, link):
            assert chip.network_bytes_per_s == 2 * dimensions * link
        case Switch(_, link):
            assert chip.network_bytes_per_s == link


def test_every_preset_loads_and_names_its_source() -> None:
    assert {name.removesuffix("-measured") for name in presets()} == set(DATASHEETS)
    assert list(presets()) == sorted(presets())
    for name in presets():
        assert Hardware.of_paper(name).name == Hardware.load(name, datasheet=True).name == name
        assert Hardware.of_paper(name).convention is Convention.FLAT
        assert Hardware.load(name, datasheet=True).convention is Convention.LINKS
        first = resources.files("escc.cost.presets").joinpath(f"{name}.toml").read_text().split("\n")[0]
        assert first.startswith("# ") and "Sources: " in first


def test_prices() -> None:
    found = [Hardware.of_paper(n).dollars_per_chip_hour for n in ("h100", "tpu-v5p", "tpu-v5e", "v100")]
    assert found == [10.8, 4.2, 1.2, None]


def test_measured_figures_stand_for_a_chip_where_there_are_some() -> None:
    measured, datasheet = Hardware.load("tpu-v4"), Hardware.load("tpu-v4", datasheet=True)
    assert measured == Hardware.load("tpu-v4-measured") == Hardware.load("tpu-v4-measured", datasheet=True)
    assert measured.calibrated.error and not measured.at_peaks
    assert datasheet.calibrated == Calibrated(collective_latency_s=17e-6) and datasheet.at_peaks
    assert measured.chip == datasheet.chip == "tpu-v4"
    with pytest.raises(InputError, match="no hardware preset `tpu-v9`"):
        Hardware.load("tpu-v9")
    assert replace(measured, name="tpu-v4", calibrated=datasheet.calibrated) == datasheet
    assert datasheet.with_network("flat") == V4


def test_a_chip_like_a_measured_one_has_its_shares_and_its_own_peaks() -> None:
    measured = Hardware.load("tpu-v4-measured").calibrated
    for name in ("tpu-v5e", "tpu-v5p", "tpu-v6e", "tpu-7x"):
        chip, datasheet = Hardware.load(name), Hardware.load(name, datasheet=True)
        assert datasheet.measured_like == "tpu-v4-measured" and datasheet.at_peaks
        assert replace(chip, calibrated=datasheet.calibrated) == datasheet
        # What is borrowed is less sure than what was measured.
        assert chip.calibrated == replace(measured, error=0.25)
        assert chip.calibrated.error > measured.error
        assert chip.peak() == datasheet.peak_flops_per_s * measured.compute_efficiency
        assert Hardware.of_paper(name).calibrated == Calibrated()


def test_every_chip_that_others_are_like_is_measured() -> None:
    datasheets = [Hardware.load(name, datasheet=True) for name in presets()]
    liked = {chip.measured_like for chip in datasheets if chip.measured_like}
    assert "tpu-v4-measured" in liked
    assert {name: name in presets() and not Hardware.load(name).at_peaks for name in liked} == dict.fromkeys(
        liked, True
    )


@pytest.mark.parametrize("name", presets())
def test_every_preset_loads_as_measured_or_as_its_file_is(name: str) -> None:
    assert Hardware.load(name).chip == name.removesuffix("-measured")


def test_a_convention_that_is_asked_for_wins() -> None:
    measured = Hardware.load("tpu-v4")
    assert measured.with_network(None) is measured
    assert measured.with_network("flat").convention is Convention.FLAT
    assert V4.with_network(None).convention is Convention.FLAT
    assert V4.with_network("links").convention is Convention.LINKS
    assert parse_hardware(Source("m.toml", GOOD)).convention is Convention.LINKS
    for convention in Convention:
        said = GOOD.replace("[switch]", f'convention = "{convention}"\n[switch]')
        assert parse_hardware(Source("m.toml", said)).convention is convention


def test_a_measured_hop_replaces_that_of_the_datasheet() -> None:
    assert (V4.hop_s, Hardware.load("tpu-v4").hop_latency_s) == (1e-6, 1e-6)
    assert Hardware.load("tpu-v4").hop_s == Hardware.load("tpu-v4").calibrated.hop_latency_s != 1e-6
    assert replace(V4, calibrated=Calibrated(hop_latency_s=0.0)).hop_s == 0.0


@pytest.mark.parametrize("name", presets())
def test_written_out_a_file_reads_as_the_same_hardware(name: str) -> None:
    for chip in (Hardware.of_paper(name), Hardware.load(name, datasheet=True)):
        text = hardware_toml(chip, ["any [thing] = 3", 'a "line"\nand another'], ["as \x00 was\tfitted"])
        assert parse_hardware(Source("again.toml", text)) == chip
        assert text.split("\n")[:2] == ["# any [thing] = 3", '# a "line"\\nand another']
        assert text.count("#") == 3


def test_what_was_measured_is_written_too() -> None:
    figures = Calibrated(
        kernel_s=2e-6, attention_efficiency=0.4, fp8_efficiency=0.6, collective_latency_s=1e-6, error=0.1
    )
    bulk, plain = Protocols(1e-6, 2e-7, 0.25, 3e-6, 0.75), Protocols(0.0, 1e-7, 1.0)
    protocols = ((CollectiveKind.ALL_GATHER, bulk), (CollectiveKind.ALL_REDUCE, plain))
    chip = replace(Hardware.of_paper("h100"), calibrated=figures, protocols=protocols, measured_like="tpu-v4-measured")
    text = hardware_toml(chip, [], [])
    assert parse_hardware(Source("again.toml", text)) == chip
    assert "bulk" not in text[text.index("[all-reduce]") :]


def test_a_name_of_any_characters_can_be_written() -> None:
    named = replace(V4, name='a "b" \\ c', between_bytes_per_s=1 / 3 * 1e9, peak_flops_per_s=123456789.125)
    assert parse_hardware(Source("again.toml", hardware_toml(named, [], []))) == named


def test_fields_say_their_unit() -> None:
    unit = re.compile(r"_(per_s|bytes|s|chips|hour|efficiency)$")
    unitless = {"name", "wrap", "axes_at_once", "op_rule", "dimensions", "convention", "error", "peak_dtype"}
    unitless |= {
        "gathers",
        "quantises",
        "measured_like",
        "share",
        "bulk_share",
        "priced_on",
        "slices",
        "topology",
        "config",
        "matmul_share",
    }
    tables = [*HARDWARE.tables.values(), *ENGINE.tables.values()]
    assert [n for fields in tables for n in fields if not unit.search(n) and n not in unitless] == []


def test_every_gpu_says_at_what_rate_it_multiplies_f32() -> None:
    written = sorted((Path(__file__).parents[2] / "examples" / "hardware").glob("*.toml"))
    assert written
    for chip in (Hardware.load(str(name), datasheet=True) for name in (*presets(), *written)):
        assert isinstance(chip.fabric, Torus) == (chip.peak_f32_flops_per_s is None), chip.name


def test_files_have_the_fields_of_what_they_describe() -> None:
    assert set(HARDWARE.tables["calibrated"]) == {field.name for field in fields(Calibrated)}
    assert set(PROTOCOLS) == {field.name for field in fields(Protocols)}
    assert set(MEASURED_KINDS) < set(CollectiveKind)
    assert {*ENGINE.tables[""], *ENGINE.tables["engine"], "all_reduce"} == {field.name for field in fields(Engine)}


def test_an_op_takes_the_longer_of_the_two() -> None:
    assert V4.work_s(Work(275e12, 1.2e12 / 2)) == 1.0
    assert V4.work_s(Work(275e12 / 2, 1.2e12)) == 1.0
    assert V4.work_s(Work(np.array([275e12, 0.0]), np.array([0.0, 2.4e12]))).tolist() == [1.0, 2.0]


@pytest.mark.parametrize(("rule", "stated"), [(Rule.MAX, 4.0), (Rule.SUM, 7.0), (Rule.ROOT_OF_SQUARES, 5.0)])
def test_the_rules_that_combine(rule: Rule, stated: float) -> None:
    chip = replace(V4, calibrated=Calibrated(rule, compute_efficiency=0.5, hbm_efficiency=0.25))
    flops, hbm_bytes = 1.5 * 275e12, 1.2e12
    assert (chip.compute_s(flops), chip.memory_s(hbm_bytes)) == (3.0, 4.0)
    assert chip.together_s(3.0, 4.0) == chip.work_s(Work(flops, hbm_bytes)) == stated
    assert chip.work_s(Work(np.array([flops]), np.array([hbm_bytes]))).tolist() == [stated]
    f, b = sympy.symbols("f b", positive=True)
    assert float(chip.work_s(Work(f, b)).subs({f: flops, b: hbm_bytes})) == pytest.approx(stated, rel=1e-12)


def test_fp8_has_a_peak_and_a_share_of_its_own() -> None:
    h100 = Hardware.of_paper("h100")
    assert (h100.compute_s(989e12), h100.compute_s(1979e12, Dtype.FP8)) == (1.0, 1.0)
    half = replace(h100, calibrated=Calibrated(compute_efficiency=0.5))
    assert (half.compute_s(989e12), half.compute_s(1979e12, Dtype.FP8)) == (2.0, 2.0)
    apart = replace(h100, calibrated=Calibrated(compute_efficiency=0.5, fp8_efficiency=0.25))
    assert (apart.compute_s(989e12), apart.compute_s(1979e12, Dtype.FP8)) == (2.0, 4.0)
    assert apart.work_s(Work(1979e12, 0, arithmetic=Arithmetic(Dtype.FP8))) == 4.0
    # Blackwell does fp4 in fp4; on Hopper weights in fp4 are brought to bf16.
    b200 = Hardware.of_paper("b200")
    assert (b200.compute_s(9000e12, Dtype.FP4), h100.compute_s(989e12, Dtype.FP4)) == (1.0, 1.0)
    # A chip without an fp8 peak does fp8 as bf16, whatever the share of one would be.
    older = replace(Hardware.of_paper("a100-80"), calibrated=Calibrated(fp8_efficiency=0.25))
    assert older.compute_s(312e12, Dtype.FP8) == older.compute_s(312e12) == 1.0


# Of products of f32 at XLA's default precision: TF32 on GPUs, of which the V100 has none; on TPUs that of bf16.
F32_FLOPS = {
    "v100": 15.7e12,
    "v100-pcie": 14e12,
    "a6000": 77.4e12,
    "a100-40": 156e12,
    "a100-80": 156e12,
    "h100": 494.7e12,
    "h200": 494.7e12,
    "b200": 1125e12,
    "gb200-nvl72": 1250e12,
}


@pytest.mark.parametrize("name", presets())
def test_products_of_f32_have_a_rate_of_their_own(name: str) -> None:
    chip = Hardware.of_paper(name)
    share, done = chip.calibrated.compute_efficiency, Work(1e15, 0, arithmetic=Arithmetic(Dtype.F32))
    stated = F32_FLOPS.get(chip.chip, chip.peak_flops_per_s)
    assert chip.peak(Dtype.F32) == stated * share
    assert chip.work_s(done) == pytest.approx(1e15 / (stated * share))
    assert (chip.chip in F32_FLOPS) == isinstance(chip.fabric, Switch)


def test_products_with_fewer_bits_are_done_in_these_by_engines_that_quantise() -> None:
    """With a kernel more, which brings what they multiply to that; else as the module does them, in bf16."""
    b200 = replace(Hardware.of_paper("b200"), calibrated=Calibrated(kernel_s=1.0))
    mixed, both = (Work(4500e12, 0, arithmetic=one, kernels=1) for one in (Arithmetic(fewer=FP8), Arithmetic(FP8)))
    assert [b200.work_s(one) for one in (mixed, both)] == [1 + 2, 1 + 1]
    served = b200.with_engine(Engine("mine", quantises=(FP8,)))
    assert [served.work_s(one) for one in (mixed, both)] == [2 + 1, 1 + 1]
    assert served.work_s(replace(mixed, arithmetic=Arithmetic(fewer=Dtype.FP4))) == 1 + 2, "it has no kernels of fp4"
    older = replace(Hardware.of_paper("a100-80"), engine=served.engine)
    assert older.done_in(mixed.arithmetic) is Dtype.BF16, "the chip has no fp8"


def test_caches_are_read_at_a_share_of_their_own() -> None:
    chip = replace(V4, calibrated=Calibrated(hbm_efficiency=0.5, attention_efficiency=0.25))
    # 3/4 of the bytes at a half of the peak, 1/4 of them at a quarter.
    assert chip.memory_s(1.2e12, 0.3e12) == pytest.approx(0.75 / 0.5 + 0.25 / 0.25)
    assert chip.memory_s(1.2e12) == chip.memory_s(1.2e12, 0) == 2.0
    assert chip.work_s(Work(0, 1.2e12, 0.3e12)) == chip.memory_s(1.2e12, 0.3e12)
    alike = replace(V4, calibrated=Calibrated(hbm_efficiency=0.5))
    assert alike.memory_s(1.2e12, 0.3e12) == 2.0


def test_kernels_and_engines_add_to_the_work() -> None:
    chip = replace(V4, calibrated=Calibrated(kernel_s=0.25))
    done = Work(275e12, 0, kernels=2, layers=1, steps=0.5)
    assert (V4.launch_s(done), chip.launch_s(done), chip.work_s(done)) == (0.0, 0.5, 1.5)
    served = chip.with_engine(Engine("mine", step_s=4.0, layer_s=8.0))
    assert (served.launch_s(done), served.work_s(done)) == (0.5 + 2.0 + 8.0, 11.5)
    assert served.launch_s(Work(275e12, 0)) == 0.0
    assert served.with_engine(None) == chip


def test_an_engine_brings_its_own_all_reduce_in_a_node() -> None:
    own, chips, gather = Protocols(1e-6, 0.0, 0.5), Protocols(2e-6, 0.0, 0.5), Protocols(3e-6, 0.0, 0.5)
    engine = Engine("mine", all_reduce=own)
    measured = ((CollectiveKind.ALL_GATHER, gather), (CollectiveKind.ALL_REDUCE, chips))
    h100 = replace(Hardware.of_paper("h100"), protocols=measured)
    served = h100.with_engine(engine)
    assert served.protocols_over(nodes=False) == {"all-gather": gather, "all-reduce": own}
    assert served.protocols_over(nodes=True) == dict(measured)
    assert h100.with_engine(Engine("bare")).protocols_over(nodes=False) == dict(measured)
    assert served.protocols == measured, "what is written of the chip is the chip's"
    assert V4.with_engine(engine).protocols_over(nodes=False) == {}  # no switch
    linked = replace(h100, protocols=measured[:1], convention=Convention.LINKS)
    assert CollectiveKind.ALL_REDUCE in linked.unmeasured_kinds
    assert CollectiveKind.ALL_REDUCE not in linked.with_engine(engine).unmeasured_kinds


ENGINE_FILE = """name = "mine"
[engine]
step_s = 2e-3
[all-reduce]
start_s = 1e-6
member_s = 0
share = 0.5
"""


def test_an_engine_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(ENGINE_FILE)
    assert load_engine(str(path)) == Engine("mine", 2e-3, all_reduce=Protocols(1e-6, 0.0, 0.5))
    path.write_text(ENGINE_FILE.replace("step_s", 'quantises = "fp8 fp4"\nstep_s'))
    own = load_engine(str(path))
    assert own.quantises == (FP8, Dtype.FP4)
    path.write_text(engine_toml(own, []))
    assert load_engine(str(path)) == own
    assert load_engine("vllm").quantises == (FP8,)
    for name in engines():
        assert load_engine(name).name == name
    for old, new, said in (
        ("step_s", "steps_s", "There is no field `steps_s` in `[engine]`"),
        ("step_s = 2e-3", 'quantises = "fp4"', '`quantises` must be one of "fp8", "fp8 fp4"'),
        ("2e-3", "2", "`step_s` must be a number, 0 or more and at most 1"),
        ("[engine]", "[torus]", "There is no table `torus` in an engine's file"),
        ("share = 0.5", "", "The field `share` is missing from `[all-reduce]`"),
    ):
        assert old in ENGINE_FILE
        path.write_text(ENGINE_FILE.replace(old, new))
        with pytest.raises(InputError) as caught:
            load_engine(str(path))
        assert said in str(caught.value)
    with pytest.raises(InputError) as caught:
        load_engine("vlm")
    assert "There is no engine `vlm`" in str(caught.value) and "vllm" in str(caught.value)


def test_an_unknown_preset_is_refused_with_a_guess() -> None:
    with pytest.raises(InputError) as caught:
        Hardware.load("tpu-v5x" * 100)
    assert "There is no hardware preset `tpu-v5x" in caught.value.diagnostics[0].message
    assert len(caught.value.diagnostics[0].message) < 120
    with pytest.raises(InputError) as caught:
        Hardware.of_paper("tpu_v4")
    assert caught.value.diagnostics[0].hint is not None and "tpu-v4" in caught.value.diagnostics[0].hint
    with pytest.raises(InputError):
        Hardware.of_paper("../presets/tpu-v4")


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
        ("[switch]", "[calibrated]\nkernel_s = 2\n[switch]", "`kernel_s` must be a number, 0 or more and at most 1"),
        ("[switch]", "[calibrated]\nfp8_efficiency = 0\n[switch]", "`fp8_efficiency` must be a number above 0 and"),
        ("[switch]", "[calibrated]\nattention_efficiency = 1.1\n[switch]", "`attention_efficiency` must be a number"),
        ("[switch]", "[all-to-all]\nstart_s = 0\nmember_s = 0\n[switch]", "`share` is missing from `[all-to-all]`"),
        ("1e15", "1e-300", "mine.toml:3:1: error: `peak_flops_per_s` must be a number above 0, 1000 or more"),
        ("3e12", "999", "mine.toml:5:1: error: `hbm_bytes_per_s` must be a number above 0, 1000 or more"),
        ("[switch]", "[calibrated]\nhbm_efficiency = 1e-7\n[switch]", "above 0 and at most 1, 1e-06 or more"),
        ("[switch]", "[host]\nnvme_bytes_per_s = 1\n[switch]", "a number, 0 or more, if not 0 then 1000 or more"),
        ('"mine"', '"mine"\nmeasured_like = "nosuch"', "mine.toml:2:1: error: There is no hardware preset `nosuch`"),
        ('"mine"', '"mine"\nmeasured_like = "h100"', "mine.toml:2:1: error: `measured_like` names h100, of which"),
        ("[switch]", "[permute]\nshare = 1\n[switch]", "There is no table `permute` in a hardware file"),
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


def test_a_file_may_name_a_chip_that_it_is_like_if_that_was_measured(tmp_path: Path) -> None:
    text = resources.files("escc.cost.presets").joinpath("a100-80.toml").read_text(encoding="utf-8")
    own = tmp_path / "mine.toml"
    own.write_text(text.replace('name = "a100-80"', 'name = "mine"'))
    assert Hardware.load(str(own)).protocols == Hardware.load("h100").protocols
    assert Hardware.load(str(own), datasheet=True).at_peaks
    own.write_text(text.replace('"h100-measured"', '"b200"'))
    with pytest.raises(InputError, match="b200, of which nothing was measured"):
        Hardware.load(str(own))
    own.write_text(text.replace('op_rule = "max"', 'op_rule = "max"\nhbm_efficiency = 0.8'))
    found = Hardware.load(str(own))
    assert not found.at_peaks and found.calibrated.hbm_efficiency == 0.8, "what a file says of itself stands"
    assert found.measured_like is None and not found.protocols, "and is that of no other chip"


def test_a_published_share_of_matmuls_counts_in_the_place_of_the_nearest_chips():
    like, own = Hardware.load("h100"), Hardware.load("v100")
    assert own.matmul_share == own.calibrated.compute_efficiency == 0.664
    assert own.calibrated.hbm_efficiency == like.calibrated.hbm_efficiency
    assert own.compute_s(1.0) == pytest.approx(1 / (0.664 * 125e12))
    assert Hardware.load("v100", datasheet=True).compute_s(1.0) == pytest.approx(1 / 125e12)
    assert parse_hardware(Source("mine.toml", hardware_toml(own, [], []))) == own


def test_a_plan_fits_into_what_the_compiler_leaves_a_program() -> None:
    chip, paper = Hardware.load("tpu-v4"), Hardware.of_paper("tpu-v4")
    assert chip.room_bytes == 33_014_153_216 - 2**26 < chip.hbm_bytes
    assert Options(chip).capacity == chip.room_bytes
    assert Options(paper).capacity == paper.room_bytes == paper.hbm_bytes == 2**35
    assert Hardware.load("h100").room_bytes == Hardware.load("h100").hbm_bytes
    rooms = {"tpu-v5e": 15.6853, "tpu-v5p": 95.6804, "tpu-v6e": 31.1833}
    assert [Hardware.load(name).room_bytes / 2**30 for name in rooms] == pytest.approx(list(rooms.values()), rel=1e-5)
