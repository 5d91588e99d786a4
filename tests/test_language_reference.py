"""The reference of the language: every example in it compiles, and its tables are those of the code."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from lark import Lark

from escc.compiler.plan.pipeline import compile_phases
from escc.compiler.simulate.pointwise import Array
from escc.compiler.simulate.reference import random_stored, run_reference
from escc.cost.hardware import Hardware
from escc.ir.diagnostics import InputError, Source
from escc.ir.dtype import Dtype
from escc.ir.layout import parse_layout
from escc.ir.mesh import Mesh
from escc.ir.program import Program
from escc.ir.text import read as parser
from escc.ir.text import tokens
from escc.ir.text.pins import parse_pins, parse_places
from escc.ir.text.read import parse
from escc.passes.expansion import blocks, body, dims
from escc.passes.expansion.body import FLOATS
from escc.passes.expansion.declared import QUANTISED
from escc.passes.expansion.expand import expand
from escc.passes.expansion.functions import FUNCTIONS, KEYWORD_VALUES, OTHERWISE, Entry, Otherwise, entries, otherwise
from escc.passes.expansion.keywords import KEYWORDS
from escc.passes.options import Options

ROOT = Path(__file__).parent.parent
PATH = ROOT / "docs" / "language.md"
TEXT = PATH.read_text(encoding="utf-8")


@dataclass(frozen=True)
class Example:
    """A code block: what stands behind its first fence, the text, and the line of the file where it begins."""

    kind: str
    text: str
    line: int


def _examples() -> Iterator[Example]:
    for match in re.finditer(r"^```(.*)\n((?:.*\n)*?)```$", TEXT, flags=re.MULTILINE):
        yield Example(match[1], match[2], TEXT.count("\n", 0, match.start()) + 2)


EXAMPLES = tuple(_examples())
LINES, FRAME = "esti lines", "esti frame"
MODELS = ("esti", "esti check", FRAME)
KINDS = {*MODELS, LINES, "pins", "layouts", "esti wrong", "text", "grammar"}


def of(*kinds: str) -> list[Example]:
    return [one for one in EXAMPLES if one.kind in kinds]


def expanded(text: str) -> Program:
    source = Source("model.esti", text)
    return expand(parse(source), source)


def framed(lines: str) -> str:
    """Lines in the place that the document's frame keeps for them."""
    (frame,) = of(FRAME)
    assert frame.text.count("  # lines\n") == 1
    return frame.text.replace("  # lines\n", lines)


def before(example: Example, *kinds: str) -> Example:
    """The last example of some kinds that stands above another."""
    return [one for one in of(*kinds) if one.line < example.line][-1]


# The examples


def test_every_block_is_of_a_kind_that_is_tested() -> None:
    assert {one.kind for one in EXAMPLES} == KINDS
    assert TEXT.count("```") == 2 * len(EXAMPLES)


@pytest.mark.parametrize("example", of(*MODELS), ids=lambda one: str(one.line))
def test_a_model_expands(example: Example) -> None:
    assert expanded(example.text).results


@pytest.mark.parametrize("example", of(LINES), ids=lambda one: str(one.line))
def test_lines_expand_within_the_frame(example: Example) -> None:
    without = len(expanded(framed("")).values)
    assert len(expanded(framed(example.text)).values) > without


@pytest.mark.parametrize("example", of("pins"), ids=lambda one: str(one.line))
def test_pins_fit_the_model_before_them(example: Example) -> None:
    program, file = expanded(before(example, *MODELS).text), Source("file.pins", example.text)
    pins, places = parse_pins(file, program), parse_places(file, program)
    assert pins and places and len(pins) + len(places) == len(example.text.splitlines())


@pytest.mark.parametrize("example", of("layouts"), ids=lambda one: str(one.line))
def test_layouts_parse(example: Example) -> None:
    for line in example.text.splitlines():
        names, layout = parse_layout(line.split("#")[0])
        assert len(names) == len(layout.dims) > 0


@pytest.mark.parametrize("example", of("esti wrong"), ids=lambda one: str(one.line))
def test_what_is_wrong_is_said_as_shown(example: Example, update_golden: bool) -> None:
    with pytest.raises(InputError) as caught:
        expanded(example.text)
    shown = next(one for one in of("text") if one.line > example.line)
    said = str(caught.value) + "\n"
    if update_golden:
        PATH.write_text(PATH.read_text(encoding="utf-8").replace(shown.text, said), encoding="utf-8")
    else:
        assert said == shown.text


@pytest.mark.parametrize("example", of("esti check"), ids=lambda one: str(one.line))
def test_a_whole_model_is_planned_and_runs(example: Example) -> None:
    program = expanded(example.text)
    phases = [phase.name for phase in program.phases]
    options = Options(Hardware.of_paper("tpu-v4"))
    for compiled in compile_phases(program, phases, Mesh.parse("2x2"), options, run=True):
        assert compiled.checked is not None and compiled.checked.equal
        assert compiled.checked.max_error <= 1e-9


