"""NaN and infinity are the model's: equal where both have them, named by op and chip, and never called a bug."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from helpers_exec import Build, call
from typer.testing import CliRunner

from escc.compiler.commands.main import app
from escc.compiler.emit.numpy_source import emit_numpy
from escc.compiler.simulate.check import check, largest_difference
from escc.compiler.simulate.check_report import ERROR_TOLERANCE
from escc.compiler.simulate.finite import NotFinite, Watch
from escc.compiler.simulate.reference import run_reference
from escc.ir.collective import AllReduce, Embed
from escc.ir.diagnostics import InputError
from escc.ir.expr import Const
from escc.ir.program import Einsum, Kind, Map, Program, Sum, Take
from escc.ir.spmd import SpmdProgram

RUN = CliRunner()
INF, NAN = np.inf, np.nan


def unpriced(spmd: SpmdProgram) -> tuple[Fraction, ...]:
    """No prediction of what a program sends that moves nothing."""
    assert spmd
    return ()


def compiled(body: str, folder: Path, *options: str) -> tuple[int, str, str]:
    (folder / "m.esti").write_text(f"dim E = 8\nmain(x: f32[E]) {{\n{body}\n}}\n")
    done = RUN.invoke(app, ["compile", str(folder / "m.esti"), "--chips", "2x2", "--check", *options])
    return done.exit_code, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("body", "first"),
    [
        ("return sqrt(x)", "`return` is NaN"),
        ("y = log(x)\nz[E] = y[E]\nreturn z", "`y` is NaN"),
        ("y = log(x)\nz = softmax(y, over=E)\nreturn z", "`y` is NaN"),
        ("return x / 0", "`return` is infinite"),
        ("return exp(exp(exp(x * 10)))", "`return` is infinite"),
        ("return power(x, 1e308)", "`return` is infinite"),
        ("y = x * (1 / 0)\nreturn argmax(y, over=E), y", "`y` is infinite"),
        ("y = log(x)\ns = sum(y, over=E)\nreturn x + s", "`y` is NaN"),
    ],
)
def test_what_the_model_makes_is_equal_and_named(body: str, first: str, tmp_path: Path) -> None:
    code, out, error = compiled(body, tmp_path)
    assert code == 0, error
    assert "equal to the reference, largest relative error 0.0e+00" in out
    assert f"{first} on chip x=" in out
    assert f"{first} on chip x=" in error and "warning:" in error


def test_data_say_it_too(tmp_path: Path) -> None:
    code, out, _ = compiled("y = log(x)\nreturn y", tmp_path, "--emit", "json")
    found = json.loads(out)["check"]
    assert code == 0
    assert (found["max_error"], found["not_finite"]["value"], found["not_finite"]["nan"]) == (0.0, "y", True)
    assert set(found["not_finite"]["chip"]) == {"x", "y"}


def test_a_mask_is_no_finding(tmp_path: Path) -> None:
    text = "dim L = 4, M = 8\nmain(s: f32[L,M]) { return softmax(s, over=M, mask=causal(L, M)) }\n"
    (tmp_path / "m.esti").write_text(text)
    done = RUN.invoke(app, ["compile", str(tmp_path / "m.esti"), "--chips", "2x2", "--check"])
    assert done.exit_code == 0
    assert "chip x=" not in done.stdout + done.stderr


def overflowing() -> tuple[Program, SpmdProgram]:
    """Infinity times the zeros of a partial sum: NaN on the chips and infinity in the model."""
    b = Build("2", E=4)
    b.stored("x", "E", Kind.INPUT, "f32")
    b.map("big", call("divide", 1.0, call("multiply", 0.0, "x")), "E", "f32")
    b.move("x'", "x", Embed(("x",)), "E partialsum-x")
    b.einsum("y", "E,E->E", "big", "x'", layout="E partialsum-x", dtype="f32")
    b.move("y'", "y", AllReduce(("x",)), "E")
    return b.program("y'"), b.spmd("y'")


def test_where_a_plan_makes_something_else_of_it_nothing_is_concluded() -> None:
    program, spmd = overflowing()
    with pytest.raises(InputError) as caught:
        check(program, spmd, lambda _: (Fraction(0), Fraction(0)))
    [found] = caught.value.diagnostics
    assert "do not stay finite, and results cannot be compared: `big` is infinite on chip x=0" in found.message


def test_a_plan_that_makes_nan_of_numbers_is_wrong() -> None:
    b = Build("2", E=4)
    b.stored("x", "E_x", Kind.INPUT, "f32")
    b.map("y", call("multiply", "x", 2.0), "E_x", "f32")
    spmd = b.spmd("y")
    [step] = spmd.body.items
    broken = replace(step, op=Map("y", call("multiply", "x", Const(NAN))))
    spmd = replace(spmd, body=replace(spmd.body, items=(broken,)))
    report = check(b.program("y"), spmd, unpriced)
    assert report.max_error == INF and not report.max_error <= ERROR_TOLERANCE


@pytest.mark.parametrize(
    ("actual", "expected", "apart"),
    [
        ([1.0, NAN, INF], [1.0, NAN, INF], 0.0),
        ([1.0, NAN], [2.0, NAN], 0.5),
        ([1.0, INF], [1.0, -INF], INF),
        ([1.0, 3.0], [1.0, NAN], INF),
        ([1.0, NAN], [1.0, 3.0], INF),
        ([INF, 1.0], [5.0, 1.0], INF),
        ([NAN], [NAN], 0.0),
        ([[1.0]], [1.0], INF),
    ],
)
def test_differences(actual: list[float], expected: list[float], apart: float) -> None:
    assert largest_difference(np.array(actual), np.array(expected)) == apart


def test_the_first_is_the_one_that_makes_it_of_finite_numbers() -> None:
    watch = Watch(("x",))
    finite, mask = np.ones((2, 2)), np.array([[1.0, 1.0], [-INF, 1.0]])
    watch.see(Map("masked", call("where", "a", float("-inf"), "a")), mask, {"a": finite})
    watch.see(Sum("more", ("masked",), (1.0,)), mask, {"masked": mask})
    assert watch.first is None
    watch.see(Einsum("y", ("a",), (("E",),), ("E",)), np.array([[1.0, 2.0], [3.0, INF]]), {"a": finite})
    watch.see(Map("z", call("log", "y")), np.array([[NAN, NAN], [NAN, NAN]]), {"y": mask})
    assert watch.first == NotFinite("y", False, (("x", 1),))
    assert watch.first.sentence == "`y` is infinite on chip x=1"


def test_what_is_too_large_for_a_type_counts_as_infinite() -> None:
    watch = Watch(largest={"y": 100.0})
    watch.see(Map("x", call("abs", "a")), np.array([1e30]), {"a": np.array([1e30])})
    watch.see(Map("y", call("abs", "a")), np.array([1e30]), {"a": np.array([1e30])})
    assert watch.first == NotFinite("y", False)
    assert watch.first.sentence == "`y` is infinite"


def test_ids_that_name_no_row_pick_zeros() -> None:
    program, spmd = _lookup()
    stored = {"w": np.arange(1.0, 5.0), "ids": np.array([0, 3, 4, -1])}
    assert run_reference(program, {"V": 4, "E": 4}, stored)["t"].tolist() == [1, 4, 0, 0]
    assert spmd


def _lookup() -> tuple[Program, SpmdProgram]:

    b = Build("2", V=4, E=4)
    b.stored("ids", "E", Kind.INPUT, "i32")
    b.stored("w", "V", dtype="f32")
    b.op(Take("t", "w", "ids", ("V",)), "E", "f32")
    return b.program("t"), b.spmd("t")


@pytest.mark.parametrize("number", [call("divide", 1.0, 0.0), call("log", 0.0), call("power", 0.0, -1.0)])
def test_an_emitted_file_agrees_with_itself_about_them(number: object) -> None:
    b = Build("2", E=4)
    b.stored("x", "E_x", Kind.INPUT, "f32")
    b.map("y", call("sqrt", "x"), "E_x", "f32")
    b.map("z", call("multiply", "x", number), "E_x", "f32")  # type: ignore[arg-type]
    names: dict[str, object] = {"__name__": "__main__"}
    with pytest.raises(SystemExit) as ended:
        exec(compile(emit_numpy(b.program("y", "z"), b.spmd("y", "z")), "emitted", "exec"), names)
    assert ended.value.code == 0
