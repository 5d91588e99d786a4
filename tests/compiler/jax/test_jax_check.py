"""The check of an emitted JAX program: what it counts, what it finds equal, and what it does not let pass."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from exec_cases import CASES
from helpers_exec import Build, call
from jax_cases import caches_of_one_dim, gathered_together, one_row, reduced_together
from typer.testing import CliRunner, Result

from escc.compiler.commands.main import app
from escc.compiler.emit.jax_source import emit_jax
from escc.compiler.jax import check as jax_check
from escc.compiler.jax.check import check_jax, jax_check_text, require_jax
from escc.compiler.jax.hlo import ModuleTransfer, collectives_of
from escc.compiler.jax.hlo_text import ModuleError
from escc.compiler.jax.planned import planned, sent_bytes
from escc.compiler.plan.compiled import CompiledPhase
from escc.compiler.plan.pipeline import compile_phase, load, parse
from escc.cost.estimate import Estimate, estimate
from escc.cost.hardware import Hardware
from escc.cost.platform import Platform
from escc.ir.diagnostics import InputError, InternalError
from escc.ir.expr import FUNCTIONS, Const, Operand, Size
from escc.ir.mesh import Mesh
from escc.ir.program import Iota, Kind, Program, Sum, Take
from escc.ir.spmd import SpmdProgram
from escc.passes.options import Options

EXAMPLES = Path(__file__).parents[3] / "examples"
HARDWARE = Hardware.of_paper("tpu-v4")
MESH = Mesh.parse("2x4")
pytestmark = pytest.mark.usefixtures("forked_jax")


@dataclass(frozen=True)
class ByHand:
    """A sharded program that no search has made."""

    program: Program
    spmd: SpmdProgram
    for_tpu: bool = False
    platform: Platform = Platform.ANY

    @property
    def estimate(self) -> Estimate:
        return estimate(self.spmd, HARDWARE)

    @property
    def phase(self) -> str:
        return self.spmd.phase


def compiled(file: str, phase: str, *pins: str) -> CompiledPhase:
    paths = [EXAMPLES / "pins" / f"{name}.pins" for name in pins]
    source = EXAMPLES / file if (EXAMPLES / file).exists() else Path(file)
    return compile_phase(load(source, None, paths), phase, Mesh.parse("4x4x4"), Options(HARDWARE))


def module(body: str, before: str = "") -> str:
    head = "ENTRY %main (p: f32[8,4]) -> f32[8,4] {\n  %p = f32[8,4] parameter(0)"
    return f"HloModule m\n\n{before}\n{head}\n{body}\n}}\n"


GATHER = "%g = f32[32,4] all-gather(%p), replica_groups={{0,1,2,3},{4,5,6,7}}, dimensions={0}"


ROWS, ALL = "replica_groups={{0,1,2,3},{4,5,6,7}}", "replica_groups={{0,4,1,5,2,6,3,7}}"
MESHED = "replica_groups=mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) {'b'}"
PAIRS = "source_target_pairs={{0,4},{4,0},{1,1}}"


@pytest.mark.parametrize(
    ("line", "kind", "axes", "sent"),
    [
        (GATHER, "all-gather", ("y",), 3 * 128),
        ("%g = f32[32,4] all-gather(%p), replica_groups=[2,4]<=[8]", "all-gather", ("y",), 3 * 128),
        ("%r = f32[8,4] all-reduce(%p), replica_groups=[4,2]<=[2,4]T(1,0)", "all-reduce", ("x",), 128),
        (f"%r = f32[8,4] all-reduce(%p), {MESHED}", "all-reduce", ("x",), 128),
        ("%r = f32[8,4] all-reduce(%p), replica_groups=mesh['a'=2,'b'=4] {'b'}", "all-reduce", ("y",), 192),
        ("%r = f32[8,4] all-reduce(%p), replica_groups=mesh['a'=8] {'a':(2)4}", "all-reduce", ("y",), 192),
        ("%r = f32[8,4] all-reduce(%p), replica_groups=mesh['a'=8] {'a':(1)2}", "all-reduce", ("x",), 128),
        (f"%s = f32[1,4] reduce-scatter(%p), {ALL}", "reduce-scatter", ("x", "y"), 112),
        (f"%a = f32[8,4] all-to-all(%p), {ROWS}", "all-to-all", ("y",), 96),
        (f"%a = f32[8,4] ragged-all-to-all(%p, %p, %p, %p, %p, %p), {ROWS}", "all-to-all", ("y",), 96),
        ("%t = (f32[8,4], f32[8,4]) all-reduce(%p, %p), replica_groups={}", "all-reduce", ("x", "y"), 448),
        (f"%c = f32[8,4] collective-permute(%p), {PAIRS}", "permute", ("x",), 128),
        ("%g = f32[16,4] all-gather(%p), replica_groups={{0,1},{2,3},{4,5},{6,7}}", "all-gather", None, 128),
    ],
)
def test_a_collective_is_read_with_its_axes_and_bytes(
    line: str, kind: str, axes: tuple[str, ...] | None, sent: int
) -> None:
    assert collectives_of(module(f"  {line}"), MESH) == Counter({ModuleTransfer(kind, axes, Fraction(sent)): 1})


LOOP = """
%body (b: (s32[], f32[8,4])) -> (s32[], f32[8,4]) {
  %b = (s32[], f32[8,4], /*index=2*/f32[8,4]) parameter(0)
  %p = f32[8,4] get-tuple-element(%b), index=1
  GATHER
  INNER
}

