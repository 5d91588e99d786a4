"""Quantised weights and caches: what they become, what they cost, and that their groups stay whole."""

from __future__ import annotations

import dataclasses

import pytest
from model_text import print_model

from escc.compiler.plan.compiled import CompiledPhase
from escc.compiler.plan.pipeline import compile_phase
from escc.cost.hardware import Hardware
from escc.ir.diagnostics import InputError, Source
from escc.ir.layout import Reduction, format_layout, parse_layout
from escc.ir.mesh import Mesh
from escc.ir.program import Einsum, Op, Program, Stored, walk
from escc.ir.spmd import Compute, Move
from escc.ir.text.ops import format_op
from escc.ir.text.pins import parse_pins
from escc.ir.text.read import parse
from escc.ir.text.read_spmd import parse_spmd
from escc.ir.text.write_spmd import print_spmd
from escc.ir.verify.verify import verify
from escc.passes.expansion.expand import expand
from escc.passes.options import Options

HARDWARE = Hardware.of_paper("tpu-v4")
DIMS = "dim B = 16, L = 2, M = 64, G = 16, I = 64, F = 256, Q = 64, V = 128\ndim E = G * I\n"


def program(text: str) -> Program:
    source = Source("test.esti", DIMS + text)
    return expand(parse(source), source)


def ops(made: Program) -> dict[str, str]:
    """What makes each value, as text."""
    found = [placed.item for placed in walk(made.body) if isinstance(placed.item, Op)]
    return {op.result: format_op(op, made.table()[op.result].dims) for op in found}


def main(body: str, before: str, inputs: str = "x: bf16[B,E]") -> Program:
    return program(f"{before}\nmain({inputs}) {{\n{body}\n}}")


def compiled(made: Program, mesh: str, pins: str = "") -> CompiledPhase:
    options = Options(HARDWARE, pins=parse_pins(Source("pins", pins), made))
    return compile_phase(made, "main", Mesh.parse(mesh), options, run=True)


def test_a_scale_is_a_factor_of_each_product() -> None:
    made = main("u[B,F] = x[B,E] * W[E,F]\nreturn u", "param W: int8[E,F] * f32[F]")
    assert ops(made) == {"u": "x[B,G,I] * W[G,I,F] * W.scale[F]"}
    values = made.table()
    assert (values["W"].dtype, values["W.scale"].dtype, values["u"].dtype) == ("int8", "f32", "bf16")
    aliased = main("u[B,F2] = y[B,F] * W[F,F2]\nreturn u", "dim F2 = F\nparam W: int8[F,F2] * f32[F2]", "y: bf16[B,F]")
    assert ops(aliased) == {"u": "y[B,F] * W[F,F2] * W.scale[F2]"}


def test_elsewhere_a_quantised_value_is_its_product_with_the_scale() -> None:
    before = "param W: int8[B,F] * bf16[F]\nblock twice(a: bf16[B,F]) { return 2 * a }"
    assert ops(main("return silu(W)", before))["return"] == "silu(W * W.scale)"
    assert ops(main("return W", before))["return"] == "W * W.scale"
    assert ops(main("return x + W", before, "x: bf16[B,F]"))["return.term1"] == "W * W.scale"
    assert "W * W.scale" in ops(main("return twice(W)", before)).values()


def test_rows_of_a_table_are_scaled_after_they_are_taken() -> None:
    by_row = main("return take(t, ids, over=V)", "param t: int8[V,E] * f32[V]", "ids: i32[B]")
    assert ops(by_row) == {
        "return.rows": "take(t, ids, over=V)",
        "return.scale": "take(t.scale, ids, over=V)",
        "return": "return.rows * return.scale",
    }
    by_column = main("return take(t, ids, over=V)", "param t: int8[V,F] * f32[F]", "ids: i32[B]")
    assert ops(by_column)["return"] == "return.rows * t.scale"


def test_a_quantised_cache_takes_what_is_new_quantised() -> None:
    made = main(
        "ks = append(keys, k, L into M)\ns[B,M] = q[B,Q] * ks[B,M,Q]\nreturn s",
        "cache keys: int4[B,M,Q] * f32[B,M]",
        "k: bf16[B,L,Q], q: bf16[B,Q]",
    )
    assert ops(made) == {
        "ks.size": "abs(k)",
        "ks.max": "max(ks.size, over=Q)",
        "ks.step": "where(equal(ks.max, 0), 7, ks.max) / 7",
        "ks.quantised": "floor(k / ks.step + 0.5)",
        "ks.scale": "append(keys.scale, ks.step, L into M)",
        "ks": "append(keys, ks.quantised, L into M)",
        "s": "q[B,Q] * ks[B,M,Q] * ks.scale[B,M]",
    }


