"""Pins: what each line of a pins file fixes, and what inline pins mean."""

from pathlib import Path

import pytest

from escc.ir.diagnostics import InputError, Source
from escc.ir.layout import Layout, Reduction
from escc.ir.program import Pin, PinKind, Program, Value
from escc.ir.text.pins import merge_pins, parse_pins, pinned_layout
from escc.ir.text.read import parse, read_source
from escc.passes.expansion.expand import expand

EXAMPLES = Path(__file__).parents[3] / "examples"
SHARED = """
dim B = 4, L = 2, E = 8, F = 16, K = 2, G = 4
dim H = K * G
param Wi: bf16[E,F] @ E_xF
block layer(x: bf16[B,L,E]) -> bf16[B,L,E] {
  param Wd: bf16[F,E] @ FE_y
  cache c: bf16[B,E]
  u[B,L,F] @ BLF partialsum-x = x[B,L,E] * Wi[E,F]
  d[B,L,E] = u[B,L,F] * Wd[F,E]
  return d
}
main(x: bf16[B,L,E] @ B_xLE, z: bf16[B,H] @ BH) {
  y = layer(x)
  t @ B_yLE = silu(y)
  r = repeat 3 layer(t)
  return r, z
}
"""


def program(text: str = SHARED) -> Program:
    source = Source("model.esti", text)
    return expand(parse(source), source)


def pins(text: str) -> tuple[Pin, ...]:
    return parse_pins(Source("test.pins", text), program())


def test_lines_of_a_file() -> None:
    found = pins(
        """
        # a comment
        stored layer.Wd   F_xyE        # its stored layout
        use layer.u.Wi EF_z
        use layer:2.d.layer:2.Wd [F/gpu, E/node.x]
        result layer.d BLE_x partialsum-zy
        stored r BL_xE
        """
    )
    assert found == (
        Pin(PinKind.STORED, "layer.Wd", None, Layout((("x", "y"), ())), "stored layer.Wd F_xyE"),
        Pin(PinKind.USE, "Wi", "layer.u", Layout(((), ("z",))), "use layer.u.Wi EF_z"),
        Pin(
            PinKind.USE,
            "layer:2.Wd",
            "layer:2.d",
            Layout((("gpu",), ("node", "x"))),
            "use layer:2.d.layer:2.Wd [F/gpu, E/node.x]",
        ),
        Pin(
            PinKind.RESULT,
            "layer.d",
            None,
            Layout(((), (), ("x",)), ("y", "z"), Reduction.SUM),
            "result layer.d BLE_x partialsum-zy",
        ),
        Pin(PinKind.STORED, "r", None, Layout(((), ("x",), ())), "stored r BL_xE"),
    )


def test_a_use_takes_the_value_of_the_block_or_the_shared_one() -> None:
    (own, shared, argument) = pins("use layer:2.d.Wd FE_x\nuse layer:2.u.Wi E_yF\nuse layer:2.u.x BLE")
    assert (own.op, own.value) == ("layer:2.d", "layer:2.Wd")
    assert (shared.op, shared.value) == ("layer:2.u", "Wi")
    assert (argument.op, argument.value) == ("layer:2.u", "layer:2.x")


def test_inline_pins_follow_their_values() -> None:
    found = {(p.kind.value, p.value): (p.layout.dims, p.layout.partial) for p in program().pins}
    assert found == {
        ("stored", "Wi"): ((("x",), ()), ()),
        ("stored", "x"): ((("x",), (), ()), ()),
        ("stored", "z"): (((), (), ()), ()),
        ("stored", "layer.Wd"): (((), ("y",)), ()),
        ("result", "layer.u"): (((), (), ()), ("x",)),
        ("stored", "layer:2.Wd"): (((), ("y",)), ()),
        ("result", "layer:2.u"): (((), (), ()), ("x",)),
        ("result", "t"): ((("y",), (), ()), ()),
    }


def test_a_product_of_dims_is_written_with_its_factors() -> None:
    value = Value("z", ("B", "K", "G"), program().values[0].dtype)
    factors = {"H": ("K", "G")}
    assert pinned_layout("BH", value, PinKind.STORED, factors) == Layout(((), (), ()))
    assert pinned_layout("BK_xG_y", value, PinKind.STORED, factors) == Layout(((), ("x",), ("y",)))
    with pytest.raises(InputError, match="product of dims"):
        pinned_layout("BH_x", value, PinKind.STORED, factors)
    with pytest.raises(InputError, match="does not have the dims"):
        pinned_layout("BH", value, PinKind.STORED)


def test_pins_beside_a_model_replace_its_own() -> None:
    inline, beside = program().pins, pins("stored Wi EF_z\nuse layer.u.Wi EF")
    merged = merge_pins(inline, beside)
    assert len(merged) == len(inline) + 1
    assert beside[0] in merged and beside[1] in merged
    assert {p.value for p in inline if p not in merged} == {"Wi"}


@pytest.mark.parametrize(
    "text", ["stored", "stored Wi", "use . EF", "use .Wi EF", "use layer.u. EF", "\0", "stored Wi " + "[" * 10_000]
)
def test_odd_lines_are_diagnostics(text: str) -> None:
    with pytest.raises(InputError) as caught:
        pins(text)
    assert len(caught.value.diagnostics) == 1


def test_many_wrong_lines_are_cut_short() -> None:
    with pytest.raises(InputError) as caught:
        pins("stored nothing BLE\n" * 40_000)
    assert len(caught.value.diagnostics) <= 20


@pytest.mark.parametrize("path", sorted((EXAMPLES / "pins").glob("*.pins")), ids=lambda p: p.stem)
def test_the_five_layouts_of_the_feed_forward(path: Path) -> None:
    source = read_source(EXAMPLES / "feed-forward.esti")
    found = parse_pins(read_source(path), expand(parse(source), source))
    places = {(p.kind.value, p.op, p.value) for p in found}
    assert {("use", "u", "Wi"), ("use", "y", "Wo"), ("stored", None, "x"), ("stored", None, "y")} <= places
    stored = {p.value: p.text.split()[-1] for p in found if p.kind is PinKind.STORED}
    assert (stored["Wi"], stored["Wo"]) == (("EF_xyz", "F_xyzE") if path.stem == "ws1d" else ("E_xF_zy", "F_zyE_x"))
    assert stored["x"] == stored["y"]
