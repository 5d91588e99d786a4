"""Parsing: parse(print(model)) is the model, print(parse(text)) is stable."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_text import print_model

from escc.ir.diagnostics import Source, Span
from escc.ir.program import Kind
from escc.ir.text.read import parse, read_source
from escc.ir.text.surface import (
    Binary,
    Binding,
    Block,
    Call,
    Declaration,
    Dim,
    DimList,
    Dims,
    Expr,
    Ident,
    Indexed,
    Into,
    Keyword,
    LayoutText,
    Main,
    Model,
    Name,
    Negate,
    Number,
    Parameter,
    PhaseText,
    Repeated,
    Return,
    Statement,
    Target,
    Title,
    Type,
)

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.esti"))
HERE = Span(1, 1)

names = st.sampled_from(["B", "E", "x", "d_model", "W1", "over", "calls", "at"])
idents = names.map(lambda n: Ident(n, HERE))
lists = st.lists(idents, max_size=3).map(tuple)
numbers = st.one_of(
    st.integers(0, 10**12).map(float),
    st.floats(min_value=0, allow_nan=False, allow_infinity=False),
).map(lambda v: Number(v, HERE))
intos = st.builds(Into, idents, idents, st.just(HERE))
pins = st.none() | st.sampled_from(["BLE_x", "B_xy", "[a, b/x.y] partialmax-z"]).map(lambda t: LayoutText(t, HERE))
types = st.builds(Type, idents, lists, st.just(HERE))


def calls(children: st.SearchStrategy[Expr]) -> st.SearchStrategy[Call]:
    values = children | intos | st.builds(DimList, lists, st.just(HERE))
    keywords = st.lists(st.builds(Keyword, idents, values), max_size=2).map(tuple)
    return st.builds(Call, idents, st.lists(children | intos, max_size=3).map(tuple), keywords, st.just(HERE))


def bigger(children: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    return st.one_of(
        st.builds(Negate, children, st.just(HERE)),
        st.builds(Binary, st.sampled_from("+-*/"), children, children, st.just(HERE)),
        calls(children),
    )


leaves: st.SearchStrategy[Expr] = st.one_of(
    numbers, names.map(lambda n: Name(n, HERE)), st.builds(Indexed, idents, lists, st.just(HERE))
)
expressions = st.recursive(leaves, bigger, max_leaves=12)
rights = expressions | st.builds(Repeated, st.integers(0, 999), calls(expressions), st.just(HERE))
declarations = st.builds(
    Declaration,
    st.sampled_from([Kind.PARAM, Kind.CACHE]),
    st.lists(idents, min_size=1, max_size=3).map(tuple),
    types,
    pins,
)
targets = st.builds(Target, idents, st.none() | idents, st.none() | lists, pins)
lines = st.one_of(
    declarations,
    st.builds(Statement, st.lists(targets, min_size=1, max_size=2).map(tuple), rights, st.just(HERE)),
    st.builds(Return, st.lists(rights, min_size=1, max_size=2).map(tuple), st.just(HERE)),
)
bodies = st.lists(lines, max_size=4).map(tuple)
parameters = st.lists(st.builds(Parameter, idents, types, pins), max_size=2).map(tuple)
results = st.lists(types, max_size=2).map(tuple)
dims = st.one_of(
    st.builds(Dim, idents),
    st.builds(Dim, idents, st.integers(0, 10**30), st.none() | st.integers(0, 99)),
    st.builds(Dim, idents, factors=st.lists(idents, min_size=1, max_size=3).map(tuple)),
)
bindings = st.lists(st.builds(Binding, idents, st.integers(0, 10**30), st.just(HERE)), max_size=3).map(tuple)
items = st.one_of(
    st.builds(Title, st.sampled_from(["palm-540b", "a # b", ""]), st.just(HERE)),
    st.lists(dims, min_size=1, max_size=3).map(tuple).map(Dims),
    declarations,
    st.builds(Block, idents, parameters, results, bodies),
    st.builds(Main, parameters, results, bodies, st.just(HERE)),
    st.builds(PhaseText, idents, bindings),
)
models = st.lists(items, min_size=1, max_size=4).map(tuple).map(Model)


@given(models)
@settings(max_examples=300, deadline=None)
def test_generated_models_round_trip(model: Model) -> None:
    text = print_model(model)
    again = parse(Source("printed", text))
    assert again == model
    assert print_model(again) == text


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_examples_round_trip(path: Path) -> None:
    model = parse(read_source(path))
    text = print_model(model)
    again = parse(Source("printed", text))
    assert again == model
    assert print_model(again) == text


def test_there_are_examples() -> None:
    assert {"feed-forward", "palm-540b", "palm-540b-plain", "megatron-530b"} <= {p.stem for p in EXAMPLES}


def test_the_plain_form() -> None:
    text = """\
model "tiny"

dim B, L
dim E = 8, H = 48 pad 64, J = K * G, N = K * G pad 12

param W: bf16[E,E] @ E_xE

block f(x: bf16[B,L,E]) -> bf16[B,L,E] {
  cache c: bf16[B]

  y[B,L] = x[B,L,E] * W[E,E]
  p: f32 @ BL_x = softmax(y / (2 - -1e-06) / 3, over=[B,L], at=L into M)
  a, b = g(x, 1 - (2 - 3))
  return x + y, p
}

main(x: bf16[B,L,E] @ BLE) {
  return repeat 3 f(x)
}

phase one { B = 4, L = 1, calls = 2 }
phase two { }
"""
    assert print_model(parse(Source("t", text))) == text
