"""Pins: each kind holds in the plan, and what cannot hold is named with the reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from escc.cost.hardware import Hardware
from escc.ir.diagnostics import InputError, Source
from escc.ir.layout import format_layout
from escc.ir.mesh import Mesh
from escc.ir.program import Program
from escc.ir.text.pins import parse_pins
from escc.ir.text.read import parse
from escc.ir.verify.verify import verify
from escc.passes.choose import choose
from escc.passes.expansion.expand import expand
from escc.passes.lower.insert import insert
from escc.passes.options import Options
from escc.passes.plan import Objective, Plan

TEXT = """dim B = 8, E = 64, F = 128, L = 2, M = 8
param W: bf16[E,F]
cache c: bf16[B,M,F]
main(x: bf16[B,E], n: bf16[B,L,F]) {
  u[B,F] = x[B,E] * W[E,F]
  h = gelu(u)
  k = append(c, n, L into M)
  s[B,M] = h[B,F] * k[B,M,F]
  return s, h
}
"""


def program(text: str = TEXT) -> Program:
    source = Source("test.esti", text)
    return expand(parse(source), source, {})


def planned(pins: str, mesh: str = "2x2", text: str = TEXT) -> Plan:
    layer = program(text)
    fixed = parse_pins(Source("test.pins", pins), layer)
    options = Options(Hardware.of_paper("tpu-v4"), Objective.TIME, pins=fixed)
    plan = choose(layer, layer.phases[0].name, Mesh.parse(mesh), options)
    verify(insert(plan)[0], layer)
    return plan


def refused(pins: str, mesh: str = "2x2", text: str = TEXT) -> list[str]:
    with pytest.raises(InputError) as caught:
        planned(pins, mesh, text)
    return [d.message for d in caught.value.diagnostics]


@pytest.mark.parametrize("layout", ["EF", "E_xF_y", "E_yxF", "EF_x", "E_yF"])
def test_a_stored_layout_holds(layout: str) -> None:
    stored = dict(planned(f"stored W {layout}").stored)
    assert format_layout("EF", stored["W"]) == layout


@pytest.mark.parametrize("layout", ["BMF", "B_xM_yF", "BMF_yx"])
def test_the_stored_layout_of_a_cache_that_is_appended_to_holds(layout: str) -> None:
    plan = planned(f"stored c {layout}")
    assert format_layout("BMF", dict(plan.stored)["c"]) == layout
    append = next(op for op in plan.phases[0].ops if op.result == "k")
    assert format_layout("BMF", append.layout) == layout


@pytest.mark.parametrize("layout", ["BMF", "B_xMF_y", "BM_xyF"])
def test_an_append_takes_the_cache_as_pinned(layout: str) -> None:
    plan = planned(f"use k.c {layout}")
    assert format_layout("BMF", dict(plan.stored)["c"]) == layout


@pytest.mark.parametrize("layout", ["EF", "E_xF_y", "E_yxF", "EF_x"])
def test_the_layout_at_a_use_holds(layout: str) -> None:
    ops = {op.result: op for op in planned(f"use u.W {layout}").phases[0].ops}
    assert format_layout("EF", ops["u"].uses[1]) == layout


@pytest.mark.parametrize("layout", ["BF", "B_xF_y", "BF partialsum-xy", "BF_y partialsum-x", "B_yxF"])
def test_the_layout_of_a_result_holds(layout: str) -> None:
    ops = {op.result: op for op in planned(f"result u {layout}").phases[0].ops}
    assert format_layout("BF", ops["u"].layout) == layout


@pytest.mark.parametrize("layout", ["BM", "B_xM_y", "BM_xy"])
def test_what_is_returned_is_handed_out_as_pinned(layout: str) -> None:
    plan = planned(f"stored s {layout}")
    assert format_layout("BM", dict(plan.phases[0].results)["s"]) == layout


def test_pins_in_the_model_hold_too() -> None:
    text = TEXT.replace("param W: bf16[E,F]", "param W: bf16[E,F] @ E_yF_x")
    assert format_layout("EF", dict(planned("", text=text).stored)["W"]) == "E_yF_x"


def test_a_pin_never_makes_a_plan_cheaper() -> None:
    free = planned("").phases[0].price
    for pin in ["stored W EF_x", "use u.W E_xF", "result u BF partialsum-xy", "stored c BM_xF_y"]:
        assert planned(pin).phases[0].price >= free * (1 - 1e-12)


def test_pins_that_contradict_each_other_are_named() -> None:
    (message,) = refused("use u.W E_xF\nresult u BF_xy")
    assert message == "The pin `result u BF_xy` cannot hold: no way to run `u` has it, beside the pin `use u.W E_xF`."
    # An axis cannot split a batch that is not summed, and an index that is.
    (message,) = refused("use u.x B_xE\nuse u.W E_xF")
    assert message.startswith("The pin `use u.W E_xF` cannot hold: no way to run `u` has it, beside the pin")


def test_all_pins_that_cannot_hold_are_reported_at_once() -> None:
    assert refused("stored W E_tF\nuse u.x B_xyE_q\nresult u B_xF_y") == [
        "The pin `stored W E_tF` cannot hold: the mesh has no axis `t`.",
        "The pin `use u.x B_xyE_q` cannot hold: the mesh has no axis `q`.",
    ]


def test_an_axis_spelled_out_in_the_short_form_is_told_the_long_one() -> None:
    with pytest.raises(InputError) as caught:
        planned("result u BF partialsum-gpu", "gpu=4")
    [found] = caught.value.diagnostics
    assert found.message.endswith("the mesh has no axis `g`.")
    assert found.hint is not None and "`[B, E] partialsum-gpu`" in found.hint


def test_a_partial_value_that_never_arises() -> None:
    assert refused("result h BF partialsum-x") == [
        "The pin `result h BF partialsum-x` cannot hold: no way to run `h` has it."
    ]
    assert refused("result u BF partialmax-x") == [
        "The pin `result u BF partialmax-x` cannot hold: `u` is never a partial maximum over x."
    ]
    assert refused("use h.u BF partialsum-x")[0].startswith(
        "The pin `use h.u BF partialsum-x` cannot hold: no way to run `h`"
    )


def test_what_does_not_divide() -> None:
    (message,) = refused("stored W E_xF", "3x2")
    assert message.startswith("The pin `stored W E_xF` cannot hold: dim `E` = 64 does not divide by axes x (3 ways)")
    (message,) = refused("stored W E_xF", "2", TEXT.replace("E = 64", "E = 1"))
    assert message == "The pin `stored W E_xF` cannot hold: dim `E` has size 1 and is never split."


def test_axes_of_one_chip_may_be_pinned() -> None:
    stored = dict(planned("stored W E_xF_y", "2x1").stored)
    assert stored["W"].dims[0] == ("x",)


@pytest.mark.parametrize("layout", ["EF", "E_xF_y"])
def test_a_repeat_and_its_carry_take_pins(layout: str) -> None:
    text = """dim B = 8, E = 64, F = 128
