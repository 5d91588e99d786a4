"""Streams of requests: the arithmetic of a steady state, and the best batch beside all batches."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from escc.compiler.commands.main import app
from escc.compiler.plan.compiled import CompiledPhase
from escc.compiler.plan.pipeline import compile_phases, parse, program_of
from escc.compiler.plan.serving import Served, Stream, of_stream, served
from escc.compiler.plan.staged import compile_staged
from escc.compiler.report.explain import explain_phase
from escc.compiler.report.served_stream import ServedStream
from escc.compiler.sweep import stream as searched
from escc.compiler.sweep.rate_bounds import RateBounds
from escc.compiler.sweep.stream import Limits, Place, Request, Wanted, best_at, places, serve
from escc.compiler.sweep.stream_text import stream_text
from escc.cost.engine_file import load_engine
from escc.cost.estimate import Estimate, estimate
from escc.cost.formulas.symbolic import Form
from escc.cost.hardware import Hardware
from escc.ir.diagnostics import InputError, Source
from escc.ir.dtype import Dtype
from escc.ir.mesh import Mesh
from escc.ir.program import Program
from escc.ir.spmd import SpmdProgram
from escc.passes.options import Options
from escc.passes.plan import PROVEN, Cutoff, Outcome

pytestmark = pytest.mark.usefixtures("known_plans")

TEXT = """model "small"
dim B, L, M
dim E = 2048, F = 8192, H = 16, Q = 128
param table: bf16[32000,E]
block layer(x: bf16[B,L,E]) -> bf16[B,L,E] {
  param Wq, Wk, Wv: bf16[E,H,Q]
  param Wo: bf16[H,Q,E]
  param Wi: bf16[E,F]
  param Wd: bf16[F,E]
  cache keys, values: bf16[B,M,H,Q]
  q[B,L,H,Q] = x[B,L,E] * Wq[E,H,Q]
  k[B,L,H,Q] = x[B,L,E] * Wk[E,H,Q]
  v[B,L,H,Q] = x[B,L,E] * Wv[E,H,Q]
  ks = append(keys, k, L into M)
  vs = append(values, v, L into M)
  s[B,L,H,M] = q[B,L,H,Q] * ks[B,M,H,Q]
  p = softmax(s / sqrt(size(Q)), over=M, mask=causal(L, M))
  o[B,L,H,Q] = p[B,L,H,M] * vs[B,M,H,Q]
  a[B,L,E] = o[B,L,H,Q] * Wo[H,Q,E]
  u[B,L,F] = x[B,L,E] * Wi[E,F]
  h = gelu(u)
  d[B,L,E] = h[B,L,F] * Wd[F,E]
  return x + a + d
}
main(x: bf16[B,L,E]) { return repeat 8 layer(x) }
phase prefill { B = 1, L = 64, M = 64 }
phase decode  { B = 4, L = 1, M = 64 }
"""
SOURCE = Source("small.esti", TEXT.replace("param table: bf16[32000,E]\n", ""))
PROGRAM = program_of(SOURCE)
TWO_HEADS = Source("two_heads.esti", SOURCE.text.replace("H = 16", "H = 2"))
H100 = Hardware.load("h100").with_engine(load_engine("vllm"))
H100_BARE = Hardware.load("h100")
SMALL = replace(H100, hbm_bytes=2.5e9)  # so that memory binds


def at(batch: int, hardware: Hardware = H100) -> tuple[float, float]:
    """What a batch takes, planned by itself: the time of a token, and to the first."""
    stream = Stream(2000, 500, batch)
    options = Options(hardware)
    found = served(compile_phases(of_stream(PROGRAM, stream), ["prefill", "decode"], Mesh.parse("2"), options), stream)
    return found.token_s, found.first_token_s


def one_head() -> Source:
    """The model with one head of keys, which no axis splits: caches are split by sequences."""
    heads = [("param Wq, Wk, Wv: bf16[E,H,Q]", "param Wq: bf16[E,H,Q]\n  param Wk, Wv: bf16[E,Q]")]
    heads += [(f"{name}[{dims},H,Q]", f"{name}[{dims},Q]") for name, dims in (("Wk", "E"), ("Wv", "E"))]
    heads += [(f"{name}[{dims},H,Q]", f"{name}[{dims},Q]") for name, dims in (("k", "B,L"), ("v", "B,L"))]
    text = SOURCE.text.replace("[B,M,H,Q]", "[B,M,Q]")
    for before, after in heads:
        text = text.replace(before, after)
    return Source("one_head.esti", text)


def request(limits: Limits, wanted: Wanted = Wanted.THROUGHPUT, batch: int | None = None) -> Request:
    return Request(2000, 500, limits, wanted, batch, source=SOURCE)


def assert_timed_at_the_mean(one: CompiledPhase, context: int) -> None:
    """That steps take what those of a program of that context take."""
    sizes = {**dict(one.spmd.sizes), "M": context}
    there = estimate(replace(one.spmd, sizes=tuple(sizes.items()), mean=()), one.hardware)
    assert one.estimate.ops == there.ops and one.estimate.moves == there.moves


def test_a_steady_state_by_hand() -> None:
    stream = Stream(2000, 500, 10)
    program = of_stream(PROGRAM, stream)
    assert [(*(dict(p.sizes)[d] for d in "BLM"), dict(p.mean), p.calls) for p in program.phases] == [
        (1, 2000, 2000, {}, 10),
        (10, 1, 2500, {"M": 2250}, 500),
    ]
    compiled = compile_phases(program, ["prefill", "decode"], Mesh.parse("2"), Options(H100))
    assert_timed_at_the_mean(compiled[1], 2250)
    for line in explain_phase(compiled[1], Form.EXACT).totals:
        assert line.value_s == pytest.approx(line.plan_s, rel=1e-9)
    found = served(compiled, stream)
    step_s, prompt_s = (compiled[k].estimate.totals().total_s for k in (1, 0))
    handover_s = sum(handover.price for handover in compiled[0].plan.handovers)
    assert found.token_s == pytest.approx(step_s + 10 / 500 * (prompt_s + handover_s), rel=1e-9)
    assert found.first_token_s == pytest.approx(step_s + prompt_s + handover_s, rel=1e-9)
    assert found.tokens_per_s == pytest.approx(10 / found.token_s)
    caches = 2 * 8 * 10 * 2500 * 16 * 128 * 2 / 2  # of two chips, each with places for input and output
    assert found.hbm_bytes > caches + 2 * 8 * 2000 * 16 * 128 * 2 / 2, "the caches of the prompt are there as well"


def test_prompts_in_chunks_by_hand() -> None:
    stream = Stream(2000, 500, 100, chunk=300)
    program = of_stream(PROGRAM, stream)
    assert [(dict(p.sizes)["L"], dict(p.sizes)["M"], dict(p.mean), p.calls) for p in program.phases] == [
        (300, 2000, {"M": 1200}, 7 * 100),  # 300, 600, ..., 2,100 on average
        (1, 2500, {"M": 2250}, 500),
    ]
    compiled = compile_phases(program, ["prefill", "decode"], Mesh.parse("2"), Options(H100))
    assert_timed_at_the_mean(compiled[0], 1200)
    assert not any(handover.price for handover in compiled[0].plan.handovers)
    found = served(compiled, stream)
    chunk_s, step_s = (one.estimate.totals().total_s for one in compiled)
    assert found.prefill_s == pytest.approx(7 * chunk_s, rel=1e-9)
    assert found.token_s == pytest.approx(step_s + 100 / 500 * 7 * chunk_s, rel=1e-9)
    # 1.4 chunks come in for each step, so that two are taken in beside some: four steps for a prompt of seven.
    assert found.pause_s == pytest.approx(step_s + 2 * chunk_s, rel=1e-9)
    assert found.first_token_s == pytest.approx(4 * step_s + 7 * chunk_s, rel=1e-9)
    stream = replace(stream, chunk=None)
    phases = compile_phases(of_stream(PROGRAM, stream), ["prefill", "decode"], Mesh.parse("2"), Options(H100))
    whole = served(phases, stream)
    assert whole.pause_s == pytest.approx(whole.step_s + whole.prefill_s)
    assert "taken in 300 tokens at a time" in ServedStream(replace(stream, chunk=300), found).text()
    assert "at a time" not in ServedStream(replace(stream, chunk=5000), whole).text(), "a prompt has no more than 2,000"


def test_all_slice_shapes_count() -> None:
    """Two heads are split by one of two axes; what one axis does not serve in time is served all the same."""
    one_axis, two_axes = (compiled_on(mesh).token_s for mesh in ("4", "2x2"))
    assert two_axes < 0.99 * one_axis
    [place] = places([4], [H100], [None], [None])
    asked = Request(2000, 500, Limits(), Wanted.THROUGHPUT, 6, source=TWO_HEADS)
    for limit_s in (None, (one_axis + two_axes) / 2):
        found = best_at(replace(asked, limits=Limits(limit_s)), place)
        assert found.mesh == "2x2" and found.proven and found.served is not None
        assert found.served.token_s == pytest.approx(two_axes, rel=1e-9)
    refused = best_at(replace(asked, limits=Limits(two_axes / 2)), place)
    assert f"a token takes {1e3 * two_axes:.4g} ms" in str(refused.reason)


def compiled_on(mesh: str) -> Served:
    """What six sequences of the model with two heads get on four chips."""
    stream = Stream(2000, 500, 6)
    program = of_stream(program_of(TWO_HEADS), stream)
    return served(compile_phases(program, ["prefill", "decode"], Mesh.parse(mesh), Options(H100)), stream)


def test_the_best_batch_is_the_largest_within_the_limit() -> None:
    limit_s = at(40)[0] * 1.0001
    [found] = serve(request(Limits(limit_s)), places([2], [H100], [None], [None]), jobs=1)
    assert found.batch is not None and found.served is not None and found.proven
    assert found.served.token_s == pytest.approx(at(found.batch)[0], rel=1e-6)
    assert found.batch >= 40
    beyond = [batch for batch in range(found.batch + 1, found.batch + 5) if at(batch)[0] <= limit_s]
    assert not beyond, "a larger batch would do"
    assert set(found.refused) >= {found.batch + 1, found.batch + 2}


def test_the_best_batch_is_one_that_axes_split() -> None:
    """With one head of keys that no axis splits, caches are split by sequences, and only multiples of 4 are quick."""
    source = one_head()
    [place] = places([4], [H100], [None], [None])
    given = best_at(Request(2000, 500, Limits(), Wanted.THROUGHPUT, 452, source=source), place)
    assert given.served is not None
    limits = Limits(given.served.token_s * 1.0001)
    found = best_at(Request(2000, 500, limits, Wanted.THROUGHPUT, source=source), place)
    assert found.batch == 452
    assert set(found.refused) >= {453, 454, 456, 460}, "the next multiples are planned, to be sure"


def test_smaller_batches_that_axes_split_may_give_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """187 fit at most, of which two chips split no half."""

    def planned(search: Any, batch: int) -> object:
        search.given[batch] = search.capacity
        rate = batch * (1.0 if batch % 2 == 0 else 0.9)
        search.bounds.add(batch, 500 * batch / rate if batch < 188 else math.inf, True)
        figures = Served(1.0, 0.0, 1.0, 1.0, 1.0, rate, 0.0, 2)
        return (SimpleNamespace(outcome=Outcome.OPTIMAL), figures) if batch < 188 else "It does not fit."

    monkeypatch.setattr(searched._Search, "_planned", planned)
    monkeypatch.setattr(searched._Search, "_first_bounds", lambda search: RateBounds([2], 500, 1000, math.inf))
    monkeypatch.setattr(searched._Search, "_ways", lambda search, compiled: 1)
    monkeypatch.setattr(searched._Search, "_larger", lambda search, compiled, batch: max(187, batch))
    found = best_at(request(Limits()), places([2], [H100], [None], [None])[0])
    assert found.batch == 186 and found.refused == (188, 189) and found.more <= PROVEN


def test_smaller_batches_may_give_more_where_memory_binds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to 28 fit in the quickest layouts; of 34 at most, in others, each more gives a little less."""

    def planned(search: Any, batch: int) -> object:
        search.given[batch] = search.capacity
        if batch > 34:
            search.bounds.add(batch, math.inf, True)
            return "It does not fit."
        step_s = 20.0 + batch if batch <= 28 else 3 * batch - 30.0
        search.bounds.add(batch, 500 * step_s, True)
        figures = Served(step_s, 0.0, step_s, 1.0, 1.0, batch / step_s, 0.0, 2)
        if figures.tokens_per_s <= search.rate:
            return Cutoff(500 * step_s)
        return (SimpleNamespace(outcome=Outcome.OPTIMAL), figures)

    monkeypatch.setattr(searched._Search, "_planned", planned)
    monkeypatch.setattr(searched._Search, "_first_bounds", lambda search: RateBounds([2], 500, 1000, math.inf))
    monkeypatch.setattr(searched._Search, "_ways", lambda search, compiled: 1)
    monkeypatch.setattr(searched._Search, "_larger", lambda search, compiled, batch: max(34, batch))
    found = best_at(request(Limits()), places([2], [H100], [None], [None])[0])
    assert found.batch is not None and found.served is not None and found.batch <= 28
    assert found.served.tokens_per_s * (1 + found.more) >= 28 / 48 and found.more <= searched.CLOSE
    told = stream_text(request(Limits()), [found], "")
    assert "all batches" in told or "within " in told


