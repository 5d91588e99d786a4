"""The parser: what the text means, how errors are found, and inputs meant to break it."""

from pathlib import Path

import pytest

from escc.ir.diagnostics import InputError, Source
from escc.ir.program import Kind
from escc.ir.text.read import parse, read_source
from escc.ir.text.surface import (
    Binary,
    Block,
    Call,
    Declaration,
    Dims,
    Expr,
    Indexed,
    Into,
    Main,
    Model,
    Name,
    Negate,
    Number,
    PhaseText,
    Repeated,
    Return,
    Statement,
    Title,
)


def read(text: str) -> Model:
    return parse(Source("test.esti", text))


def expression(text: str) -> str:
    """The tree of an expression, fully bracketed."""
    (main,) = read(f"main() {{ return {text} }}").items
    assert isinstance(main, Main)
    (line,) = main.lines
    assert isinstance(line, Return)
    return bracketed(line.values[0])


def bracketed(node: Expr | Into | Repeated) -> str:
    match node:
        case Number(value):
            return f"{value:g}"
        case Name(name):
            return name
        case Negate(operand):
            return f"(-{bracketed(operand)})"
        case Binary(operator, left, right):
            return f"({bracketed(left)}{operator}{bracketed(right)})"
        case Indexed(value, indices):
            return f"{value.name}[{' '.join(i.name for i in indices)}]"
        case Into(source, target):
            return f"{source.name}>{target.name}"
        case Call(function, arguments, keywords):
            return f"{function.name}({' '.join(map(bracketed, arguments))};{' '.join(k.name.name for k in keywords)})"
        case Repeated(count, call):
            return f"{count}x{bracketed(call)}"


def errors(text: str) -> list[str]:
    with pytest.raises(InputError) as caught:
        read(text)
    return [f"{d.span.line}:{d.span.column} {d.message}" for d in caught.value.diagnostics if d.span]


def test_items_of_a_file() -> None:
    model = read(
        """
        model "tiny"   # a comment
        dim B, E = 8, H = 48 pad 64
        dim K, G
        dim J = K * G, S = B
        param W, V: int8[E, J] @ E_xKG
        block f(a: bf16[B,E], b: f32[]) -> bf16[B,E], f32[] { return a, b }
        main(x: bf16[B,E]) { return x }
        phase p { B = 4, calls = 2
                  K = 1 }
        """
    )
    title, dims, free, derived, declaration, block, main, phase = model.items
    assert isinstance(title, Title) and title.name == "tiny"
    assert isinstance(dims, Dims) and isinstance(free, Dims) and isinstance(derived, Dims)
    assert [(d.name.name, d.size, d.pad) for d in dims.dims] == [("B", None, None), ("E", 8, None), ("H", 48, 64)]
    assert [(d.name.name, [f.name for f in d.factors]) for d in derived.dims] == [("J", ["K", "G"]), ("S", ["B"])]
    assert isinstance(declaration, Declaration) and declaration.kind is Kind.PARAM
    assert [n.name for n in declaration.names] == ["W", "V"]
    assert declaration.pin is not None and declaration.pin.text == "E_xKG"
    assert isinstance(block, Block) and [p.name.name for p in block.parameters] == ["a", "b"]
    assert [len(r.dims) for r in block.results] == [2, 0]
    assert isinstance(main, Main) and main.parameters[0].pin is None
    assert isinstance(phase, PhaseText)
    assert [(b.name.name, b.value) for b in phase.bindings] == [("B", 4), ("calls", 2), ("K", 1)]


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("a + b - c", "((a+b)-c)"),
        ("a - (b - c)", "(a-(b-c))"),
        ("a * b + c / d", "((a*b)+(c/d))"),
        ("-a * b", "((-a)*b)"),
        ("-(a * b)", "(-(a*b))"),
        ("--a", "(-(-a))"),
        ("+a", "a"),
        ("2.5e-3 * x", "(0.0025*x)"),
        ("f(a + 1, L into M, over=E, mask=causal(L, M))", "f((a+1) L>M;over mask)"),
        ("f(over=E, a)", "f(a;over)"),
        ("q[B, L] * W[]", "(q[B L]*W[])"),
        ("repeat 118 layer(x)", "118xlayer(x;)"),
        ("(\n a\n +\n b\n)", "(a+b)"),
    ],
)
def test_expressions(text: str, tree: str) -> None:
    assert expression(text) == tree


def test_targets_and_pins() -> None:
    (main,) = read(
        """main() {
          a = x
          b: f32 = x
          c[B,L] @ B_xL partialsum-y = x
          d: f32[B] @ [batch, d_model/node.x] = x
          e, f = g(x,
                   y)
        }"""
    ).items
    assert isinstance(main, Main)
    found = []
    for line in main.lines:
        assert isinstance(line, Statement)
        for t in line.targets:
            indices = None if t.indices is None else [i.name for i in t.indices]
            found.append((t.name.name, t.dtype and t.dtype.name, indices, t.pin and t.pin.text))
    assert found == [
        ("a", None, None, None),
        ("b", "f32", None, None),
        ("c", None, ["B", "L"], "B_xL partialsum-y"),
        ("d", "f32", ["B"], "[batch, d_model/node.x]"),
        ("e", None, None, None),
        ("f", None, None, None),
    ]


