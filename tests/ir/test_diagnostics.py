"""What a reader sees for wrong input: golden files, rewritten by `pytest --update-golden`."""

from pathlib import Path

import pytest

from escc.ir.diagnostics import Diagnostic, InputError, Source, Span
from escc.ir.text.pins import parse_pins
from escc.ir.text.read import parse
from escc.passes.expansion.expand import expand

GOLDEN = Path(__file__).parents[1] / "golden" / "diagnostics"
CASES = sorted(path for path in GOLDEN.iterdir() if path.suffix in {".esti", ".pins"})
PINNED = """
dim B = 4, L = 2, E = 8, F = 16
block layer(x: bf16[B,L,E]) -> bf16[B,L,E] {
  param Wi: bf16[E,F]
  param Wd: bf16[F,E]
  u[B,L,F] = x[B,L,E] * Wi[E,F]
  d[B,L,E] = u[B,L,F] * Wd[F,E]
  return d
}
main(x: bf16[B,L,E]) { return repeat 3 layer(x) }
"""


def rendered(path: Path) -> str:
    """Every finding about a file, as text."""
    source = Source(path.name, path.read_text(encoding="utf-8"))
    with pytest.raises(InputError) as caught:
        if path.suffix == ".pins":
            model = Source("model.esti", PINNED)
            parse_pins(source, expand(parse(model), model))
        else:
            expand(parse(source), source)
    return str(caught.value) + "\n"


@pytest.mark.parametrize("path", CASES, ids=lambda p: p.name)
def test_golden(path: Path, update_golden: bool) -> None:
    expected = path.with_suffix(".txt")
    found = rendered(path)
    if update_golden:
        expected.write_text(found, encoding="utf-8")
    assert found == expected.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", CASES, ids=lambda p: p.name)
def test_findings_come_in_source_order_and_say_what_is_wrong_once(path: Path) -> None:
    source = Source(path.name, path.read_text(encoding="utf-8"))
    with pytest.raises(InputError) as caught:
        if path.suffix == ".pins":
            model = Source("model.esti", PINNED)
            parse_pins(source, expand(parse(model), model))
        else:
            expand(parse(source), source)
    findings = caught.value.diagnostics
    places = [(d.span.line, d.span.column) for d in findings if d.span]
    assert places == sorted(places) and len(places) == len(findings)
    assert len({(p, d.message) for p, d in zip(places, findings, strict=True)}) == len(findings)
    assert all(d.message.endswith(".") for d in findings)


def test_golden_files_have_a_case_each() -> None:
    assert {p.stem for p in GOLDEN.glob("*.txt")} == {p.stem for p in CASES}


def test_a_finding_renders_its_place() -> None:
    source = Source("f.esti", "one\n\ttwo three\nfour")
    finding = Diagnostic("It is wrong.", Span(2, 6, 5), "mend it", source)
    assert finding.render() == (
        "f.esti:2:6: error: It is wrong.\n    2 |  two three\n      |      ^^^^^\n  hint: mend it"
    )


def test_long_lines_are_cut_around_the_caret() -> None:
    source = Source("f.esti", "a" * 500 + "X" + "b" * 500)
    text = Diagnostic("Here.", Span(1, 501, 1), None, source).render().split("\n")
    assert len(text[1]) < 120
    assert text[1][text[2].index("^")] == "X"
