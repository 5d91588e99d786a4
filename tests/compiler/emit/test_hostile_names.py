"""Whatever a model is called, what is written of it is the same but for the name, and the name does nothing."""

from __future__ import annotations

import ast
import importlib.util
import io
import json
import tokenize
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from escc.compiler.emit.jax_source import emit_jax
from escc.compiler.emit.numpy_source import emit_numpy
from escc.compiler.emit.specs import specs_json, specs_module
from escc.compiler.plan.compiled import Compilation, CompiledPhase
from escc.compiler.plan.pipeline import compile_phases, load
from escc.compiler.plan.serving import Serving
from escc.compiler.report.json import json_text
from escc.compiler.report.page.render import frontier_page, plan_page
from escc.compiler.report.text import report
from escc.compiler.sweep.answers import Frontier
from escc.compiler.sweep.points import Record, Status, Sweep
from escc.compiler.sweep.sweep_text import draw
from escc.compiler.text.terminal import say
from escc.cost.hardware import Hardware
from escc.ir.diagnostics import Source
from escc.ir.dtype import Dtype
from escc.ir.inert import visible
from escc.ir.mesh import Mesh
from escc.ir.text.read_spmd import parse_spmd
from escc.ir.text.write_spmd import print_spmd
from escc.passes.options import Options

EXAMPLE = Path(__file__).parents[3] / "examples" / "feed-forward.esti"
PLAIN = "plain"
HOSTILE = [
    "coding: unicode_escape \\x0aprint('PWNED')#",
    "coding: nonesuch",
    "-*- coding: utf-7 -*-",
    '"""\nimport os\n"""',
    '\\"""; import os #',
    "'''; import os #",
    "a\nb",
    "a\rb\x0bc\x0cd\x1ce\x85f\u2028g\u2029h",
    "\x1b[2J\x1b]0;title\x07\x9b31m",
    "a \u202e b \u2066 c",
    "</style></script><script>alert(1)</script>",
    '" onload="alert(1)',
    "{{ 7 * 7 }}{% raw %}",
    "{0} {spmd} %s $x^2$",
    "\x00\ufeff\ufffe\ud800",
    "# type: ignore",
    "a" * 5000,
]


@cache
def plan() -> CompiledPhase:
    [one] = compile_phases(
        load(EXAMPLE),
        ("main",),
        Mesh.parse("2x2"),
        Options(Hardware.of_paper("tpu-v4")),
    )
    return one


def named(name: str) -> CompiledPhase:
    one = plan()
    return replace(one, program=replace(one.program, name=name), spmd=replace(one.spmd, name=name))


MODULES: dict[str, Callable[[str], str]] = {
    "numpy": lambda name: emit_numpy(named(name).program, named(name).spmd),
    "jax": lambda name: emit_jax(named(name).program, named(name).spmd, plan().estimate),
    "specs": lambda name: specs_module(named(name).spmd),
}


def code(text: str) -> str:
    """A module's syntax tree, less its docstring."""
    tree = ast.parse(text.encode())
    if ast.get_docstring(tree) is not None:
        tree.body = tree.body[1:]
    return ast.dump(tree)


@cache
def plain(target: str) -> tuple[str, str]:
    text = MODULES[target](PLAIN)
    return text, code(text)


def assert_inert(target: str, name: str) -> None:
    text = MODULES[target](name)
    expected, tree = plain(target)
    assert text.split("\n")[:2] == expected.split("\n")[:2]
    assert tokenize.detect_encoding(io.BytesIO(text.encode()).readline)[0] == "utf-8"
    assert visible(text, "\n") == text
    assert code(text) == tree


@pytest.mark.parametrize("target", MODULES)
@pytest.mark.parametrize("name", HOSTILE)
def test_a_module_is_the_same_but_for_the_name(target: str, name: str) -> None:
    assert_inert(target, name)


@settings(max_examples=20, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(st.text(st.characters(codec=None) | st.sampled_from("\\\"'#\n\r\x0c\x85\u2028codingCODING:=-*")))
@example("coding=utf-7")
def test_a_module_is_the_same_whatever_the_name(name: str) -> None:
    for target in ("jax", "numpy", "specs"):
        assert_inert(target, name)


def test_what_is_imported_runs_nothing_of_the_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, name in enumerate(HOSTILE):
        path = tmp_path / f"m{number}.py"
        path.write_text(MODULES["numpy"](name), encoding="utf-8")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        assert callable(module.sharded)
    assert capsys.readouterr() == ("", "")


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[object] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, attrs))

    def handle_endtag(self, tag: str) -> None:
        self.found.append(tag)


def tags(text: str) -> list[object]:
    reader = _Tags()
    reader.feed(text)
    return reader.found


@pytest.mark.parametrize("name", HOSTILE)
def test_a_page_is_the_same_but_for_the_name(name: str) -> None:
    page = plan_page(Compilation((named(name),)))
    assert tags(page) == tags(plan_page(Compilation((named(PLAIN),))))
    assert visible(page, "\n\t") == page
    sweep = frontier_page(name, Frontier((), "a step", name))
    assert tags(sweep) == tags(frontier_page(PLAIN, Frontier((), "a step", PLAIN)))
    assert visible(sweep, "\n\t") == sweep


@pytest.mark.parametrize("name", HOSTILE)
def test_data_and_text_keep_the_name_whole(name: str) -> None:
    one = named(name)
    assert json.loads(json_text(Compilation((one,)), ()))["model"] == name
    assert json.loads(specs_json(one.spmd))["model"] == name
    assert parse_spmd(Source("plan", print_spmd(one.spmd))).name == name
    assert len(report(one).split("\n")) == len(report(named(PLAIN)).split("\n"))


def test_standard_output_moves_no_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    say("a\x1b[2J\u202eb\tc\n")
    assert capsys.readouterr().out == "a\\x1b[2J\\u202eb\tc\n"


def picture(name: str) -> bytes:
    """The picture of a sweep of one point."""
    sweep = Sweep(
        Serving("B", ("L",), "M"), (Hardware.of_paper("tpu-v4"),), ("decode",), (Dtype.BF16,), (8,), (1,), (64,),
        source=Source(name, ""),
    )  # fmt: skip
    record = Record(sweep.points[0], Status.OPTIMAL, (), latency_s=1.0, chip_s_per_million=2.0)
    return draw(sweep, [record], "svg")


def test_a_picture_is_the_same_but_for_the_name() -> None:
    expected = [element.tag for element in ElementTree.fromstring(picture(PLAIN)).iter()]
    for name in ("\x1b[2J\x00\u202e\ufffe", "</svg><script>", "$x^2$"):
        assert [element.tag for element in ElementTree.fromstring(picture(name)).iter()] == expected
