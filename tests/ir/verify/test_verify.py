"""The verifier: a program that holds together passes, and each way to break it is found and named."""

from __future__ import annotations

from dataclasses import replace

import pytest
from shards import all_layouts

from escc.ir.collective import AllGather, AllToAll, Collective, Embed, Permute, ReduceScatter, Slice
from escc.ir.diagnostics import InputError, Source
from escc.ir.dtype import Dtype
from escc.ir.expr import Call, Const, Operand, Size
from escc.ir.layout import Layout, Reduction
from escc.ir.mesh import Mesh
from escc.ir.program import (
    Append,
    Carry,
    Einsum,
    Iota,
    Kind,
    Map,
    Op,
    Phase,
    Program,
    Reduce,
    Region,
    Repeat,
    Stored,
    Sum,
    Value,
)
from escc.ir.spmd import Compute, Move, SpmdProgram, SpmdValue
from escc.ir.text.read_spmd import parse_spmd
from escc.ir.verify.verify import verify

SHARDED = """
sharded "toy" decode on x=2 y=2 o=1
sizes B=8 L=2 M=16 E=12 F=24
input x: bf16 B_yLE_x
repeat 3 layer {
  enter h: bf16 B_yLE_x = x
  param Wi: bf16 E_xF_y
  param Wd: bf16 F_yE_x
  cache keys: bf16 B_xM_yE
  ss bf16 B_yL partialsum-x = h[B,L,E] * h[B,L,E]
  ss' bf16 B_yL = all-reduce(x) of ss
  n bf16 B_yLE_x = h * rsqrt(ss' / size(E) + 1e-06)
  n' bf16 BLE_x = all-gather(y) B of n
  u bf16 BLF_y partialsum-x = n'[B,L,E] * Wi[E,F]
  u' bf16 BLF_yx = reduce-scatter(x) F of u
  a bf16 BLF_yx = silu(u')
  a' bf16 BLF_y = all-gather(x) F of a
  d bf16 BLE_x partialsum-y = a'[B,L,F] * Wd[F,E]
  n'2 bf16 BLE = all-gather(x) E of n'
  n'3 bf16 B_xLE = slice(x) B of n'2
  ks bf16 B_xM_yE = append(keys, n'3, L into M)
  top bf16 B_xE partialmax-y = max(ks, over=M)
  top' bf16 B_xE = all-reduce(y) of top
  top'2 bf16 BE_x = all-to-all(x) B->E of top'
  n'4 bf16 BLE_x partialsum-y = embed(y) B of n
  top'3 bf16 BE_x partialsum-y = embed(y) of top'2
  s bf16 BLE_x partialsum-y = sum(n'4, d, 0.5 * top'3)
  s' bf16 B_yLE_x = reduce-scatter(y) B of s
  leave out: bf16 B_yLE_x = s'
}
r bf16 B_y partialsum-x = out[B,L,E]
r' bf16 B_y = all-reduce(x) of r
return r'
"""

e, m = ("B", "L", "E"), ("B", "M", "E")


def program() -> Program:
    """The program that SHARDED is."""
    dims = {
        "x": e,
        "h": e,
        "Wi": ("E", "F"),
        "Wd": ("F", "E"),
        "keys": m,
        "ss": ("B", "L"),
        "n": e,
        "u": ("B", "L", "F"),
    }
    dims |= {"a": ("B", "L", "F"), "d": e, "ks": m, "top": ("B", "E"), "s": e, "out": e, "r": ("B",)}
    mean = Call("add", (Call("divide", (Operand("ss"), Size("E"))), Const(1e-6)))
    body: tuple[Op, ...] = (
        Einsum("ss", ("h", "h"), (e, e), ("B", "L")),
        Map("n", Call("multiply", (Operand("h"), Call("rsqrt", (mean,))))),
        Einsum("u", ("n", "Wi"), (e, ("E", "F")), ("B", "L", "F")),
        Map("a", Call("silu", (Operand("u"),))),
        Einsum("d", ("a", "Wd"), (("B", "L", "F"), ("F", "E")), e),
        Append("ks", "keys", "n", "L", "M"),
        Reduce("top", "ks", ("M",)),
        Sum("s", ("n", "d", "top"), (1.0, 1.0, 0.5)),
    )
    stored = (Stored("Wi", Kind.PARAM), Stored("Wd", Kind.PARAM), Stored("keys", Kind.CACHE))
    repeat = Repeat("layer", 3, (Carry("x", "h", "s", "out"),), Region(stored, body))
    region = Region((Stored("x", Kind.INPUT),), (repeat, Einsum("r", ("out",), (e,), ("B",))))
    sizes = (("B", 8), ("L", 2), ("M", 16), ("E", 12), ("F", 24))
    values = tuple(Value(n, d, Dtype.BF16) for n, d in dims.items())
    return Program("toy", values, region, ("r",), (Phase("decode", sizes),))


