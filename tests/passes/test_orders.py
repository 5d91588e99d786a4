"""Products of three and more factors are contracted in an order of each phase's own, in the one that is cheapest."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from judge.generator import Case
from judge.optimum import optimum

from escc.compiler.emit.numpy_source import emit_numpy
from escc.compiler.plan.pipeline import compile_phases, model_source, parse, run_check, with_pins
from escc.compiler.report.json import phase_data
from escc.compiler.report.stages import Stage, stage_text
from escc.compiler.report.text import report
from escc.cost.hardware import Hardware
from escc.ir.diagnostics import Diagnostic, InputError, Source
from escc.ir.mesh import Mesh
from escc.ir.program import Einsum, Program, walk
from escc.ir.text.read_spmd import parse_spmd
from escc.passes import choose as choose_module
from escc.passes.choose import choose
from escc.passes.expansion.combinations import Combinations
from escc.passes.expansion.orders import in_order
from escc.passes.layouts.space import too_large
from escc.passes.options import Options
from escc.passes.plan import Cutoff, NoPlan, Objective, Outcome, Plan

OPTIONS = Options(Hardware.of_paper("tpu-v4"))
SMALL = {"E": 32, "F": 32, "Q": 16, "U": 16, "V": 32, "H": 8, "A": 16, "C": 32, "R": 8, "T": 16, "S": 16}


def deepseek() -> Program:
    """DeepSeek-V3 at small sizes, with a prompt that fills the context and a step of one token."""
    text = model_source("deepseek-v3").text.replace("2048 }", "64 }").replace("L = 2048", "L = 64")
    text = text.replace(" / 128 ", " / 16 ").replace(" / 64 ", " / 8 ")  # blocks with one scale
    return parse(text.replace("M = 2048", "M = 64"), {**SMALL, "B": 8, "Z": 4, "Y": 4})


def products(program: Program, names: tuple[str, ...]) -> dict[str, set[str]]:
    """What the ops read that make some values, without their blocks' names and without scales of codes."""
    found = [placed.item for placed in walk(program.body) if isinstance(placed.item, Einsum)]
    made = {op.result: {n.partition(".")[2] for n in op.operands if not n.endswith(".scale")} for op in found}
    return {name.partition(".")[2]: made[name] for name in names if name in made}


def test_latent_attention_is_absorbed_in_decode_and_multiplied_out_in_prefill() -> None:
    program = deepseek()
    compiled = compile_phases(program, ("prefill", "decode"), Mesh.parse("2"), OPTIONS)
    read = {
        one.phase: products(one.phase_plan.program, tuple(v.name for v in one.spmd.values if "experts." in v.name))
        for one in compiled
    }
    assert read["prefill"]["sn.part1"] == {"Wk", "cs"} and read["prefill"]["sn"] == {"q", "sn.part1"}
    assert read["prefill"]["o.part1"] == {"cs", "Wv"} and read["prefill"]["o"] == {"p", "o.part1"}
    assert read["decode"]["sn.part2"] == {"q", "Wk"} and read["decode"]["sn"] == {"sn.part2", "cs"}
    assert read["decode"]["o.part2"] == {"p", "cs"} and read["decode"]["o"] == {"o.part2", "Wv"}
    assert compiled.sound and len(compiled.plans) == 1


LATENT = """
dim B = 4, L, M, H = 4, Q = 4, U = 2, C = 8
main(q: bf16[B,L,H,Q], c: bf16[B,L,C]) {
  param Wk: bf16[C,H,Q]
  param Wv: bf16[C,H,U]
  cache latents: bf16[B,M,C]
  cs = append(latents, c, L into M)
  s[B,L,H,M] = q[B,L,H,Q] * Wk[C,H,Q] * cs[B,M,C]
  p = softmax(s, over=M, mask=causal(L, M))
  o[B,L,H,U] = p[B,L,H,M] * cs[B,M,C] * Wv[C,H,U]
  return o
}
phase prefill { L = 64, M = 64 }
phase decode  { L = 1, M = 64, calls = 64 }
"""


