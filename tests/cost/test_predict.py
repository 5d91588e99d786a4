"""Predictions: by hand for one matmul and its collective; sums that must come out; no time below the peaks."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from judge.generator import generate

from escc.compiler.plan.compiled import CompiledPhase
from escc.compiler.plan.pipeline import compile_phase
from escc.compiler.plan.streamed_layers import streaming
from escc.cost.hardware import Calibrated, Convention, Engine, Hardware, Host, Rule, Switch
from escc.cost.predict import Prediction, Resource, predict_phase
from escc.ir.collective import CollectiveKind
from escc.ir.diagnostics import Source
from escc.ir.dtype import Dtype
from escc.ir.mesh import Mesh
from escc.ir.program import Kind, Program
from escc.ir.text.read import parse
from escc.passes.expansion.expand import expand
from escc.passes.options import Options

SOURCE = Source(
    "sum.esti",
    """model "sum"
dim B = 1024, E = 4096, F = 4096
main(x: bf16[B,E] @ BE_x) {
  param W: bf16[E,F] @ E_xF
  u[B,F] = x[B,E] * W[E,F]
  return u
}
""",
)
PROGRAM = expand(parse(SOURCE), SOURCE)
HALF = Calibrated(Rule.SUM, 0.5, 0.25, 0.5, collective_latency_s=1e-3, hop_latency_s=0.0)


def chip(calibrated: Calibrated = HALF, dollars: float | None = None) -> Hardware:
    linked = Hardware.load("tpu-v4", datasheet=True).with_network("links")
    return replace(linked, calibrated=calibrated, dollars_per_chip_hour=dollars)


def compiled(hardware: Hardware, program: Program = PROGRAM, mesh: str = "4", overlap: bool = False) -> CompiledPhase:
    phase = program.phases[-1].name
    return compile_phase(program, phase, Mesh.parse(mesh), Options(hardware, capacity_bytes=math.inf, overlap=overlap))


def predicted(one: CompiledPhase) -> Prediction:
    return predict_phase(one.program, one.spmd, one.estimate, one.memory, one.hardware)


def test_by_hand() -> None:
    found = predicted(compiled(chip(dollars=7.2)))
    assert (found.chips, found.tokens) == (4, 1024)
    compute_s = 2 * 1024 * 1024 * 4096 / (275e12 * 0.5)
    # x and W are read, the partial sums are written.
    memory_s = 2 * (1024 * 1024 + 1024 * 4096 + 1024 * 4096) / (1.2e12 * 0.25)
    # Partial sums of B x F are reduced and scattered over a line of four, both ways at half of 45 GB/s a link;
    # or reduced to all, which is twice that.
    scatter_s = 2 * 1024 * 4096 * 3 / 4 / (45e9 * 0.5)
    assert found.spent.compute_s == pytest.approx(compute_s)
    assert found.spent.hbm_s == pytest.approx(memory_s)
    assert found.spent.network_s == pytest.approx(scatter_s)
    assert found.spent.latency_s == pytest.approx(1e-3)
    assert found.spent.launch_s == 0
    assert found.seconds == pytest.approx(compute_s + memory_s + scatter_s + 1e-3)
    assert found.binds is Resource.LATENCY
    assert found.tokens_per_s == pytest.approx(1024 / found.seconds)
    assert found.chip_s_per_million == pytest.approx(4 * found.seconds * 1e6 / 1024)
    assert found.dollars_per_million == pytest.approx(found.chip_s_per_million * 0.002)
    assert found.mfu == pytest.approx(2 * 1024 * 4096 * 4096 / (found.seconds * 4 * 275e12))
    # x, W and the partial sums, until the last is scattered.
    assert found.hbm_bytes >= 2 * (1024 * 1024 + 1024 * 4096 + 1024 * 4096)
    assert found.hbm_capacity_bytes == 32 * 2**30


def test_what_kernels_and_the_engine_take_is_launch() -> None:
    plain = predicted(compiled(chip()))
    served = chip(replace(HALF, kernel_s=1e-4)).with_engine(Engine("slow", step_s=2e-3, layer_s=1e-2))
    found = predicted(compiled(served))
    # One kernel, and no repeat.
    assert found.spent.launch_s == pytest.approx(1e-4 + 2e-3)
    assert found.seconds == pytest.approx(plain.seconds + 1e-4 + 2e-3)
    assert (found.binds, dict(found.shares)[Resource.LAUNCH]) == (Resource.LAUNCH, found.spent.launch_s)
    assert found.spent.seconds[:4] == pytest.approx(plain.spent.seconds[:4])


def test_the_error_bar_is_two_deviations_on_a_scale_of_ratios() -> None:
    plain = predicted(compiled(chip()))
    assert plain.low_s is None and plain.high_s is None and plain.dollars_per_million is None
    barred = predicted(compiled(chip(replace(HALF, error=0.05))))
    assert barred.seconds == plain.seconds
    assert barred.low_s == pytest.approx(barred.seconds * math.exp(-0.1))
    assert barred.high_s == pytest.approx(barred.seconds * math.exp(0.1))


H100 = Hardware.load("h100-measured")
ALONE = expand(parse(replace(SOURCE, text=SOURCE.text.replace(" @ BE_x", "").replace(" @ E_xF", ""))), SOURCE)
GATHERED = Source(
    "gathered.esti",
    """model "gathered"
