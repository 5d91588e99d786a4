"""The emitted NumPy file: it runs alone, agrees, passes the linter, and fails when it is broken."""

from __future__ import annotations

import keyword
import subprocess
import sys
from pathlib import Path

import pytest
from exec_cases import CASES, feed_forward, softmax_split
from helpers_exec import Build, call

from escc.compiler.emit.numpy_source import emit_numpy
from escc.compiler.emit.python_text import ExprText, identifiers
from escc.ir.expr import FUNCTIONS, Const, Expr, Operand, Size

SIZES = ("# Full sizes: ", "# Sizes here: ")


def emitted(name: str) -> str:
    builder, results, _ = CASES[name]()
    return emit_numpy(builder.program(*results), builder.spmd(*results))


def run_file(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a text as a Python file where this package cannot be imported."""
    file = folder / "emitted.py"
    file.write_text(text)
    guard = "import runpy, sys; sys.modules['escc'] = None; runpy.run_path(sys.argv[1], run_name='__main__')"
    return subprocess.run([sys.executable, "-c", guard, str(file)], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("name", CASES)
def test_the_file_runs_alone_and_agrees(name: str, tmp_path: Path) -> None:
    done = run_file(emitted(name), tmp_path)
    assert done.returncode == 0, done.stderr
    chips = CASES[name]()[0].mesh.chips
    assert done.stdout.startswith(f"largest relative difference on {chips} virtual chips: ")
    assert done.stderr == ""


def test_all_files_pass_the_linter_and_fit_the_width(tmp_path: Path) -> None:
    for number, name in enumerate(CASES):
        text = emitted(name)
        assert all(len(line) <= 120 for line in text.splitlines())
        (tmp_path / f"case{number}.py").write_text(text)
    ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", str(tmp_path)]
    done = subprocess.run(ruff, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("feed-forward", 'mesh.all_gather(x, "yz", 0)', 'mesh.all_gather(x, "zy", 0)'),
        ("feed-forward", 'mesh.shard(stored["Wi"], ["x", "zy"])', 'mesh.shard(stored["Wi"], ["x", "yz"])'),
        ("feed-forward", 'mesh.all_reduce(d_1, "y")', "d_1"),
        ("partial max", 'mesh.all_reduce(m_1, "y", np.maximum)', 'mesh.all_reduce(m_1, "y")'),
        ("softmax over a split index", 'mesh.iota(size["M"], "y")', 'mesh.iota(size["M"] // 3, "")'),
        ("cache append", 'mesh.append(keys, k_1, 1, "yx"', 'mesh.append(keys, k_1, 1, "xy"'),
        ("rope", "rotate(q, -1)", "rotate(q, -2)"),
        ("repeated", "c = n\n", "c = c\n"),
    ],
)
def test_a_broken_file_exits_with_one(name: str, right: str, wrong: str, tmp_path: Path) -> None:
    text = emitted(name)
    sharded, marker, rest = text.partition("\ndef dense(")
    assert right in sharded
    assert run_file(sharded.replace(right, wrong) + marker + rest, tmp_path).returncode == 1


def test_steps_are_lines_with_their_layouts_beside_them() -> None:
    lines = [" ".join(line.split()) for line in emitted("feed-forward").splitlines()]
    assert 'x_1 = mesh.all_gather(x, "yz", 0) # BLE_x' in lines
    assert 'u = np.einsum("...BLE,...EF->...BLF", x_1, Wi) # BLF_zy partialsum-x' in lines
    assert 'u = np.einsum("BLE,EF->BLF", x, Wi) # [B, L, F]' in lines
    assert "# Model case, phase run, on 8 chips: x=2 y=2 z=2." in lines
    assert "# Full sizes: B = 8, L = 2, E = 4, F = 16." in lines
    assert "# u': reduce-scatter(x) F" in lines
    full, here = (line.split(", ")[-1] for line in emitted("repeated").splitlines() if line.startswith(SIZES))
    assert (full, here) == ("repetitions of layer = 3.", "repetitions of layer = 2.")


def test_the_same_program_gives_the_same_file() -> None:
    assert len({emitted("repeated") for _ in range(3)}) == 1


def test_names_become_identifiers_that_differ() -> None:
    names = ["layer.n", "layer.n'", "layer.n''", "layer_n", "lambda", "l", "np", "mesh", "3d", "_", "x-y", "x_y", "sum"]
    known = identifiers(names)
    assert (known["layer.n"], known["layer.n'"], known["layer.n''"]) == ("layer_n", "layer_n_1", "layer_n_2")
    assert len(set(known.values())) == len(names)
    for plain in known.values():
        assert plain.isidentifier() and not keyword.iskeyword(plain)
        assert plain not in {"l", "np", "mesh", "sum"}


def python(expr: Expr) -> str:
    return ExprText((), lambda name: name, {"a": (), "b": ()}, "zeros").write(expr)


def test_expressions_keep_their_meaning_with_few_parentheses() -> None:
    minus = call("subtract", "a", call("subtract", "b", 1.0))
    assert python(minus) == "a - (b - 1.0)"
    assert python(call("multiply", call("add", "a", "b"), call("negate", "a"))) == "(a + b) * -a"
    assert python(call("divide", "a", call("multiply", "a", "b"))) == "a / (a * b)"
    assert python(call("add", call("multiply", "a", 2.0), "b")) == "a * 2.0 + b"
    assert python(call("negate", call("add", "a", Const(-3.0)))) == "-(a + -3.0)"
    assert python(call("where", call("less_equal", "a", "b"), "a", 0.0)) == "np.where(a <= b, a, 0.0)"
    assert python(call("where", "a", float("-inf"), "b")) == "np.where(a != 0, -np.inf, b)"
    assert python(call("negate", call("subtract", Size("E"), Const(-2.0)))) == '-(size["E"] - -2.0) + zeros'


def test_every_function_can_be_written(tmp_path: Path) -> None:
    b = Build("2", E=4)
    b.stored("x", "E_x")
    b.map("y", call("exp", call("negate", call("abs", "x"))), "E_x")
    for number, (function, arity) in enumerate(FUNCTIONS.items()):
        arguments = ["y", call("multiply", "y", "y"), call("add", "y", 1.0)][:arity]
        b.map(f"f{number}", call(function, *arguments), "E_x")
    results = [f"f{n}" for n in range(len(FUNCTIONS))]
    done = run_file(emit_numpy(b.program(*results), b.spmd(*results)), tmp_path)
    assert done.returncode == 0, done.stderr


def test_long_expressions_are_wrapped(tmp_path: Path) -> None:
    builder, _, _ = feed_forward()
    expr: Expr = Operand("o")
    for _ in range(30):
        expr = call("add", call("sin", expr), call("multiply", "o", 0.25))
    builder.map("long", expr, "B_yzLE_x")
    text = emit_numpy(builder.program("long"), builder.spmd("long"))
    assert max(len(line) for line in text.splitlines()) <= 120
    assert run_file(text, tmp_path).returncode == 0


def test_masked_rows_are_part_of_what_is_compared() -> None:
    builder, _, _ = softmax_split()
    assert "-np.inf" in emit_numpy(builder.program("p"), builder.spmd("p"))