# The tables, from the code


def _row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |\n"


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    return _row(*head) + "|---" * len(head) + "|\n" + "".join(_row(*row) for row in rows)


def functions_text() -> str:
    """Every function with how it is called, then every keyword."""
    rows = [(f"`{one.call}`", one.meaning) for one in entries()]
    words = [(f"`{word.example}`", _takers(name), word.meaning) for name, word in KEYWORDS.items()]
    return _table(("function", "gives"), rows) + "\n" + _table(("keyword", "of", "says"), words)


def otherwise_text() -> str:
    """What has names elsewhere alone, and how it is written here."""
    rows = [(", ".join(f"`{name}`" for name in one.names), one.code) for one in OTHERWISE]
    return _table(("elsewhere", "here"), rows)


def _takers(keyword: str) -> str:
    return ", ".join(f"`{one.name}`" for one in entries() if keyword in one.required + one.allowed)


def dtypes_text() -> str:
    """Every dtype, its width, and what it is for."""

    def use(dtype: Dtype) -> str:
        if dtype in FLOATS:
            return "a float, computed with"
        if dtype is Dtype.E8M0:
            return "powers of two, the scales of quantised values"
        return "quantised values, with a scale or without" if dtype in QUANTISED.values() else "ids"

    return _table(("dtype", "bits", "for"), [(f"`{d.value}`", str(d.bits), use(d)) for d in Dtype])


def limits_text() -> str:
    """What a file may hold at most."""
    rows = [
        ("bytes of a file", f"{parser.MAX_BYTES:,}"),
        ("words and signs of a file", f"{tokens.MAX_TOKENS:,}"),
        ("characters of a name, a number or a title", f"{tokens.MAX_NAME}"),
        ("brackets open at once", f"{tokens.MAX_NESTING}"),
        ("operators of a statement", f"{tokens.MAX_OPERATORS}"),
        ("dims of a file", f"{dims.MAX_DIMS:,}"),
        ("dims of a value", f"{dims.MAX_RANK}"),
        ("phases of a file", f"{dims.MAX_PHASES}"),
        ("the size of a dim, and `calls`", _power(dims.MAX_SIZE)),
        ("elements of a value", _power(dims.MAX_ELEMENTS)),
        ("places that ids or contexts count", f"{dims.MAX_PLACES:,}"),
        ("repetitions of a block", f"{blocks.MAX_COUNT:,}"),
        ("calls nested in each other", f"{blocks.MAX_DEPTH}"),
        ("values of the expanded program", f"{body.MAX_VALUES:,}"),
    ]
    return _table(("", "at most"), rows)


def _power(number: int) -> str:
    assert number.bit_count() == 1
    return f"2^{number.bit_length() - 1}"


def grammar_text() -> str:
    """The rules of the grammar file without the marks that only its parser reads, and the words that it keeps."""
    grammar = (ROOT / "ir" / "text" / "grammar.lark").read_text(encoding="utf-8")
    rules = [line for line in grammar.splitlines() if re.match(r"_?[a-z_]+:|$", line)]
    text = "\n".join(rules).strip("\n")
    text = re.sub(r"\(_item \(_NL _item\)\*\)\?", "item*", text)
    text = re.sub(r"\(_line \(_NL _line\)\*\)\?", "line*", text)
    text = text.replace('("," | _NL)', '[","]').replace("?:", ":")
    text = re.sub(r"\b_([a-z]+)", r"\1", text)
    literal = {name: f'"{word}"' for name, word in reserved().items()}
    text = re.sub(r"\b[A-Z]{2,}\b", lambda m: literal.get(m[0], m[0]), text)
    assert not re.search(r"\b_|_NL", text)
    words = ", ".join(sorted(reserved().values()))
    return f"```grammar\n{text}\n```\n\nThese words are no names: {words}.\n"


def reserved() -> dict[str, str]:
    """The words that the grammar keeps for itself, by the names of their terminals."""
    lark = Lark((ROOT / "ir" / "text" / "grammar.lark").read_text(encoding="utf-8"), start="model", parser="lalr")
    spelled = {one.name: str(one.pattern.value) for one in lark.terminals if one.pattern.type == "str"}
    return {name: word for name, word in spelled.items() if word.isalpha()}


PARTS: dict[str, Callable[[], str]] = {
    "functions": functions_text,
    "otherwise": otherwise_text,
    "dtypes": dtypes_text,
    "limits": limits_text,
    "grammar": grammar_text,
}


@pytest.mark.parametrize("name", PARTS)
def test_a_part_is_what_the_code_says(name: str, update_golden: bool) -> None:
    text, start, end = PATH.read_text(encoding="utf-8"), f"<!-- {name} -->\n", f"<!-- /{name} -->"
    assert text.count(start) == text.count(end) == 1
    first, last = text.index(start) + len(start), text.index(end)
    wanted = PARTS[name]()
    if update_golden:
        PATH.write_text(text[:first] + wanted + text[last:], encoding="utf-8")
    else:
        assert text[first:last] == wanted, "run the tests with --update-golden"