%until (c: (s32[], f32[8,4])) -> pred[] {
  %c = (s32[], f32[8,4]) parameter(0)
  %i = s32[] get-tuple-element(%c), index=0
  %n = s32[] constant(118)
  ROOT %lt = pred[] compare(%i, %n), direction=LT
}
""".replace("GATHER", GATHER)


def test_what_a_loop_runs_counts_as_often_as_it_does() -> None:
    loop = "  %w = (s32[], f32[8,4]) while(%p), condition=%until, body=%body"
    assert list(collectives_of(module(loop, LOOP), MESH).values()) == [118]
    inner = LOOP.replace("INNER", loop.replace("%body", "%deep").strip())
    deep = LOOP[: LOOP.index("%until")].replace("%body", "%deep")
    assert list(collectives_of(module(loop, inner + deep), MESH).values()) == [118 + 118 * 118]
    known = loop + ', backend_config={"known_trip_count":{"n":"7"}}'
    assert list(collectives_of(module(known, LOOP), MESH).values()) == [7]
    unknown = LOOP.replace("direction=LT", "direction=NE")
    with pytest.raises(ModuleError, match="how often"):
        collectives_of(module(loop, unknown), MESH)
    beside, silent = f"  {GATHER}\n{loop}", unknown.replace(GATHER, "")  # the loop sends nothing
    assert list(collectives_of(module(beside, silent), MESH).values()) == [1]


def test_texts_that_are_no_modules_are_refused() -> None:
    with pytest.raises(ModuleError, match="no entry"):
        collectives_of("", MESH)
    with pytest.raises(ModuleError, match="devices"):
        collectives_of(module("  %g = f32[32,4] all-gather(%p), dimensions={0}"), MESH)


@pytest.mark.parametrize("pins", ["ws1d", "ws2d", "wg-x", "wg-xy", "wg-xyz"])
def test_the_feed_forward_moves_the_planned_bytes_under_every_layout(pins: str) -> None:
    report = check_jax(compiled("feed-forward.esti", "main", pins))
    assert report.sound
    assert report.module == report.planned
    assert sum(report.final.values()) == sum(report.planned.values())


@pytest.mark.parametrize(("model", "sent"), [("palm-540b.esti", 118 * 21_561_792), ("llama-3-70b", 134_728_176)])
def test_a_decoding_step_moves_the_planned_bytes(model: str, sent: int) -> None:
    one = compiled(model, "decode")
    report = check_jax(one)
    assert report.sound, jax_check_text(one, report)
    assert sent_bytes(report.module) == sent


@pytest.mark.parametrize("case", [gathered_together, reduced_together])
def test_collectives_that_run_as_one_are_one_in_the_module(case: Any) -> None:
    report = check_jax(ByHand(*case()))  # type: ignore[arg-type]
    assert report.sound
    assert sum(report.module.values()) == {gathered_together: 2, reduced_together: 4}[case]


def test_padded_and_quantised_programs_agree(tmp_path: Path) -> None:
    file = tmp_path / "small.esti"
    file.write_text(
        "dim B = 8, E = 64, F = 30 pad 32, M = 16\nparam Wi: int8[E,F] * f32[F]\nparam Wo: int4[F,E] * bf16[E]\n"
        "param Wg: fp4[E,F] * e8m0[E,F]\n"
        "cache keys: int8[B,M,E] * f32[B,M]\ndim L = 1\n"
        "main(x: bf16[B,L,E]) {\n  ks = append(keys, x, L into M)\n  s[B,M] = x[B,L,E] * ks[B,M,E]\n"
        "  p = softmax(s, over=M)\n  o[B,L,E] = p[B,M] * ks[B,M,E] * x[B,L,E]\n  u[B,L,F] = o[B,L,E] * Wi[E,F]\n"
        "  g[B,L,F] = o[B,L,E] * Wg[E,F]\n  h = gelu(u) * g\n  y[B,L,E] = h[B,L,F] * Wo[F,E]\n  return x + y\n}\n"
    )
    report = check_jax(compile_phase(load(file), "main", Mesh.parse("2x2"), Options(HARDWARE)))
    assert report.sound
    assert report.wide.whole == 0.0


def broken(monkeypatch: pytest.MonkeyPatch, right: str, wrong: str) -> None:
    """Let what is emitted have `wrong` where it has `right`."""

    def emit(*arguments: Any, **how: Any) -> str:
        before, marker, rest = emit_jax(*arguments, **how).partition("\ndef dense(")
        assert right in before
        return before.replace(right, wrong) + marker + rest

    monkeypatch.setattr(jax_check, "emit_jax", emit)


def test_a_program_that_sends_more_is_not_sound(monkeypatch: pytest.MonkeyPatch) -> None:
    broken(
        monkeypatch,
        'u = lax.psum_scatter(u, "x", scatter_dimension=1, tiled=True)',
        'u = lax.dynamic_slice_in_dim(lax.psum(u, "x"), lax.axis_index("x") * (u.shape[1] // 4), u.shape[1] // 4, 1)',
    )
    one = compiled("feed-forward.esti", "main", "ws2d")
    report = check_jax(one)
    assert report.agrees
    assert not report.equal
    assert "NOT the 14,155,776 planned" in jax_check_text(one, report)


def test_a_program_that_computes_something_else_is_not_sound(monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch, '"Wi": P("x", ("z", "y"))', '"Wi": P("x", ("y", "z"))')
    report = check_jax(compiled("feed-forward.esti", "main", "ws2d"))
    assert report.equal
    assert not report.agrees


def test_a_result_that_is_not_the_same_everywhere_does_not_pass_the_types_of_jax(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    builder, results, _ = CASES["lookup in two dims"]()
    broken(monkeypatch, "lax.psum(", "(lambda a, axes: a)(")
    with pytest.raises(InternalError, match=r"the emitted program does not run: .*ValueError"):
        check_jax(ByHand(builder.program(*results), builder.spmd(*results)))  # type: ignore[arg-type]


def test_a_reduce_scattered_maximum_is_planned_as_an_exchange() -> None:
    spmd = reduced_together()[1]
    kinds = {sent.kind for sent in planned(spmd, estimate(spmd, HARDWARE))}
    assert kinds == {"all-reduce", "reduce-scatter", "all-to-all"}


@pytest.mark.parametrize(("found", "says"), [(None, "JAX is not installed."), ("0.9.2", "JAX 0.9.2 is too old; 0.10")])
def test_without_a_jax_that_will_do_one_sentence_says_so(
    found: str | None, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(_: str) -> str:
        if found is None:
            raise jax_check.PackageNotFoundError
        return found

    monkeypatch.setattr(jax_check, "version", version)
    with pytest.raises(InputError) as error:
        require_jax()
    [diagnostic] = error.value.diagnostics
    assert diagnostic.message.startswith(says)
    assert diagnostic.hint == "install it with `pip install 'escc[jax]'`"


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_the_command_line_writes_checks_and_refuses(tmp_path: Path) -> None:
    small = (str(EXAMPLES / "feed-forward.esti"), "--chips", "2", "--set", "E=64", "--set", "F=256", "--set", "B=8")
    done = invoke("check", *small, "--backend", "jax", "--weights", "int8", "--pad", "B=12")
    assert done.exit_code == 0, done.stderr
    assert "as planned" in done.stdout
    shown = invoke("check", str(EXAMPLES / "feed-forward.esti"), "--weights", "int8")
    assert "4 params" in shown.stdout, "two matrices and their scales"

    made = invoke("compile", *small, "--emit", "jax", "-o", str(tmp_path / "out"))
    assert made.exit_code == 0, made.stderr
    [file] = (tmp_path / "out").iterdir()
    assert file.name == "feed_forward_main_jax.py"
    text = file.read_text()
    again = invoke("compile", *small, "--emit", "jax", "-o", str(tmp_path / "out"))
    assert (again.exit_code, file.read_text()) == (1, text)
    assert "exists already" in again.stderr

    specs = invoke("compile", *small, "--emit", "specs", "-o", str(tmp_path / "specs"))
    assert specs.exit_code == 0, specs.stderr
    names = sorted(path.name for path in (tmp_path / "specs").iterdir())
    assert names == ["feed_forward_main_specs.json", "feed_forward_main_specs.py"]
    (tmp_path / "specs" / names[1]).unlink()
    again = invoke("compile", *small, "--emit", "specs", "-o", str(tmp_path / "specs"))
    assert again.exit_code == 1
    assert [path.name for path in (tmp_path / "specs").iterdir()] == names[:1]

    both = invoke("compile", str(EXAMPLES / "palm-540b.esti"), "--chips", "4x4x4", "--emit", "jax")
    assert both.exit_code == 1
    assert "each a program of its own" in both.stderr
    assert invoke("check", *small).exit_code == 2


def test_an_emitted_file_says_when_devices_are_too_few(tmp_path: Path) -> None:
    one = compiled("feed-forward.esti", "main", "ws2d")
    (tmp_path / "step.py").write_text(emit_jax(one.program, one.spmd, one.estimate))
    code = "import jax; jax.config.update('jax_num_cpu_devices', 8); import step; step.make_mesh()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, cwd=tmp_path, check=False, env={"JAX_PLATFORMS": "cpu"},
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.endswith("RuntimeError: This program takes 64 devices, and JAX has 8.\n")


def test_functions_of_integers_and_of_numbers_are_the_reference_s() -> None:
    b = Build("2", E=8, F=4)
    b.op(Iota("i", "E"), "E_x", "i32")
    b.stored("x", "E_x", Kind.INPUT)
    results = []
    numbers = (Size("F"), Const(2.0), call("subtract", Size("F"), Size("F")), call("multiply", Size("E"), 1e12))
    for function, arity in FUNCTIONS.items():
        for first in (Operand("i"), *numbers):
            arguments = [first, Const(3.0), Const(-0.5)][:arity]
            made = call("where", "x", call(function, *arguments), 0.0)
            results.append(b.map(f"f{len(results)}", made, "E_x", "f32"))
        if arity == 2:
            results.append(b.map(f"f{len(results)}", call(function, "i", 0.25), "E_x", "f32"))
        if function in ("add", "subtract", "multiply", "maximum", "minimum"):
            results.append(b.map(f"f{len(results)}", call(function, call("add", "i", 1), "i"), "E_x", "i32"))
    results.append(b.op(Sum("s", ("i", "x"), (0.5, 1.0)), "E_x", "f32"))
    results.append(b.op(Sum("t", ("i",), (0.5,)), "E_x", "f32"))
    results.append(b.einsum("u", "E,E->E", "i", "i", layout="E_x", dtype="f32"))
    for wrong in ("1/0", "log"):
        number = call("divide", 1.0, 0.0) if wrong == "1/0" else call("log", call("subtract", Size("E"), Size("E")))
        results.append(b.map(f"w{len(results)}", call("maximum", number, "x"), "E_x", "f32"))
    report = check_jax(ByHand(b.program(*results), b.spmd(*results)))  # type: ignore[arg-type]
    assert report.agrees


@pytest.mark.parametrize("case", [one_row, caches_of_one_dim])
def test_small_dims_are_the_reference_s(case: Callable[[], tuple[Program, SpmdProgram]]) -> None:
    assert check_jax(ByHand(*case())).agrees  # type: ignore[arg-type]


def test_a_lookup_has_the_type_that_is_declared() -> None:
    b = Build("2", V=4, E=8)
    b.stored("ids", "E_x", Kind.INPUT, "i32")
    b.stored("w", "V", dtype="f16")
    b.op(Take("t", "w", "ids", ("V",)), "E_x", "f32")
    spmd = b.spmd("t")
    assert ".astype(jnp.float32)" in emit_jax(b.program("t"), spmd, estimate(spmd, HARDWARE))


def test_rows_of_codes_in_groups_have_the_type_that_is_declared() -> None:
    """A repeat takes them on as they are declared, at small sizes and in the types of the module."""
    text = """
    dim B = 8, L = 1, V = 32, E = 16, N = E / 4
    param table: int8[V,E] * f16[V,N]
    block layer(x: f32[B,L,E]) -> f32[B,L,E] { return x + x * x }
    main(ids: i32[B,L]) {
      x: f32 = take(table, ids, over=V)
      return repeat 2 layer(x)
    }
    """
    report = check_jax(compile_phase(parse(text), "main", Mesh.parse("2"), Options(HARDWARE)))
    assert report.agrees and report.narrow is not None and report.narrow.reference < 1e-5


def test_the_unsharded_program_is_run_too(monkeypatch: pytest.MonkeyPatch) -> None:
    builder, results, _ = CASES["cache append"]()
    text = jax_check.emit_jax

    def broken_below(*arguments: Any, **how: Any) -> str:
        sharded, dense = text(*arguments, **how).split("def dense(")
        return f"{sharded}def dense({dense.replace('lax.dynamic_update_slice(', '(lambda a, *_: a)(')}"

    monkeypatch.setattr(jax_check, "emit_jax", broken_below)
    report = check_jax(ByHand(builder.program(*results), builder.spmd(*results)))  # type: ignore[arg-type]
    assert report.equal and not report.agrees and report.wide.reference < 1e-5 < report.dense.reference


def test_what_is_not_finite_in_32_bits_is_the_model_s() -> None:
    b = Build("2", E=8)
    b.stored("x", "E_x", Kind.INPUT, "f32")
    b.map("big", call("exp", call("multiply", 200.0, call("abs", "x"))), "E_x", "f32")
    b.map("y", call("divide", "big", call("add", "big", 1.0)), "E_x", "f32")
    with pytest.raises(InputError, match=r"do not stay finite.*`big` is infinite"):
        check_jax(ByHand(b.program("y"), b.spmd("y")))  # type: ignore[arg-type]


def test_one_device_is_checked_too() -> None:
    builder, results, _ = CASES["one chip"]()
    assert check_jax(ByHand(builder.program(*results), builder.spmd(*results))).agrees  # type: ignore[arg-type]
