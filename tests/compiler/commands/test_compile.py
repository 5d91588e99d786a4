"""The command line: what it prints, its exit codes, and that no input brings a traceback to a user."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from fractions import Fraction
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from escc.compiler.commands.compile import Solver
from escc.compiler.commands.main import app
from escc.compiler.jax import tpu
from escc.compiler.jax.hlo import ModuleTransfer
from escc.compiler.jax.module_report import ModuleReport
from escc.compiler.jax.planned import planned_of
from escc.compiler.jax.tpu import slice_of
from escc.compiler.plan.compiled import CompiledPhase
from escc.ir.collective import CollectiveKind
from escc.passes.ilp.solver import SOLVERS

ROOT = Path(__file__).parents[3]
PALM = str(ROOT / "examples" / "palm-540b.esti")
FEED_FORWARD = str(ROOT / "examples" / "feed-forward.esti")
STREAM = ("compile", "llama-3-8b", "--chips", "8", "--hardware", "h100", "--input", "10", "--output", "5")
SMALL = ("compile", FEED_FORWARD, "--chips", "2x2", "--set", "E=64", "--set", "F=256")
TWO_PHASES = 'model "two"\ndim B, E = 64\nmain(x: bf16[B,E]) { y = x + x\nreturn y }\n' + (
    "phase one { B = 4 }\nphase two { B = 8 }\n"
)


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def process(*arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "escc.compiler.commands.main", *arguments]
    return subprocess.run(command, capture_output=True, cwd="/", env=os.environ | environment, check=False)


def assert_refused(result: Result, code: int, said: str) -> None:
    assert result.exit_code == code, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert said in result.stderr
    assert "Traceback" not in result.output


def test_compile_prints_the_plan_and_nothing_else_on_standard_output() -> None:
    result = invoke(*SMALL, "--check")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith('Plan of "feed-forward", phase main, least time\n')
    assert "solved in" in result.stderr and "solved in" not in result.stdout
    assert "as predicted" in result.stdout


def test_json_is_json() -> None:
    found = json.loads(invoke(*SMALL, "--emit", "json", "--objective", "communication").stdout)
    assert (found["phase"], found["check"], found["sizes"]["E"]) == ("main", None, 64)


def test_every_phase_is_compiled_unless_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "two.esti"
    path.write_text(TWO_PHASES)
    both = json.loads(invoke("compile", str(path), "--chips", "2", "--emit", "json").stdout)
    assert [phase["phase"] for phase in both["phases"]] == ["one", "two"]
    one = json.loads(invoke("compile", str(path), "--chips", "2", "--emit", "json", "--phase", "two").stdout)
    assert (one["phase"], one["sizes"]["B"]) == ("two", 8)
    assert invoke("compile", str(path), "--chips", "2").stdout.count("Plan of ") == 2
    assert_refused(invoke("compile", str(path), "--chips", "2", "--emit", "numpy"), 1, "`--phase`")
    result = invoke("compile", str(path), "--chips", "2", "--emit", "numpy", "-o", str(tmp_path))
    assert result.stdout == "".join(f"wrote {tmp_path}/two_{phase}_numpy.py\n" for phase in ("one", "two"))


def test_files_are_not_written_over_unless_forced(tmp_path: Path) -> None:
    arguments = (*SMALL, "-o", str(tmp_path / "out"))
    assert invoke(*arguments).exit_code == 0
    path = tmp_path / "out" / "feed_forward_main.txt"
    text = path.read_text()
    path.write_text("mine")
    assert_refused(invoke(*arguments), 1, "feed_forward_main.txt` exists already")
    assert path.read_text() == "mine"
    assert invoke(*arguments, "--force").exit_code == 0
    assert path.read_text() == text


@pytest.mark.parametrize("pins", sorted((ROOT / "examples" / "pins").glob("*.pins")), ids=lambda path: path.stem)
def test_the_pins_that_are_shipped_hold(pins: Path) -> None:
    options = ("--chips", "4x4x4", "--objective", "communication", "--set", "B=4096", "--emit", "json")
    found = json.loads(invoke("compile", FEED_FORWARD, *options, "--pin", str(pins)).stdout)
    stored = dict(line.split()[1:] for line in pins.read_text().splitlines() if line.startswith("stored"))
    stored.pop("y")
    assert found["stored"] == stored
    assert found["status"] == "optimal"


def test_the_numpy_program_runs_on_its_own(tmp_path: Path) -> None:
    command = ["compile", "palm-8b", "--chips", "2x2x2", "--phase", "decode", "--emit", "numpy", "-o", str(tmp_path)]
    assert invoke(*command).exit_code == 0
    file = tmp_path / "palm_8b_decode_numpy.py"
    done = subprocess.run([sys.executable, "-I", str(file)], capture_output=True, text=True, check=False, cwd="/")
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[-1]) <= 1e-9


def test_the_same_input_gives_the_same_bytes() -> None:
    """Every figure of a plan to the last digit, and its program, whatever the order of sets."""
    arguments = ("compile", PALM, "--chips", "4x4x4", "--phase", "decode", "--emit", "json")
    texts = [process(*arguments, PYTHONHASHSEED=seed).stdout for seed in ("0", "1", "7")]
    plans = {re.sub(rb'"(build|solve)_s": [^,]*,', b"", text) for text in texts}  # which are times of this machine
    assert len(plans) == 1
    data = json.loads(plans.pop())
    assert (data["model"], data["phase"], len(data["steps"])) == ("palm-540b", "decode", 33)


def test_check_says_what_is_in_a_model() -> None:
    result = invoke("check", PALM)
    assert result.exit_code == 0
    assert result.stdout.startswith(
        "ok: model palm-540b, phases prefill, decode: 1 input, 8 params, 2 caches, 1 repeat, "
    )
    assert result.stdout.count("\n") == 1
    assert_refused(invoke("check", PALM, "--set", "H=0"), 1, "at least 1")


def test_layouts_hardware_version_and_help() -> None:
    result = invoke("layouts", "BLE", "--dims", "B=512,L=1", "--dims", "E=18432", "--chips", "4x4x4")
    assert result.exit_code == 0
    assert "BLE_xyz" in result.stdout and "L_" not in result.stdout
    assert "tpu-v4" in invoke("hardware").stdout
    assert invoke("--version").stdout == f"escc {version('escc')}\n"
    for command in ("compile", "check", "layouts", "hardware"):
        assert command in invoke("--help").stdout
        assert invoke(command, "--help").exit_code == 0


def test_hardware_is_listed_shown_and_read_from_a_file(tmp_path: Path) -> None:
    assert {"tpu-v4", "tpu-7x", "h100", "gb200-nvl72"} <= {
        row.split()[0] for row in invoke("hardware").stdout.splitlines()
    }
    shown = invoke("hardware", "tpu-v5e").stdout
    assert "17.1799 GB at 820 GB/s" in shown and "an axis of exactly 16 chips closes into a ring" in shown
    assert_refused(invoke("hardware", "tpu-v5q"), 1, "did you mean `tpu-v5")
    path = tmp_path / "mine.toml"
    path.write_text((ROOT / "cost" / "presets" / "h100.toml").read_text().replace('"h100"', '"mine"'))
    mesh = ("--chips", "node=2,gpu=2", "--hardware", str(path), "--emit", "json")
    flat, links = (
        json.loads(invoke("compile", FEED_FORWARD, *mesh, "--network", network).stdout) for network in ("flat", "links")
    )
    assert flat["hardware"] == links["hardware"] == "mine"
    assert links["objective_s"] > flat["objective_s"]
    path.write_text(path.read_text().replace("hbm_bytes =", "hbm_byte ="))
    assert_refused(invoke(*SMALL, "--hardware", str(path)), 1, "did you mean `hbm_bytes`")
    assert_refused(invoke(*SMALL, "--network", "magic"), 2, "magic")
    arguments = ("compile", FEED_FORWARD, "--chips", "node=2,gpu=8", "--hardware", "v100", "--network", "links")
    assert_refused(invoke(*arguments), 1, "Axis `node` joins nodes")


def test_every_solver_can_be_asked_for() -> None:
    assert {solver.value for solver in Solver} == set(SOLVERS)
    assert invoke(*SMALL, "--solver", "gscip").stdout == invoke(*SMALL).stdout


WRONG_FILES = {
    "empty": (b"", "The file holds no program"),
    "binary": (bytes(range(256)) * 20, "not a text file"),
    "latin": (b"dim B = 4 # \xe9\n", "not UTF-8"),
    "ten-megabytes": (b"a" * 10_000_000, "larger than 1 MB"),
    "huge-dim": (b"dim B = 1000000000000000000\nmain(x: bf16[B]) { y = x + x\nreturn y }\n", "larger than 2^40"),
    "deep": (
        b"dim B = 4\nmain(x: bf16[B]) { y = " + b"(" * 100_000 + b"x" + b")" * 100_000 + b"\nreturn y }\n",
        "nested more than",
    ),
    "unknown-dim": (b"dim B = 4\nmain(x: bf16[B,Q]) { y = x + x\nreturn y }\n", "`Q` is not declared"),
    "undeclared": (b"dim B = 4\nmain(x: bf16[B]) { y = x + w\nreturn y }\n", "`w` is not declared"),
    "mismatch": (b"dim B = 4, E = 4\nmain(x: bf16[B]) { y[E] = x[E]\nreturn y }\n", "x"),
    "shadowed": (b"dim B = 4\ndim B = 5\nmain(x: bf16[B]) { y = x + x\nreturn y }\n", "B"),
    "unbound": (b"dim B\nmain(x: bf16[B]) { y = x + x\nreturn y }\n", "gives a size"),
}


@pytest.mark.parametrize("command", [("check",), ("compile", "--chips", "2")], ids=["check", "compile"])
@pytest.mark.parametrize("name", WRONG_FILES)
def test_a_wrong_file_is_refused(tmp_path: Path, name: str, command: tuple[str, ...]) -> None:
    path = tmp_path / "wrong.esti"
    content, said = WRONG_FILES[name]
    path.write_bytes(content)
    assert_refused(invoke(*command, str(path)), 1, said)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("compile", "nowhere.esti", "--chips", "2"), 1, "does not exist"),
        (("compile", "/", "--chips", "2"), 1, "not a file"),
        (("compile", FEED_FORWARD, "--chips", "4x4x"), 1, "is not a mesh"),
        (("compile", FEED_FORWARD, "--chips", "0"), 1, "size 0"),
        (("compile", FEED_FORWARD, "--chips", "9" * 30), 1, "more than"),
        (("compile", FEED_FORWARD), 2, "--chips"),
        (("compile",), 2, "FILE"),
        (("kompile",), 2, "kompile"),
        ((*SMALL, "--emit", "xml"), 2, "xml"),
        ((*SMALL, "--solver", "magic"), 2, "magic"),
        ((*SMALL, "--set", "E"), 1, "`--set E`"),
        ((*SMALL, "--set", "E=-1"), 1, "`--set E=-1`"),
        ((*SMALL, "--set", "E=8"), 1, "twice"),
        ((*SMALL, "--set", "Z=8"), 1, "`Z` is not declared"),
        ((*SMALL, "--set", "L=" + "9" * 5000), 1, "gives no dim a size"),
        ((*SMALL, "--phase", "decode"), 1, "no phase `decode`"),
        ((*SMALL, "--hardware", "tpu-v5"), 1, "did you mean `tpu-v5"),
        ((*SMALL, "--pin", "nowhere.pins"), 1, "does not exist"),
        ((*SMALL, "-o", FEED_FORWARD), 1, "is not a folder"),
        ((*SMALL, "-o", "/proc/nothing"), 1, "cannot be written to"),
        (("compile", PALM, "--chips", "2x2x2", "--phase", "decode"), 1, "more than the 32.95 GB"),
        (("compile", "", "--chips", "2"), 1, "The name of a file or folder is empty."),
        (("check", ""), 1, "The name of a file or folder is empty."),
        ((*SMALL, "--pin", ""), 1, "The name of a file or folder is empty."),
        ((*SMALL, "-o", ""), 1, "The name of a file or folder is empty."),
        ((*SMALL, "--force"), 1, "`--force` writes over files, and none is written here."),
        (
            (*SMALL, "--program", "--emit", "json"),
            1,
            "`--program` is of the plan as text, and `--emit json` writes none.",
        ),
        (
            (*SMALL, "--verbose", "--emit", "jax"),
            1,
            "`--verbose` is of the plan as text, and `--emit jax` writes none.",
        ),
        ((*SMALL, "--any-shape"), 1, "`--any-shape` is of a count of chips"),
        ((*SMALL, "--skew", "2"), 1, "A skew is the load of chosen entries"),
        ((*SMALL, "--capacity", "1.25"), 1, "A capacity is the room for chosen entries"),
        ((*SMALL, "--weights", "f32"), 2, "'f32' is not one of bf16, int8, fp8, fp4, int4."),
        ((*SMALL, "--caches", "int3"), 2, "'int3' is not one of bf16, int8, fp8, fp4, int4."),
        (("check", FEED_FORWARD, "--weights", "e8m0"), 2, "'e8m0' is not one of bf16, int8, fp8, fp4, int4."),
        ((*STREAM, "--batch", "8", "--set", "B=9"), 1, "`--set` gives dim `B` a size, and `--batch` others"),
        ((*STREAM, "--batch", "8", "--set", "M=16384"), 1, "`--set` gives dim `M` a size, and `--input` others"),
        (("layouts", "BLE", "--dims", "B=2", "--chips", "2"), 1, "`L` has no size"),
        (("layouts", "BLE", "--dims", "B", "--chips", "2"), 1, "`--dims B`"),
    ],
)
def test_wrong_arguments_are_refused(arguments: tuple[str, ...], code: int, said: str) -> None:
    assert_refused(invoke(*arguments), code, said)


STOPPED = (*SMALL, "--stop-after", "choose")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        *(((option,), f"`{option}` does") for option in ("--check", "--best-batch", "--separate", "--force")),
        *(((option,), f"`{option}` does") for option in ("--overlap", "--program", "--verbose")),
        (("--check", "tpu"), "`--check tpu` does"),
        (("--pad", "auto"), "`--pad auto` does"),
        (("--stages", "2"), "`--stages` does"),
        (("--micro-batches", "main=2"), "`--micro-batches` does"),
        (("--offload", "auto"), "`--offload` does"),
        (("--ahead", "1"), "`--ahead` does"),
        (("--emit", "json"), "`--emit` does"),
        (("-o", "out"), "`--out` does"),
        (("--chips", "16"), "shows a plan of one mesh, and 4 shapes have so many chips."),
    ],
)
def test_a_stage_that_is_printed_refuses_what_it_has_no_part_in(more: tuple[str, ...], said: str) -> None:
    found = invoke(*STOPPED, "--any-shape", *more) if "--chips" in more else invoke(*STOPPED, *more)
    assert_refused(found, 1, said)
    assert not found.stdout


def test_a_stage_that_is_printed_has_no_streams(tmp_path: Path) -> None:
    pins = tmp_path / "host.pins"
    pins.write_text("place layer.Wi host\n")
    stopped = ("compile", PALM, "--chips", "2x2", "--stop-after", "choose", "--pin", str(pins))
    assert_refused(invoke(*stopped), 1, "`layer.Wi` is placed with the host")


@pytest.mark.parametrize(
    "option",
    [
        *(("--hardware", "nope"), ("--engine", "nope"), ("--network", "flat"), ("--datasheet",), ("--overlap",)),
        *(("--offload", "auto"), ("--ahead", "5"), ("--stages", "2"), ("--capacity", "2")),
    ],
)
def test_a_check_without_a_backend_refuses_what_is_of_a_plan(option: tuple[str, ...]) -> None:
    assert_refused(invoke("check", FEED_FORWARD, *option), 1, f"`{option[0]}` is of a plan.")


def test_a_pin_that_cannot_hold_is_named(tmp_path: Path) -> None:
    pins = tmp_path / "wrong.pins"
    pins.write_text("stored Wi E_aF\n")
    assert_refused(invoke(*SMALL, "--pin", str(pins)), 1, "The pin `stored Wi E_aF` cannot hold")
    pins.write_text("stored Wi E_xF\nstored Zz E_xF\n")
    assert_refused(invoke(*SMALL, "--pin", str(pins)), 1, "wrong.pins:2:8: error: The program has no value `Zz`")
    pins.write_text("stored return BE\n")
    refused = invoke(*SMALL, "--pin", str(pins))
    assert_refused(refused, 1, "wrong.pins:1:8: error: What is returned has a name.")
    assert "hint: the results are y" in refused.stderr


def test_an_idle_axis_is_warned_of() -> None:
    result = invoke("compile", FEED_FORWARD, "--chips", "7x1", "--set", "B=4")
    assert result.exit_code == 0
    assert "warning: In phase `main` axis `x` (7) can split no dim" in result.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_an_output_that_is_full_or_closed_is_said_and_brings_no_traceback() -> None:
    command = f"{sys.executable} -m escc.compiler.commands.main layouts BLE --dims B=64,L=64,E=64 --chips 2x2x2x2"
    for redirect, said in (
        (">/dev/full", b"Standard output cannot be written to"),
        (">&-", b"it is closed"),
        ("| true", b""),
    ):
        done = subprocess.run(f"{command} {redirect}", shell=True, capture_output=True, check=False, cwd="/")
        assert said in done.stderr
        assert done.stderr.count(b"\n") == bool(said)
    assert (
        subprocess.run(
            f"{command} 2>/dev/full | head -n 1", shell=True, capture_output=True, check=False, cwd="/"
        ).stderr
        == b""
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
@pytest.mark.parametrize("asked", ["--help", "compile --help", "--version"])
def test_help_that_cannot_be_written_brings_no_traceback(asked: str) -> None:
    command = f"{sys.executable} -m escc.compiler.commands.main {asked} > /dev/full"
    done = subprocess.run(command, shell=True, capture_output=True, check=False, cwd="/", text=True)
    assert done.returncode == 1
    assert done.stderr == "error: Standard output cannot be written to: No space left on device.\n"


def test_output_that_cannot_hold_a_character_is_escaped(tmp_path: Path) -> None:
    path = tmp_path / "größe\n.esti"
    path.write_text('model "größe"\n' + TWO_PHASES.split("\n", 1)[1], encoding="utf-8")
    done = process("compile", str(path), "--chips", "2", "--phase", "one", PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert b"gr\\u00f6\\u00dfe" in done.stdout


def test_a_module_that_the_tpu_compiler_changes_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compiled is what would be written, word for word."""
    seen: list[str] = []

    def checked(one: CompiledPhase, step: str) -> ModuleReport:
        seen.append(step)
        sent, none = planned_of(one), Counter[ModuleTransfer]()
        more = Counter({ModuleTransfer(CollectiveKind.ALL_REDUCE, ("x",), Fraction(8)): 1})
        found = sent if len(seen) == 1 else sent + more
        memory = dict.fromkeys(("argument", "output", "alias", "temp"), 1)
        return ModuleReport(
            slice_of(one.spmd.mesh, one.hardware).topology, sent, found, none, memory, 2.0, (), (), False
        )

    monkeypatch.setattr(tpu, "check_tpu", checked)
    monkeypatch.setattr(tpu, "require_tpu_compiler", lambda: None)
    command = (*SMALL, "--emit", "jax", "-o", str(tmp_path), "--check")
    done = invoke(*command, "tpu")
    assert done.exit_code == 0 and "bytes in all, as planned" in done.stdout, done.output
    [file] = tmp_path.iterdir()
    assert seen == [file.read_text()]
    file.unlink()
    assert_refused(invoke(*command[:-1], "--check=tpu"), 1, "makes another program of phase main than was planned")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--emit", "numpy"), "`--check tpu` is of a JAX module."),
        (("--emit", "jax", "--stages", "2"), "does not go with `--stages`"),
        (("--emit", "jax", "--hardware", "h100"), "has no name for h100"),
        (("--emit", "jax", "--chips", "2x3"), "2x3 is no slice of tpu-v4"),
    ],
)
def test_what_the_tpu_compiler_could_not_check_is_refused(
    more: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tpu, "require_tpu_compiler", lambda: None)
    assert_refused(invoke(*SMALL, "--check", "tpu", *more), 1, said)
