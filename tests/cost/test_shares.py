"""What a program's time goes to: by hand for one op and one collective, and that nothing is lost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from escc.compiler.plan.pipeline import compile_phase
from escc.cost.estimate import estimate
from escc.cost.hardware import Calibrated, Hardware, Rule
from escc.cost.predict import Shares, shares
from escc.ir.diagnostics import Source
from escc.ir.mesh import Mesh
from escc.ir.text.read import parse
from escc.passes.expansion.expand import expand
from escc.passes.options import Options

TEXT = """model "sum"
dim B = 1024, E = 4096, F = 4096
main(x: bf16[B,E] @ BE_x) {
  param W: bf16[E,F] @ E_xF
  u[B,F] = x[B,E] * W[E,F]
  return u
}
"""
SOURCE = Source("sum.esti", TEXT)
PROGRAM = expand(parse(SOURCE), SOURCE)


def chip(rule: Rule) -> Hardware:
    figures = Calibrated(rule, 0.5, 0.5, 0.5, collective_latency_s=1e-5, hop_latency_s=2e-6, kernel_s=3e-6)
    return replace(Hardware.load("tpu-v4", datasheet=True).with_network("links"), calibrated=figures)


def found(rule: Rule) -> tuple[Shares, float]:
    hardware = chip(rule)
    spmd = compile_phase(PROGRAM, "main", Mesh.parse("4"), Options(hardware)).spmd
    cost = estimate(spmd, hardware)
    return shares(spmd, cost, hardware), cost.totals().total_s


@pytest.mark.parametrize("rule", list(Rule))
def test_by_hand(rule: Rule) -> None:
    goes, total_s = found(rule)
    compute = 2 * 1024 * 1024 * 4096 / (275e12 * 0.5)
    memory = 2 * (1024 * 1024 + 1024 * 4096 + 1024 * 4096) / (1.2e12 * 0.5)  # x, W and the partial sums
    root = (compute**2 + memory**2) ** 0.5
    expected = {
        Rule.MAX: (compute, 0.0),
        Rule.SUM: (compute, memory),
        Rule.ROOT_OF_SQUARES: (compute**2 / root, memory**2 / root),
    }[rule]
    assert compute > memory
    assert (goes.compute_s, goes.hbm_s) == pytest.approx(expected, rel=1e-9)
    # Partial sums are completed on a line of four: all that reaches a chip, or leaves it, crosses one link.
    assert goes.latency_s == pytest.approx(1e-5 + 3 * 2e-6 * (1 if is_scatter() else 2), rel=1e-9)
    assert goes.launch_s == pytest.approx(3e-6, rel=1e-12)  # one kernel
    assert goes.total_s == pytest.approx(total_s, rel=1e-12)


def is_scatter() -> bool:
    hardware = chip(Rule.MAX)
    spmd = compile_phase(PROGRAM, "main", Mesh.parse("4"), Options(hardware)).spmd
    [move] = estimate(spmd, hardware).moves
    assert move.kind in ("reduce-scatter", "all-reduce")
    return move.kind == "reduce-scatter"


def test_shares_add_up() -> None:
    one = Shares(1.0, 2.0, 3.0, 4.0, 5.0)
    assert one + one.times(2) == Shares(3.0, 6.0, 9.0, 12.0, 15.0)
    assert one.total_s == 15.0
