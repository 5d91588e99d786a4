"""The tables that are kept of the grammar are those that lark makes of it, and are what is parsed by."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import lark
import pytest
from lark import lexer
from lark.utils import get_regexp_width

from escc.ir.text import grammar
from escc.ir.text.grammar import GRAMMAR, TABLES, made, parser, tables_text

TEXT = GRAMMAR.read_text(encoding="utf-8")


@pytest.fixture
def kept(update_golden: bool) -> Iterator[str]:
    """The version of lark whose tables are kept; the parser is asked for anew before and after."""
    if update_golden:
        TABLES.write_text(tables_text(TEXT), encoding="utf-8")
    parser.cache_clear()
    yield str(json.loads(TABLES.read_text(encoding="utf-8"))["lark"])
    parser.cache_clear()


def test_the_tables_are_those_of_the_grammar(kept: str) -> None:
    if lark.__version__ != kept:
        pytest.skip(f"the tables are of lark {kept}")
    assert TABLES.read_text(encoding="utf-8") == tables_text(TEXT), "the grammar has changed: --update-golden"


@pytest.mark.parametrize("bits", [32, 64])
def test_they_are_the_same_by_every_python(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number by which `re` says that there is no bound is 2 ** 32 - 1, and 2 ** 64 in some releases from 3.11.7."""
    found = tables_text(TEXT)
    unbounded = 2**32 - 1 if bits == 32 else 2**64

    def numbered(expr: str) -> tuple[int, int]:
        least, most = get_regexp_width(expr)
        return least, unbounded if most >= 2**32 - 1 else most

    monkeypatch.setattr(lexer, "get_regexp_width", numbered)
    assert tables_text(TEXT) == found


def test_none_are_made_where_they_are_kept(kept: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lark, "__version__", kept)
    monkeypatch.delattr(grammar, "made")
    text = 'model "a"\nmain(x: bf16[B]) { return f(x, over=B) + 1.5 }'
    assert parser().parse(text) == made(TEXT).parse(text)


@pytest.mark.parametrize(("version", "behind"), [("0.1", ""), (None, "\n// changed")], ids=["lark", "grammar"])
def test_they_are_made_where_something_has_changed(
    version: str | None, behind: str, kept: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    changed, asked = tmp_path / "grammar.lark", list[str]()
    changed.write_text(TEXT + behind, encoding="utf-8")
    monkeypatch.setattr(grammar, "GRAMMAR", changed)
    monkeypatch.setattr(lark, "__version__", version or kept)
    monkeypatch.setattr(grammar, "made", asked.append)
    parser()
    assert asked == [TEXT + behind]