def parsed(text: str) -> SpmdProgram:
    return parse_spmd(Source("toy.spmd", text))


def findings(spmd: SpmdProgram, against: Program | None = None) -> list[str]:
    try:
        verify(spmd, against)
    except InputError as error:
        return [d.message for d in error.diagnostics]
    return []


def test_a_program_that_holds_together_passes() -> None:
    verify(parsed(SHARDED))
    verify(parsed(SHARDED), program())


def edited(*edits: tuple[str, str]) -> SpmdProgram:
    """The program with pieces of its text replaced."""
    text = SHARDED
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    return parsed(text)


BROKEN = [
    # layouts
    (("F_y partialsum-x =", "F_y ="), "The op that makes `u` does not fit: it leaves its result in BLF_y partialsum-x"),
    (("a bf16 BLF_yx", "a bf16 BLF_xy"), "The op that makes `a` does not fit"),
    (("u' bf16 BLF_yx =", "u' bf16 BLF_xy ="), "reduce-scatter(x) F leaves BLF_yx, not BLF_xy"),
    (("all-gather(y) B of n", "all-gather(x) B of n"), "axes x are not the minor end of what splits dim 0"),
    (("all-reduce(x) of ss", "all-reduce(y) of ss"), "the value is not partial over y"),
    (("slice(x) B of n'2", "slice(y) B of n'2"), "slice(y) B leaves B_yLE, not B_xLE"),
    (("embed(y) of top'2", "embed(x) of top'2"), "axis `x` is in use already"),
    (("slice(x) B", "slice() B"), "are not different axes of the mesh"),
    (("slice(x) B", "slice(xx) B"), "are not different axes of the mesh"),
    (("all-gather(x) F of a", "permute BLF_y of a"), "a permute keeps the number of parts of `F`"),
    (("silu(u')", "silu(u)"), "The op that makes `a` does not fit: `silu` is not linear in what is partial over `x`"),
    (("sum(n'4, d,", "sum(n', d,"), "`n'` is complete over `y`, and would be added once for each part"),
    (("Wd: bf16 F_yE_x", "Wd: bf16 F_yE_o"), "axis `o` has one chip and splits nothing"),
    (("L=2", "L=1"), None),
    (("B=8", "B=9"), "`x` cannot lie as B_yLE_x: dim `B` = 9 does not divide by axes y (2 ways); 8 or 10 would."),
    (("F=24", "G=24"), "the dim `F` has no size"),
    (("F=24", "F=24 F=24"), "Dims have one size each"),
    (("F=24", "F=0"), "Dims have one size each"),
    (("bf16 F_yE_x", "bf16 [F/y, E/x, E]"), "it has a dim twice"),
    # stored tensors, carries, results
    (("Wi: bf16 E_xF_y", "Wi: bf16 E_xF partialsum-y"), "The stored tensor `Wi` is partial."),
    (("h: bf16 B_yLE_x", "h: bf16 B_yLE"), "carries `x`, `h`, `s'`, `out`, which differ in dims, dtype or layout"),
    (("x: bf16 B_yLE_x", "x: f32 B_yLE_x"), "carries `x`, `h`, `s'`, `out`, which differ"),
    (("repeat 3", "repeat 0"), "The repeat `layer` runs 0 times."),
    (("return r'", "return r"), "The result `r` is partial."),
    # names
    (("n bf16 B_yLE_x = h", "n bf16 B_yLE_x = a"), "`n` reads `a`, which is not defined yet."),
    (("n bf16 B_yLE_x = h", "n bf16 B_yLE_x = zz"), "`n` reads `zz`, which is not defined yet."),
    (("return r'", "return d"), "The program's end reads `d`, which is out of its repeat."),
    (("return r'", "return zz"), "The program's end reads `zz`, which is not defined yet."),
    (("r' bf16", "x bf16"), "The value `x` is listed twice."),
    (("= s'\n", "= x\n"), "The repeat `layer` hands on `x`, which its body does not define."),
    (("enter h: bf16 B_yLE_x = x", "enter h: bf16 B_yLE_x = out"), "The repeat `layer` reads `out`, which"),
    # moves
    (("a' bf16 BLF_y ", "a' f32 BLF_y "), "`a'` has not the dims and dtype of `a`, which it moves."),
    (("a' bf16 BLF_y = all-gather(x) F of a", "a' bf16 BLE_y = all-gather(x) E of a"), "`a'` has not the dims"),
]  # fmt: skip