def test_plans_of_a_batch_bound_those_of_larger_ones() -> None:
    search = searched._Search(request(Limits()), places([2], [SMALL], [None], [None])[0], Mesh.parse("2"), PROGRAM)
    for batch in (1, 2, 3):
        search.plan(batch)
    bounds = search.bounds.rates
    assert search.bounds.sound
    for batch in (5, 8, 20):
        found = search.plan(batch)
        assert found is not None and found[1].tokens_per_s <= bounds[batch - 1] * (1 + 1e-9)


def test_where_something_is_served_no_more_than_the_time_of_a_token_is_asked_of_other_batches() -> None:
    """Nor is anything kept of the search that has shown that none comes in time."""
    [place] = places([2], [H100], [None], [None])
    found = search_of(place, at(40)[0] * 1.0001)
    assert found.plan(80) is None and "a token takes" in str(found.plans[80]), "nothing is served yet"
    assert found.plan(40) is not None
    for batch in (41, 42, 96):
        assert found.plan(batch) is None
        beaten = found.plans[batch]
        assert isinstance(beaten, Cutoff) and beaten.__traceback__ is None and beaten.__context__ is None
        assert found.bounds.rates[batch - 1] == 0.0, "it is known to be too slow"
    assert not found.open


def search_of(place: Place, token_s: float) -> Any:
    """The search of a mesh with one axis."""
    mesh = Mesh.parse(str(place.chips))
    return searched._Search(request(Limits(token_s)), place, mesh, PROGRAM)


