"""Figures fitted to tables: those that made a table come out again, and a table that cannot be is refused."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from escc.compiler.calibrate.fit_tables import fit_tables, shipped_model
from escc.compiler.calibrate.tables import read_collectives, read_matmuls, read_steps
from escc.compiler.commands.main import app
from escc.cost.engine_file import load_engine
from escc.cost.hardware import Calibrated, Convention, Hardware, Protocols, Rule, Switch
from escc.cost.hardware_file import MEASURED_KINDS
from escc.cost.network import Network
from escc.ir.collective import CollectiveKind
from escc.ir.diagnostics import InputError, Span
from escc.ir.mesh import Mesh

H100 = Hardware.load("h100", datasheet=True)
NODE = Switch(8, 450e9)
MADE = Protocols(5e-6, 1e-6, 0.25, 2e-5, 0.7)
SIZES = [2**k for k in range(9, 30)]


def time_of(kind: CollectiveKind, chips: int, size: float) -> float:
    """What a network of such protocols takes for a collective of one whole of `size` bytes."""
    chip = replace(H100, protocols=((kind, MADE),), convention=Convention.LINKS)
    whole = kind is CollectiveKind.ALL_GATHER
    held = (size / chips, size) if whole else (size, size / chips)
    return float(Network(chip, Mesh((("x", chips),))).collective_s(kind, ("x",), *held))


def collectives(kinds: Sequence[CollectiveKind], unit: float = 1.0) -> str:
    rng = random.Random(1)
    lines = ["gpu,op_name,num_gpus,bytes,us"]
    for kind in kinds:
        for chips in (2, 4, 8):
            for size in SIZES:
                seconds = time_of(kind, chips, size) * rng.uniform(0.98, 1.02)
                lines.append(f"h100_sxm,{str(kind).replace('-', '_')},{chips},{size * unit:.0f},{seconds * 1e6:.4f}")
    return "\n".join(lines) + "\n"


def matmuls(figures: Calibrated, narrow_kernels: int = 2) -> str:
    lines = ["gpu,gemm_dtype,m,n,k,us"]
    chip = replace(H100, calibrated=figures)
    for name, size, peak, kernels in (
        ("bfloat16", 2, H100.peak_flops_per_s * figures.compute_efficiency, 1),
        ("fp8", 1, (H100.peak_fp8_flops_per_s or 0) * (figures.fp8_efficiency or 0), narrow_kernels),
    ):
        for m in (1, 32, 512, 8192):
            for n in (1024, 4096, 16384):
                for k in (1024, 8192):
                    moved = (m * k + k * n) * size + 2 * m * n
                    seconds = kernels * figures.kernel_s + max(2 * m * n * k / peak, chip.memory_s(moved))
                    lines.append(f"h100_sxm,{name},{m},{n},{k},{seconds * 1e6:.5f}")
    return "\n".join(lines) + "\n"


def test_figures_of_matmuls_come_out(tmp_path: Path) -> None:
    made = Calibrated(Rule.MAX, 0.77, 0.85, kernel_s=4e-6, fp8_efficiency=0.5)
    file = tmp_path / "gemm.csv"
    file.write_text(matmuls(made))
    found = fit_tables(H100, None, file, None)
    fitted = found.hardware.calibrated
    assert (fitted.compute_efficiency, fitted.hbm_efficiency) == pytest.approx((0.77, 0.85), rel=0.01)
    assert (fitted.fp8_efficiency, fitted.kernel_s) == pytest.approx((0.5, 4e-6), rel=0.01)
    assert found.sections[0].median < 0.01 and (found.sections[0].held_out or 0) < 0.02
    assert found.hardware.name == "h100-measured"


def test_rows_over_several_nodes_are_refused_as_none_of_the_figures_is_theirs(tmp_path: Path) -> None:
    file = tmp_path / "nccl.csv"
    made = collectives([CollectiveKind.ALL_GATHER])
    file.write_text(made + "h100,all_gather,16,1024,20\nh100,all_gather,8,1024,12\nh100,all_gather,32,1024,40\n")
    for given in ({"collectives": file}, {"all_reduce": file}):
        tables = {"collectives": None, "matmuls": None, "steps": None, **given}
        if "all_reduce" in given:
            file.write_text(file.read_text().replace("all_gather", "all_reduce"))
        with pytest.raises(InputError) as error:
            fit_tables(H100, **tables)
        last = len(made.splitlines())
        assert [(found.message, found.span and found.span.line) for found in error.value.diagnostics] == [
            ("This is over 16 chips, and a node of h100 has 8.", last + 1),
            ("This is over 32 chips, and a node of h100 has 8.", last + 3),
        ]
        assert all("leave out" in (found.hint or "") for found in error.value.diagnostics)


def test_what_no_table_is_given_of_stays_as_it_was_and_is_said(tmp_path: Path) -> None:
    """Of the datasheet, or measured before; then the less sure of both says how sure all is."""
    gathers, gemm = tmp_path / "nccl.csv", tmp_path / "gemm.csv"
    gathers.write_text(collectives([CollectiveKind.ALL_GATHER]))
    gemm.write_text(matmuls(Calibrated(Rule.MAX, 0.77, 0.85, kernel_s=4e-6, fp8_efficiency=0.5)))
    before = Hardware.load("h100-measured")
    bare, kept = (fit_tables(chip, gathers, None, None) for chip in (H100, before))
    others = "reduce-scatter, all-reduce, all-to-all"
    instead = "`--hardware h100-measured` keeps those that were measured"
    assert bare.not_given == (
        f"matmuls: none are given, arithmetic and HBM are at the datasheet's peaks; {instead}",
        f"collectives: no {others} is given, links are at the datasheet's rate; {instead}",
    )
    assert bare.hardware.ops_at_peaks and len(bare.hardware.unmeasured_kinds) == 3
    assert 0 < bare.hardware.calibrated.error < 0.05
    assert kept.not_given == (
        "matmuls: none are given, shares of the peaks and kernels are those of h100-measured",
        f"collectives: no {others} is given, what they take is as of h100-measured",
    )
    assert kept.hardware.calibrated == before.calibrated, "with its error"
    assert dict(kept.hardware.protocols) == dict(before.protocols) | dict(bare.hardware.protocols)
    bare, kept = (fit_tables(chip, None, gemm, None) for chip in (H100, before))
    assert bare.not_given == (f"collectives: none are given, links are at the datasheet's rate; {instead}",)
    assert kept.not_given == ("collectives: none are given, what they take is as of h100-measured",)
    assert kept.hardware.protocols == before.protocols
    assert bare.hardware.calibrated.error < kept.hardware.calibrated.error == before.calibrated.error
    assert fit_tables(before, gathers, gemm, None).hardware.calibrated.error == before.calibrated.error, "3 kinds stay"
    gathers.write_text(collectives([CollectiveKind(kind) for kind in MEASURED_KINDS]))
    every = fit_tables(before, gathers, gemm, None)
    assert not every.not_given and every.hardware.calibrated.error < 0.05


def test_figures_of_ones_own_are_like_those_of_no_other_chip(tmp_path: Path) -> None:
    file = tmp_path / "gemm.csv"
    times = {1: 90.0, 2: 90.0, 4: 91.0, 64: 95.0, 2048: 1200.0, 4096: 2400.0}
    rows = [f"a100_80gb,bf16,{m},8192,8192,{us}" for m, us in times.items()]
    file.write_text("\n".join(["gpu,gemm_dtype,m,n,k,us", *rows]))
    a100 = Hardware.load("a100-80", datasheet=True)
    assert a100.measured_like == "h100-measured"
    assert fit_tables(a100, None, file, None).hardware.measured_like is None


def test_what_the_rows_do_not_tell_is_said(tmp_path: Path) -> None:
    lines = collectives([CollectiveKind.ALL_GATHER]).splitlines()
    file = tmp_path / "nccl.csv"
    file.write_text("\n".join(line for line in lines if ",8," in line or line.startswith("gpu")) + "\n")
    [section] = fit_tables(H100, file, None, None).sections
    assert any("not identified" in note and "8 chips" in note for note in section.notes)
    small = tmp_path / "gemm.csv"
    small.write_text("\n".join(["gpu,gemm_dtype,m,n,k,us", *(f"h100,bf16,1,1024,{k},4.0" for k in range(1, 9))]) + "\n")
    [section] = fit_tables(H100, None, small, None).sections
    assert any("compute_efficiency is not identified" in note for note in section.notes)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("gpu,op_name,num_gpus,bytes\nh100,all_gather,8,1024\n", "column `us` is missing"),
        ("gpu,op_name,num_gpus,bytes,us,us\nh100,all_gather,8,1024,5,6\n", "column `us` stands twice"),
        ("gpu,op_name,num_gpus,bytes,us\nh100,all_gather,8,1024\n", "has 4 values"),
        ("gpu,op_name,num_gpus,bytes,us\nh100,gather,8,1024,5\n", "no collective `gather`"),
        ("gpu,op_name,num_gpus,bytes,us\nh100,all_gather,8,,5\n", "`bytes` must be a number"),
        ("gpu,op_name,num_gpus,bytes,us\nh100,all_gather,8,1024,nan\n", "`us` must be a number"),
        ("gpu,op_name,num_gpus,bytes,us\nh100,permute,8,1024,5\n", "no collective `permute`"),
        ("gpu,op_name,num_gpus,bytes,us,busbw_GBs\nh100,all_gather,8,1024,5,x\n", "`busbw_GBs` must be a number"),
        ("gpu,op_name,num_gpus,bytes,us\nh100,all_gather,1e300,1024,5\n", "whole number of at most"),
        ("gpu,op_name,num_gpus,bytes,us\nb200,all_gather,8,1024,5\n", "no row of `h100`"),
        ("gpu,op_name,num_gpus,bytes,us\nh100,all_gather,8,1073741824,2\n", "times what a link carries"),
        ("gpu,op_name,num_gpus,bytes,us,busbw_GBs\nh100,all_gather,8,268435456,1457,322\n", "GB/s, and `busbw_GBs`"),
    ],
)
def test_a_table_that_is_wrong_is_refused(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "nccl.csv"
    file.write_text(text)
    with pytest.raises(InputError, match=said):
        read_collectives(file, "h100", NODE)


def test_sizes_in_elements_are_caught(tmp_path: Path) -> None:
    file = tmp_path / "nccl.csv"
    file.write_text(collectives([CollectiveKind.ALL_GATHER], unit=0.5))
    with pytest.raises(InputError, match="not in elements"):
        read_collectives(file, "h100", NODE)
    file.write_text(collectives([CollectiveKind.ALL_GATHER]))
    rows, alone = read_collectives(file, "h100", NODE)
    assert (len(rows), alone) == (3 * len(SIZES), 0)


def test_rows_of_one_chip_are_left_out_as_it_sends_nothing(tmp_path: Path) -> None:
    file = tmp_path / "nccl.csv"
    made = collectives([CollectiveKind.ALL_REDUCE])
    alone = [f"h100_sxm,all_reduce,1,{size},5" for size in SIZES]
    file.write_text(made + "\n".join(alone[:1]))
    [section] = fit_tables(H100, file, None, None).sections
    assert section.notes == ("1 row of one chip is left out, which sends nothing",)
    assert len(section.errors) == 3 * len(SIZES)
    file.write_text(made + "\n".join(alone))
    [section] = fit_tables(H100, None, None, None, all_reduce=file, engine=load_engine("vllm")).sections
    assert section.notes == (f"{len(SIZES)} rows of one chip are left out, which sends nothing",)
    file.write_text("\n".join([made.splitlines()[0], *alone]))
    with pytest.raises(InputError, match="All rows are of one chip, which sends nothing") as error:
        fit_tables(H100, file, None, None)
    assert error.value.diagnostics[0].span == Span(2, 1)


@pytest.mark.parametrize(
    ("chip", "named", "taken"),
    [
        ("h100", "h100", True),
        ("h100", "H100_SXM", True),
        ("h100", "h100-sxm5", True),
        ("h100", "h100_80gb_sxm", True),
        ("h100", "h100_pcie", False),
        ("h100", "h100_nvl", False),
        ("h100", "h1000", False),
        ("a100-80", "a100_sxm", True),
        ("a100-80", "a100_80gb_sxm", True),
        ("a100-40", "a100_80gb_sxm", False),
        ("v100-pcie", "v100_pcie", True),
        ("v100-pcie", "v100_sxm", False),
        ("v100", "v100_pcie", False),
        ("gb200-nvl72", "gb200", True),
    ],
)
def test_rows_are_those_of_the_chip_that_they_name(chip: str, named: str, taken: bool, tmp_path: Path) -> None:
    file = tmp_path / "gemm.csv"
    own = f"{chip.replace('-', '_')},bf16,8192,8192,8192,2000\n"
    file.write_text(f"gpu,gemm_dtype,m,n,k,us\n{own}{named},bf16,4096,8192,8192,2000\n")
    assert [row.m for row in read_matmuls(file, chip, 1979e12)] == [8192, *([4096] if taken else [])]


def test_matmuls_quicker_than_the_peak_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "gemm.csv"
    file.write_text("gpu,gemm_dtype,m,n,k,us\nh100,fp8,8192,8192,8192,100\n")
    with pytest.raises(InputError, match="times the chip's peak"):
        read_matmuls(file, "h100", 1979e12)


@pytest.mark.filterwarnings("error")  # they would stand beside the sentence
@pytest.mark.parametrize(
    ("factor", "least_kb", "said"),
    [
        (1e3, 0, "No collective reaches more than"),
        (1e3, -1, "times what the slowest figures that are fitted give"),
        (1e250, -1, "No figures fit: this was measured in"),
    ],
)
def test_collectives_longer_than_any_chip_takes_are_refused(
    factor: float, least_kb: int, said: str, tmp_path: Path
) -> None:
    """Small ones alone, too, of which none comes near to the rate of a link."""
    header, *lines = collectives([CollectiveKind.ALL_GATHER]).splitlines()
    cells = [line.split(",") for line in lines]
    kept = [row for row in cells if least_kb == 0 or int(row[3]) < 2**25]
    file = tmp_path / "nccl.csv"
    file.write_text("\n".join([header, *(",".join([*row[:4], repr(float(row[4]) * factor)]) for row in kept)]))
    with pytest.raises(InputError, match=said):
        fit_tables(H100, file, None, None)


def test_matmuls_longer_than_any_chip_takes_are_refused(tmp_path: Path) -> None:
    header, *lines = matmuls(Calibrated(Rule.MAX, 0.77, 0.85, kernel_s=4e-6, fp8_efficiency=0.5)).splitlines()
    rows = [line.rsplit(",", 1) for line in lines]
    file = tmp_path / "gemm.csv"
    file.write_text("\n".join([header, *(f"{rest},{1e3 * float(time)}" for rest, time in rows)]))
    with pytest.raises(InputError, match="times what the slowest figures that are fitted give"):
        fit_tables(H100, None, file, None)


STEPS = "model_path,system,gemm_quant_mode,isl,osl,batch_size,tp_size,attention_dp_size,tpot_ms\n"


def test_steps_that_say_nothing_of_decoding_alone_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "steps.csv"
    row = "meta-llama/Llama-3.1-8B,h100_sxm,bfloat16,{isl},{osl},8.0,{tp},{dp},7.5\n"
    rows = [(1024, 8192, 1, 1), (8192, 1024, 1, 1), (1024, 8192, 2, 4)]
    text = "".join(row.format(isl=isl, osl=osl, tp=tp, dp=dp) for isl, osl, tp, dp in rows)
    file.write_text(STEPS + text + text.replace("Llama-3.1-8B", "gpt-oss-120b"))
    found, left_out = read_steps(file, "h100", shipped_model)
    assert [(row.model, row.batch, row.chips) for row in found] == [("llama-3-8b", 8, 1)] and left_out == 5


@pytest.mark.parametrize(
    ("tpot_ms", "said"),
    [("0.0075", "the least at the datasheet's peaks"), ("7500", "times what the slowest figures that are fitted give")],
)
def test_steps_that_no_chip_takes_are_refused(tpot_ms: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "steps.csv"
    file.write_text(STEPS + "".join(f"Llama-3.1-8B,h100,bf16,1024,8192,4,1,1,{tpot_ms}\n" for _ in range(2)))
    with pytest.raises(InputError, match=said):
        fit_tables(Hardware.load("h100-measured", datasheet=True), None, None, file)


@pytest.mark.parametrize("weights", ["bf16", "fp8"])
def test_an_engine_comes_out_of_the_steps_that_it_takes(weights: str, tmp_path: Path) -> None:
    """Steps made by planning with known figures give these back; those with weights in fp8 are of an engine that
    multiplies in that, which it then does wherever it serves."""
    from escc.compiler.calibrate.fit_tables import step_of
    from escc.compiler.calibrate.rows import plan_step
    from escc.compiler.calibrate.tables import TimedStep
    from escc.cost.estimate import estimate
    from escc.ir.dtype import Dtype
    from escc.ir.spmd import SpmdProgram

    true = Hardware.load("h100").with_engine(replace(load_engine("vllm"), step_s=2e-3))
    lines = []
    for chips in (1, 2):
        for batch in (4, 32, 64):
            timed = TimedStep("llama-3-8b", Dtype(weights), batch, chips, 1024, 8192, 1.0, Span(1, 1))
            spmd = plan_step(step_of(timed), true)
            assert isinstance(spmd, SpmdProgram)
            seconds = estimate(spmd, true).totals().total_s
            lines.append(f"Llama-3.1-8B,h100,{weights},1024,8192,{batch},{chips},1,{1e3 * seconds}\n")
    file = tmp_path / "steps.csv"
    file.write_text(STEPS + "".join(lines))
    base = Hardware.load("h100-measured", datasheet=True)
    found = fit_tables(base, None, None, file, engine=replace(load_engine("vllm"), quantises=()))
    assert found.engine is not None and found.engine.quantises == ((Dtype.FP8,) if weights == "fp8" else ())
    assert found.engine.step_s == pytest.approx(2e-3, rel=0.02)
    assert found.hardware.calibrated.attention_efficiency == pytest.approx(0.6778, rel=0.02)


def test_the_command_writes_a_file_that_reads_back(tmp_path: Path) -> None:
    table, out = tmp_path / "nccl.csv", tmp_path / "mine.toml"
    table.write_text(collectives([CollectiveKind.ALL_GATHER, CollectiveKind.ALL_REDUCE]))
    argv = ["calibrate", "--hardware", "h100", "--collectives", str(table), "-o", str(out), "--source", "a \x07bench"]
    ran = CliRunner().invoke(app, argv)
    assert ran.exit_code == 0, ran.output
    found = Hardware.load(str(out))
    assert [kind for kind, _ in found.protocols] == [CollectiveKind.ALL_GATHER, CollectiveKind.ALL_REDUCE]
    assert not found.at_peaks
    said = "matmuls: none are given, arithmetic and HBM are at the datasheet's peaks"
    assert said in ran.output and f"# {said}" in out.read_text()
    assert CliRunner().invoke(app, argv).exit_code == 1, "it is not written over"
    for engine, said in (("../x", "no name of an engine"), ("mine", "both be written")):
        both = [*argv, "--all-reduce", str(table), "--engine", engine, "--force"]
        refused = CliRunner().invoke(app, both)
        assert refused.exit_code == 1 and said in refused.output
    for option in ("--collectives", "--matmuls"):
        torus = CliRunner().invoke(app, ["calibrate", "--hardware", "tpu-v4", option, str(table)])
        assert torus.exit_code == 1 and "Tables are fitted for chips behind a switch" in torus.output