@pytest.mark.parametrize(("edit", "message"), BROKEN, ids=[f"{old} > {new}" for (old, new), _ in BROKEN])
def test_what_is_broken_is_found(edit: tuple[str, str], message: str | None) -> None:
    found = findings(edited(edit))
    if message is None:
        assert not found
    else:
        assert any(message in f for f in found), found


def test_every_violation_is_listed() -> None:
    found = findings(
        edited(("silu(u')", "silu(u)"), ("all-reduce(x) of ss", "all-reduce(y) of ss"), ("return r'", "return d"))
    )
    assert len(found) == 3


def test_no_layout_but_the_right_one_passes() -> None:
    spmd = parsed(SHARDED)
    sizes = dict(spmd.sizes)
    for i, value in enumerate(spmd.values):
        for layout in all_layouts([sizes[d] for d in value.dims], spmd.mesh, tuple(Reduction)):
            other = replace(value, layout=layout)
            broken = findings(replace(spmd, values=(*spmd.values[:i], other, *spmd.values[i + 1 :])))
            assert bool(broken) == (other != value), f"{value.name} as {layout}"


def test_a_cache_leaves_as_it_is_stored() -> None:
    moved = edited(
        ("  ks bf16 B_xM_yE = append(keys,", "  k2 bf16 B_xME = all-gather(y) M of keys\n  ks bf16 B_xME = append(k2,"),
        ("top bf16 B_xE partialmax-y = max(ks", "top'9 bf16 B_xE = max(ks"),
        ("top' bf16 B_xE = all-reduce(y) of top\n", ""),
        ("of top'\n", "of top'9\n"),
    )  # fmt: skip
    assert findings(moved) == ["`ks` does not lie as its cache `keys` is stored, in B_xM_yE."]
    back = "  keys' bf16 B_xM_yE = permute B_xM_yE of keys\n  ks bf16 B_xM_yE = append(keys', n'3"
    assert not findings(edited(("  ks bf16 B_xM_yE = append(keys, n'3", back)))


def one_step(layout: Layout, collective: Collective, after: Layout, size: int = 8) -> list[str]:
    """What is found in a program of one move of a value of dims B, E."""
    values = tuple(SpmdValue(n, ("B", "E"), Dtype.F32, x) for n, x in (("v", layout), ("w", after)))
    region = Region((Stored("v", Kind.INPUT),), (Move("w", "v", collective),))
    sizes = (("B", size), ("E", size))
    return findings(SpmdProgram("t", "p", Mesh.parse("x=2 y=4 z=2"), sizes, values, region, ("w",)))


def test_collectives_that_no_text_can_say_are_refused() -> None:
    whole, split = Layout(((), ())), Layout((("x",), ()))
    for collective in (
        AllGather(("x",), 2),
        AllGather(("x",), -2),
        Slice(("q",), 1),
        Slice(("x", "x"), 1),
        Embed(("x",), 5),
    ):
        assert one_step(split, collective, whole), collective
    for more in (AllToAll(("x",), 0, -1), AllToAll(("x",), -2, 1), ReduceScatter(("x",), 3), Embed(("x", "x"))):
        assert one_step(split, more, split), more
    assert not one_step(split, AllGather(("x",), 0), whole)


def test_a_permute_keeps_the_number_of_parts() -> None:
    before = Layout((("x",), ("y",)))
    assert (
        "keeps the number of parts of `B`"
        in one_step(before, Permute(Layout((("y",), ("x",)))), Layout((("y",), ("x",))))[0]
    )
    for same in (Layout((("x",), ("z",))), Layout((("x", "y"), ())), Layout((("x",), ("q",)))):
        assert one_step(before, Permute(same), same)
    swapped = Layout((("z",), ("x",)))
    assert not one_step(Layout((("x",), ("z",))), Permute(swapped), swapped)