def test_room_for_prompts_is_kept_for_the_batches_that_need_it(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[int, float]] = []

    def compiled(program: Program, phases: object, mesh: object, options: Options) -> object:
        given.append((dict(program.phases[1].sizes)["B"], options.capacity))
        return SimpleNamespace(plans=(), outcome=Outcome.OPTIMAL)

    def figures(compiled: object, stream: Stream) -> Served:
        full = given[-1] == (8, H100.room_bytes)
        return Served(1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 2 * H100.hbm_bytes if full else 0.0, 2)

    monkeypatch.setattr(searched, "compile_phases", compiled)
    monkeypatch.setattr(searched, "served", figures)
    monkeypatch.setattr(searched, "beside_bytes", lambda compiled: 1e9)
    search = searched._Search(request(Limits()), places([2], [H100], [None], [None])[0], Mesh.parse("2"), PROGRAM)
    assert search.plan(8) is not None and search.plan(4) is not None
    assert given == [(8, H100.room_bytes), (8, H100.room_bytes - 1e9), (4, H100.room_bytes)]


def test_a_batch_of_thousands_is_found_with_few_estimates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short sequences fit by thousands: of them few are estimated, and fewer planned."""
    estimated: list[SpmdProgram] = []

    def counted(spmd: SpmdProgram, hardware: Hardware) -> Estimate:
        estimated.append(spmd)
        assert len(estimated) < 200, "about eight an octave, and halves"
        return estimate(spmd, hardware)

    monkeypatch.setattr(searched, "estimate", counted)
    short = Request(20, 10, Limits(0.5), Wanted.THROUGHPUT, source=SOURCE)
    found = best_at(short, places([2], [H100], [None], [None])[0])
    assert found.batch is not None and found.batch > 2000
    assert set(found.refused) >= {found.batch + 1, found.batch + 2}


def test_memory_bounds_the_batch_with_the_caches_of_both() -> None:
    [found] = serve(request(Limits()), places([2], [SMALL], [None], [None]), jobs=1)
    assert found.batch is not None and found.served is not None
    assert found.served.hbm_bytes <= SMALL.hbm_bytes
    each = 2 * 8 * 2500 * 16 * 128 * 2 / 2
    assert found.served.hbm_bytes + 3 * each > SMALL.hbm_bytes, "three more would not fit"
    more = request(Limits(), batch=int(1.5 * found.batch))
    wide, narrow = serve(more, places([2], [SMALL], [None], [None, Dtype.INT8]), jobs=1)
    served_by = {one.place.caches: one.served for one in (wide, narrow)}
    assert served_by[None] is None and served_by[Dtype.INT8] is not None


def test_a_request_that_outgrows_the_chip_is_refused() -> None:
    """Of 40,000 tokens half fit beside the weights, as many as there are at a mean, and not all."""
    long = Request(1, 40_000, Limits(), Wanted.THROUGHPUT, 1, source=SOURCE)
    half = replace(long, output_tokens=20_000)
    [place] = places([1], [SMALL], [None], [None])
    assert best_at(half, place).served is not None
    refused = best_at(long, place)
    assert refused.served is None and "GB" in str(refused.reason)


def test_plans_say_at_what_context_they_are_timed(tmp_path: Path) -> None:
    model = tmp_path / "small.esti"
    model.write_text(SOURCE.text)
    argv = ["compile", str(model), "--hardware", "h100", "--input", "20", "--output", "10", "--batch", "4"]
    staged = CliRunner().invoke(app, [*argv, "--chips", "stage=2", "--stages", "2"])
    assert "  decode is timed at the mean M of 25, with places for 30\n" in staged.stdout
    assert "\nA stream of 20 tokens in and 10 out, 4 at once\n" in staged.stdout
    alone = CliRunner().invoke(app, [*argv, "--chips", "x=1", "--phase", "decode", "--emit", "json"])
    found = json.loads(alone.stdout)
    assert found["sizes"]["M"] == 30 and found["mean_sizes"] == {"M": 25}


def test_compile_keeps_room_for_prompts_beside_the_batch(tmp_path: Path) -> None:
    model, chip = tmp_path / "small.esti", tmp_path / "mine.toml"
    model.write_text(SOURCE.text)
    preset = (Path(__file__).parents[3] / "cost" / "presets" / "h100.toml").read_text()
    argv = ["compile", str(model), "--chips", "x=1", "--hardware", str(chip), "--input", "2000", "--output", "500"]

    def compiled(hbm_bytes: float) -> Result:
        chip.write_text(re.sub(r"(?m)^hbm_bytes = \S+", f"hbm_bytes = {hbm_bytes:g}", preset))
        return CliRunner().invoke(app, [*argv, "--batch", "8"])

    text = compiled(8e9)
    [held] = re.findall(r"a chip holds (\S+) GB, with 2,500 places for each sequence", text.stdout)
    refused = compiled(1e9 * float(held) - 6e7)  # the prompt takes 131 MB of it
    assert refused.exit_code == 1 and "GB" in refused.stderr
    stream = Stream(2000, 500, 8)
    staged = compile_staged(of_stream(PROGRAM, stream), ["prefill", "decode"], Mesh.parse("2"), "x", Options(H100_BARE))
    most = staged.served(stream)
    alone = max(float(stage[1].memory.total_bytes) for stage in staged.stages)
    assert most.hbm_bytes > alone + 2 * 4 * 2000 * 16 * 128 * 2, "the caches of a prompt of four layers are there, too"
    assert most.token_s == pytest.approx(staged.plan.price / 500)
    assert most.first_token_s == pytest.approx(most.step_s + sum(staged.stages_s("prefill")))
    argv[3] = "x=2"
    argv += ["--stages", "2"]
    assert compiled(most.hbm_bytes + 1e6).exit_code == 0
    assert compiled((most.hbm_bytes + alone) / 2).exit_code == 1


def test_what_is_given_to_each_phase_is_a_share_of_the_room_for_a_program() -> None:
    slices = places([1], [Hardware.load("tpu-v5e")], [None], [None])
    found = best_at(Request(20, 10, Limits(), Wanted.THROUGHPUT, 2, source=SOURCE), slices[0])
    assert found.served is not None and found.hbm_fraction == 1


def test_what_cannot_be_met_says_why() -> None:
    [found] = serve(request(Limits(1e-6)), places([2], [H100], [None], [None]), jobs=1)
    assert found.served is None and "a token takes" in str(found.reason)
    none = best_at(request(Limits()), places([12], [H100], [None], [None])[0])
    assert none.served is None and "12 chips of h100 fill no whole nodes" in str(none.reason)


def test_places_are_ranked_by_what_is_wanted() -> None:
    where = places([1, 2], [H100], [None], [None])
    limits = Limits(at(8)[0])
    most = serve(request(limits, batch=8), where, jobs=1)
    cheap = serve(request(limits, Wanted.COST, batch=8), where, jobs=1)
    quick = serve(request(Limits(), Wanted.LATENCY), where, jobs=1)
    rates = [one.served.tokens_per_s if one.served else 0.0 for one in most]
    assert rates == sorted(rates, reverse=True)
    costs = [one.dollars_per_million if one.served else math.inf for one in cheap]
    assert costs == sorted(costs)  # type: ignore[type-var]
    assert quick[0].batch == 1 and quick[0].served is not None
    assert quick[0].served.token_s == min(one.served.token_s for one in quick if one.served)


def test_costs_are_compared_in_one_unit() -> None:
    """A chip without a price is no cheaper for that its chip-seconds are fewer than another's dollars."""
    slow = replace(H100, name="slow", hbm_bytes_per_s=H100.hbm_bytes_per_s / 4, dollars_per_chip_hour=None)
    cheap = serve(request(Limits(), Wanted.COST, batch=2), places([1], [slow, H100], [None], [None]), jobs=1)
    assert [one.place.hardware.name for one in cheap] == [H100.name, "slow"]
    assert [one.cost for one in cheap] == [one.chip_s_per_million for one in cheap]
    told = stream_text(request(Limits(), Wanted.COST, batch=2), cheap, "")
    assert "chip-s/M" in told and "dollars" not in told
    with pytest.raises(InputError, match="names h100-measured twice"):
        places([1], [H100, H100], [None], [None])