block layer(x: bf16[B,E]) -> bf16[B,E] {
  param W: bf16[E,F]
  param V: bf16[F,E]
  u[B,F] = x[B,E] * W[E,F]
  v[B,E] = u[B,F] * V[F,E]
  return v
}
main(x: bf16[B,E]) { return repeat 3 layer(x) }
"""
    plan = planned(f"stored layer.W {layout}", text=text)
    assert format_layout("EF", dict(plan.stored)["layer.W"]) == layout
    pinned = planned("use layer.u.x B_yE_x", text=text)
    ops = {op.result: op for op in pinned.phases[0].ops}
    assert format_layout("BE", ops["layer.u"].uses[0]) == "B_yE_x"


TAKEN = """dim B = 4, L = 6, E = 12, V = 30
main(ids: i32[B,L]) {
  param t: bf16[V,E]
  a = take(t, ids, over=V)
  return a, a * 2
}
"""


@pytest.mark.parametrize("fraction", [1.0, 1e-4])
def test_pins_between_which_a_value_cannot_move_leave_no_plan(fraction: float) -> None:
    layer = program(TAKEN)
    pins = ("stored t [V/x, E]", "result a [B, L, E]", "result return [B, L, E] partialsum-x")
    hardware = Hardware.of_paper("tpu-v4")
    for some in (pins[::2], pins):
        options = Options(hardware, capacity_bytes=fraction * hardware.hbm_bytes)
        held = replace(options, pins=parse_pins(Source("test.pins", "\n".join(some)), layer))
        if some != pins:
            choose(layer, layer.phases[0].name, Mesh.parse("5"), held)
            continue
        with pytest.raises(InputError) as caught:
            choose(layer, layer.phases[0].name, Mesh.parse("5"), held)
        [found] = caught.value.diagnostics
        assert found.message == "The pins leave no plan: `a` is made in no layout from which `return` can be given it."
        assert found.hint == f"they are `{pins[1]}`, `{pins[2]}`"