def test_layout_and_dims_have_one_rank() -> None:
    assert one_step(Layout(((),)), AllGather(("x",), 0), Layout(((), ())))[0] == "`v` has 2 dims, and its layout 1."


def test_what_is_defined_is_listed_in_order() -> None:
    spmd = parsed(SHARDED)
    extra = SpmdValue("extra", (), Dtype.F32, Layout(()))
    assert findings(replace(spmd, values=(*spmd.values, extra))) == ["`extra` is listed and never defined."]
    assert findings(replace(spmd, values=spmd.values[::-1])) == [
        "The values are not listed in the order of their definition."
    ]
    assert any("is no value" in f for f in findings(replace(spmd, values=spmd.values[:-1])))
    twice = replace(spmd.body, items=(*spmd.body.items, spmd.body.items[-1]))
    assert findings(replace(spmd, body=twice)) == ["`r'` is defined twice."]


DIFFERENT = [
    ((("h[B,L,E] * h[B,L,E]", "h[B,L,E] * x[B,L,E]"),), "`layer` makes `ss` by another op, or of other operands"),
    ((("0.5 * top'3", "0.25 * top'3"),), "makes `s` by another op"),
    ((("silu(u')", "gelu(u')"),), "makes `a` by another op"),
    ((("1e-06", "1e-05"),), "makes `n` by another op"),
    ((("sum(n'4, d, 0.5 * top'3)", "sum(d, n'4, 0.5 * top'3)"),), "makes `s` by another op"),
    ((("repeat 3 layer", "repeat 4 layer"),), "`layer` runs 4 times in the place of `layer`, which runs 3 times."),
    ((("cache keys", "param keys"),), "The repeat `layer` stores other tensors than it should."),
    ((("B=8", "B=16"),), "The sizes are not those of the phase `decode`."),
    ((("M=16 E=12 F=24", "M=16 E=12 F=24\nmean M=8"),), "The mean sizes are not those of the phase `decode`."),
    ((("decode", "prefill"),), "The program has no phase `prefill`."),
    ((('"toy"', '"boy"'),), "The sharded program is called `boy`, the program `toy`."),
    ((("return r'", "return out"),), "The results are `out`, not `r`."),
    ((("keys: bf16", "keys: int8"), ("ks bf16", "ks int8")), "`keys` has not the dims and dtype that it has in the"),
    ((("r' bf16 B_y = all-reduce(x) of r\n", "r' bf16 B_y = all-reduce(x) of r\nz bf16 B_y = r'\n"),),
     "The program has the op that makes `z`, which the program lacks."),
    ((("r bf16 B_y partialsum-x = out[B,L,E]\nr' bf16 B_y = all-reduce(x) of r\nreturn r'", "return out"),),
     "The program lacks the op that makes `r`."),
    ((("= s'\n", "= n\n"),), "The repeat `layer` carries other values than it should."),
    ((("  a bf16", "  aa bf16"), ("F of a\n", "F of aa\n")), "The repeat `layer` makes `aa` in the place of `a`."),
]  # fmt: skip


@pytest.mark.parametrize(("edits", "message"), DIFFERENT, ids=[m for _, m in DIFFERENT])
def test_what_differs_from_the_program_is_found(edits: tuple[tuple[str, str], ...], message: str) -> None:
    spmd = edited(*edits)
    assert not findings(spmd)
    assert any(message in f for f in findings(spmd, program())), findings(spmd, program())


def test_a_repeat_is_no_op() -> None:
    whole = program()
    flat = replace(whole, body=replace(whole.body, items=(Iota("layer", "B"), Iota("r", "B"))))
    found = findings(parsed(SHARDED), flat)
    assert "The program has the repeat `layer` in the place of the op that makes `layer`." in found


def test_the_order_in_which_ops_stand_is_free() -> None:
    whole = program()
    turned = replace(whole, body=replace(whole.body, items=whole.body.items[::-1]))
    assert not findings(parsed(SHARDED), turned)


