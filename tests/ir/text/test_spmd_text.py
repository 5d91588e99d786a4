"""The text of sharded programs: it reads back, prints the same again, fits, and says what is wrong."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from escc.ir.choices import with_sharded_choices
from escc.ir.collective import AllGather, AllReduce, AllToAll, Collective, Embed, Permute, ReduceScatter, Slice
from escc.ir.diagnostics import InputError, Source
from escc.ir.dtype import Dtype
from escc.ir.expr import FUNCTIONS, Call, Const, Context, Expr, Operand, Rotate, Size
from escc.ir.layout import Layout, Reduction
from escc.ir.mesh import Mesh
from escc.ir.program import (
    Append,
    Carry,
    Choose,
    Einsum,
    Iota,
    Kind,
    Map,
    Op,
    Reduce,
    Region,
    Repeat,
    Stored,
    Sum,
    Take,
    TopK,
)
from escc.ir.spmd import Compute, Move, SpmdProgram, SpmdValue, Step
from escc.ir.text.expressions import ExprError, ExprParser, format_expr
from escc.ir.text.read_spmd import parse_spmd
from escc.ir.text.write_spmd import folded, print_spmd
from escc.ir.verify.verify import verify

LISTING = """\
sharded "palm-540b" decode on x=4 y=4 z=4
sizes B=512 L=1 E=18432 F=73728 M=2048
input x: bf16 B_yzLE_x
repeat 118 layer {
  enter layer.x: bf16 B_yzLE_x = x
  param layer.Wi:   bf16 E_xF_zy
  cache layer.keys: bf16 B_xyzME
  layer.ss  bf16 B_yzL partialsum-x  = layer.x[B,L,E] * layer.x[B,L,E]
  layer.ss' bf16 B_yzL               = all-reduce(x) of layer.ss
  layer.n   bf16 B_yzLE_x            = layer.x * rsqrt(layer.ss' / size(E) + 1e-06)
  layer.n'  bf16 BLE_x               = all-gather(yz) B of layer.n
  layer.u   bf16 BLF_zy partialsum-x = layer.n'[B,L,E] * layer.Wi[E,F]
  layer.u'  bf16 BLF_zyx             = reduce-scatter(x) F of layer.u
  layer.t   bf16 B_yzLE_x            = sum(layer.x, -0.5 * layer.n)
  leave return: bf16 B_yzLE_x = layer.t
}
return return
"""


def parsed(text: str) -> SpmdProgram:
    return parse_spmd(Source("t.spmd", text))


def complaints(text: str) -> list[str]:
    """What is wrong with `text`, rendered."""
    with pytest.raises(InputError) as error:
        parsed(text)
    return [d.render() for d in error.value.diagnostics]


def test_the_form_of_a_listing() -> None:
    assert print_spmd(parsed(LISTING)) == LISTING
    filling = LISTING.replace("M=2048\n", "M=2048\nmean M=1024\n")
    assert parsed(filling).mean == (("M", 1024),) and print_spmd(parsed(filling)) == filling


def test_what_a_listing_says() -> None:
    spmd = parsed(LISTING)
    assert (spmd.name, spmd.phase, spmd.mesh) == ("palm-540b", "decode", Mesh.parse("4x4x4"))
    assert dict(spmd.sizes) == {"B": 512, "L": 1, "E": 18432, "F": 73728, "M": 2048}
    assert spmd.body.stored == (Stored("x", Kind.INPUT),)
    (repeat,) = spmd.body.items
    assert isinstance(repeat, Repeat)
    assert (repeat.name, repeat.count) == ("layer", 118)
    assert repeat.carries == (Carry("x", "layer.x", "layer.t", "return"),)
    assert repeat.body.items[3] == Move("layer.n'", "layer.n", AllGather(("y", "z"), 0))
    indices = (("B", "L", "E"), ("E", "F"))
    assert repeat.body.items[4] == Compute(Einsum("layer.u", ("layer.n'", "layer.Wi"), indices, ("B", "L", "F")))
    assert spmd.table()["layer.u"].layout == Layout(((), (), ("z", "y")), ("x",))
    assert spmd.results == ("return",)


def test_annotations_stand_at_the_edge_or_below_and_are_not_read() -> None:
    notes = {"layer.u'": "3.54 MB  13.1 us", "layer.n": "a long remark that does not fit beside", "x": "input"}
    spmd = parsed(LISTING)
    text = print_spmd(spmd, notes)
    lines = text.splitlines()
    (beside,) = (line for line in lines if line.endswith("# 3.54 MB 13.1 us"))
    assert len(beside) == 100
    below = lines.index(next(line for line in lines if line.strip().startswith("# a long remark")))
    assert len(lines[below]) == 100
    assert lines[below - 1].strip().startswith("layer.n ")
    assert parsed(text) == spmd
    assert [line for line in lines if "#" not in line] == [
        line for line in LISTING.splitlines() if "reduce-scatter" not in line and not line.startswith("input")
    ]


# Random programs. They need not make sense: whether they do is for the verifier to say.

NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,5}([.:][A-Za-z0-9_]{1,4}){0,2}'{0,2}", fullmatch=True).filter(
    lambda name: name not in ("inf", "nan")
)
CAPITALS, LONG_DIMS = list("BLEFHQM"), ["batch", "d_model", "B", "kv_heads2", "Z"]
MARKS = st.tuples(st.booleans(), st.booleans())  # of a step: joined, looped
NUMBERS = st.floats(allow_nan=False) | st.integers(-3, 3).map(float)


def exprs(names: st.SearchStrategy[str], dims: list[str]) -> st.SearchStrategy[Expr]:
    """Expressions over `names` and `dims`."""
    leaves = (
        NUMBERS.map(Const) | names.map(Operand) | st.sampled_from(dims).map(Size) | st.sampled_from(dims).map(Context)
    )

    def grow(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
        def call(function: str) -> st.SearchStrategy[Expr]:
            return st.tuples(*[inner] * FUNCTIONS[function]).map(lambda a: Call(function, a))

        infix = st.sampled_from(["add", "subtract", "multiply", "divide", "negate"])
        rotated = st.builds(Rotate, inner, st.sampled_from(dims))
        return (infix | st.sampled_from(sorted(FUNCTIONS))).flatmap(call) | rotated

    return st.recursive(leaves, grow, max_leaves=12)


@given(exprs(NAMES, CAPITALS))
def test_expressions_read_back(expr: Expr) -> None:
    reader = ExprParser(format_expr(expr))
    assert reader.expression() == expr
    reader.end()


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (Call("subtract", (Operand("a"), Call("subtract", (Operand("b"), Const(2.0))))), "a - (b - 2)"),
        (Call("subtract", (Call("subtract", (Operand("a"), Operand("b"))), Const(-2.0))), "a - b - -2"),
        (Call("multiply", (Call("add", (Operand("a"), Operand("b"))), Const(0.1))), "(a + b) * 0.1"),
        (Call("divide", (Operand("a"), Call("multiply", (Operand("b"), Size("Q"))))), "a / (b * size(Q))"),
        (Call("negate", (Const(2.0),)), "-(2)"),
        (Call("negate", (Call("negate", (Operand("a"),)),)), "--a"),
        (Call("negate", (Call("multiply", (Operand("a"), Operand("b"))),)), "-(a * b)"),
        (Call("multiply", (Call("negate", (Operand("a"),)), Operand("b"))), "-a * b"),
        (Call("where", (Operand("m"), Operand("s"), Const(-math.inf))), "where(m, s, -inf)"),
        (Call("maximum", (Const(math.inf), Rotate(Operand("x"), "Q"))), "maximum(inf, rotate(x, Q))"),
    ],
)
def test_the_form_of_expressions(expr: Expr, text: str) -> None:
    assert format_expr(expr) == text
    assert ExprParser(text).expression() == expr


@st.composite
def layouts(draw: st.DrawFn, rank: int, mesh: Mesh) -> Layout:
    """Any layout of `rank` dims on `mesh`."""
    split: list[list[str]] = [[] for _ in range(rank)]
    partial = []
    for axis in draw(st.permutations(mesh.names)):
        place = draw(st.integers(-2, rank - 1))
        if place >= 0:
            split[place].append(axis)
        elif place == -1:
            partial.append(axis)
    reduction = draw(st.sampled_from(Reduction)) if partial else Reduction.SUM
    return Layout(tuple(map(tuple, split)), tuple(sorted(partial)), reduction)


@st.composite
def collectives(draw: st.DrawFn, rank: int, mesh: Mesh) -> Collective:
    """Any collective on a value of `rank` dims, legal or not."""
    axes = tuple(draw(st.lists(st.sampled_from(mesh.names), min_size=1, unique=True)))
    if not rank or draw(st.integers(0, 6)) == 0:
        layout = draw(layouts(rank, mesh))
        return draw(st.sampled_from([AllReduce(axes), Embed(axes), Permute(layout)]))
    one, two = draw(st.integers(0, rank - 1)), draw(st.integers(0, rank - 1))
    kinds = [
        AllGather(axes, one),
        ReduceScatter(axes, one),
        Slice(axes, one),
        Embed(axes, one),
        AllToAll(axes, one, two),
    ]
    return draw(st.sampled_from(kinds))


@st.composite
def ops(draw: st.DrawFn, result: str, rank_dims: tuple[str, ...], names: list[str], dims: list[str]) -> Op:
    """Any op that makes `result`, whether or not its operands fit."""
    name, dim = st.sampled_from(names), st.sampled_from(dims)
    indices = st.lists(dim, max_size=3).map(tuple)
    match draw(st.integers(0, 8)):
        case 0:
            factors = draw(st.lists(st.tuples(name, indices), min_size=1, max_size=3))
            output = draw(st.just(rank_dims) | indices)
            return Einsum(result, tuple(n for n, _ in factors), tuple(i for _, i in factors), output)
        case 1:
            terms = draw(st.lists(st.tuples(name, NUMBERS), min_size=1, max_size=4))
            return Sum(result, tuple(n for n, _ in terms), tuple(c for _, c in terms))
        case 2:
            return Reduce(result, draw(name), tuple(draw(st.lists(dim, min_size=1, max_size=2))))
        case 3:
            return Take(result, draw(name), draw(name), tuple(draw(st.lists(dim, min_size=1, max_size=2))))
        case 4:
            return Iota(result, draw(dim))
        case 5:
            return Append(result, draw(name), draw(name), draw(dim), draw(dim))
        case 6:
            over = tuple(draw(st.lists(dim, min_size=1, max_size=2)))
            return TopK(result, draw(name), draw(name), over, draw(dim))
        case 7:
            over = tuple(draw(st.lists(dim, min_size=1, max_size=2)))
            return Choose(result, draw(name), over, draw(st.integers(1, 10**18 - 1)))
    return Map(result, draw(exprs(name, dims)))


@st.composite
def programs(draw: st.DrawFn) -> SpmdProgram:
    """Any sharded program whose values are listed in the order of their definition."""
    mesh = draw(st.sampled_from([Mesh((("x", 4), ("y", 2), ("z", 1))), Mesh((("node", 2), ("x", 3))), Mesh.parse("5")]))
    dims = draw(st.sampled_from([CAPITALS, LONG_DIMS]))
    names = draw(st.lists(NAMES, min_size=20, max_size=24, unique=True))
    values: list[SpmdValue] = []

    def define() -> SpmdValue:
        own = tuple(draw(st.lists(st.sampled_from(dims), max_size=3, unique=True)))
        value = SpmdValue(names[len(values)], own, draw(st.sampled_from(Dtype)), draw(layouts(len(own), mesh)))
        values.append(value)
        return value

    def region(depth: int) -> Region[Step]:
        stored = [Stored(define().name, draw(st.sampled_from(Kind))) for _ in range(draw(st.integers(0, 2)))]
        items: list[Compute | Move | Repeat[Step]] = []
        for _ in range(draw(st.integers(0, 3))):
            choice = draw(st.integers(0, 4))
            if len(values) > len(names) - 8:
                break
            if choice == 0 and depth < 2:
                items.append(repeat(depth))
                continue
            value = define()
            if choice < 3:
                collective = draw(collectives(len(value.dims), mesh))
                operand, marks = draw(st.sampled_from(names)), draw(MARKS)
                items.append(Move(value.name, operand, collective, *marks))
            else:
                items.append(Compute(draw(ops(value.name, value.dims, names, dims)), *draw(MARKS)))
        return Region(tuple(stored), tuple(items))

    def repeat(depth: int) -> Repeat[Step]:
        carried = draw(st.integers(0, 1))
        inside = [define().name for _ in range(carried)]
        body = region(depth + 1)
        result = [define().name for _ in range(carried)]
        other = st.sampled_from(names)
        carries = tuple(Carry(draw(other), i, draw(other), r) for i, r in zip(inside, result, strict=True))
        return Repeat(draw(NAMES), draw(st.integers(1, 200)), carries, body)

    sizes = tuple((d, draw(st.integers(1, 10**18))) for d in dims)
    name, phase = draw(st.text(max_size=8)), draw(NAMES | st.text(max_size=5))
    body = region(0)
    results = tuple(draw(st.lists(st.sampled_from(names), max_size=3)))
    return with_sharded_choices(SpmdProgram(name, phase, mesh, sizes, tuple(values), body, results))


@settings(max_examples=150, deadline=None)
@given(programs(), st.text(max_size=120))
def test_programs_read_back_and_print_the_same_again(spmd: SpmdProgram, note: str) -> None:
    text = print_spmd(spmd)
    assert parsed(text) == spmd
    assert print_spmd(parsed(text)) == text
    assert parsed(print_spmd(spmd, {v.name: note for v in spmd.values})) == spmd


def test_long_lines_wrap_within_100_columns_and_read_back() -> None:
    terms: Expr = Operand("layer.0.some_value")
    for i in range(12):
        terms = Call("add", (terms, Call("where", (Operand(f"mask{i}"), Size("E"), Const(-math.inf)))))
    spmd = parsed(LISTING)
    value = SpmdValue("long", ("B",), Dtype.F32, Layout(((),)))
    body = replace(spmd.body, items=(*spmd.body.items, Compute(Map("long", terms))))
    spmd = replace(spmd, values=(*spmd.values, value), body=body, results=tuple(f"some_result_{i}" for i in range(20)))
    spmd = replace(spmd, sizes=tuple((f"dimension_{i}", 10**i) for i in range(18)))
    text = print_spmd(spmd, {"long": "12.5 MB"})
    assert max(map(len, text.splitlines())) <= 100
    assert sum(line.lstrip().startswith("sizes") for line in text.splitlines()) > 1
    assert parsed(text) == spmd


def test_a_name_that_cannot_be_read_back_is_not_printed() -> None:
    spmd = parsed(LISTING)
    for name in ("inf", "two words", "a-b", "", "x:"):
        with pytest.raises(ValueError, match="cannot name a value"):
            print_spmd(replace(spmd, values=(replace(spmd.values[0], name=name), *spmd.values[1:])))


WRONG = [
    ("bf16 BLE_x  ", "bf61 BLE_x  ", "11:13: error: There is no dtype `bf61`.", "did you mean `bf16`?"),
    ("BLF_zyx ", "BLF_zyz ", "13:18: error: The layout `BLF_zyz` names the axis `z` twice.", ""),
    ("layer.Wi:   bf16 E_xF_zy", "layer.Wi: bf16 e", "6:3: error: `param layer.Wi: bf16 e` is no statement", ""),
    ("all-gather(yz)", "all-gather(yw)", "11:51: error: The mesh has no axis `w`.", ""),
    ("all-gather(yz) B", "all-gather(yz) C", "11:55: error: The value has no dim `C`.", ""),
    ("all-gather(yz) B", "all-gather(yz)", "11:40: error: `all-gather(yz) of layer.n` is no collective.", ""),
    ("all-gather(yz) B", "all-scatter(yz) B", "`all-scatter(yz) B of layer.n` is no collective.", "write"),
    ("rsqrt(", "rsqr(", "10:50: error: There is no function `rsqr`.", "did you mean `rsqrt`?"),
    ("+ 1e-06)", "+ 1e-06, 2)", "`rsqrt` takes 1 arguments, not 2.", ""),
    ("+ 1e-06)", "+ 1e-06", "Expected `)`, found the end of the line.", ""),
    ("* layer.Wi[E,F]", "* layer.Wi[E,F", "Expected `]`, found the end of the line.", ""),
    ("* layer.Wi[E,F]", "* layer.Wi", "Expected `[`, found the end of the line.", ""),
    ("layer.x * rsqrt", "layer.x ** rsqrt", "Expected a value, a number or `(`, found `*`.", ""),
    ("layer.x * rsqrt", "layer.x y * rsqrt", "Expected an operator or the end of the line, found `y`.", ""),
    ("-0.5 * layer.n", "-z * layer.n", "Expected a number, found `z`.", ""),
    ("sizes B=512", "sizes B:512", "2:7: error: `B:512` is no dim with its size.", "write `B=512`"),
    ("sizes B=512", "sizes B=" + "9" * 5000, "is no dim with its size.", ""),
    ("repeat 118", "repeat often", "A repeat opens with how often it runs and a name.", "repeat 4 layer {"),
    ("return return", "return return return", "is no statement of a sharded program.", ""),
    ("return return\n", "", "t.spmd: error: The program does not end with `return`.", ""),
    ("}\n", "", "4:1: error: The repeat `layer` is not closed.", "close it with `}`"),
    ("}\n", "}\n}\n", "This closes no repeat.", ""),
    ("return return\n", "return return\nreturn x\n", "Nothing comes after `return`.", ""),
    ("  leave return: bf16 B_yzLE_x = layer.t\n", "", "In `layer`, 1 values enter and 0 leave.", ""),
    ("  layer.t ", "  param z: bf16 E_x\n  layer.t ", "In a region, stored tensors must stand before what runs.", ""),
    ("return return", "enter a: bf16 E_x = x\nreturn return", "Values enter and leave repeats", ""),
    ("x=4 y=4 z=4", "x=4 x=4", "1:31: error: The mesh names the axis `x` twice.", ""),
    ("sharded", "shared", "1:1: error: The text does not begin as a sharded program does.", "begin with `sharded"),
    ('"palm-540b"', '"palm\\q"', "is no string.", ""),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "message", "hint"), WRONG, ids=[w[2][:50] for w in WRONG])
def test_what_is_wrong_is_said_with_its_place(old: str, new: str, message: str, hint: str) -> None:
    assert old in LISTING
    found = complaints(LISTING.replace(old, new, 1))
    assert any(message in text and hint in text for text in found), found
    for text in found:
        assert re.match(r"t\.spmd:(\d+:\d+:)? error: [^\n]*\.(\n|$)", text)


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        ("BE partialsum-gpu", "The mesh has no axis `g`."),
        ("B_gpuE", "The mesh has no axis `g`."),
        ("B_xE_data", "The layout `B_xE_data` names the axis `a` twice."),
    ],
)
def test_an_axis_spelled_out_in_the_short_form_is_told_the_long_one(layout: str, said: str) -> None:
    (found,) = complaints(f'sharded "m" main on gpu=2 data=2 x=2\nsizes B=8 E=8\ninput u: bf16 {layout}\nreturn u\n')
    axis = "data" if "data" in layout else "gpu"
    assert f"3:15: error: {said}" in found
    assert f"needs the long form, as in `[B, E/{axis}]` or `[B, E] partialsum-{axis}`" in found


def test_the_caret_points_into_wrapped_lines() -> None:
    (found,) = complaints(LISTING.replace("layer.ss' / size(E)", "layer.ss' /\n        siz(E)"))
    assert found.splitlines()[1:3] == ["   11 |         siz(E) + 1e-06)", "      |         ^^^"]


def test_every_wrong_line_is_reported() -> None:
    text = LISTING.replace("rsqrt(", "rsqr(").replace("(yz) B", "(yw) B").replace("E_xF_zy", "E_xF_xy")
    assert len(complaints(text)) == 3


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# nothing but a comment\n",
        "\x00\x01\xff",
        "x" * 10_000_000,
        "\n".join(["sharded"] * 200_000),
        LISTING.replace("layer.x * rsqrt(", "(" * 100_000),
        LISTING.replace("layer.x * rsqrt(", "(" * 5_000 + "x" + ")" * 5000 + "* ("),
        LISTING.replace("layer.x * rsqrt(", "-" * 5_000),
        LISTING.replace("layer.x * rsqrt(", "x + " * 4_000 + "rsqrt("),
        LISTING.replace("return return", "repeat 2 a {\n" * 100_000),
        LISTING + "]\n" * 100_000,
        LISTING.replace("B of", " " * 15_000 + "B off"),
        LISTING.replace("B of", "B of " * 3_000),
        LISTING + "a +\n" * 200_000,
    ],
    ids=range(14),
)
def test_hostile_texts_get_diagnostics(text: str) -> None:
    assert all("error:" in found for found in complaints(text))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_mutilated_text_parses_or_is_refused(data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(LISTING) - 1))
    length = data.draw(st.integers(0, 12))
    text = LISTING[:at] + data.draw(st.text(max_size=3)) + LISTING[at + length :]
    try:
        spmd = parsed(text)
    except InputError as error:
        assert error.diagnostics
    else:
        # What is defined twice is for the verifier to refuse, and not to be printed.
        if len({v.name for v in spmd.values}) == len(spmd.values):
            assert parsed(print_spmd(spmd)) == spmd


def test_the_longest_expression_that_parses_prints_and_verifies() -> None:
    chain = " + ".join(["x"] * 201)
    spmd = parsed(f'sharded "t" p on x=1\nsizes B=4\ninput x: f32 B\ny f32 B = {chain}\nreturn y\n')
    verify(spmd)
    assert parsed(print_spmd(spmd)) == spmd
    for nested in ("(" * 100 + "x" + ")" * 100, "exp(" * 100 + "x" + ")" * 100, "-" * 100 + "x"):
        assert parsed(f'sharded "t" p on x=1\nsizes B=4\ninput x: f32 B\ny f32 B = {nested}\nreturn y\n')


def test_expression_errors_say_where() -> None:
    with pytest.raises(ExprError) as error:
        ExprParser("a + silv(b)").expression()
    assert (error.value.at, error.value.length, error.value.hint) == (4, 4, "did you mean `silu`?")


def test_steps_called_after_one_fold_into_it_unless_some_run_as_one() -> None:
    text = """sharded "a" run on x=2
sizes B=4 E=8
input x: f32 BE
n.sum f32 B = x[B,E]
n f32 BE = x / n.sum
m.sum f32 B = n[B,E]
+ m f32 BE = n * m.sum
return m
"""
    spmd = parse_spmd(Source("a", text))
    assert {name: fold.within for name, fold in folded(spmd).items()} == {"n": ("n.sum",)}
    printed = print_spmd(spmd, {"n.sum": "0.5 us", "n": "1 us"}, folded(spmd))
    assert "n.sum" not in printed and "{sum}(x)" in printed and "# 0.5 us, 1 us" in printed
    assert "m.sum" in printed
