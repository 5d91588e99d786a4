"""Text of users made inert: what it says stays, and what it would do does not."""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from escc.ir.diagnostics import Diagnostic, InputError, Source, Span
from escc.ir.inert import comment, docstring, literal, one_each, visible
from escc.ir.text.read import parse, read_source

ANY = st.text(st.characters(codec=None) | st.sampled_from("\\\"'#\n\r\x0b\x0c\x1b\x85\u2028\u202e\u2066\ud800"))


@given(ANY)
def test_a_literal_is_the_text_and_plain(text: str) -> None:
    assert ast.literal_eval(literal(text)) == text
    assert literal(text).isascii() and literal(text).isprintable()


@given(ANY)
def test_a_comment_is_one_comment(text: str) -> None:
    source = f"a = 1\nb = 2  {comment(text)}\nc = 3\n"
    tokens = [t for t in tokenize.generate_tokens(io.StringIO(source).readline) if t.type == tokenize.COMMENT]
    assert [t.string for t in tokens] == [comment(text).rstrip()] or comment(text) != comment(text).rstrip()
    assert len(tokens) == 1 and len(ast.parse(source).body) == 3
    assert visible(text).replace("\u3000", " ").isprintable() or any(c.isspace() for c in visible(text))


@given(ANY)
def test_a_docstring_ends_where_it_should(text: str) -> None:
    [node] = ast.parse(f'"""{docstring(text)}."""').body
    assert isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    assert node.value.value == f"{docstring(text)}."


@given(ANY)
def test_an_excerpt_keeps_its_columns(text: str) -> None:
    assert len(one_each(text)) == len(text)
    assert visible(one_each(text)) == one_each(text)


@pytest.mark.parametrize("name", ["Größe 1", "模型", "a\u00a0b\u3000c", "e\u0301", ""])
def test_what_shows_itself_stays(name: str) -> None:
    assert visible(name) == name


@pytest.mark.parametrize(
    ("text", "shown"),
    [("\x1b[31m", "\\x1b[31m"), ("a\u202eb", "a\\u202eb"), ("\x9b", "\\x9b"), ("\ud800", "\\ud800"), ("\n", "\\n")],
)
def test_what_does_not_is_escaped(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_a_finding_moves_no_cursor_and_turns_no_text() -> None:
    source = Source("a\x1b.esti", "x = \u202e\x9b y")
    text = Diagnostic("What is `\x1b[2J`?", Span(1, 5), "not \u2066 this", source).render()
    assert text.split("\n") == [
        "a\\x1b.esti:1:5: error: What is `\\x1b[2J`?",
        "    1 | x = \ufffd\ufffd y",
        "      |     ^",
        "  hint: not \\u2066 this",
    ]


MODEL = "dim E = 4\nmain(x: f32[E]) { return x }\n"


@pytest.mark.parametrize(
    ("line", "column", "named"),
    [
        ("# a comment \u202e", 13, "U+202E (right-to-left override)"),
        ("dim F = 3 # \u2066", 13, "U+2066 (left-to-right isolate)"),
        ("# one\rdim Z = 3", 6, "U+000D"),
        ("# \x1b[2J", 3, "U+001B"),
        ("# \u2028", 3, "U+2028 (line separator)"),
        ('model "\x85"', 8, "U+0085"),
    ],
)
def test_a_file_that_hides_what_it_says_is_refused(line: str, column: int, named: str, tmp_path: Path) -> None:
    (tmp_path / "m.esti").write_text(f"{MODEL}{line}\n", encoding="utf-8", newline="")
    with pytest.raises(InputError) as caught:
        read_source(tmp_path / "m.esti")
    [found] = caught.value.diagnostics
    assert found.message == f"The file holds {named}, which hides what stands beside it."
    assert found.span == Span(3, column)


def test_a_file_of_another_system_or_language_is_read(tmp_path: Path) -> None:
    text = MODEL.replace("\n", "\r\n") + "# Größe \u05d0\u05d1 \u200d\tmodel\r\n"
    (tmp_path / "m.esti").write_text(text, encoding="utf-8", newline="")
    assert parse(read_source(tmp_path / "m.esti"))


def test_a_file_full_of_them_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "m.esti").write_text("\u202e" * 300_000, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_source(tmp_path / "m.esti")
    assert len(caught.value.diagnostics) == 20


@pytest.mark.parametrize("name", ["a\u202eb", "a\x1b[0mb", "a\ufeffb", "a\u200bb", "a\rb"])
def test_a_name_that_does_not_show_itself_is_refused(name: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(Source("m.esti", f'model "{name}"\n{MODEL}'))
    [found] = caught.value.diagnostics
    assert "The name in quotes holds U+" in found.message
    assert found.span == Span(1, 9)