def test_both_orders_compute_what_the_model_says() -> None:
    """On virtual chips, beside the products as they are written; and as emitted."""
    program, mesh, phases = parse(LATENT), Mesh.parse("2x2"), ("prefill", "decode")
    compiled = compile_phases(program, phases, mesh, OPTIONS)
    least_s = Combinations(program, phases).least_s(mesh, OPTIONS.hardware)
    assert 0.05 * compiled.plans[0].price < least_s <= compiled.plans[0].price
    for one in compiled:
        made = {value.name for value in one.spmd.values}
        assert ("s.part1" in made) == ("o.part1" in made) == (one.phase == "prefill")
        checked = run_check(program, one.spmd)
        assert checked.max_error < 1e-9 and checked.equal
        module: dict[str, Any] = {"__name__": "emitted"}
        exec(compile(emit_numpy(program, one.spmd), one.phase, "exec"), module)
        stored = module["random_stored"](seed=0)
        dense, sharded = module["dense"](stored), module["sharded"](stored)
        for name, whole in dense.items():
            np.testing.assert_allclose(sharded[name], whole, rtol=1e-9, atol=1e-9)


def test_each_phase_prints_what_it_runs() -> None:
    program, mesh = deepseek(), Mesh.parse("2x2")
    printed = stage_text(Stage.EXPAND, program, ("prefill", "decode"), mesh, OPTIONS)
    first, second = printed.split("\nsharded ")
    for text, phase in ((first, "prefill"), ("sharded " + second, "decode")):
        spmd = parse_spmd(Source("printed.spmd", text))
        made = {value.name for value in spmd.values}
        assert made == {v.name for v in in_order(program, phase).values}
        assert ("experts.sn.part1" in made) == (phase == "prefill")


CHAIN = """
dim B = %d, E = 8, F = 16, G = 16
main(x: bf16[B,E], a: bf16[E,F], b: bf16[F,G]) {
  %s
  return y
}
"""
ALL = "y[B,G] = x[B,E] * a[E,F] * b[F,G]"
FIRST = "t[B,F] = x[B,E] * a[E,F]\n  y[B,G] = t[B,F] * b[F,G]"
LAST = "t[E,G] = a[E,F] * b[F,G]\n  y[B,G] = x[B,E] * t[E,G]"
OUTER = "t[B,E,F,G] = x[B,E] * b[F,G]\n  y[B,G] = t[B,E,F,G] * a[E,F]"


@pytest.mark.parametrize(("batch", "fewest", "cheapest"), [(2, FIRST, FIRST), (4, FIRST, LAST), (64, LAST, LAST)])
def test_the_price_decides_among_orders_of_about_as_many_operations(batch: int, fewest: str, cheapest: str) -> None:
    """Against each order written by hand, all of whose plans are tried."""
    mesh, text = Mesh.parse("2x2"), CHAIN % (batch, ALL)
    plan = choose(parse(text), "main", mesh, OPTIONS)
    least = {one: optimum(Case(parse(CHAIN % (batch, one)), mesh, None, "small")) for one in (FIRST, LAST, OUTER)}
    assert plan.price == pytest.approx(min(least.values()), rel=1e-9)
    assert least[cheapest] == min(least.values())
    made = [value.dims for value in in_order(parse(text), "main").values if ".part" in value.name]
    assert made == [("B", "F") if fewest is FIRST else ("E", "G")]


def test_an_order_of_which_nothing_is_known_leaves_nothing_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    planned, seen = choose_module.planned, []

    def unsure(*args: Any) -> Plan:
        seen.append(args)
        if len(seen) == 2:
            raise NoPlan([], Outcome.UNPROVEN)
        return planned(*args)

    program, mesh = parse(CHAIN % (4, ALL)), Mesh.parse("2x2")
    assert choose(program, "main", mesh, OPTIONS).outcome is Outcome.OPTIMAL
    monkeypatch.setattr(choose_module, "planned", unsure)
    plan = choose(program, "main", mesh, OPTIONS)
    assert len(seen) > 1 and plan.outcome is Outcome.FEASIBLE
    assert [one.bound for one in plan.phases] == [plan.bound] == [0.0]