def test_the_declaration_reads_back() -> None:
    text = "param W, U: int4[E,F] * f32[G,F] @ G_xIF\n"
    model = parse(Source("test.esti", text))
    assert print_model(model) == text
    assert parse(Source("test.esti", print_model(model))) == model


@pytest.mark.parametrize(
    ("declaration", "message"),
    [
        ("param W: bf16[E,F] * f32[F]", "`W` has a scale, and bf16 values stand for themselves."),
        ("param W: int8[E,F] * int8[F]", "The scale of `W` is a float, not int8."),
        ("param W: int8[E,F] * f32[Q]", "The scale of `W` has the dim `Q`, which the values lack."),
        ("param W: int8[E,F] * f32[Z]", "Dim `Z` is not declared."),
        ("param W: int8[E,F] * half[F]", "`half` is not a dtype."),
    ],
)
def test_scales_that_do_not_fit_are_refused(declaration: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        main("u[B,F] = x[B,E] * W[E,F]\nreturn u", declaration)
    assert [d.message for d in error.value.diagnostics] == [message]


def test_a_cache_whose_scale_does_not_grow_is_refused() -> None:
    with pytest.raises(InputError, match="The scale of `keys` lacks the dim `M`, along which it grows"):
        main("return append(keys, k, L into M)", "cache keys: int8[B,M,Q] * f32[B]", "k: bf16[B,L,Q]")


WIDE = "u[B,F] = x[B,E] * W[E,F]\nreturn u"


def test_weights_are_read_and_gathered_as_they_are_stored() -> None:
    made = main(WIDE, "param W: int4[E,F] * f32[G,F]")
    done = compiled(made, "2x2", "stored W G_xIF_y\nuse u.W G_xIF\nstored W.scale G_xF_y\nresult u BF partialsum-x\n")
    values = done.spmd.table()
    sent = {values[m.result].dtype: m.bytes_sent for m in done.estimate.moves if m.axes == ("y",)}
    half = 1024 * 256 // 2 // 2  # of G_x, and the other half of F
    assert sent["int4"] == half / 2 and sent["f32"] == 16 * 256 // 2 // 2 * 4
    [u] = [op for op in done.estimate.ops if op.result == "u"]
    values_bytes = 16 * (1024 // 2) * 2 + 16 * 256 * 2  # x is read, u is written
    assert u.hbm_bytes == 1024 // 2 * 256 / 2 + 16 // 2 * 256 * 4 + values_bytes
    assert u.flops == 2 * 16 * (1024 // 2) * 256 + (1024 // 2) * 256  # the scale of a group is inside the sum
    stored = dict(done.estimate.stored_bytes)
    assert (stored["W"], stored["W.scale"]) == (1024 * 256 / 2 / 4, 16 * 256 * 4 / 4)


def test_a_scale_of_outputs_passes_partial_sums() -> None:
    made = main(WIDE, "param W: int8[E,F] * f32[F]")
    done = compiled(made, "2x2", "use u.W G_xIF_y\nresult u BF_y partialsum-x\n")
    values = done.spmd.table()
    scale = next(n for n in _operands(done, "u") if n.startswith("W.scale"))
    assert format_layout(values[scale].dims, values[scale].layout) == "F_y"
    assert done.sound


def test_a_quantised_cache_may_be_split_over_its_length() -> None:
    made = main(
        "ks = append(keys, k, L into M)\ns[B,M] = q[B,Q] * ks[B,M,Q]\nreturn s",
        "cache keys: int8[B,M,Q] * f32[B,M]",
        "k: bf16[B,L,Q], q: bf16[B,Q]",
    )
    done = compiled(made, "2x2", "stored keys BM_xyQ\n")
    values = done.spmd.table()
    scale = next(n for n in _operands(done, "s") if n.startswith("ks.scale"))
    assert format_layout(values[scale].dims, values[scale].layout) == "BM_xy"
    assert done.sound


def test_no_chip_holds_a_part_of_a_group() -> None:
    grouped, free = "param W: int4[E,F] * f32[G,F]", "param W: int4[E,F] * f32[F]"
    assert [s.whole for s in made_stored(main(WIDE, grouped)) if s.value == "W"] == [("I",)]
    assert [s.whole for s in made_stored(main(WIDE, free)) if s.value == "W"] == [()]
    # Nothing but I divides by 4: the weights are split along it where they may be.
    odd = "dim B = 1, G = 7, I = 64, F = 1021\ndim E = G * I\n"
    found = {}
    for text in (grouped, free):
        source = Source("test.esti", f"{odd}{text}\nmain(x: bf16[B,E]) {{\n{WIDE}\n}}")
        found[text] = compiled(expand(parse(source), source), "2x2")
    layouts = {text: format_layout(v.dims, v.layout) for text, done in found.items() for v in [done.spmd.table()["W"]]}
    assert layouts == {grouped: "GIF", free: "GI_xyF"}


def made_stored(made: Program) -> list[Stored]:
    return [placed.item for placed in walk(made.body) if isinstance(placed.item, Stored)]


def test_pins_and_listings_that_tear_groups_are_refused() -> None:
    made = main(WIDE, "param W: int4[E,F] * f32[G,F]")
    for pin in ("stored W GI_xF", "use u.W GI_xF"):
        with pytest.raises(InputError, match="groups of `W` are kept whole"):
            compiled(made, "2x2", pin + "\n")
    spmd = compiled(made, "2x2", "stored W G_xyIF\nuse u.W G_xIF\n").spmd
    text = print_spmd(spmd)
    assert "param W:       int4 G_xyIF whole I\n" in text
    assert parse_spmd(Source("t.spmd", text)) == spmd
    copies = [p.item.result for p in walk(spmd.body) if isinstance(p.item, Move) and p.item.operand == "W"]
    for name in ("W", *copies):
        torn = tuple(
            dataclasses.replace(v, layout=parse_layout("GI_xyF")[1]) if v.name == name else v for v in spmd.values
        )
        with pytest.raises(InputError) as error:
            verify(dataclasses.replace(spmd, values=torn))
        complaints = [d.message for d in error.value.diagnostics]
        assert f"`{name}` is split over `I`, along which its groups are kept whole." in complaints
    with pytest.raises(InputError, match="stores other tensors"):
        verify(parse_spmd(Source("t.spmd", text.replace(" whole I", ""))), made)


def _operands(done: CompiledPhase, result: str) -> tuple[str, ...]:
    for placed in walk(done.spmd.body):
        match placed.item:
            case Compute(Einsum() as op) if op.result == result:
                return op.operands
    raise AssertionError(result)


# Groups that are counted by a dim of their own.
COUNTED = "dim B = 4, L = 2, V = 24, X = 4, E = 96, F = 64\ndim E16 = E / 16, E32 = E / 32, F8 = F / 8\n"


def counted(text: str) -> Program:
    source = Source("test.esti", COUNTED + text)
    return expand(parse(source), source)


def test_a_scale_may_count_groups_of_a_dim() -> None:
    made = counted("main(x: bf16[B,E]) {\nparam W: int4[E,F] * f16[E16,F]\nu[B,F] = x[B,E] * W[E,F]\nreturn u\n}")
    assert ops(made) == {"u": "x[B,E] * W[E,F] * W.scale[E,F]"}
    assert made.table()["W.scale"].dims == ("E16", "F") and dict(made.phases[0].sizes)["E16"] == 6
    pins = "stored W E_xF_y\nuse u.W E_xF_y\nresult u BF_y partialsum-x\n"
    done = compiled(made, "3x2", pins)
    assert done.sound
    values = done.spmd.table()
    scale = next(n for n in _operands(done, "u") if n.startswith("W.scale"))
    assert format_layout(values[scale].dims, values[scale].layout) == "[E16/x, F/y]"
    [u] = [op for op in done.estimate.ops if op.result == "u"]
    assert u.hbm_bytes == 32 * 32 / 2 + 2 * 32 * 2 + 4 * 32 * 2 + 4 * 32 * 2  # codes, scales, x, u
    text = print_spmd(done.spmd)
    assert " groups E:E16" in text and parse_spmd(Source("t.spmd", text)) == done.spmd


def test_no_chip_holds_a_part_of_a_counted_group() -> None:
    made = counted("main(x: bf16[B,E]) {\nparam W: int4[E,F] * f16[E32,F]\nu[B,F] = x[B,E] * W[E,F]\nreturn u\n}")
    for pin in ("stored W E_xF", "use u.W E_xF"):
        with pytest.raises(InputError, match="groups of `W` are kept whole"):
            compiled(made, "2x2", pin + "\n")
    spmd = compiled(made, "2x2").spmd
    torn = tuple(dataclasses.replace(v, layout=parse_layout("E_xF")[1]) if v.name == "W" else v for v in spmd.values)
    with pytest.raises(InputError) as error:
        verify(dataclasses.replace(spmd, values=torn))
    complaints = [d.message for d in error.value.diagnostics]
    assert "`W` is split over `E` within its groups, which `E32` counts." in complaints


@pytest.mark.parametrize(("mesh", "pad"), [("2x2", {}), ("3", {}), ("2x2", {"E": 128})])
def test_groups_run_sharded_as_whole(mesh: str, pad: dict[str, int]) -> None:
    """Tables, matrices, a pointwise reading, blocks along both dims, and experts."""
    text = """main(ids: i32[B,L], x: bf16[B,E], r: bf16[B,X]) {
  param t: int8[V,E] * f16[V,E32]
  param W: int4[E,F] * f16[E16,F]
  param D: fp8[F,E] * f32[F8,E32]
  param g: int8[E] * f16[E32]
  param Wx: fp4[X,E,F] * bf16[X,E32,F]
  param Z: (int4[E,F] - int4[E16,F]) * f16[E16,F]
  param Y: (int8[F,E] - int8[E]) * f16[E]
  param k: (int4[V,E] - f16[V,E32]) * f16[V,E32]
  y = take(t, ids, over=V)
  u[B,L,F] = y[B,L,E] * W[E,F]
  h = silu(u)
  d[B,L,E] = h[B,L,F] * D[F,E]
  n = d * (1 + g)
  m = choose(r, over=X, keep=1)
  e[B,X,E] = m[B,X] * x[B,E]
  v[B,X,F] = e[B,X,E] * Wx[X,E,F]
  z[B,F] = m[B,X] * v[B,X,F]
  s[B,L,V] = n[B,L,E] * t[V,E]
  b[B,L,F] = y[B,L,E] * Z[E,F]
  c[B,L,E] = b[B,L,F] * Y[F,E]
  j = take(k, ids, over=V) + c
  return s, z, j
}"""
    source = Source("test.esti", COUNTED + text)
    made = expand(parse(source), source, pads=pad)
    assert ops(made)["y"] == "y.rows[B,L,E] * y.scale[B,L,E]" and compiled(made, mesh).sound


@pytest.mark.parametrize(
    ("before", "message"),
    [
        ("dim A = E / 40", "In phase `main`, E = 96 is no whole number of groups of 40."),
        ("dim A = E / 0", "A group must be at least 1."),
        ("dim A = E16 / 2", "Dim `A` cannot count groups of `E16`, which is groups themselves."),
        ("dim P = E * F, A = P / 2", "Dim `A` cannot count groups of `P`, which is a product."),
        ("param Z: int8[E,F] * f16[V,E16]", "The scale of `Z` has the dim `V`, which the values lack."),
        ("param Z: int8[E,F] * f16[E,E16]", "The scale of `Z` has `E` twice, once as `E16`."),
        ("param Z: (int8[E,F] - int8[E16]) * f16[F]", "The zero points of `Z` have not the dims of its scale."),
        ("param Z: (int8[E,F] - int4[F]) * f16[F]", "The zero points of `Z` are int8 or floats, not int4."),
        ("cache Z: (int8[B,E] - int8[B]) * f16[B]", "`Z` has zero points, and is no parameter."),
        ("cache Z: int8[B,E] * f16[B,E16]", "The scale of `Z` has groups of `E`, and is none of a parameter."),
    ],
)
def test_groups_that_cannot_be_are_refused(before: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        counted(f"{before}\nmain(x: bf16[B,E]) {{\nreturn x + x\n}}")
    assert message in [d.message for d in error.value.diagnostics]


def test_sizes_of_groups_follow_and_cannot_be_set() -> None:
    source = Source("test.esti", COUNTED + "main(x: bf16[B,E]) { return 2 * x }")
    with pytest.raises(InputError, match="`E16` cannot be set: its size follows from other dims"):
        expand(parse(source), source, settings={"E16": 4})
    assert dict(expand(parse(source), source, settings={"E": 192}).phases[0].sizes)["E16"] == 12
    with pytest.raises(InputError, match="E = 104 is no whole number of groups of 16"):
        expand(parse(source), source, pads={"E": 104})


def test_zero_points_are_subtracted_and_read_back() -> None:
    text = "param W, U: (int4[E,F] - int4[E16,F]) * f16[E16,F]\n"
    model = parse(Source("test.esti", text))
    assert print_model(model) == text and parse(Source("test.esti", print_model(model))) == model
    made = counted(f"{text}main(x: bf16[B,E]) {{\nu[B,F] = x[B,E] * W[E,F] * U[E,F]\nreturn u\n}}")
    product = "x[B,E] * (W[E,F] - W.zero[E,F]) * W.scale[E,F] * (U[E,F] - U.zero[E,F]) * U.scale[E,F]"
    assert ops(made) == {"u": product}
    done = compiled(made, "2x3", "use u.W E_yF_x\n")
    assert done.sound and parse_spmd(Source("t.spmd", print_spmd(done.spmd))) == done.spmd
    zero = next(v for v in done.spmd.values if v.name.startswith("W.zero") and any(v.layout.dims))
    torn = tuple(
        dataclasses.replace(v, layout=v.layout.replace(0, ()).with_partial(["y"], Reduction.SUM)) if v == zero else v
        for v in done.spmd.values
    )
    with pytest.raises(InputError):
        verify(dataclasses.replace(done.spmd, values=torn))