def test_a_model_without_caches_serves_no_stream() -> None:
    plain = parse(
        'model "m"\ndim B = 8\nmain(x: bf16[B,B2]) { return x }\n'.replace("B2", "E").replace("B = 8", "B = 8, E = 8")
    )
    with pytest.raises(InputError, match="needs a model with caches"):
        of_stream(plain, Stream(8, 8, 8))


@pytest.mark.parametrize(
    ("stream", "said"),
    [
        (Stream(2**13, 2**42, 8), "Dim `M` in phase `decode` is larger than 2^40."),
        (Stream(2**40, 8, 8), "In phase `prefill`, `layer.s` has more than 2^60 elements."),
        (Stream(2**20, 8, 2**40), "In phase `decode`, `layer.keys` has more than 2^60 elements."),
    ],
)
def test_a_stream_is_no_larger_than_a_file_may_be(stream: Stream, said: str) -> None:
    with pytest.raises(InputError) as refused:
        of_stream(PROGRAM, stream)
    assert [one.message for one in refused.value.diagnostics] == [said]


@pytest.mark.parametrize("option", ["--input", "--output", "--chunk", "--batch"])
@pytest.mark.parametrize("command", ["compile", "sweep"])
def test_counts_of_a_stream_have_the_limit_of_sizes(command: str, option: str) -> None:
    sizes = {"--input": "10", "--output": "10", "--chunk": "10", "--batch": "8"} | {option: "1" + "0" * 13}
    ran = CliRunner().invoke(
        app, [command, "llama-3-8b", "--chips", "2", *(word for pair in sizes.items() for word in pair)]
    )
    assert ran.exit_code in (1, 2) and isinstance(ran.exception, SystemExit), ran.output
    assert option in ran.output and "1099511627776" in ran.output.replace(",", "")