def test_an_order_of_which_only_a_bound_is_known_gives_that_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    planned, seen = choose_module.planned, []

    def nearly(*args: Any) -> Plan:
        if seen:
            raise Cutoff(seen[0].price * 0.999)
        seen.append(planned(*args))
        return seen[0]

    monkeypatch.setattr(choose_module, "planned", nearly)
    plan = choose(parse(CHAIN % (4, ALL)), "main", Mesh.parse("2x2"), OPTIONS)
    assert plan.price == seen[0].price and plan.outcome is Outcome.FEASIBLE
    assert plan.bound == plan.phases[0].bound == pytest.approx(0.999 * plan.price)


def test_a_pin_may_name_what_only_one_phase_makes() -> None:
    program, mesh = parse(LATENT), Mesh.parse("2")
    pinned = with_pins(program, Source("a.pins", "result s.part2 BLH_xC"))
    plan = choose(pinned, ["prefill", "decode"], mesh, OPTIONS)
    prefill, decode = ({op.result: op.layout for op in phase.ops} for phase in plan.phases)
    assert decode["s.part2"].dims == ((), (), ("x",), ())
    assert "s.part2" not in prefill
    with pytest.raises(InputError, match=r"no value `s\.part9`"):
        with_pins(program, Source("a.pins", "result s.part9 BLHC"))


H100 = Options(Hardware.load("h100"))
WAYS = {
    0: "y{n}[B,F{n}] = {x}[B,E] * a{n}[E,T{n}] * b{n}[T{n},F{n}]",
    1: "t{n}[B,T{n}] = {x}[B,E] * a{n}[E,T{n}]\n  y{n}[B,F{n}] = t{n}[B,T{n}] * b{n}[T{n},F{n}]",
    2: "t{n}[E,F{n}] = a{n}[E,T{n}] * b{n}[T{n},F{n}]\n  y{n}[B,F{n}] = {x}[B,E] * t{n}[E,F{n}]",
}


def several(sizes: tuple[int, int, int, int], orders: tuple[int, ...], shared: bool = True) -> Program:
    """Products of one value, or of a value each, in orders written by hand; 0: as one product."""
    count, (batch, wide, inner, out) = range(len(orders)), sizes
    names = ["x" if shared else f"x{n}" for n in count]
    dims = "".join(f", T{n} = {inner}, F{n} = {out}" for n in count)
    weights = "".join(f"  param a{n}: bf16[E,T{n}]\n  param b{n}: bf16[T{n},F{n}]\n" for n in count)
    lines = "\n  ".join(WAYS[order].format(n=n, x=names[n]) for n, order in enumerate(orders))
    given = ", ".join(f"{name}: bf16[B,E]" for name in dict.fromkeys(names))
    results = ", ".join(f"y{n}" for n in count)
    return parse(f"dim B = {batch}, E = {wide}{dims}\nmain({given}) {{\n{weights}  {lines}\n  return {results}\n}}")


def price(program: Program, mesh: str) -> float:
    return choose(program, "main", Mesh.parse(mesh), H100).price


@pytest.mark.parametrize(
    ("sizes", "mesh"),
    [
        ((256, 384, 1024, 384), "q=1"),
        ((256, 64, 128, 128), "q=8"),
        ((512, 512, 1024, 512), "q=2"),
    ],
)
def test_orders_that_pay_only_together_are_found(sizes: tuple[int, int, int, int], mesh: str) -> None:
    """Two products of one value, whose first projections run as one kernel where both begin with them."""
    plan = choose(several(sizes, (0, 0)), "main", Mesh.parse(mesh), H100)
    by_hand = {orders: price(several(sizes, orders), mesh) for orders in itertools.product((1, 2), repeat=2)}
    assert plan.price == pytest.approx(min(by_hand.values()), rel=1e-9)
    assert plan.outcome is Outcome.OPTIMAL and plan.orders_left == 0


