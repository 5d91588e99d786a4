"""Means of what layers compute and of what comes for them: what they bound, and the plans that they find."""

import math
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from programs import TINY_DECODER as TINY

from escc import Hardware, Mesh, parse
from escc.compiler.plan.pipeline import load
from escc.compiler.plan.streamed_layers import streaming
from escc.cost.estimate import estimate
from escc.cost.hardware import Host, Protocols
from escc.cost.streams import least_fetched_s, least_stored_bytes
from escc.ir.collective import CollectiveKind
from escc.ir.layout import Layout
from escc.ir.program import Kind, Pin, PinKind
from escc.ir.streams import host_tensors
from escc.passes.choose import choose
from escc.passes.lower.insert import insert
from escc.passes.options import Options
from escc.passes.stages.streaming import choose_streaming, least_mean_s

CARD = """name = "card"
[datasheet]
peak_flops_per_s = 130e12
hbm_bytes = 24e9
hbm_bytes_per_s = 1000e9
[network]
network_bytes_per_s = 32e9
[switch]
node_chips = 4
link_bytes_per_s = 32e9
[host]
dram_bytes = 256e9
dram_bytes_per_s = 204.8e9
link_bytes_per_s = 31.5e9
host_chips = 4
"""

LARGE = """
dim B = 4096, E = 2048, F = 2048
block layer(x: bf16[B,E]) -> bf16[B,E] {
  param Wi, Wg: bf16[E,F]
  param Wd: bf16[F,E]
  u[B,F] = x[B,E] * Wi[E,F]
  g[B,F] = x[B,E] * Wg[E,F]
  h = silu(g) * u
  d[B,E] = h[B,F] * Wd[F,E]
  return x + d
}
main(x: bf16[B,E]) { return repeat 4 layer(x) }
"""


def takes_s(plan, hardware) -> float:
    """One call of a plan of one phase, with waiting."""
    [spmd] = insert(plan)
    return estimate(spmd, hardware).totals().total_s


@pytest.mark.parametrize("link_bytes_per_s", [1e9, 1e10, 1e12])
def test_no_plan_takes_less_than_a_mean_of_what_it_computes_and_of_what_comes(link_bytes_per_s):
    host = Host(dram_bytes=1e9, dram_bytes_per_s=1e13, link_bytes_per_s=link_bytes_per_s, host_chips=2)
    hardware = replace(Hardware.load("h100"), host=host)
    mesh, options = Mesh.parse("2"), Options(hardware)
    program = streaming(parse(TINY), {Kind.PARAM}, 4, 1)
    fetched_s = least_fetched_s(program, mesh, hardware, "prefill")
    split, whole = ((), ("x",)), ((), ())
    prices = []
    for wi, wd in product((split, whole), repeat=2):
        layouts = {"layer.Wi": Layout(wi), "layer.Wd": Layout(wd[::-1])}
        pins = tuple(Pin(PinKind.STORED, name, None, layout, "") for name, layout in layouts.items())
        prices.append(takes_s(choose(program, "prefill", mesh, replace(options, pins=pins)), hardware))
    for computing in (0.95, 0.8, 0.5, 0.2):
        bound = least_mean_s(program, "prefill", mesh, options, computing, 1.0) + (1 - computing) * fetched_s
        assert 0 < bound <= min(prices) * (1 + 1e-9)
        fewer = least_mean_s(program, "prefill", mesh, options, computing, 0.5) + (1 - computing) * fetched_s
        assert fewer <= bound


@pytest.mark.parametrize("start_s", [0.0, 1e-5])
def test_a_mean_has_all_that_a_plan_computes_and_gathers_but_for_the_starts_of_gathers(start_s):
    """What is gathered over the same axes starts once; so the mean, a sum over tensors, has no start."""
    protocols = Protocols(0.0, 0.0, share=0.1, bulk_start_s=start_s, bulk_share=1.0)
    host = Host(dram_bytes=1e12, dram_bytes_per_s=1e12, link_bytes_per_s=1e11, host_chips=4)
    hardware = replace(Hardware.load("h100"), host=host, protocols=((CollectiveKind.ALL_GATHER, protocols),))
    program, mesh, options = streaming(parse(LARGE), {Kind.PARAM}, 3, 1), Mesh.parse("4"), Options(hardware)
    for computing in (0.9, 0.7):
        gathering = (1 - computing) / computing
        [spmd] = insert(choose(program, "main", mesh, replace(options, gathering=gathering)))
        assert [one.gathered_axes for one in host_tensors(spmd).values()] == [("x",)] * 3
        cost = estimate(spmd, hardware)
        gathers_s = 3 * cost.fetches[0].fetch.gather_s
        bound = least_mean_s(program, "main", mesh, options, computing, 1.0)
        mean_s = computing * cost.totals().apart_s + (1 - computing) * gathers_s
        assert bound == pytest.approx(mean_s - (1 - computing) * 3 * start_s)
        assert gathers_s > 10 * start_s


def test_layouts_between_those_that_compute_quickest_and_those_that_store_least_are_found(tmp_path: Path):
    (tmp_path / "card.toml").write_text(CARD)
    hardware, mesh = Hardware.load(str(tmp_path / "card.toml")), Mesh.parse("2x2")
    model = load("llama-3-70b", {"B": 4, "L": 2048, "M": 2048}, phase="prefill")
    program, options = streaming(model, {Kind.PARAM, Kind.CACHE}, 70, 1), Options(hardware)
    plan, [waiting_s] = choose_streaming(program, ["prefill"], mesh, options)
    quickest = choose(program, "prefill", mesh, options)
    least = least_stored_bytes(program, "prefill", mesh) * (1 + 1e-9)
    fullest = choose(program, "prefill", mesh, replace(options, stored_bytes=least))
    assert plan.price + waiting_s == pytest.approx(takes_s(plan, hardware))
    assert plan.price + waiting_s < 0.95 * min(takes_s(quickest, hardware), takes_s(fullest, hardware))
    assert plan.bound == quickest.bound < plan.price < math.inf


def test_means_are_looked_at_only_where_parameters_come(monkeypatch: pytest.MonkeyPatch):
    """They weigh what gathers of parameters take: of caches alone that come, all would be one plan."""
    streams, looked = sys.modules[choose_streaming.__module__], []

    def counted(program, phases, mesh, options):
        looked.append(options.gathering)
        return choose(program, phases, mesh, options)

    monkeypatch.setattr(streams, "choose", counted)
    host = Host(dram_bytes=1e12, dram_bytes_per_s=1e13, link_bytes_per_s=1e10, host_chips=2)
    hardware, mesh = replace(Hardware.load("h100"), host=host), Mesh.parse("2")
    model = load("palm-8b", {"B": 1, "M": 2048}, phase="decode")
    for kinds, weighed in (({Kind.CACHE}, False), ({Kind.PARAM}, True)):
        looked.clear()
        _, [waiting_s] = choose_streaming(streaming(model, kinds, 32, 1), ["decode"], mesh, Options(hardware))
        assert len(looked) >= 2 and waiting_s > 0
        assert any(looked) == weighed