def test_the_command_prints_one_that_compiles_it_with_the_same_figures() -> None:
    argv = ["sweep", "llama-3-8b", "--chips", "1", "--hardware", "h100", "--engine", "vllm", "--input", "500"]
    argv += ["--output", "100", "--batch", "8", "--set", "E=2048", "--pad", "V=131072", "--chunk", "256"]
    argv += ["--price", "2.5"]
    text = CliRunner().invoke(app, argv)
    assert text.exit_code == 0, text.output
    data = json.loads(CliRunner().invoke(app, [*argv, "--emit", "json"]).stdout)
    token_s = data["places"][0]["served"]["token_s"]
    command = next(line for line in text.stdout.splitlines() if line.startswith("  escc compile"))
    compiled = CliRunner().invoke(app, command.split()[1:])
    assert compiled.exit_code == 0, compiled.output
    assert f"{1e3 * token_s:.4g} ms between the tokens" in compiled.stdout
    assert "dollars at 2.5 an hour for a chip" in compiled.stdout


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--input", "10"], "both `--input` and `--output`"),
        (["--input", "10", "--output", "5", "-o", "x.jsonl"], "`-o` is of a grid"),
        (["--input", "10", "--output", "5", "--plans"], "`--plans` is of a grid"),
        (["--input", "10", "--output", "5", "--batch", "1,2"], "one `--batch`"),
        (["--input", "10", "--output", "5", "--max-first-token", "soon"], "`--max-first-token soon` is no time"),
        (["--input", "10", "--output", "5", "--caches", "f33"], "`--caches` names `f33`"),
        ([], "needs `--batch`"),
        (["--batch", "8", "--hardware", "h100,h100-measured"], "names h100-measured twice"),
        (["--input", "10", "--output", "5", "--ahead", "2"], "`--ahead` is of a grid"),
        (["--input", "10", "--output", "5", "--set", "B=8"], "gives dim `B` a size, and `--batch` others"),
        (["--batch", "8", "--chunk", "8"], "`--chunk` is of a stream"),
        (["--batch", "8", "--target", "throughput"], "`--target` is of a stream"),
        (["--batch", "8", "--max-first-token", "1s"], "`--max-first-token` is of a stream"),
        (["--batch", "8", "--plans"], "which `--emit html` links to"),
    ],
)
def test_options_that_do_not_go_together(more: list[str], said: str) -> None:
    ran = CliRunner().invoke(app, ["sweep", "llama-3-8b", "--chips", "8", "--hardware", "h100", *more])
    assert ran.exit_code == 1 and said in ran.output