def test_of_too_many_combinations_those_that_are_not_planned_are_in_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three products alike, of a value each, of which the best combination has none in the order of fewest operations:
    it is tried early. Of the others a bound is told for each, or one for all."""
    sizes, mesh = (512, 512, 4096, 4096), Mesh.parse("q=8")
    monkeypatch.setattr(choose_module, "MOST_ORDERS", 3)
    plan = choose(several(sizes, (0,) * 3, shared=False), "main", mesh, H100)
    least = price(several(sizes, (2,) * 3, shared=False), "q=8")
    assert plan.price == pytest.approx(least, rel=1e-9) and plan.orders_left == 5
    monkeypatch.setattr(choose_module, "MOST_BOUNDED", 4)
    [one] = compiled = compile_phases(several(sizes, (0,) * 3, shared=False), ("main",), mesh, H100)
    [coarse] = compiled.plans
    assert "5 combinations were bounded, but not planned" in report(one) and phase_data(one)["orders_left"] == 5
    assert coarse.outcome is Outcome.FEASIBLE and coarse.price == plan.price
    assert 0.1 * least < coarse.bound < plan.bound <= least * (1 + 1e-9)
    assert coarse.bound == Combinations(several(sizes, (0,) * 3, shared=False), ["main"]).least_s(mesh, H100.hardware)


@pytest.mark.parametrize("most_bounded", [4, 64])
def test_bytes_that_one_phase_stores_are_as_few_in_all_orders(
    monkeypatch: pytest.MonkeyPatch, most_bounded: int
) -> None:
    monkeypatch.setattr(choose_module, "MOST_ORDERS", 3)
    monkeypatch.setattr(choose_module, "MOST_BOUNDED", most_bounded)
    options = replace(H100, objective=Objective.MEMORY)
    program = several((512, 512, 4096, 4096), (0,) * 3, shared=False)
    [one] = compile_phases(program, ("main",), Mesh.parse("q=8"), options)
    assert one.plan.orders_left == 5 and one.plan.outcome is Outcome.OPTIMAL
    assert one.plan.bound == one.plan.price == sum(size for _, size in one.estimate.stored_bytes)


def test_orders_that_are_too_large_for_a_search_are_in_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    program, mesh, seen = several((256, 384, 1024, 384), (0, 0)), Mesh.parse("q=8"), []

    def large(*args: Any) -> Plan:
        seen.append(args)
        if len(seen) > 1:
            raise too_large()
        return planned(*args)

    planned = choose_module.planned
    monkeypatch.setattr(choose_module, "planned", large)
    plan = choose(program, "main", mesh, H100)
    assert len(seen) > 1 and plan.outcome is Outcome.FEASIBLE
    assert plan.bound == Combinations(program, ["main"]).least_s(mesh, H100.hardware)


def test_without_a_plan_the_refusal_is_one_of_all_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that is cut off tells the least bound of any order; that nothing fits is proven where all are known."""
    program, mesh, below = several((256, 384, 1024, 384), (0, 0)), Mesh.parse("q=1"), replace(H100, below=1.0)
    unsure = NoPlan([Diagnostic("None was found.")], Outcome.UNPROVEN)
    full = NoPlan([Diagnostic("None fits.")], Outcome.INFEASIBLE)
    wanted: Iterator[Exception] = iter(())

    def refused(*args: Any) -> Plan:
        raise next(wanted)

    monkeypatch.setattr(choose_module, "planned", refused)
    wanted = iter([Cutoff(2.0), Cutoff(1.5), Cutoff(math.inf), full])
    with pytest.raises(Cutoff) as cut:
        choose(program, "main", mesh, below)
    assert cut.value.bound == 1.5
    wanted = iter([full, Cutoff(1.25), full, full])
    with pytest.raises(Cutoff) as cut:
        choose(program, "main", mesh, below)
    assert cut.value.bound == 1.25
    for outcomes, outcome, message in (
        ([full] * 4, Outcome.INFEASIBLE, r"None fits\.$"),
        ([full, full, unsure, full], Outcome.UNPROVEN, r"None was found\.$"),
    ):
        wanted = iter(outcomes)
        with pytest.raises(NoPlan, match=message) as none:
            choose(program, "main", mesh, H100)
        assert none.value.outcome is outcome
    monkeypatch.setattr(choose_module, "MOST_ORDERS", 2)
    wanted = iter([full] * 2)
    with pytest.raises(NoPlan, match=r"None fits, in the orders of products that were looked at\.") as none:
        choose(program, "main", mesh, H100)
    assert none.value.outcome is Outcome.UNPROVEN