def test_spans_point_at_what_was_written() -> None:
    (main,) = read("main() {\n  total = silu(gate) * up\n}").items
    assert isinstance(main, Main)
    (line,) = main.lines
    assert isinstance(line, Statement) and isinstance(line.value, Binary)
    assert (line.span.line, line.span.column, line.span.length) == (2, 3, 23)
    assert (line.value.left.span.column, line.value.left.span.length) == (11, 10)
    assert (line.value.right.span.column, line.value.right.span.length) == (24, 2)


def test_models_are_equal_wherever_they_stand() -> None:
    assert read("dim B\nmain() { return x }") == read("\n\n  dim   B # one\n\n\nmain() {\n return x\n\n}\n")
    assert read("dim B") != read("dim C")


def test_every_statement_with_a_syntax_error_is_reported() -> None:
    found = errors("dim B = = 4\nmain() {\n  a = +\n  b = c\n  d = )\n  return a a\n}\nphase { }")
    assert [e.split()[0] for e in found] == ["1:9", "3:8", "5:7", "6:12", "8:7"]


def test_an_open_bracket_is_named() -> None:
    with pytest.raises(InputError) as caught:
        read("main() {\n  a = f(b\n  c = d\n}")
    (finding,) = caught.value.diagnostics
    assert finding.hint == "the `(` at 2:8 is still open"


BOMBS = {
    "parentheses": "main() { return " + "(" * 100_000 + "x" + ")" * 100_000 + " }",
    "brackets": "[" * 900_000,
    "calls": "main() { return " + "f(" * 100_000 + "x" + ")" * 100_000 + " }",
    "signs": "main() { return " + "- " * 100_000 + "x }",
    "products": "main() { return " + "x * " * 100_000 + "x }",
    "sums": "main() { return " + "x + " * 100_000 + "x }",
    "one long name": "a" * 900_000,
    "one long number": "dim B = " + "9" * 900_000,
    "one long line": "dim " + ", ".join(f"D{i}" for i in range(90_000)),
    "quotes": '"' * 900_000,
    "pins": "@" * 900_000,
    "newlines": "\n" * 900_000,
    "comment": "#" * 900_000,
    "errors": "main() {\n" + "  x = = y\n" * 9_000 + "}",
    "open blocks": "block f() {\n" * 9_000,
    "too large a number": "main() { return x + 1e999 }",
    "controls": "dim B\x01\x7f\u2028",
    "empty": "",
    "blank": " \n\t\n # nothing\n",
}


@pytest.mark.parametrize("name", BOMBS)
def test_hostile_input_is_a_diagnostic(name: str) -> None:
    assert 1 <= len(errors(BOMBS[name])) <= 20


def test_limits_leave_room() -> None:
    assert expression("(" * 60 + "x" + ")" * 60) == "x"
    assert expression(" + ".join("x" * 100)).count("x") == 100
    assert expression("f(" * 60 + "x" + ")" * 60).count("f") == 60


def test_read_source(tmp_path: Path) -> None:
    good = tmp_path / "good.esti"
    good.write_text("dim B\r\nmain() { return x }\n", encoding="utf-8-sig", newline="")
    source = read_source(good)
    assert source.name == str(good)
    assert parse(source) == read("dim B\nmain() { return x }")


def test_read_source_refuses_what_is_no_text(tmp_path: Path) -> None:
    cases: dict[str, bytes] = {
        "larger than 1 MB": b" " * 1_000_001,
        "NUL bytes": b"dim B\0",
        "not UTF-8": b"dim \xff\xfe",
    }
    for message, data in cases.items():
        path = tmp_path / "bad.esti"
        path.write_bytes(data)
        with pytest.raises(InputError, match=message):
            read_source(path)
    for mark in (b"", b"\xef\xbb\xbf"):  # with the mark that some editors begin a file with, and without
        path.write_bytes(mark + "# é\ndim é, ".encode() + b"\xe9 = 4\n")
        with pytest.raises(InputError, match=r"bad\.esti:2:8: error: The file is not UTF-8 text: byte 0xe9"):
            read_source(path)
    with pytest.raises(InputError, match="not a file"):
        read_source(tmp_path)
    with pytest.raises(InputError, match="does not exist"):
        read_source(tmp_path / "missing.esti")
    with pytest.raises(InputError, match="cannot be read"):
        read_source(tmp_path / ("long" * 1000))
    with pytest.raises(InputError, match="cannot be read"):
        read_source(Path("null\0byte"))