dim B = 1024, E = 4096, F = 4096
main(x: bf16[B,E] @ B_xE) {
  param W: bf16[E,F]
  u[B,F] @ BF = x[B,E] * W[E,F]
  return u
}
""",
)


def error_of(found: Prediction) -> float | None:
    """The error that a range is of."""
    return None if found.high_s is None else math.log(found.high_s / found.seconds) / 2


def test_no_range_where_ops_were_not_measured() -> None:
    error = H100.calibrated.error
    assert error_of(predicted(compiled(H100, ALONE, "1"))) == pytest.approx(error)
    bare = replace(H100, calibrated=Calibrated(error=error))
    assert predicted(compiled(bare, ALONE, "1")).low_s is None


def test_no_range_where_a_collective_runs_that_was_not_measured() -> None:
    error = H100.calibrated.error
    assert error_of(predicted(compiled(H100))) == pytest.approx(error)
    none = replace(H100, protocols=())
    assert error_of(predicted(compiled(none, ALONE, "1"))) == pytest.approx(error), "none runs"
    assert predicted(compiled(none)).low_s is None
    gathers = tuple((kind, one) for kind, one in H100.protocols if kind is CollectiveKind.ALL_GATHER)
    only = replace(H100, protocols=gathers)
    assert predicted(compiled(only)).low_s is None, "partial sums are scattered or reduced"
    gathered = compiled(H100, expand(parse(GATHERED), GATHERED))
    assert {move.kind for move in gathered.estimate.moves if move.seconds} == {CollectiveKind.ALL_GATHER}
    assert error_of(predicted(replace(gathered, hardware=only))) == pytest.approx(error)
    looped = compiled(only, expand(parse(LOOPED), LOOPED), overlap=True)
    assert looped.estimate.loops and predicted(looped).low_s is None, "blocks are passed on, as all-to-alls are"
    shared = replace(none.with_figures(network_efficiency=0.8))
    assert error_of(predicted(compiled(shared))) == pytest.approx(error), "a share of the links was"
    assert predicted(compiled(H100.with_network("flat"))).low_s is None, "one bandwidth was not"


def test_no_range_where_time_goes_between_nodes() -> None:
    error, nodes = H100.calibrated.error, ("what goes between nodes",)
    gathered = expand(parse(GATHERED), GATHERED)
    for mesh, hardware in (("x=2,gpu=2", replace(H100, fabric=Switch(2, 450e9))), ("x=4", H100)):
        far = hardware is not H100  # of two nodes x joins them
        for program in (gathered, expand(parse(LOOPED), LOOPED)):
            found = predicted(compiled(hardware, program, mesh, overlap=program is not gathered))
            assert (found.beyond, error_of(found)) == ((nodes, None) if far else ((), pytest.approx(error)))
    apart = predicted(compiled(H100, ALONE, "node=2"))
    assert apart.spent.network_s == 0 and error_of(apart) == pytest.approx(error), "nothing goes between them"
    shared = replace(H100.with_figures(network_efficiency=0.8), protocols=(), fabric=Switch(2, 450e9))
    assert predicted(compiled(shared, gathered, "x=2,gpu=2")).low_s is None, "that share is of links in a node"
    torus = chip(replace(HALF, error=0.05))
    linked = replace(torus, between_bytes_per_s=1e9)
    assert predicted(compiled(torus)).beyond == ()
    sliced = Source("sliced.esti", SOURCE.text.replace("BE_x", "[B, E/slice]").replace("E_xF", "[E/slice, F]"))
    found = predicted(compiled(linked, expand(parse(sliced), sliced), "slice=4"))
    assert (found.low_s, found.beyond) == (None, ("what goes between slices",))


def test_no_range_where_something_comes_from_the_host() -> None:
    served, program = replace(H100, host=Host(1e12, 1e11, 1e10, 8)), expand(parse(LOOPED), LOOPED)
    whole = compiled(served, program, "x=1")
    assert (predicted(whole).beyond, error_of(predicted(whole))) == ((), pytest.approx(H100.calibrated.error))
    streamed = compiled(served, streaming(program, frozenset({Kind.PARAM}), 2, 1), "x=1")
    found = predicted(streamed)
    assert streamed.estimate.fetches and (found.low_s, found.beyond) == (None, ("what comes from hosts",))


@pytest.mark.parametrize(
    ("engine", "error"),
    [
        (Engine("slow", step_s=1e-3, error=0.5), 0.5),
        (Engine("slow", layer_s=1e-3, error=0.5), 0.5),
        (Engine("sure", step_s=1e-3, error=0.01), H100.calibrated.error),  # of a chip that may be another
        (Engine("unsure", step_s=1e-3), None),
        (Engine("idle", error=0.5), H100.calibrated.error),
    ],
)
def test_a_range_is_as_wide_as_that_of_the_less_sure_of_chip_and_engine(engine: Engine, error: float | None) -> None:
    assert error_of(predicted(compiled(H100.with_engine(engine)))) == (error and pytest.approx(error))
    unsure = H100.with_figures(error=0.0).with_engine(engine)
    assert predicted(compiled(unsure)).low_s is None


def test_what_chips_could_do_is_in_the_type_in_which_it_is_done() -> None:
    """A matmul at the peak of fp8 has an MFU of 1, not of what that peak is to the one of bf16."""
    text = SOURCE.text.replace("param W: bf16", "param W: fp8").replace(" @ BE_x", "").replace(" @ E_xF", "")
    source = Source("narrow.esti", text.replace("B = 1024", "B = 65536"))
    program = expand(parse(source), source)
    engine = Engine("mine", quantises=(Dtype.FP8,))
    ideal = replace(chip(Calibrated()), peak_fp8_flops_per_s=4 * 275e12, engine=engine)
    found = predicted(compiled(ideal, program, "1"))
    assert found.binds is Resource.COMPUTE and found.mfu == pytest.approx(1)
    for other in (replace(ideal, peak_fp8_flops_per_s=None), replace(ideal, engine=None)):
        apart = predicted(compiled(other, program, "1"))
        assert apart.seconds == pytest.approx(4 * found.seconds) and apart.mfu == pytest.approx(1)


def test_products_of_f32_take_as_long_as_the_chip_has_them() -> None:
    text = SOURCE.text.replace("param W: bf16", "param W: f32").replace(" @ BE_x", "").replace(" @ E_xF", "")
    source = Source("wide.esti", text.replace("B = 1024", "B = 65536"))
    program = expand(parse(source), source)
    as_bf16 = predicted(compiled(chip(Calibrated()), program, "1"))
    found = predicted(compiled(replace(chip(Calibrated()), peak_f32_flops_per_s=275e12 / 8), program, "1"))
    assert found.binds is Resource.COMPUTE and found.mfu == pytest.approx(1)
    assert found.seconds == pytest.approx(8 * as_bf16.seconds)


def test_what_binds_is_what_takes_most() -> None:
    quick = replace(HALF, collective_latency_s=0.0)
    assert predicted(compiled(chip(quick))).binds is Resource.NETWORK
    assert predicted(compiled(chip(replace(quick, compute_efficiency=0.01)))).binds is Resource.COMPUTE
    assert predicted(compiled(chip(replace(quick, hbm_efficiency=0.001)))).binds is Resource.HBM


def adds_up(one: CompiledPhase) -> None:
    """All shares are of the whole, and no time is below what the peaks allow."""
    found = predicted(one)
    assert found.seconds == one.estimate.totals().total_s
    assert sum(seconds for _, seconds in found.shares) == pytest.approx(found.seconds, rel=1e-9, abs=1e-18)
    assert sum(part.seconds for part in found.parts) == pytest.approx(found.seconds, rel=1e-9, abs=1e-18)
    assert min(seconds for _, seconds in found.shares) >= -1e-12 * found.seconds
    flops = sum(op.times * op.flops for op in one.estimate.ops)
    moved = sum(op.times * op.hbm_bytes for op in one.estimate.ops)
    peak = max(flops / one.hardware.peak_flops_per_s, moved / one.hardware.hbm_bytes_per_s)
    assert found.seconds >= peak * (1 - 1e-12)


@pytest.mark.parametrize("rule", list(Rule))
def test_generated_programs_add_up_and_stay_above_the_peaks(rule: Rule) -> None:
    hardware = chip(Calibrated(rule, 0.8, 0.7, 0.8, 1e-6, 1e-6, kernel_s=1e-7, attention_efficiency=0.5))
    for seed in range(15):
        case = generate(seed)
        adds_up(compiled(hardware, case.program, "2x2"))


LOOPED = Source(
    "gather.esti",
    """model "gather"
dim B = 4096, E = 8192, F = 8192
block layer(x: bf16[B,E]) -> bf16[B,E] {
  param W: bf16[E,F] @ EF_x
  param V: bf16[F,E] @ F_xE
  u[B,F] = x[B,E] * W[E,F]
  y[B,E] = u[B,F] * V[F,E]
  return y
}
main(x: bf16[B,E] @ BE_x) { return repeat 3 layer(x) }
""",
)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("convention", list(Convention))
@pytest.mark.parametrize("slow", ["network_efficiency", "compute_efficiency"])
def test_loops_and_what_they_hide_add_up(overlap: bool, convention: Convention, slow: str) -> None:
    figures = Calibrated(Rule.ROOT_OF_SQUARES, hop_latency_s=1e-7, axes_at_once=1, kernel_s=1e-7)
    figures = replace(figures, **{slow: 0.2})
    program = expand(parse(LOOPED), LOOPED)
    one = compiled(replace(chip(figures), convention=convention), program, "4x4x4", overlap)
    assert bool(one.estimate.loops) == overlap
    assert any(part.what == "loop" for part in predicted(one).parts) == overlap
    adds_up(one)
