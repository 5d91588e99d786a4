"""Bytes, flops and HBM traffic of a small mixture of experts, by sums written out here; and formulas as numbers."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from escc.cost.estimate import estimate, local_bytes, predict
from escc.cost.formulas.symbolic import symbolic
from escc.cost.hardware import Hardware
from escc.cost.memory import points, points_without_blocks
from escc.cost.ops import model_flops
from escc.ir.choices import with_capacity, with_skew
from escc.ir.chosen import Chosen
from escc.ir.diagnostics import Source
from escc.ir.mesh import Mesh
from escc.ir.program import Program
from escc.ir.spmd import SpmdProgram, unsharded
from escc.ir.text.read import parse
from escc.ir.text.read_spmd import parse_spmd
from escc.ir.verify.verify import verify
from escc.passes.expansion.expand import expand
from escc.passes.expansion.orders import in_order

V4 = Hardware.of_paper("tpu-v4")
B, E, X, F, K = 8, 16, 8, 32, 2  # tokens, model, experts, hidden features; experts of a token
BX, BY = 4, 2  # chips along x and y

MODEL = f"""
dim B = {B}, E = {E}, X = {X}, F = {F}
main(x: bf16[B,E]) {{
  param Wr: bf16[E,X]
  param Wi: bf16[X,E,F]
  param Wd: int8[X,F,E]
  s: f32[B,X] = x[B,E] * Wr[E,X]
  m = choose(s, over=X, keep={K})
  e[B,X,E] = m[B,X] * x[B,E]
  u[B,X,F] = e[B,X,E] * Wi[X,E,F]
  h = gelu(u)
  d[B,X,E] = h[B,X,F] * Wd[X,F,E]
  y[B,E] = m[B,X] * d[B,X,E]
  return y
}}
"""
SHARDED = f"""sharded "program" main on x={BX} y={BY}
sizes B={B} E={E} X={X} F={F}
input x: bf16 B_xE
param Wr: bf16 EX
param Wi: bf16 X_xEF_y
param Wd: int8 X_xF_yE
s   f32  B_xX                 = x[B,E] * Wr[E,X]
m   f32  B_xX                 = choose(s, keep={K}, over=X)
e   f32 B_xXE                = m[B,X] * x[B,E]
e'  f32 BX_xE                = all-to-all(x) B->X of e
u   f32 BX_xF_y              = e'[B,X,E] * Wi[X,E,F]
h   f32 BX_xF_y              = gelu(u)
d   f32 BX_xE partialsum-y   = h[B,X,F] * Wd[X,F,E]
d'  f32 B_xXE partialsum-y   = all-to-all(x) X->B of d
d'' f32 B_xXE                = all-reduce(y) of d'
y   f32 B_xE                 = m[B,X] * d''[B,X,E]
return y
"""


def model() -> Program:
    source = Source("model.esti", MODEL)
    return expand(parse(source), source)


def sharded() -> SpmdProgram:
    spmd = parse_spmd(Source("model.spmd", SHARDED))
    verify(spmd, model())
    return spmd


def skewed(spmd: SpmdProgram, skew: Fraction) -> SpmdProgram:
    values = (replace(v, chosen=tuple(replace(one, skew=skew) for one in v.chosen)) for v in spmd.values)
    return replace(spmd, values=tuple(values))


def test_a_chip_holds_and_sends_what_is_kept() -> None:
    spmd = sharded()
    values = spmd.table()
    copies = Fraction(B * K, BX)  # of tokens, on each chip
    for name, elements in {"e": copies * E, "e'": copies * E, "u": copies * F / BY, "d": copies * E}.items():
        assert local_bytes(values[name], spmd) == elements * 4, name
    assert local_bytes(values["s"], spmd) == B * X / BX * 4
    assert local_bytes(values["m"], spmd) == copies * 4
    exchanged = copies * E * 4 * (BX - 1) / BX
    assert predict(spmd) == (exchanged, exchanged, 2 * copies * E * 4 * (BY - 1) / BY)


@pytest.mark.parametrize(("dtype", "times"), [("bf16", [2]), ("f32", [])])
def test_a_narrow_sum_of_kept_rows_is_held_in_f32_as_well(dtype: str, times: list[int]) -> None:
    spmd = parse_spmd(Source("model.spmd", SHARDED.replace("f32", dtype)))
    [point] = [point for point in points(spmd) if point.step == "y"]
    held = [live.bytes for live in point.live if live.form == "in f32"]
    assert held == [each * local_bytes(spmd.table()["y"], spmd) for each in times]


@pytest.mark.parametrize(("scale", "grouped"), [("", False), (" * f32[X,F2]", False), (" * f32[X,E2,F2]", True)])
def test_a_matrix_of_codes_is_decoded_before_it_multiplies_rows(scale: str, grouped: bool) -> None:
    """One after the other, of those that multiply the same rows; with scales of groups, but for those along the last
    dim alone, there are codes in groups as well."""
    more = "  v[B,X,F] = e[B,X,E] * Wg[X,E,F]\n  h = gelu(u) * v\n"
    text = MODEL.replace("Wi: bf16[X,E,F]", f"Wi, Wg: fp8[X,E,F]{scale}").replace("  h = gelu(u)\n", more)
    source = Source("codes.esti", text.replace(f"F = {F}\n", f"F = {F}, E2 = E / 2, F2 = F / 2\n", 1))
    spmd = unsharded(expand(parse(source), source), "main", Mesh.parse("1"))
    every = [
        {p.step: {v.label: v.bytes for v in p.live if v.form in ("decoded", "in groups")} for p in some}
        for some in (points(spmd), points_without_blocks(spmd))
    ]
    assert every[0] == every[1]
    size = X * E * F
    wanted = {step: {f"{name} (decoded)": 4 * size} for step, name in (("u", "Wi"), ("v", "Wg"), ("d", "Wd"))}
    if grouped:
        wanted["u"]["Wi (in groups)"] = wanted["v"]["Wg (in groups)"] = size
    assert {step: held for step, held in every[0].items() if held} == wanted  # products with a mask in f32 are in f32


@pytest.mark.parametrize(("size", "share"), [(16, Fraction(1, 2)), (8, 1), (6, 1)])
def test_no_more_is_kept_than_there_is_at_a_mean_size(size: int, share: Fraction) -> None:
    assert Chosen("m", ("M",), ("B",), 8).share(lambda dim: Fraction(size)) == share


def test_flops_are_those_of_what_is_kept() -> None:
    done = {op.result: op.flops for op in estimate(sharded(), V4).ops}
    copies = B * K / BX
    assert done["s"] == 2 * B / BX * E * X
    assert done["m"] == B / BX * X  # one comparison for each score
    assert done["e"] == 2 * copies * E
    assert done["u"] == 2 * copies * E * F / BY
    assert done["d"] == 2 * copies * F / BY * E
    assert done["y"] == 2 * copies * E
    assert model_flops(model(), "main") == 2 * B * E * X + 2 * 2 * B * K * E * F


def test_weights_are_read_of_the_experts_that_a_token_chose() -> None:
    read = {op.result: op.hbm_bytes for op in estimate(sharded(), V4).ops}
    copies, met = B * K / BX, 1 - (1 - K / X) ** B  # all tokens may meet the experts of a chip
    weights = X / BX * E * F / BY
    # The tokens' copies are read as they came, and what the matmul makes is written after gelu.
    assert read["u"] == pytest.approx(copies * E * 4 + weights * 2 * met, rel=1e-12)
    assert read["h"] == pytest.approx(copies * F / BY * 4, rel=1e-12)
    assert read["d"] == pytest.approx(copies * F / BY * 4 + weights * 1 * met + copies * E * 4, rel=1e-12)
    # What chooses reads every score that the product before it made.
    assert read["s"] == pytest.approx(B / BX * E * 2 + E * X * 2 + B / BX * X * 4, rel=1e-12)
    assert read["m"] + read["e"] == pytest.approx(
        B / BX * X * 4 + copies * 4 + B / BX * E * 2 + copies * E * 4, rel=1e-12
    )


def test_the_busiest_chip_has_more_of_what_chips_share_out() -> None:
    even, spmd = {op.result: op for op in estimate(sharded(), V4).ops}, sharded()
    for skew, load in ((Fraction(3, 2), 1.5), (Fraction(100), BX)):  # no chip can have more than all
        uneven = skewed(spmd, skew)
        done = {op.result: op for op in estimate(uneven, V4).ops}
        for name in ("u", "h", "d"):  # the experts are split
            assert done[name].flops == load * even[name].flops
        for name in ("s", "m", "e", "y"):  # each chip has its tokens for all experts
            assert done[name].flops == even[name].flops and done[name].hbm_bytes == even[name].hbm_bytes
        assert done["h"].hbm_bytes == load * even["h"].hbm_bytes
        assert predict(uneven) == predict(spmd)
        # A collective takes as long as its busiest chip, whichever way it shares the entries out.
        sent, evenly = ({move.result: move for move in estimate(one, V4).moves} for one in (uneven, spmd))
        experts = {name for name in sent if name[0] in "ed" and sent[name].kind == "all-to-all"}
        assert len(experts) == 2
        for name in experts:
            assert sent[name].seconds == pytest.approx(load * evenly[name].seconds, rel=1e-12)
            assert sent[name].bytes_sent == evenly[name].bytes_sent


def test_other_orders_of_products_keep_room_and_load() -> None:
    text = MODEL.replace("u[B,X,F] = e[B,X,E] * Wi[X,E,F]", "u[B,X,F] = e[B,X,E] * Wa[E,G] * Wb[G,X,F]")
    text = text.replace("e[B,X,E] = m", "param Wa: bf16[E,G]\n  param Wb: bf16[G,X,F]\n  e[B,X,E] = m")
    source = Source("model.esti", text.replace(f"F = {F}", f"F = {F}, G = 4"))
    program = with_skew(with_capacity(expand(parse(source), source), Fraction(5, 4)), Fraction(2))
    ordered = in_order(program, "main")
    chosen = [one for value in ordered.values for one in value.chosen]
    assert len(ordered.values) > len(program.values)
    assert {(one.capacity, one.skew) for one in chosen} == {(Fraction(5, 4), Fraction(2))}


@pytest.mark.parametrize("skew", [1, 2, 100])
def test_formulas_come_to_the_figures(skew: int) -> None:
    spmd = skewed(sharded(), Fraction(skew))
    formulas, figures = symbolic(spmd, V4), estimate(spmd, V4)
    for move, sent in zip(formulas.moves, figures.moves, strict=True):
        assert formulas.value(move.bytes_sent) == pytest.approx(sent.bytes_sent, rel=1e-12)
        assert formulas.value(move.seconds) == pytest.approx(sent.seconds, rel=1e-12)
    for op, done in zip(formulas.ops, figures.ops, strict=True):
        assert formulas.value(op.flops) == pytest.approx(done.flops, rel=1e-12)
        assert formulas.value(op.hbm_bytes) == pytest.approx(done.hbm_bytes, rel=1e-12)
    assert str(formulas.moves[0].bytes_sent) == "8*B*E*(x - 1)/x**2"  # two copies of 4 bytes, however many experts
