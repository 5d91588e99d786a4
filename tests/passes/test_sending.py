"""Tokens that go to experts, or once to groups of them: the cheapest of all that may be written by hand is found."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from escc.compiler.plan.pipeline import compile_phases, parse
from escc.compiler.report.json import phase_data
from escc.compiler.report.text import report
from escc.cost.hardware import Hardware
from escc.ir.diagnostics import Source
from escc.ir.mesh import Mesh
from escc.ir.program import Program
from escc.ir.text.pins import parse_pins
from escc.passes import choose as choosing
from escc.passes.choose import choose
from escc.passes.expansion.once import Way, sent_once, ways_of
from escc.passes.options import Options
from escc.passes.plan import Objective, Outcome, Plan
from escc.passes.task import planned, task_of, without_sums

BLOCK = """
block NAME(x: bf16[B,E]) -> bf16[B,E] {
  param Wr: bf16[E,X]
  param Wi: bf16[X,E,F]
  param Wd: bf16[X,F,E]
  s[B,X] = x[B,E] * Wr[E,X]
  m = choose(s, over=X, keep=KEEP)
  w = m * s
  e[B,X,E] = m[B,X] * x[B,E]
  h[B,X,F] = e[B,X,E] * Wi[X,E,F]
  d[B,X,E] = h[B,X,F] * Wd[X,F,E]
  y[B,E] = w[B,X] * d[B,X,E]
  return x + y
}
"""
PINS = """stored big.Wi [N/node, Y, E, F]
stored big.Wd [N/node, Y, F, E]
use big.h.Wi [N/node, Y, E, F]
use big.d.Wd [N/node, Y, F, E]
"""
ONE = "dim B = 256, E = 7168, F = 256, N = 4, Y = 4\ndim X = N * Y\n"
TWO = "dim B = 32768, E = 7168, F = 2048, N = 8, Y = 32, G = 32, M = 4, Z = 2\ndim X = N * Y\ndim V = M * Z\n"
Made = Callable[[], tuple[Program, Mesh, Options]]
H200, A100 = Hardware.load("h200"), Hardware.load("a100-80")


def block(name: str, keep: int) -> str:
    return BLOCK.replace("NAME", name).replace("KEEP", str(keep))


def one_kind(**sizes: int) -> tuple[Program, Mesh, Options]:
    program = parse(ONE + block("big", 6) + "main(x: bf16[B,E]) { return repeat 1 big(x) }", sizes)
    pins = parse_pins(Source("p", "stored x [B/node, E]\nuse big.h.Wi [N/node, Y, E, F]"), program)
    return program, Mesh.parse("node=4"), Options(A100, pins=pins)


def two_kinds() -> tuple[Program, Mesh, Options]:
    small = block("small", 2).replace("X", "V").replace("F", "G")
    main = "main(x: bf16[B,E]) {\n a = repeat 1 big(x)\n return repeat 1 small(a)\n}\n"
    program = parse(TWO + block("big", 8) + small + main)
    names = {"big": "small", "N": "M", "Y": "Z", "F": "G"}
    other = PINS
    for name, new in names.items():
        other = other.replace(name, new)
    return program, Mesh.parse("node=4"), Options(H200, pins=parse_pins(Source("p", PINS + other), program))


def by_hand(program: Program) -> Iterator[tuple[tuple[Way, ...], Program]]:
    """The programs with something sent once, each with how its masks send."""
    masks = ways_of(program, "main")
    for ways in itertools.product(*masks.values()):
        once = sent_once(program, "main", dict(zip(masks, ways, strict=True)))
        if once is not None:
            yield ways, once


def alone(program: Program, mesh: Mesh, options: Options) -> Plan:
    """The cheapest plan of a program as it is written."""
    return planned(task_of({"main": program}, mesh, options), math.inf)


@pytest.mark.parametrize(("case", "best"), [(one_kind, (Way.THERE,)), (two_kinds, (Way.EACH, Way.BOTH))])
def test_each_kind_of_experts_is_sent_to_in_the_cheapest_way(case: Made, best: tuple[Way, ...]) -> None:
    program, mesh, options = case()
    prices = {ways: alone(one, mesh, options).price for ways, one in by_hand(program)}
    prices[(Way.EACH,) * len(best)] = alone(program, mesh, options).price
    assert min(prices, key=prices.__getitem__) == best
    least = min(prices[(way,) * len(best)] for way in (Way.EACH, Way.BOTH))
    assert prices[best] < least * (1 - 1e-3)  # than all or nothing
    found = choose(program, "main", mesh, options)
    assert found.price == pytest.approx(prices[best], rel=1e-9) and found.outcome is Outcome.OPTIMAL
    assert found.ways_left == 0


@pytest.mark.parametrize("objective", Objective)
@pytest.mark.parametrize("capacity_bytes", [None, 40e6])
def test_free_sums_bound_plans_with_sums_and_without(objective: Objective, capacity_bytes: float | None) -> None:
    program, mesh, options = one_kind()
    options = replace(options, objective=objective, capacity_bytes=capacity_bytes)
    forms = {ways: one for (ways,), one in by_hand(program)}
    task = task_of({"main": forms[Way.BOTH]}, mesh, options)
    least = planned(without_sums(task, {"main": forms[Way.THERE]}), math.inf).bound
    assert all(least <= alone(one, mesh, options).price * (1 + 1e-9) for one in forms.values())


def test_ways_that_are_not_looked_at_in_a_large_problem_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "LARGE", 0)
    program, mesh, options = one_kind()
    [one] = compile_phases(program, ("main",), mesh, options)
    assert phase_data(one)["ways_left"] == 0 and "sending" not in report(one)  # since sending once both ways pays
    program, mesh, options = one_kind(B=8)
    [one] = compile_phases(program, ("main",), mesh, options)
    assert phase_data(one)["ways_left"] == 1
    assert "sending    of tokens once to groups, and back from each expert: 1 way was not looked at" in report(one)
    assert "optimal on whole axes in the ways of sending that were looked at: proven within a gap of 1e-9" in report(
        one
    )


@pytest.mark.parametrize("objective", Objective)
def test_more_ways_than_are_planned_are_bounded_each(objective: Objective, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "LARGE", 0)
    monkeypatch.setattr(choosing, "MOST_SENDING_OF_LARGE", 1)
    program, mesh, options = one_kind()
    options = replace(options, objective=objective)
    prices = [alone(one, mesh, options).price for one in (program, *(each for _, each in by_hand(program)))]
    found = choose(program, "main", mesh, options)
    assert found.bound <= min(prices) * (1 + 1e-9) <= found.price * (1 + 1e-9)
    assert found.bound >= 0.8 * min(prices), "what ops take whatever is sent is no bound to speak of"
