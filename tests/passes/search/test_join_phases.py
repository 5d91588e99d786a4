"""Phases planned together: never worse than with one phase's weights, never better than each alone, and
on tiny programs the best over all stored layouts."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path

import pytest

from escc.cost.estimate import estimate
from escc.cost.hardware import Hardware
from escc.cost.network import Network
from escc.ir.diagnostics import InputError, Source
from escc.ir.layout import Layout
from escc.ir.mesh import Mesh
from escc.ir.program import Program
from escc.ir.text.pins import parse_pins
from escc.ir.text.read import parse
from escc.ir.verify.verify import verify
from escc.passes.choose import choose
from escc.passes.expansion.expand import expand
from escc.passes.layouts.reshard import leaving, price_arcs
from escc.passes.layouts.space import tensor_space
from escc.passes.layouts.strategies import live_axes
from escc.passes.lower.insert import insert, spell_handovers
from escc.passes.options import Options
from escc.passes.plan import Plan
from escc.passes.search.steiner import Distances, cheapest_tree

HARDWARE = Hardware.of_paper("tpu-v4")
PALM = Path(__file__).parents[3] / "examples" / "palm-540b.esti"
FREE = Options(HARDWARE, capacity_bytes=math.inf)

LAYER = """
model "two phases"
dim B, L, M
dim E = 64, F = 128, H = 4, Q = 8
block layer(x: bf16[B,L,E]) -> bf16[B,L,E] {
  param Wq: bf16[E,H,Q]
  param Wk: bf16[E,Q]
  param Wo: bf16[H,Q,E]
  param Wi: bf16[E,F]
  param Wd: bf16[F,E]
  cache keys: bf16[B,M,Q]
  q[B,L,H,Q] = x[B,L,E] * Wq[E,H,Q]
  k[B,L,Q] = x[B,L,E] * Wk[E,Q]
  ks = append(keys, k, L into M)
  s[B,L,H,M] = q[B,L,H,Q] * ks[B,M,Q]
  p = softmax(s, over=M, mask=causal(L, M))
  o[B,L,H,Q] = p[B,L,H,M] * ks[B,M,Q]
  a[B,L,E] = o[B,L,H,Q] * Wo[H,Q,E]
  u[B,L,F] = x[B,L,E] * Wi[E,F]
  h = gelu(u)
  d[B,L,E] = h[B,L,F] * Wd[F,E]
  return x + a + d
}
main(x: bf16[B,L,E]) { return repeat 3 layer(x) }
phase prefill { B = 4, L = 64, M = 64, calls = 4 }
phase decode { B = 16, L = 1, M = 128, calls = 64 }
"""
WEIGHTS = ("layer.Wq", "layer.Wk", "layer.Wo", "layer.Wi", "layer.Wd")

TINY = """
model "tiny"
dim B, L, M
dim E = 8, Q = 4
param W: bf16[E,Q]
cache keys: bf16[B,M,Q]
main(x: bf16[B,L,E]) {
  k[B,L,Q] = x[B,L,E] * W[E,Q]
  ks = append(keys, k, L into M)
  s[B,L,M] = k[B,L,Q] * ks[B,M,Q]
  return s
}
phase prefill { B = %d, L = 4, M = 4, calls = %d }
phase decode { B = 4, L = 1, M = %d, calls = 6 }
"""


def program(text: str) -> Program:
    source = Source("two.esti", text)
    return expand(parse(source), source)


def stored_pins(layer: Program, plan: Plan) -> str:
    """Pins of the weights as a plan stores them."""
    return "\n".join(f"stored {name} {text(layer, layout, name)}" for name, layout in plan.stored if name in WEIGHTS)


def text(layer: Program, layout: Layout, name: str) -> str:
    dims = layer.table()[name].dims
    return "".join(d + ("_" + "".join(axes) if axes else "") for d, axes in zip(dims, layout.dims, strict=True))


def with_pins(layer: Program, lines: str) -> Options:
    return Options(HARDWARE, capacity_bytes=math.inf, pins=tuple(parse_pins(Source("a.pins", lines), layer)))


def handover_s(layer: Program, mesh_text: str, before: Layout, after: Layout, name: str, times: int) -> float:
    """Seconds from one layout of a cache to the other, dims of another size whole at the end."""
    mesh = Mesh.parse(mesh_text)
    value = layer.table()[name]
    first, second = (dict(phase.sizes) for phase in layer.phases)
    landing = Layout(
        tuple(axes if first[d] == second[d] else () for d, axes in zip(value.dims, after.dims, strict=True))
    )
    sizes = [first[d] for d in value.dims]
    space = tensor_space(sizes, live_axes(mesh))
    arcs = leaving(space.space)
    total = math.prod(sizes) * value.dtype.bits / 8
    price = price_arcs(space.space, arcs, total, Network(HARDWARE, mesh).collective_s)
    root, end = space.index(before), space.index(landing)
    assert root is not None and end is not None
    tree = cheapest_tree(Distances(arcs, price + 1e-30), root, [end])
    return times * float(price[tree].sum())


@pytest.mark.parametrize("mesh", ["2", "4", "2x2"])
def test_together_is_between_alone_and_pinned_to_the_weights_of_decode(mesh: str) -> None:
    layer = program(LAYER)
    calls = {phase.name: phase.calls for phase in layer.phases}
    alone = {name: choose(layer, name, Mesh.parse(mesh), FREE) for name in calls}
    joint = choose(layer, list(calls), Mesh.parse(mesh), FREE)
    assert joint.gap <= 1e-9
    least = sum(calls[name] * plan.phases[0].price for name, plan in alone.items())
    assert joint.price >= least * (1 - 1e-9)

    pins = stored_pins(layer, alone["decode"])
    prefill = choose(layer, "prefill", Mesh.parse(mesh), with_pins(layer, pins))
    cache = {"prefill": dict(prefill.stored)["layer.keys"], "decode": dict(alone["decode"].stored)["layer.keys"]}
    handed = handover_s(layer, mesh, cache["prefill"], cache["decode"], "layer.keys", 3)
    most = calls["decode"] * alone["decode"].phases[0].price + calls["prefill"] * (prefill.phases[0].price + handed)
    assert joint.price <= most * (1 + 1e-9)


@pytest.mark.parametrize("mesh", ["2", "4", "2x2", "3", "1"])
def test_programs_and_handovers_cost_what_was_planned(mesh: str) -> None:
    layer = program(LAYER)
    plan = choose(layer, ["prefill", "decode"], Mesh.parse(mesh), FREE)
    calls = {phase.name: phase.calls for phase in layer.phases}
    total = 0.0
    stored = []
    for spmd, phase in zip(insert(plan), plan.phases, strict=True):
        verify(spmd, layer)
        price = estimate(spmd, HARDWARE).totals().total_s
        assert price == pytest.approx(phase.price, rel=1e-9)
        total += calls[phase.phase] * price
        stored.append({v.name: v.layout for v in spmd.values if v.name in WEIGHTS})
    assert stored[0] == stored[1], "each parameter is stored once"
    for spmd, handover in zip(spell_handovers(plan), plan.handovers, strict=True):
        verify(spmd)
        price = estimate(spmd, HARDWARE).totals().comm_s
        assert price == pytest.approx(handover.price, rel=1e-9, abs=1e-18)
        total += calls[handover.before] * price
    assert total == pytest.approx(plan.price, rel=1e-9)


@pytest.mark.parametrize(("batch", "context"), [(4, 4), (2, 4), (4, 8), (1, 8)])
def test_no_stored_layouts_are_better(batch: int, context: int) -> None:
    """Every stored layout of the weight and of both caches, each phase planned with it."""
    layer = program(TINY % (batch, 4 // batch, context))
    calls = {phase.name: phase.calls for phase in layer.phases}
    mesh = Mesh.parse("2")
    best = math.inf
    for weight in ("EQ", "E_xQ", "EQ_x"):
        alone: dict[str, list[tuple[float, Layout]]] = {}
        for name, cache in product(calls, ("BMQ", "B_xMQ", "BM_xQ", "BMQ_x")):
            pins = with_pins(layer, f"stored W {weight}\nstored keys {cache}")
            try:
                plan = choose(layer, name, mesh, pins)
            except InputError:
                continue
            alone.setdefault(name, []).append((calls[name] * plan.phases[0].price, dict(plan.stored)["keys"]))
        for (first, before), (second, after) in product(alone["prefill"], alone["decode"]):
            handed = calls["prefill"] * handover_s(layer, "2", before, after, "keys", 1)
            best = min(best, first + second + handed)
    joint = choose(layer, list(calls), mesh, FREE)
    assert joint.price == pytest.approx(best, rel=1e-9)
    assert joint.gap <= 1e-9


def test_a_parameter_of_two_sizes_is_a_contradiction() -> None:
    layer = program(
        TINY.replace("param W: bf16[E,Q]", "param W: bf16[E,Q]\nparam P: bf16[M,Q]").replace(
            "  return s", "  r[B,L,M] = k[B,L,Q] * P[M,Q]\n  return s + r"
        )
        % (4, 1, 8)
    )
    with pytest.raises(InputError, match="`P` is stored once"):
        choose(layer, ["prefill", "decode"], Mesh.parse("2"), FREE)
    choose(layer, "decode", Mesh.parse("2"), FREE)


def test_pins_that_hold_in_one_phase_only_name_it() -> None:
    layer = program(LAYER.replace("phase prefill { B = 4", "phase prefill { B = 3"))
    with pytest.raises(InputError, match="Phase prefill: The pin"):
        choose(layer, ["prefill", "decode"], Mesh.parse("4"), with_pins(layer, "stored layer.keys B_xMQ"))


@pytest.mark.parametrize("share", [1.0, 0.4, 0.26])
def test_memory_binds_in_every_phase(share: float) -> None:
    layer = program(LAYER)
    free = choose(layer, ["prefill", "decode"], Mesh.parse("2x2"), FREE)
    most = max(
        float(use)
        for spmd in insert(choose(layer, ["prefill", "decode"], Mesh.parse("1"), FREE))
        for use in [sum(size for _, size in estimate(spmd, HARDWARE).stored_bytes)]
    )
    tight = choose(layer, ["prefill", "decode"], Mesh.parse("2x2"), Options(HARDWARE, stored_bytes=share * most))
    assert tight.price >= free.price * (1 - 1e-9)
    for spmd in insert(tight):
        assert sum(size for _, size in estimate(spmd, HARDWARE).stored_bytes) <= share * most * (1 + 1e-9)


def test_prefill_gathers_the_weights_of_decode_as_tokens_grow() -> None:
    """Pope et al. 2022, 3.2: with one stored layout, prefill goes from weight-stationary to weight-gathered."""
    text_ = PALM.read_text(encoding="utf-8")
    ways, stored = [], ""
    for batch in (1, 16, 512):
        phases = f"phase prefill {{ B = {batch}, L = 2048, M = 2048, calls = {512 // batch} }}\n"
        phases += "phase decode { B = 512, L = 1, M = 2048, calls = 64 }\n"
        layer = program(text_[: text_.index("phase prefill")] + phases)
        if not stored:
            found = choose(layer, "decode", Mesh.parse("4x4x4"), Options(HARDWARE)).stored
            weights = [(name, layout) for name, layout in found if name.startswith("layer.W")]
            stored = "\n".join(f"stored {name} {text(layer, layout, name)}" for name, layout in weights)
        pins = tuple(parse_pins(Source("decode.pins", stored), layer))
        plan = choose(layer, ["prefill", "decode"], Mesh.parse("4x4x4"), Options(HARDWARE, pins=pins))
        assert plan.gap <= 1e-9
        read = next(op.uses[1] for op in plan.phases[0].ops if op.result == "layer.u")
        kept = dict(plan.stored)["layer.Wi"]
        assert len(kept.split_axes) == 3, "stored on 64 chips"
        ways.append(4 ** (3 - len(read.split_axes)))
    assert ways == [1, 4, 16], "gathered over no axis, over one, over two"


def test_a_parameter_whose_sizes_change_places_is_a_contradiction() -> None:
    swapped = """
model "swap"
dim B = 4
dim E, F
param W: bf16[E,F]
main(x: bf16[B,E]) {
  u[B,F] = x[B,E] * W[E,F]
  return u
}
phase one { E = 4, F = 8 }
phase two { E = 8, F = 4 }
"""
    with pytest.raises(InputError, match="`W` is stored once"):
        choose(program(swapped), ["one", "two"], Mesh.parse("4"), FREE)