def test_every_function_and_keyword_is_listed_and_some_example_uses_it() -> None:
    every: dict[str, Entry] = {one.name: one for one in entries()}
    assert set(every) == FUNCTIONS | set(KEYWORD_VALUES)
    assert {word for one in every.values() for word in one.required + one.allowed} == set(KEYWORDS)
    models = "".join(one.text for one in of("esti", "esti check", LINES))
    used = set(re.findall(r"\b([a-z_0-9]+)\(", models)) | set(re.findall(r"[(,] ?([a-z]+)=", models))
    with_more = {one.name for one in every.values() if one.required or one.allowed or one.into}
    assert (with_more | set(KEYWORDS) | {"causal", "size", "context"}) <= used


GIVEN = """  y = x * 2
  param W, W2: bf16[E,F]
  param f: bf16[F]
  param table: bf16[V,E]
  cache keys, values: bf16[B,M,K,Q]
  param Wr: bf16[E,X]
  scores[B,L,X] = x[B,L,E] * Wr[E,X]
  param mask: bf16[B,L]
  param kept: bf16[B,M]
  param slopes: f32[H]
"""


@pytest.mark.parametrize("one", OTHERWISE, ids=lambda one: one.names[0])
def test_what_is_written_otherwise_expands(one: Otherwise) -> None:
    lines = [line for line in one.lines if not line.startswith("dim ")]
    text = "".join(
        f"  {line}\n" if re.match(r"\w+(: \w+)?(\[.*?\])? = ", line) else f"  r = {line}\n" for line in lines
    )
    assert expanded(framed(GIVEN + text)).results


MEANT: dict[str, Callable[[Array], Array]] = {
    "softcap": lambda x: 30 * np.tanh(x / 30),
    "clip": lambda x: np.clip(x, -7, 7),
    "swish": lambda x: x / (1 + np.exp(-x)),
    "quick_gelu": lambda x: x / (1 + np.exp(-1.702 * x)),
    "relu2": lambda x: np.where(x > 0, x * x, 0),
    "relu6": lambda x: np.clip(x, 0, 6),
    "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x),
    "softplus": lambda x: np.logaddexp(0, x),
    "mish": lambda x: x * np.tanh(np.logaddexp(0, x)),
    "glu": lambda x: 2 * x / (1 + np.exp(-x)),
    "reglu": lambda x: np.where(x > 0, 2 * x * x, 0),
    "pow": lambda x: x**3,
    "min": lambda x: x.min(-1),
    "variance": lambda x: x.var(-1),
    "std": lambda x: x.std(-1),
    "l2norm": lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True),
    "logsumexp": lambda x: np.logaddexp.reduce(x, axis=-1),
    "log_softmax": lambda x: x - np.logaddexp.reduce(x, axis=-1)[..., None],
    "transpose": lambda x: x.swapaxes(0, 1),
}


@pytest.mark.parametrize("name", MEANT)
def test_what_is_written_otherwise_means_what_its_name_says(name: str) -> None:
    (one,) = [one for one in OTHERWISE if name in one.names]
    *lines, last = one.lines
    result = last if re.match(r"\w+\[.*?\] = ", last) else f"t = {last}"
    text = framed("".join(f"  {line}\n" for line in ("y = x * 2", *lines, result)))
    program = expanded(text.replace("return x", "return t"))
    sizes = dict(program.phases[0].sizes)
    stored = random_stored(program, sizes, seed=0)
    stored["x"] *= 300  # beyond what exp can take
    (result,) = program.results
    with np.errstate(over="ignore"):
        meant = MEANT[name](stored["x"])
    np.testing.assert_allclose(run_reference(program, sizes, stored)[result], meant, atol=1e-9)


def test_what_is_written_otherwise_has_no_name_here() -> None:
    names = [name for one in OTHERWISE for name in one.names]
    assert len({name.replace("_", "") for name in names}) == len(names)
    assert not {*names} & {*FUNCTIONS, *KEYWORD_VALUES}
    assert otherwise("Soft_Cap") == otherwise("softcap") != otherwise("softmax") is None


def test_every_reserved_word_is_refused_as_a_name() -> None:
    for word in reserved().values():
        with pytest.raises(InputError):
            expanded(f"dim {word} = 4\nmain(x: bf16[{word}]) {{ return x }}")


def test_every_word_that_a_plan_marks_is_in_the_glossary() -> None:
    glossary = TEXT.split("## Glossary")[1]
    kinds = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all", "permute", "slice", "embed")
    signs = ("`+`", "`~`", "copies", "partial sum", "among zeros", "flat", "links", "calls", "MFU", "bound", "gap")
    words = (*kinds, *signs, "live", "padding", "phase", "objective", "handover")
    rows = [line.split(" | ")[0] for line in glossary.splitlines()]
    assert [word for word in words if not any(word in row for row in rows)] == []