JOINED = """
sharded "toy" decode on x=2 y=2
sizes B=8 E=12 F=24
input x: bf16 BE_x
param Wi: bf16 E_xF_y
param Wg: bf16 E_xF
  u  bf16 BF_y partialsum-x = x[B,E] * Wi[E,F]
+ g  bf16 BF partialsum-x   = x[B,E] * Wg[E,F]
  u' bf16 B_xF_y            = reduce-scatter(x) B of u
+ g' bf16 BF_x              = reduce-scatter(x) F of g
return u', g'
"""


def test_steps_that_run_as_one() -> None:
    assert not findings(parsed(JOINED))


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ((("  u' bf16 B_xF_y            = reduce-scatter(x) B", "  u' bf16 BF_y = all-reduce(x)"),), "all of one kind"),
        ((("+ g' bf16 BF_x              = reduce-scatter(x) F of g", "+ g' bf16 BF_yx = slice(x) F of u''"),
          ("  u' ", "  u'' bf16 BF_y = all-reduce(x) of u\n  u' "),
          ("return u', g'", "return u'")), "all of one kind"),
        ((("+ g  bf16 BF partialsum-x   = x[B,E] * Wg[E,F]", "+ g  bf16 BF_y partialsum-x = 2 * u"),
          ("+ g' bf16 BF_x ", "+ g' bf16 BF_yx ")), "the op does not run as one"),
        ((("+ g  bf16 BF partialsum-x   = x[B,E] * Wg[E,F]", "+ g  bf16 BF partialsum-x   = Wg[E,F] * x[B,E]"),),
         "einsums that run as one read one value"),
        ((("  u  bf16", "+ u  bf16"),), "the op does not run as one"),
        ((("+ g' bf16 BF_x              = reduce-scatter(x) F of g", "+ g' f32 BF_x = reduce-scatter(x) F of g"),
          ("+ g  bf16", "+ g  f32")), "of one dtype"),
        ((("+ g' bf16 BF_x              = reduce-scatter(x) F of g", "+ g' bf16 B_x = reduce-scatter(x) B of g"),
          ("+ g  bf16 BF partialsum-x   = x[B,E] * Wg[E,F]", "  g  bf16 B partialmax-x = max(x, over=E)")),
         "reduce alike"),
        ((("return u', g'", "a bf16 BF_y = all-gather(x) B of u'\n+ b bf16 BF = all-gather(y) F of a\nreturn a, b"),
          ("+ g' bf16 BF_x              = reduce-scatter(x) F of g\n", "")), "over the same axes"),
        ((("return u', g'", "a bf16 BF_yx = all-to-all(x) B->F of u'\n"
           "+ b bf16 B_xF_y = all-to-all(x) F->B of a\nreturn a, b"),
          ("+ g' bf16 BF_x              = reduce-scatter(x) F of g\n", "")), "`a` is made by the collective itself"),
    ],
)  # fmt: skip
def test_steps_that_do_not_run_as_one(edits: tuple[tuple[str, str], ...], message: str) -> None:
    text = JOINED
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    found = findings(parsed(text))
    assert len(found) == 1 and message in found[0], found


def test_a_partial_value_is_not_carried() -> None:
    text = """
    sharded "t" p on x=2
    sizes B=4
    input w: f32 B
    v f32 B partialsum-x = embed(x) of w
    repeat 2 r {
      enter a: f32 B partialsum-x = v
      b f32 B partialsum-x = -a
      leave c: f32 B partialsum-x = b
    }
    d f32 B = all-reduce(x) of c
    return d
    """
    assert findings(parsed(text)) == ["The repeat `r` carries `v`, `a`, `b`, `c`, which are partial."]


def test_a_body_sees_what_is_outside_and_nested_repeats_stay_closed() -> None:
    inner = Repeat("in", 2, (), Region((), (Compute(Map("b", Operand("v"))),)))
    outer = Repeat("out", 2, (), Region((), (inner, Compute(Map("c", Operand("b"))))))
    values = tuple(SpmdValue(n, (), Dtype.F32, Layout(())) for n in ("v", "b", "c"))
    region = Region((Stored("v", Kind.INPUT),), (outer,))
    spmd = SpmdProgram("t", "p", Mesh.parse("1"), (), values, region, ("v",))
    assert findings(spmd) == ["`c` reads `b`, which is out of its repeat."]
    closed = replace(outer, body=Region((), (inner, Compute(Map("c", Operand("v"))))))
    assert not findings(replace(spmd, body=Region(region.stored, (closed,))))
