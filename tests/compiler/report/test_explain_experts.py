"""What explain says of exchanges of experts: the coordinated one waits for the chips of one tensor split fewer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sympy import Expr

from escc.compiler.plan.pipeline import compile_phase, parse, with_pins
from escc.compiler.report.explain import explain_phase
from escc.cost.formulas.symbolic import Form
from escc.cost.hardware import Hardware, Switch
from escc.ir.collective import CollectiveKind
from escc.ir.diagnostics import Source
from escc.ir.mesh import Mesh
from escc.passes.options import Options

LAYER = """
dim B = 8192, E = 2048, X = 128, F = 1024
main(n: bf16[B,E]) {
  param Wr: bf16[E,X]
  param Wi: bf16[X,E,F]
  param Wd: bf16[X,F,E]
  s[B,X] = n[B,E] * Wr[E,X]
  m = choose(s, over=X, keep=2)
  e[B,X,E] = m[B,X] * n[B,E]
  u[B,X,F] = e[B,X,E] * Wi[X,E,F]
  h = gelu(u)
  d[B,X,E] = h[B,X,F] * Wd[X,F,E]
  y[B,E] = m[B,X] * d[B,X,E]
  return y
}
"""
EXPERTS = "use u.Wi X_tdEF\nuse d.Wd X_tdFE\n"
COORDINATED = EXPERTS + "stored n B_dE\nstored y B_dE"  # tokens as tensor-parallel attention leaves them: alike along t
PLAIN = EXPERTS + "stored n B_dtE\nstored y B_dtE"


@pytest.fixture
def hardware() -> Hardware:
    """128 chips behind one switch, on which collectives take what they were measured to take."""
    known = Hardware.load("gb200-nvl72")
    return replace(known, fabric=Switch(128, 900e9))


def exchanges(hardware: Hardware, pins: str) -> dict[str, Expr]:
    """The formulas of the all-to-alls of a plan on 16 ways of tokens and 8 of tensors, for many chips."""
    program = with_pins(parse(LAYER), Source("layer.pins", pins))
    one = compile_phase(program, "main", Mesh.parse("d=16,t=8"), Options(hardware))
    lines = explain_phase(one, Form.LARGE).collectives
    return {line.what: line.formula for line in lines if "all-to-all" in line.what}


def test_the_coordinated_exchange_waits_for_16_chips_and_not_for_128(hardware: Hardware) -> None:
    """(p / L) C1 + C2 in place of p C1 + C2: Rajbhandari et al. 2022 (DeepSpeed-MoE), parallelism-coordinated
    communication; C1 is what each other chip adds to an all-to-all, C2 its start."""
    measured = dict(hardware.protocols)[CollectiveKind.ALL_TO_ALL]
    c1, c2 = measured.member_s, measured.start_s
    coordinated, plain = exchanges(hardware, COORDINATED), exchanges(hardware, PLAIN)
    assert list(coordinated) == ["e': all-to-all(d)", "d': all-to-all(d)"]
    assert list(plain) == ["e': all-to-all(t d)", "d': all-to-all(d t)"]
    for formulas, product in ((coordinated, 16), (plain, 128)):
        for formula in formulas.values():
            symbols = {symbol.name: symbol for symbol in formula.free_symbols}
            waits = formula.subs(symbols["B"], 0)  # nothing is sent, all is waited for
            chips = symbols["D"] * symbols["T"] if product == 128 else symbols["D"]
            assert (waits - c1 * chips - c2).simplify() == 0
            assert float(waits.subs({symbols["D"]: 16, symbols.get("T", 0): 8})) == pytest.approx(
                product * c1 + c2, rel=1e-12
            )
